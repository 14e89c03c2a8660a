"""What reading a table promises, on files as people and other programs leave them."""

import csv
import gzip
import io
import json
import random
import time

import numpy as np
import pandas as pd
import pytest

from assay._core.errors import InputError
from assay._core.tables import read, read_table


@pytest.fixture
def file(tmp_path):
    """Write bytes or text to a file of a given name and return its path."""

    def make(name: str, content: bytes | str):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


def message(path, columns=None, **options) -> str:
    with pytest.raises(InputError) as caught:
        read_table(path, columns, **options)
    text = str(caught.value)
    assert text.startswith(str(path)), text
    assert "\n" not in text
    return text.removeprefix(str(path))


# ------------------------------------------------------------------------------------------------- what is accepted


def test_csv_columns_get_the_types_that_were_asked_for(file):
    frame = read_table(file("a.csv", "m,x,n\na,1.5,2\nb,-2e3,3.0\n"), {"m": "text", "x": "number", "n": "integer"})
    assert frame.to_dict("list") == {"m": ["a", "b"], "x": [1.5, -2000.0], "n": [2, 3]}
    assert (frame["x"].dtype, frame["n"].dtype) == (np.float64, np.int64)


def test_columns_nobody_asked_for_stay_text(file):
    assert read_table(file("a.csv", "m,x\na,01\n"), {"m": "text"})["x"].tolist() == ["01"]


@pytest.mark.parametrize("word", ["NA", "null", "None", "nan", "NaN", "N/A", "true", "-"])
def test_words_that_other_readers_take_for_missing_are_names(file, word):
    assert read_table(file("a.csv", f"m,x\n{word},1\n"), {"m": "text"})["m"].tolist() == [word]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_all_line_ends_are_line_ends(file, newline):
    assert read_table(file("a.csv", newline.join(["m,n", "a,1", "b,2", ""]))).values.tolist() == [
        ["a", "1"],
        ["b", "2"],
    ]


def test_a_last_line_without_line_end_counts(file):
    assert len(read_table(file("a.csv", "m,n\na,1\nb,2"))) == 2


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json"])
def test_a_byte_order_mark_is_not_part_of_the_first_name(file, name):
    text = {"a.csv": "m,n\na,1\n", "a.tsv": "m\tn\na\t1\n", "a.jsonl": '{"m": "a"}\n', "a.json": '[{"m": "a"}]'}[name]
    assert read_table(file(name, b"\xef\xbb\xbf" + text.encode()), {"m": "text"})["m"].tolist() == ["a"]


def test_newlines_separators_and_quotes_may_stand_inside_quotes(file):
    text = 'm,n\r\n"a\nb","c\r\nd"\r\n"e,f","say ""hi"""\r\n'
    assert read_table(file("a.csv", text)).values.tolist() == [["a\nb", "c\r\nd"], ["e,f", 'say "hi"']]


def test_names_and_cells_in_any_script_are_read(file):
    frame = read_table(file("a.csv", "模型,ранг\nمثال,😀\n"), {"模型": "text", "ранг": "text"})
    assert frame.to_dict("records") == [{"模型": "مثال", "ранг": "😀"}]


def test_blank_lines_are_skipped(file):
    assert read_table(file("a.csv", "\n\nm,n\n\na,1\n\n"))["m"].tolist() == ["a"]


def test_a_file_with_only_a_header_is_an_empty_table_where_no_column_is_asked_for(file):
    assert list(read_table(file("a.csv", "m,n")).columns) == ["m", "n"]


@pytest.mark.parametrize("name", ["a.csv.gz", "A.CSV.GZ", "a.b.csv.gz"])
def test_gzip_is_told_by_the_name(file, name):
    assert read_table(file(name, gzip.compress(b"m\na\n")))["m"].tolist() == ["a"]


def test_tsv_keeps_commas(file):
    assert read_table(file("a.tsv", "m\tn\na,b\t1\n"))["m"].tolist() == ["a,b"]


def test_jsonl_skips_blank_lines_and_fills_absent_keys(file):
    frame = read_table(
        file("a.jsonl", '{"m": "a", "n": 1}\n\n{"m": "b"}\n'), {"m": "text", "n": "number"}, allow_missing=["n"]
    )
    assert frame["m"].tolist() == ["a", "b"]
    assert frame["n"].tolist() == pytest.approx([1.0, np.nan], nan_ok=True)


def test_line_separators_of_unicode_do_not_end_a_line_of_jsonl(file):
    assert read_table(file("a.jsonl", '{"m": "a\u2028b"}\n'))["m"].tolist() == ["a\u2028b"]


