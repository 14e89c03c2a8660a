"""Make training data."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.synth.clean_pr import (
        AgentlessEditor,
        Block,
        FileEdit,
        PRFilter,
        apply_blocks,
        diff_to_blocks,
        evaluate_edits,
        format_blocks,
        parse_blocks,
    )

__all__ = [
    "AgentlessEditor",
    "Block",
    "FileEdit",
    "PRFilter",
    "apply_blocks",
    "diff_to_blocks",
    "evaluate_edits",
    "format_blocks",
    "parse_blocks",
]

# Loaded when they are asked for: a method that is not used costs nothing.
_MODULES = dict.fromkeys(__all__, f"{__name__}.clean_pr")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
