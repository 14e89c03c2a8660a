"""Teach or steer a model: what the prompt asks for, facts of your own, a task without forgetting the rest."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.adapt.lora_memory import LoRAMemory, WriteConfig
    from assay.adapt.model_dowser import (
        Applied,
        DowserConfig,
        DowserTrainer,
        DowserTrainerCallback,
        Mask,
        Packed,
        SparseDelta,
        Tuning,
        build_mask,
        dare_merge,
        full_mask,
        generate_probes,
        gradient_mask,
        graft,
        importance,
        magnitude_mask,
        noise_image_probes,
        normal_probes,
        random_mask,
        target_layers,
        wanda_mask,
    )
    from assay.adapt.psr import PSR, ConstantSteering, DiffInMeans, ProjectionSteering, PromptSteering

__all__ = [
    "PSR",
    "Applied",
    "ConstantSteering",
    "DiffInMeans",
    "DowserConfig",
    "DowserTrainer",
    "DowserTrainerCallback",
    "LoRAMemory",
    "Mask",
    "Packed",
    "ProjectionSteering",
    "PromptSteering",
    "SparseDelta",
    "Tuning",
    "WriteConfig",
    "build_mask",
    "dare_merge",
    "full_mask",
    "generate_probes",
    "gradient_mask",
    "graft",
    "importance",
    "magnitude_mask",
    "noise_image_probes",
    "normal_probes",
    "random_mask",
    "target_layers",
    "wanda_mask",
]

# Loaded when they are asked for: a method that is not used costs nothing.
_NAMES = {
    "lora_memory": ("LoRAMemory", "WriteConfig"),
    "model_dowser": (
        "Applied",
        "DowserConfig",
        "DowserTrainer",
        "DowserTrainerCallback",
        "Mask",
        "Packed",
        "SparseDelta",
        "Tuning",
        "build_mask",
        "dare_merge",
        "full_mask",
        "generate_probes",
        "gradient_mask",
        "graft",
        "importance",
        "magnitude_mask",
        "noise_image_probes",
        "normal_probes",
        "random_mask",
        "target_layers",
        "wanda_mask",
    ),
    "psr": ("ConstantSteering", "DiffInMeans", "PSR", "ProjectionSteering", "PromptSteering"),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
