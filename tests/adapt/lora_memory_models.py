"""Tiny random models of several architectures, and facts they can learn by heart in a second."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from assay.adapt.lora_memory import Fact, LoRAMemory, WriteConfig

TEMPLATE = "{question} {answer}"
N_WORDS = 90
CHAT = (
    "{% for m in messages %}<|{{ m.role }}|> {{ m.content }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<|assistant|> {% endif %}"
)

# Large initial weights: with the usual 0.02 a frozen head of a random model can hardly be made to say anything.
SMALL = {"vocab_size": N_WORDS + 10, "bos_token_id": None, "eos_token_id": N_WORDS, "initializer_range": 0.3}
LLAMA_LIKE = {
    **SMALL, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": None,
}  # fmt: skip
CONFIGS = {
    "llama": LlamaConfig(**LLAMA_LIKE),
    "qwen": Qwen2Config(**LLAMA_LIKE),
    "gemma": Gemma2Config(**{**LLAMA_LIKE, "head_dim": 8, "query_pre_attn_scalar": 8}),
    "gpt2": GPT2Config(**SMALL, n_embd=32, n_layer=2, n_head=4, n_positions=256),
}


def tiny(name="llama", seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(CONFIGS[name]).eval()


def words(*, pad=False, chat=False):
    """A tokenizer of ninety words, an end and, if wanted, a token to pad with and a chat template."""
    names = [*(f"v{i}" for i in range(N_WORDS)), "<end>", "<|user|>", "<|assistant|>", "?", "[unk]", "<pad>"]
    backend = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[unk]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[unk]", eos_token="<end>", pad_token="<pad>" if pad else None
    )
    if chat:
        made.chat_template = CHAT
    return made


def facts(n, start=0):
    """Questions of two words, answers of two: no answer can be told from another's."""
    places = range(start + 1, start + n + 1)
    return [Fact(f"v{i} v{(i * 7) % 90}", f"v{(i * 11 + 3) % 90} v{(i * 5 + 1) % 90}") for i in places]


def fast(**changes):
    """Enough training for a tiny model to know eight facts by heart."""
    return WriteConfig(**{"n_steps": 60, "learning_rate": 2e-2, "batch_size": 8, **changes})


def memory_of(model, tokenizer=None, **options):
    options = {"rank": 4, "template": TEMPLATE, "format": "plain", "dropout": 0.0, **options}
    return LoRAMemory(model, tokenizer or words(), **options)


def logits(model, ids=(1, 2, 3, 4)):
    with torch.inference_mode():
        return model(input_ids=torch.tensor([list(ids)])).logits.clone()
