"""How much of the data set was used, and the least usage that this audit could have found.

Mean features move linearly with the share ρ of the target that was trained on: Δ(ρ) = ρ Δ(1). A shadow model that the
auditor trains shows Δ(1): what being trained on does to a sample's features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import optimize, stats

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

N_BOOTSTRAP = 2000
POWER = 0.8


class Fraction(NamedTuple):
    """Estimated share of the target that was trained on, with a 95 % bootstrap interval; all within [0, 1]."""

    estimate: float
    low: float
    high: float


def usage_fraction(
    target_loss: Array,
    aux_loss: Array,
    rng: np.random.Generator,
    *,
    shadow: tuple[Array, Array] | None = None,
    full_gap: float | None = None,
) -> Fraction:
    """Estimate ρ = (mean_A e − mean_T e) / gap, clipped to [0, 1].

    Parameters
    ----------
    target_loss, aux_loss : (n,) and (m,) float
        Losses, or their residuals on the references' features.
    rng : numpy Generator
        For the bootstrap.
    shadow : pair of (s,) float and (t,) float
        Losses of a shadow model on its own training samples and on others: the gap is the difference of their means.
    full_gap : float
        The gap itself, where it is known. Exactly one of `shadow` and `full_gap` is given.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> losses = np.repeat([0.0, 1.0], [250, 750])  # a quarter memorised
    >>> round(usage_fraction(losses, np.ones(500), rng, full_gap=1.0).estimate, 6)
    0.25
    """

    def ratio(target: Array, aux: Array, members: Array, others: Array) -> Array:
        gap = others - members
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(gap > 0, (aux - target) / gap, np.where(aux > target, 1.0, 0.0))
        return np.clip(share, 0.0, 1.0)

    if shadow is None:
        assert full_gap is not None
        shadow = np.zeros(1), np.full(1, full_gap)
    samples = (target_loss, aux_loss, *shadow)
    estimate = float(ratio(*(np.asarray(values.mean()) for values in samples)))
    drawn = ratio(*(_bootstrap_means(values, rng) for values in samples))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Fraction(estimate, float(low), float(high))


def _bootstrap_means(values: Array, rng: np.random.Generator) -> Array:
    means = np.empty(N_BOOTSTRAP)
    for start in range(0, N_BOOTSTRAP, 100):
        means[start : start + 100] = values[rng.integers(len(values), size=(100, len(values)))].mean(axis=1)
    return means


def detectable_fraction(delta: Array, covariance: Array, n: int, m: int, alpha: float) -> float:
    """The least share of the target whose use would be found four times of five, by the F approximation.

    Parameters
    ----------
    delta : (k,) float
        Δ(1): members less others of a shadow model.
    covariance : (k, k) float
        Pooled, of what the audit tested.
    n, m : int
        Sizes of target and auxiliary data.
    alpha : float
        Level of the one-sided test.

    Returns
    -------
    float
        Infinite where no share would be found; above 1 where full use might be missed.
    """
    full = n * m / (n + m) * float(delta @ np.linalg.pinv(covariance, rcond=1e-10, hermitian=True) @ delta)
    if not full > 0:
        return float("inf")
    k = int(np.linalg.matrix_rank(covariance, tol=1e-10 * max(np.trace(covariance), 1e-300), hermitian=True))
    rest = n + m - k - 1
    bound = stats.f.isf(min(2 * alpha, 1.0), k, rest)  # the direction halves p

    def lacking(noncentrality: float) -> float:
        return float(stats.ncf.sf(bound, k, rest, noncentrality)) - POWER

    return float(np.sqrt(optimize.brentq(lacking, 1e-6, 1e4) / full))


def detectable_gap(spread: float, n: int, m: int, alpha: float) -> float:
    """The least mean difference of the loss that a one-sided test of it finds four times of five, in nats."""
    return float((stats.norm.isf(alpha) + stats.norm.ppf(POWER)) * spread * np.sqrt(1 / n + 1 / m))
