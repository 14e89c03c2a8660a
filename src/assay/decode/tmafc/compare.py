"""All methods side by side on recorded samples: what each answers and what each would have paid."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError
from assay.decode.tmafc.prior import rule_difficulty
from assay.decode.tmafc.replay import (
    WINDOW,
    Outcome,
    Settings,
    adaptive_consistency,
    calibrated_fractal,
    component_f1,
    component_majority,
    early_stopping,
    fractal,
    is_right,
    self_consistency,
)
from assay.decode.tmafc.vote import TAU, normalised

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

    from assay.decode.tmafc.history import History
    from assay.decode.tmafc.recorded import Recorded

#: Names as they stand in tables, in the order of the table.
METHODS: dict[str, Callable[[Recorded, Settings], Outcome]] = {
    "SC": self_consistency,
    "SC by component": component_majority,
    "AC": adaptive_consistency,
    "ESC": early_stopping,
    "FC": fractal,
}
CALIBRATED = "FC + ASCC"
_LONG = {
    "SC": "self-consistency: all samples, vote on the whole answer",
    "SC by component": "all samples, vote on every component",
    "AC": "adaptive-consistency: stops by the vote on the whole answer",
    "ESC": "early-stopping self-consistency: stops after equal answers in a row",
    "FC": "fractal consistency: stops by the votes on components",
    CALIBRATED: "fractal consistency with a prior fitted to earlier questions (TMAFC)",
}
#: Okabe–Ito, distinguishable with colour-blind eyes; and markers for print.
_COLOURS = ("#000000", "#999999", "#E69F00", "#56B4E9", "#009E73", "#D55E00")
_MARKERS = ("s", "D", "^", "v", "o", "*")
_Z = 1.959964


@dataclass(frozen=True)
class Replay:
    """Methods side by side on recorded samples.

    Parameters
    ----------
    questions : DataFrame
        A row per question and method: question (its number from 0), method, answer, right, component_f1, agrees
        (with the vote of all samples by component), samples, requests, tokens, category, alpha, beta.
    n_max, tau : int, float
    """

    questions: pd.DataFrame
    n_max: int
    tau: float

    def to_frame(self) -> pd.DataFrame:
        """One row per method, with 95 % intervals over questions.

        Columns: method, n_questions, accuracy (all components right), component_f1, agrees, samples, requests (per
        component), tokens (NaN where not recorded) and saved_percent (of the samples of self-consistency, paired by
        question), each with ``_low`` and ``_high``.
        """
        import pandas as pd

        rows = []
        full = self.questions.loc[self.questions["method"] == "SC", "samples"].to_numpy()
        for method in dict.fromkeys(self.questions["method"]):
            mine = self.questions[self.questions["method"] == method]
            row: dict[str, Any] = {"method": method, "n_questions": len(mine)}
            for name, source, interval in (
                ("accuracy", mine["right"], _wilson),
                ("component_f1", mine["component_f1"], _within_one),
                ("agrees", mine["agrees"], _wilson),
                ("samples", mine["samples"], mean_interval),
                ("requests", mine["requests"] / mine["components"], mean_interval),
                ("tokens", mine["tokens"], mean_interval),
            ):
                row[name], row[f"{name}_low"], row[f"{name}_high"] = interval(source)
            row["saved_percent"], row["saved_percent_low"], row["saved_percent_high"] = _saved(mine["samples"], full)
            rows.append(row)
        return pd.DataFrame(rows)

    def summary(self) -> str:
        """The methods as a table; 95 % intervals in brackets."""
        frame = self.to_frame()
        has_gold = bool(frame["accuracy"].notna().all())
        has_tokens = bool(frame["tokens"].notna().all())
        quality = "accuracy" if has_gold else "agrees"
        columns = {
            "": frame["method"],
            ("all right" if has_gold else "as all samples"): _cells(frame, quality, "{:.3f}"),
        }
        if has_gold:
            columns["component F1"] = _cells(frame, "component_f1", "{:.3f}")
        columns["samples"] = _cells(frame, "samples", "{:.1f}")
        columns["saved, %"] = _cells(frame, "saved_percent", "{:.0f}")
        columns["per component"] = _cells(frame, "requests", "{:.1f}")
        if has_tokens:
            columns["tokens"] = _cells(frame, "tokens", "{:.0f}")
        import pandas as pd

        n = int(frame["n_questions"].iloc[0])
        head = (
            f"{n} question{'s' * (n != 1)}, at most {self.n_max} samples each, tau {self.tau:g}; "
            "95 % intervals in brackets"
        )
        names = [f"{method:16} {_LONG[method]}" for method in frame["method"]]
        return "\n".join([head, "", pd.DataFrame(columns).to_string(index=False), "", *names])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw quality against the samples paid for, with 95 % intervals: up and to the left is better."""
        if ax is None:
            from matplotlib import pyplot as plt

            _, ax = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
        frame = self.to_frame()
        quality = "accuracy" if bool(frame["accuracy"].notna().all()) else "agrees"
        for row, colour, marker in zip(frame.to_dict("records"), _COLOURS, _MARKERS, strict=False):
            x, y = row["samples"], row[quality]
            across = [[x - row["samples_low"]], [row["samples_high"] - x]]
            up = [[y - row[f"{quality}_low"]], [row[f"{quality}_high"] - y]]
            ax.errorbar(
                x, y, xerr=across, yerr=up, fmt=marker, color=colour, markersize=8, capsize=3, label=row["method"]
            )
        ax.set_xlabel("samples per question")
        label = "answers with every component right" if quality == "accuracy" else "answers as all samples would give"
        ax.set_ylabel(f"{label} (share)")
        ax.set_xlim(left=0)
        ax.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False)
        return ax


