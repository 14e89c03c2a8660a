"""Smaller models without training: each linear layer becomes two thin factors that keep its outputs on real inputs.

Factorise a model in place, layer by layer, with inputs taken anew behind every compressed layer; save and load it; and
start LoRA adapters in the same directions.

Paper: "Mitigating Error Propagation in Low-Rank Approximation of Large Models via Distribution-Aware Whitening",
ICML 2026. Its full text was not open to us: the whitened truncation is that of SVD-LLM (arXiv:2403.07378), when inputs
are taken anew is our reading, and the anchored target, ranks by energy and the folder format are ours.

The folder: `factors` is the method on one weight, `observe` and `stack` look at what flows through a model, `layers`
and `models` factorise it, `report` says what became of it, `resume` and `folders` put it on disk, `lora` starts
adapters.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.compress.dynamic_whitening.factors import (
        Factors,
        allocate_ranks,
        anchored_weight,
        drift,
        output_error,
        rank_for_ratio,
        whitened_svd,
        whitener,
    )
    from assay.compress.dynamic_whitening.folders import load, save
    from assay.compress.dynamic_whitening.layers import LowRankLinear, WhiteningConfig, merge_
    from assay.compress.dynamic_whitening.lora import LoraStart, init_lora_whitened, restore
    from assay.compress.dynamic_whitening.models import factorize_
    from assay.compress.dynamic_whitening.report import LayerReport, WhiteningReport

__all__ = [
    "Factors",
    "LayerReport",
    "LoraStart",
    "LowRankLinear",
    "WhiteningConfig",
    "WhiteningReport",
    "allocate_ranks",
    "anchored_weight",
    "drift",
    "factorize_",
    "init_lora_whitened",
    "load",
    "merge_",
    "output_error",
    "rank_for_ratio",
    "restore",
    "save",
    "whitened_svd",
    "whitener",
]

_NAMES = {
    "factors": (
        "Factors", "allocate_ranks", "anchored_weight", "drift", "output_error", "rank_for_ratio", "whitened_svd",
        "whitener",
    ),
    "folders": ("load", "save"),
    "layers": ("LowRankLinear", "WhiteningConfig", "merge_"),
    "lora": ("LoraStart", "init_lora_whitened", "restore"),
    "models": ("factorize_",),
    "report": ("LayerReport", "WhiteningReport"),
}  # fmt: skip
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
