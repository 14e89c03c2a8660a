"""A pull request as every source gives it, and what is said of one that is not kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

#: Why a pull request is not kept. Each has exactly one reason: the first in this order that holds.
REASONS = {
    "bad_record": "the record cannot be read",
    "no_parent": "the commit has no parent here (the first commit, or the edge of a shallow clone)",
    "no_base": "the file before the change is not given and not in the repository",
    "patch_does_not_apply": "the patch does not fit the files before it",
    "unsafe_path": "a path leads out of the repository or is not UTF-8",
    "not_merged": "it was not merged",
    "excluded": "it, its repository or its base commit is on the list to exclude",
    "bot": "a program wrote it",
    "empty": "it changes nothing",
    "submodule_only": "it only moves submodules or links",
    "binary_only": "it only changes binary files",
    "docs_only": "it only changes documents",
    "no_core_file": "no source file of a target language changes",
    "deletes_core_file": "a source file is deleted",
    "too_many_files": "more source files change than the limit",
    "file_too_large": "a source file is larger than the limit",
    "lfs_pointer": "a source file is a pointer of Git LFS",
    "not_utf8": "a source file is not UTF-8 text",
    "rename_or_mode_only": "files are renamed or change their mode, no line changes",
    "round_trip": "the blocks do not give the merged files byte for byte",
    "duplicate": "the same change was kept before",
    "over_repository_cap": "more pull requests of the repository than the limit; a seeded draw left this one out",
}


@dataclass(frozen=True)
class FileChange:
    """One file before and after.

    Parameters
    ----------
    path : str
        Before the change; of a new file, after it.
    before, after : bytes or None
        None: that side does not exist, or `kind` is not ``"text"``.
    new_path : str, optional
        After a rename.
    old_mode, new_mode : int, optional
        Git file modes where known.
    kind : "text", "skipped", "binary" or "special"
        ``"skipped"``: not a source file, its content was never read. ``"special"``: a submodule or a link.
    deleted : bool
    """

    path: str
    before: bytes | None = None
    after: bytes | None = None
    new_path: str | None = None
    old_mode: int | None = None
    new_mode: int | None = None
    kind: Literal["text", "skipped", "binary", "special"] = "text"
    deleted: bool = False


@dataclass(frozen=True)
class PullRequest:
    """A change that was proposed, with what its author wrote about it.

    Parameters
    ----------
    repo, id : str
        Together unique.
    base_commit, merge_commit : str or None
    title, body, author : str
    changes : tuple of FileChange
    number : int, optional
    merged : bool
    labels : tuple of str
    issues : mapping of reference (``owner/name#7``) to text
        Linked issues that the source itself holds.
    tree : tuple of str
        Paths of the repository before the change, where asked for.
    license : str or None
        SPDX identifier.
    origin : str
        Where the record comes from, for people.
    """

    repo: str
    id: str
    base_commit: str | None
    merge_commit: str | None
    title: str
    body: str
    author: str
    changes: tuple[FileChange, ...]
    number: int | None = None
    merged: bool = True
    labels: tuple[str, ...] = ()
    issues: dict[str, str] = field(default_factory=dict)
    tree: tuple[str, ...] = ()
    license: str | None = None
    origin: str = ""


@dataclass(frozen=True)
class Reject:
    """A pull request that is not kept: the reason's code and what exactly was seen."""

    repo: str
    id: str
    reason: str
    detail: str
