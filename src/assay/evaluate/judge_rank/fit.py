"""Maximum (penalised) likelihood by damped scoring.

The parameters are (scores, theta) with theta = log gamma, or theta = gamma when judges may vote against the others
(`signed`). Directions that must not move (all scores shifted by the same amount; the scale that the normalisation of
the judges fixes; judges held at a bound) are the orthonormal columns of a matrix Q: solving with P H P + Q Q',
P = I − Q Q', is the same as working in an orthonormal basis of the rest, without writing that basis down.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg

from assay.evaluate.judge_rank.likelihood import (
    Array,
    Cells,
    gradient,
    information,
    log_likelihood,
    pool,
    residual_curvature,
    sums,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: log gamma stays within ±8 while iterating: a judge who never errs, or errs more often than not, has no finite one.
LOG_GAMMA_BOUND = 8.0

#: The longest step of log gamma (a factor of e² in gamma).
LONGEST_STEP = 2.0


@dataclass(frozen=True)
class Prior:
    """Normal priors: standard deviations of theta and of the scores (None: flat)."""

    theta_sd: float | None = None
    score_sd: float | None = None

    def precision(self, n_models: int, n_judges: int) -> Array:
        """Precision of each of the (n_models + n_judges) parameters."""
        of_scores = 0.0 if self.score_sd is None else self.score_sd**-2
        of_theta = 0.0 if self.theta_sd is None else self.theta_sd**-2
        return np.concatenate([np.full(n_models, of_scores), np.full(n_judges, of_theta)])


@dataclass(frozen=True)
class Fit:
    """A point estimate.

    Parameters
    ----------
    scores : (n_models,) float
        Sum to zero.
    gamma : (n_judges,) float
        Discriminations: geometric mean one, or mean of absolute values one when signed. Judges in `fixed` are left
        out of the mean.
    fixed : (n_judges,) bool
        Judges whose log gamma ran into the bound, so that the normalisation leaves them out.
    at_boundary : (n_judges,) bool
        Judges whose own likelihood, given the scores, has no finite positive maximum (no finite one when signed).
    log_likelihood : float
        In nats, without the prior.
    log_likelihood_pooled : float
        Of the judge-blind fit to the same votes.
    signed : bool
    n_iter : int
    converged : bool
    """

    scores: Array
    gamma: Array
    fixed: NDArray[np.bool_]
    at_boundary: NDArray[np.bool_]
    log_likelihood: float
    log_likelihood_pooled: float
    signed: bool
    n_iter: int
    converged: bool


def fit(
    cells: Cells,
    prior: Prior | None = None,
    *,
    signed: bool = False,
    max_iter: int = 200,
    tol: float = 1e-8,
) -> Fit:
    """Fit scores and discriminations, started from the judge-blind scores.

    Parameters
    ----------
    cells : Cells
        The comparison graph is connected.
    prior : Prior, optional
        None: pure maximum likelihood, as in the paper.
    signed : bool
        Let a discrimination be negative.
    max_iter : int
        At most this many solves.
    tol : float
        Converged when no component of the gradient exceeds `tol` × number of votes.

    Returns
    -------
    Fit

    Examples
    --------
    >>> from assay.evaluate.judge_rank.likelihood import count_votes
    >>> zero = np.zeros(4, np.intp)
    >>> cells = count_votes(zero, zero + 1, zero, np.array([1.0, 1.0, 1.0, 0.0]), n_models=2, n_judges=1)
    >>> scores = fit(cells).scores
    >>> bool(np.isclose(scores[0] - scores[1], np.log(3)))  # three wins, one loss
    True
    """
    prior = prior or Prior()
    scores, theta = np.zeros(cells.n_models), np.ones(1) if signed else np.zeros(1)
    pooled = _ascend(pool(cells), scores, theta, Prior(None, prior.score_sd), signed, max_iter, tol)
    if cells.n_judges == 1:
        return pooled
    theta = _agreement(pooled.scores, cells) if signed else np.zeros(cells.n_judges)
    found = _ascend(cells, pooled.scores, theta, prior, signed, max_iter, tol)
    # (s, gamma) and (−s, −gamma) give the same votes: keep the sign that agrees with the majority of the votes.
    if signed and found.scores @ pooled.scores < 0:
        found = replace(found, scores=-found.scores, gamma=-found.gamma)
    return _with_boundary(replace(found, log_likelihood_pooled=pooled.log_likelihood), cells)


def _agreement(scores: Array, cells: Cells) -> Array:
    """How strongly each judge's votes follow the judge-blind scores: one Fisher step of gamma from zero."""
    delta = scores[cells.first] - scores[cells.second]
    slope = sums(cells.judge, cells.count * (cells.share - 0.5) * delta, cells.n_judges)
    weight = sums(cells.judge, cells.count * 0.25 * delta**2, cells.n_judges)
    gamma = np.divide(slope, weight, out=np.zeros_like(slope), where=weight > 0)
    return gamma if gamma.any() else np.ones_like(gamma)


