"""Say why a window has its score: offending lines, nearest prototypes, the path of the flow."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from assay._core.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from assay.audit.mpfm.detector import MPFMDetector
    from assay.audit.mpfm.network import PrototypeFlow
    from assay.audit.mpfm.training import Rows
    from assay.audit.mpfm.windows import LogWindows


@dataclass(frozen=True)
class Explanation:
    """Why a window has its score.

    Parameters
    ----------
    domain : str
    score, threshold : float
    p_value : float
        Share of calibration windows that score as high, at least.
    parts : dict of str to float
        Standardised evidence: structural, velocity, ode.
    lines : DataFrame
        line, message, template, change: how much lower the score is without the line; largest first.
    prototypes : tuple of (str, float, list of str)
        Kind, squared distance and typical templates of the nearest prototype of each half.
    path : tuple of float
        Distance from the prototype along the flow, from the window (t = 1) back to its source (t = 0).
    roughness : float
        Mean squared change of the velocity along that path.
    usual_end : float
        Where the path of a usual window ends (median of the calibration windows).
    """

    domain: str
    score: float
    threshold: float
    p_value: float
    parts: dict[str, float]
    lines: pd.DataFrame
    prototypes: tuple[tuple[str, float, list[str]], ...]
    path: tuple[float, ...]
    roughness: float
    usual_end: float

    def to_frame(self) -> pd.DataFrame:
        """The lines, most offending first."""
        return self.lines.copy()

    def summary(self, n_lines: int = 5) -> str:
        """A few lines for people."""
        verdict = "ALARM" if self.score > self.threshold else "normal"
        said = [
            f"{self.domain}: {verdict}, score {self.score:.2f} "
            f"(threshold {self.threshold:.2f}, p = {self.p_value:.3g})",
            "evidence in robust standard deviations: " + ", ".join(f"{k} {v:.1f}" for k, v in self.parts.items()),
        ]
        raising = self.lines[self.lines["change"] > 0].head(n_lines)
        said.append(
            "lines whose absence lowers the score most:" if len(raising) else "no line's absence alone lowers the score"
        )
        said += [f"  {row.change:+9.2f}  line {row.line}: {str(row.message)[:110]}" for row in raising.itertuples()]
        for kind, distance, typical in self.prototypes:
            said.append(f"nearest {kind} prototype at squared distance {distance:.2f}; typical of it:")
            said += [f"             {template[:110]}" for template in typical]
        steps = " ".join(f"{value:.2f}" for value in self.path)
        said.append(f"flow path, distance from the prototype at t = 1 … 0: {steps} (a usual one ends at "
                    f"{self.usual_end:.2f}); roughness {self.roughness:.3g}")  # fmt: skip
        return "\n".join(said)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw how much each line adds to the score, in the order of the log."""
        from matplotlib import pyplot as plt

        ax = plt.subplots(figsize=(8, 0.28 * len(self.lines) + 1.5))[1] if ax is None else ax
        lines = self.lines.sort_values("line")
        colours = np.where(lines["change"] > 0, "#D55E00", "#0072B2")
        ax.barh(np.arange(len(lines)), lines["change"], color=colours)
        ax.set_yticks(
            np.arange(len(lines)), [f"{n}: {m[:60]}" for n, m in zip(lines["line"], lines["message"], strict=True)]
        )
        ax.tick_params(axis="y", labelsize=7)
        ax.invert_yaxis()
        ax.set_xlabel("change of the score (robust standard deviations) that the line makes")
        ax.set_title(f"{self.domain}: score {self.score:.2f}, threshold {self.threshold:.2f}")
        return ax


