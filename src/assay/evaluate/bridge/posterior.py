"""The default fit: the mode of the posterior by a truncated Newton method, and standard errors around it.

Each Newton system is solved by conjugate gradients, preconditioned with the blocks on the Hessian's diagonal; a product
with the Hessian costs one pass over the responses. Newton's method and the normal priors are ours; the paper fits the
same model by stochastic variational inference (see `variational`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import linalg, sparse

from assay._core.errors import InputError
from assay.evaluate.bridge.likelihood import (
    Array,
    Curvature,
    Parameters,
    Prior,
    Responses,
    curvature,
    gradient,
    penalty,
    terms,
)

#: The longest step of a log discrimination: a factor of e² in a.
LONGEST_STEP = 2.0

#: Beyond this many subjects the dense (n_subjects, n_subjects) matrix of the standard errors is not formed.
MAX_DENSE_SUBJECTS = 4096


@dataclass(frozen=True)
class Fit:
    """A point estimate with its uncertainty, whichever way it was found.

    Parameters
    ----------
    parameters : Parameters
    ability_se, difficulty_se, log_discrimination_se : (n_subjects,), (n_items,), (n_items,) float
    log_likelihood : float
        In nats; marginal over abilities for ``method="mml"``, else at the estimate.
    n_iter : int
    converged : bool
    """

    parameters: Parameters
    ability_se: Array
    difficulty_se: Array
    log_discrimination_se: Array
    log_likelihood: float
    n_iter: int
    converged: bool


def standardized(fit: Fit) -> Fit:
    """The same fit on the scale on which abilities have mean 0 and standard deviation 1."""
    ability = fit.parameters.ability
    spread = float(ability.std())
    if spread == 0:
        raise InputError("standardize=True needs models of different ability, and here all have the same")
    parameters = fit.parameters.rescaled(1.0 / spread, -float(ability.mean()) / spread)
    return replace(
        fit, parameters=parameters, ability_se=fit.ability_se / spread, difficulty_se=fit.difficulty_se / spread
    )


def start(responses: Responses) -> Parameters:
    """Log odds of each subject and item, half a success and half a failure added; every discrimination one."""

    def log_odds(solved: Array, attempts: Array) -> Array:
        return np.log((solved + 0.5) / (attempts - solved + 0.5))

    ability = log_odds(responses.by_subject(responses.solved), responses.by_subject(responses.attempts))
    difficulty = -log_odds(responses.by_item(responses.solved), responses.by_item(responses.attempts))
    return Parameters(ability, difficulty, np.zeros(responses.n_items))


def fit_map(responses: Responses, prior: Prior | None = None, *, max_iter: int = 200, tol: float = 1e-7) -> Fit:
    """Minimise NLL + Σ theta²/2σ² + Σ b²/2σ² + Σ (log a)²/2σ².

    Parameters
    ----------
    responses : Responses
    prior : Prior, optional
        Standard deviations 3, 3 and 0.5. A third of 0 fits the Rasch model (every a = 1).
    max_iter : int
        At most this many Newton steps; 10 to 20 are usual.
    tol : float
        Converged when no component of the gradient exceeds `tol` (nats per unit of a parameter).

    Returns
    -------
    Fit
        Standard errors are those of the Laplace approximation with the expected information. The mode may stretch the
        latent scale as a whole, which they do not hold; minutes and horizons do not depend on it.

    Examples
    --------
    >>> from assay.evaluate.bridge.likelihood import pack
    >>> both = pack(np.array([0, 1]), np.array([0, 0]), np.array([1.0, 0.0]), n_subjects=2, n_items=1)
    >>> found = fit_map(both).parameters
    >>> bool(found.ability[0] > found.difficulty[0] > found.ability[1])
    True
    """
    prior = prior or Prior()
    point = start(responses)
    at = terms(point, responses)
    value = at.nll + penalty(point, prior)
    slope = gradient(point, responses, prior, at)
    n_iter, converged = 0, bool(np.abs(slope).max() < tol)
    while not converged and n_iter < max_iter:
        n_iter += 1
        exact = curvature(point, responses, prior, at)
        blocks = curvature(point, responses, prior, at, expected=True)
        # Loose far from the optimum, tight near it: the forcing term that keeps Newton's convergence quadratic.
        forcing = min(0.1, float(np.sqrt(np.abs(slope).max() / responses.attempts.sum())))
        step = _newton_step(exact, blocks, slope, forcing)
        stretch = np.abs(step[responses.n_subjects + responses.n_items :]).max()
        length = min(1.0, LONGEST_STEP / stretch) if stretch > 0 else 1.0
        descent = float(slope @ step)
        slack = 1e-13 * abs(value)  # the rounding of a sum over the responses
        while length > 1e-10:
            moved = point.moved(step, length)
            at = terms(moved, responses)
            new_value = at.nll + penalty(moved, prior)
            if new_value <= value + 1e-4 * length * descent + slack:
                break
            length *= 0.5
        else:
            break  # no step lowers the objective any more: as far as rounding allows
        point, value = moved, new_value
        slope = gradient(point, responses, prior, at)
        converged = bool(np.abs(slope).max() < tol)
    errors = standard_errors(point, responses, prior)
    return Fit(point, *errors, -terms(point, responses).nll, n_iter, converged)


def _newton_step(exact: Curvature, blocks: Curvature, slope: Array, forcing: float) -> Array:
    """Conjugate gradients on H x = −slope; stops at a direction of negative curvature, as Steihaug's method does."""
    step = np.zeros_like(slope)
    residual = -slope
    solved = blocks.block_solve(residual)
    direction = solved
    energy = float(residual @ solved)
    enough = energy * forcing**2
    for _ in range(250):
        image = exact.product(direction)
        bend = float(direction @ image)
        if bend <= 0:
            return step if step.any() else direction
        length = energy / bend
        step = step + length * direction
        residual = residual - length * image
        solved = blocks.block_solve(residual)
        left = float(residual @ solved)
        if left <= enough:
            break
        direction = solved + (left / energy) * direction
        energy = left
    return step


