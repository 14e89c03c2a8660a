"""From difficulty to human minutes: log(minutes) = beta0 + beta1 b, fitted on the tasks whose human time is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from assay._core.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray

    from assay.evaluate.bridge.likelihood import Array

#: Upper ends, in minutes, of the first three of SWE-bench's four classes of human time.
BUCKETS = (15.0, 60.0, 240.0)


@dataclass(frozen=True)
class Calibration:
    """A least-squares line of log human minutes on difficulty.

    Parameters
    ----------
    intercept, slope : float
        beta0 (log minutes) and beta1 (log minutes per unit of difficulty); natural logarithms.
    residual_sd : float
        s, of log minutes, with n − 2 degrees of freedom.
    r_squared : float
        On the calibration tasks themselves.
    r_squared_loo : float
        Each task's time predicted by the line through the others; its time was used nowhere else.
    difficulty, minutes : (n,) float
        The calibration tasks.
    """

    intercept: float
    slope: float
    residual_sd: float
    r_squared: float
    r_squared_loo: float
    difficulty: Array
    minutes: Array

    @property
    def n(self) -> int:
        """Number of calibration tasks."""
        return len(self.difficulty)

    def predict(self, difficulty: Array) -> Array:
        """Median human minutes at a difficulty: exp(beta0 + beta1 b), without a smearing factor."""
        with np.errstate(over="ignore"):  # far outside the timed tasks: infinite minutes say so themselves
            return np.asarray(np.exp(self.intercept + self.slope * np.asarray(difficulty)), np.float64)

    def line_variance(self, difficulty: Array) -> Array:
        """Variance of the line itself (log minutes): s² (1/n + (b − mean b)² / Sxx)."""
        gap = np.asarray(difficulty, np.float64) - self.difficulty.mean()
        sxx = float(np.sum((self.difficulty - self.difficulty.mean()) ** 2))
        return np.asarray(self.residual_sd**2 * (1.0 / self.n + gap**2 / sxx), np.float64)

    def interval(
        self, difficulty: Array, confidence: float = 0.95, ability_se: Array | None = None
    ) -> tuple[Array, Array]:
        """Ends, in minutes, of an interval around :meth:`predict`.

        Parameters
        ----------
        difficulty : (m,) float
        confidence : float
        ability_se : (m,) float, optional
            None: a prediction interval for a new task's human time. Else an interval for the line at a point that is
            known up to this standard error, such as a model's ability.
        """
        spread = self.line_variance(difficulty)
        if ability_se is None:
            spread = spread + self.residual_sd**2
        else:
            spread = spread + (self.slope * np.asarray(ability_se)) ** 2
        return self._around(difficulty, spread, confidence)

    def _around(self, difficulty: Array, variance: Array, confidence: float) -> tuple[Array, Array]:
        half = float(stats.t.ppf(0.5 + confidence / 2, self.n - 2)) * np.sqrt(variance)
        middle = self.intercept + self.slope * np.asarray(difficulty)
        return np.exp(middle - half), np.exp(middle + half)

    def extrapolates(self, difficulty: Array) -> NDArray[np.bool_]:
        """Whether each difficulty lies outside those of the calibration tasks."""
        return np.asarray((difficulty < self.difficulty.min()) | (difficulty > self.difficulty.max()), np.bool_)

    def to_frame(self) -> pd.DataFrame:
        """Calibration tasks: difficulty, minutes, predicted_minutes."""
        predicted = self.predict(self.difficulty)
        return pd.DataFrame({"difficulty": self.difficulty, "minutes": self.minutes, "predicted_minutes": predicted})

    def summary(self) -> str:
        """The line in words."""
        sxx = float(np.sum((self.difficulty - self.difficulty.mean()) ** 2))
        half = stats.t.ppf(0.975, self.n - 2) * self.residual_sd / np.sqrt(sxx)
        low, high = np.exp(self.slope - half), np.exp(self.slope + half)
        return (
            f"log(minutes) = {self.intercept:.3f} + {self.slope:.3f} × difficulty, on {self.n} timed tasks\n"
            f"R² {self.r_squared:.3f} on these tasks, {self.r_squared_loo:.3f} each predicted from the others\n"
            f"one unit of difficulty: human time ×{np.exp(self.slope):.2f} [{low:.2f}, {high:.2f}]"
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Difficulty against human time, with the line and its 95 % prediction band."""
        from assay.evaluate.bridge.plots import draw_calibration

        return draw_calibration(self, ax)


def calibrate(difficulty: ArrayLike, minutes: ArrayLike) -> Calibration:
    """Fit the line by ordinary least squares: log time on difficulty, not the other way round.

    Parameters
    ----------
    difficulty : (n,) float
    minutes : (n,) float
        Above zero.

    Raises
    ------
    InputError
        Fewer than three tasks, or all of the same difficulty.

    Examples
    --------
    >>> line = calibrate(np.array([-1.0, 0.0, 1.0, 2.0]), np.array([2.0, 4.0, 8.0, 16.0]))
    >>> round(float(line.predict(np.array([3.0]))[0]), 6), round(line.r_squared, 6)
    (32.0, 1.0)
    """
    x, y = np.asarray(difficulty, np.float64), np.log(np.asarray(minutes, np.float64))
    if len(x) < 3:
        raise InputError(f"cannot calibrate on {len(x)} tasks with human times; at least 3 are needed")
    gap = x - x.mean()
    sxx = float(gap @ gap)
    if sxx <= 1e-12 * len(x):
        raise InputError(f"cannot calibrate: the {len(x)} tasks with human times all have the same difficulty")
    slope = float(gap @ y) / sxx
    intercept = float(y.mean() - slope * x.mean())
    residual = y - intercept - slope * x
    total = float(np.sum((y - y.mean()) ** 2))
    leverage = 1.0 / len(x) + gap**2 / sxx
    left_out = residual / np.maximum(1.0 - leverage, 1e-12)
    # Leaving a task out also moves the mean that it is compared with: y_i − mean of the others.
    total_loo = float(np.sum(((y - y.mean()) * len(x) / (len(x) - 1)) ** 2))
    return Calibration(
        intercept,
        slope,
        float(np.sqrt(residual @ residual / (len(x) - 2))),
        _r_squared(residual, total),
        _r_squared(left_out, total_loo),
        x,
        np.asarray(minutes, np.float64),
    )


def _r_squared(residual: Array, total: float) -> float:
    return 1.0 - float(residual @ residual) / total if total > 0 else float("nan")


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
    found, true = (np.digitize(minutes, BUCKETS, right=True) for minutes in (predicted, actual))
    one_class = len(set(found) | set(true)) == 1
    return {
        "r2_log": _r_squared(gap, float(total @ total)),
        "log_error": float(np.abs(gap).mean()),
        "within_2x": float((np.abs(gap) <= np.log(2.0) + 1e-12).mean()),
        "bucket_accuracy": float((found == true).mean()),
        "macro_f1": float(f1_score(true, found, average="macro")),
        "linear_kappa": float("nan") if one_class else float(cohen_kappa_score(true, found, weights="linear")),
    }
