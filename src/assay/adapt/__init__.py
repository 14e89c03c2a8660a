"""Teach or steer a model: what the prompt asks for, facts of your own, a task without forgetting the rest."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.adapt.lora_memory import LoRAMemory, WriteConfig
    from assay.adapt.model_dowser import DowserConfig, DowserTrainer, Mask, SparseDelta, build_mask, importance
    from assay.adapt.psr import PSR, ConstantSteering, DiffInMeans, ProjectionSteering, PromptSteering

__all__ = [
    "PSR",
    "ConstantSteering",
    "DiffInMeans",
    "DowserConfig",
    "DowserTrainer",
    "LoRAMemory",
    "Mask",
    "ProjectionSteering",
    "PromptSteering",
    "SparseDelta",
    "WriteConfig",
    "build_mask",
    "importance",
]

# Loaded when they are asked for: a method that is not used costs nothing.
_NAMES = {
    "lora_memory": ("LoRAMemory", "WriteConfig"),
    "model_dowser": ("DowserConfig", "DowserTrainer", "Mask", "SparseDelta", "build_mask", "importance"),
    "psr": ("ConstantSteering", "DiffInMeans", "PSR", "ProjectionSteering", "PromptSteering"),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
