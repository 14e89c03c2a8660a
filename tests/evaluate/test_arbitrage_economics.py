"""Competition, revenue, fit budgets and students, against closed forms and what must hold by construction."""

import numpy as np
import pytest
from arbitrage_helpers import random_market, worthwhile_market

from assay._core.errors import InputError
from assay.evaluate.arbitrage import (
    CascadePolicy,
    competition,
    distillation,
    fit_budget_curve,
    revenue_shares,
)


@pytest.fixture(scope="module")
def market():
    return worthwhile_market()


@pytest.fixture(scope="module")
def policy(market):
    return CascadePolicy(["cheap", "dear"]).fit(market)


def test_undercutting_goes_down_by_seven_per_cent_until_price_is_cost(market, policy):
    rate = 0.95 * market.frontier
    found = competition(market, policy, at=rate, rounds=20).to_frame()
    first, cost = market.market_price(rate)[0], policy.cost(rate, market)[0]
    assert found["price"].to_numpy() == pytest.approx(np.maximum(0.93 ** np.arange(21) * first, cost))
    assert found["margin"].iloc[-1] == 0.0
    assert found["margin"].iloc[0] == pytest.approx((first - cost) / first)


def test_revenues_and_the_resellers_profit_add_up_to_the_market_price(market, policy):
    table = revenue_shares(market, policy).to_frame()
    total = table["revenue_cheap"] + table["revenue_dear"] + table["reseller"]
    assert total.to_numpy() == pytest.approx(table["market_price"].to_numpy())


def test_shares_add_up_to_one(market, policy):
    table = revenue_shares(market, policy).to_frame()
    assert (table["share_cheap"] + table["share_dear"]).to_numpy() == pytest.approx(np.ones(len(table)))


def test_arbitrage_lowers_what_the_providers_earn_together(market, policy):
    table = revenue_shares(market, policy).to_frame()
    entered = table["reseller"] > 0
    assert entered.any()
    assert (table.loc[entered, "revenue_change"] < 1).all()


def test_a_cheap_provider_earns_through_a_reseller_what_it_would_not_alone(market, policy):
    table = revenue_shares(market, policy, [0.98 * market.frontier]).to_frame()
    assert table["without_reseller"].item() == "dear"
    assert table["revenue_cheap"].item() > 0


def test_every_number_of_an_economy_has_an_interval_that_holds_it(market, policy):
    competing = competition(market, policy, at=0.95 * market.frontier, n_boot=40).to_frame()
    earning = revenue_shares(market, policy, n_boot=40).to_frame()
    for table, names in ((competing, ("price", "margin")), (earning, ("revenue_dear", "share_cheap", "reseller"))):
        for name in names:
            low, value, high = (table[column].to_numpy() for column in (f"{name}_low", name, f"{name}_high"))
            assert (low <= high).all()
            assert np.mean((low <= value) & (value <= high)) > 0.9


def test_the_interval_of_a_first_price_is_that_of_the_market_price(market, policy):
    """At the frontier the first posted price is the best provider's spend on all tasks: a mean over tasks."""
    found = competition(market, policy, n_boot=300).to_frame()
    rng = np.random.default_rng(1)
    n = market.n_problems
    samples = [market.subset(rng.integers(n, size=n)) for _ in range(300)]
    prices = [float(sample.market_price([sample.frontier])[0]) for sample in samples]
    spread = np.subtract(*np.quantile(prices, [0.975, 0.025]))
    assert found["price_high"][0] - found["price_low"][0] == pytest.approx(spread, rel=0.3)


def test_without_resamples_there_is_no_interval(market, policy):
    assert np.isnan(competition(market, policy, n_boot=0).to_frame()["margin_low"]).all()


def test_more_money_for_fitting_finds_better_thresholds(market, policy):
    found = fit_budget_curve(market, policy, [20.0, 20_000.0], n_draws=20).to_frame()
    assert found["mean_margin"].iloc[1] > found["mean_margin"].iloc[0]
    assert (found["low"] <= found["mean_margin"]).all()
    assert (found["mean_margin"] <= found["high"]).all()


def test_no_fit_budget_beats_the_best_thresholds_of_the_population(market, policy):
    best = CascadePolicy(["cheap", "dear"]).fit(market).mean_margin_
    assert (fit_budget_curve(market, policy, [100.0], n_draws=20).to_frame()["high"] <= best + 1e-12).all()


def test_a_fit_on_one_population_can_be_evaluated_on_another(market, policy):
    half = np.arange(market.n_problems) % 2 == 0
    found = fit_budget_curve(market.subset(half), policy, [500.0], evaluate_on=market.subset(~half), n_draws=10)
    assert 0 <= found.to_frame()["mean_margin"].item() < 1


def test_a_useful_student_leaves_a_margin_and_a_useless_one_none():
    market = worthwhile_market(extra={"useless": (0.0, 1.0)})
    table = distillation(market, ["useless", "cheap"], "dear", n_boot=20).to_frame().set_index("student")
    assert table.loc["useless", ["mean_margin", "high", "held_out_margin"]].tolist() == [0.0, 0.0, 0.0]
    assert table.loc["cheap", "held_out_low"] > 0


@pytest.mark.parametrize("make", ["competition", "revenue", "fit budget"])
def test_results_print_and_draw_with_units(market, policy, make):
    result = {
        "competition": lambda: competition(market, policy),
        "revenue": lambda: revenue_shares(market, policy),
        "fit budget": lambda: fit_budget_curve(market, policy, [50.0], n_draws=3),
    }[make]()
    assert result.title in result.summary()
    assert result.plot().get_xlabel()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda m, p: competition(m, p, at=0.9999),
            r"^no single provider reaches a solve rate of 0\.9999, so there is",
        ),
        (lambda m, p: competition(m, p, step=1.5), r"^step 1\.5 is not between 0 and 1$"),
        (lambda m, p: revenue_shares(m, p, [0.9999]), r"^no single provider reaches a solve rate of 0\.9999"),
        (lambda m, p: fit_budget_curve(m, p, [-1.0]), r"^fit budgets are numbers above zero$"),
        (
            lambda m, p: fit_budget_curve(m, p, [1.0], evaluate_on=random_market(max_budget=5)),
            r"^evaluate_on has other providers or budgets; make both with subset\(\) of one market$",
        ),
        (
            lambda m, p: distillation(m, ["cheap"], "cheap"),
            r"^give at least one student, and a teacher that is not one of them$",
        ),
    ],
)
def test_questions_that_have_no_answer_are_refused(market, policy, call, message):
    with pytest.raises(InputError, match=message):
        call(market, policy)
