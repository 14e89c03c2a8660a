"""Many databases: in this process as they are needed, or a folder each, on all cores or a Ray cluster.

A database follows from its seed and the config alone. One that is in its folder is whole (it was renamed into place),
so a run that was killed goes on with those that are missing.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from assay._core.errors import InputError
from assay._core.files import write_text
from assay._core.progress import progress_bar
from assay.synth._spread import in_processes, on_ray
from assay.synth.plurel.config import RelationalConfig
from assay.synth.plurel.database import (
    GENERATOR,
    RelationalDatabase,
    generate_database,
    read_metadata,
    recipe_of,
    write_database,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

EXECUTORS = ("local", "ray")


class SyntheticDatabases:
    """A sequence of databases, made when they are asked for: a map-style data set for a ``torch`` DataLoader.

    Parameters
    ----------
    n : int
    config : RelationalConfig, optional
    seed0 : int
        Item k is the database of seed ``seed0 + k``.

    Examples
    --------
    >>> from assay.synth.plurel import DatabaseConfig
    >>> small = RelationalConfig(DatabaseConfig(n_tables=2, entity_rows=50, activity_rows=90))
    >>> databases = SyntheticDatabases(3, small, seed0=7)
    >>> len(databases), databases[2].metadata["seed"]
    (3, 9)
    """

    def __init__(self, n: int, config: RelationalConfig | None = None, seed0: int = 0) -> None:
        if n < 1 or seed0 < 0:
            raise InputError(f"n={n}, seed0={seed0}: expected a number of databases from 1 and a seed from 0")
        self.n, self.config, self.seed0 = n, config, seed0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, number: int) -> RelationalDatabase:
        if not 0 <= number < self.n:
            raise IndexError(number)
        return generate_database(self.seed0 + number, self.config)


@dataclass(frozen=True)
class Job:
    """One database to write."""

    seed: int
    folder: str
    config: RelationalConfig
    schema_sql: str | None
    form: str


def run_job(job: Job) -> int:
    """Write a database; returns its rows."""
    metadata = write_database(job.seed, job.folder, job.config, job.schema_sql, form=job.form)
    return int(metadata["rows"])


@dataclass(frozen=True)
class ManyReport:
    """What a run wrote.

    Attributes
    ----------
    n : int
        Databases that are there now.
    made : int
        Those that this run made.
    rows : int
        Of all.
    seconds : float
    """

    n: int
    made: int
    rows: int
    seconds: float

    def summary(self) -> str:
        """One line."""
        return f"{self.n:,} databases, {self.rows:,} rows ({self.made:,} made now, in {self.seconds:,.1f} s)"


def generate_many(
    n: int,
    out: str | os.PathLike[str],
    config: RelationalConfig | None = None,
    schema_sql: str | os.PathLike[str] | None = None,
    *,
    seed0: int = 0,
    form: str = "parquet",
    n_jobs: int = 1,
    executor: str = "local",
    address: str | None = None,
) -> ManyReport:
    """Write the databases of seeds `seed0` … `seed0` + n - 1, a folder each, and ``databases.jsonl`` in their order.

    Parameters
    ----------
    n : int
    out : path
        A folder; a run with the same arguments goes on in it.
    config, schema_sql, form
        As in :func:`write_database`.
    seed0 : int
    n_jobs : int
        Processes of the local executor.
    executor : "local" or "ray"
    address : str, optional
        Of a Ray cluster whose nodes see `out` at the same path; by default the one that runs, or one started here.

    Raises
    ------
    InputError
        The folder holds databases of a run with other arguments, or there is no such cluster.
    """
    if n < 1 or n_jobs < 1:
        raise InputError(f"count={n}, jobs={n_jobs}: expected whole numbers from 1")
    if executor not in EXECUTORS:
        raise InputError(f"executor is {executor!r}; expected one of {', '.join(EXECUTORS)}")
    config = config or RelationalConfig()
    recipe = recipe_of(seed0, config, schema_sql)  # says at the door what is wrong
    text = (
        None
        if schema_sql is None
        else schema_sql
        if isinstance(schema_sql, str)
        else Path(schema_sql).read_text("utf-8")
    )
    folder = Path(out)
    plan = {"config": config.to_dict(), "schema": recipe.schema_sha256, "format": form, "stream": GENERATOR}
    _open_folder(folder, json.dumps(plan, indent=2, sort_keys=True))
    start = time.perf_counter()
    places = {seed: folder / f"seed_{seed:08d}" for seed in range(seed0, seed0 + n)}
    jobs = (Job(s, str(p), config, text, form) for s, p in places.items() if not _is_done(p))
    n_there = sum(_is_done(place) for place in places.values())
    rows_now = 0
    with progress_bar() as bar:
        task = bar.add_task("databases", total=n, completed=n_there)
        for rows in _run(jobs, n_jobs, executor, address):
            rows_now += rows
            rate = rows_now / max(time.perf_counter() - start, 1e-9)
            bar.update(task, advance=1, description=f"{rate:,.0f} rows a second")
    lines, total = [], 0
    for seed, place in places.items():
        metadata = read_metadata(place)
        total += metadata["rows"]
        about = {"seed": seed, "folder": place.name, "rows": metadata["rows"], "tables": len(metadata["tables"])}
        lines.append(json.dumps(about | {"license": metadata["license"], "generator": metadata["generator"]}))
    write_text(folder / "databases.jsonl", "\n".join(lines) + "\n")
    return ManyReport(n, n - n_there, total, time.perf_counter() - start)


def _is_done(place: Path) -> bool:
    return (place / "metadata.json").is_file()


def _open_folder(folder: Path, plan: str) -> None:
    place = folder / "plan.json"
    if place.is_file():
        if place.read_text(encoding="utf-8") != plan:
            raise InputError(
                f"{folder} holds databases of another config, schema or format; remove it, or choose another output"
            )
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already and not an empty folder; remove it, or choose another output")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(place, plan)


def _run(jobs: Iterator[Job], n_jobs: int, executor: str, address: str | None) -> Iterator[int]:
    return on_ray(run_job, jobs, address) if executor == "ray" else in_processes(run_job, jobs, n_jobs)
