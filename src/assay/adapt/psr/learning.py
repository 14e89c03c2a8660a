"""Fit a way of steering to pairs: all its layers jointly through the model, or one layer after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay.adapt.psr.activations import Activations, record, states_behind
from assay.adapt.psr.hooks import frozen
from assay.adapt.psr.training import fit_through

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from assay.adapt.psr.steering import Steering

#: Passes over the pairs: through the model by MSE and by LL as in the paper, and on stored activations.
EPOCHS = {"mse": 15, "ll": 7, "arrays": 300}
LEARNING_RATE, ARRAYS_LEARNING_RATE = 1e-3, 1e-2


def check_fit(objective: str, downstream: bool, epochs: int | None) -> None:
    """Refuse objectives that do not exist, or need the model where it is not to be run through, and no epochs."""
    if epochs is not None and epochs < 1:
        raise InputError(f"epochs={epochs}: expected 1 or more")
    if objective not in ("mse", "ll"):
        raise InputError(f"objective={objective!r}: expected 'mse' or 'll'")
    if objective == "ll" and not downstream:
        raise InputError(
            "objective='ll' with downstream=False: the likelihood of an answer needs the model above the layer"
        )


def fit_jointly(
    steering: Steering, pairs: list[dict[str, Any]], *, is_gated: bool, objective: str, reg: float, normalize: bool,
    epochs: int | None, learning_rate: float | None, seed: int,
) -> dict[int, tuple[Tensor, Tensor, Tensor]]:  # fmt: skip
    """w, b and z of each layer, fitted through the model; the losses are left in `steering.losses_`."""
    with frozen(steering.model):
        examples = steering.examples(pairs)
        data = record(steering.blocks, examples, steering.layers)
        learned, steering.losses_ = fit_through(
            steering.model, steering.blocks, examples, data, is_gated=is_gated, objective=objective, reg=reg,
            normalize=normalize, n_epochs=EPOCHS[objective] if epochs is None else epochs,
            learning_rate=LEARNING_RATE if learning_rate is None else learning_rate, seed=seed,
        )  # fmt: skip
    return learned


def layer_by_layer(steering: Steering, pairs: list[dict[str, Any]]) -> Iterator[tuple[int, Activations]]:
    """What the prompt adds at each layer beyond what the layers before already do: set a layer before the next."""
    with frozen(steering.model):
        examples = steering.examples(pairs)
        first = record(steering.blocks, examples, steering.layers)
        for number, layer in enumerate(steering.layers):
            if number == 0:
                yield number, first[layer]
                continue
            done = {kept: edit for kept, edit in steering.edits().items() if kept < layer}
            behind = states_behind(steering.blocks, examples, [layer], done)
            yield number, replace(first[layer], base=behind[layer])
