"""Time horizons of models, the frontier of the best so far, and how fast it moves.

The 50 % horizon of a model is the human time of a task that it solves half the time: there b = theta, whatever a is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from scipy.special import expit, logit

from assay._core.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from assay.evaluate.bridge.calibration import Calibration
    from assay.evaluate.bridge.likelihood import Array, Parameters

#: The paper's frontier gap (units of ability), and the window of its rolling mean over items.
GAP, WINDOW, MIN_ITEMS = 0.2, 15, 5


def horizon_difficulty(parameters: Parameters, level: float) -> Array:
    """Difficulty at which each model solves tasks with probability `level`: theta_j − logit(level) / median a.

    Our reading of "horizon" for items that differ in discrimination; exact for level 0.5.
    """
    return parameters.ability - float(logit(level)) / float(np.median(np.exp(parameters.log_discrimination)))


def rolling_horizon_difficulty(
    parameters: Parameters, level: float, window: int = WINDOW, min_items: int = MIN_ITEMS
) -> Array:
    """Difficulty at which a smoothed success curve over the items falls through `level` (the authors' code).

    Items are sorted by difficulty; p is the sigmoid of the centred rolling mean of a_i (theta_j − b_i). The horizon is
    the mean of the interpolated downward crossings; without one, the difficulty with p closest to `level`; NaN for a
    model whose p never reaches `level`.
    """
    order = np.argsort(parameters.difficulty, kind="stable")
    b, a = parameters.difficulty[order], np.exp(parameters.log_discrimination)[order]
    # Means of a and a b give the mean of z for every model: mean(a) theta − mean(a b).
    means = pd.DataFrame({"a": a, "ab": a * b}).rolling(window, center=True, min_periods=min_items).mean()
    usable = means["a"].notna().to_numpy()
    b, mean_a, mean_ab = b[usable], means["a"].to_numpy()[usable], means["ab"].to_numpy()[usable]
    return np.array([_crossing(expit(mean_a * theta - mean_ab), b, level) for theta in parameters.ability])


def _crossing(p: Array, b: Array, level: float) -> float:
    if not len(p) or p.max() < level:
        return float("nan")
    falls = np.flatnonzero((p[:-1] >= level) & (p[1:] < level))
    if not len(falls):
        return float(b[np.argmin(np.abs(p - level))])
    share = (p[falls] - level) / (p[falls] - p[falls + 1])
    return float(np.mean(b[falls] + share * (b[falls + 1] - b[falls])))


def month_number(dates: pd.Series[Any]) -> Array:
    """12 × year + month − 1: whole months, as in the authors' code."""
    when = pd.DatetimeIndex(dates)
    return np.asarray(12 * when.year + when.month - 1, np.float64)


def frontier(time: Array, position: Array, gap: float = GAP) -> NDArray[np.intp]:
    """Models that were better than all before them by more than `gap`, in order of time.

    The first always joins. Of models with the same time the best comes first: the order of rows does not matter.

    Examples
    --------
    >>> frontier(np.arange(4.0), np.array([0.0, 0.1, 0.25, 0.5])).tolist()
    [0, 2, 3]
    """
    joined: list[int] = []
    best = -np.inf
    for model in np.lexsort((-position, time)):
        if position[model] > best + gap:
            joined.append(int(model))
            best = position[model]
    return np.array(joined, dtype=np.intp)


@dataclass(frozen=True)
class Forecast:
    """How the time horizon of the frontier grows.

    Parameters
    ----------
    level : float
        Success rate of the horizon: 0.5 or another.
    doubling_months, ci_low, ci_high : float
        log 2 / (beta1 g) with its bootstrap percentile interval; `ci_high` is infinite where the slope may be zero.
    slope, slope_low, slope_high : float
        g: units of ability a month.
    intercept : float
        Of the line at month zero, 12 × year + month − 1 = 0.
    confidence : float
    bootstrap : "frontier" or "models"
        What was resampled: the points of the frontier as it stands (the paper's), or all dated models with the frontier
        chosen anew each time (stricter).
    models : DataFrame
        Dated models by date: model, release_date, month, position (difficulty of the horizon), horizon_minutes, low,
        high (NaN where the standard error of the position is not known), frontier.
    draws : (n_boot, 2) float
        Bootstrapped (intercept, slope).
    calibration : Calibration
    """

    level: float
    doubling_months: float
    ci_low: float
    ci_high: float
    slope: float
    slope_low: float
    slope_high: float
    intercept: float
    confidence: float
    bootstrap: str
    models: pd.DataFrame
    draws: Array
    calibration: Calibration

    @property
    def n_frontier(self) -> int:
        """Models on the frontier."""
        return int(self.models["frontier"].sum())

    def predict(self, dates: Any) -> pd.DataFrame:
        """Horizon of the frontier at `dates`, by the line: date, horizon_minutes, low, high.

        The interval holds the bootstrap of the line and not the scatter of models around it.
        """
        when = pd.Series(pd.to_datetime(np.atleast_1d(dates)))
        month = month_number(when) + ((when.dt.day - 1) / when.dt.days_in_month).to_numpy()
        lines = self.draws[:, :1] + self.draws[:, 1:] * month
        low, high = np.nanquantile(lines, [0.5 - self.confidence / 2, 0.5 + self.confidence / 2], axis=0)
        middle = self.intercept + self.slope * month
        minutes = [self.calibration.predict(position) for position in (middle, low, high)]
        return pd.DataFrame(dict(zip(["date", "horizon_minutes", "low", "high"], [when, *minutes], strict=True)))

    def to_frame(self) -> pd.DataFrame:
        """Dated models by date, with their horizons and whether they are on the frontier."""
        return self.models.copy()

    def summary(self) -> str:
        """The doubling time in words, and the frontier as a table."""
        resampled = "frontier points" if self.bootstrap == "frontier" else "models"
        shown = self.models[self.models["frontier"]]
        lines = [
            f"Doubling time of the {self.level:.0%} horizon: {self.doubling_months:.1f} months "
            f"[{self.ci_low:.1f}, {self.ci_high:.1f}] ({self.confidence:.0%} bootstrap over {resampled})",
            f"{self.n_frontier} of {len(self.models)} dated models are on the frontier:",
        ]
        columns = ["model", "release_date", "horizon_minutes", "low", "high"]
        for name, date, minutes, low, high in shown[columns].itertuples(index=False):
            ends = f"[{readable(low)}, {readable(high)}]" if np.isfinite(low) else ""
            lines.append(f"  {date:%Y-%m-%d}  {readable(minutes):>9}  {ends:<22} {name}")
        return "\n".join(lines)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Horizon against release date, with the doubling line and its band."""
        from assay.evaluate.bridge.plots import draw_forecast

        return draw_forecast(self, ax)


def forecast(
    dated: pd.DataFrame,
    calibration: Calibration,
    *,
    level: float = 0.5,
    gap: float = GAP,
    n_boot: int = 2000,
    bootstrap: Literal["frontier", "models"] = "frontier",
    confidence: float = 0.95,
    seed: int = 42,
) -> Forecast:
    """Fit position = c + g × month on the frontier; the horizon doubles every log 2 / (beta1 g) months.

    Parameters
    ----------
    dated : DataFrame
        model, release_date, position: dated models only; and, if known, se (of the position).
    calibration : Calibration
    level : float
        Of the horizon that `position` speaks of.
    gap, n_boot, bootstrap, confidence, seed
        See :meth:`TimeHorizonIRT.forecast`.

    Raises
    ------
    InputError
        Fewer than three models on the frontier, all of one month, or a calibration line that does not rise.
    """
    models = dated.sort_values(["release_date", "position"], ascending=[True, False], ignore_index=True)
    models["month"] = month_number(models["release_date"])
    models["horizon_minutes"] = calibration.predict(models["position"].to_numpy())
    se = models["se"].to_numpy(np.float64) if "se" in models else np.full(len(models), np.nan)
    models["low"], models["high"] = calibration.interval(models["position"].to_numpy(), confidence, se)
    month, position = models["month"].to_numpy(), models["position"].to_numpy()
    # The order of days decides who came first, whole months where a point lies on the line.
    day = models["release_date"].to_numpy().astype("datetime64[D]").astype(np.float64)
    chosen = frontier(day, position, gap)
    models["frontier"] = np.isin(np.arange(len(models)), chosen)
    if len(chosen) < 3:
        raise InputError(
            f"a forecast needs at least 3 models on the frontier, and {len(models)} dated models give {len(chosen)}; "
            "add release dates or lower gap="
        )
    if calibration.slope <= 0:
        raise InputError(
            "a forecast needs harder tasks to take people longer, and in these data they do not (beta1 <= 0)"
        )
    intercept, slope = _line(month[chosen], position[chosen])
    if not np.isfinite(slope):
        raise InputError("a forecast needs release dates in more than one month")
    rng = np.random.default_rng(seed)
    draws = np.empty((n_boot, 2))
    for draw in draws:
        if bootstrap == "frontier":
            points = rng.choice(chosen, len(chosen))
        else:
            drawn = rng.integers(len(models), size=len(models))
            points = drawn[frontier(day[drawn], position[drawn], gap)]
        draw[:] = _line(month[points], position[points])
    ends = [0.5 - confidence / 2, 0.5 + confidence / 2]
    slope_low, slope_high = (float(end) for end in np.nanquantile(draws[:, 1], ends))

    def doubling(g: float) -> float:
        return float(np.log(2.0) / (calibration.slope * g)) if g > 0 else float("inf")

    return Forecast(
        level=level,
        doubling_months=doubling(slope),
        ci_low=doubling(slope_high),  # the ends swap: a steeper line doubles sooner
        ci_high=doubling(slope_low),
        slope=slope,
        slope_low=slope_low,
        slope_high=slope_high,
        intercept=intercept,
        confidence=confidence,
        bootstrap=bootstrap,
        models=models[["model", "release_date", "month", "position", "horizon_minutes", "low", "high", "frontier"]],
        draws=draws,
        calibration=calibration,
    )


def _line(x: Array, y: Array) -> tuple[float, float]:
    gap = x - x.mean()
    sxx = float(gap @ gap)
    if sxx == 0:  # a resample of one month has no slope; such draws are left out of the interval
        return float("nan"), float("nan")
    slope = float(gap @ (y - y.mean())) / sxx
    return float(y.mean() - slope * x.mean()), slope


def readable(minutes: float) -> str:
    """Minutes as a person says them.

    Examples
    --------
    >>> readable(0.05), readable(12.0), readable(150.0)
    ('3.0 s', '12.0 min', '2.5 h')
    """
    if not np.isfinite(minutes):
        return "unknown"
    if minutes < 1:
        return f"{60 * minutes:.1f} s"
    return f"{minutes:.1f} min" if minutes < 60 else f"{minutes / 60:.1f} h"
