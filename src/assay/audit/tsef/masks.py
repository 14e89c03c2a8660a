"""Where a series is changed: a mask over time and channels, sampled hard and learned through its probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def gumbel_sigmoid(probability: Tensor, uniform: Tensor, tau: float = 1.0) -> Tensor:
    """Sample a mask of zeros and ones whose gradient is that of the relaxed sample (straight-through).

    It is the Gumbel-softmax over the two logits log(1 − P) and log P: the difference of two Gumbel draws is one
    logistic draw, so that one uniform number for each cell is enough.

    Parameters
    ----------
    probability : tensor in [0, 1]
        P, the chance of a one.
    uniform : tensor of the same shape, in (0, 1)
        The draw.
    tau : float
        Temperature of the relaxation; the sample itself does not depend on it.

    Examples
    --------
    >>> gumbel_sigmoid(torch.tensor([0.0, 0.3, 1.0]), torch.tensor([0.9, 0.8, 0.1]))
    tensor([0., 1., 1.])
    """
    logit = torch.log(probability + 1e-9) - torch.log(1 - probability + 1e-9)
    soft = torch.sigmoid((logit + torch.logit(uniform)) / tau)
    hard = (soft > 0.5).to(soft.dtype)
    return hard + (soft - soft.detach())


def sparsity(probability: Tensor, ratio: float) -> Tensor:
    """L_spa: Kullback–Leibler divergence of the mask's probabilities from a coin of `ratio`, mean over cells.

    Parameters
    ----------
    probability : (n, channels, length) tensor
    ratio : float in (0, 1)
        r, the share of cells that the mask is drawn to.

    Returns
    -------
    (n,) tensor, in nats
    """
    kl = probability * torch.log(probability / ratio + 1e-6)
    kl = kl + (1 - probability) * torch.log((1 - probability) / (1 - ratio + 1e-6) + 1e-6)
    return kl.mean(dim=(1, 2))


def connectivity(probability: Tensor) -> Tensor:
    """L_con: root mean square step of the mask's probabilities from one time to the next, for each series.

    Parameters
    ----------
    probability : (n, channels, length) tensor
    """
    mean_square = probability.diff(dim=2).square().mean(dim=(1, 2))
    # The root's slope at zero is infinite: a constant mask takes no part in the gradient instead of turning it to NaN.
    positive = mean_square > 0
    return torch.where(positive, torch.where(positive, mean_square, 1.0).sqrt(), 0.0)
