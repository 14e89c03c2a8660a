"""Pass curves, expected spend, prices and cascades against closed forms and the paper's formulas written once more."""

import numpy as np
import pytest
from arbitrage_helpers import cascade_one_by_one, random_market, specialists, two_bernoulli
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import comb

from assay.evaluate.arbitrage import Market
from assay.evaluate.arbitrage.curves import (
    cascade,
    expected_spend,
    failure_table,
    margin,
    pass_at_k,
    pass_curves,
    pass_curves_by_attempt,
    price,
    round_robin,
    stage_spend,
)

GRID = np.geomspace(0.5, 100, 400)


@pytest.mark.parametrize("n", range(1, 13))
def test_pass_at_k_is_one_minus_a_ratio_of_binomials(n):
    c, k = np.meshgrid(np.arange(n + 1), np.arange(n + 1))
    assert pass_at_k(n, c, k) == pytest.approx(1 - comb(n - c, k) / comb(n, k), abs=1e-12)


def test_with_more_attempts_than_were_made_one_success_is_enough():
    assert pass_at_k(5, [0, 1, 5], 9).tolist() == [0.0, 1.0, 1.0]


def test_a_budget_buys_whole_attempts_and_exactly_k_costs_buy_k():
    solved, _ = pass_curves(np.array([10]), np.array([5]), np.array([0.1]), np.array([0.05, 0.1, 0.3, 0.39]))
    assert solved[0] == pytest.approx(pass_at_k(10, 5, [0, 1, 3, 3]))


monotone = st.lists(st.floats(0, 1), min_size=5, max_size=40).map(lambda values: np.maximum.accumulate(values))


@given(monotone)
def test_expected_spend_is_at_most_the_budget_increasing_and_concave(curve):
    budgets = np.geomspace(0.1, 10, len(curve))
    spend = expected_spend(curve, budgets)
    assert (spend <= budgets * (1 + 1e-9)).all()
    rate = np.diff(spend, prepend=0) / np.diff(budgets, prepend=0)
    assert (rate >= -1e-9).all()
    assert (np.diff(rate) <= 1e-9).all()


def test_what_is_never_solved_costs_the_whole_budget():
    assert expected_spend(np.zeros(400), GRID) == pytest.approx(GRID, rel=1e-6)


@pytest.mark.parametrize("p", [0.25, 0.1])
def test_attempts_until_success_cost_one_over_p(p):
    n = 20_000
    budgets = np.geomspace(0.5, 300, 5_000)
    solved, _ = pass_curves(np.array([n]), np.array([round(p * n)]), np.ones(1), budgets)
    assert expected_spend(solved[0], budgets)[-1] == pytest.approx(1 / p, rel=0.03)


def test_a_price_is_interpolated_in_log_spend_and_infinite_above_the_largest_rate():
    solved, spend = np.array([0.0, 0.4, 0.6]), np.array([1.0, 2.0, 8.0])
    assert price(solved, spend, np.array([0.4, 0.5, 0.6, 0.61])) == pytest.approx([2.0, 4.0, 8.0, np.inf])


def test_on_a_flat_stretch_the_price_is_the_cheapest_and_jumps_just_above_it():
    solved, spend = np.array([0.0, 0.5, 0.5, 0.5, 1.0]), np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    at, above = price(solved, spend, np.array([0.5, 0.5 + 1e-9]))
    assert at == pytest.approx(2.0)
    assert above == pytest.approx(4.0, rel=1e-6)


def test_below_the_first_point_the_price_is_what_the_smallest_budget_costs():
    assert price(np.array([0.3, 0.5]), np.array([2.0, 3.0]), np.array([0.0, 0.1])).tolist() == [0.0, 2.0]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 8), min_size=3, max_size=3), st.integers(0, 5))
def test_a_cascade_is_the_papers_problem_by_problem(thresholds, seed):
    market = random_market(seed, n_problems=15, providers=3, max_budget=25)
    accepted, solved = market.stages(market.providers)
    _, found = cascade(accepted, solved, market.budgets, thresholds, market.uniform)
    expected = cascade_one_by_one(solved, market.budgets, thresholds) if max(thresholds) > 0 else 0.0
    assert found[0] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("thresholds", "alone"), [((0.0, 20.0), 1), ((20.0, 0.0), 0)])
def test_a_cascade_with_one_threshold_is_that_provider(thresholds, alone):
    market = random_market(max_budget=20)
    _, found = cascade(*market.stages(market.providers), market.budgets, thresholds, market.uniform)
    assert found[0] == pytest.approx(market.solved[alone].mean(axis=0), abs=1e-6)


@pytest.mark.parametrize("first", [0.5, 2.0, 5.0])
def test_a_provider_after_itself_never_beats_itself(first):
    market = random_market(n_attempts=30, max_budget=15)
    accepted, solved = market.stages(["m0", "m0"])
    _, twice = cascade(accepted, solved, market.budgets, [first, 15 - first], market.uniform)
    once = market.solved[0].mean(axis=0)
    # Between two points of the grid the curves are interpolated, so a step may seem to come a little early.
    step = np.diff(once).max()
    assert (twice[0] <= once + step).all()
    rates = np.linspace(0.5, 1, 50) * min(once[-1], twice[0, -1])
    costs = (price(curve, expected_spend(curve, market.budgets), rates) for curve in (once, twice[0]))
    assert margin(*costs).mean() < 1e-3


