"""How well clusters agree with known topics, and how many clusters there may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

#: Texts on which the silhouette is computed: it needs all their distances.
SILHOUETTE_TEXTS = 2_000


@dataclass(frozen=True)
class Look:
    """What a look at all labels saw.

    Parameters
    ----------
    step : int
    changed : float
        Share of the labels that changed since the last look.
    agreement : float
        Share of the labels that are the labels of k-means.
    largest, n_used : float, int
        Share of the largest cluster; clusters with a text in them.
    """

    step: int
    changed: float
    agreement: float
    largest: float
    n_used: int


def clustering_accuracy(truth: ArrayLike, labels: ArrayLike) -> float:
    """Share of texts in the right cluster under the best one-to-one match of clusters and topics.

    Parameters
    ----------
    truth, labels : (n,) array-like
        Topics and clusters; any values. There may be more of the one than of the other: what finds no partner is wrong.

    Examples
    --------
    >>> clustering_accuracy(["a", "a", "b", "b"], [1, 1, 0, 2])
    0.75
    """
    from scipy.optimize import linear_sum_assignment

    topics, of_topic = np.unique(np.asarray(truth), return_inverse=True)
    clusters, of_cluster = np.unique(np.asarray(labels), return_inverse=True)
    if len(of_topic) != len(of_cluster) or len(of_topic) == 0:
        raise InputError(f"{len(of_topic)} topics and {len(of_cluster)} labels; expected one of each for every text")
    counts = np.zeros((len(topics), len(clusters)))
    np.add.at(counts, (of_topic, of_cluster), 1.0)
    rows, columns = linear_sum_assignment(counts, maximize=True)
    return float(counts[rows, columns].sum() / len(of_topic))


def estimated_clusters(
    embeddings: NDArray[np.floating[Any]], candidates: Sequence[int] | None = None, random_state: int = 0
) -> int:
    """The number of clusters at which k-means has the largest mean silhouette.

    Parameters
    ----------
    embeddings : (n, d)
        A sample of 2,000 is looked at.
    candidates : sequence of int, optional
        By default eight numbers from 2, in equal ratios, to a tenth of the texts and no more than 200.
    random_state : int

    Notes
    -----
    A guide, not an answer: sentence embeddings have topics within topics, and the silhouette picks one level of them.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    rng = np.random.default_rng(random_state)
    n = len(embeddings)
    sample = embeddings if n <= SILHOUETTE_TEXTS else embeddings[rng.choice(n, SILHOUETTE_TEXTS, replace=False)]
    if candidates is None:
        most = max(2, min(200, len(sample) // 10))
        candidates = sorted({round(k) for k in np.geomspace(2, most, 8)})
    usable = [k for k in candidates if 2 <= k < len(sample)]
    if not usable:
        raise InputError(f"{n} texts are too few to estimate the number of clusters; give n_clusters")

    def silhouette(k: int) -> float:
        labels = KMeans(k, n_init=1, random_state=random_state).fit_predict(sample)
        return float(silhouette_score(sample, labels)) if len(np.unique(labels)) > 1 else -1.0

    values = [silhouette(k) for k in usable]
    best = int(np.argmax(values))
    # Look once more between the neighbours of the best.
    low, high = usable[max(best - 1, 0)], usable[min(best + 1, len(usable) - 1)]
    finer = [k for k in sorted({round(k) for k in np.linspace(low, high, 7)}) if k not in usable]
    tried = dict(zip(usable, values, strict=True)) | {k: silhouette(k) for k in finer}
    best_k: int = max(tried, key=lambda k: (tried[k], -k))
    return best_k
