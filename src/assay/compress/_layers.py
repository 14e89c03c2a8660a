"""Find the linear layers of any model and read or replace their weights; what the methods of this family share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor


def linear_layers(model: nn.Module, skip: tuple[str, ...] = ()) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules of the ``nn.Linear`` and GPT-2 ``Conv1D`` layers that are not skipped.

    Parameters
    ----------
    model : nn.Module
    skip : tuple of str
        Full names, or last parts of names.
    """
    for name, module in model.named_modules():
        is_linear = type(module) is nn.Linear or type(module).__name__ == "Conv1D"
        if is_linear and name not in skip and name.rpartition(".")[2] not in skip:
            yield name, module


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
