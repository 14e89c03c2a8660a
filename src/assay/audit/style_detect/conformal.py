"""A threshold that few human texts exceed, and what is known of how few.

With n human scores and k = ⌈(n + 1)(1 − α)⌉, the k-th smallest is exceeded by a new human score with probability at
most α, whatever the distribution, if the new text is of the same kind as the n (split conformal prediction). Over
repeated calibrations the rate of one threshold varies as Beta(n + 1 − k, k), whose 95 % quantile is what may be
promised of *this* threshold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]
    Ints = NDArray[np.int64]

#: Random groups of human texts where there are too few disjoint ones.
N_BOOTSTRAP = 4000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Threshold:
    """A score above which a text, or an account, is flagged, and the error rate that goes with it.

    Parameters
    ----------
    value : float
        A score above it is flagged; one equal to it is not.
    target_fpr : float
        The share of human texts that may be flagged, at most, on average over calibrations.
    fpr_bound : float
        With 95 % confidence this very threshold flags no more of them; NaN where nothing can be promised.
    n_human : int
        Human texts it was calibrated on.
    group_size : int
        Documents a decision.
    n_units : int
        Independent human units: texts, or accounts, or disjoint groups.
    is_exact : bool
        Whether the promise holds for finite samples. Groups drawn again and again from too few texts have none.
    """

    value: float
    target_fpr: float
    fpr_bound: float
    n_human: int
    group_size: int
    n_units: int
    is_exact: bool

    def in_words(self) -> str:
        """The error rate as a clause: it stands beside every flag."""
        unit = "texts" if self.group_size == 1 else f"groups of {self.group_size} texts"
        if not self.is_exact:
            return (
                f"about {self.target_fpr:.3g} of human {unit} are flagged too (estimated by resampling {self.n_human} "
                "texts; no guarantee)"
            )
        return (
            f"up to {self.target_fpr:.3g} of human {unit} of the calibration's kind are flagged too (at most "
            f"{self.fpr_bound:.2g} with 95 % confidence; {self.n_units} calibrated)"
        )


def conformal_rank(n: int, target_fpr: float) -> int:
    """Rank, from 1, of the human score that is the threshold: ⌈(n + 1)(1 − α)⌉.

    Raises
    ------
    InputError
        n is too small for this rate.

    Examples
    --------
    >>> conformal_rank(99, 0.01)
    99
    """
    if not 0 < target_fpr < 1:
        raise InputError(f"target_fpr={target_fpr}: expected a number between 0 and 1")
    rank = math.ceil(round((n + 1) * (1 - target_fpr), 9))
    if rank > n:
        needed = math.ceil(round(1 / target_fpr, 9)) - 1
        raise InputError(
            f"target_fpr={target_fpr:g} needs at least {needed} human texts or groups, there are {n}; bring more, or "
            f"allow {1 / (n + 1):.3g}"
        )
    return rank


def fpr_bound(n: int, rank: int, confidence: float = CONFIDENCE) -> float:
    """What the false-positive rate of one threshold does not exceed with this confidence: a quantile of a Beta.

    Examples
    --------
    >>> round(fpr_bound(99, 99), 4)  # 1 − 0.05 ** (1 / 99)
    0.0298
    """
    return float(stats.beta.ppf(confidence, n + 1 - rank, rank))


def conformal_threshold(human_scores: ArrayLike, target_fpr: float, *, group_size: int = 1) -> Threshold:
    """Calibrate on human scores that are independent of each other and of the detector.

    Parameters
    ----------
    human_scores : (n,) float
        Of texts, or of groups of `group_size` texts that share none; NaN is left out.
    target_fpr : float
    group_size : int

    Raises
    ------
    InputError
        `target_fpr` is below 1 / (n + 1).

    Examples
    --------
    >>> conformal_threshold(np.arange(1.0, 100.0), 0.01).value
    99.0
    """
    scores = np.sort(np.asarray(human_scores, dtype=np.float64))
    scores = scores[~np.isnan(scores)]
    n = len(scores)
    rank = conformal_rank(n, target_fpr)
    return Threshold(
        value=float(scores[rank - 1]),
        target_fpr=target_fpr,
        fpr_bound=fpr_bound(n, rank),
        n_human=n * group_size,
        group_size=group_size,
        n_units=n,
        is_exact=True,
    )


def bootstrap_threshold(
    score_groups: Callable[[Ints], Array],
    n_human: int,
    target_fpr: float,
    *,
    group_size: int,
    rng: np.random.Generator,
) -> Threshold:
    """Calibrate on random groups where there are too few disjoint ones: an estimate, without a promise.

    Parameters
    ----------
    score_groups : callable
        ``score_groups(rows)`` with rows (n_groups, group_size) gives (n_groups,) scores.
    n_human : int
        Texts to draw from; no text is twice in a group.
    target_fpr, group_size
    rng : numpy Generator

    Raises
    ------
    InputError
        A group needs more texts than there are, or `target_fpr` is below 1 / (n_human + 1).
    """
    if group_size > n_human:
        raise InputError(f"group_size={group_size}: there are {n_human} human texts to draw groups from; bring more")
    conformal_rank(n_human, target_fpr)
    rows = rng.random((N_BOOTSTRAP, n_human)).argsort(axis=1)[:, :group_size]
    scores = np.sort(score_groups(rows))
    return Threshold(
        value=float(scores[conformal_rank(N_BOOTSTRAP, target_fpr) - 1]),
        target_fpr=target_fpr,
        fpr_bound=float("nan"),
        n_human=n_human,
        group_size=group_size,
        n_units=n_human // group_size,
        is_exact=False,
    )
