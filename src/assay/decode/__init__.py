"""Generate faster or better."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.decode.arc_decode import ArcCalibration, arc_generate
    from assay.decode.dyllm import BlockAdapter, DyLLMGenerator, ModelAdapter, dyllm_generate, load_masked_lm
    from assay.decode.tmafc import TMAFC, LoggedSampler, OpenAISampler, TransformersSampler, replay

__all__ = [
    "TMAFC",
    "ArcCalibration",
    "BlockAdapter",
    "DyLLMGenerator",
    "LoggedSampler",
    "ModelAdapter",
    "OpenAISampler",
    "TransformersSampler",
    "arc_generate",
    "dyllm_generate",
    "load_masked_lm",
    "replay",
]

# Loaded when they are asked for: a method that is not used costs nothing.
_NAMES = {
    "arc_decode": ("ArcCalibration", "arc_generate"),
    "dyllm": ("BlockAdapter", "DyLLMGenerator", "ModelAdapter", "dyllm_generate", "load_masked_lm"),
    "tmafc": ("LoggedSampler", "OpenAISampler", "TMAFC", "TransformersSampler", "replay"),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
