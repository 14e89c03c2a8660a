"""Fit coefficients and directions: on stored activations of one layer, or through the frozen model above it.

All fits move in coordinates without units: states are standardised before the gate, directions are counted in the root
mean square of what the prompt adds, and what was learned is folded back into w, b and z. Residual streams have a few
coordinates that are hundreds of times larger than the others, along which a step of one size would be far too long.
Training starts at the mean difference with every gate at 1 (w = 0, b = 1): at the best constant vector, from which it
can only improve on the data it sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from assay._core.errors import InputError
from assay._core.progress import progress_bar
from assay.adapt.psr.activations import check_finite, run
from assay.adapt.psr.hooks import attach
from assay.adapt.psr.objectives import liveness, mse, response_surprise, steered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from assay.adapt.psr.activations import Activations
    from assay.adapt.psr.hooks import Blocks, Edit
    from assay.adapt.psr.pairs import Example

WEIGHT_DECAY = 1e-6

#: From so many sequences, every fifth is first held out to find where to stop: w has as many unknowns as a state has
#: coordinates, and a few dozen answers are soon learned by heart.
ENOUGH_TO_HOLD_OUT, EVERY = 10, 5

_TINY, _ROUNDING = 1e-12, 1e-5


class Trainable:
    """The unknowns of one layer while they are fitted.

    Parameters
    ----------
    data : Activations
        Of the layer: gives the units.
    start : (d,)
        z at the start.
    is_gated : bool
        False: the coefficient is 1 everywhere, and only z is fitted.
    """

    def __init__(self, data: Activations, start: Tensor, is_gated: bool) -> None:
        self.is_gated = is_gated
        self.mean = data.base.mean(0)
        spread = data.base.std(0, correction=0)
        # A coordinate that never changes tells nothing, and the rounding of its mean is not to be blown up.
        self.scale = spread.where(spread > _ROUNDING * data.base.abs().amax(0), torch.inf)
        self.unit = data.delta.pow(2).mean().sqrt().clamp(min=_TINY)
        self.v = torch.zeros_like(start)
        self.c = torch.ones((), device=start.device)
        self.u = start / self.unit
        for unknown in self.unknowns:
            unknown.requires_grad_()

    @property
    def unknowns(self) -> list[Tensor]:
        """What the optimiser moves."""
        return [self.v, self.c, self.u] if self.is_gated else [self.u]

    def strength(self, hidden: Tensor) -> Tensor:
        """The coefficients of states (..., d)."""
        if not self.is_gated:
            return torch.ones(hidden.shape[:-1], device=hidden.device)
        return torch.relu((hidden.float() - self.mean) / self.scale @ self.v + self.c)

    @property
    def z(self) -> Tensor:
        """The direction in the units of the states (d,)."""
        return self.u * self.unit

    def folded(self) -> tuple[Tensor, Tensor, Tensor]:
        """w, b and z for states as they are."""
        w = (self.v / self.scale).detach()
        return w, (self.c - self.mean @ w).detach(), self.z.detach()


def mean_shift(data: Activations) -> Tensor:
    """The constant vector with the least squared error: the mean of what the prompt adds (d,).

    With strengths alpha: sum alpha delta / sum alpha^2.
    """
    return (data.alpha[:, None] * data.delta).sum(0) / data.alpha.pow(2).sum().clamp(min=_TINY)


def fit_arrays(
    data: Activations, *, reg: float = 0.1, n_steps: int = 300, learning_rate: float = 1e-2
) -> tuple[tuple[Tensor, Tensor, Tensor], np.ndarray[Any, Any]]:
    """Fit w, b and z to what the prompt adds at one layer; nothing flows through the model.

    Minimises the mean over positions of ||alpha lambda z - delta||^2, divided by its value before training, plus the
    penalty on gates that stay shut (`reg` times the mean over sequences), by AdamW on all positions at a time. From ten
    sequences on it is done twice: first without every fifth, to find the step at which those are mimicked best, then
    with all, up to that step.

    Returns
    -------
    (w, b, z)
        (d,), () and (d,), float32.
    losses : (at most n_steps,) float64
        Before each step; the first is 1 if no gate is shut.
    """
    n_taken = n_steps
    if int(data.sequence.max()) + 1 >= ENOUGH_TO_HOLD_OUT:
        held_out = data.sequence % EVERY == EVERY - 1
        errors = _descend(data.at(~held_out), data.at(held_out), reg, n_steps, n_steps, learning_rate)[2]
        n_taken = int(errors.argmin())
    state, losses, _ = _descend(data, None, reg, n_steps, n_taken, learning_rate)
    return state.folded(), losses


def _descend(
    data: Activations, watched: Activations | None, reg: float, n_steps: int, n_taken: int, learning_rate: float
) -> tuple[Trainable, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Take the first `n_taken` of `n_steps` steps; losses before each, and the error on what is watched after each."""
    state = Trainable(data, mean_shift(data), True)
    optimizer, schedule = _optimizer(state.unknowns, learning_rate, n_steps)
    numbers = torch.unique(data.sequence, return_inverse=True)[1]
    error = _Error(state, data)
    beside = None if watched is None else _Error(state, watched)
    losses, errors = np.zeros(n_taken), np.zeros(n_taken + 1)
    with torch.no_grad():
        start = float(error()[0])
        errors[0] = 0.0 if beside is None else float(beside()[0])
    if start <= _TINY * len(state.u):  # the prompt adds nothing, or always the same: the start is the answer
        return state, losses[:0], errors[:1]
    for step in range(n_taken):
        value, strength = error()
        total = value / start
        if reg:
            sums = torch.zeros(int(numbers.max()) + 1, device=strength.device).index_add(0, numbers, strength)
            total = total + reg * torch.relu(1 - sums).mean()
        optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        schedule.step()
        losses[step] = float(total.detach())
        if beside is not None:
            with torch.no_grad():
                errors[step + 1] = float(beside()[0])
    return state, losses, errors


