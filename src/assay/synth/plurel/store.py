"""Columns that may be larger than memory: arrays where they are small, else plain files in a scratch folder.

Files are read and written in pieces, never mapped: resident memory does not grow with the number of rows.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Values up to which a column is an array.
SMALL = 1 << 17
#: Values of a file that are read at a time to gather from it.
SEGMENT = 1 << 21


class StoredColumn:
    """A column of fixed length, written by pieces and read by pieces or by row numbers."""

    def __init__(self, n_rows: int, dtype: Any, folder: Path) -> None:
        self.n_rows, self.dtype = n_rows, np.dtype(dtype)
        self._array: NDArray[Any] | None = np.empty(n_rows, self.dtype) if n_rows <= SMALL else None
        self._path: Path | None = None
        if self._array is None:
            with tempfile.NamedTemporaryFile(dir=folder, suffix=".column", delete=False) as file:
                file.truncate(n_rows * self.dtype.itemsize)
            self._path = Path(file.name)

    def write(self, start: int, values: NDArray[Any]) -> None:
        """Put values at rows from `start`."""
        if self._array is not None:
            self._array[start : start + len(values)] = values
            return
        assert self._path is not None
        with self._path.open("r+b", buffering=0) as file:
            file.seek(start * self.dtype.itemsize)
            file.write(np.ascontiguousarray(values, self.dtype).data)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Values of rows start … stop - 1."""
        if self._array is not None:
            return self._array[start:stop]
        assert self._path is not None
        offset = start * self.dtype.itemsize
        return np.fromfile(self._path, self.dtype, count=min(stop, self.n_rows) - start, offset=offset)

    def gather(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Values of any rows, in their order."""
        if self._array is not None:
            return self._array[rows]
        out = np.empty(len(rows), self.dtype)
        for start in range(0, self.n_rows, SEGMENT):
            stop = min(start + SEGMENT, self.n_rows)
            inside = (rows >= start) & (rows < stop)
            if inside.any():
                out[inside] = self.read(start, stop)[rows[inside] - start]
        return out

    def every(self, step: int) -> NDArray[Any]:
        """Every `step`-th value from the first."""
        starts = range(0, self.n_rows, SEGMENT)
        return np.concatenate([self.read(s, min(s + SEGMENT, self.n_rows))[-s % step :: step].copy() for s in starts])

    def remove(self) -> None:
        """Free the space."""
        self._array = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)
