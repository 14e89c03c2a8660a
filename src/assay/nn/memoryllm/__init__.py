"""Language models whose feed-forward layers see only the token: a memory that can be inspected and live on disk.

In a MemoryLLM block the feed-forward layer reads the normalised embedding of the token, not the residual stream, so
what it adds is one row for each token of the vocabulary: `export_tol` computes all rows once, and `load_with_tol`
decodes from them, mapped from disk, without the feed-forward weights. `MemoryLlamaForCausalLM` is the model, with
``ffn_beta`` from 0 (MemoryLLM) to below 8: Flex-MemoryLLM leaves beta h^2 of its parameters to a layer that sees the
context.
`TokenMemory` shows what tokens and memory cells have to do with each other.

Paper: "MemoryLLM: Plug-n-Play Interpretable Feed-Forward Memory for Transformers", arXiv:2602.00398 (ICML 2026). The
blocks are the paper's; the form of the context-aware layer, rounding, the table's file and its quantisation are ours.

The folder: `model` is the architecture, `numbers` the rows as int8, int4 and low rank, `export` writes a table,
`mapped` reads it and decodes with it, `inspection` and `probing` look inside.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.nn.memoryllm.export import export_tol
    from assay.nn.memoryllm.inspection import TokenMemory
    from assay.nn.memoryllm.mapped import MappedTable, load_with_tol
    from assay.nn.memoryllm.model import MemoryLlamaConfig, MemoryLlamaForCausalLM, MemoryLlamaModel
    from assay.nn.memoryllm.probing import probe_alpha, probe_layers

__all__ = [
    "MappedTable",
    "MemoryLlamaConfig",
    "MemoryLlamaForCausalLM",
    "MemoryLlamaModel",
    "TokenMemory",
    "export_tol",
    "load_with_tol",
    "probe_alpha",
    "probe_layers",
]

_NAMES = {
    "export": ("export_tol",),
    "inspection": ("TokenMemory",),
    "mapped": ("MappedTable", "load_with_tol"),
    "model": ("MemoryLlamaConfig", "MemoryLlamaForCausalLM", "MemoryLlamaModel"),
    "probing": ("probe_alpha", "probe_layers"),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
