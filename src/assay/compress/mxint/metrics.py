"""What quantisation did: signal to noise, crest factors, divergence of next-token distributions, perplexity."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from assay._core.errors import InputError
from assay.compress.mxint.formats import INT8, Format
from assay.compress.mxint.tensors import checked_tensor, to_rows

if TYPE_CHECKING:
    from torch import Tensor


def qsnr(x: Any, x_hat: Any) -> float:
    """Signal-to-quantisation-noise ratio of a whole tensor, -10 log10(sum (x - x_hat)² / sum x²), in dB.

    Infinite where nothing was lost, also for an all-zero tensor.

    Examples
    --------
    >>> import numpy as np
    >>> round(qsnr(np.array([3.0, 4.0]), np.array([3.0, 4.5])), 6)
    20.0
    """
    first, second = torch.as_tensor(x).detach(), torch.as_tensor(x_hat).detach()
    if first.shape != second.shape:
        raise InputError(f"x has shape {tuple(first.shape)} and x_hat {tuple(second.shape)}; expected the same")
    return decibels(energy(first), energy(first - second))


def decibels(signal: float, noise: float) -> float:
    """The ratio of two energies in dB; infinite where there is no noise."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def energy(x: Tensor) -> float:
    """Sum of squares, added up in float64 row by row: a long sum in float32 would lose digits."""
    wide = x if x.dtype == torch.float64 else x.float()
    rows = wide.reshape(-1, wide.shape[-1]) if wide.ndim > 1 else wide.reshape(1, -1)
    return sum(float(part.double().square().sum()) for part in torch.split(rows, 256))


def crest_factor(x: Any, block: int = 32, axis: int = -1) -> Any:
    """Crest factor max|x| / rms(x) of every block that is not all zero.

    Parameters
    ----------
    x : float array or tensor
    block : int
        Values of a block; 0: the whole axis. A last block that is not full counts with the values it has.
    axis : int

    Returns
    -------
    (n_blocks,) float64 ndarray
        From 1 to sqrt(block).

    Examples
    --------
    >>> import numpy as np
    >>> crest_factor(np.array([1.0, -1.0, 1.0, 1.0, 0.0, 0.0, 4.0, 0.0]), block=4).tolist()
    [1.0, 2.0]
    """
    tensor = checked_tensor(x, axis).detach().float()
    axis = axis % tensor.ndim
    plain = Format("plain", INT8, block, "fp32")
    rows, size = to_rows(tensor, axis, plain)
    blocks = rows.reshape(-1, size)
    counts = torch.full((rows.shape[0], rows.shape[1] // max(1, size)), float(size), device=rows.device)
    counts[:, -1:] -= rows.shape[1] - tensor.shape[axis]
    peak = blocks.abs().amax(-1)
    kept = peak > 0
    # Over the peak first: the square of a tiny value would vanish.
    share = (blocks[kept] / peak[kept, None]).square().mean(-1).double() * size / counts.flatten()[kept]
    return share.rsqrt().numpy(force=True)


def top_k_kl(reference_logits: Tensor, logits: Tensor, k: int = 25) -> Tensor:
    """KL divergence from the reference on its k likeliest tokens, both renormalised over these (the paper's metric).

    Parameters
    ----------
    reference_logits, logits : (..., n_tokens) float
    k : int

    Returns
    -------
    (...) float64
        In nats, one value a position. This is not the divergence over the whole vocabulary.

    Examples
    --------
    >>> logits = torch.tensor([[2.0, 1.0, 0.0]])
    >>> float(top_k_kl(logits, logits + 5.0, k=2))
    0.0
    """
    if reference_logits.shape != logits.shape:
        raise InputError(f"logits have shapes {tuple(reference_logits.shape)} and {tuple(logits.shape)}; not the same")
    top, ids = reference_logits.double().topk(min(k, logits.shape[-1]), dim=-1)
    log_p = top.log_softmax(-1)
    log_q = logits.double().gather(-1, ids).log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1).clamp(min=0.0)


def token_losses(logits: Tensor, input_ids: Tensor) -> Tensor:
    """Negative log-likelihood (nats) of every next token: logits (n, n_tokens), input_ids (n,); (n - 1,) float32.

    The exponential of the mean is the perplexity.
    """
    return torch.nn.functional.cross_entropy(logits[:-1].float(), input_ids[1:], reduction="none")
