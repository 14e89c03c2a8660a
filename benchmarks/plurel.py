"""Rows per second of plurel on one core, beside the authors' package with the same tables, rows, columns and graphs.

python benchmarks/plurel.py [--peer PYTHON] [--repeats 3] [--scaling 1e5,1e6]

PYTHON is an interpreter (3.12 or newer, or one that was told to ignore that) with `pip install plurel torch`; without
it only Assay is measured. Both fill one schema of six tables with twelve columns each, 750 rows in tables that others
refer to and 3,500 in the others, with causal graphs of one layout at a time and the same number of nodes; all other
choices are the defaults, which are the same. Each run is a process of its own with one thread; the two alternate, and
times are CPU seconds without imports.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LAYOUTS = {"random_tree": "RandomTree", "barabasi_albert": "BarabasiAlbert", "erdos_renyi": "ErdosRenyi"}
N_COLUMNS, ENTITY_ROWS, ACTIVITY_ROWS = 12, 750, 3500
PARENTS = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "e": ["c"], "f": ["a", "e"]}

PEER = """
import json, sys, time, warnings
warnings.filterwarnings("ignore")
import torch
torch.set_num_threads(1)
from plurel.config import Choices, Config, DatabaseParams, SCMParams
from plurel.dataset import SyntheticDataset
schema, layout, seed, entity, activity = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
config = Config(
    schema_file=schema,
    database_params=DatabaseParams(
        num_rows_entity_table_choices=Choices("range", [entity, entity]),
        num_rows_activity_table_choices=Choices("range", [activity, activity]),
    ),
    scm_params=SCMParams(
        scm_layout_choices=Choices("set", [layout]), scm_col_node_perc_choices=Choices("range", [0.6, 0.6])
    ),
)
start = time.process_time()
database = SyntheticDataset(seed=seed, config=config).make_db()
print(json.dumps({"seconds": time.process_time() - start,
                  "rows": sum(len(table.df) for table in database.table_dict.values())}))
"""


def schema_sql() -> str:
    statements = []
    for table, parents in PARENTS.items():
        lines = [f"{table}_id INTEGER PRIMARY KEY"]
        lines += [f"{parent}_id INTEGER REFERENCES {parent} ({parent}_id)" for parent in parents]
        for j in range(N_COLUMNS):
            name = f"{table}_{j}"
            labels = ", ".join(f"'{letter}'" for letter in "pqrst")
            lines.append(f"{name} TEXT CHECK ({name} IN ({labels}))" if j % 2 else f"{name} FLOAT")
        body = ",\n  ".join(lines)
        statements.append(f"CREATE TABLE {table} (\n  {body}\n);")
    return "\n".join(statements)


def ours(schema: str, layout: str, seed: int) -> None:
    from assay.synth.plurel import DatabaseConfig, RelationalConfig, ScmConfig, generate_database

    config = RelationalConfig(
        DatabaseConfig(entity_rows=ENTITY_ROWS, activity_rows=ACTIVITY_ROWS),
        ScmConfig(layouts=layout, observed_share=0.6),
    )
    generate_database(0, RelationalConfig(DatabaseConfig(n_tables=2, entity_rows=50, activity_rows=50)))  # imports
    start = time.process_time()
    database = generate_database(seed, config, Path(schema))
    seconds = time.process_time() - start
    print(json.dumps({"seconds": seconds, "rows": sum(map(len, database.tables.values()))}))


def scaling(rows: int, columns: int) -> None:
    from assay.synth.plurel import DatabaseConfig, RelationalConfig, write_database

    with tempfile.TemporaryDirectory() as folder:
        config = RelationalConfig(DatabaseConfig(n_tables=8, n_columns=columns, rows=rows))
        start, cpu = time.perf_counter(), time.process_time()
        write_database(0, Path(folder) / "db", config)
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
        size = sum(path.stat().st_size for path in (Path(folder) / "db").iterdir()) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{rows:>12,} rows, {columns} columns a table: {cpu:8.1f} s of CPU ({wall:.1f} s of time), "
        f"{rows / cpu:>9,.0f} rows a second of CPU, peak memory {peak:.0f} MiB, {size:,.0f} MiB of Parquet",
        flush=True,
    )


def default(n_tables: int, seeds: range) -> None:
    from assay.synth.plurel import DatabaseConfig, RelationalConfig, generate_database

    config = RelationalConfig(DatabaseConfig(n_tables=n_tables))
    generate_database(0, RelationalConfig(DatabaseConfig(n_tables=2, entity_rows=50, activity_rows=50)))
    times, rows = [], 0
    for seed in seeds:
        start = time.process_time()
        rows += sum(map(len, generate_database(seed, config).tables.values()))
        times.append(time.process_time() - start)
    print(
        f"{n_tables} tables, all other choices default, {len(times)} seeds: median {statistics.median(times):.2f} s, "
        f"largest {max(times):.2f} s of CPU, {rows / sum(times):,.0f} rows a second",
        flush=True,
    )


def child(*arguments: str, python: str = sys.executable) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([python, *arguments], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return done.stdout


def compare(peer: str | None, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        schema = Path(folder) / "schema.sql"
        schema.write_text(schema_sql())
        script = Path(folder) / "peer.py"
        script.write_text(PEER)
        for layout, theirs in LAYOUTS.items():
            pairs = []
            for seed in range(1, repeats + 1):
                own = json.loads(child(__file__, "--run", str(schema), layout, str(seed)))
                other = None
                if peer is not None:
                    sizes = (str(ENTITY_ROWS), str(ACTIVITY_ROWS))
                    other = json.loads(child(str(script), str(schema), theirs, str(seed), *sizes, python=peer))
                    assert other["rows"] == own["rows"]
                pairs.append((own["rows"] / own["seconds"], other and other["rows"] / other["seconds"]))
            line = f"{layout:<18} assay {statistics.median(own for own, _ in pairs):>9,.0f} rows a second of CPU"
            if peer is not None:
                ratio = statistics.median(own / other for own, other in pairs)
                line += f", authors {statistics.median(other for _, other in pairs):>7,.0f}, ratio {ratio:.1f}"
            print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="interpreter with the authors' package")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scaling", default="1e5,4e5", help="numbers of rows")
    parser.add_argument("--columns", type=int, default=3, help="columns a table, for --scaling")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--scale", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        return ours(arguments.run[0], arguments.run[1], int(arguments.run[2]))
    if arguments.scale:
        return scaling(int(float(arguments.scale)), arguments.columns)
    compare(arguments.peer, arguments.repeats)
    for n_tables in (12, 20):
        default(n_tables, range(8))
    for rows in arguments.scaling.split(","):  # each in a process of its own: peak memory is the process's
        print(child(__file__, "--scale", rows, "--columns", str(arguments.columns)).rstrip(), flush=True)
    return None


if __name__ == "__main__":
    main()
