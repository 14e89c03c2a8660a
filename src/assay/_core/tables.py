"""Read and write tables people really have: CSV, TSV, JSON Lines, JSON and Parquet, gzipped or not.

Everything is checked at the door. An error names the file, the row (counted from 1, the header not counted)
and the column.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, cast

from assay._core.errors import InputError
from assay._core.files import replacing

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["text", "number", "integer"]

#: A table larger than this (unpacked) is refused before it fills the memory.
MAX_BYTES = 8 * 2**30

#: Spreadsheet programs run a cell that starts with one of these; we write it behind an apostrophe.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")

FORMATS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")


def read_table(
    path: str | os.PathLike[str],
    columns: Mapping[str, Kind] | None = None,
    *,
    allow_missing: Collection[str] = (),
) -> pd.DataFrame:
    """Read a table and check the columns that are asked for.

    Parameters
    ----------
    path : path
        A ``.csv``, ``.tsv``, ``.jsonl``/``.ndjson`` (one object a line), ``.json`` (a list of objects) or
        ``.parquet`` file; the text formats also as ``.gz``.
    columns : mapping of column name to "text", "number" or "integer", optional
        Columns that must exist, with the type they must have. Other columns are kept as they were read
        (from CSV and TSV: text).
    allow_missing : collection of str
        Columns of `columns` in which empty cells are allowed.

    Returns
    -------
    pandas.DataFrame
        With a fresh ``RangeIndex``. "text" columns hold strings, "number" float64, "integer" int64 (float64
        with NaN where empty cells are allowed). Only an empty cell is missing: ``NA`` and ``null`` are names.

    Raises
    ------
    InputError
        The file is missing, unreadable, empty, not of its format, or a column is absent or of another type.
    """
    import pandas as pd

    source = Path(path)
    suffix = _format(source)
    if not source.is_file():
        raise InputError(f"{source}: no such file")
    if source.stat().st_size == 0:
        raise InputError(f"{source} is empty")
    if suffix == ".parquet":
        frame = _read_parquet(source)
    elif suffix in (".csv", ".tsv"):
        frame = _read_delimited(source, "," if suffix == ".csv" else "\t")
    else:
        frame = pd.DataFrame(_read_objects(source, lines=suffix != ".json"))
    frame = frame.reset_index(drop=True)
    return check_columns(frame, columns or {}, where=str(source), allow_missing=allow_missing)


def check_columns(
    frame: pd.DataFrame,
    columns: Mapping[str, Kind],
    *,
    where: str,
    allow_missing: Collection[str] = (),
) -> pd.DataFrame:
    """Check that `columns` exist in `frame` and have their types; return the frame with them converted.

    `where` names the table in error messages (a path, or ``"votes"`` for a frame given in Python).
    """
    absent = [name for name in columns if name not in frame.columns]
    if absent:
        has = ", ".join(repr(str(name)) for name in list(frame.columns)[:30]) or "no columns"
        raise InputError(f"{where}: no column {absent[0]!r}; it has {has}")
    if columns and len(frame) == 0:
        raise InputError(f"{where} has a header but no rows")
    frame = frame.copy(deep=False)
    for name, kind in columns.items():
        frame[name] = _converted(frame[name], kind, f"{where}, column {name!r}", name in allow_missing)
    return frame


def write_table(frame: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write `frame` (without its index) as CSV, TSV, JSON Lines or Parquet by the suffix of `path`.

    The file appears whole or not at all. In CSV and TSV a text cell that a spreadsheet would run as a formula is
    written behind an apostrophe; :func:`read_table` takes it off again.
    """
    target = Path(path)
    suffix = _format(target)
    compression: Any = "gzip" if target.suffix == ".gz" else None
    with replacing(target) as temporary:
        if suffix == ".parquet":
            frame.to_parquet(temporary, index=False)
        elif suffix in (".csv", ".tsv"):
            separator = "," if suffix == ".csv" else "\t"
            _guarded(frame).to_csv(
                temporary, index=False, sep=separator, compression=compression, lineterminator="\n"
            )
        else:
            frame.to_json(
                temporary,
                orient="records",
                lines=suffix != ".json",
                force_ascii=False,
                double_precision=15,
                compression=compression,
            )