def _ascend(cells: Cells, scores: Array, theta: Array, prior: Prior, signed: bool, max_iter: int, tol: float) -> Fit:
    """Newton's method with Levenberg's damping; a step that lowers the objective is not taken.

    Where the observed information is not positive definite the expected one takes its place (Fisher scoring). Scoring
    alone converges too, but slowly where judges contradict the model: 50 iterations where Newton needs 8.
    """
    precision = prior.precision(cells.n_models, cells.n_judges)
    n_votes = cells.n_votes
    scores, theta = _normalised(scores, theta, signed)
    value = _objective(scores, theta, cells, precision, signed)
    damping, n_iter, converged, polished = 1e-3, 0, False, False
    slope, observed, expected, held = _derivatives(scores, theta, cells, precision, signed)
    while n_iter < max_iter and damping < 1e12 and not polished:
        converged = bool(np.abs(slope).max() < tol * n_votes)
        polished = converged  # one last step, hardly damped: what is left of the error shrinks once more
        n_iter += 1
        small = 1e-10 if converged else damping
        step = _solve(observed, slope, small)
        if step is None:
            step = _solve(expected, slope, small)
        if step is None:
            damping *= 5.0
            continue
        new_scores, new_theta = _moved(scores, theta, step, held, signed)
        new_value = _objective(new_scores, new_theta, cells, precision, signed)
        if not new_value >= value - 1e-12 * n_votes:  # the slack is the rounding of a sum over the votes
            damping *= 5.0
            continue
        damping = max(damping * 0.2, 1e-12)
        scores, theta, value = new_scores, new_theta, new_value
        slope, observed, expected, held = _derivatives(scores, theta, cells, precision, signed)
    gamma = theta if signed else np.exp(theta)
    outside = np.zeros(cells.n_judges, bool) if signed else np.abs(theta) >= LOG_GAMMA_BOUND
    value = log_likelihood(scores, gamma, cells)
    return Fit(
        scores=scores,
        gamma=gamma,
        fixed=outside,
        at_boundary=np.zeros(cells.n_judges, bool),
        log_likelihood=value,
        log_likelihood_pooled=value,
        signed=signed,
        n_iter=n_iter,
        converged=converged,
    )


def _objective(scores: Array, theta: Array, cells: Cells, precision: Array, signed: bool) -> float:
    gamma = theta if signed else np.exp(theta)
    parameters = np.concatenate([scores, theta])
    return log_likelihood(scores, gamma, cells) - 0.5 * float(precision @ parameters**2)


def _derivatives(
    scores: Array, theta: Array, cells: Cells, precision: Array, signed: bool
) -> tuple[Array, Array, Array, NDArray[np.bool_]]:
    """Gradient, observed and expected information where it may move, and the judges held at the bound."""
    gamma = theta if signed else np.exp(theta)
    # d gamma / d theta: gamma itself on the log scale.
    chain = np.concatenate([np.ones_like(scores), np.ones_like(theta) if signed else gamma])
    pull = chain * gradient(scores, gamma, cells)
    slope = pull - precision * np.concatenate([scores, theta])
    held = np.zeros(len(theta), bool)
    if not signed:
        held = (np.abs(theta) >= LOG_GAMMA_BOUND) & (np.sign(theta) * slope[len(scores) :] >= 0)
    expected = chain[:, None] * information(scores, gamma, cells) * chain + np.diag(precision)
    observed = expected - chain[:, None] * residual_curvature(scores, gamma, cells) * chain
    if not signed:  # the second derivative of gamma = exp(theta)
        observed -= np.diag(np.concatenate([np.zeros_like(scores), pull[len(scores) :]]))
    still = still_directions(len(scores), theta, held, signed)
    moving: Array = slope - still @ (still.T @ slope)
    return moving, restricted(observed, still), restricted(expected, still), held


