"""One database: in memory as data frames, or written as it is made; with what is known of it beside."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay._core.extras import DISTRIBUTION, need
from assay.synth.plurel.config import RelationalConfig
from assay.synth.plurel.engine import Recipe, raw_tables, scratch, truth_of
from assay.synth.plurel.finish import FinishedTable
from assay.synth.plurel.schema import DATE, Schema, Table, draw_schema, draw_window, with_rows
from assay.synth.plurel.sql import read_schema
from assay.synth.plurel.write import open_sink, whole_folder

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    import pandas as pd
    from matplotlib.axes import Axes

#: Raised when what a seed gives changes: databases of one number are the same for the same seed and config.
GENERATOR = 1
PAPER = {
    "title": "PluRel: Synthetic Data unlocks Scaling Laws for Relational Foundation Models",
    "arxiv": "2602.04029",
}


@dataclass(frozen=True)
class RelationalDatabase:
    """A database in memory.

    Attributes
    ----------
    tables : dict of name to DataFrame
        Parents before children. Missing cells are NaN.
    metadata : dict
        What ``metadata.json`` holds: seed, config, licence, keys, types, cut-off times.
    schema : Schema
    ground_truth : dict of table to dict
        Empty unless asked for: ``graph`` (the causal graph), ``latents`` (values by node) and ``keys`` (clusters).
    """

    tables: dict[str, pd.DataFrame]
    metadata: dict[str, Any]
    schema: Schema
    ground_truth: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def schema_graph(self) -> Any:
        """A networkx graph from each table to those that refer to it, one edge a foreign key."""
        return self.schema.graph()

    def summary(self) -> str:
        """One line a table."""
        return summary_of(self.metadata)

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw the tables and their keys."""
        from assay.synth.plurel.picture import plot_schema

        return plot_schema(self.schema, axes)

    def plot_causes(self, table: str, axes: Axes | None = None) -> Axes:
        """Draw the causal graph of a table; needs ``ground_truth=True``."""
        from assay.synth.plurel.picture import plot_causes

        if table not in self.ground_truth:
            raise InputError(
                f"the causal graph of {table!r} is not here; generate_database(…, ground_truth=True) keeps those of "
                f"{', '.join(self.tables)}"
            )
        return plot_causes(self.ground_truth[table]["graph"], table, axes)

    def to_parquet(self, folder: str | os.PathLike[str]) -> None:
        """Write a Parquet file a table, ``schema.sql`` and ``metadata.json`` into a new folder."""
        self._write(folder, "parquet")

    def to_sqlite(self, path: str | os.PathLike[str]) -> None:
        """Write one SQLite file with every key and set of values declared."""
        self._write(path, "sqlite-file")

    def _write(self, target: str | os.PathLike[str], form: str) -> None:
        import pyarrow as pa

        with whole_folder(target, form) as place:
            sink = open_sink(place, form, self.schema)
            for name, frame in self.tables.items():
                shown = set(frame.columns)
                columns = tuple(
                    c for c in columns_as_written(self.schema.by_name[name], self.metadata) if c.name in shown
                )
                batches = pa.Table.from_pandas(frame, preserve_index=False).to_batches()
                sink.write(self.schema.by_name[name], columns, iter(batches))
            sink.close(self.metadata)

    def to_relbench(self) -> Any:
        """As RelBench's ``Database``; needs the package ``relbench``."""
        base = need("relbench.base", extra="synth", purpose="RelBench's form of a database")
        return base.Database(
            {
                name: base.Table(
                    df=frame,
                    fkey_col_to_pkey_table=self.metadata["tables"][name]["foreign_keys"],
                    pkey_col=self.metadata["tables"][name]["primary_key"],
                    time_col=self.metadata["tables"][name]["time_column"],
                )
                for name, frame in self.tables.items()
            }
        )

    def to_sdv_metadata(self) -> dict[str, Any]:
        """As SDV's ``Metadata.load_from_dict`` reads it."""
        return sdv_metadata(self.metadata)


def columns_as_written(table: Table, metadata: dict[str, Any]) -> tuple[Any, ...]:
    """Columns of a table, classes as booleans where they were written so."""
    from dataclasses import replace

    known = metadata["tables"][table.name]["columns"]
    return tuple(
        replace(c, kind="boolean", is_required=True) if known[c.name]["type"] == "boolean" else c
        for c in table.columns
        if c.name in known
    )


