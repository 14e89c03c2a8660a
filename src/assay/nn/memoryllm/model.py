"""Llama with feed-forward layers that see only the token (MemoryLLM), or partly so (Flex-MemoryLLM).

X_0 is the embedding of the tokens. A block of MemoryLLM is

    X_{L+1} = X_L + Attn_L(LN(X_L)) + FFN_L(LN_L(X_0)),

with a norm LN_L of its own in every layer. A block of Flex-MemoryLLM also has FFNC_L(LN(X_L + Attn_L(LN(X_L)))), and
the dense block is that without the memory. Attention, cache, RoPE and `generate` are those of transformers' Llama.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from assay._core.errors import InputError
from assay._core.extras import need

need("transformers", extra="lm", purpose="MemoryLLM")

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM  # noqa: E402
from transformers.modeling_layers import GradientCheckpointingLayer  # noqa: E402  # it may be missing, see above
from transformers.models.llama.modeling_llama import (  # noqa: E402  # as above
    LlamaAttention,
    LlamaMLP,
    LlamaModel,
    LlamaPreTrainedModel,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.nn.memoryllm.mapped import MappedTable


class MemoryLlamaConfig(LlamaConfig):  # type: ignore[no-untyped-call]  # transformers leaves its hook untyped
    """Configuration of a Llama, and how much of its feed-forward layers sees the context.

    Parameters
    ----------
    ffn_beta : float from 0 to below 8, or "base"
        h^2 parameters a layer, of the 8 h^2 that all kinds have, that see the context. 0: MemoryLLM. "base": all of
        them, the dense Llama with its sequential block.
    ffn_c : "swiglu" or "linear"
        The layer that sees the context: three matrices with an intermediate size of ``ffn_beta * hidden_size / 3``,
        rounded, or with ``ffn_beta=1`` a single square one.
    intermediate_size : int
        Of the dense model, about 8/3 of `hidden_size`. The memory gets what `ffn_c` leaves, so that all kinds of one
        shape have the same number of parameters.
    **options
        Of ``transformers.LlamaConfig``. `rms_norm_eps` is 1e-5 here.

    Raises
    ------
    InputError
        `ffn_beta` or `ffn_c` is none of these, or leaves nothing for the memory.

    Examples
    --------
    >>> config = MemoryLlamaConfig(hidden_size=2048, intermediate_size=5464, ffn_beta=3)
    >>> config.context_size, config.memory_size
    (2048, 3416)
    """

    model_type = "memory_llama"

    ffn_beta: float | int | str = 0.0
    ffn_c: str = "swiglu"
    rms_norm_eps: float = 1e-5

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]  # transformers leaves it untyped
        is_number = isinstance(self.ffn_beta, int | float) and not isinstance(self.ffn_beta, bool)
        if self.ffn_beta != "base" and not (is_number and 0 <= float(self.ffn_beta) < 8):
            raise InputError(f"ffn_beta={self.ffn_beta!r}: expected a number from 0 to below 8, or 'base'")
        if self.ffn_c not in ("swiglu", "linear"):
            raise InputError(f"ffn_c={self.ffn_c!r}: expected 'swiglu' or 'linear'")
        if self.ffn_c == "linear" and self.ffn_beta != 1:
            raise InputError(f"ffn_c='linear' is one square matrix, h^2 parameters: ffn_beta={self.ffn_beta} must be 1")
        if self.has_memory and self.memory_size < 1:
            raise InputError(
                f"ffn_beta={self.ffn_beta} takes {self.context_size} of intermediate_size={self.intermediate_size} and "
                f"leaves nothing for the memory; expected an intermediate_size of about 8/3 of the hidden size"
            )
        if self.has_memory and self.mlp_bias:
            raise InputError("mlp_bias=True: the feed-forward layers of MemoryLLM have no biases")

    @property
    def has_memory(self) -> bool:
        """Whether a part of the feed-forward layers sees the token only."""
        return self.ffn_beta != "base"

    @property
    def context_size(self) -> int:
        """Intermediate size of the part that sees the context; a square matrix counts as a third of `hidden_size`."""
        if self.ffn_beta == "base":
            return int(self.intermediate_size)
        return round(float(self.ffn_beta) * self.hidden_size / 3)

    @property
    def memory_size(self) -> int:
        """Intermediate size of the part that sees the token only: how many cells a layer's memory has."""
        return int(self.intermediate_size) - self.context_size


