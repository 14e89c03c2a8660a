"""Fit a cascade on recorded attempts, resample the tasks, and leave folds of them out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay._core.errors import InputError
from assay._core.seeds import child_seed
from assay.evaluate.arbitrage.curves import (
    Array,
    Counts,
    budget_at,
    cascade,
    expected_spend,
    failure_table,
    margin,
    price,
    round_robin,
)
from assay.evaluate.arbitrage.policy import CascadePolicy
from assay.evaluate.arbitrage.report import ArbitrageReport, Estimate, Margins
from assay.evaluate.arbitrage.search import frontiers, market_prices, provider_prices, scores

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from assay.evaluate.arbitrage.market import Market

#: Rows of the table of solve rates, from the lowest to the best single provider's.
N_ROWS = 101

#: A bootstrap of three stages refits among this many of the best candidates, since it cannot try them all.
N_REFITTED = 150


def arbitrage(
    market: Market,
    order: Sequence[str] | None = None,
    *,
    stages: int = 2,
    solve_rates: tuple[float | None, float | None] = (None, None),
    at: float | None = None,
    n_boot: int = 500,
    n_folds: int = 5,
    random_state: int = 0,
) -> ArbitrageReport:
    """Fit a cascade on recorded attempts and say what it saves, with intervals and on held-out tasks.

    Parameters
    ----------
    market : Market
    order : list of str, optional
        Two to four providers; None tries many orders, also inside every fold.
    stages, solve_rates, at
        As in :class:`CascadePolicy`.
    n_boot : int
        Bootstrap resamples of the tasks.
    n_folds : int
        Held-out margins: the tasks of each fold run under thresholds chosen on the other folds. The market price stays
        the cheapest provider at each solve rate on all tasks, chosen with hindsight: it errs against the cascade.
    random_state : int

    Returns
    -------
    ArbitrageReport

    Raises
    ------
    InputError
        Fewer tasks than folds, an unknown provider, a solve rate that nobody reaches.

    Examples
    --------
    >>> import pandas as pd
    >>> from assay.evaluate.arbitrage import Market
    >>> rows = [("cheap", f"t{i}", i < 12, 1.0) for i in range(20)] + [("dear", f"t{i}", True, 5.0) for i in range(20)]
    >>> market = Market.from_attempts(
    ...     pd.DataFrame(rows * 2, columns=["model", "task", "solved", "cost"]), max_budget=10
    ... )
    >>> report = arbitrage(market, ["cheap", "dear"], n_boot=50)
    >>> round(report.fitted.max_margin.value, 1)  # 1 + 0.4 × 5 instead of 5
    0.4
    """
    if market.n_problems < 2 * n_folds:
        raise InputError(
            f"{market.n_problems} tasks are too few for {n_folds} folds of at least two; record more tasks"
        )
    policy = CascadePolicy(order, stages=stages, solve_rates=solve_rates, at=at).fit(market)
    resampled = _resamples(market.n_problems, n_boot, random_state)
    weights = np.concatenate([market.uniform, resampled])
    folds = np.random.default_rng(child_seed(random_state, "folds")).permutation(market.n_problems) % n_folds
    alone = _Curves(
        *cascade(*market.stages(policy.order_), market.budgets, policy.thresholds_, weights), market.budgets
    )
    apart = _cross_fitted(market, policy, weights, folds)
    in_turn = _in_turn(market, policy, weights)
    rates = policy.rates(market, weights)
    prices = market_prices(market, weights, rates)
    return ArbitrageReport(
        policy=policy,
        providers=market.providers,
        unit=market.unit,
        n_tasks=market.n_problems,
        n_boot=n_boot,
        n_folds=n_folds,
        max_budget=market.max_budget,
        thresholds=_refitted(market, policy, resampled),
        fitted=_margins(alone, rates, prices),
        held_out=_margins(apart, rates, prices),
        in_turn=Estimate(float("nan")) if in_turn is None else _margins(in_turn, rates, prices).mean_margin,
        table=_table(market, policy, weights, alone, apart, in_turn, float(rates[0, 0])),
    )


class _Curves:
    """Solve rates and spends over budgets, a row per sample: the data first, then its resamples."""

    def __init__(self, accepted: Array, solved: Array, budgets: Array) -> None:
        self.solved, self.spend = solved, expected_spend(accepted, budgets)

    def prices(self, rates: Array) -> Array:
        """Costs (n_samples, n_rates) at solve rates of the same shape."""
        return np.stack([price(*row) for row in zip(self.solved, self.spend, rates, strict=True)])


def _resamples(n_problems: int, n_boot: int, seed: int) -> Array:
    rng = np.random.default_rng(child_seed(seed, "bootstrap"))
    return rng.multinomial(n_problems, np.full(n_problems, 1.0 / n_problems), size=n_boot) / n_problems


def _cross_fitted(market: Market, policy: CascadePolicy, weights: Array, folds: Counts) -> _Curves:
    """Curves in which every task runs under thresholds (and an order) chosen without its fold."""
    accepted, solved = (np.zeros((len(weights), len(market.budgets))) for _ in range(2))
    for fold in range(int(folds.max()) + 1):
        rest = market.subset(folds != fold)
        # The same place below the frontier as on all tasks.
        scale = rest.frontier / market.frontier
        lowest, highest = (None if rate is None else rate * scale for rate in policy.solve_rates)
        at = None if policy.at is None else policy.at * scale
        other = CascadePolicy(policy.order, stages=policy.stages, solve_rates=(lowest, highest), at=at).fit(rest)
        inside = np.where(folds == fold, weights, 0.0)
        found = cascade(*market.stages(other.order_), market.budgets, other.thresholds_, inside)
        accepted += found[0]
        solved += found[1]
    return _Curves(accepted, solved, market.budgets)


def _in_turn(market: Market, policy: CascadePolicy, weights: Array) -> _Curves | None:
    """The providers of the policy in turn, one attempt each; None if the verifier is not perfect."""
    if market.accepted is not market.solved:
        return None
    at = [market.index(name) for name in policy.order_]
    tables = [failure_table(market.n_attempts[m], market.n_correct[m], int(market.n_attempts[m].max())) for m in at]
    solved = weights @ round_robin(tables, market.attempt_cost[at], market.budgets)
    return _Curves(solved, solved, market.budgets)


def _margins(curves: _Curves, rates: Array, prices: Array) -> Margins:
    found = np.nan_to_num(margin(prices, curves.prices(rates)))
    largest = found.argmax(axis=1)
    each = np.arange(len(found))
    return Margins(_estimate(found.mean(axis=1)), _estimate(found[each, largest]), _estimate(rates[each, largest]))


def _estimate(samples: Array) -> Estimate:
    """The first is the data's own value, the rest are the bootstrap's."""
    if len(samples) < 2:
        return Estimate(float(samples[0]))
    low, high = np.quantile(samples[1:], [0.025, 0.975])
    return Estimate(float(samples[0]), float(low), float(high))


def _refitted(market: Market, policy: CascadePolicy, resampled: Array) -> tuple[Estimate, ...]:
    """Each threshold with the interval of those that resampled tasks would have chosen, for the same order."""
    values = policy.thresholds_
    if len(resampled) == 0 or policy.at is not None:
        return tuple(Estimate(float(value)) for value in values)
    tried = policy.candidates(market, policy.order_)
    if len(tried) > N_REFITTED:
        rates = policy.rates(market, market.uniform)
        prices = market_prices(market, market.uniform, rates)
        value = np.array([float(s[0]) for s in scores(market, policy.order_, tried, market.uniform, rates, prices)])
        tried = tried[np.argsort(-value, kind="stable")[:N_REFITTED]]
    rates = policy.rates(market, resampled)
    prices = market_prices(market, resampled, rates)
    best = np.stack(list(scores(market, policy.order_, tried, resampled, rates, prices))).argmax(axis=0)
    low, high = np.quantile(tried[best], [0.025, 0.975], axis=0)
    return tuple(Estimate(*map(float, row)) for row in zip(values, low, high, strict=True))


def _table(
    market: Market,
    policy: CascadePolicy,
    weights: Array,
    alone: _Curves,
    apart: _Curves,
    in_turn: _Curves | None,
    lowest: float,
) -> pd.DataFrame:
    import pandas as pd

    step = (market.frontier - lowest) / (N_ROWS - 1)
    beyond = max(float(alone.solved[0, -1]), float(apart.solved[0, -1])) - market.frontier
    rates: Array = lowest + step * np.arange(float(N_ROWS + max(0, int(np.floor(beyond / step)))))
    rates[N_ROWS - 1] = market.frontier  # and not a rounding error above it
    # An interval compares the same place below the best single provider, which moves with the difficulty of the tasks.
    same = rates * (frontiers(market, weights) / market.frontier)[:, None]
    each = list(provider_prices(market, weights, same))
    of_market = np.min(each, axis=0)
    columns = {"solve_rate": rates}
    for name, costs in zip(market.providers, each, strict=True):
        columns |= _with_band(f"cost_{name}", costs)
    columns |= _with_band("market_price", of_market)
    cost = alone.prices(same)
    columns |= _with_band("cascade_cost", cost, "cascade")
    columns |= _with_band("margin", margin(of_market, cost))
    columns |= _with_band("held_out_margin", margin(of_market, apart.prices(same)))
    unknown = dict.fromkeys(("in_turn_cost", "in_turn_cost_low", "in_turn_cost_high"), np.full(len(rates), np.nan))
    columns |= unknown if in_turn is None else _with_band("in_turn_cost", in_turn.prices(same))
    columns["saturated"] = _saturated(market, policy, alone, np.stack([costs[0] for costs in each]), rates)
    return pd.DataFrame(columns)


def _with_band(name: str, samples: Array, band: str | None = None) -> dict[str, Array]:
    """The data's own values, and the ends of their interval."""
    low, high = _band(samples)
    return {name: samples[0], f"{band or name}_low": low, f"{band or name}_high": high}


