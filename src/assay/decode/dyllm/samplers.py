"""Which masked positions are filled in a step, and with what."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Remasking = Literal["confidence", "margin", "entropy", "random"]
REMASKING: tuple[Remasking, ...] = ("confidence", "margin", "entropy", "random")


def propose(
    logits: Tensor, remasking: Remasking, temperature: float, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """A token for every masked position, and how sure it is.

    Parameters
    ----------
    logits : (n, vocab_size)
    remasking : {"confidence", "margin", "entropy", "random"}
        The score: probability of the token (LLaDA); by how much the two most probable tokens differ; the negative
        entropy, sum p log(p + 1e-10) (Dream); a random number.
    temperature : float
        0: the most probable token. Above: a draw from softmax(logits / temperature).
    generator : torch.Generator, optional

    Returns
    -------
    tokens : (n,) int64
    scores : (n,) float32
        The higher the sooner.

    Examples
    --------
    >>> tokens, scores = propose(torch.tensor([[0.0, 2.0], [1.0, 0.0]]), "confidence", 0.0)
    >>> tokens.tolist(), [round(score, 3) for score in scores.tolist()]
    ([1, 0], [0.881, 0.731])
    """
    logits = logits.float()
    chances = torch.softmax(logits / temperature if temperature > 0 else logits, dim=-1)
    tokens = torch.multinomial(chances, 1, generator=generator).squeeze(-1) if temperature > 0 else logits.argmax(-1)
    if remasking == "confidence":
        scores = chances.gather(-1, tokens[:, None]).squeeze(-1)
    elif remasking == "margin":
        top = chances.topk(2, dim=-1).values
        scores = top[:, 0] - top[:, 1]
    elif remasking == "entropy":
        scores = (chances * torch.log(chances + 1e-10)).sum(-1)
    else:
        scores = torch.rand(len(tokens), generator=generator, device=logits.device)
    return tokens, scores


def chosen(scores: Tensor, n_commit: int, threshold: float | None) -> Tensor:
    """Positions of one sequence to fill: the best `n_commit`, or the best one and all that reach the threshold.

    Parameters
    ----------
    scores : (n,) float
    n_commit : int
        Not used with a threshold.
    threshold : float, optional

    Returns
    -------
    (n_chosen,) int64

    Examples
    --------
    >>> chosen(torch.tensor([0.2, 0.9, 0.5]), 2, None).tolist(), chosen(torch.tensor([0.2, 0.9, 0.5]), 1, 0.4).tolist()
    ([1, 2], [1, 2])
    """
    order = torch.sort(scores, descending=True, stable=True).indices
    if threshold is None:
        return order[:n_commit]
    n_sure = int((scores >= threshold).sum())
    return order[: max(1, n_sure)]


def block_ends(n_filled: Tensor, block_size: int, first: int, last: int) -> Tensor:
    """Where the current block of every sequence ends: block b = n_filled // block_size ends at first + (b + 1) * size.

    Parameters
    ----------
    n_filled : (B,) int
        Response tokens that are no mask any more.
    block_size : int
    first, last : int
        The response is positions first, ..., last - 1.

    Examples
    --------
    >>> block_ends(torch.tensor([0, 31, 32]), 32, first=10, last=60).tolist()
    [42, 42, 60]
    """
    return (first + (n_filled // block_size + 1) * block_size).clamp_max(last)
