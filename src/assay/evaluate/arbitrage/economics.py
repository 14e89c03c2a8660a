"""What a cascade does to a market: prices under competition, who earns what, and what it takes to find thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError
from assay._core.seeds import child_seed
from assay.evaluate.arbitrage.analyse import arbitrage
from assay.evaluate.arbitrage.curves import Array, budget_at, expected_spend, margin, price, stage_spend
from assay.evaluate.arbitrage.policy import FROM_FRONTIER, CascadePolicy
from assay.evaluate.arbitrage.result import MarketCurve
from assay.evaluate.arbitrage.search import market_prices, scores

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike

    from assay.evaluate.arbitrage.market import Market

#: A reseller undercuts the posted price by this part of it each round (paper).
UNDERCUT = 0.07

#: What a search for thresholds may cost, in the unit of the market (paper: USD).
FIT_BUDGETS = (1.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1000.0)


def competition(
    market: Market,
    policy: CascadePolicy,
    *,
    at: float | None = None,
    step: float = UNDERCUT,
    rounds: int = 20,
    n_boot: int = 200,
    random_state: int = 0,
) -> MarketCurve:
    """Resellers undercut each other: posted price ← max((1 − step) × price, C^τ), from the market price on.

    Parameters
    ----------
    market : Market
    policy : CascadePolicy
        Fitted.
    at : float, optional
        The solve rate that is sold; by default the best single provider's.
    step : float in (0, 1)
    rounds : int
    n_boot, random_state : int
        Resamples of the tasks behind the 95 % intervals. The thresholds stay; the solve rate keeps its relation to the
        best single provider's.

    Returns
    -------
    MarketCurve
        round, price, price_low, price_high, margin, margin_low, margin_high: what the cheapest reseller keeps of the
        price that it posts.

    Raises
    ------
    InputError
        Nobody sells that solve rate.
    """
    import pandas as pd

    rate = market.frontier if at is None else float(at)
    if not 0.0 < step < 1.0:
        raise InputError(f"step {step!r} is not between 0 and 1")
    if not np.isfinite(market.market_price([rate])[0]):
        raise InputError(
            f"no single provider reaches a solve rate of {rate:g}, so there is no price to undercut; lower it"
        )

    def posted_and_kept(sample: Market) -> Array:
        sold = rate * sample.frontier / market.frontier
        first, cost = float(sample.market_price([sold])[0]), float(policy.cost([sold], sample)[0])
        # The closed form of the recursion; a cascade that costs more than the market never enters it.
        posted = np.maximum((1.0 - step) ** np.arange(rounds + 1) * first, min(cost, first))
        return np.stack([posted, np.zeros(rounds + 1) if cost >= first else (posted - cost) / posted])

    found = posted_and_kept(market)
    low, high = _resampled(posted_and_kept, market, n_boot, random_state)
    columns: dict[str, Any] = {"round": np.arange(rounds + 1)}
    for row, name in enumerate(("price", "margin")):
        columns |= {name: found[row], f"{name}_low": low[row], f"{name}_high": high[row]}
    return MarketCurve(
        title=f"Competition at solve rate {rate:.3f}: each round a reseller undercuts by {step:.0%}",
        table=pd.DataFrame(columns),
        x="round",
        lines=("margin",),
        bands={"margin": ("margin_low", "margin_high")},
        x_label="round",
        y_label="margin (part of the posted price)",
    )


def _resampled(
    measure: Callable[[Market], Array], market: Market, n_boot: int, random_state: int
) -> tuple[Array, Array]:
    """95 % percentile interval of what `measure` gives on resampled tasks; NaN without resamples."""
    rng = np.random.default_rng(child_seed(random_state, "bootstrap"))
    n = market.n_problems
    drawn = [measure(market.subset(np.sort(rng.integers(n, size=n)))) for _ in range(n_boot)]
    if not drawn:
        nothing = np.full_like(measure(market), np.nan)
        return nothing, nothing
    low, high = np.quantile(np.stack(drawn), [0.025, 0.975], axis=0)
    return low, high


def revenue_shares(
    market: Market,
    policy: CascadePolicy,
    solve_rates: ArrayLike | None = None,
    *,
    n_boot: int = 200,
    random_state: int = 0,
) -> MarketCurve:
    """Who earns what per task, without a reseller and with one that sells at the market price.

    Without: the provider with the lowest price takes all of it. With, where the cascade is cheaper: every provider
    receives what its stage spends, and the reseller keeps the rest.

    Parameters
    ----------
    market : Market
    policy : CascadePolicy
        Fitted.
    solve_rates : (n_rates,) float, optional
        By default 50 from nine tenths of the best single provider's.
    n_boot, random_state : int
        Resamples of the tasks behind the 95 % intervals. The thresholds stay; solve rates keep their relation to the
        best single provider's.

    Returns
    -------
    MarketCurve
        solve_rate, market_price, without_reseller (who takes it), and each with ``_low`` and ``_high``:
        revenue_<provider>, share_<provider> (of what the providers receive; they sum to 1), reseller, revenue_change
        (what the providers receive, relative to before).
    """
    import pandas as pd

    top = market.frontier
    rates = (
        np.linspace(FROM_FRONTIER * top, top, 50)
        if solve_rates is None
        else np.atleast_1d(np.asarray(solve_rates, float))
    )
    alone = market.provider_prices(rates)
    sold = np.isfinite(alone.min(axis=0))
    if not sold.all():
        raise InputError(
            f"no single provider reaches a solve rate of {rates[~sold].min():g}, so there is no price; lower it"
        )
    names = [*(f"revenue_{name}" for name in market.providers), *(f"share_{name}" for name in market.providers)]
    names += ["reseller", "revenue_change"]
    found = _revenue(market, policy, rates)
    low, high = _resampled(
        lambda sample: _revenue(sample, policy, rates * sample.frontier / top), market, n_boot, random_state
    )
    columns = {
        "solve_rate": rates,
        "market_price": alone.min(axis=0),
        "without_reseller": np.asarray(market.providers, dtype=object)[alone.argmin(axis=0)],
    }
    for row, name in enumerate(names):
        columns |= {name: found[row], f"{name}_low": low[row], f"{name}_high": high[row]}
    lines = (*(f"revenue_{name}" for name in market.providers), "reseller")
    return MarketCurve(
        title=f"Revenue per task ({market.unit}) with a reseller at the market price",
        table=pd.DataFrame(columns),
        x="solve_rate",
        lines=lines,
        bands={name: (f"{name}_low", f"{name}_high") for name in lines},
        x_label="solve rate",
        y_label=f"revenue per task ({market.unit})",
    )


def _revenue(market: Market, policy: CascadePolicy, rates: Array) -> Array:
    """(2 n_providers + 2, n_rates): revenue and share of each provider, the reseller's, the change of the revenue."""
    alone = market.provider_prices(rates)
    cheapest, before = alone.argmin(axis=0), alone.min(axis=0)
    revenue = np.where(np.arange(len(market.providers))[:, None] == cheapest, before, 0.0)
    solved, spend = policy.curves(market)
    cost = price(solved, spend, rates)
    enters = cost < before
    accepted, _ = market.stages(policy.order_)
    budget = np.where(enters, budget_at(solved, market.budgets, rates), 0.0)
    received = stage_spend(accepted, market.budgets, policy.thresholds_, market.uniform[0], budget)
    # The stages were integrated on other points than the cascade: let them sum to what the cascade costs.
    total = received.sum(axis=0)
    received *= np.divide(np.where(enters, cost, 0.0), total, out=np.zeros_like(total), where=total > 0)
    revenue[:, enters] = 0.0
    for stage, name in enumerate(policy.order_):
        revenue[market.index(name), enters] = received[stage, enters]
    earned = revenue.sum(axis=0)
    return np.vstack([revenue, revenue / earned, np.where(enters, before - cost, 0.0), earned / before])


