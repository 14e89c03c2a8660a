"""Make the inputs of linear layers 2:4 sparse, instead of their weights, and repair the error with a small branch.

`sparsify_` changes a diffusion transformer, a language model or any module in place and reports each layer; the
selection of entries, the restored length and the solvers of the repair are plain functions.

Paper: "RT-Lynx: Putting GEMM Sparsity in the Right Place for Diffusion Models", arXiv:2605.26632 (ICML 2026).
Selection, length and the low-rank branch are the paper's; the closed-form solver, the choice of layers to leave dense,
the names that "auto" knows and the Triton kernels are ours.

The folder: `activations` and `repair` are the method on tensors, `layers` and `backends` run it, `kernels` are the ones
in Triton, `calibrate` and `models` carry it to whole models, `folders` and `resume` keep it on disk.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.compress.rt_lynx.activations import (
        energy_kept,
        nm_topk,
        norm_compensate,
        relative_flops,
        sparse_activation,
    )
    from assay.compress.rt_lynx.folders import load, save
    from assay.compress.rt_lynx.layers import ActivationSparsityConfig, SparseActLinear
    from assay.compress.rt_lynx.models import LayerReport, SparsityReport, bypassed, sparsify_
    from assay.compress.rt_lynx.repair import Errors, Factors, RepairStats, closed_form, sgd

__all__ = [
    "ActivationSparsityConfig",
    "Errors",
    "Factors",
    "LayerReport",
    "RepairStats",
    "SparseActLinear",
    "SparsityReport",
    "bypassed",
    "closed_form",
    "energy_kept",
    "load",
    "nm_topk",
    "norm_compensate",
    "relative_flops",
    "save",
    "sgd",
    "sparse_activation",
    "sparsify_",
]

_NAMES = {
    "activations": ("energy_kept", "nm_topk", "norm_compensate", "relative_flops", "sparse_activation"),
    "folders": ("load", "save"),
    "layers": ("ActivationSparsityConfig", "SparseActLinear"),
    "models": ("LayerReport", "SparsityReport", "bypassed", "sparsify_"),
    "repair": ("Errors", "Factors", "RepairStats", "closed_form", "sgd"),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
