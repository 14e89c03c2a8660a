"""From stored columns to the columns that are written: transforms, missing cells, classes, keys and dates, by chunks.

What a transform needs of a whole column (mean, deviation, ranks, whether it is constant) is found in one pass before;
then every chunk is finished on its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from assay.synth.plurel.draws import BLOCK, pick, real, stream
from assay.synth.plurel.engine import CHUNK, RawTable, Recipe
from assay.synth.plurel.schema import DATE, Column

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from assay.synth.plurel.store import StoredColumn

Doubles = NDArray[np.float64]

#: Values up to which ranks are those in the whole column; of longer columns an even sample of as many is sorted.
SORTED = 1 << 22
#: Units of a standard deviation that integers have, by the number of their bytes.
_UNITS = {1: 30.0, 2: 1000.0, 4: 1000.0, 8: 1000.0}


@dataclass(frozen=True)
class ColumnReport:
    """What became of a column.

    Attributes
    ----------
    transform : str
        Of a numerical column.
    missing : int
        Cells without a value.
    is_constant : bool
        All values are the same (random decoders give such columns; the paper's transform "boolean" drops them).
    largest_class : float
        Share of the most frequent class; NaN for numerical columns.
    is_dropped : bool
    """

    table: str
    column: str
    transform: str
    missing: int
    is_constant: bool
    largest_class: float
    is_dropped: bool = False


@dataclass
class _Finisher:
    """One column with what a chunk needs to know."""

    column: Column
    stored: StoredColumn
    transform: str = "identity"
    mean: float = 0.0
    sd: float = 1.0
    ordered: NDArray[np.float32] | None = None

    def order(self) -> None:
        """Sort the column, or an even sample of it, where ranks are asked for."""
        if self.transform == "rank_uniform":
            self.ordered = np.sort(self.stored.every(-(-self.stored.n_rows // SORTED)))

    def values(self, start: int, stop: int) -> Doubles:
        """Transformed values of a numerical column."""
        raw = self.stored.read(start, stop)
        if self.transform == "rank_uniform":
            assert self.ordered is not None
            return ranks(self.ordered, raw)
        x = raw.astype(np.float64)
        if self.transform == "log1p":
            return np.copysign(np.log1p(np.abs(x)), x)
        if self.transform == "sqrt":
            return np.copysign(np.sqrt(np.abs(x)), x)
        if self.transform == "standardise":
            return (x - self.mean) / max(self.sd, 1e-8)
        return x


def ranks(ordered: NDArray[np.float32], values: NDArray[np.float32]) -> Doubles:
    """Rank / (n + 1) of values among n ordered ones; equal values share their mean rank.

    >>> ranks(np.array([1, 2, 2], dtype=np.float32), np.array([2, 1], dtype=np.float32)).tolist()
    [0.625, 0.25]
    """
    low = np.searchsorted(ordered, values, side="left")
    high = np.searchsorted(ordered, values, side="right")
    return np.asarray((0.5 * (low + high) + 0.5) / (len(ordered) + 1), dtype=np.float64)


def transform_of(recipe: Recipe, table: str, column: Column) -> str:
    """The drawn transform of a numerical column; numbers of a schema's exact types are standardised (our reading)."""
    if column.kind in ("integer", "exact"):
        return "standardise"
    if column.is_categorical:
        return "identity"
    return pick(stream(recipe.seed, "transform", table, column.name), recipe.config.database.transforms)


class FinishedTable:
    """The chunks of a table as they are written.

    Attributes
    ----------
    columns : tuple of Column
        Those that are written, without keys and dates.
    reports : tuple of ColumnReport
    """

    def __init__(self, recipe: Recipe, raw: RawTable) -> None:
        self.recipe, self.raw, self.table = recipe, raw, raw.table
        share = real(stream(recipe.seed, "missing", self.table.name), recipe.config.database.missing)
        self._n_missing = math.floor(share * self.table.n_rows)
        prepared = [self._prepare(column) for column in self.table.columns]
        self._finishers = tuple(finisher for finisher, report in prepared if not report.is_dropped)
        self.columns = tuple(finisher.column for finisher in self._finishers)
        self.reports = tuple(report for _, report in prepared)

    def _prepare(self, column: Column) -> tuple[_Finisher, ColumnReport]:
        stored = self.raw.values[column.name]
        finisher = _Finisher(column, stored, transform_of(self.recipe, self.table.name, column))
        counts = np.zeros(max(column.n_classes, 1), dtype=np.int64)
        n, total, low, high = stored.n_rows, 0.0, np.inf, -np.inf
        for chunk in _chunks(stored):
            low, high = min(low, float(chunk.min())), max(high, float(chunk.max()))
            total += float(chunk.sum(dtype=np.float64))
            if column.is_categorical:
                counts += np.bincount(chunk.astype(np.int64), minlength=column.n_classes)
        if finisher.transform == "standardise":
            finisher.mean = total / n
            squares = sum(float(np.square(chunk - finisher.mean, dtype=np.float64).sum()) for chunk in _chunks(stored))
            finisher.sd = math.sqrt(squares / n)
        is_dropped = False
        if column.kind == "class" and self.recipe.config.database.categorical == "boolean":
            finisher.column = replace(column, kind="boolean", n_classes=2, is_required=True)
            counts = np.array([counts[0], counts[1:].sum()])
            is_dropped = bool(counts.max() == n)
        missing = 0 if column.is_categorical or column.is_required else self._n_missing
        largest = float(counts.max() / n) if column.is_categorical else math.nan
        report = ColumnReport(
            self.table.name, column.name, finisher.transform, missing, low == high, largest, is_dropped
        )
        return finisher, report

    @property
    def names(self) -> list[str]:
        """All columns in the order in which they are written."""
        keys = [] if self.table.primary_key is None else [self.table.primary_key]
        names = [*keys, *(k.column for k in self.table.keys), *(c.name for c in self.columns)]
        names += [DATE] if self.table.has_date else []
        kept = set(names)
        return [name for name in self.table.order if name in kept] if self.table.order else names

    def batches(self, chunk_rows: int = CHUNK) -> Iterator[pa.RecordBatch]:
        """Record batches of `chunk_rows` rows, in the order of the rows.

        Keys are int64, numbers float64, classes int8, booleans bool, labels dictionaries, dates microseconds.
        """
        import pyarrow as pa

        table = self.table
        holes = {
            f.column.name: _Holes(self.recipe, table.name, f.column.name, self._n_missing, table.n_rows)
            for f in self._finishers
            if not f.column.is_categorical and not f.column.is_required and self._n_missing
        }
        parent_first = {t.name: t.first_key for t in self.recipe.schema.tables}
        for finisher in self._finishers:
            finisher.order()
        for start in range(0, table.n_rows, chunk_rows):
            stop = min(start + chunk_rows, table.n_rows)
            arrays: dict[str, Any] = {}
            if table.primary_key is not None:
                arrays[table.primary_key] = pa.array(np.arange(start, stop, dtype=np.int64) + table.first_key)
            for foreign, rows in zip(table.keys, self.raw.keys, strict=True):
                arrays[foreign.column] = pa.array(rows.read(start, stop) + parent_first[foreign.parent])
            for finisher in self._finishers:
                name = finisher.column.name
                mask = holes[name].mask(start, stop) if name in holes else None
                arrays[name] = _as_arrow(finisher, start, stop, mask)
            if table.has_date:
                arrays[DATE] = pa.array(self._dates(start, stop))
            yield pa.RecordBatch.from_arrays([arrays[name] for name in self.names], names=self.names)
        for finisher in self._finishers:
            finisher.ordered = None

    def _dates(self, start: int, stop: int) -> NDArray[np.datetime64]:
        """Equally spaced times from the first day to the last, in the order of the rows."""
        first, last = self.recipe.schema.window
        span = (last - first).total_seconds() * 1e6
        step = np.arange(start, stop) * (span / max(self.table.n_rows - 1, 1))
        dates: NDArray[np.datetime64] = np.datetime64(first, "us") + np.rint(step).astype("timedelta64[us]")
        return dates


class _Holes:
    """Which cells of a column are missing: exactly `n_missing` of `n_rows`, each choice as likely, block by block."""

    def __init__(self, recipe: Recipe, table: str, column: str, n_missing: int, n_rows: int) -> None:
        self._rng = stream(recipe.seed, "missing", table, column)
        self._left, self._rows = n_missing, n_rows

    def mask(self, start: int, stop: int) -> NDArray[np.bool_]:
        """(stop - start,) bool; ranges are asked for in order."""
        out = np.zeros(stop - start, dtype=np.bool_)
        for low in range(0, stop - start, BLOCK):
            size = min(BLOCK, stop - start - low)
            # The number in a block given those that are left is hypergeometric: together a simple random sample.
            n = int(self._rng.hypergeometric(self._left, self._rows - self._left, size))
            out[low + self._rng.choice(size, n, replace=False, shuffle=False)] = True
            self._left, self._rows = self._left - n, self._rows - size
        return out


def _as_arrow(finisher: _Finisher, start: int, stop: int, mask: NDArray[np.bool_] | None) -> pa.Array:
    import pyarrow as pa

    column = finisher.column
    if column.is_categorical:
        small: Any = np.int8 if column.n_classes <= 128 else np.int16
        classes: NDArray[np.int16] = finisher.stored.read(start, stop).astype(small)
        if column.kind == "boolean":
            return pa.array(classes > 0)
        if column.kind == "code":
            return pa.array(np.array(column.labels, dtype=np.int64)[classes])
        if column.kind == "label":
            return pa.DictionaryArray.from_arrays(pa.array(classes), pa.array(column.labels))
        return pa.array(classes)
    values = finisher.values(start, stop)
    if column.kind == "integer":
        top = 2.0 ** (8 * column.digits - 1) - 1 if column.digits < 8 else 2.0**53
        # Numbers without a sign begin four deviations below the mean.
        low, shift = (0.0, 4.0) if column.is_unsigned else (-top, 0.0)
        units = np.clip(np.rint((values + shift) * _UNITS[column.digits]), low, top)
        return pa.array(units.astype(np.int64), mask=mask)
    if column.kind == "exact":
        limit = 10.0 ** (column.digits - column.scale)
        values = np.clip(values * min(100.0, limit / 10), -limit + 10.0**-column.scale, limit - 10.0**-column.scale)
        values = np.round(values, column.scale)
    return pa.array(values, mask=mask)


def _chunks(stored: StoredColumn) -> Iterator[NDArray[np.float32]]:
    for start in range(0, stored.n_rows, CHUNK):
        yield stored.read(start, min(start + CHUNK, stored.n_rows))
