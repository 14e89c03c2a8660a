"""From a pull request to a training record, or to the one reason why not.

The law: the written blocks, read back and applied to the files before, give the merged files byte for byte.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from assay.synth.clean_pr.apply import ApplyResult, apply_blocks
from assay.synth.clean_pr.changes import FileChange, PullRequest, Reject
from assay.synth.clean_pr.draw import Draw
from assay.synth.clean_pr.edits import Block, FileEdit, lines_of
from assay.synth.clean_pr.filters import PRFilter, core_language, refuse
from assay.synth.clean_pr.form import format_blocks, parse_blocks
from assay.synth.clean_pr.issues import link_issues
from assay.synth.clean_pr.make import diff_to_blocks
from assay.synth.clean_pr.patch import EXECUTABLE
from assay.synth.clean_pr.sources.given import blob_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Characters of a file that a record holds whole; of a longer one, windows around the blocks (paper: 100k tokens).
WHOLE_FILE_CHARACTERS = 400_000
#: Lines of such a window above and below the blocks.
WINDOW_LINES = 200


def edit_of(change: FileChange) -> FileEdit:
    r"""The edit that makes `change`.

    >>> edit_of(FileChange("a.py", b"x\n", b"y\n")).blocks
    (Block(search=b'x\n', replace=b'y\n'),)
    """
    if change.deleted:
        return FileEdit(change.path, delete=True)
    is_new = change.before is None
    blocks = tuple(diff_to_blocks(change.before or b"", change.after or b""))
    if is_new and not blocks:
        blocks = (Block(b"", b""),)  # a new empty file: an empty search text makes it
    mode_before = change.old_mode if change.old_mode is not None else 0o100644
    changes_mode = change.new_mode is not None and change.new_mode != mode_before
    mode = change.new_mode if changes_mode and (not is_new or change.new_mode == EXECUTABLE) else None
    return FileEdit(change.path, blocks, change.new_path, mode)


@dataclass(frozen=True)
class RoundTrip:
    """What came of writing edits down, reading them back and applying them.

    Attributes
    ----------
    ok : bool
        The files are those after the change, byte for byte, with their modes.
    reason : str
        What differs; empty where nothing does.
    text : str
        The written form.
    edits : tuple of FileEdit
    applied : ApplyResult or None
    """

    ok: bool
    reason: str
    text: str
    edits: tuple[FileEdit, ...]
    applied: ApplyResult | None = None


def roundtrip(changes: Sequence[FileChange]) -> RoundTrip:
    r"""Make the edits of `changes`, and check that they bring the files after them, byte for byte.

    Examples
    --------
    >>> roundtrip([FileChange("a.py", b"x\n", b"y\n")]).ok
    True
    """
    edits = tuple(edit_of(change) for change in changes)
    before = {change.path: change.before for change in changes if change.before is not None}
    after = {change.new_path or change.path: change.after for change in changes if change.after is not None}
    text = format_blocks(edits)
    parsed = parse_blocks(text)
    if parsed.edits != edits or parsed.repairs or parsed.problems:
        return RoundTrip(False, "the written edits do not read back as they were", text, edits)
    applied = apply_blocks(before, parsed.edits)
    if not applied.ok:
        return RoundTrip(False, str(applied.errors[0]), text, edits, applied)
    wrong = sorted(path for path in applied.files.keys() | after.keys() if applied.files.get(path) != after.get(path))
    if wrong:
        return RoundTrip(False, f"{wrong[0]} comes out differently", text, edits, applied)
    return RoundTrip(True, "", text, edits, applied)


def clean_one(
    pr: PullRequest, filter_: PRFilter | None = None, issues: Mapping[str, str] | None = None
) -> dict[str, Any] | Reject:
    """The training record of one pull request, or why there is none.

    Parameters
    ----------
    pr : PullRequest
    filter_ : PRFilter, optional
    issues : mapping of reference to text, optional
        Beside those that the pull request brings along.

    Returns
    -------
    dict or Reject
        The record has only JSON values; its fields are listed in the documentation of the method.
    """
    filter_ = filter_ or PRFilter()
    reason = refuse(pr, filter_)
    if reason is not None:
        return Reject(pr.repo, pr.id, *reason)
    core = [(change, language) for change in pr.changes if (language := core_language(change, filter_))]
    changes = [change for change, _ in core]
    trip = roundtrip(changes)
    if not trip.ok or trip.applied is None:
        return Reject(pr.repo, pr.id, "round_trip", trip.reason)
    languages = [language for _, language in core]
    files = [
        _file(change, edit, language, trip.applied.spans.get(change.path, []))
        for change, edit, language in zip(changes, trip.edits, languages, strict=True)
    ]
    known = dict(issues or {}) | pr.issues
    record: dict[str, Any] = {
        "repo": pr.repo,
        "id": pr.id,
        "number": pr.number,
        "base_commit": pr.base_commit,
        "merge_commit": pr.merge_commit,
        "license": pr.license,
        "origin": pr.origin,
        "title": pr.title,
        "body": pr.body,
        "author": pr.author,
        "labels": list(pr.labels),
        "issues": link_issues(f"{pr.title}\n{pr.body}", pr.repo, known) if known else [],
        "language": Counter(languages).most_common(1)[0][0],
        "files": files,
        "edit": trip.text,
        "other_files": sorted(change.new_path or change.path for change in pr.changes if change not in changes),
    }
    if pr.tree:
        record["tree"] = list(pr.tree)
    return record


def _file(change: FileChange, edit: FileEdit, language: str, spans: list[tuple[int, int]]) -> dict[str, Any]:
    before = None if change.before is None else change.before.decode("utf-8")
    is_whole = before is not None and len(before) <= WHOLE_FILE_CHARACTERS
    return {
        "path": change.path,
        "language": language,
        "rename_to": edit.rename_to,
        "mode": None if edit.mode is None else f"{edit.mode:o}",
        "delete": edit.delete,
        "blob_before": None if change.before is None else blob_id(change.before),
        "blob_after": None if change.after is None else blob_id(change.after),
        "blocks": [{"search": b.search.decode("utf-8"), "replace": b.replace.decode("utf-8")} for b in edit.blocks],
        "lines": [list(span) for span in spans],
        "content": before if is_whole else None,
        "windows": [] if is_whole or change.before is None else _windows(change.before, spans),
    }


def _windows(before: bytes, spans: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Pieces of a long file around its blocks, each with the number of its first line (from 1)."""
    lines = lines_of(before)
    joined: list[list[int]] = []
    for first, last in spans:
        low, high = max(0, first - WINDOW_LINES), min(len(lines), last + WINDOW_LINES)
        if joined and low <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], high)
        else:
            joined.append([low, high])
    return [{"first_line": low + 1, "text": b"".join(lines[low:high]).decode("utf-8")} for low, high in joined]


