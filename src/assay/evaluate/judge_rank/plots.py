"""Two figures: the ranking with its intervals, and the judges by discrimination."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

#: Blue and vermilion of Okabe and Ito: told apart with every kind of colour vision, and in grey.
BLUE, VERMILION = "#0072B2", "#D55E00"


def draw_ranking(ranking: pd.DataFrame, confidence: float, ax: Axes | None = None) -> Axes:
    """Scores with intervals, best model on top.

    Parameters
    ----------
    ranking : DataFrame
        model, score, low, high; best first.
    confidence : float
    ax : matplotlib Axes, optional
        Drawn into a new figure if None.
    """
    ax = _axes(ax, len(ranking))
    place = np.arange(len(ranking))[::-1]
    _whiskers(ax, ranking["low"], ranking["high"], place, BLUE)
    ax.plot(ranking["score"], place, "o", color=BLUE)
    _names(ax, ranking["model"], place)
    ax.set_xlabel(f"score (log-odds, sum zero) with {confidence:.0%} interval")
    return ax


def draw_judges(judges: pd.DataFrame, confidence: float, *, signed: bool, ax: Axes | None = None) -> Axes:
    """Discriminations with intervals, the most discriminating judge on top; hollow where there is no finite estimate.

    Parameters
    ----------
    judges : DataFrame
        judge, discrimination, low, high, at_boundary; most discriminating first.
    confidence : float
    signed : bool
        A linear axis instead of a logarithmic one.
    ax : matplotlib Axes, optional
    """
    ax = _axes(ax, len(judges))
    place = np.arange(len(judges))[::-1]
    limits = _limits(judges, signed=signed)
    if not signed:
        ax.set_xscale("log")
    ax.set_xlim(*limits)
    shown = judges["discrimination"].clip(*limits)
    _whiskers(ax, judges["low"].clip(*limits), judges["high"].clip(*limits), place, BLUE)
    loose = judges["at_boundary"].to_numpy(dtype=bool)
    ax.plot(shown[~loose], place[~loose], "o", color=BLUE)
    if loose.any():
        ax.plot(shown[loose], place[loose], "s", color=VERMILION, markerfacecolor="none", label="no finite estimate")
        ax.legend(loc="best")
    ax.axvline(0.0 if signed else 1.0, color="0.6", linewidth=0.8, zorder=0)
    _names(ax, judges["judge"], place)
    ax.set_xlabel(f"discrimination (1 = typical judge, no unit) with {confidence:.0%} interval")
    return ax


def _axes(ax: Axes | None, n_rows: int) -> Axes:
    if ax is not None:
        return ax
    from matplotlib import pyplot as plt

    _, ax = plt.subplots(figsize=(7.0, 1.2 + 0.28 * n_rows), layout="constrained")
    return ax


def _whiskers(ax: Axes, low: Any, high: Any, place: Any, color: str) -> None:
    finite = np.isfinite(low) & np.isfinite(high)
    ax.hlines(place[finite], low[finite], high[finite], color=color, linewidth=1.5)


def _names(ax: Axes, names: Any, place: Any) -> None:
    # A dollar sign would start a formula.
    ax.set_yticks(place, [str(name).replace("$", r"\$") for name in names])
    ax.set_ylim(-0.7, len(place) - 0.3)
    ax.spines[["top", "right"]].set_visible(False)


def _limits(judges: pd.DataFrame, *, signed: bool) -> tuple[float, float]:
    """Room for every finite estimate, and for intervals that do not reach absurdly far."""
    gamma = judges["discrimination"].to_numpy(dtype=float)
    inner = gamma[~judges["at_boundary"].to_numpy(dtype=bool)]
    inner = inner if len(inner) else gamma
    if signed:
        reach = 1.5 * max(float(np.abs(inner).max()), 1.0)
        return -reach, reach
    return min(float(inner.min()), 1.0) / 5.0, max(float(inner.max()), 1.0) * 5.0
