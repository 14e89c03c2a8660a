"""`assay use mpfm`: from raw logs to a model and to alarms, through the door that a user takes."""

import gzip
import io
import json
import re
import sys

import numpy as np
import pytest

from assay._core.errors import InputError
from assay._core.tables import read_table

FIT = ["--size", "8", "--width", "16", "--epochs", "2,2"]


def log(n=600, system="web", seed=0):
    rng = np.random.default_rng(seed)
    words = ["open session", "read page", "check token", "send page", "close session"]
    return [
        f"Jun 14 {i // 60:02d}:{i % 60:02d}:00 host {system}[7]: {words[i % 5]} {rng.integers(999)}" for i in range(n)
    ]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model(run_anywhere, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mpfm")
    for name in ("web", "db"):
        (folder / f"{name}.log").write_text("\n".join(log(system=name)), encoding="utf-8")
    run_anywhere("fit", f"web={folder}/web.log", f"{folder}/db.log", "-o", f"{folder}/model", *FIT)
    return folder / "model"


def test_a_model_is_three_files_without_pickle(model):
    assert sorted(path.name for path in model.iterdir()) == ["model.json", "model.safetensors", "windower.json"]


def test_every_window_of_a_log_gets_a_row(run, model, tmp_path):
    (tmp_path / "web.log").write_text("\n".join(log(83, seed=1)), encoding="utf-8")
    run("score", "web.log", "-m", model, "-o", "scores.csv")
    import pandas as pd

    scores = pd.read_csv(tmp_path / "scores.csv")
    assert scores["first_line"].tolist() == list(range(1, 83, 8))
    assert scores["last_line"].tolist()[-1] == 83
    assert set(scores) == {"system", "first_line", "last_line", "time", "score", "p_value", "alarm"}


def test_times_of_a_log_without_years_have_none(run, model, tmp_path):
    (tmp_path / "web.log").write_text("\n".join(log(16)), encoding="utf-8")
    run("score", "web.log", "-m", model, "-o", "scores.csv")
    assert read_table(tmp_path / "scores.csv")["time"].tolist() == ["06-14T00:00:00", "06-14T00:08:00"]


def test_every_line_gets_the_highest_score_of_its_windows(run, model, tmp_path):
    (tmp_path / "web.log").write_text("\n".join(log(80, seed=1)), encoding="utf-8")
    run("score", "web.log", "-m", model, "-o", "lines.csv", "--per", "line", "--step", "4")
    run("score", "web.log", "-m", model, "-o", "windows.csv", "--step", "4")
    import pandas as pd

    lines, windows = pd.read_csv(tmp_path / "lines.csv"), pd.read_csv(tmp_path / "windows.csv")
    holds = (windows["first_line"] <= 30) & (windows["last_line"] >= 30)
    assert lines["line"].tolist() == list(range(1, 81))
    assert lines["score"][29] == windows["score"][holds].max()


def test_pieces_of_a_stream_score_as_the_whole_log(run, model):
    stdin = "\n".join(log(80, seed=1)).encode()
    scores = []
    for chunk in (8, 20_000):
        done = run("score", "web=-", "-m", model, "--json", "--chunk", chunk, stdin=stdin)
        scores.append([json.loads(line)["score"] for line in done.stdout.splitlines()])
    assert scores[0] == scores[1]
    assert len(scores[0]) == 10


def test_an_alarm_comes_with_the_offending_line_and_why(run, model, tmp_path):
    lines = log(80, seed=1)
    lines[42:47] = ["Jun 14 00:42:00 host web[7]: kernel panic, not syncing"] * 5
    (tmp_path / "web.log").write_text("\n".join(lines), encoding="utf-8")
    done = run("score", "web.log", "-m", model, "--top", "1", "--plot", "why.png")
    assert done.stdout.endswith("\nWritten: why.png\n")
    assert "kernel panic" in done.stdout
    assert "nearest private prototype" in done.stdout
    assert "flow path" in done.stdout
    assert (tmp_path / "why.png").read_bytes().startswith(b"\x89PNG")


def test_a_system_never_seen_is_judged_against_its_own_log(run, model, tmp_path):
    (tmp_path / "new.log.gz").write_bytes(gzip.compress("\n".join(log(400, "mail")).encode()))
    done = run("score", "new.log.gz", "-m", model)
    assert "judged against itself" in done.stdout


def test_bytes_that_are_no_text_are_replaced_and_counted(run, model, tmp_path):
    (tmp_path / "web.log").write_bytes("\n".join(log(80)).encode() + b"\nJun 14 00:00:00 host web[7]: caf\xe9 \xff\n")
    done = run("score", "web.log", "-m", model)
    assert "web.log: 1 lines are not UTF-8; what could not be read was replaced" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["score", "absent.log"], "absent.log: no such file; give a log, or NAME=PATH"),
        (["score", "web=-", "absent.log"], "absent.log: no such file; give a log, or NAME=PATH"),
        (["score", ".", "web.log"], ". is a folder; give a log, or NAME=PATH, and the folder of a model with -m"),
        (["score", "web=."], ". is a folder; give a log, or NAME=PATH, and the folder of a model with -m"),
        (["fit", "web=."], ". is a folder; give a log, or NAME=PATH, and the folder of a model with -m"),
        (["score", "-"], "stdin has no name; write NAME=- with the name of its system"),
        (["score", "web=-", "--per", "word"], "--per 'word': expected window or line"),
        (["fit", "a=x.log", "a=y.log"], "two logs have the name 'a'; name them: NAME=PATH"),
        (["fit", "web=-", "--width", "12"], "--width 12: expected a multiple of 8"),
        (["fit", "web=-", "--alarms", "2"], "--alarms 2.0: expected a share above 0 and at most 0.5, such as 0.01"),
        (["fit", "web=-", "--epochs", "0,0"], "--epochs 0,0: expected 0 or more, and 1 or more"),
        (
            ["fit", "web=-", "--session", "blk_("],
            "session_regex 'blk_(' is no regular expression: missing ), unterminated subpattern at position 4",
        ),
        (["fit", "bin=program"], "program: 3 of 3 lines are no text; give a log"),
        (["fit", "web=-", "--epochs", "many"], "--epochs takes two whole numbers, such as 10,20, not 'many'"),
    ],
)
def test_wrong_arguments_get_one_sentence(run, model, tmp_path, arguments, message):
    (tmp_path / "program").write_bytes(b"\x7fELF\0\xff\n\xd0\n\0")
    options = ["-m", model] if arguments[0] == "score" else []
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        run(*arguments, *options, stdin="\n".join(log(80)).encode())


def test_a_log_without_lines_is_refused(run, model, tmp_path):
    (tmp_path / "web.log").write_text("\n\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"^web\.log: the log has no lines$"):
        run("score", "web.log", "-m", model)


def test_a_folder_without_a_model_is_refused(run):
    with pytest.raises(InputError, match="holds no model"):
        run("score", "web=-", "-m", "nothing")


def test_a_stream_is_read_line_by_line(monkeypatch):
    from assay.cli.use.mpfm import _lines

    class Endless(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            buffer[:6] = b"hello\n"
            return 6

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Endless())))
    assert next(_lines("-")) == "hello\n"
