"""From the rows of a run to its verdict: which baseline counts, what the numbers say, and how to say it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from assay.bench.result import ArmSummary, ClaimTested, Estimate, Failure, MetricUsed, Verdict
from assay.bench.stats import MIN_CASES, Array, Comparison, claim_outcome, paired, strongest, summary
from assay.bench.worker import COSTS, Row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from assay.bench.spec import Metric, Trial

#: With more pairs missing than this, what is left may be the easy part: no verdict.
MAX_MISSING = 0.10


def cases_frame(trial: Trial, rows: Sequence[Row]) -> pd.DataFrame:
    """Rows as the table of ``cases.parquet``.

    Columns: ``case``, ``arm``, ``baseline``, one for each metric, ``wall_s``, ``cpu_s``, ``peak_mib``, ``error``.
    """
    import pandas as pd

    is_baseline = {arm.name: arm.baseline for arm in trial.arms}
    names = [metric.name for metric in trial.metrics if metric.name not in COSTS]
    columns: dict[str, pd.Series[str] | pd.Series[bool] | pd.Series[float]] = {
        "case": pd.Series([row.case for row in rows], dtype="str"),
        "arm": pd.Series([row.arm for row in rows], dtype="str"),
        "baseline": pd.Series([is_baseline[row.arm] for row in rows], dtype="bool"),
    }
    for name in names:
        columns[name] = pd.Series([row.metrics.get(name, np.nan) for row in rows], dtype="float64")
    for name in COSTS:
        columns[name] = pd.Series([getattr(row, name) for row in rows], dtype="float64")
    columns["error"] = pd.Series([row.error for row in rows], dtype="str")
    return pd.DataFrame(columns)


def judge(trial: Trial, frame: pd.DataFrame) -> tuple[Verdict, ClaimTested]:
    """The method against its strongest baseline, and what that says about the claim.

    Parameters
    ----------
    trial : Trial
    frame : DataFrame
        From :func:`cases_frame`.
    """
    metric, claim, method = trial.primary, trial.claim, trial.method.name
    values = _by_arm(frame, metric.name)
    rival = strongest({arm.name: values[arm.name] for arm in trial.baselines}, values[method], metric)
    found = paired(values[method], values[rival], metric, claim.margin, n_baselines=len(trial.baselines))

    has_failed = _failed(frame, method) | _failed(frame, rival)
    n_failed, n = int(has_failed.sum()), len(has_failed)
    is_capped = found.n >= MIN_CASES and n_failed > MAX_MISSING * n
    outcome = "unclear" if is_capped else found.outcome

    verdict = Verdict(
        outcome=outcome,
        baseline=rival,
        effect=found.effect,
        ci_low=found.ci_low,
        ci_high=found.ci_high,
        effect_scale="ratio" if metric.scale == "log" else "difference",
        n_cases=found.n,
        p_value=found.p_value,
        sentence=_sentence(found, metric, method, rival, claim.margin, n_failed, n, is_capped=is_capped),
    )
    assert metric.better is not None  # Trial checks that the primary metric has a direction
    tested = ClaimTested(
        text=claim.text,
        metric=claim.metric,
        better=metric.better,
        scale=metric.scale,
        margin=claim.margin,
        expects=claim.expects,
        outcome=claim_outcome(outcome, claim.expects),
    )
    return verdict, tested


def arm_summaries(trial: Trial, frame: pd.DataFrame) -> tuple[ArmSummary, ...]:
    """Quality and cost of every arm over the cases that it finished."""
    summaries = []
    for arm in trial.arms:
        rows = frame[frame["arm"] == arm.name]
        finished = rows[rows["error"].isna()]
        values = {metric.name: finished[metric.name].to_numpy(float) for metric in trial.metrics}
        none = finished.empty
        summaries.append(
            ArmSummary(
                name=arm.name,
                baseline=arm.baseline,
                metrics={metric.name: Estimate(*summary(values[metric.name], metric)) for metric in trial.metrics},
                wall_s=None if none else float(finished["wall_s"].median()),
                cpu_s=None if none else float(finished["cpu_s"].median()),
                peak_mib=None if none else float(finished["peak_mib"].max()),
                n_finished=len(finished),
                n_failed=len(rows) - len(finished),
            )
        )
    return tuple(summaries)


def failures(frame: pd.DataFrame) -> tuple[Failure, ...]:
    """Every (arm, case) that raised, in the order of the cases."""
    failed = frame[frame["error"].notna()]
    return tuple(Failure(*names) for names in zip(failed["arm"], failed["case"], failed["error"], strict=True))


def metrics_used(trial: Trial) -> tuple[MetricUsed, ...]:
    """The metrics as the result file holds them."""
    return tuple(MetricUsed(**asdict(metric)) for metric in trial.metrics)


def _by_arm(frame: pd.DataFrame, column: str) -> Mapping[str, Array]:
    """A column as one array per arm, all in the order of the cases; NaN where the arm failed."""
    return {str(arm): rows[column].where(rows["error"].isna()).to_numpy(float) for arm, rows in frame.groupby("arm")}


def _failed(frame: pd.DataFrame, arm: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return frame.loc[frame["arm"] == arm, "error"].notna().to_numpy(bool)


def _sentence(
    found: Comparison, metric: Metric, method: str, rival: str, margin: float, n_failed: int, n: int, *, is_capped: bool
) -> str:
    on = f"on {metric.name} ({metric.better} is better)"
    failed = f"; {n_failed} of {n} cases failed" if n_failed else ""
    cases = f"{found.n} case" if found.n == 1 else f"{found.n} cases"
    if found.effect is None:
        return f"Too few cases to tell: {on}, no case has a value for both {method} and {rival}{failed}."
    effect = _effect(found, metric)
    if found.n < MIN_CASES:
        return (
            f"Too few cases to tell: {on}, {method} against {rival} shows {effect} over {cases}, "
            f"and fewer than {MIN_CASES} decide nothing{failed}."
        )
    evidence = f"{effect} over {cases}"
    if is_capped:
        return f"Unclear, as {n_failed} of {n} cases failed: {on}, {method} against {rival} shows {evidence}."
    on = f"On{on[2:]}"
    if found.outcome == "equivalent" and margin > 0:
        within = f"a factor of {1 + margin:g}" if metric.scale == "log" else f"±{margin:g}"
        return f"{on}, {method} is equivalent to {rival}, within {within}: {evidence}{failed}."
    if found.outcome == "equivalent":
        return f"{on}, {method} is equal to {rival} in every case: {evidence}{failed}."
    if found.outcome == "unclear":
        stricter = "" if _holds_none(found, metric) else "; the stricter tests that a verdict needs do not agree"
        return f"{on}, it is unclear whether {method} differs from {rival}: {evidence}{stricter}{failed}."
    return f"{on}, {method} is {found.outcome} than {rival}: {evidence}{failed}."


def _holds_none(found: Comparison, metric: Metric) -> bool:
    """Whether "no difference" lies in the interval that is shown."""
    none = 1.0 if metric.scale == "log" else 0.0
    return found.ci_low is None or found.ci_high is None or found.ci_low <= none <= found.ci_high


def _effect(found: Comparison, metric: Metric) -> str:
    unit = f" {metric.unit}" if metric.unit and metric.scale == "linear" else ""
    sign = "" if metric.scale == "log" else "+"
    name = "a mean ratio of" if metric.scale == "log" else "a mean difference of"
    text = f"{name} {found.effect:{sign}.3g}{unit}"
    if found.ci_low is None or found.ci_high is None:
        return text
    return f"{text} (95 % interval {found.ci_low:{sign}.3g} to {found.ci_high:{sign}.3g})"
