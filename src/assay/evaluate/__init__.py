"""Measure models: what people do with votes, scores, recorded attempts and test sets."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.evaluate.arbitrage import CascadePolicy, CascadeRunner, Market, read_market
    from assay.evaluate.bridge import Forecast, TimeHorizonIRT, read_responses
    from assay.evaluate.cc_icl import CCReport, CriterionSpec, Episodes, InContextClassifier, build_episodes
    from assay.evaluate.judge_rank import Comparison, JudgeRanking, read_votes

__all__ = [
    "CCReport",
    "CascadePolicy",
    "CascadeRunner",
    "Comparison",
    "CriterionSpec",
    "Episodes",
    "Forecast",
    "InContextClassifier",
    "JudgeRanking",
    "Market",
    "TimeHorizonIRT",
    "build_episodes",
    "read_market",
    "read_responses",
    "read_votes",
]

# Loaded when they are asked for: a method that is not used costs nothing.
_NAMES = {
    "arbitrage": ("CascadePolicy", "CascadeRunner", "Market", "read_market"),
    "bridge": ("Forecast", "TimeHorizonIRT", "read_responses"),
    "cc_icl": ("CCReport", "CriterionSpec", "Episodes", "InContextClassifier", "build_episodes"),
    "judge_rank": ("Comparison", "JudgeRanking", "read_votes"),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
