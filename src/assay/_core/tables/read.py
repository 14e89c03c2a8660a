"""Read a table from a file that may be broken, huge or hostile."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

from assay._core.errors import InputError
from assay._core.tables.check import Kind, check_columns, refuse_repeated_names
from assay._core.tables.formats import GUARDED, is_gzip, table_format, unguarded

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterable, Mapping

    import pandas as pd
    import pyarrow as pa

#: A table larger than this (unpacked) is refused before it fills the memory.
MAX_BYTES = 8 * 2**30

#: The longest row of a CSV or TSV file. A stray quote makes one "row" of all that follows it.
MAX_ROW_BYTES = 64 * 2**20

#: How many of a file's last bytes are remembered.
_TAIL = 4096

_T = TypeVar("_T")


def read_table(
    path: str | os.PathLike[str],
    columns: Mapping[str, Kind] | None = None,
    *,
    allow_missing: Collection[str] = (),
) -> pd.DataFrame:
    r"""Read a table and check the columns that are asked for.

    Parameters
    ----------
    path : path
        A ``.csv``, ``.tsv``, ``.jsonl``/``.ndjson`` (one object a line), ``.json`` (a list of objects) or
        ``.parquet`` file; the text formats also as ``.gz``. Text is UTF-8, with or without a byte-order mark.
    columns : mapping of column name to "text", "number" or "integer", optional
        Columns that must exist, with the type they must have. Other columns are kept as they were read
        (from CSV and TSV: text).
    allow_missing : collection of str
        Columns of `columns` in which empty cells are allowed.

    Returns
    -------
    pandas.DataFrame
        With a fresh ``RangeIndex``. "text" columns hold strings, "number" float64, "integer" int64 (float64
        with NaN where cells are empty). Only an empty cell is missing: ``NA`` and ``null`` are names.

    Raises
    ------
    InputError
        The file is missing, unreadable, empty, not of its format, a row has too few or too many cells, two columns
        have the same name, or a column is absent or of another type.

    Notes
    -----
    CSV and TSV follow RFC 4180 (quotes double inside quotes, newlines may stand inside them); blank lines are skipped.
    An apostrophe before a formula start is taken off, as :func:`write_table` puts it there.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "votes.csv"
    >>> _ = file.write_text("model,wins\nNA,3\n")
    >>> read_table(file, {"model": "text", "wins": "integer"}).to_dict("records")
    [{'model': 'NA', 'wins': 3}]
    """
    import pandas as pd

    source = Path(path)
    suffix = table_format(source)
    _check_is_file(source)
    if suffix == ".parquet":
        frame = _read_parquet(source)
    elif suffix in (".csv", ".tsv"):
        frame = _read_delimited(source, "," if suffix == ".csv" else "\t")
    else:
        # As objects, so that identifiers stay whole numbers in a column where some are missing.
        frame = pd.DataFrame(_read_objects(source, lines=suffix != ".json"), dtype=object)
    checked = check_columns(frame, columns or {}, where=str(source), allow_missing=allow_missing)
    try:
        return checked.infer_objects()
    except UnicodeEncodeError:  # half a character in a column that nobody asked for; Arrow cannot hold it
        return checked


def _check_is_file(path: Path) -> None:
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder; give the name of a file")
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        if path.stat().st_size == 0:
            raise InputError(f"{path} is empty")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


class _Bounded(io.RawIOBase):
    """A binary stream that refuses to give more than `MAX_BYTES` (a small .gz can unpack to terabytes)."""

    def __init__(self, path: Path) -> None:
        self._stream: IO[bytes] = cast("IO[bytes]", gzip.open(path)) if is_gzip(path) else path.open("rb")  # noqa: SIM115
        self._path, self._left = path, MAX_BYTES
        self.tail = b""  # the last bytes that were read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self._stream.read(len(buffer))
        self._left -= len(chunk)
        if self._left < 0:
            raise InputError(_too_large(self._path))
        buffer[: len(chunk)] = chunk
        if chunk:
            self.tail = (self.tail + chunk[-_TAIL:])[-_TAIL:]
        return len(chunk)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _too_large(path: Path) -> str:
    return f"{path} unpacks to more than {MAX_BYTES / 2**30:.3g} GiB; split it"


def _reading(path: Path, read: Callable[[], _T], what: str) -> _T:
    """Run `read`, turning what the libraries raise for a broken file into one sentence."""
    try:
        return read()
    except InputError:
        raise
    except (gzip.BadGzipFile, zlib.error, EOFError):
        raise InputError(f"{path} is not a whole gzip file") from None
    except PermissionError:
        raise InputError(f"{path} cannot be read: permission denied") from None
    except RecursionError:
        raise InputError(f"{path} is not {what}: it is nested too deeply") from None
    except (ValueError, OSError, NotImplementedError) as error:
        if not is_parquet(path):
            _refuse_other_encodings(path)
        detail = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{path} is not {what}: {detail}") from None


def is_parquet(path: Path) -> bool:
    """Whether the name says that the file is Parquet."""
    return path.suffix.lower() == ".parquet"


def _refuse_other_encodings(path: Path) -> None:
    """Find the first byte that is not UTF-8 and say on which line it stands."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line = 1
    with io.BufferedReader(_Bounded(path), buffer_size=1 << 20) as stream:
        while True:
            chunk = stream.read(1 << 20)
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                line += error.object.count(b"\n", 0, error.start)
                byte = error.object[error.start]
                raise InputError(
                    f"{path}, line {line} is not UTF-8 text (byte 0x{byte:02x}); save it as UTF-8"
                ) from None
            if not chunk:
                return
            line += text.count("\n")


