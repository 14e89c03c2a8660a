"""Import optional dependencies where they are used, and say what to install when they are missing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from assay._core.errors import InputError

if TYPE_CHECKING:
    from types import ModuleType

DISTRIBUTION = "assay-ml"


def need(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import `module`, or explain which extra brings it.

    Parameters
    ----------
    module : str
        Import name, such as ``"torch"``.
    extra : str
        The extra of this distribution that installs it.
    purpose : str
        What it is needed for, as the subject of the sentence: ``"the Bradley–Terry baseline"``.

    Raises
    ------
    InputError
        The module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # the module is there; something it needs is not, and that is worth its own traceback
        raise InputError(
            f"{purpose} needs the package {module!r}, which is not installed: pip install '{DISTRIBUTION}[{extra}]'"
        ) from None
