"""What bridge reads, what it refuses, and what it says."""

import json
import pickle

import numpy as np
import pandas as pd
import pytest
from bridge_worlds import long_table, simulated, small_world

from assay._core.errors import InputError
from assay.evaluate.bridge import TimeHorizonIRT, read_dates, read_minutes, read_responses
from assay.evaluate.bridge.responses import code_responses


def table(*rows, columns=("model", "task", "correct")):
    return pd.DataFrame(rows, columns=list(columns))


FOUR = [("x", "t1", 1), ("x", "t2", 0), ("y", "t1", 1), ("y", "t2", 1)]

# --------------------------------------------------------------------------------------------- bad input


def test_a_response_that_is_neither_0_nor_1_names_the_column_and_the_value():
    with pytest.raises(
        InputError, match=r"responses, row 2, column 'correct': 0.4 is neither 0 nor 1; give threshold="
    ):
        TimeHorizonIRT().fit(table(("x", "t1", 1), ("x", "t2", 0.4)))


def test_a_threshold_makes_scores_into_successes():
    coded = code_responses(table(("x", "t1", 0.5), ("x", "t2", 0.49)), threshold=0.5)
    assert coded.records.solved.tolist() == [1.0, 0.0]


def test_a_share_of_trials_counts_every_trial():
    coded = code_responses(table(("x", "t1", 0.75, 4), columns=("model", "task", "correct", "n_trials")))
    assert (coded.records.solved.tolist(), coded.records.attempts.tolist()) == ([3.0], [4.0])


def test_a_share_that_is_no_whole_number_of_trials_is_refused():
    with pytest.raises(InputError, match=r"row 1, column 'correct': 0.4 is no whole number of its n_trials"):
        code_responses(table(("x", "t1", 0.4, 4), columns=("model", "task", "correct", "n_trials")))


@pytest.mark.parametrize("value", [0.0, -3.0])
def test_a_human_time_that_is_not_above_zero_is_refused(value):
    with pytest.raises(InputError, match=rf"human_minutes, row 2 \(task 't2'\): {value} is not a time above zero"):
        TimeHorizonIRT().fit(table(*FOUR), {"t1": 5.0, "t2": value})


@pytest.mark.parametrize("factor", [1e5, 1e-5])
def test_times_that_look_like_another_unit_are_warned_of(factor):
    frame, minutes, _ = small_world()
    minutes["human_minutes"] *= factor
    with pytest.warns(UserWarning, match=r"the median human time is .* minutes; are these minutes\?"):
        TimeHorizonIRT().fit(frame, minutes)


def test_two_timed_tasks_cannot_calibrate():
    with pytest.raises(InputError, match="cannot calibrate on 2 tasks"):
        TimeHorizonIRT(min_responses=1).fit(table(*FOUR), {"t1": 5.0, "t2": 7.0})


def test_timed_tasks_solved_alike_cannot_calibrate():
    frame = table(*((model, task, correct) for model, correct in (("x", 1), ("y", 0)) for task in "abcd"))
    with pytest.raises(InputError, match="all have the same difficulty"):
        TimeHorizonIRT(min_responses=1).fit(frame, {"a": 1.0, "b": 2.0, "c": 3.0})


def test_repeated_rows_are_merged_by_majority_and_counted():
    frame = table(*FOUR, ("x", "t1", 0), ("x", "t1", 0), ("x", "t2", 1))
    with pytest.warns(UserWarning, match="3 repeated rows of the same model and task were merged by majority"):
        irt = TimeHorizonIRT().fit(frame)
    assert irt.n_merged_ == 3
    # x, t1: 1 of 3 is a failure; x, t2: 1 of 2 is a tie, and a tie is a success.
    assert irt.items_["solve_rate"].tolist() == [0.5, 1.0]


