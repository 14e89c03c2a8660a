"""Codes of 4, 6 and 8 bits as bytes, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack codes into bytes: two of 4 bits (the first in the low half), or four of 6 bits in three bytes.

    Parameters
    ----------
    codes : uint8
        Of any shape; flattened, and filled up with zeros to whole bytes.
    bits : int
        4, 6 or 8.

    Returns
    -------
    (ceil(n * bits / 8),) uint8

    Examples
    --------
    >>> pack(torch.tensor([1, 2, 15], dtype=torch.uint8), 4).tolist()
    [33, 15]
    """
    flat = codes.flatten()
    if bits == 8:
        return flat
    group = 2 if bits == 4 else 4
    n_bytes = -(-flat.numel() * bits // 8)
    columns = torch.nn.functional.pad(flat, (0, -flat.numel() % group)).view(-1, group)
    if bits == 4:
        return columns[:, 0] | (columns[:, 1] << 4)
    a, b, c, d = columns.unbind(1)
    packed = torch.stack([a | (b << 6), (b >> 2) | (c << 4), (c >> 4) | (d << 2)], dim=1)
    return packed.flatten()[:n_bytes].contiguous()


def unpack(packed: Tensor, bits: int, n: int) -> Tensor:
    """The `n` codes of `bits` bits that :func:`pack` packed, (n,) uint8."""
    if bits == 8:
        return packed
    if bits == 4:
        return torch.stack([packed & 15, packed >> 4], dim=1).flatten()[:n]
    x, y, z = torch.nn.functional.pad(packed, (0, -packed.numel() % 3)).view(-1, 3).unbind(1)
    codes = torch.stack([x & 63, (x >> 6) | ((y & 15) << 2), (y >> 4) | ((z & 3) << 4), z >> 2], dim=1)
    return codes.flatten()[:n]
