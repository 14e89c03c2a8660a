"""`assay try`, `assay tour` and `assay report`: run trials and look at them."""

from __future__ import annotations

import shutil
import webbrowser
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, cast

import typer

from assay import catalog
from assay._core.errors import InputError
from assay.cli.browse import JsonFlag
from assay.cli.output import console, print_json, table

if TYPE_CHECKING:
    from rich.table import Table

    from assay.bench import Result

TOUR = Path("runs/tour")


class Scale(StrEnum):
    """How much a trial runs."""

    quick = "quick"
    standard = "standard"
    full = "full"


class Executor(StrEnum):
    """Where a trial runs."""

    local = "local"
    ray = "ray"


def try_method(
    slug: Annotated[str | None, typer.Argument(metavar="METHOD", help="Slug, as `assay list` shows it.")] = None,
    part: Annotated[
        str | None, typer.Option("--part", help="Run this part of the trial alone; main: without further parts.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", "-d", help="Your own data; without it, the embedded example.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Model id or folder, for trials that use a model.")
    ] = None,
    scale: Annotated[
        Scale, typer.Option("--scale", "-s", help="quick: under a minute; standard: minutes; full: the paper's size.")
    ] = Scale.quick,
    cases: Annotated[
        int | None, typer.Option("--cases", "-n", help="Number of paired cases, instead of the scale's.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of cases and arms.")] = 0,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", help="Cases at a time; default: the cores.")] = None,
    executor: Annotated[
        Executor, typer.Option("--executor", help="Processes here, or a Ray cluster.")
    ] = Executor.local,
    address: Annotated[str | None, typer.Option("--address", help="Address of the Ray cluster.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the run; default: runs/METHOD.")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Finish an interrupted run in this folder.")] = None,
    parameters: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="KEY=VALUE", help="Set a parameter of the trial.")
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option("--mlflow", metavar="URI", help="Also log to this MLflow store.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Run a method beside its baselines and answer with a verdict.

    Examples: `assay try judge-rank --scale quick`, `assay try judge-rank --data votes.csv`,
    `assay try judge-rank --part votes`, `assay try --resume runs/judge-rank`
    """
    from assay import bench
    from assay.bench.plan import Plan

    if slug is None and resume is None:
        raise InputError("name a method (`assay list` shows them) or give --resume DIR")
    params = _parameters(parameters or [])
    if model is not None:
        params["model"] = model
    try:
        result = bench.run(
            slug or Plan.load(cast("Path", resume)).slug,
            part=part,
            data=data,
            scale=scale.value,
            cases=cases,
            seed=seed,
            jobs=jobs,
            executor=executor.value,
            address=address,
            out=out,
            resume=resume,
            params=params,
            mlflow=mlflow,
        )
    except bench.Interrupted as stopped:
        _stop(stopped)
    if as_json:
        print_json(result.to_dict() | {"parts": [part.to_dict() for part in result.parts]})
        return
    typer.echo("\n\n".join(each.summary() for each in (result, *result.parts)))
    typer.echo(f"\nReport: {result.folder / 'report.html'}")


def _stop(stopped: KeyboardInterrupt) -> NoReturn:
    typer.echo(f"\n{stopped}", err=True)
    raise typer.Exit(130) from None


def _parameters(given: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for key, sign, _ in pairs:
        if not key or not sign:
            raise InputError(f"-p takes KEY=VALUE, not {key!r}")
    return {key: value for key, _, value in pairs}


def tour() -> None:
    """Run the quick trials of the tour and show their verdicts side by side.

    Takes under a minute a trial; writes `runs/tour/report.html`.
    """
    from assay import bench
    from assay._core.files import write_text
    from assay.bench.report import render

    chosen = [method for method in catalog.available() if "tour" in method.tags]
    results: list[Result] = []
    TOUR.mkdir(parents=True, exist_ok=True)
    for number, method in enumerate(chosen, start=1):
        typer.echo(f"[{number}/{len(chosen)}] {method.title}: {method.summary}", err=True)
        folder = TOUR / method.slug
        if (folder / "plan.json").is_file():
            shutil.rmtree(folder)  # an earlier tour's run; anything else stays and stops the run with an error
        try:
            results.append(bench.run(method.slug, scale="quick", out=folder))
        except bench.Interrupted as stopped:
            _stop(stopped)
    page = TOUR / "report.html"
    write_text(page, render([result.folder for result in results]))
    console().print(_verdicts(results))
    for result in results:
        console().print(f"{result.slug}: {result.verdict.sentence}")
        for skipped in result.skipped:
            console().print(f"{result.slug}: the part {skipped.part} was left out: {skipped.reason}")
    typer.echo(f"\nReport: {page}")


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Folders of finished runs.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Render one run, or several side by side, as one HTML file that opens offline.

    Example: `assay report runs/judge-rank runs/judge-rank-2 -o both.html`
    """
    from assay._core.files import write_text
    from assay.bench.report import render

    for folder in folders:
        if not (folder / "result.json").is_file():
            raise InputError(f"{folder} holds no result.json; a run that was interrupted: assay try --resume {folder}")
    write_text(out, render(folders))
    typer.echo(f"Report: {out}")
    if show:
        webbrowser.open(out.resolve().as_uri())


def _verdicts(results: list[Result]) -> Table:
    from assay.bench.report.numbers import effect

    rows = table("method", "part, metric", "verdict", "claim", "effect, 95 % interval", "cases")
    for main in results:
        for result in (main, *main.parts):
            found = result.verdict
            size, interval = effect(found.effect, found.ci_low, found.ci_high, found.effect_scale)
            part = f"{result.part or 'main'}\n{result.claim.metric}"
            shown = f"{size}\n{interval or 'too few cases'}"
            rows.add_row(result.slug, part, found.outcome, result.claim.outcome, shown, str(found.n_cases))
    return rows
