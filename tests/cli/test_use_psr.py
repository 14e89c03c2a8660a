"""`assay use psr`: train, apply, show and export, through the door that a user takes."""

import re

import pytest

from assay._core.errors import InputError
from assay._core.tables import read_table

# Words of the tiny model: w0 to w96.
INSTRUCTION = "w9 w10"


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.csv"
    path.write_text("question\n" + "".join(f"w{n} w{n + 1}\n" for n in range(20, 28)), encoding="utf-8")
    return path


@pytest.fixture
def trained(run, questions, model_dir):
    """A folder of PSR at layer 1, and the model's options."""
    run("train", questions, "-i", INSTRUCTION, "-m", model_dir, "--layers", "1", "--tokens", "6", "-o", "made")
    return "made"


def test_training_writes_a_folder_and_says_how_close_it_came(run, questions, model_dir, tmp_path):
    printed = run(
        "train", questions, "-i", INSTRUCTION, "-m", model_dir, "--tokens", "6", "-o", "made", "--pairs", "p.csv"
    ).stdout
    assert re.match(r"8 of 8 answers, psr, layer 1\nlayer   1: relative RMSE 0\.\d{3} on the answers", printed)
    assert {path.name for path in (tmp_path / "made").iterdir()} == {"steering.json", "steering.safetensors"}
    assert read_table(tmp_path / "p.csv")["steered_prompt"][0] == "w9 w10\n\nw20 w21\n"


def test_pairs_of_a_file_train_as_the_questions_did(run, questions, model_dir, tmp_path):
    run("train", questions, "-i", INSTRUCTION, "-m", model_dir, "--tokens", "6", "-o", "one", "--pairs", "p.jsonl")
    run("train", "p.jsonl", "-m", model_dir, "-o", "other")
    one, other = ((tmp_path / name / "steering.safetensors").read_bytes() for name in ("one", "other"))
    assert one == other


@pytest.mark.parametrize(
    "options",
    [("--objective", "mse"), ("--objective", "ll"), ("--method", "projection"), ("--span", "question_and_answer")],
    ids=["mse", "ll", "projection", "question"],
)
def test_every_way_of_training_is_reached(run, questions, model_dir, tmp_path, options):
    run("train", questions, "-i", INSTRUCTION, "-m", model_dir, "--tokens", "4", "-o", "made", *options)
    assert (tmp_path / "made" / "steering.safetensors").is_file()
    run("apply", "made", questions, "-m", model_dir, "--tokens", "2")
    assert len(read_table(tmp_path / "answers.csv")) == 8


def test_applying_answers_with_and_without(run, trained, questions, model_dir, tmp_path):
    printed = run(
        "apply", trained, questions, "--alpha", "30", "-m", model_dir, "--tokens", "5", "-o", "deep/answers.csv"
    ).stdout
    table = read_table(tmp_path / "deep" / "answers.csv", {"perplexity": "number", "plain_perplexity": "number"})
    assert table["question"].tolist() == [f"w{n} w{n + 1}" for n in range(20, 28)]
    changed = int((table["answer"] != table["plain_answer"]).sum())
    assert changed > 0
    assert f"{changed} of 8 answers changed" in printed


def test_showing_writes_a_strip_a_picture_and_a_table(run, trained, model_dir, tmp_path):
    asked = ("show", trained, "w20 w21", "--response", "w30 w31 w32", "-m", model_dir)
    printed = run(*asked, "-o", "strip.html", "--table", "strip.csv").stdout
    assert "4 tokens, 1 of the prompt" in printed
    page = (tmp_path / "strip.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert ">w31</span>" in page
    assert read_table(tmp_path / "strip.csv")["token"].tolist()[1:] == ["w30", "w31", "w32"]
    run(*asked, "-o", "strip.png")
    assert (tmp_path / "strip.png").read_bytes().startswith(b"\x89PNG")


def test_a_constant_vector_is_exported(run, questions, model_dir, tmp_path):
    import gguf

    run(
        "train",
        questions,
        "-i",
        INSTRUCTION,
        "-m",
        model_dir,
        "--method",
        "constant",
        "--tokens",
        "4",
        "-o",
        "constant",
    )
    run("export", "constant", "-m", model_dir, "-o", "vector.gguf")
    assert [tensor.name for tensor in gguf.GGUFReader(tmp_path / "vector.gguf").tensors] == ["direction.1"]


def test_the_help_opens_with_an_example(run):
    assert 'assay use psr train questions.csv --instruction "You are a pirate." -o pirate' in " ".join(
        run("--help").stdout.split()
    )


TRAIN = ("train", "QUESTIONS", "-o", "out", "-m", "MODEL")
BAD = {
    "method": (
        (*TRAIN, "--method", "lora"),
        "--method lora: expected one of psr, constant, difference-in-means, projection",
    ),
    "objective": ((*TRAIN, "--objective", "rmse"), "--objective rmse: expected local, mse or ll"),
    "nothing to train": (
        (*TRAIN, "-i", INSTRUCTION, "--tokens", "3", "--method", "projection", "--objective", "ll"),
        "--objective ll: projection has nothing to train through the model; use local",
    ),
    "layers": (
        (*TRAIN, "--layers", "top"),
        "--layers takes middle, all, or numbers with commas such as 10,15, not 'top'",
    ),
    "no instruction": (
        TRAIN,
        "QUESTIONS has no columns prompt, steered_prompt and response; to train on questions give",
    ),
    "an empty question": (
        ("train", "EMPTY", "-o", "out", "-i", INSTRUCTION),
        "EMPTY, row 2, column question: the question is empty",
    ),
    "no questions": (
        ("train", "NONE", "-o", "out", "-i", INSTRUCTION),
        "NONE has a header but no rows",
    ),
    "a layer too high": (
        (*TRAIN, "-i", INSTRUCTION, "--layers", "2", "--tokens", "3"),
        "layer 2: the model has 2; expected -2 to 1",
    ),
    "no folder": (
        ("apply", "nowhere", "QUESTIONS", "-m", "MODEL"),
        "nowhere holds no steering.json; expected a folder",
    ),
    "a picture of no kind": (
        ("show", "made", "w1", "-o", "strip.doc"),
        "strip.doc: a strip is written as one of .html, ",
    ),
    "no words left": (
        (*TRAIN, "-i", INSTRUCTION, "--tokens", "3", "--words", "aye,arr"),
        "no pair is left of 8: the judge of attribute dropped 8",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence(run, questions, model_dir, tmp_path, arguments, message):
    (tmp_path / "empty.csv").write_text('question\nw1\n" "\n', encoding="utf-8")
    (tmp_path / "none.csv").write_text("question\n", encoding="utf-8")
    named = {"MODEL": model_dir, "QUESTIONS": questions, "EMPTY": tmp_path / "empty.csv", "NONE": tmp_path / "none.csv"}
    for name, path in named.items():
        message = message.replace(name, str(path))
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        run(*(named.get(argument, argument) for argument in arguments))


def test_what_is_not_constant_is_not_exported(run, trained, model_dir):
    with pytest.raises(InputError, match=r"^a control vector is the same at every token, and psr is not; export "):
        run("export", trained, "-m", model_dir, "-o", "vector.gguf")
