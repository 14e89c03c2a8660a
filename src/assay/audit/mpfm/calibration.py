"""From evidence to alarms: what is usual for a system, a threshold with a false-alarm level, and p-values."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Scale:
    """Median and spread of one evidence on normal windows."""

    center: float
    spread: float

    def __call__(self, evidence: NDArray[np.float64]) -> NDArray[np.float64]:
        """(evidence − median) / spread."""
        return (evidence - self.center) / self.spread


def robust_scale(evidence: NDArray[np.float64], what: str = "evidence") -> Scale:
    """Median and 1.4826 × median absolute deviation; the standard deviation where more than half are equal.

    Examples
    --------
    >>> robust_scale(np.array([1.0, 2.0, 3.0, 4.0, 100.0]))
    Scale(center=3.0, spread=1.4826...)
    """
    center = float(np.median(evidence))
    spread = 1.4826 * float(np.median(np.abs(evidence - center)))
    deviation = float(np.std(evidence))
    if spread <= 1e-3 * deviation or spread <= 1e-9 * max(1.0, abs(center)):
        spread = deviation  # more than half of the windows are alike, up to rounding
        if spread <= 1e-9 * max(1.0, abs(center)):
            warnings.warn(f"{what}: the calibration windows all look the same; scores count in absolute units",
                          stacklevel=2)  # fmt: skip
            spread = 1.0
    return Scale(center, spread + 1e-9)


@dataclass(frozen=True)
class Calibration:
    """What is usual for a system.

    Parameters
    ----------
    structural, velocity, ode, dynamical : Scale
    weight : float
        Of the structural evidence in the score.
    threshold : float
        A higher score is an alarm.
    scores : tuple of float
        Sorted scores of the calibration windows.
    borrowed : bool
        The system was never trained on: constants are those of the other systems.
    """

    structural: Scale
    velocity: Scale
    ode: Scale
    dynamical: Scale
    weight: float
    threshold: float
    scores: tuple[float, ...]
    borrowed: bool = False

    def score(self, evidence: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n,) scores of (n, 3) evidence: S_str, S_vel, S_ode."""
        dynamical = self.dynamical(self.velocity(evidence[:, 1]) + self.ode(evidence[:, 2]))
        return self.weight * self.structural(evidence[:, 0]) + (1 - self.weight) * dynamical

    def p_value(self, scores: ArrayLike) -> NDArray[np.float64]:
        """Split-conformal p-values: (1 + number of calibration scores at least as high) / (n + 1)."""
        below = np.searchsorted(np.array(self.scores), np.asarray(scores), side="left")
        return np.asarray((1 + len(self.scores) - below) / (len(self.scores) + 1), np.float64)

    def to_dict(self) -> dict[str, Any]:
        """State that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Calibration:
        """Build from what :meth:`to_dict` gave."""
        scales = {name: Scale(**state[name]) for name in ("structural", "velocity", "ode", "dynamical")}
        return cls(**{**state, **scales, "scores": tuple(state["scores"])})


def calibrate(
    evidence: NDArray[np.float64], *, weight: float, alpha: float, what: str, borrowed: bool = False
) -> Calibration:
    """Learn a system's constants from the evidence of its normal windows.

    Parameters
    ----------
    evidence : (n, 3) float
    weight, alpha : float
    what : str
        Name of the system, for warnings.
    borrowed : bool
    """
    structural, velocity, ode = (robust_scale(evidence[:, column], what) for column in range(3))
    dynamical = robust_scale(velocity(evidence[:, 1]) + ode(evidence[:, 2]), what)
    bare = Calibration(structural, velocity, ode, dynamical, weight, 0.0, ())
    scores = np.sort(bare.score(evidence))
    return Calibration(
        structural, velocity, ode, dynamical, weight, threshold(scores, alpha), tuple(scores.tolist()), borrowed
    )


def threshold(normal_scores: NDArray[np.float64], alpha: float) -> float:
    """The k-th smallest normal score, k = ⌈(n + 1)(1 − alpha)⌉: a new normal score is higher with probability ≤ alpha.

    With fewer than 1/alpha − 1 scores no threshold can promise that; it is the highest score then, which a new normal
    one exceeds with probability 1 / (n + 1).
    """
    n = len(normal_scores)
    rank = min(int(np.ceil((n + 1) * (1 - alpha) - 1e-9)), n)
    return float(np.sort(normal_scores)[rank - 1])


def pooled(known: Sequence[Calibration], weight: float) -> Calibration:
    """Constants for a system nobody has seen: the middle ones of the others."""

    def middle(part: str) -> Scale:
        scales = [getattr(one, part) for one in known]
        return Scale(
            float(np.median([scale.center for scale in scales])), float(np.median([scale.spread for scale in scales]))
        )

    return Calibration(
        middle("structural"),
        middle("velocity"),
        middle("ode"),
        middle("dynamical"),
        weight,
        float(np.median([one.threshold for one in known])),
        tuple(sorted(score for one in known for score in one.scores)),
        borrowed=True,
    )


def best_f1(scores: NDArray[np.float64], labels: NDArray[Any]) -> tuple[float, float]:
    """The highest F1 and the threshold, half-way between two scores, that gives it."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(labels[order] == 1)
    f1 = 2 * hits / (np.arange(1, len(order) + 1) + (labels == 1).sum())
    ordered = scores[order]
    f1[:-1][ordered[:-1] == ordered[1:]] = -1  # equal scores stay together
    best = int(f1.argmax())
    below = ordered[best + 1] if best + 1 < len(ordered) else ordered[best] - 1
    return float(f1[best]), float((ordered[best] + below) / 2)
