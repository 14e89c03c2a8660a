"""What is asked to be written is looked at first: nobody waits minutes to hear that a name will not do."""

import importlib
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from assay._core.errors import InputError
from assay.cli.output import PICTURES, check_file, check_folder, check_table


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A fresh folder that holds a file and a folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.csv").write_text("a\n1\n", encoding="utf-8")
    (tmp_path / "folder.csv").mkdir()


def test_what_can_be_written_passes_and_nothing_is_made(tmp_path):
    check_table(Path("new/deep/table.csv"), Path("file.csv"), None)
    check_file(Path("new/picture.PNG"), PICTURES, "a picture")
    check_file(Path("any name"))
    check_folder(Path("new/folder"))
    check_folder(Path("folder.csv"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.csv", "folder.csv"]


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: check_table(Path("scores.txt")), "scores.txt: the name does not tell the format; expected one of"),
        (lambda: check_table(Path("folder.csv")), "folder.csv is a folder; give the name of a file to write"),
        (lambda: check_table(Path("file.csv/a.csv")), "cannot write file.csv/a.csv: "),
        (lambda: check_file(Path("a.doc"), PICTURES, "a picture"), "a.doc: a picture is written as one of .png, .svg"),
        (lambda: check_file(Path("m.pt"), (".safetensors",), "a model"), "m.pt: a model is written as .safetensors"),
        (lambda: check_folder(Path("file.csv")), "file.csv is a file; give the name of a folder to write to"),
        (lambda: check_folder(Path("file.csv/new")), "cannot write file.csv/new/file: "),
    ],
    ids=["format", "folder", "under a file", "picture", "model", "a file", "folder under a file"],
)
def test_what_cannot_be_written_is_said_with_the_reason(check, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        check()


TABLE, PICTURE, FOLDER = "a.txt: the name does not tell the format", "a.doc: ", "file.csv is a file"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("arc_decode calibrate absent.csv -o file.csv", FOLDER),
        ("arc_decode generate absent.csv -o a.txt", TABLE),
        ("arc_decode audit absent.csv -c absent -o file.csv", FOLDER),
        ("dyllm generate absent -p x -o a.txt", TABLE),
        ("dyllm generate absent -p x --steps-table a.txt", TABLE),
        ("dyllm generate absent -p x --plot a.doc", PICTURE),
        ("dyllm compare absent --prompts absent.csv -o file.csv", FOLDER),
        ("memoryllm inspect absent --table a.txt", TABLE),
        ("memoryllm probe absent --table a.txt", TABLE),
        ("amips search absent absent absent -o a.txt", TABLE),
        ("amips compare absent absent -o a.txt", TABLE),
        ("psr train absent.csv -o file.csv", FOLDER),
        ("psr train absent.csv -o new --pairs a.txt", TABLE),
        ("psr apply absent absent.csv -o a.txt", TABLE),
        ("psr show absent x --table a.txt", TABLE),
        ("lora_memory write absent.csv -o file.csv", FOLDER),
        ("lora_memory read absent x -o a.txt", TABLE),
        ("lora_memory audit absent absent.csv -o a.txt", TABLE),
        ("lora_memory capacity absent.csv -o a.txt", TABLE),
        ("model_dowser score absent -o folder.csv", "folder.csv is a folder"),
        ("model_dowser score absent -o m.safetensors --table a.txt", TABLE),
        ("model_dowser train absent absent.csv --mask absent -o folder.csv", "folder.csv is a folder"),
        ("dataguard probs absent.csv absent.csv --aux-is-nontraining -o file.csv/a.html", "cannot write"),
        ("tsef absent.pt absent.ts -o file.csv", FOLDER),
        ("style_detect score absent.csv -o a.txt", TABLE),
        ("style_detect calibrate absent.csv -o folder.csv", "folder.csv is a folder"),
        ("style_detect report absent.csv -o a.txt", TABLE),
        ("style_detect evaluate absent.csv -o a.txt", TABLE),
        ("mpfm fit absent.log -o file.csv", FOLDER),
        ("mpfm score absent.log -m absent -o a.txt", TABLE),
        ("mpfm score absent.log -m absent --plot a.doc", PICTURE),
    ],
)
def test_a_command_looks_at_what_it_will_write_before_anything_else(command, message):
    method, *arguments = command.split()
    app = importlib.import_module(f"assay.cli.use.{method}").app
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        CliRunner().invoke(app, arguments, catch_exceptions=False, standalone_mode=False)
