"""The two-parameter logistic model: who solves what, its log-likelihood, and both derivatives.

P(subject j solves item i) = sigmoid(z_ji), z_ji = a_i (theta_j − b_i), a_i = exp(log_a_i) > 0. Responses are kept as
one record per tried pair, sorted by subject: nothing here is as large as subjects × items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Array = NDArray[np.float64]
Indices = NDArray[np.int32]


@dataclass(frozen=True)
class Responses:
    """Counts by (subject, item), for the pairs that were tried.

    Parameters
    ----------
    subject, item : (n_records,) int
        Sorted by subject, then item; no pair twice.
    solved, attempts : (n_records,) float
        0 <= solved <= attempts.
    n_subjects, n_items : int
    """

    subject: Indices
    item: Indices
    solved: Array
    attempts: Array
    n_subjects: int
    n_items: int

    def by_subject(self, values: Array) -> Array:
        """Sums over the records of each subject."""
        return np.asarray(np.bincount(self.subject, values, self.n_subjects), np.float64)

    def by_item(self, values: Array) -> Array:
        """Sums over the records of each item."""
        return np.asarray(np.bincount(self.item, values, self.n_items), np.float64)

    def matrix(self, values: Array) -> sparse.csr_matrix:
        """The records as a sparse (n_subjects, n_items) matrix."""
        starts = np.searchsorted(self.subject, np.arange(self.n_subjects + 1)).astype(np.int32)
        return sparse.csr_matrix((values, self.item, starts), (self.n_subjects, self.n_items))


def pack(
    subject: NDArray[np.integer],
    item: NDArray[np.integer],
    solved: Array,
    attempts: Array | None = None,
    *,
    n_subjects: int,
    n_items: int,
) -> Responses:
    """Sort records into :class:`Responses`; `attempts` is one each unless given."""
    order = np.lexsort((item, subject))
    tries = np.ones(len(order)) if attempts is None else np.asarray(attempts, np.float64)[order]
    return Responses(
        np.asarray(subject, np.int32)[order],
        np.asarray(item, np.int32)[order],
        np.asarray(solved, np.float64)[order],
        tries,
        n_subjects,
        n_items,
    )


class Parameters(NamedTuple):
    """A point of the model: abilities (n_subjects,), difficulties and log discriminations (n_items,)."""

    ability: Array
    difficulty: Array
    log_discrimination: Array

    def logits(self, subject: NDArray[np.integer], item: NDArray[np.integer]) -> Array:
        """Log odds z for each (subject, item) that the subject solves the item."""
        a: Array = np.exp(self.log_discrimination)
        z: Array = a[item] * (self.ability[subject] - self.difficulty[item])
        return z

    def rescaled(self, scale: float, shift: float) -> Parameters:
        """(c theta + d, c b + d, a / c): the same probabilities on another scale."""
        log_a = self.log_discrimination - np.log(scale)
        return Parameters(scale * self.ability + shift, scale * self.difficulty + shift, log_a)

    def moved(self, step: Array, length: float = 1.0) -> Parameters:
        """The point a `length` of `step` (all three parts in a row) away."""
        n_subjects, n_items = len(self.ability), len(self.difficulty)
        ends = (n_subjects, n_subjects + n_items)
        parts = zip(self, np.split(step, ends), strict=True)
        return Parameters(*(part + length * change for part, change in parts))


class Prior(NamedTuple):
    """Standard deviations of zero-mean normal priors; `log_discrimination` 0 holds every discrimination at one."""

    ability: float = 3.0
    difficulty: float = 3.0
    log_discrimination: float = 0.5

    @property
    def precisions(self) -> Array:
        """One over each variance; zero for discriminations that are held, which no prior moves."""
        return np.array([sd**-2 if sd > 0 else 0.0 for sd in self])


class Terms(NamedTuple):
    """What value and derivatives share, record by record: z, residual and weight; and the sum of the NLL."""

    logits: Array
    residual: Array
    weight: Array
    nll: float


def terms(parameters: Parameters, responses: Responses) -> Terms:
    """One pass over the records: z, residual n p − k, weight n p (1 − p), and the negative log-likelihood in nats."""
    z = parameters.logits(responses.subject, responses.item)
    shrunk = np.exp(-np.abs(z))  # exp(−|z|) never overflows and gives p, 1 − p and log(1 + e^z) without a second exp
    upper = 1.0 / (1.0 + shrunk)
    probability = np.where(z >= 0, upper, shrunk * upper)
    nll = responses.attempts @ (np.maximum(z, 0.0) + np.log1p(shrunk)) - responses.solved @ z
    weight = responses.attempts * shrunk * upper**2
    return Terms(z, responses.attempts * probability - responses.solved, weight, float(nll))


def log_likelihood(parameters: Parameters, responses: Responses) -> float:
    """Log-likelihood of the responses in nats, without the binomial coefficients.

    Examples
    --------
    >>> one = pack(np.array([0]), np.array([0]), np.array([1.0]), n_subjects=1, n_items=1)
    >>> even = Parameters(np.zeros(1), np.zeros(1), np.zeros(1))
    >>> round(log_likelihood(even, one), 6)  # log(1/2)
    -0.693147
    """
    return -terms(parameters, responses).nll


def objective(parameters: Parameters, responses: Responses, prior: Prior) -> float:
    """Negative log posterior up to a constant: NLL + Σ theta²/2σ² + Σ b²/2σ² + Σ (log a)²/2σ²."""
    return terms(parameters, responses).nll + penalty(parameters, prior)


def penalty(parameters: Parameters, prior: Prior) -> float:
    """The prior's part of the objective."""
    squares = np.array([part @ part for part in parameters])
    return float(0.5 * prior.precisions @ squares)


