"""The layouts of votes that people have, and what they get wrong."""

import gzip
import json
import re

import numpy as np
import pandas as pd
import pytest

from assay._core.errors import InputError
from assay.evaluate import JudgeRanking, read_votes


def frame(**columns):
    return pd.DataFrame({"model_a": ["x", "y", "x"], "model_b": ["y", "z", "z"], "judge": "j", **columns})


def refused(source, **arguments):
    with pytest.raises(InputError) as caught:
        read_votes(source, **arguments)
    return str(caught.value)


# --- layouts --------------------------------------------------------------------------------------------------------


def test_the_authors_layout_is_read_and_unknown_verdicts_are_counted(tmp_path):
    path = tmp_path / "votes.csv"
    path.write_text(
        "question_id,model_a,model_b,judge_model,judge_preferred_model,judge_confidence\n"
        "q1,x,y,J,a,0.9\nq2,x,y,J,b,0.8\nq3,y,x,K,c,\nq4,y,x,K,unknown,\n"
    )
    tidy = read_votes(path)
    assert list(tidy) == ["model_a", "model_b", "judge", "share", "cluster"]
    assert tidy["share"].tolist() == [1.0, 0.0, 0.5]
    assert tidy["judge"].tolist() == ["J", "J", "K"]
    assert tidy["cluster"].tolist() == ["q1", "q2", "q3"]
    assert tidy.attrs["n_unknown"] == 1


def test_alpaca_preferences_are_graded_shares():
    tidy = read_votes(frame(preference=[1.0, 2.0, 1.25], prompt=[0, 0, 1]))
    assert tidy["share"].tolist() == [1.0, 0.0, 0.75]
    assert tidy["cluster"].tolist() == [0, 0, 1]


def test_alpaca_draws_are_ties_whether_written_1_5_or_0():
    assert read_votes(frame(preference=[1.5, 0.0, 1.0]))["share"].tolist() == [0.5, 0.5, 1.0]


def test_alpaca_annotations_take_generator_1_as_the_first_model(tmp_path):
    path = tmp_path / "annotations.json"
    record = {
        "instruction": "Name a fish.", "output_1": "Cod", "generator_1": "ref", "output_2": "Carp",
        "generator_2": "new", "annotator": "gpt4", "preference": 2.0,
    }  # fmt: skip
    path.write_text(json.dumps([record, {**record, "preference": None}]))
    tidy = read_votes(path)
    assert tidy.to_dict("records") == [
        {"model_a": "ref", "model_b": "new", "judge": "gpt4", "share": 0.0, "cluster": "Name a fish."}
    ]
    assert tidy.attrs["n_unknown"] == 1


def test_alpaca_rows_of_the_reference_against_itself_are_left_out_and_counted():
    tidy = read_votes(frame(preference=[1.0, 2.0, 1.0]).assign(model_b=["y", "y", "z"]))
    assert tidy["share"].tolist() == [1.0, 1.0]
    assert tidy.attrs["n_self"] == 1