def _read_delimited(path: Path, separator: str) -> pd.DataFrame:
    what = "a readable CSV file" if separator == "," else "a readable TSV file"
    table = _reading(path, lambda: _delimited_table(path, separator), what)
    frame = cast("pd.DataFrame", table.to_pandas())
    frame.columns = [unguarded(name) for name in table.column_names]
    refuse_repeated_names(frame, str(path))
    return frame


def _delimited_table(path: Path, separator: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv

    ragged: list[InputError] = []

    def refuse(row: Any) -> str:
        ragged.append(
            InputError(
                f"{path}, row {row.number - 1} has {_cells(row.actual_columns)}, the header has "
                f"{row.expected_columns}; put quotes around a cell that holds the separator"
            )
        )
        return "error"

    _refuse_other_encodings(path)
    raw = _Bounded(path)
    with io.BufferedReader(raw, buffer_size=1 << 20) as stream:
        names = _header(path, stream.peek(), separator)
        try:
            table = pa.csv.read_csv(
                _EndsWithNewline(stream),
                # One thread: only then a row knows its number.
                read_options=pa.csv.ReadOptions(use_threads=False, block_size=MAX_ROW_BYTES),
                parse_options=pa.csv.ParseOptions(
                    delimiter=separator, newlines_in_values=True, invalid_row_handler=refuse
                ),
                convert_options=pa.csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
                ),
            )
        except pa.ArrowInvalid as error:
            if ragged:
                raise ragged[0] from None
            if "straddl" in str(error):
                limit = f"{MAX_ROW_BYTES / 2**20:.3g} MiB"
                raise InputError(
                    f"{path} has a row longer than {limit}; is there a quote that is not closed?"
                ) from None
            raise
    _refuse_open_quote(path, table, raw.tail, separator)
    columns = [
        pc.replace_substring_regex(column, GUARDED, r"\1") if pc.any(pc.starts_with(column, "'")).as_py() else column
        for column in table.columns
    ]
    return pa.table(columns, names=table.column_names)


class _EndsWithNewline(io.RawIOBase):
    """The stream and then one newline: Arrow refuses a header that ends without one."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._last = stream, False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        chunk = self._stream.read(size)
        if len(chunk) == size or self._last:
            return chunk
        self._last = True
        return chunk + b"\n"


def _header(path: Path, start: bytes, separator: str) -> list[str]:
    """Read the names from the first bytes of the file, as Arrow will."""
    text = codecs.decode(start, "utf-8-sig", errors="replace")
    try:
        names = next((row for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if row), None)
    except csv.Error:
        raise InputError(f"{path}: the header has a name longer than {csv.field_size_limit()} characters") from None
    if names is None:
        raise InputError(f"{path} is empty")
    return names


def _refuse_open_quote(path: Path, table: pa.Table, tail: bytes, separator: str) -> None:
    """Refuse a file that ends inside quotes, where all that follows the quote has become one cell.

    The last cell must be what the file ends with, as it is or in quotes.
    """
    if table.num_rows == 0 or table.num_columns == 0:
        return
    ending = tail.rstrip(b"\r\n")
    plain = (table.column(table.num_columns - 1)[table.num_rows - 1].as_py() or "").encode()
    quoted = b'"' + plain.replace(b'"', b'""') + b'"'
    if len(quoted) >= _TAIL:
        return
    starts = (separator.encode(), b"\n", b"\r")
    if not ending.endswith(tuple(start + cell for start in starts for cell in (plain, quoted))):
        raise InputError(f"{path}: a quote in the last row, {table.num_rows}, is not closed")


def _cells(count: int) -> str:
    return "1 cell" if count == 1 else f"{count} cells"


def _read_objects(path: Path, *, lines: bool) -> list[dict[str, Any]]:
    def read() -> list[dict[str, Any]]:
        binary = io.BufferedReader(_Bounded(path), buffer_size=1 << 20)
        with io.TextIOWrapper(binary, encoding="utf-8-sig", newline="\n") as stream:
            if lines:
                return list(_objects_by_line(path, stream))
            return _object_list(path, json.load(stream))

    objects = _reading(path, read, "a readable JSON file")
    if not objects:
        raise InputError(f"{path} is empty")
    return objects


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
    import pyarrow as pa
    import pyarrow.parquet as pq

    def read() -> pa.Table:
        with pq.ParquetFile(path) as file:
            batches, size = [], 0
            for batch in file.iter_batches(batch_size=1 << 14):  # what is packed well may be small only on disk
                size += batch.nbytes
                if size > MAX_BYTES:
                    raise InputError(_too_large(path))
                batches.append(batch)
            return pa.Table.from_batches(batches, schema=file.schema_arrow)

    table = _reading(path, read, "a readable Parquet file")
    frame = _reading(path, lambda: table.to_pandas(integer_object_nulls=True), "a readable Parquet file")
    names = [name for name in frame.index.names if name is not None]
    return cast("pd.DataFrame", (frame.reset_index(level=names) if names else frame).reset_index(drop=True))