def fit_budget_curve(
    market: Market,
    policy: CascadePolicy,
    fit_budgets: Sequence[float] = FIT_BUDGETS,
    *,
    evaluate_on: Market | None = None,
    n_draws: int = 50,
    random_state: int = 0,
) -> MarketCurve:
    """How much must be spent on finding thresholds? Fitted on few attempts, evaluated on a whole population.

    Tasks are drawn with how much each provider spends until it solves them (given up at half of the largest budget),
    until the draws of the second provider have cost the fit budget. The thresholds that are best on these draws are
    then used on `evaluate_on`.

    Parameters
    ----------
    market : Market
        Where tasks are drawn from.
    policy : CascadePolicy
        Two stages, fitted or not; says which and over which solve rates.
    fit_budgets : list of float
        In the unit of the market, for all draws together.
    evaluate_on : Market, optional
        Another population (other tasks of the same providers); by default the same.
    n_draws : int
        Repetitions for each fit budget.
    random_state : int

    Returns
    -------
    MarketCurve
        fit_budget, mean_margin, low, high (5th and 95th percentile over repetitions), mean_tasks (drawn).
    """
    import pandas as pd

    order = tuple(policy.order_ if hasattr(policy, "order_") else policy.order or ())
    if len(order) != 2:
        raise InputError(
            f"fit budgets are for cascades of two stages, not of {len(order)}; give an order of two providers"
        )
    if not fit_budgets or min(fit_budgets) <= 0:
        raise InputError("fit budgets are numbers above zero")
    other = market if evaluate_on is None else evaluate_on
    if other.providers != market.providers or not np.array_equal(other.budgets, market.budgets):
        raise InputError("evaluate_on has other providers or budgets; make both with subset() of one market")
    tried = CascadePolicy(order, n_grid=policy.n_grid).candidates(market, order)
    rates = policy.rates(other, other.uniform)
    prices = market_prices(other, other.uniform, rates)
    truth = np.array([float(value[0]) for value in scores(other, order, tried, other.uniform, rates, prices)])
    relative = rates[0] / other.frontier
    rows = []
    for fit_budget in fit_budgets:
        rng = np.random.default_rng(child_seed(random_state, "fit budget", repr(float(fit_budget))))
        chosen, n_tasks = [], []
        for _ in range(n_draws):
            spent = _drawn(market, order[1], float(fit_budget), rng)
            chosen.append(int(_margins_of_draws(spent, market, order, tried, relative).argmax()))
            n_tasks.append(spent.shape[1])
        found = truth[chosen]
        low, high = np.quantile(found, [0.05, 0.95])
        rows.append((float(fit_budget), found.mean(), low, high, np.mean(n_tasks)))
    return MarketCurve(
        title=f"Margin of {order[0]} → {order[1]} by what was spent on fitting it ({n_draws} repetitions)",
        table=pd.DataFrame(rows, columns=["fit_budget", "mean_margin", "low", "high", "mean_tasks"]),
        x="fit_budget",
        lines=("mean_margin",),
        bands={"mean_margin": ("low", "high")},
        x_label=f"fit budget ({market.unit})",
        y_label="mean margin (5th to 95th percentile)",
        log_x=True,
    )


