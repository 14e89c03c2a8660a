"""Encode vectors as sign bits and decode them: the nearest-point searches and the packed form."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay._core.extras import need

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

    Floats = NDArray[np.float32]
    Codes = NDArray[np.uint64]

Search = Literal["auto", "exact", "fast"]
SEARCHES: tuple[Search, ...] = ("auto", "exact", "fast")

#: Above this many signs "auto" takes the fast search, as the authors do.
EXACT_UP_TO = 16
#: The fast search goes through 2^(D - d) pads a vector; beyond this it is out of reach (the authors' limit).
MOST_PADS = 20

_CHUNK = 4096
N_LOW = 5


def all_signs(n_bits: int) -> Floats:
    """All sign patterns, (2^n_bits, n_bits); bit j of the row's number says sign j."""
    bits = (np.arange(2**n_bits, dtype=np.int64)[:, None] >> np.arange(n_bits)) & 1
    return (2 * bits - 1).astype(np.float32)


def lift_inverse(matrix: Floats) -> tuple[Floats, Floats]:
    """Pseudo-inverse M⁺ (D, d) and null-space rows N (D - d, D): the inverse of [M; N] is [M⁺ | Nᵀ]."""
    d = matrix.shape[0]
    u, singular, vh = np.linalg.svd(matrix.astype(np.float64), full_matrices=True)
    inverse = vh[:d].T @ ((1 / singular)[:, None] * u.T)
    return inverse.astype(np.float32), vh[d:].astype(np.float32)


class Codebook(NamedTuple):
    """What the searches need of M, computed once."""

    inverse: Floats
    pads: Floats
    tables: Floats
    first: Floats
    low: Floats
    high: Floats
    products: Floats
    least: np.float32


def encode(
    vectors: Floats, matrix: Floats, *, search: Search = "auto", refine: bool = False, threads: int | None = None
) -> Codes:
    """Find the sign pattern whose point M y is nearest to each vector.

    Parameters
    ----------
    vectors : (n, d) float32
    matrix : (d, D) float32
        M, with D from d to 63.
    search : {"auto", "exact", "fast"}
        "exact": the nearest of all 2^D points. "fast": the nearest of the 2^(D - d) points that the pads lead to, an
        upper bound (the paper's search). "auto": exact up to D = 16.
    refine : bool
        Flip single signs while that helps (ours, not the paper's; never worse).
    threads : int, optional
        None: as many as torch uses, or there are cores.

    Returns
    -------
    (n,) uint64
        Bit j is set where sign j is +1.

    Raises
    ------
    InputError
        Shapes do not fit, a vector holds NaN or infinity, or numba is not installed.

    Examples
    --------
    >>> levels = np.array([[1.0, 0.5]], dtype=np.float32)
    >>> encode(np.array([[1.4], [-0.4]], dtype=np.float32), levels).tolist()
    [3, 2]
    """
    need("numba", extra="lm", purpose="encoding by LiftQuant")
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    matrix = np.ascontiguousarray(matrix, dtype=np.float32)
    _check(vectors, matrix, search)
    d, n_bits = matrix.shape
    if search == "auto":
        search = "exact" if n_bits <= EXACT_UP_TO else "fast"
    from assay.compress.liftquant import _kernels

    book = codebook(matrix.tobytes(), d, n_bits)
    fast, exact = _kernels.fast_search(d), _kernels.exact_search(d) if search == "exact" else None
    codes, squared = np.empty(len(vectors), np.uint64), np.empty(len(vectors), np.float32)
    columns = np.ascontiguousarray(matrix.T)

    def work(start: int) -> None:
        part = slice(start, start + _CHUNK)
        w = vectors[part]
        fast(w, w @ book.inverse.T, book.pads, book.tables, codes[part], squared[part])
        if exact is not None:
            exact(w, book.first, book.low, book.high, book.products, book.least, codes[part], squared[part])
        elif refine:
            _kernels.descend(w, columns, codes[part])

    _in_threads(work, range(0, len(vectors), _CHUNK), threads)
    return codes


