"""Pass curves, expected spend, prices and cascades, on arrays.

A *curve* says for each budget of a grid how likely a problem is solved within it. Two curves describe a provider:
`accepted` (the verifier let an attempt through, so spending stops) and `solved` (that attempt was right). With a
perfect verifier they are the same array, and every function here then does the work once.

A cascade's curve, averaged over problems, is linear in the problems' weights. So functions take a matrix of weights,
one row for each sample of problems: all of them, a fold, or a bootstrap resample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

#: Failure is one at this fraction of the smallest budget: 1e-12 USD on the authors' grid that starts at 1e-4 USD.
NOTHING = 1e-8


def pass_at_k(n_attempts: ArrayLike, n_correct: ArrayLike, k: ArrayLike) -> Array:
    """Probability that at least one of `k` attempts is right, estimated from `n_attempts` of which `n_correct` were.

    The unbiased estimator 1 − C(n−c, k) / C(n, k). For k ≥ n it is 1 if any attempt was right and 0 otherwise: the
    record says nothing about more attempts than were made.

    Parameters
    ----------
    n_attempts, n_correct, k : int, broadcast against each other

    Returns
    -------
    float array of the common shape

    Examples
    --------
    >>> pass_at_k(4, 1, [0, 1, 2, 4]).tolist()
    [0.0, 0.25, 0.5, 1.0]
    """
    n, c, k = np.broadcast_arrays(*(np.asarray(value, dtype=np.int64) for value in (n_attempts, n_correct, k)))
    bought = np.clip(k, 0, n)
    failure = failure_table(n.ravel(), c.ravel(), int(bought.max(initial=0)))
    return 1.0 - np.take_along_axis(failure, bought.reshape(-1, 1), axis=1).reshape(n.shape)


def failure_table(n_attempts: Counts, n_correct: Counts, k_max: int) -> Array:
    """C(n−c, k) / C(n, k) for k = 0 … `k_max`: the probability that k attempts all fail.

    Parameters
    ----------
    n_attempts, n_correct : (n_problems,) int
    k_max : int

    Returns
    -------
    (n_problems, k_max + 1) float
    """
    drawn = np.arange(k_max)
    left = n_attempts[:, None] - drawn
    wrong_left = np.maximum(left - n_correct[:, None], 0)
    ratio = np.where(left > 0, wrong_left / np.maximum(left, 1), 1.0)
    return np.concatenate([np.ones((len(n_attempts), 1)), np.cumprod(ratio, axis=1)], axis=1)


def pass_curves(
    n_attempts: Counts, n_correct: Counts, cost: Array, budgets: Array, verify_fpr: float = 0.0
) -> tuple[Array, Array]:
    """Accepted and solved curves of one provider, when a budget b buys ⌊b / cost⌋ attempts.

    Parameters
    ----------
    n_attempts, n_correct : (n_problems,) int
    cost : (n_problems,) float
        Mean cost of an attempt.
    budgets : (n_budgets,) float
    verify_fpr : float in [0, 1)
        Probability that the verifier accepts a wrong attempt. It then stops the search with a wrong answer.

    Returns
    -------
    accepted, solved : (n_problems, n_budgets) float
        The same array when `verify_fpr` is zero.
    """
    # The slack keeps a budget of exactly k attempts from buying k − 1 after rounding.
    k = np.floor(budgets / cost[:, None] * (1.0 + 1e-12)).astype(np.int64)
    recorded = np.minimum(k, n_attempts[:, None])
    failure = failure_table(n_attempts, n_correct, int(n_attempts.max()))
    all_failed = np.take_along_axis(failure, recorded, axis=1)
    if verify_fpr == 0.0:
        solved = 1.0 - all_failed
        return solved, solved
    # The first accepted attempt is the j-th and right: j − 1 wrong ones were all rejected.
    rejected = (1.0 - verify_fpr) ** np.arange(failure.shape[1] - 1)
    right = np.cumsum(rejected * -np.diff(failure, axis=1), axis=1)
    right = np.concatenate([np.zeros((len(right), 1)), right], axis=1)
    return 1.0 - all_failed * (1.0 - verify_fpr) ** k, np.take_along_axis(right, recorded, axis=1)


def pass_curves_by_attempt(
    correct: Sequence[Counts],
    cost: Sequence[Array],
    budgets: Array,
    rng: np.random.Generator,
    verify_fpr: float = 0.0,
    n_orders: int = 200,
) -> tuple[Array, Array]:
    """The curves of :func:`pass_curves` from the cost of every single attempt, which may differ when it fails.

    Attempts are drawn in random order; a problem is solved within b if the cost up to its first accepted attempt is
    at most b. Parameters are lists over problems of (n_attempts,) arrays.

    Returns
    -------
    accepted, solved : (n_problems, n_budgets) float
        Averages over `n_orders` random orders.
    """
    accepted, solved = (np.empty((len(correct), len(budgets))) for _ in range(2))
    for problem, (right, price) in enumerate(zip(correct, cost, strict=True)):
        order = rng.permuted(np.tile(np.arange(len(right)), (n_orders, 1)), axis=1)
        passes = right[order].astype(bool)
        if verify_fpr > 0.0:
            passes |= rng.random(order.shape) < verify_fpr
        first = passes.argmax(axis=1)[:, None]
        until = np.take_along_axis(np.cumsum(price[order], axis=1), first, axis=1)[:, 0]
        stops = passes.any(axis=1)
        is_right = stops & (np.take_along_axis(right[order], first, axis=1)[:, 0] == 1)
        accepted[problem] = np.searchsorted(np.sort(until[stops]), budgets * (1.0 + 1e-12), side="right") / n_orders
        solved[problem] = np.searchsorted(np.sort(until[is_right]), budgets * (1.0 + 1e-12), side="right") / n_orders
    return (accepted, solved) if verify_fpr > 0.0 else (solved, solved)


def expected_spend(accepted: Array, budgets: Array) -> Array:
    """E(b) = ∫₀ᵇ (1 − P(x)) dx: what is spent within a budget of b when spending stops at the first accepted attempt.

    Between the points of the grid the probability of failure is linear in log x.

    Parameters
    ----------
    accepted : (…, n_budgets) float
    budgets : (n_budgets,) float
        Increasing.

    Returns
    -------
    (…, n_budgets) float
        In the unit of the budgets.

    Examples
    --------
    >>> budgets = np.geomspace(0.01, 10, 200)
    >>> bool(np.allclose(expected_spend(np.zeros(200), budgets), budgets))  # never solved: all of it is spent
    True
    """
    x = np.concatenate([[0.0], budgets])
    t = np.log(np.maximum(x, NOTHING * budgets[0]))
    failure = 1.0 - np.concatenate([np.zeros((*accepted.shape[:-1], 1)), accepted], axis=-1)
    slope = np.diff(failure, axis=-1) / np.diff(t)
    level = failure[..., :-1] - slope * t[:-1]
    antiderivative = (t - 1.0) * x  # of log x
    return np.cumsum(slope * np.diff(antiderivative) + level * np.diff(x), axis=-1)


def price(solved: Array, spend: Array, solve_rates: Array) -> Array:
    """The cheapest expected spend per problem that reaches each solve rate: log E interpolated in P.

    Parameters
    ----------
    solved, spend : (n_budgets,) float
        P and E over the same budgets; both non-decreasing.
    solve_rates : (n_rates,) float

    Returns
    -------
    (n_rates,) float
        Infinite above the largest solve rate; on a flat stretch of P the cheapest end; zero for a rate of zero.
    """
    # The first budget that reaches the rate; the slack keeps the top of the curve from missing itself by rounding.
    above = np.searchsorted(solved, solve_rates - 1e-12, side="left")
    last = np.minimum(above, len(solved) - 1)
    before = np.maximum(last - 1, 0)
    rise = solved[last] - solved[before]
    share = np.where(rise > 0, (solve_rates - solved[before]) / np.where(rise > 0, rise, 1.0), 1.0)
    log_spend = np.log(spend)
    found = np.exp(log_spend[before] + np.clip(share, 0.0, 1.0) * (log_spend[last] - log_spend[before]))
    found = np.where(above == len(solved), np.inf, found)
    return np.where(solve_rates <= 0.0, 0.0, found)


def budget_at(solved: Array, budgets: Array, solve_rates: Array) -> Array:
    """The smallest budget that reaches each solve rate (log-linear between grid points; infinite above the largest)."""
    return price(solved, budgets, solve_rates)


def curves_at(curves: Array, budgets: Array, budget: float) -> Array:
    """Curves (…, n_budgets) at one budget, linear in its logarithm; zero below the grid.

    Returns
    -------
    (…,) float
    """
    if budget < budgets[0]:
        return np.zeros(curves.shape[:-1])
    right = min(int(np.searchsorted(budgets, budget, side="left")), len(budgets) - 1)
    if budget >= budgets[right]:
        return np.asarray(curves[..., right])
    left = right - 1
    share = np.log(budget / budgets[left]) / np.log(budgets[right] / budgets[left])
    return np.asarray(curves[..., left] * (1.0 - share) + curves[..., right] * share)


def cascade(
    accepted: Array, solved: Array, budgets: Array, thresholds: Sequence[float] | Array, weights: Array
) -> tuple[Array, Array]:
    """Curves of a cascade: threshold τ₁ is spent on the first provider, then τ₂ on the second, and so on.

    Stages fail independently *given the problem*; averaging over problems comes after, so that problems that are hard
    for all providers stay hard for the cascade.

    Parameters
    ----------
    accepted, solved : (n_stages, n_problems, n_budgets) float
        In the order of the stages.
    budgets : (n_budgets,) float
    thresholds : (n_stages,) float
        A threshold of zero skips the stage.
    weights : (n_samples, n_problems) float
        Each row sums to one.

    Returns
    -------
    accepted, solved : (n_samples, n_budgets) float
        Weighted means over problems, interpolated in log budget back to the grid.
    """
    same = accepted is solved
    remaining, spent = weights, 0.0  # weight × probability that no attempt was accepted so far
    places: list[Array] = []
    points: tuple[list[Array], list[Array]] = ([], [])
    reached = [np.zeros((len(weights), 1)), np.zeros((len(weights), 1))]
    for stage, threshold in enumerate(thresholds):
        if threshold <= 0.0:
            continue
        below = int(np.searchsorted(budgets, threshold, side="left"))
        places.append(spent + np.append(budgets[:below], threshold))
        for kind, curves in enumerate((solved,) if same else (solved, accepted)):
            within = remaining @ curves[stage, :, :below]
            at_end = (remaining @ curves_at(curves[stage], budgets, threshold))[:, None]
            points[kind].append(reached[kind] + np.concatenate([within, at_end], axis=1))
            reached[kind] = reached[kind] + at_end
        remaining = remaining * (1.0 - curves_at(accepted[stage], budgets, threshold))
        spent += threshold
    if not places:
        nothing = np.zeros((len(weights), len(budgets)))
        return nothing, nothing
    along = np.log(np.concatenate(places))
    found = [_interpolated(np.log(budgets), along, np.concatenate(y, axis=1)) for y in points if y]
    return found[-1], found[0]


def _interpolated(x: Array, xp: Array, yp: Array) -> Array:
    """np.interp for many rows of `yp` that share their increasing `xp`."""
    if len(xp) == 1:
        return np.repeat(yp, len(x), axis=1)
    right = np.clip(np.searchsorted(xp, x, side="left"), 1, len(xp) - 1)
    gap = xp[right] - xp[right - 1]
    share = np.clip((x - xp[right - 1]) / np.where(gap > 0.0, gap, 1.0), 0.0, 1.0)
    return np.asarray(yp[:, right - 1] * (1.0 - share) + yp[:, right] * share)


def stage_spend(
    accepted: Array, budgets: Array, thresholds: Sequence[float] | Array, weights: Array, at: Array
) -> Array:
    """What each stage of a cascade receives within total budgets `at`: (1 − q) E(clip(b − s, 0, τ)), averaged.

    Here s is the sum of the thresholds before the stage and q the probability that one of those stages succeeded.

    Parameters
    ----------
    accepted : (n_stages, n_problems, n_budgets) float
    budgets : (n_budgets,) float
    thresholds : (n_stages,) float
    weights : (n_problems,) float
        Sums to one.
    at : (n,) float

    Returns
    -------
    (n_stages, n) float
        In the unit of the budgets, per problem.
    """
    received = np.zeros((len(thresholds), len(at)))
    remaining, spent = weights, 0.0
    for stage, threshold in enumerate(thresholds):
        mass = remaining.sum()
        if mass <= 0.0:
            break
        # Linear in the curves, so the mean over problems may be taken before the integral.
        mean_spend = mass * expected_spend(remaining @ accepted[stage] / mass, budgets)
        within = np.clip(at - spent, 0.0, threshold)
        received[stage] = np.interp(within, np.append(0.0, budgets), np.append(0.0, mean_spend))
        remaining = remaining * (1.0 - curves_at(accepted[stage], budgets, threshold))
        spent += threshold
    return received


def round_robin(accepted_by_k: Sequence[Array], cost: Array, budgets: Array) -> Array:
    """Curves of asking the providers in turn, one attempt each, until one is right.

    Parameters
    ----------
    accepted_by_k : n_providers arrays (n_problems, k_max + 1)
        Probability that k attempts all fail (:func:`failure_table`).
    cost : (n_providers, n_problems) float
    budgets : (n_budgets,) float

    Returns
    -------
    (n_problems, n_budgets) float
    """
    lap = cost.sum(axis=0)[:, None]
    failure = np.ones((cost.shape[1], len(budgets)))
    for table, finished in zip(accepted_by_k, np.cumsum(cost, axis=0), strict=True):
        laps = np.floor((budgets - finished[:, None]) / lap * (1.0 + 1e-12)).astype(np.int64) + 1
        failure *= np.take_along_axis(table, np.clip(laps, 0, table.shape[1] - 1), axis=1)
    return np.asarray(1.0 - failure)


def margin(market_price: Array, cost: Array) -> Array:
    """π = max(0, C − C^τ) / C: what a reseller keeps who sells at the market price C and pays C^τ.

    One where only the cascade reaches the solve rate (the market price is infinite), NaN where nobody does.
    """
    reachable = np.isfinite(market_price)
    with np.errstate(invalid="ignore"):
        found = (market_price - cost) / market_price
    found = np.where(found > 1e-12, found, 0.0)  # what a cascade of one provider saves by rounding is nothing
    return np.where(reachable, found, np.where(np.isfinite(cost), 1.0, np.nan))
