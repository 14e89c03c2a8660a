"""`assay use judge-rank VOTES -o ranking.csv`: a ranking with intervals from a file of votes."""

from __future__ import annotations

import warnings
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay._core.errors import InputError
from assay.cli.output import save_picture

if TYPE_CHECKING:
    import pandas as pd

app = typer.Typer(add_completion=False)

PICTURES = (".png", ".svg", ".pdf")


class Covariance(StrEnum):
    """How the errors of the scores are found."""

    fisher = "fisher"
    sandwich = "sandwich"


@app.command()
def judge_rank(
    votes: Annotated[
        Path, typer.Argument(metavar="VOTES", help="CSV, TSV, JSON, JSONL or Parquet, one row a vote; also .gz.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Ranking: model, score, se, low, high, rank interval.")
    ] = Path("ranking.csv"),
    judges: Annotated[Path | None, typer.Option("--judges", help="Also write the judges by discrimination.")] = None,
    pairs: Annotated[Path | None, typer.Option("--pairs", help="Also write a test for every pair of models.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Also draw the ranking (.png, .svg, .pdf).")] = None,
    plot_judges: Annotated[Path | None, typer.Option("--plot-judges", help="Also draw the judges.")] = None,
    model_a: Annotated[str, typer.Option("--model-a", help="Column with the first model.")] = "auto",
    model_b: Annotated[str, typer.Option("--model-b", help="Column with the second model.")] = "auto",
    judge: Annotated[str, typer.Option("--judge", help="Column with the judge; `none` pools all votes.")] = "auto",
    winner: Annotated[str, typer.Option("--winner", help="Column with the verdict.")] = "auto",
    cluster: Annotated[
        str,
        typer.Option("--cluster", help="Column with the prompt, for --cov sandwich; `none`: votes are independent."),
    ] = "auto",
    winner_map: Annotated[
        list[str] | None,
        typer.Option("--winner-map", metavar="LABEL=MEANING", help="MEANING: model_a, model_b, tie or unknown."),
    ] = None,
    prior_sd: Annotated[
        str, typer.Option("--prior-sd", help="Prior sd of log discrimination; `none`: the paper's plain likelihood.")
    ] = "2",
    signed: Annotated[bool, typer.Option("--signed", help="Let a judge count against the consensus.")] = False,
    cov: Annotated[
        Covariance, typer.Option("--cov", help="sandwich: right for ties and for many votes on one prompt.")
    ] = Covariance.fisher,
    confidence: Annotated[float, typer.Option("--confidence", help="Of all intervals.")] = 0.95,
) -> None:
    """Rank models from the votes of judges whose reliability differs.

    Example: `assay use judge-rank votes.csv -o ranking.csv --judges judges.csv --plot ranking.png`

    Columns are found by their names: the authors' layout (judge_model, judge_preferred_model), AlpacaEval
    (preference), Chatbot Arena and MT-Bench (winner). Name others with the options.
    """
    from assay._core.tables import write_table
    from assay.evaluate.judge_rank import JudgeRanking, read_votes

    for picture in (plot, plot_judges):
        if picture is not None and picture.suffix.lower() not in PICTURES:
            raise InputError(f"{picture}: a picture is written as one of {', '.join(PICTURES)}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frame = read_votes(
            votes,
            model_a=model_a,
            model_b=model_b,
            judge=None if judge == "none" else judge,
            winner=winner,
            cluster=None if cluster == "none" else cluster,
            winner_map=_winner_map(winner_map or []),
        )
        ranking = JudgeRanking(prior_sd=_number(prior_sd), signed=signed, cov=cov.value, confidence=confidence).fit(
            frame,
            judge=None if judge == "none" else "judge",
            cluster="cluster" if cov is Covariance.sandwich and "cluster" in frame else None,
        )
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        typer.echo(f"warning: {message}", err=True)
    tables: dict[Path, pd.DataFrame] = {out: ranking.ranking_}
    if judges is not None:
        tables[judges] = ranking.judges_
    if pairs is not None:
        tables[pairs] = ranking.pairs()
    for path, table in tables.items():
        write_table(table, path)
    for picture, draw in ((plot, ranking.plot), (plot_judges, ranking.plot_judges)):
        if picture is not None:
            save_picture(draw(), picture)
    typer.echo(ranking.summary())
    written = [*tables, *(picture for picture in (plot, plot_judges) if picture is not None)]
    typer.echo(f"\nWritten: {', '.join(map(str, written))}")


def _winner_map(given: list[str]) -> dict[str, str] | None:
    pairs = [text.rpartition("=") for text in given]
    for text, (label, sign, meaning) in zip(given, pairs, strict=True):
        if not (label and sign and meaning):
            raise InputError(f"--winner-map takes LABEL=MEANING, such as 'left=model_a', not {text!r}")
    return {label: meaning for label, _, meaning in pairs} or None


def _number(text: str) -> float | None:
    if text.lower() == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--prior-sd takes a number above zero, or none, not {text!r}") from None
