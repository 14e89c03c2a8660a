"""Train under a mask: gradients of frozen entries are zero, and no optimiser can move them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from assay._core.errors import InputError
from assay.adapt.model_dowser.deltas import SparseDelta
from assay.adapt.model_dowser.layers import named_weights

if TYPE_CHECKING:
    from types import TracebackType

    from assay.adapt.model_dowser.masks import Mask


class Tuning:
    """A model of which only the masked entries train, until :meth:`detach`.

    Parameters
    ----------
    model : torch.nn.Module
        Changed in place: all else is frozen, and gradients of the weights pass through the mask. Nothing is left of
        that after :meth:`detach`. As a context manager it detaches at the end; leaving it by an exception also puts the
        weights back.
    mask : Mask

    Raises
    ------
    InputError
        The mask is about weights that the model does not have, nothing trains, or the model recomputes activations in
        the way that loses gradients of frozen models.

    Notes
    -----
    It keeps a copy of the weights that the mask names.

    Examples
    --------
    >>> from assay.adapt.model_dowser import Mask
    >>> model = nn.Linear(2, 1, bias=False)
    >>> before = model.weight.detach().clone()
    >>> with Mask({"weight": torch.tensor([[True, False]])}).apply(model) as tuning:
    ...     optimizer = torch.optim.AdamW(tuning.parameters(), lr=0.1, weight_decay=0.1)
    ...     tuning.guard(optimizer)
    ...     model(torch.ones(1, 2)).sum().backward()
    ...     optimizer.step()
    >>> (model.weight != before).tolist()
    [[True, False]]
    """

    def __init__(self, model: nn.Module, mask: Mask) -> None:
        shapes = {name: tuple(chosen.shape) for name, chosen in mask.trainable.items()}
        weights = named_weights(model, shapes, what="the mask")
        if not mask.n_trainable:
            raise InputError("the mask trains nothing, which retains everything and learns nothing; raise rho")
        check_recomputation(model)
        self.model = model
        self.mask = mask
        self._weights = {name: weight for name, weight in weights.items() if bool(mask.trainable[name].any())}
        self._chosen = {name: mask.trainable[name].to(weight.device) for name, weight in self._weights.items()}
        self._before = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self._flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        model.requires_grad_(False)
        self._handles: list[Any] = []
        self._optimizers: list[torch.optim.Optimizer] = []
        for name, weight in self._weights.items():
            weight.requires_grad_(True)
            hook = _passing(self._chosen[name])
            self._handles.append(weight.register_hook(hook))  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def parameters(self) -> list[nn.Parameter]:
        """The weights that train, for an optimiser."""
        return list(self._weights.values())

    def guard(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep `optimizer` from moving frozen entries by weight decay or old moments.

        After each of its steps frozen entries have their bits from before. Its moments for them are cleared now and
        when the mask comes off. It stays the same object, so that schedulers and Accelerate know it.

        Raises
        ------
        InputError
            It holds parameters that are frozen as a whole.
        """
        own = {id(weight) for weight in self._weights.values()}
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        foreign = [names.get(id(parameter), "one of another model") for parameter in held if id(parameter) not in own]
        if foreign:
            raise InputError(
                f"the optimiser holds {len(foreign)} parameters that the mask freezes, such as {foreign[0]}, and "
                f"weight decay would move them; build it from tuning.parameters()"
            )

        def put_back(*_: Any) -> None:
            with torch.no_grad():
                for name, weight in self._weights.items():
                    torch.where(self._chosen[name], weight, self._before[name], out=weight.data)

        self._clear_moments(optimizer)
        self._optimizers.append(optimizer)
        self._handles.append(optimizer.register_step_post_hook(put_back))

    def _clear_moments(self, optimizer: torch.optim.Optimizer) -> None:
        """Moments of frozen entries stay zero while gradients are, and L2 decay fills them without effect."""
        for name, weight in self._weights.items():
            for value in optimizer.state.get(weight, {}).values():
                if isinstance(value, Tensor) and value.shape == weight.shape:
                    value.mul_(self._chosen[name])

    def delta(self) -> SparseDelta:
        """What training changed so far, as a small file can hold it."""
        return SparseDelta.between(self._before, {name: weight.detach() for name, weight in self._weights.items()})

    def restore(self) -> None:
        """Put the weights back to what they were when the mask was applied."""
        with torch.no_grad():
            for name, weight in self._weights.items():
                weight.copy_(self._before[name])

    def detach(self) -> None:
        """Take the mask off; weights stay as they were trained. A second call does nothing."""
        for optimizer in self._optimizers:
            self._clear_moments(optimizer)
        self._optimizers.clear()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for parameter, flag in self._flags:
            parameter.requires_grad_(flag)
        self._flags.clear()

    def __enter__(self) -> Tuning:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        if kind is not None:
            self.restore()
            for weight in self._weights.values():
                weight.grad = None
        self.detach()


def check_recomputation(model: nn.Module) -> None:
    """Refuse re-entrant gradient checkpointing, which gives no gradients where its inputs need none.

    Raises
    ------
    InputError
        A part of the model uses it.
    """
    for module in model.modules():
        how = getattr(getattr(module, "_gradient_checkpointing_func", None), "keywords", {})
        if getattr(module, "gradient_checkpointing", False) and how.get("use_reentrant"):
            raise InputError(
                "the model uses re-entrant gradient checkpointing, which loses the gradients of a partly frozen model; "
                "call model.gradient_checkpointing_enable({'use_reentrant': False})"
            )


def _passing(chosen: Tensor) -> Any:
    def hook(gradient: Tensor) -> Tensor:
        return torch.where(chosen, gradient, torch.zeros((), dtype=gradient.dtype, device=gradient.device))

    return hook
