"""`assay use lora-memory …` on files, as a person would use it, with a tiny model."""

import json
import re
import shlex
import sys
from pathlib import Path

import pandas as pd
import pytest

from assay._core.errors import InputError

sys.path.insert(0, str(Path(__file__).parents[1] / "adapt"))
from lora_memory_models import facts, tiny, words

TRAINED = ("--passes", 60, "--learning-rate", 2e-2)


@pytest.fixture(scope="module")
def files(run_anywhere, tmp_path_factory):
    """A tiny model, a table of eight facts, and the memory that `write` made of them."""
    folder = tmp_path_factory.mktemp("files")
    tiny().save_pretrained(folder / "model")
    words().save_pretrained(folder / "model")
    table = pd.DataFrame({"question": [f.question for f in facts(8)], "answer": [f.answer for f in facts(8)]})
    table.to_csv(folder / "facts.csv", index=False)
    run_anywhere("write", folder / "facts.csv", "-o", folder / "new" / "memory", "-m", folder / "model",
        "--facts-per-module", 4, *TRAINED)  # fmt: skip
    return folder


def test_the_help_opens_with_an_example(run):
    assert "assay use lora-memory example -o book.csv" in run("--help").stdout


def test_the_example_is_a_table_of_people(run, tmp_path):
    run("example", "-o", tmp_path / "made" / "book.csv")
    assert list(pd.read_csv(tmp_path / "made" / "book.csv").columns) == ["name", "phone number"]


def test_write_leaves_an_adapter_for_every_module_and_an_index(files):
    memory = files / "new" / "memory"
    index = json.loads((memory / "index.json").read_text())
    assert [module["id"] for module in index["modules"]] == ["m000", "m001"]
    for name in ("m000", "m001"):
        assert {place.name for place in (memory / "modules" / name).iterdir()} == {
            "adapter_config.json", "adapter_model.safetensors",
        }  # fmt: skip


def test_read_says_the_answer_and_where_it_was(run, files):
    fact = facts(8)[5]
    done = run("read", files / "new" / "memory", fact.question, "-m", files / "model", "--max-new-tokens", 4)
    assert done.stdout.splitlines()[0] == fact.answer
    assert "module m001" in done.stdout


def test_read_answers_a_table_of_questions(run, files, tmp_path):
    out = tmp_path / "said" / "answers.csv"
    run("read", files / "new" / "memory", "-q", files / "facts.csv", "-o", out, "-m", files / "model")
    assert list(pd.read_csv(out)["module"]) == ["m000"] * 4 + ["m001"] * 4


def test_a_context_makes_the_prompt_longer(run, files, tmp_path):
    (tmp_path / "context.txt").write_text("v1 v2 v3")
    asked = ("read", files / "new" / "memory", "v1 v2", "-m", files / "model", "--max-new-tokens", 2)
    alone, told = (run(*asked, *more).stdout for more in ((), ("--context", tmp_path / "context.txt")))
    assert int(told.split()[-3]) > int(alone.split()[-3]) + 3


def test_audit_writes_a_row_for_every_fact_and_a_picture(run, files, tmp_path):
    out, plot = tmp_path / "a" / "audit.csv", tmp_path / "b" / "audit.png"
    done = run("audit", files / "new" / "memory", files / "facts.csv", "-o", out, "--plot", plot, "--compare",
               "-m", files / "model")  # fmt: skip
    assert pd.read_csv(out)["from_its_module"].mean() >= 0.75
    assert plot.stat().st_size > 1000
    assert "recall, read from its own module" in done.stdout
    assert "bm25" in done.stdout


def test_capacity_writes_a_row_for_every_rank_and_size(run, files, tmp_path):
    out = tmp_path / "capacity.csv"
    run("capacity", files / "facts.csv", "-o", out, "--ranks", "1,2", "--sizes", "2,4", "--passes", 2,
        "-m", files / "model")  # fmt: skip
    assert pd.read_csv(out)[["rank", "n_facts"]].to_numpy().tolist() == [[1, 2], [1, 4], [2, 2], [2, 4]]


def test_a_folder_of_texts_is_written_as_text_and_questions(run, files, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "v1.txt").write_text("v1 v2 v3 v4 v5 v6. v7 v8 v9 v10 v11 v12.")
    done = run("write", tmp_path / "texts", "-o", tmp_path / "memory", "-m", files / "model", "--passes", 1)
    assert "m000" in done.stdout
    index = json.loads((tmp_path / "memory" / "index.json").read_text())
    assert index["modules"][0]["n_samples"] == 3
    audited = run("audit", tmp_path / "memory", tmp_path / "texts", "-m", files / "model")
    assert audited.stdout.startswith("2 facts in 1 modules")


