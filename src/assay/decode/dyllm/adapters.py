"""Describe a model as blocks: LLaDA, Dream and other bidirectional Llamas, BERT, RoBERTa, ModernBERT, or your own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from assay._core.errors import InputError
from assay.decode.dyllm.layer import BlockAdapter, Rope, dense_layer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SUPPORTED = (
    "LLaDA (model.transformer.blocks with q_proj, attn_out, ff_proj), Dream and bidirectional Llama, Qwen2, Qwen3 or "
    "EuroBERT (model.layers with self_attn.q_proj and mlp), BERT and RoBERTa (encoder.layer), ModernBERT (attn.Wqkv)"
)


@dataclass(frozen=True)
class ModelAdapter:
    """What a masked diffusion model computes, in pieces: give one to :class:`DyLLMGenerator` for your own architecture.

    Parameters
    ----------
    embed : callable
        ``embed(input_ids, positions)``, both (B, T), returns (B, T, d_model).
    rope : callable
        ``rope(positions)`` returns for every block the cosines and sines (B, T, head_dim), or None.
    blocks : sequence of BlockAdapter
    head : callable
        From (..., d_model) behind the last block to logits, the final norm included.
    d_model, vocab_size : int
    shifts_logits : bool
        Whether logits at a position are about the next one (Dream).
    mask_token_id : int, optional
    eos_token_id : int or sequence of int, optional
        As the model's configuration has them; every end token ends a response.
    max_positions : int, optional
        Tokens of a sequence that have a learned position; None: positions are not learned.
    """

    embed: Callable[[Tensor, Tensor], Tensor]
    rope: Callable[[Tensor], Sequence[Rope | None]]
    blocks: Sequence[BlockAdapter]
    head: Callable[[Tensor], Tensor]
    d_model: int
    vocab_size: int
    shifts_logits: bool = False
    mask_token_id: int | None = None
    eos_token_id: int | Sequence[int] | None = None
    max_positions: int | None = None


def adapter_of(model: nn.Module) -> ModelAdapter:
    """Describe a model of a known architecture; which one is told from its parts, not from its name.

    Raises
    ------
    InputError
        No architecture of ours has its parts.
    """
    for describe in (_llada, _llama, _modernbert, _bert):
        try:
            adapter = describe(model)
        except AttributeError:
            continue  # it lacks a part that this architecture has
        if adapter is not None:
            return adapter
    raise InputError(
        f"{type(model).__name__} is made of blocks that are not known here; known are {SUPPORTED}; describe another "
        "one with assay.decode.dyllm.ModelAdapter and BlockAdapter, and give it as adapter="
    )


@torch.inference_mode()
def check_adapter(model: nn.Module, adapter: ModelAdapter, mask_token_id: int) -> None:
    """Refuse a causal model, and an adapter that does not compute what its model does, by four tokens.

    Raises
    ------
    InputError
    """
    device = next(model.parameters()).device
    usable = [token for token in range(min(adapter.vocab_size, 64)) if token != mask_token_id]
    first = torch.tensor([[*usable[4:7], mask_token_id]], device=device)
    other = torch.tensor([[*usable[4:7], usable[7]]], device=device)
    theirs, changed = (model(ids).logits.float() for ids in (first, other))
    if torch.allclose(theirs[:, 0], changed[:, 0], rtol=1e-5, atol=1e-6):
        raise InputError(
            f"{type(model).__name__}: DyLLM needs a bidirectional masked diffusion model, and here a later token "
            "changes nothing at an earlier one; an autoregressive (causal) model is decoded by its own generate()"
        )
    ours = whole_logits(adapter, first).float()
    error = float((ours - theirs).norm() / theirs.norm())
    if not error < (1e-3 if theirs.dtype == next(model.parameters()).dtype == torch.float32 else 5e-2):
        raise InputError(
            f"{type(model).__name__}: its own logits and those of its blocks as described here differ by "
            f"{100 * error:.1f} %; it holds something that the description does not; known are {SUPPORTED}"
        )


def whole_logits(adapter: ModelAdapter, input_ids: Tensor) -> Tensor:
    """Logits (B, T, vocab_size) of sequences without padding, by the pieces of an adapter."""
    n, length = input_ids.shape
    positions = torch.arange(length, device=input_ids.device).expand(n, -1)
    x = adapter.embed(input_ids, positions)
    for block, rope in zip(adapter.blocks, adapter.rope(positions), strict=True):
        x, _ = dense_layer(block, x, None, rope, slice(0, length), visible(block, None, length, x.device))
    return adapter.head(x)


def visible(block: BlockAdapter, real: Tensor | None, length: int, device: torch.device) -> Tensor | None:
    """Which keys a row sees, (B or 1, 1, T, T) bool; None: all. A row sees itself even where it is padding.

    Parameters
    ----------
    block : BlockAdapter
    real : (B, T) bool, optional
        Positions that are no padding; None: there is none.
    length : int
    device : torch.device
    """
    seen = None
    if block.window is not None and block.window < length - 1:
        at = torch.arange(length, device=device)
        seen = ((at[:, None] - at).abs() <= block.window)[None, None]
    if real is not None:
        keys = real[:, None, None] | torch.eye(length, dtype=torch.bool, device=device)
        seen = keys if seen is None else seen & keys
    return seen


# ------------------------------------------------------------------------------------------------- architectures


def _llama(model: Any) -> ModelAdapter | None:
    """Dream, EuroBERT, and Llama or Qwen with a configuration that makes them bidirectional."""
    base, config = model.model, model.config
    blocks = []
    for number, layer in enumerate(base.layers):
        attention = layer.self_attn
        width = getattr(attention, "head_dim", config.hidden_size // config.num_attention_heads)
        is_local = getattr(attention, "sliding_window", None) is not None
        if is_local:
            raise InputError(f"layer {number} of {type(model).__name__} has a sliding window, which is not supported")
        # Qwen3 normalises every head.
        q_norm, k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        blocks.append(
            BlockAdapter(
                norm1=layer.input_layernorm,
                q=partial(_heads, attention.q_proj, width, norm=q_norm),
                k=partial(_heads, attention.k_proj, width, norm=k_norm),
                v=partial(_heads, attention.v_proj, width),
                o=attention.o_proj,
                norm2=layer.post_attention_layernorm,
                mlp=layer.mlp,
                n_heads=config.num_attention_heads,
                n_kv_heads=config.num_key_value_heads,
                head_dim=width,
                scale=getattr(attention, "scaling", width**-0.5),
                n_mlp_weights=_n_weights(layer.mlp),
            )
        )

    def rope(positions: Tensor) -> list[Rope | None]:
        some = base.embed_tokens.weight[:1, None]  # tells the rotary embedding device and dtype
        tables = base.rotary_emb(some, positions)
        return [tables] * len(blocks)

    return ModelAdapter(
        embed=lambda ids, positions: base.embed_tokens(ids),
        rope=rope,
        blocks=blocks,
        head=lambda x: model.lm_head(base.norm(x)),
        d_model=config.hidden_size,
        vocab_size=config.vocab_size,
        shifts_logits=str(getattr(config, "model_type", "")).lower() == "dream",
        mask_token_id=getattr(config, "mask_token_id", None),
        eos_token_id=getattr(config, "eos_token_id", None),
    )


def _llada(model: Any) -> ModelAdapter | None:
    parts, config = model.model.transformer, model.config
    blocks = []
    for block in parts.blocks:
        width = config.d_model // config.n_heads
        n_kv = getattr(config, "n_kv_heads", None) or config.n_heads
        blocks.append(
            BlockAdapter(
                norm1=block.attn_norm,
                q=partial(_heads, block.q_proj, width),
                k=partial(_heads, block.k_proj, width),
                v=partial(_heads, block.v_proj, width),
                o=block.attn_out,
                norm2=block.ff_norm,
                mlp=partial(_llada_mlp, block),
                n_heads=config.n_heads,
                n_kv_heads=n_kv,
                head_dim=width,
                scale=width**-0.5,
                n_mlp_weights=_n_weights(block.ff_proj, block.up_proj, block.ff_out),
            )
        )

    def rope(positions: Tensor) -> list[Rope | None]:
        half = torch.arange(0, width, 2, dtype=torch.float32, device=positions.device) / width
        angles = positions[..., None] * config.rope_theta**-half
        angles = torch.cat((angles, angles), dim=-1)
        return [(angles.cos(), angles.sin())] * len(blocks)

    def head(x: Tensor) -> Tensor:
        x = parts.ln_f(x)
        return linear(x, parts.wte.weight) if getattr(config, "weight_tying", False) else parts.ff_out(x)

    return ModelAdapter(
        embed=lambda ids, positions: parts.wte(ids),
        rope=rope,
        blocks=blocks,
        head=head,
        d_model=config.d_model,
        vocab_size=parts.wte.num_embeddings,
        mask_token_id=getattr(config, "mask_token_id", None),
        eos_token_id=getattr(config, "eos_token_id", None),
    )


def _llada_mlp(block: Any, x: Tensor) -> Tensor:
    fed: Tensor = block.ff_out(block.act(block.ff_proj(x)) * block.up_proj(x))
    return fed


def _modernbert(model: Any) -> ModelAdapter | None:
    base, config = model.model, model.config
    width = config.hidden_size // config.num_attention_heads
    blocks = []
    for layer in base.layers:
        fused = layer.attn.Wqkv
        window = layer.attn.sliding_window
        blocks.append(
            BlockAdapter(
                norm1=layer.attn_norm,
                q=partial(_third, fused, 0, width),
                k=partial(_third, fused, 1, width),
                v=partial(_third, fused, 2, width),
                o=layer.attn.Wo,
                norm2=layer.mlp_norm,
                mlp=layer.mlp,
                n_heads=config.num_attention_heads,
                n_kv_heads=config.num_attention_heads,
                head_dim=width,
                scale=width**-0.5,
                window=None if window is None else window - 1,  # the attention holds one more than it lets see
                n_mlp_weights=_n_weights(layer.mlp),
            )
        )
    kinds = [layer.attention_type for layer in base.layers]

    def rope(positions: Tensor) -> list[Rope | None]:
        some = base.embeddings.tok_embeddings.weight[:1, None]
        tables = {kind: base.rotary_emb(some, positions, kind) for kind in set(kinds)}
        return [tables[kind] for kind in kinds]

    return ModelAdapter(
        embed=lambda ids, positions: base.embeddings(input_ids=ids),
        rope=rope,
        blocks=blocks,
        head=lambda x: model.decoder(model.head(base.final_norm(x))),
        d_model=config.hidden_size,
        vocab_size=config.vocab_size,
        mask_token_id=getattr(config, "mask_token_id", None),
    )


def _bert(model: Any) -> ModelAdapter | None:
    base, config = model.base_model, model.config
    if getattr(config, "is_decoder", False):
        raise InputError(f"{type(model).__name__}: DyLLM needs a bidirectional masked diffusion model, not a decoder")
    head = model.cls if hasattr(model, "cls") else model.lm_head
    width = config.hidden_size // config.num_attention_heads
    embeddings = base.embeddings
    # RoBERTa counts positions from the padding token's number on.
    offset = embeddings.padding_idx + 1 if hasattr(embeddings, "padding_idx") else 0
    blocks = []
    for layer in base.encoder.layer:
        attention, output = layer.attention.self, layer.attention.output
        blocks.append(
            BlockAdapter(
                norm1=nn.Identity(),
                q=partial(_heads, attention.query, width),
                k=partial(_heads, attention.key, width),
                v=partial(_heads, attention.value, width),
                o=output.dense,
                norm2=nn.Identity(),
                mlp=partial(_bert_mlp, layer),
                n_heads=config.num_attention_heads,
                n_kv_heads=config.num_attention_heads,
                head_dim=width,
                scale=width**-0.5,
                n_mlp_weights=_n_weights(layer.intermediate, layer.output),
                after_attention=output.LayerNorm,
                after_mlp=layer.output.LayerNorm,
            )
        )
    return ModelAdapter(
        embed=lambda ids, positions: embeddings(input_ids=ids, position_ids=positions + offset),
        rope=lambda positions: [None] * len(blocks),
        blocks=blocks,
        head=head,
        d_model=config.hidden_size,
        vocab_size=config.vocab_size,
        mask_token_id=getattr(config, "mask_token_id", None),
        max_positions=embeddings.position_embeddings.num_embeddings - offset,
    )


def _bert_mlp(layer: Any, x: Tensor) -> Tensor:
    fed: Tensor = layer.output.dense(layer.intermediate(x))
    return fed


def _heads(projection: nn.Module, width: int, y: Tensor, norm: nn.Module | None = None) -> Tensor:
    flat: Tensor = projection(y)
    heads: Tensor = flat.view(*flat.shape[:-1], -1, width)
    return heads if norm is None else norm(heads)


def _third(fused: nn.Linear, which: int, width: int, y: Tensor) -> Tensor:
    """Queries, keys or values of a projection that makes all three."""
    size = fused.out_features // 3
    part = slice(which * size, (which + 1) * size)
    bias = None if fused.bias is None else fused.bias[part]
    return linear(y, fused.weight[part], bias).view(*y.shape[:-1], -1, width)


def _n_weights(*modules: nn.Module) -> int:
    return sum(weight.numel() for module in modules for weight in module.parameters() if weight.ndim > 1)
