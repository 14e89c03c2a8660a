"""`assay try`, `assay report` and `assay tour`: from a file of votes to a verdict."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pytest

from assay import bench, catalog

SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "docs" / "result.schema.json").read_text(encoding="utf-8"))


@pytest.fixture
def votes(tmp_path):
    rng = np.random.default_rng(0)
    a, b = np.array([rng.choice(5, 2, replace=False) for _ in range(600)]).T
    reliable = rng.random(600) < 0.5
    a_wins = np.where(reliable, a < b, rng.random(600) < 0.5)
    frame = pd.DataFrame(
        {
            "model_a": np.char.add("model ", a.astype(str)),
            "model_b": np.char.add("model ", b.astype(str)),
            "judge": np.where(reliable, "reliable", "coin"),
            "winner": np.where(a_wins, "model_a", "model_b"),
        }
    )
    path = tmp_path / "votes.csv"
    frame.to_csv(path, index=False)
    return path


def test_json_is_one_document_of_the_published_form_and_nothing_else(assay, votes):
    done = assay("try", "judge-rank", "--data", votes, "--cases", "6", "--jobs", "1", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document.pop("parts") == []
    jsonschema.validate(document, SCHEMA)
    assert document["verdict"]["n_cases"] == 6


def test_people_get_the_verdict_the_table_and_the_path_of_the_report(assay, votes, tmp_path):
    done = assay("try", "judge-rank", "--data", votes, "-n", "6", "-j", "1", "--out", "mine")
    assert done.returncode == 0, done.stderr
    assert "On log_loss (lower is better), judge-aware is" in " ".join(done.stdout.split())
    assert done.stdout.endswith("Report: mine/report.html\n")
    assert (tmp_path / "mine" / "report.html").is_file()


def test_one_part_of_a_trial_runs_alone_and_its_command_says_so(assay, votes):
    done = assay("try", "judge-rank", "--part", "votes", "--data", votes, "-n", "6", "-j", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["command"].startswith("assay try judge-rank --part votes --data ")


def test_a_report_puts_runs_side_by_side(assay, votes, tmp_path):
    for name in ("one", "two"):
        assay("try", "judge-rank", "--data", votes, "-n", "6", "-j", "1", "--out", name)
    done = assay("report", "one", "two", "-o", "both.html")
    assert (done.returncode, done.stdout) == (0, "Report: both.html\n")
    page = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert "2 trials side by side" in page


def test_a_folder_without_a_result_is_refused_with_the_way_to_finish_it(assay, tmp_path):
    (tmp_path / "half").mkdir()
    done = assay("report", "half")
    assert done.returncode == 2
    assert done.stderr == ("error: half holds no result.json; a run that was interrupted: assay try --resume half\n")
    assert not (tmp_path / "report.html").exists()


def test_an_unknown_parameter_is_answered_with_the_known_ones(assay):
    done = assay("try", "judge-rank", "-p", "size=3")
    assert done.returncode == 2
    assert done.stderr == ("error: judge-rank has no parameter 'size'; it has comparisons, votes_per_pair\n")


def test_a_model_for_a_trial_without_one_is_refused(assay):
    done = assay("try", "judge-rank", "--model", "gpt2")
    assert done.returncode == 2
    assert "judge-rank has no parameter 'model'" in done.stderr


def test_a_planned_method_cannot_be_tried(assay):
    done = assay("try", "fatrack")
    assert done.returncode == 2
    assert done.stderr == "error: fatrack is planned and not available yet; `assay list` shows what is\n"


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_leaves_a_run_that_can_be_resumed_and_says_how(assay, votes, tmp_path):
    command = [sys.executable, "-m", "assay", "try", "judge-rank", "--data", votes, "-n", "30", "-j", "1", "-o", "run"]
    # A process started in the background may have been told to ignore Ctrl-C, and its children inherit that.
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listen
    )
    try:
        finished = tmp_path / "run" / "finished.jsonl"
        deadline = time.monotonic() + 120
        while not (finished.exists() and finished.stat().st_size > 0):
            assert time.monotonic() < deadline, "the run never started"
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "interrupted; `assay try --resume run` runs what is missing"
    assert not (tmp_path / "run" / "result.json").exists()

    before = finished.read_text().splitlines()
    done = assay("try", "--resume", "run", "-j", "2")
    assert done.returncode == 0, done.stderr
    assert finished.read_text().splitlines()[: len(before)] == before
    assert json.loads((tmp_path / "run" / "result.json").read_text())["verdict"]["n_cases"] == 30


def test_the_tour_ends_with_a_table_of_verdicts_and_one_report(assay, tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path / "none"))  # a newcomer has no data yet
    monkeypatch.setattr(catalog, "available", lambda: [catalog.get("judge-rank")])
    monkeypatch.setattr(bench, "run", partial(bench.run, cases=6))
    for _ in range(2):  # a second tour replaces the first
        done = assay("tour")
        assert done.returncode == 0, done.stderr
    assert "kendall_tau" in done.stdout
    assert "judge-rank: the part votes was left out: judge-votes-arena is not here" in " ".join(done.stdout.split())
    assert done.stdout.endswith("Report: runs/tour/report.html\n")
    assert "judge-rank" in (tmp_path / "runs/tour/report.html").read_text(encoding="utf-8")
