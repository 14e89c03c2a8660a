"""`assay use style-detect`: from files of texts to scores, a threshold and decisions with their error rate."""

import json

import numpy as np
import pandas as pd
import pytest

HUMAN = "the cat and a dog, they ran over it; we saw that, but did not stop. was it so? no! we know that it is not"
MACHINE = "in conclusion this comprehensive function provides various robust features which ensure optimal performance"


def texts(kind, n, seed):
    """Texts of twenty words drawn from one of two vocabularies, half of each word's share from the other."""
    rng = np.random.default_rng(seed)
    own, other = (HUMAN, MACHINE) if kind == "human" else (MACHINE, HUMAN)
    return [
        " ".join(rng.choice((own if rng.random() < 0.8 else other).split()) for _ in range(20)) + f" {seed}.{row}"
        for row in range(n)
    ]


@pytest.fixture
def tables(tmp_path):
    pd.DataFrame({"text": texts("machine", 40, 1)}).to_csv(tmp_path / "machine.csv", index=False)
    pd.DataFrame({"text": texts("human", 60, 2)}).to_csv(tmp_path / "human.csv", index=False)
    people = pd.DataFrame({"text": texts("human", 60, 3), "author": [f"author {row // 3}" for row in range(60)]})
    people.to_csv(tmp_path / "people.csv", index=False)
    mixed = pd.DataFrame(
        {
            "text": texts("human", 12, 4) + texts("machine", 12, 5),
            "label": [0] * 12 + [1] * 12,
            "author": [f"account {row // 3}" for row in range(24)],
            "attack": ["none"] * 18 + ["reworded"] * 6,
        }
    )
    mixed.to_json(tmp_path / "mixed.jsonl", orient="records", lines=True)


MADE = ("--support", "machine.csv", "--human", "human.csv", "--encoder", "stylometric")


def test_scores_stand_beside_the_texts_and_machine_texts_have_higher_ones(assay, tmp_path, tables):
    done = assay("use", "style-detect", "score", "mixed.jsonl", *MADE, "-o", "out/scores.csv")
    assert done.returncode == 0, done.stderr
    scores = pd.read_csv(tmp_path / "out/scores.csv")
    assert len(scores) == 24
    assert scores.groupby("label")["score"].mean().diff().iloc[1] > 0
    assert "A score decides nothing" in done.stdout


def test_accounts_have_one_score_each(assay, tmp_path, tables):
    done = assay("use", "style-detect", "score", "mixed.jsonl", *MADE, "--account", "author")
    assert done.returncode == 0, done.stderr
    scores = pd.read_csv(tmp_path / "scores.csv")
    assert scores["author"].tolist() == [f"account {number}" for number in range(8)]
    assert scores["n_texts"].tolist() == [3] * 8


def test_a_calibrated_threshold_becomes_a_report_with_the_error_rate(assay, tmp_path, tables):
    done = assay("use", "style-detect", "calibrate", "people.csv", *MADE, "--target-fpr", "0.05")
    assert done.returncode == 0, done.stderr
    assert "up to 0.05 of human texts of the calibration's kind are flagged too" in done.stdout
    document = json.loads((tmp_path / "threshold.json").read_text(encoding="utf-8"))
    assert document["threshold"]["target_fpr"] == 0.05
    done = assay("use", "style-detect", "report", "mixed.jsonl", "--plot", "out/scores.png")
    assert done.returncode == 0, done.stderr
    assert "so are 0.05 of human texts" in done.stdout
    report = pd.read_csv(tmp_path / "report.csv")
    assert (report["human_flag_rate"] == 0.05).all()
    assert (report["decision"] == "flagged")[12:].sum() > (report["decision"] == "flagged")[:12].sum()
    assert (tmp_path / "out/scores.png").stat().st_size > 0


