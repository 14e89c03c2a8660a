"""What a user gives, checked once: series, labels, targets, reference maps, and an explainer's gradient."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from assay._core.errors import InputError
from assay._core.seeds import child_seed
from assay.audit.tsef.explainers import MaskExplainer, explanation_distance
from assay.audit.tsef.series import check_finite

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

    from assay.audit.tsef.explainers import Explainer

Layout = Literal["BDT", "BTD"]
LAYOUTS: tuple[Layout, ...] = ("BDT", "BTD")


def series_array(X: Any, layout: Layout) -> NDArray[Any]:  # noqa: N803, the ecosystem's name
    """Series as (n, channels, length) floats.

    Raises
    ------
    InputError
        They have different lengths, missing values, no values, or another shape.
    """
    try:
        array = np.asarray(X.detach().cpu() if isinstance(X, torch.Tensor) else X)
    except ValueError:
        array = np.empty(0, dtype=object)
    if array.dtype == object:
        raise InputError(
            "X: the series have different lengths; pad them to one length and let the classifier mask the padding"
        )
    if array.ndim != 3 or 0 in array.shape:
        raise InputError(
            f"X has shape {array.shape}; expected (series, channels, length), or (series, length, channels) "
            "with layout 'BTD', none of them 0"
        )
    if layout == "BTD":
        array = array.transpose(0, 2, 1)
    array = array.astype(np.float32) if array.dtype.kind in "biu" else array
    if array.dtype.kind != "f":
        raise InputError(f"X holds values of type {array.dtype}; expected numbers")
    check_finite(array, "X")
    if array.shape[2] < 2:
        raise InputError("X: the series have one time step; expected at least 2")
    return np.ascontiguousarray(array)


def class_logits(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Logits of `x`, with a clear word where the model does not give them."""
    try:
        logits = model(x)
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f"the model failed on series of shape {tuple(x.shape)}: {said[-1]}; check the layout ('BDT' is series, "
            "channels, length) and, for an exported program, that its batch dimension is dynamic"
        ) from error
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or len(logits) != len(x) or logits.shape[1] < 2:
        shape = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise InputError(
            f"the model returned {shape} for {len(x)} series; expected logits of shape ({len(x)}, classes), at least 2"
        )
    return logits


def label_array(y: Any, n: int, n_classes: int, name: str = "y") -> NDArray[np.int64]:
    """Class numbers, one for each series."""
    labels = np.asarray(y.detach().cpu() if isinstance(y, torch.Tensor) else y)
    if labels.shape == () and name == "target":
        labels = np.full(n, labels)
    if labels.shape != (n,):
        raise InputError(f"{name} has shape {labels.shape}; expected ({n},), a class for each series")
    if labels.dtype.kind not in "iu":
        raise InputError(f"{name} holds values of type {labels.dtype}; expected the class numbers 0 to {n_classes - 1}")
    outside = labels[(labels < 0) | (labels >= n_classes)]
    if len(outside):
        raise InputError(f"{name} holds {outside[0]}; the model has the classes 0 to {n_classes - 1}")
    return labels.astype(np.int64)


def series_generators(x: NDArray[Any], seed: int) -> list[np.random.Generator]:
    """Make a generator for each series from its values: the same draws in whatever batch it stands."""
    return [np.random.default_rng(child_seed(seed, "series", series.tobytes().hex())) for series in x]


def target_classes(target: Any, y: NDArray[np.int64], n_classes: int, drawn: NDArray[np.float64]) -> NDArray[np.int64]:
    """The class to reach for each series; None draws one of the others by `drawn`, uniform in [0, 1)."""
    if target is None:
        other = (drawn * (n_classes - 1)).astype(np.int64)
        return other + (other >= y)
    chosen = label_array(target, len(y), n_classes, "target")
    same = np.flatnonzero(chosen == y)
    if len(same):
        raise InputError(
            f"target, series {same[0]}: class {chosen[same[0]]} is the series' own; an attack needs another one"
        )
    return chosen


def reference_maps(reference: Any, shape: tuple[int, ...], layout: Layout) -> NDArray[np.bool_]:
    """Reference maps as (n, channels, length) booleans."""
    maps = np.asarray(reference.detach().cpu() if isinstance(reference, torch.Tensor) else reference)
    maps = maps.transpose(0, 2, 1) if layout == "BTD" and maps.ndim == 3 else maps
    if maps.shape != shape:
        raise InputError(f"reference has shape {maps.shape}; expected that of the series, {shape}, as (n, D, T)")
    if not np.isin(maps, (0, 1)).all():
        raise InputError("reference holds values other than 0 and 1; give the cells that matter as ones")
    empty = np.flatnonzero(~maps.reshape(len(maps), -1).any(axis=1))
    if len(empty):
        raise InputError(f"reference, series {empty[0]}: no cell is marked; leave reference out to take the top rho")
    return maps.astype(bool)


def check_gradient(explainer: Explainer, x: Tensor, target: Tensor) -> None:
    """Refuse an explainer that passes no gradient; warn of one that passes no second derivative.

    Parameters
    ----------
    explainer : Explainer
    x : tensor
        A few series, in the model's layout.
    target : tensor of int

    Raises
    ------
    InputError
        Its map does not depend differentiably on the series.
    """
    x = x.detach().requires_grad_()
    name = repr(explainer)
    try:
        saliency = explainer(x, target)
    except RuntimeError:  # torch's own word about .numpy() on a tensor with gradients
        saliency = x.detach()
    gradient = None
    if saliency.requires_grad:
        somewhere = torch.zeros_like(saliency)
        somewhere.flatten(1)[:, ::2] = 1.0
        distance = explanation_distance(saliency, somewhere, explainer.distance).sum()
        (gradient,) = torch.autograd.grad(distance, x, allow_unused=True)
    if gradient is None:
        raise InputError(
            f"explainer {name} passes no gradient to the series, so that an attack cannot steer it; give a "
            "differentiable surrogate such as IntegratedGradients, and watch this one in the report"
        )
    if isinstance(explainer, MaskExplainer) or getattr(explainer, "detach_grad", True):
        return
    first = explainer.gradient(x, target)  # type: ignore[attr-defined]  # what has detach_grad has gradient
    second = None
    if first.requires_grad:
        weights = torch.linspace(0.5, 1.5, first.numel(), dtype=first.dtype, device=first.device).view_as(first)
        (second,) = torch.autograd.grad((first * weights).sum(), x, allow_unused=True)
    if second is None or not bool(second.any()):
        warnings.warn(
            f"the model's second derivative is zero: {name} moves only with its input factor, if it has one. Networks "
            "of ReLU are piecewise linear; attack one with softplus or GELU, or say detach_grad=True",
            stacklevel=4,
        )