def test_a_narrow_calibration_warns_of_extrapolation_and_flags_the_tasks():
    frame, _, _ = small_world()
    fitted = TimeHorizonIRT().fit(frame).items_["difficulty"].sort_values()
    narrow = dict.fromkeys(fitted.index[28:34], 10.0) | {fitted.index[30]: 12.0}
    with pytest.warns(UserWarning, match=r"5\d of 60 tasks are easier or harder than every task of the calibration"):
        irt = TimeHorizonIRT().fit(frame, narrow)
    outside = (irt.items_["difficulty"] < fitted.iloc[28] - 1e-9) | (irt.items_["difficulty"] > fitted.iloc[33] + 1e-9)
    assert irt.items_["extrapolated"].tolist() == outside.tolist()


def test_models_without_a_date_are_left_out_of_the_forecast_with_a_message():
    frame, minutes, dates = small_world()
    irt = TimeHorizonIRT().fit(frame, minutes, dates.iloc[:15])
    with pytest.warns(UserWarning, match="5 of 20 models have no release date and are left out of the forecast"):
        found = irt.forecast(n_boot=10)
    assert len(found.models) == 15


def test_too_few_dated_models_have_no_forecast():
    frame, minutes, dates = small_world()
    irt = TimeHorizonIRT().fit(frame, minutes, dates.iloc[:2])
    too_few = pytest.raises(InputError, match="at least 3 models on the frontier")
    with pytest.warns(UserWarning, match="no release date"), too_few:
        irt.forecast()


def test_a_date_that_cannot_be_read_names_its_row():
    frame, _, dates = small_world()
    dates.loc[1, "release_date"] = "spring"
    with pytest.raises(InputError, match=r"release_dates, row 2 \(model 'model 001'\): 'spring' is not a date such as"):
        TimeHorizonIRT().fit(frame, None, dates)


def test_two_times_for_one_task_are_refused():
    minutes = pd.DataFrame({"task": ["t1", "t1"], "human_minutes": [3.0, 4.0]})
    with pytest.raises(InputError, match="human_minutes: task 't1' has two different values; keep one"):
        TimeHorizonIRT().fit(table(*FOUR), minutes)


def test_times_of_other_tasks_are_refused():
    with pytest.raises(InputError, match=r"none of its tasks \(such as 'elsewhere'\) is among the tasks"):
        TimeHorizonIRT().fit(table(*FOUR), {"elsewhere": 3.0})


def test_without_human_times_there_are_no_minutes():
    irt = TimeHorizonIRT().fit(table(*FOUR))
    with pytest.raises(InputError, match="no human times to turn difficulty into minutes"):
        irt.predict_minutes(["t1"])


def test_an_unknown_task_is_named():
    with pytest.raises(InputError, match="there is no task 'nine' in the fit, which has 2"):
        TimeHorizonIRT().fit(table(*FOUR)).predict_proba("x", "nine")


