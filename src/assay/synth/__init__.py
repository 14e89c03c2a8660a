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
    from assay.synth.plurel import (
        DagConfig,
        DatabaseConfig,
        RelationalConfig,
        RelationalDatabase,
        ScmConfig,
        SyntheticDatabases,
        generate_database,
        generate_many,
        write_database,
    )

__all__ = [
    "AgentlessEditor",
    "Block",
    "DagConfig",
    "DatabaseConfig",
    "FileEdit",
    "PRFilter",
    "RelationalConfig",
    "RelationalDatabase",
    "ScmConfig",
    "SyntheticDatabases",
    "apply_blocks",
    "diff_to_blocks",
    "evaluate_edits",
    "format_blocks",
    "generate_database",
    "generate_many",
    "parse_blocks",
    "write_database",
]

# Loaded when they are asked for: a method that is not used costs nothing.
_NAMES = {
    "clean_pr": (
        "AgentlessEditor",
        "Block",
        "FileEdit",
        "PRFilter",
        "apply_blocks",
        "diff_to_blocks",
        "evaluate_edits",
        "format_blocks",
        "parse_blocks",
    ),
    "plurel": (
        "DagConfig",
        "DatabaseConfig",
        "RelationalConfig",
        "RelationalDatabase",
        "ScmConfig",
        "SyntheticDatabases",
        "generate_database",
        "generate_many",
        "write_database",
    ),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
