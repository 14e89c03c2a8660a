"""Fit the stopping rule's prior to what a model's votes looked like before, by difficulty (Algorithm 2)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import betaln, digamma

from assay._core.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

CATEGORIES = ("Easy", "Middle", "Hard")
BOUNDS = (0.01, 1.0)


class Prior(NamedTuple):
    """alpha0 and beta0 of the stopping rule; (1, 1) is the uniform prior of Adaptive-Consistency."""

    alpha: float = 1.0
    beta: float = 1.0


def prior_nll(votes: ArrayLike, agreeing: ArrayLike, prior: tuple[float, float]) -> float:
    """Negative log-likelihood of past questions under a Beta prior (Algorithm 2, without the binomial constant).

    -sum_j [log B(a + G_j, b + T_j - G_j) - log B(a, b)]

    Parameters
    ----------
    votes, agreeing : (n_questions,) array-like of int
        T_j, votes of the leading value and the runner-up together; G_j, those of the leading value.
    prior : (float, float)
        (a, b).

    Examples
    --------
    >>> round(prior_nll([10, 12, 9, 11], [6, 7, 5, 6], (1.0, 1.0)), 4)
    32.7439
    """
    pairs, counts = _pairs(votes, agreeing)
    return _nll(np.asarray(prior, dtype=np.float64), pairs, counts)[0]


def fit_beta_prior(votes: ArrayLike, agreeing: ArrayLike, bounds: tuple[float, float] = BOUNDS) -> Prior:
    """Beta prior under which the past votes are likeliest, each parameter within `bounds` (Algorithm 2).

    Parameters
    ----------
    votes : (n_questions,) array-like of int
        T_j: mean over components of the votes of leading value and runner-up, rounded; at least 1.
    agreeing : (n_questions,) array-like of int
        G_j: the same for the leading value alone; 1 <= G_j <= T_j.
    bounds : (float, float)
        Of both parameters. They are part of the method: without them agreement on everything sends beta0 to 0.

    Returns
    -------
    Prior

    Raises
    ------
    InputError
        Counts that are not whole numbers with 1 <= G <= T, or bounds that are not 0 < low < high.

    Examples
    --------
    >>> fit_beta_prior([4, 4, 4, 4], [4, 4, 4, 4])
    Prior(alpha=1.0, beta=0.01)
    """
    low, high = bounds
    if not 0 < low < high < np.inf:
        raise InputError(f"bounds are ({low!r}, {high!r}); expected 0 < low < high")
    pairs, counts = _pairs(votes, agreeing)
    start = np.clip([1.0, 1.0], low, high)
    # Truncated Newton within bounds. SciPy's L-BFGS-B finds the same point, but its calls to BLAS for
    # 2 × 2 matrices wait a tenth of a second for threads on a machine that is busy with a model.
    found = minimize(
        _nll,
        start,
        (pairs, counts),
        jac=True,
        method="TNC",
        bounds=[bounds, bounds],
        options={"ftol": 1e-13, "gtol": 1e-9, "xtol": 1e-9},
    )
    # It works on scaled values: a bound comes back with a wrong last digit.
    alpha, beta = (float(value) for value in np.clip(found.x.round(12), low, high))
    return Prior(alpha, beta)


def _pairs(votes: ArrayLike, agreeing: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Distinct (T, G) and how often each occurs: ten thousand records have some hundred distinct pairs."""
    total, lead = np.asarray(votes, dtype=np.float64), np.asarray(agreeing, dtype=np.float64)
    if total.shape != lead.shape or total.ndim != 1 or len(total) == 0:
        raise InputError(
            f"votes and agreeing have the shapes {total.shape} and {lead.shape}; expected equal lengths from 1"
        )
    wrong = ~((lead >= 1) & (lead <= total) & (lead % 1 == 0) & (total % 1 == 0))
    if wrong.any():
        first = int(wrong.argmax())
        raise InputError(
            f"record {first + 1}: G is {lead[first]:g} and T is {total[first]:g}; "
            "expected whole numbers with 1 <= G <= T"
        )
    # One key per pair: unique over a vector sorts numbers, unique over rows sorts bytes.
    stride = total.max() + 1
    keys, counts = np.unique(total * stride + lead, return_counts=True)
    return np.stack(np.divmod(keys, stride)), counts.astype(np.float64)


def _nll(
    prior: NDArray[np.float64], pairs: NDArray[np.float64], counts: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    a, b = prior
    total, lead = pairs
    value = counts @ (betaln(a, b) - betaln(a + lead, b + total - lead))
    shared = digamma(a + b + total) - digamma(a + b)
    gradient = np.array(
        [
            counts @ (digamma(a) - digamma(a + lead) + shared),
            counts @ (digamma(b) - digamma(b + total - lead) + shared),
        ]
    )
    return float(value), gradient


def difficulty_groups(votes: ArrayLike) -> list[str]:
    """Label questions Easy, Middle or Hard by the votes they needed: three groups of equal size.

    The sort is stable and the last group takes the remainder. Many votes needed means: hard for this model.

    Examples
    --------
    >>> difficulty_groups([9, 1, 5, 7, 3, 2])
    ['Hard', 'Easy', 'Middle', 'Hard', 'Middle', 'Easy']
    """
    order = np.argsort(np.asarray(votes, dtype=np.float64), kind="stable")
    chunk = max(1, len(order) // len(CATEGORIES))
    labels = [""] * len(order)
    for rank, index in enumerate(order):
        labels[index] = CATEGORIES[min(rank // chunk, len(CATEGORIES) - 1)]
    return labels


_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_CONDITION = re.compile(r"\b(?:if|when|provided|unless|whether)\b", re.IGNORECASE)


def rule_difficulty(question: str) -> str:
    """Guess the difficulty of a question without a model: by its length, its numbers and its conditions.

    Examples
    --------
    >>> rule_difficulty("What is 2 + 2?")
    'Easy'
    """
    score = len(question) // 80
    score += min(3, len(_NUMBER.findall(question)) // 2)
    score += min(3, len(_CONDITION.findall(question)))
    if score <= 1:
        return "Easy"
    return "Middle" if score <= 3 else "Hard"
