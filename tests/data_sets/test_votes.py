"""The real votes have the counts of their documentation."""

import numpy as np
import pytest

from assay import datasets
from assay._core.errors import InputError


@pytest.fixture(autouse=True)
def data_folder(real_data, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", str(real_data))


@pytest.mark.parametrize(
    ("which", "models", "prompts", "judges", "ties", "unknown"),
    [("arena", 20, 8740, 10, 1224, 63), ("ultrafeedback", 17, 9245, 20, 761, 274)],
)
def test_judge_votes_have_the_counts_of_the_table(which, models, prompts, judges, ties, unknown):
    votes = datasets.load_judge_votes(which)
    assert len(votes) == 10_000
    assert len(set(votes["model_a"]) | set(votes["model_b"])) == models
    assert votes["question_id"].nunique() == prompts
    assert votes["judge_model"].nunique() == judges
    assert votes["judge_preferred_model"].value_counts()[["c", "unknown"]].tolist() == [ties, unknown]


@pytest.mark.parametrize("which", ["arena", "ultrafeedback"])
def test_judge_votes_have_the_types_of_their_documentation(which):
    votes = datasets.load_judge_votes(which)
    assert set(votes["judge_preferred_model"]) == {"a", "b", "c", "unknown"}
    assert votes["judge_confidence"].dtype == np.float64
    assert votes["judge_confidence"].dropna().between(0, 1).all()
    assert all(isinstance(value, str) for value in votes["question_id"])


def test_alpaca_eval_has_the_counts_of_its_documentation():
    votes = datasets.load_alpaca_eval()
    assert len(votes) == 105_381
    assert (votes["judge"].nunique(), votes["model_a"].nunique(), votes["model_b"].nunique()) == (6, 2, 103)
    assert (votes["prompt"].min(), votes["prompt"].max(), votes["prompt"].dtype) == (0, 804, np.int64)


def test_a_preference_of_alpaca_eval_is_from_one_to_two_or_zero_where_the_answers_are_equally_long():
    votes = datasets.load_alpaca_eval()
    is_zero = votes["preference"] == 0
    assert votes.loc[~is_zero, "preference"].between(1, 2).all()
    assert is_zero.sum() == 193
    assert (votes.loc[is_zero, "len_a"] == votes.loc[is_zero, "len_b"]).all()


def test_the_data_carries_its_licence_and_citation():
    attrs = datasets.load_alpaca_eval().attrs
    assert attrs["name"] == "alpaca-eval"
    assert attrs["licence"] == "CC BY-NC 4.0"
    assert "AlpacaEval" in attrs["citation"]


def test_an_unknown_collection_is_refused():
    with pytest.raises(InputError, match="which is 'mtbench'; expected 'arena' or 'ultrafeedback'"):
        datasets.load_judge_votes("mtbench")


def test_loading_what_is_not_here_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    with pytest.raises(InputError, match="judge-votes-arena is not here: run assay data get judge-votes-arena, or put"):
        datasets.load_judge_votes()
