"""Clusters of short texts beside what people use, on the same embeddings.

Main part: disjoint folds of labelled texts (news, search snippets, questions), the number of clusters given. `labels`
asks the direct question: are pseudo-labels by transport with the semantic term better than those without, when the
classifier sees noisy features? `uneven` has clusters of very different size, `unknown` does not tell the number of
clusters, `trained` lets the encoder learn (full scale: minutes a case). Embeddings are made once and kept.
"""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.cluster import HDBSCAN, AgglomerativeClustering, KMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.mixture import GaussianMixture

from assay import datasets
from assay._core.cache import made_dir
from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.files import replacing
from assay._core.progress import progress_bar
from assay._core.seeds import child_seed
from assay._core.tables import read_table
from assay.bench import Arm, Case, Claim, Data, Metric, Trial
from assay.solve.caot_stc import ShortTextClusterer, clustering_accuracy, consistency_aware_ot, estimated_clusters
from assay.solve.caot_stc.texts import class_tfidf, without_some_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from assay.bench.spec import Parameter, Scale

    Labels = NDArray[np.intp]

SETS = {"agnews": "news", "search_snippets": "search snippets", "stackoverflow": "questions"}

#: Texts of a case, texts of a batch and training steps where the parameters say 0.
SIZES = {"quick": (400, 100, 60), "standard": (1000, 200, 250), "full": (4000, 200, 2000)}


class Given(NamedTuple):
    """What an arm sees of a fold; no number of clusters where it is to be found."""

    texts: list[str]
    embeddings: NDArray[np.float32]
    n_clusters: int | None
    batch_size: int
    steps: int
    lam_size: float
    reducer: str


class Pool(NamedTuple):
    """One set of labelled texts with their embeddings."""

    name: str
    texts: list[str]
    topics: NDArray[Any]
    embeddings: NDArray[np.float32]


class World(NamedTuple):
    """What cases are cut from."""

    pools: list[Pool]
    n_texts: int
    settings: tuple[int, int, float, str]


# ------------------------------------------------------------------------------------------------ texts and embeddings


def embedded(texts: list[str]) -> NDArray[np.float32]:
    """Embeddings by the demo encoder, kept on disk under the hash of the texts."""
    digest = hashlib.sha256("\x00".join(["all-MiniLM-L6-v2", *texts]).encode("utf-8", "surrogatepass")).hexdigest()
    file = made_dir() / "embeddings" / f"{digest}.npy"
    if file.is_file():
        try:
            kept: NDArray[np.float32] = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            kept = np.empty((0, 0), np.float32)  # not a whole file: made again
        if len(kept) == len(texts):
            return kept
    from assay.models import demo_encoder

    encoder = demo_encoder()
    parts = []
    with progress_bar() as bar:
        task = bar.add_task("reading texts, once", total=len(texts))
        for start in range(0, len(texts), 512):
            parts.append(encoder.encode(texts[start : start + 512]))
            bar.advance(task, len(parts[-1]))
    vectors = np.concatenate(parts)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as temporary:
            np.save(temporary, vectors)
    except (OSError, InputError):
        pass  # no room or no right to write: made again next time
    return vectors


def pool(name: str, table: pd.DataFrame, most: int) -> Pool:
    """A random but fixed part of a set (the same for everyone), embedded."""
    table = table.sample(frac=1.0, random_state=0).head(most)
    texts = table["text"].tolist()
    return Pool(name, texts, table["label"].to_numpy(), embedded(texts))


def shipped(name: str) -> pd.DataFrame:
    return read_table(datasets.path(f"short-text-{name.replace('_', '-')}"), {"label": "text", "text": "text"})


def own(path: str, params: Mapping[str, Parameter]) -> pd.DataFrame:
    text, label = str(params["text"]), str(params["label"])
    table = read_table(path, {text: "text", label: "text"})
    return pd.DataFrame({"text": table[text], "label": table[label]})


