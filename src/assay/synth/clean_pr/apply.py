"""Apply search-and-replace edits to files: all of them or none, with errors that a person or a model can act on.

Every search text is looked for in the file as it was, must stand there exactly once as whole lines, and all are
replaced at once: what one block writes is never searched by the next (paper, round-trip check).
"""

from __future__ import annotations

import difflib
import stat
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from assay._core.errors import InputError
from assay._core.files import replacing
from assay.synth.clean_pr.edits import FileEdit, lines_of, unsafe
from assay.synth.clean_pr.fuzzy import Match, find_fuzzily

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

#: Places of an ambiguous search text that a message lists.
LISTED = 10


@dataclass(frozen=True)
class Note:
    """One thing to say about an edit: an error, a warning, or a repair.

    Parameters
    ----------
    path : str
    block : int or None
        Number of the block within its file, from 1; None: the file as a whole.
    kind : str
        ``missing``, ``ambiguous``, ``overlap``, ``exists``, ``no_file``, ``unsafe_path``, ``twice`` (errors);
        ``no_op`` (warning); ``line_ends``, ``trailing_space``, ``indentation`` (repairs).
    text : str
        One sentence.
    """

    path: str
    block: int | None
    kind: str
    text: str

    def __str__(self) -> str:
        place = self.path if self.block is None else f"{self.path}, block {self.block}"
        return f"{place}: {self.text}"


