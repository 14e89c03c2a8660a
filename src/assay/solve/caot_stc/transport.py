"""The optimal-transport problem that gives a batch its pseudo-labels, and its solver.

For softmax predictions P (B texts, C clusters) and a similarity S between the texts, the plan Q (B, C) and the sizes b
of the clusters solve

    min  <Q, −log P>  −  l_sem sum_ij S_ij (Q Q')_ij  +  l_ent sum Q log Q  +  l_size sum_j [−log b_j − log(1 − b_j)]
    s.t. Q 1 = 1/B,  Q' 1 = b,  sum b = 1,  Q >= 0.

The first term looks up, at the clusters; the second looks around, at similar texts. The solver is a generalised
conditional gradient: linearise the second term, solve the entropic problem that is left by Sinkhorn sweeps in which
the sizes adapt, go as far towards its solution as an Armijo search allows.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

Array = NDArray[np.float64]

#: Predictions are kept above this, so that their logarithms are finite.
SMALLEST_P = 1e-12

#: Above this range of cost over regularisation exp(−cost / regularisation) loses digits and the sweeps use logarithms.
LARGEST_RANGE = 50.0

#: Armijo: the first step, the share of the slope's promise that must be kept, the shortest step that is tried.
FIRST_STEP, KEPT_SHARE, SHORTEST_STEP = 0.99, 1e-4, 1e-12


@dataclass(frozen=True)
class OTResult:
    """What :func:`consistency_aware_ot` found.

    Parameters
    ----------
    plan : (B, C) float64
        Rows sum to 1/B.
    labels : (B,) int
        The cluster with the largest share of each row: the pseudo-labels.
    sizes : (C,) float64
        Column sums of the plan; they sum to one.
    objective : tuple of float
        Before the first outer step and after each: it never rises. The barrier has the weight ``lam_size / alpha``
        that its update has, and is left out where the sizes are fixed.
    converged : bool
        The objective stopped changing before the steps ran out.
    """

    plan: Array
    labels: NDArray[np.intp]
    sizes: Array
    objective: tuple[float, ...]
    converged: bool


def semantic_gradient(plan: Array, similarity: Array) -> Array:
    """Gradient of sum_ij S_ij (Q Q')_ij with respect to Q: (S + S') Q. S need not be symmetric."""
    return np.asarray(similarity @ plan + similarity.T @ plan, dtype=np.float64)


def balanced_sizes(potential: Array, lam_size: float, alpha: float = 1.0) -> tuple[Array, float]:
    """Sizes of clusters from the dual potentials of their columns, and the multiplier h of their sum.

    Each b_j solves alpha (g_j − h) = lam_size (1/b_j − 1/(1 − b_j)), the stationarity of the barrier; h makes the sum
    one. The sum grows with h: Newton's steps, and half the interval where one would leave it (alone they overflow for
    small `lam_size`).

    Parameters
    ----------
    potential : (C,) float
        g, the regularisation times the logarithm of Sinkhorn's column scaling.
    lam_size, alpha : float
        Above zero.

    Returns
    -------
    sizes : (C,) float
        Above zero, sum one.
    h : float

    Examples
    --------
    >>> balanced_sizes(np.array([-0.5, -1.0, -1.5, -2.0]), lam_size=1.0, alpha=10.0)[0].round(4).tolist()
    [0.0671, 0.1006, 0.197, 0.6354]
    """
    n_clusters = len(potential)
    # At h = min g − r and max g − r, r the shift that gives every b = 1/C, the sum is at most and at least one.
    shift = lam_size * (n_clusters - n_clusters / max(n_clusters - 1, 1)) / alpha
    low, high = float(potential.min()) - shift, float(potential.max()) - shift
    h = 0.5 * (low + high)
    sizes = _sizes_at(potential, h, lam_size, alpha)
    for _ in range(100):
        excess = float(sizes.sum()) - 1.0
        if abs(excess) < 1e-15:
            break
        low, high = (h, high) if excess < 0 else (low, h)
        slope = float((alpha / lam_size / (sizes**-2 + (1.0 - sizes) ** -2)).sum())
        step = h - excess / slope if slope > 0 else low
        nearer = step if low < step < high else 0.5 * (low + high)
        if nearer in (low, high, h):
            break
        h = nearer
        sizes = _sizes_at(potential, h, lam_size, alpha)
    return sizes / sizes.sum(), h


def _sizes_at(potential: Array, h: float, lam_size: float, alpha: float) -> Array:
    """The root in (0, 1) of x = lam (1/b − 1/(1 − b)): b = 2 lam / (x + 2 lam + sqrt(x² + 4 lam²)), without 0/0."""
    x = alpha * (potential - h)
    return np.asarray(2.0 * lam_size / (x + 2.0 * lam_size + np.hypot(x, 2.0 * lam_size)), dtype=np.float64)


def entropic_plan(
    cost: Array, sizes: Array, *, lam_entropy: float, lam_size: float, alpha: float, n_sweeps: int, adaptive: bool
) -> tuple[Array, Array]:
    """Plan of the linearised problem after `n_sweeps` of Sinkhorn, and the sizes it ended with.

    Parameters
    ----------
    cost : (B, C) float
    sizes : (C,) float
        Where the sizes start; where they stay unless `adaptive`.
    lam_entropy, lam_size, alpha : float
    n_sweeps : int
    adaptive : bool
        Update the sizes after every sweep.

    Returns
    -------
    plan : (B, C) float
        Rows sum to 1/B exactly (the rows are scaled last).
    sizes : (C,) float
    """
    scaled = cost / -lam_entropy
    in_logs = float(scaled.max() - scaled.min()) > LARGEST_RANGE
    sweep = _log_sweeps if in_logs else _plain_sweeps
    return sweep(scaled, sizes, lam_entropy, lam_size, alpha, n_sweeps, adaptive)


def _plain_sweeps(
    scaled: Array, sizes: Array, lam_entropy: float, lam_size: float, alpha: float, n_sweeps: int, adaptive: bool
) -> tuple[Array, Array]:
    n_texts = len(scaled)
    kernel = np.exp(scaled - scaled.max())  # a common factor of the kernel changes neither u K v nor the sizes
    u = np.full(n_texts, 1.0 / n_texts)
    v = np.ones(scaled.shape[1])
    for _ in range(n_sweeps):
        v = sizes / (u @ kernel)
        u = (1.0 / n_texts) / (kernel @ v)
        if adaptive:
            sizes = balanced_sizes(lam_entropy * np.log(v), lam_size, alpha)[0]
    return u[:, None] * kernel * v, sizes


def _log_sweeps(
    scaled: Array, sizes: Array, lam_entropy: float, lam_size: float, alpha: float, n_sweeps: int, adaptive: bool
) -> tuple[Array, Array]:
    n_texts = len(scaled)
    log_u = np.full(n_texts, -np.log(n_texts))
    log_v = np.zeros(scaled.shape[1])
    for _ in range(n_sweeps):
        log_v = np.log(sizes) - _log_sum_exp(scaled + log_u[:, None], axis=0)
        log_u = -np.log(n_texts) - _log_sum_exp(scaled + log_v, axis=1)
        if adaptive:
            sizes = balanced_sizes(lam_entropy * log_v, lam_size, alpha)[0]
    return np.exp(log_u[:, None] + scaled + log_v), sizes


def _log_sum_exp(values: Array, axis: int) -> Array:
    top = values.max(axis=axis, keepdims=True)
    return np.asarray(np.log(np.exp(values - top).sum(axis=axis)) + top.squeeze(axis), dtype=np.float64)


def consistency_aware_ot(
    p: ArrayLike,
    s: ArrayLike | None = None,
    *,
    b: ArrayLike | None = None,
    lam_entropy: float = 1.0,
    lam_size: float = 100.0,
    lam_sem: float = 25.0,
    alpha: float = 10.0,
    max_outer: int = 10,
    max_inner: int = 10,
    tol: float = 1e-6,
    adaptive_size: bool = True,
) -> OTResult:
    """Pseudo-labels of a batch that agree with the predictions, with similar texts, and with plausible sizes.

    Parameters
    ----------
    p : (B, C) array-like
        Predictions: rows are probabilities.
    s : (B, B) array-like, optional
        Similarity of the texts, larger is more similar. Its diagonal is ignored; it need not be symmetric. None: the
        semantic term is left out.
    b : (C,) array-like, optional
        Sizes of the clusters to start with (fixed ones unless `adaptive_size`); uniform if None.
    lam_entropy : float
        Weight of the entropy of the plan.
    lam_size : float
        Weight of the barrier on the sizes: large values hold them equal, small ones let them go.
    lam_sem : float
        Weight of the semantic term. 0: plain optimal transport.
    alpha : float
        The factor on the potentials in the update of the sizes: the barrier counts ``lam_size / alpha``. The authors
        use 10, or 100 with many clusters.
    max_outer, max_inner : int
        Linearisations, and Sinkhorn sweeps in each.
    tol : float
        Stop when the objective changes by less, absolutely or relatively.
    adaptive_size : bool
        False holds the sizes at `b`.

    Returns
    -------
    OTResult

    Raises
    ------
    InputError
        Shapes do not fit, a number is not finite, rows of `p` do not sum to one, or a weight is out of range.

    Notes
    -----
    Equations: the optimal-transport problem and solver of POTA (Yao, Yin, Li, arXiv:2501.15194), which the ICML 2026
    paper builds on. With ``s=None``, fixed sizes and many sweeps it is entropic optimal transport.

    Examples
    --------
    >>> p = np.array([[0.9, 0.1]] * 3 + [[0.45, 0.55]] + [[0.1, 0.9]] * 2)
    >>> s = np.zeros((6, 6)); s[:4, :4] = 1; s[4:, 4:] = 1
    >>> consistency_aware_ot(p).labels.tolist(), consistency_aware_ot(p, s).labels.tolist()
    ([0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1])
    """
    cost = -np.log(checked_predictions(p))
    n_texts, n_clusters = cost.shape
    similarity = None if s is None else checked_similarity(s, n_texts)
    sizes = _checked_sizes(b, n_clusters)
    _check_weights(lam_entropy, lam_size, lam_sem, alpha, max_outer, max_inner)

    weight = lam_size / alpha if adaptive_size else 0.0  # what the update of the sizes is the stationarity of

    def objective(plan: Array) -> float:
        value = float((plan * cost).sum() + lam_entropy * xlogy(plan, plan).sum())
        if similarity is not None and lam_sem:
            value -= lam_sem * float((similarity * (plan @ plan.T)).sum())
        return value + _barrier(plan.sum(axis=0), weight) if weight else value

    plan = np.outer(np.full(n_texts, 1.0 / n_texts), sizes)
    values = [objective(plan)]
    converged = False
    for _ in range(max_outer):
        linear = cost if similarity is None else cost - lam_sem * semantic_gradient(plan, similarity)
        target, sizes = entropic_plan(
            linear, sizes, lam_entropy=lam_entropy, lam_size=lam_size, alpha=alpha, n_sweeps=max_inner,
            adaptive=adaptive_size,
        )  # fmt: skip
        direction = target - plan
        log_plan = np.log(np.maximum(plan, np.finfo(np.float64).tiny))
        slope = float(((linear + lam_entropy * (1.0 + log_plan)) * direction).sum())
        if weight:
            now = plan.sum(axis=0)
            slope += weight * float(((1.0 / (1.0 - now) - 1.0 / now) * direction.sum(axis=0)).sum())
        # mypy cannot infer a lambda with defaults.
        step, value = _armijo(lambda t, d=direction, q=plan: objective(q + t * d), values[-1], slope)  # type: ignore[misc]
        plan = plan + step * direction
        change = abs(values[-1] - value)
        values.append(value)
        if change < tol or change < tol * abs(value):
            converged = True
            break
    return OTResult(plan, plan.argmax(axis=1), plan.sum(axis=0), tuple(values), converged)


def _barrier(sizes: Array, weight: float) -> float:
    tiny = np.finfo(np.float64).tiny
    return -weight * float((np.log(np.maximum(sizes, tiny)) + np.log(np.maximum(1.0 - sizes, tiny))).sum())


def _armijo(objective: Callable[[float], float], start: float, slope: float) -> tuple[float, float]:
    """Length of the step from 0 to 1 that keeps a share of what the slope promises, and the objective there.

    Backtracks to the minimum of the parabola, then of the cubics, through what has been seen. (0, start) where the
    direction does not descend.
    """
    if not slope < 0.0:
        return 0.0, start
    step = FIRST_STEP
    value = objective(step)
    before = None
    while step > SHORTEST_STEP:
        if value <= start + KEPT_SHARE * step * slope:
            return step, value
        shorter = (
            -slope * step**2 / (2.0 * (value - start - slope * step))
            if before is None
            else _cubic_minimum(start, slope, step, value, *before)
        )
        before = (step, value)
        # As is usual: no less than a tenth and no more than half of the last step.
        step = min(max(shorter, 0.1 * step), 0.5 * step) if np.isfinite(shorter) else 0.5 * step
        value = objective(step)
    return 0.0, start


def _cubic_minimum(start: float, slope: float, t1: float, value1: float, t0: float, value0: float) -> float:
    """Minimum of the cubic with the given value and slope at 0 and values at t1 and t0."""
    rest1 = (value1 - start - slope * t1) / t1**2
    rest0 = (value0 - start - slope * t0) / t0**2
    a = (rest1 - rest0) / (t1 - t0)
    b = rest1 - a * t1
    root = b * b - 3.0 * a * slope
    if root < 0.0 or a == 0.0:
        return float("nan")
    return float((-b + np.sqrt(root)) / (3.0 * a))


def checked_predictions(p: ArrayLike) -> Array:
    """Predictions as float64, none below :data:`SMALLEST_P`.

    Raises
    ------
    InputError
    """
    predictions = np.asarray(p, dtype=np.float64)
    if predictions.ndim != 2 or len(predictions) == 0 or predictions.shape[1] < 2:
        raise InputError(f"p has shape {predictions.shape}; expected (texts, clusters) with at least two clusters")
    if not np.isfinite(predictions).all() or (predictions < 0).any():
        row = int((~np.isfinite(predictions) | (predictions < 0)).any(axis=1).argmax())
        raise InputError(f"p, row {row}: a value is negative or not finite; expected probabilities")
    wrong = np.abs(predictions.sum(axis=1) - 1.0) > 1e-3
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(f"p, row {row} sums to {predictions[row].sum():.4g}; expected 1: give softmax outputs")
    return np.maximum(predictions, SMALLEST_P)


def checked_similarity(s: ArrayLike, n_texts: int) -> Array:
    """Similarity as float64 with a zero diagonal: otherwise every text would vote for itself.

    Raises
    ------
    InputError
    """
    similarity = np.array(s, dtype=np.float64)
    if similarity.shape != (n_texts, n_texts):
        raise InputError(f"s has shape {similarity.shape}; expected ({n_texts}, {n_texts}), a row and a column a text")
    if not np.isfinite(similarity).all():
        row = int((~np.isfinite(similarity)).any(axis=1).argmax())
        raise InputError(f"s, row {row} holds a number that is not finite; expected similarities")
    np.fill_diagonal(similarity, 0.0)
    if similarity.min(initial=0.0) < 0.0:
        warnings.warn(
            f"s has similarities below zero (the lowest {similarity.min():.3g}): such texts are pushed apart; "
            "clip them if they only mean unrelated",
            stacklevel=3,
        )
    return similarity


def _checked_sizes(b: ArrayLike | None, n_clusters: int) -> Array:
    if b is None:
        return np.full(n_clusters, 1.0 / n_clusters)
    sizes = np.asarray(b, dtype=np.float64)
    if sizes.shape != (n_clusters,):
        raise InputError(f"b has shape {sizes.shape}; expected ({n_clusters},), a size for each cluster")
    if not (sizes > 0).all() or abs(sizes.sum() - 1.0) > 1e-6:
        raise InputError(
            f"b sums to {sizes.sum():.4g}, smallest {sizes.min():.4g}; expected sizes above 0 that sum to 1"
        )
    return np.asarray(sizes / sizes.sum(), dtype=np.float64)


def _check_weights(
    lam_entropy: float, lam_size: float, lam_sem: float, alpha: float, max_outer: int, max_inner: int
) -> None:
    for name, value in {"lam_entropy": lam_entropy, "lam_size": lam_size, "alpha": alpha}.items():
        if not (np.isfinite(value) and value > 0):
            raise InputError(f"{name} is {value}; expected a number above 0")
    if not (np.isfinite(lam_sem) and lam_sem >= 0):
        raise InputError(f"lam_sem is {lam_sem}; expected a number from 0")
    for name, count in {"max_outer": max_outer, "max_inner": max_inner}.items():
        if count < 1:
            raise InputError(f"{name} is {count}; expected 1 or more")
