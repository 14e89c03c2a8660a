"""Rows of a table in fewer bytes: int8 and int4 with a scale a row, and low rank. Plain functions on arrays.

Rounding to the nearest code of a symmetric range is off by half a step: at most absmax/254 an entry with int8
(codes -127 to 127) and absmax/14 with int4 (-7 to 7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The largest code of each kind of integer.
LARGEST = {"int8": 127, "int4": 7}


def quantise(rows: NDArray[np.float32], dtype: str) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Codes of rows and the scale of each row.

    Parameters
    ----------
    rows : (..., width) float32
    dtype : "int8" or "int4"

    Returns
    -------
    codes : (..., width) int8, or (..., width / 2) uint8
        Two int4 codes share a byte, the first in its lower half, each with 8 added.
    scales : (...) float32
        absmax / 127 or absmax / 7; a code times its scale is the entry. Zero for a row of zeros.

    Raises
    ------
    InputError
        int4 rows have an odd width.

    Examples
    --------
    >>> codes, scales = quantise(np.array([[-2.0, 1.0]], dtype=np.float32), "int8")
    >>> codes.tolist(), bool(np.isclose(scales[0], 2 / 127))
    ([[-127, 64]], True)
    """
    largest = LARGEST[dtype]
    scales = (np.abs(rows).max(axis=-1) / largest).astype(np.float32)
    safe = np.where(scales > 0, scales, 1)[..., None]
    codes = np.clip(np.rint(rows / safe), -largest, largest).astype(np.int8)
    if dtype == "int8":
        return codes, scales
    check_even(rows.shape[-1])
    shifted = (codes + 8).astype(np.uint8)
    return shifted[..., 0::2] | (shifted[..., 1::2] << 4), scales


def dequantise(codes: NDArray[Any], scales: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """Entries that :func:`quantise` made codes of, float32."""
    if dtype == "int4":
        halves = np.stack([codes & 15, codes >> 4], axis=-1)  # (..., width / 2, 2)
        codes = halves.reshape(*codes.shape[:-1], -1).astype(np.int8) - np.int8(8)
    entries: NDArray[np.float32] = codes.astype(np.float32) * scales[..., None]
    return entries


def check_even(width: int) -> None:
    """int4 codes come in pairs."""
    if width % 2:
        raise InputError(f"dtype='int4' puts two numbers into a byte, and rows have an odd width of {width}; use int8")


def best_basis(gram: NDArray[np.float64], rank: int) -> NDArray[np.float32]:
    """The `rank` directions that keep most of a matrix: its first right singular vectors.

    Parameters
    ----------
    gram : (width, width) float64
        ``table.T @ table``.
    rank : int
        From 1 to width.

    Returns
    -------
    (rank, width) float32
        Orthonormal rows V_r. ``(table @ V_r.T) @ V_r`` is the nearest matrix of that rank, as by an SVD.

    Examples
    --------
    >>> table = np.array([[3.0, 0.0], [0.0, 1.0]])
    >>> np.abs(best_basis(table.T @ table, 1)).tolist()
    [[1.0, 0.0]]
    """
    _, vectors = np.linalg.eigh(gram)  # from the smallest eigenvalue up
    return np.ascontiguousarray(vectors[:, ::-1][:, :rank].T, dtype=np.float32)


def table_bytes(n_tokens: int, n_layers: int, hidden_size: int, dtype: str, rank: int | None = None) -> int:
    """Bytes of a table's entries: codes, the scales of int8 and int4, and the bases of low rank.

    Examples
    --------
    >>> table_bytes(128256, 24, 2048, "float16")
    12608077824
    """
    width = hidden_size if rank is None else rank
    bits = {"float32": 32, "float16": 16, "int8": 8, "int4": 4}[dtype]
    scales = 4 * n_tokens * n_layers if dtype in LARGEST else 0
    bases = 0 if rank is None else 4 * n_layers * rank * hidden_size
    return n_tokens * n_layers * width * bits // 8 + scales + bases
