"""The two things an attack wants: the target class from the classifier, the reference map from the explainer."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch.nn import functional

from assay._core.errors import InputError
from assay.audit.tsef.explainers import explanation_distance
from assay.audit.tsef.filters import Box

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from torch import Tensor


Keep = Literal["best", "last"]


class Loss(NamedTuple):
    """What an attack sees of one batch of series.

    Parameters
    ----------
    distance : (n,) tensor
        d(H(x), A').
    cross_entropy : (n,) tensor
        Of the target class, in nats.
    reached : (n,) bool tensor
        The target class has the largest logit.
    """

    distance: Tensor
    cross_entropy: Tensor
    reached: Tensor


@dataclass(frozen=True)
class Objective:
    """One batch to attack. All series are (n, channels, length); `logits` and `explain` hide the model's layout.

    Parameters
    ----------
    logits : callable
        Series to (n, classes).
    explain : callable
        (series, class) to saliency of the series' shape.
    kind : "mse" or "bce"
        How explanations are compared.
    x0 : (n, channels, length) tensor
        The clean series.
    allowed : Box
        What the budget and the range of the clean series allow.
    target, explained : (n,) int tensors
        The class to reach, and the class whose explanation has to stay.
    reference : (n, channels, length) tensor of zeros and ones
    generators : list of numpy generators
        One for each series, so that a series meets the same draws in whatever batch it stands.
    """

    logits: Callable[[Tensor], Tensor]
    explain: Callable[[Tensor, Tensor], Tensor]
    kind: Literal["mse", "bce"]
    x0: Tensor
    allowed: Box
    target: Tensor
    explained: Tensor
    reference: Tensor
    generators: list[np.random.Generator]

    def __call__(self, x: Tensor, *, with_explanation: bool = True) -> Loss:
        """Both losses at `x`. Without the explanation its distance is NaN and nothing is spent on it."""
        logits = self.logits(x)
        cross_entropy = functional.cross_entropy(logits, self.target, reduction="none")
        distance = torch.full_like(cross_entropy, torch.nan)
        if with_explanation:
            distance = explanation_distance(self.explain(x, self.explained), self.reference, self.kind)
        return Loss(distance, cross_entropy, logits.detach().argmax(dim=1) == self.target)

    def uniform(self, *shape: int) -> Tensor:
        """Draw numbers from [0, 1) of shape (n, *shape), each series from its own generator."""
        drawn = [torch.from_numpy(rng.random(shape)) for rng in self.generators]
        return torch.stack(drawn).to(self.x0)

    def subset(self, rows: Tensor) -> Objective:
        """The objective of some of the series."""
        return Objective(
            self.logits, self.explain, self.kind, self.x0[rows], Box(*(part[rows] for part in self.allowed)),
            self.target[rows], self.explained[rows], self.reference[rows],
            [self.generators[row] for row in rows.tolist()],
        )  # fmt: skip


class Keeper:
    """Remembers, for each series, the iterate to return.

    "best": of the iterates that reach the target class the one with the smallest distance; of none, the last. "last":
    the last.
    """

    def __init__(self, x0: Tensor, keep: Keep) -> None:
        if keep not in ("best", "last"):
            raise InputError(f"keep {keep!r} is not one of best, last")
        self.x, self.keep = x0.clone(), keep
        self.reached = torch.zeros(len(x0), dtype=torch.bool, device=x0.device)
        self.distance = torch.full((len(x0),), torch.inf, dtype=x0.dtype, device=x0.device)
        self.cross_entropy = torch.full_like(self.distance, torch.nan)

    def offer(self, x: Tensor, loss: Loss, rows: Tensor) -> None:
        """Take the iterates of the series `rows` that are to be kept so far."""
        distance = loss.distance.detach()
        if self.keep == "last":
            better = torch.ones_like(loss.reached)
        else:
            nearer = loss.reached & (~self.reached[rows] | (distance < self.distance[rows]))
            better = nearer | ~(self.reached[rows] | loss.reached)
        taken = rows[better]
        self.x[taken] = x.detach()[better]
        self.reached[taken] = loss.reached[better]
        self.distance[taken] = distance[better]
        self.cross_entropy[taken] = loss.cross_entropy.detach()[better]

    def record(self) -> tuple[float, float, float]:
        """Share that reached the target, mean distance, mean cross-entropy of what is kept."""
        return float(self.reached.double().mean()), float(self.distance.mean()), float(self.cross_entropy.mean())


@contextmanager
def at_rest(*modules: object) -> Iterator[None]:
    """Put modules into evaluation mode, and back; cuDNN is off, as its recurrent layers differentiate only once.

    Modules that have no evaluation mode (functions, programs of torch.export) are left alone.
    """
    modes: dict[torch.nn.Module, bool] = {}
    with ExitStack() as stack:
        stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        for module in modules:
            if isinstance(module, torch.nn.Module):
                modes = {
                    part: part.training for part in module.modules()
                } | modes  # a module given twice: as it was first
                with suppress(NotImplementedError):  # a program of torch.export has one mode only
                    module.eval()
        try:
            yield
        finally:
            for part, was_training in modes.items():
                part.training = was_training
