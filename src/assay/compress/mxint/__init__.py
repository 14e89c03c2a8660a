"""Fine-grained low-bit number formats: integers (MXINT8/6/4, NVINT4) beside floating point (MXFP8/6/4, NVFP4).

Quantise tensors and models, measure what is lost, foresee which format loses less, and train in MXINT8.

Paper: "INT v.s. FP: A Comprehensive Study of Fine-Grained Low-bit Quantization Formats", arXiv:2510.25602 (ICML 2026).
The formats, the symmetric clipping and the theory are the paper's; the packed layout, the choice of a format for each
layer under a budget and the straight folder format are ours.

The folder: `formats` says what there is, `rounding` and `tensors` are the method on tensors, `theory` foresees the
error and `metrics` measures it, `packing`, `layers` and `models` carry it to linear layers and whole models,
`compare` says which format where.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.compress.mxint.compare import FormatComparison, capture, compare_formats, six_points
    from assay.compress.mxint.formats import FORMATS, PAPER_FORMATS, Format, get_format, hadamard
    from assay.compress.mxint.layers import MXConfig, MXLinear, MXTrainingConfig, MXTrainingLinear
    from assay.compress.mxint.metrics import crest_factor, qsnr, token_losses, top_k_kl
    from assay.compress.mxint.models import MXReport, load, prepare_training_, quantize_, save
    from assay.compress.mxint.tensors import QTensor, dequantize, fake_quant, quantize
    from assay.compress.mxint.theory import crossover, theory_qsnr

__all__ = [
    "FORMATS",
    "PAPER_FORMATS",
    "Format",
    "FormatComparison",
    "MXConfig",
    "MXLinear",
    "MXReport",
    "MXTrainingConfig",
    "MXTrainingLinear",
    "QTensor",
    "capture",
    "compare_formats",
    "crest_factor",
    "crossover",
    "dequantize",
    "fake_quant",
    "get_format",
    "hadamard",
    "load",
    "prepare_training_",
    "qsnr",
    "quantize",
    "quantize_",
    "save",
    "six_points",
    "theory_qsnr",
    "token_losses",
    "top_k_kl",
]

# Loaded when they are asked for: the list of formats and the theory do not need torch.
_NAMES = {
    "compare": ("FormatComparison", "capture", "compare_formats", "six_points"),
    "formats": ("FORMATS", "PAPER_FORMATS", "Format", "get_format", "hadamard"),
    "layers": ("MXConfig", "MXLinear", "MXTrainingConfig", "MXTrainingLinear"),
    "metrics": ("crest_factor", "qsnr", "token_losses", "top_k_kl"),
    "models": ("MXReport", "load", "prepare_training_", "quantize_", "save"),
    "tensors": ("QTensor", "dequantize", "fake_quant", "quantize"),
    "theory": ("crossover", "theory_qsnr"),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
