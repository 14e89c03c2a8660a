"""Explanations that an attack can differentiate, and how far one is from a reference.

An explainer is called as ``explainer(x, target)`` with series of shape (n, channels, length), or as the model wants
them, and the class to explain for each; it returns a saliency of the same shape, from 0 up. `distance` says how it is
compared with a reference map: "mse", or "bce" for masks in [0, 1].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import torch
from torch.nn import functional

from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

Distance = Literal["mse", "bce"]


@runtime_checkable
class Explainer(Protocol):
    """What an attack needs of an explanation."""

    distance: Distance

    def __call__(self, x: Tensor, target: Tensor) -> Tensor:
        """Saliency of every cell of `x` for the class `target`."""
        ...


class _GradientExplainer:
    """What explanations by the gradient of a logit share."""

    distance: Distance = "mse"

    def __init__(self, model: Callable[[Tensor], Tensor], *, detach_grad: bool = False, normalise: bool = True) -> None:
        self.model, self.detach_grad, self.normalise = model, detach_grad, normalise

    def gradient(self, x: Tensor, target: Tensor) -> Tensor:
        """Gradient of each series' logit of `target` with respect to it; itself differentiable unless detached."""
        second_order = not self.detach_grad and torch.is_grad_enabled()
        with torch.enable_grad():
            point = x if x.requires_grad and second_order else x.detach().requires_grad_()
            logit = self.model(point).gather(1, target[:, None]).sum()
            (gradient,) = torch.autograd.grad(logit, point, create_graph=second_order)
        return gradient

    def attribute(self, x: Tensor, target: Tensor) -> Tensor:
        """Signed attributions."""
        raise NotImplementedError

    def __call__(self, x: Tensor, target: Tensor) -> Tensor:
        """Positive part of the attributions; with `normalise` each series' largest is 1."""
        return scaled(functional.relu(self.attribute(x, target)), self.normalise)

    def __repr__(self) -> str:
        return type(self).__name__


class Saliency(_GradientExplainer):
    """Absolute gradient of the logit.

    Parameters
    ----------
    model : callable
        Series to logits (n, classes).
    detach_grad : bool
        Treat the gradient as a constant. This explanation is then out of an attack's reach.
    normalise : bool
        Divide each series' map by its largest value.
    """

    def attribute(self, x: Tensor, target: Tensor) -> Tensor:
        """Absolute gradient."""
        return self.gradient(x, target).abs()


class GradientxInput(_GradientExplainer):
    """Gradient of the logit times the input.

    Parameters
    ----------
    model : callable
        Series to logits (n, classes).
    detach_grad : bool
        Treat the gradient as a constant: only the input factor carries an attack's gradient.
    normalise : bool
        Divide each series' map by its largest value.
    """

    def attribute(self, x: Tensor, target: Tensor) -> Tensor:
        """Gradient times input."""
        return self.gradient(x, target) * x


class IntegratedGradients(_GradientExplainer):
    """Integrated gradients (Sundararajan et al., 2017) by the midpoint rule, twice differentiable.

    Parameters
    ----------
    model : callable
        Series to logits (n, classes).
    steps : int
        Points between baseline and input; memory and time are proportional to it.
    baseline : float or tensor
        Where the path starts.
    detach_grad : bool
        Treat the gradients as constants, as an attack on an off-the-shelf implementation does: only the factor
        (x − baseline) carries gradient. The authors' code: ``steps=1, detach_grad=True, normalise=False``.
    normalise : bool
        Divide each series' map by its largest value.

    Examples
    --------
    >>> explain = IntegratedGradients(lambda x: x.sum(dim=2), steps=2, normalise=False)
    >>> explain(torch.tensor([[[1.0, 3.0], [5.0, 7.0]]]), torch.tensor([1]))
    tensor([[[0., 0.], [5., 7.]]])
    """

    def __init__(
        self,
        model: Callable[[Tensor], Tensor],
        steps: int = 8,
        baseline: float | Tensor = 0.0,
        *,
        detach_grad: bool = False,
        normalise: bool = True,
    ) -> None:
        super().__init__(model, detach_grad=detach_grad, normalise=normalise)
        if steps < 1:
            raise InputError(f"steps={steps}: integrated gradients take at least 1 step")
        self.steps, self.baseline = steps, baseline

    def attribute(self, x: Tensor, target: Tensor) -> Tensor:
        """(x − baseline) times the mean gradient on the way from the baseline to x."""
        away = x - self.baseline
        share = (torch.arange(self.steps, dtype=x.dtype, device=x.device) + 0.5) / self.steps
        points = (x - away) + share.view(-1, *[1] * x.ndim) * away
        gradient = self.gradient(points.flatten(0, 1), target.repeat(self.steps))
        return away * gradient.view_as(points).mean(dim=0)


class MaskExplainer:
    """A trained explainer that returns a mask in [0, 1], such as TimeX's; compared by cross-entropy.

    Parameters
    ----------
    module : nn.Module
        Series to a map of the same shape. It is the same for every class.
    """

    distance: Distance = "bce"

    def __init__(self, module: nn.Module) -> None:
        self.model = module

    def __call__(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the mask; `target` is not used."""
        mask: Tensor = self.model(x)
        if mask.shape != x.shape:
            raise InputError(
                f"the mask explainer returned shape {tuple(mask.shape)} for series of shape {tuple(x.shape)}; "
                "expected a value for every cell"
            )
        with torch.no_grad():
            low, high = float(mask.min()), float(mask.max())
        if not (low >= 0 and high <= 1):
            raise InputError(f"the mask explainer returned values from {low:g} to {high:g}; expected a mask in [0, 1]")
        return mask

    def __repr__(self) -> str:
        return f"MaskExplainer({type(self.model).__name__})"


class FunctionExplainer:
    """Any function ``(x, target) -> attributions`` of torch operations; its positive part is compared.

    Parameters
    ----------
    function : callable
    normalise : bool
        Divide each series' map by its largest value.
    """

    distance: Distance = "mse"

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], *, normalise: bool = True) -> None:
        self.function, self.normalise = function, normalise

    def __call__(self, x: Tensor, target: Tensor) -> Tensor:
        """Positive part of what the function returns."""
        return scaled(functional.relu(self.function(x, target)), self.normalise)

    def __repr__(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))


def as_explainer(explainer: Any) -> Explainer:
    """The explainer itself, or a plain function made one."""
    if isinstance(explainer, Explainer):
        return explainer
    if callable(explainer):
        return FunctionExplainer(explainer)
    raise InputError(f"explainer {explainer!r} cannot be called; give one of this module or a function of (x, target)")


def scaled(saliency: Tensor, normalise: bool = True) -> Tensor:
    """Divide each series' map by its largest value; a map of zeros stays one."""
    if not normalise:
        return saliency
    top = saliency.flatten(1).amax(dim=1)
    return saliency / torch.where(top > 0, top, 1.0).view(-1, *[1] * (saliency.ndim - 1))


def explanation_distance(saliency: Tensor, reference: Tensor, distance: Distance) -> Tensor:
    """How far explanations are from their reference maps, a number for each series.

    Parameters
    ----------
    saliency : (n, channels, length) tensor
    reference : (n, channels, length) tensor of zeros and ones
    distance : "mse" or "bce"
        Mean squared difference, or binary cross-entropy in nats, over cells.
    """
    if distance == "bce":
        cells = functional.binary_cross_entropy(saliency.clamp(0, 1), reference, reduction="none")
    else:
        cells = (saliency - reference).square()
    return cells.flatten(1).mean(dim=1)