def test_modules_are_filled_by_tokens_on_request(run, files, tmp_path):
    run("write", files / "facts.csv", "-o", tmp_path / "m", "-m", files / "model", "--passes", 1,
        "--tokens-per-module", 30)  # fmt: skip
    assert len(json.loads((tmp_path / "m" / "index.json").read_text())["modules"]) == 2


def index_of(memory):
    return [module["id"] for module in json.loads((memory / "index.json").read_text())["modules"]]


def table_of(*some):
    frame = pd.DataFrame({"question": [fact.question for fact in some], "answer": [fact.answer for fact in some]})
    frame.to_csv("facts.csv", index=False)


def test_a_row_that_is_added_is_written_once_the_module_it_belongs_to_is_removed(run, files):
    write = ("write", "facts.csv", "-o", "memory", "-m", files / "model", "--facts-per-module", 2, "--passes", 1)
    memory = Path("memory")
    table_of(*facts(3))
    run(*write)
    kept = (memory / "modules" / "m000" / "adapter_model.safetensors").stat().st_mtime_ns
    table_of(*facts(6))
    with pytest.raises(
        InputError, match=r"facts\.csv or the options have changed since m001 was .*remove memory m001`"
    ):
        run(*write)
    assert index_of(memory) == ["m000", "m001", "m002"]  # the last one is new
    assert run("remove", memory, "m001").stdout == "Removed from memory: m001\n"
    assert index_of(memory) == ["m000", "m002"]
    assert not (memory / "modules" / "m001").exists()
    run(*write)
    assert sorted(index_of(memory)) == ["m000", "m001", "m002"]
    assert (memory / "modules" / "m000" / "adapter_model.safetensors").stat().st_mtime_ns == kept
    table_of(*facts(4))
    assert "not from facts.csv as it is now: m002" in run(*write).stdout


def test_a_damaged_module_is_written_again_by_the_same_command(run, files):
    write = ("write", files / "facts.csv", "-o", "memory", "-m", files / "model", "--passes", 1)
    run(*write)
    weights = Path("memory/modules/m000/adapter_model.safetensors")
    whole = weights.read_bytes()
    weights.write_bytes(whole[:1000])
    with pytest.warns(UserWarning, match="'m000' is left out"):
        run(*write)
    assert len(weights.read_bytes()) == len(whole)


def test_the_documented_python_works_after_the_documented_commands(run, files, monkeypatch):
    from assay import models

    monkeypatch.setattr(models, "demo_lm", lambda: (tiny(), words()))
    page = (Path(__file__).parents[2] / "docs/methods/lora-memory.md").read_text(encoding="utf-8")
    console, python = (re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL)[1] for kind in ("console", "python"))
    for line in console.splitlines():
        run(*shlex.split(line.removeprefix("$ assay use lora-memory ")))
    exec(python, {})
    assert index_of(Path("memory")) == ["m000"]


def test_a_memory_that_cannot_be_written_leaves_no_folder(run, files, tmp_path):
    with pytest.raises(InputError, match=r"^rank is 0; expected 1 or more$"):
        run("write", files / "facts.csv", "-o", tmp_path / "m", "-m", files / "model", "--rank", 0)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("write", "none.csv", "-o", "memory"), r"none\.csv"),
        (("write", "facts.csv", "-o", "memory", "--question", "q"), "no column 'q'"),
        (("write", "facts.csv", "-o", "memory", "--passes", 0), "--passes is 0"),
        (("read", "nowhere", "v1"), "nowhere holds no index.json, so it is not the folder of a memory"),
        (("write", "facts.csv", "-o", "memory", "--key", "name"), "no column 'name'"),
        (("read", "new/memory", "v1", "--context", "none.txt"), r"^none\.txt cannot be read as UTF-8 text: "),
        (("remove", "new/memory", "m000", "m9"), "there is no module 'm9' in new/memory; there are m000, m001"),
        (("remove", "nowhere", "m000"), "nowhere holds no index.json"),
        (("read", "new/memory"), "give one question, or a table of them with --questions"),
        (("read", "new/memory", "v1", "-m", "model", "--top-k", 9), "top_k is 9; expected a number from 1 to 2"),
        (("audit", "new/memory", "facts.csv", "--plot", "a.doc"), "a picture is written as one of .png, .svg, .pdf"),
        (("audit", "new/memory", "facts.csv", "--confidence", 2), "--confidence is 2.0; expected a share"),
        (("capacity", "facts.csv", "--ranks", "1,x", "-m", "model"), "--ranks takes whole numbers with commas"),
        (("capacity", "facts.csv", "--sizes", "99", "-m", "model"), "sizes is .99,.; expected numbers from 1 to 8"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_sentence(run, files, monkeypatch, arguments, message):
    monkeypatch.chdir(files)
    with pytest.raises(InputError, match=message):
        run(*arguments)
