"""The trial of bridge: its world is what it says, and its parts run."""

import numpy as np
import pytest

from assay._core.errors import InputError
from assay._core.tables import write_table
from assay.trials.evaluate import bridge
from assay.trials.evaluate.bridge import TRIAL, load_table, make_world, rho_steps, untimed_folds, untimed_suite

TREND, TIMED, TRANSFER = TRIAL.also
DEFAULTS = dict(TIMED.params)


@pytest.fixture(scope="module")
def world():
    return make_world(0)


def test_rho_steps_are_those_of_pollards_algorithm_run_with_gcds():
    from math import gcd

    p, q = np.array([101, 1009, 10007]), np.array([1013, 10009, 100003])
    found = rho_steps(p, q, np.array([5000, 5000, 5000]), np.random.default_rng(1))
    rng = np.random.default_rng(1)
    start, c = rng.integers(2, 1000, 3), rng.integers(1, 1000, 3)
    for case in range(3):
        n, add = int(p[case] * q[case]), int(c[case])
        slow = fast = int(start[case])
        for step in range(1, 5001):  # noqa: B007  (the step it stops at is the answer)
            slow = (slow * slow + add) % n
            fast = (fast * fast + add) % n
            fast = (fast * fast + add) % n
            if gcd(slow - fast, n) != 1:
                break
        assert found[case] == (step if gcd(slow - fast, n) != n else np.inf)


def test_rho_stops_at_its_budget():
    found = rho_steps(np.array([10007]), np.array([100003]), np.array([3]), np.random.default_rng(1))
    assert found[0] == np.inf


def test_weak_models_ran_the_easy_suite_alone(world):
    suites = world.responses.assign(suite=world.responses["task"].map(world.suite)).groupby("model")["suite"].unique()
    assert list(suites["rho 4"]) == [1]
    assert list(suites[f"rho {bridge.BUDGETS[-1]}"]) == [3]


def test_budgets_double_every_six_months(world):
    days = (world.dates.max() - world.dates.min()).days
    doublings = np.log2(bridge.BUDGETS[-1] / 4)
    # Budgets are whole numbers: 0.03 of a doubling at most is lost to rounding at the top and none at the start.
    assert days / 30.4375 / doublings == pytest.approx(6.0, rel=0.005)


def test_cases_are_the_same_again_and_a_shorter_run_is_the_start_of_a_longer_one():
    one, two = list(untimed_suite(0.5, 1, 7)), list(untimed_suite(0.5, 2, 7))
    assert one[0].given.responses.equals(two[0].given.responses)
    assert [case.id for case in two] == ["world 1", "world 2"]


def test_no_arm_sees_the_times_it_is_asked_for():
    case = next(iter(untimed_suite(0.5, 1, 0)))
    assert not set(case.given.asked) & set(case.given.minutes.index)


@pytest.fixture
def folder(tmp_path, world):
    write_table(world.responses, tmp_path / "responses.csv.gz")
    write_table(world.minutes.rename_axis("task").reset_index(name="human_minutes"), tmp_path / "human_minutes.csv")
    return tmp_path


def test_a_folder_of_ones_own_is_cut_into_disjoint_folds(folder):
    data = load_table(str(folder), "quick", DEFAULTS)
    found = list(untimed_folds(data.value, 8, 0))
    asked = [task for case in found for task in case.given.asked]
    assert len(found) == 8
    assert (len(asked), len(set(asked))) == (data.value.minutes.size, data.value.minutes.size)
    assert all(not set(case.given.asked) & set(case.given.minutes.index) for case in found)


def test_a_held_out_benchmark_is_never_calibrated_on(folder):
    data = load_table(str(folder), "quick", DEFAULTS | {"holdout": "suite 2/*"})
    for case in untimed_folds(data.value, 4, 0):
        assert all(task.startswith("suite 2/") for task in case.given.asked)
        assert not any(task.startswith("suite 2/") for task in case.given.minutes.index)


@pytest.mark.parametrize(
    ("holdout", "message"),
    [("suite 9/*", "holdout 'suite 9/.' matches 0 of"), ("*", "at least 10 have to be held out, and 3 kept")],
)
def test_a_pattern_that_leaves_too_little_is_refused(folder, holdout, message):
    with pytest.raises(InputError, match=message):
        load_table(str(folder), "quick", DEFAULTS | {"holdout": holdout})


def test_a_folder_without_the_files_says_what_belongs_there(tmp_path):
    with pytest.raises(InputError, match=r"expected a folder with responses.csv .* there is no responses file"):
        load_table(str(tmp_path), "quick", DEFAULTS)


def test_without_the_papers_table_the_message_says_what_brings_it(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"^bridge-responses is not here: run assay data get bridge-responses, or"):
        load_table(None, "quick", DEFAULTS)


def test_the_papers_table_gives_metrs_tasks_and_holds_swe_bench_out(real_data):
    timed = load_table(None, "quick", DEFAULTS).value
    transfer = load_table(None, "quick", dict(TRANSFER.params)).value
    assert (len(timed.minutes), timed.held_out) == (170, None)
    assert (len(transfer.minutes), int(transfer.held_out.sum())) == (670, 500)


def test_every_arm_answers_every_question():
    for case in untimed_suite(0.5, 1, 0):
        for arm in TRIAL.arms:
            scores = TRIAL.score(case, arm.run(case.given, 0))
            assert set(scores) == {metric.name for metric in TRIAL.metrics}


def test_every_arm_of_the_trend_finds_a_doubling_time():
    for case in TREND.cases(None, 1, 0):
        for arm in TREND.arms:
            assert np.isfinite(TREND.score(case, arm.run(case.given, 0))["doubling_error"])


def test_bridge_beats_success_rates_where_weak_models_ran_only_easy_tasks():
    errors = {arm.name: [] for arm in TRIAL.arms[:2]}
    for case in untimed_suite(0.5, 6, 0):
        for arm in TRIAL.arms[:2]:
            errors[arm.name].append(TRIAL.score(case, arm.run(case.given, 0))["log_error"])
    assert np.mean(errors["BRIDGE"]) < np.mean(errors["logit success rate"])
