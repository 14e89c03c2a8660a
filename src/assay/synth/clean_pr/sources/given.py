"""Turn a patch and the files before it into changes; shared by the sources that bring patches."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from assay.synth.clean_pr.changes import FileChange
from assay.synth.clean_pr.filters import language_of
from assay.synth.clean_pr.patch import EXECUTABLE, PatchError, PatchFile, parse_patch

if TYPE_CHECKING:
    from collections.abc import Callable


class NoBaseError(LookupError):
    """The file that a patch changes is not at hand."""


def blob_id(data: bytes) -> str:
    """Git's SHA-1 of a file's content.

    >>> blob_id(b"")
    'e69de29bb2d1d6434b8b29ae775ad8c2e48c5391'
    """
    return hashlib.sha1(b"blob %d\0%b" % (len(data), data), usedforsecurity=False).hexdigest()


def changes_of(patch: bytes, before_of: Callable[[PatchFile], bytes | None]) -> tuple[FileChange, ...]:
    """Apply a patch to the files before it.

    Parameters
    ----------
    patch : bytes
        A unified diff.
    before_of : callable
        Gives the content of ``file.old_path`` before the patch, or None where it is not known.

    Raises
    ------
    NoBaseError
        A source file's content before is not known.
    PatchError
        The patch cannot be read, does not fit, or gives another file than its ``index`` line says.
    """
    return tuple(_change(file, before_of) for file in parse_patch(patch))


def _change(file: PatchFile, before_of: Callable[[PatchFile], bytes | None]) -> FileChange:
    path = file.old_path or file.new_path
    if path is None:
        raise PatchError("a file of the patch has no path")
    renamed = file.new_path if file.old_path and file.new_path and file.old_path != file.new_path else None
    modes = (file.old_mode, file.new_mode)
    is_gone = file.new_path is None
    if any(mode is not None and mode >> 12 != EXECUTABLE >> 12 for mode in modes):
        return FileChange(path, None, None, renamed, *modes, kind="special", deleted=is_gone)
    if file.binary:
        return FileChange(path, None, None, renamed, *modes, kind="binary", deleted=is_gone)
    if language_of(file.new_path or path) is None:
        return FileChange(path, None, None, renamed, *modes, kind="skipped", deleted=is_gone)
    before = None
    if file.old_path is not None:
        before = before_of(file)
        if before is None:
            raise NoBaseError(f"{file.old_path} before the patch is not known")
    after = file.apply(before or b"")
    if is_gone:
        if after:
            raise PatchError(f"{path}: the patch deletes the file but leaves lines of it")
        return FileChange(path, before, None, None, *modes, deleted=True)
    if file.new_blob and file.hunks and not blob_id(after).startswith(file.new_blob) and len(file.new_blob) <= 40:
        raise PatchError(f"{path}: the patch gives another file than its index line names ({file.new_blob})")
    return FileChange(path, before, after, renamed, *modes)


def from_repository(repo_dir: str, commit: str | None) -> Callable[[PatchFile], bytes | None]:
    """Look files up in a clone: by the patch's blob, else by path in the tree of `commit`."""
    from assay.synth.clean_pr.make import libgit
    from assay.synth.clean_pr.sources.git import opened

    git, repo = libgit(), opened(repo_dir)

    def before_of(file: PatchFile) -> bytes | None:
        if file.old_blob is not None and len(file.old_blob) >= 7:
            found = _object(repo, file.old_blob)
            if isinstance(found, git.Blob):
                return bytes(found.data)
        root = None if commit is None else _object(repo, commit)
        if root is None:
            return None
        try:
            entry: Any = root.peel(git.Tree)[file.old_path]
        except (KeyError, git.GitError):
            return None
        return bytes(entry.data) if isinstance(entry, git.Blob) else None

    return before_of


def _object(repo: Any, name: str) -> Any:
    try:
        return repo.revparse_single(name)
    except (KeyError, ValueError):
        return None
