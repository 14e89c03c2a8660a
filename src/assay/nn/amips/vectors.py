"""Keys and queries at the door: read from files, checked, and of length one."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from assay._core.errors import InputError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

Vectors = NDArray[np.float32]

#: Lengths this close to one count as one: what float16 storage and rounding leave.
LENGTH_TOLERANCE = 1e-3

#: Rows looked at at a time, so that a memory-mapped file is never held as a whole.
BLOCK = 65_536


def read_vectors(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Read rows of numbers from a file.

    Parameters
    ----------
    path : path
        ``.npy`` (n, d): memory-mapped, not read. Any table (CSV, TSV, JSONL, Parquet …): every column is a number.

    Returns
    -------
    (n, d) array
        As stored (.npy), or float32.

    Raises
    ------
    InputError
        The file is missing, of another form, or holds something that is no number.
    """
    source = Path(path)
    if source.suffix.lower() == ".npy":
        return _mapped(source)
    from assay._core.tables import check_columns, read_table

    table = read_table(source)
    if len(table.columns) == 0:
        raise InputError(f"{source} has no columns; expected one column for each number of a vector")
    numbers = check_columns(table, {str(name): "number" for name in table.columns}, where=str(source))
    return numbers.to_numpy(dtype=np.float32)


def _mapped(source: Path) -> NDArray[Any]:
    if not source.is_file():
        raise InputError(f"{source}: no such file")
    try:
        stored = np.load(source, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError):
        raise InputError(f"{source} is not a .npy file of numbers; write it by numpy.save") from None
    if not isinstance(stored, np.ndarray) or stored.dtype.kind not in "fiu":
        raise InputError(f"{source} holds {getattr(stored, 'dtype', 'no array')}; expected numbers")
    if stored.ndim != 2 or 0 in stored.shape:
        raise InputError(f"{source} has the shape {stored.shape}; expected (rows, numbers a row), none of them zero")
    return stored


def blocks(n: int, size: int = BLOCK) -> Iterator[slice]:
    """Slices that cover range(n) in order."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def unit_rows(vectors: Any, name: str, *, n_features: int | None = None) -> Vectors:
    """Check vectors and bring their rows to length one.

    Parameters
    ----------
    vectors : (n, d) array-like
    name : str
        ``"keys"`` or ``"queries"``, for messages.
    n_features : int, optional
        What d must be.

    Returns
    -------
    (n, d) float32
        The array itself where it is float32 with rows of length one, so that a memory map stays one; else a copy.

    Raises
    ------
    InputError
        Not two-dimensional, empty, not finite, of another d, or with rows of zeros.
    """
    array = vectors if isinstance(vectors, np.ndarray) else np.asarray(vectors)
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "fiu":
        raise InputError(
            f"{name}: an array of shape {array.shape} and type {array.dtype}; expected numbers of shape (rows, numbers "
            "a row), none of them zero"
        )
    if n_features is not None and array.shape[1] != n_features:
        raise InputError(f"{name} have {array.shape[1]} numbers a row; expected {n_features}")
    lengths = np.empty(len(array))
    for rows in blocks(len(array)):
        lengths[rows] = np.linalg.norm(np.asarray(array[rows], dtype=np.float64), axis=1)
    if not np.isfinite(lengths).all():
        row = int(np.flatnonzero(~np.isfinite(lengths))[0])
        raise InputError(f"{name}, row {row + 1}: it holds NaN or infinite numbers; remove the row or repair it")
    zero = np.flatnonzero(lengths == 0)
    if len(zero):
        rows_text = ", ".join(str(row + 1) for row in zero[:5]) + (" …" if len(zero) > 5 else "")
        raise InputError(
            f"{name}: {len(zero):,} rows are all zeros (rows {rows_text}), and have no direction; remove them"
        )
    is_unit = bool((np.abs(lengths - 1.0) <= LENGTH_TOLERANCE).all())
    if is_unit and array.dtype == np.float32:
        return array
    if not is_unit:
        worst = int(np.abs(lengths - 1.0).argmax())
        warnings.warn(
            f"{name} are not of length one (row {worst + 1}: {lengths[worst]:.3g}); they are scaled to it, so inner "
            "products become cosines",
            stacklevel=3,
        )
    unit = np.empty(array.shape, np.float32)
    for rows in blocks(len(array)):
        unit[rows] = array[rows] / lengths[rows, None]
    return unit


def digest(vectors: Vectors) -> str:
    """Hash of the numbers and the shape, to tell whether keys are those that were trained on."""
    found = hashlib.blake2b(repr(vectors.shape).encode(), digest_size=16)
    for rows in blocks(len(vectors)):
        found.update(np.ascontiguousarray(vectors[rows], dtype=np.float32).data)
    return found.hexdigest()
