"""The pictures, in colours that a colour-blind reader can tell apart (Okabe–Ito)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
STYLES = ("--", ":", "-.", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1, 1, 1)))
CASCADE = "#D55E00"


def new_axes(ax: Axes | None) -> Axes:
    """The axes given, or those of a new figure that no window shows."""
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    return Figure(figsize=(6.4, 4.2), layout="constrained").subplots()


def plain(text: str) -> str:
    """A name as matplotlib draws it letter by letter (a dollar sign would begin a formula)."""
    return text.replace("$", r"\$")


def draw_cost(table: pd.DataFrame, providers: Sequence[str], label: str, unit: str, ax: Axes | None) -> Axes:
    """Cost per task against solve rate: every provider alone and the cascade, with their intervals."""
    ax = new_axes(ax)
    rate = table["solve_rate"].to_numpy()
    for number, name in enumerate(providers):
        cost = table[f"cost_{name}"].to_numpy()
        if np.isfinite(cost).any():
            colour = COLOURS[number % 5]
            low, high = (_gaps(table[f"cost_{name}_{end}"].to_numpy()) for end in ("low", "high"))
            ax.fill_between(rate, low, high, color=colour, alpha=0.1, linewidth=0)
            ax.plot(rate, _gaps(cost), color=colour, linestyle=STYLES[number % len(STYLES)], label=plain(name))
    low, high = _gaps(table["cascade_low"].to_numpy()), _gaps(table["cascade_high"].to_numpy())
    ax.fill_between(rate, low, high, color=CASCADE, alpha=0.2, linewidth=0)
    in_turn = _gaps(table["in_turn_cost"].to_numpy())
    if np.isfinite(in_turn).any():
        ax.plot(rate, in_turn, color="0.4", linewidth=1, label="the same providers in turn")
    ax.plot(rate, _gaps(table["cascade_cost"].to_numpy()), color=CASCADE, linewidth=2, label=plain(label))
    ax.set(xlabel="solve rate", ylabel=plain(f"expected cost per task ({unit})"), yscale="log")
    ax.legend(frameon=False, fontsize="small")
    return ax


def draw_margin(table: pd.DataFrame, providers: Sequence[str], label: str, unit: str, ax: Axes | None) -> Axes:
    """Margin against solve rate, where somebody else sells it: with its interval, and on held-out tasks."""
    ax = new_axes(ax)
    sold = table[np.isfinite(table["market_price"])]
    rate = sold["solve_rate"].to_numpy()
    ax.fill_between(
        rate,
        100 * sold["margin_low"],
        100 * sold["margin_high"],
        color=CASCADE,
        alpha=0.2,
        linewidth=0,
        label="95 % interval",
    )
    ax.plot(rate, 100 * sold["margin"], color=CASCADE, linewidth=2, label="tasks it was fitted on")
    low, high = (100 * sold[f"held_out_margin_{end}"] for end in ("low", "high"))
    ax.fill_between(rate, low, high, color=COLOURS[0], alpha=0.1, linewidth=0)
    ax.plot(rate, 100 * sold["held_out_margin"], color=COLOURS[0], linestyle="--", label="held-out tasks")
    ax.set(xlabel="solve rate", ylabel="margin (% of the best single price)", title=plain(label))
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False, fontsize="small")
    return ax


def _gaps(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Infinite costs are not drawn."""
    return np.where(np.isfinite(values), values, np.nan)
