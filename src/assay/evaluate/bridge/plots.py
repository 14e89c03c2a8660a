"""Two pictures: difficulty against human time, and horizon against release date."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from assay.evaluate.bridge.calibration import Calibration
    from assay.evaluate.bridge.horizons import Forecast

#: Blue, vermilion and grey of Okabe and Ito: told apart with every kind of colour vision.
BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#999999"

#: Ticks that people read, in minutes.
TICKS = {
    1 / 60: "1 s", 1 / 6: "10 s", 1: "1 min", 10: "10 min", 60: "1 h", 240: "4 h", 480: "8 h", 2400: "40 h",
    9600: "160 h", 1e5: "1,667 h",
}  # fmt: skip


def draw_calibration(calibration: Calibration, ax: Axes | None = None) -> Axes:
    """Points of the calibration tasks, the line, and the 95 % prediction band."""
    ax = _axes(ax)
    b = calibration.difficulty
    grid = np.linspace(b.min(), b.max(), 100)
    low, high = calibration.interval(grid)
    ax.fill_between(grid, low, high, color=BLUE, alpha=0.15, linewidth=0, label="95 % prediction band")
    r2_low, r2_high = calibration.r_squared_interval()
    text = f"R² {calibration.r_squared:.2f} [{r2_low:.2f}, {r2_high:.2f}], n = {calibration.n}"
    ax.plot(grid, calibration.predict(grid), color=BLUE, label=text)
    ax.plot(b, calibration.minutes, "o", color=VERMILION, markersize=4, alpha=0.7, label="timed tasks")
    ax.set_xlabel("difficulty b (latent units)")
    ax.set_ylabel("human time")
    _time_axis(ax)
    ax.legend(frameon=False)
    return ax


def draw_forecast(forecast: Forecast, ax: Axes | None = None) -> Axes:
    """Horizons of the dated models, the frontier, and the doubling line with its bootstrap band."""
    ax = _axes(ax)
    models = forecast.models
    front = models[models["frontier"]]
    others = models[~models["frontier"]]
    first, last = front["release_date"].min(), front["release_date"].max()
    line = forecast.predict(pd.date_range(first, last + pd.DateOffset(months=6), periods=60))
    band = f"{forecast.confidence:.0%} band of the line"
    ax.fill_between(line["date"], line["low"], line["high"], color=BLUE, alpha=0.15, linewidth=0, label=band)
    text = f"doubles in {forecast.doubling_months:.1f} months [{forecast.ci_low:.1f}, {forecast.ci_high:.1f}]"
    ax.plot(line["date"], line["horizon_minutes"], color=BLUE, label=text)
    ax.plot(others["release_date"], others["horizon_minutes"], "o", color=GREY, markersize=4, label="other models")
    known = front[front["low"].notna()]
    ax.vlines(known["release_date"], known["low"], known["high"], color=VERMILION, linewidth=1)
    label = f"frontier, {forecast.confidence:.0%} interval of each" if len(known) else "frontier"
    ax.plot(front["release_date"], front["horizon_minutes"], "D", color=VERMILION, markersize=5, label=label)
    ax.set_xlabel("release date")
    ax.set_ylabel(f"{forecast.level:.0%} time horizon (human time)")
    _time_axis(ax)
    ax.legend(frameon=False)
    return ax


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    from matplotlib import pyplot as plt

    _, ax = plt.subplots(figsize=(7.0, 4.5), layout="constrained")
    return ax


def _time_axis(ax: Axes) -> None:
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    inside = {minutes: name for minutes, name in TICKS.items() if low <= minutes <= high}
    if len(inside) >= 2:
        ax.set_yticks(list(inside), list(inside.values()))
        ax.minorticks_off()
    ax.spines[["top", "right"]].set_visible(False)