class _Error:
    """Mean over positions of ||alpha lambda z - delta||^2 in units of delta's, from products with z.

    No array of positions by coordinates is made at a step.
    """

    def __init__(self, state: Trainable, data: Activations) -> None:
        self.state, self.alpha = state, data.alpha
        self.inputs = (data.base - state.mean) / state.scale
        self.delta = data.delta / state.unit
        self.energy = self.delta.pow(2).sum(1)

    def __call__(self) -> tuple[Tensor, Tensor]:
        state = self.state
        strength = torch.relu(self.inputs @ state.v + state.c)
        given = self.alpha * strength
        error = given.pow(2) * state.u.pow(2).sum() - 2 * given * (self.delta @ state.u) + self.energy
        return error.mean(), strength


def starts(data: dict[int, Activations]) -> dict[int, Tensor]:
    """Where z starts at each layer: the mean of what the prompt adds there beyond the steered layer before it."""
    made, before = {}, None
    for layer in sorted(data):
        shift = mean_shift(data[layer])
        made[layer] = shift if before is None else shift - before
        before = shift
    return made


def fit_through(
    model: nn.Module,
    blocks: Blocks,
    examples: Sequence[Example],
    data: dict[int, Activations],
    *,
    is_gated: bool,
    objective: str,
    reg: float,
    normalize: bool,
    n_epochs: int,
    learning_rate: float,
    seed: int,
) -> tuple[dict[int, tuple[Tensor, Tensor, Tensor]], np.ndarray[Any, Any]]:
    """Fit all layers jointly through the frozen model: all states above (MSE) or the answer (LL).

    AdamW, one sequence a step, in a new order each epoch, the learning rate falling to 0 along a line. Call it
    within :func:`assay.adapt.psr.hooks.frozen`.

    Returns
    -------
    mapping of layer to (w, b, z)
    losses : (n_epochs,) float64
        Mean over the sequences as each was visited.
    """
    generator = torch.Generator().manual_seed(seed)
    start = starts(data)
    states = {layer: Trainable(data[layer], start[layer], is_gated) for layer in sorted(data)}
    targets = _Targets(blocks, examples, min(data), wanted=objective == "mse")
    unknowns = [unknown for state in states.values() for unknown in state.unknowns]
    optimizer, schedule = _optimizer(unknowns, learning_rate, n_epochs * len(examples))
    losses = np.zeros(n_epochs)
    with progress_bar() as progress:
        task = progress.add_task("training", total=n_epochs * len(examples))
        scale = 1.0
        if normalize:
            with torch.no_grad():
                values = [float(_loss(model, blocks, states, targets, i, objective)[0]) for i in range(len(examples))]
            scale = float(np.mean(values)) or 1.0
        for epoch in range(n_epochs):
            for i in torch.randperm(len(examples), generator=generator).tolist():
                value, strengths = _loss(model, blocks, states, targets, i, objective)
                total = value / scale
                if reg and is_gated:
                    total = total + liveness(strengths, reg)
                optimizer.zero_grad()
                total.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                optimizer.step()
                schedule.step()
                losses[epoch] += float(total.detach()) / len(examples)
                progress.update(task, advance=1)
    return {layer: state.folded() for layer, state in states.items()}, losses


