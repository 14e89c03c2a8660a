"""Which drafted tokens are accepted: the standard rule as a floor, a boost above it, one uniform number for both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from assay._core.seeds import child_seed
from assay.decode.arc_decode.scores import boosted, residual
from assay.decode.arc_decode.trees import Draft, chain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor


class Draws:
    """The random numbers of a generation, in three streams: acceptances, tokens of the target, tokens of the draft.

    Because acceptances have a stream of their own, runs that differ in lambda see the same numbers until one of them
    accepts what the other rejects.
    """

    def __init__(self, seed: int) -> None:
        self._accept, self._target, self._draft = (
            np.random.default_rng(child_seed(seed, name)) for name in ("accept", "target", "draft")
        )

    def uniform(self) -> float:
        """The r of one acceptance, in [0, 1)."""
        return float(self._accept.random())

    def token(self, p: Tensor) -> int:
        """A token of the target, drawn from `p`, shape (n_vocabulary,)."""
        return _pick(p, float(self._target.random()))

    def draft_token(self, q: Tensor) -> int:
        """A token of the draft, drawn from `q`, shape (n_vocabulary,)."""
        return _pick(q, float(self._draft.random()))


def _pick(p: Tensor, u: float) -> int:
    """The token at which the cumulated probabilities pass u; never one of probability 0."""
    cumulated = p.cumsum(-1)
    index = int(torch.searchsorted(cumulated, u * cumulated[-1], right=True))
    return index if index < len(p) else int(p.nonzero()[-1])  # u * total was rounded up to the total


@dataclass(frozen=True)
class Verdict:
    """What became of a draft.

    Parameters
    ----------
    path : tuple of int
        Places of the accepted candidates, from the root's child on.
    token : int
        What the target adds itself: the correction after a rejection, or a bonus where everything was accepted.
    added : tuple of int
        Those of `path` that the standard rule would have rejected.
    n_tried : int
        Candidates that were tried.
    n_eligible : int
        Those of them with a score above 0.
    n_positions : int
        Positions at which candidates were tried.
    price : float
        Sum over the tried candidates of B = sum_x q(x) (a(x) - a0(x)): by this the law of the output is off (total
        variation), and by this the expected number of acceptances rises. NaN under the hard rule.
    """

    path: tuple[int, ...]
    token: int
    added: tuple[int, ...]
    n_tried: int
    n_eligible: int
    n_positions: int
    price: float


def verify_tree(
    p: Tensor,
    draft: Draft,
    scores: Sequence[Mapping[int, float]],
    lam: float,
    draws: Draws,
    *,
    is_hard: bool = False,
) -> Verdict:
    """Walk down the tree from the root, accepting a candidate or correcting (card, C).

    A candidate x is accepted by the standard rule with a0 = min(1, p_res(x) / q(x)), and by the boost up to
    a = a0 + lam (1 - a0) s(x). p_res starts as p and loses, with every rejection, what the rejected proposal covered:
    with lam = 0 the output follows p exactly, for chains, sampled trees and trees of chosen tokens alike.

    Parameters
    ----------
    p : (n + 1, n_vocabulary) float
        The target's probabilities after the root and after each of the draft's n tokens.
    draft : Draft
    scores : (n + 1) mappings of token to float
        The local tolerance score of each token after the root and after each of the draft's tokens; a token that is
        missing has 0. The scores are those of p, also where earlier siblings were rejected.
    lam : float
        Between 0 and 1.
    draws : Draws
    is_hard : bool
        The rule of the paper's appendix: accept exactly what has a score above 0; nothing is drawn and `lam` plays no
        part.

    Returns
    -------
    Verdict
    """
    path: list[int] = []
    added: list[int] = []
    n_tried = n_eligible = n_positions = 0
    price = 0.0
    row = 0
    while True:
        left = p[row]
        accepted = None
        n_positions += bool(draft.children[row])
        for place in draft.children[row]:
            x = draft.tokens[place]
            q = None if draft.q is None else draft.q[place]
            a0 = min(1.0, float(left[x]) / (1.0 if q is None else max(float(q[x]), 1e-30)))
            score = scores[row].get(x, 0.0)
            n_tried += 1
            n_eligible += score > 0.0
            a = float(score > 0.0) if is_hard else boosted(a0, score, lam)
            price += np.nan if is_hard else _price(left, q, x, scores[row], lam)
            r = draws.uniform()
            if r < a:
                accepted = place
                if r >= a0:
                    added.append(place)
                break
            left = _without(left, x) if q is None else residual(left, q)
        if accepted is None:
            return Verdict(tuple(path), draws.token(left), tuple(added), n_tried, n_eligible, n_positions, price)
        path.append(accepted)
        row = accepted + 1


def verify_chain(
    p: Tensor,
    tokens: Sequence[int],
    q: Tensor | None,
    scores: Sequence[Mapping[int, float]],
    lam: float,
    draws: Draws,
) -> Verdict:
    """:func:`verify_tree` for a draft without branches; `q` is None for tokens that were looked up."""
    return verify_tree(p, chain(tokens, q), scores, lam, draws)


def _without(p: Tensor, x: int) -> Tensor:
    """What is left of p when the point mass at x was rejected; p itself where nothing would be."""
    left = p.clone()
    left[x] = 0.0
    total = left.sum()
    return left / total if total > 0 else p


def _price(left: Tensor, q: Tensor | None, x: int, scores: Mapping[int, float], lam: float) -> float:
    """B of one try: what the boost adds to the probability of acceptance, over all that could have been proposed."""
    if lam == 0.0 or not scores:
        return 0.0
    if q is None:
        a0 = min(1.0, float(left[x]))
        return boosted(a0, scores.get(x, 0.0), lam) - a0
    tokens = list(scores)
    total = 0.0
    # One transfer for all tokens, not one for each.
    for score, q_token, left_token in zip(scores.values(), q[tokens].tolist(), left[tokens].tolist(), strict=True):
        if q_token > 0.0:
            a0 = min(1.0, left_token / q_token)
            total += q_token * (boosted(a0, score, lam) - a0)
    return total
