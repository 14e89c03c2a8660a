"""Know what to trust: anomalies in logs, text of unknown origin, explanations that may not be stable."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.audit.mpfm import LogWindower, LogWindows, MPFMDetector
    from assay.audit.tsef import (
        PGD,
        TSEF,
        GradientxInput,
        IntegratedGradients,
        MaskExplainer,
        RandomNoise,
        Saliency,
        captum_watchers,
        robustness_report,
    )

__all__ = [
    "PGD",
    "TSEF",
    "GradientxInput",
    "IntegratedGradients",
    "LogWindower",
    "LogWindows",
    "MPFMDetector",
    "MaskExplainer",
    "RandomNoise",
    "Saliency",
    "captum_watchers",
    "robustness_report",
]

# Loaded when they are asked for: a method that is not used costs nothing.
_NAMES = {
    "mpfm": ("LogWindower", "LogWindows", "MPFMDetector"),
    "tsef": (
        "GradientxInput",
        "IntegratedGradients",
        "MaskExplainer",
        "PGD",
        "RandomNoise",
        "Saliency",
        "TSEF",
        "captum_watchers",
        "robustness_report",
    ),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
