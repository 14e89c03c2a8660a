"""`assay use cc-icl …` on files, as a person would use it."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

from assay._core.errors import InputError
from assay.cli.use.cc_icl import app
from assay.evaluate.cc_icl import HFVLMPredictor, evaluate, read_episodes

sys.path.insert(0, str(Path(__file__).parents[1] / "evaluate"))
from cc_icl_models import SPEC, tiny_vlm, write_pictures


def use(*arguments):
    """Run the command; an error of the user's is raised as it is."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture
def notes(tmp_path):
    folder = tmp_path / "new" / "notes"
    use("example", "-o", folder)
    use("build", folder / "notes.csv", folder / "criteria.yaml", "-n", 20, "-o", folder / "episodes.jsonl")
    return folder


def answers(folder, answer):
    """A table with what `answer(truth)` gives for every episode and criterion."""
    episodes = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    rows = [(e["id"], name, answer(truth)) for e in episodes for name, truth in e["truth"].items()]
    table = pd.DataFrame(rows, columns=["id", "criterion", "answer"])
    table.to_csv(folder / "answers.csv", index=False)
    return table


def test_the_help_opens_with_an_example():
    text = use("--help").stdout
    assert "assay use cc-icl example -o notes" in text


def test_build_says_what_it_built(tmp_path):
    use("example", "-o", tmp_path)
    out = tmp_path / "made" / "episodes.jsonl"
    done = use("build", tmp_path / "notes.csv", tmp_path / "criteria.yaml", "-n", 20, "-o", out)
    assert "episodes          20" in done.stdout
    assert "sensitive         10" in done.stdout
    assert len(out.read_text().splitlines()) == 20


def test_right_answers_score_one_and_the_report_is_written(notes):
    answers(notes, lambda truth: f"Well. Final answer: {truth}")
    done = use("score", notes / "episodes.jsonl", notes / "answers.csv", "-o", notes / "out" / "report.json",
               "--items", notes / "items.csv", "--plot", notes / "report.png")  # fmt: skip
    report = json.loads((notes / "out" / "report.json").read_text())
    assert (report["sensitivity"]["value"], report["invariance"]["value"]) == (1.0, 1.0)
    assert "sensitivity" in done.stdout
    assert len(pd.read_csv(notes / "items.csv")) == 60
    assert Image.open(notes / "report.png").width > 100


def test_one_answer_to_everything_is_shown_as_rigid(notes):
    answers(notes, lambda truth: "No")
    done = use("score", notes / "episodes.jsonl", notes / "answers.csv")
    line = next(line for line in done.stdout.splitlines() if line.startswith("rigidity"))
    assert "100.0%" in line


def test_questions_are_written_for_models_that_are_elsewhere(notes):
    use("questions", notes / "episodes.jsonl", "-o", notes / "questions.csv")
    table = pd.read_csv(notes / "questions.csv")
    assert len(table) == 60
    assert table["prompt"].str.endswith("Question: Is the part defective? Answer with No or Yes.").all()


def test_missing_answers_name_the_file_and_the_episodes(notes):
    answers(notes, lambda truth: truth).iloc[1:].to_csv(notes / "answers.csv", index=False)
    with pytest.raises(
        InputError, match=r"answers.csv: no answer under criterion 'lenient' to e01; every item needs one"
    ):
        use("score", notes / "episodes.jsonl", notes / "answers.csv")


