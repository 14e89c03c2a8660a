"""Fill the templates: what the page says about each run, figure by figure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from assay.bench.report import numbers, plots

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.bench.report.load import Run
    from assay.bench.result import ArmSummary, MetricUsed

#: Longer errors are cut on the page; result.json has them whole.
MAX_ERROR = 600
#: So many cases of a failure are named, the rest is counted.
MAX_CASES_NAMED = 12


@dataclass(frozen=True)
class FailureGroup:
    """Cases in which an arm failed with the same error."""

    arm: str
    error: str
    named: tuple[str, ...]
    n: int


def render_runs(runs: Sequence[Run]) -> str:
    """The whole page about `runs` as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("assay.bench", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        differences=lambda run, prefix: Markup(plots.differences(run, prefix)),  # noqa: S704 (plots escape names)
        times=lambda run, prefix: Markup(plots.times(run, prefix)),  # noqa: S704
        memories=lambda run, prefix: Markup(plots.memories(run, prefix)),  # noqa: S704
        effect=_effect,
        cell=metric_cell,
        margin=margin_in_words,
        needs_more=needs_more,
        failures=failure_groups,
        created=created_in_words,
        direction=direction_in_words,
    )
    environment.filters.update(duration=numbers.duration, memory=numbers.memory, p_value=numbers.p_value)
    return environment.get_template("report.html.j2").render(runs=runs, rows=_rows(runs), tally=tally(runs))


def _rows(runs: Sequence[Run]) -> list[tuple[Run, str]]:
    """The rows of the table of verdicts with the ids of their sections: each run, then its parts."""
    rows: list[tuple[Run, str]] = []

    def add(run: Run, prefix: str) -> None:
        rows.append((run, prefix))
        for number, part in enumerate(run.parts, start=1):
            add(part, f"{prefix}-p{number}")

    for number, run in enumerate(runs, start=1):
        add(run, f"run-{number}")
    return rows


def tally(runs: Sequence[Run]) -> str:
    """How many methods came out how, and how many claims hold, in a sentence."""
    verdicts = _counted([run.result.verdict.outcome for run in runs], ["better", "equivalent", "worse", "unclear"])
    claims = _counted([run.result.claim.outcome for run in runs], ["supported", "contradicted", "unclear"])
    return f"Against the strongest baseline of each trial: {verdicts}. The claims: {claims}."


def _counted(words: Sequence[str], order: Sequence[str]) -> str:
    return ", ".join(f"{words.count(word)} {word}" for word in order if word in words)


def metric_cell(run: Run, arm: ArmSummary, metric: MetricUsed) -> tuple[str, str]:
    """The mean of a metric over the cases of an arm, and its interval, as text.

    Down a column the decimals are the same, unless the arms are too far apart for that.
    """
    column = [_decimals(other, metric) for other in run.arms]
    known = [decimals for decimals in column if decimals is not None]
    own = _decimals(arm, metric)
    if own is not None and max(known) - min(known) <= 1:
        own = max(known)
    estimate = arm.metrics[metric.name]
    return numbers.number(estimate.mean, own), numbers.interval(estimate.ci_low, estimate.ci_high, own)


def _decimals(arm: ArmSummary, metric: MetricUsed) -> int | None:
    estimate = arm.metrics[metric.name]
    return numbers.decimals_for(estimate.mean, estimate.ci_low, estimate.ci_high)


def _effect(run: Run) -> tuple[str, str]:
    verdict = run.result.verdict
    return numbers.effect(verdict.effect, verdict.ci_low, verdict.ci_high, verdict.effect_scale, run.primary.unit)


def needs_more(run: Run) -> bool:
    """Whether the interval leaves out "no difference" and the verdict is unclear all the same."""
    verdict = run.result.verdict
    if verdict.outcome != "unclear" or verdict.ci_low is None or verdict.ci_high is None:
        return False
    neutral = 1.0 if verdict.effect_scale == "ratio" else 0.0
    return not verdict.ci_low <= neutral <= verdict.ci_high


def direction_in_words(metric: MetricUsed) -> tuple[str, str]:
    """An arrow and what it means."""
    if metric.target is not None:
        return "◎", f"target {numbers.with_unit(f'{metric.target:g}', metric.unit)}"
    return ("↑", "higher is better") if metric.better == "higher" else ("↓", "lower is better")


def margin_in_words(run: Run) -> str:
    """Which differences do not matter, as declared before the run."""
    margin = run.result.claim.margin
    if margin == 0:
        return "every difference matters"
    if run.result.verdict.effect_scale == "ratio":
        return f"differences within a factor of {1 + margin:g} do not matter"
    return f"differences within ±{numbers.with_unit(f'{margin:g}', run.primary.unit)} do not matter"


def failure_groups(run: Run) -> list[FailureGroup]:
    """The failures of a run, the same error of the same arm told once."""
    cases: dict[tuple[str, str], list[str]] = {}
    for failure in run.result.failures:
        cases.setdefault((failure.arm, failure.error), []).append(failure.case)
    return [
        FailureGroup(
            arm=arm,
            error=error if len(error) <= MAX_ERROR else error[:MAX_ERROR].rstrip() + " …",
            named=tuple(names[:MAX_CASES_NAMED]),
            n=len(names),
        )
        for (arm, error), names in cases.items()
    ]


def created_in_words(run: Run) -> str:
    """The time of a run to the minute, as it stands where it is no ISO 8601 time."""
    try:
        moment = datetime.fromisoformat(run.result.created)
    except ValueError:
        return run.result.created
    return f"{moment:%Y-%m-%d %H:%M} {moment.tzname() or ''}".rstrip()
