"""Read a SQL schema (PostgreSQL, MySQL, SQLite, SQL Server), and write the one that a database has.

What can be filled faithfully is: integer and decimal and floating numbers, booleans, enumerations (ENUM, or CHECK (… IN
…)), one integer primary key a table and foreign keys to such keys without cycles. Everything else is refused with the
line, the definition and the reason; nothing is quietly left out that would bind the data.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from assay._core.errors import InputError
from assay._core.extras import need
from assay.synth.plurel.graphs import networkx
from assay.synth.plurel.schema import Column, ForeignKey, Schema, Table

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

#: Dialects that are tried in turn: the first that reads every statement.
DIALECTS = ("postgres", "mysql", "sqlite", "tsql")

_INTEGERS = {"TINYINT": 1, "SMALLINT": 2, "MEDIUMINT": 2, "INT": 4, "BIGINT": 8, "SMALLSERIAL": 2, "SERIAL": 4}
_INTEGERS |= {"BIGSERIAL": 8, "UTINYINT": 1, "USMALLINT": 2, "UMEDIUMINT": 2, "UINT": 4, "UBIGINT": 8}
_FLOATS = {"FLOAT": "REAL", "DOUBLE": "DOUBLE PRECISION", "UDOUBLE": "DOUBLE PRECISION"}
_EXACT = {"DECIMAL", "MONEY", "SMALLMONEY", "UDECIMAL"}
_TEXTS = {"TEXT", "VARCHAR", "CHAR", "NVARCHAR", "NCHAR", "TINYTEXT", "MEDIUMTEXT", "BPCHAR", "NAME"}
_INTEGER_NAMES = {1: "SMALLINT", 2: "SMALLINT", 4: "INTEGER", 8: "BIGINT"}

#: Statements and parts of them that say nothing about which rows may stand in a table.
_IGNORED = ("Set", "Pragma", "Drop", "Use", "Transaction", "Commit", "Comment", "Grant", "Semicolon")
_IGNORED_KINDS = {"SCHEMA", "DATABASE", "INDEX", "EXTENSION", "SEQUENCE", "VIEW"}
_IGNORED_CONSTRAINTS = (
    "DefaultColumnConstraint",
    "AutoIncrementColumnConstraint",
    "GeneratedAsIdentityColumnConstraint",
    "CommentColumnConstraint",
    "CollateColumnConstraint",
    "CharacterSetColumnConstraint",
    "IndexColumnConstraint",
)


@dataclass
class _Draft:
    """A table while its statements are read."""

    name: str
    columns: dict[str, Any] = field(default_factory=dict)
    primary_key: str | None = None
    keys: dict[str, tuple[str, str | None, Any]] = field(default_factory=dict)
    labels: dict[str, tuple[list[str], bool]] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)


def read_schema(text: str, window: tuple[datetime, datetime], *, name: str = "schema.sql") -> Schema:
    """Read CREATE TABLE statements.

    Parameters
    ----------
    text : str
    window : pair of datetime
        Passed on to the schema.
    name : str
        Of the file, for messages.

    Returns
    -------
    Schema
        Without row counts.

    Raises
    ------
    InputError
        A statement or column that cannot be filled faithfully, with its line.

    Examples
    --------
    >>> from datetime import datetime
    >>> text = "CREATE TABLE a (id INT PRIMARY KEY, x REAL); CREATE TABLE b (a_id INT REFERENCES a, y REAL);"
    >>> [table.name for table in read_schema(text, (datetime(2000, 1, 1), datetime(2001, 1, 1))).tables]
    ['a', 'b']
    """
    return _Reader(name).read(text, window)


class _Reader:
    def __init__(self, name: str) -> None:
        self.name = name
        self.tables: dict[str, _Draft] = {}
        self.enums: dict[str, list[str]] = {}

    def read(self, text: str, window: tuple[datetime, datetime]) -> Schema:
        for statement in self._parsed(text):
            self._statement(statement)
        if not self.tables:
            raise InputError(f"{self.name} holds no CREATE TABLE statement")
        referred = {self._parent(draft, column) for draft in self.tables.values() for column in draft.keys}
        tables = tuple(
            self._table(draft, is_activity=_fold(draft.name) not in referred) for draft in self.tables.values()
        )
        schema = Schema(tables, window, self.name)
        self._refuse_cycles(schema)
        return schema

    # ------------------------------------------------------------------------------------------------ statements

    def _parsed(self, text: str) -> list[Any]:
        sqlglot = need("sqlglot", extra="synth", purpose="reading a SQL schema")
        problems = []
        logger = logging.getLogger("sqlglot")
        level = logger.level
        logger.setLevel(logging.ERROR)  # it warns of statements that it keeps as text; those are refused below
        try:
            found = []
            for dialect in DIALECTS:
                try:
                    parsed = [statement for statement in sqlglot.parse(text, dialect=dialect) if statement is not None]
                except sqlglot.errors.SqlglotError as error:
                    detail = (getattr(error, "errors", None) or [{}])[0]
                    problems.append((detail.get("line") or 0, detail.get("description") or str(error)))
                    continue
                unread = sum(type(statement).__name__ == "Command" for statement in parsed)
                if unread == 0:
                    return parsed
                found.append((unread, parsed))
        finally:
            logger.setLevel(level)
        if found:
            return min(found, key=lambda pair: pair[0])[1]
        line, problem = max(problems, key=lambda pair: pair[0])
        raise InputError(
            f"{self.name}, line {line}: no SQL that PostgreSQL, MySQL, SQLite or SQL Server reads ({problem})"
        )

    def _statement(self, statement: Any) -> None:
        kind = type(statement).__name__
        what = str(statement.args.get("kind") or "").upper()
        if kind == "Create" and what == "TABLE":
            self._create(statement)
        elif kind == "Create" and what == "TYPE" and _type_name(statement.expression) == "ENUM":
            self.enums[_fold(statement.this.name)] = [literal.name for literal in statement.expression.expressions]
        elif kind == "Alter" and what == "TABLE":
            self._alter(statement)
        elif kind in _IGNORED or (kind == "Create" and what in _IGNORED_KINDS and not statement.args.get("unique")):
            return
        else:
            self._refuse(statement, "this statement is not understood; leave it out if it does not bind the data")

    def _create(self, statement: Any) -> None:
        if type(statement.this).__name__ != "Schema":
            self._refuse(statement, "a table is filled from its columns, not from a query")
        draft = _Draft(statement.this.this.name)
        if _fold(draft.name) in self.tables:
            self._refuse(statement, f"table {draft.name} is there already")
        self.tables[_fold(draft.name)] = draft
        for item in statement.this.expressions:
            if type(item).__name__ == "ColumnDef":
                draft.columns[item.name] = item
        for item in statement.this.expressions:
            if type(item).__name__ == "ColumnDef":
                for constraint in item.args.get("constraints") or []:
                    self._of_column(draft, item, constraint.kind)
            else:
                self._of_table(draft, item)

    def _alter(self, statement: Any) -> None:
        draft = self.tables.get(_fold(statement.this.name))
        if draft is None:
            self._refuse(statement, f"there is no table {statement.this.name} above it")
        for action in statement.args.get("actions") or []:
            if type(action).__name__ != "AddConstraint":
                self._refuse(statement, "only ADD CONSTRAINT is understood")
            for item in action.expressions:
                self._of_table(draft, item)

    # ----------------------------------------------------------------------------------------------- constraints

    def _of_column(self, draft: _Draft, column: Any, constraint: Any) -> None:
        kind = type(constraint).__name__
        if kind == "PrimaryKeyColumnConstraint":
            self._set_primary_key(draft, [column.name], column)
        elif kind == "Reference":
            self._set_key(draft, [column.name], constraint, column)
        elif kind == "NotNullColumnConstraint":
            if not constraint.args.get("allow_null"):
                draft.required.add(column.name)
        elif kind == "CheckColumnConstraint":
            self._check(draft, constraint.this, column)
        elif kind == "UniqueColumnConstraint":
            self._refuse(column, f"table {draft.name}: values that must be unique are not generated")
        elif kind not in _IGNORED_CONSTRAINTS:
            self._refuse(column, f"table {draft.name}: this constraint is not understood")

    def _of_table(self, draft: _Draft, item: Any) -> None:
        kind = type(item).__name__
        if kind == "Constraint":
            for inner in item.expressions:
                self._of_table(draft, inner)
        elif kind == "PrimaryKey":
            self._set_primary_key(draft, [_key_part(part) for part in item.expressions], item)
        elif kind == "ForeignKey":
            self._set_key(draft, [part.name for part in item.expressions], item.args["reference"], item)
        elif kind in ("CheckColumnConstraint", "Check"):
            self._check(draft, item.this, item)
        elif kind in ("UniqueColumnConstraint",):
            self._refuse(item, f"table {draft.name}: values that must be unique are not generated")
        elif kind not in _IGNORED_CONSTRAINTS:
            self._refuse(item, f"table {draft.name}: this constraint is not understood")

    def _set_primary_key(self, draft: _Draft, names: list[str], where: Any) -> None:
        if len(names) > 1:
            self._refuse(
                where, f"table {draft.name} has a primary key of {len(names)} columns; give it one column of its own"
            )
        draft.primary_key = self._own(draft, names[0], where)

    def _set_key(self, draft: _Draft, names: list[str], reference: Any, where: Any) -> None:
        if len(names) > 1:
            self._refuse(where, f"table {draft.name} has a foreign key of {len(names)} columns; give it one column")
        target = reference.this
        columns = [part.name for part in target.expressions] if type(target).__name__ == "Schema" else []
        table = target.this if type(target).__name__ == "Schema" else target
        column = self._own(draft, names[0], where)
        draft.keys[column] = (table.name, columns[0] if columns else None, where)

    def _check(self, draft: _Draft, condition: Any, where: Any) -> None:
        while type(condition).__name__ == "Paren":
            condition = condition.this
        is_list = type(condition).__name__ == "In" and type(condition.this).__name__ == "Column"
        literals = condition.expressions if is_list else []
        if not literals or any(type(literal).__name__ != "Literal" for literal in literals):
            self._refuse(where, f"table {draft.name}: of CHECKs only column IN (values) is generated")
        is_text = [literal.is_string for literal in literals]
        if any(is_text) != all(is_text):
            self._refuse(where, f"table {draft.name}: the values of IN are of two types")
        column = self._own(draft, condition.this.name, where)
        draft.labels[column] = [literal.name for literal in literals], is_text[0]

    def _own(self, draft: _Draft, name: str, where: Any) -> str:
        found = [str(column) for column in draft.columns if _fold(column) == _fold(name)]
        if not found:
            self._refuse(where, f"table {draft.name} has no column {name}")
        return found[0]

    # ---------------------------------------------------------------------------------------------------- tables

    def _parent(self, draft: _Draft, column: str) -> str:
        name, key, where = draft.keys[column]
        parent = self.tables.get(_fold(name))
        if parent is None:
            self._refuse(
                where, f"table {draft.name}, column {column} refers to table {name}, which is not in the schema"
            )
        if parent.primary_key is None or (key is not None and _fold(key) != _fold(parent.primary_key)):
            self._refuse(
                where, f"table {draft.name}, column {column} refers to {name}.{key}, which is not its primary key"
            )
        return _fold(name)

    def _table(self, draft: _Draft, *, is_activity: bool) -> Table:
        keys, columns, key_type = [], [], ""
        for name, definition in draft.columns.items():
            if name == draft.primary_key or name in draft.keys:
                size = _INTEGERS.get(_type_name(definition.kind))
                if size is None:
                    what = "primary" if name == draft.primary_key else "foreign"
                    self._refuse(
                        definition,
                        f"table {draft.name}, column {name}: {what} keys are whole numbers here, not "
                        f"{definition.kind.sql()}",
                    )
                if name == draft.primary_key and name in draft.keys:
                    self._refuse(
                        definition,
                        f"table {draft.name}, column {name}: a key that is primary and foreign is not generated",
                    )
                if name in draft.keys:
                    parent = self.tables[self._parent(draft, name)].name
                    keys.append(ForeignKey(name, parent, _INTEGER_NAMES[size]))
                else:
                    key_type = _INTEGER_NAMES[size]
            else:
                columns.append(self._column(draft, name, definition))
        return Table(
            draft.name,
            tuple(columns),
            tuple(keys),
            draft.primary_key,
            is_activity=is_activity,
            first_key=1,
            order=tuple(draft.columns),
            key_type=key_type,
        )

    def _column(self, draft: _Draft, name: str, definition: Any) -> Column:
        kind, data = _type_name(definition.kind), definition.kind
        is_required = name in draft.required
        enum = (
            [literal.name for literal in data.expressions] if kind == "ENUM" else self.enums.get(_fold(_custom(data)))
        )
        labels, is_text = draft.labels.get(name, (enum, True))
        if labels is not None:
            if len(set(labels)) < 2:
                self._refuse(definition, f"table {draft.name}, column {name}: expected at least two different values")
            if not is_text and not all(_is_integer(label) for label in labels):
                self._refuse(definition, f"table {draft.name}, column {name}: numbers of IN are whole numbers here")
            if not is_text and kind not in _INTEGERS:
                self._refuse(definition, f"table {draft.name}, column {name}: numbers of IN need an integer column")
            unique = tuple(dict.fromkeys(labels))
            sql_type = "TEXT" if is_text else _INTEGER_NAMES[_INTEGERS[kind]]
            return Column(name, len(unique), unique, sql_type, "label" if is_text else "code", is_required=is_required)
        parameters = [int(part.name) for part in data.expressions if _is_integer(part.name)]
        if kind in ("BOOLEAN", "BIT") or (kind == "TINYINT" and parameters == [1]):
            return Column(name, 2, (), "BOOLEAN", "boolean", is_required=is_required)
        if kind in _INTEGERS:
            size, is_unsigned = _INTEGERS[kind], kind.startswith("U")
            sql_type = _INTEGER_NAMES[size]
            return Column(name, 0, (), sql_type, "integer", size, is_required=is_required, is_unsigned=is_unsigned)
        if kind in _FLOATS:
            return Column(name, 0, (), _FLOATS[kind], "float", is_required=is_required)
        if kind not in _EXACT:
            hint = "; give it a CHECK (… IN …) or leave it out" if kind in _TEXTS else "; leave it out"
            what = f"values of type {data.sql()} are not generated"
            self._refuse(definition, f"table {draft.name}, column {name}: {what}{hint}")
        digits, scale = (*parameters, 0)[:2] if parameters else (18, 4)
        return Column(name, 0, (), f"NUMERIC({digits},{scale})", "exact", digits, scale, is_required=is_required)

    def _refuse_cycles(self, schema: Schema) -> None:
        graph = schema.graph()
        try:
            edges = networkx().find_cycle(graph)
        except networkx().NetworkXNoCycle:
            return
        child, column = edges[0][1], edges[0][2]
        where = self.tables[_fold(child)].keys[column][2]
        path = " -> ".join([edge[0] for edge in edges] + [edges[0][0]])
        what = "refers to itself" if len(edges) == 1 else f"refers to itself in a circle ({path})"
        self._refuse(
            where, f"table {child} {what} by column {column}; a child is made after its parents, so leave it out"
        )

    def _refuse(self, where: Any, reason: str) -> NoReturn:
        lines = [node.meta["line"] for node in where.walk() if "line" in node.meta]
        text = " ".join(where.sql(comments=False).split())
        shown = text if len(text) <= 100 else text[:97] + "..."
        place = f"{self.name}, line {min(lines)}" if lines else self.name
        raise InputError(f"{place}: {reason}: {shown}")


def _fold(name: str) -> str:
    return name.casefold()


def _type_name(data: Any) -> str:
    return "" if data is None or isinstance(data.this, str) else str(getattr(data.this, "value", data.this)).upper()


def _custom(data: Any) -> str:
    """The name of a type that the schema made itself."""
    kind = data.args.get("kind")
    return "" if kind is None else str(getattr(kind, "name", kind)).rpartition(".")[2].strip('"')


def _key_part(part: Any) -> str:
    return str(part.this.name if type(part).__name__ == "Ordered" else part.name)


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


# ------------------------------------------------------------------------------------------------------- writing SQL


def quoted(name: str) -> str:
    """An identifier that every database reads as it stands."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def literal(text: str) -> str:
    """A string of SQL."""
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def create_table(table: Table, columns: Iterable[Column], parent_keys: dict[str, str]) -> str:
    """A CREATE TABLE statement that SQLite, PostgreSQL and DuckDB read, with every key and every set of values.

    Parameters
    ----------
    table : Table
    columns : iterable of Column
        Those that are written.
    parent_keys : dict of table to the name of its primary key
    """
    lines = {}
    if table.primary_key is not None:
        lines[table.primary_key] = f"{quoted(table.primary_key)} {table.key_type or 'BIGINT'} PRIMARY KEY"
    for foreign in table.keys:
        target = f"{quoted(foreign.parent)} ({quoted(parent_keys[foreign.parent])})"
        lines[foreign.column] = f"{quoted(foreign.column)} {foreign.sql_type or 'BIGINT'} NOT NULL REFERENCES {target}"
    for column in columns:
        lines[column.name] = _column_line(column)
    if table.has_date:
        lines["date"] = '"date" TIMESTAMP NOT NULL'
    ordered = [lines[name] for name in table.order if name in lines] if table.order else list(lines.values())
    body = ",\n  ".join(ordered)
    return f"CREATE TABLE {quoted(table.name)} (\n  {body}\n);"


def _column_line(column: Column) -> str:
    name = quoted(column.name)
    if column.kind == "class":
        return f"{name} SMALLINT NOT NULL CHECK ({name} BETWEEN 0 AND {column.n_classes - 1})"
    if column.kind in ("label", "code"):
        values = ", ".join(literal(label) if column.kind == "label" else label for label in column.labels)
        return f"{name} {column.sql_type}{' NOT NULL' * column.is_required} CHECK ({name} IN ({values}))"
    sql_type = "BOOLEAN" if column.kind == "boolean" else column.sql_type or "DOUBLE PRECISION"
    return f"{name} {sql_type}{' NOT NULL' * column.is_required}"
