"""Whole databases: the same from the same seed, keys that hold, cells that are done to as said, files that load."""

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from assay._core.errors import InputError
from assay.synth.plurel import (
    DatabaseConfig,
    RelationalConfig,
    ScmConfig,
    SyntheticDatabases,
    generate_database,
    generate_many,
    read_metadata,
    write_database,
)
from assay.synth.plurel.draws import BLOCK
from assay.synth.plurel.engine import Recipe, raw_tables, scratch
from assay.synth.plurel.finish import ranks
from assay.synth.plurel.schema import draw_schema
from assay.synth.plurel.store import StoredColumn
from assay.synth.plurel.write import file_name

sys.path.insert(0, str(Path(__file__).parent))
from plurel_schemas import FAITHFUL, SHOP

pytestmark = pytest.mark.filterwarnings("ignore:table .* clusters")

SMALL = RelationalConfig(
    DatabaseConfig(n_tables=5, n_columns=(3, 8), entity_rows=200, activity_rows=(1500, 2500)),
)


@pytest.fixture(scope="module")
def database():
    return generate_database(0, SMALL, ground_truth=True)


def as_text(tables):
    return {name: frame.to_csv(index=False) for name, frame in tables.items()}


# --------------------------------------------------------------------------------------------------- reproducibility


def test_the_same_seed_gives_the_same_cells(database):
    again = generate_database(0, SMALL)
    for name, frame in database.tables.items():
        pd.testing.assert_frame_equal(frame, again.tables[name], check_exact=True)


def test_another_seed_gives_other_cells(database):
    assert as_text(generate_database(1, SMALL).tables) != as_text(database.tables)


def test_seed_zero_is_a_seed():
    small = SMALL.with_database(n_tables=2, activity_rows=300)
    np.random.seed(1)  # noqa: NPY002  # the global generators must not matter
    first = as_text(generate_database(0, small).tables)
    np.random.seed(2)  # noqa: NPY002
    assert as_text(generate_database(0, small).tables) == first


def test_the_chunk_changes_no_cell():
    recipe = Recipe(0, draw_schema(0, SMALL), SMALL)
    made = []
    for chunk_rows in (BLOCK, 8 * BLOCK):
        with scratch(None) as folder:
            made.append(
                {
                    (raw.table.name, name): column.read(0, raw.table.n_rows).copy()
                    for raw in raw_tables(recipe, folder, chunk_rows=chunk_rows)
                    for name, column in [*raw.values.items(), *((f"key {j}", key) for j, key in enumerate(raw.keys))]
                }
            )
    assert made[0].keys() == made[1].keys()
    for place, values in made[0].items():
        np.testing.assert_array_equal(values, made[1][place])


def test_what_is_written_is_what_is_generated(tmp_path, database):
    metadata = write_database(0, tmp_path / "db", SMALL)
    assert metadata == database.metadata == read_metadata(tmp_path / "db")
    for name, frame in database.tables.items():
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "db" / file_name(name)), frame, check_exact=True)


# -------------------------------------------------------------------------------------------------------------- keys


def test_every_child_row_has_one_parent_that_exists(database):
    for name, table in database.metadata["tables"].items():
        frame = database.tables[name]
        assert (frame["row_idx"] == np.arange(len(frame))).all()
        for key, parent in table["foreign_keys"].items():
            assert frame[key].dtype == np.int64
            assert frame[key].between(0, len(database.tables[parent]) - 1).all()


def test_activity_tables_have_dates_in_order_over_the_window(database):
    first, last = (pd.Timestamp(day) for day in database.metadata["window"])
    kinds = {name: table["type"] for name, table in database.metadata["tables"].items()}
    assert {"entity", "activity"} == set(kinds.values())
    for name, frame in database.tables.items():
        assert ("date" in frame) == (kinds[name] == "activity")
        if "date" in frame:
            assert frame["date"].is_monotonic_increasing
            assert (frame["date"].iloc[0], frame["date"].iloc[-1]) == (first, last)
            steps = frame["date"].diff().dropna()
            assert steps.max() - steps.min() <= pd.Timedelta(microseconds=2)


def test_the_truth_has_graphs_latents_and_clusters(database):
    for name, truth in database.ground_truth.items():
        table = database.metadata["tables"][name]
        latent = [str(v) for v, column in truth["graph"].nodes(data="column") if column is None]
        assert sorted(truth["latents"]) == sorted(latent)
        assert all(len(values) == table["rows"] for values in truth["latents"].values())
        assert set(truth["keys"]) == set(table["foreign_keys"])


# ------------------------------------------------------------------------------------------------------------- cells


