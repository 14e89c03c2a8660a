"""Write files so that an interrupted run leaves the old file or the new one, never half a file."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from assay._core.errors import InputError


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path`, on failure it is removed.

    The temporary name keeps the suffixes of `path`, so that writers that look at them behave the same.

    Raises
    ------
    InputError
        The folder of `path` does not exist or `path` is a folder.

    Examples
    --------
    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "ranking.csv"
    >>> with replacing(target) as temporary:
    ...     _ = temporary.write_text("model,score")
    >>> target.read_text()
    'model,score'
    """
    target = Path(path)
    if target.is_dir():
        raise InputError(f"{target} is a folder; give the name of a file to write")
    if not target.parent.is_dir():
        raise InputError(f"cannot write {target}: the folder {target.parent} does not exist")
    temporary = target.with_name(f".{secrets.token_hex(4)}.{target.name}")
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8 with the newlines it has, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
