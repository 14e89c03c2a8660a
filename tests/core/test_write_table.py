"""What is written reads back the same, and runs nothing in a spreadsheet."""

import csv
import gzip
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from assay._core.errors import InputError
from assay._core.tables import read_table, write_table
from assay._core.tables.formats import guarded, unguarded

TEXT_FORMATS = [".csv", ".tsv", ".csv.gz", ".jsonl", ".jsonl.gz", ".json"]
ALL_FORMATS = [*TEXT_FORMATS, ".parquet"]

# Any text that has UTF-8 bytes; formulas, apostrophes, separators and line ends often.
texts = st.text(
    st.one_of(st.sampled_from("=+-@'\"\t\r\n,;|＝ 1"), st.characters(exclude_categories=["Cs"])),
    min_size=1,
    max_size=12,
)
numbers = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


@pytest.mark.parametrize("suffix", ALL_FORMATS)
@given(rows=st.lists(st.tuples(texts, numbers, integers), min_size=1, max_size=8))
@example(rows=[("=1+1", -0.0, 0), ("'=1+1", 5e-324, -1), ("''", 1.7976931348623157e308, 1), ("\r", 0.1 + 0.2, 2)])
def test_every_table_reads_back_as_it_was(folder, suffix, rows):
    frame = pd.DataFrame(rows, columns=["m", "x", "n"])
    write_table(frame, folder / f"a{suffix}")
    again = read_table(folder / f"a{suffix}", {"m": "text", "x": "number", "n": "integer"})
    assert list(again.itertuples(index=False, name=None)) == rows


@pytest.mark.parametrize("suffix", ALL_FORMATS)
@given(names=st.lists(texts, min_size=1, max_size=5, unique=True))
@example(names=["=cmd()", "'=cmd()", "\ufeffm", 'a"b', "\r\n"])
def test_every_column_name_reads_back_as_it_was(folder, suffix, names):
    write_table(pd.DataFrame([["x"] * len(names)], columns=names), folder / f"a{suffix}")
    assert list(read_table(folder / f"a{suffix}").columns) == names


@pytest.mark.parametrize("suffix", ALL_FORMATS)
def test_missing_cells_read_back_as_missing(folder, suffix):
    frame = pd.DataFrame({"m": ["a", None], "x": [np.nan, 1.5]})
    write_table(frame, folder / f"a{suffix}")
    again = read_table(folder / f"a{suffix}", {"m": "text", "x": "number"}, allow_missing=["m", "x"])
    pd.testing.assert_frame_equal(again, frame.astype({"m": "str"}))


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_a_single_column_keeps_its_missing_cells(folder, suffix):
    write_table(pd.DataFrame({"m": ["a", None, "b"]}), folder / f"a{suffix}")
    assert read_table(folder / f"a{suffix}")["m"].isna().tolist() == [False, True, False]


@given(text=texts)
def test_taking_the_guard_off_gives_the_text_back(text):
    assert unguarded(guarded(text)) == text