def test_a_json_identifier_stays_whole_where_another_is_missing(file):
    frame = read_table(file("a.jsonl", '{"q": 12}\n{"q": null}\n{}\n'), {"q": "text"}, allow_missing=["q"])
    assert frame["q"].iloc[0] == "12"
    assert frame["q"].isna().tolist() == [False, True, True]


@pytest.mark.parametrize("text", ["9007199254740993", "9223372036854775807", "-9223372036854775808"])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_an_integer_of_64_bits_is_exact(file, name, text):
    content = f"n\n{text}\n" if name == "a.csv" else f'{{"n": {text}}}\n'
    assert read_table(file(name, content), {"n": "integer"})["n"].tolist() == [int(text)]


def test_missing_cells_that_are_allowed_are_nan_in_an_integer_column(file):
    column = read_table(file("a.csv", "m,n\na,\nb,2\n"), {"n": "integer"}, allow_missing=["n"])["n"]
    assert column.dtype == np.float64
    assert column.tolist() == pytest.approx([np.nan, 2.0], nan_ok=True)


def test_parquet_index_that_has_a_name_is_a_column(tmp_path):
    pd.DataFrame({"m": ["a"], "n": [1]}).set_index("m").to_parquet(tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.parquet", {"m": "text"})["m"].tolist() == ["a"]


def test_parquet_index_without_a_name_is_left_out(tmp_path):
    pd.DataFrame({"m": ["a", "b"]}, index=[7, 3]).to_parquet(tmp_path / "a.parquet")
    frame = read_table(tmp_path / "a.parquet")
    assert list(frame.columns) == ["m"]
    assert isinstance(frame.index, pd.RangeIndex)


def test_parquet_identifiers_stay_whole_where_one_is_missing(tmp_path):
    pd.DataFrame({"q": pd.array([12, None], dtype="Int64")}).to_parquet(tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.parquet", {"q": "text"}, allow_missing=["q"])["q"].iloc[0] == "12"


def test_a_million_rows_cost_a_few_seconds_of_one_core(tmp_path):
    rng = np.random.default_rng(0)
    names = np.array([f"model-{i}" for i in range(100)])
    frame = pd.DataFrame({"a": names[rng.integers(0, 100, 10**6)], "b": names[rng.integers(0, 100, 10**6)]})
    frame["x"] = rng.random(10**6).round(3)
    frame.to_csv(tmp_path / "a.csv", index=False)
    start = time.process_time()
    read_table(tmp_path / "a.csv", {"a": "text", "b": "text", "x": "number"})
    assert time.process_time() - start < 5  # seconds of one core; 0.5 to 1 when this was written


# --------------------------------------------------------------------------------------------------- what is refused


def test_a_missing_file_is_named(tmp_path):
    assert message(tmp_path / "a.csv") == ": no such file"


def test_a_folder_is_no_table(tmp_path):
    (tmp_path / "a.csv").mkdir()
    assert message(tmp_path / "a.csv") == " is a folder; give the name of a file"


def test_a_name_that_no_file_system_holds_is_an_input_error(tmp_path):
    assert "cannot be read: File name too long" in message(tmp_path / f"{'a' * 300}.csv")


@pytest.mark.parametrize("name", ["a.xlsx", "a", "a.gz", ".csv", "csv"])
def test_an_unknown_suffix_lists_the_known_ones(file, name):
    assert "expected one of .csv, .tsv, .jsonl, .ndjson, .json, .parquet" in message(file(name, "m\n1\n"))


def test_gzipped_parquet_is_told_that_parquet_is_compressed_inside(file):
    assert message(file("a.parquet.gz", "x")) == ": Parquet is compressed inside; give it without .gz"


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.parquet", "a.csv.gz"])
def test_an_empty_file_is_empty(file, name):
    assert message(file(name, b"")) == " is empty"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"\n"),
        ("a.csv", b"\r\n\r\n"),
        ("a.csv", b"\xef\xbb\xbf"),
        ("a.csv.gz", gzip.compress(b"", mtime=0)),
        ("a.jsonl", b"\n\n"),
        ("a.json", b"[]"),
    ],
)
def test_a_file_with_nothing_in_it_is_empty(file, name, content):
    assert message(file(name, content)) == " is empty"


@pytest.mark.parametrize("text", ["m,n", "m,n\n", "m,n\n\n\n"])
def test_a_header_without_rows_is_told_so(file, text):
    assert message(file("a.csv", text), {"m": "text"}) == " has a header but no rows"


def test_an_absent_column_is_named_beside_those_there_are(file):
    assert message(file("a.csv", "m,n\na,1\n"), {"winner": "text"}) == ": no column 'winner'; it has 'm', 'n'"