def test_accounts_are_decided_at_the_threshold_of_accounts(assay, tmp_path, tables):
    options = ("--group-size", "3", "--account", "author", "--target-fpr", "0.05")
    done = assay("use", "style-detect", "calibrate", "people.csv", *MADE, *options)
    assert done.returncode == 0, done.stderr
    done = assay("use", "style-detect", "report", "mixed.jsonl", "--account", "author")
    assert done.returncode == 0, done.stderr
    report = pd.read_csv(tmp_path / "report.csv")
    assert report["account"].tolist() == [f"account {number}" for number in range(8)]
    assert (report["decision"] == "flagged")[4:].all()
    assert (report["human_flag_rate"] == 0.05).all()


def test_a_threshold_of_accounts_is_not_for_texts(assay, tables):
    options = ("--group-size", "3", "--account", "author", "--target-fpr", "0.05")
    assay("use", "style-detect", "calibrate", "people.csv", *MADE, *options)
    done = assay("use", "style-detect", "report", "mixed.jsonl")
    assert done.returncode == 2
    assert "threshold.json decides on 3 texts at a time; give --account COLUMN" in " ".join(done.stderr.split())


def test_a_threshold_is_for_one_detector_only(assay, tmp_path, tables):
    assay("use", "style-detect", "calibrate", "people.csv", *MADE, "--target-fpr", "0.05")
    pd.DataFrame({"text": texts("machine", 40, 9)}).to_csv(tmp_path / "machine.csv", index=False)
    done = assay("use", "style-detect", "report", "mixed.jsonl")
    assert done.returncode == 2
    assert "threshold.json was calibrated with machine.csv, which is gone or has changed" in " ".join(
        done.stderr.split()
    )


def test_evaluation_has_a_row_for_every_detector_attack_and_size(assay, tmp_path, tables):
    names = ("--detectors", "style,tfidf", "--n-docs", "1,3")
    done = assay(
        "use", "style-detect", "evaluate", "mixed.jsonl", *MADE, *names, "--plot", "a.svg", "--matrix", "a.npz"
    )
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "evaluation.csv")
    assert len(table) == 2 * 2 * 2
    assert table["n_human"].tolist() == [12, 12, 4, 4] * 2
    assert list(np.load(tmp_path / "a.npz")) == ["style"]
    assert "pAUROC there hangs on the single highest human block" in " ".join(done.stderr.split())


def test_a_language_model_scores_without_any_known_text(assay, tmp_path, tables, model_dir):
    done = assay("use", "style-detect", "score", "mixed.jsonl", "--detector", "log-rank", "--model", model_dir)
    assert done.returncode == 0, done.stderr
    assert pd.read_csv(tmp_path / "scores.csv")["score"].notna().all()


REFUSED = [
    (("score", "mixed.jsonl"), "--detector style needs --support TABLE with known texts"),
    (
        ("score", "mixed.jsonl", "--support", "machine.csv", "--encoder", "stylometric"),
        "--encoder stylometric learns from human texts that are not judged: give --human TABLE",
    ),
    (
        ("calibrate", "human.csv", *MADE),
        "human.csv is also --human; calibrate on human texts that the detector has not seen",
    ),
    (("calibrate", "people.csv", *MADE), "target_fpr=0.01 needs at least 99 human texts or groups, there are 60"),
    (("report", "mixed.jsonl"), "threshold.json is no threshold as assay use style-detect calibrate writes it"),
    (("evaluate", "mixed.jsonl", "--detectors", "magic"), "--detectors: 'magic' is not one of style, tfidf"),
    (
        ("evaluate", "mixed.jsonl", "--label", "who", "--detectors", "log-rank"),
        "mixed.jsonl has no column 'who' of labels (0 human, 1 machine); name it with --label",
    ),
    (("evaluate", "mixed.jsonl", "--n-docs", "one"), "--n-docs takes whole numbers from 1 with commas between"),
    (("evaluate", "mixed.jsonl", "--plot", "a.doc"), "a.doc: a picture is written as one of .png, .svg, .pdf"),
    (("score", "mixed.jsonl", "--text", "body", *MADE), "'body'"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_done_is_said_in_a_sentence(assay, tables, arguments, message):
    done = assay("use", "style-detect", *arguments)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
