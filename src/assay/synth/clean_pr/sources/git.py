"""Pull requests of a Git repository, read through libgit2."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay.synth.clean_pr.changes import FileChange, PullRequest, Reject
from assay.synth.clean_pr.filters import language_of
from assay.synth.clean_pr.make import libgit

if TYPE_CHECKING:
    from collections.abc import Iterator

MODES = ("auto", "merge", "commit")

_MERGE_TITLE = re.compile(r"^Merge (?:pull request|PR) #(\d+)(?: from \S+)?|^Merged in .*\(pull request #(\d+)\)")
_SQUASH_TITLE = re.compile(r"\(#(\d+)\)\s*$")
_GITLAB = re.compile(r"^See merge request \S*!(\d+)", re.MULTILINE)
_LICENSE_FILES = tuple(
    f"{name}{suffix}"
    for name in ("LICENSE", "COPYING", "LICENCE", "License", "license", "UNLICENSE")
    for suffix in ("", ".txt", ".md", ".rst")
)
#: Words that only one licence has, the longer names before the shorter.
_LICENSES = (
    ("AGPL-3.0", b"GNU AFFERO GENERAL PUBLIC LICENSE"),
    ("LGPL-3.0", b"GNU LESSER GENERAL PUBLIC LICENSE\nVersion 3"),
    ("LGPL-2.1", b"GNU LESSER GENERAL PUBLIC LICENSE"),
    ("GPL-3.0", b"GNU GENERAL PUBLIC LICENSE\nVersion 3"),
    ("GPL-2.0", b"GNU GENERAL PUBLIC LICENSE\nVersion 2"),
    ("MPL-2.0", b"Mozilla Public License Version 2.0"),
    ("Apache-2.0", b"Apache License\nVersion 2.0"),
    ("BSD-3-Clause", b"Neither the name of"),
    ("BSD-2-Clause", b"Redistributions in binary form must reproduce"),
    ("ISC", b"Permission to use, copy, modify, and/or distribute"),
    ("MIT", b"Permission is hereby granted, free of charge"),
    ("Unlicense", b"This is free and unencumbered software"),
)


@lru_cache(maxsize=4)
def opened(path: str) -> Any:
    """A repository, opened once in each process."""
    git = libgit()
    try:
        return git.Repository(path, git.enums.RepositoryOpenFlag.NO_SEARCH)
    except git.GitError:
        raise InputError(f"{path} is not a Git repository; give the folder of a clone (it has a .git)") from None


@dataclass(frozen=True)
class GitSource:
    """A clone; its items are the hashes of commits, the newest first.

    Parameters
    ----------
    path : str
    rev_range : str
        A revision, or ``A..B``.
    mode : "auto", "merge" or "commit"
    repo : str, optional
        Name of the repository in the records; by default from its remote ``origin``, else its folder's name.
    license : str, optional
        SPDX identifier; by default found in the tree before the change.
    with_tree : bool
        Keep the paths of the whole tree (needed for samples of the stage "localize").
    """

    path: str
    rev_range: str = "HEAD"
    mode: str = "auto"
    repo: str | None = None
    license: str | None = None
    with_tree: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InputError(f"mode {self.mode!r} is not one of {', '.join(MODES)}")

    def fingerprint(self) -> dict[str, Any]:
        """What must be the same for a run to go on where another stopped."""
        ends = [None if end is None else str(end.id) for end in self._ends()]
        return {"kind": "git", "path": str(Path(self.path).resolve()), "ends": ends, "mode": self.mode} | self._options

    @property
    def _options(self) -> dict[str, Any]:
        return {"repo": self.repo, "license": self.license, "with_tree": self.with_tree}

    def items(self) -> Iterator[str]:
        """Hashes of the commits that are pull requests, the newest first."""
        mode = self.mode
        if mode == "auto":
            mode = "merge" if any(len(commit.parent_ids) > 1 for commit in self._walk()) else "commit"
        for commit in self._walk():
            n_parents = len(commit.parent_ids)
            if (n_parents > 1) if mode == "merge" else (n_parents < 2):
                yield str(commit.id)

    def count(self) -> int:
        """How many items there are."""
        return sum(1 for _ in self.items())

    def _walk(self) -> Any:
        git, repo = libgit(), opened(self.path)
        hidden, end = self._ends()
        walker = repo.walk(end.id, git.enums.SortMode.TOPOLOGICAL | git.enums.SortMode.TIME)
        if hidden is not None:
            walker.hide(hidden.id)
        return walker

    def _ends(self) -> tuple[Any, Any]:
        """The commit to leave out with its history (or None), and the commit to start from."""
        repo = opened(self.path)
        if repo.is_empty or repo.head_is_unborn:
            raise InputError(f"{self.path}: the repository has no commits")
        left, dots, right = self.rev_range.partition("..")
        if not dots:
            return None, self._commit(left or "HEAD")
        return self._commit(left or "HEAD"), self._commit(right.removeprefix(".") or "HEAD")

    def _commit(self, name: str) -> Any:
        git, repo = libgit(), opened(self.path)
        try:
            return repo.revparse_single(name).peel(git.Commit)
        except (KeyError, ValueError, git.GitError):
            raise InputError(f"{self.path}: there is no commit {name!r}; expected a revision, or A..B") from None

    def read(self, item: str) -> PullRequest | Reject:
        """The pull request of one commit: what it changes beside its first parent."""
        repo = opened(self.path)
        commit = repo[item]
        name = self.repo or _name(self.path)
        if not commit.parent_ids or commit.parent_ids[0] not in repo:
            return Reject(name, item, "no_parent", "no parent to compare with")
        base = repo[commit.parent_ids[0]]
        try:
            changes = tuple(_changes(repo, base.tree, commit.tree))
        except UnicodeDecodeError as error:
            return Reject(name, item, "unsafe_path", f"the path {error.object!r} is not UTF-8")
        author = commit.author
        if len(commit.parent_ids) > 1 and commit.parent_ids[1] in repo:
            author = repo[commit.parent_ids[1]].author  # a merge is made by the maintainer, the change by its author
        number, title, body = _words(commit.raw_message.decode("utf-8", "replace"))
        return PullRequest(
            repo=name,
            id=item,
            base_commit=str(base.id),
            merge_commit=item,
            title=title,
            body=body,
            author=author.raw_name.decode("utf-8", "replace"),
            changes=changes,
            number=number,
            tree=tuple(_paths(base.tree)) if self.with_tree else (),
            license=self.license or _license(repo, base.tree),
            origin=f"git {name}",
        )


@lru_cache(maxsize=64)
def _name(path: str) -> str:
    """``owner/name`` of the remote ``origin``, else the folder's name."""
    try:
        url = opened(path).remotes["origin"].url.removesuffix("/").removesuffix(".git")
    except KeyError:
        return Path(path).resolve().name
    return "/".join(re.split(r"[/:\\]", url)[-2:])


