"""Values of nodes without causes, by the number of the row: where time enters a database.

A series is (trend + cycle + noise) / 3 (paper, appendix; the authors' code). The noise is autoregressive; its state is
carried from block to block, and only what comes out is clipped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from assay.synth.plurel.draws import Floats, Rng, pick, real

if TYPE_CHECKING:
    from assay.synth.plurel.config import ScmConfig

Doubles = NDArray[np.float64]


def trend(position: Doubles, power: float, scale: float, low: float, high: float) -> Doubles:
    """min(scale * (i/n)^power + low, high) at positions i/n."""
    return np.minimum(scale * position**power + low, high)


def cycle(row: Doubles, length: float, scale: float, low: float, high: float) -> Doubles:
    """clip(scale * sin(pi i / length), low, high)."""
    return np.clip(scale * np.sin(np.pi * row / length), low, high)


def autoregressive(draws: Doubles, rho: float, state: float) -> Doubles:
    """z_i = rho z_{i-1} + draws_i from z_{-1} = `state`, by doubling: log2(n) steps without a loop over rows.

    >>> autoregressive(np.array([1.0, 0.0, 0.0]), 0.5, 8.0).tolist()
    [5.0, 2.5, 1.25]
    """
    values, lag = draws.copy(), 1
    values[0] += rho * state
    while lag < len(values) and rho**lag > 1e-18:
        values[lag:] = values[lag:] + rho**lag * values[:-lag]
        lag *= 2
    return values


@dataclass
class Series:
    """A trend, a cycle and autoregressive noise, between two bounds.

    `state` is the last value of the noise: rows are asked for from the first to the last.
    """

    n_rows: int
    low: float
    high: float
    power: float
    trend_scale: float
    cycle_length: float
    cycle_scale: float
    noise: float
    ar: float
    state: float = 0.0

    def values(self, rng: Rng, start: int, stop: int) -> Doubles:
        """(stop - start,) Values of rows, which begin where the last call ended."""
        row = np.arange(start, stop, dtype=np.float64)
        if start == 0:
            self.state = 0.0
        noise = autoregressive(self.noise * rng.standard_normal(stop - start), self.ar, self.state)
        self.state = float(noise[-1])
        total = trend(row / self.n_rows, self.power, self.trend_scale, self.low, self.high)
        total += cycle(row, self.cycle_length, self.cycle_scale, self.low, self.high)
        total += np.clip(noise, self.low, self.high)
        total /= 3
        return total


@dataclass
class Spread:
    """Independent draws between two bounds: uniform, a clipped Gaussian, or Beta."""

    kind: str
    low: float
    high: float
    a: float = 1.0
    b: float = 1.0

    def values(self, rng: Rng, start: int, stop: int) -> Doubles:
        """(stop - start,) Draws."""
        n, width = stop - start, self.high - self.low
        if self.kind == "uniform":
            return rng.uniform(self.low, self.high, n)
        if self.kind == "beta":
            return self.low + width * rng.beta(self.a, self.b, n)
        return np.clip(rng.normal((self.low + self.high) / 2, max(width / 4, 1e-6), n), self.low, self.high)


@dataclass
class Mixture:
    """Each row from one of a few."""

    parts: tuple[Spread, ...]

    def values(self, rng: Rng, start: int, stop: int) -> Doubles:
        """(stop - start,) Draws."""
        which = rng.integers(len(self.parts), size=stop - start)
        chosen: Doubles = np.choose(which, [part.values(rng, start, stop) for part in self.parts])
        return chosen


@dataclass
class Classes:
    """Classes, with the same probabilities on every row or by the softmax of a series for each."""

    probabilities: Doubles
    series: tuple[Series, ...] = ()

    def values(self, rng: Rng, start: int, stop: int) -> Doubles:
        """(stop - start,) Classes from 0."""
        n = stop - start
        if not self.series:
            cumulated = np.cumsum(self.probabilities)
            return np.searchsorted(cumulated[:-1], rng.random(n), side="right").astype(np.float64)
        logits = np.stack([one.values(rng, start, stop) for one in self.series])
        weights = np.exp(logits - logits.max(axis=0))
        cumulated = np.cumsum(weights, axis=0)
        exceeded: Doubles = (rng.random(n) * cumulated[-1] >= cumulated[:-1]).sum(axis=0).astype(np.float64)
        return exceeded


Source = Series | Spread | Mixture | Classes


def draw_source(rng: Rng, n_classes: int, n_rows: int, is_activity: bool, scm: ScmConfig) -> Source:
    """Draw the source of a node; `n_classes` 0: of numbers."""
    kind = pick(rng, scm.sources)
    if n_classes == 0:
        return _numerical(rng, kind, n_rows, is_activity, scm)
    if kind == "series":
        parts = tuple(_series(rng, n_rows, is_activity, scm) for _ in range(n_classes))
        return Classes(np.full(n_classes, 1 / n_classes), parts)
    return Classes(rng.dirichlet(np.ones(n_classes)))


def _numerical(rng: Rng, kind: str, n_rows: int, is_activity: bool, scm: ScmConfig) -> Source:
    if kind == "series":
        return _series(rng, n_rows, is_activity, scm)
    if kind == "mixture":
        n_parts = int(rng.integers(2, 4))
        return Mixture(tuple(_spread(rng, pick(rng, ("uniform", "gaussian", "beta")), scm) for _ in range(n_parts)))
    return _spread(rng, kind, scm)


def _bounds(rng: Rng, scm: ScmConfig) -> tuple[float, float]:
    low, high = sorted(rng.random(2) * pick(rng, scm.source_scale))
    return float(low), float(high)


def _spread(rng: Rng, kind: str, scm: ScmConfig) -> Spread:
    low, high = _bounds(rng, scm)
    return Spread(kind, low, high, real(rng, scm.source_beta), real(rng, scm.source_beta))


def _series(rng: Rng, n_rows: int, is_activity: bool, scm: ScmConfig) -> Series:
    low, high = _bounds(rng, scm)
    signs = [float(rng.choice((-1.0, 1.0))) if is_activity else 0.0 for _ in range(2)]
    return Series(
        n_rows=n_rows,
        low=low,
        high=high,
        power=real(rng, scm.trend_power),
        trend_scale=signs[0],
        cycle_length=float(math.ceil(n_rows * pick(rng, scm.cycle_share))),
        cycle_scale=signs[1],
        noise=scm.activity_noise if is_activity else scm.entity_noise,
        ar=real(rng, scm.ar),
    )


def as_floats(values: Doubles) -> Floats:
    """As the nodes hold them."""
    return values.astype(np.float32)
