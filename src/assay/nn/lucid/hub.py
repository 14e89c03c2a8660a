"""LUCID in transformers: ``attn_implementation="lucid"``, and the cache that decodes with it.

The attention registry hands over queries, keys and values behind RoPE and the mask; here the values are preconditioned
and transformers' own SDPA does the rest. A cache must keep Y in the place of V, and the mask is only known in the
attention: `LucidCache` therefore hands out the new values with a note of their layer, and Y is put back there.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from assay._core.errors import InputError
from assay._core.extras import need
from assay.nn.lucid.attention import preconditioned

need("transformers", extra="lm", purpose="LUCID attention in transformers")

from transformers import AttentionInterface, AttentionMaskInterface  # noqa: E402  # it may be missing, see above
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer  # noqa: E402
from transformers.integrations.sdpa_attention import sdpa_attention_forward  # noqa: E402
from transformers.masking_utils import sdpa_mask  # noqa: E402

if TYPE_CHECKING:
    import os

    from transformers import PreTrainedConfig, PreTrainedModel

NAME = "lucid"

#: Entry of config.json that says whether the weights belong with LUCID: True, or UNTRAINED after a switch alone.
MARK, UNTRAINED = "lucid_attention", "untrained"

_warned: set[str] = set()


def register() -> None:
    """Make ``attn_implementation="lucid"`` known to transformers, in this process.

    Examples
    --------
    >>> from transformers import AutoModelForCausalLM, LlamaConfig
    >>> register()
    >>> config = LlamaConfig(vocab_size=99, hidden_size=32, intermediate_size=32, num_hidden_layers=1)
    >>> model = AutoModelForCausalLM.from_config(config, attn_implementation="lucid")
    >>> model(torch.arange(8)[None]).logits.shape
    torch.Size([1, 8, 99])
    """
    AttentionInterface.register(NAME, lucid_attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def lucid_attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What the registry calls: precondition the values of this layer, then transformers' SDPA.

    Raises
    ------
    InputError
        The model is not causal, caps or shifts its logits, masks by weights, or keeps plain values in its cache.
    """
    _check(module, attention_mask, is_causal, kwargs)
    layer = getattr(value, "lucid_layer", None)
    n, m = key.shape[-2], query.shape[-2]
    if layer is None and n != m:
        raise InputError(
            f"LUCID decodes from preconditioned values, and this cache keeps plain ones ({m} queries, {n} keys): pass "
            f"cache=LucidCache(config=model.config) to generate (past_key_values= before transformers 5.24), or "
            f"use_cache=False"
        )
    if attention_mask is None and 1 < m < n:  # several tokens behind a cache
        attention_mask = torch.ones(m, n, dtype=torch.bool, device=key.device).tril(n - m)[None, None]
    past = None if layer is None or n == m else layer.values
    # Without a mask, one query sees all keys and many see those up to their own: P's own rule in both cases.
    solved = preconditioned(key, value, scale=scaling, mask=attention_mask, past=past)
    if layer is not None:
        layer.keep(solved)
    output, _ = sdpa_attention_forward(
        module, query, key, solved, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **kwargs
    )
    config = getattr(module, "config", None)
    if output.requires_grad and config is not None and getattr(config, MARK, None) is not True:
        hooked: Any = output  # torch leaves hooks untyped
        hooked.register_hook(lambda _: setattr(config, MARK, True))  # a forward alone trains nothing
    return output, None


def _check(
    module: torch.nn.Module, attention_mask: Tensor | None, is_causal: bool | None, kwargs: dict[str, Any]
) -> None:
    name = type(module).__name__
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise InputError(f"{name} attends in both directions; LUCID attention is causal")
    for option in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(option) is not None:
            raise InputError(
                f"{name} changes its logits ({option}), which LUCID's kernel does not know; set it to None in the "
                f"configuration (Gemma 2: attn_logit_softcapping=None)"
            )
    if attention_mask is not None and attention_mask.dtype != torch.bool:
        raise InputError(
            f"{name} was given a mask of {attention_mask.dtype}; LUCID needs to know what is masked: pass a boolean one"
        )
    config = getattr(module, "config", None)
    mark = getattr(config, MARK, None)
    if config is None or mark is True:
        return
    place = getattr(config, "_name_or_path", "")
    if not place and mark is None:  # made with LUCID: it never had another attention, which save_pretrained says
        setattr(config, MARK, True)
    elif not module.training and place not in _warned:
        _warned.add(place)
        warnings.warn(
            f"{place or 'this model'} was trained with another attention: with LUCID its outputs change until it is "
            f"trained further",
            stacklevel=2,
        )


