"""The written form of edits: print it so that nothing is lost, and read what models really write.

A file's edit is a line ``### path``, then its blocks: a line ``<<<<<<< SEARCH``, the old lines, a line ``=======``,
the new lines, a line ``>>>>>>> REPLACE``. Where the code itself has lines that begin with such signs, all signs of the
block are longer. ``NO NEWLINE`` after the signs that end a section says that its last line has no newline.
``@ rename to``, ``@ mode`` and ``@ delete`` stand between the path and the blocks.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from assay._core.errors import InputError
from assay.synth.clean_pr.edits import Block, FileEdit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SIGNS = re.compile(r"^[ \t]*(<{5,}|={5,}|>{5,})", re.MULTILINE)
_OPEN = re.compile(r"^([ \t]*)(<{5,}) ?SEARCH\b>?(.*)$")
_CLOSE = re.compile(r"^[ \t]*(>{5,})(?: ?REPLACE\b)?( NO NEWLINE)?[ \t]*$")
_DIVIDE = re.compile(r"^[ \t]*(={5,})( NO NEWLINE)?[ \t]*$")
_FENCE = re.compile(r"^[ \t]*(```|~~~)")
_HEAD = re.compile(r"^#{1,6}[ \t]+(\S.*)$")
_BARE_PATH = re.compile(r"^[\w./\\@+-]*[\w-]\.\w{1,12}$|^[\w.@+-]+(?:/[\w.@+-]+)+$")
_DIRECTIVE = re.compile(r"^@ (rename to (?P<to>.+)|mode (?P<mode>100644|100755)|(?P<delete>delete))$")

# ---------------------------------------------------------------------------------------------------------- writing


def format_blocks(edits: Iterable[FileEdit], style: Literal["assay", "aider"] = "assay") -> str:
    r"""Write edits as text; :func:`parse_blocks` gives the same edits back.

    Parameters
    ----------
    edits : iterable of FileEdit
    style : "assay" or "aider"
        "aider": the path on a line of its own and a Markdown fence around every block, as the assistant of that
        name asks models to write. It has no word for renames, deletions, modes or a missing last newline.

    Raises
    ------
    InputError
        A block is not UTF-8, or `style` cannot say what the edit does.

    Examples
    --------
    >>> format_blocks([FileEdit("a.py", (Block(b"x\n", b"y\n"),))]).split("\n")
    ['### a.py', '<<<<<<< SEARCH', 'x', '=======', 'y', '>>>>>>> REPLACE', '']
    """
    write = _aider if style == "aider" else _ours
    return "\n".join(write(edit) for edit in edits)


def _ours(edit: FileEdit) -> str:
    head = [f"### {_written(edit.path)}\n"]
    if edit.rename_to is not None:
        head.append(f"@ rename to {_written(edit.rename_to)}\n")
    if edit.mode is not None:
        head.append(f"@ mode {edit.mode:o}\n")
    if edit.delete:
        head.append("@ delete\n")
    return "".join([*head, *(_one(block, edit.path) for block in edit.blocks)])


def _aider(edit: FileEdit) -> str:
    blocks = [_one(block, edit.path) for block in edit.blocks]
    if edit.delete or edit.rename_to is not None or edit.mode is not None:
        raise InputError(f"{edit.path}: aider's format cannot rename, delete or change a mode; use style='assay'")
    if any("NO NEWLINE\n" in block for block in blocks):
        raise InputError(f"{edit.path}: aider's format cannot say that a last line has no newline; use style='assay'")
    return "".join(f"{edit.path}\n```\n{block}```\n" for block in blocks)


def _one(block: Block, path: str) -> str:
    search, replace = _text(block.search, path), _text(block.replace, path)
    longest = max((len(found[1]) for text in (search, replace) for found in _SIGNS.finditer(text)), default=0)
    n = max(7, longest + 1)
    return (
        f"{'<' * n} SEARCH\n{_section(search)}{'=' * n}{_flag(search)}\n"
        f"{_section(replace)}{'>' * n} REPLACE{_flag(replace)}\n"
    )


def _text(data: bytes, path: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path}: a block is not UTF-8 text and cannot be written down; leave the file out") from None


def _section(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _flag(text: str) -> str:
    return " NO NEWLINE" if text and not text.endswith("\n") else ""


def _written(path: str) -> str:
    """A path as it is, or as a JSON string where it would not read back (spaces at its ends, quotes, controls)."""
    plain = path[:1] != '"' and path.isprintable() and _undecorated(path) == path
    return path if plain else json.dumps(path)


# ---------------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Parsed:
    """What stands in a text.

    Attributes
    ----------
    edits : tuple of FileEdit
    repairs : tuple of str
        What was not written as it should be, and read all the same.
    problems : tuple of str
        What could not be read; with a problem, `edits` is not the whole edit.
    """

    edits: tuple[FileEdit, ...]
    repairs: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def parse_blocks(text: str) -> Parsed:
    r"""Read edits from text: our form, aider's, and what models make of them.

    Prose, Markdown fences, indented blocks, Windows line ends and signs of unequal length are read and listed in
    `repairs`. A block without its end (an answer that was cut off) is a problem, never guessed at.

    Parameters
    ----------
    text : str

    Returns
    -------
    Parsed

    Examples
    --------
    >>> parsed = parse_blocks("Sure!\n\na.py\n```\n<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE\n```\n")
    >>> parsed.edits
    (FileEdit(path='a.py', blocks=(Block(search=b'x\n', replace=b'y\n'),), rename_to=None, mode=None, delete=False),)
    >>> parsed.repairs[:3]
    ('line 1: prose outside the blocks', 'line 3: a path without ###', 'line 4: a Markdown fence')
    """
    reader = _Reader(text)
    reader.read()
    return Parsed(tuple(reader.files.values()), tuple(reader.repairs), tuple(reader.problems))


class _Reader:
    """One pass over the lines; `path` is the file that the next block belongs to."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.files: dict[str, FileEdit] = {}
        self.repairs: list[str] = []
        self.problems: list[str] = []
        self.path: str | None = None
        markers = [line for line in self.lines if "<<<<<" in line and _OPEN.match(line.rstrip("\r"))]
        if markers and all(line.endswith("\r") for line in markers):
            self.lines = [line.removesuffix("\r") for line in self.lines]
            self.repairs.append(r"line 1: the answer ends its lines with \r\n; read as \n")

    def read(self) -> None:
        if not any(line.strip() for line in self.lines):
            self.problems.append("the answer is empty; expected a line '### path' and search-and-replace blocks")
            return
        at = 0
        while at < len(self.lines):
            at = self._step(at)
        if not self.files and not self.problems:
            self.problems.append("the answer has no search-and-replace block; expected '<<<<<<< SEARCH' on a line")

    def _step(self, at: int) -> int:
        line = self.lines[at]
        opened = _OPEN.match(line)
        if opened:
            return self._block(at, opened)
        head, directive = _HEAD.match(line), _DIRECTIVE.match(line)
        if head:
            self._head(at, head[1], exact=line.startswith("### "))
        elif directive and self.path is not None:
            self._directive(at, directive)
        elif _FENCE.match(line):
            self._repair(at, "a Markdown fence")
        elif _BARE_PATH.match(_undecorated(line)):
            self._repair(at, "a path without ###")
            self._open_file(_undecorated(line))
        elif _DIVIDE.match(line) or _CLOSE.match(line):
            self.problems.append(f"line {at + 1}: {line.strip()[:40]!r} stands outside a block")
        elif line.strip():
            self._repair(at, "prose outside the blocks")
        return at + 1

    def _head(self, at: int, text: str, *, exact: bool) -> None:
        path = _read_path(text)
        if path is None or (not exact and not _BARE_PATH.match(path)):
            self._repair(at, "prose outside the blocks")
            return
        if path != text and text[:1] != '"':
            self._repair(at, f"the path was read as {path}")
        self._open_file(path)

    def _open_file(self, path: str) -> None:
        self.path = path
        self.files.setdefault(path, FileEdit(path))

    def _directive(self, at: int, found: re.Match[str]) -> None:
        assert self.path is not None
        edit = self.files[self.path]
        if found["delete"]:
            edit = FileEdit(edit.path, edit.blocks, edit.rename_to, edit.mode, delete=True)
        elif found["mode"]:
            edit = FileEdit(edit.path, edit.blocks, edit.rename_to, int(found["mode"], 8), edit.delete)
        else:
            edit = FileEdit(edit.path, edit.blocks, _read_path(found["to"]), edit.mode, edit.delete)
        self.files[self.path] = edit

    def _block(self, at: int, opened: re.Match[str]) -> int:
        """Read the block that opens at line `at`; return the line behind it."""
        indent, n = opened[1], len(opened[2])
        end = self._end(at, n)
        if end is None:
            text = "the block has no end ('>>>>>>> REPLACE'); the answer may have been cut off"
            self.problems.append(f"line {at + 1}: {text}")
            return self._next_open(at)
        body = self.lines[at + 1 : end]
        middle = self._middle(at, body, n)
        if middle is None:
            return end + 1
        if self.path is None:
            self.problems.append(f"line {at + 1}: no path stands before the block; write '### path' above it")
            return end + 1
        if opened[3].strip():
            self._repair(at, "words after SEARCH")
        if indent:
            self._repair(at, "the block is indented")
        divider, closer = _DIVIDE.match(body[middle]), _CLOSE.match(self.lines[end])
        assert divider is not None
        assert closer is not None
        if not len(divider[1]) == len(closer[1]) == n or "REPLACE" not in self.lines[end]:
            self._repair(at, "the signs of the block differ in length or the word REPLACE is missing")
        search = _joined(body[:middle], indent, ends=not divider[2])
        replace = _joined(body[middle + 1 :], indent, ends=not closer[2])
        edit = self.files[self.path]
        blocks = (*edit.blocks, Block(search, replace))
        self.files[self.path] = FileEdit(edit.path, blocks, edit.rename_to, edit.mode, edit.delete)
        return end + 1

    def _end(self, at: int, n: int) -> int | None:
        """The line that closes: with n signs, else the first of another length before the next block opens."""
        other = None
        for number in range(at + 1, len(self.lines)):
            line = self.lines[number]
            if "<<<<<" not in line and ">>>>>" not in line:
                continue
            closed, opened = _CLOSE.match(line), _OPEN.match(line)
            if closed and len(closed[1]) == n:
                return number
            if opened and len(opened[2]) >= n:
                return other
            if closed and other is None:
                other = number
        return other

    def _middle(self, at: int, body: Sequence[str], n: int) -> int | None:
        dividers = [
            (k, len(found[1])) for k, line in enumerate(body) if "=====" in line and (found := _DIVIDE.match(line))
        ]
        exact = [k for k, length in dividers if length == n]
        fit = exact or [k for k, _ in dividers]
        if len(fit) == 1:
            return fit[0]
        count = "no line" if not fit else f"{len(fit)} lines"
        self.problems.append(f"line {at + 1}: the block has {count} '=======' between search and replacement, not one")
        return None

    def _next_open(self, at: int) -> int:
        following = range(at + 1, len(self.lines))
        return next((k for k in following if _OPEN.match(self.lines[k])), len(self.lines))

    def _repair(self, at: int, what: str) -> None:
        self.repairs.append(f"line {at + 1}: {what}")


def _undecorated(line: str) -> str:
    return re.sub(r"^(?:file|path|filename):\s*", "", line.strip().strip("`*: \t"), flags=re.IGNORECASE).strip("`*: \t")


def _read_path(text: str) -> str | None:
    if text[:1] == '"':
        try:
            path = json.loads(text)
        except ValueError:
            return None
        return path if isinstance(path, str) else None
    return _undecorated(text) or None


def _joined(lines: Sequence[str], indent: str, *, ends: bool) -> bytes:
    if indent and all(line.startswith(indent) for line in lines if line.strip()):
        lines = [line.removeprefix(indent) for line in lines]
    text = "".join(f"{line}\n" for line in lines)
    return (text if ends else text.removesuffix("\n")).encode("utf-8", "surrogatepass")
