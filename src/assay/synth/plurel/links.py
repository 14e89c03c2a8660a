"""Which row refers to which: a hierarchical stochastic block model between two tables (paper, stage 2).

Rows of both tables are cut into contiguous base blocks, whose numbers, written in the mixed radix of the cluster
counts, are the clusters of the levels. A child's probability for a parent is a product over levels of entries that
depend on both rows' blocks alone: so the block of the parent is drawn first, with the block's size as a weight, then a
row of it uniformly. That is the same law as drawing among all parents at a cost that does not grow with their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from assay.synth.plurel.draws import Rng, whole

if TYPE_CHECKING:
    from assay.synth.plurel.config import DatabaseConfig

Ints = NDArray[np.int64]
Doubles = NDArray[np.float64]

#: Probability of a matching cluster, and the range of that of others.
MATCH, OTHER = 0.9, (0.001, 0.002)


def block_edges(n_rows: int, hierarchy: tuple[int, ...]) -> Ints:
    """(n_blocks + 1,) First rows of the base blocks: ceil(n / n_blocks) rows each, the last ones with what is left."""
    n_blocks = int(np.prod(hierarchy))
    return np.minimum(np.arange(n_blocks + 1) * -(-n_rows // n_blocks), n_rows)


def clusters_of_blocks(hierarchy: tuple[int, ...]) -> Ints:
    """(n_levels, n_blocks) Cluster of each base block: floor(c / prod(h[l+1:])) mod h[l].

    >>> clusters_of_blocks((2, 2)).tolist()
    [[0, 0, 1, 1], [0, 1, 0, 1]]
    """
    return np.stack(np.unravel_index(np.arange(int(np.prod(hierarchy))), hierarchy))


def clusters(n_rows: int, hierarchy: tuple[int, ...]) -> Ints:
    """(n_levels, n_rows) Cluster of each row at each level."""
    return np.repeat(clusters_of_blocks(hierarchy), np.diff(block_edges(n_rows, hierarchy)), axis=1)


def level_matrix(rng: Rng, n_a: int, n_b: int) -> Doubles:
    """(n_a, n_b) All entries U(0.001, 0.002), those at (i mod n_a, i mod n_b) 0.9."""
    matrix = rng.uniform(*OTHER, (n_a, n_b))
    i = np.arange(max(n_a, n_b))
    matrix[i % n_a, i % n_b] = MATCH
    return matrix


@dataclass(frozen=True)
class Links:
    """The law of one foreign key.

    Attributes
    ----------
    parent_hierarchy, child_hierarchy : tuple of int
        Cluster counts of the levels.
    matrices : tuple of (h_a, h_b) float
    n_parents, n_children : int
    """

    parent_hierarchy: tuple[int, ...]
    child_hierarchy: tuple[int, ...]
    matrices: tuple[Doubles, ...]
    n_parents: int
    n_children: int

    def block_probabilities(self) -> Doubles:
        """(child blocks, parent blocks) Probability that a child of a block picks a parent of a block."""
        a, b = clusters_of_blocks(self.parent_hierarchy), clusters_of_blocks(self.child_hierarchy)
        log = sum(np.log(matrix[np.ix_(ka, kb)]) for matrix, ka, kb in zip(self.matrices, a, b, strict=True))
        assert isinstance(log, np.ndarray)
        weight = np.exp(log - log.max(axis=0)).T * np.diff(block_edges(self.n_parents, self.parent_hierarchy))
        return np.asarray(weight / weight.sum(axis=1, keepdims=True), dtype=np.float64)

    def row_probabilities(self) -> Doubles:
        """(n_children, n_parents) P(a | b) as the paper writes it; for small tables and for tests."""
        a = clusters(self.n_parents, self.parent_hierarchy)
        b = clusters(self.n_children, self.child_hierarchy)
        log = np.zeros((self.n_children, self.n_parents))
        for matrix, ka, kb in zip(self.matrices, a, b, strict=True):
            log += np.log(matrix[ka][:, kb]).T
        weight = np.exp(log - log.max(axis=1, keepdims=True))
        return np.asarray(weight / weight.sum(axis=1, keepdims=True), dtype=np.float64)


class LinkSampler:
    """Draws parents for ranges of children."""

    def __init__(self, links: Links) -> None:
        self._cumulated = np.cumsum(links.block_probabilities(), axis=1)
        self._child_edges = block_edges(links.n_children, links.child_hierarchy)
        edges = block_edges(links.n_parents, links.parent_hierarchy)
        self._first, self._size = edges[:-1], np.diff(edges)

    def rows(self, rng: Rng, start: int, stop: int) -> Ints:
        """(stop - start,) Parents of children start … stop - 1."""
        uniform = rng.random((2, stop - start))
        block = np.empty(stop - start, dtype=np.int64)
        edges = self._child_edges
        last = int(np.searchsorted(edges, stop, side="left"))
        for c in range(int(np.searchsorted(edges, start, side="right")) - 1, last):
            part = slice(max(edges[c] - start, 0), min(edges[c + 1] - start, stop - start))
            cumulated = self._cumulated[c]
            block[part] = np.searchsorted(cumulated[:-1], uniform[0, part] * cumulated[-1], side="right")
        size = self._size[block]
        rows: Ints = self._first[block] + np.minimum((uniform[1] * size).astype(np.int64), size - 1)
        return rows


def draw_links(rng: Rng, n_parents: int, n_children: int, database: DatabaseConfig) -> Links:
    """Draw levels, clusters and matrices for two tables."""
    n_levels = whole(rng, database.levels)
    sides = [tuple(whole(rng, database.clusters) for _ in range(n_levels)) for _ in range(2)]
    matrices = tuple(level_matrix(rng, a, b) for a, b in zip(*sides, strict=True))
    return Links(sides[0], sides[1], matrices, n_parents, n_children)
