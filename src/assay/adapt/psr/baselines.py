"""What people steer with today: the prompt itself, difference-in-means, one trained vector, projection matching."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import nn

from assay._core.errors import InputError
from assay.adapt.psr.activations import Activations, record
from assay.adapt.psr.hooks import frozen
from assay.adapt.psr.learning import check_fit, fit_jointly, layer_by_layer
from assay.adapt.psr.pairs import prompts, respond
from assay.adapt.psr.steering import Steering
from assay.adapt.psr.training import mean_shift

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor


class _Constant(Steering):
    """The same vector at every steered position."""

    def strength(self, number: int, hidden: Tensor) -> Tensor:
        """One at every position."""
        return torch.ones(hidden.shape[:-1], device=hidden.device)


class ConstantSteering(_Constant):
    """The same vector at every steered position, trained as PSR is: lambda = 1 (the paper's Const)."""

    kind: ClassVar[str] = "constant"

    def fit(
        self,
        pairs: Iterable[dict[str, Any]],
        objective: str = "mse",
        *,
        downstream: bool = True,
        epochs: int | None = None,
        learning_rate: float | None = None,
        seed: int = 123,
    ) -> Self:
        """Learn the vectors; parameters as those of :meth:`PSR.fit`.

        Without `downstream` it is the closed form: the mean of what the prompt adds, layer after layer.
        """
        check_fit(objective, downstream, epochs)
        ready = self.prepared(pairs, seed=seed)
        if not downstream:
            for number, data in layer_by_layer(self, ready):
                self._set(number, directions=mean_shift(data))
            return self
        learned = fit_jointly(self, ready, is_gated=False, objective=objective, reg=0.0, normalize=objective == "mse",
                              epochs=epochs, learning_rate=learning_rate, seed=seed)  # fmt: skip
        for number, layer in enumerate(self.layers):
            self._set(number, directions=learned[layer][2])
        return self


class DiffInMeans(_Constant):
    """Difference-in-means, as contrastive activation addition takes it: steered answers against plain answers.

    The mean state over answers given under the steering prompt, less the mean over plain answers behind the plain
    prompt, added everywhere. At one layer, or at several independently of each other.
    """

    kind: ClassVar[str] = "difference-in-means"

    def fit(self, pairs: Iterable[dict[str, Any]], *, seed: int = 123) -> Self:
        """Take the difference of the means.

        Parameters
        ----------
        pairs : iterable of dict
            As for PSR, with ``plain_response``, the answer to the plain prompt; where there is none it is sampled.
        seed : int
        """
        ready = self.prepared(pairs, seed=seed)
        open_ones = [pair for pair in ready if "plain_response" not in pair]
        if open_ones:
            plain = respond(
                self.model, self.tokenizer, [pair["prompt"] for pair in open_ones], temperature=1.0, seed=seed
            )
            for pair, answer in zip(open_ones, plain, strict=True):
                pair["plain_response"] = answer
        with frozen(self.model):
            shown = record(self.blocks, self.examples(ready), self.layers)
            plain_pairs = [
                {**pair, "response": pair["plain_response"]} for pair in ready if pair["plain_response"].strip()
            ]
            usual = record(self.blocks, self.examples(plain_pairs), self.layers)
        for number, layer in enumerate(self.layers):
            with_it, without = shown[layer], usual[layer]
            self._set(
                number, directions=with_it.target[with_it.is_answer].mean(0) - without.base[without.is_answer].mean(0)
            )
        return self


class ProjectionSteering(Steering):
    """Bring the projection on a direction to its mean under the prompt (Stolfo et al., arXiv:2410.12877).

    Along the unit vector u of the mean difference: A + alpha (t - A . u) u, with t the mean of A . u under the prompt.
    """

    kind: ClassVar[str] = "projection"

    def __init__(self, model: Any, tokenizer: Any, **options: Any) -> None:
        super().__init__(model, tokenizer, **options)
        self.biases = nn.Parameter(torch.zeros(len(self.layers), device=self._device))

    def strength(self, number: int, hidden: Tensor) -> Tensor:
        """What is missing to the mean projection under the prompt."""
        direction = self.directions[number].to(hidden.device)
        return self.biases[number].to(hidden.device) - hidden.float() @ direction

    def fit(self, pairs: Iterable[dict[str, Any]], *, seed: int = 123) -> Self:
        """Take the direction and the mean projection, layer after layer."""
        for number, data in layer_by_layer(self, self.prepared(pairs, seed=seed)):
            unit, level = projection(data)
            self._set(number, directions=unit, biases=level)
        return self


def projection(data: Activations) -> tuple[Tensor, Tensor]:
    """Unit vector of the mean difference (d,), and the mean of the prompted states along it ().

    Raises
    ------
    InputError
        The prompt changes nothing.
    """
    shift = data.delta.mean(0)
    length = shift.norm()
    if length == 0:
        raise InputError("the steering prompt changes no state on average, so there is no direction to project on")
    unit = shift / length
    return unit, (data.target @ unit).mean()


class PromptSteering:
    """The steering prompt itself: what the others stand in for.

    Parameters
    ----------
    model, tokenizer
    instruction : str
    """

    kind = "prompt"

    def __init__(self, model: Any, tokenizer: Any, instruction: str) -> None:
        self.model, self.tokenizer, self.instruction = model, tokenizer, instruction

    def generate(self, questions: Sequence[str], **options: Any) -> list[str]:
        """Answers to questions under the instruction; options as those of :meth:`Steering.generate`, without alpha."""
        asked = [prompts(question, self.instruction, self.tokenizer)["steered_prompt"] for question in questions]
        return respond(self.model, self.tokenizer, asked, **options)