def test_two_groups_without_a_common_response_are_warned_of():
    with pytest.warns(UserWarning, match="fall into 2 groups that share no response; only the prior ties their scales"):
        TimeHorizonIRT().fit(table(("x", "t1", 1), ("y", "t2", 0)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "mcmc"}, "method is 'mcmc'; expected one of map, svi, mml"),
        ({"prior_sd": (3, 0, 1)}, "three standard deviations above zero"),
        ({"confidence": 95}, "confidence is 95; expected a number between 0 and 1"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        TimeHorizonIRT(**options).fit(table(*FOUR))


@pytest.mark.parametrize("q", [0.0, 1.0, 80])
def test_a_level_outside_0_and_1_is_refused(q):
    frame, minutes, _ = small_world()
    with pytest.raises(InputError, match="expected a success rate between 0 and 1"):
        TimeHorizonIRT().fit(frame, minutes).horizon(q)


def test_a_column_of_the_matrix_without_responses_is_refused():
    with pytest.raises(InputError, match="column 1 of the matrix holds no response"):
        TimeHorizonIRT().fit([[1.0, np.nan], [0.0, np.nan]])


# ------------------------------------------------------------------------------------------ traps and habits


def test_what_was_not_tried_is_not_a_failure():
    # A model that tried the easy tasks alone and solved them must not sink because of the hard ones.
    matrix = np.array([[1.0] * 6 + [np.nan] * 6, [1.0] * 6 + [0.0] * 6, [1.0] * 6 + [0.0] * 5 + [1.0]])
    ability = TimeHorizonIRT().fit(matrix).subjects_["ability"]
    as_failures = TimeHorizonIRT().fit(np.nan_to_num(matrix)).subjects_["ability"]
    assert ability[0] > ability[1]
    assert as_failures[0] == pytest.approx(as_failures[1], abs=1e-6)


def test_humans_are_not_a_model():
    irt = TimeHorizonIRT().fit(table(*FOUR, ("human", "t1", 1), ("Human", "t2", 1)))
    assert (irt.n_human_, irt.subjects_.index.tolist()) == (2, ["x", "y"])


def test_tasks_and_models_without_variation_are_kept_and_flagged():
    irt = TimeHorizonIRT().fit(table(*FOUR, ("z", "t1", 1), ("z", "t2", 0)))
    assert irt.items_["extreme"].tolist() == [True, False]
    assert irt.subjects_["extreme"].tolist() == [False, True, False]


def test_tasks_with_few_responses_are_flagged_and_do_not_calibrate():
    frame, minutes, _ = small_world()
    rare = frame[(frame["task"] != "task 005")]
    rare = pd.concat([rare, frame[frame["task"] == "task 005"].head(2)])
    irt = TimeHorizonIRT().fit(rare, minutes)
    assert irt.items_.loc["task 005", ["few", "calibration"]].tolist() == [True, False]
    assert irt.calibration_.n == 39


def test_shuffled_rows_give_the_same_tables():
    frame, minutes, dates = small_world()
    one = TimeHorizonIRT().fit(frame, minutes, dates)
    other = TimeHorizonIRT().fit(
        frame.sample(frac=1, random_state=0),
        minutes.sample(frac=1, random_state=1),
        dates.sample(frac=1, random_state=2),
    )
    pd.testing.assert_frame_equal(one.items_, other.items_)
    pd.testing.assert_frame_equal(one.subjects_, other.subjects_)
    assert one.forecast(n_boot=50).ci_high == other.forecast(n_boot=50).ci_high


def test_a_permuted_matrix_permutes_the_outcome_and_nothing_else():
    matrix, *_ = simulated(12, 15, share=0.8)
    rows, columns = np.random.default_rng(0).permutation(12), np.random.default_rng(1).permutation(15)
    one, other = TimeHorizonIRT().fit(matrix), TimeHorizonIRT().fit(matrix[rows][:, columns])
    assert other.subjects_["ability"].to_numpy() == pytest.approx(one.subjects_["ability"].to_numpy()[rows], abs=1e-6)
    assert other.items_["difficulty"].to_numpy() == pytest.approx(
        one.items_["difficulty"].to_numpy()[columns], abs=1e-6
    )


def test_a_long_table_and_its_matrix_have_the_same_fit():
    matrix, *_ = simulated(12, 15, share=0.8)
    one, other = TimeHorizonIRT().fit(matrix), TimeHorizonIRT().fit(long_table(matrix))
    assert np.array_equal(one.items_["difficulty"], other.items_["difficulty"])


def test_discriminations_are_exponentiated_once():
    irt = TimeHorizonIRT().fit(simulated(12, 15)[0])
    assert np.array_equal(irt.items_["discrimination"], np.exp(irt.parameters_.log_discrimination))
    assert irt.predict_proba(0, 3)[0] == pytest.approx(
        1 / (1 + np.exp(-irt.items_["discrimination"][3] * (irt.subjects_["ability"][0] - irt.items_["difficulty"][3])))
    )


def test_a_pickled_fit_predicts_the_same():
    frame, minutes, dates = small_world()
    irt = TimeHorizonIRT().fit(frame, minutes, dates)
    again = pickle.loads(pickle.dumps(irt))
    assert np.array_equal(again.predict_minutes(irt.items_.index), irt.predict_minutes(irt.items_.index))


def test_the_calibration_is_reported_on_its_own_tasks_and_left_out_one_by_one():
    frame, minutes, _ = small_world()
    text = TimeHorizonIRT().fit(frame, minutes).summary()
    assert "on these tasks" in text
    assert "each predicted from the others" in text


def test_a_forecast_can_leave_out_old_models():
    frame, minutes, dates = small_world()
    found = TimeHorizonIRT().fit(frame, minutes, dates).forecast(since="2023-01-01", n_boot=10)
    assert found.models["release_date"].min() >= pd.Timestamp("2023-01-01")


def test_pictures_have_units_on_their_axes():
    frame, minutes, dates = small_world()
    irt = TimeHorizonIRT().fit(frame, minutes, dates)
    one, two = irt.calibration_.plot(), irt.forecast(n_boot=20).plot()
    assert (one.get_xlabel(), one.get_ylabel()) == ("difficulty b (latent units)", "human time")
    assert two.get_ylabel() == "50% time horizon (human time)"


# -------------------------------------------------------------------------------------------------- layouts


def test_py_irt_files_are_read(tmp_path):
    lines = [{"subject_id": "x", "responses": {"t1": 1, "t2": 0}}, {"subject_id": "y", "responses": {"t1": 1}}]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert read_responses(tmp_path / "r.jsonl").to_numpy().tolist() == [
        ["x", "t1", 1.0],
        ["x", "t2", 0.0],
        ["y", "t1", 1.0],
    ]


def test_metrs_runs_give_responses_and_minutes(tmp_path):
    runs = [
        {"task_id": "a", "model": "x", "score_binarized": 1, "human_minutes": 4.5, "task_source": "HCAST"},
        {"task_id": "a", "model": "human", "score_binarized": 1, "human_minutes": 4.5, "task_source": "HCAST"},
    ]
    (tmp_path / "runs.jsonl").write_text("\n".join(map(json.dumps, runs)))
    assert read_responses(tmp_path / "runs.jsonl")["correct"].tolist() == [1.0, 1.0]
    assert read_minutes(tmp_path / "runs.jsonl").to_numpy().tolist() == [["a", 4.5]]


def test_a_folder_of_swe_bench_results_is_read(tmp_path):
    (tmp_path / "one.json").write_text(json.dumps({"resolved": ["i1"], "no_generation": []}))
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "results.json").write_text(json.dumps({"resolved_ids": [], "submitted_ids": ["i1", "i2"]}))
    frame = read_responses(tmp_path)
    rows = {(model, task): correct for model, task, correct in frame.to_numpy()}
    assert rows == {("one", "i1"): 1.0, ("one", "i2"): 0.0, ("two", "i1"): 0.0, ("two", "i2"): 0.0}


