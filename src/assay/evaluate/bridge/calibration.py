"""From difficulty to human minutes: log(minutes) = beta0 + beta1 b, fitted on the tasks whose human time is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import stats

from assay._core.errors import InputError
from assay.evaluate.bridge.foresight import resampled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray

    from assay.evaluate.bridge.likelihood import Array

#: Draws of the bootstrap behind the intervals of R², and their seed.
N_BOOT, SEED = 2000, 42


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

    def coefficients(self, confidence: float = 0.95) -> pd.DataFrame:
        """Intercept and slope with t intervals: index intercept, slope; columns value, low, high."""
        value = np.array([self.intercept, self.slope])
        gap = self.difficulty - self.difficulty.mean()
        variance = [float(self.line_variance(np.zeros(1))[0]), self.residual_sd**2 / float(gap @ gap)]
        half = float(stats.t.ppf(0.5 + confidence / 2, self.n - 2)) * np.sqrt(variance)
        columns = {"value": value, "low": value - half, "high": value + half}
        return pd.DataFrame(columns, index=["intercept", "slope"])

    def r_squared_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Interval of R² by bootstrap over the tasks, on Fisher's z scale.

        z = artanh(r) has almost the same spread whatever r is, so its standard error over resampled tasks and a t
        quantile give an interval; its ends go back through r = tanh(z). Fisher's own standard error 1/√(n − 3) is for
        bivariate normal data, and difficulties of several suites are not normal: with heavy-tailed residuals its 95 %
        interval holds R² in 80 % of simulated tables however many the tasks (a percentile bootstrap: in 84 % where
        there are ten); this one in 90 to 97 % of 400 tables of each kind and size from 10 to 500.
        """
        b, y = (values - values.mean() for values in (self.difficulty, np.log(self.minutes)))
        drawn = np.concatenate(
            [
                _correlation(*(counts @ np.stack([b, y, b * b, y * y, b * y], axis=1) / self.n).T)
                for counts in resampled(self.n, N_BOOT, SEED)
            ]
        )
        z, draws = _fisher(np.sqrt(self.r_squared) * np.sign(self.slope)), _fisher(drawn[np.isfinite(drawn)])
        half = float(stats.t.ppf(0.5 + confidence / 2, self.n - 2)) * float(draws.std()) if len(draws) else np.inf
        low, high = np.tanh([z - half, z + half])
        smallest = 0.0 if low < 0 < high else min(low**2, high**2)
        return float(smallest), float(max(low**2, high**2))

    def r_squared_loo_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Percentile bootstrap over the tasks, each with the prediction of the line through the others as it is."""
        squares = np.stack(_left_out(self.difficulty, np.log(self.minutes), self.intercept, self.slope), axis=1) ** 2
        sums = np.concatenate([counts @ squares for counts in resampled(self.n, N_BOOT, SEED)])
        with np.errstate(invalid="ignore", divide="ignore"):
            drawn = 1.0 - sums[:, 0] / sums[:, 1]
        low, high = np.nanquantile(drawn, [0.5 - confidence / 2, 0.5 + confidence / 2])
        return float(low), float(high)

    def extrapolates(self, difficulty: Array) -> NDArray[np.bool_]:
        """Whether each difficulty lies outside those of the calibration tasks."""
        return np.asarray((difficulty < self.difficulty.min()) | (difficulty > self.difficulty.max()), np.bool_)

    def to_frame(self) -> pd.DataFrame:
        """Calibration tasks: difficulty, minutes, predicted_minutes."""
        predicted = self.predict(self.difficulty)
        return pd.DataFrame({"difficulty": self.difficulty, "minutes": self.minutes, "predicted_minutes": predicted})

    def summary(self, confidence: float = 0.95) -> str:
        """The line in words, every number with its interval."""
        line = self.coefficients(confidence)
        factor = np.exp(line.loc["slope"].astype(float))
        low, high = self.r_squared_interval(confidence)
        loo_low, loo_high = self.r_squared_loo_interval(confidence)
        ends = [f"{name} [{row['low']:.3f}, {row['high']:.3f}]" for name, row in line.iterrows()]
        return (
            f"log(minutes) = {self.intercept:.3f} + {self.slope:.3f} × difficulty, on {self.n} timed tasks\n"
            f"  {', '.join(ends)} ({confidence:.0%} intervals)\n"
            f"R² {self.r_squared:.3f} [{low:.3f}, {high:.3f}] on these tasks, "
            f"{self.r_squared_loo:.3f} [{loo_low:.3f}, {loo_high:.3f}] each predicted from the others\n"
            f"one unit of difficulty: human time ×{factor['value']:.2f} [{factor['low']:.2f}, {factor['high']:.2f}]"
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
    left_out, total_loo = _left_out(x, y, intercept, slope)
    return Calibration(
        intercept,
        slope,
        float(np.sqrt(residual @ residual / (len(x) - 2))),
        _r_squared(residual, y - y.mean()),
        _r_squared(left_out, total_loo),
        x,
        np.asarray(minutes, np.float64),
    )


def _left_out(x: Array, y: Array, intercept: float, slope: float) -> tuple[Array, Array]:
    """Each task's distance from the line through the others, and from their mean."""
    gap = x - x.mean()
    leverage = 1.0 / len(x) + gap**2 / float(gap @ gap)
    return (y - intercept - slope * x) / np.maximum(1.0 - leverage, 1e-12), (y - y.mean()) * len(x) / (len(x) - 1)


def _r_squared(residual: Array, total: Array) -> float:
    return 1.0 - float(residual @ residual) / float(total @ total) if total.any() else float("nan")


def _correlation(x: Array, y: Array, xx: Array, yy: Array, xy: Array) -> Array:
    """From means of x, y and their products; NaN where either does not vary."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((xy - x * y) / np.sqrt(np.maximum(xx - x * x, 0.0) * np.maximum(yy - y * y, 0.0)))


def _fisher(r: ArrayLike) -> Array:
    """artanh, finite at ±1."""
    edge = 1.0 - 1e-12
    return np.asarray(np.arctanh(np.clip(r, -edge, edge)), np.float64)
