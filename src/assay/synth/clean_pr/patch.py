"""Unified diffs: read them as Git and diff write them, apply them without fuzz, and write them from two trees.

Hunks must fit at the very lines they name. A patch that needs luck to apply was made for another file, and what it
would give is not what was merged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay.synth.clean_pr.edits import lines_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HUNK = re.compile(rb"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_INDEX = re.compile(rb"^index ([0-9a-f]+)\.\.([0-9a-f]+)(?: (\d+))?")
_ESCAPE = re.compile(rb'\\([abtnvfr"\\]|[0-7]{3})')
_ESCAPES = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13, b'"': 34, b"\\": 92}

EXECUTABLE, LINK, SUBMODULE = 0o100755, 0o120000, 0o160000


class PatchError(ValueError):
    """A patch cannot be read, or does not fit the file."""


@dataclass
class Hunk:
    """Lines that a hunk takes away and puts in, with their ends; `start` is the first old line, from 0."""

    start: int
    old: list[bytes] = field(default_factory=list)
    new: list[bytes] = field(default_factory=list)


@dataclass
class PatchFile:
    """What a patch does to one file; a path is None where that side does not exist."""

    old_path: str | None = None
    new_path: str | None = None
    old_mode: int | None = None
    new_mode: int | None = None
    old_blob: str | None = None
    new_blob: str | None = None
    binary: bool = False
    hunks: list[Hunk] = field(default_factory=list)

    def apply(self, before: bytes) -> bytes:
        """The file after the patch.

        Raises
        ------
        PatchError
            A hunk's lines are not at the place that it names.
        """
        lines = lines_of(before)
        pieces: list[bytes] = []
        at = 0
        for number, hunk in enumerate(self.hunks, 1):
            if hunk.start < at or lines[hunk.start : hunk.start + len(hunk.old)] != hunk.old:
                raise PatchError(f"hunk {number} does not fit the file at line {hunk.start + 1}")
            pieces += lines[at : hunk.start]
            pieces += hunk.new
            at = hunk.start + len(hunk.old)
        return b"".join([*pieces, *lines[at:]])


def parse_patch(data: bytes) -> list[PatchFile]:
    """Read a unified diff: Git's, or plain ``---``/``+++`` pairs. What stands around it (mail, stat) is passed over.

    Raises
    ------
    PatchError
        A hunk has fewer lines than its head says, or a path is not UTF-8.
    """
    lines, files, at = lines_of(data), list[PatchFile](), 0
    in_git_head = False
    while at < len(lines):
        line = lines[at].rstrip(b"\r\n")
        found = _HUNK.match(line)
        if line.startswith(b"diff --git "):
            files.append(_from_git_line(line))
            in_git_head = True
        elif found and files:
            hunk, at = _read_hunk(lines, at, found)
            files[-1].hunks.append(hunk)
            in_git_head = False
            continue
        elif line.startswith(b"--- ") and at + 1 < len(lines) and lines[at + 1].startswith(b"+++ "):
            if not in_git_head:
                files.append(PatchFile())
            files[-1].old_path = _side(line[4:], b"a/")
            files[-1].new_path = _side(lines[at + 1].rstrip(b"\r\n")[4:], b"b/")
            at += 1
        elif in_git_head:
            _git_line(line, files[-1])
        at += 1
    return files


def _read_hunk(lines: Sequence[bytes], at: int, found: re.Match[bytes]) -> tuple[Hunk, int]:
    start, n_old, n_new = int(found[1]), int(found[2] or 1), int(found[4] or 1)
    hunk = Hunk(start - 1 if n_old else start)
    head, at = at, at + 1
    while at < len(lines) and (len(hunk.old) < n_old or len(hunk.new) < n_new):
        sign, text = lines[at][:1], lines[at][1:]
        if sign in (b" ", b"-", b"\n"):
            hunk.old.append(text if sign != b"\n" else b"\n")
        if sign in (b" ", b"+", b"\n"):
            hunk.new.append(text if sign != b"\n" else b"\n")
        if sign == b"\\":
            _without_newline(hunk, lines[at - 1][:1])
        elif sign not in (b" ", b"-", b"+", b"\n"):
            break
        at += 1
    if at < len(lines) and lines[at].startswith(b"\\"):
        _without_newline(hunk, lines[at - 1][:1])
        at += 1
    if (len(hunk.old), len(hunk.new)) != (n_old, n_new):
        raise PatchError(f"line {head + 1}: the hunk has fewer or more lines than its head says")
    return hunk, at


def _without_newline(hunk: Hunk, sign: bytes) -> None:
    for side, signs in ((hunk.old, b" -"), (hunk.new, b" +")):
        if sign in signs and side:
            side[-1] = side[-1].removesuffix(b"\n")


def _git_line(line: bytes, file: PatchFile) -> None:
    word, _, rest = line.partition(b" ")
    index = _INDEX.match(line)
    if index:
        file.old_blob, file.new_blob = index[1].decode(), index[2].decode()
        if index[3]:
            file.old_mode = file.new_mode = int(index[3], 8)
    elif line.startswith((b"old mode ", b"deleted file mode ")):
        file.old_mode = int(line.rpartition(b" ")[2], 8)
        if word == b"deleted":
            file.new_path = None
    elif line.startswith((b"new mode ", b"new file mode ")):
        file.new_mode = int(line.rpartition(b" ")[2], 8)
        if b"file" in rest:
            file.old_path = None
    elif line.startswith(b"rename from "):
        file.old_path = _plain(rest[5:])
    elif line.startswith(b"rename to "):
        file.new_path = _plain(rest[3:])
    elif line.startswith((b"Binary files ", b"GIT binary patch")):
        file.binary = True


def _from_git_line(line: bytes) -> PatchFile:
    """``diff --git a/x b/x``: the only place of the path where content does not change (the halves are the same)."""
    rest = line[len(b"diff --git ") :]
    if rest.startswith(b'"'):
        old, _, new = rest.partition(b'" ')
        return PatchFile(_side(old + b'"', b"a/"), _side(new, b"b/"))
    half = (len(rest) - 1) // 2
    if rest[:half][2:] == rest[half + 1 :][2:]:
        return PatchFile(_side(rest[:half], b"a/"), _side(rest[half + 1 :], b"b/"))
    old, _, new = rest.partition(b" b/")
    return PatchFile(_side(old, b"a/"), _side(b"b/" + new, b"b/"))


def _side(text: bytes, prefix: bytes) -> str | None:
    if not text.startswith(b'"'):
        text = text.partition(b"\t")[0]  # plain diffs put a date behind a tab
    path = _plain(text)
    return None if path == "/dev/null" else path.removeprefix(prefix.decode())


def _plain(text: bytes) -> str:
    if text.startswith(b'"') and text.endswith(b'"'):
        text = _ESCAPE.sub(lambda m: bytes([_ESCAPES[m[1]] if m[1] in _ESCAPES else int(m[1], 8)]), text[1:-1])
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        raise PatchError(f"the path {text!r} is not UTF-8") from None


def blocks_to_diff(before: Mapping[str, bytes], after: Mapping[str, bytes], context: int = 3) -> bytes:
    r"""The unified diff from one tree to another, as ``git apply`` takes it.

    Parameters
    ----------
    before, after : mapping of path to bytes
        Such as the files given to :func:`apply_blocks` and those that it returned.
    context : int
        Unchanged lines around each change.

    Raises
    ------
    InputError
        A changed file is binary (has a NUL byte), or pygit2 is not installed.

    Examples
    --------
    >>> print(blocks_to_diff({"a": b"x\n"}, {"a": b"y\n"}).decode(), end="")
    diff --git a/a b/a
    --- a/a
    +++ b/a
    @@ -1 +1 @@
    -x
    +y
    """
    return b"".join(
        _file_diff(path, before.get(path), after.get(path), context)
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    )


def _file_diff(path: str, before: bytes | None, after: bytes | None, context: int) -> bytes:
    from assay.synth.clean_pr.make import libgit

    if b"\0" in (before or b"") or b"\0" in (after or b""):
        raise InputError(f"{path} is binary (it has a NUL byte); a unified diff holds text")
    git = libgit()
    patch = git.Patch.create_from(
        before or b"", after or b"", context_lines=context, flag=git.enums.DiffOption.FORCE_TEXT
    )
    old, new = _quoted(f"a/{path}"), _quoted(f"b/{path}")
    head = b"diff --git %s %s\n" % (old, new)
    if before is None:
        head += b"new file mode 100644\n"
    if after is None:
        head += b"deleted file mode 100644\n"
    if not before and not after:  # a file without content has no hunk: Git's head alone makes or removes it
        return head
    sides = b"--- %s\n+++ %s\n" % (b"/dev/null" if before is None else old, b"/dev/null" if after is None else new)
    return head + sides + b"".join(_hunk(hunk) for hunk in patch.hunks)


def _hunk(hunk: Any) -> bytes:
    """From the lines themselves: libgit2's own text puts a mark of its own where a newline is missing."""
    pieces = []
    for line in hunk.lines:
        if line.origin in "+- ":
            content = line.raw_content
            pieces.append(line.origin.encode() + content)
            if not content.endswith(b"\n"):
                pieces.append(b"\n\\ No newline at end of file\n")
    return _hunk_head(hunk) + b"".join(pieces)


def _hunk_head(hunk: Any) -> bytes:
    def side(start: int, count: int) -> str:
        return str(start) if count == 1 else f"{start},{count}"

    old = side(hunk.old_start, hunk.old_lines)
    new = side(hunk.new_start, hunk.new_lines)
    return f"@@ -{old} +{new} @@\n".encode()


def _quoted(path: str) -> bytes:
    """A path as Git writes it: in quotes where it has quotes, backslashes, controls or more than ASCII."""
    raw = path.encode("utf-8")
    if all(32 <= byte < 127 and byte not in b'"\\' for byte in raw):
        return raw
    text = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03o}" for b in raw)
    return f'"{text}"'.encode()