def _drawn(market: Market, paid: str, fit_budget: float, rng: np.random.Generator) -> Array:
    """Cost until solved, of every provider on drawn tasks: (n_providers, n_tasks), infinite where given up."""
    give_up = 0.5 * market.max_budget
    at = market.index(paid)
    pieces, total = [], 0.0
    while total < fit_budget:
        problems = rng.integers(market.n_problems, size=256)
        block = np.stack(
            [_until_solved(market.solved[p, problems], market.budgets, rng) for p in range(len(market.providers))]
        )
        block[block > give_up] = np.inf
        cost = np.cumsum(np.minimum(block[at], give_up))
        enough = int(np.searchsorted(cost, fit_budget - total)) + 1
        pieces.append(block[:, :enough])
        total += float(cost[min(enough, len(cost)) - 1])
    return np.concatenate(pieces, axis=1)


def _until_solved(curves: Array, budgets: Array, rng: np.random.Generator) -> Array:
    """A draw for each curve (n, n_budgets): the budget at which it passes a uniform number, log-linear in between."""
    level = rng.random(len(curves))
    right = (curves < level[:, None]).sum(axis=1)
    solved = right < curves.shape[1]
    right = np.minimum(right, curves.shape[1] - 1)
    left = np.maximum(right - 1, 0)
    each = np.arange(len(curves))
    rise = curves[each, right] - curves[each, left]
    share = np.where(rise > 0, (level - curves[each, left]) / np.where(rise > 0, rise, 1.0), 1.0)
    log = np.log(budgets)
    return np.where(solved, np.exp(log[left] + share * (log[right] - log[left])), np.inf)


