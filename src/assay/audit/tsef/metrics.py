"""How well an explanation agrees with a reference map, and how far a series was moved."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, precision_recall_curve

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: An explanation has stayed when its AUPRC is at least this share of the clean explanation's.
COUPLED = 0.9


class Agreement(NamedTuple):
    """Agreement of one explanation with one reference map.

    Parameters
    ----------
    auprc : float
        Area under the precision-recall curve (average precision).
    aup, aur : float
        Area under precision and under recall as functions of the threshold.
    iou : float
        Intersection over union of the reference and the explanation's largest cells, as many as the reference has.
    """

    auprc: float
    aup: float
    aur: float
    iou: float


def agreement(saliency: Array, reference: Mask | Array) -> Agreement:
    """Compare a saliency map with a map of the cells that matter; the shapes are equal, the order of cells is free.

    The thresholds of aup and aur run from the map's smallest value to its largest after division by the largest, as in
    the evaluation code of TimeX; a map of one value has no such range and gets 0 for both.

    Examples
    --------
    >>> agreement(np.array([0.9, 0.8, 0.1, 0.0]), np.array([1, 1, 0, 0])).iou
    1.0
    """
    saliency, truth = np.ravel(saliency).astype(float), np.ravel(reference).astype(bool)
    top = float(saliency.max())
    score = saliency / top if top > 0 else saliency
    precision, recall, threshold = precision_recall_curve(truth, score)
    chosen = score >= np.sort(score)[-int(truth.sum())] if top > 0 else np.zeros_like(truth)
    return Agreement(
        auprc=float(average_precision_score(truth, score)),
        aup=float(np.trapezoid(precision[:-1], threshold)),
        aur=float(np.trapezoid(recall[:-1], threshold)),
        iou=float((chosen & truth).sum() / (chosen | truth).sum()),
    )


def top_share(saliency: Array, rho: float) -> Mask:
    """The cells of each series that hold its top `rho` of values; cells of saliency 0 are never among them.

    Cells that tie with the last one are taken as well, so that a map's agreement with its own top is 1 always.

    Parameters
    ----------
    saliency : (n, channels, length) float
    rho : float in (0, 1]

    Examples
    --------
    >>> top_share(np.array([[[0.1, 0.9, 0.0, 0.5]]]), 0.5).astype(int)
    array([[[0, 1, 0, 1]]])
    """
    flat = saliency.reshape(len(saliency), -1)
    n_cells = max(1, round(rho * flat.shape[1]))
    last = np.partition(flat, -n_cells, axis=1)[:, -n_cells, None]
    return ((flat >= last) & (flat > 0)).reshape(saliency.shape)


def dtw(a: Array, b: Array) -> Array:
    """Dynamic-time-warping distance of each pair of series, all channels warped together.

    The root of the smallest sum of squared distances along a warping path, without a window. All series advance one
    antidiagonal at a time.

    Parameters
    ----------
    a, b : (n, channels, length) float

    Returns
    -------
    (n,) float

    Examples
    --------
    >>> dtw(np.array([[[0.0, 1.0, 1.0]]]), np.array([[[0.0, 0.0, 1.0]]]))
    array([0.])
    """
    n, _, length = a.shape
    cost = np.full((n, length + 1, length + 1), np.inf)  # cost[:, i, j]: the best path over i of a and j of b
    cost[:, 0, 0] = 0.0
    for diagonal in range(2, 2 * length + 1):
        i = np.arange(max(1, diagonal - length), min(length, diagonal - 1) + 1)
        j = diagonal - i
        apart = np.square(a[:, :, i - 1] - b[:, :, j - 1]).sum(axis=1)
        before = np.minimum(np.minimum(cost[:, i - 1, j], cost[:, i, j - 1]), cost[:, i - 1, j - 1])
        cost[:, i, j] = apart + before
    return np.asarray(np.sqrt(cost[:, -1, -1]))


def wilson(successes: int, n: int) -> tuple[float, float]:
    """95 % Wilson interval of a share; (nan, nan) where n is 0.

    Examples
    --------
    >>> low, high = wilson(0, 30)
    >>> round(low, 3), round(high, 3)
    (0.0, 0.114)
    """
    if n == 0:
        return float("nan"), float("nan")
    from scipy.stats import binomtest

    interval: Any = binomtest(successes, n).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)
