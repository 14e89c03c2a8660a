"""The interface: a generator around a masked diffusion model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from assay._core.errors import InputError
from assay.decode.dyllm import baselines
from assay.decode.dyllm.adapters import ModelAdapter, adapter_of, check_adapter
from assay.decode.dyllm.decoding import Sampling, decode, dyllm_plan
from assay.decode.dyllm.record import Record, costs_of
from assay.decode.dyllm.samplers import REMASKING, Remasking
from assay.decode.dyllm.steps import State, begin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Mode = Literal["dyllm", "full", "prefix_cache", "dual_cache", "dllm_cache"]
MODES: tuple[Mode, ...] = ("full", "prefix_cache", "dual_cache", "dllm_cache", "dyllm")


@dataclass(frozen=True)
class Generation:
    """What ``generate`` returns.

    Parameters
    ----------
    sequences : (B, T) int64
        Prompts, padded on the left as they were given, and responses. Behind an end token stand end tokens.
    record : Record
        Rows by step and block, operations, seconds.
    """

    sequences: Tensor
    record: Record


class DyLLMGenerator:
    """Decode with a masked diffusion model and recompute only salient tokens (DyLLM).

    Parameters
    ----------
    model : nn.Module
        Bidirectional, in evaluation mode: LLaDA, Dream, a BERT, RoBERTa, ModernBERT or EuroBERT for masked language
        modelling, a Llama or Qwen that was made bidirectional; others with `adapter`.
    tokenizer : optional
        Says which tokens are the mask and the end where the model's configuration does not.
    tau : float
        A token is salient when its attention context turns by a cosine under it. From -1 (never) to 1; above 1 every
        token is, and blocks are computed densely. Published choices: 0.99 to 0.995 for LLaDA, 0.995 to 0.9975 for
        Dream. Small models want it nearer 1.
    num_full_steps : int
        Steps at the start that compute everything.
    response_period : int
        Of the steps after these, all but every `response_period`-th leave the prompt as it is.
    block_size : int
        Tokens that are filled before the next ones are begun (semi-autoregressive blocks).
    refresh_every : int, optional
        Compute everything in every such step. Not in the paper; None: never.
    mask_token_id : int, optional
        Where neither the model nor the tokenizer knows it.
    adapter : ModelAdapter, optional
        Describes a model of another architecture.

    Raises
    ------
    InputError
        A parameter out of its range, a causal model, one in training mode, of unknown blocks or without a mask token.

    Notes
    -----
    Paper: "DyLLM: Efficient Diffusion LLM Inference via Saliency-based Token Selection and Partial Attention",
    arXiv:2603.08026. For every block a step keeps keys, values, contexts and MLP outputs: with full attention
    2 n_kv_heads D + H D + d_model numbers a token.

    Examples
    --------
    >>> import torch
    >>> from transformers import ModernBertConfig, ModernBertForMaskedLM
    >>> config = ModernBertConfig(
    ...     vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    ...     pad_token_id=0, eos_token_id=None, bos_token_id=None, cls_token_id=1, sep_token_id=2,
    ... )
    >>> model = ModernBertForMaskedLM(config).eval()
    >>> generator = DyLLMGenerator(model, mask_token_id=3, block_size=4)
    >>> found = generator.generate(torch.tensor([[1, 7, 8]]), max_new_tokens=8)
    >>> found.sequences.shape, bool((found.sequences == 3).any()), len(found.record.steps)
    (torch.Size([1, 11]), False, 8)
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any = None,
        *,
        tau: float = 0.99,
        num_full_steps: int = 4,
        response_period: int = 4,
        block_size: int = 32,
        refresh_every: int | None = None,
        mask_token_id: int | None = None,
        adapter: ModelAdapter | None = None,
    ) -> None:
        if not (math.isfinite(tau) and -1 <= tau <= 2):
            raise InputError(
                f"tau={tau}: expected a cosine from -1 (no token is salient) to 1, or up to 2 for: every token is"
            )
        for name, value in (
            ("num_full_steps", num_full_steps),
            ("response_period", response_period),
            ("block_size", block_size),
            ("refresh_every", 1 if refresh_every is None else refresh_every),
        ):
            if value < 1:
                raise InputError(f"{name}={value}: expected a whole number from 1")
        _check_mode(model)
        self.model = model
        self.adapter = adapter_of(model) if adapter is None else adapter
        self.mask_token_id = _mask_of(model, tokenizer, self.adapter, mask_token_id)
        eos = self.adapter.eos_token_id
        self.eos_token_ids = _listed(getattr(tokenizer, "eos_token_id", None) if eos is None else eos)
        check_adapter(model, self.adapter, self.mask_token_id)
        self.tau, self.num_full_steps, self.response_period = tau, num_full_steps, response_period
        self.block_size, self.refresh_every = block_size, refresh_every

    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        max_new_tokens: int = 256,
        steps: int | None = None,
        temperature: float = 0.0,
        confidence_threshold: float | None = None,
        remasking: Remasking | None = None,
        seed: int = 0,
        mode: Mode = "dyllm",
        on_step: Callable[[int], None] | None = None,
    ) -> Generation:
        """Fill `max_new_tokens` masks behind every prompt.

        Parameters
        ----------
        input_ids : (B, n) int64
            Prompts of different lengths are padded on the left.
        attention_mask : (B, n), optional
            0 at padding.
        max_new_tokens : int
        steps : int, optional
            max_new_tokens / steps tokens are committed a step; None: one. Not used with `confidence_threshold`.
        temperature : float
            Above 0, tokens are drawn.
        confidence_threshold : float, optional
            A step commits its best token and all whose score reaches this.
        remasking : {"confidence", "margin", "entropy", "random"}, optional
            What decides which positions are filled first; None: entropy for Dream, else confidence.
        seed : int
            Of drawn tokens and of random remasking.
        mode : {"dyllm", "full", "prefix_cache", "dual_cache", "dllm_cache"}
            The others are what DyLLM is compared with: full recomputation, Fast-dLLM's caches and dLLM-Cache.
        on_step : callable, optional
            Called with the number of tokens that a step filled.

        Raises
        ------
        InputError
            An argument out of its range, a prompt that is empty, padded on the right or holds masks, more tokens than
            the model has positions, or a model in training mode.
        """
        state, sampling = self.prepare(
            input_ids,
            attention_mask,
            max_new_tokens=max_new_tokens,
            steps=steps,
            temperature=temperature,
            confidence_threshold=confidence_threshold,
            remasking=remasking,
            seed=seed,
        )
        if mode not in MODES:
            raise InputError(f"mode={mode!r}: expected one of {', '.join(MODES)}")
        plans = {
            "full": baselines.full,
            "prefix_cache": baselines.prefix_cache,
            "dual_cache": baselines.dual_cache,
            "dllm_cache": baselines.dllm_cache,
            "dyllm": dyllm_plan(self.tau, self.num_full_steps, self.response_period, self.refresh_every),
        }
        records = decode(self.adapter, state, sampling, plans[mode], on_step)
        head_weights = self.adapter.d_model * self.adapter.vocab_size
        n_rows = int(state.real.sum())
        record = Record(mode, records, costs_of(self.adapter), head_weights, n_rows, len(state.ids))
        return Generation(state.ids, record)

    @torch.inference_mode()
    def prepare(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        max_new_tokens: int,
        steps: int | None = None,
        temperature: float = 0.0,
        confidence_threshold: float | None = None,
        remasking: Remasking | None = None,
        seed: int = 0,
    ) -> tuple[State, Sampling]:
        """Check what ``generate`` was given; return the masked sequences and how they are to be filled."""
        _check_mode(self.model)  # it may have been trained since
        n_commit = self._tokens_a_step(max_new_tokens, steps, confidence_threshold)
        if remasking is None:
            remasking = "entropy" if self.adapter.shifts_logits and confidence_threshold is None else "confidence"
        if remasking not in REMASKING:
            raise InputError(f"remasking={remasking!r}: expected one of {', '.join(REMASKING)}")
        if confidence_threshold is not None and not 0 < confidence_threshold <= 1:
            raise InputError(f"confidence_threshold={confidence_threshold}: expected a number above 0, up to 1")
        if confidence_threshold is not None and remasking == "entropy":
            raise InputError(
                "confidence_threshold is a probability: use it with remasking confidence, margin or random"
            )
        if not (math.isfinite(temperature) and temperature >= 0):
            raise InputError(f"temperature={temperature}: expected a number from 0")
        prompt, real = self._checked(input_ids, attention_mask)
        n = len(prompt)
        masks = prompt.new_full((n, max_new_tokens), self.mask_token_id)
        ids = torch.cat((prompt, masks), dim=1)
        real = torch.cat((real, real.new_ones(n, max_new_tokens)), dim=1)
        longest, there = int(real.sum(1).max()), self.adapter.max_positions
        if there is not None and longest > there:
            raise InputError(
                f"a prompt of {longest - max_new_tokens} tokens and max_new_tokens={max_new_tokens} make {longest}, "
                f"and {type(self.model).__name__} has positions for {there}; shorten one of them"
            )
        generator = torch.Generator(device=ids.device).manual_seed(seed)
        sampling = Sampling(
            self.mask_token_id,
            self.eos_token_ids,
            n_commit,
            self.block_size,
            remasking,
            confidence_threshold,
            temperature,
            generator,
        )
        return begin(self.adapter, ids, real, prompt.shape[1]), sampling

    def _tokens_a_step(self, max_new_tokens: int, steps: int | None, threshold: float | None) -> int:
        if max_new_tokens < 1:
            raise InputError(f"max_new_tokens={max_new_tokens}: expected a whole number from 1")
        if threshold is not None or steps is None:
            return 1
        if steps < 1 or max_new_tokens % steps:
            raise InputError(
                f"max_new_tokens={max_new_tokens} is not a multiple of steps={steps}; choose steps that divide it, or "
                "give a confidence_threshold"
            )
        n_commit = max_new_tokens // steps
        if self.block_size < max_new_tokens and self.block_size % n_commit:
            raise InputError(
                f"block_size={self.block_size} is not a multiple of the {n_commit} tokens that a step commits; choose "
                "other steps or another block size"
            )
        return n_commit

    def _checked(self, input_ids: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        if input_ids.ndim != 2 or not input_ids.shape[1]:
            raise InputError(
                f"input_ids has shape {tuple(input_ids.shape)}: expected (sequences, tokens) with a token or more"
            )
        device = next(self.model.parameters()).device
        prompt = input_ids.to(device)
        real = torch.ones_like(prompt, dtype=torch.bool)
        if attention_mask is not None:
            if attention_mask.shape != input_ids.shape:
                raise InputError(
                    f"attention_mask has shape {tuple(attention_mask.shape)} and input_ids {tuple(input_ids.shape)}; "
                    "expected the same"
                )
            real = attention_mask.to(device).bool()
            if not real[:, -1].all() or bool((real[:, :-1] & ~real[:, 1:]).any()):
                raise InputError(
                    "prompts of different lengths are padded on the left (padding_side='left'), and every one has a "
                    "token or more; this attention_mask has a 0 behind a 1, or only 0"
                )
        holding = ((prompt == self.mask_token_id) & real).any(1).nonzero().flatten().tolist()
        if holding:
            raise InputError(
                f"prompt {holding[0]} holds the mask token {self.mask_token_id}; only the response is filled, so take "
                "it out"
            )
        unknown = prompt[(prompt < 0) | (prompt >= self.adapter.vocab_size)]
        if len(unknown):
            raise InputError(
                f"input_ids holds token {int(unknown[0])}; the model knows 0 to {self.adapter.vocab_size - 1}"
            )
        return prompt, real


def dyllm_generate(
    model: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    tokenizer: Any = None,
    tau: float = 0.99,
    num_full_steps: int = 4,
    response_period: int = 4,
    block_size: int = 32,
    refresh_every: int | None = None,
    mask_token_id: int | None = None,
    **options: Any,
) -> Generation:
    """Decode once: :class:`DyLLMGenerator` and its ``generate`` in one call, whose arguments they are."""
    generator = DyLLMGenerator(
        model,
        tokenizer,
        tau=tau,
        num_full_steps=num_full_steps,
        response_period=response_period,
        block_size=block_size,
        refresh_every=refresh_every,
        mask_token_id=mask_token_id,
    )
    return generator.generate(input_ids, attention_mask, **options)


def _check_mode(model: nn.Module) -> None:
    if model.training:
        raise InputError(f"{type(model).__name__} is in training mode; call model.eval() first")


def _listed(tokens: int | Sequence[int] | None) -> tuple[int, ...]:
    """No token, one, or some, as a tuple."""
    if tokens is None:
        return ()
    return (tokens,) if isinstance(tokens, int) else tuple(tokens)


def _mask_of(model: nn.Module, tokenizer: Any, adapter: ModelAdapter, given: int | None) -> int:
    for mask in (given, adapter.mask_token_id, getattr(tokenizer, "mask_token_id", None)):
        if mask is not None:
            if not 0 <= mask < adapter.vocab_size:
                raise InputError(f"mask_token_id={mask}: the model knows tokens 0 to {adapter.vocab_size - 1}")
            return int(mask)
    raise InputError(
        f"{type(model).__name__} has no mask token: neither its configuration nor its tokenizer names one; give "
        "mask_token_id="
    )