def _band(samples: Array) -> tuple[Array, Array]:
    """95 % of the resamples of each column; an infinite cost counts as large, an undefined margin as none.

    Order statistics, since no interpolation may pass through infinity.
    """
    resampled = samples[1:] if len(samples) > 1 else samples
    ranked = np.sort(np.nan_to_num(resampled, nan=0.0, posinf=np.inf), axis=0)
    last = len(ranked) - 1
    return ranked[int(np.floor(0.025 * last))], ranked[int(np.ceil(0.975 * last))]


def _saturated(market: Market, policy: CascadePolicy, curves: _Curves, of_providers: Array, rates: Array) -> Array:
    """The largest share of tasks, over the providers that a solve rate relies on, whose record is used up there."""
    budget = np.minimum(budget_at(curves.solved[0], market.budgets, rates), market.max_budget)
    before = np.cumsum(policy.thresholds_) - policy.thresholds_
    shares = []
    for name, spent, threshold in zip(policy.order_, before, policy.thresholds_, strict=True):
        shares.append(market.saturation(name, np.clip(budget - spent, 0.0, threshold)))
    cheapest = of_providers.argmin(axis=0)
    for provider, name in enumerate(market.providers):
        curve = market.solved[provider].mean(axis=0)
        at = np.minimum(budget_at(curve, market.budgets, rates), market.max_budget)
        used = (cheapest == provider) & np.isfinite(of_providers[provider])
        shares.append(np.where(used, market.saturation(name, at), 0.0))
    return np.asarray(np.max(shares, axis=0))
