"""Find the linear layers of any model and read or replace their weights; what the methods of this family share."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor


def linear_layers(
    model: nn.Module, skip: tuple[str, ...] = (), *, with_tied: bool = False
) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules of the ``nn.Linear`` and GPT-2 ``Conv1D`` layers that are not skipped.

    A layer that shares its weight with another module, as a tied head does with the embedding, is among them only
    with `with_tied`: compressed, it would need bytes of its own.

    Parameters
    ----------
    model : nn.Module
    skip : tuple of str
        Full names, or last parts of names; a single one may stand alone.

    Raises
    ------
    InputError
        A weight is on the meta device.
    """
    skip = (skip,) if isinstance(skip, str) else skip
    holders = Counter(id(p) for module in model.modules() for p in module._parameters.values() if p is not None)
    for name, module in model.named_modules():
        is_linear = type(module) is nn.Linear or type(module).__name__ == "Conv1D"
        if not is_linear or name in skip or name.rpartition(".")[2] in skip:
            continue
        weight: Any = module.weight
        if weight.is_meta:
            raise InputError(f"layer {name!r} is on the meta device, which holds no numbers; load its weights first")
        if with_tied or holders[id(weight)] < 2:
            yield name, module


def replace_layer(model: nn.Module, name: str, layer: nn.Module) -> None:
    """Put `layer` in the place of the one of this name, and wherever else the model calls that one."""
    old = model.get_submodule(name)
    for parent in list(model.modules()):
        for key, child in parent._modules.items():
            if child is old:
                parent._modules[key] = layer


def dense_weight(linear: nn.Module) -> tuple[Tensor, nn.Parameter | None]:
    """Weight (out_features, in_features) and bias of an ``nn.Linear`` or a ``Conv1D``, which keeps it transposed."""
    weight, bias = linear.weight, linear.bias
    assert isinstance(weight, torch.Tensor)
    if not isinstance(linear, nn.Linear):
        weight = weight.T
    return weight.detach(), bias  # type: ignore[return-value]  # a module's attribute has no type of its own


def set_dense_weight(linear: nn.Module, weight: Tensor) -> None:
    """Put a weight (out_features, in_features) into an ``nn.Linear`` or a ``Conv1D``, as a parameter of its own.

    A parameter that is tied to another one, or mapped from a file, stays as it is.
    """
    old: Any = linear.weight
    stored = weight if isinstance(linear, nn.Linear) else weight.T
    linear.weight = nn.Parameter(stored.to(old.dtype).contiguous(), requires_grad=old.requires_grad)


def some(names: Iterable[str]) -> str:
    """A few of the names, for a message."""
    listed = list(names)
    return ", ".join(listed[:4]) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "") or "none"
