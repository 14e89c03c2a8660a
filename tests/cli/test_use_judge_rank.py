"""`assay use judge-rank`: from a file of votes to a ranking, through the door that a user takes."""

import re
import time

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

NAMES = ["alpha, Inc.", 'the "beta"', "γάμμα", "模型丁", "=cmd()", "<script>"]


def some_votes(winners=("model_a", "model_b"), n=1_200):
    """Votes of a good and a poor judge over six models with awkward names, the first the best."""
    rng = np.random.default_rng(0)
    a, b = np.array([rng.choice(6, 2, replace=False) for _ in range(n)]).T
    judge = rng.integers(2, size=n)
    wins = rng.random(n) < expit(np.where(judge == 0, 2.0, 0.2) * 0.6 * (b - a))
    names = np.array(NAMES)
    return pd.DataFrame(
        {
            "model_a": names[a],
            "model_b": names[b],
            "judge": np.where(judge == 0, "careful", "careless"),
            "winner": np.where(wins, *winners),
        }
    )


def test_awkward_names_come_out_as_they_went_in(assay, tmp_path):
    some_votes().to_csv(tmp_path / "votes.csv", index=False)
    done = assay("use", "judge-rank", "votes.csv", "-o", "ranking.csv", "--judges", "judges.csv")
    assert done.returncode == 0, done.stderr
    from assay._core.tables import read_table

    ranking = read_table(tmp_path / "ranking.csv", {"model": "text", "score": "number", "rank": "integer"})
    assert ranking["model"].tolist() == NAMES
    assert ranking["rank"].tolist() == [1, 2, 3, 4, 5, 6]
    assert (ranking["score"].between(ranking["low"].astype(float), ranking["high"].astype(float))).all()
    judges = read_table(tmp_path / "judges.csv", {"judge": "text"})
    assert judges["judge"].tolist() == ["careful", "careless"]


def test_a_name_that_a_spreadsheet_would_run_is_written_behind_an_apostrophe(assay, tmp_path):
    some_votes().to_csv(tmp_path / "votes.csv", index=False)
    assay("use", "judge-rank", "votes.csv")
    assert "\n'=cmd()," in (tmp_path / "ranking.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize("suffix", [".csv.gz", ".tsv", ".jsonl", ".parquet"])
def test_every_format_gives_the_same_ranking(assay, tmp_path, suffix):
    from assay._core.tables import write_table

    votes = some_votes()
    write_table(votes, tmp_path / f"votes{suffix}")
    write_table(votes, tmp_path / "votes.csv")
    for name in (f"votes{suffix}", "votes.csv"):
        assert assay("use", "judge-rank", name, "-o", f"{name}.ranking.csv").returncode == 0
    one, other = (tmp_path / f"{name}.ranking.csv" for name in (f"votes{suffix}", "votes.csv"))
    assert one.read_text(encoding="utf-8") == other.read_text(encoding="utf-8")


def test_other_columns_and_labels_are_named_by_options(assay, tmp_path):
    votes = some_votes(winners=("left", "right"))
    votes.columns = ["one", "two", "who", "verdict"]
    votes.to_csv(tmp_path / "votes.csv", index=False)
    options = ["--model-a", "one", "--model-b", "two", "--judge", "who", "--winner", "verdict"]
    failed = assay("use", "judge-rank", "votes.csv", *options)
    assert failed.returncode == 2
    assert "'left' is not one of" in failed.stderr or "'right' is not one of" in failed.stderr
    maps = ["--winner-map", "left=model_a", "--winner-map", "right=model_b"]
    done = assay("use", "judge-rank", "votes.csv", *options, *maps)
    assert done.returncode == 0, done.stderr


def test_pictures_are_pictures(assay, tmp_path):
    some_votes().to_csv(tmp_path / "votes.csv", index=False)
    done = assay("use", "judge-rank", "votes.csv", "--plot", "ranking.png", "--plot-judges", "judges.svg")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ranking.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "judges.svg").read_text(encoding="utf-8")


def test_pooling_forgets_the_judges(assay, tmp_path):
    votes = some_votes()
    votes.drop(columns="judge").to_csv(tmp_path / "votes.csv", index=False)
    refused = assay("use", "judge-rank", "votes.csv")
    assert refused.returncode == 2
    assert "judge" in refused.stderr
    done = assay("use", "judge-rank", "votes.csv", "--judge", "none")
    assert done.returncode == 0, done.stderr


BAD = {
    "no such file": (None, [], "error: votes.csv: no such file\n"),
    "an empty file": ("", [], "error: votes.csv is empty\n"),
    "only a header": ("model_a,model_b,judge,winner\n", [], "error: votes.csv has a header but no rows\n"),
    "a picture of no kind": (
        "model_a,model_b,judge,winner\na,b,j,tie\n",
        ["--plot", "ranking.doc"],
        "error: ranking.doc: a picture is written as one of .png, .svg, .pdf\n",
    ),
    "a map without a meaning": (
        "model_a,model_b,judge,winner\na,b,j,tie\n",
        ["--winner-map", "left"],
        "error: --winner-map takes LABEL=MEANING, such as 'left=model_a', not 'left'\n",
    ),
    "a prior that is no number": (
        "model_a,model_b,judge,winner\na,b,j,tie\n",
        ["--prior-sd", "wide"],
        "error: --prior-sd takes a number above zero, or none, not 'wide'\n",
    ),
    "an unknown column": (
        "model_a,model_b,judge,winner\na,b,j,tie\n",
        ["--judge", "rater"],
        "error: votes.csv: no column 'rater'; it has 'model_a', 'model_b', 'judge', 'winner'\n",
    ),
}


@pytest.mark.parametrize(("text", "options", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence_and_leaves_no_file(assay, tmp_path, text, options, message):
    if text is not None:
        (tmp_path / "votes.csv").write_text(text, encoding="utf-8")
    before = sorted(tmp_path.iterdir())
    done = assay("use", "judge-rank", "votes.csv", *options)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)
    assert sorted(tmp_path.iterdir()) == before


def test_ten_megabytes_of_garbage_are_refused_in_a_sentence(assay, tmp_path):
    (tmp_path / "votes.csv").write_bytes(np.random.default_rng(0).bytes(10_000_000))
    done = assay("use", "judge-rank", "votes.csv")
    assert done.returncode == 2
    assert re.fullmatch(r"error: votes\.csv, line 1 is not UTF-8 text .*; save it as UTF-8\n", done.stderr)


def test_the_real_votes_are_ranked_with_intervals_in_under_15_seconds(assay, tmp_path, real_data):
    start = time.perf_counter()
    done = assay("use", "judge-rank", real_data / "judge_votes/chatbot_arena.csv.gz", "-o", "ranking.csv")
    assert done.returncode == 0, done.stderr
    assert time.perf_counter() - start < 15
    ranking = pd.read_csv(tmp_path / "ranking.csv")
    assert len(ranking) == 20
    assert set(ranking["model"].head(3)) == {"claude-v1", "gpt-4", "claude-instant-v1"}
    assert np.isfinite(ranking[["low", "high", "rank_low", "rank_high"]]).all(axis=None)


def test_alpaca_eval_is_recognised(assay, tmp_path, real_data):
    done = assay("use", "judge-rank", real_data / "alpaca_eval/votes.parquet", "-o", "ranking.csv")
    assert done.returncode == 0, done.stderr
    assert len(pd.read_csv(tmp_path / "ranking.csv")) == 103