def test_the_share_of_missing_cells_is_the_floor_of_what_was_drawn(database):
    for name, table in database.metadata["tables"].items():
        counts = {
            int(database.tables[name][column].isna().sum())
            for column, about in table["columns"].items()
            if about["type"] == "numerical"
        }
        assert len(counts) <= 1
        assert all(0.01 * table["rows"] - 1 <= n <= 0.1 * table["rows"] for n in counts)
        assert not any(
            database.tables[name][column].isna().any()
            for column, about in table["columns"].items()
            if about["type"] == "categorical"
        )


def one_transform(name):
    config = SMALL.with_database(transforms=name, missing=0.0, n_tables=2)
    return generate_database(4, config)


def numerical_columns(database):
    return [
        (table, column)
        for table, about in database.metadata["tables"].items()
        for column, a in about["columns"].items()
        if a["type"] == "numerical" and not a["is_constant"]
    ]


def test_rank_uniform_is_the_rank_over_one_more_than_the_rows():
    plain, ranked = one_transform("identity"), one_transform("rank_uniform")
    columns = numerical_columns(plain)
    assert columns
    for table, column in columns:
        expected = plain.tables[table][column].rank() / (len(plain.tables[table]) + 1)
        np.testing.assert_allclose(ranked.tables[table][column], expected, rtol=1e-12)
        assert ranked.tables[table][column].between(0, 1, inclusive="neither").all()


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("log1p", lambda x: np.sign(x) * np.log1p(np.abs(x))),
        ("sqrt", lambda x: np.sign(x) * np.sqrt(np.abs(x))),
        ("standardise", lambda x: (x - x.mean()) / max(x.std(ddof=0), 1e-8)),
    ],
)
def test_a_transform_is_its_formula(name, function):
    plain, changed = one_transform("identity"), one_transform(name)
    for table, column in numerical_columns(plain):
        x = plain.tables[table][column]
        np.testing.assert_allclose(changed.tables[table][column], function(x), rtol=1e-6, atol=1e-9)


def test_children_depend_on_values_before_transforms_and_holes():
    """With other transforms and holes in the parents no class of any child changes."""
    a = generate_database(2, SMALL.with_database(transforms="identity", missing=0.0))
    b = generate_database(2, SMALL.with_database(transforms="rank_uniform", missing=0.1))
    for name, table in a.metadata["tables"].items():
        for column, about in table["columns"].items():
            if about["type"] == "categorical":
                assert (a.tables[name][column] == b.tables[name][column]).all()


def test_lazy_classes_are_cut_at_values_of_the_column():
    config = RelationalConfig(
        DatabaseConfig(n_tables=2, entity_rows=400, activity_rows=400), ScmConfig(propagation="lazy")
    )
    recipe = Recipe(0, draw_schema(0, config), config)
    with scratch(None) as folder:
        for raw in raw_tables(recipe, folder):
            for column in raw.table.columns:
                values = raw.values[column.name].read(0, raw.table.n_rows)
                if column.is_categorical:
                    assert set(np.unique(values)) <= set(range(column.n_classes))


def test_boolean_classes_are_above_zero_and_constant_ones_are_dropped():
    full = generate_database(3, SMALL)
    boolean = generate_database(3, SMALL.with_database(categorical="boolean"))
    n_dropped = 0
    for name, table in full.metadata["tables"].items():
        for column, about in table["columns"].items():
            if about["type"] != "categorical":
                continue
            expected = full.tables[name][column] > 0
            if expected.nunique() == 1:
                n_dropped += 1
                assert column not in boolean.tables[name]
                assert column in boolean.metadata["tables"][name]["dropped"]
            else:
                assert (boolean.tables[name][column] == expected).all()
    assert n_dropped


def test_ranks_of_equal_values_are_their_mean():
    x = np.array([3, 1, 1, 2], dtype=np.float32)
    np.testing.assert_allclose(ranks(np.sort(x), x), np.array([4, 1.5, 1.5, 3]) / 5)


def test_constant_columns_are_reported(database):
    for name, table in database.metadata["tables"].items():
        for column, about in table["columns"].items():
            if about["type"] == "categorical":
                values = database.tables[name][column]
                assert about["is_constant"] == (values.nunique() == 1)
                assert about["largest_class"] == pytest.approx(values.value_counts(normalize=True).max(), abs=1e-6)


def test_too_few_rows_for_the_clusters_are_warned_of():
    config = RelationalConfig(DatabaseConfig(n_tables=2, entity_rows=5, activity_rows=50, levels=4, clusters=2))
    with pytest.warns(UserWarning, match=r"table_\d has 5 rows for 16 clusters of the key from table_\d to table_\d"):
        generate_database(0, config)


