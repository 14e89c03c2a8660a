"""From two versions of a file to the shortest blocks that turn one into the other.

Paper: "Clean-PR: Pull Requests as a Training Signal for Repo-Level Code Editing", arXiv:2602.07457, stage 2. The line
diff is libgit2's (Myers, in C). How ties between anchors are broken is ours.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from assay._core.extras import need
from assay.synth.clean_pr.anchors import Anchors
from assay.synth.clean_pr.edits import Block, lines_of

if TYPE_CHECKING:
    from collections.abc import Sequence


class Span(NamedTuple):
    """Lines [i1, i2) of the old file became lines [j1, j2) of the new one, from 0."""

    i1: int
    i2: int
    j1: int
    j2: int


@cache
def libgit() -> Any:
    """The package pygit2, or the sentence that says how to get it."""
    return need("pygit2", extra="synth", purpose="reading Git repositories and comparing files")


def changed_spans(before: bytes, after: bytes) -> list[Span]:
    r"""The smallest spans of lines that differ, in order, by libgit2's Myers diff.

    >>> changed_spans(b"a\nb\nc\n", b"a\nc\nd\n")
    [Span(i1=1, i2=2, j1=1, j2=1), Span(i1=3, i2=3, j1=2, j2=3)]
    """
    git = libgit()
    patch = git.Patch.create_from(
        before, after, flag=git.enums.DiffOption.FORCE_TEXT, context_lines=0, interhunk_lines=0
    )
    return [
        Span(
            *_range(hunk.old_start, hunk.old_lines),
            *_range(hunk.new_start, hunk.new_lines),
        )
        for hunk in patch.hunks
    ]


def _range(start: int, count: int) -> tuple[int, int]:
    """Unified diffs count from 1, and name the line before where a side of a hunk is empty."""
    first = start - 1 if count else start
    return first, first + count


def diff_to_blocks(before: bytes, after: bytes) -> list[Block]:
    r"""The blocks that turn `before` into `after`, each with the fewest lines that make its search text unique.

    Parameters
    ----------
    before, after : bytes
        A file's contents. `before` empty (or a new file): one block with an empty search text.

    Returns
    -------
    list of Block
        In the order of the file; empty where nothing changes.

    Raises
    ------
    InputError
        The package pygit2 is not installed.

    Examples
    --------
    >>> diff_to_blocks(b"a\nb\nc\n", b"a\nB\nc\n")
    [Block(search=b'b\n', replace=b'B\n')]
    >>> diff_to_blocks(b"x\nx\nx\n", b"x\nx\ny\nx\n")
    [Block(search=b'x\nx\nx\n', replace=b'x\nx\ny\nx\n')]
    """
    if before == after:
        return []
    if not before:
        return [Block(b"", after)]
    old, new = lines_of(before), lines_of(after)
    spans = changed_spans(before, after)
    anchors = Anchors(old)
    ranges = [(*anchors.around(span.i1, span.i2), [span]) for span in spans]
    return [_block(old, new, *merged) for merged in _merged(ranges)]


Range = tuple[int, int, list[Span]]


def _merged(ranges: list[Range]) -> list[Range]:
    """Join ranges that overlap. The union holds a unique range, so it is unique; and it holds every span it touches."""
    joined: list[Range] = []
    for low, high, spans in sorted(ranges, key=lambda one: (one[0], one[1], one[2][0])):
        if joined and low < joined[-1][1]:
            first, last, members = joined.pop()
            joined.append((first, max(last, high), members + spans))
        else:
            joined.append((low, high, spans))
    return joined


def _block(old: Sequence[bytes], new: Sequence[bytes], low: int, high: int, spans: list[Span]) -> Block:
    """Copy the old lines of the range and put in the new lines of *every* span inside (paper, stage 2.3)."""
    pieces: list[bytes] = []
    at = low
    for span in sorted(spans):
        pieces += old[at : span.i1]
        pieces += new[span.j1 : span.j2]
        at = span.i2
    pieces += old[at:high]
    return Block(b"".join(old[low:high]), b"".join(pieces))
