"""Which weights are scored: those of the linear layers in the last blocks of a model's text decoder."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from assay._core.decoder import decoder_blocks, text_tower
from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Blocks that are scored where nothing is said: the paper's main setting.
LAST_BLOCKS = 20


def is_transposed(module: nn.Module) -> bool:
    """Whether the weight is (inputs, outputs), as in GPT-2's Conv1D, and not (outputs, inputs)."""
    return type(module).__name__ == "Conv1D"


def target_layers(
    model: nn.Module, modules: str = "linear", layers: int | Sequence[int] | None = None
) -> dict[str, nn.Module]:
    """Linear layers to score, by the name of their weight.

    Parameters
    ----------
    model : torch.nn.Module
        Of a vision-language model only the decoder is looked at. A model without a stack of blocks is one block.
    modules : str
        ``"linear"``: all; otherwise a regular expression that is searched for in a layer's name.
    layers : int or sequence of int, optional
        The last blocks, this many, or the blocks with these numbers. None: the last 20, or all where there are fewer.

    Returns
    -------
    dict of str to nn.Module
        Keys are names of parameters, such as ``"model.layers.3.mlp.up_proj.weight"``.

    Raises
    ------
    InputError
        No layer matches, a block does not exist, or a weight is quantised or sharded.
    """
    _, tower = text_tower(model)
    blocks = [block for _, block in decoder_blocks(tower)]
    chosen = _chosen(layers, len(blocks))
    inside = {id(part) for place in chosen for part in blocks[place].modules()}
    shared = _shared(model)
    found: dict[str, nn.Module] = {}
    tied = []
    for name, module in model.named_modules():
        if id(module) not in inside or not (isinstance(module, nn.Linear) or is_transposed(module)):
            continue
        if modules != "linear" and not re.search(modules, name):
            continue
        if id(module.weight) in shared:
            tied.append(name)
            continue
        key = f"{name}.weight" if name else "weight"
        _check_plain(key, module.weight)
        found[key] = module
    if tied:
        warnings.warn(f"weights shared with another layer are not scored: {', '.join(tied)}", stacklevel=3)
    if not found:
        there = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) or is_transposed(m)]
        said = f"its linear layers are {', '.join(there[:3])}, …" if there else "it has none"
        raise InputError(f"modules={modules!r}, layers={layers}: no linear layer of the model matches; {said}")
    return found


def weight_of(module: nn.Module) -> Tensor:
    """The weight of a linear layer."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight


def named_weights(model: nn.Module, shapes: Mapping[str, tuple[int, ...]], *, what: str) -> dict[str, nn.Parameter]:
    """The model's own parameters of these names and shapes.

    Raises
    ------
    InputError
        The model has no parameter of that name, or one of another shape; `what` begins the sentence.
    """
    there = dict(model.named_parameters())
    for name, shape in shapes.items():
        if name not in there:
            raise InputError(f"{what} is about {name}, which the model does not have: it was made for another model")
        if tuple(there[name].shape) != tuple(shape):
            raise InputError(
                f"{what} has {name} with shape {tuple(shape)}, and the model's is {tuple(there[name].shape)}: it was "
                f"made for another model"
            )
    return {name: there[name] for name in shapes}


def _chosen(layers: int | Sequence[int] | None, n_blocks: int) -> list[int]:
    if layers is None:
        return list(range(max(0, n_blocks - LAST_BLOCKS), n_blocks))
    if isinstance(layers, Sequence):
        wrong = [place for place in layers if not 0 <= place < n_blocks]
        if wrong or not layers:
            said = wrong[0] if wrong else "no number"
            raise InputError(f"layers holds {said}; the model has {n_blocks} blocks, numbered from 0")
        return list(layers)
    if not 1 <= layers <= n_blocks:
        raise InputError(f"layers={layers}: expected a number from 1 to {n_blocks}, the model's number of blocks")
    return list(range(n_blocks - layers, n_blocks))


def _shared(model: nn.Module) -> set[int]:
    """Ids of parameters that more than one module holds."""
    seen: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            seen[id(parameter)] = seen.get(id(parameter), 0) + 1
    return {key for key, count in seen.items() if count > 1}


def _check_plain(name: str, weight: Any) -> None:
    if type(weight.data) is not Tensor or not weight.dtype.is_floating_point or weight.dtype.itemsize < 2:
        kind = str(weight.dtype) if type(weight.data) is Tensor else type(weight.data).__name__
        raise InputError(
            f"{name} is quantised or sharded ({kind}), so it can neither be scored nor trained in place; load the "
            f"model in float32 or bfloat16"
        )
    if weight.device == torch.device("meta"):
        raise InputError(f"{name} has no values (device meta); load the model's weights first")
