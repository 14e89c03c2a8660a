"""What the full model said, kept below the cache folder."""

from __future__ import annotations

import hashlib
import importlib.metadata
from dataclasses import fields
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from assay._core.errors import InputError
from assay._core.files import replacing
from assay.models.quality.results import Reference

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

#: Part of the name of a cached reference; raised when what is kept or how it is computed changes.
LAYOUT = 1


def fingerprint(model: Any, *asked: NDArray[np.int64]) -> str:
    """A hash of the model (weights, structure, settings), of what it is asked, and of the versions that compute."""
    import torch

    digest = hashlib.sha256()
    versions = [importlib.metadata.version(name) for name in ("torch", "transformers")]
    config = model.config.to_json_string() if hasattr(model, "config") else ""
    digest.update(f"{LAYOUT} {versions} {model!r} {config}".encode())
    for name, tensor in model.state_dict().items():
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}".encode())
        digest.update(plain.flatten().view(torch.uint8).numpy())
    for part in asked:
        digest.update(f"{part.shape}".encode())
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()[:32]


def read(path: Path) -> Reference | None:
    """A kept reference, or None."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            return Reference(**{field.name: kept[field.name] for field in fields(Reference)})
    except (OSError, EOFError, KeyError, ValueError, BadZipFile):  # not there, or broken: it is made again
        return None


def write(path: Path, made: Reference) -> None:
    """Keep a reference; several processes may do so at once, and the last one's stays. No room: not kept."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            np.savez(temporary, **{field.name: getattr(made, field.name) for field in fields(made)})
    except (OSError, InputError):
        return
