"""Tiny random models with real architectures, a tokenizer of a few words, and items for them."""

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from assay.evaluate.cc_icl import CriterionSpec, Items

SPEC = CriterionSpec(
    "Is there an anomaly ?",
    ("No", "Yes"),
    {"A": {"good": "No", "ink": "No", "cut": "Yes"}, "B": {"good": "No", "ink": "Yes", "cut": "Yes"}},
)

WORDS = "<pad> </s> <unk> <image> No Yes Question : Answer Is there an anomaly ? with or . user good ink cut 0 1 2 3"
WORDS = WORDS.split()
CHAT = (
    "{% for m in messages %}user {% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<image> {% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %} : {% endif %}"
)


def make_tokenizer(chat=CHAT):
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    made = PreTrainedTokenizerFast(tokenizer_object=words, additional_special_tokens=["<image>"], **special)
    made.chat_template = chat
    return made


def tiny_lm(seed=0, **options):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=len(WORDS), pad_token_id=0, eos_token_id=1, **sizes | options)
    ).eval()


def notes():
    pairs = [
        (f"{c} {n} {m}" if m else f"{c} {n}", c) for c in ("good", "ink", "cut") for n in range(4) for m in ("", "or")
    ]
    return Items("text", *zip(*pairs, strict=True))


def tiny_vlm():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(image_size=16, patch_size=8, projection_dim=16, **sizes),
        text_config=LlamaConfig(vocab_size=len(WORDS), pad_token_id=0, **sizes),
        image_token_index=WORDS.index("<image>"),
    )
    processor = LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}),
        make_tokenizer(),
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT,
    )
    return LlavaForConditionalGeneration(config).eval(), processor


def write_pictures(folder, n=3):
    """`n` pictures of noise in each category's folder."""
    rng = np.random.default_rng(0)
    for category in ("good", "ink", "cut"):
        (folder / category).mkdir(parents=True)
        for number in range(n):
            noise = rng.integers(256, size=(16, 16, 3), dtype=np.uint8)
            Image.fromarray(noise).save(folder / category / f"{number}.png")
