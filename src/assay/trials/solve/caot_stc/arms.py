"""The ways to cluster, and how well topics were found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.cluster import HDBSCAN, AgglomerativeClustering, KMeans
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.mixture import GaussianMixture

from assay._core.extras import need
from assay.solve.caot_stc import ShortTextClusterer, clustering_accuracy, estimated_clusters
from assay.solve.caot_stc.texts import class_tfidf, without_some_words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.bench import Case
    from assay.trials.solve.caot_stc.data import Given

    Labels = NDArray[np.intp]


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


def by_trained(kind: type[ShortTextClusterer], given: Given, seed: int) -> Labels:
    from assay.models import demo_encoder

    rng = np.random.default_rng(seed)
    views = without_some_words(given.texts, rng), without_some_words(given.texts, rng)
    clusterer = kind(given.n_clusters or "auto", encoder=demo_encoder(), freeze_encoder=False, batch_size=64,
                     max_iter=given.steps, random_state=seed)  # fmt: skip
    return np.asarray(clusterer.fit(given.texts, views=views).labels_)


def agreement(case: Case, labels: Labels) -> dict[str, float]:
    return {
        "accuracy": clustering_accuracy(case.truth, labels),
        "nmi": float(normalized_mutual_info_score(case.truth, labels)),
        "ari": float(adjusted_rand_score(case.truth, labels)),
    }


def agreement_and_number(case: Case, labels: Labels) -> dict[str, float]:
    return agreement(case, labels) | {"number_ratio": len(np.unique(labels)) / len(np.unique(case.truth))}
