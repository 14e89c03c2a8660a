"""Are two samples of several features alike? Hotelling's T², with a direction, by permutation or by F.

All statistics are computed from sums over the first sample of columns that are centred and scaled over both together.
These columns do not change when samples change sides, so that a permutation costs one product of a 0/1 matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import stats

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

Test = Literal["permutation", "F"]

#: Directions whose share of the spread is below this (as singular values) are taken as rounding.
RANK_TOLERANCE = 1e-9
#: Two statistics nearer than this are the same: permutations of equal samples differ by rounding only.
TIE = 1e-9
#: Numbers of a 0/1 matrix of permutations that are held at a time.
CHUNK = 8_000_000


@dataclass(frozen=True)
class Comparison:
    """What two samples have not in common.

    Parameters
    ----------
    delta : (k,) float
        Mean of the target less mean of the auxiliary sample, feature by feature.
    z : (k,) float
        `delta` in pooled standard errors (two-sample t).
    t2 : float
        Hotelling's T².
    rank : int
        Dimensions that the features really have.
    p_two_sided : float
        That T² is as large when the samples are exchangeable.
    p_value : float
        The same, one-sided: small only where the target lies lower.
    p_sum : float
        One-sided, of the sum of standardised features (O'Brien).
    p_loss : float
        One-sided, of the first feature alone.
    """

    delta: Array
    z: Array
    t2: float
    rank: int
    p_two_sided: float
    p_value: float
    p_sum: float
    p_loss: float


def compare(
    target: Array,
    aux: Array,
    *,
    test: Test = "permutation",
    n_permutations: int = 2000,
    rng: np.random.Generator,
    groups: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
) -> Comparison:
    """Compare two samples by T² and by two one-dimensional tests.

    Parameters
    ----------
    target : (n, k) float
    aux : (m, k) float
    test : "permutation" or "F"
        Permutation holds at any size and for any distribution; its smallest p is 1/(n_permutations + 1). F has no such
        floor; it holds for normal features, and for many samples.
    n_permutations : int
    rng : numpy Generator
        For the permutations.
    groups : pair of (n,) int and (m,) int, optional
        Samples of one group change sides together; no group is on both sides. For ``"permutation"``.

    Notes
    -----
    With z_j the two-sample t of feature j, the target lies lower when Σ z_j < 0. The one-sided p is that of T² with
    this sign. For F that is p/2 or 1 − p/2, by the symmetry of the normal; by permutation the sign is permuted as well,
    so that it holds for skewed features and unequal sizes too.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> found = compare(rng.normal(-1, 1, (80, 2)), rng.normal(0, 1, (90, 2)), rng=rng)
    >>> round(found.p_value, 4)  # the smallest that 2000 permutations can give
    0.0005
    """
    n, m = len(target), len(aux)
    both = np.concatenate([target, aux])
    columns, rank = _columns(both)
    member = np.repeat([1.0, 0.0], [n, m])
    sizes = np.ones(n + m)
    if groups is not None:
        columns, member, sizes = _by_group(columns, member, groups)
    n_all = float(n + m)
    observed = _statistics(member[None] @ columns, np.array([float(n)]), n_all, rank)
    share, z = float(observed.share[0]), observed.z[0]
    t2 = (n_all - 2) * share / (1 - share) if share < 1 - 1e-12 else float("inf")
    if test == "F":
        p_two, p_value, p_sum, p_loss = _by_f(t2, z, float(observed.total[0]), rank, n_all)
    else:
        counts = np.zeros(4)
        done = 0
        rows = max(1, CHUNK // len(member))
        while done < n_permutations:
            size = min(rows, n_permutations - done)
            drawn = rng.permuted(np.tile(member.astype(np.uint8), (size, 1)), axis=1).astype(np.float64)
            found = _statistics(drawn @ columns, drawn @ sizes, n_all, rank)
            counts += [
                (found.share >= share - TIE).sum(),
                (found.signed >= observed.signed[0] - TIE).sum(),
                (found.total <= observed.total[0] + TIE).sum(),
                (found.z[:, 0] <= z[0] + TIE).sum(),
            ]
            done += size
        p_two, p_value, p_sum, p_loss = (1 + counts) / (n_permutations + 1)
    delta = target.mean(axis=0) - aux.mean(axis=0)
    return Comparison(delta, z, t2, rank, float(p_two), float(p_value), float(p_sum), float(p_loss))


@dataclass(frozen=True)
class _Statistics:
    share: Array  # (b,) share of the spread that lies between the samples: T² = (N − 2) share / (1 − share)
    signed: Array  # (b,) the same, negative where the target lies higher
    total: Array  # (b,) t of the sum of standardised features
    z: Array  # (b, k)


def _columns(both: Array) -> tuple[Array, int]:
    """Orthonormal columns of the features, then their standardised sum, then the standardised features."""
    # A constant far from zero must not leave its rounding behind as a spread.
    centred = both - both.mean(axis=0)
    norms = np.linalg.norm(centred, axis=0)
    varies = norms > 1e-12 * np.abs(both).max(axis=0) * np.sqrt(len(both))
    scaled = np.where(varies, centred, 0.0) / np.where(varies, norms, 1.0)
    u, spread, _ = np.linalg.svd(scaled, full_matrices=False)
    kept = spread > RANK_TOLERANCE * max(float(spread[0]), 1e-300)
    total = scaled.sum(axis=1, keepdims=True)
    length = float(np.linalg.norm(total))
    total = total / length if length > 1e-12 else np.zeros_like(total)
    return np.concatenate([u[:, kept], total, scaled], axis=1), int(kept.sum())


def _by_group(
    columns: Array, member: Array, groups: tuple[NDArray[np.int64], NDArray[np.int64]]
) -> tuple[Array, Array, Array]:
    _, code = np.unique(np.concatenate(groups), return_inverse=True)
    n_groups = int(code.max()) + 1
    sums = np.zeros((n_groups, columns.shape[1]))
    np.add.at(sums, code, columns)
    sizes = np.bincount(code, minlength=n_groups).astype(float)
    return sums, (np.bincount(code, weights=member) > 0).astype(float), sizes


def _statistics(sums: Array, n: Array, n_all: float, rank: int) -> _Statistics:
    """Statistics from sums over the target of the columns, one row for each way of choosing a target."""
    factor = n_all / (n * (n_all - n))
    share = np.minimum((sums[:, :rank] ** 2).sum(axis=1) * factor, 1.0)
    part = sums[:, rank:] ** 2 * factor[:, None]
    t = np.sign(sums[:, rank:]) * np.sqrt((n_all - 2) * part / np.maximum(1 - part, 1e-12))
    total, z = t[:, 0], t[:, 1:]
    return _Statistics(share, np.where(z.sum(axis=1) < 0, share, -share), total, z)


def _by_f(t2: float, z: Array, total: float, rank: int, n_all: float) -> tuple[float, float, float, float]:
    if rank == 0:
        return 1.0, 0.5, 0.5, 0.5
    rest = n_all - rank - 1
    p_two = float(stats.f.sf(t2 * rest / (rank * (n_all - 2)), rank, rest))
    p_value = p_two / 2 if z.sum() < 0 else 1 - p_two / 2
    return p_two, p_value, float(stats.t.cdf(total, n_all - 2)), float(stats.t.cdf(z[0], n_all - 2))


def holm(p_values: Array) -> Array:
    """p-values corrected for there being several, by Holm: p·(number not smaller), made monotone, at most 1.

    Examples
    --------
    >>> holm(np.array([0.01, 0.04, 0.03])).round(4).tolist()
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    factors = np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(np.maximum.accumulate(p_values[order] * factors), 1.0)
    return corrected