def test_arena_winners_are_read(tmp_path):
    path = tmp_path / "arena.jsonl"
    rows = [
        {"question_id": "q", "model_a": "x", "model_b": "y", "judge": "arena_user_1", "winner": winner}
        for winner in ("model_a", "model_b", "tie", "tie (bothbad)")
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert read_votes(path)["share"].tolist() == [1.0, 0.0, 0.5, 0.5]


def test_a_judge_given_as_a_list_becomes_text(tmp_path):
    path = tmp_path / "mt_bench.jsonl"
    row = {"model_a": "x", "model_b": "y", "judge": ["gpt-4", "pair-v2"], "winner": "model_a"}
    path.write_text(json.dumps(row))
    assert read_votes(path)["judge"].tolist() == ["gpt-4, pair-v2"]


def test_the_tidy_layout_is_read_back(tmp_path):
    tidy = read_votes(frame(winner=["model_a", "tie", "model_b"]))
    tidy.to_csv(tmp_path / "tidy.csv", index=False)
    assert read_votes(tmp_path / "tidy.csv").equals(tidy)


def test_what_read_votes_returns_can_be_fitted_as_it_is():
    tidy = read_votes(frame(winner=["model_a", "tie", "model_b"]))
    assert JudgeRanking().fit(tidy, judge=None).n_votes_ == 3


def test_explicit_columns_win_over_detection():
    table = frame(winner="model_a", human=["model_b"] * 3, annotator2="me")
    tidy = read_votes(table, winner="human", judge="annotator2")
    assert tidy["share"].tolist() == [0.0, 0.0, 0.0]
    assert tidy["judge"].tolist() == ["me"] * 3


def test_a_winner_map_translates_labels_and_numbers():
    tidy = read_votes(frame(winner=[1, 2, 0]), winner_map={1: "model_a", "2": "model_b", 0: "tie"})
    assert tidy["share"].tolist() == [1.0, 0.0, 0.5]


def test_the_judge_can_be_left_out():
    assert "judge" not in read_votes(frame(winner="tie"), judge=None)


def test_only_an_empty_cell_is_missing(tmp_path):
    path = tmp_path / "votes.csv"
    path.write_text("model_a,model_b,judge,winner\nNA,null,nan,tie\n")
    assert read_votes(path)[["model_a", "model_b", "judge"]].iloc[0].tolist() == ["NA", "null", "nan"]


def test_names_with_commas_quotes_and_other_alphabets_survive_the_file(tmp_path):
    path = tmp_path / "votes.csv"
    path.write_text('model_a,model_b,judge,winner\n"gpt, ""large""",модель,裁判,tie\n', encoding="utf-8")
    assert read_votes(path).iloc[0, :3].tolist() == ['gpt, "large"', "модель", "裁判"]


# --- bad input ------------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_there(tmp_path):
    assert refused(tmp_path / "none.csv") == f"{tmp_path / 'none.csv'}: no such file"


def test_an_empty_file(tmp_path):
    path = tmp_path / "votes.csv"
    path.touch()
    assert refused(path) == f"{path} is empty"


def test_a_file_with_only_a_header(tmp_path):
    path = tmp_path / "votes.csv"
    path.write_text("model_a,model_b,judge,winner\n")
    assert refused(path) == f"{path} has a header but no rows"


@pytest.mark.parametrize("name", ["votes.csv", "votes.json", "votes.jsonl", "votes.parquet", "votes.csv.gz"])
def test_ten_megabytes_of_random_bytes_are_refused_by_name(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(np.random.default_rng(0).bytes(10 * 2**20))
    assert re.match(rf"{re.escape(str(path))}(, line 1)? is not ", refused(path))


def test_ten_megabytes_of_printable_garbage_are_refused_by_name(tmp_path):
    path = tmp_path / "votes.csv"
    rows = np.random.default_rng(0).integers(97, 123, size=(2**17, 80), dtype=np.uint8)
    rows[:, -1] = ord("\n")
    path.write_bytes(rows.tobytes())
    assert refused(path).startswith(f"{path}: no column for model_a (looked for model_a, generator_1) among ")


def test_garbage_verdicts_are_refused_at_the_first(tmp_path):
    path = tmp_path / "votes.csv.gz"
    with gzip.open(path, "wt") as stream:
        stream.write("model_a,model_b,judge,winner\n")
        stream.writelines(f"x,y,j,{number}\n" for number in range(300_000))
    assert refused(path).startswith(f"{path}, row 1, column 'winner': '0' is not one of model_a, a, ")


def test_a_named_column_that_is_not_there():
    assert refused(frame(winner="tie"), winner="verdict") == (
        "votes: no column 'verdict'; it has 'model_a', 'model_b', 'judge', 'winner'"
    )


def test_no_judge_column_offers_pooling():
    table = frame(winner="tie").drop(columns="judge")
    assert refused(table) == (
        "votes: no column for judge (looked for judge, judge_model, annotator) among 'model_a', 'model_b', 'winner'; "
        "name it with judge=, or pool all votes: judge=None"
    )


def test_an_empty_judge_offers_pooling():
    table = frame(winner="tie").assign(judge=["j", None, "j"])
    assert refused(table) == (
        "votes, row 2, column 'judge': the cell is empty; name the judge, or pool all votes: judge=None"
    )


def test_an_empty_model_names_the_row_of_the_file(tmp_path):
    path = tmp_path / "votes.csv"
    path.write_text("model_a,model_b,judge,winner\nx,y,j,unknown\n,y,j,tie\n")
    assert refused(path) == f"{path}, row 2, column 'model_a': the cell is empty; name the model"


def test_a_model_against_itself_names_the_row_of_the_file():
    table = frame(winner="tie").assign(model_b=["y", "y", "x"])
    assert refused(table) == "votes, row 2: 'y' is compared with itself (and 1 more such rows); remove these rows"


def test_a_preference_out_of_range_is_shown():
    assert refused(frame(preference=[1.0, 2.5, 1.0])) == (
        "votes, row 2, column 'preference': 2.5 is not a number from 1 (a wins) to 2 (b wins); for labels give a "
        "winner_map"
    )


def test_a_winner_map_with_an_unknown_meaning_is_an_error():
    assert refused(frame(winner="1"), winner_map={"1": "first"}) == (
        "winner_map: '1' means 'first'; expected one of model_a, model_b, tie, unknown"
    )


def test_votes_without_any_verdict_are_an_error():
    assert refused(frame(winner="unknown")) == "votes: none of its 3 rows has a verdict between two models"


def test_a_judge_without_any_verdict_is_left_out_with_a_message():
    table = frame(winner=["tie", "tie", "unknown"]).assign(judge=["j", "j", "silent"])
    with pytest.warns(UserWarning, match="judge 'silent' has no vote with a verdict and is left out"):
        read_votes(table)
