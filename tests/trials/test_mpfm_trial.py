"""The trial of mpfm: its faults are what they say, its arms are the real thing, nothing leaks."""

import numpy as np
import pytest

from assay._core.errors import InputError
from assay.trials.audit.mpfm import TRIAL, Given, Setting, Truth, separation, simulated_fleets, systems
from assay.trials.audit.mpfm.arms import count_forest, count_pca, counts, mpfm, next_event, one_class, per_system
from assay.trials.audit.mpfm.worlds import FAILURES, FAULTS, logs_of, plant, simulated_logs, windows_of

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def world():
    return windows_of(simulated_logs(0, 500, 400, 2), 10, seed=0)


def test_half_of_the_windows_have_a_fault_and_keep_their_size():
    lines = simulated_logs(0, 0, 400, 1)[0].test
    made, label, kind = plant(lines, 10, np.random.default_rng(0))
    assert len(made) == 400
    assert label.mean() == 0.5
    assert set(kind[label == 1]) == set(FAULTS)


def test_windows_without_a_fault_are_the_logs_own():
    lines = simulated_logs(0, 0, 400, 1)[0].test
    made, label, _ = plant(lines, 10, np.random.default_rng(0))
    for number in np.flatnonzero(label == 0):
        assert made[number * 10 : number * 10 + 10] == lines[number * 10 : number * 10 + 10]


def test_failure_messages_are_in_no_training_window(world):
    fleet, _, _ = world
    assert not any(failure[:20] in message for failure in FAILURES for message in fleet.train.messages)


def test_what_an_arm_sees_has_no_labels(world):
    assert world[0].test.y is None


def test_a_longer_run_starts_with_the_same_cases():
    setting = Setting([], 10, 16)
    short, long = (list(simulated_fleets(setting, n, seed=1)) for n in (1, 2))
    assert np.array_equal(short[0].given.fleet.test.ids, long[0].given.fleet.test.ids)


def test_of_a_new_system_nothing_is_learned():
    logs = simulated_logs(0, 500, 400, 3)
    (case,) = systems(Setting(logs, 10, 16), 1, seed=0, as_new=True)
    assert "system 1" not in case.given.fleet.train.domain
    assert set(case.given.fleet.test.domain) == {"system 1"}


def test_unseen_templates_have_a_count_of_their_own(world):
    fleet, _, kind = world
    known = fleet.train[fleet.train.domain == "system 1"]
    asked = fleet.test.domain == "system 1"
    usual, judged = counts(known, fleet.test[asked])
    assert usual[:, -1].sum() == 0
    assert (judged[kind[asked] == "failure message", -1] >= 1).all()


@pytest.mark.parametrize("judge", [count_forest, count_pca, one_class, next_event])
def test_every_baseline_finds_windows_that_are_stuck(world, judge):
    fleet, label, kind = world
    scores = per_system(judge, fleet, 0)
    truth = Truth(label, kind, fleet.test.domain)
    case = type("Case", (), {"truth": truth})
    assert separation(case, scores)["auroc_stuck"] > 0.6


def test_the_method_is_one_model_for_all(world):
    fleet, label, kind = world
    scores = mpfm(fleet, 0, d=16, epochs=(4, 4))
    case = type("Case", (), {"truth": Truth(label, kind, fleet.test.domain)})
    assert separation(case, scores)["auroc"] > 0.6


def test_perfect_scores_separate_perfectly():
    truth = Truth(np.array([0, 1, 0, 1]), np.array(["", "stuck", "", "stuck"]), np.array(["a"] * 4))
    found = separation(type("Case", (), {"truth": truth}), np.array([0.0, 1.0, 0.0, 1.0]))
    assert found["auroc"] == found["average_precision"] == found["auroc_stuck"] == 1.0
    assert np.isnan(found["auroc_missing_event"])


def test_the_ten_real_logs_make_ten_cases(real_data):
    real = TRIAL.also[0]
    data = real.load(None, "quick", real.params)
    (case,) = real.cases(data.value, 1, 0)
    assert data.n == 20_000
    assert isinstance(case.given, Given)
    assert case.truth.label.mean() == 0.5


def test_a_folder_without_logs_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no file there ends in .log, .txt, .json, .jsonl or .gz$"):
        logs_of(str(tmp_path))


def test_a_short_log_is_refused(tmp_path):
    (tmp_path / "a.log").write_text("x\n" * 10)
    with pytest.raises(InputError, match=r"a.log: 10 lines; the trial needs 500 of every system$"):
        logs_of(str(tmp_path))


def test_missing_logs_say_where_they_belong(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"^loghub-apache is not here: run assay data get loghub-apache"):
        TRIAL.also[0].load(None, "quick", TRIAL.params)