def explain(detector: MPFMDetector, windows: LogWindows, i: int) -> Explanation:
    """Explain window `i` of `windows`."""
    from assay.audit.mpfm.detector import N_STEPS
    from assay.audit.mpfm.scoring import look_closer

    if not -len(windows) <= i < len(windows):
        raise InputError(f"window {i}: there are {len(windows)} windows, counted from 0")
    window = windows[[i]]
    name = str(window.domain[0])
    score = float(detector.score_samples(window)[0])
    places = np.flatnonzero(window.mask[0])
    without = _without_each(window, places)
    change = score - detector.score_samples(without) if without is not None else np.array([score])
    given = detector._door(window, None, fitting=False)
    k = detector.domains_.index(name)
    distances, nearest, path, rough = look_closer(
        detector.network_, detector._table(given, name), given.ids[0], k, N_STEPS, detector.device
    )
    calibration = detector.calibration_[name]
    evidence = detector.evidence(window)
    lines = window.lines[0][places]
    frame = pd.DataFrame(
        {
            "line": windows.numbers[lines],
            "message": [windows.messages[line] for line in lines],
            "template": [windows.templates[t] for t in window.ids[0][places]],
            "change": change,
        }
    ).sort_values("change", ascending=False, kind="stable", ignore_index=True)
    kinds = [kind for kind, used in (("shared", detector.shared), ("private", detector.private)) if used]
    return Explanation(
        name,
        score,
        calibration.threshold,
        float(calibration.p_value([score])[0]),
        {
            "structural": float(calibration.structural(evidence[:, 0])[0]),
            "velocity": float(calibration.velocity(evidence[:, 1])[0]),
            "ode": float(calibration.ode(evidence[:, 2])[0]),
        },
        frame,
        tuple(
            (kind, float(distance), detector.landmarks_.get(landmark_key(kind, name, int(m)), []))
            for kind, distance, m in zip(kinds, distances, nearest, strict=True)
        ),
        tuple(path.tolist()),
        rough,
        float(np.sqrt(max(calibration.ode.center, 0.0)) * detector.sigma0),
    )


def _without_each(window: LogWindows, places: NDArray[np.int64]) -> LogWindows | None:
    """The window without its first, second, … line; later lines move up. None where it has one line only."""
    if len(places) < 2:
        return None
    ids = np.full((len(places), window.shape[1]), -1, window.ids.dtype)
    for row in range(len(places)):
        ids[row, : len(places) - 1] = np.delete(window.ids[0][places], row)
    copies = window[np.zeros(len(places), np.int64)]
    return type(window)(ids, *(getattr(copies, f) for f in ("vectors", "templates", "domain", "lines", "messages",
                                                            "numbers", "times")))  # fmt: skip


def landmark_key(kind: str, domain: str, number: int) -> str:
    """Name of a prototype in a stored model."""
    return f"{kind}:{number}" if kind == "shared" else f"{kind}:{domain}:{number}"


def landmarks(
    network: PrototypeFlow,
    rows: Rows,
    domains: list[str],
    templates: list[str],
    device: str,
    *,
    private_only: bool,
) -> dict[str, list[str]]:
    """The three most frequent templates of the training window nearest to every prototype."""
    import torch

    from assay.audit.mpfm.training import embed

    found: dict[str, list[str]] = {}
    halves = embed(network, rows, device)
    size = network.size
    with torch.no_grad():
        gate = torch.sigmoid(network.gate).cpu().numpy()
    shared, private = network.shared.detach().cpu().numpy(), network.private.detach().cpu().numpy()
    sets = []
    if size.shared and not private_only:
        sets += [("shared", "", halves[0] / gate[rows.domain][:, None], np.arange(len(rows.ids)), shared)]
    if size.private:
        for k in np.unique(rows.domain):
            sets += [("private", domains[k], halves[-1], np.flatnonzero(rows.domain == k), private[k])]
    for kind, name, z, places, prototypes in sets:
        for number, prototype in enumerate(prototypes):
            nearest = places[np.square(z[places] - prototype).sum(axis=1).argmin()]
            seen = Counter(rows.ids[nearest][rows.ids[nearest] >= 0].tolist())
            found[landmark_key(kind, name, number)] = [templates[t] for t, _ in seen.most_common(3)]
    return found
