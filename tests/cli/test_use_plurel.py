"""`assay use plurel`: from a seed to files, through the door that a user takes."""

import contextlib
import json
import sqlite3
import sys
from pathlib import Path

import pandas as pd
import pytest

from assay._core.errors import InputError

sys.path.insert(0, str(Path(__file__).parents[1] / "synth"))
from plurel_schemas import EMPLOYEES, TELEMETRY

pytestmark = pytest.mark.filterwarnings("ignore:table .* clusters")


def test_the_example_of_the_help_works_with_fewer_rows(run, tmp_path):
    said = run("--seed", 0, "--tables", 8, "--rows", "2e3", "--columns", "3-5", "-o", "db/").stdout
    assert "2,000 rows in " in said
    metadata = json.loads((tmp_path / "db" / "metadata.json").read_text())
    assert metadata["rows"] == 2000
    assert len(metadata["tables"]) == 8
    assert sum(len(pd.read_parquet(path)) for path in (tmp_path / "db").glob("*.parquet")) == 2000
    assert all(3 <= len(table["columns"]) <= 5 for table in metadata["tables"].values())


def test_a_metadata_file_makes_the_same_database_again(run, tmp_path):
    run("--seed", 3, "--tables", 2, "--rows", 300, "-o", "one")
    run("--seed", 3, "--config", "one/metadata.json", "-o", "two")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_a_schema_is_filled_into_sqlite(run, tmp_path):
    Path("schema.sql").write_text(TELEMETRY)
    run("--schema", "schema.sql", "--rows", 500, "--format", "sqlite", "-o", "db")
    with contextlib.closing(sqlite3.connect(tmp_path / "db" / "database.sqlite")) as connection:
        counts = [connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in ("sensor", "reading")]
    assert sum(counts) == 500


def test_a_schema_that_cannot_be_filled_is_refused_and_nothing_is_written(run, tmp_path):
    Path("schema.sql").write_text(EMPLOYEES)
    with pytest.raises(InputError, match=r"^schema\.sql, line 6: table employee refers to itself by column manager"):
        run("--schema", "schema.sql", "-o", "db")
    assert [path.name for path in tmp_path.iterdir()] == ["schema.sql"]


def test_many_databases_go_on_where_they_stopped(run, tmp_path):
    small = ("--tables", 2, "--rows", 200, "--columns", 3)
    assert "2 databases, 400 rows (2 made now" in run("--count", 2, *small, "-o", "many").stdout
    assert "3 databases, 600 rows (1 made now" in run("--count", 3, *small, "-o", "many").stdout
    lines = (tmp_path / "many" / "databases.jsonl").read_text().splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [0, 1, 2]
    assert {json.loads(line)["license"] for line in lines} == {"CC0-1.0"}


def test_pictures_of_the_schema_and_of_a_table_are_drawn(run, tmp_path):
    run("--tables", 2, "--rows", 100, "-o", "db", "--plot", "tables.svg", "--plot-causes", "table_0=causes.png")
    assert (tmp_path / "tables.svg").read_text().startswith("<?xml")
    assert (tmp_path / "causes.png").read_bytes().startswith(b"\x89PNG")


def test_the_papers_choices_can_be_asked_for(run, tmp_path):
    run("--paper", "--tables", 2, "--rows", 100, "-o", "db")
    metadata = json.loads((tmp_path / "db" / "metadata.json").read_text())
    assert metadata["config"]["scm"]["aggregators"] == ["sum"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rows", "many"), "--rows takes a whole number from 1, such as 50000 or 1e6, not 'many'"),
        (("--rows", "1.5"), "--rows takes a whole number from 1, such as 50000 or 1e6, not '1.5'"),
        (("--tables", "0"), "--tables takes a whole number from 1, such as 50000 or 1e6, not '0'"),
        (("--tables", "9-3"), "n_tables is (9, 3): the low end is above the high end"),
        (("--format", "csv"), "format is 'csv'; expected one of parquet, sqlite, duckdb, sql"),
        (("--plot", "x.bmp"), "x.bmp: a picture is written as one of .png, .svg, .pdf"),
        (("--plot-causes", "x.png"), "--plot-causes takes TABLE=FILE, such as table_0=causes.png, not 'x.png'"),
        (("--schema", "no.sql"), "no.sql: no such file"),
        (("--config", "no.json"), "no.json: no such file"),
        (("--paper", "--config", "no.json"), "--paper and --config each give all choices; use one of them"),
        (("--count", "0"), "count=0, jobs=1: expected whole numbers from 1"),
        (("--seed", "-1"), "seed is -1; expected a whole number from 0"),
    ],
    ids=range(12),
)
def test_a_wrong_option_is_told_what_is_wrong(run, arguments, message):
    with pytest.raises(InputError) as caught:
        run(*arguments, "-o", "db")
    assert str(caught.value) == message
