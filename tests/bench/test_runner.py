import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from toy_trial import SLOW, TOY, decided, load, run, with_method

from assay._core.errors import InputError
from assay.bench import Case, Data

SIMULATED = replace(TOY, part="simulated", takes_data=False)
SORTED = replace(TOY, part="sorted", params={"depth": 3})
PARTED = replace(TOY, also=(SIMULATED, SORTED))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One run of the toy trial that many tests look at."""
    return run(TOY, tmp_path_factory.mktemp("run") / "toy", jobs=1)


@pytest.fixture
def mean_file(tmp_path):
    file = tmp_path / "mean.txt"
    file.write_text("1.0")
    return file


# ------------------------------------------------------------------ what a run gives


def test_a_run_folder_holds_the_files_of_the_contract(finished):
    assert sorted(file.name for file in finished.folder.iterdir()) == [
        "cases.parquet", "finished.jsonl", "plan.json", "report.html", "result.json",
    ]  # fmt: skip


def test_the_mean_is_better_than_one_value(finished):
    # The mean of 200 values has a fourteenth of the standard deviation of one value.
    assert (finished.verdict.outcome, finished.claim.outcome) == ("better", "supported")


def test_rows_are_in_the_order_of_cases_then_arms(finished):
    rows = list(finished.to_frame()[["case", "arm"]].itertuples(index=False, name=None))
    assert rows == [(f"case {number}", arm.name) for number in range(8) for arm in TOY.arms]


def test_values_are_those_of_the_arm_on_the_case(finished):
    found = finished.to_frame().query("arm == 'mean'")["bias"]
    assert found.tolist() == [float(np.mean(case.given)) - 1.0 for case in TOY.cases(1.0, 8, 0)]


def test_a_scale_says_how_many_cases(tmp_path):
    assert (
        run(replace(TOY, n_cases={"quick": 1, "standard": 3, "full": 9}), tmp_path, scale="standard").verdict.n_cases
        == 3
    )


def test_another_seed_gives_other_cases(finished, tmp_path):
    other = run(TOY, tmp_path, seed=1, jobs=1)
    assert not decided(other).equals(decided(finished))


def test_the_number_of_jobs_changes_nothing(finished, tmp_path):
    other = run(TOY, tmp_path, jobs=3)
    pd.testing.assert_frame_equal(decided(other), decided(finished), check_exact=True)


def test_fewer_cases_than_asked_for_are_as_many_as_there_are(tmp_path):
    trial = replace(TOY, cases=lambda data, n, seed: list(TOY.cases(data, 3, seed)))
    assert run(trial, tmp_path, cases=7).verdict.n_cases == 3


def test_more_cases_than_asked_for_are_left(tmp_path):
    trial = replace(TOY, cases=lambda data, n, seed: TOY.cases(data, 99, seed))
    assert run(trial, tmp_path, cases=2).verdict.n_cases == 2


def test_two_cases_of_one_id_are_a_fault_of_the_trial(tmp_path):
    trial = replace(TOY, cases=lambda data, n, seed: [Case("a", np.ones(3), 1.0)] * 2)
    with pytest.raises(ValueError, match=r"trial 'toy': two cases have the id 'a'"):
        run(trial, tmp_path)


def test_data_without_a_case_are_explained(tmp_path):
    with pytest.raises(InputError, match=r"^samples of a normal distribution gives no case to run; bring more data$"):
        run(replace(TOY, cases=lambda data, n, seed: []), tmp_path)


def test_steps_tell_what_starts_and_what_has_finished(tmp_path):
    steps = []
    run(TOY, tmp_path, cases=1, jobs=1, progress=steps.append)
    assert [(step.kind, step.arm, step.n_done, step.n_total) for step in steps] == [
        (kind, arm.name, done + (kind == "finished"), 3)
        for done, arm in enumerate(TOY.arms)
        for kind in ("started", "finished")
    ]


def test_numpy_numbers_in_the_data_are_numbers(tmp_path):
    trial = replace(TOY, load=lambda path, scale, params: Data("three", np.int64(3), 1.0))
    assert run(trial, tmp_path, cases=1).data.n == 3


# ------------------------------------------------------------------ the command


def test_a_trial_that_is_in_no_catalog_is_repeated_in_python(finished):
    assert finished.command == "assay.bench.run(TRIAL, scale='quick', seed=0, jobs=1)"


def test_a_method_of_the_catalog_is_repeated_in_the_shell(tmp_path, mean_file, monkeypatch):
    from assay import catalog

    class Toy:
        @staticmethod
        def load_trial():
            return TOY

    monkeypatch.setattr(catalog, "get", lambda slug: Toy)
    options = {"cases": 2, "jobs": 1, "data": mean_file, "params": {"is_sorted": "true", "kind": "a b"}}
    assert run("toy", tmp_path / "run", **options).command == (
        f"assay try toy --data {mean_file} --scale quick --cases 2 --seed 0 --jobs 1 -p is_sorted=true -p 'kind=a b'"
    )


# ------------------------------------------------------------------ where it is written


def test_runs_of_one_method_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [run(TOY, None, cases=1, jobs=1).folder for _ in range(3)]
    assert folders == [Path("runs/toy"), Path("runs/toy-2"), Path("runs/toy-3")]


def test_a_folder_with_something_in_it_is_not_written_to(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match=r"is not empty; choose a new folder, or resume the run in it$"):
        run(TOY, tmp_path)


def test_a_file_is_not_a_folder(tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(InputError, match=r"out is a file; give a folder to write the run to$"):
        run(TOY, tmp_path / "out")


def test_a_folder_that_cannot_be_made_is_explained(tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(
        InputError, match=r"cannot write to .*/out/run \(Not a directory\); choose another folder with out$"
    ):
        run(TOY, tmp_path / "out/run")


def test_data_that_cannot_be_read_leave_no_folder(tmp_path):
    def refuse(path, scale, params):
        raise InputError("no good")

    with pytest.raises(InputError, match=r"no good"):
        run(replace(TOY, load=refuse), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------ the user's data


def test_the_users_data_are_named_with_their_fingerprint(tmp_path, mean_file):
    data = run(TOY, tmp_path / "run", cases=1, data=mean_file).data
    assert (data.name, data.path, data.n) == ("samples around a given mean", str(mean_file), 200)
    assert data.sha256 == "d0ff5974b6aa52cf562bea5921840c032a860a91a3512f7fe8f768f6bbe005f6"  # echo -n 1.0 | sha256sum


def test_an_embedded_example_has_no_path(finished):
    assert (finished.data.path, finished.data.sha256) == (None, None)


def test_an_example_that_was_read_from_a_file_is_named_too(tmp_path, mean_file):
    trial = replace(TOY, load=lambda path, scale, params: load(str(mean_file), scale, params))
    assert run(trial, tmp_path / "run", cases=1).data.path == str(mean_file)


# ------------------------------------------------------------------ parts


def test_parts_are_run_folders_in_subfolders(tmp_path):
    result = run(PARTED, tmp_path, cases=2, jobs=1)
    assert [(part.part, part.folder) for part in result.parts] == [
        (name, tmp_path / name) for name in ("simulated", "sorted")
    ]


def test_parts_that_take_no_data_are_left_out_with_the_users_data(tmp_path, mean_file):
    result = run(PARTED, tmp_path / "run", cases=2, jobs=1, data=mean_file)
    assert result.also == ("sorted",)
    assert result.parts[0].data.path == str(mean_file)


def test_a_part_gets_the_parameters_that_it_knows(tmp_path):
    result = run(PARTED, tmp_path, cases=1, jobs=1, params={"depth": "5", "repeats": "2"})
    assert [dict(part.params) for part in (result, *result.parts)] == [
        {**TOY.params, "repeats": 2},
        {**TOY.params, "repeats": 2},
        {"depth": 5},
    ]


def test_on_the_users_data_the_first_part_that_takes_data_is_the_main_one(tmp_path, mean_file):
    trial = replace(SIMULATED, part="", also=(SORTED, replace(SORTED, part="again")))
    result = run(trial, tmp_path / "run", cases=1, jobs=1, data=mean_file)
    assert (result.part, result.also) == ("sorted", ("again",))


@pytest.mark.parametrize(("name", "part"), [("main", ""), ("simulated", "simulated"), ("sorted", "sorted")])
def test_one_part_runs_alone(tmp_path, name, part):
    result = run(PARTED, tmp_path, part=name, cases=2, jobs=1)
    assert (result.part, result.also, result.parts) == (part, (), ())
    assert f"part={name!r}" in result.command


def test_a_part_alone_has_the_numbers_that_it_has_among_the_others(tmp_path):
    alone, among = run(PARTED, tmp_path / "1", part="sorted", cases=2, jobs=1), run(PARTED, tmp_path / "2", cases=2)
    pd.testing.assert_frame_equal(decided(alone), decided(among.parts[1]), check_exact=True)


def test_a_part_alone_is_resumed_alone(tmp_path):
    folder = stopped(PARTED, tmp_path / "run", 3, part="sorted", cases=2)
    result = resumed(PARTED, folder)
    assert (result.part, result.also) == ("sorted", ())


def test_a_part_is_not_resumed_as_another(tmp_path):
    folder = stopped(PARTED, tmp_path / "run", 3, part="sorted", cases=2)
    with pytest.raises(InputError, match="is a run of 'toy', part 'sorted', not of 'toy', part 'simulated'; resume"):
        resumed(PARTED, folder, part="simulated")


def test_an_unknown_part_is_refused_with_the_parts_that_there_are(tmp_path):
    with pytest.raises(InputError, match="the trial of toy has no part 'sort'; it has main, simulated, sorted"):
        run(PARTED, tmp_path, part="sort")


def test_a_part_that_takes_no_data_is_refused_with_the_users_data(tmp_path, mean_file):
    with pytest.raises(InputError, match="the trial of toy makes its own data and takes none"):
        run(PARTED, tmp_path / "run", part="simulated", data=mean_file)


def test_a_part_whose_model_is_missing_is_named_and_stops_nothing(tmp_path):
    def refuse(path, scale, params):
        raise InputError("assay data get demo-lm brings the model")

    trial = replace(TOY, also=(replace(SORTED, load=refuse), SIMULATED))
    result = run(trial, tmp_path, cases=1, jobs=1)
    assert [(one.part, one.reason) for one in result.skipped] == [("sorted", "assay data get demo-lm brings the model")]
    assert result.also == ("simulated",)


def test_a_part_that_could_not_run_runs_when_the_run_is_resumed(tmp_path):
    def refuse(path, scale, params):
        raise InputError("not here")

    run(replace(TOY, also=(replace(SORTED, load=refuse),)), tmp_path, cases=1, jobs=1)
    assert resumed(replace(TOY, also=(SORTED,)), tmp_path).also == ("sorted",)


def test_a_part_that_ran_and_cannot_be_resumed_stops_the_run(tmp_path):
    def refuse(path, scale, params):
        raise InputError("the file has changed")

    run(replace(TOY, also=(SORTED,)), tmp_path, cases=1, jobs=1)
    with pytest.raises(InputError, match=r"^the file has changed$"):
        resumed(replace(TOY, also=(replace(SORTED, load=refuse),)), tmp_path)


def test_a_bar_shows_the_arm_and_the_count(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich draws as on a terminal
    monkeypatch.setenv("COLUMNS", "120")
    run(TOY, tmp_path, cases=1, jobs=1, progress=True)
    drawn = capsys.readouterr().err
    assert "toy · a value · case 0" in drawn
    assert "3/3" in drawn


# ------------------------------------------------------------------ what cannot be used


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cases": 0}, "cases must be at least 1, not 0"),
        ({"jobs": -1}, "jobs must be at least 1, not -1"),
        ({"scale": "huge"}, "scale 'huge' is not one of quick, standard, full"),
        ({"executor": "slurm"}, "executor 'slurm' is not one of local, ray"),
        ({"seed": -1}, "the seed must be between 0 and 4294967295, not -1"),
        ({"data": "absent.csv"}, "absent.csv: no such file or folder"),
        ({"address": "here:1"}, "the address 'here:1' is of a Ray cluster; choose the executor 'ray' with it"),
    ],
)
def test_an_argument_that_cannot_be_used_is_explained(tmp_path, options, message):
    with pytest.raises(InputError) as raised:
        run(TOY, tmp_path, **options)
    assert str(raised.value) == message


def test_data_for_a_trial_that_takes_none_are_refused(tmp_path, mean_file):
    with pytest.raises(InputError, match=r"^the trial of toy makes its own data and takes none; leave .*mean.txt out$"):
        run(replace(TOY, takes_data=False), tmp_path / "run", data=mean_file)


def test_an_unknown_method_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"there is no method 'no-such-method'"):
        run("no-such-method", tmp_path)


# ------------------------------------------------------------------ going on


class StoppedError(Exception):
    pass


def stop_after(n):
    def watch(step):
        if step.kind == "finished" and step.n_done == n:
            raise StoppedError

    return watch


def stopped(trial, folder, n, **options):
    """A run that ended in the middle, after `n` rows."""
    with pytest.raises(StoppedError):
        run(trial, folder, progress=stop_after(n), jobs=1, **options)
    return folder


def resumed(trial, folder, **options):
    return run(trial, None, resume=folder, jobs=1, **options)


def test_a_resumed_run_has_the_numbers_of_one_that_was_not_stopped(finished, tmp_path):
    result = resumed(TOY, stopped(TOY, tmp_path / "run", 7))
    pd.testing.assert_frame_equal(decided(result), decided(finished), check_exact=True)
    assert result.verdict == finished.verdict


def test_only_what_is_missing_runs_again(tmp_path):
    folder, steps = stopped(TOY, tmp_path / "run", 7), []
    resumed(TOY, folder, progress=steps.append)
    assert sum(step.kind == "started" for step in steps) == 8 * 3 - 7


def test_a_finished_run_can_be_resumed_and_runs_nothing(finished):
    before, steps = finished.to_json(), []
    after = resumed(TOY, finished.folder, progress=steps.append)
    assert (after.to_json(), steps) == (before, [])


def test_a_run_that_stopped_in_a_part_goes_on_there(tmp_path):
    def watch(step):
        if step.part == "sorted" and step.n_done == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        run(PARTED, tmp_path / "run", cases=2, jobs=1, progress=watch, params={"depth": 5})
    steps = []
    result = resumed(PARTED, tmp_path / "run", progress=steps.append)
    assert [step.part for step in steps if step.kind == "started"] == ["sorted"] * 4
    assert result.parts[1].params == {"depth": 5}


def test_a_run_that_stopped_before_a_part_runs_the_part(tmp_path):
    result = resumed(PARTED, stopped(PARTED, tmp_path / "run", 3, cases=2))
    assert [part.verdict.n_cases for part in result.parts] == [2, 2]


def test_a_resumed_run_keeps_its_settings(tmp_path):
    folder = stopped(TOY, tmp_path / "run", 4, cases=3, seed=5, params={"repeats": 2})
    result = resumed(TOY, folder)
    assert (result.verdict.n_cases, result.seed, result.params["repeats"]) == (3, 5, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 7}, "was started with seed 5, not 7; leave seed out to resume it"),
        ({"cases": 9}, "was started with cases 3, not 9; leave cases out to resume it"),
        ({"scale": "full"}, "was started with scale 'quick', not 'full'; leave scale out to resume it"),
        ({"params": {"repeats": 3}}, "was started with params {}, not {'repeats': 3}; leave params out to resume it"),
    ],
)
def test_a_resumed_run_cannot_change_its_settings(tmp_path, options, message):
    folder = stopped(TOY, tmp_path / "run", 2, cases=3, seed=5)
    with pytest.raises(InputError) as raised:
        resumed(TOY, folder, **options)
    assert str(raised.value) == f"{folder} {message}"


def test_data_that_have_changed_are_refused(tmp_path, mean_file):
    folder = stopped(TOY, tmp_path / "run", 2, data=mean_file)
    mean_file.write_text("2.0")
    with pytest.raises(InputError, match=r"mean.txt has changed since the run was started; start a new run$"):
        resumed(TOY, folder)


def test_an_example_that_has_changed_is_refused(tmp_path, mean_file):
    trial = replace(TOY, load=lambda path, scale, params: load(str(mean_file), scale, params))
    folder = stopped(trial, tmp_path / "run", 2)
    mean_file.write_text("2.0")
    with pytest.raises(InputError, match=r"mean.txt has changed since the run was started; start a new run$"):
        resumed(trial, folder)


def test_data_that_are_gone_are_explained(tmp_path, mean_file):
    folder = stopped(TOY, tmp_path / "run", 2, data=mean_file)
    mean_file.unlink()
    with pytest.raises(InputError, match=r"mean.txt: no such file or folder; the run to resume was started with it$"):
        resumed(TOY, folder)


def test_a_folder_without_a_plan_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"holds no plan.json, so there is no run to resume; start a new one$"):
        resumed(TOY, tmp_path)


def test_a_resumed_run_stays_in_its_folder(tmp_path):
    folder = stopped(TOY, tmp_path / "run", 2)
    with pytest.raises(InputError, match=r"^a resumed run stays in its folder .*/run; leave out .*/new away$"):
        run(TOY, tmp_path / "new", resume=folder)


def test_failed_cases_are_finished_cases(tmp_path):
    def fail(given, seed):
        raise ValueError("always")

    trial = with_method(fail)
    folder, steps = stopped(trial, tmp_path / "run", 4), []
    resumed(trial, folder, progress=steps.append)
    assert sum(step.kind == "started" for step in steps) == 8 * 3 - 4


def test_a_traceback_is_kept_beside_the_error(tmp_path):
    def fail(given, seed):
        raise ValueError("always")

    run(with_method(fail), tmp_path, cases=1, jobs=1)
    first = json.loads((tmp_path / "finished.jsonl").read_text().splitlines()[0])
    assert first["traceback"].endswith("ValueError: always\n")


def test_slow_arms_take_the_time_that_they_take(tmp_path):
    result = run(SLOW, tmp_path, cases=2, jobs=1)
    assert result.arms[0].wall_s == pytest.approx(0.15, abs=0.1)


def test_pictures_are_drawn_once_and_stand_in_the_report(tmp_path):
    def pictures(data, seed):
        yield f"The mean is {data:g}, the seed {seed}", "<p>a picture</p>"

    result = run(replace(TOY, pictures=pictures), seed=3, out=tmp_path / "run")
    page = (result.folder / "report.html").read_text(encoding="utf-8")
    assert page.count("<figcaption>The mean is 1, the seed 3</figcaption>") == 1
    assert 'srcdoc="&lt;p&gt;a picture&lt;/p&gt;"' in page
