"""The trial of arbitrage: real solvers, honest folds, and a score that is what it says."""

import numpy as np
import pandas as pd
import pytest

from assay._core.errors import InputError
from assay.evaluate.arbitrage import CascadePolicy, Market
from assay.trials.evaluate.arbitrage import (
    TRIAL,
    Plan,
    Recorded,
    Way,
    best_single,
    curves_of,
    ecm,
    factoring_attempts,
    fitted_cascade,
    folds,
    is_prime,
    learned_router,
    load_attempts,
    p_minus_1,
    providers_in_turn,
    relative_cost,
    rho,
    semiprime,
)

RNG = np.random.default_rng


@pytest.fixture(scope="module")
def recorded():
    """A cheap provider for the tasks whose name says so, a dear one for all: worth a cascade, and more so a router."""
    rng = RNG(0)
    rows = []
    for i in range(120):
        kind = "easy" if i % 2 else "hard"
        for name, p, cost in (("cheap", 0.8 * (kind == "easy"), 1.0), ("dear", 0.7, 10.0)):
            rows += [(name, f"{kind}-{i}", int(rng.random() < p), cost) for _ in range(12)]
    table = pd.DataFrame(rows, columns=["model", "task", "solved", "cost"])
    return Recorded(Market.from_attempts(table, max_budget=100), 0.9, ("cheap", "dear"))


def test_primes_are_told_from_the_rest():
    small = [n for n in range(2, 2000) if all(n % d for d in range(2, int(n**0.5) + 1))]
    assert [n for n in range(2000) if is_prime(n)] == small
    assert is_prime(2**61 - 1)
    assert not is_prime(3_215_031_751)  # passes for the bases 2, 3, 5 and 7


def test_a_number_to_factor_is_a_product_of_two_primes_in_the_stated_ranges():
    n = semiprime(RNG(1))
    assert 1e5 * 1e13 <= n <= 10**10.5 * 9e13 * 1.01


def test_each_solver_finds_a_factor_it_must_find():
    smooth = 2 * 3 * 5 * 7 * 11 * 13 * 17 * 19 + 1  # prime? then p - 1 has small factors only
    while not is_prime(smooth):
        smooth += 2 * 3 * 5 * 7 * 11 * 13 * 17 * 19
    q = 10**13 + 37
    assert is_prime(q)
    assert p_minus_1(smooth * q, RNG(0))[0] == smooth
    assert rho(100_003 * q, RNG(0))[0] == 100_003  # 1500 steps are five times the root of p
    assert any(ecm(100_003 * q, RNG(seed))[0] == 100_003 for seed in range(20))


def test_the_costs_of_an_attempt_are_those_of_its_multiplications():
    n = semiprime(RNG(2))
    costs = [solver(n, RNG(0))[1] for solver in (p_minus_1, rho, ecm)]
    # About 900 and 3,267 for p − 1 and ecm; rho takes three squarings and a product in each of 1,500 steps here.
    assert costs == [pytest.approx(900, rel=0.1), 6000, pytest.approx(3267, rel=0.01)]


def test_folds_are_disjoint_cover_all_tasks_and_are_never_known(recorded):
    cases = list(folds(recorded, 8, seed=0))
    names = [set(case.truth.fold.problems) for case in cases]
    assert len(cases) == 8
    assert sum(map(len, names)) == len(set.union(*names)) == 120
    assert all(not set(case.given.market.problems) & inside for case, inside in zip(cases, names, strict=True))


def test_the_best_single_provider_costs_what_the_known_tasks_say(recorded):
    case = next(folds(recorded, 8, seed=0))
    # Scored on the known tasks themselves, its relative cost is one by definition.
    on_known = case.truth._replace(fold=case.given.market)
    found = relative_cost(case.__class__(case.id, case.given, on_known), best_single(case.given, 0))
    assert found["relative_cost"] == pytest.approx(1.0, abs=5e-3)


def test_the_score_of_folds_agrees_with_the_whole_on_average(recorded):
    market = recorded.market
    plan = Plan((Way(("dear",), (100.0,)),), (0,) * 101, (30.0,) * 101)
    scores = []
    whole = next(folds(recorded, 8, seed=0)).truth._replace(fold=market)
    for case in folds(recorded, 8, seed=0):
        scores.append(relative_cost(case.__class__(case.id, None, whole._replace(fold=case.truth.fold)), plan))
    expected = relative_cost(case.__class__("whole", None, whole), plan)
    assert np.mean([s["relative_cost"] for s in scores]) == pytest.approx(expected["relative_cost"], rel=1e-9)


@pytest.mark.parametrize("arm", [fitted_cascade, providers_in_turn, learned_router])
def test_an_arm_that_mixes_beats_the_single_provider_where_mixing_must_pay(recorded, arm):
    saved = []
    for case in folds(recorded, 6, seed=0):
        saved.append(relative_cost(case, best_single(case.given, 0))["relative_cost"])
        saved[-1] -= relative_cost(case, arm(case.given, 0))["relative_cost"]
    assert np.mean(saved) > 0


def test_a_router_uses_what_the_names_of_tasks_tell(recorded):
    case = next(folds(recorded, 8, seed=0))
    routes = next(way.routes for way in learned_router(case.given, 0).ways if way.routes)
    easy = ["easy" in name for name in case.given.tasks]
    assert [name == "cheap" for name in routes] == easy


def test_a_cascade_of_one_provider_is_that_provider(recorded):
    market = recorded.market
    solved, _ = curves_of(Way(("dear",), (market.max_budget,)), market)
    assert solved == pytest.approx(market.pass_curve("dear"))


def test_without_data_the_real_part_says_what_to_bring(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    with pytest.raises(
        InputError, match=r"^no recorded attempts in .*market: put the provider files of github\.com/Ric"
    ):
        load_attempts(None, "quick", TRIAL.also[0].params)


def test_the_real_part_reads_three_agents(real_data, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", str(real_data))
    assert load_attempts(None, "quick", TRIAL.also[0].params).n == 445


@pytest.mark.slow
def test_rho_adds_nothing_to_ecm_and_p_minus_1_does():
    # The negative controls: at these sizes rho is dominated, and a cascade of p − 1 and rho does not get far enough.
    attempts = factoring_attempts(400, seed=0)
    market = Market.from_attempts(attempts, budgets=np.geomspace(1e2, 3e5, 250))
    margins = {
        order: CascadePolicy(order, solve_rates=(0.5, None)).fit(market).mean_margin_
        for order in (("p-1", "ecm"), ("rho", "ecm"), ("p-1", "rho"))
    }
    assert margins["p-1", "ecm"] > 0.03
    assert margins["rho", "ecm"] == margins["p-1", "rho"] == 0.0