def still_directions(n_models: int, theta: Array, held: NDArray[np.bool_], signed: bool) -> Array:
    """Q: orthonormal columns that the estimate must not move along."""
    n_judges = len(theta)
    held_judges = np.flatnonzero(held)
    free = ~held
    columns = [np.concatenate([np.ones(n_models), np.zeros(n_judges)])]
    if free.any():
        # The normal of the normalisation: sum of log gamma, or (signed) sum of |gamma|.
        normal = np.where(theta < 0, -1.0, 1.0) if signed else np.ones(n_judges)
        columns.append(np.concatenate([np.zeros(n_models), normal * free]))
    units = np.zeros((n_models + n_judges, len(held_judges)))
    units[n_models + held_judges, np.arange(len(held_judges))] = 1.0
    still = np.column_stack([*columns, units])
    length: Array = np.linalg.norm(still, axis=0)
    return still / length


def restricted(matrix: Array, still: Array) -> Array:
    """P H P + t Q Q' with t the mean curvature of the directions that may move."""
    half = matrix - still @ (still.T @ matrix)
    inside = half - (half @ still) @ still.T
    n_moving = len(matrix) - still.shape[1]
    scale = float(np.trace(inside)) / max(n_moving, 1)
    return inside + (scale if scale > 0 else 1.0) * (still @ still.T)


def _solve(curvature: Array, slope: Array, damping: float) -> Array | None:
    """The damped Fisher step, or None where the damped information is not positive definite."""
    damped = curvature.copy()
    damped.flat[:: len(damped) + 1] += damping * np.trace(curvature) / len(curvature)
    try:
        factor = linalg.cho_factor(damped, lower=True, overwrite_a=True, check_finite=False)
    except linalg.LinAlgError:
        return None
    return np.asarray(linalg.cho_solve(factor, slope, check_finite=False), dtype=np.float64)


def _moved(scores: Array, theta: Array, step: Array, held: NDArray[np.bool_], signed: bool) -> tuple[Array, Array]:
    n_models = len(scores)
    if signed:
        return _normalised(scores + step[:n_models], theta + step[n_models:], signed)
    longest = float(np.abs(step[n_models:]).max())
    step = step * min(1.0, LONGEST_STEP / longest) if longest > 0 else step
    bounded = np.clip(theta + step[n_models:], -LOG_GAMMA_BOUND, LOG_GAMMA_BOUND)
    return _normalised(scores + step[:n_models], np.where(held, theta, bounded), signed)


def _normalised(
    scores: Array, theta: Array, signed: bool, among: NDArray[np.bool_] | None = None
) -> tuple[Array, Array]:
    """Shift and stretch without changing any probability: scores sum to zero, gamma has (geometric) mean one."""
    centred = scores - scores.mean()
    judges = theta if among is None else theta[among]
    if signed:
        size = float(np.abs(judges).mean())
        return (centred * size, theta / size) if size > 0 else (centred, theta)
    level = float(judges.mean())
    return centred * np.exp(level), theta - level


def _with_boundary(found: Fit, cells: Cells) -> Fit:
    """Name the judges without a finite discrimination; where one ran off, let the others set the scale.

    For fixed scores the likelihood of one judge is concave in gamma_k. So gamma_k = 0 is its maximum over gamma_k >= 0
    exactly when its slope there is not positive, and there is no finite maximum exactly when no vote goes against
    the order of the scores.
    """
    delta = found.scores[cells.first] - found.scores[cells.second]

    def per_judge(values: Array) -> Array:
        return sums(cells.judge, values, cells.n_judges)

    slope_at_zero = per_judge(cells.count * (cells.share - 0.5) * delta)
    against = per_judge(cells.count * np.where(delta > 0, 1.0 - cells.share, cells.share) * (delta != 0))
    informative = per_judge(cells.count * (delta != 0))
    never = against == 0
    at_boundary = never | (against == informative) if found.signed else never | (slope_at_zero <= 0)
    if not found.fixed.any():
        return replace(found, at_boundary=at_boundary)
    # A judge at the bound drags the geometric mean with it and may push the others, who are fine, to the far bound.
    fixed = at_boundary if at_boundary.any() else found.fixed
    if fixed.all():
        return replace(found, fixed=np.zeros_like(fixed), at_boundary=fixed)
    scores, theta = _normalised(found.scores, np.log(found.gamma), signed=False, among=~fixed)
    return replace(found, scores=scores, gamma=np.exp(theta), fixed=fixed, at_boundary=fixed | at_boundary)
