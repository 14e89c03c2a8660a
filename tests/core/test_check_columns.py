"""Frames given in Python are checked like files."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from assay._core.errors import InputError
from assay._core.tables import check_columns


def message(frame, columns, **options) -> str:
    with pytest.raises(InputError) as caught:
        check_columns(frame, columns, where="votes", **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2], ["1", "2"]),
        ([12.0, 13.0], ["12", "13"]),
        ([1.5, 2.0], ["1.5", "2.0"]),
        ([True, False], ["True", "False"]),
        (["a", 3], ["a", "3"]),
        (pd.Categorical(["b", "a"]), ["b", "a"]),
        ([Decimal("1.50"), "x"], ["1.50", "x"]),
    ],
)
def test_names_of_any_plain_type_become_text(values, expected):
    frame = check_columns(pd.DataFrame({"m": values}), {"m": "text"}, where="votes")
    assert frame["m"].tolist() == expected


@pytest.mark.parametrize(
    "values",
    [
        [1, 2],
        [1.0, 2.0],
        ["1", "2"],
        [Decimal(1), Decimal(2)],
        pd.array([1, 2], dtype="Int64"),
        pd.array([1, 2], dtype="int64[pyarrow]"),
        np.array([1, 2], dtype="uint8"),
        pd.Categorical(["1", "2"]),
        pd.Categorical([1, 2]),
    ],
)
@pytest.mark.parametrize(("kind", "dtype"), [("integer", np.int64), ("number", np.float64)])
def test_whole_numbers_of_any_type_become_numbers(values, kind, dtype):
    column = check_columns(pd.DataFrame({"n": values}), {"n": kind}, where="votes")["n"]
    assert column.dtype == dtype
    assert column.tolist() == [1, 2]


def test_the_given_frame_does_not_change():
    frame = pd.DataFrame({"n": ["1"]})
    check_columns(frame, {"n": "integer"}, where="votes")
    assert frame["n"].tolist() == ["1"]


def test_the_index_of_the_frame_is_kept():
    frame = pd.DataFrame({"n": ["1", "2"], "m": ["a", "b"]}, index=[7, 9])
    checked = check_columns(frame, {"n": "integer", "m": "text"}, where="votes")
    assert checked.index.tolist() == [7, 9]
    assert checked.values.tolist() == [[1, "a"], [2, "b"]]


def test_rows_are_counted_from_one_whatever_the_index():
    frame = pd.DataFrame({"n": [1.0, np.nan]}, index=["x", "y"])
    assert message(frame, {"n": "number"}) == "votes, row 2, column 'n': the cell is empty; expected a finite number"


def test_a_name_that_is_there_twice_is_refused():
    frame = pd.DataFrame([[1, 2]], columns=["n", "n"])
    assert message(frame, {"n": "number"}) == "votes: columns 1 and 2 have the name 'n'; give each a name of its own"


def test_a_list_is_not_a_number():
    assert (
        message(pd.DataFrame({"n": [[1]]}), {"n": "number"}) == "votes, row 1, column 'n': [1] is not a finite number"
    )


def test_a_time_is_not_a_number():
    frame = pd.DataFrame({"n": [pd.Timedelta(1, "s")]})
    assert message(frame, {"n": "number"}).endswith("0 days 00:00:01 is not a finite number")


def test_a_complex_number_is_not_a_number():
    assert message(pd.DataFrame({"n": [1j]}), {"n": "number"}).endswith("1j is not a finite number")


def test_a_large_identifier_beside_a_missing_one_is_refused_rather_than_rounded():
    frame = pd.DataFrame({"n": ["9007199254740993", None]})
    assert "is not a whole number below 2^53" in message(frame, {"n": "integer"}, allow_missing=["n"])


def test_an_unsigned_integer_beyond_64_signed_bits_is_refused():
    frame = pd.DataFrame({"n": np.array([2**63], dtype="uint64")})
    assert "9223372036854775808 is not a whole number below 2^63" in message(frame, {"n": "integer"})


def test_an_empty_string_is_an_empty_cell():
    frame = pd.DataFrame({"m": ["a", ""]})
    assert message(frame, {"m": "text"}) == "votes, row 2, column 'm': the cell is empty; expected text"


def test_a_frame_without_columns_says_so():
    assert message(pd.DataFrame(), {"m": "text"}) == "votes: no column 'm'; it has no columns"


def test_values_in_messages_are_written_as_people_write_them():
    assert (
        message(pd.DataFrame({"n": [1.5]}), {"n": "integer"}) == "votes, row 1, column 'n': 1.5 is not a whole number"
    )