# ------------------------------------------------------------------------------------------------- columns on disk


@pytest.mark.parametrize("n_rows", [1000, 200_000])
def test_a_stored_column_gives_back_what_was_put_in(tmp_path, n_rows, monkeypatch):
    monkeypatch.setattr("assay.synth.plurel.store.SEGMENT", 30_000)
    values = np.arange(n_rows, dtype=np.float32)
    column = StoredColumn(n_rows, np.float32, tmp_path)
    for start in range(0, n_rows, 70_000):
        column.write(start, values[start : start + 70_000])
    rows = np.random.default_rng(0).integers(n_rows, size=500)
    np.testing.assert_array_equal(column.gather(rows), values[rows])
    np.testing.assert_array_equal(column.read(10, 60), values[10:60])
    np.testing.assert_array_equal(column.every(7), values[::7])
    assert bool(list(tmp_path.iterdir())) == (n_rows > 1000)
    column.remove()
    assert not list(tmp_path.iterdir())


def test_columns_on_disk_hold_the_cells_of_columns_in_memory(monkeypatch):
    expected = as_text(generate_database(0, SMALL).tables)
    monkeypatch.setattr("assay.synth.plurel.store.SMALL", 50)
    monkeypatch.setattr("assay.synth.plurel.store.SEGMENT", 300)
    assert as_text(generate_database(0, SMALL).tables) == expected


# --------------------------------------------------------------------------------------------------- files that load


def counts_of(metadata):
    return {name: table["rows"] for name, table in metadata["tables"].items()}


def test_sqlite_holds_all_rows_and_enforces_every_key(tmp_path):
    metadata = write_database(0, tmp_path / "db", SMALL, form="sqlite")
    with contextlib.closing(sqlite3.connect(tmp_path / "db" / "database.sqlite")) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        declared = 0
        for name, n in counts_of(metadata).items():
            assert connection.execute(f'SELECT count(*) FROM "{name}"').fetchone() == (n,)
            keys = connection.execute(f'PRAGMA foreign_key_list("{name}")').fetchall()
            declared += len(keys)
            for key in keys:
                with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
                    connection.execute(f'UPDATE "{name}" SET "{key[3]}" = 999999999 WHERE "row_idx" = 0')
    assert declared == sum(len(table["foreign_keys"]) for table in metadata["tables"].values()) > 0


def test_a_database_in_memory_is_written_as_sqlite(tmp_path, database):
    database.to_sqlite(tmp_path / "db.sqlite")
    with contextlib.closing(sqlite3.connect(tmp_path / "db.sqlite")) as connection:
        for name, frame in database.tables.items():
            read = pd.read_sql(f'SELECT * FROM "{name}"', connection)
            for column in frame.columns.drop("date", errors="ignore"):
                np.testing.assert_allclose(read[column].astype(float), frame[column].astype(float), equal_nan=True)


def test_the_script_runs_in_sqlite_with_keys_enforced(tmp_path):
    metadata = write_database(0, tmp_path / "db", SMALL, form="sql")
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.executescript((tmp_path / "db" / "database.sql").read_text())
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        for name, n in counts_of(metadata).items():
            assert connection.execute(f'SELECT count(*) FROM "{name}"').fetchone() == (n,)


def test_duckdb_holds_the_cells_with_keys_enforced(tmp_path, database):
    duckdb = pytest.importorskip("duckdb")
    write_database(0, tmp_path / "db", SMALL, form="duckdb")
    connection = duckdb.connect(str(tmp_path / "db" / "database.duckdb"))
    for name, frame in database.tables.items():
        read = connection.execute(f'SELECT * FROM "{name}" ORDER BY "row_idx"').df()
        for column in frame.columns.drop("date", errors="ignore"):
            np.testing.assert_allclose(read[column].astype(float), frame[column].astype(float), equal_nan=True)
    child = next(name for name, table in database.metadata["tables"].items() if table["foreign_keys"])
    key = next(iter(database.metadata["tables"][child]["foreign_keys"]))
    with pytest.raises(duckdb.ConstraintException):
        connection.execute(f'UPDATE "{child}" SET "{key}" = 999999999 WHERE "row_idx" = 0')
    connection.close()


def programs_of_postgres():
    places = [Path(place).parent for place in [shutil.which("initdb")] if place]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None)


