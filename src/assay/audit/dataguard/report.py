"""What an audit found, for people and for programs, with what it rests on."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError
from assay._core.files import write_text

if TYPE_CHECKING:
    import os

    import pandas as pd
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from assay.audit.dataguard.calibration import Rate, Shift
    from assay.audit.dataguard.fraction import Fraction

    Array = NDArray[np.float64]

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#585D64"  # Okabe–Ito, and grey for what is no result
SCHEMA = 1
FORMATS = (".html", ".json")

ASSUMPTIONS = (
    "The auxiliary data was never seen by the model: not in training, and not in choosing its settings.",
    "Target and auxiliary data are of one kind: had the target not been used, either could have been the other.",
    "No reference or shadow model saw either data set. That cannot be checked from here.",
    "Samples (or groups, where they are given) are independent: near-duplicates and crops of one source share a group.",
    "Features, test and level were chosen before the result was seen.",
)


@dataclass(frozen=True)
class Effect:
    """Difference of one feature, target less auxiliary data: below zero speaks for use.

    Parameters
    ----------
    feature : str
    delta, low, high : float
        The difference and its 95 % interval.
    z : float
        The difference in pooled standard errors.
    """

    feature: str
    delta: float
    low: float
    high: float
    z: float


@dataclass(frozen=True)
class AuditReport:
    """Whether a model was trained on a data set, and how sure that is.

    Parameters
    ----------
    what : str
        What was audited.
    verdict : "used", "inconclusive", "no evidence" or "not valid"
    reason : str
        The verdict in a sentence.
    score : float
        −log10 of `p_value`, at most 16.
    p_value, p_two_sided : float
        Of the multivariate test, with and without its direction.
    p_sum, p_loss : float
        One-sided, of the sum of standardised features (O'Brien) and of the loss alone: shown beside, never decisive.
    t2, rank : float, int
        Hotelling's T² and the number of dimensions.
    alpha : float
        The level: so often an unused data set is called "used".
    test : str
    n_permutations : int or None
    n_target, n_aux : int
    n_groups : pair of int or None
        In target and auxiliary data.
    with_references : bool
        Whether effects are residuals on the features of references.
    effects : tuple of Effect
    usage_fraction : Fraction or None
        Where a shadow model or the loss of a member is given.
    null_rate : Rate
        How often the test rejects between halves of the auxiliary data.
    shift : Shift or None
        The blind check; None where neither inputs nor references are given.
    exchangeable : bool
        Whether the auditor vouched for the data in place of a blind check.
    detectable_fraction : float or None
        The least share of the target whose use is found four times of five, by the shadow model.
    detectable_gap : float
        The least mean difference of the loss that the loss test finds four times of five.
    notes : tuple of str
    target_features, aux_features : (n, k) and (m, k) float
        What was tested.
    """

    what: str
    verdict: str
    reason: str
    score: float
    p_value: float
    p_two_sided: float
    p_sum: float
    p_loss: float
    t2: float
    rank: int
    alpha: float
    test: str
    n_permutations: int | None
    n_target: int
    n_aux: int
    n_groups: tuple[int, ...] | None
    with_references: bool
    effects: tuple[Effect, ...]
    usage_fraction: Fraction | None
    null_rate: Rate
    shift: Shift | None
    exchangeable: bool
    detectable_fraction: float | None
    detectable_gap: float
    notes: tuple[str, ...]
    target_features: Array
    aux_features: Array

    @property
    def diagnostics(self) -> dict[str, Any]:
        """Whether the audit can be trusted, and what it could have found."""
        null, shift = self.null_rate, self.shift
        return {
            "null_rate": null.share,
            "null_rejections": null.n_found,
            "null_splits": null.n,
            "null_low": null.low,
            "null_high": null.high,
            "shift_p": None if shift is None else shift.p_value,
            "shift_auc": None if shift is None else shift.auc,
            "shift_seen": None if shift is None else shift.seen,
            "exchangeable_vouched": self.exchangeable,
            "detectable_fraction": self.detectable_fraction,
            "detectable_loss_gap": self.detectable_gap,
        }

    def to_frame(self) -> pd.DataFrame:
        """One row for each feature: delta, its 95 % interval, z."""
        import pandas as pd

        return pd.DataFrame([vars(effect) for effect in self.effects])

    def to_dict(self) -> dict[str, Any]:
        """Everything but the samples' features, as JSON can hold it."""
        names = ("what", "verdict", "reason", "score", "p_value", "p_two_sided", "p_sum", "p_loss", "t2", "rank",
                 "alpha", "test", "n_permutations", "n_target", "n_aux", "with_references")  # fmt: skip
        fraction = self.usage_fraction
        document = {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in names},
            "n_groups": None if self.n_groups is None else list(self.n_groups),
            "effects": [vars(effect) for effect in self.effects],
            "usage_fraction": None if fraction is None else fraction._asdict(),
            "diagnostics": self.diagnostics,
            "assumptions": list(ASSUMPTIONS),
            "notes": list(self.notes),
        }
        plain: dict[str, Any] = _finite(document)
        return plain

    def lines(self) -> list[tuple[str, str]]:
        """The figures with their names, as the summary and the page show them."""
        null, fraction = self.null_rate, self.usage_fraction
        how = f"{self.n_permutations} permutations" if self.n_permutations else "F distribution"
        found = [
            ("samples", f"{self.n_target} target, {self.n_aux} auxiliary"),
            ("auditing score", f"{self.score:.2f}  (−log10 p)"),
            ("p-value", f"{self.p_value:.4g}  (one-sided, {how}; level {self.alpha:g})"),
            ("T²", f"{self.t2:.2f} on {self.rank} dimensions, two-sided p {self.p_two_sided:.4g}"),
            ("beside it", f"sum of features p {self.p_sum:.4g}, loss alone p {self.p_loss:.4g}"),
        ]
        if self.n_groups is not None:
            found.insert(1, ("groups", f"{self.n_groups[0]} target, {self.n_groups[1]} auxiliary"))
        if fraction is None:
            found.append(("share used", "not estimated: needs a shadow model or the loss of a member"))
        else:
            found.append(("share used", f"{fraction.estimate:.2f}  [{fraction.low:.2f}, {fraction.high:.2f}]"))
        found.append(
            ("null calibration", f"{null.n_found} of {null.n} splits rejected  [{null.low:.3f}, {null.high:.3f}]")
        )
        if self.shift is not None:
            blind = f"AUC {self.shift.auc:.2f}, p {self.shift.p_value:.3f}, by {self.shift.seen}"
        else:
            blind = "not made; " + ("the auditor vouches for the data" if self.exchangeable else "nobody vouches")
        found.append(("blind check", blind))
        power = f"a loss difference of {self.detectable_gap:.3f}"
        if self.detectable_fraction is not None:
            share = self.detectable_fraction
            power += f"; use of {share:.0%} of the target" if share <= 1 else "; not even full use of the target"
        found.append(("found 4 times of 5", power))
        return found

    def summary(self) -> str:
        """Verdict, figures with their intervals, and what they rest on, as text."""
        width = max(len(effect.feature) for effect in self.effects) + 2
        left = "residual on the references" if self.with_references else "raw"
        parts = [
            f"{self.what}: {self.verdict.upper()}",
            self.reason,
            "",
            *(f"{name:<20} {value}" for name, value in self.lines()),
            "",
            f"{'feature (' + left + ')':<{max(width, 36)}} {'delta':>9} {'95 % interval':>20} {'z':>7}",
        ]
        for effect in self.effects:
            interval = f"[{effect.low:.4f}, {effect.high:.4f}]"
            parts.append(f"{effect.feature:<{max(width, 36)}} {effect.delta:>9.4f} {interval:>20} {effect.z:>7.2f}")
        parts += ["", "delta is target less auxiliary: below zero speaks for use", *self.notes]
        return "\n".join(parts)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the standardised difference of every feature with its 95 % interval; use lies to the left.

        Parameters
        ----------
        ax : matplotlib Axes, optional
        """
        from matplotlib import pyplot as plt

        if ax is None:
            ax = plt.subplots(figsize=(6.4, 0.9 + 0.45 * len(self.effects)), layout="constrained")[1]
        spread = np.concatenate([self.target_features, self.aux_features]).std(axis=0)
        places = np.arange(len(self.effects))[::-1]
        for place, effect, scale in zip(places, self.effects, spread, strict=True):
            if scale <= 0:
                continue
            colour = BLUE if effect.high < 0 else ORANGE if effect.low > 0 else GREY
            ax.plot([effect.low / scale, effect.high / scale], [place, place], color=colour, lw=2)
            ax.plot(effect.delta / scale, place, "o", color=colour)
        ax.axvline(0, color=GREY, lw=1, ls=":")
        ax.set_yticks(places, [effect.feature for effect in self.effects])
        ax.set_ylim(-0.6, len(self.effects) - 0.4)
        ax.set_xlabel("target less auxiliary, in standard deviations (95 % interval; use lies to the left)")
        ax.spines[["top", "right"]].set_visible(False)
        return ax

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report: one HTML page that opens offline (``.html``), or all figures (``.json``).

        Raises
        ------
        InputError
            The name ends otherwise.
        """
        suffix = Path(path).suffix.lower()
        if suffix not in FORMATS:
            raise InputError(f"{path}: a report is written as one of {', '.join(FORMATS)}")
        if suffix == ".json":
            write_text(path, json.dumps(self.to_dict(), ensure_ascii=False, indent=2, allow_nan=False) + "\n")
        else:
            write_text(path, self.to_html())

    def to_html(self) -> str:
        """The written report as one page: verdict, figures, picture, assumptions; names are escaped."""
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup

        environment = Environment(
            loader=PackageLoader("assay.audit.dataguard", "."),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        picture = Markup(self._svg())  # noqa: S704 (drawn by matplotlib, which escapes text)
        return environment.get_template("page.html.j2").render(report=self, picture=picture, assumptions=ASSUMPTIONS)

    def _svg(self) -> str:
        import matplotlib as mpl
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 0.9 + 0.45 * len(self.effects)), layout="constrained")
        self.plot(figure.add_subplot())
        file = io.StringIO()
        # Without the date and with a fixed salt, the same audit gives the same page.
        with mpl.rc_context({"svg.hashsalt": "assay", "svg.fonttype": "none"}):
            figure.savefig(file, format="svg", metadata={"Date": None})
        text = file.getvalue()
        return text[text.index("<svg") :]


def _finite(value: Any) -> Any:
    """Numbers that JSON has no word for become None."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