def test_two_draws_from_a_record_of_two_are_not_independent():
    # n = 2, c = 1: two attempts together certainly contain the success; as two stages each has it with 1/2.
    one = np.array([pass_at_k(2, 1, k) for k in (0, 1, 2)])
    budgets = np.array([0.5, 1.0, 2.0])
    curves = one[None, None, :]
    _, found = cascade(*[np.repeat(curves, 2, axis=0)] * 2, budgets, [1.0, 1.0], np.ones((1, 1)))
    assert found[0, -1] == pytest.approx(0.75)
    assert one[-1] == 1.0


def test_two_specialists_together_solve_all_at_one_and_a_half():
    market = Market.from_attempts(specialists(), budgets=np.geomspace(0.5, 2, 4001))
    accepted, solved = cascade(*market.stages(["a", "b"]), market.budgets, [1.0, 1.0], market.uniform)
    cost = price(solved[0], expected_spend(accepted[0], market.budgets), np.array([1.0]))
    assert cost[0] == pytest.approx(1.5, rel=1e-3)
    assert market.market_price([1.0])[0] == np.inf
    assert margin(market.market_price([1.0]), cost)[0] == 1.0


def test_the_mean_is_taken_after_the_cascade_not_before():
    # Both providers solve the same half of the problems: nothing is gained, though mean curves would promise 3/4.
    rows = specialists()
    rows["solved"] = rows["task"].str[1:].astype(int) < 10
    market = Market.from_attempts(rows.astype({"solved": int}), budgets=np.geomspace(0.5, 2, 4001))
    _, solved = cascade(*market.stages(["a", "b"]), market.budgets, [1.0, 1.0], market.uniform)
    assert solved[0, -1] == pytest.approx(0.5)


def test_what_the_stages_receive_is_what_the_cascade_costs():
    market = random_market(max_budget=30)
    accepted, solved = market.stages(market.providers)
    passes, _ = cascade(accepted, solved, market.budgets, [3.0, 27.0], market.uniform)
    received = stage_spend(accepted, market.budgets, [3.0, 27.0], market.uniform[0], market.budgets)
    assert received.sum(axis=0) == pytest.approx(expected_spend(passes[0], market.budgets), rel=0.01)


def test_a_margin_is_a_part_of_the_market_price():
    assert margin(np.array([2.0, 2.0, np.inf]), np.array([1.5, 3.0, 1.0])).tolist() == [0.25, 0.0, 1.0]


def test_a_margin_nobody_can_earn_is_not_a_number():
    assert np.isnan(margin(np.array([np.inf]), np.array([np.inf]))[0])


def test_in_turn_means_one_attempt_each_until_one_is_right():
    tables = [failure_table(np.array([1000]), np.array([c]), 1000) for c in (200, 500)]
    budgets = np.array([0.9, 1.0, 3.9, 4.0, 5.0, 8.0])  # attempts end at 1, 4, 5, 8
    solved = round_robin(tables, np.array([[1.0], [3.0]]), budgets)[0]
    k = [(0, 0), (1, 0), (1, 0), (1, 1), (2, 1), (2, 2)]
    expected = [1 - (1 - pass_at_k(1000, 200, a)) * (1 - pass_at_k(1000, 500, b)) for a, b in k]
    assert solved == pytest.approx(np.array(expected))


def test_a_verifier_that_errs_stops_the_search_with_wrong_answers():
    # Independent attempts: right p, accepted p + (1 − p) f; the first accepted one is right with their ratio.
    p, f, n = 0.2, 0.1, 100_000
    budgets = np.arange(1.0, 6.0)
    accepted, solved = pass_curves(np.array([n]), np.array([round(p * n)]), np.ones(1), budgets, f)
    stops = p + (1 - p) * f
    expected = 1 - (1 - stops) ** budgets
    assert accepted[0] == pytest.approx(expected, abs=1e-4)
    assert solved[0] == pytest.approx(p / stops * expected, abs=1e-4)


def test_equal_costs_of_attempts_give_the_curve_of_mean_costs():
    right, cost = np.array([1, 0, 0, 0, 0]), np.ones(5)
    _, solved = pass_curves_by_attempt([right], [cost], np.arange(1.0, 6.0), np.random.default_rng(0), 0.0, 20_000)
    assert solved[0] == pytest.approx(np.arange(1, 6) / 5, abs=4 * np.sqrt(0.25 / 20_000))


def test_costly_failures_make_success_dearer_than_mean_costs_say():
    right, cost = np.array([1, 0]), np.array([1.0, 9.0])
    _, solved = pass_curves_by_attempt(
        [right], [cost], np.array([1.0, 5.0, 10.0]), np.random.default_rng(0), 0.0, 20_000
    )
    # Half of the orders begin with the success (1), half with the failure (9 + 1); the mean cost of 5 hides that.
    assert solved[0] == pytest.approx([0.5, 0.5, 1.0], abs=4 * np.sqrt(0.25 / 20_000))


def test_the_curve_of_one_kind_of_problem_is_geometric():
    market = two_bernoulli()
    assert market.pass_curve("cheap", [1.5, 2.5, 5.5]) == pytest.approx(1 - 0.7 ** np.array([1, 2, 5]), abs=2e-3)