@pytest.fixture(scope="module")
def postgres():
    """A server of its own in a temporary folder, reached by a socket in it; run by a user that is not root."""
    programs = programs_of_postgres()
    if programs is None or shutil.which("psql") is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    user = {}
    folder = tempfile.mkdtemp(prefix="pg-", dir="/tmp")  # a socket's path may have 107 characters
    if os.geteuid() == 0:
        import pwd

        names = {entry.pw_name for entry in pwd.getpwall()}
        name = next((name for name in ("postgres", "nobody") if name in names), None)
        if name is None:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres or nobody")
        user = {"user": name, "cwd": "/"}
        shutil.chown(folder, name)
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": folder}

    def run(*command):
        done = subprocess.run(
            [*map(str, command)], capture_output=True, text=True, env=environment, timeout=120, check=False, **user
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    data = f"{folder}/data"
    try:
        run(programs / "initdb", "-D", data, "-U", "tester", "--auth=trust", "--no-sync", "--encoding=UTF8")
        options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
        run(programs / "pg_ctl", "-D", data, "-l", f"{folder}/log", "-w", "-o", options, "start")
        try:
            yield lambda *rest: run("psql", "-h", folder, "-U", "tester", "-v", "ON_ERROR_STOP=1", "-qAt", *rest)
        finally:
            run(programs / "pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("name", ["drawn", *FAITHFUL])
def test_the_script_loads_into_postgresql_with_every_key_enforced(postgres, name):
    schema = FAITHFUL.get(name)
    config = RelationalConfig(DatabaseConfig(n_tables=5, n_columns=(3, 6), entity_rows=80, activity_rows=200))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        metadata = write_database(0, Path(folder) / "db", config, schema, form="sql")
        script = (Path(folder) / "db" / "database.sql").read_text()
        place = Path(folder) / "load.sql"
        place.write_text(script)
        place.chmod(0o644)
        postgres("-d", "postgres", "-c", f"CREATE DATABASE {name}")
        postgres("-d", name, "-f", place)
    for table, n in counts_of(metadata).items():
        assert postgres("-d", name, "-c", f'SELECT count(*) FROM "{table}"').strip() == str(n)
    declared = postgres("-d", name, "-c", "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND convalidated")
    keys = [(table, key) for table, about in metadata["tables"].items() for key in about["foreign_keys"]]
    assert int(declared) == len(keys)
    for table, key in keys:
        with pytest.raises(AssertionError, match="violates foreign key constraint"):
            postgres("-d", name, "-c", f'UPDATE "{table}" SET "{key}" = 32000')


# --------------------------------------------------------------------------------------------------- what is beside


def test_metadata_say_where_a_database_comes_from(database):
    metadata = database.metadata
    assert metadata["seed"] == 0
    assert metadata["paper"]["arxiv"] == "2602.04029"
    assert metadata["license"] == "CC0-1.0"
    assert RelationalConfig.from_dict(metadata["config"]) == SMALL
    assert metadata["generator"]["package"] == "assay-ml"


def test_of_a_users_schema_the_licence_is_left_open_and_its_hash_is_kept(tmp_path):
    metadata = write_database(0, tmp_path / "db", SMALL, SHOP)
    assert metadata["license"] is None
    assert len(metadata["schema"]["sha256"]) == 64


def test_sdv_metadata_name_keys_and_relationships(database):
    made = database.to_sdv_metadata()
    n_keys = sum(len(table["foreign_keys"]) for table in database.metadata["tables"].values())
    assert len(made["relationships"]) == n_keys
    for name, frame in database.tables.items():
        assert set(made["tables"][name]["columns"]) == set(frame.columns)


def test_relbench_is_asked_for_where_it_is_needed(database, monkeypatch):
    monkeypatch.setitem(sys.modules, "relbench", None)
    with pytest.raises(InputError, match=r"RelBench's form of a database needs the package 'relbench.base'"):
        database.to_relbench()


def test_pictures_have_a_node_for_each_table_and_for_each_cause(database):
    axes = database.plot()
    assert sum(text.get_text().startswith("table_") for text in axes.texts) == len(database.tables)
    name = next(iter(database.tables))
    axes = database.plot_causes(name)
    graph = database.ground_truth[name]["graph"]
    assert len(axes.collections[0].get_offsets()) == len(graph)
    from matplotlib import pyplot as plt

    plt.close("all")


def test_a_causal_graph_that_was_not_kept_is_asked_for():
    database = generate_database(0, SMALL.with_database(n_tables=2, activity_rows=200))
    with pytest.raises(InputError, match=r"ground_truth=True"):
        database.plot_causes("table_0")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda folder: generate_database(-1), "seed is -1; expected a whole number from 0"),
        (
            lambda folder: write_database(0, folder / "x", SMALL, form="csv"),
            "format is 'csv'; expected one of parquet, sqlite, duckdb, sql",
        ),
        (
            lambda folder: write_database(0, folder, SMALL),
            "{folder} is there already and not an empty folder; remove it, or choose another output",
        ),
        (lambda folder: generate_database(0, SMALL, folder / "no.sql"), "{folder}/no.sql: no such file"),
        (
            lambda folder: read_metadata(folder),
            "{folder} holds no metadata.json; expected a folder that `assay use plurel` wrote",
        ),
        (lambda folder: SyntheticDatabases(0), "n=0, seed0=0: expected a number of databases from 1 and a seed from 0"),
        (lambda folder: generate_many(0, folder), "count=0, jobs=1: expected whole numbers from 1"),
        (
            lambda folder: generate_many(1, folder / "x", executor="slurm"),
            "executor is 'slurm'; expected one of local, ray",
        ),
    ],
    ids=range(8),
)
def test_a_wrong_call_is_told_what_is_wrong(tmp_path, call, message):
    (tmp_path / "here").write_text("")
    with pytest.raises(InputError) as caught:
        call(tmp_path)
    assert str(caught.value) == message.format(folder=tmp_path)


