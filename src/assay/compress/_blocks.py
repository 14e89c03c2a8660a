"""Walk a model block by block: what goes into each decoder block, without keeping anything of the others.

Methods that look at data go through a model in this way: the inputs of one block are held, the block is changed, and
its outputs become the inputs of the next.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

    #: Token ids (n_sequences, n_tokens), or one item a batch: a tensor, a tuple of arguments, or keyword arguments.
    Calibration = Tensor | Sequence[Any]


class Call(NamedTuple):
    """The arguments of one call of a block; the first is the hidden states."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Caught(Exception):  # noqa: N818  # it is no error: it ends a forward pass early
    pass


def batches_of(calibration: Calibration) -> list[Call]:
    """Calibration data as calls of the model, a batch each.

    Raises
    ------
    InputError
        It is empty or of a type that is no input of a model.
    """
    items = [row[None] for row in calibration] if isinstance(calibration, torch.Tensor) else list(calibration)
    if not items:
        raise InputError("calibration holds no sequences; give token ids (n_sequences, n_tokens) or a list of inputs")
    return [_call(item) for item in items]


def _call(item: Any) -> Call:
    if isinstance(item, torch.Tensor):
        return Call((item,), {})
    if isinstance(item, tuple):
        return Call(item, {})
    if isinstance(item, dict) or hasattr(item, "keys"):
        return Call((), dict(item))
    raise InputError(
        f"calibration holds a {type(item).__name__}; expected tensors, tuples of arguments or dictionaries of keywords"
    )


def block_inputs(model: nn.Module, block: nn.Module, batches: Iterable[Call]) -> list[Call]:
    """What `block` is called with when the model runs on each batch; nothing after it is computed."""
    return list(each_block_input(model, block, batches))


@torch.no_grad()
def each_block_input(model: nn.Module, block: nn.Module, batches: Iterable[Call]) -> Iterator[Call]:
    """The same, one after the other."""
    if block is model:
        yield from batches
        return
    caught: list[Call] = []

    def catch(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        plain = tuple(_fresh("", value) for value in args)
        caught.append(Call(plain, {name: _fresh(name, value) for name, value in kwargs.items()}))
        raise _Caught

    handle = block.register_forward_pre_hook(catch, with_kwargs=True)
    try:
        for call in batches:
            with contextlib.suppress(_Caught):
                model(*call.args, **call.kwargs)
            if not caught:
                raise InputError("the model ran on the calibration data without calling its first block")
            yield caught.pop()
    finally:
        handle.remove()


def _fresh(name: str, value: Any) -> Any:
    """An argument without memory: a cache of keys and values would grow with every call of the block."""
    if name == "use_cache":
        return False
    return None if type(value).__name__.endswith("Cache") else value


def hidden(output: Any) -> Tensor:
    """The hidden states that a block returned, alone or first of a tuple."""
    first = output[0] if isinstance(output, tuple) else output
    if not isinstance(first, torch.Tensor) and hasattr(first, "logits"):
        first = first.logits
    assert isinstance(first, torch.Tensor)
    return first


def run_block(block: nn.Module, call: Call) -> Tensor:
    """Hidden states after the block."""
    return hidden(block(*call.args, **call.kwargs))


def after(call: Call, states: Tensor | None) -> Call:
    """The call of the next block: other hidden states, everything else the same."""
    if call.args:
        return Call((states, *call.args[1:]), call.kwargs)
    return Call((), {**call.kwargs, _states_name(call): states})


def states_of(call: Call) -> Tensor:
    """The hidden states that a block is called with."""
    states = call.args[0] if call.args else call.kwargs[_states_name(call)]
    assert isinstance(states, torch.Tensor)
    return states


def _states_name(call: Call) -> str:
    return "hidden_states" if "hidden_states" in call.kwargs else next(iter(call.kwargs))


@torch.no_grad()
def watch_inputs(
    block: nn.Module, layers: Mapping[str, nn.Module], calls: Iterable[Call], see: Callable[[str, Tensor], None]
) -> None:
    """Run the block on each call and hand the inputs of its `layers`, as rows (n, in_features), to `see`."""
    handles = []

    def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def seen(module: nn.Module, args: tuple[Any, ...]) -> None:
            see(name, args[0].detach().reshape(-1, args[0].shape[-1]))

        return seen

    for name, layer in layers.items():
        handles.append(layer.register_forward_pre_hook(hook(name)))
    try:
        for call in calls:
            block(*call.args, **call.kwargs)
    finally:
        for handle in handles:
            handle.remove()
