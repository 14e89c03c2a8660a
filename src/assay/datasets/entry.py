"""What is known of a data set, or of a model that comes in a package."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from assay._core.cache import cache_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Entry:
    """A data set, or a model that comes in a package.

    Parameters
    ----------
    name : str
        What ``assay data get`` takes.
    title, description : str
        One line, and a few.
    kind : "file" or "package"
    file : str
        Where it is below the cache folder, with ``/``. For a package: its import name.
    sha256 : str
        Of the file's *content*: for a ``.gz`` file of what it unpacks to, so that it may be compressed anew. For a
        package: of the wheel.
    size : int
        Bytes of what `sha256` speaks of.
    source : str
        The page to read about it.
    licence, citation : str
    columns : mapping of column name to what it holds
        Empty for a package.
    url : str, optional
        What serves the content, or what `convert` makes it from. None: the file has to be put there by hand.
    convert : callable, optional
        Turns the bytes that `url` serves into the content; the same bytes always give the same content.
    requirement : str
        For a package: what pip installs, pinned.
    """

    name: str
    title: str
    kind: Literal["file", "package"]
    file: str
    sha256: str
    size: int
    source: str
    licence: str
    citation: str
    description: str
    columns: Mapping[str, str] = field(default_factory=dict)
    url: str | None = None
    convert: Callable[[bytes], bytes] | None = None
    requirement: str = ""

    @property
    def path(self) -> Path:
        """Where it is, or where it would be."""
        if self.kind == "file":
            return cache_dir() / self.file
        spec = importlib.util.find_spec(self.file)  # finds without importing: the package's own imports are not here
        return Path(spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else self.file)

    @property
    def cached(self) -> bool:
        """Whether it is here (a file's content is checked when it is used)."""
        if self.kind == "file":
            return self.path.is_file()
        distribution, _, version = self.requirement.partition("==")
        try:
            return (
                importlib.metadata.version(distribution) == version and importlib.util.find_spec(self.file) is not None
            )
        except importlib.metadata.PackageNotFoundError:
            return False