def test_a_failed_run_leaves_nothing(tmp_path, monkeypatch):
    def fail(*arguments):
        raise RuntimeError

    monkeypatch.setattr("assay.synth.plurel.database.metadata_of", fail)
    with pytest.raises(RuntimeError):
        write_database(0, tmp_path / "db", SMALL.with_database(n_tables=2, activity_rows=200))
    assert list(tmp_path.iterdir()) == []


# -------------------------------------------------------------------------------------------------------------- many

TINY = SMALL.with_database(n_tables=2, n_columns=3, entity_rows=60, activity_rows=120)


def test_many_databases_are_each_that_of_its_seed_in_any_number_of_processes(tmp_path):
    report = generate_many(3, tmp_path / "two", TINY, seed0=5, n_jobs=2)
    generate_many(3, tmp_path / "one", TINY, seed0=5)
    assert (report.n, report.made) == (3, 3)
    for seed in (5, 6, 7):
        alone = generate_database(seed, TINY)
        for name, frame in alone.tables.items():
            places = [tmp_path / run / f"seed_{seed:08d}" / file_name(name) for run in ("one", "two")]
            assert places[0].read_bytes() == places[1].read_bytes()
            pd.testing.assert_frame_equal(pd.read_parquet(places[0]), frame)
    assert (tmp_path / "one" / "databases.jsonl").read_bytes() == (tmp_path / "two" / "databases.jsonl").read_bytes()


def test_a_run_that_stopped_goes_on_with_what_is_missing(tmp_path):
    generate_many(3, tmp_path / "db", TINY)
    before = (tmp_path / "db" / "seed_00000000" / "metadata.json").stat().st_mtime_ns
    shutil.rmtree(tmp_path / "db" / "seed_00000001")
    (tmp_path / "db" / ".seed_00000001.partial").mkdir()  # what a killed process leaves
    report = generate_many(4, tmp_path / "db", TINY)
    assert (report.n, report.made) == (4, 2)
    assert (tmp_path / "db" / "seed_00000000" / "metadata.json").stat().st_mtime_ns == before
    assert sorted(path.name for path in (tmp_path / "db").iterdir()) == [
        "databases.jsonl",
        "plan.json",
        *(f"seed_{seed:08d}" for seed in range(4)),
    ]


def test_a_run_with_other_choices_does_not_go_on_in_the_folder(tmp_path):
    generate_many(1, tmp_path / "db", TINY)
    with pytest.raises(InputError, match=r"holds databases of another config, schema or format"):
        generate_many(1, tmp_path / "db", TINY, form="sql")


@pytest.mark.slow
def test_ray_makes_the_same_files(tmp_path):
    pytest.importorskip("ray")
    generate_many(3, tmp_path / "ray", TINY, executor="ray")
    generate_many(3, tmp_path / "local", TINY)
    for place in (tmp_path / "local").rglob("*.parquet"):
        assert (tmp_path / "ray" / place.relative_to(tmp_path / "local")).read_bytes() == place.read_bytes()


def test_databases_are_a_sequence(database):
    databases = SyntheticDatabases(2, TINY, seed0=3)
    assert [d.metadata["seed"] for d in databases] == [3, 4]


def test_a_tables_name_leads_to_no_other_folder():
    assert file_name("../../etc") == "%2E%2E%2F%2E%2E%2Fetc.parquet"


def test_nothing_of_a_global_generator_is_touched():
    import random

    random.seed(0)
    expected = random.random()
    random.seed(0)
    generate_database(0, TINY)
    assert random.random() == expected