def test_two_columns_of_one_name_are_refused(file):
    expected = ": columns 1 and 3 have the name 'm'; give each a name of its own"
    assert message(file("a.csv", "m,n,m\na,1,b\n")) == expected


def test_two_columns_without_a_name_are_refused(file):
    assert message(file("a.csv", "m,,\na,1,b\n")) == ": columns 2 and 3 have no name; give each a name of its own"


@pytest.mark.parametrize(("row", "cells"), [("b", "1 cell"), ("b,2,3", "3 cells")])
def test_a_row_of_another_length_is_named(file, row, cells):
    text = message(file("a.csv", f"m,n\na,1\n{row}\nc,3\n"))
    assert text == f", row 2 has {cells}, the header has 2; put quotes around a cell that holds the separator"


@pytest.mark.parametrize("ending", ['"b', '"b\n', '"b\n3\n', '"', '"\n', '"b""\n', '"b\nc,"4\n'])
def test_a_quote_that_is_not_closed_does_not_swallow_rows_silently(file, ending):
    assert message(file("a.csv", "m,n\na,1\nb," + ending)) == ": a quote in the last row, 2, is not closed"


@pytest.mark.parametrize("ending", ['"b\n"', '"b"\r\n\r\n', '"say ""b"""', 'b"c', "b", "", '""', "=b", '"b,c"'])
def test_a_last_cell_that_is_whole_is_read(file, ending):
    expected = next(csv.reader(io.StringIO(ending, newline="")), [""])[0]
    cell = read_table(file("a.csv", "m,n\na,1\nb," + ending))["n"].fillna("").iloc[1]
    assert cell == expected


def test_a_row_longer_than_the_limit_is_refused(file, monkeypatch):
    monkeypatch.setattr(read, "MAX_ROW_BYTES", 1 << 20)
    path = file("a.csv", 'm,n\na,"' + "x\n" * (1 << 20) + '"\n')
    assert message(path) == " has a row longer than 1 MiB; is there a quote that is not closed?"


@pytest.mark.parametrize(
    ("kind", "cell", "expected"),
    [
        ("number", "abc", "'abc' is not a finite number"),
        ("number", "inf", "'inf' is not a finite number"),
        ("number", "1_000", "'1_000' is not a finite number"),
        ("number", '"1,5"', "'1,5' is not a finite number"),
        ("number", "٣", "'٣' is not a finite number"),
        ("integer", "1.5", "'1.5' is not a whole number"),
        ("integer", "two", "'two' is not a whole number"),
        ("integer", "9223372036854775808", "'9223372036854775808' is not a whole number below 2^63; read longer"),
        ("integer", "1e300", "'1e300' is not a whole number below 2^53"),
        ("text", '""', "the cell is empty; expected text"),
        ("number", '""', "the cell is empty; expected a finite number"),
    ],
)
def test_a_wrong_cell_is_named_by_row_and_column(file, kind, cell, expected):
    text = message(file("a.csv", f"m,the n\na,1\nb,{cell}\nc,3\n"), {"the n": kind})
    assert text.startswith(f", row 2, column 'the n': {expected}")


def test_a_column_whose_name_holds_a_comma_is_named_whole(file):
    text = message(file("a.csv", '"a, column b"\nx\n'), {"a, column b": "number"})
    assert text == ", row 1, column 'a, column b': 'x' is not a finite number"


def test_a_long_wrong_cell_is_cut_short(file):
    assert len(message(file("a.csv", f"n\n{'x' * 10_000}\n"), {"n": "number"})) < 150


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("text", ["a"], "['a'] is not text"),
        ("text", {"a": 1}, "{'a': 1} is not text"),
        ("number", ["1"], "['1'] is not a finite number"),
        ("number", {}, "{} is not a finite number"),
        ("integer", 10**30, "1000000000000000000000000000000 is not a whole number below 2^53"),
        ("number", float("inf"), "inf is not a finite number"),
    ],
)
def test_a_wrong_value_in_json_is_named_by_row_and_column(file, kind, value, expected):
    path = file("a.jsonl", '{"n": 1}\n' + json.dumps({"n": value}) + "\n")
    assert message(path, {"n": kind}).startswith(f", row 2, column 'n': {expected}")


def test_a_date_is_not_a_number(tmp_path):
    pd.DataFrame({"n": pd.to_datetime(["2026-01-01"])}).to_parquet(tmp_path / "a.parquet")
    assert "2026-01-01 00:00:00 is not a finite number" in message(tmp_path / "a.parquet", {"n": "number"})


