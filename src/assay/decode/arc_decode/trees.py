"""What is drafted: a tree of tokens below the last accepted one, and which part of it is worth verifying."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch

from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


@dataclass(frozen=True)
class Draft:
    """Candidate tokens as a tree; the root, the last accepted token, is not one of them.

    Parameters
    ----------
    tokens : (n,) sequence of int
    parents : (n,) sequence of int
        Place of each token's parent, -1 for the root; parents come before their children. Candidates that share a
        parent are tried in this order.
    logq : (n,) sequence of float
        Log-probability of each token under the draft, given its parent: what :func:`prune_tree` looks at.
    q : (n, n_vocabulary) float tensor, optional
        For tokens that were *sampled*: the probabilities each was drawn from. None: the tokens were *chosen* (the most
        probable ones, or looked up), so that each is proposed with probability 1, whatever the draft thinks of it.

    Raises
    ------
    InputError
        The parts do not fit together.

    Examples
    --------
    >>> draft = Draft([5, 7, 9], [-1, 0, 0], [0.0, -0.5, -1.0])
    >>> draft.depths, draft.kind
    ([1, 2, 2], 'topk')
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    logq: Sequence[float]
    q: Tensor | None = None

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.parents) == len(self.logq):
            raise InputError(
                f"the draft has {len(self.tokens)} tokens, {len(self.parents)} parents and {len(self.logq)} "
                "log-probabilities; expected as many of each"
            )
        for place, parent in enumerate(self.parents):
            if not -1 <= parent < place:
                raise InputError(
                    f"the draft's token {place} has the parent {parent}; expected -1 (the root) or an earlier place"
                )
        if self.q is not None and len(self.q) != len(self.tokens):
            raise InputError(f"the draft has {len(self.tokens)} tokens and q has {len(self.q)} rows")

    @property
    def kind(self) -> Literal["sampled", "topk"]:
        """How the tokens came about: "sampled" from q, or "topk", chosen."""
        return "topk" if self.q is None else "sampled"

    @cached_property
    def depths(self) -> list[int]:
        """Steps from the root, from 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths

    @cached_property
    def children(self) -> list[list[int]]:
        """Places of the children of the root and then of every token: (n + 1) lists."""
        found: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for place, parent in enumerate(self.parents):
            found[parent + 1].append(place)
        return found

    @property
    def is_chain(self) -> bool:
        """Whether every token is the parent of the next."""
        return all(parent == place - 1 for place, parent in enumerate(self.parents))

    def ancestors(self) -> Tensor:
        """Mask of the tree, (n, n) bool: row i is True at i and at its ancestors."""
        mask = torch.eye(len(self.tokens), dtype=torch.bool)
        for place, parent in enumerate(self.parents):
            if parent >= 0:
                mask[place] |= mask[parent]
        return mask

    def path(self, place: int) -> list[int]:
        """Tokens from the root's child to this one."""
        tokens: list[int] = []
        while place >= 0:
            tokens.append(self.tokens[place])
            place = self.parents[place]
        return tokens[::-1]

    def kept(self, places: Sequence[int]) -> Draft:
        """The draft of these places alone, relabelled; with every place its parent must be kept."""
        new = {-1: -1} | {old: place for place, old in enumerate(places)}
        return Draft(
            [self.tokens[old] for old in places],
            [new[self.parents[old]] for old in places],
            [self.logq[old] for old in places],
            None if self.q is None else self.q[list(places)],
        )


def chain(tokens: Sequence[int], q: Tensor | None = None) -> Draft:
    """A draft without branches; `q` (n, n_vocabulary) as in :class:`Draft`."""
    logq = [0.0] * len(tokens) if q is None else [math.log(max(float(q[i, x]), 1e-30)) for i, x in enumerate(tokens)]
    return Draft(list(tokens), list(range(-1, len(tokens) - 1)), logq, q)


@dataclass(frozen=True)
class Tree:
    """How a causal draft model grows a tree, and how it is pruned (card, A).

    Parameters
    ----------
    n_tokens : int
        Tokens of the tree.
    depth : int
    top_k : int
        Children of a token, and tokens that are looked at on each level.
    lambda_h : float
        How much uncertainty counts against deep tokens.
    theta : float
        Smallest utility of a token.
    tau_leaf : float
        Smallest utility of a leaf.
    prune_above : int
        Smaller trees are not pruned (48 in the released code).
    """

    n_tokens: int = 60
    depth: int = 7
    top_k: int = 10
    lambda_h: float = 1.0
    theta: float = 0.005
    tau_leaf: float = 0.001
    prune_above: int = 48

    def __post_init__(self) -> None:
        for name in ("n_tokens", "depth", "top_k"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: expected 1 or more")
        for name in ("lambda_h", "theta", "tau_leaf", "prune_above"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}={getattr(self, name)}: expected 0 or more")


def utilities(draft: Draft, entropy: float, lambda_h: float) -> list[float]:
    """u(c) = q(c) exp(-lambda_h H d(c)), q(c) the probability of the path to c under the draft.

    Examples
    --------
    >>> import math
    >>> round(utilities(Draft([3], [-1], [math.log(0.35)]), entropy=0.5, lambda_h=1.0)[0], 6)
    0.212286
    """
    log_path: list[float] = []
    for logq, parent in zip(draft.logq, draft.parents, strict=True):
        log_path.append(logq + (log_path[parent] if parent >= 0 else 0.0))
    return [math.exp(log - lambda_h * entropy * d) for log, d in zip(log_path, draft.depths, strict=True)]


def prune_tree(
    draft: Draft,
    entropy: float,
    *,
    lambda_h: float = 1.0,
    theta: float = 0.005,
    tau_leaf: float = 0.001,
    budget: int | None = None,
) -> tuple[Draft, list[int]]:
    """Drop tokens that are unlikely to be reached before the target is asked about them.

    A token stays when its utility reaches `theta` and its parent stays; then leaves below `tau_leaf` go, once.

    Parameters
    ----------
    draft : Draft
        Of chosen tokens. Which sampled tokens are tried must not depend on what they are: dropping the improbable
        ones would change the proposal, and with it the law of the output even at lambda 0.
    entropy : float
        :func:`normalised_entropy` of what the root was drawn from, in [0, 1].
    lambda_h, theta, tau_leaf : float
    budget : int, optional
        Also keep at most so many, the best first.

    Returns
    -------
    draft : Draft
    places : list of int
        Where the kept tokens were.

    Raises
    ------
    InputError
        The draft was sampled.
    """
    if draft.kind == "sampled":
        raise InputError(
            "a sampled draft cannot be pruned: dropping tokens for what they are changes the law that they were drawn "
            "from; prune trees of chosen tokens (kind 'topk')"
        )
    u = utilities(draft, entropy, lambda_h)
    stays: list[bool] = []
    for place, parent in enumerate(draft.parents):
        stays.append(u[place] >= theta and (parent < 0 or stays[parent]))
    has_child = {draft.parents[place] for place, stay in enumerate(stays) if stay}
    places = [i for i, stay in enumerate(stays) if stay and (i in has_child or u[i] >= tau_leaf)]
    if budget is not None:
        # No token has more utility than its parent, so the best are closed under taking parents (ties: parents first).
        places = sorted(sorted(places, key=lambda place: (-u[place], place))[:budget])
    return draft.kept(places), places