def replay(
    records: Sequence[Recorded],
    *,
    tau: float = TAU,
    n_max: int = 40,
    window: int = WINDOW,
    history: History | None = None,
    classifier: Callable[[str], str] = rule_difficulty,
) -> Replay:
    """Compare the methods on recorded samples.

    Parameters
    ----------
    records : sequence of Recorded
        From :func:`read_samples` or :func:`record_samples`. Their order matters to the calibrated method alone,
        which learns from the questions before.
    tau, n_max, window : float, int, int
        Threshold of the adaptive methods, most samples of a question, window of ESC.
    history : History, optional
        Votes on earlier questions of the same model and kind; it grows. None: a new one.
    classifier : callable
        From question to Easy, Middle or Hard, where a record has no category.

    Returns
    -------
    Replay

    Raises
    ------
    InputError
        No records, a parameter out of its range, or more than half of all samples without a JSON object.

    Warns
    -----
    UserWarning
        All samples of each question are equal.

    Examples
    --------
    Three answers, each partly wrong: by component the right values have two votes each.

    >>> from assay.decode.tmafc import Recorded
    >>> samples = ({"A": 1, "B": "x"}, {"A": 1, "B": 2}, {"A": "y", "B": 2})
    >>> found = replay([Recorded("?", ("A", "B"), samples, gold={"A": 1, "B": 2})])
    >>> found.to_frame().set_index("method")["accuracy"].to_dict()["FC"]
    1.0
    """
    settings = Settings(tau, n_max, window)
    if not records:
        raise InputError("there are no recorded samples to replay; give at least one question")
    _check_samples(records)
    outcomes = {name: [method(record, settings) for record in records] for name, method in METHODS.items()}
    outcomes[CALIBRATED] = calibrated_fractal(records, settings, history, classifier)
    return Replay(_table(records, outcomes), n_max, tau)


def _check_samples(records: Sequence[Recorded]) -> None:
    n_samples = sum(len(record.samples) for record in records)
    n_unparsed = sum(sample is None for record in records for sample in record.samples)
    if 2 * n_unparsed > n_samples:
        raise InputError(
            f"the model does not follow the JSON format: {n_unparsed} of {n_samples} replies unparsed; "
            "record them again with a prompt or a model that gives JSON objects"
        )
    if len(records) > 1 and all(len({normalised(sample) for sample in record.samples}) == 1 for record in records):
        warnings.warn(
            "all samples of each question are equal: were they recorded at temperature 0? A vote among equal samples "
            "says nothing",
            stacklevel=3,
        )


def _table(records: Sequence[Recorded], outcomes: dict[str, list[Outcome]]) -> pd.DataFrame:
    import pandas as pd

    by_component = outcomes["SC by component"]
    rows = []
    for method, found in outcomes.items():
        for number, (record, outcome) in enumerate(zip(records, found, strict=True)):
            row = {
                "question": number,
                "method": method,
                "components": len(record.components),
                "answer": outcome.answer,
                "right": is_right(record, outcome),
                "component_f1": component_f1(record, outcome),
                "agrees": float(_same(outcome, by_component[number])),
                "samples": outcome.n_samples,
                "requests": outcome.n_requests,
                "tokens": outcome.tokens,
                "category": outcome.category,
                "alpha": outcome.prior.alpha,
                "beta": outcome.prior.beta,
            }
            rows.append(row)
    return pd.DataFrame(rows)


def _same(one: Outcome, other: Outcome) -> bool:
    return all(normalised(one.answer.get(name)) == normalised(value) for name, value in other.answer.items())


def mean_interval(values: ArrayLike) -> tuple[float, float, float]:
    """Mean with the ends of its 95 % interval (central limit theorem); NaN ends for a single value."""
    data = np.asarray(values, dtype=np.float64)
    mean = float(data.mean())
    half = _Z * float(data.std(ddof=1)) / math.sqrt(len(data)) if len(data) > 1 else math.nan
    return mean, mean - half, mean + half


def _within_one(values: ArrayLike) -> tuple[float, float, float]:
    mean, low, high = mean_interval(values)
    return mean, float(np.maximum(low, 0.0)), float(np.minimum(high, 1.0))


def _saved(paid: ArrayLike, full: ArrayLike) -> tuple[float, float, float]:
    """Percent saved beside `full`, with the 95 % interval of a ratio of means of pairs (delta method)."""
    some, every = np.asarray(paid, dtype=np.float64), np.asarray(full, dtype=np.float64)
    ratio = float(some.mean() / every.mean())
    _, low, high = mean_interval((some - ratio * every) / every.mean())
    return 100 * (1 - ratio), 100 * (1 - ratio + low), 100 * (1 - ratio + high)


def _wilson(values: ArrayLike) -> tuple[float, float, float]:
    """Share of ones with Wilson's 95 % interval, which stays within 0 and 1."""
    data = np.asarray(values, dtype=np.float64)
    n, share = len(data), float(data.mean())
    centre = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n * n))
    return share, min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half))


def _cells(frame: pd.DataFrame, name: str, form: str) -> pd.Series[str]:
    show = [partial(form.format)(value) for value in frame[name]]
    low, high = frame[f"{name}_low"], frame[f"{name}_high"]
    import pandas as pd

    return pd.Series([f"{a} [{form.format(b)}, {form.format(c)}]" for a, b, c in zip(show, low, high, strict=True)])