def _margins_of_draws(spent: Array, market: Market, order: tuple[str, ...], tried: Array, relative: Array) -> Array:
    """Mean margin of each candidate on the draws: every draw is solved at one cost, so a curve is a distribution."""
    n_tasks = spent.shape[1]
    edges = np.append(market.budgets, np.inf)

    def curve(costs: Array) -> Array:
        at = np.searchsorted(market.budgets, costs[np.isfinite(costs)])
        return np.asarray(np.cumsum(np.bincount(at, minlength=len(edges)))[:-1] / n_tasks)

    alone = np.stack([curve(row) for row in spent])
    rates = relative * max(float(alone[:, -1].max()), 1.0 / n_tasks)
    prices = np.min([price(row, expected_spend(row, market.budgets), rates) for row in alone], axis=0)
    first, second = spent[market.index(order[0])], spent[market.index(order[1])]
    found = np.zeros(len(tried))
    for number, (one, two) in enumerate(tried):
        total = np.where(first <= one, first, np.where(second <= two, one + second, np.inf))
        solved = curve(total)
        cost = price(solved, expected_spend(solved, market.budgets), rates)
        found[number] = np.nan_to_num(margin(prices, cost)).mean()
    return found


def distillation(
    market: Market,
    students: Sequence[str],
    teacher: str,
    *,
    n_boot: int = 200,
    random_state: int = 0,
) -> MarketCurve:
    """Which student is worth training? The margin of student → teacher for students of increasing size.

    Each student competes in a market of itself and the providers that are no students.

    Parameters
    ----------
    market : Market
    students : list of str
        In the order in which to show them: by the size of their training set, say.
    teacher : str
    n_boot : int
    random_state : int

    Returns
    -------
    MarketCurve
        student, pass_at_1, attempt_cost, threshold, mean_margin, low, high, held_out_margin, held_out_low,
        held_out_high, max_margin.
    """
    import pandas as pd

    if not students or teacher in students:
        raise InputError("give at least one student, and a teacher that is not one of them")
    others = [name for name in market.providers if name not in students]
    rows = []
    for student in students:
        market.index(student)
        report = arbitrage(
            market.only([student, *others]), [student, teacher], n_boot=n_boot, random_state=random_state
        )
        at = market.index(student)
        fitted, held_out = report.fitted.mean_margin, report.held_out.mean_margin
        rows.append(
            {
                "student": student,
                "pass_at_1": float((market.n_correct[at] / market.n_attempts[at]).mean()),
                "attempt_cost": float(market.attempt_cost[at].mean()),
                "threshold": float(report.policy.thresholds_[0]),
                "mean_margin": fitted.value,
                "low": fitted.low,
                "high": fitted.high,
                "held_out_margin": held_out.value,
                "held_out_low": held_out.low,
                "held_out_high": held_out.high,
                "max_margin": report.fitted.max_margin.value,
            }
        )
    return MarketCurve(
        title=f"Margin of student → {teacher}",
        table=pd.DataFrame(rows),
        x="student",
        lines=("held_out_margin", "mean_margin"),
        bands={"held_out_margin": ("held_out_low", "held_out_high")},
        x_label="student",
        y_label="mean margin",
    )
