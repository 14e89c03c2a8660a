"""The whitening transform T = diag(s1) (P1 ⊗ P2) diag(s2) of a linear layer, and its inverse for activations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.linalg import hadamard

from assay._core.seeds import child_seed

if TYPE_CHECKING:
    from torch import Tensor


def factor_sizes(in_features: int, d: int) -> tuple[int, int]:
    """t1 and t2 with t1 t2 >= in_features, t2 a multiple of d near its square root.

    Examples
    --------
    >>> factor_sizes(576, 8), factor_sizes(4096, 8), factor_sizes(100, 8)
    ((24, 24), (64, 64), (13, 8))
    """
    t2 = max(d, round(in_features**0.5 / d) * d)
    return -(-in_features // t2), t2


@lru_cache(maxsize=64)
def rotation(size: int, seed: int) -> Tensor:
    """An orthogonal matrix that spreads what it turns, as float16 holds it: (size, size) float16.

    Hadamard with random signs where the size is a power of two, else random. One tensor for each size and seed, so that
    layers share it.
    """
    rng = np.random.default_rng(child_seed(seed, "rotation", size))
    if size & (size - 1) == 0:
        turned = hadamard(size) * rng.choice([-1.0, 1.0], size)[:, None] / np.sqrt(size)
    else:
        turned = np.linalg.qr(rng.standard_normal((size, size)))[0]
    return torch.from_numpy(turned).half()


@dataclass
class Transform:
    """T of one layer, by what is applied to activations: s1, P1⁻ᵀ, P2⁻ᵀ and s2.

    Parameters
    ----------
    in_features, d : int
    left : (t1, t1) tensor
        P1⁻ᵀ.
    right : (t2, t2) tensor
        P2⁻ᵀ.
    channel_scale : (in_features,) tensor, optional
        s1; None: ones.
    block_scale : (t1, t2 / d) tensor, optional
        s2, one for each block of d; None: ones.
    """

    in_features: int
    d: int
    left: Tensor
    right: Tensor
    channel_scale: Tensor | None = None
    block_scale: Tensor | None = None

    def activations(self, x: Tensor) -> Tensor:
        """T⁻¹ x for each row of (n, in_features): (n, t1 t2)."""
        rows = x if self.channel_scale is None else x / self.channel_scale.to(x.dtype)
        done = _sandwich(_padded(rows, self), self.left.to(x.dtype), self.right.to(x.dtype))
        return done if self.block_scale is None else done / self._blocks(x)

    def weights(self, weight: Tensor) -> Tensor:
        """W T for (n, in_features): (n, t1 t2)."""
        rows = weight if self.channel_scale is None else weight * self.channel_scale.to(weight.dtype)
        left, right = (_inverse_transpose(part, weight.dtype) for part in (self.left, self.right))
        done = _sandwich(_padded(rows, self), left, right)
        return done if self.block_scale is None else done * self._blocks(weight)

    def weights_back(self, turned: Tensor) -> Tensor:
        """(W T) T⁻¹ for (n, t1 t2): (n, in_features)."""
        rows = turned if self.block_scale is None else turned / self._blocks(turned)
        # What activations get is T⁻ᵀ seen from the right; a weight gets its transpose.
        done = _sandwich(self._grid(rows), self.left.to(turned.dtype).T, self.right.to(turned.dtype).T)
        done = done[:, : self.in_features]
        return done if self.channel_scale is None else done / self.channel_scale.to(turned.dtype)

    def _grid(self, rows: Tensor) -> Tensor:
        return rows.reshape(len(rows), len(self.left), len(self.right))

    def _blocks(self, like: Tensor) -> Tensor:
        assert self.block_scale is not None
        return self.block_scale.to(like.dtype).repeat_interleave(self.d, 1).flatten()


def _padded(rows: Tensor, t: Transform) -> Tensor:
    missing = len(t.left) * len(t.right) - t.in_features
    full = torch.nn.functional.pad(rows, (0, missing)) if missing else rows
    return full.reshape(len(rows), len(t.left), len(t.right))


def _sandwich(grid: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ X right for each X of (n, t1, t2), flattened."""
    return torch.matmul(left.T, grid @ right).flatten(1)


def _inverse_transpose(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    inverse: Tensor = torch.linalg.inv(matrix.double())
    return inverse.T.to(dtype)
