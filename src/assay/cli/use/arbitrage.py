"""`assay use arbitrage RUNS… -o out/`: thresholds, prices and margins from files of recorded attempts."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from assay._core.errors import InputError
from assay.cli.output import save_picture

if TYPE_CHECKING:
    from assay.evaluate.arbitrage import ArbitrageReport

app = typer.Typer(add_completion=False)


@app.command()
def arbitrage(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS…",
            help="One JSON Lines file per provider (id, mean_cost, attempts), or tables with a row per attempt.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for policy.json, prices.csv, cost.png and margin.png.")
    ] = Path("arbitrage"),
    prices: Annotated[
        str | None,
        typer.Option("--prices", help="Price list for tables with tokens (model, input_per_million, …), or `example`."),
    ] = None,
    start: Annotated[
        float | None, typer.Option("--from", help="Lowest solve rate to sell; default: 0.9 of the best provider's.")
    ] = None,
    at: Annotated[float | None, typer.Option("--at", help="Minimise the cost of this solve rate only.")] = None,
    order: Annotated[
        str | None, typer.Option("--order", help="Providers of the cascade, A,B or A,B,C; default: the best pair.")
    ] = None,
    stages: Annotated[int, typer.Option("--stages", help="Without --order: how many providers, 2 to 4.")] = 2,
    providers: Annotated[str | None, typer.Option("--providers", help="Look at these providers only: A,B,C.")] = None,
    budget: Annotated[float | None, typer.Option("--budget", help="The most that may be spent on a task.")] = None,
    unit: Annotated[str, typer.Option("--unit", help="Of all costs.")] = "USD",
    model_column: Annotated[str | None, typer.Option("--model-column", help="Column with the provider.")] = None,
    task_column: Annotated[str | None, typer.Option("--task-column", help="Column with the task.")] = None,
    solved_column: Annotated[str | None, typer.Option("--solved-column", help="Column with 0 or 1.")] = None,
    cost_column: Annotated[str | None, typer.Option("--cost-column", help="Column with the attempt's cost.")] = None,
    attempt_costs: Annotated[
        bool, typer.Option("--attempt-costs", help="Use every attempt's own cost instead of the task's mean.")
    ] = False,
    verify_fpr: Annotated[
        float, typer.Option("--verify-fpr", help="How often your verifier will accept a wrong attempt.")
    ] = 0.0,
    n_boot: Annotated[int, typer.Option("--boot", min=1, help="Bootstrap resamples of the tasks.")] = 500,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of folds and resamples.")] = 0,
) -> None:
    """How much of a task's budget to spend on each provider, and what that saves beside the best one alone.

    Example: `assay use arbitrage small.jsonl big.jsonl --from 0.68 -o out/`

    With token counts: `assay use arbitrage runs.csv --prices prices.csv --providers gpt-5-mini,o3 -o out/`
    """
    from assay.evaluate.arbitrage import arbitrage as analyse
    from assay.evaluate.arbitrage import read_market

    named = {"model": model_column, "task": task_column, "solved": solved_column, "cost": cost_column}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        market = read_market(
            runs,
            prices=prices,
            providers=_names(providers),
            columns={role: name for role, name in named.items() if name is not None},
            unit=unit,
            max_budget=budget,
            attempt_costs=attempt_costs,
            verify_fpr=verify_fpr,
            random_state=seed,
        )
        report = analyse(
            market,
            _names(order),
            stages=stages,
            solve_rates=(start, None),
            at=at,
            n_boot=n_boot,
            random_state=seed,
        )
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        typer.echo(f"warning: {message}", err=True)
    if prices == "example":
        typer.echo("warning: these are example prices of December 2025; look up your own", err=True)
    _write(report, out)
    typer.echo(report.summary())
    typer.echo(f"\nWritten to {out}: policy.json, prices.csv, cost.png, margin.png")


def _names(text: str | None) -> list[str] | None:
    """The names in a comma-separated list; None stays None."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError(f"{text!r} names no provider; expected A,B")
    return names


def _write(report: ArbitrageReport, out: Path) -> None:
    import numpy as np

    from assay._core.files import write_text
    from assay._core.tables import write_table

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {out}: {error.strerror}") from None
    text = json.dumps(report.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
    write_text(out / "policy.json", text + "\n")
    # A solve rate that is not reached has no price: an empty cell.
    write_table(report.to_frame().replace([np.inf, -np.inf], np.nan), out / "prices.csv")
    kinds: tuple[Literal["cost", "margin"], ...] = ("cost", "margin")
    for kind in kinds:
        save_picture(report.plot(kind), out / f"{kind}.png")
