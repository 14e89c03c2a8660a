"""Check texts and labels once, where they come in."""

from __future__ import annotations

import hashlib
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import ArrayLike, NDArray

    Mask = NDArray[np.bool_]

#: Below so many words style is a guess.
FEW_WORDS = 10


def check_texts(texts: Any, what: str) -> tuple[list[str], Mask]:
    """A list of strings, and which of them hold anything.

    Warns of empty texts (they get no score) and of short ones.

    Raises
    ------
    InputError
        `texts` is one string, or one of them is not a string.
    """
    if isinstance(texts, str):
        raise InputError(f"{what} is one string; give a list of strings")
    found = list(texts)
    for row, text in enumerate(found):
        if not isinstance(text, str):
            raise InputError(f"{what}, row {row}: {text!r:.60} is not a text; expected a string")
    there = np.array([bool(text.strip()) for text in found], dtype=bool)
    if not there.all():
        _warn(f"{what}: {_rows(np.flatnonzero(~there))} empty: no score")
    short = [row for row, text in enumerate(found) if there[row] and len(text.split()) < FEW_WORDS]
    if short:
        _warn(f"{what}: {_rows(short)} shorter than {FEW_WORDS} words: style is unreliable there")
    return found, there


def binary(y: ArrayLike, n: int) -> NDArray[np.int64]:
    """Labels as 0 (human) and 1 (machine); of any other two values the larger is the machine.

    Raises
    ------
    InputError
        There are more than two values, or not one for each text.
    """
    given = np.asarray(y)
    if given.shape != (n,):
        raise InputError(f"y has shape {given.shape} for {n} texts; expected one label for each")
    values = np.unique(given)
    if len(values) > 2:
        raise InputError(f"y has {len(values)} different labels; expected 0 (human) and 1 (machine)")
    if len(values) == 1:
        return np.full(n, int(bool(values[0])), dtype=np.int64)
    labels: NDArray[np.int64] = (given == values[1]).astype(np.int64)
    return labels


def digests(texts: Iterable[str]) -> list[str]:
    """Of each text, apart from its spaces."""
    return [hashlib.sha256(" ".join(text.split()).encode()).hexdigest() for text in texts]


def warn_of_copies(known: set[str], texts: Sequence[str], what: str) -> None:
    """Warn of texts that the detector was made from: their scores say nothing."""
    rows = [row for row, digest in enumerate(digests(texts)) if digest in known and texts[row].strip()]
    if rows:
        _warn(f"{_rows(rows)} also in {what}: those scores are too good")


def _rows(rows: Sequence[int] | NDArray[np.int64]) -> str:
    shown = ", ".join(str(int(row)) for row in rows[:5]) + (", …" if len(rows) > 5 else "")
    return f"{len(rows)} texts (rows {shown}) are" if len(rows) > 1 else f"1 text (row {shown}) is"


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=4)
