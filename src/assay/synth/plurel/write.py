"""Where a database goes: Parquet files, SQLite, DuckDB or a SQL script, table by table and chunk by chunk."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from assay._core.errors import InputError
from assay._core.extras import need
from assay.synth.plurel.sql import create_table, literal, quoted

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    import pyarrow as pa

    from assay.synth.plurel.schema import Column, Schema, Table

FORMS = ("parquet", "sqlite", "duckdb", "sql")
#: Rows of one INSERT statement.
ROWS_OF_INSERT = 500


class Sink(Protocol):
    """What a form of output does."""

    def write(self, table: Table, columns: tuple[Column, ...], batches: Iterator[pa.RecordBatch]) -> None:
        """Write all rows of a table; its parents were written before."""

    def close(self, metadata: dict[str, Any]) -> None:
        """Finish all files."""


@contextmanager
def whole_folder(out: str | os.PathLike[str], form: str) -> Iterator[Path]:
    """Yield a temporary folder beside `out` that becomes `out` when all went well, and goes when it did not."""
    if form not in (*FORMS, "sqlite-file"):
        raise InputError(f"format is {form!r}; expected one of {', '.join(FORMS)}")
    target = Path(out)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{out} is there already and not an empty folder; remove it, or choose another output")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.partial")
        shutil.rmtree(temporary, ignore_errors=True)  # of a run that was killed
        temporary.mkdir()
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}") from None
    try:
        yield temporary
        if form == "sqlite-file":
            (temporary / "database.sqlite").replace(target)
        else:
            if target.exists():
                target.rmdir()
            temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def open_sink(folder: Path, form: str, schema: Schema) -> Sink:
    """The writer of a form."""
    makers: dict[str, type[_ParquetSink | _SqliteSink | _DuckdbSink | _SqlSink]] = {
        "parquet": _ParquetSink,
        "sqlite": _SqliteSink,
        "sqlite-file": _SqliteSink,
        "duckdb": _DuckdbSink,
        "sql": _SqlSink,
    }
    return makers[form](folder, schema)


class _Statements:
    """The CREATE TABLE statements, in the order in which tables are written, and the metadata."""

    def __init__(self, folder: Path, schema: Schema) -> None:
        self.folder = folder
        self._keys = {table.name: table.primary_key or "" for table in schema.tables}
        self._created: list[str] = []

    def create(self, table: Table, columns: tuple[Column, ...]) -> str:
        statement = create_table(table, columns, self._keys)
        self._created.append(statement)
        return statement

    def close(self, metadata: dict[str, Any]) -> None:
        text = json.dumps(metadata, indent=2, ensure_ascii=False) + "\n"
        (self.folder / "metadata.json").write_text(text, encoding="utf-8", newline="")
        (self.folder / "schema.sql").write_text("\n\n".join(self._created) + "\n", encoding="utf-8", newline="")


def file_name(table: str) -> str:
    """The name of a table's file: other letters than ASCII letters, digits, ``_`` and ``-`` are written as hex.

    >>> file_name("orders"), file_name("../x")
    ('orders.parquet', '%2E%2E%2Fx.parquet')
    """
    safe = "".join(c if (c.isascii() and c.isalnum()) or c in "_-" else f"%{ord(c):02X}" for c in table)
    return f"{safe}.parquet"


class _ParquetSink(_Statements):
    def write(self, table: Table, columns: tuple[Column, ...], batches: Iterator[pa.RecordBatch]) -> None:
        import pyarrow.parquet as pq

        self.create(table, columns)
        first = next(batches)
        with pq.ParquetWriter(self.folder / file_name(table.name), first.schema, compression="zstd") as writer:
            writer.write_batch(first)
            for batch in batches:
                writer.write_batch(batch)


class _SqliteSink(_Statements):
    def __init__(self, folder: Path, schema: Schema) -> None:
        super().__init__(folder, schema)
        self._connection = sqlite3.connect(folder / "database.sqlite")
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._connection.execute("PRAGMA journal_mode = OFF")  # the folder is thrown away where writing fails
        self._connection.execute("PRAGMA synchronous = OFF")

    def write(self, table: Table, columns: tuple[Column, ...], batches: Iterator[pa.RecordBatch]) -> None:
        self._connection.execute(self.create(table, columns))
        for batch in batches:
            marks = ", ".join("?" * batch.num_columns)
            names = ", ".join(map(quoted, batch.schema.names))
            statement = f"INSERT INTO {quoted(table.name)} ({names}) VALUES ({marks})"  # noqa: S608  # names are quoted
            self._connection.executemany(statement, zip(*_python_columns(batch), strict=True))
        self._connection.commit()

    def close(self, metadata: dict[str, Any]) -> None:
        self._connection.close()
        super().close(metadata)


class _DuckdbSink(_Statements):
    def __init__(self, folder: Path, schema: Schema) -> None:
        super().__init__(folder, schema)
        duckdb = need("duckdb", extra="synth", purpose="writing a DuckDB file")
        self._connection = duckdb.connect(str(folder / "database.duckdb"), config={"threads": 1})

    def write(self, table: Table, columns: tuple[Column, ...], batches: Iterator[pa.RecordBatch]) -> None:
        import pyarrow as pa

        self._connection.execute(self.create(table, columns))
        for batch in batches:
            self._connection.register("chunk", pa.Table.from_batches([batch]))
            self._connection.execute(f"INSERT INTO {quoted(table.name)} BY NAME SELECT * FROM chunk")  # noqa: S608
            self._connection.unregister("chunk")

    def close(self, metadata: dict[str, Any]) -> None:
        self._connection.close()
        super().close(metadata)


class _SqlSink(_Statements):
    """One script that SQLite, PostgreSQL and DuckDB run, in one transaction."""

    def __init__(self, folder: Path, schema: Schema) -> None:
        super().__init__(folder, schema)
        self._file = (folder / "database.sql").open("w", encoding="utf-8", newline="\n")
        self._file.write("BEGIN;\n")

    def write(self, table: Table, columns: tuple[Column, ...], batches: Iterator[pa.RecordBatch]) -> None:
        self._file.write(self.create(table, columns) + "\n")
        for batch in batches:
            names = ", ".join(map(quoted, batch.schema.names))
            head = f"INSERT INTO {quoted(table.name)} ({names}) VALUES\n"
            rows = [f"({', '.join(row)})" for row in zip(*_sql_columns(batch), strict=True)]
            for start in range(0, len(rows), ROWS_OF_INSERT):
                self._file.write(head + ",\n".join(rows[start : start + ROWS_OF_INSERT]) + ";\n")

    def close(self, metadata: dict[str, Any]) -> None:
        self._file.write("COMMIT;\n")
        self._file.close()
        super().close(metadata)


def _python_columns(batch: pa.RecordBatch) -> list[list[Any]]:
    """Values that sqlite3 takes: a missing number is NaN, which it stores as NULL; dates are ISO text."""
    import pyarrow as pa

    columns = []
    for column in batch.columns:
        if pa.types.is_timestamp(column.type):
            columns.append([value.isoformat(" ") for value in column.to_pylist()])
        elif pa.types.is_dictionary(column.type) or (column.null_count and pa.types.is_integer(column.type)):
            columns.append(column.to_pylist())
        else:
            columns.append(column.to_numpy(zero_copy_only=False).tolist())
    return columns


def _sql_columns(batch: pa.RecordBatch) -> list[list[str]]:
    """Values as SQL writes them."""
    columns = []
    for values in _python_columns(batch):
        kind = next((type(value) for value in values if value is not None), float)
        if kind is str:
            columns.append([literal(value) for value in values])
        elif kind is bool:
            columns.append(["TRUE" if value else "FALSE" for value in values])
        else:
            columns.append(["NULL" if value is None or value != value else repr(value) for value in values])
    return columns
