"""Recorded samples: how they are read, and what each method makes of them."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from assay._core.errors import InputError
from assay.decode.tmafc import (
    History,
    Recorded,
    Task,
    fractal_consistency,
    read_samples,
    read_tasks,
    record_samples,
    replay,
    write_samples,
)
from assay.decode.tmafc.replay import (
    Settings,
    adaptive_consistency,
    calibrated_fractal,
    component_f1,
    component_majority,
    early_stopping,
    fractal,
    is_right,
    self_consistency,
)

SETTINGS = Settings()


def recorded(*samples, gold=None, tokens=None, components=("a", "b")):
    return Recorded("?", components, samples, gold, tokens)


def noisy(n=30, n_samples=40, seed=0):
    """Questions with three components, each right with probability 0.7 and else one of two wrong values."""
    rng = np.random.default_rng(seed)
    records = []
    for number in range(n):
        values = rng.choice([1, 2, 3], p=[0.7, 0.2, 0.1], size=(n_samples, 3)).tolist()
        samples = tuple(dict(zip("abc", row, strict=True)) for row in values)
        records.append(Recorded(f"q{number}", tuple("abc"), samples, {"a": 1, "b": 1, "c": 1}, tuple([10] * n_samples)))
    return records


# ------------------------------------------------------------------------------------------------------ the methods


def test_self_consistency_takes_the_most_frequent_whole_answer():
    samples = [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 2}, {"a": 2, "b": 2}, {"a": 1, "b": 3}]
    found = self_consistency(recorded(*samples), SETTINGS)
    assert (found.answer, found.n_samples) == ({"a": 2, "b": 2}, 5)
    assert component_majority(recorded(*samples), SETTINGS).answer == {"a": 1, "b": 2}


def test_a_whole_answer_of_nothing_is_no_vote():
    assert self_consistency(recorded(None, {}, {"c": 3}, {"a": 1}), SETTINGS).answer == {"a": 1, "b": None}


def test_adaptive_consistency_stops_after_four_equal_answers():
    assert adaptive_consistency(recorded(*[{"a": 1, "b": 2}] * 40), SETTINGS).n_samples == 4


def test_adaptive_consistency_pays_for_a_reply_without_an_answer():
    assert adaptive_consistency(recorded(None, *[{"a": 1, "b": 2}] * 39), SETTINGS).n_samples == 5


def test_early_stopping_stops_after_the_first_window_of_equal_answers():
    same, other = {"a": 1, "b": 1}, {"a": 1, "b": 2}
    found = early_stopping(recorded(same, other, *[same] * 38), SETTINGS)
    assert found.n_samples == 10
    assert early_stopping(recorded(*[same] * 40), SETTINGS).n_samples == 5


def test_early_stopping_without_an_equal_window_draws_everything():
    samples = [{"a": index % 2, "b": 1} for index in range(12)]
    assert early_stopping(recorded(*samples), SETTINGS).n_samples == 12


def test_fractal_consistency_on_records_is_fractal_consistency_on_a_live_sampler():
    for record in noisy():
        queue = iter(record.samples)
        live = fractal_consistency(record.components, lambda pending, resolved, n: [next(queue)], n_max=40)  # noqa: B023
        found = fractal(record, SETTINGS)
        assert (found.answer, found.n_samples, found.n_requests) == (live.answer, live.n_samples, live.n_requests)


def test_one_component_makes_fractal_and_adaptive_consistency_the_same():
    for record in noisy():
        one = Recorded(record.question, ("a",), record.samples)
        by_fc, by_ac = fractal(one, SETTINGS), adaptive_consistency(one, SETTINGS)
        assert (by_fc.answer, by_fc.n_samples) == (by_ac.answer, by_ac.n_samples)


def test_a_prior_within_the_bounds_of_alpha_one_never_stops_later_than_the_uniform_one():
    for record in noisy():
        assert fractal(record, SETTINGS, (1.0, 0.3)).n_samples <= fractal(record, SETTINGS).n_samples


def test_a_round_that_asks_for_part_of_the_components_pays_for_that_part():
    # "a" settles after four rounds, "b" never: {"a": 1} and {"b": 1} take equally many characters.
    samples = [{"a": 1, "b": index % 2} for index in range(10)]
    found = fractal(recorded(*samples, tokens=(10,) * 10), SETTINGS)
    assert found.tokens == pytest.approx(4 * 10 + 6 * 5)
    assert found.n_requests == 4 + 10


def test_the_calibrated_method_learns_from_the_questions_before():
    same = [Recorded(f"q{number}", ("a",), ({"a": 1},) * 40) for number in range(5)]
    found = calibrated_fractal(same, SETTINGS)
    # Three records are needed before a prior is fitted; then two equal values are enough.
    assert [outcome.n_samples for outcome in found] == [4, 4, 4, 2, 2]
    assert found[3].prior == pytest.approx((1.0, 0.01))


def test_the_calibrated_method_does_not_learn_from_the_question_itself():
    same = [Recorded("the same", ("a",), ({"a": 1},) * 40)] * 5
    assert [outcome.n_samples for outcome in calibrated_fractal(same, SETTINGS)] == [4] * 5


def test_a_known_category_goes_before_the_classifiers_guess():
    history = History()
    record = Recorded("q", ("a",), ({"a": 1},) * 40, category="Hard")
    calibrated_fractal([record], SETTINGS, history, classifier=lambda question: "Easy")
    assert history.records[0].category == "Hard"


def test_f1_counts_a_wrong_value_twice_and_a_missing_one_once():
    gold = {"a": 1, "b": 2, "c": 3}
    record = Recorded("?", ("a", "b", "c"), (None,), gold)
    for answer, expected in (
        ({"a": 1, "b": 2, "c": 3}, 1.0),
        ({"a": 1, "b": 2, "c": 4}, 2 * 2 / (3 + 3)),
        ({"a": 1, "b": 2, "c": None}, 2 * 2 / (3 + 2)),
        ({}, 0.0),
    ):
        outcome = self_consistency(Recorded("?", ("a", "b", "c"), (answer,)), SETTINGS)
        assert component_f1(record, outcome) == pytest.approx(expected)
        assert is_right(record, outcome) == (expected == 1.0)


# ----------------------------------------------------------------------------------------------------- the table


def test_the_table_has_a_row_for_every_method_and_counts_what_each_paid():
    frame = replay(noisy()).to_frame().set_index("method")
    assert list(frame.index) == ["SC", "SC by component", "AC", "ESC", "FC", "FC + ASCC"]
    assert frame.loc["SC", ["samples", "requests", "tokens", "saved_percent"]].tolist() == [40, 40, 400, 0]
    assert frame.loc["FC", "samples"] < frame.loc["AC", "samples"]
    assert frame.loc["FC", "saved_percent"] == pytest.approx(100 * (1 - frame.loc["FC", "samples"] / 40))


def test_the_interval_of_the_accuracy_is_wilsons():
    frame = replay(noisy(n_samples=3)).to_frame()
    row = frame.iloc[0]
    expected = binomtest(round(row["accuracy"] * 30), 30).proportion_ci(method="wilson")
    assert (row["accuracy_low"], row["accuracy_high"]) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_without_gold_answers_the_table_says_how_often_all_samples_would_agree():
    records = [Recorded(r.question, r.components, r.samples) for r in noisy()]
    found = replay(records)
    assert found.to_frame()["accuracy"].isna().all()
    assert found.to_frame().set_index("method").loc["SC by component", "agrees"] == 1
    assert "as all samples" in found.summary()


def test_the_summary_names_every_method_and_its_cost():
    text = replay(noisy()).summary()
    assert "30 questions, at most 40 samples each, tau 0.95" in text
    assert "FC + ASCC" in text
    assert "[" in text


def test_the_picture_has_a_point_for_every_method_and_units_on_its_axes():
    ax = replay(noisy()).plot()
    assert [text.get_text() for text in ax.get_legend().get_texts()][-1] == "FC + ASCC"
    assert ax.get_ylabel() == "answers with every component right (share)"
    assert ax.get_xlabel() == "samples per question"


def test_what_is_saved_has_the_interval_of_a_paired_ratio():
    found = replay(noisy())
    wide = found.questions.pivot(index="question", columns="method", values="samples")
    paid, full = wide["FC"].to_numpy(float), wide["SC"].to_numpy(float)
    drawn = np.random.default_rng(0).integers(len(paid), size=(4000, len(paid)))
    spread = (100 * (1 - paid[drawn].mean(axis=1) / full[drawn].mean(axis=1))).std()
    row = found.to_frame().set_index("method").loc["FC"]
    assert row["saved_percent"] == pytest.approx(100 * (1 - paid.mean() / full.mean()))
    # A bootstrap has the spread with n in place of n - 1, and 4,000 draws have it to about one percent.
    expected = 2 * 1.96 * spread * np.sqrt(len(paid) / (len(paid) - 1))
    assert row["saved_percent_high"] - row["saved_percent_low"] == pytest.approx(expected, rel=0.05)


def test_every_number_of_the_summary_but_the_limits_has_an_interval():
    lines = [line for line in replay(noisy()).summary().splitlines() if line.lstrip().startswith("FC + ASCC")]
    # all right, component F1, samples, saved, per component, tokens
    assert lines[0].count("[") == 6


def test_no_interval_of_a_share_or_an_f1_leaves_zero_to_one():
    frame = replay(noisy()).to_frame()
    for name in ("accuracy", "component_f1"):
        assert (frame[f"{name}_low"] >= 0).all()
        assert (frame[f"{name}_high"] <= 1).all()


def test_equal_samples_of_all_questions_are_reported():
    records = [recorded(*[{"a": 1, "b": 2}] * 5)] * 3
    with pytest.warns(UserWarning, match="were they recorded at temperature 0"):
        replay(records)


def test_more_than_half_of_the_replies_without_json_are_refused():
    with pytest.raises(InputError, match="does not follow the JSON format: 3 of 5 replies unparsed"):
        replay([recorded(None, None, None, {"a": 1}, {"a": 2})])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"tau": 1.5}, r"tau is 1\.5"), ({"n_max": 1}, "n_max is 1"), ({"window": 0}, "window is 0")],
)
def test_limits_out_of_their_range_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        replay(noisy(2), **arguments)


def test_nothing_to_replay_is_refused():
    with pytest.raises(InputError, match="no recorded samples"):
        replay([])


# ------------------------------------------------------------------------------------------------ reading and writing


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet", ".csv", ".tsv", ".jsonl.gz"])
def test_what_is_written_is_read_again(tmp_path, suffix):
    path = tmp_path / f"samples{suffix}"
    samples = ({"a": 1, "b": "x"}, None, {"a": "two", "c": ["é", {"d": None}]})
    records = [
        Recorded("q1", ("a", "b"), samples, {"a": 1, "b": "x"}, (5, 6, 7), "Hard"),
        Recorded("q2", ("a", "b"), samples, {"a": 1, "b": "y"}, (5, 6, 7), "Easy"),
    ]
    write_samples(records, path)
    assert read_samples(path) == records


def write_jsonl(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_csv_holds_json_text_in_its_cells(tmp_path):
    path = tmp_path / "samples.csv"
    row = {"q": "?", "replies": '[{"a": 1}, "no idea {", null]', "truth": '{"a": 1}'}
    pd.DataFrame([row]).to_csv(path, index=False)
    (record,) = read_samples(path, question="q", samples="replies", gold="truth")
    assert (record.samples, record.gold, record.components) == (({"a": 1}, None, None), {"a": 1}, ("a",))


def test_raw_replies_are_parsed(tmp_path):
    path = write_jsonl(tmp_path / "s.jsonl", {"question": "?", "samples": ['Sure: {"a": 1}', "{broken"]})
    assert read_samples(path)[0].samples == ({"a": 1}, None)


def test_bare_values_are_votes_on_the_final_answer(tmp_path):
    path = write_jsonl(tmp_path / "s.jsonl", {"question": "?", "samples": ["12", 12, "13"], "gold": "12"})
    (record,) = read_samples(path)
    assert self_consistency(record, SETTINGS).answer == {"final_answer": "12"}
    assert is_right(record, self_consistency(record, SETTINGS)) == 1


def test_components_are_named_by_the_caller_the_row_the_gold_answer_or_the_samples(tmp_path):
    row = {"question": "?", "samples": [{"a": 1, "b": 2, "c": 3}]}
    rows = [{**row, "components": ["c"], "gold": {"b": 1}}, {**row, "gold": {"b": 1}}, row]
    path = write_jsonl(tmp_path / "s.jsonl", *rows)
    assert [record.components for record in read_samples(path)] == [("c",), ("b",), ("a", "b", "c")]
    assert {record.components for record in read_samples(path, components=["a"])} == {("a",)}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "?"}, "no column 'samples'; it has 'question'"),
        ({"question": "?", "samples": []}, r"row 1, column 'samples': \[\] is not a list of samples"),
        ({"question": "?", "samples": {"a": 1}}, "is not a list of samples"),
        ({"question": "?", "samples": "[1,"}, r"row 1, column 'samples': '\[1,' is not JSON"),
        ({"question": "?", "samples": [None]}, "row 1: no sample has a JSON object, so the components are unknown"),
        (
            {"question": "?", "samples": [{"a": 1}], "components": ["a", "a"]},
            r"s\.jsonl, row 1: the component 'a' is named twice",
        ),
        ({"question": "?", "samples": [{"a": 1}], "tokens": [1, 2]}, "column 'tokens': expected 1 whole numbers"),
        ({"question": "?", "samples": [{"a": 1}], "category": "hard"}, "category': 'hard' is not one of Easy"),
        ({"question": "?", "samples": [{"a": 1}], "gold": "{oops"}, "column 'gold': '{oops' is not JSON"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path, row, message):
    with pytest.raises(InputError, match=message):
        read_samples(write_jsonl(tmp_path / "s.jsonl", row))


def test_tasks_take_their_components_from_schema_or_gold(tmp_path):
    rows = [
        {"question": "1", "schema": {"properties": {"age": {"type": "integer"}}}},
        {"question": "2", "gold": {"name": "Ann"}},
        {"question": "3"},
    ]
    tasks = read_tasks(write_jsonl(tmp_path / "q.jsonl", *rows))
    assert [list(task.components) for task in tasks] == [["age"], ["name"], ["final_answer"]]
    assert tasks[0].components["age"] == "integer"


def test_recording_asks_once_for_all_components_and_keeps_what_cannot_be_parsed():
    prompts = []

    def sampler(prompt, n):
        prompts.append((prompt, n))
        return ['{"a": 1}', "no", 'so {"a": 2}.']

    (record,) = record_samples(sampler, [Task("How much?", {"a": "", "b": ""})], 3)
    assert record.samples == ({"a": 1}, None, {"a": 2})
    assert len(prompts) == 1
    assert "How much?" in prompts[0][0]
    assert record.tokens is None


def test_a_sampler_that_returns_too_few_is_refused():
    with pytest.raises(InputError, match="returned 1 samples where 3 were asked for"):
        record_samples(lambda prompt, n: ["{}"], [Task("?", {"a": ""})], 3)


def test_costs_without_recorded_tokens_are_unknown():
    assert math.isnan(fractal(recorded({"a": 1}, {"a": 1}), SETTINGS).tokens)