def gradient(parameters: Parameters, responses: Responses, prior: Prior, at: Terms | None = None) -> Array:
    """Gradient of :func:`objective` in (theta, b, log a), all three in a row.

    With r = n p − k: d/d theta_j = Σ r a_i, d/d b_i = −Σ r a_i, d/d log a_i = Σ r a_i (theta_j − b_i).
    """
    at = at or terms(parameters, responses)
    pull = at.residual * np.exp(parameters.log_discrimination)[responses.item]
    of_ability, of_difficulty, of_discrimination = prior.precisions
    stretch = responses.by_item(at.residual * at.logits) + of_discrimination * parameters.log_discrimination
    if prior.log_discrimination == 0:
        stretch = np.zeros_like(stretch)
    return np.concatenate(
        [
            responses.by_subject(pull) + of_ability * parameters.ability,
            -responses.by_item(pull) + of_difficulty * parameters.difficulty,
            stretch,
        ]
    )


@dataclass(frozen=True)
class Curvature:
    """Second derivatives of the objective: diagonal in theta, 2 × 2 blocks in (b, log a), sparse between the two.

    Parameters
    ----------
    subject : (n_subjects,) float
        d²/d theta².
    with_difficulty, with_discrimination : sparse (n_subjects, n_items)
        d²/d theta d b and d²/d theta d log a.
    difficulty, mixed, discrimination : (n_items,) float
        d²/d b², d²/d b d log a, d²/d (log a)².
    """

    subject: Array
    with_difficulty: sparse.csr_matrix
    with_discrimination: sparse.csr_matrix
    difficulty: Array
    mixed: Array
    discrimination: Array

    def product(self, vector: Array) -> Array:
        """Hessian times `vector`: one pass over the records."""
        n_subjects, n_items = self.with_difficulty.shape
        t, b, a = np.split(vector, (n_subjects, n_subjects + n_items))
        return np.concatenate(
            [
                self.subject * t + self.with_difficulty @ b + self.with_discrimination @ a,
                self.with_difficulty.T @ t + self.difficulty * b + self.mixed * a,
                self.with_discrimination.T @ t + self.mixed * b + self.discrimination * a,
            ]
        )

    def block_solve(self, vector: Array) -> Array:
        """Solve with the blocks on the diagonal alone: the preconditioner of conjugate gradients."""
        n_subjects, n_items = self.with_difficulty.shape
        t, b, a = np.split(vector, (n_subjects, n_subjects + n_items))
        determinant = self.difficulty * self.discrimination - self.mixed**2
        return np.concatenate(
            [
                t / self.subject,
                (self.discrimination * b - self.mixed * a) / determinant,
                (self.difficulty * a - self.mixed * b) / determinant,
            ]
        )


def curvature(
    parameters: Parameters, responses: Responses, prior: Prior, at: Terms | None = None, *, expected: bool = False
) -> Curvature:
    """Hessian of :func:`objective`; `expected` leaves out the residuals (Fisher information: positive definite)."""
    at = at or terms(parameters, responses)
    a = np.exp(parameters.log_discrimination)[responses.item]
    residual = 0.0 if expected else at.residual
    of_ability, of_difficulty, of_discrimination = prior.precisions
    steep = at.weight * a**2
    cross = a * (at.weight * at.logits + residual)
    stretch = at.logits * (at.weight * at.logits + residual)
    if prior.log_discrimination == 0:  # held: a row and column of the identity
        cross, stretch, of_discrimination = np.zeros_like(cross), np.zeros_like(stretch), 1.0
    return Curvature(
        subject=responses.by_subject(steep) + of_ability,
        with_difficulty=responses.matrix(-steep),
        with_discrimination=responses.matrix(cross),
        difficulty=responses.by_item(steep) + of_difficulty,
        mixed=-responses.by_item(cross),
        discrimination=responses.by_item(stretch) + of_discrimination,
    )
