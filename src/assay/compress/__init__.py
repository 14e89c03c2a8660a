"""Make models smaller and cheaper: number formats, codes, factors, sparsity.

One shape for all: a verb, a model and a config, in place, then ``save(model, folder)`` and ``load(folder)``. The verbs:
``quantize_`` with an MXConfig or a LiftQuantConfig, ``factorize_`` with a WhiteningConfig, ``sparsify_`` with an
ActivationSparsityConfig.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.compress.dynamic_whitening import WhiteningConfig, factorize_
    from assay.compress.liftquant import LiftQuantConfig, LiftQuantLinear, LiftQuantReport
    from assay.compress.mxint import MXConfig, MXTrainingConfig, prepare_training_
    from assay.compress.rt_lynx import ActivationSparsityConfig, sparsify_
    from assay.compress.verbs import load, quantize_, save

__all__ = [
    "ActivationSparsityConfig",
    "LiftQuantConfig",
    "LiftQuantLinear",
    "LiftQuantReport",
    "MXConfig",
    "MXTrainingConfig",
    "WhiteningConfig",
    "factorize_",
    "load",
    "prepare_training_",
    "quantize_",
    "save",
    "sparsify_",
]

# Loaded when they are asked for: a method that is not used costs nothing.
_NAMES = {
    "dynamic_whitening": ("WhiteningConfig", "factorize_"),
    "liftquant": ("LiftQuantConfig", "LiftQuantLinear", "LiftQuantReport"),
    "mxint": ("MXConfig", "MXTrainingConfig", "prepare_training_"),
    "rt_lynx": ("ActivationSparsityConfig", "sparsify_"),
    "verbs": ("load", "quantize_", "save"),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
