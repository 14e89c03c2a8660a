"""`assay use arc-decode`: calibrate, generate and audit through the door that a user takes."""

import json

import pytest

from assay._core.errors import InputError
from assay._core.tables import read_table

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.csv"
    path.write_text("prompt\n" + "".join(f"w{i} w{i + 1} w{i} w{i + 1} w{i}\n" for i in range(1, 5)), encoding="utf-8")
    return path


@pytest.fixture
def calibrated(run, prompts, model_dir, tmp_path):
    run("calibrate", prompts, "-m", model_dir, "-o", tmp_path / "new" / "calibration", "--tokens", 12)
    return tmp_path / "new" / "calibration"


def test_calibrate_writes_a_folder_that_generate_takes(run, calibrated, prompts, model_dir):
    assert {path.name for path in calibrated.iterdir()} == {"calibration.json", "calibration.safetensors"}
    printed = run(
        "generate", prompts, "-m", model_dir, "-c", calibrated, "-o", "out/texts.jsonl", "-n", 10, "-a", model_dir
    ).stdout
    assert "4 texts, 40 tokens, lambda 0.25" in printed
    table = read_table("out/texts.jsonl", {"text": "text", "n_tokens": "integer", "n_forwards": "integer"})
    assert list(table["n_tokens"]) == [10] * 4
    assert (table["n_forwards"] < 10).all()  # the draft is the model itself


def test_lambda_zero_needs_no_calibration(run, prompts, model_dir):
    assert (
        "price (mean B a position) 0.0000"
        in run("generate", prompts, "-m", model_dir, "-o", "t.jsonl", "-n", 8, "--lam", 0, "-a", model_dir).stdout
    )


def test_generate_takes_the_sampling_settings_of_the_calibration(run, prompts, model_dir):
    run("calibrate", prompts, "-m", model_dir, "-o", "c", "--tokens", 12, "--temperature", 0.8, "--top-k", 30)
    run("generate", prompts, "-m", model_dir, "-c", "c", "-o", "t.csv", "-n", 4)
    with pytest.raises(InputError, match=r"^the calibration was made for temperature=0\.8 and temperature=1 is asked"):
        run("generate", prompts, "-m", model_dir, "-c", "c", "-o", "t.csv", "-n", 4, "--temperature", 1)


def test_audit_writes_tables_and_a_picture(run, calibrated, prompts, model_dir, tmp_path):
    printed = run("audit", prompts, "-m", model_dir, "-c", calibrated, "-o", "audit", "-n", 12, "-a", model_dir).stdout
    assert "coverage: shift <= U" in printed
    assert "quantity" in read_table(tmp_path / "audit" / "audit.csv").columns
    assert (tmp_path / "audit" / "audit.png").read_bytes().startswith(b"\x89PNG")


def test_another_column_may_hold_the_prompts(run, model_dir, tmp_path):
    (tmp_path / "q.jsonl").write_text(json.dumps({"ask": "w1 w2 w3"}) + "\n", encoding="utf-8")
    assert (
        "1 text, 5 tokens"
        in run("generate", "q.jsonl", "-m", model_dir, "-o", "t.jsonl", "-n", 5, "--lam", 0, "--column", "ask").stdout
    )


def test_temperature_zero_is_said_on_stderr(run, prompts, model_dir):
    said = run("generate", prompts, "-m", model_dir, "-o", "t.jsonl", "-n", 3, "--temperature", 0).stderr
    assert said.count("warning: temperature=0: greedy decoding accepts a draft") == 1


def test_a_missing_calibration_is_said(run, prompts, model_dir):
    with pytest.raises(InputError, match=r"^lam=0\.25 needs a calibration"):
        run("generate", prompts, "-m", model_dir, "-o", "t.jsonl", "-n", 3)
    with pytest.raises(InputError, match=r"^nowhere holds no calibration\.json; make one with"):
        run("generate", prompts, "-m", model_dir, "-c", "nowhere", "-o", "t.jsonl")


def test_a_draft_with_other_tokens_is_refused(run, prompts, model_dir, tmp_path):
    import shutil

    from transformers import AutoTokenizer

    other = tmp_path / "other"
    shutil.copytree(model_dir, other)
    tokenizer = AutoTokenizer.from_pretrained(other)
    tokenizer.add_tokens(["new"])
    tokenizer.save_pretrained(other)
    with pytest.raises(InputError, match=r"other: its tokenizer has other tokens than the model's; a draft must share"):
        run("generate", prompts, "-m", model_dir, "-o", "t.jsonl", "--lam", 0, "-a", other)


def test_chat_without_a_template_is_refused(run, prompts, model_dir):
    with pytest.raises(InputError, match=r"^--chat: the tokenizer has no chat template; use --raw$"):
        run("generate", prompts, "-m", model_dir, "-o", "t.jsonl", "--lam", 0, "--chat")


def test_a_prompt_without_tokens_is_refused(run, model_dir, tmp_path):
    (tmp_path / "q.jsonl").write_text('{"prompt": "w1"}\n{"prompt": " "}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"^q\.jsonl, prompt 2 \(prompt ' '\) has no tokens; expected some text$"):
        run("generate", "q.jsonl", "-m", model_dir, "-o", "t.jsonl", "--lam", 0)


def test_help_opens_with_an_example(run):
    assert "assay use arc-decode calibrate prompts.csv" in run("--help").stdout
