"""`assay use plurel --seed 0 --tables 8 --rows 1e6 -o db/`: invented relational databases on disk."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from assay._core.errors import InputError

app = typer.Typer(add_completion=False)

PICTURES = (".png", ".svg", ".pdf")


@app.command()
def plurel(
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder: tables, schema.sql, metadata.json.")],
    seed: Annotated[int, typer.Option("--seed", help="A database follows from it and the config alone.")] = 0,
    tables: Annotated[str | None, typer.Option("--tables", help="Number of tables, or a range such as 3-20.")] = None,
    rows: Annotated[
        str | None, typer.Option("--rows", help="Rows of the whole database, such as 50000 or 1e6.")
    ] = None,
    columns: Annotated[str | None, typer.Option("--columns", help="Feature columns of a table, or a range.")] = None,
    form: Annotated[str, typer.Option("--format", help="parquet, sqlite, duckdb or sql.")] = "parquet",
    schema: Annotated[
        Path | None,
        typer.Option("--schema", help="CREATE TABLE statements to fill; --tables and --columns do not apply."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="JSON with database, scm, dag; also a metadata.json of a database.")
    ] = None,
    paper: Annotated[bool, typer.Option("--paper", help="The choices of the paper's experiments.")] = False,
    count: Annotated[int | None, typer.Option("--count", help="Make this many: of seeds SEED, SEED + 1, …")] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Processes, with --count.")] = 1,
    executor: Annotated[str, typer.Option("--executor", help="local or ray, with --count.")] = "local",
    address: Annotated[str | None, typer.Option("--address", help="Of a Ray cluster.")] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw the tables and their keys (.png, .svg, .pdf).")
    ] = None,
    plot_causes: Annotated[
        str | None, typer.Option("--plot-causes", metavar="TABLE=FILE", help="Draw the causal graph of a table.")
    ] = None,
) -> None:
    """Invent a relational database, or many, from a seed.

    Example: `assay use plurel --seed 0 --tables 8 --rows 1e6 -o db/`

    A run of --count that was killed goes on where it stopped when it is started again.
    """
    from assay.synth.plurel import RelationalConfig, summary_of, write_database

    pictures = [plot] if plot is not None else []
    pictures += [_causes(plot_causes)[1]] if plot_causes is not None else []
    for picture in pictures:
        if picture.suffix.lower() not in PICTURES:
            raise InputError(f"{picture}: a picture is written as one of {', '.join(PICTURES)}")
    if paper and config is not None:
        raise InputError("--paper and --config each give all choices; use one of them")
    chosen = (
        RelationalConfig.paper() if paper else RelationalConfig() if config is None else RelationalConfig.read(config)
    )
    changes: dict[str, Any] = {}
    if tables is not None:
        changes["n_tables"] = _range("--tables", tables)
    if columns is not None:
        changes["n_columns"] = _range("--columns", columns)
    if rows is not None:
        changes["rows"] = _whole("--rows", rows)
    chosen = chosen.with_database(**changes)
    if count is not None:
        _many(count, out, chosen, schema, seed, form, jobs, executor, address)
    else:
        start = time.perf_counter()
        with _rows_bar(seed, chosen, schema) as advance:
            metadata = write_database(seed, out, chosen, schema, form=form, report=advance)
        seconds = time.perf_counter() - start
        typer.echo(summary_of(metadata))
        rate = metadata["rows"] / seconds
        typer.echo(f"\n{metadata['rows']:,} rows in {seconds:,.1f} s ({rate:,.0f} a second)")
    written = [out, *_pictures(seed, chosen, schema, plot, plot_causes)]
    typer.echo(f"\nWritten: {', '.join(map(str, written))}")


def _many(
    count: int,
    out: Path,
    config: Any,
    schema: Path | None,
    seed: int,
    form: str,
    jobs: int,
    executor: str,
    address: str | None,
) -> None:
    from assay.synth.plurel import generate_many

    report = generate_many(
        count, out, config, schema, seed0=seed, form=form, n_jobs=jobs, executor=executor, address=address
    )
    typer.echo(report.summary())


def _rows_bar(seed: int, config: Any, schema: Path | None) -> Any:
    """A bar of rows with the rate and the time left; entering it gives the function that moves it on."""
    from contextlib import contextmanager

    from assay._core.progress import progress_bar
    from assay.synth.plurel.database import recipe_of

    total = sum(table.n_rows for table in recipe_of(seed, config, schema).schema.tables)

    @contextmanager
    def bar() -> Any:
        start, done = time.perf_counter(), 0
        with progress_bar() as progress:
            task = progress.add_task("rows", total=total)

            def advance(rows: int) -> None:
                nonlocal done
                done += rows
                rate = done / max(time.perf_counter() - start, 1e-9)
                progress.update(task, advance=rows, description=f"{rate:,.0f} rows a second")

            yield advance

    return bar()


def _pictures(seed: int, config: Any, schema: Path | None, plot: Path | None, causes: str | None) -> list[Path]:
    from assay.cli.output import save_picture
    from assay.synth.plurel import plot_causes, plot_schema
    from assay.synth.plurel.database import causal_graph, recipe_of

    drawn = []
    if plot is not None:
        save_picture(plot_schema(recipe_of(seed, config, schema).schema), plot)
        drawn.append(plot)
    if causes is not None:
        table, path = _causes(causes)
        save_picture(plot_causes(causal_graph(recipe_of(seed, config, schema), table), table), path)
        drawn.append(path)
    return drawn


def _causes(text: str) -> tuple[str, Path]:
    table, sign, path = text.rpartition("=")
    if not (table and sign and path):
        raise InputError(f"--plot-causes takes TABLE=FILE, such as table_0=causes.png, not {text!r}")
    return table, Path(path)


def _whole(option: str, text: str) -> int:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not (number >= 1 and number == int(number)):
        raise InputError(f"{option} takes a whole number from 1, such as 50000 or 1e6, not {text!r}")
    return int(number)


def _range(option: str, text: str) -> tuple[int, int]:
    low, sign, high = text.partition("-")
    return _whole(option, low), _whole(option, high if sign else low)
