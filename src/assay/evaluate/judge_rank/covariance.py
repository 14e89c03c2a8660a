"""Covariance of the estimate: inverse information or sandwich, what is not determined, and errors for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg, sparse
from scipy.special import expit

from assay.evaluate.judge_rank.fit import Fit, Prior, restricted, still_directions
from assay.evaluate.judge_rank.likelihood import (
    Array,
    Cells,
    Indices,
    information,
    logits,
    outer_products,
    squared_residuals,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Eigenvalues of the information below this fraction of the largest are directions about which the votes say nothing.
NULL_EIGENVALUE = 1e-11

#: A parameter is not determined when a null direction (of length one) moves it by more than this.
UNDETERMINED = 1e-6


@dataclass(frozen=True)
class Covariance:
    """Covariance of (scores, theta), and the directions about which the votes say nothing.

    Parameters
    ----------
    matrix : (n_parameters, n_parameters) float
        A pseudo-inverse where `null` has columns.
    null : (n_parameters, n_null) float
        Orthonormal; a combination of parameters that is not orthogonal to them has no finite variance.
    scale : (n_judges,) float
        How the scores stretch together when theta moves; see :meth:`test_errors`.
    undetermined : (n_judges,) bool
        Judges whose discrimination the votes alone, without the prior, do not determine.
    """

    matrix: Array
    null: Array
    scale: Array
    undetermined: NDArray[np.bool_]

    def standard_errors(self) -> Array:
        """Standard error of each parameter, infinite where the votes do not determine it."""
        variance = np.maximum(np.diag(self.matrix), 0.0)
        return np.where(np.abs(self.null).max(axis=1, initial=0.0) > UNDETERMINED, np.inf, np.sqrt(variance))

    def difference_errors(self) -> Array:
        """Standard errors (n_models, n_models) of the differences between scores."""
        n = len(self.matrix) - len(self.scale)
        return _difference_errors(self.matrix[:n, :n], self.null[:n])

    def test_errors(self, scores: Array) -> Array:
        """Standard errors (n_models, n_models) for testing whether two scores are equal.

        That two scores are equal is true or false on any scale, but the normalisation (geometric mean of gamma one)
        puts the uncertainty of every log gamma, also of a judge of whom little is known, into the scale of all
        scores, and with it into every difference that is not zero. So the test uses the scores on the scale
        s exp(w' theta): every judge sets the scale in proportion to the information in the own votes, and one of whom
        the votes say nothing not at all.
        """
        n = len(scores)
        stretch = np.hstack([np.eye(n), np.outer(scores, self.scale)])
        return _difference_errors(stretch @ self.matrix @ stretch.T, stretch @ self.null)


def _difference_errors(matrix: Array, null: Array) -> Array:
    variance = np.maximum(np.diag(matrix)[:, None] + np.diag(matrix)[None, :] - 2.0 * matrix, 0.0)
    gap = np.abs(null[:, None, :] - null[None, :, :]).max(axis=2, initial=0.0)
    return np.where(gap > UNDETERMINED, np.inf, np.sqrt(variance))


def covariance(
    found: Fit,
    cells: Cells,
    prior: Prior | None = None,
    *,
    sandwich: bool = False,
    clusters: tuple[Indices, Array, Indices] | None = None,
) -> Covariance:
    """Asymptotic covariance of (scores, theta), theta = log gamma (gamma itself when signed).

    Parameters
    ----------
    found : Fit
    cells : Cells
    prior : Prior, optional
        The prior of the fit; its precision is added to the information.
    sandwich : bool
        False: inverse Fisher information. True: H⁻¹ B H⁻¹, which stays right when votes are correlated or ties make
        them less variable than wins and losses.
    clusters : (cell_of_vote, share_of_vote, cluster_of_vote), optional
        B adds up within clusters first. `share_of_vote` is the share of the cell's first model. None: every vote is
        its own cluster.

    Returns
    -------
    Covariance
        The judges in `found.fixed` are taken as known.
    """
    prior = prior or Prior()
    n = cells.n_models
    theta = found.gamma if found.signed else np.log(found.gamma)
    chain = np.concatenate([np.ones(n), np.ones_like(theta) if found.signed else found.gamma])
    of_votes = chain[:, None] * information(found.scores, found.gamma, cells) * chain
    curvature = of_votes + np.diag(prior.precision(n, cells.n_judges))
    still = still_directions(n, theta, found.fixed, found.signed)
    matrix, null = _inverse(restricted(curvature, still), still)
    null_of_votes = null if prior == Prior() else _inverse(restricted(of_votes, still), still)[1]
    if sandwich:
        matrix = matrix @ (chain[:, None] * _filling(found, cells, clusters) * chain) @ matrix
    blind_to = (null_of_votes[n:] ** 2).sum(axis=1)
    undetermined = (blind_to > UNDETERMINED**2) & (blind_to > blind_to.max() / 2.0)
    used = ~(found.fixed | undetermined)
    return Covariance(
        matrix=matrix,
        null=null,
        scale=_scale(theta, np.diag(of_votes)[n:], used, signed=found.signed),
        undetermined=undetermined,
    )


def _scale(theta: Array, about_theta: Array, used: NDArray[np.bool_], *, signed: bool) -> Array:
    """Weights w of the judges in the scale of the scores; `about_theta` is the information of each theta by itself.

    Stretching the scores by 1 + ε moves theta by −ε × `along`, and w' `along` = 1 makes s (1 + w' theta) ignore it.
    """
    along = theta if signed else np.ones_like(theta)
    weight = about_theta * along * used
    total = float(weight @ along)
    return weight / total if total > 0 else np.zeros_like(theta)


def _inverse(curvature: Array, still: Array) -> tuple[Array, Array]:
    """Inverse where it may move, and the null directions, kept apart instead of hidden by a ridge."""
    n = len(curvature)
    norm = float(np.abs(curvature).sum(axis=0).max())
    factor, failed = linalg.lapack.dpotrf(curvature, lower=1)
    if not failed and linalg.lapack.dpocon(factor, norm, uplo="L")[0] > n * NULL_EIGENVALUE:
        inverse = np.asarray(linalg.cho_solve((factor, True), np.eye(n)))
        null = np.zeros((n, 0))
    else:
        values, vectors = linalg.eigh(curvature)
        is_null = values <= NULL_EIGENVALUE * values[-1]
        inverse = (vectors[:, ~is_null] / values[~is_null]) @ vectors[:, ~is_null].T
        null = vectors[:, is_null]
    moving = inverse - still @ (still.T @ inverse)
    moving -= (moving @ still) @ still.T
    return (moving + moving.T) / 2.0, null


def _filling(found: Fit, cells: Cells, clusters: tuple[Indices, Array, Indices] | None) -> Array:
    """B of the sandwich: outer products of the votes' gradients, added up within clusters first."""
    if clusters is None:
        weight = squared_residuals(found.scores, found.gamma, cells)
        return outer_products(found.scores, found.gamma, cells, weight)
    cell, share, cluster = clusters
    residual = share - expit(logits(found.scores, found.gamma, cells))[cell]
    first, second, judge = cells.first[cell], cells.second[cell], cells.judge[cell]
    pull = residual * found.gamma[judge]
    delta = found.scores[first] - found.scores[second]
    shape = (int(cluster.max()) + 1, cells.n_models + cells.n_judges)
    values = np.concatenate([pull, -pull, residual * delta])
    columns = np.concatenate([first, second, cells.n_models + judge])
    by_cluster = sparse.csr_array((values, (np.tile(cluster, 3), columns)), shape=shape)
    return np.asarray((by_cluster.T @ by_cluster).toarray(), dtype=np.float64)
