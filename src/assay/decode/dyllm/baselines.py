"""What DyLLM is measured against: recomputing everything, Fast-dLLM's two caches, and dLLM-Cache.

Fast-dLLM (Wu et al., 2025, arXiv:2505.22618) computes everything once at the start of a block. Until the next block its
prefix cache recomputes the rows from the block on, its dual cache those of the block alone; the others' keys and values
stay. dLLM-Cache (Liu et al., 2025, arXiv:2506.06295) leaves the prompt for many steps and the response for a few;
between, it renews all values of the response and recomputes the quarter of its rows whose values turned most.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch.nn.functional import cosine_similarity

from assay.decode.dyllm.layer import attend, rotate
from assay.decode.dyllm.steps import State, Step, dense_step, full_step

if TYPE_CHECKING:
    from torch import Tensor

    from assay.decode.dyllm.adapters import ModelAdapter
    from assay.decode.dyllm.decoding import Situation
    from assay.decode.dyllm.layer import BlockAdapter, LayerCache, Rope

#: dLLM-Cache: steps between two times that everything, and that the whole response, is computed; share of the response
#: that is recomputed in the steps between. Within what its authors use.
EVERYTHING_EVERY, RESPONSE_EVERY, RECOMPUTED = 50, 7, 0.25


def full(adapter: ModelAdapter, state: State, now: Situation) -> tuple[str, Step]:
    """Every row in every step."""
    return "full", full_step(adapter, state, keep=False)


def prefix_cache(adapter: ModelAdapter, state: State, now: Situation) -> tuple[str, Step]:
    """The rows from the current block on."""
    return _cached(adapter, state, now, state.length)


def dual_cache(adapter: ModelAdapter, state: State, now: Situation) -> tuple[str, Step]:
    """The rows of the current block."""
    return _cached(adapter, state, now, now.open.last)


def _cached(adapter: ModelAdapter, state: State, now: Situation, last: int) -> tuple[str, Step]:
    if now.is_new_block:
        return "full", full_step(adapter, state)
    # Logits about a block's first position may come from the row before it.
    first = now.open.first - int(adapter.shifts_logits)
    return "cached", dense_step(adapter, state, slice(first, last))


def dllm_cache(adapter: ModelAdapter, state: State, now: Situation) -> tuple[str, Step]:
    """The rows of the response whose values turned most; all of them, and the prompt's, now and then."""
    if (now.number - 1) % EVERYTHING_EVERY == 0:
        step = full_step(adapter, state)
        for block, layer in zip(adapter.blocks, state.layers, strict=True):
            layer.context = block.o(layer.context)  # what is kept is the attention's output behind its projection
        return "full", step
    share = 1.0 if (now.number - 1) % RESPONSE_EVERY == 0 else RECOMPUTED
    return "cached", _most_turned(adapter, state, slice(state.first, state.length), share)


def _most_turned(adapter: ModelAdapter, state: State, rows: slice, share: float) -> Step:
    n_picked = math.ceil(share * (rows.stop - rows.start))
    x = adapter.embed(state.ids[:, rows], state.positions[:, rows])
    for block, rope, layer in zip(adapter.blocks, state.ropes, state.layers, strict=True):
        x = _most_turned_layer(block, x, layer, rope, rows, state.seen_by(block, rows), n_picked)
    n = len(state.ids)
    n_blocks = len(adapter.blocks)
    # Values of all rows and keys of some: half the weights each.
    halves = round(n * (n_picked + x.shape[1]) / 2)
    return Step(x, rows, n * n_picked, (halves,) * n_blocks, (n * n_picked,) * n_blocks)


def _most_turned_layer(
    block: BlockAdapter,
    x: Tensor,
    layer: LayerCache,
    rope: Rope | None,
    rows: slice,
    visible: Tensor | None,
    n_picked: int,
) -> Tensor:
    y = block.norm1(x)
    values = block.v(y)
    alike = cosine_similarity(values.flatten(2), layer.values[:, :, rows].transpose(1, 2).flatten(2), dim=-1)
    picked = alike.topk(n_picked, dim=1, largest=False).indices
    layer.values[:, :, rows] = values.transpose(1, 2)

    sequence = picked.new_tensor(range(len(x)))[:, None].expand_as(picked)
    position = picked + rows.start
    there = None if rope is None else (rope[0][sequence, position], rope[1][sequence, position])
    some = y[sequence, picked]
    layer.keys[sequence, :, position] = rotate(block.k(some), there)
    seen = None if visible is None else visible.expand(len(x), -1, -1, -1)[sequence, 0, picked][:, None]
    context = attend(rotate(block.q(some), there), layer.keys, layer.values, block.scale, seen)
    layer.context[sequence, position] = block.o(context)
    x = block.after_attention(x + layer.context[:, rows])
    layer.fed[sequence, position] = block.mlp(block.norm2(x[sequence, picked]))
    return block.after_mlp(x + layer.fed[:, rows])
