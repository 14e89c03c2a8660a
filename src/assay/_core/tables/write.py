"""Write a table so that it reads back the same, appears whole or not at all, and runs nothing in a spreadsheet."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from assay._core.errors import InputError
from assay._core.files import replacing
from assay._core.tables.check import refuse_repeated_names
from assay._core.tables.formats import NEEDS_GUARD, guarded, is_gzip, table_format

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    import pandas as pd

#: What cannot be written as it is: a possible formula, or a carriage return anywhere.
_SPECIAL = rf"^(?:{NEEDS_GUARD.pattern})|\r"


def write_table(frame: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write `frame` (without its index) as CSV, TSV, JSON, JSON Lines or Parquet by the suffix of `path`.

    The file appears whole or not at all, and the same table gives the same bytes. Numbers keep all their digits. In CSV
    and TSV a text cell or a name that a spreadsheet would run as a formula is written behind an apostrophe;
    :func:`read_table` takes it off again.

    Parameters
    ----------
    frame : pandas.DataFrame
        Its column names are all different.
    path : path
        With one of the suffixes that :func:`read_table` knows; ``.gz`` behind a text format compresses it.

    Raises
    ------
    InputError
        The suffix is unknown, the folder does not exist, two columns have the same name, or JSON is asked to hold
        an infinite number.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> file = Path(tempfile.mkdtemp()) / "ranking.csv"
    >>> write_table(pd.DataFrame({"model": ["=cmd()"], "score": [0.1]}), file)
    >>> print(file.read_text())
    model,score
    '=cmd(),0.1
    """
    target = Path(path)
    suffix = table_format(target)
    refuse_repeated_names(frame, str(target))
    with replacing(target) as temporary:
        if suffix == ".parquet":
            frame.to_parquet(temporary, index=False)
            return
        with _text_file(temporary, compress=is_gzip(target)) as stream:
            try:
                if suffix in (".csv", ".tsv"):
                    _write_delimited(frame, stream, "," if suffix == ".csv" else "\t")
                else:
                    _write_objects(frame, stream, str(target), lines=suffix != ".json")
            except UnicodeEncodeError:
                raise InputError(f"{target}: a text of the table holds half a character (a lone surrogate)") from None


@contextmanager
def _text_file(path: Path, *, compress: bool) -> Iterator[IO[str]]:
    with path.open("wb") as file:
        # Neither the time nor the temporary name goes into the file: equal tables are equal files.
        binary = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=6) if compress else file
        with io.TextIOWrapper(cast("IO[bytes]", binary), encoding="utf-8", newline="") as stream:
            yield stream


def _write_delimited(frame: pd.DataFrame, stream: IO[str], separator: str) -> None:
    frame = frame.copy(deep=False)
    frame.columns = [guarded(name) if isinstance(name, str) else name for name in frame.columns]
    has_return = any("\r" in str(name) for name in frame.columns)
    for position, dtype in enumerate(frame.dtypes):
        if dtype.kind in "OUS" or str(dtype) in ("str", "string", "category"):
            if str(dtype) == "str" and not frame.iloc[:, position].str.contains(_SPECIAL).any():
                continue
            cells = frame.iloc[:, position].astype(object)
            safe = cells.map(lambda cell: guarded(cell) if isinstance(cell, str) else cell)
            frame.isetitem(position, cast("Any", safe))
            has_return |= any("\r" in cell for cell in cells if isinstance(cell, str))
    # The csv module leaves a lone carriage return unquoted, and readers take it for the end of the row.
    quoting: Any = csv.QUOTE_NONNUMERIC if has_return else csv.QUOTE_MINIMAL
    frame.to_csv(stream, index=False, sep=separator, lineterminator="\n", quoting=quoting)


def _write_objects(frame: pd.DataFrame, stream: IO[str], where: str, *, lines: bool) -> None:
    names = [str(name) for name in frame.columns]
    columns = [_json_values(frame.iloc[:, position], where) for position in range(len(names))]
    rows = (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_json_default).encode
    if lines:
        stream.writelines(encode(row) + "\n" for row in rows)
        return
    stream.write("[")
    for number, row in enumerate(rows):
        stream.write(("" if number == 0 else ",") + "\n" + encode(row))
    stream.write("\n]\n")


def _json_values(column: pd.Series[Any], where: str) -> list[Any]:
    values = column.astype(object).where(column.notna(), None).tolist()
    for number, value in enumerate(values, start=1):
        if isinstance(value, float) and math.isinf(value):
            raise InputError(
                f"{where}, row {number}, column {str(column.name)!r}: JSON cannot hold {value}; write CSV or Parquet"
            )
    return values


def _json_default(value: Any) -> Any:
    """Spell what JSON has no word for: numpy's scalars and arrays as Python's, dates as ISO 8601."""
    return value.tolist() if hasattr(value, "tolist") else value.isoformat()