class _Targets:
    """States under the steering prompt from one layer up, kept in the model's dtype: constants of the training."""

    def __init__(self, blocks: Blocks, examples: Sequence[Example], first: int, *, wanted: bool) -> None:
        self.examples = examples
        self.layers = list(range(first, len(blocks)))
        self.states: list[dict[int, Tensor]] = []
        if wanted:
            with torch.no_grad():
                for number, one in enumerate(examples, 1):
                    found = run(blocks, [*one.steered, *one.response], one.steered_span, self.layers)
                    self.states.append(check_finite(found, number))


def _loss(
    model: nn.Module, blocks: Blocks, states: dict[int, Trainable], targets: _Targets, i: int, objective: str
) -> tuple[Tensor, list[Tensor]]:
    """The objective on one example, and the coefficients of every layer; the objective must be a number."""
    example = targets.examples[i]
    strengths: list[Tensor] = []

    def editing(state: Trainable) -> Edit:
        def edit(hidden: Tensor) -> Tensor:
            strengths.append(state.strength(hidden))
            return steered(hidden, strengths[-1], state.z, example.alpha)

        return edit

    edits = {layer: editing(state) for layer, state in states.items()}
    ids = [*example.base, *example.response]
    if objective == "mse":
        value = mse(run(blocks, ids, example.base_span, targets.layers, edits), targets.states[i])
    else:
        logits = answer_logits(model, blocks, ids, example.base_span, edits)
        value = response_surprise(logits, torch.tensor(example.response, device=logits.device))
    if not value.isfinite():
        raise InputError(f"pair {i + 1}: the loss is {value.item():g}; load the model in float32 or bfloat16, or lower "
                         "learning_rate")  # fmt: skip
    return value, strengths


def answer_logits(
    model: Any, blocks: Blocks, ids: Sequence[int], places: Sequence[int], edits: dict[int, Edit]
) -> Tensor:
    """Logits of a sequence steered at some positions (n_tokens, vocab)."""
    tokens = torch.tensor([list(ids)], device=model.device)
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    mask[0, list(places)] = True
    handles = attach(blocks, edits, mask=mask)
    try:
        logits: Tensor = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits[0]
    finally:
        for handle in handles:
            handle.remove()
    return logits


def _optimizer(unknowns: list[Tensor], learning_rate: float, n_steps: int) -> tuple[Any, Any]:
    """AdamW whose learning rate falls to 0 along a line."""
    if n_steps < 1 or not learning_rate > 0:
        raise InputError(f"{n_steps} steps at a learning rate of {learning_rate}: expected 1 or more, above 0")
    optimizer = torch.optim.AdamW(unknowns, learning_rate, weight_decay=WEIGHT_DECAY)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / n_steps)
