"""What a run found: `result.json` as frozen objects, and a table to print."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from assay._core.errors import InputError
from assay._core.files import write_text

if TYPE_CHECKING:
    import os

    import pandas as pd

SCHEMA = 1
RESULT_FILE = "result.json"
CASES_FILE = "cases.parquet"
PICTURES_FILE = "pictures.json"


@dataclass(frozen=True)
class DataUsed:
    """The data of a run. `path` and `sha256` are None for an embedded example."""

    name: str
    path: str | None
    sha256: str | None
    n: int


@dataclass(frozen=True)
class ClaimTested:
    """The claim, as declared before the run, and what the run says about it."""

    text: str
    metric: str
    better: Literal["higher", "lower"]
    scale: Literal["linear", "log"]
    margin: float
    expects: Literal["better", "no_worse"]
    outcome: Literal["supported", "contradicted", "unclear"]


@dataclass(frozen=True)
class Verdict:
    """The method against its strongest baseline.

    Parameters
    ----------
    outcome : "better", "worse", "equivalent" or "unclear"
    baseline : str
        The strongest baseline.
    effect : float or None
        method − baseline (`effect_scale` "difference") or method / baseline ("ratio"), averaged over the cases.
        None when no case has both.
    ci_low, ci_high : float or None
        95 % interval; None with fewer than six cases.
    effect_scale : "difference" or "ratio"
    n_cases : int
        Cases with a value for both.
    p_value : float or None
        Two-sided signed-rank test; None with fewer than six cases.
    sentence : str
        All of this in plain English.
    """

    outcome: Literal["better", "worse", "equivalent", "unclear"]
    baseline: str
    effect: float | None
    ci_low: float | None
    ci_high: float | None
    effect_scale: Literal["difference", "ratio"]
    n_cases: int
    p_value: float | None
    sentence: str


@dataclass(frozen=True)
class MetricUsed:
    """A metric as the trial declared it."""

    name: str
    better: Literal["higher", "lower"] | None
    target: float | None
    scale: Literal["linear", "log"]
    unit: str
    help: str


@dataclass(frozen=True)
class Estimate:
    """A mean over cases (log scale: geometric) with its 95 % interval; None where there are too few values."""

    mean: float | None
    ci_low: float | None
    ci_high: float | None


@dataclass(frozen=True)
class ArmSummary:
    """One arm over all cases: quality, cost (median seconds, highest peak in MiB) and how often it finished."""

    name: str
    baseline: bool
    metrics: Mapping[str, Estimate]
    wall_s: float | None
    cpu_s: float | None
    peak_mib: float | None
    n_finished: int
    n_failed: int


@dataclass(frozen=True)
class Failure:
    """An arm that raised on a case."""

    arm: str
    case: str
    error: str


@dataclass(frozen=True)
class Skipped:
    """A further part that could not run here: its data or its model is missing."""

    part: str
    reason: str


@dataclass(frozen=True)
class Result:
    """A finished run.

    The attributes are those of ``result.json`` (``docs/result.schema.json`` describes every one); `folder` is where
    it lies.
    """

    slug: str
    part: str
    scale: Literal["quick", "standard", "full"]
    seed: int
    params: Mapping[str, str | int | float | bool]
    created: str
    environment: Mapping[str, Any]
    command: str
    data: DataUsed
    claim: ClaimTested
    verdict: Verdict
    metrics: tuple[MetricUsed, ...]
    arms: tuple[ArmSummary, ...]
    failures: tuple[Failure, ...]
    also: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    folder: Path
    cases_file: str = CASES_FILE
    schema: int = field(default=SCHEMA)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Result:
        """Read the result in `folder`.

        Raises
        ------
        InputError
            There is no result there, or it is not one that this version understands.
        """
        file = Path(folder) / RESULT_FILE
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"{folder} holds no {RESULT_FILE}; give the folder of a finished run") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{file} cannot be read as JSON ({error}); run the trial again") from None
        schema = values.get("schema") if isinstance(values, dict) else None
        if schema != SCHEMA:
            raise InputError(f"{file} has schema {schema!r}, this version reads {SCHEMA}; run the trial again")
        try:
            return cls(**_parsed(values), folder=Path(folder))
        except (KeyError, TypeError) as error:
            raise InputError(f"{file} is not a result as we write it ({error}); run the trial again") from None

    def save(self) -> None:
        """Write ``result.json`` into the folder, whole or not at all."""
        write_text(self.folder / RESULT_FILE, self.to_json())

    def to_json(self) -> str:
        """The text of ``result.json``. Numbers that do not exist are null: JSON has no NaN."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """The content of ``result.json`` as plain Python values, in the order in which a person reads it."""
        order = [
            *("schema", "slug", "part", "scale", "seed", "params", "created", "environment", "command"),
            *("data", "claim", "verdict", "metrics", "arms", "cases_file", "failures", "also", "skipped"),
        ]
        return {name: _values(getattr(self, name)) for name in order}

    def to_frame(self) -> pd.DataFrame:
        """Every (case, arm) as a row: its metrics, what it cost, and its error if it failed."""
        import pandas as pd

        return pd.read_parquet(self.folder / self.cases_file)

    @property
    def parts(self) -> tuple[Result, ...]:
        """The results of the further parts of the trial."""
        return tuple(Result.load(self.folder / name) for name in self.also)

    def summary(self) -> str:
        """A table for the terminal: the verdict, the claim, and every arm with its quality and cost."""
        title = f"{self.slug}: {self.part}" if self.part else self.slug
        about = {
            "data": f"{self.data.name} ({self.data.n} records)",
            "run": f"scale {self.scale}, seed {self.seed}, {self.verdict.n_cases} paired cases",
            "claim": f"The method {self.claim.text}.",
            "outcome": self.claim.outcome,
        }
        rows = [["arm", *(_head(metric) for metric in self.metrics), "wall s", "CPU s", "peak MiB", "failed"]]
        for arm in self.arms:
            values = [_estimate(arm.metrics[metric.name]) for metric in self.metrics]
            costs = [_number(arm.wall_s), _number(arm.cpu_s), _number(arm.peak_mib)]
            name = arm.name if arm.baseline else f"{arm.name} *"
            rows.append([name, *values, *costs, str(arm.n_failed)])
        table = _columns(rows)
        width = max(map(len, table))
        rule, thin = "=" * width, "-" * width
        head = [title.center(width).rstrip(), rule, *(f"{name:<9}{text}" for name, text in about.items())]
        notes = ["* the method; mean [95 % interval]; seconds: median of the cases; peak: the highest"]
        if self.failures:
            first = self.failures[0]
            notes.append(f"{len(self.failures)} failures; the first: {first.arm} on {first.case}: {first.error}")
        notes += [f"left out: part {skipped.part}: {skipped.reason}" for skipped in self.skipped]
        sentence = textwrap.fill(self.verdict.sentence, max(width, 80))
        return "\n".join([*head, "", sentence, thin, table[0], thin, *table[1:], rule, *notes])


def _values(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return {item.name: _values(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {name: _values(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_values(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parsed(values: dict[str, Any]) -> dict[str, Any]:
    arms = [
        ArmSummary(**{**arm, "metrics": {name: Estimate(**found) for name, found in arm["metrics"].items()}})
        for arm in values["arms"]
    ]
    return {
        **values,
        "data": DataUsed(**values["data"]),
        "claim": ClaimTested(**values["claim"]),
        "verdict": Verdict(**values["verdict"]),
        "metrics": tuple(MetricUsed(**metric) for metric in values["metrics"]),
        "arms": tuple(arms),
        "failures": tuple(Failure(**failure) for failure in values["failures"]),
        "also": tuple(values["also"]),
        "skipped": tuple(Skipped(**skipped) for skipped in values["skipped"]),
    }


def _head(metric: MetricUsed) -> str:
    return f"{metric.name} ({metric.unit})" if metric.unit else metric.name


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _estimate(estimate: Estimate) -> str:
    if estimate.ci_low is None or estimate.ci_high is None:
        return _number(estimate.mean)
    return f"{_number(estimate.mean)} [{_number(estimate.ci_low)}, {_number(estimate.ci_high)}]"


def _columns(rows: list[list[str]]) -> list[str]:
    """Rows of cells as lines: the first column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *cells in rows:
        numbers = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *numbers]))
    return lines
