"""What was decided about texts or accounts: no line says machine-like without the error rate beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from assay.audit.style_detect.conformal import Threshold

    Array = NDArray[np.float64]

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#585D64"  # Okabe–Ito, and grey
#: Rows that a summary prints.
N_SHOWN = 20


@dataclass(frozen=True)
class DetectionReport:
    """Decisions on texts or accounts at a calibrated threshold.

    Parameters
    ----------
    detector : str
    what : "text" or "account"
    names : tuple of str
        Row numbers of texts, or accounts.
    n_texts : tuple of int
        Texts of each that hold anything.
    scores : (n,) float
        NaN: no decision (an empty text, or fewer texts than a decision takes).
    threshold : Threshold
        With the error rate.
    """

    detector: str
    what: str
    names: tuple[str, ...]
    n_texts: tuple[int, ...]
    scores: Array
    threshold: Threshold

    @property
    def flagged(self) -> NDArray[np.bool_]:
        """(n,) bool: above the threshold."""
        found: NDArray[np.bool_] = np.nan_to_num(self.scores, nan=-np.inf) > self.threshold.value
        return found

    @property
    def n_decided(self) -> int:
        """How many have a score."""
        return int((~np.isnan(self.scores)).sum())

    def to_frame(self) -> pd.DataFrame:
        """A row a text or account: its score, the threshold, the decision and the decision's error rate."""
        import pandas as pd

        decision = np.where(np.isnan(self.scores), "no decision", np.where(self.flagged, "flagged", "not flagged"))
        return pd.DataFrame(
            {
                self.what: self.names,
                "n_texts": self.n_texts,
                "score": self.scores,
                "threshold": self.threshold.value,
                "decision": decision,
                "human_flag_rate": self.threshold.target_fpr,
                "human_flag_rate_bound": self.threshold.fpr_bound,
                "rate_is_guaranteed": self.threshold.is_exact,
            }
        )

    def summary(self) -> str:
        """Decisions and their error rate, for people."""
        rate = self.threshold.target_fpr
        n_flagged, n = int(self.flagged.sum()), self.n_decided
        lines = [
            f"{self.detector}: {n_flagged} of {_count(n, self.what)} flagged as machine-like",
            f"error rate: {self.threshold.in_words()}",
            f"if all {n} were human, {n * rate:.3g} would be flagged by mistake on average",
        ]
        if n < len(self.names):
            lines.append(
                f"no decision on {len(self.names) - n}: empty, or fewer than {self.threshold.group_size} texts"
            )
        lines += ["", f"{self.what:<24} {'texts':>5} {'score':>10} {'threshold':>10}  decision"]
        order = np.argsort(-np.nan_to_num(self.scores, nan=-np.inf), kind="stable")
        for row in order[:N_SHOWN]:
            lines.append(
                f"{self.names[row][:24]:<24} {self.n_texts[row]:>5} {self.scores[row]:>10.4g} "
                f"{self.threshold.value:>10.4g}  {self._decision(int(row))}"
            )
        if len(order) > N_SHOWN:
            lines.append(f"… and {len(order) - N_SHOWN} with lower scores")
        lines += ["", "Not flagged does not mean human: it means that the score is one that human texts have, too."]
        return "\n".join(lines)

    def _decision(self, row: int) -> str:
        if np.isnan(self.scores[row]):
            return "no decision"
        if not self.flagged[row]:
            return "not flagged"
        about = "" if self.threshold.is_exact else "about "
        return f"machine-like (so are {about}{self.threshold.target_fpr:.3g} of human {self.what}s)"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the scores in order, and the threshold with its error rate."""
        from matplotlib import pyplot as plt

        if ax is None:
            _, ax = plt.subplots(figsize=(7, 4))
        order = np.argsort(self.scores)
        place = np.arange(1, len(order) + 1)
        for is_flagged, colour, name in ((False, BLUE, "not flagged"), (True, ORANGE, "flagged")):
            rows = self.flagged[order] == is_flagged
            ax.scatter(place[rows], self.scores[order][rows], s=16, color=colour, label=name)
        label = f"threshold: exceeded by {self.threshold.target_fpr:.3g} of human {self.what}s"
        ax.axhline(self.threshold.value, color=GREY, linestyle="--", label=label)
        ax.set_xlabel(f"{self.what}s, by score")
        ax.set_ylabel("score (higher is more machine-like)")
        ax.legend(frameon=False)
        return ax


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
