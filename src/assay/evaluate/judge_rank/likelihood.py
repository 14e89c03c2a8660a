"""The likelihood of pairwise votes by judges of unequal discrimination, on arrays.

Votes enter once, counted into cells (model, model, judge); after that every function costs time linear in the number
of distinct cells. Derivatives are with respect to (scores, gamma); for log gamma multiply the judge part by gamma.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Array = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Cells:
    """Votes counted by (model, model, judge): one entry for each combination that occurs, sorted.

    Parameters
    ----------
    first, second : (n_cells,) int
        The models of the pair, `first` < `second`.
    judge : (n_cells,) int
    count : (n_cells,) float
        Number of votes.
    share : (n_cells,) float
        Mean share of `first`: 1 for a win, 0 for a loss, 0.5 for a tie.
    spread : (n_cells,) float
        Sum of squared deviations of the votes from `share` (zero when all votes of the cell agree).
    n_models, n_judges : int
    """

    first: Indices
    second: Indices
    judge: Indices
    count: Array
    share: Array
    spread: Array
    n_models: int
    n_judges: int

    @property
    def n_votes(self) -> float:
        """Total number of votes (T of the paper)."""
        return float(self.count.sum())


def count_votes(
    model_a: Indices, model_b: Indices, judge: Indices, share: Array, n_models: int, n_judges: int
) -> Cells:
    """Count votes into cells with first < second; the share of a swapped vote becomes 1 − share.

    Parameters
    ----------
    model_a, model_b : (n_votes,) int
        Codes below `n_models`; a vote has two different models.
    judge : (n_votes,) int
        Codes below `n_judges`.
    share : (n_votes,) float
        1: a wins, 0: b wins, 0.5: a tie.
    n_models, n_judges : int

    Returns
    -------
    Cells

    Examples
    --------
    >>> a, b, judge = np.array([0, 1, 1]), np.array([1, 0, 0]), np.array([0, 0, 0])
    >>> cells = count_votes(a, b, judge, np.array([1.0, 1.0, 0.5]), n_models=2, n_judges=1)
    >>> cells.count.tolist(), cells.share.tolist()
    ([3.0], [0.5])
    """
    # Million-row work is three sums over an ordered key; swapping and folding happen on what is left.
    key = (model_a * n_models + model_b) * n_judges + judge
    keys, (count, won, squares) = _tally(key, n_models * n_models * n_judges, None, share, share * share)
    pair, judge_of_key = np.divmod(keys, n_judges)
    a, b = np.divmod(pair, n_models)
    swap = a > b
    squares = np.where(swap, count - 2.0 * won + squares, squares)
    won = np.where(swap, count - won, won)
    first, second = np.where(swap, b, a), np.where(swap, a, b)
    return _folded(first, second, judge_of_key, count, won, squares, n_models, n_judges)


def cells_of_votes(cells: Cells, model_a: Indices, model_b: Indices, judge: Indices) -> Indices:
    """The cell of each vote, for votes that were counted into `cells`."""

    def key(first: Indices, second: Indices, judge: Indices) -> Indices:
        return (first * cells.n_models + second) * cells.n_judges + judge

    wanted = key(np.minimum(model_a, model_b), np.maximum(model_a, model_b), judge)
    return np.searchsorted(key(cells.first, cells.second, cells.judge), wanted)


def pool(cells: Cells) -> Cells:
    """Forget the judges: the same votes counted by pair, as if one judge had cast them all."""
    won = cells.count * cells.share
    squares = cells.spread + won * cells.share
    nobody = np.zeros(len(cells.judge), np.intp)
    return _folded(cells.first, cells.second, nobody, cells.count, won, squares, cells.n_models, 1)


def _folded(
    first: Indices,
    second: Indices,
    judge: Indices,
    count: Array,
    won: Array,
    squares: Array,
    n_models: int,
    n_judges: int,
) -> Cells:
    """Cells from counts, sums of shares and sums of squared shares, adding up equal combinations."""
    key = (first * n_models + second) * n_judges + judge
    keys, (count, won, squares) = _tally(key, n_models * n_models * n_judges, count, won, squares)
    share = won / count
    spread = np.maximum(squares - won * share, 0.0)
    pair, judge = np.divmod(keys, n_judges)
    first, second = np.divmod(pair, n_models)
    return Cells(first, second, judge, count, share, spread, n_models, n_judges)


def _tally(key: Indices, n_possible: int, count: Array | None, *weights: Array) -> tuple[Indices, list[Array]]:
    """Sorted distinct keys, and for each the sum of `count` (None: ones) and of the other weights."""
    if n_possible > 4 * len(key) + 1_000_000:  # a table of all possible keys would be mostly empty: sort instead
        keys, key = np.unique(key, return_inverse=True)
        return keys, [sums(key, weight, len(keys)) for weight in (count, *weights)]
    tables = [sums(key, weight, n_possible) for weight in (count, *weights)]
    keys = np.flatnonzero(tables[0])
    return keys, [table[keys] for table in tables]


def sums(index: Indices, weight: Array | None, n: int) -> Array:
    """Sum of `weight` (None: ones) by `index`, for the indices below `n`."""
    return np.asarray(np.bincount(index, weight, n), dtype=np.float64)


def logits(scores: Array, gamma: Array, cells: Cells) -> Array:
    """gamma_k (s_i − s_j) for every cell (paper, the model)."""
    return gamma[cells.judge] * (scores[cells.first] - scores[cells.second])


def log_likelihood(scores: Array, gamma: Array, cells: Cells) -> float:
    """Log-likelihood of the votes; a tie is half a vote for each model.

    Parameters
    ----------
    scores : (n_models,) float
    gamma : (n_judges,) float
        Discriminations.
    cells : Cells

    Returns
    -------
    float
        In nats, summed over votes.

    Examples
    --------
    >>> cells = count_votes(np.array([0]), np.array([1]), np.array([0]), np.array([1.0]), 2, 1)
    >>> round(log_likelihood(np.zeros(2), np.ones(1), cells), 4)
    -0.6931
    """
    logit = logits(scores, gamma, cells)
    return float(cells.count @ (cells.share * logit - np.logaddexp(0.0, logit)))


def gradient(scores: Array, gamma: Array, cells: Cells) -> Array:
    """Gradient of :func:`log_likelihood` with respect to (scores, gamma).

    Returns
    -------
    (n_models + n_judges,) float
        With r = n (share − p): ±r gamma_k for the scores, r (s_i − s_j) for gamma.
    """
    residual = cells.count * (cells.share - expit(logits(scores, gamma, cells)))
    pull = residual * gamma[cells.judge]
    of_scores = sums(cells.first, pull, cells.n_models) - sums(cells.second, pull, cells.n_models)
    delta = scores[cells.first] - scores[cells.second]
    return np.concatenate([of_scores, sums(cells.judge, residual * delta, cells.n_judges)])


def information(scores: Array, gamma: Array, cells: Cells) -> Array:
    """Expected (Fisher) information of (scores, gamma), summed over votes.

    Returns
    -------
    (n_models + n_judges, n_models + n_judges) float
        Singular along the two directions that the normalisation fixes: all scores shifted, and scores stretched while
        gamma shrinks.
    """
    p = expit(logits(scores, gamma, cells))
    return outer_products(scores, gamma, cells, cells.count * p * (1.0 - p))


def residual_curvature(scores: Array, gamma: Array, cells: Cells) -> Array:
    """What the residuals add to the observed information: it is :func:`information` minus this.

    Zero when every share equals its probability. Only the blocks between scores and gamma are not zero, as
    gamma_k (s_i − s_j) is linear in each of the two.
    """
    n, m = cells.n_models, cells.n_judges
    residual = cells.count * (cells.share - expit(logits(scores, gamma, cells)))
    mixed = sums(cells.first * m + cells.judge, residual, n * m)
    mixed -= sums(cells.second * m + cells.judge, residual, n * m)
    total = np.zeros((n + m, n + m))
    total[:n, n:] = mixed.reshape(n, m)
    total[n:, :n] = total[:n, n:].T
    return total


def squared_residuals(scores: Array, gamma: Array, cells: Cells) -> Array:
    """Sum over the votes of each cell of (vote − p)²: the weights of the sandwich's filling, votes independent."""
    p = expit(logits(scores, gamma, cells))
    return cells.spread + cells.count * (cells.share - p) ** 2


def outer_products(scores: Array, gamma: Array, cells: Cells, weight: Array) -> Array:
    """Sum over cells of weight × g g', where g is the gradient of the logit with respect to (scores, gamma).

    Assembled block by block, so that the (n_cells, n_parameters) matrix of the g never exists.
    """
    n, m = cells.n_models, cells.n_judges
    first, second, judge = cells.first, cells.second, cells.judge
    gamma_k, delta = gamma[judge], scores[first] - scores[second]
    total = np.zeros((n + m, n + m))

    between = sums(first * n + second, weight * gamma_k**2, n * n).reshape(n, n)
    between += between.T
    total[:n, :n] = np.diag(between.sum(axis=1)) - between

    cross = weight * gamma_k * delta
    mixed = sums(first * m + judge, cross, n * m) - sums(second * m + judge, cross, n * m)
    total[:n, n:] = mixed.reshape(n, m)
    total[n:, :n] = total[:n, n:].T

    total[n:, n:] = np.diag(sums(judge, weight * delta**2, m))
    return total
