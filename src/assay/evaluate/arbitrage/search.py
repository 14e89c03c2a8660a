"""Which thresholds? Candidates on a grid, each scored on many samples of problems at once."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from assay.evaluate.arbitrage.curves import Array, cascade, expected_spend, margin, price

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.evaluate.arbitrage.market import Market

#: Points per stage where a cascade has three stages or more (20, as the authors).
POINTS_PER_STAGE = 20


def candidates(n_stages: int, budget: float, smallest: float, n_grid: int) -> Array:
    """Thresholds to try; every row sums to at most `budget`.

    Two stages: τ₁ in {0} ∪ log grid up to half of the budget ∪ {budget}, and τ₂ = budget − τ₁. More: a log grid of 20
    points and zero for every stage, in all combinations, the excess over the budget removed from the last stage
    backwards; rows whose non-zero thresholds decrease are dropped.

    Parameters
    ----------
    n_stages : int
    budget : float
        The largest budget per problem.
    smallest : float
        The smallest threshold above zero; the authors start at a hundredth of the budget.
    n_grid : int
        Points of the log grid of two stages.

    Returns
    -------
    (n_candidates, n_stages) float

    Examples
    --------
    >>> candidates(2, 1.0, 0.01, 3).round(2).tolist()
    [[0.0, 1.0], [0.01, 0.99], [0.07, 0.93], [0.5, 0.5], [1.0, 0.0]]
    """
    if n_stages == 2:
        first = np.concatenate([[0.0], np.geomspace(min(smallest, 0.25 * budget), 0.5 * budget, n_grid), [budget]])
        return np.column_stack([first, budget - first])
    points = np.append(0.0, np.geomspace(min(smallest, 0.5 * budget), budget, POINTS_PER_STAGE))
    rows = np.array(list(product(points, repeat=n_stages)))
    # What is left of the budget when a stage begins bounds its threshold: the excess falls on the last stages.
    before = np.cumsum(rows, axis=1) - rows
    rows = np.minimum(rows, np.maximum(budget - before, 0.0))
    top = np.maximum.accumulate(rows, axis=1)
    rows = rows[((rows == 0.0) | (rows >= top)).all(axis=1)]
    return np.unique(rows.round(12 - int(np.floor(np.log10(budget)))), axis=0)


def frontiers(market: Market, weights: Array) -> Array:
    """The largest solve rate of a single provider in each sample."""
    return np.asarray((weights @ market.solved[:, :, -1].T).max(axis=1))


def cascade_prices(
    accepted: Array, solved: Array, budgets: Array, thresholds: Array, weights: Array, rates: Array
) -> Array:
    """C^τ at the solve rates of each sample.

    Parameters
    ----------
    accepted, solved, budgets, thresholds, weights
        As in :func:`~assay.evaluate.arbitrage.curves.cascade`.
    rates : (n_samples, n_rates) float

    Returns
    -------
    (n_samples, n_rates) float
    """
    accepts, solves = cascade(accepted, solved, budgets, thresholds, weights)
    spend = expected_spend(accepts, budgets)
    return np.stack([price(*row) for row in zip(solves, spend, rates, strict=True)])


def provider_prices(market: Market, weights: Array, rates: Array) -> Iterator[Array]:
    """For each provider what it alone asks for the solve rates of each sample: (n_samples, n_rates)."""
    for provider in range(len(market.providers)):
        solved = weights @ market.solved[provider]
        accepted = solved if market.accepted is market.solved else weights @ market.accepted[provider]
        spend = expected_spend(accepted, market.budgets)
        yield np.stack([price(*row) for row in zip(solved, spend, rates, strict=True)])


def market_prices(market: Market, weights: Array, rates: Array) -> Array:
    """C = min over providers, at the solve rates of each sample: (n_samples, n_rates)."""
    best = np.full(rates.shape, np.inf)
    for alone in provider_prices(market, weights, rates):
        best = np.minimum(best, alone)
    return best


def scores(
    market: Market, order: tuple[str, ...], tried: Array, weights: Array, rates: Array, prices: Array
) -> Iterator[Array]:
    """For each candidate its mean margin over the solve rates, in each sample: (n_samples,)."""
    accepted, solved = market.stages(order)
    for thresholds in tried:
        cost = cascade_prices(accepted, solved, market.budgets, thresholds, weights, rates)
        yield np.nan_to_num(margin(prices, cost)).mean(axis=1)
