"""The order in which a model calls its linear layers: those before its blocks, in each block, and behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from assay._core.decoder import decoder_blocks
from assay.compress._blocks import hidden
from assay.compress.dynamic_whitening.observe import Group, groups_in_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from assay.compress._blocks import Call


@dataclass(frozen=True)
class Stack:
    """Blocks and layers of a model, in forward order.

    Parameters
    ----------
    blocks : tuple of (name, module)
        Run one after the other, each on the outputs of the one before. Empty: the model is not such a stack, and all
        its layers are in `before`.
    inside : tuple of str
        Layers of all blocks.
    before, behind : tuple of Group
        Layers that are called outside the blocks.
    """

    blocks: tuple[tuple[str, nn.Module], ...]
    inside: tuple[str, ...]
    before: tuple[Group, ...]
    behind: tuple[Group, ...]

    def layers_of(self, model: nn.Module, prefix: str) -> dict[str, nn.Module]:
        """Layers of one block by their full names, as they are now."""
        return {name: model.get_submodule(name) for name in self.inside if name.startswith(f"{prefix}.")}


def stack_of(model: nn.Module, names: Sequence[str], batches: Sequence[Call]) -> Stack:
    """Find the blocks of a model, and in which order it calls the layers outside them.

    A model whose blocks are not a plain chain (each fed with the outputs of the one before and with the same other
    arguments) is walked whole: slower, with the same result.
    """
    if not batches:
        return Stack((), (), (), ())
    blocks = decoder_blocks(model)
    if blocks[0][1] is model or not _is_chain(model, blocks, batches[0]):
        blocks = []
    inside = tuple(name for name in names if any(name.startswith(f"{prefix}.") for prefix, _ in blocks))
    outside = {name: model.get_submodule(name) for name in names if name not in inside}
    first = {"": blocks[0][1]} if blocks else {}
    groups = groups_in_order(model, {**outside, **first}, batches)
    place = next((number for number, group in enumerate(groups) if "" in group.layers), len(groups))
    before = [*groups[:place]]
    if place < len(groups):  # a layer may share its input with the first block
        rest = tuple(name for name in groups[place].layers if name)
        before += [Group(rest, groups[place].is_once)] if rest else []
    return Stack(tuple(blocks), inside, tuple(before), tuple(groups[place + 1 :]))


@torch.no_grad()
def _is_chain(model: nn.Module, blocks: Sequence[tuple[str, nn.Module]], call: Call) -> bool:
    entered: list[tuple[Any, dict[str, Any]]] = []
    left: list[Any] = []

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = list(kwargs)
        states = args[0] if args else kwargs.get("hidden_states", kwargs[names[0]] if names else None)
        others = {str(place): value for place, value in enumerate(args[1:])}
        others |= {name: value for name, value in kwargs.items() if value is not states}
        entered.append((states, others))

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        left.append(hidden(output))

    handles = []
    for _, block in blocks:
        handles.append(block.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(block.register_forward_hook(leave))
    try:
        model(*call.args, **call.kwargs)
    finally:
        for handle in handles:
            handle.remove()
    if len(entered) != len(blocks) or len(left) != len(blocks):
        return False
    return all(
        states is before and others.keys() == entered[0][1].keys() and _same(others, entered[0][1])
        for (states, others), before in zip(entered[1:], left, strict=False)
    )


def _same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    def is_same(one: Any, other: Any) -> bool:
        if isinstance(one, tuple | list) and isinstance(other, tuple | list):
            return len(one) == len(other) and all(map(is_same, one, other))
        if isinstance(one, torch.Tensor):
            return one is other or (isinstance(other, torch.Tensor) and torch.equal(one, other))
        return one is other or bool(one == other)

    return all(is_same(value, second[name]) for name, value in first.items())
