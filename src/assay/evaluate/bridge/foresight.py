"""How well predicted minutes foresee human minutes on tasks whose times were used nowhere, with intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    from assay.evaluate.bridge.likelihood import Array

#: Upper ends, in minutes, of the first three of SWE-bench's four classes of human time.
BUCKETS = (15.0, 60.0, 240.0)
CLASSES = np.arange(len(BUCKETS) + 1)

METRICS = {
    "r2_log": "R² of log minutes",
    "log_error": "mean |log ratio|",
    "within_2x": "within a factor of two",
    "bucket_accuracy": "right class (<= 15, 60, 240, > 240 min)",
    "macro_f1": "macro F1 of the classes",
    "linear_kappa": "linear kappa of the classes",
}

#: A factor of two itself counts as within it, whatever the logarithm's rounding.
TWOFOLD = np.log(2.0) + 1e-12


def score_minutes(predicted: Array, actual: Array) -> dict[str, float]:
    """How well predicted minutes foresee human minutes, on tasks whose times were used nowhere.

    Returns
    -------
    dict
        `r2_log` (of log minutes), `log_error` (mean |log ratio|), `within_2x` (share within a factor of two), and for
        the classes up to 15, 60, 240 minutes and above: `bucket_accuracy`, `macro_f1` (over classes that occur) and
        `linear_kappa`.

    Examples
    --------
    >>> score_minutes(np.array([10.0, 30.0]), np.array([12.0, 100.0]))["within_2x"]
    0.5
    """
    from sklearn.metrics import cohen_kappa_score, f1_score

    gap = np.log(predicted) - np.log(actual)
    total = np.log(actual) - np.log(actual).mean()
    found, true = classes(predicted), classes(actual)
    one_class = len(set(found) | set(true)) == 1
    kappa = float("nan") if one_class else cohen_kappa_score(true, found, labels=CLASSES, weights="linear")
    return {
        "r2_log": 1.0 - float(gap @ gap) / float(total @ total) if total.any() else float("nan"),
        "log_error": float(np.abs(gap).mean()),
        "within_2x": float((np.abs(gap) <= TWOFOLD).mean()),
        "bucket_accuracy": float((found == true).mean()),
        "macro_f1": float(f1_score(true, found, average="macro")),
        "linear_kappa": float(kappa),
    }


def classes(minutes: Array) -> NDArray[np.intp]:
    """0 for up to 15 minutes, 1 for up to 60, 2 for up to 240, 3 beyond: (n,) int."""
    return np.digitize(minutes, BUCKETS, right=True)


def resampled(n: int, n_boot: int, seed: int) -> Iterator[Array]:
    """How often each of n tasks is drawn, in pieces of (draws, n) that fit into the memory."""
    rng = np.random.default_rng(seed)
    piece = max(1, 2_000_000 // n)
    for first in range(0, n_boot, piece):
        yield rng.multinomial(n, np.full(n, 1.0 / n), size=min(piece, n_boot - first)).astype(np.float64)


def resampled_scores(predicted: Array, actual: Array, counts: Array) -> dict[str, Array]:
    """:func:`score_minutes` of every resample at once.

    Parameters
    ----------
    predicted, actual : (n,) float
    counts : (n_draws, n) float
        How often each task was drawn; rows sum to n.

    Returns
    -------
    dict of (n_draws,) float
        NaN where a resample has no score (all times equal, or all of one class).
    """
    n = len(actual)
    log_actual = np.log(actual)
    gap = np.log(predicted) - log_actual
    k = len(CLASSES)
    cell = np.zeros((n, k * k))
    cell[np.arange(n), k * classes(actual) + classes(predicted)] = 1.0
    confusion = (counts @ cell).reshape(-1, k, k)
    true, found = confusion.sum(axis=2), confusion.sum(axis=1)
    right = np.diagonal(confusion, axis1=1, axis2=2)
    distance = np.abs(CLASSES[:, None] - CLASSES)
    by_chance = np.einsum("bi,ij,bj->b", true, distance, found) / n
    centred = log_actual - log_actual.mean()
    with np.errstate(invalid="ignore", divide="ignore"):
        total = counts @ centred**2 - (counts @ centred) ** 2 / n
        f1 = 2.0 * right / (true + found)
        return {
            "r2_log": np.where(total > 1e-12 * n, 1.0 - counts @ gap**2 / total, np.nan),
            "log_error": counts @ np.abs(gap) / n,
            "within_2x": counts @ (np.abs(gap) <= TWOFOLD) / n,
            "bucket_accuracy": right.sum(axis=1) / n,
            "macro_f1": np.nansum(f1, axis=1) / (true + found > 0).sum(axis=1),
            "linear_kappa": 1.0 - (confusion * distance).sum(axis=(1, 2)) / by_chance,
        }


@dataclass(frozen=True)
class Foresight:
    """Predicted minutes of held-out tasks beside always giving one typical time, with intervals over the tasks.

    The intervals are percentile bootstraps over the held-out tasks, the predictions taken as they are: they say how
    the numbers would move with other tasks of the same kind, and not with other responses or another calibration.

    Parameters
    ----------
    n : int
        Held-out tasks.
    table : DataFrame, by metric
        predicted, predicted_low, predicted_high; typical, typical_low, typical_high; difference (predicted − typical,
        paired by task), difference_low, difference_high.
    confidence : float
    """

    n: int
    table: pd.DataFrame
    confidence: float

    def to_frame(self) -> pd.DataFrame:
        """The table."""
        return self.table.copy()

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the metrics, each with ``_low`` and ``_high``; the same of the typical time and the difference."""
        parts = {}
        for part in ("predicted", "typical", "difference"):
            parts[part] = {
                f"{metric}{end}": float(self.table.loc[metric, f"{part}{end}"])
                for metric in self.table.index
                for end in ("", "_low", "_high")
            }
        return {
            "n": self.n,
            "confidence": self.confidence,
            **parts["predicted"],
            "typical_time": parts["typical"],
            "difference": parts["difference"],
        }

    def summary(self) -> str:
        """The table, to print."""
        parts = {"predicted": "predicted", "typical": "typical time", "difference": "difference"}
        lines = [
            f"{self.n} timed tasks held out, {self.confidence:.0%} bootstrap over them in brackets; "
            "the typical time is that of the calibration",
            f"  {'':<41}" + "".join(f"{head:<26}" for head in parts.values()).rstrip(),
        ]
        for metric, row in self.table.iterrows():
            cells = [
                f"{row[part]:>6.3f} [{row[f'{part}_low']:.3f}, {row[f'{part}_high']:.3f}]".ljust(26) for part in parts
            ]
            lines.append(f"  {METRICS[str(metric)]:<41}{''.join(cells).rstrip()}")
        return "\n".join(lines)


