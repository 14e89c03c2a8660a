"""What an attack found, series by series."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay.audit.tsef.metrics import COUPLED, wilson

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Mask = NDArray[np.bool_]

BLUE, ORANGE = "#0072B2", "#D55E00"  # Okabe–Ito


class Step(NamedTuple):
    """Where an attack stands after a round, as means over series, of what it would return."""

    success: float
    distance: float
    cross_entropy: float


@dataclass(frozen=True)
class AttackResult:
    """Attacked series and what the model and the explainer say of them.

    Everything has a row for each series that was given; measures of series that were skipped are NaN. Series and maps
    are in the layout that was given.

    Parameters
    ----------
    attack, explainer, explain, layout : str
        Which attack, on which explainer; "label" or "target": whose explanation had to stay.
    x, x_adv : (n, channels, length) float
        Clean and attacked series; equal where a series was skipped.
    y, target, predicted, predicted_adv : (n,) int
        Own class, class to reach, predicted classes before and after.
    attacked, success : (n,) bool
        Whether a series was attacked, and whether it then was predicted as `target`.
    reference : (n, channels, length) bool
        The cells that the explanation had to stay on.
    saliency, saliency_adv : (n, channels, length) float
        Explanations before and after.
    auprc_clean, auprc, aup, aur, iou : (n,) float
        Agreement of the explanation with the reference, before and after.
    eps : (n, channels, 1) float
        The budget.
    linf : (n,) float
        Largest change in units of the budget: at most 1.
    l2, dtw : (n,) float
        Euclidean and dynamic-time-warping distance from the clean series.
    notes : tuple of str
        What was left out.
    history : tuple of Step
        One for each round.
    """

    attack: str
    explainer: str
    explain: str
    layout: str
    x: NDArray[Any]
    x_adv: NDArray[Any]
    y: NDArray[np.int64]
    target: NDArray[np.int64]
    predicted: NDArray[np.int64]
    predicted_adv: NDArray[np.int64]
    attacked: Mask
    success: Mask
    reference: Mask
    saliency: Array
    saliency_adv: Array
    auprc_clean: Array
    auprc: Array
    aup: Array
    aur: Array
    iou: Array
    eps: NDArray[Any]
    linf: Array
    l2: Array
    dtw: Array
    notes: tuple[str, ...]
    history: tuple[Step, ...]

    @property
    def apart(self) -> Mask:
        """Where prediction and explanation came apart: target reached, AUPRC at least 0.9 of the clean one."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.success & (self.auprc >= COUPLED * self.auprc_clean))

    @property
    def n_attacked(self) -> int:
        """Number of series that were attacked."""
        return int(self.attacked.sum())

    @property
    def success_rate(self) -> float:
        """Share of the attacked series that were then predicted as the target (ASR)."""
        return float(self.success[self.attacked].mean())

    @property
    def f1(self) -> float:
        """Macro F1 of the predictions after the attack against the targets, over attacked series."""
        from sklearn.metrics import f1_score

        score = f1_score(
            self.target[self.attacked], self.predicted_adv[self.attacked], average="macro", zero_division=0
        )
        return float(score)

    def summary(self) -> str:
        """Shares with 95 % Wilson intervals, agreement with its standard error, as text."""
        n = self.n_attacked
        lines = [
            f"{self.attack} on {self.explainer}: {n} of {len(self.y)} series attacked; "
            f"the explanation of the {'own' if self.explain == 'label' else 'target'} class has to stay",
            *self.notes,
            "",
        ]
        for what, which in (("target class reached", self.success), ("… and explanation stayed", self.apart)):
            low, high = wilson(int(which.sum()), n)
            lines.append(f"{what:<28} {which.sum() / n:6.3f}  [{low:.3f}, {high:.3f}]")
        lines.append(f"{'F1 against the target':<28} {self.f1:6.3f}")
        measures = ("auprc_clean", "auprc", "aup", "aur", "iou", "linf", "l2", "dtw")
        for name in measures:
            values = getattr(self, name)[self.attacked]
            error = values.std(ddof=1) / np.sqrt(n) if n > 1 else np.nan
            lines.append(f"{name:<28} {values.mean():6.3f}  ± {error:.3f}")
        lines.append("\n± is the standard error of the mean; linf is in units of the budget")
        return "\n".join(lines)

    def to_frame(self) -> pd.DataFrame:
        """One row for each series."""
        import pandas as pd

        columns = ("y", "target", "predicted", "predicted_adv", "attacked", "success", "apart", "auprc_clean", "auprc",
                   "aup", "aur", "iou", "linf", "l2", "dtw")  # fmt: skip
        return pd.DataFrame({"series": np.arange(len(self.y)), **{name: getattr(self, name) for name in columns}})

    def plot(self, series: int | None = None, ax: Axes | None = None) -> Axes:
        """Draw one series before and after, and under it where the explanation lies before and after.

        Parameters
        ----------
        series : int, optional
            Default: the first that came apart, or the first attacked.
        ax : matplotlib Axes, optional
        """
        from matplotlib import pyplot as plt

        found = np.flatnonzero(self.apart if self.apart.any() else self.attacked)
        row = int(found[0]) if series is None else series
        if not 0 <= row < len(self.y):
            raise InputError(f"series {row}: the result has series 0 to {len(self.y) - 1}")
        ax = ax if ax is not None else plt.subplots(figsize=(7, 3.5), layout="constrained")[1]

        def turn(array: NDArray[Any]) -> NDArray[Any]:
            one: NDArray[Any] = array[row]
            return one.T if self.layout == "BTD" else one

        before, after = turn(self.x), turn(self.x_adv)
        channel = int(np.abs(after.astype(float) - before).max(axis=1).argmax())
        ax.plot(before[channel], color=BLUE, label=f"clean: class {self.predicted[row]}")
        ax.plot(after[channel], color=ORANGE, ls="--", label=f"attacked: class {self.predicted_adv[row]}")
        low, high = ax.get_ylim()
        height = 0.15 * (high - low)
        for array, colour, floor in ((self.saliency, BLUE, 1.2), (self.saliency_adv, ORANGE, 2.4)):
            values = turn(array)[channel]
            base = low - floor * height
            ax.fill_between(np.arange(len(values)), base, base + height * values / max(turn(array).max(), 1e-12),
                            color=colour, alpha=0.6, lw=0)  # fmt: skip
        ax.set_xlabel("time step")
        ax.set_ylabel(f"channel {channel}; below: saliency before, after")
        ax.legend(frameon=False)
        return ax