def _format(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
        if suffixes and suffixes[-1] == ".parquet":
            raise InputError(f"{path}: Parquet is compressed inside; give it without .gz")
    if not suffixes or suffixes[-1] not in FORMATS:
        known = ", ".join(FORMATS)
        raise InputError(f"{path}: the name does not tell the format; expected one of {known}, the text ones also as .gz")
    return suffixes[-1]


class _Bounded(io.RawIOBase):
    """A binary stream that refuses to give more than `MAX_BYTES` (a small .gz can unpack to terabytes)."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self._stream, self._path, self._left = stream, path, MAX_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self._stream.read(len(buffer))
        self._left -= len(chunk)
        if self._left < 0:
            raise InputError(f"{self._path} unpacks to more than {MAX_BYTES // 2**30} GiB; split it")
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _open_text(path: Path) -> IO[str]:
    raw = gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")
    bounded = io.BufferedReader(_Bounded(cast(IO[bytes], raw), path), buffer_size=1 << 20)
    return io.TextIOWrapper(bounded, encoding="utf-8-sig", newline="")


def _reading(path: Path, read: Callable[[], Any], what: str) -> Any:
    """Run `read`, turning what the libraries raise for a broken file into one sentence."""
    try:
        return read()
    except InputError:
        raise
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(f"{path} is not UTF-8 text (byte 0x{byte:02x}); save it as UTF-8") from None
    except (gzip.BadGzipFile, zlib.error, EOFError):
        raise InputError(f"{path} is not a whole gzip file") from None
    except PermissionError:
        raise InputError(f"{path} cannot be read: permission denied") from None
    except (ValueError, OSError) as error:
        detail = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{path} is not {what}: {detail}") from None


def _read_delimited(path: Path, separator: str) -> pd.DataFrame:
    import pandas as pd

    def read() -> pd.DataFrame:
        with _open_text(path) as stream:
            frame = pd.read_csv(stream, sep=separator, dtype=str, keep_default_na=False, na_values=[""])
        return frame

    what = "a readable CSV file" if separator == "," else "a readable TSV file"
    frame = cast("pd.DataFrame", _reading(path, read, what))
    if not isinstance(frame.index, pd.RangeIndex):
        raise InputError(f"{path}: the rows have more cells than the header; give every column a name")
    for name in frame.columns:
        guarded = frame[name].str.match(r"'[=+\-@\t\r]").fillna(False)
        if guarded.any():
            frame.loc[guarded, name] = frame.loc[guarded, name].str.slice(1)
    return frame


def _read_objects(path: Path, *, lines: bool) -> list[dict[str, Any]]:
    def read() -> list[dict[str, Any]]:
        with _open_text(path) as stream:
            if lines:
                return list(_objects_by_line(path, stream))
            return _object_list(path, json.load(stream))

    return cast("list[dict[str, Any]]", _reading(path, read, "a readable JSON file"))


def _objects_by_line(path: Path, stream: Iterable[str]) -> Iterable[dict[str, Any]]:
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {number} is not JSON: {error.msg} at column {error.colno}") from None
        if not isinstance(value, dict):
            raise InputError(f"{path}, line {number}: expected a JSON object, found {type(value).__name__}")
        yield value


def _object_list(path: Path, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise InputError(f"{path}: expected a JSON list of objects, found {type(value).__name__}")
    for number, item in enumerate(value, start=1):
        if not isinstance(item, dict):
            raise InputError(f"{path}, row {number}: expected a JSON object, found {type(item).__name__}")
    return value


def _read_parquet(path: Path) -> pd.DataFrame:
    import pandas as pd
    import pyarrow.parquet as pq

    def read() -> pd.DataFrame:
        metadata = pq.read_metadata(path)
        size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        if size > MAX_BYTES:
            raise InputError(f"{path} unpacks to more than {MAX_BYTES // 2**30} GiB; split it")
        return pd.read_parquet(path)

    return cast("pd.DataFrame", _reading(path, read, "a readable Parquet file"))


def _converted(column: pd.Series[Any], kind: Kind, where: str, allow_missing: bool) -> pd.Series[Any]:
    import pandas as pd

    missing = column.isna()
    if missing.any() and not allow_missing:
        raise InputError(f"{_row(where, missing)}: the cell is empty; expected {_expected(kind)}")
    if kind == "text":
        return column.astype("str").where(~missing, None)
    numbers = pd.to_numeric(column, errors="coerce").astype("float64")
    wrong = ~missing & ~numbers.abs().lt(float("inf"))
    if kind == "integer":
        wrong |= ~missing & (numbers != numbers.round())
    if wrong.any():
        raise InputError(f"{_row(where, wrong)}: {column[wrong].iloc[0]!r} is not {_expected(kind)}")
    if kind == "integer" and not missing.any():
        return numbers.astype("int64")
    return numbers


def _expected(kind: Kind) -> str:
    return {"text": "text", "number": "a finite number", "integer": "a whole number"}[kind]


def _row(where: str, wrong: pd.Series[bool]) -> str:
    place, _, column = where.rpartition(", column ")
    return f"{place}, row {int(wrong.to_numpy().argmax()) + 1}, column {column}"


def _guarded(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame.copy(deep=False)
    frame.columns = [_guarded_cell(name) for name in frame.columns]
    for position, dtype in enumerate(frame.dtypes):
        if dtype.kind in "OUS" or str(dtype) in ("str", "string", "category"):
            frame.isetitem(position, frame.iloc[:, position].astype(object).map(_guarded_cell))
    return frame


def _guarded_cell(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(FORMULA_STARTS):
        return "'" + value
    return value
