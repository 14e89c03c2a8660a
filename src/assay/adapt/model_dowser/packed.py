"""Train the chosen entries as one short vector a weight: frozen ones cannot move, and Adam's moments are as short."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from assay._core.errors import InputError
from assay.adapt.model_dowser.layers import named_weights
from assay.adapt.model_dowser.training import check_recomputation

if TYPE_CHECKING:
    from types import TracebackType

    from assay.adapt.model_dowser.masks import Mask


class _Scatter(torch.autograd.Function):
    """Write values into a copy of a weight; the gradient is gathered, so none of the weight's size is kept."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        made = weight.clone(memory_format=torch.contiguous_format)
        made.view(-1)[index] = values
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (index,) = ctx.saved_tensors
        return gradients[0].reshape(-1)[index], None, None


class PackedWeight(nn.Module):
    """A weight whose chosen entries are a parameter of their own; for ``torch.nn.utils.parametrize``.

    Parameters
    ----------
    weight : (...) float Tensor
    chosen : (...) bool Tensor
    """

    index: Tensor

    def __init__(self, weight: Tensor, chosen: Tensor) -> None:
        super().__init__()
        index = chosen.flatten().nonzero().flatten().to(weight.device)
        self.register_buffer("index", index)
        self.values = nn.Parameter(weight.detach().reshape(-1)[index].clone())

    def forward(self, weight: Tensor) -> Tensor:
        """The weight with the values written into it."""
        made: Tensor = _Scatter.apply(self.values, weight, self.index)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return made

    def extra_repr(self) -> str:
        """Shown by ``print(model)``."""
        return f"entries={len(self.values)}"


class Packed:
    """A model of which only short vectors train, until :meth:`detach`.

    Any optimiser on :meth:`parameters` has state for these entries alone, and neither weight decay nor momentum can
    reach the others. The forward pass writes them into a copy of each weight, which costs one copy a weight and pass.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place until :meth:`detach`. As a context manager it detaches at the end and keeps what was trained;
        leaving it by an exception puts the weights back.
    mask : Mask

    Raises
    ------
    InputError
        The mask is about weights that the model does not have, or nothing trains.

    Examples
    --------
    >>> from assay.adapt.model_dowser import Mask
    >>> model = nn.Linear(2, 1, bias=False)
    >>> with Mask({"weight": torch.tensor([[True, False]])}).pack(model) as packed:
    ...     sum(p.numel() for p in packed.parameters())
    1
    """

    def __init__(self, model: nn.Module, mask: Mask) -> None:
        shapes = {name: tuple(chosen.shape) for name, chosen in mask.trainable.items()}
        weights = named_weights(model, shapes, what="the mask")
        if not mask.n_trainable:
            raise InputError("the mask trains nothing, which retains everything and learns nothing; raise rho")
        check_recomputation(model)
        self._flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        model.requires_grad_(False)
        self._parts: list[tuple[nn.Module, str, PackedWeight]] = []
        for name, weight in weights.items():
            if not bool(mask.trainable[name].any()):
                continue
            owner, _, key = name.rpartition(".")
            part = PackedWeight(weight, mask.trainable[name])
            module = model.get_submodule(owner)
            parametrize.register_parametrization(module, key, part)
            self._parts.append((module, key, part))

    def parameters(self) -> list[nn.Parameter]:
        """The vectors that train, for an optimiser."""
        return [part.values for _, _, part in self._parts]

    def detach(self, *, keep: bool = True) -> None:
        """Make the model ordinary again: with what was trained, or (`keep` False) with the weights from before."""
        for module, key, _ in self._parts:
            parametrize.remove_parametrizations(module, key, leave_parametrized=keep)
        self._parts.clear()
        for parameter, flag in self._flags:
            parameter.requires_grad_(flag)
        self._flags.clear()

    def __enter__(self) -> Packed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        self.detach(keep=kind is None)