def standard_errors(parameters: Parameters, responses: Responses, prior: Prior) -> tuple[Array, Array, Array]:
    """Standard errors of abilities, difficulties and log discriminations: roots of the inverse information's diagonal.

    With more than 4,096 subjects each block is inverted alone, as if the other side were known; the errors are then
    a little too small.
    """
    info = curvature(parameters, responses, prior, expected=True)
    determinant = info.difficulty * info.discrimination - info.mixed**2
    # The inverse of each item's 2 × 2 block.
    bb, ba, aa = info.discrimination / determinant, -info.mixed / determinant, info.difficulty / determinant
    is_free = float(prior.log_discrimination > 0)  # at 0 every discrimination is known to be one
    if responses.n_subjects > MAX_DENSE_SUBJECTS:
        return np.sqrt(1.0 / info.subject), np.sqrt(bb), np.sqrt(aa) * is_free
    m, n = info.with_difficulty, info.with_discrimination
    to_difficulty = sparse.csr_matrix(m.multiply(bb) + n.multiply(ba))
    to_discrimination = sparse.csr_matrix(m.multiply(ba) + n.multiply(aa))
    # Schur complement: the information on abilities once the items have been profiled out.
    schur = np.diag(info.subject) - (to_difficulty @ m.T + to_discrimination @ n.T).toarray()
    inverse = linalg.inv(schur, overwrite_a=True, check_finite=False)
    ability_variance = np.diag(inverse)
    added = np.empty((2, responses.n_items))
    for part, to_item in enumerate((to_difficulty, to_discrimination)):
        for first in range(0, responses.n_items, 512):  # in pieces: (n_subjects, 512) at a time
            piece = to_item[:, first : first + 512]
            added[part, first : first + 512] = np.asarray(piece.multiply((piece.T @ inverse).T).sum(axis=0)).ravel()
    return np.sqrt(ability_variance), np.sqrt(bb + added[0]), np.sqrt(aa + added[1]) * is_free
