"""Tiny random models with the real architectures, for the tests of model-dowser."""

import torch
from transformers import (
    CLIPVisionConfig,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    Qwen3Config,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

TINY = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "initializer_range": 0.3, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CONFIGS = {
    "llama": LlamaConfig(**TINY),
    "qwen3": Qwen3Config(**TINY),
    "gemma2": Gemma2Config(**TINY),
    "gpt2": GPT2Config(
        vocab_size=61, n_embd=32, n_layer=3, n_head=4, n_positions=64, initializer_range=0.3, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    ),
}  # fmt: skip
ARCHITECTURES = tuple(CONFIGS)


def decoder(architecture="llama", seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(CONFIGS[architecture]).eval()


def vision_language(seed=0):
    """A tiny ViT, a projector and a tiny Llama: images of 8 x 8 pixels are four tokens."""
    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=5, num_attention_heads=2, image_size=8, patch_size=4,
        projection_dim=16,
    )  # fmt: skip
    config = LlavaConfig(
        vision_config=vision, text_config=LlamaConfig(**TINY), image_token_index=3, image_seq_length=4,
        vision_feature_layer=-1, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlavaForConditionalGeneration(config).eval()


def tokens(n=3, length=12, seed=0):
    return torch.randint(4, 61, (n, length), generator=torch.Generator().manual_seed(seed))
