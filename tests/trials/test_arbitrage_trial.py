"""The trial of arbitrage: real solvers, honest folds, and a score that is what it says."""

from dataclasses import replace
from itertools import islice

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
from assay.trials.evaluate.arbitrage_router import cheap_features, foreseen, read_features

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
    for case in islice(folds(recorded, 6, seed=0), 3):
        saved.append(relative_cost(case, best_single(case.given, 0))["relative_cost"])
        saved[-1] -= relative_cost(case, arm(case.given, 0))["relative_cost"]
    assert np.mean(saved) > 0


def test_a_router_uses_what_the_names_of_tasks_tell(recorded):
    case = next(folds(recorded, 8, seed=0))
    routes = next(way.routes for way in learned_router(case.given, 0).ways if way.routes)
    easy = ["easy" in name for name in case.given.tasks]
    assert [name == "cheap" for name in routes] == easy


def test_a_name_tells_a_prefix_and_a_number():
    found = cheap_features(["django__django-11299", "10000", "8f-uuid"])
    assert found["prefix"].tolist() == ["django__django", "", "8f-uuid"]
    assert found["number"].round(3).tolist()[:2] == [4.053, 4.0]
    assert np.isnan(found["number"].iloc[2])


def test_columns_of_the_user_are_features_by_task_and_may_have_gaps():
    given = pd.DataFrame({"minutes": [5.0, 60.0]}, index=["b-2", "a-1"])
    found = cheap_features(["a-1", "b-2", "c-3"], given)
    assert found["given minutes"].tolist()[:2] == [60.0, 5.0]
    assert np.isnan(found["given minutes"].iloc[2])


@pytest.fixture
def blind(recorded):
    """The same attempts under names that say nothing, and a table that says what the names did."""
    market = recorded.market
    rng = RNG(3)
    names = {
        name: f"task-{number}" for name, number in zip(market.problems, rng.permutation(10_000)[:120], strict=True)
    }
    kinds = pd.DataFrame({"kind": [name.split("-")[0] for name in names]}, index=list(names.values()))
    return recorded._replace(market=replace(market, problems=tuple(names.values()))), kinds


def test_a_router_uses_what_the_users_columns_tell(blind):
    hidden, kinds = blind
    case = next(folds(hidden._replace(features=kinds), 8, seed=0))
    routes = next(way.routes for way in learned_router(case.given, 0).ways if way.routes)
    assert [name == "cheap" for name in routes] == [kinds.loc[task, "kind"] == "easy" for task in case.given.tasks]


def test_predictions_for_known_tasks_are_made_without_them():
    features = cheap_features([f"task-{i}" for i in range(60)])
    noise = RNG(0).normal(size=(60, 2))
    for among_known, _ in foreseen(features, noise, features, seed=0):
        # Noise cannot be foreseen: a model that saw a task's own target would be near it.
        assert np.corrcoef(among_known[:, 0], noise[:, 0])[0, 1] < 0.5


def test_the_same_seed_foresees_the_same():
    features = cheap_features([f"task-{i}" for i in range(40)])
    targets = RNG(0).normal(size=(40, 2))
    first, again = (list(islice(foreseen(features, targets, features, seed=1), 2)) for _ in range(2))
    np.testing.assert_array_equal(first, again)


def test_numbers_and_words_of_a_table_are_told_apart(tmp_path):
    (tmp_path / "f.csv").write_text("task,minutes,label\na,5,x\nb,,\n")
    found = read_features(str(tmp_path / "f.csv"), ["a", "b"])
    assert found["minutes"].tolist()[0] == 5.0
    assert found["label"].tolist() == ["x", ""]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task\na\n", r"besides 'task' there is no column"),
        ("task,x\na,1\na,2\n", r"the task 'a' has two rows; keep one"),
        ("task,x\nz,1\n", r"none of its tasks \(such as 'z'\) is among those attempted \(such as 'a'\)"),
    ],
)
def test_a_table_of_features_that_cannot_be_used_is_refused(tmp_path, text, message):
    (tmp_path / "f.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_features(str(tmp_path / "f.csv"), ["a", "b"])


def test_the_real_part_takes_human_times_as_features(real_data, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", str(real_data))
    params = {**TRIAL.also[0].params, "features": str(real_data / "bridge" / "human_minutes.csv")}
    found = load_attempts(None, "quick", params).value
    assert found.features.reindex(found.market.problems)["human_minutes"].notna().all()


def test_a_cascade_of_one_provider_is_that_provider(recorded):
    market = recorded.market
    solved, _ = curves_of(Way(("dear",), (market.max_budget,)), market)
    assert solved == pytest.approx(market.pass_curve("dear"))


def test_without_data_the_real_part_says_what_brings_it(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"^market-mini-coder-4b is not here: run assay data get market-mini-coder-4b"):
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
