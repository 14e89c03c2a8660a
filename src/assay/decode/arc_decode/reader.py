"""A causal language model with its cache: reads text and trees of candidates, and keeps what was accepted."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from assay._core.errors import InputError
from assay._core.extras import need

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from assay.decode.arc_decode.trees import Draft


def check_model(model: Any, role: str) -> None:
    """Refuse models whose cache cannot be cut back to what was accepted, or that cannot read a tree.

    Raises
    ------
    InputError
    """
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "get_input_embeddings"):
        raise InputError(f"{role} is {type(model).__name__}; expected a causal language model of transformers")
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(f"{role} is an encoder-decoder model ({type(model).__name__}); expected a decoder")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"]) - {"full_attention"}
    if kinds or (getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)):
        named = ", ".join(sorted(kinds)) or "sliding_attention"
        raise InputError(
            f"{role} has layers of {named}, whose cache cannot be cut back after a rejection; expected a model with "
            "full attention in every layer"
        )
    if _has_alibi(config):
        raise InputError(
            f"{role} ({type(model).__name__}) has ALiBi, attention biased by the place in the cache, which is not the "
            "depth in a tree of candidates; expected rotary or learned positions"
        )


def check_prompts(model: Any, prompts: Sequence[Tensor]) -> None:
    """Refuse prompts that are none, are empty, or hold what is no token of the model.

    Raises
    ------
    InputError
    """
    if not len(prompts):
        raise InputError("prompts: there are none; give one or more tensors of token ids")
    n_vocabulary = len(model.get_input_embeddings().weight)
    for number, ids in enumerate(prompts):
        if ids.ndim != 1 or not len(ids):
            raise InputError(f"prompt {number} has the shape {tuple(ids.shape)}; expected (length,), not empty")
        unknown = ids[(ids < 0) | (ids >= n_vocabulary)]
        if len(unknown):
            raise InputError(
                f"prompt {number} holds the token {int(unknown[0])}; the model knows 0 to {n_vocabulary - 1}"
            )


@contextmanager
def plain_settings(model: Any, **settings: Any) -> Iterator[None]:
    """Let ``model.generate`` sample from the law of :class:`Sampling`: without what its generation_config adds.

    ``generate`` takes from there whatever it is not given, such as a repetition penalty or min_p.
    """
    transformers = need("transformers", extra="lm", purpose="decoding")
    own = model.generation_config
    special = {name: getattr(own, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = transformers.GenerationConfig(**special, **settings)
    try:
        yield
    finally:
        model.generation_config = own


class Reader:
    """Reads tokens once and remembers them in the model's cache.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    """

    def __init__(self, model: Any) -> None:
        transformers = need("transformers", extra="lm", purpose="decoding")
        self.model = model
        self.cache: Any = transformers.DynamicCache()
        self.n_forwards = 0
        arguments = inspect.signature(model.forward).parameters
        # transformers 5.24 calls it cache, versions before past_key_values.
        self._cache_name = "cache" if "cache" in arguments else "past_key_values"
        self._has_logits_to_keep = "logits_to_keep" in arguments

    @property
    def n_cached(self) -> int:
        """Tokens in the cache."""
        return int(self.cache.get_seq_length())

    def read(self, text: Tensor, draft: Draft | None = None) -> Tensor:
        """Logits after the text and after each candidate that follows it.

        Parameters
        ----------
        text : (m,) int64
            Follows what is in the cache; at least one token.
        draft : Draft, optional
            Candidates below the last token of `text`.

        Returns
        -------
        (n + 1, n_vocabulary) float32
        """
        n = 0 if draft is None else len(draft.tokens)
        if draft is None or draft.is_chain:
            ids = text if draft is None else _joined(text, draft.tokens)
            return self._forward(ids, n + 1)
        m, n_cached = len(text), self.n_cached
        visible = torch.ones(m + n, n_cached + m + n, dtype=torch.bool).tril(n_cached)
        visible[m:, n_cached + m :] = draft.ancestors()
        positions = torch.cat([torch.arange(m), m - 1 + torch.tensor(draft.depths)]) + n_cached
        return self._forward(_joined(text, draft.tokens), n + 1, visible, positions)

    def read_all(self, text: Tensor) -> Tensor:
        """Logits after every token of a text, (m, n_vocabulary)."""
        return self._forward(text, len(text))

    def read_instead(self, tokens: Sequence[int], places: Sequence[int]) -> Tensor:
        """Logits after other tokens at earlier places of the cached text, (n, n_vocabulary); the cache stays as it is.

        Each token sees what is cached before its place, and itself.
        """
        n, n_cached = len(tokens), self.n_cached
        before = torch.tensor(places)
        visible = torch.cat([torch.arange(n_cached) < before[:, None], torch.eye(n, dtype=torch.bool)], dim=1)
        ids = torch.tensor(tokens, device=self.model.device)
        logits = self._forward(ids, n, visible, before)
        self.forget(n)
        return logits

    def forget(self, n: int) -> None:
        """Drop the last n tokens of the cache."""
        if n:
            self.cache.crop(-n)

    def keep(self, draft: Draft | None, path: Sequence[int]) -> None:
        """Keep, of the draft that was read last, the accepted path alone."""
        n = 0 if draft is None else len(draft.tokens)
        if list(path) != list(range(len(path))):  # not the first ones: move them there
            start = self.n_cached - n
            chosen = torch.tensor([start + place for place in path], device=self.model.device)
            for layer in self.cache.layers:
                for name in ("keys", "values"):
                    held = getattr(layer, name)
                    moved = torch.cat([held[..., :start, :], held[..., chosen.to(held.device), :]], dim=-2)
                    setattr(layer, name, moved)
            return
        self.forget(n - len(path))

    def _forward(
        self, ids: Tensor, n_kept: int, visible: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        options: dict[str, Any] = {self._cache_name: self.cache, "use_cache": True}
        if self._has_logits_to_keep:
            options["logits_to_keep"] = n_kept
        if visible is not None and positions is not None:
            options["attention_mask"] = self._additive(visible)
            options["position_ids"] = positions.to(self.model.device)[None]
        with torch.inference_mode():
            logits: Tensor = self.model(ids.to(self.model.device)[None], **options).logits[0]
        self.n_forwards += 1
        return logits[-n_kept:].float()

    def _additive(self, visible: Tensor) -> Tensor:
        """A mask that every attention of transformers takes but flash attention, which has no place for one."""
        kind = getattr(self.model.config, "_attn_implementation", "")
        if "flash" in str(kind):
            raise InputError(
                f"the model runs with {kind}, which takes no mask of a tree; load it with attn_implementation='sdpa'"
            )
        dtype = self.model.dtype
        mask = torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)
        return mask[None, None].to(self.model.device)


