"""Where files go that can be fetched or made again."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from platformdirs import user_cache_path


def cache_dir() -> Path:
    """The folder of data sets: the one that ASSAY_DATA names, or the platform's cache folder. It may not exist yet."""
    named = os.environ.get("ASSAY_DATA")
    return Path(named).expanduser() if named else user_cache_path("assay", appauthor=False)


def made_dir() -> Path:
    """The folder for what Assay makes itself: below :func:`cache_dir`, or the platform's where that is read-only."""
    folder = cache_dir()
    return folder if _may_write(folder) else user_cache_path("assay", appauthor=False)


def _may_write(folder: Path) -> bool:
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    # The mode as well as the right: an administrator may write everywhere, and should respect a read-only folder.
    return existing.is_dir() and bool(existing.stat().st_mode & stat.S_IWUSR) and os.access(existing, os.W_OK)
