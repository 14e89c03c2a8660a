"""Whether the blocks of a model are a plain chain: only then do the outputs of one tell what goes into the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from assay.compress._blocks import Call


class _Link(NamedTuple):
    """What a block was called with or returned: its first tensor, how often that was written to, and all else."""

    states: Any
    version: int
    others: dict[str, Any]


@torch.no_grad()
def check_chain(model: nn.Module, blocks: Sequence[tuple[str, nn.Module]], call: Call) -> None:
    """Run the model once and see that each block gets the output of the one before, untouched, and equal arguments.

    Raises
    ------
    InputError
        A block is not called so, not called, or called again.
    """
    entered: list[str] = []
    links: dict[str, _Link] = {}  # the first block's arguments and the latest output: not all hidden states are held

    def enter(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            link = _called_with(args, kwargs)
            first, left = links.setdefault("first", link), links.get("left", link)
            is_next = len(entered) < len(blocks) and blocks[len(entered)][0] == name
            is_passed_on = link.states is left.states and link.version == left.version
            if not (is_next and is_passed_on and _same(link.others, first.others)):
                raise _refusal(name)
            entered.append(name)

        return hook

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        states = output[0] if isinstance(output, tuple) else output
        links["left"] = _Link(states, _version(states), {})

    handles = []
    for name, block in blocks:
        handles.append(block.register_forward_pre_hook(enter(name), with_kwargs=True))
        handles.append(block.register_forward_hook(leave))
    try:
        model(*call.args, **call.kwargs)
    finally:
        for handle in handles:
            handle.remove()
    if len(entered) < len(blocks):
        raise _refusal(blocks[len(entered)][0])


def _refusal(name: str) -> InputError:
    return InputError(
        f"block {name!r} is not called once with just what the block before returned and the same other arguments, so "
        f"calibration would show it wrong inputs; quantise this model without calibration data"
    )


def _called_with(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Link:
    named = {str(place): value for place, value in enumerate(args)} | dict(kwargs)
    key = "hidden_states" if not args and "hidden_states" in named else next(iter(named), "")
    states = named.pop(key, None)
    return _Link(states, _version(states), named)


def _version(states: Any) -> int:
    """How often a tensor was written to in place."""
    return states._version if isinstance(states, torch.Tensor) and not states.is_inference() else 0


def _same(first: Any, second: Any) -> bool:
    if first is second:
        return True
    if isinstance(first, torch.Tensor) or isinstance(second, torch.Tensor):
        return isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor) and torch.equal(first, second)
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_same(first[key], second[key]) for key in first)
    if isinstance(first, tuple | list) and isinstance(second, tuple | list):
        return len(first) == len(second) and all(map(_same, first, second))
    return bool(first == second)