@dataclass(frozen=True)
class Sampling:
    """From logits to the probabilities that are sampled from.

    Parameters
    ----------
    temperature : float
        0: the most probable token has probability 1.
    top_k : int
        0: all tokens.
    top_p : float
    processors : callables ``(input_ids (1, length), logits (1, n_vocabulary)) -> logits``
        A ``LogitsProcessorList`` of penalties that depend on the text; they are applied before the temperature, to
        each position with its own prefix.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    processors: Any = None

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise InputError(f"temperature={self.temperature}: expected 0 or more")
        if self.top_k < 0:
            raise InputError(f"top_k={self.top_k}: expected 0 (all tokens) or more")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p={self.top_p}: expected above 0, at most 1")

    def probabilities(self, logits: Tensor, prefixes: Sequence[Tensor] | None = None) -> Tensor:
        """Probabilities (n, n_vocabulary) of logits; `prefixes` are the texts before them, where processors ask."""
        if self.processors and prefixes is not None:
            rows = [self.processors(ids[None], row[None])[0] for ids, row in zip(prefixes, logits, strict=True)]
            logits = torch.stack(rows)
        if self.temperature == 0:
            return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        transformers = need("transformers", extra="lm", purpose="decoding")
        if self.temperature != 1:
            logits = logits / self.temperature
        if self.top_k:
            logits = transformers.TopKLogitsWarper(self.top_k)(None, logits)
        if self.top_p < 1:
            logits = transformers.TopPLogitsWarper(self.top_p)(None, logits)
        return logits.softmax(-1)


def _has_alibi(config: Any) -> bool:
    """BLOOM always has it; MPT unless told otherwise, and transformers' MPT whatever it is told; Falcon where told."""
    attention = getattr(config, "attn_config", None)
    is_told = getattr(config, "alibi", False) or getattr(attention, "alibi", False)
    return bool(is_told) or getattr(config, "model_type", "") in ("bloom", "mpt")


def _joined(text: Tensor, tokens: Sequence[int]) -> Tensor:
    return torch.cat([text, torch.tensor(tokens, dtype=text.dtype, device=text.device)])
