"""Make all tables of a database, parents first, chunk by chunk, in memory that does not grow with the rows.

The raw columns of a table are stored until its last child is made: children depend on stored values, before anything is
done to them for writing. The numbers do not depend on the chunk, since all draws belong to blocks of fixed size.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import threadpool_limits

from assay.synth.plurel.draws import BLOCK, Floats, block_stream, key, real, stream
from assay.synth.plurel.links import Ints, Links, LinkSampler, clusters, draw_links
from assay.synth.plurel.scm import TableModel, draw_model
from assay.synth.plurel.store import StoredColumn

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from assay.synth.plurel.config import RelationalConfig
    from assay.synth.plurel.schema import Schema, Table

#: Rows that are made and written at a time.
CHUNK = 64 * BLOCK


@dataclass
class RawTable:
    """The columns of a table as its model made them, and the rows that its foreign keys point to."""

    table: Table
    model: TableModel
    links: tuple[Links, ...]
    values: dict[str, StoredColumn]
    keys: tuple[StoredColumn, ...]
    latents: dict[int, StoredColumn] = field(default_factory=dict)

    def remove(self) -> None:
        """Free the space of all columns."""
        for column in (*self.values.values(), *self.keys, *self.latents.values()):
            column.remove()


@dataclass(frozen=True)
class Recipe:
    """All that a database follows from."""

    seed: int
    schema: Schema
    config: RelationalConfig
    schema_sha256: str | None = None


@contextmanager
def scratch(folder: str | os.PathLike[str] | None) -> Iterator[Path]:
    """A folder for columns that do not fit into memory, removed at the end; BLAS with one thread meanwhile."""
    with TemporaryDirectory(prefix=".plurel-", dir=folder) as name, threadpool_limits(limits=1):
        yield Path(name)


def raw_tables(
    recipe: Recipe,
    folder: Path,
    *,
    with_latents: bool = False,
    chunk_rows: int = CHUNK,
    report: Callable[[int], None] = lambda rows: None,
) -> Iterator[RawTable]:
    """Make the tables of a database, parents first; a table's columns are removed once it is not needed any more.

    Parameters
    ----------
    recipe : Recipe
    folder : Path
        For columns that are too large for memory.
    with_latents : bool
        Keep the latent nodes too.
    chunk_rows : int
        A multiple of `BLOCK`; changes memory, not values.
    report : callable
        Called with the number of rows that were made since the last call.
    """
    order = recipe.schema.parents_first()
    waiting = {table.name: sum(key.parent == table.name for t in order for key in t.keys) for table in order}
    made: dict[str, RawTable] = {}
    for table in order:
        raw = _start(recipe, table, made, folder, with_latents)
        made[table.name] = raw
        _fill(recipe, raw, made, chunk_rows, report)
        if raw.model.is_lazy:
            _cut_into_classes(recipe, raw, chunk_rows)
        yield raw
        for name in [foreign.parent for foreign in table.keys]:
            waiting[name] -= 1
            if waiting[name] == 0:
                made.pop(name).remove()
        if not table.is_activity:
            continue
        made.pop(table.name).remove()


def _start(recipe: Recipe, table: Table, made: dict[str, RawTable], folder: Path, with_latents: bool) -> RawTable:
    config = recipe.config
    parents = [(made[foreign.parent].table, made[foreign.parent].model.is_lazy) for foreign in table.keys]
    model = draw_model(recipe.seed, table, parents, config, with_latents=with_latents)
    links = tuple(
        draw_links(stream(recipe.seed, "links", table.name, j), parent.n_rows, table.n_rows, config.database)
        for j, (parent, _) in enumerate(parents)
    )
    for foreign, link in zip(table.keys, links, strict=True):
        _warn_of_empty_clusters(foreign.parent, table.name, link)
    values = {column.name: StoredColumn(table.n_rows, np.float32, folder) for column in table.columns}
    keys = tuple(StoredColumn(table.n_rows, np.int64, folder) for _ in links)
    latent = [node.number for node in model.nodes if node.column is None] if with_latents else []
    return RawTable(
        table, model, links, values, keys, {v: StoredColumn(table.n_rows, np.float32, folder) for v in latent}
    )


def _warn_of_empty_clusters(parent: str, child: str, links: Links) -> None:
    sides = ((parent, links.n_parents, links.parent_hierarchy), (child, links.n_children, links.child_hierarchy))
    for name, n_rows, hierarchy in sides:
        n_blocks = int(np.prod(hierarchy))
        if n_rows <= n_blocks and n_blocks > 1:
            warnings.warn(
                f"table {name} has {n_rows} rows for {n_blocks} clusters of the key from {child} to {parent}: "
                "clusters are empty or hold one row; ask for more rows, fewer levels or fewer clusters",
                stacklevel=2,
            )


def _fill(
    recipe: Recipe, raw: RawTable, made: dict[str, RawTable], chunk_rows: int, report: Callable[[int], None]
) -> None:
    table, model = raw.table, raw.model
    samplers = [LinkSampler(links) for links in raw.links]
    link_keys = [key(recipe.seed, "link rows", table.name, j) for j in range(len(samplers))]
    sources = [made[foreign.parent].values for foreign in table.keys]
    shown = {node.number: raw.values[node.column] for node in model.nodes if node.column is not None} | raw.latents
    for start in range(0, table.n_rows, chunk_rows):
        stop = min(start + chunk_rows, table.n_rows)
        rows = [
            link_rows(sampler, link_key, start, stop) for sampler, link_key in zip(samplers, link_keys, strict=True)
        ]
        for column, chosen in zip(raw.keys, rows, strict=True):
            column.write(start, chosen)
        parents = [
            {name: column.gather(chosen) for name, column in columns.items()}
            for columns, chosen in zip(sources, rows, strict=True)
        ]
        chunk: dict[int, Floats] = {v: np.empty(stop - start, np.float32) for v in shown}
        for low in range(start, stop, BLOCK):
            part = slice(low - start, min(low + BLOCK, stop) - start)
            made_block = model.block(low // BLOCK, [{n: x[part] for n, x in values.items()} for values in parents])
            for v, out in chunk.items():
                out[part] = made_block[v]
        for v, column in shown.items():
            column.write(start, chunk[v])
        report(stop - start)


def link_rows(sampler: LinkSampler, link_key: int, start: int, stop: int) -> Ints:
    """Parents of rows start … stop - 1, block by block; `start` is the first row of a block."""
    return np.concatenate(
        [
            sampler.rows(block_stream(link_key, 0, low // BLOCK), low, min(low + BLOCK, stop))
            for low in range(start, stop, BLOCK)
        ]
    )


def _cut_into_classes(recipe: Recipe, raw: RawTable, chunk_rows: int) -> None:
    """Classes of a lazy table: the number of thresholds, drawn from the column's values, that a value exceeds."""
    scm = recipe.config.scm
    for column in raw.table.columns:
        if not column.is_categorical:
            continue
        rng = stream(recipe.seed, "cut", raw.table.name, column.name)
        stored = raw.values[column.name]
        thresholds = np.sort(stored.gather(rng.integers(stored.n_rows, size=column.n_classes - 1)))
        label = np.arange(column.n_classes, dtype=np.float32)
        if rng.random() < real(rng, scm.permute):
            label = rng.permutation(label)
        if rng.random() < real(rng, scm.reverse):
            label = column.n_classes - 1 - label
        for start in range(0, stored.n_rows, chunk_rows):
            values = stored.read(start, min(start + chunk_rows, stored.n_rows))
            stored.write(start, label[np.searchsorted(thresholds, values, side="left")])


def truth_of(raw: RawTable) -> dict[str, Any]:
    """What is known of a table: causal graph, latent values, and the clusters of its foreign keys."""
    table = raw.table
    found: dict[str, NDArray[Any]] = {
        str(v): column.read(0, table.n_rows).copy() for v, column in sorted(raw.latents.items())
    }
    keys = {
        foreign.column: {
            "parent_hierarchy": links.parent_hierarchy,
            "child_hierarchy": links.child_hierarchy,
            "parent_clusters": clusters(links.n_parents, links.parent_hierarchy),
            "child_clusters": clusters(links.n_children, links.child_hierarchy),
        }
        for foreign, links in zip(table.keys, raw.links, strict=True)
    }
    return {"graph": raw.model.graph, "latents": found, "keys": keys}
