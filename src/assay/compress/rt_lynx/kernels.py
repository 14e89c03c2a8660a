"""Triton kernels: n:4 selection alone, and a linear layer that selects while it multiplies.

A group of four features is held in four tiles, one a place in the group, so that the six comparisons are between tiles.
The token's length is summed in the same pass, and the scale applied to the sum: S(X) is never written. Triton has no
sparse product, so the tiles are multiplied as dense ones; what is saved is reading and writing X in between.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

import torch

from assay.compress.rt_lynx.activations import EPS

triton: Any = None
if importlib.util.find_spec("triton"):  # whoever only reads this file, for documentation, needs no Triton
    triton = importlib.import_module("triton")
    tl: Any = importlib.import_module("triton.language")

if TYPE_CHECKING:
    from collections.abc import Callable

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def _jit(kernel: Callable[..., Any]) -> Any:
    return kernel if triton is None else triton.jit(kernel)


@_jit
def _select(a, b, c, d, N: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Zero all but the N largest of four tiles, place by place; of equals the first stays."""
    pa, pb, pc, pd = tl.abs(a), tl.abs(b), tl.abs(c), tl.abs(d)
    ab = (pa >= pb).to(tl.int32)
    ac = (pa >= pc).to(tl.int32)
    ad = (pa >= pd).to(tl.int32)
    bc = (pb >= pc).to(tl.int32)
    bd = (pb >= pd).to(tl.int32)
    cd = (pc >= pd).to(tl.int32)
    least = 4 - N
    ka = tl.where(ab + ac + ad >= least, a, 0.0)
    kb = tl.where(1 - ab + bc + bd >= least, b, 0.0)
    kc = tl.where(2 - ac - bc + cd >= least, c, 0.0)
    kd = tl.where(3 - ad - bd - cd >= least, d, 0.0)
    return ka, kb, kc, kd


