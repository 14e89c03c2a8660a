"""Tiny random models of every architecture that dyllm knows; LLaDA and Dream, whose code is remote, by their parts."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn.functional import linear, scaled_dot_product_attention, silu
from transformers import (
    BertConfig,
    BertForMaskedLM,
    EuroBertConfig,
    EuroBertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    RobertaConfig,
    RobertaForMaskedLM,
)

VOCAB, MASK, EOS = 61, 60, 2
SHAPE = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip


class LLaDABlock(nn.Module):
    """A LLaDA block: RMS norms, separate projections, grouped keys, rotary positions, a gated MLP."""

    def __init__(self, config):
        super().__init__()
        self.config, d = config, config.d_model
        self.attn_norm, self.ff_norm = nn.RMSNorm(d, eps=1e-5), nn.RMSNorm(d, eps=1e-5)
        kv = d // config.n_heads * config.n_kv_heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d, n, bias=False) for n in (d, kv, kv))
        self.attn_out = nn.Linear(d, d, bias=False)
        self.ff_proj, self.up_proj = (nn.Linear(d, config.mlp_hidden_size, bias=False) for _ in range(2))
        self.ff_out = nn.Linear(config.mlp_hidden_size, d, bias=False)
        self.act = silu

    def forward(self, x):
        y, width = self.attn_norm(x), self.config.d_model // self.config.n_heads
        q, k, v = (p(y).unflatten(-1, (-1, width)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.turned(q), self.turned(k)
        k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for part in (k, v))
        x = x + self.attn_out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y = self.ff_norm(x)
        return x + self.ff_out(self.act(self.ff_proj(y)) * self.up_proj(y))

    def turned(self, x):
        """Pairs (i, i + D / 2) as complex numbers, times exp(i position / theta^(2 i / D))."""
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[2])[:, None] * self.config.rope_theta ** -(torch.arange(half) / half)
        z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat((z.real, z.imag), dim=-1)


class LLaDA(nn.Module):
    """A model with the parts that LLaDAModelLM has."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        parts = {
            "wte": nn.Embedding(config.vocab_size, config.d_model),
            "ln_f": nn.RMSNorm(config.d_model, eps=1e-5),
            "blocks": nn.ModuleList([LLaDABlock(config) for _ in range(config.n_layers)]),
        }
        if not config.weight_tying:
            parts["ff_out"] = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.model = nn.Module()
        self.model.transformer = nn.ModuleDict(parts)

    def forward(self, input_ids):
        parts = self.model.transformer
        x = parts.wte(input_ids)
        for block in parts.blocks:
            x = block(x)
        x = parts.ln_f(x)
        logits = linear(x, parts.wte.weight) if self.config.weight_tying else parts.ff_out(x)
        return SimpleNamespace(logits=logits)


def llada(weight_tying=False, n_kv_heads=2, seed=0, sharp=3.0):
    torch.manual_seed(seed)
    config = SimpleNamespace(
        vocab_size=VOCAB, d_model=32, mlp_hidden_size=48, n_layers=3, n_heads=4, n_kv_heads=n_kv_heads,
        rope_theta=5e5, weight_tying=weight_tying, mask_token_id=MASK, eos_token_id=None,
    )  # fmt: skip
    return restless(LLaDA(config), sharp)


def dream(seed=0):
    """Qwen2 with biases on queries, keys and values, nothing causal, and logits about the next position."""
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(Qwen2Config(**SHAPE, num_key_value_heads=2, attn_implementation="eager"))
    model = bidirectional(model)
    model.config.model_type = "Dream"
    return restless(model)


def bidirectional_llama(seed=0):
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=1))
    return restless(bidirectional(model))


def bidirectional_qwen3(seed=0):
    """Every head's queries and keys are normalised, and heads are wider than the width over their number."""
    torch.manual_seed(seed)
    config = Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=12, attn_implementation="eager")
    return restless(bidirectional(Qwen3ForCausalLM(config)))


def bidirectional(model):
    model.config.is_causal = False  # the mask
    for layer in model.model.layers:
        layer.self_attn.is_causal = False  # the kernel
    model.config.mask_token_id = MASK
    return model


def eurobert(seed=0):
    torch.manual_seed(seed)
    return restless(EuroBertForMaskedLM(EuroBertConfig(**SHAPE, num_key_value_heads=2, mask_token_id=MASK)))


def bert(seed=0):
    torch.manual_seed(seed)
    return restless(BertForMaskedLM(BertConfig(**SHAPE)))


def roberta(seed=0):
    torch.manual_seed(seed)
    return restless(RobertaForMaskedLM(RobertaConfig(**{**SHAPE, "max_position_embeddings": 130})))


def modernbert(seed=0):
    """The first of its blocks sees everything, the other two at most four positions away."""
    torch.manual_seed(seed)
    config = ModernBertConfig(**SHAPE, cls_token_id=1, sep_token_id=2, local_attention=8)
    return restless(ModernBertForMaskedLM(config))


@torch.no_grad()
def restless(model, sharp=3.0):
    """Matrices three times as large as a fresh model's: attention is then sharp enough for contexts to turn."""
    for weight in model.parameters():
        if weight.ndim > 1:
            weight *= sharp
        elif weight.ndim == 1:
            weight += 0.1 * torch.randn_like(weight)
    return model.eval()


MODELS = {
    "llada": llada,
    "llada, tied": lambda seed=0: llada(weight_tying=True, n_kv_heads=4, seed=seed),
    "dream": dream,
    "bidirectional llama": bidirectional_llama,
    "bidirectional qwen3": bidirectional_qwen3,
    "eurobert": eurobert,
    "bert": bert,
    "roberta": roberta,
    "modernbert": modernbert,
}


def prompt(n_tokens, n=1, seed=0):
    """Random tokens, neither mask nor end nor padding."""
    return torch.randint(4, VOCAB - 1, (n, n_tokens), generator=torch.Generator().manual_seed(seed))