class MemoryLlamaLayer(GradientCheckpointingLayer):  # type: ignore[no-untyped-call]  # as above
    """A block: attention, `mlp` on the residual stream unless beta is 0, `memory` on the token unless dense.

    Attributes
    ----------
    alpha : float
        Factor of what the memory adds; 1 unless a probe sets another.
    is_dropped : bool
        The memory adds nothing.
    """

    def __init__(self, config: MemoryLlamaConfig, layer_idx: int, *, with_memory: bool) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.hidden_size = size
        self.layer_idx = layer_idx
        self.self_attn = LlamaAttention(config=config, layer_idx=layer_idx)
        self.input_layernorm = LlamaRMSNorm(size, eps=eps)
        self.mlp: nn.Module | None = None
        if config.context_size:
            self.post_attention_layernorm = LlamaRMSNorm(size, eps=eps)
            is_linear = config.ffn_c == "linear"
            self.mlp = nn.Linear(size, size, bias=False) if is_linear else _swiglu(config, config.context_size)
        if with_memory:
            self.memory_norm = LlamaRMSNorm(size, eps=eps)
            self.memory = _swiglu(config, config.memory_size)
        self.alpha = 1.0
        self.is_dropped = False

    def remember(self, embeddings: Tensor) -> Tensor:
        """FFN_L(LN_L(embeddings)): what the memory adds for tokens of these embeddings, same shape."""
        added: Tensor = self.memory(self.memory_norm(embeddings))
        return added

    def forward(
        self, hidden_states: Tensor, *, embeddings: Tensor | None = None, rows: Any = None, **kwargs: Any
    ) -> Tensor:
        """The block's output; `embeddings` are X_0, `rows` what a table holds for the tokens in place of a memory."""
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
        hidden_states = hidden_states + attended
        if self.mlp is not None:  # before the memory is added: it sees the residual stream without it
            hidden_states = hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
        added: Tensor | None = None
        if rows is not None and not self.is_dropped:
            added = rows.of_layer(self.layer_idx)
        elif embeddings is not None and not self.is_dropped:
            added = self.remember(embeddings)
        if added is None:  # dropped, dense, or the table was written without this layer
            return hidden_states
        return hidden_states + (added if self.alpha == 1.0 else self.alpha * added)


def _swiglu(config: MemoryLlamaConfig, intermediate_size: int) -> nn.Module:
    sized = copy.copy(config)
    sized.intermediate_size = intermediate_size
    made: nn.Module = LlamaMLP(sized)  # type: ignore[no-untyped-call]  # transformers leaves it untyped
    return made


class MemoryLlamaPreTrainedModel(LlamaPreTrainedModel):  # type: ignore[no-untyped-call]  # as above
    """What transformers must know of the parts: their configuration, their blocks, what can be recorded."""

    config_class = MemoryLlamaConfig
    config: MemoryLlamaConfig
    _no_split_modules = ["MemoryLlamaLayer"]  # noqa: RUF012  # transformers reads it so
    _can_record_outputs = {"hidden_states": MemoryLlamaLayer, "attentions": LlamaAttention}  # noqa: RUF012  # as above
    _from_table = False


