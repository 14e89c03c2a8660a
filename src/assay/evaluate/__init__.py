"""Measure models: what people do with votes, scores and test sets."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.evaluate.judge_rank import Comparison, JudgeRanking, read_votes

__all__ = ["Comparison", "JudgeRanking", "read_votes"]

_MODULES = {
    "Comparison": "assay.evaluate.judge_rank",
    "JudgeRanking": "assay.evaluate.judge_rank",
    "read_votes": "assay.evaluate.judge_rank",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
