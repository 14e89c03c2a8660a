"""How much of a problem's budget to spend on each provider before moving on to the next."""

from __future__ import annotations

import json
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError
from assay._core.files import write_text
from assay.evaluate.arbitrage.curves import Array, cascade, expected_spend, margin, price
from assay.evaluate.arbitrage.search import candidates, cascade_prices, frontiers, market_prices, scores

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from numpy.typing import ArrayLike

    from assay.evaluate.arbitrage.market import Market

#: Written into policy.json, and required when it is read.
SCHEMA = "assay/arbitrage-policy/1"

#: Where solve rates begin if nobody says: the authors' 0.68 is nine tenths of their frontier of 0.755.
FROM_FRONTIER = 0.9

MAX_STAGES = 4


class CascadePolicy:
    """A cascade: spend τ₁ on the first provider, then τ₂ on the second, and stop at the first verified success.

    Parameters
    ----------
    order : list of str, optional
        Two to four providers. None: the best of many orders, by `stages`.
    stages : int
        Without an order: 2 tries every ordered pair; 3 or 4 every choice of so many providers (or all, where there are
        fewer), from cheap to dear attempts. Stages that do not pay get a threshold of zero.
    solve_rates : (float or None, float or None)
        From which to which solve rate the margin is averaged. By default from nine tenths of the best single
        provider's to that.
    at : float, optional
        Minimise the cost of this one solve rate, instead of maximising the mean margin.
    thresholds : list of float, optional
        Use these instead of fitting any; one per provider of `order`.
    n_grid : int
        Candidates for the first of two thresholds.
    n_rates : int
        Solve rates over which the margin is averaged.

    Attributes
    ----------
    order_ : tuple of str
    thresholds_ : (n_stages,) float
        In the unit of the costs. Zero: the stage is skipped.
    attempt_costs_ : (n_stages,) float
        Mean cost of an attempt in the data it was fitted on.
    unit_ : str
    mean_margin_ : float
        On the problems it was fitted on, and therefore too good: :func:`~assay.evaluate.arbitrage.arbitrage` gives
        the held-out one.

    References
    ----------
    Olmedo, Schölkopf, Hardt: "Computational Arbitrage in AI Model Markets", arXiv:2603.22404.

    Examples
    --------
    >>> import pandas as pd
    >>> from assay.evaluate.arbitrage import Market
    >>> rows = [("cheap", f"t{i}", i < 6, 1.0) for i in range(10)] + [("dear", f"t{i}", True, 5.0) for i in range(10)]
    >>> market = Market.from_attempts(
    ...     pd.DataFrame(rows * 2, columns=["model", "task", "solved", "cost"]), max_budget=10
    ... )
    >>> policy = CascadePolicy(["cheap", "dear"], solve_rates=(0.9, None)).fit(market)
    >>> bool(policy.cost(1.0, market)[0] < market.market_price(1.0)[0])  # six of ten never reach the dear one
    True
    """

    order_: tuple[str, ...]
    thresholds_: Array
    attempt_costs_: Array
    unit_: str
    mean_margin_: float

    def __init__(
        self,
        order: Sequence[str] | None = None,
        *,
        stages: int = 2,
        solve_rates: tuple[float | None, float | None] = (None, None),
        at: float | None = None,
        thresholds: Sequence[float] | None = None,
        n_grid: int = 100,
        n_rates: int = 1000,
    ) -> None:
        self.order = order
        self.stages = stages
        self.solve_rates = solve_rates
        self.at = at
        self.thresholds = thresholds
        self.n_grid = n_grid
        self.n_rates = n_rates

    def __repr__(self) -> str:
        if not hasattr(self, "thresholds_"):
            return f"CascadePolicy({'any order' if self.order is None else ' → '.join(self.order)}, not fitted)"
        stages = (f"{name} {tau:.4g}" for name, tau in zip(self.order_, self.thresholds_, strict=True))
        return f"CascadePolicy({' → '.join(stages)} {self.unit_})"

    def fit(self, market: Market) -> CascadePolicy:
        """Choose the thresholds (and the order, if none was given) on the problems of `market`.

        Raises
        ------
        InputError
            A provider that is not in the market, a solve rate that nobody reaches, thresholds above the budget.
        """
        weights = market.uniform
        rates = self.rates(market, weights)
        prices = market_prices(market, weights, rates)
        best: tuple[float, tuple[str, ...], Array] | None = None
        for order in self._orders(market):
            tried = self.candidates(market, order)
            if self.at is None:
                values = np.array([float(value[0]) for value in scores(market, order, tried, weights, rates, prices)])
            else:
                values = -self._costs_at(market, order, tried, float(self.at))
            top = int(values.argmax())
            if best is None or values[top] > best[0]:
                best = float(values[top]), order, tried[top]
        assert best is not None  # at least one order
        value, self.order_, self.thresholds_ = best
        if self.at is not None:
            if not np.isfinite(value):
                raise InputError(
                    f"no cascade of {', '.join(self.order_)} reaches a solve rate of {self.at:g}; lower it"
                )
            value = float(next(scores(market, self.order_, self.thresholds_[None], weights, rates, prices))[0])
        self.mean_margin_ = value
        self.attempt_costs_ = np.array([market.attempt_cost[market.index(name)].mean() for name in self.order_])
        self.unit_ = market.unit
        return self

    def _orders(self, market: Market) -> list[tuple[str, ...]]:
        if self.order is None:
            if self.thresholds is not None:
                raise InputError("thresholds belong to an order of providers; give order= as well")
            if not 2 <= self.stages <= MAX_STAGES:
                raise InputError(f"stages {self.stages!r} is not 2 to {MAX_STAGES}")
            if self.stages == 2:
                return list(permutations(market.providers, 2))
            cheap_first = [market.providers[m] for m in np.argsort(market.attempt_cost.mean(axis=1), kind="stable")]
            return list(combinations(cheap_first, min(self.stages, len(cheap_first))))
        order = tuple(self.order)
        if len(set(order)) != len(order) or not 2 <= len(order) <= MAX_STAGES:
            raise InputError(f"order {', '.join(order)!r} is not two to {MAX_STAGES} different providers")
        for name in order:
            market.index(name)
        return [order]

    def candidates(self, market: Market, order: tuple[str, ...]) -> Array:
        """The thresholds that :meth:`fit` tries for an order: (n_candidates, n_stages)."""
        if self.thresholds is not None:
            given = np.asarray(self.thresholds, dtype=float)
            if given.shape != (len(order),) or not (np.isfinite(given) & (given >= 0)).all():
                raise InputError(f"thresholds {list(self.thresholds)} are not one number of at least 0 per provider")
            if given.sum() > market.max_budget * (1 + 1e-9):
                raise InputError(
                    f"thresholds sum to {given.sum():g}, more than the budget of {market.max_budget:g} per task; lower "
                    "them or raise max_budget"
                )
            return given[None]
        # A hundredth of the budget as the authors; lower where an attempt of the first provider costs less than that.
        cheap = float(np.quantile(market.attempt_cost[market.index(order[0])], 0.05))
        return candidates(len(order), market.max_budget, min(0.01 * market.max_budget, cheap), self.n_grid)

    def rates(self, market: Market, weights: Array) -> Array:
        """The solve rates (n_samples, n_rates) over which the margin is averaged in each sample of problems.

        A sample of easier or harder problems gets easier or harder solve rates: all are scaled with what the best
        single provider reaches on it.
        """
        lowest, highest = self.solve_rates
        if lowest is None:
            lowest = FROM_FRONTIER * market.frontier
        if not 0.0 < lowest < 1.0:
            raise InputError(f"solve rates begin at {lowest!r}; expected a number between 0 and 1")
        if lowest >= market.frontier:
            raise InputError(
                f"no provider reaches a solve rate of {lowest:g} within {market.max_budget:g} {market.unit} per task "
                f"(the best reaches {market.frontier:.3f}); begin lower or raise the budget"
            )
        if highest is not None and not lowest <= highest:
            raise InputError(
                f"solve rates end at {highest!r}, below {lowest:g} where they begin; give the smaller first"
            )
        highest = market.frontier if highest is None else min(highest, market.frontier)
        relative = np.linspace(lowest, highest, self.n_rates) / market.frontier
        return frontiers(market, weights)[:, None] * relative

    def _costs_at(self, market: Market, order: tuple[str, ...], tried: Array, rate: float) -> Array:
        accepted, solved = market.stages(order)
        at = np.array([[rate]])
        args = accepted, solved, market.budgets
        return np.array([cascade_prices(*args, row, market.uniform, at)[0, 0] for row in tried])

    def curves(self, market: Market) -> tuple[Array, Array]:
        """Solve rate and expected spend per problem of the cascade at each budget of `market`.

        Returns
        -------
        solved, spend : (n_budgets,) float
        """
        accepted, solved = cascade(*market.stages(self.order_), market.budgets, self.thresholds_, market.uniform)
        return solved[0], expected_spend(accepted[0], market.budgets)

    def cost(self, solve_rates: ArrayLike, market: Market) -> Array:
        """C^τ(u): expected spend per problem of `market` at each solve rate; infinite where it is not reached."""
        return price(*self.curves(market), np.atleast_1d(np.asarray(solve_rates, dtype=float)))

    def expected_spend(self, budgets: ArrayLike, market: Market) -> Array:
        """E^τ(b): expected spend per problem when at most b may be spent on each."""
        _, spend = self.curves(market)
        at = np.asarray(budgets, dtype=float)
        return np.asarray(np.interp(at, np.append(0.0, market.budgets), np.append(0.0, spend)))

    def margin(self, solve_rates: ArrayLike, market: Market) -> Array:
        """What a reseller keeps of the market price at each solve rate.

        One where only the cascade reaches it; NaN, with a warning, where nobody does.
        """
        rates = np.atleast_1d(np.asarray(solve_rates, dtype=float))
        found = margin(market.market_price(rates), self.cost(rates, market))
        if np.isnan(found).any():
            import warnings

            first = rates[np.isnan(found)].min()
            warnings.warn(f"nobody reaches a solve rate of {first:.3f}: the margin there is not a number", stacklevel=2)
        return found

    def evaluate(self, market: Market) -> float:
        """Mean margin on other problems than those it was fitted on, over their solve rates."""
        rates = self.rates(market, market.uniform)
        prices = market_prices(market, market.uniform, rates)
        return float(next(scores(market, self.order_, self.thresholds_[None], market.uniform, rates, prices))[0])

    def envelope(self, market: Market, solve_rates: ArrayLike) -> pd.DataFrame:
        """The cheapest thresholds for each solve rate on its own (the lower envelope): no one policy need do all.

        Returns
        -------
        DataFrame
            solve_rate, cost, margin, and one column of thresholds per provider.
        """
        import pandas as pd

        rates = np.atleast_1d(np.asarray(solve_rates, dtype=float))
        tried = self.candidates(market, self.order_)
        accepted, solved = market.stages(self.order_)
        best = np.full(len(rates), np.inf)
        chosen = np.zeros((len(rates), len(self.order_)))
        for row in tried:
            found = cascade_prices(accepted, solved, market.budgets, row, market.uniform, rates[None])[0]
            better = found < best
            best, chosen = np.where(better, found, best), np.where(better[:, None], row, chosen)
        thresholds = {f"threshold {name}": chosen[:, stage] for stage, name in enumerate(self.order_)}
        of_market = market.market_price(rates)
        return pd.DataFrame({"solve_rate": rates, "cost": best, "margin": margin(of_market, best), **thresholds})

    def to_dict(self) -> dict[str, Any]:
        """What the online runner needs, ready for JSON."""
        return {
            "schema": SCHEMA,
            "unit": self.unit_,
            "order": list(self.order_),
            "thresholds": dict(zip(self.order_, self.thresholds_.tolist(), strict=True)),
            "attempt_costs": dict(zip(self.order_, self.attempt_costs_.tolist(), strict=True)),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy as JSON, which :meth:`load` reads."""
        write_text(path, json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CascadePolicy:
        """Read a policy from JSON, whether :meth:`save` or ``assay use arbitrage`` wrote it.

        Raises
        ------
        InputError
            The file is not such a policy.
        """
        try:
            with open(path, encoding="utf-8") as stream:  # noqa: PTH123 (path may be any os.PathLike)
                document = json.load(stream)
        except FileNotFoundError:
            raise InputError(f"{path}: no such file") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is not a readable JSON file: {error}") from None
        return cls.from_dict(document, where=str(path))

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], *, where: str = "policy") -> CascadePolicy:
        """The policy that :meth:`to_dict` described; other keys are ignored."""
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise InputError(f"{where} is not a policy ({SCHEMA}); `assay use arbitrage` writes one")
        try:
            order = [str(name) for name in document["order"]]
            thresholds = np.array([float(document["thresholds"][name]) for name in order])
            costs = np.array([float(document["attempt_costs"][name]) for name in order])
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"{where}: order, thresholds and attempt_costs do not name the same providers; let `assay use "
                "arbitrage` write it again"
            ) from None
        if (
            not order
            or not (np.isfinite(thresholds) & (thresholds >= 0)).all()
            or not (np.isfinite(costs) & (costs > 0)).all()
        ):
            raise InputError(f"{where}: thresholds are at least 0 and attempt costs above 0, all finite")
        policy = cls(order, thresholds=thresholds.tolist())
        policy.order_, policy.thresholds_, policy.attempt_costs_ = tuple(order), thresholds, costs
        policy.unit_ = str(document.get("unit", ""))
        return policy
