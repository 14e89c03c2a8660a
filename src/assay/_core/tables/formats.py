"""What reading and writing must agree on: which suffix is which format, and how a formula is made harmless."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from assay._core.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

FORMATS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")

#: Spreadsheet programs may run a cell that starts with one of these, and some trim it first (OWASP, "CSV Injection").
FORMULA_STARTS = "=+-@\t\r\n＝＋－＠"

#: A cell that is written behind one more apostrophe: a formula start, or apostrophes and then one. The second kind
#: must be included, or reading could not tell the apostrophe of a name from ours.
NEEDS_GUARD = re.compile(rf"'*[{re.escape(FORMULA_STARTS)}]")

#: A cell that reading takes one apostrophe off: what `NEEDS_GUARD` matches, behind an apostrophe.
GUARDED = r"^'('*[=+\-@\t\r\n＝＋－＠])"

#: A signed number starts like a formula but cannot be one.
PLAIN_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def table_format(path: Path) -> str:
    """Tell the format by the suffix, one of `FORMATS`."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
        if suffixes and suffixes[-1] == ".parquet":
            raise InputError(f"{path}: Parquet is compressed inside; give it without .gz")
    if not suffixes or suffixes[-1] not in FORMATS:
        known = ", ".join(FORMATS)
        raise InputError(
            f"{path}: the name does not tell the format; expected one of {known}, the text ones also as .gz"
        )
    return suffixes[-1]


def is_gzip(path: Path) -> bool:
    """Whether the name says that the file is gzipped."""
    return path.suffix.lower() == ".gz"


def guarded(text: str) -> str:
    """Put an apostrophe before a text that a spreadsheet program would run.

    Examples
    --------
    >>> guarded("=cmd()"), guarded("-1.5"), guarded("gpt-4")
    ("'=cmd()", '-1.5', 'gpt-4')
    """
    if NEEDS_GUARD.match(text) and not PLAIN_NUMBER.fullmatch(text):
        return "'" + text
    return text


def unguarded(text: str) -> str:
    """Take the apostrophe of :func:`guarded` off again."""
    return text[1:] if text.startswith("'") and NEEDS_GUARD.match(text) else text