@_jit
def _linear_kernel(  # type: ignore[no-untyped-def]  # Triton's own types are its pointers
    x_ptr, w_ptr, bias_ptr, u_ptr, lora_ptr, y_ptr, n_rows, n_out, n_groups, n_rank,
    wo, wk, lo, lr,
    N: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr, BRANCH: tl.constexpr,  # noqa: N803
    EPSILON: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, GROUPS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    has_row, has_col = rows < n_rows, cols < n_out
    total = tl.zeros((ROWS, COLS), dtype=tl.float32)
    full = tl.zeros((ROWS,), dtype=tl.float32)
    kept = tl.zeros((ROWS,), dtype=tl.float32)
    for start in range(0, n_groups, GROUPS):
        groups = start + tl.arange(0, GROUPS)
        inside = has_row[:, None] & (groups < n_groups)[None, :]
        x_at = x_ptr + rows[:, None].to(tl.int64) * (4 * n_groups) + 4 * groups[None, :]
        a = tl.load(x_at, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(x_at + 1, mask=inside, other=0.0).to(tl.float32)
        c = tl.load(x_at + 2, mask=inside, other=0.0).to(tl.float32)
        d = tl.load(x_at + 3, mask=inside, other=0.0).to(tl.float32)
        if NORM:
            full += tl.sum(a * a + b * b + c * c + d * d, axis=1)
        a, b, c, d = _select(a, b, c, d, N)
        if NORM:
            kept += tl.sum(a * a + b * b + c * c + d * d, axis=1)
        as_given = x_ptr.dtype.element_ty
        a, b, c, d = a.to(as_given), b.to(as_given), c.to(as_given), d.to(as_given)
        w_inside = (groups < n_groups)[:, None] & has_col[None, :]
        w_at = w_ptr + cols[None, :].to(tl.int64) * wo + (4 * groups[:, None]).to(tl.int64) * wk
        total += tl.dot(a, tl.load(w_at, mask=w_inside, other=0.0), input_precision="ieee")
        total += tl.dot(b, tl.load(w_at + wk, mask=w_inside, other=0.0), input_precision="ieee")
        total += tl.dot(c, tl.load(w_at + 2 * wk, mask=w_inside, other=0.0), input_precision="ieee")
        total += tl.dot(d, tl.load(w_at + 3 * wk, mask=w_inside, other=0.0), input_precision="ieee")
    if NORM:
        total *= tl.sqrt(full / (kept + EPSILON))[:, None]
    if BRANCH:
        for start in range(0, n_rank, GROUPS):
            ranks = start + tl.arange(0, GROUPS)
            has_rank = ranks < n_rank
            u = tl.load(
                u_ptr + rows[:, None] * n_rank + ranks[None, :], mask=has_row[:, None] & has_rank[None, :], other=0.0
            )
            v = tl.load(
                lora_ptr + cols[None, :] * lo + ranks[:, None] * lr,
                mask=has_rank[:, None] & has_col[None, :],
                other=0.0,
            )
            total += tl.dot(u, v, input_precision="ieee")
    if BIAS:
        total += tl.load(bias_ptr + cols, mask=has_col, other=0.0).to(tl.float32)[None, :]
    y_at = y_ptr + rows[:, None].to(tl.int64) * n_out + cols[None, :]
    tl.store(y_at, total.to(y_ptr.dtype.element_ty), mask=has_row[:, None] & has_col[None, :])


@_jit
def _activation_kernel(  # type: ignore[no-untyped-def]  # Triton's own types are its pointers
    x_ptr, y_ptr, n_groups,
    N: tl.constexpr, NORM: tl.constexpr, EPSILON: tl.constexpr, GROUPS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    base = tl.program_id(0).to(tl.int64) * (4 * n_groups)
    scale = 1.0
    if NORM:
        full = 0.0
        kept = 0.0
        for start in range(0, n_groups, GROUPS):
            groups = start + tl.arange(0, GROUPS)
            at, inside = x_ptr + base + 4 * groups, groups < n_groups
            a = tl.load(at, mask=inside, other=0.0).to(tl.float32)
            b = tl.load(at + 1, mask=inside, other=0.0).to(tl.float32)
            c = tl.load(at + 2, mask=inside, other=0.0).to(tl.float32)
            d = tl.load(at + 3, mask=inside, other=0.0).to(tl.float32)
            full += tl.sum(a * a + b * b + c * c + d * d, axis=0)
            a, b, c, d = _select(a, b, c, d, N)
            kept += tl.sum(a * a + b * b + c * c + d * d, axis=0)
        scale = tl.sqrt(full / (kept + EPSILON))
    for start in range(0, n_groups, GROUPS):
        groups = start + tl.arange(0, GROUPS)
        at, inside = x_ptr + base + 4 * groups, groups < n_groups
        a = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(at + 1, mask=inside, other=0.0).to(tl.float32)
        c = tl.load(at + 2, mask=inside, other=0.0).to(tl.float32)
        d = tl.load(at + 3, mask=inside, other=0.0).to(tl.float32)
        a, b, c, d = _select(a, b, c, d, N)
        out = y_ptr + base + 4 * groups
        tl.store(out, (a * scale).to(y_ptr.dtype.element_ty), mask=inside)
        tl.store(out + 1, (b * scale).to(y_ptr.dtype.element_ty), mask=inside)
        tl.store(out + 2, (c * scale).to(y_ptr.dtype.element_ty), mask=inside)
        tl.store(out + 3, (d * scale).to(y_ptr.dtype.element_ty), mask=inside)


def sparse_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    branch: tuple[torch.Tensor, torch.Tensor] | None,
    n: int = 2,
    norm_comp: bool = True,
) -> torch.Tensor:
    """S(X) Wᵀ + U lora_Bᵀ + b with n:4 selection in registers.

    Parameters
    ----------
    x : (n_rows, in_features), contiguous
    weight : (out_features, in_features), any strides
    bias : (out_features,) or None
    branch : pair of (n_rows, rank), contiguous, and (out_features, rank), or None
        U = X lora_Aᵀ, and lora_B.
    n : int
    norm_comp : bool

    Returns
    -------
    (n_rows, out_features), dtype of `x`
    """
    (n_rows, in_features), out_features = x.shape, weight.shape[0]
    y = torch.empty(n_rows, out_features, dtype=x.dtype, device=x.device)
    u, lora_b = branch if branch is not None else (x, weight)
    size: dict[str, Any] = {"ROWS": 64, "COLS": 64, "GROUPS": 16}
    grid = (triton.cdiv(n_rows, size["ROWS"]), triton.cdiv(out_features, size["COLS"]))
    _linear_kernel[grid](
        x, weight, bias if bias is not None else x, u.contiguous(), lora_b, y,
        n_rows, out_features, in_features // 4, u.shape[1] if branch is not None else 0,
        weight.stride(0), weight.stride(1), lora_b.stride(0), lora_b.stride(1),
        N=n, NORM=norm_comp and n < 4, BIAS=bias is not None, BRANCH=branch is not None, EPSILON=EPS, **size,
    )  # fmt: skip
    return y


def sparse_activation(x: torch.Tensor, n: int = 2, norm_comp: bool = True) -> torch.Tensor:
    """S(X), read and written once each from the main memory where a token fits the cache; (n_rows, in_features)."""
    y = torch.empty_like(x)
    _activation_kernel[(len(x),)](x, y, x.shape[1] // 4, N=n, NORM=norm_comp and n < 4, EPSILON=EPS, GROUPS=256)
    return y
