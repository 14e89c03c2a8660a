"""`assay use bridge RESPONSES --human … --dates … -o out/`: minutes of tasks, horizons of models, and the trend."""

from __future__ import annotations

import warnings
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay._core.errors import InputError
from assay.cli.output import save_picture

if TYPE_CHECKING:
    import pandas as pd

    from assay.evaluate.bridge import Forecast, Foresight, TimeHorizonIRT

app = typer.Typer(add_completion=False)


@app.command()
def bridge(
    responses: Annotated[
        Path,
        typer.Argument(
            metavar="RESPONSES",
            help="Who solved what: a table (model, task, correct; CSV, TSV, JSON, JSONL, Parquet, also .gz), py-irt's "
            "JSONL, METR's runs.jsonl, or a folder of SWE-bench result files.",
        ),
    ],
    human: Annotated[
        Path | None, typer.Option("--human", help="Human times of some tasks: task, human_minutes.")
    ] = None,
    dates: Annotated[Path | None, typer.Option("--dates", help="Release dates of models: model, release_date.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write to; made if it is not there.")] = Path(
        "bridge"
    ),
    holdout: Annotated[
        list[str] | None,
        typer.Option(
            "--holdout", metavar="PATTERN", help="Timed tasks to predict and not to calibrate on, such as '*__*'."
        ),
    ] = None,
    since: Annotated[str | None, typer.Option("--since", help="Leave older models out of the trend: a date.")] = None,
    level: Annotated[float, typer.Option("--level", help="Success rate of the trend's horizon.")] = 0.5,
    gap: Annotated[
        float, typer.Option("--gap", help="A model joins the frontier when it is better than all before by this.")
    ] = 0.2,
    bootstrap: Annotated[
        str, typer.Option("--bootstrap", help="Resample the frontier's points, or all models (stricter).")
    ] = "frontier",
    method: Annotated[str, typer.Option("--method", help="map; svi: the paper's, slower; mml: few items.")] = "map",
    threshold: Annotated[
        float | None, typer.Option("--threshold", help="Scores of at least this are successes; default: 0 or 1 only.")
    ] = None,
    aliases: Annotated[
        Path | None, typer.Option("--aliases", help="Table model, alias: names to merge into one.")
    ] = None,
    model: Annotated[str, typer.Option("--model", help="Column of RESPONSES with the model.")] = "auto",
    task: Annotated[str, typer.Option("--task", help="Column of RESPONSES with the task.")] = "auto",
    correct: Annotated[str, typer.Option("--correct", help="Column of RESPONSES with 0 or 1.")] = "auto",
) -> None:
    """Predict how long tasks take people, and how long a task each model can do.

    Example: `assay use bridge responses.csv.gz --human human_minutes.csv --dates release_dates.csv -o out/`

    Writes items.csv and subjects.csv; with --human calibration.png, with --dates too forecast.json and horizon.png.
    """
    from assay._core.tables import write_table
    from assay.evaluate.bridge import TimeHorizonIRT, read_dates, read_minutes, read_responses

    if dates is not None and human is None:
        raise InputError("--dates needs --human: without human times a horizon has no minutes")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frame = read_responses(responses, model=model, task=task, correct=correct, aliases=_aliases(aliases))
        minutes = None if human is None else read_minutes(human)
        known, asked = _split(minutes, holdout or [])
        irt = TimeHorizonIRT(method=method, threshold=threshold)  # type: ignore[arg-type]  # checked by fit
        irt.fit(frame, known, None if dates is None else read_dates(dates))
        trend = None
        if dates is not None:
            if irt.subjects_["release_date"].isna().all():
                raise InputError(f"{dates}: none of its models is among the models of {responses}")
            trend = irt.forecast(level, gap, bootstrap=bootstrap, since=since)  # type: ignore[arg-type]  # checked
        test = None if asked is None else _held_out(irt, asked)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        typer.echo(f"warning: {message}", err=True)

    _make(out)
    write_table(items_table(irt, asked), out / "items.csv")
    write_table(subjects_table(irt), out / "subjects.csv")
    written = ["items.csv", "subjects.csv"]
    if irt.calibration_ is not None:
        _write_json(forecast_document(irt, trend, test), out / "forecast.json")
        save_picture(irt.calibration_.plot(), out / "calibration.png")
        written += ["forecast.json", "calibration.png"]
    if trend is not None:
        save_picture(trend.plot(), out / "horizon.png")
        written.append("horizon.png")
    typer.echo(irt.summary())
    if trend is not None:
        typer.echo(f"\n{trend.summary()}")
    if test is not None:
        typer.echo(f"\n{test.summary()}")
    typer.echo(f"\nWritten to {out}: {', '.join(written)}")


