"""The online runner: does what the policy's curves say, keeps its budget from many threads, and keeps the books."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from arbitrage_helpers import two_bernoulli

from assay._core.errors import InputError
from assay.evaluate.arbitrage import Budget, CascadePolicy, CascadeRunner, read_market


def policy_of(thresholds, attempt_costs):
    return CascadePolicy.from_dict(
        {
            "schema": "assay/arbitrage-policy/1",
            "unit": "USD",
            "order": list(thresholds),
            "thresholds": thresholds,
            "attempt_costs": attempt_costs,
        }
    )


TWO = policy_of({"cheap": 3.0, "dear": 12.0}, {"cheap": 1.0, "dear": 3.0})


def coin(rng, p, cost):
    return lambda problem: (rng.random() < p, cost)


def is_true(problem, solution):
    return bool(solution)


def test_the_runner_solves_and_spends_as_the_curves_of_its_policy_say():
    market = two_bernoulli()
    # Thresholds a hair above whole numbers of attempts, where the curve has taken its step.
    policy = CascadePolicy(["cheap", "dear"], thresholds=[3.001, 11.99]).fit(market)
    solved, spend = policy.curves(market)
    rng, n = np.random.default_rng(0), 20_000
    runner = CascadeRunner(policy, {"cheap": coin(rng, 0.3, 1.0), "dear": coin(rng, 0.6, 3.0)}, is_true)
    outcomes = [runner.solve("t") for _ in range(n)]
    costs = np.array([outcome.cost for outcome in outcomes])
    rate = np.mean([outcome.solved for outcome in outcomes])
    # 11.99 pays for three attempts of 3; the rest of the threshold is counted as spent by the curves (attempts that are
    # broken off), so the comparison is at the budget where the last whole attempt ends.
    at = int(np.searchsorted(market.budgets, 3.001 + 9.0))
    assert abs(rate - solved[at + 5]) < 3 * np.sqrt(rate * (1 - rate) / n)
    assert abs(costs.mean() - spend[at]) < 3 * costs.std() / np.sqrt(n) + 0.001


def test_expected_spend_has_the_closed_form_of_a_cascade_of_coins():
    # 1 + .7 + .49 for three cheap attempts; then .343 × 3 × (1 + .4 + .16) for three dear ones.
    market = two_bernoulli()
    policy = CascadePolicy(["cheap", "dear"], thresholds=[3.0, 9.0]).fit(market)
    expected = 1 + 0.7 + 0.49 + 0.343 * 3 * (1 + 0.4 + 0.16)
    # The threshold lies on a step of the curve; between two points of the grid the step is a slope.
    assert policy.expected_spend(12.0, market) == pytest.approx(expected, rel=0.15)
    just_above = CascadePolicy(["cheap", "dear"], thresholds=[3.001, 9.0]).fit(market)
    assert just_above.expected_spend(12.001, market) == pytest.approx(expected, rel=2e-3)


class PaidService:
    """Charges up to `most` for an attempt, after a while; notes the largest total that it ever could have charged."""

    def __init__(self, most):
        self.most, self.charged, self.open, self.most_open = most, 0.0, 0, 0
        self.exposure = 0.0
        self.lock = threading.Lock()
        self.rng = np.random.default_rng(1)

    def __call__(self, problem):
        with self.lock:
            cost = float(self.rng.uniform(0.1, 1.0) * self.most)
            right = bool(self.rng.random() < 0.05)
            self.open += 1
            self.most_open = max(self.most_open, self.open)
            self.exposure = max(self.exposure, self.charged + self.open * self.most)
        time.sleep(0.002)
        with self.lock:
            self.open -= 1
            self.charged += cost
        return right, cost


@pytest.mark.parametrize("budget", [3.0, 20.0])
def test_64_concurrent_solves_never_overspend_and_leave_no_more_than_one_attempt_unspent(budget, tmp_path):
    service = PaidService(most=0.25)
    policy = policy_of({"service": 2.0}, {"service": 0.14})
    log = tmp_path / "log.jsonl"
    runner = CascadeRunner(policy, {"service": service}, is_true, budget=budget, max_cost={"service": 0.25}, log=log)
    with ThreadPoolExecutor(64) as pool:
        outcomes = list(pool.map(runner.solve, range(64)))
    assert service.exposure <= budget + 1e-9  # what is open is counted at its most: no moment at which luck was needed
    assert service.charged == pytest.approx(runner.spent)
    assert service.charged <= budget
    assert sum(outcome.cost for outcome in outcomes) == pytest.approx(service.charged)
    assert sum(json.loads(line)["cost"] for line in log.read_text().splitlines()) == pytest.approx(service.charged)
    assert any(outcome.stopped == "budget" for outcome in outcomes)
    assert service.charged > budget - 0.25  # it stopped because the money was gone, and not before
    assert service.most_open > 1  # how many more depends on how busy the machine is


def test_what_is_set_aside_comes_back_to_those_who_wait():
    budget = Budget(1.0)
    assert budget.reserve(1.0)
    waiting = threading.Thread(target=lambda: got.append(budget.reserve(0.9)))
    got = []
    waiting.start()
    time.sleep(0.05)
    assert got == []
    budget.settle(1.0, spent=0.1)
    waiting.join(timeout=5)
    assert got == [True]


def test_a_policy_file_drives_the_runner(tmp_path):
    TWO.save(tmp_path / "policy.json")
    runner = CascadeRunner(
        tmp_path / "policy.json", {"cheap": lambda p: (None, 1.0), "dear": lambda p: (p, 3.0)}, is_true
    )
    outcome = runner.solve("answer")
    assert (outcome.solution, outcome.stage, outcome.cost) == ("answer", "dear", 6.0)
    assert [attempt.provider for attempt in outcome.attempts] == ["cheap"] * 3 + ["dear"]


def test_unsolved_problems_end_when_the_thresholds_are_used_up():
    runner = CascadeRunner(TWO, {"cheap": lambda p: (None, 1.0), "dear": lambda p: (None, 3.0)}, is_true)
    outcome = runner.solve("hopeless")
    assert (outcome.stopped, outcome.cost, outcome.solution) == ("thresholds", 15.0, None)


def test_a_threshold_of_zero_skips_the_provider():
    skipping = policy_of({"cheap": 0.0, "dear": 3.0}, {"cheap": 1.0, "dear": 3.0})
    assert CascadeRunner(skipping, {"dear": lambda p: (1, 3.0)}, is_true).solve("t").stage == "dear"


def test_the_budget_of_one_problem_is_kept_too():
    solvers = {"cheap": lambda p: (None, 1.0), "dear": lambda p: (None, 3.0)}
    runner = CascadeRunner(TWO, solvers, is_true, max_cost={"cheap": 1.0, "dear": 3.0})
    outcome = runner.solve("t", budget=5.0)
    assert (outcome.stopped, outcome.cost) == ("budget", 3.0)


def test_a_solver_that_raises_is_charged_the_most_it_can_have_cost_and_logged(tmp_path):
    def broken(problem):
        raise TimeoutError("no answer")

    log = tmp_path / "log.jsonl"
    policy = policy_of({"dear": 3.0}, {"dear": 3.0})
    runner = CascadeRunner(policy, {"dear": broken}, is_true, budget=10.0, max_cost={"dear": 3.0}, log=log)
    with pytest.raises(TimeoutError):
        runner.solve("t")
    assert runner.spent == 3.0
    assert json.loads(log.read_text()) == {
        "task": "t", "model": "dear", "cascade_stage": 1, "attempt": 1, "solved": None, "cost": 3.0,
    }  # fmt: skip


def test_half_a_line_of_an_interrupted_run_is_cut_off(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text('{"task": "old"}\n{"task": "ha')
    CascadeRunner(TWO, {"cheap": lambda p: (1, 1.0), "dear": lambda p: (1, 3.0)}, is_true, log=log).solve("new")
    assert [json.loads(line)["task"] for line in log.read_text().splitlines()] == ["old", "new"]


def test_thresholds_are_not_fitted_on_the_log_of_a_cascade(tmp_path):
    log = tmp_path / "log.jsonl"
    CascadeRunner(TWO, {"cheap": lambda p: (0, 1.0), "dear": lambda p: (1, 3.0)}, is_true, log=log).solve("t")
    with pytest.raises(InputError, match="is the log of a cascade"):
        read_market(log)


# --------------------------------------------------------------------------------------------------------- bad input


def test_a_provider_without_a_solver_is_named():
    with pytest.raises(InputError, match=r"^the policy asks 'dear', but solvers has only 'cheap'$"):
        CascadeRunner(TWO, {"cheap": lambda p: (1, 1.0)}, is_true)


def test_a_budget_without_the_most_an_attempt_can_cost_is_refused():
    solvers = {"cheap": lambda p: (1, 1.0), "dear": lambda p: (1, 3.0)}
    with pytest.raises(
        InputError, match=r"^a budget is kept only if the most that an attempt can cost is known: give ma"
    ):
        CascadeRunner(TWO, solvers, is_true, budget=5.0, max_cost={"cheap": 1.0})


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("text", r"^the solver 'cheap' returned 'text'; expected \(solution, cost\)$"),
        ((1, 0.0), r"^the solver 'cheap' reported a cost of 0\.0; expected a finite number above zero$"),
        ((1, float("nan")), r"^the solver 'cheap' reported a cost of nan; expected"),
        ((1, 2.0), r"^an attempt of 'cheap' cost 2, above its max_cost of 1: the budget cannot be kept; limit what"),
    ],
)
def test_what_a_solver_returns_is_checked(returned, message):
    policy = policy_of({"cheap": 3.0}, {"cheap": 1.0})
    runner = CascadeRunner(policy, {"cheap": lambda p: returned}, is_true, budget=9.0, max_cost={"cheap": 1.0})
    with pytest.raises(InputError, match=message):
        runner.solve("t")


def test_an_overrun_is_booked_at_what_it_cost():
    policy = policy_of({"cheap": 3.0}, {"cheap": 1.0})
    runner = CascadeRunner(policy, {"cheap": lambda p: (1, 2.0)}, is_true, budget=9.0, max_cost={"cheap": 1.0})
    with pytest.raises(InputError):
        runner.solve("t")
    assert runner.spent == 2.0


def test_a_policy_that_was_not_fitted_is_refused():
    with pytest.raises(InputError, match=r"^the policy is not fitted; call fit\(market\) or load one$"):
        CascadeRunner(CascadePolicy(["a", "b"]), {}, is_true)
