"""What a cascade would save on these attempts: with intervals over tasks, and on tasks that it was not fitted on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from assay._core.errors import InputError
from assay.evaluate.arbitrage.draw import draw_cost, draw_margin
from assay.evaluate.arbitrage.market import SATURATED

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from assay.evaluate.arbitrage.policy import CascadePolicy


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % bootstrap interval over tasks (NaN where there is none)."""

    value: float
    low: float = float("nan")
    high: float = float("nan")

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"

    def to_dict(self) -> dict[str, float | None]:
        """For JSON, which has no NaN."""
        shown = {"value": self.value, "low": self.low, "high": self.high}
        return {name: value if np.isfinite(value) else None for name, value in shown.items()}


@dataclass(frozen=True)
class Margins:
    """The margin of a cascade in three numbers.

    Parameters
    ----------
    mean_margin : Estimate
        Over the solve rates from the lowest to the best single provider's.
    max_margin, at_solve_rate : Estimate
        The largest margin there, and where it is reached.
    """

    mean_margin: Estimate
    max_margin: Estimate
    at_solve_rate: Estimate

    def to_dict(self) -> dict[str, dict[str, float | None]]:
        """For JSON."""
        return {
            "mean_margin": self.mean_margin.to_dict(),
            "max_margin": self.max_margin.to_dict(),
            "at_solve_rate": self.at_solve_rate.to_dict(),
        }


@dataclass(frozen=True, eq=False)
class ArbitrageReport:
    """What :func:`arbitrage` found.

    Parameters
    ----------
    policy : CascadePolicy
        Fitted on all tasks.
    providers : tuple of str
    unit : str
    n_tasks, n_boot, n_folds : int
    max_budget : float
    thresholds : tuple of Estimate
        In the order of the policy; the interval is that of thresholds fitted again on resampled tasks.
    fitted : Margins
        On the tasks that the thresholds were chosen on; the interval holds the thresholds fixed.
    held_out : Margins
        Every task under thresholds that were chosen without it.
    in_turn : Estimate
        Mean margin of asking the same providers in turn, one attempt each, which needs no fitting (NaN where the
        verifier is imperfect).
    table : DataFrame
        A row per solve rate: solve_rate, cost_<provider>, market_price, cascade_cost, margin, held_out_margin and
        in_turn_cost, each with the ends of its 95 % interval (``market_price_low`` and so on; those of the cascade's
        cost are ``cascade_low`` and ``cascade_high``), and saturated.
    """

    policy: CascadePolicy
    providers: tuple[str, ...]
    unit: str
    n_tasks: int
    n_boot: int
    n_folds: int
    max_budget: float
    thresholds: tuple[Estimate, ...]
    fitted: Margins
    held_out: Margins
    in_turn: Estimate
    table: pd.DataFrame

    def to_frame(self) -> pd.DataFrame:
        """The table of solve rates."""
        return self.table.copy()

    def to_dict(self) -> dict[str, Any]:
        """The policy for the online runner, with what is known of its margin, ready for JSON."""
        intervals = zip(self.policy.order_, self.thresholds, strict=True)
        return {
            **self.policy.to_dict(),
            "max_budget": self.max_budget,
            "thresholds_interval": {name: [found.low, found.high] for name, found in intervals},
            **self.fitted.to_dict(),
            "held_out": self.held_out.to_dict(),
            "in_turn": {"mean_margin": self.in_turn.to_dict()},
            "confidence": 0.95,
            "n_tasks": self.n_tasks,
            "n_boot": self.n_boot,
            "n_folds": self.n_folds,
        }

    def summary(self) -> str:
        """A table to print."""
        width = 86
        stages = " → ".join(self.policy.order_)
        lines = [
            "Cascade beside the best single provider".center(width),
            "=" * width,
            f"cascade: {stages}",
            f"tasks: {self.n_tasks}    budget per task: {self.max_budget:.4g} {self.unit}    "
            f"bootstrap: {self.n_boot}    folds: {self.n_folds}",
            "-" * width,
            f"{'threshold, ' + self.unit:<40}{'value':>10}   95 % interval",
        ]
        for name, found in zip(self.policy.order_, self.thresholds, strict=True):
            lines.append(f"  {_shortened(name, 36):<38}{found.value:>10.4g}   [{found.low:.4g}, {found.high:.4g}]")
        lines.append("-" * width)
        lines.append(f"{'margin':<40}{'value':>10}   95 % interval")
        for label, found in (
            ("mean, held-out tasks", self.held_out.mean_margin),
            ("mean, tasks it was fitted on", self.fitted.mean_margin),
            ("mean, the same providers in turn", self.in_turn),
            ("largest, held-out tasks", self.held_out.max_margin),
            ("  at solve rate", self.held_out.at_solve_rate),
        ):
            lines.append(f"  {label:<38}{found.value:>10.3f}   [{found.low:.3f}, {found.high:.3f}]")
        lines.append("-" * width)
        lines.append(f"{'solve rate':>10}  {'best single':<26}{'cascade':<26}held-out margin")
        for _, row in self._shown().iterrows():
            best = Estimate(row["market_price"], row["market_price_low"], row["market_price_high"])
            cost = Estimate(row["cascade_cost"], row["cascade_low"], row["cascade_high"])
            ends = f"[{row['held_out_margin_low']:.3f}, {row['held_out_margin_high']:.3f}]"
            lines.append(f"{row['solve_rate']:>10.3f}  {best!s:<26}{cost!s:<26}{row['held_out_margin']:.3f} {ends}")
        lines.append("=" * width)
        lines.append(
            f"Costs are {self.unit} per task, with 95 % intervals. A margin is the part of the best single provider's "
            "price saved."
        )
        lines.extend(self.notes())
        return "\n".join(lines)

    def notes(self) -> list[str]:
        """What a reader should know before trusting the numbers."""
        found = []
        top = float(self.table["saturated"].max())
        if top > SATURATED:
            first = float(self.table.loc[self.table["saturated"] > SATURATED, "solve_rate"].min())
            found.append(
                f"Note: from a solve rate of {first:.3f} on, up to {top:.0%} of the tasks rest on a few successes "
                "whose record the budget uses up; record more attempts there."
            )
        if self.in_turn.value >= self.held_out.mean_margin.value:
            found.append(
                "Note: asking these providers in turn, one attempt each, saves as much and needs no thresholds."
            )
        if self.held_out.mean_margin.low <= 0:
            found.append(
                "Note: the held-out interval reaches zero; these data do not show that the cascade saves money."
            )
        return found

    def _shown(self) -> pd.DataFrame:
        """Six rows from the lowest solve rate to the best single provider's."""
        last = int(np.isfinite(self.table["market_price"]).sum()) - 1
        shown: pd.DataFrame = self.table.iloc[np.unique(np.linspace(0, last, 6).round().astype(int)).tolist()]
        return shown

    def plot(self, kind: Literal["cost", "margin"] = "cost", ax: Axes | None = None) -> Axes:
        """Draw cost against solve rate, or margin against solve rate.

        Returns
        -------
        matplotlib Axes
        """
        draw = {"cost": draw_cost, "margin": draw_margin}
        if kind not in draw:
            raise InputError(f"there is no picture {kind!r}; there are cost and margin")
        return draw[kind](self.table, self.providers, " → ".join(self.policy.order_), self.unit, ax)


def _shortened(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"
