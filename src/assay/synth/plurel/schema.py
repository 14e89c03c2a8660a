"""Tables, columns and keys: drawn at random, or as `assay.synth.plurel.sql` reads them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay._core.errors import InputError
from assay.synth.plurel.draws import Rng, pick, power_law, stream, whole
from assay.synth.plurel.graphs import Graph, networkx, random_dag

if TYPE_CHECKING:
    from assay.synth.plurel.config import DatabaseConfig, RelationalConfig

DATE = "date"


@dataclass(frozen=True)
class Column:
    """A feature column.

    Parameters
    ----------
    name : str
    n_classes : int
        0: numerical.
    labels : tuple of str
        What classes are called; empty: 0, 1, ….
    sql_type : str
        As the schema says it; empty for drawn schemas.
    kind : "float", "integer", "exact", "class", "label", "code" or "boolean"
        How values are written; "code": labels that are whole numbers.
    digits, scale : int
        Of an exact number; of an integer, `digits` is the number of bytes.
    is_required : bool
        No cell may be missing.
    is_unsigned : bool
        An integer from 0.
    """

    name: str
    n_classes: int = 0
    labels: tuple[str, ...] = ()
    sql_type: str = ""
    kind: Literal["float", "integer", "exact", "class", "label", "code", "boolean"] = "float"
    digits: int = 0
    scale: int = 0
    is_required: bool = False
    is_unsigned: bool = False

    @property
    def is_categorical(self) -> bool:
        """Whether its values are classes."""
        return self.n_classes > 0


@dataclass(frozen=True)
class ForeignKey:
    """A column that holds keys of another table."""

    column: str
    parent: str
    sql_type: str = ""


@dataclass(frozen=True)
class Table:
    """One table.

    Parameters
    ----------
    name : str
    columns : tuple of Column
    keys : tuple of ForeignKey
    primary_key : str or None
    is_activity : bool
        No table refers to it.
    has_date : bool
        A drawn activity table has a column ``date``; a table of a given schema has the columns of the schema.
    first_key : int
        The smallest primary key.
    n_rows : int
    order : tuple of str
        All columns in the order of the schema.
    key_type : str
    """

    name: str
    columns: tuple[Column, ...]
    keys: tuple[ForeignKey, ...] = ()
    primary_key: str | None = "row_idx"
    is_activity: bool = False
    has_date: bool = False
    first_key: int = 0
    n_rows: int = 0
    order: tuple[str, ...] = ()
    key_type: str = ""


@dataclass(frozen=True)
class Schema:
    """Tables in the order of a schema, and the days between which dates lie.

    Attributes
    ----------
    source : str
        ``"drawn"``, or the name of the file of the schema.
    """

    tables: tuple[Table, ...]
    window: tuple[datetime, datetime]
    source: str = "drawn"
    by_name: dict[str, Table] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.by_name.update({table.name: table for table in self.tables})

    def graph(self) -> Graph:
        """From a table to those that refer to it, one edge for each foreign key."""
        graph = networkx().MultiDiGraph()
        graph.add_nodes_from(table.name for table in self.tables)
        graph.add_edges_from(
            (key.parent, table.name, key.column, {"column": key.column}) for table in self.tables for key in table.keys
        )
        return graph

    def parents_first(self) -> tuple[Table, ...]:
        """Tables such that each stands after those that it refers to; else in the order of the schema."""
        place = {table.name: number for number, table in enumerate(self.tables)}
        names = networkx().lexicographical_topological_sort(self.graph(), key=place.__getitem__)
        return tuple(self.by_name[name] for name in names)

    @property
    def cutoffs(self) -> tuple[datetime, datetime]:
        """Where validation and test begin: at 80 % and 90 % of the days."""
        first, last = self.window
        n_days = (last - first).days + 1
        return first + timedelta(days=int(n_days * 0.8)), first + timedelta(days=int(n_days * 0.9))


def draw_schema(seed: int, config: RelationalConfig) -> Schema:
    """Draw the tables of a database (paper, stage 1)."""
    database = config.database
    rng = stream(seed, "schema")
    n_tables = whole(rng, database.n_tables)
    graph = random_dag(rng, pick(rng, database.layouts), n_tables, config.dag)
    digits = len(str(n_tables - 1))
    names = [f"table_{number:0{digits}d}" for number in range(n_tables)]
    tables = []
    for node in range(n_tables):
        keys = tuple(
            ForeignKey(f"foreign_row_{j}", names[parent]) for j, parent in enumerate(sorted(graph.predecessors(node)))
        )
        is_activity = graph.out_degree(node) == 0
        columns = tuple(_column(rng, j, database) for j in range(power_law(rng, database.n_columns)))
        tables.append(Table(names[node], columns, keys, is_activity=is_activity, has_date=is_activity))
    return with_rows(Schema(tuple(tables), draw_window(seed, database)), seed, database)


def _column(rng: Rng, number: int, database: DatabaseConfig) -> Column:
    if rng.random() < database.categorical_share:
        return Column(f"feature_{number}", whole(rng, database.cardinality), kind="class")
    return Column(f"feature_{number}")


def draw_window(seed: int, database: DatabaseConfig) -> tuple[datetime, datetime]:
    """Two distinct days of the window."""
    first, last = (datetime.fromisoformat(day) for day in database.window)
    days = np.sort(stream(seed, "window").choice((last - first).days, 2, replace=False))
    return first + timedelta(days=int(days[0])), first + timedelta(days=int(days[1]))


def with_rows(schema: Schema, seed: int, database: DatabaseConfig) -> Schema:
    """Draw the number of rows of every table; scale them where ``database.rows`` fixes their sum."""
    rng = stream(seed, "rows")
    drawn = [
        whole(rng, database.activity_rows if table.is_activity else database.entity_rows) for table in schema.tables
    ]
    if database.rows is not None:
        if database.rows < len(drawn):
            raise InputError(
                f"rows is {database.rows}; expected at least one for each of the {len(drawn)} tables of the database"
            )
        # Each table gets a row; the others are shared in proportion, cut at rounded running sums so that none is lost.
        free = database.rows - len(drawn)
        edges = np.rint(np.cumsum([0, *drawn]) / sum(drawn) * free).astype(np.int64)
        drawn = [1 + int(n) for n in np.diff(edges)]
    return replace(schema, tables=tuple(replace(t, n_rows=n) for t, n in zip(schema.tables, drawn, strict=True)))
