"""Find models that come in a package, and keep loading and writing models quiet."""

from __future__ import annotations

import importlib.util
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay._core.extras import need

if TYPE_CHECKING:
    from collections.abc import Iterator


def package_file(package: str, file: str, *, name: str) -> Path:
    """Return the path of a file in an installed package, without importing the package.

    Its own imports may be missing: the packages of the demo models are installed without their dependencies.

    Raises
    ------
    InputError
        The package is not installed, or does not hold the file.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"the model {name} is not installed: run assay data get {name}")
    path = Path(spec.submodule_search_locations[0]) / file
    if not path.exists():
        raise InputError(f"the package {package} does not hold {file}: run assay data get {name}")
    return path


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing bars for files that load in a moment."""
    logging = need("transformers", extra="lm", purpose="loading a model").utils.logging
    was_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_shown:
            logging.enable_progress_bar()


def write_pretrained(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a Hugging Face model and its tokenizer or processor, without a bar for files that take a moment."""
    with without_progress_bars():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
