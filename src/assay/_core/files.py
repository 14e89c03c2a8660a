"""Write files so that an interrupted run leaves the old file or the new one, never half a file."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path`, on failure it is removed.

    The temporary name keeps the suffixes of `path`, so that writers that look at them behave the same. Where `path` is
    a link, the file it points to is replaced and the link stays.

    Raises
    ------
    InputError
        The folder of `path` does not exist or may not be written to, or `path` is a folder or a device.

    Examples
    --------
    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "ranking.csv"
    >>> with replacing(target) as temporary:
    ...     _ = temporary.write_text("model,score")
    >>> target.read_text()
    'model,score'
    """
    target = Path(path).resolve()
    if target.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file to write")
    if target.exists() and not target.is_file():  # renaming over /dev/null would make a file of it
        raise InputError(f"cannot write {path}: it is a device or a pipe; give the name of a file to write")
    if not target.parent.is_dir():
        raise InputError(f"cannot write {path}: the folder {Path(path).parent} does not exist")
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"cannot write {path}: no permission to write to the folder {Path(path).parent}")
    temporary = target.with_name(f".{secrets.token_hex(4)}.{target.name[-100:]}")
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8 with the newlines it has, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
