"""Fine-tune only the weights whose change costs no old skill; which these are is found without any data.

`importance` scores every weight of a model's linear layers on text that the model writes itself, `build_mask` lets the
tenth with the lowest scores train, and `Mask.apply`, `Mask.pack` and `DowserTrainer` train it and nothing else.
`SparseDelta` keeps what changed.

Paper: Hwang, Son, Kim, "Model-Dowser: Data-Free Importance Probing to Mitigate Catastrophic Forgetting in Multimodal
Large Language Models", arXiv:2602.04509 (ICML 2026). The score, its estimate and the rule of the mask are the paper's;
how positions are treated, which layers are scored and the numbers of probes are our reading.

The folder: `layers` says what is scored, `probes` on what, `scores` how; `masks`, `training`, `packed` and `trainer`
train; `deltas` is what is kept; `baselines` is what else one would do.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.adapt.model_dowser.baselines import (
        dare_merge,
        full_mask,
        gradient_mask,
        graft,
        magnitude_mask,
        random_mask,
        wanda_mask,
    )
    from assay.adapt.model_dowser.deltas import Applied, SparseDelta
    from assay.adapt.model_dowser.layers import target_layers
    from assay.adapt.model_dowser.masks import Mask, build_mask
    from assay.adapt.model_dowser.packed import Packed
    from assay.adapt.model_dowser.probes import generate_probes, noise_image_probes, normal_probes
    from assay.adapt.model_dowser.scores import importance
    from assay.adapt.model_dowser.trainer import DowserConfig, DowserTrainer, DowserTrainerCallback
    from assay.adapt.model_dowser.training import Tuning

__all__ = [
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
]

_NAMES = {
    "baselines": (
        "dare_merge", "full_mask", "gradient_mask", "graft", "magnitude_mask", "random_mask", "wanda_mask",
    ),
    "deltas": ("Applied", "SparseDelta"),
    "layers": ("target_layers",),
    "masks": ("Mask", "build_mask"),
    "packed": ("Packed",),
    "probes": ("generate_probes", "noise_image_probes", "normal_probes"),
    "scores": ("importance",),
    "trainer": ("DowserConfig", "DowserTrainer", "DowserTrainerCallback"),
    "training": ("Tuning",),
}  # fmt: skip
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