def foresee(
    predicted: ArrayLike,
    actual: ArrayLike,
    typical: float,
    *,
    confidence: float = 0.95,
    n_boot: int = 2000,
    seed: int = 42,
) -> Foresight:
    """Score predicted minutes on held-out tasks, beside always giving the typical time, with bootstrap intervals.

    Parameters
    ----------
    predicted, actual : (n,) float
        Minutes, above zero.
    typical : float
        Minutes.
    confidence, n_boot, seed
        Of the bootstrap over tasks.

    Raises
    ------
    InputError
        No tasks, or a time that is not above zero.

    Examples
    --------
    >>> found = foresee([10.0, 30.0, 70.0], [10.0, 30.0, 70.0], typical=20.0)
    >>> found.to_dict()["bucket_accuracy"], found.to_dict()["bucket_accuracy_low"]
    (1.0, 1.0)
    """
    given, human = np.asarray(predicted, np.float64), np.asarray(actual, np.float64)
    if len(human) == 0 or given.shape != human.shape:
        raise InputError(f"predicted has {len(given)} times and actual {len(human)}; expected as many, at least one")
    if not (human > 0).all():
        raise InputError(f"actual holds the time {human[~(human > 0)][0]:g}; expected minutes above zero")
    always = np.full(len(human), float(typical))
    ways = {"predicted": given, "typical": always}
    value = pd.DataFrame({name: score_minutes(minutes, human) for name, minutes in ways.items()})
    draws: dict[str, list[pd.DataFrame]] = {name: [] for name in ways}
    for counts in resampled(len(human), n_boot, seed):
        for name, minutes in ways.items():
            draws[name].append(pd.DataFrame(resampled_scores(minutes, human, counts)))
    drawn = {name: pd.concat(found, ignore_index=True) for name, found in draws.items()}
    value["difference"] = value["predicted"] - value["typical"]
    drawn["difference"] = drawn["predicted"] - drawn["typical"]
    ends = [0.5 - confidence / 2, 0.5 + confidence / 2]
    columns: dict[str, pd.Series[float]] = {}
    for name, found in drawn.items():
        low, high = (found.quantile(end) for end in ends)  # leaves out resamples without a score
        columns |= {name: value[name], f"{name}_low": low, f"{name}_high": high}
    table = pd.DataFrame(columns).reindex(list(METRICS)).rename_axis("metric")
    return Foresight(len(human), table, confidence)
