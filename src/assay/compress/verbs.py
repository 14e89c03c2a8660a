"""The family's one shape: a config says which method, and a folder's manifest says which it was.

`quantize_` changes a model in place by the method of its config; `save` and `load` keep the weights packed. Each method
has these three as functions of its own, with its own options; what stands here only finds them.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from assay._core.errors import InputError

if TYPE_CHECKING:
    import os


class Method(NamedTuple):
    """Where a method of the family is, and what it is known by.

    Parameters
    ----------
    module : str
        Has ``save`` and ``load``.
    manifest : str
        File that ``save`` leaves in a folder.
    config : str, optional
        Name of the config class that its ``quantize_`` takes; None: its verb is another.
    """

    module: str
    manifest: str
    config: str | None = None


METHODS = (
    Method("assay.compress.mxint", "mxint.json", "MXConfig"),
    Method("assay.compress.liftquant", "liftquant.json", "LiftQuantConfig"),
    Method("assay.compress.dynamic_whitening", "dynamic_whitening.json"),
    Method("assay.compress.rt_lynx", "rt_lynx.json"),
)


def quantize_(model: Any, config: Any, *args: Any, **options: Any) -> Any:
    """Quantise the linear layers of a model, in place, by the method whose config is given.

    Parameters
    ----------
    model : nn.Module
        With ``nn.Linear`` or GPT-2 ``Conv1D`` layers.
    config : MXConfig or LiftQuantConfig
    *args, **options
        What the method's own ``quantize_`` takes besides, such as calibration data or ``checkpoint=``, a folder that
        lets an interrupted call go on.

    Returns
    -------
    MXReport or LiftQuantReport
        A row a layer: bits, error, time; ``summary()`` prints it.

    Raises
    ------
    InputError
        `config` is of another class, or the method cannot do what is asked.

    Examples
    --------
    >>> from torch import nn
    >>> from assay.compress import MXConfig
    >>> quantize_(nn.Sequential(nn.Linear(64, 8)), MXConfig("mxint4")).bits_per_weight
    4.25
    """
    for method in METHODS:
        if type(config).__name__ == method.config and type(config).__module__.startswith(method.module):
            return importlib.import_module(method.module).quantize_(model, config, *args, **options)
    known = ", ".join(method.config for method in METHODS if method.config)
    raise InputError(f"config is of type {type(config).__name__}; expected one of {known}")


def save(model: Any, folder: str | os.PathLike[str]) -> None:
    """Write a compressed model to a folder: packed weights in safetensors, and a manifest.

    Raises
    ------
    InputError
        No layer of the model was compressed, or more than one method was used, which one folder cannot hold.
    """
    packages = {type(module).__module__.rpartition(".")[0] for module in model.modules()}
    used = [method for method in METHODS if method.module in packages]
    if not used:
        raise InputError("the model holds no compressed layer; call quantize_ first")
    if len(used) > 1:
        names = " and ".join(method.module.rpartition(".")[2] for method in used)
        raise InputError(f"the model holds layers of {names}; a folder holds those of one method")
    importlib.import_module(used[0].module).save(model, folder)


def load(folder: str | os.PathLike[str], model: Any = None) -> Any:
    """Load a model that the ``save`` of any method of the family wrote; it gives the same outputs to the last bit.

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
        The folder holds no manifest or several, or it does not fit `model`.
    """
    there = [method for method in METHODS if (Path(folder) / method.manifest).is_file()]
    if len(there) != 1:
        found = ", ".join(method.manifest for method in there) or "none"
        known = ", ".join(method.manifest for method in METHODS)
        raise InputError(f"{folder} was not written by save: it should hold one of {known}, and holds {found}")
    return importlib.import_module(there[0].module).load(folder, model)
