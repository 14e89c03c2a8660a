"""What the nets learn from: the best key of every query, by exact search in blocks; splits, noisy copies, clusters."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from assay.nn.amips.vectors import Vectors, blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

Ids = NDArray[np.int64]

#: Queries × keys of one product: 8 MB of scores, so that the pass for the largest reads them from the cache.
QUERY_BLOCK, KEY_BLOCK = 1024, 2048

#: Keys that are copied into memory at a time.
STRIP = 64 * KEY_BLOCK


def best_keys(queries: Vectors, keys: Vectors, *, n_jobs: int | None = None) -> tuple[Ids, Vectors]:
    """Exact best key of every query, without holding the matrix of scores.

    Parameters
    ----------
    queries : (n_queries, d) float32
        May be a memory map.
    keys : (n_keys, d) float32
        May be a memory map.
    n_jobs : int, optional
        Threads; None: as many as cores that this process may use.

    Returns
    -------
    ids : (n_queries,) int64
        Of equal scores the lowest id.
    scores : (n_queries,) float32

    Examples
    --------
    >>> keys = np.eye(3, dtype=np.float32)
    >>> ids, scores = best_keys(np.array([[0.1, 0.9, 0.2], [0.5, 0.5, 0.0]], np.float32), keys)
    >>> ids.tolist()
    [1, 0]
    """
    ids = np.empty(len(queries), np.int64)
    scores = np.empty(len(queries), np.float32)

    def search(start: int, strip: Vectors, rows: slice) -> None:
        some = np.ascontiguousarray(queries[rows], dtype=np.float32)
        ids[rows], scores[rows] = _best_of_strip(some, strip, ids[rows], scores[rows], first=start)

    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(n_jobs or _cores()) as pool:
        # A strip of keys is read once for all queries, so that keys on disk are not read again and again.
        for part in blocks(len(keys), STRIP):
            strip = np.ascontiguousarray(keys[part], dtype=np.float32)
            list(pool.map(partial(search, part.start, strip), blocks(len(queries), QUERY_BLOCK)))
    return ids, scores


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _best_of_strip(queries: Vectors, keys: Vectors, ids: Ids, scores: Vectors, *, first: int) -> tuple[Ids, Vectors]:
    """Best of what was found before and these keys; `first` is the id of their first, 0: nothing was found before."""
    best_id, best = ids.copy(), scores.copy()
    if first == 0:
        best_id[:], best[:] = -1, -np.inf
    buffer = np.empty((len(queries), min(KEY_BLOCK, len(keys))), np.float32)
    places = np.arange(len(queries))
    for columns in blocks(len(keys), KEY_BLOCK):
        n = columns.stop - columns.start
        product = np.matmul(queries, keys[columns].T, out=buffer if n == buffer.shape[1] else None)
        at = product.argmax(axis=1)
        found = product[places, at]
        better = found > best  # strictly: of equal scores the lowest id stays
        best[better] = found[better]
        best_id[better] = first + columns.start + at[better]
    return best_id, best


def best_keys_by_cluster(queries: Vectors, keys: Vectors, members: Sequence[Ids]) -> tuple[Ids, Vectors]:
    """Exact best key of every query within each cluster.

    Parameters
    ----------
    queries : (n_queries, d) float32
    keys : (n_keys, d) float32
    members : sequence of int arrays
        Ids of the keys in each cluster, ascending, none empty.

    Returns
    -------
    ids : (n_queries, n_clusters) int64
        Ids among all keys.
    scores : (n_queries, n_clusters) float32
    """
    found = [best_keys(queries, keys[mine]) for mine in members]
    ids = np.stack([mine[local] for mine, (local, _) in zip(members, found, strict=True)], axis=1)
    return ids, np.stack([scores for _, scores in found], axis=1)


def noisy_copies(queries: Vectors, n_copies: int, sd: float, rng: np.random.Generator) -> Vectors:
    """The queries, then `n_copies` of each with normal noise of `sd` a coordinate, of length one again."""
    n, d = queries.shape
    pool = np.empty(((1 + n_copies) * n, d), np.float32)
    pool[:n] = queries
    for copy in range(1, 1 + n_copies):
        part = pool[copy * n : (copy + 1) * n]
        rng.standard_normal(out=part, dtype=np.float32)
        part *= sd
        part += queries
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return pool


def repeats(queries: Vectors) -> Ids:
    """Number (n,) of the different query that each row is, counted as they first appear.

    A log asks the same again and again: what was learned from must not be asked as if it had been held out.

    Examples
    --------
    >>> repeats(np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]], np.float32)).tolist()
    [0, 1, 0]
    """
    _, first, group = np.unique(queries, axis=0, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[group.reshape(-1)]


class Pool(NamedTuple):
    """Queries to learn from and held-out ones, with which of the given queries each came from.

    Parameters
    ----------
    queries : (n, d) float32
    source : (n,) int64
    held_out : (n_test, d) float32
    held_out_source : (n_test,) int64
    """

    queries: Vectors
    source: Ids
    held_out: Vectors
    held_out_source: Ids


def make_pool(
    queries: Vectors,
    *,
    noise: tuple[int, float],
    test_size: float,
    official_split: bool,
    rng: np.random.Generator,
) -> Pool:
    """Hold out a share of the different queries, with all their repeats, and add noisy copies to the rest.

    `official_split` is the order of the paper's script: noisy copies first, then the split, so that copies of most
    held-out queries are trained on. It is here for comparisons with the paper's figures alone.
    """
    n_copies, sd = noise
    if official_split:
        n = len(queries)
        n_test = int(test_size * n)
        pool = noisy_copies(queries, n_copies, sd, rng)
        source = np.tile(np.arange(n), 1 + n_copies)
        order = rng.permutation(len(pool))
        out, kept = order[:n_test], order[n_test:]
        return Pool(pool[kept], source[kept], pool[out], source[out])
    group = repeats(queries)
    n_groups = int(group.max()) + 1
    held_out = np.isin(group, rng.permutation(n_groups)[: int(test_size * n_groups)])
    out, kept = np.flatnonzero(held_out), np.flatnonzero(~held_out)
    pool = noisy_copies(np.asarray(queries[kept]), n_copies, sd, rng)
    return Pool(pool, np.tile(kept, 1 + n_copies), np.asarray(queries[out]), out)
