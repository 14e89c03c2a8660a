"""`assay use cc-icl …` on files, as a person would use it."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from assay._core.errors import InputError
from assay.evaluate.cc_icl import HFVLMPredictor, evaluate, read_episodes

sys.path.insert(0, str(Path(__file__).parents[1] / "evaluate"))
from cc_icl_models import SPEC, tiny_vlm, write_pictures


@pytest.fixture
def notes(run, tmp_path):
    folder = tmp_path / "new" / "notes"
    run("example", "-o", folder)
    run("build", folder / "notes.csv", folder / "criteria.yaml", "-n", 20, "-o", folder / "episodes.jsonl")
    return folder


def answers(folder, answer):
    """A table with what `answer(truth)` gives for every episode and criterion."""
    episodes = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    rows = [(e["id"], name, answer(truth)) for e in episodes for name, truth in e["truth"].items()]
    table = pd.DataFrame(rows, columns=["id", "criterion", "answer"])
    table.to_csv(folder / "answers.csv", index=False)
    return table


def test_the_help_opens_with_an_example(run):
    text = run("--help").stdout
    assert "assay use cc-icl example -o notes" in text


def test_build_says_what_it_built(run, tmp_path):
    run("example", "-o", tmp_path)
    out = tmp_path / "made" / "episodes.jsonl"
    done = run("build", tmp_path / "notes.csv", tmp_path / "criteria.yaml", "-n", 20, "-o", out)
    assert "episodes          20" in done.stdout
    assert "sensitive         10" in done.stdout
    assert len(out.read_text().splitlines()) == 20


def test_right_answers_score_one_and_the_report_is_written(run, notes):
    answers(notes, lambda truth: f"Well. Final answer: {truth}")
    done = run("score", notes / "episodes.jsonl", notes / "answers.csv", "-o", notes / "out" / "report.json",
               "--items", notes / "items.csv", "--plot", notes / "report.png")  # fmt: skip
    report = json.loads((notes / "out" / "report.json").read_text())
    assert (report["sensitivity"]["value"], report["invariance"]["value"]) == (1.0, 1.0)
    assert "sensitivity" in done.stdout
    assert len(pd.read_csv(notes / "items.csv")) == 60
    assert Image.open(notes / "report.png").width > 100


def test_one_answer_to_everything_is_shown_as_rigid(run, notes):
    answers(notes, lambda truth: "No")
    done = run("score", notes / "episodes.jsonl", notes / "answers.csv")
    line = next(line for line in done.stdout.splitlines() if line.startswith("rigidity"))
    assert "100.0%" in line


def test_questions_are_written_for_models_that_are_elsewhere(run, notes):
    run("questions", notes / "episodes.jsonl", "-o", notes / "questions.csv")
    table = pd.read_csv(notes / "questions.csv")
    assert len(table) == 60
    assert table["prompt"].str.endswith("Question: Is the part defective? Answer with No or Yes.").all()


def test_missing_answers_name_the_file_and_the_episodes(run, notes):
    answers(notes, lambda truth: truth).iloc[1:].to_csv(notes / "answers.csv", index=False)
    with pytest.raises(
        InputError, match=r"answers.csv: no answer under criterion 'lenient' to e01; every item needs one"
    ):
        run("score", notes / "episodes.jsonl", notes / "answers.csv")


def test_a_folder_of_images_is_built_into_a_benchmark_that_the_demo_model_refuses(run, tmp_path):
    rng = np.random.default_rng(0)
    for category in ("sound", "stain", "crack"):
        (tmp_path / "images" / category).mkdir(parents=True)
        for number in range(2):
            Image.fromarray(rng.integers(256, size=(8, 8), dtype=np.uint8)).save(
                tmp_path / "images" / category / f"{number}.png"
            )
    run("example", "-o", tmp_path)
    run("build", tmp_path / "images", tmp_path / "criteria.yaml", "-n", 4, "-o", tmp_path / "e.jsonl")
    with pytest.raises(InputError, match="the demo model sees no images; name a vision-language model with --model"):
        run("ask", tmp_path / "e.jsonl")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["build", "absent.csv", "criteria.yaml"], "criteria.yaml: no such file"),
        (
            ["score", "e.jsonl", "answers.csv", "--plot", "report.txt"],
            "report.txt: a picture is written as one of .png",
        ),
        (["score", "e.jsonl", "answers.csv"], "e.jsonl: no such file"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence(run, tmp_path, monkeypatch, command, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        run(*command)


def test_training_does_not_write_into_a_folder_that_is_in_use(run, notes):
    with pytest.raises(InputError, match="is not an empty folder; name a new one"):
        run("train", notes / "episodes.jsonl", "-o", notes)


# -------------------------------------------------------------------------------- models that are tiny and random


@pytest.fixture
def pictures(run, tmp_path):
    """A folder of pictures in three categories, criteria for them, and a benchmark of six episodes."""
    write_pictures(tmp_path / "pictures")
    criteria = {"question": SPEC.question, "answers": list(SPEC.answers), "criteria": SPEC.criteria}
    (tmp_path / "criteria.json").write_text(json.dumps(criteria))
    run("build", tmp_path / "pictures", tmp_path / "criteria.json", "-n", 6, "-o", tmp_path / "episodes.jsonl")
    return tmp_path


@pytest.fixture
def vlm(tmp_path):
    """A vision-language model with its processor, saved as transformers saves them."""
    model, processor = tiny_vlm()
    model.save_pretrained(tmp_path / "vlm")
    processor.save_pretrained(tmp_path / "vlm")
    return tmp_path / "vlm"


def test_a_vision_language_model_is_asked_about_a_folder_of_pictures(run, pictures, vlm):
    asked = run("ask", pictures / "episodes.jsonl", "-m", vlm, "-o", pictures / "answers.csv", "--batch-size", 4)
    table = pd.read_csv(pictures / "answers.csv")
    assert list(table.columns) == ["id", "criterion", "answer"]
    assert len(table) == 12
    assert set(table["answer"]) <= {"No", "Yes"}
    assert "sensitivity" in asked.stdout


def test_the_model_that_is_loaded_answers_as_the_one_that_was_saved(run, pictures, vlm):
    run("ask", pictures / "episodes.jsonl", "-m", vlm, "-o", pictures / "answers.csv")
    report = evaluate(HFVLMPredictor(*tiny_vlm()), read_episodes(pictures / "episodes.jsonl"))
    assert pd.read_csv(pictures / "answers.csv")["answer"].tolist() == report.items()["answer"].tolist()


def test_a_vision_language_model_may_reason_before_it_answers(run, pictures, vlm):
    asked = run("ask", pictures / "episodes.jsonl", "-m", vlm, "-o", pictures / "answers.csv", "--cot")
    assert "unparsed" in asked.stdout


def test_a_picture_that_cannot_be_read_is_named(run, pictures, vlm):
    (pictures / "pictures" / "ink" / "0.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"0\.png"):
        run("ask", pictures / "episodes.jsonl", "-m", vlm, "-o", pictures / "answers.csv")


def test_a_folder_without_a_vision_language_model_is_said_to_be_none(run, pictures, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty cannot be loaded as a vision-language model"):
        run("ask", pictures / "episodes.jsonl", "-m", tmp_path / "empty")


@pytest.mark.parametrize("options", [("--layers", 1), ("--layers", 2, "--lora", 4)])
def test_a_vision_language_model_is_trained_saved_and_asked_again(run, pictures, vlm, options):
    if "--lora" in options:
        pytest.importorskip("peft")
    out = pictures / "tuned"
    done = run("train", pictures / "episodes.jsonl", "-m", vlm, "-o", out, "--batch-size", 6, *options)
    assert "2 steps, loss" in done.stdout
    run("ask", pictures / "episodes.jsonl", "-m", out, "-o", pictures / "answers.csv")
    assert len(pd.read_csv(pictures / "answers.csv")) == 12


@pytest.mark.slow
def test_the_demo_model_is_asked_and_its_answers_scored(run, notes):
    run("build", notes / "notes.csv", notes / "criteria.yaml", "-n", 4, "-o", notes / "episodes.jsonl")
    asked = run("ask", notes / "episodes.jsonl", "-o", notes / "answers.csv")
    scored = run("score", notes / "episodes.jsonl", notes / "answers.csv")
    assert asked.stdout.split("\n\n")[0] == scored.stdout.rstrip()
