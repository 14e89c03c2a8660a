"""Check that a table has the columns it must have, and that they hold what they should."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import pandas as pd

Kind = Literal["text", "number", "integer"]

#: Whole numbers below this are exact in float64, and none above is rounded to one of them.
_EXACT = 2**53

_NUMBERS = (int, float, Decimal, np.number, np.bool_)

#: What pandas calls a column of objects in which no cell needs a look of its own.
_PLAIN = ("string", "integer", "floating", "mixed-integer-float", "boolean", "decimal")


def check_columns(
    frame: pd.DataFrame,
    columns: Mapping[str, Kind],
    *,
    where: str,
    allow_missing: Collection[str] = (),
) -> pd.DataFrame:
    """Check that `columns` exist in `frame` and have their types; return the frame with them converted.

    Parameters
    ----------
    frame : pandas.DataFrame
        Is not changed.
    columns : mapping of column name to "text", "number" or "integer"
        What must be there, as in :func:`read_table`.
    where : str
        Names the table in error messages: a path, or ``"votes"`` for a frame given in Python.
    allow_missing : collection of str
        Columns of `columns` in which empty cells are allowed.

    Raises
    ------
    InputError
        A column is absent or there twice, there are no rows, or a cell is empty or of another type.

    Examples
    --------
    >>> import pandas as pd
    >>> check_columns(pd.DataFrame({"n": ["1", "2"]}), {"n": "integer"}, where="counts")["n"].tolist()
    [1, 2]
    """
    refuse_repeated_names(frame, where)
    absent = [name for name in columns if name not in frame.columns]
    if absent:
        has = ", ".join(repr(str(name)) for name in list(frame.columns)[:30]) or "no columns"
        raise InputError(f"{where}: no column {absent[0]!r}; it has {has}")
    if columns and len(frame) == 0:
        raise InputError(f"{where} has a header but no rows")
    frame = frame.copy(deep=False)
    for name, kind in columns.items():
        frame[name] = _converted(frame[name], kind, where, name, name in allow_missing)
    return frame


def refuse_repeated_names(frame: pd.DataFrame, where: str) -> None:
    """Raise an InputError where two columns have the same name."""
    repeated = frame.columns[frame.columns.duplicated()]
    if len(repeated):
        places = np.flatnonzero(frame.columns == repeated[0])[:2] + 1
        name = f"the name {str(repeated[0])!r}" if str(repeated[0]) else "no name"
        raise InputError(f"{where}: columns {places[0]} and {places[1]} have {name}; give each a name of its own")


def _converted(column: pd.Series[Any], kind: Kind, where: str, name: str, allow_missing: bool) -> pd.Series[Any]:
    missing = (column.isna() | (column == "")).to_numpy(dtype=bool, na_value=False)
    if missing.any() and not allow_missing:
        place = _place(where, name, missing)
        raise InputError(f"{place}: the cell is empty; expected {_expected(kind)}")
    if kind == "text":
        return _text(column, missing, where, name)
    return _numbers(column, kind, missing, where, name)


def _text(column: pd.Series[Any], missing: np.ndarray[Any, Any], where: str, name: str) -> pd.Series[Any]:
    import pandas as pd

    if pd.api.types.is_float_dtype(column.dtype) and bool((column[~missing] % 1 == 0).all()):
        column = column.astype(object)  # identifiers that became 12.0 because one of them is missing
    if column.dtype == object or isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(object)
        _refuse(column, ~missing & ~_is_plain(column), where, name, "text")
        column = column.where(~missing, "")
        if pd.api.types.infer_dtype(column) != "string":
            column = column.map(_as_text)
    try:
        return column.astype("str").where(~missing, None)
    except UnicodeEncodeError:
        wrong = np.fromiter((_has_lone_surrogate(str(value)) for value in column), bool, len(column))
        raise InputError(f"{_place(where, name, wrong)}: the text holds half a character (a lone surrogate)") from None


def _is_plain(column: pd.Series[Any]) -> np.ndarray[Any, Any]:
    """Which cells are text or numbers, not dates, lists, objects or bytes."""
    import pandas as pd

    if pd.api.types.infer_dtype(column, skipna=True) in _PLAIN:
        return np.ones(len(column), dtype=bool)
    return np.fromiter((isinstance(value, (str, *_NUMBERS)) for value in column), bool, len(column))


def _as_text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return str(int(value))
    return str(value)


def _has_lone_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _numbers(
    column: pd.Series[Any], kind: Kind, missing: np.ndarray[Any, Any], where: str, name: str
) -> pd.Series[Any]:
    import pandas as pd

    if column.dtype == object:  # a date, a list or bytes is no number, though to_numeric would make one of it
        _refuse(column, ~missing & ~_is_plain(column), where, name, kind)
    elif column.dtype.kind in "mMc":
        _refuse(column, ~missing, where, name, kind)
    found = pd.to_numeric(column.where(~missing, None), errors="coerce")
    values = found.to_numpy(dtype="float64", na_value=np.nan)
    _refuse(column, ~missing & ~np.isfinite(values), where, name, kind)
    if kind == "number":
        return pd.Series(values, index=column.index, name=column.name)
    _refuse(column, ~missing & (values != np.round(values)), where, name, kind)
    if missing.any() or found.dtype.kind not in "iub":
        _refuse(column, np.abs(values) >= _EXACT, where, name, "exact")
        return pd.Series(values if missing.any() else values.astype("int64"), index=column.index, name=column.name)
    if found.dtype.kind == "u":
        _refuse(column, found.to_numpy() > np.iinfo("int64").max, where, name, "int64")
    return found.astype("int64")


def _refuse(column: pd.Series[Any], wrong: np.ndarray[Any, Any], where: str, name: str, expected: str) -> None:
    if wrong.any():
        value = _short(column.iloc[int(wrong.argmax())])
        raise InputError(f"{_place(where, name, wrong)}: {value} is not {_expected(expected)}")


def _expected(kind: str) -> str:
    return {
        "text": "text",
        "number": "a finite number",
        "integer": "a whole number",
        "int64": "a whole number below 2^63; read longer identifiers as text",
        "exact": "a whole number below 2^53, as it must be in a column with empty cells or decimal points",
    }[kind]


def _short(value: Any) -> str:
    value = value.item() if isinstance(value, np.generic) else value
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _place(where: str, name: str, wrong: np.ndarray[Any, Any]) -> str:
    return f"{where}, row {int(wrong.argmax()) + 1}, column {name!r}"