def test_bytes_are_not_text(tmp_path):
    pd.DataFrame({"m": [b"abc"]}).to_parquet(tmp_path / "a.parquet")
    assert "b'abc' is not text" in message(tmp_path / "a.parquet", {"m": "text"})


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.csv.gz"])
def test_text_in_another_encoding_is_named_by_line_and_byte(file, name):
    content = 'm\na\n"é"\n'.encode("latin-1")
    path = file(name, gzip.compress(content) if name.endswith(".gz") else content)
    if "json" in name:
        path.write_bytes(b'{"m":\n 1,\n"\xe9": 2}' if name == "a.json" else b'{"m": 1}\n{"m": 1}\n{"m": "\xe9"}\n')
    assert message(path) == ", line 3 is not UTF-8 text (byte 0xe9); save it as UTF-8"


def test_utf16_is_refused_at_its_first_byte(file):
    assert ", line 1 is not UTF-8 text (byte 0xff)" in message(file("a.csv", "m,n\na,1\n".encode("utf-16")))


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.parquet", "a.csv.gz", "a.jsonl.gz"])
def test_ten_megabytes_of_noise_are_one_sentence(file, name):
    path = file(name, random.Random(0).randbytes(10 * 2**20))
    start = time.process_time()
    assert len(message(path)) < 250
    assert time.process_time() - start < 5


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.json"])
def test_ten_megabytes_of_one_line_are_one_sentence(file, name):
    assert len(message(file(name, b"x" * (10 * 2**20)))) < 250


def test_a_file_of_zero_bytes_only_is_one_sentence(file):
    assert "has a name longer than" in message(file("a.csv", bytes(2**20)))


@pytest.mark.parametrize("keep", [5, 15, 60, -1])
@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz"])
def test_a_gzip_file_that_was_cut_off_is_refused(file, name, keep):
    lines = "m\n" * 1000 if "csv" in name else '{"m": "a"}\n' * 1000
    noise = "".join(random.Random(0).choices("abcdef", k=1000))
    path = file(name, gzip.compress((lines + noise).encode(), mtime=0)[:keep])
    assert message(path) == " is not a whole gzip file"


def test_a_gzip_file_whose_content_was_changed_is_refused(file):
    packed = bytearray(gzip.compress(b"m,n\n" + b"a,1\n" * 1000))
    packed[-6] ^= 1  # of the checksum
    assert message(file("a.csv.gz", bytes(packed))) == " is not a whole gzip file"


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz", "a.json.gz", "a.csv", "a.parquet"])
def test_a_table_that_unpacks_to_more_than_the_limit_is_refused(file, monkeypatch, name):
    monkeypatch.setattr(read, "MAX_BYTES", 2**22)
    content = b"m\n" + b"a\n" * 2**22
    path = file(name, gzip.compress(content) if name.endswith(".gz") else content)
    if "json" in name:
        path.write_bytes(gzip.compress(b'{"m": 1}\n' * 2**20))
    if name == "a.parquet":
        pd.DataFrame({"m": ["the same long text over and over"] * 2**18}).to_parquet(path)
        assert path.stat().st_size < 2**16
    assert message(path) == " unpacks to more than 0.00391 GiB; split it"


def test_a_line_that_is_not_json_is_named(file):
    text = message(file("a.jsonl", '{"m": 1}\n\n{"m": }\n'))
    assert text == ", line 3 is not JSON: Expecting value at column 7"


def test_a_line_that_is_not_an_object_is_named(file):
    assert message(file("a.jsonl", '{"m": 1}\n[1]\n')) == ", line 2: expected a JSON object, found list"


def test_json_that_is_not_a_list_is_refused(file):
    assert message(file("a.json", '{"m": 1}')) == ": expected a JSON list of objects, found dict"


def test_an_item_of_a_json_list_that_is_not_an_object_is_named(file):
    assert message(file("a.json", '[{"m": 1}, 2]')) == ", row 2: expected a JSON object, found int"


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_json_nested_without_end_is_refused(file, name):
    assert message(file(name, "[" * 200_000)) == " is not a readable JSON file: it is nested too deeply"


@pytest.mark.parametrize("columns", [None, {"m": "text"}])
def test_half_a_character_in_json_is_refused_where_text_is_asked_for(file, columns):
    path = file("a.jsonl", '{"m": "a"}\n{"m": "\\ud800"}\n')
    if columns is None:
        assert len(read_table(path)) == 2
        return
    assert message(path, columns) == ", row 2, column 'm': the text holds half a character (a lone surrogate)"


def test_a_file_that_may_not_be_read_is_told_so(file, monkeypatch):
    path = file("a.csv", "m\na\n")

    def refuse(self, *arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)
    assert message(path) == " cannot be read: permission denied"


def test_a_parquet_file_that_is_none_is_refused(file):
    assert message(file("a.parquet", b"m,n\na,1\n" * 10)).startswith(" is not a readable Parquet file: ")
