"""What an edit is: whole lines to find, whole lines to put in their place. Bytes throughout; nothing is decoded."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass

from assay._core.errors import InputError


@dataclass(frozen=True)
class Block:
    r"""Whole lines that stand exactly once in a file, and what takes their place.

    Parameters
    ----------
    search : bytes
        Lines with their ends, as in the file. Only the last line of a file may lack its newline. Empty: the file does
        not exist yet, or is empty.
    replace : bytes
        What stands there afterwards; may be empty.

    Examples
    --------
    >>> Block(b"x = 1\n", b"x = 2\n").replace
    b'x = 2\n'
    """

    search: bytes
    replace: bytes


@dataclass(frozen=True)
class FileEdit:
    """All that happens to one file.

    Parameters
    ----------
    path : str
        Before the edit, relative to the root of the repository, with ``/``.
    blocks : tuple of Block
    rename_to : str, optional
        Path after the edit.
    mode : int, optional
        Git's file mode after the edit (``0o100644``, ``0o100755``), where it changes or the file is new and executable.
    delete : bool
        The file goes; `blocks` is empty then.
    """

    path: str
    blocks: tuple[Block, ...] = ()
    rename_to: str | None = None
    mode: int | None = None
    delete: bool = False


def lines_of(data: bytes) -> list[bytes]:
    r"""Lines with their ends, split after ``\n`` and nowhere else (a form feed or a lone ``\r`` is part of a line).

    >>> lines_of(b"a\r\nb\x0cc")
    [b'a\r\n', b'b\x0cc']
    """
    return io.BytesIO(data).readlines()


_DRIVE = re.compile(r"[A-Za-z]:")


def unsafe(path: str) -> str | None:
    """Why `path` may not be written inside a repository, or None where it may.

    >>> unsafe("../x")
    "it leads out of the repository ('..')"
    >>> unsafe("src/x.py") is None
    True
    """
    parts = path.replace("\\", "/").split("/")
    if not path or "\0" in path:
        return "it is empty or holds a NUL character"
    if path[0] in "/\\~" or _DRIVE.match(path):
        return "it is absolute; give it relative to the root of the repository"
    if ".." in parts:
        return "it leads out of the repository ('..')"
    if "" in parts or "." in parts:
        return "it has an empty part or '.'"
    if any(part.lower() == ".git" for part in parts):
        return "it lies in .git"
    return None


def check_path(path: str, where: str) -> None:
    """Raise InputError for a path that leads out of a repository."""
    reason = unsafe(path)
    if reason is not None:
        raise InputError(f"{where}: the path {path!r} is refused: {reason}")