def _words(message: str) -> tuple[int | None, str, str]:
    """Number, title and body. In GitHub's merge commits the title is the first line of the body."""
    title, _, body = message.strip().partition("\n")
    merge = _MERGE_TITLE.match(title)
    number = next((int(group) for group in merge.groups() if group), None) if merge else None
    if title.startswith("Merge ") and body.strip():
        title, _, body = body.strip().partition("\n")
    for pattern, text in ((_SQUASH_TITLE, title), (_GITLAB, body)):
        found = pattern.search(text)
        if number is None and found:
            number = int(found[1])
    return number, title.strip(), body.strip()


def _changes(repo: Any, before: Any, after: Any) -> Iterator[FileChange]:
    git = libgit()
    diff = repo.diff(before, after, context_lines=0, flags=git.enums.DiffOption.SKIP_BINARY_CHECK)
    deltas = list(diff.deltas)
    if {git.enums.DeltaStatus.ADDED, git.enums.DeltaStatus.DELETED} <= {delta.status for delta in deltas}:
        diff.find_similar(flags=git.enums.DiffFind.FIND_RENAMES)
        deltas = list(diff.deltas)
    for delta in deltas:
        old, new = delta.old_file, delta.new_file
        is_new, is_gone = delta.status == git.enums.DeltaStatus.ADDED, delta.status == git.enums.DeltaStatus.DELETED
        path, new_path = (file.raw_path.decode("utf-8") for file in (old, new))
        modes = (None if is_new else int(old.mode), None if is_gone else int(new.mode))
        renamed = None if path == new_path else new_path
        if any(mode is not None and mode >> 12 != 0o10 for mode in modes):
            yield FileChange(path, None, None, renamed, *modes, kind="special", deleted=is_gone)
        elif language_of(new_path) is None:
            yield FileChange(path, None, None, renamed, *modes, kind="skipped", deleted=is_gone)
        else:
            content = (None if is_new else repo[old.id].data, None if is_gone else repo[new.id].data)
            is_binary = any(b"\0" in data for data in content if data)
            content = (None, None) if is_binary else content
            kind = "binary" if is_binary else "text"
            yield FileChange(path, *content, renamed, *modes, kind=kind, deleted=is_gone)  # type: ignore[arg-type]  # unpacked


def _paths(tree: Any, folder: str = "") -> Iterator[str]:
    for entry in tree:
        name = entry.raw_name.decode("utf-8", "replace")
        if entry.type_str == "tree":
            yield from _paths(entry, f"{folder}{name}/")
        elif entry.type_str == "blob":
            yield f"{folder}{name}"


def _license(repo: Any, tree: Any) -> str | None:
    for name in _LICENSE_FILES:
        if name in tree and tree[name].type_str == "blob":
            return _license_of_blob(repo.path, str(tree[name].id))
    return None


@lru_cache(maxsize=4096)
def _license_of_blob(path: str, blob: str) -> str | None:
    return spdx(opened(path)[blob].data)


def spdx(text: bytes) -> str | None:
    """The SPDX identifier of a licence's text, by words that only it has; None: unknown.

    >>> spdx(b"MIT License ... Permission is hereby granted, free of charge, to any person")
    'MIT'
    """
    words = b" ".join(text.split()).lower()
    return next((name for name, mark in _LICENSES if b" ".join(mark.split()).lower() in words), None)