def _check(vectors: Floats, matrix: Floats, search: str) -> None:
    if search not in SEARCHES:
        raise InputError(f"search={search!r} is not one of {', '.join(SEARCHES)}")
    if vectors.ndim != 2 or matrix.ndim != 2 or vectors.shape[1] != matrix.shape[0]:
        raise InputError(
            f"vectors of shape {vectors.shape} do not fit a matrix of shape {matrix.shape}: expected (d, D)"
        )
    d, n_bits = matrix.shape
    if not d <= n_bits <= min(63, d + MOST_PADS):
        raise InputError(
            f"D={n_bits}, d={d}: expected d <= D <= d + {MOST_PADS}, since the search takes 2^(D - d) steps a vector"
        )
    if search == "exact" and n_bits > 24:
        raise InputError(f'search="exact" with D={n_bits} goes through 2^{n_bits} points a vector; use search="fast"')
    if not np.isfinite(vectors).all():
        raise InputError("vectors hold NaN or infinity; expected finite weights")


@lru_cache(maxsize=4)
def codebook(matrix_bytes: bytes, d: int, n_bits: int) -> Codebook:
    """Tables of a matrix, given as bytes so that they are made once for each."""
    matrix = np.frombuffer(matrix_bytes, np.float32).reshape(d, n_bits)
    inverse, null = lift_inverse(matrix)
    pads = np.ascontiguousarray((all_signs(n_bits - d) @ null).T)
    tables = np.zeros((max(3, -(-n_bits // 8)), 256, d), np.float32)
    for t in range(-(-n_bits // 8)):
        columns = matrix[:, 8 * t : 8 * t + 8]
        tables[t, : 2 ** columns.shape[1]] = all_signs(columns.shape[1]) @ columns.T
    n_low = min(N_LOW, n_bits // 2)
    first = np.ascontiguousarray(matrix[:, :n_low].T)
    low = all_signs(n_low) @ first
    high = np.zeros((d, 1), np.float32)
    if n_bits <= 24:  # beyond, the exact search is refused
        high = np.ascontiguousarray((all_signs(n_bits - n_low) @ matrix[:, n_low:].T).T)
    return Codebook(inverse, pads, tables, first, low, high, first @ high, np.float32((low**2).sum(1).min()))


def _in_threads(work: Callable[[int], None], starts: range, threads: int | None) -> None:
    import sys

    if threads is None:
        torch: Any = sys.modules.get("torch")
        threads = torch.get_num_threads() if torch is not None else os.cpu_count() or 1
    if threads <= 1 or len(starts) <= 1:
        for start in starts:
            work(start)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, starts))


def decode(codes: Codes, matrix: Floats) -> Floats:
    """The points M y of codes, (n, d) float32."""
    n_bits = matrix.shape[1]
    signs = (codes[:, None] >> np.arange(n_bits, dtype=np.uint64)) & np.uint64(1)
    return (2 * signs.astype(np.float32) - 1) @ matrix.T.astype(np.float32)


def pack(codes: Codes, n_bits: int) -> NDArray[np.uint8]:
    """Codes as bytes without gaps, the least significant bit of the first code first.

    Examples
    --------
    >>> pack(np.array([0b101, 0b011], dtype=np.uint64), 3).tolist()
    [29]
    """
    size = 64 * 1024  # a multiple of 8: whole bytes
    parts = []
    for start in range(0, len(codes), size):
        part = codes[start : start + size]
        bits = (part[:, None] >> np.arange(n_bits, dtype=np.uint64)).astype(np.uint8) & 1
        parts.append(np.packbits(bits, bitorder="little"))
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)


def unpack(packed: NDArray[np.uint8], n_bits: int, n: int) -> Codes:
    """The `n` codes that :func:`pack` packed."""
    bits = np.unpackbits(packed, count=n * n_bits, bitorder="little").reshape(n, n_bits)
    return bits.astype(np.uint64) @ (np.uint64(1) << np.arange(n_bits, dtype=np.uint64))


def pack_signs(is_positive: Tensor) -> Tensor:
    """Rows of signs (n_rows, n_signs) as bytes (n_rows, ceil(n_signs / 8)), the least significant bit first."""
    import torch

    return torch.from_numpy(np.packbits(is_positive.cpu().numpy(), axis=1, bitorder="little"))
