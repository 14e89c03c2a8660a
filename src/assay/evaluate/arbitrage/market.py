"""A market: providers that attempt the same problems, and how likely each solves what within which budget."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from assay._core.errors import InputError
from assay._core.seeds import generator
from assay.evaluate.arbitrage.checks import budget_grid, check_units, checked, split
from assay.evaluate.arbitrage.curves import (
    Array,
    Counts,
    expected_spend,
    pass_curves,
    pass_curves_by_attempt,
    price,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import pandas as pd
    from numpy.typing import ArrayLike, NDArray

#: Where more than this share of the problems is saturated, a curve says little.
SATURATED = 0.10

#: With k ≥ n attempts the estimate is 1 as soon as one attempt was right, while the truth is about 1 − exp(−c): for
#: five successes the difference is below one per cent.
ENOUGH_SUCCESSES = 5


@dataclass(frozen=True, eq=False)
class Market:
    """Recorded attempts of several providers on the same problems.

    Made by :meth:`from_attempts` or :func:`~assay.evaluate.arbitrage.read_market`.

    Parameters
    ----------
    providers : tuple of str
    problems : tuple of str
        Those that every provider attempted.
    n_attempts, n_correct : (n_providers, n_problems) int
    attempt_cost : (n_providers, n_problems) float
        Mean cost of an attempt.
    budgets : (n_budgets,) float
        Log-spaced; the last is the most that may be spent on a problem.
    accepted, solved : (n_providers, n_problems, n_budgets) float
        Probability that spending stops, and that the problem is solved, within each budget. The same array when the
        verifier is perfect.
    unit : str
        Of all costs.
    """

    providers: tuple[str, ...]
    problems: tuple[str, ...]
    n_attempts: Counts
    n_correct: Counts
    attempt_cost: Array
    budgets: Array
    accepted: Array
    solved: Array
    unit: str = "USD"

    @classmethod
    def from_attempts(
        cls,
        attempts: pd.DataFrame,
        *,
        model: str | None = None,
        task: str | None = None,
        solved: str | None = None,
        cost: str | None = None,
        unit: str = "USD",
        max_budget: float | None = None,
        budgets: ArrayLike | None = None,
        attempt_costs: bool = False,
        verify_fpr: float = 0.0,
        random_state: int | np.random.Generator | None = 0,
        where: str = "attempts",
    ) -> Market:
        """Build a market from a table with a row per attempt.

        Parameters
        ----------
        attempts : DataFrame
            Columns model (or provider), task (or problem), solved (or correct; 0 or 1, verified) and cost (above
            zero). Include the verifier's own cost if it is not negligible.
        model, task, solved, cost : str, optional
            Names of the columns where they are others.
        unit : str
            Of the cost column: "USD", "tokens", "s"; one for all.
        max_budget : float, optional
            The most that may be spent on a problem. By default what the record supports: half of the problems have
            attempts for it at some provider, and one attempt at every provider is affordable on nearly every problem.
        budgets : (n_budgets,) float, optional
            The whole grid, instead of 250 log-spaced points up to `max_budget`.
        attempt_costs : bool
            Use the cost of every single attempt (failed ones often cost more) instead of the problem's mean, as the
            paper does; averages 200 random orders of the attempts.
        verify_fpr : float in [0, 1)
            Probability that *your* verifier will accept a wrong attempt, if `solved` is the truth.
        random_state : int, Generator or None
            For the random orders.
        where : str
            Names the table in error messages.

        Returns
        -------
        Market

        Raises
        ------
        InputError
            A cost that is not above zero, no problem in common, a single provider, an unknown column …

        Warns
        -----
        UserWarning
            A provider with one attempt per problem: its curve is a step.

        Examples
        --------
        >>> import pandas as pd
        >>> rows = [("small", "t1", 1, 1.0), ("small", "t2", 0, 1.0), ("big", "t1", 0, 1.0), ("big", "t2", 1, 1.0)]
        >>> table = pd.DataFrame(rows * 2, columns=["model", "task", "solved", "cost"])
        >>> Market.from_attempts(table, max_budget=4).market_price([0.5, 1.0]).round(2).tolist()
        [1.0, inf]
        """
        names = {"model": model, "task": task, "solved": solved, "cost": cost}
        table = checked(attempts, names, where)
        if not 0.0 <= verify_fpr < 1.0:
            raise InputError(f"verify_fpr {verify_fpr!r} is not a probability below 1; give the verifier's error rate")
        provider_of, providers = table["model"].factorize()
        problem_of, problems = table["task"].factorize()
        if len(providers) < 2:
            raise InputError(
                f"{where}: {providers[0]!r} is the only provider; arbitrage needs attempts of at least two"
            )
        shape = (len(providers), len(problems))
        cell = provider_of * shape[1] + problem_of
        n = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
        common = np.flatnonzero((n > 0).all(axis=0))
        if len(common) == 0:
            counts = ", ".join(f"{name} {(row > 0).sum()}" for name, row in zip(providers, n, strict=True))
            raise InputError(f"{where}: no task was attempted by every provider (tasks of each: {counts})")
        right = np.bincount(cell, table["solved"], shape[0] * shape[1]).reshape(shape)
        total = np.bincount(cell, table["cost"], shape[0] * shape[1]).reshape(shape)
        n, right = n[:, common], right[:, common].astype(np.int64)
        mean_cost = total[:, common] / n
        check_units(tuple(providers), mean_cost, where)
        once = [str(name) for name in np.asarray(providers, dtype=object)[(n < 2).mean(axis=1) > 0.5]]
        if once:
            warnings.warn(
                f"one attempt on most tasks by {', '.join(once)}: a pass curve of one attempt is a single step and "
                "says nothing about retries, so single providers look worse than they are and the margin too good",
                stacklevel=2,
            )
        grid = budget_grid(n, mean_cost, table["cost"].min(), max_budget, budgets)
        if attempt_costs:
            rng = generator(random_state)
            right_of = split(cell, table["solved"].to_numpy(np.int64))
            cost_of = split(cell, table["cost"].to_numpy(np.float64))
            keys = [(provider * shape[1] + common).tolist() for provider in range(shape[0])]
            curves = [
                pass_curves_by_attempt([right_of[k] for k in row], [cost_of[k] for k in row], grid, rng, verify_fpr)
                for row in keys
            ]
        else:
            curves = [pass_curves(*record, grid, verify_fpr) for record in zip(n, right, mean_cost, strict=True)]
        solved_curves = np.stack([found for _, found in curves])
        accepted_curves = solved_curves if verify_fpr == 0.0 else np.stack([found for found, _ in curves])
        return cls(
            providers=tuple(str(name) for name in providers),
            problems=tuple(str(name) for name in np.asarray(problems, dtype=object)[common]),
            n_attempts=n,
            n_correct=right,
            attempt_cost=mean_cost,
            budgets=grid,
            accepted=accepted_curves,
            solved=solved_curves,
            unit=unit,
        )

    @property
    def n_problems(self) -> int:
        """Number of problems that all providers attempted."""
        return len(self.problems)

    @property
    def max_budget(self) -> float:
        """The most that may be spent on a problem (the last budget of the grid)."""
        return float(self.budgets[-1])

    @property
    def uniform(self) -> Array:
        """Weights (1, n_problems) that count every problem once."""
        return np.full((1, self.n_problems), 1.0 / self.n_problems)

    def index(self, provider: str) -> int:
        """Position of `provider`; an unknown one is an InputError that names the known ones."""
        if provider not in self.providers:
            raise InputError(f"there is no provider {provider!r}; there are {', '.join(self.providers)}")
        return self.providers.index(provider)

    def stages(self, order: Sequence[str]) -> tuple[Array, Array]:
        """Accepted and solved curves (n_stages, n_problems, n_budgets) of the providers in `order`."""
        at = [self.index(name) for name in order]
        solved = self.solved[at]
        return (solved, solved) if self.accepted is self.solved else (self.accepted[at], solved)

    def pass_curve(self, provider: str, budgets: ArrayLike | None = None) -> Array:
        """Mean probability that `provider` solves a problem within each budget.

        Parameters
        ----------
        provider : str
        budgets : (n,) float, optional
            By default the market's own grid. Between its points the curve is linear in the logarithm.

        Returns
        -------
        (n,) float
        """
        curve = np.asarray(self.solved[self.index(provider)].mean(axis=0))
        if budgets is None:
            return curve
        at = np.asarray(budgets, dtype=float)
        found = np.interp(np.log(np.maximum(at, 1e-300)), np.log(self.budgets), curve)
        return np.where(at < self.budgets[0], 0.0, found)

    @cached_property
    def frontier(self) -> float:
        """The largest solve rate that any single provider reaches within the largest budget."""
        return float(self.solved[:, :, -1].mean(axis=1).max())

    def provider_prices(self, solve_rates: ArrayLike, weights: Array | None = None) -> Array:
        """Expected spend per problem with which each provider alone reaches each solve rate.

        Parameters
        ----------
        solve_rates : (n_rates,) float
        weights : (n_samples, n_problems) float, optional
            By default every problem counts once, and the result has no axis for samples.

        Returns
        -------
        (n_providers, n_rates) float, or (n_samples, n_providers, n_rates) with weights
            Infinite where it does not reach it.
        """
        rates = np.atleast_1d(np.asarray(solve_rates, dtype=float))
        rows = self.uniform if weights is None else weights
        found = np.empty((len(rows), len(self.providers), len(rates)))
        for provider in range(len(self.providers)):
            solved = rows @ self.solved[provider]
            accepted = solved if self.accepted is self.solved else rows @ self.accepted[provider]
            spend = expected_spend(accepted, self.budgets)
            for sample in range(len(rows)):
                found[sample, provider] = price(solved[sample], spend[sample], rates)
        return found[0] if weights is None else found

    def price(self, provider: str, solve_rates: ArrayLike) -> Array:
        """C_m(u) of one provider; see :meth:`provider_prices`."""
        return np.asarray(self.provider_prices(solve_rates)[self.index(provider)])

    def market_price(self, solve_rates: ArrayLike) -> Array:
        """C(u) = min over providers of C_m(u): the price of the best single provider at each solve rate."""
        return np.asarray(self.provider_prices(solve_rates).min(axis=0))

    def saturation(self, provider: str, budget: ArrayLike) -> Array:
        """Share of the problems whose recorded attempts a budget at `provider` uses up before the record is settled.

        Those are problems with one to four successes: the estimate has jumped to 1 and promises too much. Above 0.10
        the curve should not be relied on.

        Parameters
        ----------
        provider : str
        budget : (n,) float

        Returns
        -------
        (n,) float
        """
        at = self.index(provider)
        few = (self.n_correct[at] > 0) & (self.n_correct[at] < ENOUGH_SUCCESSES)
        recorded = np.sort((self.n_attempts[at] * self.attempt_cost[at])[few])
        used_up = np.searchsorted(recorded, np.asarray(budget) * (1 + 1e-12), side="right")
        return np.asarray(used_up / self.n_problems)

    def subset(self, problems: Collection[str] | NDArray[np.bool_] | NDArray[np.intp]) -> Market:
        """The same market on some of its problems (names, positions or a mask), with the same budgets."""
        if isinstance(problems, np.ndarray) and problems.dtype.kind in "bi":
            chosen = np.flatnonzero(problems) if problems.dtype.kind == "b" else problems
        else:
            wanted = set(problems)
            chosen = np.array([i for i, name in enumerate(self.problems) if name in wanted], dtype=np.intp)
        if len(chosen) == 0:
            raise InputError(
                "none of the problems asked for is in the market; compare their names with market.problems"
            )
        solved = self.solved[:, chosen]
        return replace(
            self,
            problems=tuple(self.problems[i] for i in chosen),
            n_attempts=self.n_attempts[:, chosen],
            n_correct=self.n_correct[:, chosen],
            attempt_cost=self.attempt_cost[:, chosen],
            solved=solved,
            accepted=solved if self.accepted is self.solved else self.accepted[:, chosen],
        )

    def only(self, providers: Sequence[str]) -> Market:
        """The same market with some of its providers, in the order given."""
        at = [self.index(name) for name in providers]
        solved = self.solved[at]
        return replace(
            self,
            providers=tuple(providers),
            n_attempts=self.n_attempts[at],
            n_correct=self.n_correct[at],
            attempt_cost=self.attempt_cost[at],
            solved=solved,
            accepted=solved if self.accepted is self.solved else self.accepted[at],
        )

    def to_frame(self) -> pd.DataFrame:
        """A row per provider: attempts, pass@1, mean cost of an attempt, solve rate at the largest budget."""
        import pandas as pd

        return pd.DataFrame(
            {
                "provider": self.providers,
                "median_attempts": np.median(self.n_attempts, axis=1),
                "pass_at_1": (self.n_correct / self.n_attempts).mean(axis=1),
                "attempt_cost": self.attempt_cost.mean(axis=1),
                "solve_rate": self.solved[:, :, -1].mean(axis=1),
                "saturated": [float(self.saturation(name, self.max_budget)) for name in self.providers],
            }
        )
