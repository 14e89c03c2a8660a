"""One block of a bidirectional transformer with cached pieces: the whole of it, or only its salient rows.

Shapes: B sequences of T positions, H query heads in groups that share a key head (n_kv_heads of them), D a head's
width. The rows of a step are positions first, ..., T - 1: all of them, or those of the response.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from collections.abc import Callable

#: Numbers of a block of attention weights that are held at a time: it then stays in a core's cache.
WEIGHTS_AT_A_TIME = 2**19

Rope = tuple[Tensor, Tensor]


def _same(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class BlockAdapter:
    """What a block computes, in pieces: a custom architecture is described by these.

    With y = norm1(x) the attention sees q(y), k(y), v(y), the first two rotated. With its context C the block returns
    x' = after_attention(x + o(C)) and then after_mlp(x' + mlp(norm2(x'))). The last two are there for blocks that
    normalise behind the sum (BERT); elsewhere they do nothing.

    Parameters
    ----------
    norm1, norm2, mlp, o : callable
        From (..., n) to (..., d_model), row by row.
    q, k, v : callable
        From (..., d_model) to (..., heads, head_dim).
    n_heads, n_kv_heads, head_dim : int
    scale : float
        Of the scores; 1 / sqrt(head_dim) as a rule.
    window : int, optional
        A position sees those at most so far away.
    after_attention, after_mlp : callable
    n_mlp_weights : int
        Weights of the MLP, for counting operations.
    """

    norm1: Callable[[Tensor], Tensor]
    q: Callable[[Tensor], Tensor]
    k: Callable[[Tensor], Tensor]
    v: Callable[[Tensor], Tensor]
    o: Callable[[Tensor], Tensor]
    norm2: Callable[[Tensor], Tensor]
    mlp: Callable[[Tensor], Tensor]
    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    n_mlp_weights: int
    window: int | None = None
    after_attention: Callable[[Tensor], Tensor] = _same
    after_mlp: Callable[[Tensor], Tensor] = _same


@dataclass
class LayerCache:
    """What a block computed last, at every position.

    Parameters
    ----------
    keys, values : (B, n_kv_heads, T, D)
        Keys after their rotation.
    context : (B, T, H * D)
        Output of attention, before the output projection.
    fed : (B, T, d_model)
        Output of the MLP.
    """

    keys: Tensor
    values: Tensor
    context: Tensor
    fed: Tensor


def rotate(x: Tensor, rope: Rope | None) -> Tensor:
    """Rotary position embedding of (..., heads, D) by cosines and sines of shape (..., D); None: no rotation."""
    if rope is None:
        return x
    cos, sin = (part.unsqueeze(-2) for part in rope)
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


def salient_rows(new: Tensor, old: Tensor, tau: float) -> Tensor:
    """Rows whose attention context turned: cos(new, old) < tau over the whole vector, in float32.

    Parameters
    ----------
    new, old : (B, R, H * D)
    tau : float
        Above 1: every row.

    Returns
    -------
    (B, R) bool

    Examples
    --------
    >>> salient_rows(torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]), torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]), 0.9).tolist()
    [[False, True]]
    """
    if tau > 1:
        return torch.ones(new.shape[:-1], dtype=torch.bool, device=new.device)
    new, old = new.float(), old.float()
    # Squared norms are clamped, so that a row of zeros has no NaN: its cosine is 0.
    norms = new.square().sum(-1).clamp_min(1e-8) * old.square().sum(-1).clamp_min(1e-8)
    cosine = (new * old).sum(-1) / norms.sqrt()
    return cosine.clamp(-1.0, 1.0) < tau


def attend(q: Tensor, keys: Tensor, values: Tensor, scale: float, visible: Tensor | None) -> Tensor:
    """Softmax attention of (B, R, H, D) over all keys; returns (B, R, H * D).

    Query heads g use key head g // (H / n_kv_heads).
    """
    context = scaled_dot_product_attention(
        q.transpose(1, 2), keys, values, attn_mask=visible, scale=scale, enable_gqa=q.shape[2] != keys.shape[1]
    )
    return context.transpose(1, 2).flatten(2)


def added_by_values(
    q: Tensor, keys: Tensor, columns: Tensor, change: Tensor, scale: float, visible: Tensor | None
) -> Tensor:
    """What a change of some values adds to every context: softmax(q K^T)[:, S] dV, the normaliser over all keys.

    Parameters
    ----------
    q : (B, R, H, D)
    keys : (B, n_kv_heads, T, D)
    columns : (B, S) int
        Positions whose value changed; a repeated one with a change of zero is padding.
    change : (B, n_kv_heads, S, D)
    scale : float
    visible : (B or 1, 1, R, T) bool, optional

    Returns
    -------
    (B, R, H * D)
    """
    n, n_rows, n_heads, width = q.shape
    n_kv = keys.shape[1]
    group = n_heads // n_kv
    transposed = keys.transpose(-1, -2) * scale
    added = torch.empty_like(q)
    step = max(1, WEIGHTS_AT_A_TIME // (n * n_heads * keys.shape[2]))
    for start in range(0, n_rows, step):
        some = q[:, start : start + step]
        # (B, n_kv, rows * group, D): the queries of a group stand under one another, beside their shared keys.
        rows = some.shape[1]
        grouped = some.view(n, rows, n_kv, group, width).transpose(1, 2).reshape(n, n_kv, rows * group, width)
        scores = grouped @ transposed
        if visible is not None:
            seen = visible[:, :, start : start + step].repeat_interleave(group, dim=2)
            scores.masked_fill_(~seen, -torch.inf)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        picked = weights.gather(-1, columns[:, None, None].expand(n, n_kv, rows * group, -1))
        part = (picked @ change).view(n, n_kv, rows, group, width)
        added[:, start : start + step] = part.transpose(1, 2).reshape(n, rows, n_heads, width)
    return added.flatten(2)


def dense_layer(
    block: BlockAdapter, x: Tensor, cache: LayerCache | None, rope: Rope | None, rows: slice, visible: Tensor | None
) -> tuple[Tensor, LayerCache]:
    """Compute every row of `rows`, over the keys of all positions; what is cached elsewhere stays.

    Parameters
    ----------
    block : BlockAdapter
    x : (B, R, d_model)
        The residual stream of these rows.
    cache : LayerCache, optional
        None: the rows are all positions, and a new cache is returned.
    rope : pair of (B, T, D), optional
    rows : slice
    visible : (B or 1, 1, R, T) bool, optional

    Returns
    -------
    x : (B, R, d_model)
    cache : LayerCache
    """
    q, keys, values = _projections(block, block.norm1(x), rope, rows)
    if cache is not None:
        cache.keys[:, :, rows], cache.values[:, :, rows] = keys, values
        keys, values = cache.keys, cache.values
    context = attend(q, keys, values, block.scale, visible)
    x = block.after_attention(x + block.o(context))
    fed = block.mlp(block.norm2(x))
    if cache is None:
        cache = LayerCache(keys, values, context, fed)
    else:
        cache.context[:, rows], cache.fed[:, rows] = context, fed
    return block.after_mlp(x + fed), cache


def sparse_layer(
    block: BlockAdapter,
    x: Tensor,
    cache: LayerCache,
    rope: Rope | None,
    rows: slice,
    visible: Tensor | None,
    salient: Tensor,
    tau: float,
    real: Tensor,
) -> tuple[Tensor, Tensor]:
    """Recompute keys, values and contexts of salient rows, correct the other contexts, and find who is salient next.

    Parameters
    ----------
    block, x, rope, rows, visible
        As for :func:`dense_layer`.
    cache : LayerCache
        Changed in place.
    salient : (B, R) bool
        Rows whose input changed enough to be computed (S).
    tau : float
    real : (B, R) bool
        Rows that are no padding.

    Returns
    -------
    x : (B, R, d_model)
    salient : (B, R) bool
        For this block's MLP and for the next block (S').
    """
    old = cache.context[:, rows]
    if not salient.any():
        # dV is empty: every context is what it was and its cosine is 1.
        new = old
        now = real if tau > 1 else torch.zeros_like(real)
    else:
        if torch.equal(salient, real):
            q, keys, values = _projections(block, block.norm1(x), rope, rows)
            cache.keys[:, :, rows], cache.values[:, :, rows] = keys, values
            new = attend(q, cache.keys, cache.values, block.scale, visible)
        else:
            new = _partial_context(block, block.norm1(x), cache, rope, rows, visible, salient)
        now = real if tau > 1 else salient_rows(new, old, tau) & real
        cache.context[:, rows] = new
    x = block.after_attention(x + block.o(new))
    if torch.equal(now, real):
        cache.fed[:, rows] = block.mlp(block.norm2(x))
    elif now.any():
        sequence, row = now.nonzero(as_tuple=True)
        cache.fed[sequence, row + rows.start] = block.mlp(block.norm2(x[sequence, row]))
    return block.after_mlp(x + cache.fed[:, rows]), now


def _projections(block: BlockAdapter, y: Tensor, rope: Rope | None, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (B, R, H, D), keys and values (B, n_kv_heads, R, D) of the rows."""
    here = None if rope is None else (rope[0][:, rows], rope[1][:, rows])
    keys = rotate(block.k(y), here).transpose(1, 2).contiguous()
    return rotate(block.q(y), here), keys, block.v(y).transpose(1, 2).contiguous()


