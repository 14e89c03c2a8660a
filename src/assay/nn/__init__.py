"""Layers and architectures to drop in."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.nn.amips import (
        Comparison,
        KeyNet,
        LearnedRouter,
        MappedIndex,
        SupportNet,
        best_keys,
        compare_ivf,
        compare_routing,
        ivf_index,
        read_vectors,
    )
    from assay.nn.lucid import LucidAttention, LucidCache, lucid_attention, precondition_values
    from assay.nn.memoryllm import MemoryLlamaConfig, MemoryLlamaForCausalLM, TokenMemory, export_tol, load_with_tol

__all__ = [
    "Comparison",
    "KeyNet",
    "LearnedRouter",
    "LucidAttention",
    "LucidCache",
    "MappedIndex",
    "MemoryLlamaConfig",
    "MemoryLlamaForCausalLM",
    "SupportNet",
    "TokenMemory",
    "best_keys",
    "compare_ivf",
    "compare_routing",
    "export_tol",
    "ivf_index",
    "load_with_tol",
    "lucid_attention",
    "precondition_values",
    "read_vectors",
]

# Loaded when they are asked for: a method that is not used costs nothing.
_NAMES = {
    "amips": (
        "Comparison",
        "KeyNet",
        "LearnedRouter",
        "MappedIndex",
        "SupportNet",
        "best_keys",
        "compare_ivf",
        "compare_routing",
        "ivf_index",
        "read_vectors",
    ),
    "lucid": ("LucidAttention", "LucidCache", "lucid_attention", "precondition_values"),
    "memoryllm": ("MemoryLlamaConfig", "MemoryLlamaForCausalLM", "TokenMemory", "export_tol", "load_with_tol"),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
