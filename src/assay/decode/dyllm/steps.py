"""A denoising step over the whole stack of blocks, and the state that one step leaves to the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from assay.decode.dyllm.adapters import ModelAdapter, visible
from assay.decode.dyllm.layer import LayerCache, Rope, dense_layer, sparse_layer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.decode.dyllm.layer import BlockAdapter


@dataclass
class State:
    """Sequences in the making, padded on the left, with the same positions for every response.

    Parameters
    ----------
    ids : (B, T) int64
        Prompt and response.
    real : (B, T) bool
        Positions that are no padding.
    first : int
        The response is positions first, ..., T - 1.
    positions : (B, T) int64
        Position of every token in its own sequence.
    ropes : sequence of pairs of (B, T, head_dim), or None
    seen : dict from window to (B or 1, 1, T, T) bool or None
    layers : list of LayerCache
        Empty before the first full step.
    left : (B, d_model), optional
        Last hidden state of the position before the response, of the latest step over all rows.
    """

    ids: Tensor
    real: Tensor
    first: int
    positions: Tensor
    ropes: Sequence[Rope | None]
    seen: dict[int | None, Tensor | None]
    layers: list[LayerCache] = field(default_factory=list)
    left: Tensor | None = None

    @property
    def length(self) -> int:
        """Positions of a sequence."""
        return self.ids.shape[1]

    def seen_by(self, block: BlockAdapter, rows: slice) -> Tensor | None:
        """Which keys these rows see."""
        seen = self.seen[block.window]
        return None if seen is None else seen[:, :, rows]


@dataclass(frozen=True)
class Step:
    """What a step computed.

    Parameters
    ----------
    hidden : (B, R, d_model)
        Behind the last block.
    rows : slice
        Which positions these are.
    q_rows : int
        Rows with queries and an output projection, over all sequences.
    kv_rows, mlp_rows : tuple of int
        For every block, over all sequences: rows with new keys and values, rows through the MLP.
    """

    hidden: Tensor
    rows: slice
    q_rows: int
    kv_rows: tuple[int, ...]
    mlp_rows: tuple[int, ...]


def begin(adapter: ModelAdapter, ids: Tensor, real: Tensor, first: int) -> State:
    """State before the first step.

    Parameters
    ----------
    adapter : ModelAdapter
    ids, real : (B, T)
    first : int
    """
    positions = (real.long().cumsum(1) - 1).clamp_min(0)
    padding = None if bool(real.all()) else real
    windows = {block.window: block for block in adapter.blocks}
    seen = {window: visible(block, padding, ids.shape[1], ids.device) for window, block in windows.items()}
    return State(ids, real, first, positions, adapter.rope(positions), seen)


def full_step(adapter: ModelAdapter, state: State, *, keep: bool = True) -> Step:
    """Compute every row of every block, and keep what it gave for later steps.

    `keep=False` keeps nothing: full recomputation, as it is without a cache.
    """
    rows = slice(0, state.length)
    x = adapter.embed(state.ids, state.positions)
    layers = []
    for block, rope in zip(adapter.blocks, state.ropes, strict=True):
        x, layer = dense_layer(block, x, None, rope, rows, state.seen_by(block, rows))
        if keep:
            layers.append(layer)
    state.layers = layers
    state.left = x[:, state.first - 1]
    return _all_of(adapter, state, x, rows)


def dense_step(adapter: ModelAdapter, state: State, rows: slice) -> Step:
    """Compute these rows of every block over the cached keys and values of the others (Fast-dLLM's caches)."""
    x = adapter.embed(state.ids[:, rows], state.positions[:, rows])
    for block, rope, layer in zip(adapter.blocks, state.ropes, state.layers, strict=True):
        x, _ = dense_layer(block, x, layer, rope, rows, state.seen_by(block, rows))
    return _all_of(adapter, state, x, rows)


def sparse_step(adapter: ModelAdapter, state: State, changed: Tensor, rows: slice, tau: float) -> Step:
    """Recompute what is salient in every block; the first block's salient rows are those whose token changed.

    Parameters
    ----------
    adapter : ModelAdapter
    state : State
        Its caches change in place.
    changed : (B, T) bool
        Positions whose token the previous step changed.
    rows : slice
        All positions, or those of the response.
    tau : float
    """
    x = adapter.embed(state.ids[:, rows], state.positions[:, rows])
    salient, real = changed[:, rows], state.real[:, rows]
    # One transfer for all counts at the end; every block waits for the device all the same, to find its salient rows.
    counts = [salient.sum()]
    for block, rope, layer in zip(adapter.blocks, state.ropes, state.layers, strict=True):
        x, salient = sparse_layer(block, x, layer, rope, rows, state.seen_by(block, rows), salient, tau, real)
        counts.append(salient.sum())
    if rows.start == 0:
        state.left = x[:, state.first - 1]
    numbers = tuple(torch.stack(counts).tolist())
    return Step(x, rows, int(real.sum()), numbers[:-1], numbers[1:])


def _all_of(adapter: ModelAdapter, state: State, x: Tensor, rows: slice) -> Step:
    n_rows = int(state.real[:, rows].sum())
    counts = (n_rows,) * len(adapter.blocks)
    return Step(x, rows, n_rows, counts, counts)


def logits_at(adapter: ModelAdapter, state: State, step: Step, sequence: Tensor, position: Tensor) -> Tensor:
    """Logits about the given positions, (n, vocab_size).

    Where a model's logits are about the next position (Dream), they come from the left neighbour of the same sequence;
    that of the first response row, where a step left the prompt out, is the one of the latest step over all rows.
    """
    row = position - step.rows.start
    if not adapter.shifts_logits:
        return adapter.head(step.hidden[sequence, row])
    hidden = step.hidden[sequence, (row - 1).clamp_min(0)]
    if step.rows.start > 0 and state.left is not None:
        hidden = torch.where((row == 0)[:, None], state.left[sequence], hidden)
    return adapter.head(hidden)
