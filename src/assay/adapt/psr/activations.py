"""What a steering prompt does to the hidden states of an answer: states behind both prompts, position by position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from assay._core.errors import InputError
from assay.adapt.psr.hooks import attach, states_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from assay.adapt.psr.hooks import Blocks, Edit
    from assay.adapt.psr.pairs import Example


@dataclass(frozen=True)
class Activations:
    """States of one layer at the steered positions of all examples, one behind the other.

    Parameters
    ----------
    base, target : (n_positions, d) float32
        Behind the plain prompt and behind the steered one.
    sequence : (n_positions,) int64
        Number of the example.
    is_answer : (n_positions,) bool
        A token of the answer, not of the prompt.
    alpha : (n_positions,) float32
    """

    base: Tensor
    target: Tensor
    sequence: Tensor
    is_answer: Tensor
    alpha: Tensor

    @property
    def delta(self) -> Tensor:
        """What the prompt adds (n_positions, d)."""
        return self.target - self.base

    def at(self, positions: Tensor) -> Activations:
        """Some of the positions, by a mask or by number."""
        parts = (self.base, self.target, self.sequence, self.is_answer, self.alpha)
        return Activations(*(part[positions] for part in parts))


def run(
    blocks: Blocks, ids: Sequence[int], places: Sequence[int], layers: list[int], edits: dict[int, Edit] | None = None
) -> dict[int, Tensor]:
    """States of one sequence at some positions, (n_places, d) for each layer, steered there by `edits`.

    Gradients flow where the caller lets them.
    """
    device = next(blocks.backbone.parameters()).device
    tokens = torch.tensor([list(ids)], device=device)
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    mask[0, list(places)] = True
    handles = attach(blocks, edits or {}, mask=mask)
    try:
        seen = states_of(blocks, layers, input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False)
        return {layer: seen[layer][mask.to(seen[layer].device)] for layer in layers}
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def states_behind(
    blocks: Blocks,
    examples: Sequence[Example],
    layers: list[int],
    edits: dict[int, Edit] | None = None,
    *,
    steered: bool = False,
) -> dict[int, Tensor]:
    """States of all examples at the steered positions, one behind the other (n_positions, d), float32.

    Parameters
    ----------
    edits : mapping of layer to callable, optional
        What steers on the way.
    steered : bool
        Behind the steering prompt in place of the plain one.

    Raises
    ------
    InputError
        A layer gives NaN or infinity.
    """
    kept: dict[int, list[Tensor]] = {layer: [] for layer in layers}
    for number, one in enumerate(examples, 1):
        prompt, places = (one.steered, one.steered_span) if steered else (one.base, one.base_span)
        found = check_finite(run(blocks, [*prompt, *one.response], places, layers, edits), number)
        for layer, states in found.items():
            kept[layer].append(states.float())
    return {layer: torch.cat(states) for layer, states in kept.items()}


def check_finite(states: dict[int, Tensor], number: int) -> dict[int, Tensor]:
    """The states of the `number`-th pair, of which none may be NaN or infinity."""
    for layer, there in states.items():
        if not there.isfinite().all():
            raise InputError(
                f"pair {number}: layer {layer} gives NaN or infinity; load the model in float32 or bfloat16"
            )
    return states


def record(blocks: Blocks, examples: Sequence[Example], layers: list[int]) -> dict[int, Activations]:
    """States behind both prompts, layer by layer."""
    base = states_behind(blocks, examples, layers)
    target = states_behind(blocks, examples, layers, steered=True)
    lengths = [len(one.base_span) for one in examples]
    device = base[layers[0]].device
    sequence = torch.repeat_interleave(torch.arange(len(examples)), torch.tensor(lengths)).to(device)
    is_answer = torch.cat([torch.arange(n) >= n - len(one.response) for n, one in zip(lengths, examples, strict=True)])
    alpha = torch.tensor([one.alpha for one in examples], device=device)[sequence]
    return {layer: Activations(base[layer], target[layer], sequence, is_answer.to(device), alpha) for layer in layers}