@given(text=texts)
def test_a_guarded_cell_starts_no_formula(text):
    safe = guarded(text)
    assert not safe.startswith(("=", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"))
    if safe.startswith(("+", "-")):
        float(safe)  # a number with a sign is no formula


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize("dtype", ["str", "object", "category"])
def test_no_cell_or_name_of_a_written_table_is_a_formula(folder, suffix, dtype):
    names = ["=cmd()", "+1-2", "-x", "@SUM(1)", "\t=1", "\r=1", "＝1", '=HYPERLINK("a","b")']
    frame = pd.DataFrame({name: pd.Series(names, dtype=dtype) for name in names})
    write_table(frame, folder / f"a{suffix}")
    with (folder / f"a{suffix}").open(newline="", encoding="utf-8") as stream:
        cells = [cell for row in csv.reader(stream, delimiter="," if suffix == ".csv" else "\t") for cell in row]
    assert cells == ["'" + name for name in names] + ["'" + name for name in names for _ in names]


@pytest.mark.parametrize("number", ["-1", "+1.5", "-1e-7", "-.5"])
def test_a_signed_number_kept_as_text_gets_no_apostrophe(folder, number):
    write_table(pd.DataFrame({"m": [number]}), folder / "a.csv")
    assert (folder / "a.csv").read_text() == f"m\n{number}\n"


def test_csv_is_written_plainly(folder):
    write_table(pd.DataFrame({"m": ["a,b", 'c"d', "e"], "x": [0.1, 1.0, 2e-10]}, index=[5, 6, 7]), folder / "a.csv")
    assert (folder / "a.csv").read_bytes() == b'm,x\n"a,b",0.1\n"c""d",1.0\ne,2e-10\n'


def test_json_lines_are_written_plainly(folder):
    frame = pd.DataFrame({"m": ["é/\n", None], "x": [0.30000000000000004, np.nan], "n": [1, 2], "ok": [True, False]})
    write_table(frame, folder / "a.jsonl")
    lines = (folder / "a.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines[0] == '{"m": "é/\\n", "x": 0.30000000000000004, "n": 1, "ok": true}'
    assert lines[1] == '{"m": null, "x": null, "n": 2, "ok": false}'


def test_json_is_a_list_of_objects(folder):
    write_table(pd.DataFrame({"m": ["a", "b"]}), folder / "a.json")
    assert json.loads((folder / "a.json").read_text()) == [{"m": "a"}, {"m": "b"}]


def test_json_spells_dates_and_arrays(folder):
    frame = pd.DataFrame({"when": pd.to_datetime(["2026-01-02"]), "v": [np.array([1, 2])], "i": [np.int64(3)]})
    write_table(frame, folder / "a.jsonl")
    assert json.loads((folder / "a.jsonl").read_text()) == {"when": "2026-01-02T00:00:00", "v": [1, 2], "i": 3}


def test_json_cannot_hold_infinity(folder):
    path = folder / "b.jsonl"
    with pytest.raises(InputError) as caught:
        write_table(pd.DataFrame({"x": [1.0, np.inf]}), path)
    assert str(caught.value) == f"{path}, row 2, column 'x': JSON cannot hold inf; write CSV or Parquet"
    assert not path.exists()


@pytest.mark.parametrize("suffix", ALL_FORMATS)
def test_the_same_table_gives_the_same_bytes(tmp_path, suffix):
    frame = pd.DataFrame({"m": ["a", "b"], "x": [0.1, 2.0]})
    write_table(frame, tmp_path / f"a{suffix}")
    write_table(frame, tmp_path / f"b{suffix}")
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_half_a_character_is_not_written(tmp_path, suffix):
    frame = pd.DataFrame({"m": pd.Series(["\ud800"], dtype=object)})
    with pytest.raises(InputError, match="a text of the table holds half a character"):
        write_table(frame, tmp_path / f"a{suffix}")
    assert list(tmp_path.iterdir()) == []


def test_gz_is_gzip(folder):
    write_table(pd.DataFrame({"m": ["a"]}), folder / "a.csv.gz")
    assert gzip.decompress((folder / "a.csv.gz").read_bytes()) == b"m\na\n"


@pytest.mark.parametrize("suffix", ALL_FORMATS)
def test_two_columns_of_one_name_are_not_written(tmp_path, suffix):
    with pytest.raises(InputError, match="columns 1 and 2 have the name 'm'"):
        write_table(pd.DataFrame([[1, 2]], columns=["m", "m"]), tmp_path / f"a{suffix}")
    assert list(tmp_path.iterdir()) == []


def test_the_frame_that_is_written_does_not_change(folder):
    frame = pd.DataFrame({"=m": ["=1"]})
    write_table(frame, folder / "a.csv")
    assert frame.to_dict("list") == {"=m": ["=1"]}


def test_an_unknown_suffix_is_refused(tmp_path):
    with pytest.raises(InputError, match="the name does not tell the format"):
        write_table(pd.DataFrame({"m": ["a"]}), tmp_path / "a.xlsx")
