"""How a series is changed: a real gain on the frequencies of the masked window, kept within a budget exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

#: The filter's change fills this share of the budget before anything is clipped (the official code's gamma).
FILL = 0.98
#: The largest change of a gain before it is clipped to [0, 2].
MAX_ALPHA = 5.0


class Box(NamedTuple):
    """Lowest and highest allowed value of every cell, and the budget that they come from.

    Parameters
    ----------
    low, high : (n, channels, length) tensors
    eps : (n, channels, 1) tensor
    """

    low: Tensor
    high: Tensor
    eps: Tensor

    def project(self, x: Tensor) -> Tensor:
        """The nearest series that keeps the budget and the range of the original."""
        return torch.minimum(torch.maximum(x, self.low), self.high)


def box(x0: Tensor, attack: float) -> Box:
    """Allowed values around `x0`: within attack · (max − min) of it and within [min, max], by series and channel.

    Ends that rounding pushed out of the budget are moved inwards by one floating-point step, so that
    |x − x0| <= eps holds for every projected x exactly, not up to rounding.

    Parameters
    ----------
    x0 : (n, channels, length) tensor
        The clean series.
    attack : float
        The budget as a share of the channel's range.

    Examples
    --------
    >>> allowed = box(torch.tensor([[[0.0, 1.0, 4.0]]]), 0.25)
    >>> allowed.low, allowed.high
    (tensor([[[0., 0., 3.]]]), tensor([[[1., 2., 4.]]]))
    """
    lowest, highest = x0.amin(dim=2, keepdim=True), x0.amax(dim=2, keepdim=True)
    eps = attack * (highest - lowest)
    low, high = x0 - eps, x0 + eps
    wide_x0, wide_eps = x0.double(), eps.double()
    for _ in range(2):  # one step inwards is enough for float32; float64 differences round themselves
        low = torch.where(wide_x0 - low.double() > wide_eps, torch.nextafter(low, x0), low)
        high = torch.where(high.double() - wide_x0 > wide_eps, torch.nextafter(high, x0), high)
    return Box(torch.maximum(low, lowest), torch.minimum(high, highest), eps)


def bend(x: Tensor, gain: Tensor) -> Tensor:
    """Multiply the spectrum over time by a real gain.

    Parameters
    ----------
    x : (n, channels, length) tensor
    gain : (n, channels, length // 2 + 1) tensor
        Real: no frequency changes its phase.
    """
    spectrum = torch.fft.rfft(x, dim=2, norm="ortho")
    bent: Tensor = torch.fft.irfft(gain * spectrum, n=x.shape[2], dim=2, norm="ortho")
    return bent


def gain(theta: Tensor, x0: Tensor, mask: Tensor, eps: Tensor) -> Tensor:
    """M_f = clip(1 + alpha tanh(theta), 0, 2), with alpha such that the change of the clean window peaks at 0.98 eps.

    alpha is a number for each series and channel, computed from the clean series and not differentiated.

    Parameters
    ----------
    theta : (n, channels, length // 2 + 1) tensor
    x0, mask : (n, channels, length) tensors
    eps : (n, channels, 1) tensor
    """
    direction = torch.tanh(theta)
    peak = bend(mask * x0, direction.detach()).abs().amax(dim=2, keepdim=True)
    alpha = (FILL * eps / peak.clamp(min=1e-12)).clamp(0, MAX_ALPHA)
    return (1 + alpha * direction).clamp(0, 2)


def apply_filter(x: Tensor, mask: Tensor, frequency_gain: Tensor) -> Tensor:
    """X~ = M_t · irfft(M_f · rfft(M_t · X)) + (1 − M_t) · X.

    Parameters
    ----------
    x, mask : (n, channels, length) tensors
    frequency_gain : (n, channels, length // 2 + 1) tensor
    """
    return mask * bend(mask * x, frequency_gain) + (1 - mask) * x