def recipe_of(
    seed: int, config: RelationalConfig | None = None, schema_sql: str | os.PathLike[str] | None = None
) -> Recipe:
    """All that a database follows from; see :func:`generate_database` for the arguments."""
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise InputError(f"seed is {seed!r}; expected a whole number from 0")
    config = config or RelationalConfig()
    if schema_sql is None:
        return Recipe(seed, draw_schema(seed, config), config)
    text, name = (schema_sql, "schema.sql") if isinstance(schema_sql, str) else _read(Path(schema_sql))
    schema = read_schema(text, draw_window(seed, config.database), name=name)
    schema = with_rows(schema, seed, config.database)
    for table in schema.tables:
        top = {"SMALLINT": 2**15 - 1, "INTEGER": 2**31 - 1}.get(table.key_type, 2**63 - 1)
        if table.n_rows > top:
            raise InputError(
                f"{name}: table {table.name} would have {table.n_rows:,} rows, more than its key of type "
                f"{table.key_type} counts ({top:,}); ask for fewer rows or give it a wider key"
            )
    return Recipe(seed, schema, config, hashlib.sha256(text.encode()).hexdigest())


def _read(path: Path) -> tuple[str, str]:
    try:
        return path.read_text(encoding="utf-8"), path.name
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (UnicodeDecodeError, IsADirectoryError):
        raise InputError(f"{path} is not UTF-8 text; expected a file of CREATE TABLE statements") from None


def generate_database(
    seed: int,
    config: RelationalConfig | None = None,
    schema_sql: str | os.PathLike[str] | None = None,
    *,
    ground_truth: bool = False,
) -> RelationalDatabase:
    """Invent a database.

    Parameters
    ----------
    seed : int
        The same seed, config and schema give the same database, bit for bit on one platform.
    config : RelationalConfig, optional
    schema_sql : str or path, optional
        CREATE TABLE statements as text, or a file of them (a ``pathlib.Path``); `config` then decides on rows and
        values.
    ground_truth : bool
        Keep the causal graphs, the latent values and the clusters of the keys.

    Raises
    ------
    InputError
        The schema cannot be filled faithfully (with line and reason).

    Examples
    --------
    >>> from assay.synth.plurel import DatabaseConfig, RelationalConfig
    >>> small = RelationalConfig(DatabaseConfig(n_tables=2, entity_rows=50, activity_rows=90, layouts="random_tree"))
    >>> database = generate_database(0, small)
    >>> {name: len(frame) for name, frame in sorted(database.tables.items())}
    {'table_0': 90, 'table_1': 50}
    """
    import pyarrow as pa

    recipe = recipe_of(seed, config, schema_sql)
    tables: dict[str, pd.DataFrame] = {}
    truth: dict[str, dict[str, Any]] = {}
    finished: dict[str, FinishedTable] = {}
    with scratch(None) as folder:
        for raw in raw_tables(recipe, folder, with_latents=ground_truth):
            table = finished[raw.table.name] = FinishedTable(recipe, raw)
            frame = pa.Table.from_batches(list(table.batches())).to_pandas()
            tables[raw.table.name] = frame
            if ground_truth:
                truth[raw.table.name] = truth_of(raw)
    return RelationalDatabase(tables, metadata_of(recipe, finished), recipe.schema, truth)


def write_database(
    seed: int,
    out: str | os.PathLike[str],
    config: RelationalConfig | None = None,
    schema_sql: str | os.PathLike[str] | None = None,
    *,
    form: str = "parquet",
    report: Callable[[int], None] = lambda rows: None,
) -> dict[str, Any]:
    """Invent a database and write it while it is made, in memory that does not grow with its rows.

    Parameters
    ----------
    seed, config, schema_sql
        As in :func:`generate_database`, which gives the same values.
    out : path
        A new folder: the tables, ``schema.sql`` and ``metadata.json``.
    form : "parquet", "sqlite", "duckdb" or "sql"
    report : callable
        Called with the number of rows that were made since the last call.

    Returns
    -------
    dict
        The metadata.

    Raises
    ------
    InputError
        The folder is there and not empty, the form is unknown, or the schema cannot be filled.
    """
    recipe = recipe_of(seed, config, schema_sql)
    finished: dict[str, FinishedTable] = {}
    with whole_folder(out, form) as place:
        sink = open_sink(place, form, recipe.schema)
        with scratch(place) as folder:
            for raw in raw_tables(recipe, folder, report=report):
                table = finished[raw.table.name] = FinishedTable(recipe, raw)
                sink.write(raw.table, table.columns, table.batches())
        metadata = metadata_of(recipe, finished)
        sink.close(metadata)
    return metadata


# ---------------------------------------------------------------------------------------------------------- metadata