def items_table(irt: TimeHorizonIRT, asked: pd.DataFrame | None) -> pd.DataFrame:
    """Tasks with predicted minutes, prediction interval, and what to know about each."""
    import numpy as np
    from scipy.stats import norm

    items = irt.items_
    reasons = {
        "unsolved by all": items["extreme"] & (items["solve_rate"] == 0),
        "solved by all": items["extreme"] & (items["solve_rate"] == 1),
        "few responses": items["few"],
        "extrapolated": items["extrapolated"],
        "calibration": items["calibration"],
        "held out": items.index.isin([] if asked is None else asked["task"]),
    }
    rows = zip(*reasons.values(), strict=True)
    flags = ["; ".join(text for text, here in zip(reasons, row, strict=True) if here) for row in rows]
    table = items.reset_index()[["task", "difficulty", "discrimination", "predicted_minutes", "pi_low", "pi_high"]]
    table = table.rename(columns={"pi_low": "low", "pi_high": "high"}).assign(flags=flags)
    table = _with_ends(table, "difficulty", items["se"], irt.confidence)
    factor = np.exp(norm.ppf(0.5 + irt.confidence / 2) * items["log_discrimination_se"].to_numpy())
    a = table["discrimination"]
    return table.assign(discrimination_low=a / factor, discrimination_high=a * factor)


def subjects_table(irt: TimeHorizonIRT) -> pd.DataFrame:
    """Models, the strongest first, with their horizons."""
    table = irt.subjects_.reset_index().sort_values("ability", ascending=False, ignore_index=True)
    table["release_date"] = table["release_date"].dt.strftime("%Y-%m-%d")
    se = table["se"]
    table = table[["model", "ability", "horizon_50_minutes", "ci_low", "ci_high", "release_date"]]
    return _with_ends(table.rename(columns={"ci_low": "low", "ci_high": "high"}), "ability", se, irt.confidence)


def _with_ends(table: pd.DataFrame, column: str, se: pd.Series[float], confidence: float) -> pd.DataFrame:
    """Append the ends of the interval of a latent position."""
    from scipy.stats import norm

    half = norm.ppf(0.5 + confidence / 2) * se.to_numpy()
    return table.assign(**{f"{column}_low": table[column] - half, f"{column}_high": table[column] + half})


def forecast_document(irt: TimeHorizonIRT, trend: Forecast | None, test: Foresight | None) -> dict[str, Any]:
    """What forecast.json holds; a number that is unknown or infinite is null."""
    line = irt.calibration_
    assert line is not None
    low, high = line.r_squared_interval()
    loo_low, loo_high = line.r_squared_loo_interval()
    document: dict[str, Any] = {
        "doubling_months": None,
        "ci_low": None,
        "ci_high": None,
        "n_frontier": None,
        "r2_calibration": line.r_squared,
        "r2_low": low,
        "r2_high": high,
        "r2_calibration_leave_one_out": line.r_squared_loo,
        "r2_leave_one_out_low": loo_low,
        "r2_leave_one_out_high": loo_high,
        "n_calibration": line.n,
        **{
            f"{name}{end}": float(row[column])
            for name, row in line.coefficients().iterrows()
            for end, column in (("", "value"), ("_low", "low"), ("_high", "high"))
        },
        "method": irt.method,
    }
    if trend is not None:
        document |= {
            "doubling_months": trend.doubling_months,
            "ci_low": trend.ci_low,
            "ci_high": trend.ci_high,
            "n_frontier": trend.n_frontier,
            "level": trend.level,
            "bootstrap": trend.bootstrap,
            "frontier": trend.models.loc[trend.models["frontier"], "model"].tolist(),
        }
    if test is not None:
        document["held_out"] = test.to_dict()
    return document


def _split(minutes: pd.DataFrame | None, patterns: list[str]) -> tuple[pd.DataFrame | None, pd.DataFrame | None]:
    """Human times to calibrate on, and those to foresee."""
    if not patterns:
        return minutes, None
    if minutes is None:
        raise InputError("--holdout needs --human: it names timed tasks to predict and not to calibrate on")
    held_out = minutes["task"].map(lambda name: any(fnmatchcase(name, pattern) for pattern in patterns))
    if not held_out.any():
        raise InputError(f"--holdout {' '.join(patterns)} matches none of the {len(minutes)} timed tasks")
    return minutes[~held_out].reset_index(drop=True), minutes[held_out].reset_index(drop=True)


def _held_out(irt: TimeHorizonIRT, asked: pd.DataFrame) -> Foresight:
    """Foresight of held-out times, beside always giving the calibration tasks' typical time."""
    import numpy as np

    from assay.evaluate.bridge import foresee

    asked = asked[asked["task"].isin(irt.items_.index)]
    if asked.empty:
        raise InputError("none of the held-out tasks is among the tasks of the responses")
    actual = asked["human_minutes"].to_numpy(np.float64)
    if (actual <= 0).any():
        task = asked["task"].iloc[int(np.argmax(actual <= 0))]
        raise InputError(f"held-out task {task!r}: its human time is not above zero")
    assert irt.calibration_ is not None
    typical = float(np.exp(np.log(irt.calibration_.minutes).mean()))
    return foresee(irt.predict_minutes(asked["task"]), actual, typical)


def _aliases(path: Path | None) -> dict[str, str] | None:
    if path is None:
        return None
    from assay._core.tables import read_table

    table = read_table(path, {"model": "text", "alias": "text"})
    return dict(zip(table["model"], table["alias"], strict=True))


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}; give another with --out") from None


def _write_json(document: dict[str, Any], path: Path) -> None:
    import json
    import math

    from assay._core.files import write_text

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(inner) for key, inner in value.items()}
        return None if isinstance(value, float) and not math.isfinite(value) else value

    write_text(path, json.dumps(clean(document), ensure_ascii=False, indent=2) + "\n")
