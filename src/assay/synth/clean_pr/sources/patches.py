"""Pull requests of a folder of patches: ``git format-patch`` mails or plain diffs."""

from __future__ import annotations

import email
import email.policy
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.synth.clean_pr.changes import PullRequest, Reject
from assay.synth.clean_pr.patch import PatchError
from assay.synth.clean_pr.sources.given import NoBaseError, changes_of, from_repository

if TYPE_CHECKING:
    from collections.abc import Iterator

SUFFIXES = (".patch", ".diff")
#: A patch is read whole.
LARGEST = 256_000_000
_SUBJECT = re.compile(r"^\s*(\[[^\]]*\]\s*)*")
_BASE = re.compile(rb"^base-commit: ([0-9a-f]{40})\s*$", re.MULTILINE)
_START = re.compile(rb"^(diff --git |--- \S|---\s*$)", re.MULTILINE)


@dataclass(frozen=True)
class PatchSource:
    """A folder of ``.patch`` and ``.diff`` files; its items are their names, sorted.

    Parameters
    ----------
    path : str
    repo_dir : str, optional
        A clone that holds the files before the patches: by the blobs that a patch's ``index`` lines name, else by its
        ``base-commit``, else in HEAD. Without one only patches that make new files can be read.
    repo : str, optional
        Name of the repository in the records; by default the folder's name.
    license : str, optional
        SPDX identifier.
    """

    path: str
    repo_dir: str | None = None
    repo: str | None = None
    license: str | None = None

    @staticmethod
    def holds_patches(folder: Path) -> bool:
        """Whether a folder is one of patches: no repository, and at least one patch."""
        return not (folder / ".git").exists() and any(file.suffix in SUFFIXES for file in folder.iterdir())

    def fingerprint(self) -> dict[str, Any]:
        """What must be the same for a run to go on where another stopped."""
        options = {"repo_dir": self.repo_dir, "repo": self.repo, "license": self.license}
        return {"kind": "patches", "path": str(Path(self.path).resolve()), "names": list(self.items())} | options

    def count(self) -> int:
        """How many items there are."""
        return sum(1 for _ in self.items())

    def items(self) -> Iterator[str]:
        """Names of the patches, sorted."""
        files = (file for file in Path(self.path).iterdir() if file.suffix in SUFFIXES and file.is_file())
        yield from sorted(file.name for file in files)

    def read(self, item: str) -> PullRequest | Reject:
        """The pull request of one file."""
        repo = self.repo or Path(self.path).resolve().name
        place = Path(self.path) / item
        if place.stat().st_size > LARGEST:
            return Reject(repo, item, "bad_record", f"{item}: larger than {LARGEST:,} bytes")
        data = place.read_bytes()
        base = _BASE.search(data)
        base_commit = base[1].decode() if base else None
        look_up = None if self.repo_dir is None else from_repository(self.repo_dir, base_commit or "HEAD")
        try:
            changes = changes_of(data, look_up or (lambda file: None))
        except PatchError as error:
            return Reject(repo, item, "patch_does_not_apply", f"{item}: {error}")
        except NoBaseError as error:
            hint = "give a clone that holds it" if self.repo_dir is None else "the clone does not hold it"
            return Reject(repo, item, "no_base", f"{item}: {error}; {hint}")
        title, body, author = _mail(data)
        return PullRequest(
            repo=repo,
            id=item,
            base_commit=base_commit,
            merge_commit=None,
            title=title,
            body=body,
            author=author,
            changes=changes,
            license=self.license,
            origin=f"patch {item}",
        )


def _mail(data: bytes) -> tuple[str, str, str]:
    """Subject, message and author of a ``git format-patch`` mail; empty for a plain diff."""
    if not data.startswith(b"From "):
        return "", "", ""
    mail = email.message_from_bytes(data.partition(b"\n")[2], policy=email.policy.default)
    title = _SUBJECT.sub("", str(mail["Subject"] or "").replace("\n", ""))
    author = str(mail["From"] or "").partition("<")[0].strip().strip('"')
    text = data.partition(b"\n\n")[2]
    start = _START.search(text)
    return title, (text[: start.start()] if start else text).decode("utf-8", "replace").strip(), author
