"""`assay use bridge`: from files to minutes, horizons and a trend, through the command a user types."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from assay._core.errors import InputError
from assay._core.tables import read_table, write_table

sys.path.insert(0, str(Path(__file__).parents[1] / "evaluate"))
from bridge_worlds import small_world

EXAMPLE = Path(__file__).parents[2] / "examples" / "how_long_a_task_can_this_model_do.py"


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame, minutes, dates = small_world()
    frame["task"] = frame["task"].replace("task 059", "=cmd()")
    write_table(frame, tmp_path / "responses.csv.gz")
    write_table(minutes, tmp_path / "human_minutes.csv")
    write_table(dates, tmp_path / "release_dates.csv")
    return tmp_path


ALL = ("responses.csv.gz", "--human", "human_minutes.csv", "--dates", "release_dates.csv", "-o", "out/new")


def test_the_example_of_the_help_writes_five_files(run, files):
    run(*ALL)
    found = sorted(path.name for path in (files / "out/new").iterdir())
    assert found == ["calibration.png", "forecast.json", "horizon.png", "items.csv", "subjects.csv"]


def test_the_tables_have_the_documented_columns(run, files):
    run(*ALL)
    items, subjects = (read_table(files / "out/new" / name) for name in ("items.csv", "subjects.csv"))
    named = ["task", "difficulty", "discrimination", "predicted_minutes", "low", "high", "flags"]
    ends = ["difficulty_low", "difficulty_high", "discrimination_low", "discrimination_high"]
    assert list(items) == [*named, *ends]
    named = ["model", "ability", "horizon_50_minutes", "low", "high", "release_date"]
    assert list(subjects) == [*named, "ability_low", "ability_high"]


def test_forecast_json_has_the_documented_keys(run, files):
    run(*ALL)
    document = json.loads((files / "out/new/forecast.json").read_text())
    keys = ("doubling_months", "ci_low", "ci_high", "n_frontier", "r2_calibration", "n_calibration")
    assert all(document[key] is not None for key in keys)
    assert document["n_calibration"] == 40


def test_forecast_json_has_the_interval_of_r_squared(run, files):
    run(*ALL)
    document = json.loads((files / "out/new/forecast.json").read_text())
    assert document["r2_low"] < document["r2_calibration"] < document["r2_high"]


def test_latent_positions_have_intervals_of_their_standard_errors(run, files):
    run(*ALL)
    for name, column in (("items", "difficulty"), ("subjects", "ability")):
        columns = dict.fromkeys((column, f"{column}_low", f"{column}_high"), "number")
        table = read_table(files / "out/new" / f"{name}.csv", columns)
        middle = (table[f"{column}_low"] + table[f"{column}_high"]) / 2
        assert (table[f"{column}_low"] < table[f"{column}_high"]).all()
        np.testing.assert_allclose(middle, table[column], atol=1e-9)


def test_intervals_of_discriminations_are_ratios_around_them(run, files):
    run(*ALL)
    columns = dict.fromkeys(("discrimination", "discrimination_low", "discrimination_high"), "number")
    table = read_table(files / "out/new/items.csv", columns)
    assert (table["discrimination_low"] < table["discrimination"]).all()
    middle = np.sqrt(table["discrimination_low"] * table["discrimination_high"])
    np.testing.assert_allclose(middle, table["discrimination"], rtol=1e-9)


def test_a_task_that_a_spreadsheet_would_run_stays_a_name(run, files):
    run(*ALL)
    assert "\n'=cmd()," in (files / "out/new/items.csv").read_text()


def test_held_out_tasks_are_foreseen_and_not_calibrated_on(run, files):
    result = run(*ALL, "--holdout", "task 02*")
    document = json.loads((files / "out/new/forecast.json").read_text())
    assert (document["n_calibration"], document["held_out"]["n"]) == (30, 10)
    assert "10 timed tasks held out" in result.output
    assert document["held_out"]["log_error_low"] < document["held_out"]["log_error"]


def test_held_out_tasks_are_flagged(run, files):
    run(*ALL, "--holdout", "task 02*")
    items = read_table(files / "out/new/items.csv").set_index("task")["flags"].fillna("")
    assert ("held out" in items["task 020"], "calibration" in items["task 020"]) == (True, False)


def test_without_human_times_there_are_two_tables(run, files):
    run("responses.csv.gz", "-o", "out")
    assert sorted(path.name for path in (files / "out").iterdir()) == ["items.csv", "subjects.csv"]


def test_columns_with_other_names_are_named_by_options(run, files):
    frame = read_table(files / "responses.csv.gz").rename(columns={"model": "who", "task": "what", "correct": "ok"})
    write_table(frame, files / "other.csv")
    run("other.csv", "--model", "who", "--task", "what", "--correct", "ok")


def test_aliases_merge_models(run, files):
    write_table(pd.DataFrame({"model": ["model 000"], "alias": ["model 001"]}), files / "aliases.csv")
    run("responses.csv.gz", "--aliases", "aliases.csv", "-o", "out")
    assert len(read_table(files / "out/subjects.csv")) == 19


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("responses.csv.gz", "--dates", "release_dates.csv"), "--dates needs --human"),
        (("responses.csv.gz", "--holdout", "x"), "--holdout needs --human"),
        ((*ALL, "--holdout", "nothing*"), r"--holdout nothing\* matches none of the 40 timed tasks"),
        ((*ALL, "--since", "soon"), "since is 'soon'; expected a date such as 2022-01-01"),
        ((*ALL, "--bootstrap", "jackknife"), "bootstrap is 'jackknife'; expected 'frontier' or 'models'"),
        (("responses.csv.gz", "--human", "release_dates.csv"), "release_dates.csv: no column 'task'"),
        (("absent.csv",), "absent.csv: no such file"),
    ],
)
def test_a_mistake_is_answered_in_one_sentence(run, files, arguments, message):
    with pytest.raises(InputError, match=message):
        run(*arguments)


def test_nothing_is_written_when_the_input_is_bad(run, files):
    with pytest.raises(InputError):
        run(*ALL, "--holdout", "nothing*")
    assert not (files / "out").exists()


def test_the_example_script_prints_horizons_and_draws_the_trend(files):
    command = [sys.executable, str(EXAMPLE), "responses.csv.gz", "human_minutes.csv", "release_dates.csv"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=files, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "The horizon of the best model doubles every" in done.stdout
    assert (files / "horizon.png").stat().st_size > 0


def test_the_example_script_is_under_forty_lines():
    assert len(EXAMPLE.read_text().splitlines()) < 40


def test_the_real_table_takes_under_fifteen_seconds(run, real_data):
    folder = real_data / "bridge"
    before = time.process_time()
    run(
        folder / "responses.csv.gz", "--human", folder / "human_minutes.csv", "--dates", folder / "release_dates.csv",
        "--holdout", "*__*", "-o", "out",
    )  # fmt: skip
    assert time.process_time() - before < 15  # of one core: what others do on the machine does not count
    held_out = json.loads(Path("out/forecast.json").read_text())["held_out"]
    assert held_out["n"] == 500
    assert np.isfinite(held_out["linear_kappa"])


def test_a_wrong_response_is_named_with_its_file_and_row(assay, tmp_path):
    (tmp_path / "mine.csv").write_text("model,task,correct\na,t,1\nb,t,7\n")
    done = assay("use", "bridge", "mine.csv")
    assert done.returncode == 2
    assert done.stderr == (
        "error: mine.csv, row 2, column 'correct': 7 is neither 0 nor 1; give threshold= or a column 'n_trials'\n"
    )
    assert not (tmp_path / "bridge").exists()
