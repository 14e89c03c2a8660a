"""Folders with factors in safetensors that load to the same outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay.compress._folders import WEIGHTS, read_folder, write_folder
from assay.compress.dynamic_whitening.layers import LowRankLinear

if TYPE_CHECKING:
    import os

    from torch import nn

MANIFEST = "dynamic_whitening.json"

__all__ = ["MANIFEST", "WEIGHTS", "load", "save"]


def save(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write a factorised model to a folder: factors in safetensors, and what is needed to load them.

    Parameters
    ----------
    model : nn.Module
        After :func:`~assay.compress.dynamic_whitening.factorize_`.
    folder : path
        Made if it is not there.

    Raises
    ------
    InputError
        The model holds no factorised layer, or the folder cannot be written.
    """
    if not any(isinstance(module, LowRankLinear) for module in model.modules()):
        raise InputError(
            "the model holds no factorised layer: call factorize_ first, and with a ratio at which factors are smaller "
            "than the weights; a model whose layers all stayed dense is saved with its own save_pretrained"
        )
    write_folder(model, folder, MANIFEST, LowRankLinear, verb="factorize_")


def load(folder: str | os.PathLike[str], model: nn.Module | None = None) -> Any:
    """Load a model that :func:`save` wrote; it gives the same outputs to the last bit.

    Parameters
    ----------
    folder : path
    model : nn.Module, optional
        The dense architecture, whose values do not matter; None: a Hugging Face causal language model, built from the
        folder's ``config.json``.

    Returns
    -------
    nn.Module
        In evaluation mode.

    Raises
    ------
    InputError
        The folder or a part of it is missing, was changed, or does not fit `model`.
    """
    return read_folder(folder, MANIFEST, LowRankLinear, model)