@dataclass
class Report:
    """How many pull requests came in, were kept, and were dropped for which reason.

    Examples
    --------
    >>> Report(n=3, kept=1, reasons=Counter(bot=2)).adds_up()
    True
    """

    n: int = 0
    kept: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def adds_up(self) -> bool:
        """Every pull request is kept, or dropped for one reason."""
        return self.n == self.kept + self.reasons.total()

    def summary(self) -> str:
        """A table: kept, then the reasons by how often they held."""
        rows = [("kept", self.kept), *self.reasons.most_common()]
        width = max(len(name) for name, _ in rows)
        share = [f"{count / self.n:6.1%}" if self.n else "     –" for _, count in rows]
        lines = [f"  {name:<{width}} {count:>9,} {part}" for (name, count), part in zip(rows, share, strict=True)]
        return "\n".join([f"{self.n:,} pull requests", *lines])

    def add(self, outcome: dict[str, Any] | Reject) -> None:
        """Count one outcome."""
        self.n += 1
        if isinstance(outcome, Reject):
            self.reasons[outcome.reason] += 1
        else:
            self.kept += 1


def clean(
    prs: Iterable[PullRequest | Reject], filter_: PRFilter | None = None, *, seed: int = 0
) -> tuple[list[dict[str, Any]], list[Reject], Report]:
    """Clean pull requests in memory; :func:`build` does the same for histories that do not fit.

    Parameters
    ----------
    prs : iterable of PullRequest or Reject
        As the sources give them.
    filter_ : PRFilter, optional
    seed : int
        Of the draw from repositories with more than ``filter_.max_per_repo`` pull requests.

    Returns
    -------
    records : list of dict
    rejects : list of Reject
    report : Report
    """
    filter_ = filter_ or PRFilter()
    outcomes = [pr if isinstance(pr, Reject) else clean_one(pr, filter_) for pr in prs]
    draw = Draw(filter_.max_per_repo, seed)
    for outcome in outcomes:
        if not isinstance(outcome, Reject):
            draw.see(outcome["repo"], outcome["id"], outcome["edit"])
    records, rejects, report = [], [], Report()
    for outcome in outcomes:
        decided = outcome if isinstance(outcome, Reject) else draw.decide(outcome)
        report.add(decided)
        if isinstance(decided, Reject):
            rejects.append(decided)
        else:
            records.append(decided)
    return records, rejects, report
