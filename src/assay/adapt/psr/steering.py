"""The interface: what is learned for a model's layers, and the ways to let it act."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import nn

from assay._core.errors import InputError
from assay.adapt.psr.activations import record, states_behind
from assay.adapt.psr.hooks import Blocks, attach, check_layers, frozen, watch_generate
from assay.adapt.psr.learning import ARRAYS_LEARNING_RATE, EPOCHS, check_fit, fit_jointly, layer_by_layer
from assay.adapt.psr.objectives import coefficient, relative_rmse, response_surprise, steered
from assay.adapt.psr.pairs import SPANS, Example, encode, judged, question_mask, respond
from assay.adapt.psr.training import answer_logits, fit_arrays

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from assay.adapt.psr.hooks import Edit
    from assay.adapt.psr.pairs import Judge, Prompt
    from assay.adapt.psr.strip import Coefficients


class Steering(nn.Module):
    """What all ways of steering share: layers of a model, a direction for each, and how to let them act.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Any decoder. It is not changed, not trained and not part of the state dict.
    tokenizer : transformers.PreTrainedTokenizerBase
    layers : "middle", "all", int or list of int
        Whose output is steered, from 0; negative numbers count from the end.
    span : "answer_only" or "question_and_answer"
        Which positions: the last token of the prompt and the answer; or the user's question as well. Training and
        use have the same.
    blocks : str, optional
        Name of the model's list of blocks, such as ``"model.layers"``, where it is not found.

    Attributes
    ----------
    directions : (n_layers, d) float32 parameter
        z of each layer.
    losses_ : (n_epochs,) float64
        Of the last fit; empty where the fit is a closed form.

    Raises
    ------
    InputError
        A layer does not exist, or the model's list of blocks is not found.
    """

    kind: ClassVar[str] = ""
    directions: nn.Parameter

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        layers: str | int | list[int] | tuple[int, ...] = "middle",
        span: str = "answer_only",
        blocks: str | None = None,
    ) -> None:
        super().__init__()
        if span not in SPANS:
            raise InputError(f"span={span!r}: expected one of {', '.join(SPANS)}")
        self.blocks = Blocks(model, blocks)
        self.layers = check_layers(layers, len(self.blocks))
        self.span = span
        self.tokenizer = tokenizer
        self._model = (model,)  # in a tuple, so that it is no submodule of this one
        self._handles: list[Any] = []
        self.losses_: NDArray[np.float64] = np.zeros(0)
        # Not the embedding's: OPT-350m projects narrower words into the states of its blocks.
        width = model.config.get_text_config().hidden_size
        self.directions = nn.Parameter(torch.zeros(len(self.layers), width, device=self._device))

    @property
    def model(self) -> Any:
        """The model that is steered."""
        return self._model[0]

    @property
    def _device(self) -> Any:
        return next(self.blocks.blocks[self.layers[0]].parameters()).device

    def strength(self, number: int, hidden: Tensor) -> Tensor:
        """Coefficients lambda at the `number`-th of `layers`: states (..., d) to (...,) float32."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Layers and span."""
        return f"layers={self.layers}, span={self.span!r}"

    # ------------------------------------------------------------------------------------------------------- act

    def edits(self, alpha: float | Tensor = 1.0, seen: dict[int, Tensor] | None = None) -> dict[int, Edit]:
        """What happens to the states of steered positions at each layer; coefficients are left in `seen`."""

        def editing(number: int, layer: int) -> Edit:
            def edit(hidden: Tensor) -> Tensor:
                strength = self.strength(number, hidden)
                if seen is not None:
                    seen[layer] = strength
                return steered(hidden, strength, self.directions[number].to(hidden.device), _of_rows(alpha, hidden))

            return edit

        if isinstance(alpha, int | float) and alpha == 0 and seen is None:
            return {}
        return {layer: editing(number, layer) for number, layer in enumerate(self.layers)}

    def attach(self, alpha: float | Tensor = 1.0, mask: Tensor | None = None) -> Self:
        """Steer the model until :meth:`detach`.

        Parameters
        ----------
        alpha : float or (batch,) tensor
            1: as strongly as the prompt does. 0: not at all. A tensor has a strength for each row of a batch, where
            as many positions of each are steered in every pass (the span "answer_only", no mask). Beams have that of
            their row.
        mask : (batch, n_tokens) bool tensor, optional
            Positions to steer in the pass of the prompt, where they are not the last token of each row alone: with
            span="question_and_answer", or where prompt and answer are one sequence.
        """
        if not torch.isfinite(torch.as_tensor(alpha)).all():
            raise InputError(f"alpha={alpha}: expected a finite number")
        if isinstance(alpha, torch.Tensor) and (mask is not None or self.span != "answer_only"):
            raise InputError("a strength for each row needs span='answer_only' and no mask")
        if self._handles:
            raise InputError("it is attached already; call detach() first")
        with_no_gradient = {layer: torch.no_grad()(edit) for layer, edit in self.edits(alpha).items()}
        if with_no_gradient:
            self._handles = attach(self.blocks, with_no_gradient, self.span, mask) + watch_generate(self.model)
        return self

    def detach(self) -> None:
        """Leave the model as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @contextmanager
    def steer(self, alpha: float | Tensor = 1.0, mask: Tensor | None = None) -> Iterator[Self]:
        """Steer the model within a ``with``; parameters as those of :meth:`attach`."""
        self.attach(alpha, mask)
        try:
            yield self
        finally:
            self.detach()

    def generate(
        self,
        prompts: Sequence[Prompt],
        alpha: float = 1.0,
        *,
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        batch_size: int = 16,
        seed: int = 0,
        questions: Sequence[str] | None = None,
        **options: Any,
    ) -> list[str]:
        """Answers to prompts under steering, in left-padded batches.

        Parameters
        ----------
        prompts : sequence of str or list of messages
        alpha : float
        max_new_tokens, temperature, batch_size, seed
            Temperature 0: greedy.
        questions : sequence of str, optional
            With span="question_and_answer" and prompts that are texts: what the question is in each.
        **options
            For ``model.generate``.
        """
        answers: list[str] = []
        for start in range(0, len(prompts), batch_size):
            batch = prompts[start : start + batch_size]
            asked = None if questions is None else questions[start : start + batch_size]
            is_asked = self.span == "question_and_answer"
            mask = question_mask(batch, self.tokenizer, asked).to(self.model.device) if is_asked else None
            with self.steer(alpha, mask):
                answers += respond(
                    self.model, self.tokenizer, batch, max_new_tokens=max_new_tokens, temperature=temperature,
                    batch_size=batch_size, seed=seed + start, **options,
                )  # fmt: skip
        return answers

    # -------------------------------------------------------------------------------------------------- look at it

    def examples(self, pairs: Iterable[dict[str, Any]]) -> list[Example]:
        """Pairs as tokens; an answer is cut where it does not fit into the model."""
        config = self.model.config.get_text_config()
        longest = getattr(config, "max_position_embeddings", None) or 0
        return encode(pairs, self.tokenizer, self.span, longest)

    @torch.no_grad()
    def coefficients(self, prompt: Prompt, response: str, question: str | None = None) -> Coefficients:
        """How strongly each token is steered, layer by layer: the picture of where it acts.

        Parameters
        ----------
        prompt : str or list of messages
        response : str
        question : str, optional
            With span="question_and_answer" and a prompt that is a text.
        """
        from assay.adapt.psr.strip import coefficients_of

        with frozen(self.model):
            return coefficients_of(self, prompt, response, question)

    @torch.no_grad()
    def relative_rmse(
        self, pairs: Iterable[dict[str, Any]], alpha: float = 1.0, *, through: int | None = None
    ) -> dict[int, float]:
        """How far the steered states are from those under the prompt, at each layer from the first steered one.

        Over the tokens of the answers: 0 mimics the prompt, 1 is no steering. NaN where the prompt changes nothing.
        The layers end with `through`, or with the model's last.
        """
        by_layer = list(range(self.layers[0], len(self.blocks) if through is None else through + 1))
        with frozen(self.model):
            examples = self.examples(pairs)
            plain = record(self.blocks, examples, by_layer)
            made = states_behind(self.blocks, examples, by_layer, self.edits(alpha))
        found = {}
        for layer in by_layer:
            keep = plain[layer].is_answer
            states = (made[layer][keep], plain[layer].base[keep], plain[layer].target[keep])
            found[layer] = relative_rmse(*states)
        return found

    @torch.no_grad()
    def surprise(self, pairs: Iterable[dict[str, Any]], alpha: float = 1.0) -> float:
        """Mean of -log p of the answers behind the plain prompt under steering, nats a token, over pairs."""
        found = []
        with frozen(self.model):
            for one in self.examples(pairs):
                ids = [*one.base, *one.response]
                logits = answer_logits(self.model, self.blocks, ids, one.base_span, self.edits(alpha))
                found.append(float(response_surprise(logits, torch.tensor(one.response, device=logits.device))))
        return float(np.mean(found))

    # ------------------------------------------------------------------------------------------------------- learn

    def prepared(
        self,
        pairs: Iterable[dict[str, Any]],
        judge: Judge | None = None,
        coherence: Judge | None = None,
        *,
        seed: int = 123,
    ) -> list[dict[str, Any]]:
        """Pairs with answers, sampled at temperature 1 under the steering prompt where there are none, and judged.

        Sampled answers that are empty are left out.
        """
        whole = [dict(pair) for pair in pairs]
        open_ones = [pair for pair in whole if "response" not in pair]
        if open_ones:
            prompts = [pair["steered_prompt"] for pair in open_ones]
            answers = respond(self.model, self.tokenizer, prompts, temperature=1.0, seed=seed)
            for pair, answer in zip(open_ones, answers, strict=True):
                pair["response"] = answer
            empty = [id(pair) for pair in open_ones if not pair["response"].strip()]
            whole = [pair for pair in whole if id(pair) not in empty]
        return whole if judge is None and coherence is None else judged(whole, judge, coherence)

    @torch.no_grad()
    def _set(self, number: int, **values: Tensor) -> None:
        for name, value in values.items():
            self.get_parameter(name)[number] = value.to(self._device)


def _of_rows(alpha: float | Tensor, hidden: Tensor) -> float | Tensor:
    """A strength for each steered position, (n, d): those of a row, and of its beams, follow one another."""
    if not isinstance(alpha, torch.Tensor) or not alpha.ndim:
        return alpha
    if len(hidden) % len(alpha):
        raise InputError(f"alpha has {len(alpha)} strengths for {len(hidden)} rows; expected one for each row")
    return alpha.repeat_interleave(len(hidden) // len(alpha))


class PSR(Steering):
    """Prompt steering replacement: A + alpha ReLU(A . w + b) z at the steered positions of one or several layers.

    Parameters
    ----------
    model, tokenizer, layers, span, blocks
        As in :class:`Steering`. One layer is the paper's S-PSR, ``layers="all"`` its A-PSR.

    Attributes
    ----------
    directions, weights : (n_layers, d) float32 parameters
        z and w.
    biases : (n_layers,) float32 parameter
        b.

    Examples
    --------
    >>> psr = PSR(model, tokenizer, layers="middle").fit(pairs)  # doctest: +SKIP
    >>> with psr.steer(alpha=1.0):  # doctest: +SKIP
    ...     model.generate(**inputs)
    """

    kind: ClassVar[str] = "psr"

    def __init__(self, model: Any, tokenizer: Any, **options: Any) -> None:
        super().__init__(model, tokenizer, **options)
        self.weights = nn.Parameter(torch.zeros_like(self.directions))
        self.biases = nn.Parameter(torch.zeros(len(self.layers), device=self._device))

    def strength(self, number: int, hidden: Tensor) -> Tensor:
        """ReLU(A . w + b) at the `number`-th of `layers`: states (..., d) to (...,) float32."""
        return coefficient(hidden, self.weights[number].to(hidden.device), self.biases[number].to(hidden.device))

    def fit(
        self,
        pairs: Iterable[dict[str, Any]],
        objective: str = "mse",
        *,
        downstream: bool = True,
        judge: Judge | None = None,
        coherence: Judge | None = None,
        alpha: str | float = "judge",
        reg: float | None = None,
        normalize: bool | None = None,
        epochs: int | None = None,
        learning_rate: float | None = None,
        seed: int = 123,
    ) -> Self:
        """Learn from answers that were given under a steering prompt.

        Parameters
        ----------
        pairs : iterable of dict
            ``prompt``, ``steered_prompt`` and ``response``, as :func:`make_pairs` or a table give them; where there is
            no response it is sampled.
        objective : "mse" or "ll"
            Mimic the states under the prompt, at every layer from the first steered one up; or make the answers likely.
        downstream : bool
            False: mimic the states of the steered layers alone, one layer after the other, on stored activations.
            Nothing flows back through the model: seconds in place of minutes on a CPU.
        judge, coherence : callable, optional
            ``judge(prompt, response)`` in [0, 1]; answers below 0.5 are dropped.
        alpha : "judge" or float
            Strength of each answer in training: the judge's score (or the pair's ``alpha``; 1 without), or a number.
        reg : float, optional
            Weight of the penalty on gates that stay shut. None: 0.1 for a normalised MSE, else 0.
        normalize : bool, optional
            Divide the MSE by its value before training. None: for the MSE. With reg above 0 it must be.
        epochs : int, optional
            None: 15 (MSE), 7 (LL), at most 300 full-batch steps (without downstream).
        learning_rate : float, optional
            None: 1e-3, or 1e-2 without downstream.
        seed : int
            Of the order of the pairs through the model, and of answers that are sampled.

        Raises
        ------
        InputError
            Pairs are broken or none is left, or the options do not go together.
        """
        check_fit(objective, downstream, epochs)
        is_mse = objective == "mse"
        normalize = is_mse if normalize is None else normalize
        reg = (0.1 if is_mse and normalize else 0.0) if reg is None else reg
        if reg < 0 or (reg and is_mse and not normalize):
            raise InputError(f"reg={reg} with normalize={normalize}: a penalty from 0, and above 0 only beside a "
                             "normalised MSE, whose size does not depend on the layer")  # fmt: skip
        if not downstream and not normalize:
            raise InputError(
                "normalize=False with downstream=False: the fit on stored activations is always normalised"
            )
        ready = self.prepared(pairs, judge, coherence, seed=seed)
        if alpha != "judge":
            ready = [{**pair, "alpha": float(alpha)} for pair in ready]
        if downstream:
            learned = fit_jointly(self, ready, is_gated=True, objective=objective, reg=reg, normalize=normalize,
                                  epochs=epochs, learning_rate=learning_rate, seed=seed)  # fmt: skip
            for number, layer in enumerate(self.layers):
                w, b, z = learned[layer]
                self._set(number, weights=w, biases=b, directions=z)
            return self
        losses = []
        for number, data in layer_by_layer(self, ready):
            (w, b, z), curve = fit_arrays(
                data, reg=reg, n_steps=EPOCHS["arrays"] if epochs is None else epochs,
                learning_rate=ARRAYS_LEARNING_RATE if learning_rate is None else learning_rate,
            )  # fmt: skip
            self._set(number, weights=w, biases=b, directions=z)
            losses.append(curve)
        self.losses_ = losses[-1]
        return self