def metadata_of(recipe: Recipe, finished: dict[str, FinishedTable]) -> dict[str, Any]:
    """What is known of a database: where it comes from, how it may be used, keys, types and cut-off times."""
    schema = recipe.schema
    validation, test = schema.cutoffs
    return {
        "method": "plurel",
        "paper": PAPER,
        "generator": {"package": DISTRIBUTION, "version": package_version(), "stream": GENERATOR},
        "license": "CC0-1.0" if schema.source == "drawn" else None,
        "license_note": "invented from a seed; no record of a person or of another data set is in it"
        + ("" if schema.source == "drawn" else "; the schema is the user's"),
        "seed": recipe.seed,
        "config": recipe.config.to_dict(),
        "schema": {"source": schema.source, "sha256": recipe.schema_sha256},
        "rows": sum(table.n_rows for table in schema.tables),
        "window": [day.isoformat() for day in schema.window],
        "cutoffs": {"validation": validation.isoformat(), "test": test.isoformat()},
        "tables": {name: _table_metadata(table) for name, table in finished.items()},
    }


def _table_metadata(finished: FinishedTable) -> dict[str, Any]:
    table = finished.table
    reports = {report.column: report for report in finished.reports}
    columns = {}
    for column in finished.columns:
        report = reports[column.name]
        about: dict[str, Any] = {"type": "boolean" if column.kind == "boolean" else _type(column)}
        if column.is_categorical:
            about |= {"classes": column.n_classes, "largest_class": round(report.largest_class, 6)}
            about |= {"labels": list(column.labels)} if column.labels else {}
        else:
            about |= {"transform": report.transform, "missing": report.missing}
        columns[column.name] = about | {"is_constant": report.is_constant}
    return {
        "type": "activity" if table.is_activity else "entity",
        "rows": table.n_rows,
        "primary_key": table.primary_key,
        "foreign_keys": {key.column: key.parent for key in table.keys},
        "time_column": DATE if table.has_date else None,
        "columns": columns,
        "dropped": [report.column for report in finished.reports if report.is_dropped],
        "causal_layout": finished.raw.model.graph.graph["layout"],
        "propagation": "lazy" if finished.raw.model.is_lazy else "eager",
    }


def _type(column: Any) -> str:
    return "categorical" if column.is_categorical else "integer" if column.kind == "integer" else "numerical"


def package_version() -> str:
    """Of this distribution."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


def sdv_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Metadata as SDV's ``Metadata.load_from_dict`` reads it."""
    kinds = {"categorical": "categorical", "boolean": "boolean", "integer": "numerical", "numerical": "numerical"}
    tables, relationships = {}, []
    for name, table in metadata["tables"].items():
        columns: dict[str, dict[str, str]] = {c: {"sdtype": kinds[a["type"]]} for c, a in table["columns"].items()}
        for key in [table["primary_key"], *table["foreign_keys"]]:
            columns |= {} if key is None else {key: {"sdtype": "id"}}
        if table["time_column"]:
            columns[table["time_column"]] = {"sdtype": "datetime"}
        tables[name] = {"columns": columns} | ({"primary_key": table["primary_key"]} if table["primary_key"] else {})
        relationships += [
            {
                "parent_table_name": parent,
                "parent_primary_key": metadata["tables"][parent]["primary_key"],
                "child_table_name": name,
                "child_foreign_key": key,
            }
            for key, parent in table["foreign_keys"].items()
        ]
    return {"METADATA_SPEC_VERSION": "V1", "tables": tables, "relationships": relationships}


def summary_of(metadata: dict[str, Any]) -> str:
    """A database in one line a table.

    Parameters
    ----------
    metadata : dict
        As :func:`write_database` returns it.
    """
    lines = [("table", "type", "rows", "columns", "constant", "refers to")]
    for name, table in metadata["tables"].items():
        constant = sum(column["is_constant"] for column in table["columns"].values())
        parents = ", ".join(table["foreign_keys"].values()) or "-"
        lines.append((name, table["type"], f"{table['rows']:,}", str(len(table["columns"])), str(constant), parents))
    widths = [max(len(line[k]) for line in lines) for k in range(5)]
    rows = []
    for line in lines:
        left = [line[k].ljust(widths[k]) for k in (0, 1)]
        right = [line[k].rjust(widths[k]) for k in (2, 3, 4)]
        rows.append("  ".join([*left, *right, line[5]]).rstrip())
    return "\n".join(rows)


def read_metadata(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The metadata of a folder that :func:`write_database` wrote."""
    path = Path(folder) / "metadata.json"
    if not path.is_file():
        raise InputError(f"{folder} holds no metadata.json; expected a folder that `assay use plurel` wrote")
    return json.loads(path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]  # json knows no types


def causal_graph(recipe: Recipe, table: str) -> Any:
    """The causal graph of a table, without making its rows."""
    from assay.synth.plurel.scm import draw_graph

    if table not in recipe.schema.by_name:
        raise InputError(f"there is no table {table!r}; there are {', '.join(recipe.schema.by_name)}")
    return draw_graph(recipe.seed, recipe.schema.by_name[table], recipe.config)