def _partial_context(
    block: BlockAdapter,
    y: Tensor,
    cache: LayerCache,
    rope: Rope | None,
    rows: slice,
    visible: Tensor | None,
    salient: Tensor,
) -> Tensor:
    """Contexts of all rows: exact for the salient ones, the old one plus softmax(q K^T)[:, S] dV for the others."""
    sequence, row = salient.nonzero(as_tuple=True)
    position = row + rows.start
    picked = y[sequence, row]
    rope_there = None if rope is None else (rope[0][sequence, position], rope[1][sequence, position])
    values = block.v(picked)
    change = values - cache.values[sequence, :, position]
    cache.keys[sequence, :, position] = rotate(block.k(picked), rope_there)
    cache.values[sequence, :, position] = values

    # As many columns for every sequence: a shorter list is filled with positions whose change is zero.
    counts = salient.sum(1)
    slots = torch.sort(salient.to(torch.uint8), dim=1, descending=True, stable=True).indices[:, : int(counts.max())]
    taken = torch.arange(slots.shape[1], device=slots.device) < counts[:, None]
    padded = change.new_zeros(*slots.shape, *change.shape[1:])
    padded[taken] = change

    here = None if rope is None else (rope[0][:, rows], rope[1][:, rows])
    q = rotate(block.q(y), here)
    added = added_by_values(q, cache.keys, slots + rows.start, padded.transpose(1, 2), block.scale, visible)
    new = cache.context[:, rows] + added
    q_salient = q.gather(1, slots[:, :, None, None].expand(-1, -1, *q.shape[2:]))
    seen = None
    if visible is not None:
        whole = visible.expand(len(slots), -1, -1, -1)
        seen = whole.gather(2, slots[:, None, :, None].expand(-1, 1, -1, whole.shape[-1]))
    exact = attend(q_salient, cache.keys, cache.values, block.scale, seen)
    new[sequence, row] = exact[taken]
    return new