class MemoryLlamaModel(MemoryLlamaPreTrainedModel, LlamaModel):  # type: ignore[no-untyped-call]  # as above
    """The stack of blocks between embedding and final norm; hands X_0 to every block.

    Attributes
    ----------
    table : MappedTable or None
        Where rows come from in place of the memories; set by :func:`assay.nn.memoryllm.load_with_tol`.
    """

    def __init__(self, config: MemoryLlamaConfig, from_table: bool = False) -> None:
        super(LlamaModel, self).__init__(config)  # not LlamaModel's own: it would build dense blocks first
        self.padding_idx = config.pad_token_id
        self.vocab_size = config.vocab_size
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, self.padding_idx)
        with_memory = config.has_memory and not from_table
        self.layers = nn.ModuleList(
            [MemoryLlamaLayer(config, i, with_memory=with_memory) for i in range(config.num_hidden_layers)]
        )
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = LlamaRotaryEmbedding(config=config)
        self.gradient_checkpointing = False
        self.from_table = from_table
        self.table: MappedTable | None = None
        self.post_init()  # type: ignore[no-untyped-call]  # transformers leaves it untyped

    def forward(self, input_ids: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """As LlamaModel's; a model with a table needs `input_ids`, as rows are found by them.

        Raises
        ------
        InputError
            There is a table and no `input_ids`, or an id is beyond it, or the embedding has changed since.
        """
        embeddings = kwargs.pop("inputs_embeds", None)
        if (input_ids is None) == (embeddings is None):
            raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
        rows = None
        if self.from_table:
            if input_ids is None:
                raise InputError(
                    "this model looks its feed-forward outputs up by token: pass input_ids, not embeddings"
                )
            if self.table is None:
                raise InputError("this model has neither memories nor a table; make it with load_with_tol")
            self.table.check(self.embed_tokens)
            rows = self.table.rows(input_ids, dtype=self.embed_tokens.weight.dtype)
        if embeddings is None:
            embeddings = self.embed_tokens(input_ids)
        if self.config.has_memory and rows is None:
            kwargs["embeddings"] = embeddings
        if rows is not None:
            kwargs["rows"] = rows
        return super().forward(None, *args, inputs_embeds=embeddings, **kwargs)


class MemoryLlamaForCausalLM(MemoryLlamaPreTrainedModel, LlamaForCausalLM):  # type: ignore[no-untyped-call]  # as above
    """A causal language model of MemoryLLM's family: `generate`, Trainer, `save_pretrained` and PEFT as ever.

    Known to ``AutoConfig`` and ``AutoModelForCausalLM`` once this module is imported.

    Parameters
    ----------
    config : MemoryLlamaConfig

    Examples
    --------
    >>> import torch
    >>> config = MemoryLlamaConfig(
    ...     vocab_size=99, hidden_size=32, intermediate_size=86, num_hidden_layers=2, num_attention_heads=4
    ... )
    >>> model = MemoryLlamaForCausalLM(config)
    >>> model(torch.arange(8)[None]).logits.shape
    torch.Size([1, 8, 99])
    >>> model.active_parameters()  # attention only: 2 layers of 4 h^2
    8192
    """

    def __init__(self, config: MemoryLlamaConfig) -> None:
        super(LlamaForCausalLM, self).__init__(config)  # not LlamaForCausalLM's own: it would build a LlamaModel
        self.model = MemoryLlamaModel(config, from_table=self._from_table)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]  # transformers leaves it untyped

    def set_alpha(self, alpha: float) -> None:
        """Scale what the memory of every layer adds; 1 is the model as it was trained, 0 its attention only.

        Raises
        ------
        InputError
            The model is dense, or `alpha` is no finite number.
        """
        self._check_memory()
        if not abs(float(alpha)) < float("inf"):
            raise InputError(f"alpha={alpha}: expected a finite number, 1 for the model as it is")
        for layer in self.model.layers:
            layer.alpha = float(alpha)

    def drop_layers(self, layers: Iterable[int]) -> None:
        """Leave out what the memories of these layers add; an empty list brings all back.

        Raises
        ------
        InputError
            The model is dense, or has no such layer.
        """
        self._check_memory()
        dropped = set(layers)
        unknown = sorted(dropped - set(range(len(self.model.layers))))
        if unknown:
            raise InputError(f"layers={unknown}: this model has layers 0 to {len(self.model.layers) - 1}")
        for number, layer in enumerate(self.model.layers):
            layer.is_dropped = number in dropped

    def active_parameters(self) -> int:
        """Parameters of matrices that every token is multiplied with: attention and what sees the context.

        Embedding, head and norms are not counted, nor is the memory, which a table replaces.
        """
        return sum(
            weight.numel()
            for name, weight in self.model.layers.named_parameters()
            if weight.ndim == 2 and ".memory." not in name
        )

    def _check_memory(self) -> None:
        if not self.config.has_memory:
            raise InputError("this is a dense model (ffn_beta='base'): it has no memory to scale or drop")


AutoConfig.register(MemoryLlamaConfig.model_type, MemoryLlamaConfig, exist_ok=True)
AutoModel.register(MemoryLlamaConfig, MemoryLlamaModel, exist_ok=True)
AutoModelForCausalLM.register(MemoryLlamaConfig, MemoryLlamaForCausalLM, exist_ok=True)
