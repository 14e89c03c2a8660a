"""SQL schemas of other people: filled faithfully, or refused with the line, the definition and the reason."""

import sys
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from assay._core.errors import InputError
from assay.synth.plurel import DatabaseConfig, RelationalConfig, generate_database, read_schema
from assay.synth.plurel.sql import create_table, literal, quoted

sys.path.insert(0, str(Path(__file__).parent))
from plurel_schemas import FAITHFUL, REFUSED

WINDOW = datetime(2000, 1, 1), datetime(2001, 1, 1)
SMALL = RelationalConfig(DatabaseConfig(entity_rows=60, activity_rows=150))


@pytest.fixture(scope="module")
def filled():
    return {name: generate_database(1, SMALL, text) for name, text in FAITHFUL.items()}


@pytest.mark.filterwarnings("ignore:table .* clusters")
@pytest.mark.parametrize("name", FAITHFUL)
def test_a_schema_is_filled_column_by_column_in_its_order(filled, name):
    database = filled[name]
    for table in database.schema.tables:
        frame = database.tables[table.name]
        assert list(frame.columns) == list(table.order)
        assert len(frame) == table.n_rows
        for column in table.columns:
            values = frame[column.name]
            assert not (column.is_required and values.isna().any())
            if column.labels:
                assert set(map(str, values.unique())) <= set(column.labels)
            if column.kind == "boolean":
                assert values.dtype == bool
            if column.kind == "exact":
                cents = values.dropna() * 10**column.scale
                np.testing.assert_allclose(cents, np.rint(cents), atol=1e-4)
                assert values.abs().max() < 10 ** (column.digits - column.scale)
            if column.is_unsigned:
                assert values.min() >= 0


@pytest.mark.filterwarnings("ignore:table .* clusters")
@pytest.mark.parametrize("name", FAITHFUL)
def test_every_key_of_a_schema_points_to_a_row(filled, name):
    database = filled[name]
    for table in database.schema.tables:
        frame = database.tables[table.name]
        if table.primary_key:
            assert frame[table.primary_key].is_unique
        for key in table.keys:
            parent = database.schema.by_name[key.parent]
            assert frame[key.column].isin(database.tables[key.parent][parent.primary_key]).all()


def test_the_shops_types_keys_and_labels_are_read():
    schema = read_schema(FAITHFUL["shop"], WINDOW)
    customers, orders, lines = (schema.by_name[name] for name in ("customers", "orders", "order_lines"))
    assert [(c.name, c.kind, c.is_required) for c in customers.columns] == [
        ("segment", "label", True),
        ("loyalty_points", "integer", False),
        ("credit", "exact", True),
        ("is_active", "boolean", True),
    ]
    assert orders.columns[0].labels == ("placed", "paid", "shipped", "returned")
    assert [(key.column, key.parent) for key in lines.keys] == [("order_id", "orders"), ("product_id", "products")]
    assert [t.name for t in schema.tables if t.is_activity] == ["order_lines"]


def test_two_keys_to_one_table_are_two_keys_with_rows_of_their_own():
    frame = generate_database(0, SMALL, FAITHFUL["forum"]).tables["Messages"]
    assert (frame["SenderId"] != frame["ReceiverId"]).mean() > 0.5


def test_numbers_of_a_list_are_written_as_numbers():
    frame = generate_database(0, SMALL, FAITHFUL["telemetry"]).tables["reading"]
    assert set(frame["quality"].unique()) <= {0, 1, 2, 9}


def test_two_tables_and_a_checked_list_are_exactly_that():
    text = """
        CREATE TABLE owner (id INTEGER PRIMARY KEY, age INTEGER);
        CREATE TABLE pet (
            id INTEGER PRIMARY KEY,
            owner_id INTEGER REFERENCES owner (id),
            kind TEXT CHECK (kind IN ('cat', 'dog'))
        );
    """
    database = generate_database(0, SMALL, text)
    assert {name: list(frame.columns) for name, frame in database.tables.items()} == {
        "owner": ["id", "age"],
        "pet": ["id", "owner_id", "kind"],
    }
    assert list(database.schema_graph.edges()) == [("owner", "pet")]
    assert isinstance(database.tables["pet"]["kind"].dtype, pd.CategoricalDtype)
    assert list(database.tables["pet"]["kind"].cat.categories) == ["cat", "dog"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "employees",
            "schema.sql, line 6: table employee refers to itself by column manager; a child is made after its parents, "
            "so leave it out: manager INT REFERENCES employee (id)",
        ),
        (
            "composite",
            "schema.sql, line 8: table enrolment has a primary key of 2 columns; give it one column of its own: "
            "PRIMARY KEY (student_id, course_id)",
        ),
        (
            "blog",
            "schema.sql, line 6: table post, column title: values of type VARCHAR(200) are not generated; give it a "
            "CHECK (… IN …) or leave it out: title VARCHAR(200) NOT NULL",
        ),
        (
            "cycle",
            "schema.sql, line 3: table b refers to itself in a circle (a -> b -> a) by column a_id; a child is made "
            "after its parents, so leave it out: a_id INT REFERENCES a (id)",
        ),
    ],
)
def test_a_schema_that_cannot_be_filled_is_refused_with_its_line_and_reason(name, message):
    with pytest.raises(InputError) as caught:
        read_schema(REFUSED[name], WINDOW)
    assert str(caught.value) == message


