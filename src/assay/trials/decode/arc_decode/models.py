"""Targets and drafts of arc-decode's trial: two small models, and a draft of the demo model distilled on the spot."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from assay.models import small

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

#: The target and the draft of the small part: layers and width.
SIZES = {"target": (3, 128), "draft": (1, 64)}
LEARNED = small.Recipe(n_steps=500, batch_size=8, n_tokens=64, vocab_size=1024, learning_rate=3e-3)

#: The demo model's draft: its first two layers, its embeddings, and how long they learn to agree with it.
LAYERS = (0, 1)
DISTILLED = small.Recipe(n_steps=120, batch_size=4, n_tokens=64, learning_rate=1e-3, weight_decay=0.0)


class Pair(NamedTuple):
    """A target, a draft that shares its tokens, and the tokenizer."""

    target: Any
    draft: Any
    tokenizer: Any


@lru_cache(maxsize=1)
def small_pair() -> Pair:
    """Two Llamas of the same tokenizer, trained once: minutes the first time."""
    target, draft = (_small(name) for name in SIZES)
    return Pair(target.model, draft.model, target.tokenizer)


def _small(name: str) -> small.Small:
    from transformers import LlamaConfig, LlamaForCausalLM

    n_layers, width = SIZES[name]
    config = LlamaConfig(
        vocab_size=LEARNED.vocab_size,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=n_layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    told = {"n_layers": n_layers, "width": width}
    return small.train(f"arc-{name}", told, lambda: LlamaForCausalLM(config), LEARNED)


@lru_cache(maxsize=1)
def demo_pair() -> Pair:
    """The demo model with a draft of two layers distilled from it: minutes the first time."""
    from assay import models

    target, tokenizer = models.demo_lm()
    return Pair(target, demo_draft(target, tokenizer), tokenizer)


def demo_draft(target: Any, tokenizer: Any) -> Any:
    """Distil two of a Llama's layers, below its own embeddings, until they guess its next token (KL, full vocabulary).

    Trained by :func:`assay.models.small.train` on its text in the target's tokens, and found again by hash.
    """
    told = {"of": "smollm2-135m-instruct", "layers": list(LAYERS), "loss": "kl"}
    trained = small.train(
        "arc-demo-draft",
        told,
        lambda: first_layers(target),
        DISTILLED,
        loss=distance_to(target),
        shared_tokenizer=tokenizer,
    )
    return trained.model


def first_layers(target: Any) -> nn.Module:
    """A Llama of some of the target's layers; embeddings and head are the target's and stay as they are."""
    import copy

    from transformers import LlamaForCausalLM

    config = copy.deepcopy(target.config)
    config.num_hidden_layers = len(LAYERS)
    if getattr(config, "layer_types", None):
        config.layer_types = ["full_attention"] * len(LAYERS)
    draft = LlamaForCausalLM(config)
    draft.model.embed_tokens.load_state_dict(target.model.embed_tokens.state_dict())
    draft.model.norm.load_state_dict(target.model.norm.state_dict())
    draft.lm_head.load_state_dict(target.lm_head.state_dict())
    for mine, place in zip(draft.model.layers, LAYERS, strict=True):
        mine.load_state_dict(target.model.layers[place].state_dict())
    draft.generation_config = copy.deepcopy(target.generation_config)
    for module in (draft.model.embed_tokens, draft.lm_head):
        module.requires_grad_(False)
    return draft


def distance_to(target: Any) -> Callable[[nn.Module, Tensor], Tensor]:
    """The loss: KL of the draft's next-token law from the target's, mean over positions."""
    import torch
    from torch.nn.functional import kl_div

    def loss(draft: nn.Module, ids: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = target(ids, use_cache=False).logits.log_softmax(-1)
        found = draft(ids, use_cache=False).logits.log_softmax(-1)
        return kl_div(found.flatten(0, 1), wanted.flatten(0, 1), reduction="batchmean", log_target=True)

    return loss