@dataclass(frozen=True)
class ApplyResult:
    """What came of an edit.

    Attributes
    ----------
    files : dict of path to bytes
        After the edit; the files as they were where there is an error.
    errors, warnings, repairs : tuple of Note
        `repairs` is empty in strict mode.
    modes : dict of path to int
        Git file modes that the edit sets.
    spans : dict of path to list of (int, int)
        Lines of the original that the blocks replace: the first, and one past the last, from 0.
    """

    files: dict[str, bytes]
    errors: tuple[Note, ...] = ()
    warnings: tuple[Note, ...] = ()
    repairs: tuple[Note, ...] = ()
    modes: dict[str, int] = field(default_factory=dict)
    spans: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the edit was applied."""
        return not self.errors


def apply_blocks(files: Mapping[str, bytes], edits: Iterable[FileEdit], *, fuzzy: bool = False) -> ApplyResult:
    r"""Apply edits to files in memory, all or none.

    Parameters
    ----------
    files : mapping of path to bytes
        The files before the edit: the whole tree, or those that the edit touches.
    edits : iterable of FileEdit
    fuzzy : bool
        Where a search text is not in the file, look again without regard to line ends, then to spaces at the end of
        lines, then to a common indentation. Each such match must be the only one too and is listed in
        ``result.repairs``, so that strict and fuzzy success can be counted apart.

    Returns
    -------
    ApplyResult

    Examples
    --------
    >>> from assay.synth.clean_pr import Block
    >>> edit = FileEdit("a.py", (Block(b"x = 1\n", b"x = 2\n"),))
    >>> apply_blocks({"a.py": b"x = 1\ny = 1\n"}, [edit]).files
    {'a.py': b'x = 2\ny = 1\n'}
    >>> print(apply_blocks({"a.py": b"x = 1\nx = 1\n"}, [edit]).errors[0])
    a.py, block 1: the search text stands at lines 1 and 2; add lines above or below it until it stands once
    """
    edits = list(edits)
    after, notes = dict(files), _Notes()
    modes: dict[str, int] = {}
    spans: dict[str, list[tuple[int, int]]] = {}
    times = Counter(edit.path for edit in edits)
    written: list[tuple[str, bytes, int | None]] = []
    for edit in edits:
        if times[edit.path] > 1:
            notes.error(edit.path, None, "twice", "two edits are for this file; put all its blocks into one")
            continue
        if not _paths_are_fit(files, edit, notes):
            continue
        content, ranges = _edited(files.get(edit.path), edit, notes, fuzzy=fuzzy)
        spans[edit.path] = ranges
        if edit.delete or edit.rename_to:
            after.pop(edit.path, None)
        if content is not None:
            written.append((edit.rename_to or edit.path, content, edit.mode))
    for path, content, mode in written:
        after[path] = content
        if mode is not None:
            modes[path] = mode
    for path, count in Counter(path for path, _, _ in written).items():
        if count > 1:
            notes.error(path, None, "twice", "two edits write this file")
    if notes.errors:
        return ApplyResult(dict(files), tuple(notes.errors), tuple(notes.warnings), tuple(notes.repairs))
    return ApplyResult(after, (), tuple(notes.warnings), tuple(notes.repairs), modes, spans)


class _Notes:
    def __init__(self) -> None:
        self.errors: list[Note] = []
        self.warnings: list[Note] = []
        self.repairs: list[Note] = []

    def error(self, path: str, block: int | None, kind: str, text: str) -> None:
        self.errors.append(Note(path, block, kind, text))


def _paths_of(edit: FileEdit) -> tuple[str, ...]:
    return (edit.path,) if edit.rename_to is None else (edit.path, edit.rename_to)


def _paths_are_fit(files: Mapping[str, bytes], edit: FileEdit, notes: _Notes) -> bool:
    for path in _paths_of(edit):
        reason = unsafe(path)
        if reason is not None:
            notes.error(path, None, "unsafe_path", f"the path is refused: {reason}")
            return False
    if edit.rename_to in files:
        notes.error(edit.path, None, "exists", f"it cannot be renamed to {edit.rename_to}: that file exists")
        return False
    makes = not edit.delete and edit.rename_to is None and any(not block.search for block in edit.blocks)
    if edit.path not in files and not makes:
        near = difflib.get_close_matches(edit.path, list(files)[:2000], n=1, cutoff=0.5)
        hint = f"; is {near[0]} meant?" if near else ""
        notes.error(edit.path, None, "no_file", f"there is no such file{hint}")
        return False
    return True


def _edited(
    data: bytes | None, edit: FileEdit, notes: _Notes, *, fuzzy: bool
) -> tuple[bytes | None, list[tuple[int, int]]]:
    """The file after its blocks (None: it is gone), and the lines that they replace."""
    if edit.delete:
        return None, [(0, len(lines_of(data or b"")))]
    if not data:
        return _filled(data, edit, notes), [(0, 0)]
    matches = sorted(_found(data, edit, notes, fuzzy=fuzzy), key=lambda match: match.start)
    for one, other in pairwise(matches):
        if other.start < one.end:
            first, second = sorted((one.block, other.block))
            text = f"it replaces lines that block {first} replaces too; make one block of both"
            notes.error(edit.path, second, "overlap", text)
    pieces, at, line = [], 0, 0
    ranges = []
    for match in matches:
        line += data.count(b"\n", at, match.start)
        n_ends = data.count(b"\n", match.start, match.end)
        ranges.append((line, line + n_ends + (data[match.end - 1] != 10)))
        line += n_ends
        pieces += [data[at : match.start], match.replace]
        at = match.end
    return b"".join([*pieces, data[at:]]), ranges


def _filled(data: bytes | None, edit: FileEdit, notes: _Notes) -> bytes:
    """A file that is new or empty takes the one block with an empty search text."""
    for number, block in enumerate(edit.blocks, 1):
        if block.search:
            text = "the file is empty; give an empty search text" if data == b"" else "there is no such file yet"
            notes.error(edit.path, number, "missing", text)
        elif number > 1:
            notes.error(edit.path, number, "overlap", "a new file takes one block; put all its text into the first")
    return edit.blocks[0].replace if edit.blocks else b""


def _found(data: bytes, edit: FileEdit, notes: _Notes, *, fuzzy: bool) -> Iterator[Match]:
    for number, block in enumerate(edit.blocks, 1):
        if not block.search:
            text = "the search text is empty, but the file exists and is not; search for the lines to change"
            notes.error(edit.path, number, "exists", text)
            continue
        places = occurrences(data, block.search)
        if block.search == block.replace and len(places) == 1:
            text = "search and replacement are the same; the block changes nothing"
            notes.warnings.append(Note(edit.path, number, "no_op", text))
        elif len(places) == 1:
            yield Match(number, places[0], places[0] + len(block.search), block.replace)
        elif places:
            notes.error(edit.path, number, "ambiguous", _where(data, places))
        else:
            match = find_fuzzily(data, block, number) if fuzzy else None
            if match is None:
                notes.error(edit.path, number, "missing", explain_missing(data, block.search))
            elif isinstance(match, list):
                notes.error(edit.path, number, "ambiguous", _where(data, match))
            else:
                notes.repairs.append(Note(edit.path, number, match.repair, match.text))
                yield match


def occurrences(data: bytes, search: bytes, limit: int = LISTED + 1) -> list[int]:
    r"""Offsets at which `search` stands in `data` as whole lines, the first `limit` of them.

    >>> occurrences(b"xx = 1\nx = 1\n", b"x = 1\n")
    [7]
    """
    found: list[int] = []
    at = data.find(search)
    ends_a_line = search.endswith(b"\n")
    while at != -1 and len(found) < limit:
        if (at == 0 or data[at - 1] == 10) and (ends_a_line or at + len(search) == len(data)):
            found.append(at)
        at = data.find(search, at + 1)
    return found


def _where(data: bytes, places: Sequence[int]) -> str:
    numbers = [str(data.count(b"\n", 0, place) + 1) for place in places[:LISTED]]
    listed = f"{', '.join(numbers[:-1])} and {numbers[-1]}"
    if len(places) > LISTED:
        listed = f"{', '.join(numbers)} and more"
    return f"the search text stands at lines {listed}; add lines above or below it until it stands once"


def explain_missing(data: bytes, search: bytes) -> str:
    """Say why `search` is not in `data`: line ends, or the closest lines and where they differ first."""
    if b"\r\n" in search and occurrences(data, search.replace(b"\r\n", b"\n")):
        return (
            r"the search text ends its lines with \r\n (Windows), the file with \n; "
            "write the file's line ends, or apply with fuzzy matching"
        )
    if b"\r\n" not in search and occurrences(data, search.replace(b"\n", b"\r\n")):
        return (
            r"the search text ends its lines with \n, the file with \r\n (Windows); "
            "write the file's line ends, or apply with fuzzy matching"
        )
    lines, wanted = lines_of(data), lines_of(search)
    start, ratio = _closest(lines, wanted)
    if ratio < 0.4:
        return "the search text is not in the file, and no lines come close; copy the lines to change from the file"
    last = min(start + len(wanted), len(lines))
    span = f"line {start + 1}" if last == start + 1 else f"lines {start + 1}–{last}"
    text = f"the search text is not in the file; {span} come{'s' if last == start + 1 else ''} closest ({ratio:.0%})"
    for offset, line in enumerate(wanted):
        there = lines[start + offset] if start + offset < len(lines) else b""
        if there != line:
            return f"{text}; line {start + offset + 1} is {_shown(there)}, the search text has {_shown(line)}"
    return text


def _closest(lines: Sequence[bytes], wanted: Sequence[bytes]) -> tuple[int, float]:
    """Start and similarity (difflib's ratio) of the lines most like `wanted`."""
    by_text: dict[bytes, list[int]] = {}
    for number, line in enumerate(lines):
        by_text.setdefault(line.strip(), []).append(number)
    votes: Counter[int] = Counter()
    for offset, line in enumerate(wanted):
        if line.strip():
            votes.update(max(number - offset, 0) for number in by_text.get(line.strip(), ())[:200])
    starts = [start for start, _ in votes.most_common(5)] or _alike(lines, wanted)
    text = b"".join(wanted)[:4000].decode("utf-8", "replace")
    best = (0, 0.0)
    for start in starts:
        there = b"".join(lines[start : start + len(wanted)])[:4000].decode("utf-8", "replace")
        ratio = difflib.SequenceMatcher(None, text, there, autojunk=False).ratio()
        best = max(best, (start, ratio), key=lambda found: found[1])
    return best


def _alike(lines: Sequence[bytes], wanted: Sequence[bytes]) -> list[int]:
    offset, probe = next(((k, line.strip()) for k, line in enumerate(wanted) if line.strip()), (0, b""))
    names = [line.strip().decode("utf-8", "replace") for line in lines[:5000]]
    near = difflib.get_close_matches(probe.decode("utf-8", "replace"), set(names), n=1, cutoff=0.6)
    return [max(names.index(near[0]) - offset, 0)] if near else []


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", "replace")
    return repr(text if len(text) <= 100 else f"{text[:99]}…")


# ------------------------------------------------------------------------------------------------ files on the disk


def apply_to_folder(
    folder: str | os.PathLike[str], edits: Iterable[FileEdit], *, fuzzy: bool = False, check: bool = False
) -> ApplyResult:
    """Apply edits to the files of a folder. Nothing is written when anything is wrong.

    Parameters
    ----------
    folder : path
    edits : iterable of FileEdit
    fuzzy : bool
        As in :func:`apply_blocks`.
    check : bool
        Write nothing; only say what would happen.

    Raises
    ------
    InputError
        `folder` is not a folder, or a path leads through a link or to something that is not a file.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"{folder} is not a folder; give the root of the repository to edit")
    edits = list(edits)
    files = {
        path: (root / path).read_bytes()
        for edit in edits
        for path in _paths_of(edit)
        if unsafe(path) is None and _is_file(root, path)
    }
    result = apply_blocks(files, edits, fuzzy=fuzzy)
    if check or not result.ok:
        return result
    for path, content in result.files.items():
        if files.get(path) != content or path in result.modes:
            _write(root / path, content, result.modes.get(path), _mode_before(root, path, edits))
    for path in files.keys() - result.files.keys():
        (root / path).unlink()
    return result


def _is_file(root: Path, path: str) -> bool:
    """Whether there is a file; links anywhere on the way are refused, they may lead out of the folder."""
    place = root
    for part in path.split("/"):
        place = place / part
        if place.is_symlink():
            raise InputError(f"{path}: {place.relative_to(root)} is a link; edits through links are refused")
    if place.exists() and not place.is_file():
        raise InputError(f"{path} is not a file; an edit names files")
    return place.is_file()


def _mode_before(root: Path, path: str, edits: Sequence[FileEdit]) -> int | None:
    origin = next((edit.path for edit in edits if edit.rename_to == path), path)
    return stat.S_IMODE((root / origin).stat().st_mode) if (root / origin).is_file() else None


def _write(place: Path, content: bytes, mode: int | None, mode_before: int | None) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacing(place) as temporary:
        temporary.write_bytes(content)
        bits = mode_before if mode is None else (0o755 if mode & 0o100 else 0o644)
        if bits is not None:
            temporary.chmod(bits)
