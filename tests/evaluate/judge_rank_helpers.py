"""Votes with known truth, for the tests of judge-rank."""

import itertools

import numpy as np
import pandas as pd
from scipy.special import expit

from assay.evaluate.judge_rank.likelihood import Cells


def cells_of(scores, gamma, per=1.0, share=None, rng=None):
    """Every pair judged `per` times by every judge: drawn votes with `rng`, otherwise shares equal to probabilities."""
    n, m = len(scores), len(gamma)
    first, second, judge = np.array(
        [(i, j, k) for i, j in itertools.combinations(range(n), 2) for k in range(m)], dtype=np.intp
    ).T
    p = expit(np.asarray(gamma)[judge] * (np.asarray(scores)[first] - np.asarray(scores)[second]))
    count = np.full(len(p), float(per))
    share = p if rng is None else rng.binomial(int(per), p) / per
    return Cells(first, second, judge, count, share, count * share * (1 - share), n, m)


def votes_of(scores, gamma, n_votes, seed, ties=0.0):
    """A frame of votes between models m0, m1, … by judges j0, j1, …, drawn from the model."""
    rng = np.random.default_rng(seed)
    n, m = len(scores), len(gamma)
    a = rng.integers(n, size=n_votes)
    b = (a + rng.integers(1, n, size=n_votes)) % n
    k = rng.integers(m, size=n_votes)
    won = rng.random(n_votes) < expit(np.asarray(gamma)[k] * (np.asarray(scores)[a] - np.asarray(scores)[b]))
    winner = np.where(rng.random(n_votes) < ties, "tie", np.where(won, "model_a", "model_b"))
    names = np.array([f"m{i}" for i in range(n)])
    judges = np.array([f"j{i}" for i in range(m)])
    return pd.DataFrame({"model_a": names[a], "model_b": names[b], "judge": judges[k], "winner": winner})


def votes(a_wins=0, b_wins=0, ties=0, judge="judge"):
    """Votes of one judge between models a and b."""
    winner = ["model_a"] * a_wins + ["model_b"] * b_wins + ["tie"] * ties
    return pd.DataFrame({"model_a": "a", "model_b": "b", "judge": judge, "winner": winner})
