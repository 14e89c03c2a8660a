import hashlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_trial import TOY

from assay._core.errors import InputError
from assay.bench import plan
from assay.bench.worker import Row

OTHER = replace(TOY, part="other", params={"depth": 3})

PLAN = plan.Plan(
    slug="toy",
    part="",
    scale="quick",
    seed=1,
    n_cases=8,
    cases=None,
    params={"shift": 0.5},
    given={},
    data_path=None,
    data_sha256=None,
    arms=["mean", "first value", "a value"],
    metrics=["distance", "bias"],
    also=[],
    created="2026-01-01T00:00:00+00:00",
    command="assay try toy",
)


# ------------------------------------------------------------------ parameters


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("shift", "1.5", 1.5),
        ("shift", 2, 2.0),
        ("repeats", "3", 3),
        ("repeats", 3, 3),
        ("is_sorted", "true", True),
        ("is_sorted", "False", False),
        ("is_sorted", True, True),
        ("kind", "7", "7"),
        ("depth", "4", 4),
    ],
)
def test_a_parameter_has_the_type_of_its_default(name, text, value):
    found = plan.parameters({name: text}, [TOY, OTHER])[name]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("shfit", 1, "toy has no parameter 'shfit'; it has depth, is_sorted, kind, repeats, shift"),
        ("shift", "far", "parameter shift: 'far' is not a number; its default is 0.0"),
        ("shift", "nan", "parameter shift: 'nan' is not a number; its default is 0.0"),
        ("repeats", "2.5", "parameter repeats: '2.5' is not a whole number; its default is 1"),
        ("repeats", True, "parameter repeats: True is not a whole number; its default is 1"),
        ("is_sorted", "yes", "parameter is_sorted: 'yes' is neither true nor false"),
    ],
)
def test_a_wrong_parameter_is_explained(name, value, message):
    with pytest.raises(InputError) as raised:
        plan.parameters({name: value}, [TOY, OTHER])
    assert str(raised.value) == message


def test_a_trial_without_parameters_says_so():
    with pytest.raises(InputError, match=r"^toy has no parameter 'shift'; it has none$"):
        plan.parameters({"shift": 1}, [replace(TOY, params={})])


# ------------------------------------------------------------------ fingerprints


def test_the_fingerprint_of_a_file_is_its_sha256(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"a,b\n")
    assert plan.fingerprint(tmp_path / "a.csv") == hashlib.sha256(b"a,b\n").hexdigest()


def test_the_fingerprint_of_a_folder_is_of_names_and_contents(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/b").write_bytes(b"2")
    (tmp_path / "a").write_bytes(b"1")
    lines = f"a\0{hashlib.sha256(b'1').hexdigest()}\nin/b\0{hashlib.sha256(b'2').hexdigest()}\n"
    assert plan.fingerprint(tmp_path) == hashlib.sha256(lines.encode()).hexdigest()


# ------------------------------------------------------------------ plan.json


def test_a_plan_comes_back_as_it_was_saved(tmp_path):
    PLAN.save(tmp_path)
    assert plan.Plan.load(tmp_path) == PLAN


def test_a_folder_without_a_plan_cannot_be_resumed(tmp_path):
    with pytest.raises(InputError, match=r"holds no plan.json, so there is no run to resume; start a new one$"):
        plan.Plan.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "plan.json cannot be read"),
        ("[]", "plan.json cannot be read"),
        ('{"schema": 99}', "plan.json has schema 99, expected 1; start a new run"),
        ('{"schema": 1, "slug": "toy"}', "plan.json is not a plan as we write it"),
    ],
)
def test_a_damaged_plan_is_explained(tmp_path, text, message):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(InputError, match=message):
        plan.Plan.load(tmp_path)


def test_a_run_of_another_method_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"is a run of 'toy', not of 'bridge'; resume it under that name$"):
        PLAN.check(replace(TOY, slug="bridge"), tmp_path)


def test_a_run_of_the_trial_before_it_changed_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"the arms or metrics of 'toy' have changed since; start a new run$"):
        PLAN.check(replace(TOY, metrics=TOY.metrics[:1]), tmp_path)


# ------------------------------------------------------------------ finished.jsonl

numbers = st.floats(allow_infinity=False)


@given(value=numbers, cost=numbers, case=st.text(), error=st.none() | st.text())
def test_a_row_comes_back_as_it_was_appended(tmp_path_factory, value, cost, case, error):
    folder = tmp_path_factory.mktemp("run")
    row = Row(case, "mean", {"distance": value}, cost, cost, cost, error, error)
    with (folder / "finished.jsonl").open("w", encoding="utf-8", newline="") as log:
        plan.append(log, row)
    assert [repr(found) for found in plan.finished(folder)] == [repr(row)]  # NaN is not equal to itself


def write_rows(folder, rest):
    rows = [Row(f"case {number}", "mean", {"distance": 1.0}, 1.0, 1.0, 1.0) for number in range(3)]
    file = folder / "finished.jsonl"
    with file.open("w", encoding="utf-8", newline="") as log:
        for row in rows:
            plan.append(log, row)
        log.write(rest)
    return file, rows


@pytest.mark.parametrize("rest", ['{"case": "case 3", "ar', '{"case": "case 3"}', "\x00\x00"])
def test_a_last_line_that_was_cut_off_does_not_count(tmp_path, rest):
    _, rows = write_rows(tmp_path, rest)
    assert plan.finished(tmp_path) == rows


def test_a_line_that_was_cut_off_is_removed_so_that_the_next_row_starts_a_line(tmp_path):
    file, _ = write_rows(tmp_path, '{"case": "ca')
    plan.finished(tmp_path)
    assert [json.loads(line)["case"] for line in file.read_text().splitlines()] == ["case 0", "case 1", "case 2"]


def test_a_damaged_line_in_the_middle_is_explained(tmp_path):
    file, _ = write_rows(tmp_path, "")
    file.write_text("garbage\n" + file.read_text())
    with pytest.raises(InputError, match=r"finished.jsonl, line 1 is damaged; start a new run$"):
        plan.finished(tmp_path)


def test_a_run_that_has_just_begun_has_no_finished_rows(tmp_path):
    assert plan.finished(tmp_path) == []
