"""Know what to trust: anomalies in logs, text of unknown origin, explanations that may not be stable."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.audit.dataguard import (
        AuditReport,
        DataGuardAuditor,
        Rate,
        Shadow,
        audit_lm,
        audit_probs,
        correct_for_several,
        exact_rate,
    )
    from assay.audit.mpfm import LogWindower, LogWindows, MPFMDetector
    from assay.audit.style_detect import (
        DetectionReport,
        Evaluation,
        StyleFewShotDetector,
        StylometricEncoder,
        TfidfDetector,
        Threshold,
        ZeroShotDetector,
        conformal_threshold,
        evaluate_detectors,
        few_shot_trials,
        group_trials,
        load_style_encoder,
    )
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
    "AuditReport",
    "DataGuardAuditor",
    "DetectionReport",
    "Evaluation",
    "GradientxInput",
    "IntegratedGradients",
    "LogWindower",
    "LogWindows",
    "MPFMDetector",
    "MaskExplainer",
    "RandomNoise",
    "Rate",
    "Saliency",
    "Shadow",
    "StyleFewShotDetector",
    "StylometricEncoder",
    "TfidfDetector",
    "Threshold",
    "ZeroShotDetector",
    "audit_lm",
    "audit_probs",
    "captum_watchers",
    "conformal_threshold",
    "correct_for_several",
    "evaluate_detectors",
    "exact_rate",
    "few_shot_trials",
    "group_trials",
    "load_style_encoder",
    "robustness_report",
]

# Loaded when they are asked for: a method that is not used costs nothing.
_NAMES = {
    "dataguard": (
        "AuditReport",
        "DataGuardAuditor",
        "Rate",
        "Shadow",
        "audit_lm",
        "audit_probs",
        "correct_for_several",
        "exact_rate",
    ),
    "mpfm": ("LogWindower", "LogWindows", "MPFMDetector"),
    "style_detect": (
        "DetectionReport",
        "Evaluation",
        "StyleFewShotDetector",
        "StylometricEncoder",
        "TfidfDetector",
        "Threshold",
        "ZeroShotDetector",
        "conformal_threshold",
        "evaluate_detectors",
        "few_shot_trials",
        "group_trials",
        "load_style_encoder",
    ),
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
