"""Where pull requests come from: a Git repository, a JSONL file, a folder of patches.

Each source gives cheap, small *items* in a fixed order (a commit's hash, a line, a file's name), and reads an item into
a pull request where it is worked on: in this process, another one, or on another machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from assay._core.errors import InputError
from assay.synth.clean_pr.sources.git import GitSource
from assay.synth.clean_pr.sources.jsonl import JsonlSource
from assay.synth.clean_pr.sources.patches import PatchSource

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from assay.synth.clean_pr.changes import PullRequest, Reject

Source = GitSource | JsonlSource | PatchSource

__all__ = ["GitSource", "JsonlSource", "PatchSource", "Source", "from_jsonl", "iter_prs", "open_source"]


def iter_prs(
    repo_dir: str | os.PathLike[str], rev_range: str = "HEAD", mode: str = "auto"
) -> Iterator[PullRequest | Reject]:
    """Pull requests of a Git repository, the newest first.

    Parameters
    ----------
    repo_dir : path
        A clone.
    rev_range : str
        A revision (all of its history), or ``A..B``: what B has and A has not.
    mode : "auto", "merge" or "commit"
        Each merge commit is a pull request, or each commit with one parent; "auto": merge commits where there are any.

    Raises
    ------
    InputError
        Not a Git repository, or no such revision.
    """
    source = GitSource(str(repo_dir), rev_range=rev_range, mode=mode)
    return (source.read(item) for item in source.items())


def from_jsonl(
    path: str | os.PathLike[str], repo_dir: str | os.PathLike[str] | None = None
) -> Iterator[PullRequest | Reject]:
    """Pull requests of a JSONL file, in its order; see :class:`JsonlSource` for the fields."""
    source = JsonlSource(str(path), repo_dir=None if repo_dir is None else str(repo_dir))
    return (source.read(item) for item in source.items())


def open_source(
    path: str | os.PathLike[str],
    *,
    repo_dir: str | None = None,
    rev_range: str = "HEAD",
    mode: str = "auto",
    name: str | None = None,
    license: str | None = None,  # noqa: A002
    with_tree: bool = False,
) -> Source:
    """The source that a path is: a folder with patches in it, another folder (a Git repository), or a file (JSONL)."""
    place = Path(path)
    if place.is_dir():
        if PatchSource.holds_patches(place):
            return PatchSource(str(path), repo_dir=repo_dir, repo=name, license=license)
        return GitSource(str(path), rev_range, mode, repo=name, license=license, with_tree=with_tree)
    if not place.exists():
        raise InputError(f"{path}: no such file or folder")
    return JsonlSource(str(path), repo_dir=repo_dir, license=license)
