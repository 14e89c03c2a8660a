"""A table along one quantity (rounds, solve rates, fit budgets, students): what the economics return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.evaluate.arbitrage.draw import COLOURS, STYLES, new_axes, plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class MarketCurve:
    """A table along one quantity, and how to draw it.

    Parameters
    ----------
    title : str
    table : DataFrame
    x : str
        The column along which it goes.
    lines : tuple of str
        The columns to draw.
    bands : mapping of a line to its (low, high) columns
    x_label, y_label : str
        With units.
    log_x : bool
    """

    title: str
    table: pd.DataFrame
    x: str
    lines: tuple[str, ...]
    bands: dict[str, tuple[str, str]]
    x_label: str
    y_label: str
    log_x: bool = False

    def to_frame(self) -> pd.DataFrame:
        """The table."""
        return self.table.copy()

    def summary(self) -> str:
        """The table, to print."""
        rule = "=" * max(len(self.title), 40)
        return f"{self.title}\n{rule}\n{self.table.to_string(index=False, float_format=lambda value: f'{value:.4g}')}"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the lines with their bands."""
        ax = new_axes(ax)
        along = self.table[self.x]
        at = np.arange(len(along)) if along.dtype.kind not in "if" else along.to_numpy()
        for number, name in enumerate(self.lines):
            colour = COLOURS[number % len(COLOURS)]
            if name in self.bands:
                low, high = (self.table[column] for column in self.bands[name])
                ax.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
            style = STYLES[number % len(STYLES)] if number else "-"
            ax.plot(
                at,
                self.table[name],
                color=colour,
                linestyle=style,
                label=plain(name),
                marker="o" if len(at) < 20 else "",
            )
        if along.dtype.kind not in "if":
            ax.set_xticks(at, [plain(str(name)) for name in along])
        ax.set(xlabel=plain(self.x_label), ylabel=plain(self.y_label), xscale="log" if self.log_x else "linear")
        ax.legend(frameon=False, fontsize="small")
        return ax
