"""Pull requests of a JSONL file."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay.synth.clean_pr.changes import FileChange, PullRequest, Reject
from assay.synth.clean_pr.filters import language_of
from assay.synth.clean_pr.patch import PatchError
from assay.synth.clean_pr.sources.given import NoBaseError, changes_of, from_repository

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.synth.clean_pr.patch import PatchFile

#: Bytes of one line; a longer one is refused before it is read as JSON.
LONGEST_LINE = 64_000_000


@dataclass(frozen=True)
class JsonlSource:
    """A file with one JSON object a line (also ``.gz``); its items are (number of the line, line).

    Fields: ``repo``; ``number``, ``id`` or ``instance_id``; ``title`` and ``body``, or ``problem_statement``;
    ``author`` or ``user``; ``merged``; ``labels``; ``base_commit``; ``merge_commit``; ``license``; ``issues``
    (reference to text). What changed is ``before`` and ``after`` (path to text, null where the file does not exist),
    or ``before`` and ``patch``, or ``patch`` and ``base_commit`` with a clone in `repo_dir` (the layout of SWE-bench).

    Parameters
    ----------
    path : str
    repo_dir : str, optional
        A clone that holds the base commits.
    license : str, optional
        For records that name none.
    """

    path: str
    repo_dir: str | None = None
    license: str | None = None

    def fingerprint(self) -> dict[str, Any]:
        """What must be the same for a run to go on where another stopped."""
        place = Path(self.path)
        stat = place.stat()
        known = {"size": stat.st_size, "changed": stat.st_mtime_ns, "repo_dir": self.repo_dir, "license": self.license}
        return {"kind": "jsonl", "path": str(place.resolve())} | known

    def count(self) -> int:
        """How many items there are."""
        return sum(1 for _ in self.items())

    def items(self) -> Iterator[tuple[int, bytes]]:
        """Lines that are not blank, with their numbers from 1.

        Raises
        ------
        InputError
            The file is missing, empty, or its first line is no JSON object (then it is no JSONL at all).
        """
        place = Path(self.path)
        if not place.is_file():
            raise InputError(f"{self.path}: no such file")
        is_first = True
        with gzip.open(place) if place.suffix == ".gz" else place.open("rb") as lines:
            number = 0
            while line := lines.readline(LONGEST_LINE):
                number += 1
                if is_first and line.strip():
                    self._check_first(line, number)
                    is_first = False
                if line.strip():
                    yield number, line
        if is_first:
            raise InputError(f"{self.path} is empty; expected one pull request a line, as JSON")

    def _check_first(self, line: bytes, number: int) -> None:
        try:
            is_object = isinstance(json.loads(line), dict)
        except ValueError:
            is_object = False
        if not is_object:
            raise InputError(
                f"{self.path}, line {number} is not a JSON object; expected JSON Lines with one pull request a line, "
                "a Git repository, or a folder of .patch files"
            )

    def read(self, item: tuple[int, bytes]) -> PullRequest | Reject:
        """The pull request of one line."""
        number, line = item
        place = f"line {number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            return Reject("", place, "bad_record", f"{place}: not JSON ({error})")
        if not isinstance(record, dict):
            return Reject("", place, "bad_record", f"{place}: not a JSON object")
        repo = str(record.get("repo") or record.get("repository") or "")
        name = str(record.get("id") or record.get("instance_id") or record.get("number") or place)
        try:
            return self._pull_request(record, repo, name)
        except PatchError as error:
            return Reject(repo, name, "patch_does_not_apply", f"{place}: {error}")
        except NoBaseError as error:
            return Reject(repo, name, "no_base", f"{place}: {error}; give `before`, or a clone with its base commit")
        except (_FieldError, TypeError, ValueError) as error:
            return Reject(repo, name, "bad_record", f"{place}: {error}")

    def _pull_request(self, record: Mapping[str, Any], repo: str, name: str) -> PullRequest:
        if not repo:
            raise _FieldError("no field `repo`")
        problem = _text(record, "problem_statement")
        title, _, rest = problem.partition("\n")
        author = record.get("author") or record.get("user") or ""
        author = author.get("login", "") if isinstance(author, dict) else author
        labels = [label.get("name", "") if isinstance(label, dict) else label for label in record.get("labels") or ()]
        number = record.get("number")
        return PullRequest(
            repo=repo,
            id=name,
            base_commit=_text(record, "base_commit") or None,
            merge_commit=_text(record, "merge_commit") or None,
            title=_text(record, "title") or title,
            body=_text(record, "body") or rest.strip(),
            author=str(author),
            changes=self._changes(record),
            number=int(number) if number is not None else None,
            merged=record.get("merged", True) is not False,
            labels=tuple(map(str, labels)),
            issues={str(key): _issue(value) for key, value in (record.get("issues") or {}).items()},
            tree=tuple(map(str, record.get("tree") or ())),
            license=_text(record, "license") or self.license,
            origin=f"{os.path.basename(self.path)}",  # noqa: PTH119 - a name, not a place
        )

    def _changes(self, record: Mapping[str, Any]) -> tuple[FileChange, ...]:
        before = _files(record, "before")
        if "after" in record:
            after = _files(record, "after")
            return tuple(
                _pair(path, before.get(path), after.get(path)) for path in sorted(before.keys() | after.keys())
            )
        patch = _text(record, "patch")
        if "patch" not in record:
            raise _FieldError("neither `patch` nor `after` is given")
        look_up = None
        if self.repo_dir is not None:
            look_up = from_repository(self.repo_dir, _text(record, "base_commit") or None)

        def before_of(file: PatchFile) -> bytes | None:
            if file.old_path in before:
                return before[file.old_path]
            return look_up(file) if look_up else None

        return changes_of(patch.encode("utf-8", "surrogatepass"), before_of)


class _FieldError(ValueError):
    pass


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _FieldError(f"`{name}` is {type(value).__name__}, expected text")
    return value


def _files(record: Mapping[str, Any], name: str) -> dict[str, bytes | None]:
    files = record.get(name) or {}
    if not isinstance(files, dict) or not all(isinstance(text, str | None) for text in files.values()):
        raise _FieldError(f"`{name}` is not an object of path to text")
    return {path: None if text is None else text.encode("utf-8", "surrogatepass") for path, text in files.items()}


def _issue(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value.get('title') or ''}\n\n{value.get('body') or ''}".strip()
    return str(value)


def _pair(path: str, before: bytes | None, after: bytes | None) -> FileChange:
    if language_of(path) is None:
        return FileChange(path, kind="skipped", deleted=after is None)
    if b"\0" in (before or b"") or b"\0" in (after or b""):
        return FileChange(path, kind="binary", deleted=after is None)
    return FileChange(path, before, after, deleted=after is None)
