"""The small masked diffusion model of dyllm's trial: a ModernBERT that the shared recipe trains."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from assay._core.extras import need

if TYPE_CHECKING:
    from torch import Tensor, nn

#: Tokens of a training window, and so of a prompt with its response.
WINDOW = 96

#: Tokens of the tokenizer; the mask is the one behind them.
VOCABULARY = 2048

#: Least share of a window that training masks: a token masked alone would weigh as much as a hundred others.
LEAST_SHARE = 1 / 32


def masked_diffusion_loss(model: nn.Module, ids: Tensor) -> Tensor:
    """Cross entropy at masked tokens over the share that is masked: a bound on the surprise at a token, nats.

    The shares of a batch are spread evenly over (0, 1), from a random start, which makes the mean less noisy.
    """
    import torch
    from torch.nn.functional import cross_entropy

    n, length = ids.shape
    share = (torch.rand(1) + torch.arange(n) / n) % 1
    share = (LEAST_SHARE + (1 - LEAST_SHARE) * share)[:, None].to(ids.device)
    masked = torch.rand(n, length, device=ids.device) < share
    logits = model(input_ids=ids.masked_fill(masked, VOCABULARY)).logits[masked].float()
    surprise = cross_entropy(logits, ids[masked], reduction="none")
    return (surprise / share.expand_as(masked)[masked]).sum() / ids.numel()


@lru_cache(maxsize=2)
def trained(n_steps: int) -> Any:
    """The model, trained by the shared recipe or found trained, with its tokenizer and losses."""
    need("transformers", extra="lm", purpose="the trial of dyllm")
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    from assay.models.small import Recipe, train

    recipe = Recipe(n_steps, n_tokens=WINDOW, vocab_size=VOCABULARY, learning_rate=3e-3)
    # Blocks that see two positions to either side tell a token from its neighbours early on; with wide ones alone the
    # model stays at the frequencies of tokens for the first many hundred steps.
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY + 1, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 6,
        "num_attention_heads": 4, "max_position_embeddings": 512, "local_attention": 4,
        "layer_types": 2 * ["sliding_attention", "sliding_attention", "full_attention"],
        "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "cls_token_id": 0, "sep_token_id": 0,
    }  # fmt: skip
    said = {"loss": "masked diffusion, cross entropy over the masked share", "least_share": LEAST_SHARE, **shape}

    def build() -> nn.Module:
        model: nn.Module = ModernBertForMaskedLM(ModernBertConfig(**shape))
        return model

    return train("dyllm-masked", said, build, recipe, loss=masked_diffusion_loss)
