"""Explainers of captum that look on while another one is attacked; some of them notice."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from assay._core.extras import need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    Watcher = Callable[[Tensor, Tensor], Tensor]

WATCHERS = ("gradients", "gradient × input", "integrated gradients", "GradientSHAP", "occlusion")


def captum_watchers(model: Callable[[Tensor], Tensor], time_axis: int = 2) -> Mapping[str, Watcher]:
    """Explanations by captum: gradients, gradient × input, integrated gradients, GradientSHAP and occlusion.

    Each is called as ``watcher(x, target)`` and returns the size of its attributions, in the shape of x. Occlusion sets
    windows of a tenth of the series to zero, one channel at a time, half a window apart. GradientSHAP draws the same
    random numbers at each call, so that its own noise is not taken for a movement.

    Parameters
    ----------
    model : callable
        Series to logits.
    time_axis : 1 or 2
        The axis of time in what the model takes.

    Raises
    ------
    InputError
        captum is not installed.
    """
    attr: Any = need("captum.attr", extra="series", purpose="watching with further explainers")

    def logits(x: Tensor) -> Tensor:
        return model(x)

    def gradients(x: Tensor, target: Tensor) -> Tensor:
        return _size(attr.Saliency(logits).attribute(_leaf(x), target=target))

    def gradient_x_input(x: Tensor, target: Tensor) -> Tensor:
        return _size(attr.InputXGradient(logits).attribute(_leaf(x), target=target))

    def integrated_gradients(x: Tensor, target: Tensor) -> Tensor:
        found = attr.IntegratedGradients(logits).attribute(
            x.detach(), target=target, n_steps=16, internal_batch_size=max(512, len(x))
        )
        return _size(found)

    def gradient_shap(x: Tensor, target: Tensor) -> Tensor:
        spread = float(x.detach().std())
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []), _numpys_own_seed():
            torch.manual_seed(0)
            found = attr.GradientShap(logits).attribute(
                x.detach(), baselines=torch.zeros_like(x[:1]), target=target, n_samples=16, stdevs=0.1 * spread
            )
        return _size(found)

    def occlusion(x: Tensor, target: Tensor) -> Tensor:
        window = [1, 1]
        window[time_axis - 1] = max(2, x.shape[time_axis] // 10)
        stride = [max(1, width // 2) for width in window]
        found = attr.Occlusion(logits).attribute(
            x.detach(),
            sliding_window_shapes=tuple(window),
            strides=tuple(stride),
            target=target,
            perturbations_per_eval=8,
        )
        return _size(found)

    return dict(
        zip(WATCHERS, (gradients, gradient_x_input, integrated_gradients, gradient_shap, occlusion), strict=True)
    )


@contextmanager
def _numpys_own_seed() -> Iterator[None]:
    """Seed numpy's global stream, which captum draws from, and give it back as it was."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002


def _leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_()


def _size(attribution: Tensor) -> Tensor:
    return attribution.detach().abs()