def test_words_for_true_and_false_are_read(tmp_path):
    (tmp_path / "samples.csv").write_text("model,sample_id,resolved\nx,1,True\nx,2,false\n")
    assert read_responses(tmp_path / "samples.csv")["correct"].tolist() == [1.0, 0.0]


def test_several_names_of_one_model_become_one(tmp_path):
    (tmp_path / "r.csv").write_text("model,task,correct\nx-2024,t1,1\nx,t2,0\n")
    assert read_responses(tmp_path / "r.csv", aliases={"x-2024": "x"})["model"].unique().tolist() == ["x"]


def test_a_missing_column_is_named_with_those_that_are_there(tmp_path):
    (tmp_path / "r.csv").write_text("who,task,correct\nx,t1,1\n")
    with pytest.raises(
        InputError, match=r"r.csv: no column for the model; it has 'who', 'task', 'correct'; name one with"
    ):
        read_responses(tmp_path / "r.csv")


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no SWE-bench results"):
        read_responses(tmp_path)


def test_tasks_without_a_time_and_models_without_a_date_are_left_out(tmp_path):
    (tmp_path / "h.csv").write_text("task,human_minutes\na,3\nb,\n")
    (tmp_path / "d.csv").write_text("model,release_date\nx,2024-05-01\ny,\n")
    assert read_minutes(tmp_path / "h.csv")["task"].tolist() == ["a"]
    assert read_dates(tmp_path / "d.csv")["model"].tolist() == ["x"]
