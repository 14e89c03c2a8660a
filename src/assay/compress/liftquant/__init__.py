"""Weights as sign bits under a shared matrix: any number of bits, fractions included; from 1.6 to 3 out of the box.

A vector of d weights is stored as D signs y and rebuilt as M y: D / d bits a weight, so that a model fills a memory
budget. `quantize_` changes a model in place, `save` and `load` keep it packed.

Paper: "LiftQuant: Continuous Bit-Width LLM via Dimensional Lifting and Projection", arXiv:2606.04050 (ICML 2026).
The matrices, the compiled searches, the folder format and resuming are ours.

The folder: `search` and `_kernels` find the nearest point, `mapping` trains M, `transform` whitens a weight,
`layers` holds a quantised layer, `whiten` trains on calibration data, `plan` chooses D and d, `models`, `chain`,
`resume` and `store` carry it to whole models.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.compress.liftquant.layers import LiftQuantLinear
    from assay.compress.liftquant.mapping import Mapping, fit_mapping, load_mapping, shipped_pairs
    from assay.compress.liftquant.models import LiftQuantConfig, LiftQuantReport, dense_, quantize_
    from assay.compress.liftquant.plan import pair_for_bits, pair_for_budget
    from assay.compress.liftquant.search import decode, encode
    from assay.compress.liftquant.store import load, save

__all__ = [
    "LiftQuantConfig",
    "LiftQuantLinear",
    "LiftQuantReport",
    "Mapping",
    "decode",
    "dense_",
    "encode",
    "fit_mapping",
    "load",
    "load_mapping",
    "pair_for_bits",
    "pair_for_budget",
    "quantize_",
    "save",
    "shipped_pairs",
]

# Loaded when they are asked for: the matrices and the search do not need torch.
_NAMES = {
    "layers": ("LiftQuantLinear",),
    "mapping": ("Mapping", "fit_mapping", "load_mapping", "shipped_pairs"),
    "models": ("LiftQuantConfig", "LiftQuantReport", "dense_", "quantize_"),
    "plan": ("pair_for_bits", "pair_for_budget"),
    "search": ("decode", "encode"),
    "store": ("load", "save"),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
