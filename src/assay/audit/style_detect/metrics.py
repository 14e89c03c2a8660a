"""How well scores tell machine from human: ROC areas, true positives at few false ones, and blocks of documents.

Everywhere a higher score is more machine-like, a label is 1 for a machine and 0 for a human, and NaN is "no score".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from sklearn.metrics import roc_auc_score, roc_curve

from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]
    Ints = NDArray[np.int64]


def auroc(labels: ArrayLike, scores: ArrayLike) -> float:
    """Area under the ROC curve: how often a machine's score is above a human's.

    Parameters
    ----------
    labels : (n,) of 0 and 1
    scores : (n,) float
        NaN is left out.

    Raises
    ------
    InputError
        Only one class has scores.

    Examples
    --------
    >>> auroc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
    0.75
    """
    return float(roc_auc_score(*_scored(labels, scores)))


def pauroc(labels: ArrayLike, scores: ArrayLike, max_fpr: float = 0.01) -> float:
    """Standardised partial area (McClish): (1 + (A − p²/2) / (p − p²/2)) / 2 for false-positive rates up to p.

    A chance detector has 0.5. The least value is (1 − p / (2 − p)) / 2, just under it: no true positive at all up to p.

    Parameters
    ----------
    labels, scores
        As in :func:`auroc`.
    max_fpr : float in (0, 1]

    Examples
    --------
    >>> round(pauroc([0, 0, 1, 1], [3.0, 4.0, 1.0, 2.0]), 7)
    0.4974874
    """
    if not 0 < max_fpr <= 1:
        raise InputError(f"max_fpr={max_fpr}: expected a number above 0, at most 1")
    return float(roc_auc_score(*_scored(labels, scores), max_fpr=max_fpr))


class TruePositives(NamedTuple):
    """True-positive rate at a false-positive rate, by two conventions.

    Parameters
    ----------
    linear : float
        On the straight line between the two points of the curve at either side.
    straddling : float
        Mean of these two points, as the authors' toolbox has it.
    """

    linear: float
    straddling: float


def tpr_at_fpr(labels: ArrayLike, scores: ArrayLike, fpr: float) -> TruePositives:
    """True-positive rate at a false-positive rate.

    Examples
    --------
    >>> tpr_at_fpr([0, 0, 1, 1], [1.0, 2.0, 1.5, 4.0], 0.5)
    TruePositives(linear=1.0, straddling=1.0)
    """
    curve_fpr, curve_tpr, _ = roc_curve(*_scored(labels, scores), drop_intermediate=False)
    # Of several points at one rate the last is the left one: the threshold may be put where it finds most.
    right = min(int(np.searchsorted(curve_fpr, fpr, side="right")), len(curve_fpr) - 1)
    rates, hits = curve_fpr[right - 1 : right + 1], curve_tpr[right - 1 : right + 1]
    return TruePositives(float(np.interp(fpr, rates, hits)), float(hits.mean()))


def blocks(scores: ArrayLike, n_docs: int, order: ArrayLike | None = None) -> Array:
    """Mean scores of consecutive blocks of `n_docs` documents (the paper's protocol for several documents).

    Documents without a score are left out first; what does not fill a block is dropped.

    Parameters
    ----------
    scores : (n,) float
    n_docs : int
    order : (n,) int, optional
        Where neighbours in a file resemble each other, blocks need a shuffled order.

    Examples
    --------
    >>> blocks([1.0, 3.0, np.nan, 5.0, 7.0, 9.0], 2).tolist()
    [2.0, 6.0]
    """
    values = np.asarray(scores, dtype=np.float64)
    if order is not None:
        values = values[np.asarray(order)]
    values = values[~np.isnan(values)]
    n_blocks = len(values) // n_docs
    means: Array = values[: n_blocks * n_docs].reshape(n_blocks, n_docs).mean(axis=1)
    return means


def group_rows(groups: ArrayLike, n_docs: int, rng: np.random.Generator) -> tuple[Ints, int]:
    """Blocks of `n_docs` documents of one group each, drawn without overlap.

    Parameters
    ----------
    groups : (n,)
        Author or account of each document.
    n_docs : int
    rng : numpy Generator

    Returns
    -------
    rows : (n_blocks, n_docs) int
    n_dropped : int
        Groups that have fewer documents.

    Examples
    --------
    >>> rows, n_dropped = group_rows(["a", "b", "a", "a"], 2, np.random.default_rng(0))
    >>> rows.shape, n_dropped
    ((1, 2), 1)
    """
    _, numbers = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
    found, n_dropped = [], 0
    for number in range(int(numbers.max(initial=-1)) + 1):
        rows = rng.permutation(np.flatnonzero(numbers == number))
        n_blocks = len(rows) // n_docs
        n_dropped += n_blocks == 0
        found.append(rows[: n_blocks * n_docs].reshape(n_blocks, n_docs))
    return np.concatenate(found) if found else np.empty((0, n_docs), dtype=np.int64), n_dropped


def macro_average(metric: Callable[[Array, Array], float], labels: ArrayLike, matrix: ArrayLike) -> float:
    """Mean over trials of a metric of the documents that have a score there; trials with one class are skipped.

    Parameters
    ----------
    metric : callable
        ``metric(labels, scores)``, such as :func:`pauroc`.
    labels : (n,) of 0 and 1
    matrix : (n_trials, n) float
        NaN where the document was in that trial's support.

    Examples
    --------
    >>> macro_average(auroc, [0, 1, 1], [[0.1, np.nan, 0.9], [0.5, 0.2, np.nan]])
    0.5
    """
    truth = np.asarray(labels)
    values = []
    for row in np.asarray(matrix, dtype=np.float64):
        there = ~np.isnan(row)
        if len(np.unique(truth[there])) == 2:
            values.append(metric(truth[there], row[there]))
    return float(np.mean(values)) if values else float("nan")


def _scored(labels: ArrayLike, scores: ArrayLike) -> tuple[Ints, Array]:
    truth, values = np.asarray(labels), np.asarray(scores, dtype=np.float64)
    there = ~np.isnan(values)
    if len(np.unique(truth[there])) != 2:
        raise InputError(
            f"labels: {len(np.unique(truth[there]))} class has scores; expected both 0 (human) and 1 (machine)"
        )
    return truth[there], values[there]