def test_a_folder_of_images_is_built_into_a_benchmark_that_the_demo_model_refuses(tmp_path):
    rng = np.random.default_rng(0)
    for category in ("sound", "stain", "crack"):
        (tmp_path / "images" / category).mkdir(parents=True)
        for number in range(2):
            Image.fromarray(rng.integers(256, size=(8, 8), dtype=np.uint8)).save(
                tmp_path / "images" / category / f"{number}.png"
            )
    use("example", "-o", tmp_path)
    use("build", tmp_path / "images", tmp_path / "criteria.yaml", "-n", 4, "-o", tmp_path / "e.jsonl")
    with pytest.raises(InputError, match="the demo model sees no images; name a vision-language model with --model"):
        use("ask", tmp_path / "e.jsonl")


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
def test_what_cannot_be_used_is_said_in_a_sentence(tmp_path, monkeypatch, command, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        use(*command)


def test_training_does_not_write_into_a_folder_that_is_in_use(notes):
    with pytest.raises(InputError, match="is not an empty folder; name a new one"):
        use("train", notes / "episodes.jsonl", "-o", notes)


# -------------------------------------------------------------------------------- models that are tiny and random


@pytest.fixture
def pictures(tmp_path):
    """A folder of pictures in three categories, criteria for them, and a benchmark of six episodes."""
    write_pictures(tmp_path / "pictures")
    criteria = {"question": SPEC.question, "answers": list(SPEC.answers), "criteria": SPEC.criteria}
    (tmp_path / "criteria.json").write_text(json.dumps(criteria))
    use("build", tmp_path / "pictures", tmp_path / "criteria.json", "-n", 6, "-o", tmp_path / "episodes.jsonl")
    return tmp_path


@pytest.fixture
def vlm(tmp_path):
    """A vision-language model with its processor, saved as transformers saves them."""
    model, processor = tiny_vlm()
    model.save_pretrained(tmp_path / "vlm")
    processor.save_pretrained(tmp_path / "vlm")
    return tmp_path / "vlm"


def test_a_vision_language_model_is_asked_about_a_folder_of_pictures(pictures, vlm):
    asked = use("ask", pictures / "episodes.jsonl", "-m", vlm, "-o", pictures / "answers.csv", "--batch-size", 4)
    table = pd.read_csv(pictures / "answers.csv")
    assert list(table.columns) == ["id", "criterion", "answer"]
    assert len(table) == 12
    assert set(table["answer"]) <= {"No", "Yes"}
    assert "sensitivity" in asked.stdout


def test_the_model_that_is_loaded_answers_as_the_one_that_was_saved(pictures, vlm):
    use("ask", pictures / "episodes.jsonl", "-m", vlm, "-o", pictures / "answers.csv")
    report = evaluate(HFVLMPredictor(*tiny_vlm()), read_episodes(pictures / "episodes.jsonl"))
    assert pd.read_csv(pictures / "answers.csv")["answer"].tolist() == report.items()["answer"].tolist()


def test_a_vision_language_model_may_reason_before_it_answers(pictures, vlm):
    asked = use("ask", pictures / "episodes.jsonl", "-m", vlm, "-o", pictures / "answers.csv", "--cot")
    assert "unparsed" in asked.stdout


def test_a_picture_that_cannot_be_read_is_named(pictures, vlm):
    (pictures / "pictures" / "ink" / "0.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"0\.png"):
        use("ask", pictures / "episodes.jsonl", "-m", vlm, "-o", pictures / "answers.csv")


def test_a_folder_without_a_vision_language_model_is_said_to_be_none(pictures, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty cannot be loaded as a vision-language model"):
        use("ask", pictures / "episodes.jsonl", "-m", tmp_path / "empty")


@pytest.mark.parametrize("options", [("--layers", 1), ("--layers", 2, "--lora", 4)])
def test_a_vision_language_model_is_trained_saved_and_asked_again(pictures, vlm, options):
    if "--lora" in options:
        pytest.importorskip("peft")
    out = pictures / "tuned"
    done = use("train", pictures / "episodes.jsonl", "-m", vlm, "-o", out, "--batch-size", 6, *options)
    assert "2 steps, loss" in done.stdout
    use("ask", pictures / "episodes.jsonl", "-m", out, "-o", pictures / "answers.csv")
    assert len(pd.read_csv(pictures / "answers.csv")) == 12


@pytest.mark.slow
def test_the_demo_model_is_asked_and_its_answers_scored(notes):
    use("build", notes / "notes.csv", notes / "criteria.yaml", "-n", 4, "-o", notes / "episodes.jsonl")
    asked = use("ask", notes / "episodes.jsonl", "-o", notes / "answers.csv")
    scored = use("score", notes / "episodes.jsonl", notes / "answers.csv")
    assert asked.stdout.split("\n\n")[0] == scored.stdout.rstrip()
