"""The preconditioner of LUCID and its triangular system, in blocks of rows, forward and backward.

With u_i the unit vector of key i and s = scale * d (sqrt(d) at the usual scale), P is unit lower triangular with
P_ij = exp(s (<u_i, u_j> - 1)), and Y solves P Y = V. P is never held: a panel of `block_size` rows (on the way back, of
columns) at a time is computed and dropped, so that memory grows as n times the block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator


def wide(x: Tensor) -> Tensor:
    """In float64 if it is, else in float32: no half precision knows a triangular solve, and P needs the digits."""
    return x if x.dtype == torch.float64 else x.float()


def unit_keys(key: Tensor) -> Tensor:
    """Keys over their lengths, (..., n, d) in float32 or float64; a key that is zero stays zero.

    RMS-normalised keys over sqrt(d), so that P depends on the angles between keys only.
    """
    key = wide(key)
    length: Tensor = torch.linalg.vector_norm(key, dim=-1, keepdim=True)
    return key / length.masked_fill(length == 0, 1.0)


def similarities(rows: Tensor, columns: Tensor, sharpness: float) -> Tensor:
    """exp(sharpness (cos - 1)) between unit vectors: (..., n_rows, n_columns), 1 where they are the same."""
    return torch.matmul(rows * sharpness, columns.mT).sub_(sharpness).exp_()


def solve(
    units: Tensor, values: Tensor, past: Tensor | None, mask: Tensor | None, options: tuple[float, int]
) -> Tensor:
    """Solve P Y = V by forward substitution, with gradients.

    Parameters
    ----------
    units : (batch, heads, n, d) float32 or float64
        Unit keys of all positions.
    values : (batch, heads, m, d_v), same dtype
        V of the last m positions.
    past : (batch, heads, n - m, d_v), same dtype, optional
        Y of the positions before; None where m = n.
    mask : (1 or batch, 1 or heads, m, n) bool, optional
        False where a position must not see another, in the softmax as in P; None: all before it.
    options : (sharpness, block_size)

    Returns
    -------
    (batch, heads, n, d_v)
        Y of all positions, `past` included.
    """
    solved: Tensor = _Solve.apply(units, values, past, mask, options)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return solved


class _Solve(torch.autograd.Function):
    """Forward substitution whose backward pass computes P anew, column by column, instead of keeping it."""

    @staticmethod
    def forward(
        ctx: Any, units: Tensor, values: Tensor, past: Tensor | None, mask: Tensor | None, options: tuple[float, int]
    ) -> Tensor:
        with torch.autocast(units.device.type, enabled=False):  # half precision would cost P its digits
            solved = _forward(units, values, past, mask, *options)
        ctx.save_for_backward(units, solved, mask)
        ctx.options = options
        ctx.n_past = units.shape[-2] - values.shape[-2]
        return solved

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        units, solved, mask = ctx.saved_tensors
        with torch.autocast(units.device.type, enabled=False):
            grad_units, z = _backward(grad, units, solved, mask, ctx.n_past, *ctx.options)
        grad_past = z[..., : ctx.n_past, :] if ctx.n_past else None
        return grad_units, z[..., ctx.n_past :, :], grad_past, None, None


def _blocks(first: int, last: int, size: int) -> Iterator[tuple[int, int]]:
    for start in range(first, last, size):
        yield start, min(start + size, last)


def _forward(
    units: Tensor, values: Tensor, past: Tensor | None, mask: Tensor | None, sharpness: float, block_size: int
) -> Tensor:
    """Y_r = P_rr^{-1} (V_r - sum_{c<r} P_rc Y_c), a block of rows after the other."""
    n = units.shape[-2]
    n_past = n - values.shape[-2]
    solved = values.new_empty(*values.shape[:-2], n, values.shape[-1])
    if past is not None:
        solved[..., :n_past, :] = past
    for start, stop in _blocks(n_past, n, block_size):
        panel = similarities(units[..., start:stop, :], units[..., :stop, :], sharpness)
        own = slice(start - n_past, stop - n_past)
        if mask is not None:
            panel.masked_fill_(~mask[..., own, :stop], 0.0)
        rest = values[..., own, :]
        if start:
            rest = rest - panel[..., :start] @ solved[..., :start, :]
        solved[..., start:stop, :] = torch.linalg.solve_triangular(
            panel[..., start:], rest, upper=False, unitriangular=True
        )
    return solved


def _backward(
    grad: Tensor, units: Tensor, solved: Tensor, mask: Tensor | None, n_past: int, sharpness: float, block_size: int
) -> tuple[Tensor, Tensor]:
    """Gradients in the unit keys, and in V (below `n_past`: in the past Y).

    With G = dL/dY: Z = P^{-T} G is dL/dV, dL/dP = -tril(Z Y^T, -1), and dL/dcos = s P o dL/dP. The columns of a block
    need the rows below it, so the blocks go from the last to the first.
    """
    n = units.shape[-2]
    z, grad_units = grad.clone(), torch.zeros_like(units)
    for start, stop in reversed([*_blocks(0, n_past, block_size), *_blocks(n_past, n, block_size)]):
        first = max(start, n_past)  # rows before it have no equation here
        panel = similarities(units[..., first:, :], units[..., start:stop, :], sharpness)
        if mask is not None:
            panel.masked_fill_(~mask[..., first - n_past :, start:stop], 0.0)
        if start < n_past:
            z[..., start:stop, :] -= panel.mT @ z[..., n_past:, :]
        else:
            own = panel[..., : stop - start, :]
            own.copy_(own.tril(-1))
            rest = z[..., start:stop, :] - panel[..., stop - start :, :].mT @ z[..., stop:, :]
            z[..., start:stop, :] = torch.linalg.solve_triangular(own.mT, rest, upper=True, unitriangular=True)
        grad_cos = (z[..., first:, :] @ solved[..., start:stop, :].mT).mul_(panel).mul_(-sharpness)
        grad_units[..., first:, :] += grad_cos @ units[..., start:stop, :]
        grad_units[..., start:stop, :] += grad_cos.mT @ units[..., first:, :]
    return grad_units, z
