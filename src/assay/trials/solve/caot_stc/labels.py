"""The direct question: pseudo-labels of one batch, where the classifier sees noisy features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression

from assay._core.extras import need
from assay._core.seeds import child_seed
from assay.bench import Case, Data
from assay.solve.caot_stc import consistency_aware_ot
from assay.trials.solve.caot_stc.data import SETS, load

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from assay.bench.spec import Parameter, Scale
    from assay.trials.solve.caot_stc.arms import Labels
    from assay.trials.solve.caot_stc.data import World

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