def load(sets: tuple[str, ...], path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    need("ot", extra="cluster", purpose="pseudo-labels by POT")
    n_texts, batch_size, steps = SIZES[scale]
    n_texts = int(params["texts"]) or n_texts
    steps = int(params["steps"]) or steps
    if n_texts < 100:
        raise InputError(f"texts is {n_texts}; expected 100 or more texts a case")
    reducer = str(params["reducer"])
    if reducer not in ("auto", "pca", "umap"):
        raise InputError(f"reducer is {reducer!r}; expected auto, pca or umap")
    if reducer == "auto":
        reducer = "pca" if scale == "quick" else "umap"  # UMAP compiles for half a minute
    if reducer == "umap":
        need("umap", extra="cluster", purpose="reducing as BERTopic does (or -p reducer=pca)")
    most = n_texts * (3 if scale == "quick" else 4)  # what the folds of this scale need
    tables = {name: shipped(name) for name in sets} if path is None else {Path(path).stem: own(path, params)}
    pools = [pool(name, table, most) for name, table in tables.items()]
    settings = (batch_size, steps, float(params["lam_size"]), reducer)
    n = sum(len(one.texts) for one in pools)
    shown = ", ".join(SETS.get(one.name, one.name) for one in pools)
    return Data(f"labelled short texts ({shown}); reduced by {reducer.upper()} for the BERTopic pipeline", n,
                World(pools, n_texts, settings), path)  # fmt: skip


def case_of(one: Pool, rows: NDArray[Any], world: World, name: str, *, tell: bool) -> Case:
    """A fold: topics with fewer than five texts are left out, so that every cluster can be seen."""
    topics, counts = np.unique(one.topics[rows], return_counts=True)
    rows = rows[np.isin(one.topics[rows], topics[counts >= 5])]
    truth = np.unique(one.topics[rows], return_inverse=True)[1]
    n_clusters = int(truth.max()) + 1
    if n_clusters < 2:
        raise InputError(f"{one.name}: a case of {len(rows)} texts has fewer than two labels with five texts or more")
    batch_size, steps, lam_size, reducer = world.settings
    given = Given([one.texts[row] for row in rows], one.embeddings[rows], n_clusters if tell else None,
                  batch_size, steps, lam_size, reducer)  # fmt: skip
    return Case(name, given, truth)


def folds(world: World, n: int, seed: int, *, tell: bool = True) -> Iterator[Case]:
    """Disjoint folds, the sets in turn."""
    n_sets = len(world.pools)
    orders = [np.random.default_rng(child_seed(seed, one.name)).permutation(len(one.texts)) for one in world.pools]
    for number in range(n):
        one, order = world.pools[number % n_sets], orders[number % n_sets]
        fold = number // n_sets
        size = min(world.n_texts, len(order) // -(-n // n_sets))
        rows = order[fold * size : (fold + 1) * size]
        yield case_of(one, rows, world, f"{one.name}, fold {fold + 1}", tell=tell)


def uneven_folds(world: World, n: int, seed: int) -> Iterator[Case]:
    """Disjoint folds in which the largest topic has ten times the texts of the smallest, sizes in equal ratios."""
    for number, case in enumerate(folds(world, n, seed)):
        rng = np.random.default_rng(child_seed(seed, "uneven", number))
        counts = np.bincount(case.truth)
        share = 10.0 ** -np.linspace(0, 1, len(counts))[rng.permutation(len(counts))]
        target = np.maximum(5, np.floor((counts / share).min() * share)).astype(int)
        kept = np.sort(np.concatenate([
            rng.permutation(np.flatnonzero(case.truth == topic))[:size] for topic, size in enumerate(target)
        ]))  # fmt: skip
        given = case.given._replace(
            texts=[case.given.texts[row] for row in kept], embeddings=case.given.embeddings[kept]
        )
        yield Case(case.id, given, case.truth[kept])


# ------------------------------------------------------------------------------------------------------------ the arms


class WithoutAttention(ShortTextClusterer):
    """The same training; pseudo-labels by POT's entropic transport to equal sizes, with no semantic term."""

    def _assign(
        self, predictions: NDArray[np.float64], similarity: NDArray[np.float64], sizes: NDArray[np.float64]
    ) -> tuple[Labels, NDArray[np.float64]]:
        ot: Any = need("ot", extra="cluster", purpose="pseudo-labels by POT")
        uniform = np.full(len(predictions), 1.0 / len(predictions))
        equal = np.full(predictions.shape[1], 1.0 / predictions.shape[1])
        cost = -np.log(np.maximum(predictions, 1e-12))
        plan = ot.sinkhorn(uniform, equal, cost, reg=1.0, method="sinkhorn_log", numItermax=50, warn=False)
        return plan.argmax(axis=1), sizes


def by_caot(given: Given, seed: int) -> Labels:
    return self_trained(ShortTextClusterer, given, seed)


def by_pot(given: Given, seed: int) -> Labels:
    return self_trained(WithoutAttention, given, seed)


def self_trained(kind: type[ShortTextClusterer], given: Given, seed: int) -> Labels:
    import warnings

    clusterer = kind(
        given.n_clusters or "auto",
        lam_size=given.lam_size,
        batch_size=min(given.batch_size, len(given.embeddings)),
        max_iter=given.steps,
        warm_steps=min(80, given.steps // 3),
        random_state=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a collapse is an answer here, and is scored
        return np.asarray(clusterer.fit(given.embeddings).labels_)


def by_kmeans(given: Given, seed: int) -> Labels:
    n_clusters = given.n_clusters or estimated_clusters(given.embeddings, random_state=seed)
    return np.asarray(KMeans(n_clusters, n_init=10, random_state=seed).fit_predict(given.embeddings))


def by_mixture(given: Given, seed: int) -> Labels:
    """Diagonal Gaussians on 32 principal components; the number by BIC where it is not given."""
    points = PCA(min(32, *given.embeddings.shape), random_state=seed).fit_transform(given.embeddings)

    def fitted(n_clusters: int) -> GaussianMixture:
        return GaussianMixture(n_clusters, covariance_type="diag", n_init=2, reg_covar=1e-5, random_state=seed).fit(
            points
        )

    if given.n_clusters is not None:
        return np.asarray(fitted(given.n_clusters).predict(points))
    most = min(60, len(points) // 10)
    tried = [fitted(k) for k in sorted({round(k) for k in np.geomspace(2, most, 8)})]
    return np.asarray(min(tried, key=lambda mixture: mixture.bic(points)).predict(points))


def by_hdbscan(given: Given, seed: int) -> Labels:
    """HDBSCAN on 32 components; the smallest cluster is the size that gives the number of clusters most nearly."""
    points = PCA(min(32, *given.embeddings.shape), random_state=seed).fit_transform(given.embeddings)
    return joined(points, dense(points, given.n_clusters))


def by_bertopic(given: Given, seed: int) -> Labels:
    """BERTopic's steps: reduce to five dimensions, HDBSCAN, topics as c-TF-IDF vectors, the nearest merged to n."""
    points = reduced(given, seed)
    labels = dense(points, None)
    if labels.max() < 0:
        return np.zeros(len(points), np.intp)
    if given.n_clusters is not None and labels.max() + 1 > given.n_clusters:
        weights, _ = class_tfidf(given.texts, labels)
        merge = AgglomerativeClustering(given.n_clusters, metric="cosine", linkage="average")
        weights = weights + 1e-12  # a topic of stop words has no direction
        of_topic = merge.fit_predict(weights)
        labels = np.where(labels >= 0, of_topic[labels], -1)
    return joined(points, labels)


def reduced(given: Given, seed: int) -> NDArray[np.float64]:
    if given.reducer == "pca":
        return np.asarray(PCA(5, random_state=seed).fit_transform(given.embeddings), dtype=np.float64)
    umap: Any = need("umap", extra="cluster", purpose="reducing as BERTopic does")
    reducer = umap.UMAP(n_neighbors=15, n_components=5, min_dist=0.0, metric="cosine", random_state=seed, n_jobs=1)
    return np.asarray(reducer.fit_transform(given.embeddings), dtype=np.float64)


def dense(points: NDArray[np.float64], n_clusters: int | None) -> Labels:
    """HDBSCAN; without a number of clusters with BERTopic's smallest cluster of ten."""
    smallest = (10,) if n_clusters is None else (3, 5, 10, 20, 40)
    tried = [HDBSCAN(min_cluster_size=size, copy=True).fit_predict(points) for size in smallest]
    if n_clusters is None:
        return np.asarray(tried[0])
    return np.asarray(min(tried, key=lambda labels: abs(int(labels.max()) + 1 - n_clusters)))


def joined(points: NDArray[np.floating[Any]], labels: Labels) -> Labels:
    """Every text that HDBSCAN calls noise goes to the cluster with the nearest mean."""
    if labels.max() < 0:
        return np.zeros(len(labels), np.intp)
    means = np.stack([points[labels == number].mean(axis=0) for number in range(labels.max() + 1)])
    noise = np.flatnonzero(labels < 0)
    distance = ((points[noise, None, :] - means[None]) ** 2).sum(axis=2)
    found = labels.copy()
    found[noise] = distance.argmin(axis=1)
    return found


def agreement(case: Case, labels: Labels) -> dict[str, float]:
    return {
        "accuracy": clustering_accuracy(case.truth, labels),
        "nmi": float(normalized_mutual_info_score(case.truth, labels)),
        "ari": float(adjusted_rand_score(case.truth, labels)),
    }


def agreement_and_number(case: Case, labels: Labels) -> dict[str, float]:
    return agreement(case, labels) | {"number_ratio": len(np.unique(labels)) / len(np.unique(case.truth))}


# ------------------------------------------------------------------- the direct question: pseudo-labels of one batch

BATCH = 200


class Batch(NamedTuple):
    """Predictions of a weak classifier on noisy features, and the similarity of the clean ones."""

    predictions: NDArray[np.float64]
    similarity: NDArray[np.float64]


def load_batches(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    unused: dict[str, Parameter] = {"steps": 1, "lam_size": 100.0, "reducer": "pca", "texts": 0}
    data = load(tuple(SETS), path, scale, unused | dict(params))
    return Data(data.name.partition(";")[0], data.n, (data.value, float(params["noise"])), data.path)


def batches(value: tuple[World, float], n: int, seed: int) -> Iterator[Case]:
    """Disjoint batches of 200; the classifier has six labelled texts a topic, which are in no batch."""
    world, noise = value
    n_sets = len(world.pools)
    for number in range(n):
        one = world.pools[number % n_sets]
        order = np.random.default_rng(child_seed(seed, one.name)).permutation(len(one.texts))
        topics, truth = np.unique(one.topics, return_inverse=True)
        taught = np.concatenate([order[truth[order] == topic][:6] for topic in range(len(topics))])
        rest = order[~np.isin(order, taught)]
        batch = number // n_sets
        n_batches = -(-n // n_sets)
        size = min(BATCH, len(rest) // n_batches)
        rows = rest[batch * size : (batch + 1) * size]
        rng = np.random.default_rng(child_seed(seed, "noise", number))
        clean = one.embeddings[rows].astype(np.float64)
        noisy = clean + noise * rng.standard_normal(clean.shape)
        noisy /= np.linalg.norm(noisy, axis=1, keepdims=True)
        classifier = LogisticRegression(C=10.0, max_iter=1000).fit(one.embeddings[taught], truth[taught])
        similarity = np.clip(clean @ clean.T, 0.0, None)
        np.fill_diagonal(similarity, 0.0)
        yield Case(f"{one.name}, batch {batch + 1}", Batch(classifier.predict_proba(noisy), similarity), truth[rows])


def labels_with(lam_sem: float, batch: Batch, seed: int) -> Labels:
    return np.asarray(consistency_aware_ot(batch.predictions, batch.similarity, lam_sem=lam_sem).labels)


def labels_by_pot(batch: Batch, seed: int) -> Labels:
    ot: Any = need("ot", extra="cluster", purpose="pseudo-labels by POT")
    n_texts, n_clusters = batch.predictions.shape
    cost = -np.log(np.maximum(batch.predictions, 1e-12))
    plan = ot.sinkhorn(np.full(n_texts, 1 / n_texts), np.full(n_clusters, 1 / n_clusters), cost, reg=1.0,
                       method="sinkhorn_log", warn=False)  # fmt: skip
    return np.asarray(plan.argmax(axis=1))


def labels_by_prediction(batch: Batch, seed: int) -> Labels:
    return np.asarray(batch.predictions.argmax(axis=1))


def labels_by_neighbours(batch: Batch, seed: int) -> Labels:
    """Sees the same similarity and needs no transport: the mean prediction of the ten most similar texts and itself."""
    similarity = batch.similarity.copy()
    np.fill_diagonal(similarity, np.inf)
    nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :11]
    return np.asarray(batch.predictions[nearest].mean(axis=1).argmax(axis=1))


def right(case: Case, labels: Labels) -> dict[str, float]:
    return {"accuracy": float(np.mean(case.truth == labels))}


# ------------------------------------------------------------------------------------------ the encoder learns along


def load_trained(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    if scale != "full":
        raise InputError("it trains the encoder, minutes a case: run it with --scale full")
    return load(("stackoverflow",), path, scale, dict(params))


def by_trained(kind: type[ShortTextClusterer], given: Given, seed: int) -> Labels:
    from assay.models import demo_encoder

    rng = np.random.default_rng(seed)
    views = without_some_words(given.texts, rng), without_some_words(given.texts, rng)
    clusterer = kind(given.n_clusters or "auto", encoder=demo_encoder(), freeze_encoder=False, batch_size=64,
                     max_iter=given.steps, random_state=seed)  # fmt: skip
    return np.asarray(clusterer.fit(given.texts, views=views).labels_)


# ----------------------------------------------------------------------------------------------------------- the trial

ACCURACY = Metric("accuracy", better="higher", help="share of texts in the right cluster, best one-to-one match")
METRICS = (
    ACCURACY,
    Metric("nmi", better="higher", help="normalised mutual information with the topics"),
    Metric("ari", better="higher", help="adjusted Rand index: 0 for chance"),
)
PARAMS: dict[str, Parameter] = {"texts": 0, "steps": 0, "lam_size": 100.0, "reducer": "auto"}
COLUMNS: dict[str, Parameter] = {"text": "text", "label": "label"}
KMEANS = Arm("k-means", by_kmeans, baseline=True)
OTHERS = (
    KMEANS,
    Arm("Gaussian mixture", by_mixture, baseline=True),
    Arm("HDBSCAN", by_hdbscan, baseline=True),
    Arm("BERTopic's pipeline", by_bertopic, baseline=True),
)
POT = Arm("POT pseudo-labels, no attention", by_pot, baseline=True)

TRIAL = Trial(
    slug="caot-stc",
    claim=Claim(
        "finds the topics of short texts better than clustering their embeddings", metric="accuracy", margin=0.005
    ),
    load=partial(load, tuple(SETS)),
    cases=folds,
    arms=(Arm("CAOT-STC", by_caot), *OTHERS, POT),
    metrics=METRICS,
    score=agreement,
    n_cases={"quick": 9, "standard": 12, "full": 12},
    params=PARAMS | COLUMNS,
    also=(
        Trial(
            slug="caot-stc",
            part="labels",
            claim=Claim(
                "gives better pseudo-labels than transport without the semantic term, and than neighbours' mean",
                metric="accuracy",
            ),
            load=load_batches,
            cases=batches,
            arms=(
                Arm("CAOT, semantic weight 25", partial(labels_with, 25.0)),
                Arm("POT, entropic", labels_by_pot, baseline=True),
                Arm("no semantic term", partial(labels_with, 0.0), baseline=True),
                Arm("prediction", labels_by_prediction, baseline=True),
                Arm("mean of ten neighbours", labels_by_neighbours, baseline=True),
            ),
            metrics=(ACCURACY,),
            score=right,
            n_cases={"quick": 12, "standard": 24, "full": 48},
            params={"noise": 0.05} | COLUMNS,
        ),
        Trial(
            slug="caot-stc",
            part="uneven",
            claim=Claim("finds topics of very different size better", metric="accuracy", margin=0.005),
            load=partial(load, tuple(SETS)),
            cases=uneven_folds,
            arms=(Arm("CAOT-STC", by_caot), *OTHERS, POT),
            metrics=METRICS,
            score=agreement,
            n_cases={"quick": 6, "standard": 6, "full": 12},
            params=PARAMS | {"lam_size": 1.0} | COLUMNS,
        ),
        Trial(
            slug="caot-stc",
            part="unknown",
            claim=Claim("finds topics better when nobody knows how many there are", metric="ari", margin=0.005),
            load=partial(load, tuple(SETS)),
            cases=partial(folds, tell=False),
            arms=(Arm("CAOT-STC, number by silhouette", by_caot), *OTHERS),
            metrics=(
                *METRICS,
                Metric("number_ratio", target=1.0, help="clusters found for each true one"),
            ),
            score=agreement_and_number,
            n_cases={"quick": 6, "standard": 6, "full": 12},
            params=PARAMS | COLUMNS,
        ),
        Trial(
            slug="caot-stc",
            part="trained",
            claim=Claim("finds topics better when the encoder learns along", metric="accuracy", margin=0.005),
            load=load_trained,
            cases=folds,
            arms=(
                Arm("CAOT-STC, encoder trained", partial(by_trained, ShortTextClusterer)),
                Arm("CAOT-STC, encoder fixed", by_caot, baseline=True),
                Arm("POT pseudo-labels, encoder trained", partial(by_trained, WithoutAttention), baseline=True),
                KMEANS,
            ),
            metrics=METRICS,
            score=agreement,
            n_cases={"quick": 6, "standard": 6, "full": 6},
            params=PARAMS | {"texts": 1000, "steps": 300} | COLUMNS,
        ),
    ),
)
