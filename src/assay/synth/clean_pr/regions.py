"""Which functions and classes the lines of an edit belong to (paper, stage 7.2)."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

_TOP = re.compile(r"^[A-Za-z_$@]")


class Region(NamedTuple):
    """A named piece of a file, from line `first` to line `last`, counted from 1."""

    name: str
    first: int
    last: int


MODULE = "<module>"


def regions(path: str, text: str) -> list[Region]:
    r"""Functions and classes of a file, the outer before the inner; decorators belong to what they decorate.

    Python is parsed. Other languages, and Python that does not parse, are cut as Git cuts them for the heads of its
    hunks: at lines that begin in the first column with a letter.

    >>> regions("a.py", "@cached\ndef f():\n    return 1\n")
    [Region(name='f', first=1, last=3)]
    """
    if path.endswith((".py", ".pyi")):
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            pass
        else:
            return _inside(tree, "")
    return _by_first_column(text)


def _inside(node: ast.AST, outer: str) -> list[Region]:
    found: list[Region] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{outer}{child.name}"
            first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
            found.append(Region(name, first, child.end_lineno or child.lineno))
            found += _inside(child, f"{name}.")
        else:
            found += _inside(child, outer)
    return found


def _by_first_column(text: str) -> list[Region]:
    lines = text.split("\n")
    starts = [number for number, line in enumerate(lines, 1) if _TOP.match(line)]
    ends = [*(start - 1 for start in starts[1:]), len(lines)]
    return [Region(lines[a - 1].strip()[:120], a, b) for a, b in zip(starts, ends, strict=False)]


def enclosing(found: list[Region], line: int) -> str:
    """Name of the innermost region that holds a line (from 1); code outside of all is the module's.

    >>> enclosing([Region("C", 1, 9), Region("C.f", 2, 4)], 3)
    'C.f'
    """
    holding = [region for region in found if region.first <= line <= region.last]
    return min(holding, key=lambda region: region.last - region.first).name if holding else MODULE
