"""Rank intervals, tests of differences, and the tables that show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from assay.evaluate.judge_rank.likelihood import Array


def critical_value(confidence: float, n_comparisons: int = 1) -> float:
    """Two-sided normal quantile, Bonferroni-corrected for `n_comparisons`.

    Examples
    --------
    >>> round(critical_value(0.95), 3)
    1.96
    """
    return float(stats.norm.isf((1.0 - confidence) / 2.0 / max(n_comparisons, 1)))


def z_and_p(difference: Array, standard_error: Array) -> tuple[Array, Array]:
    """Wald statistic of a difference and its two-sided p-value.

    Where the standard error is infinite z is 0 and p is 1; where both are zero likewise.
    """
    z = np.divide(difference, standard_error, out=np.zeros_like(standard_error), where=standard_error > 0)
    return z, 2.0 * stats.norm.sf(np.abs(z))


def ranks(scores: Array) -> NDArray[np.int64]:
    """Rank of every model, 1 for the highest score; equal scores share the better rank."""
    return np.asarray(stats.rankdata(-scores, method="min"), dtype=np.int64)


def rank_intervals(
    scores: Array, test_errors: Array, confidence: float, *, simultaneous: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Best and worst rank that the pairwise tests allow each model.

    A model ranks below every model that is significantly better, and above every one that is significantly worse:
    the rank is in [1 + #better, n_models − #worse].

    Parameters
    ----------
    scores : (n_models,) float
    test_errors : (n_models, n_models) float
        Standard errors of the differences.
    confidence : float
        One minus the level of each pairwise test; of all of them together if `simultaneous` (Bonferroni).
    simultaneous : bool

    Returns
    -------
    low, high : (n_models,) int

    Examples
    --------
    >>> low, high = rank_intervals(np.array([3.0, 0.1, 0.0]), np.full((3, 3), 0.5), 0.95)
    >>> low.tolist(), high.tolist()
    ([1, 2, 2], [1, 3, 3])
    """
    n = len(scores)
    margin = critical_value(confidence, n * (n - 1) // 2 if simultaneous else 1) * test_errors
    ahead = scores[None, :] - scores[:, None]  # [i, j]: by how much j is ahead of i
    better = (ahead > margin).sum(axis=1)
    worse = (-ahead > margin).sum(axis=1)
    return 1 + better, n - worse


def ranking_table(
    models: list[str], scores: Array, errors: Array, test_errors: Array, confidence: float, *, simultaneous: bool
) -> pd.DataFrame:
    """model, score, se, low, high, rank, rank_low, rank_high; best first."""
    import pandas as pd

    margin = critical_value(confidence) * errors
    rank_low, rank_high = rank_intervals(scores, test_errors, confidence, simultaneous=simultaneous)
    table = pd.DataFrame(
        {
            "model": models,
            "score": scores,
            "se": errors,
            "low": scores - margin,
            "high": scores + margin,
            "rank": ranks(scores),
            "rank_low": rank_low,
            "rank_high": rank_high,
        }
    )
    return table.sort_values("score", ascending=False, kind="stable", ignore_index=True)


def judges_table(
    judges: list[str],
    gamma: Array,
    errors: Array,
    n_votes: Array,
    at_boundary: NDArray[np.bool_],
    confidence: float,
    *,
    signed: bool,
) -> pd.DataFrame:
    """judge, discrimination, low, high, n_votes, at_boundary; most discriminating first.

    `errors` are those of log gamma, so that no interval reaches below zero; of gamma itself when `signed`.
    """
    import pandas as pd

    margin = critical_value(confidence) * errors
    with np.errstate(over="ignore"):
        low, high = (gamma - margin, gamma + margin) if signed else (gamma * np.exp(-margin), gamma * np.exp(margin))
    table = pd.DataFrame(
        {
            "judge": judges,
            "discrimination": gamma,
            "low": low,
            "high": high,
            "n_votes": n_votes.astype(np.int64),
            "at_boundary": at_boundary,
        }
    )
    return table.sort_values("discrimination", ascending=False, kind="stable", ignore_index=True)


def pairs_table(
    models: list[str], scores: Array, difference_errors: Array, test_errors: Array, confidence: float
) -> pd.DataFrame:
    """model_a, model_b, difference, se, low, high, z, p: every pair once, in the order of the ranking."""
    import pandas as pd

    order = np.argsort(-scores, kind="stable")
    upper, lower = np.triu_indices(len(order), k=1)
    a, b = order[upper], order[lower]
    difference, se = scores[a] - scores[b], difference_errors[a, b]
    z, p = z_and_p(difference, test_errors[a, b])
    margin = critical_value(confidence) * se
    names = np.array(models, dtype=object)
    return pd.DataFrame(
        {
            "model_a": names[a],
            "model_b": names[b],
            "difference": difference,
            "se": se,
            "low": difference - margin,
            "high": difference + margin,
            "z": z,
            "p": p,
        }
    )
