"""A learned map before a FAISS index: look where the best key is predicted, rank by the query itself."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError
from assay._core.extras import need
from assay.nn.amips.vectors import Vectors, unit_rows

if TYPE_CHECKING:
    from assay.nn.amips.labels import Ids

#: An index without lists is asked for this many times k candidates, which the query then ranks.
OVERSAMPLING = 4

#: Keys of an index that are compared with the model's.
SAMPLE = 128

#: Of a quantised index's sampled keys, more than this share are closer to their own than to another. By chance it is a
#: half, and of 128 it exceeds this with a probability below 1e-6.
SAME = 0.75


class MappedIndex:
    """A FAISS index that is searched with mapped queries.

    Parameters
    ----------
    index : faiss.Index
        An inverted-file index (``IndexIVF…``): the mapped query chooses the lists, the query itself ranks what is in
        them, at no further cost. Another index must be able to reconstruct its keys (flat and HNSW are): it gives
        four times `k` candidates for the mapped query, which the query ranks.
    model : KeyNet, SupportNet or LearnedRouter
        Fitted to the keys in the index, in their order.
    rerank : bool, default True
        False ranks by the mapped query: the paper's searcher, which loses at k = 1.

    Raises
    ------
    InputError
        The index holds another number of keys or numbers a key than the model was trained on, or other keys: a sample
        is compared, where the model holds its keys and the index gives its own back. (A quantised index gives them
        back roughly: it is refused where its keys are no closer to the model's than to others.)

    Examples
    --------
    >>> keys = np.eye(4, dtype=np.float32)
    >>> from assay.nn.amips import KeyNet
    >>> net = KeyNet(residual=True, depth=1, width=8, steps=0).fit(keys, keys)
    >>> index = MappedIndex(ivf_index(keys, n_lists=2), net)
    >>> scores, ids = index.search(keys, 1)
    >>> ids[:, 0].tolist()
    [0, 1, 2, 3]
    """

    def __init__(self, index: Any, model: Any, *, rerank: bool = True) -> None:
        faiss = need("faiss", extra="search", purpose="MappedIndex")
        n_keys = len(model.keys_) if model.keys_ is not None else model.n_keys_
        if index.d != model.n_features_in_ or index.ntotal != n_keys:
            raise InputError(
                f"index: {index.ntotal:,} keys of {index.d} numbers; the model was trained on {n_keys:,} of "
                f"{model.n_features_in_}; add the same keys in the same order, or refit"
            )
        if model.keys_ is not None and not holds(index, model.keys_):
            raise InputError(
                "index: its keys are not those that the model was trained on; add the same keys in the same order, or "
                "refit"
            )
        self.index, self.model, self.rerank = index, model, rerank
        self.is_ivf = isinstance(faiss.downcast_index(index), faiss.IndexIVF)
        self.is_l2 = index.metric_type == faiss.METRIC_L2
        if self.is_l2:
            warnings.warn(
                "index: it measures L2 distances, in which the length of a mapped query would choose its lists; mapped "
                "queries are scaled to length one",
                stacklevel=2,
            )

    def search(self, x: Any, k: int) -> tuple[Vectors, Ids]:
        """Best `k` keys, as ``faiss.Index.search`` gives them.

        Parameters
        ----------
        x : (n, d) array-like
        k : int

        Returns
        -------
        scores : (n, k) float32
            Of the query itself if `rerank`, else of the mapped query, in the metric of the index.
        ids : (n, k) int64
            −1 where fewer than `k` keys were looked at.
        """
        if k < 1:
            raise InputError(f"k is {k}; expected 1 or more")
        queries = np.ascontiguousarray(unit_rows(x, "queries", n_features=self.index.d))
        return self.search_mapped(queries, self.mapped(queries), k)

    def mapped(self, queries: Vectors) -> Vectors:
        """Queries where they are looked for: mapped, and of length one in an L2 index."""
        found = self.model.transform(queries)
        if self.is_l2:
            found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return np.ascontiguousarray(found)

    def search_mapped(self, queries: Vectors, mapped: Vectors, k: int) -> tuple[Vectors, Ids]:
        """As :meth:`search`, for queries of length one that were mapped already."""
        if not self.rerank:
            scores, ids = self.index.search(mapped, k)
            return scores, ids
        if self.is_ivf:
            # More probes than lists are all lists; FAISS itself would read past the rows that it asks for.
            self.index.nprobe = min(self.index.nprobe, self.index.nlist)
            lists, distances = choose_lists(self.index, queries, mapped)
            scores, ids = self.index.search_preassigned(queries, k, lists, distances)
            return scores, ids
        _, candidates = self.index.search(mapped, min(OVERSAMPLING * k, self.index.ntotal))
        return self._ranked(queries, candidates, k)

    def _ranked(self, queries: Vectors, candidates: Ids, k: int) -> tuple[Vectors, Ids]:
        try:
            stored = self.index.reconstruct_batch(np.maximum(candidates, 0).ravel())
        except RuntimeError:
            raise InputError(
                "index: it cannot give its keys back, which ranking by the query needs; use rerank=False, or a flat, "
                "HNSW or IVF index"
            ) from None
        stored = stored.reshape(*candidates.shape, -1)
        if self.is_l2:
            scores = np.square(stored - queries[:, None]).sum(axis=2)
            scores[candidates < 0] = np.inf
            order = np.argsort(scores, axis=1, kind="stable")[:, :k]
        else:
            scores = np.einsum("nd,ncd->nc", queries, stored)
            scores[candidates < 0] = -np.inf
            order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(scores, order, axis=1), np.take_along_axis(candidates, order, axis=1)


def holds(index: Any, keys: Vectors) -> bool:
    """Whether a sample of the index's keys has the directions of these; True where it cannot give them back."""
    faiss = need("faiss", extra="search", purpose="MappedIndex")
    inner = faiss.downcast_index(index)
    ids = np.unique(np.linspace(0, len(keys) - 1, SAMPLE).astype(np.int64))
    unmapped = isinstance(inner, faiss.IndexIVF) and inner.direct_map.no()
    try:
        if unmapped:
            inner.make_direct_map(True)  # an IVF index finds a key by its id in no other way
        stored = index.reconstruct_batch(ids)
    except RuntimeError:
        return True
    finally:
        if unmapped:
            inner.make_direct_map(False)
    given = keys[ids] / np.linalg.norm(keys[ids], axis=1, keepdims=True)
    stored /= np.maximum(np.linalg.norm(stored, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    own = np.einsum("nd,nd->n", stored, given)
    if isinstance(inner, faiss.IndexFlat | faiss.IndexIVFFlat | faiss.IndexHNSWFlat):
        return bool((own > 1 - 1e-5).all())
    other = np.einsum("nd,nd->n", stored, np.roll(given, 1, axis=0))
    return bool((own >= other).mean() > SAME)


def choose_lists(index: Any, queries: Vectors, mapped: Vectors) -> tuple[Ids, Vectors]:
    """Lists (n, nprobe) closest to the mapped queries, and how the queries themselves score their centroids."""
    nprobe = min(index.nprobe, index.nlist)
    _, lists = index.quantizer.search(mapped, nprobe)
    centroids = index.quantizer.reconstruct_n(0, index.nlist)[lists]
    faiss = need("faiss", extra="search", purpose="MappedIndex")
    if index.metric_type == faiss.METRIC_L2:
        return lists, np.square(centroids - queries[:, None]).sum(axis=2)
    return lists, np.einsum("nd,npd->np", queries, centroids).astype(np.float32)


def ivf_index(keys: Any, n_lists: int | None = None, *, seed: int = 1234) -> Any:
    """A FAISS ``IndexIVFFlat`` over keys, by inner product: the index that the paper compares with.

    Parameters
    ----------
    keys : (n_keys, d) array-like
    n_lists : int, optional
        None: the square root of the number of keys.
    seed : int
        Of k-means.
    """
    faiss = need("faiss", extra="search", purpose="an IVF index")
    unit = np.ascontiguousarray(unit_rows(keys, "keys"))
    n, d = unit.shape
    n_lists = n_lists or max(1, round(n**0.5))
    if not 1 <= n_lists <= n:
        raise InputError(f"n_lists is {n_lists}; expected 1 to {n:,}, the number of keys")
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(d), d, n_lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed = seed
    index.cp.min_points_per_centroid = 1  # FAISS warns on stderr below 39 a list, which a square root of lists often is
    index.train(unit)
    index.add(unit)
    return index
