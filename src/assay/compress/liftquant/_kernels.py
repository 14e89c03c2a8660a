"""The searches for the nearest point of a codebook {M y}, compiled by numba; imported only when vectors are encoded.

A code is a uint64 whose bit j is set where sign j is +1. A point is a sum of table rows: the columns of M are cut into
groups, and a table holds the sums of a group's columns under all signs. The length of a vector is a constant of the
compiled code, which lets the compiler unroll the loops over it: that is worth a factor of ten.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import njit

_OPTIONS: Any = {
    "nogil": True,
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"contract", "reassoc", "nsz", "nnan", "arcp"},
}
_FAR = np.float32(1e30)
_BYTE = np.uint64(255)


@cache
def fast_search(d: int) -> Any:
    """Compile ``search(vectors, starts, pads, tables, codes, squared)`` for vectors of length `d`.

    It tries the sign patterns of ``starts[v] + pads[:, z]`` for all z and fills `codes` and `squared`:
    vectors (n, d), starts (n, D), pads (D, n_pads), tables (ceil(D / 8), 256, d), codes (n,) uint64, squared (n,).
    """

    @njit(**_OPTIONS)  # type: ignore[untyped-decorator]  # numba is not typed
    def search(
        vectors: Any, starts: Any, pads: Any, tables: Any, codes: Any, squared: Any
    ) -> None:  # pragma: no cover - compiled
        n_bits, n_pads = pads.shape
        n_tables = tables.shape[0]
        low = np.empty(n_pads, dtype=np.uint32)
        high = np.empty(n_pads, dtype=np.uint32)
        gap = np.empty(d, dtype=np.float32)
        for v in range(vectors.shape[0]):
            low[:] = 0
            high[:] = 0
            for j in range(min(n_bits, 32)):
                threshold, bit = -starts[v, j], np.uint32(1 << j)
                for z in range(n_pads):
                    low[z] |= bit if pads[j, z] >= threshold else np.uint32(0)
            for j in range(32, n_bits):
                threshold, bit = -starts[v, j], np.uint32(1 << (j - 32))
                for z in range(n_pads):
                    high[z] |= bit if pads[j, z] >= threshold else np.uint32(0)
            best, code = _FAR, np.uint64(0)
            if n_tables <= 3:
                # The usual sizes: three rows, the missing ones are the zeros that the caller appended.
                for z in range(n_pads):
                    whole = low[z]
                    first = tables[0, whole & np.uint32(255)]
                    second = tables[1, (whole >> np.uint32(8)) & np.uint32(255)]
                    third = tables[2, (whole >> np.uint32(16)) & np.uint32(255)]
                    distance = np.float32(0)
                    for i in range(d):
                        left = vectors[v, i] - first[i] - second[i] - third[i]
                        distance += left * left
                    if distance < best:
                        best, code = distance, np.uint64(whole)
            else:
                for z in range(n_pads):
                    wide = np.uint64(low[z]) | (np.uint64(high[z]) << np.uint64(32))
                    for i in range(d):
                        gap[i] = vectors[v, i]
                    for t in range(n_tables):
                        row = tables[t, (wide >> np.uint64(8 * t)) & _BYTE]
                        for i in range(d):
                            gap[i] -= row[i]
                    distance = np.float32(0)
                    for i in range(d):
                        distance += gap[i] * gap[i]
                    if distance < best:
                        best, code = distance, wide
            codes[v] = code
            squared[v] = best

    return search


@cache
def exact_search(d: int) -> Any:
    """Compile ``search(vectors, columns, low, high, products, least, codes, squared)`` for vectors of length `d`.

    It improves `codes` and `squared`, an answer of any search, to the nearest of all points. low (n_low, d) and
    high (d, n_high) hold the sums of the first and of the last columns of M under all signs, columns (n_first, d) the
    first columns m_j themselves, products (n_first, n_high) theirs with `high`, least the smallest |b|^2 of `low`.
    With g what a sum of last columns leaves of a vector, no sum b of first columns comes nearer than

        |g - b|^2 >= |g|^2 - 2 sum_j |g m_j| + min |b|^2,

    which costs little and leaves few g whose b are tried one by one.
    """

    @njit(**_OPTIONS)  # type: ignore[untyped-decorator]  # numba is not typed
    def search(
        vectors: Any, columns: Any, low: Any, high: Any, products: Any, least: Any, codes: Any, squared: Any
    ) -> None:  # pragma: no cover - compiled
        n_low, n_high = low.shape[0], high.shape[1]
        n_first = columns.shape[0]
        bound = np.empty(n_high, dtype=np.float32)
        gap = np.empty(d, dtype=np.float32)
        for v in range(vectors.shape[0]):
            for h in range(n_high):
                total = least
                for i in range(d):
                    part = vectors[v, i] - high[i, h]
                    total += part * part
                bound[h] = total
            for j in range(n_first):
                along = np.float32(0)
                for i in range(d):
                    along += vectors[v, i] * columns[j, i]
                for h in range(n_high):
                    bound[h] -= np.float32(2) * abs(along - products[j, h])
            best, code = squared[v], codes[v]
            for h in range(n_high):
                if bound[h] > best + np.float32(1e-4):  # rounding
                    continue
                for i in range(d):
                    gap[i] = vectors[v, i] - high[i, h]
                for k in range(n_low):
                    distance = np.float32(0)
                    for i in range(d):
                        part = gap[i] - low[k, i]
                        distance += part * part
                    if distance < best:
                        best, code = distance, np.uint64(h * n_low + k)
            codes[v] = code
            squared[v] = best

    return search


@njit(**_OPTIONS)  # type: ignore[untyped-decorator]  # numba is not typed
def descend(vectors: Any, matrix_t: Any, codes: Any) -> None:  # pragma: no cover - compiled
    """Flip the sign that helps most until none helps: vectors (n, d), matrix_t (D, d), codes (n,) uint64 in place."""
    d = vectors.shape[1]
    n_bits = matrix_t.shape[0]
    gap = np.empty(d, dtype=np.float32)
    for v in range(vectors.shape[0]):
        code = codes[v]
        for i in range(d):
            gap[i] = vectors[v, i]
        for j in range(n_bits):
            sign = np.float32(1) if (code >> np.uint64(j)) & np.uint64(1) else np.float32(-1)
            for i in range(d):
                gap[i] -= sign * matrix_t[j, i]
        for _ in range(4 * n_bits):
            # |gap + 2 s m|^2 - |gap|^2 = 4 (s gap·m + |m|^2); less than rounding is no gain
            most, flip = np.float32(-1e-6), -1
            for j in range(n_bits):
                sign = np.float32(1) if (code >> np.uint64(j)) & np.uint64(1) else np.float32(-1)
                change = np.float32(0)
                for i in range(d):
                    change += (sign * gap[i] + matrix_t[j, i]) * matrix_t[j, i]
                if change < most:
                    most, flip = change, j
            if flip < 0:
                break
            sign = np.float32(1) if (code >> np.uint64(flip)) & np.uint64(1) else np.float32(-1)
            for i in range(d):
                gap[i] += np.float32(2) * sign * matrix_t[flip, i]
            code ^= np.uint64(1) << np.uint64(flip)
        codes[v] = code
