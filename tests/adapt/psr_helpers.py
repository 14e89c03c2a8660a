"""Tiny random decoders of several families and a tokenizer of words, for the tests of psr."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

WORDS = 97

SHAPE = {
    "vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "eos_token_id": None, "bos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip

FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SHAPE, head_dim=8, sliding_window=16)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, n_embd=32, n_layer=3, n_head=4, n_positions=64, eos_token_id=None,
                   bos_token_id=None, pad_token_id=None)
    ),
    "opt": lambda: OPTForCausalLM(
        OPTConfig(vocab_size=WORDS, hidden_size=32, ffn_dim=48, num_hidden_layers=3, num_attention_heads=4,
                  max_position_embeddings=64, word_embed_proj_dim=32, eos_token_id=None, bos_token_id=None,
                  pad_token_id=None)
    ),
}  # fmt: skip

TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'system' %}w90 {% else %}w91 {% endif %}{{ m['content'] }} w92 "
    "{% endfor %}{% if add_generation_prompt %}w93 {% endif %}"
)


def tiny(family="llama", seed=0):
    """A random model whose states are as large as a trained one's: at the usual start they are nearly zero."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = FAMILIES[family]().eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim == 2:
                    weight.normal_(0, 0.25)
    model.generation_config.eos_token_id = None
    return model


def tokenizer(template=TEMPLATE):
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(WORDS)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", pad_token="w0")
    made.chat_template = template
    return made


def text(*numbers):
    return " ".join(f"w{n}" for n in numbers)


def pairs(n=6, seed=0, n_response=8):
    """Prompts of different lengths, an instruction of two words in front, answers of words drawn at random."""
    rng = torch.Generator().manual_seed(seed)

    def draw(k):
        return text(*torch.randint(3, 90, (k,), generator=rng).tolist())

    made = []
    for number in range(n):
        question = draw(3 + number % 3)
        made.append(
            {
                "prompt": question, "steered_prompt": f"w95 w96 {question}", "question": question,
                "response": draw(n_response),
            }
        )  # fmt: skip
    return made