PARENT = "CREATE TABLE p (id INT PRIMARY KEY, x REAL);\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE TABLE t (id INT PRIMARY KEY, born DATE);", "column born: values of type DATE are not generated"),
        ("CREATE TABLE t (id INT PRIMARY KEY, at TIME);", "column at: values of type TIME are not generated"),
        ("CREATE TABLE t (id INT PRIMARY KEY, data JSON);", "column data: values of type JSON are not generated"),
        ("CREATE TABLE t (id UUID PRIMARY KEY);", "column id: primary keys are whole numbers here, not UUID"),
        (
            "CREATE TABLE t (id INT PRIMARY KEY, q INT REFERENCES q (id));",
            "column q refers to table q, which is not in",
        ),
        (
            PARENT + "CREATE TABLE t (y INT REFERENCES p (x));",
            "line 2: table t, column y refers to p.x, which is not its",
        ),
        ("CREATE TABLE t (id INT PRIMARY KEY, x REAL UNIQUE);", "values that must be unique are not generated: x"),
        (
            "CREATE TABLE t (id INT PRIMARY KEY, x REAL CHECK (x > 0));",
            "of CHECKs only column IN (values) is generated",
        ),
        ("CREATE TABLE t (id INT PRIMARY KEY, k TEXT CHECK (k IN ('a')));", "expected at least two different values"),
        ("CREATE TABLE t (id INT PRIMARY KEY REFERENCES p);" + PARENT, "a key that is primary and foreign is not"),
        ("CREATE TABLE t AS SELECT 1 AS x;", "a table is filled from its columns, not from a query"),
        (
            "CREATE TABLE t (id INT PRIMARY KEY);\nCREATE TABLE t (id INT PRIMARY KEY);",
            "line 2: table t is there already",
        ),
        (PARENT + "CREATE UNIQUE INDEX i ON p (x);", "line 2: this statement is not understood"),
        (PARENT + "INSERT INTO p VALUES (1, 2);", "line 2: this statement is not understood"),
        (PARENT + "ALTER TABLE q ADD CONSTRAINT k PRIMARY KEY (id);", "there is no table q above it"),
        (PARENT + "ALTER TABLE p ADD CONSTRAINT k PRIMARY KEY (nr);", "table p has no column nr"),
        ("SELECT (1;", "no SQL that PostgreSQL, MySQL, SQLite or SQL Server reads"),
        ("-- nothing", "schema.sql holds no CREATE TABLE statement"),
    ],
    ids=range(18),
)
def test_what_cannot_be_filled_is_named(text, message):
    with pytest.raises(InputError) as caught:
        read_schema(text, WINDOW)
    assert message in str(caught.value)


def test_more_rows_than_a_key_counts_are_refused():
    text = "CREATE TABLE t (id SMALLINT PRIMARY KEY, x REAL);"
    with pytest.raises(InputError, match=r"table t would have 40,000 rows, more than its key of type SMALLINT counts"):
        generate_database(0, RelationalConfig(DatabaseConfig(rows=40_000)), text)


def test_names_and_texts_are_quoted_for_sql():
    assert quoted('a"b') == '"a""b"'
    assert literal("it's") == "'it''s'"


def test_a_written_schema_reads_back_as_itself():
    for text in FAITHFUL.values():
        schema = read_schema(text, WINDOW)
        keys = {table.name: table.primary_key for table in schema.tables}
        again = read_schema("\n".join(create_table(t, t.columns, keys) for t in schema.parents_first()), WINDOW)
        assert {t.name for t in again.tables} == {t.name for t in schema.tables}
        for table in again.tables:
            before = schema.by_name[table.name]
            assert table.order == before.order
            assert [(k.column, k.parent) for k in table.keys] == [(k.column, k.parent) for k in before.keys]
            assert [c.labels for c in table.columns] == [c.labels for c in before.columns]
