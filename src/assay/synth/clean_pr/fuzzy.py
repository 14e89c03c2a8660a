"""Find a search text that is almost in a file: other line ends, spaces at line ends, a common indentation.

Nothing here guesses by similarity: each rule is a statement about what may differ, and the place must still be the only
one. Rules run from the narrowest to the widest; the first that finds a place decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.synth.clean_pr.edits import lines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.synth.clean_pr.edits import Block


@dataclass(frozen=True)
class Match:
    """Where a block goes: offsets into the file, and the bytes to put there."""

    block: int
    start: int
    end: int
    replace: bytes
    repair: str = ""
    text: str = ""


def _bare(line: bytes) -> bytes:
    return line.rstrip(b"\r\n")


RULES: tuple[tuple[str, str, Callable[[bytes], bytes]], ...] = (
    ("line_ends", "matched without regard to line ends", _bare),
    ("trailing_space", "matched without regard to spaces at the end of lines", bytes.rstrip),
    ("indentation", "matched without regard to the common indentation", bytes.strip),
)


def find_fuzzily(data: bytes, block: Block, number: int) -> Match | list[int] | None:
    """The one place that a rule finds; its places where it finds several; None where no rule finds any."""
    lines, wanted = lines_of(data), lines_of(block.search)
    offsets = _offsets(lines)
    for name, text, key in RULES:
        wanted_keys = [key(line) for line in wanted]
        if not any(wanted_keys):
            continue  # only blank lines: they would match anywhere
        starts = _windows([key(line) for line in lines], wanted_keys)
        if name == "indentation":
            starts = [start for start in starts if _shift(lines[start:], wanted) is not None]
        if len(starts) > 1:
            return [offsets[start] for start in starts]
        if starts:
            there = lines[starts[0] : starts[0] + len(wanted)]
            replace = lines_of(block.replace)
            if name == "indentation":
                replace = _shifted(replace, *(_shift(there, wanted) or (b"", b"")))
            start, end = offsets[starts[0]], offsets[starts[0] + len(wanted)]
            return Match(number, start, end, _with_ends_of(there, replace), name, text)
    return None


def _offsets(lines: Sequence[bytes]) -> list[int]:
    at, offsets = 0, [0]
    for line in lines:
        at += len(line)
        offsets.append(at)
    return offsets


def _windows(keys: list[bytes], wanted: list[bytes]) -> list[int]:
    n, first = len(wanted), wanted[0]
    starts = range(len(keys) - n + 1)
    return [start for start in starts if keys[start] == first and keys[start : start + n] == wanted]


def _indent(line: bytes) -> bytes:
    return line[: len(line) - len(line.lstrip(b" \t"))]


def _shift(there: Sequence[bytes], wanted: Sequence[bytes]) -> tuple[bytes, bytes] | None:
    """The indentation to take away and the one to add, where it is the same for all lines; else None."""
    shifts = set()
    for have, want in zip(there, wanted, strict=False):
        if want.strip():
            in_file, in_search = _indent(have), _indent(want)
            if in_file.endswith(in_search):
                shifts.add((b"", in_file[: len(in_file) - len(in_search)]))
            elif in_search.endswith(in_file):
                shifts.add((in_search[: len(in_search) - len(in_file)], b""))
            else:
                return None
    return shifts.pop() if len(shifts) == 1 else None


def _shifted(lines: Sequence[bytes], take: bytes, add: bytes) -> list[bytes]:
    return [add + line.removeprefix(take) if line.strip() else line for line in lines]


def _with_ends_of(there: Sequence[bytes], replace: Sequence[bytes]) -> bytes:
    """Give `replace` the line ends of the lines it replaces; a file without a newline at its end stays so."""
    windows = sum(line.endswith(b"\r\n") for line in there)
    unix = sum(line.endswith(b"\n") for line in there) - windows
    end = b"\r\n" if windows > unix else b"\n"
    text = b"".join(_bare(line) + end for line in replace)
    return text if there[-1].endswith(b"\n") else text.removesuffix(end)