class _LucidLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # transformers leaves its hook untyped
    """Keys, and Y in the place of values."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys = key_states if self.keys is None else torch.cat([self.keys, key_states], dim=-2)
        self.keys = keys
        return keys, _noted(value_states, self)

    def keep(self, solved: Tensor) -> None:
        """Y of all positions."""
        self.values = solved


class _LucidSlidingLayer(DynamicSlidingWindowLayer):  # type: ignore[no-untyped-call]  # as above
    """The last keys and their Y: what is further back than the window enters neither the softmax nor P."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.cumulative_length += key_states.shape[-2]
        keys = key_states if self.keys is None else torch.cat([self.keys, key_states], dim=-2)
        self.keys = keys[..., -self.sliding_window + 1 :, :]
        return keys, _noted(value_states, self)

    def activate_past_recording(self) -> None:
        raise InputError("LucidCache does not go back within a sliding window; decode without an assistant model")

    def keep(self, solved: Tensor) -> None:
        """Y of the positions that the last update returned keys of."""
        self.values = solved[..., -self.sliding_window + 1 :, :]


def _noted(values: Tensor, layer: Any) -> Tensor:
    noted = values.view_as(values)
    noted.lucid_layer = layer  # type: ignore[attr-defined]  # the registry passes on nothing but tensors
    return noted


class LucidCache(DynamicCache):
    """A cache for models with LUCID attention: keys and preconditioned values.

    A new token costs one product with the cached keys more than softmax attention; nothing is solved anew.

    Parameters
    ----------
    config : transformers.PreTrainedConfig, optional
        Of the model; needed where layers have sliding windows.

    Examples
    --------
    >>> cache = LucidCache(config=model.config)  # doctest: +SKIP
    >>> model.generate(**inputs, cache=cache)  # past_key_values= before transformers 5.24  # doctest: +SKIP
    """

    def __init__(self, config: PreTrainedConfig | None = None) -> None:
        super().__init__(config=config)
        if config is None:
            self.layer_class_to_replicate = _LucidLayer
            return
        self.layers = [_like(layer) for layer in self.layers]


def _like(layer: Any) -> Any:
    if type(layer) is DynamicSlidingWindowLayer:
        return _LucidSlidingLayer(layer.sliding_window)
    if type(layer) is DynamicLayer:
        return _LucidLayer()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
    raise InputError(f"LucidCache does not know layers of the kind {type(layer).__name__}")


# ---------------------------------------------------------------------------------------------------- whole models


def convert_(model: PreTrainedModel) -> None:
    """Switch a causal language model to LUCID attention, in place; train it afterwards.

    No weight changes, and what the model computes does: evaluated before a pass backward, it warns once.
    ``save_pretrained`` notes in config.json that it has LUCID, and whether it was trained since; :func:`load` reads it
    back, and any other way of loading must be given ``attn_implementation="lucid"``.

    Parameters
    ----------
    model : transformers.PreTrainedModel

    Raises
    ------
    InputError
        Its attention cannot be exchanged, or caps its logits.
    """
    register()
    config = model.config
    if getattr(config, "attn_logit_softcapping", None) is not None:
        raise InputError(
            f"{type(model).__name__} caps its logits (attn_logit_softcapping={config.attn_logit_softcapping}), which "
            f"LUCID's kernel does not know; set it to None in the configuration"
        )
    if not model._supports_attention_backend:
        raise InputError(f"{type(model).__name__} does not take its attention from transformers' registry")
    model.set_attn_implementation(NAME)
    text_config = config.get_text_config()
    if getattr(text_config, MARK, None) is not True:
        setattr(text_config, MARK, UNTRAINED)


def load(folder: str | os.PathLike[str]) -> tuple[PreTrainedModel, Any]:
    """Load a model that was made with LUCID or switched to it and saved, with its attention, and its tokenizer.

    Raises
    ------
    InputError
        The folder is not there, or its config.json does not say that the model has LUCID attention.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = Path(folder)
    if not (place / "config.json").is_file():
        raise InputError(f"{place} holds no config.json, so it is not the folder of a Hugging Face model")
    register()
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    model = AutoModelForCausalLM.from_pretrained(place, attn_implementation=NAME, use_safetensors=True, **options)
    if not getattr(model.config.get_text_config(), MARK, False):
        raise InputError(f"{place}: its config.json does not say that it has LUCID attention; convert it first")
    return model.train(False), AutoTokenizer.from_pretrained(place, **options)
