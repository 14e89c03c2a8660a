"""The intervention, its losses and the measure of faithfulness, on tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor


def coefficient(hidden: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """How strongly each position is steered: lambda(A) = ReLU(A . w + b) (eq. 7), in float32.

    Parameters
    ----------
    hidden : (..., d)
    w : (d,)
    b : ()

    Returns
    -------
    (...,) float32
    """
    return torch.relu(hidden.float() @ w + b)


def steered(hidden: Tensor, strength: Tensor, z: Tensor, alpha: float | Tensor = 1.0) -> Tensor:
    """A + alpha lambda z (eq. 8), in the dtype of A.

    Parameters
    ----------
    hidden : (..., d)
    strength : (...,)
        The coefficients lambda.
    z : (d,)
    alpha : float or (...,)
        A tensor may be on another device.

    Examples
    --------
    >>> steered(torch.zeros(1, 2), torch.tensor([3.0]), torch.tensor([1.0, 2.0]), alpha=0.5)
    tensor([[1.5000, 3.0000]])
    """
    if isinstance(alpha, torch.Tensor):
        alpha = alpha.to(strength.device)
    return hidden + ((alpha * strength)[..., None] * z).to(hidden.dtype)


def mse(states: Mapping[int, Tensor], targets: Mapping[int, Tensor]) -> Tensor:
    """Mean squared error to the states under the steering prompt, summed over layers.

    Parameters
    ----------
    states, targets : mapping of layer to (n_positions, d)
    """
    return torch.stack([functional.mse_loss(states[m].float(), targets[m].float()) for m in targets]).sum()


def response_surprise(logits: Tensor, response: Tensor) -> Tensor:
    """Mean of -log p of the tokens of an answer at the end of a sequence (the objective LL).

    Parameters
    ----------
    logits : (n_tokens, vocab)
    response : (n_response,) int64
        The last tokens of the sequence.
    """
    n = len(response)
    return functional.cross_entropy(logits[-n - 1 : -1].float(), response)


def liveness(strengths: Sequence[Tensor], c: float) -> Tensor:
    """Penalty on gates that stay shut: c max(0, 1 - sum_i lambda_i), summed over layers, for one sequence.

    Examples
    --------
    >>> liveness([torch.tensor([0.1, 0.2]), torch.tensor([2.0])], c=0.1)
    tensor(0.0700)
    """
    return c * torch.stack([torch.relu(1 - strength.sum()) for strength in strengths]).sum()


def relative_rmse(states: Tensor, base: Tensor, target: Tensor) -> float:
    """||A_steered - A_prompted|| / ||A - A_prompted||: 0 mimics the prompt perfectly, 1 is no steering.

    Parameters
    ----------
    states, base, target : (n_positions, d)

    Returns
    -------
    float
        NaN where the prompt changes nothing, so that there is nothing to mimic.
    """
    missing = (base - target).double().norm()
    if missing == 0:
        return float("nan")
    return float((states - target).double().norm() / missing)


def rank_one_bound(delta: Tensor) -> float:
    """The least relative RMSE of any intervention along one direction, with free coefficients (first singular vector).

    Parameters
    ----------
    delta : (n_positions, d)
        What the prompt adds to each position.
    """
    energies = torch.linalg.svdvals(delta.double()) ** 2
    return float((1 - energies[0] / energies.sum()).clamp(min=0).sqrt())
