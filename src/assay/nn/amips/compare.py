"""What a learned map gains: recall against probes, operations and time, beside the raw query, HNSW and exact search."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.extras import need
from assay.nn.amips.index import MappedIndex, choose_lists, ivf_index
from assay.nn.amips.labels import Ids, best_keys
from assay.nn.amips.learner import as_good
from assay.nn.amips.router import search_clusters, top
from assay.nn.amips.vectors import Vectors, unit_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd
    from matplotlib.axes import Axes

#: Recall is counted among this many found keys.
DEPTHS = (1, 10, 100)

#: Searches are timed this many times, all ways in turn; the median counts.
REPEATS = 3

#: Links of a key in HNSW, what it looks at while building, and while searching.
HNSW_LINKS, HNSW_BUILD, HNSW_SEARCH = 32, 200, (8, 16, 32, 64, 128)

#: Okabe–Ito: the learned map in vermillion, the raw query in blue, the others quieter.
COLOURS = ("#0072B2", "#D55E00", "#E69F00", "#009E73", "#56B4E9", "#000000")


@dataclass(frozen=True, eq=False)
class Comparison:
    """Ways to search, each at several settings, on the same queries.

    Parameters
    ----------
    table : pandas.DataFrame
        A row for each way and setting: ``way``, ``setting`` (nprobe, clusters or efSearch), ``recall_1``,
        ``recall_10``, ``recall_100`` (a best key is among the first so many found), ``low_1``, ``high_1`` (95 % Wilson
        interval of recall_1), ``mrr``, ``scanned`` (share of the keys whose score was computed), ``mflops`` (a query,
        the net included), ``ms`` (wall milliseconds a query, in a batch, the net included).
    n_queries, n_keys, n_features, n_parameters : int
    """

    table: pd.DataFrame
    n_queries: int
    n_keys: int
    n_features: int
    n_parameters: int

    def to_frame(self) -> pd.DataFrame:
        """The table."""
        return self.table.copy()

    def summary(self) -> str:
        """The table as lines for a person."""
        rows = self.table
        width = max(len(way) for way in rows["way"])
        lines = [
            f"{self.n_queries:,} queries, {self.n_keys:,} keys of {self.n_features}; the net has {self.n_parameters:,} "
            f"parameters ({self.n_parameters / (self.n_keys * self.n_features):.1%} of the keys' numbers)",
            "",
            f"{'':<{width}} {'set':>5} {'recall@1':>8} {'95 % interval':>15} {'@10':>6} {'@100':>6} {'MRR':>6} "
            f"{'scanned':>8} {'Mflop':>8} {'ms/query':>9}",
        ]
        for row in rows.to_dict("records"):
            interval = f"[{row['low_1']:.3f}, {row['high_1']:.3f}]"
            recall = " ".join(f"{row[f'recall_{k}']:>6.3f}" for k in DEPTHS[1:])
            lines.append(
                f"{row['way']:<{width}} {row['setting']:>5} {row['recall_1']:>8.3f} {interval:>15} {recall} "
                f"{row['mrr']:>6.3f} {row['scanned']:>8.2%} {row['mflops']:>8.3f} {row['ms']:>9.4f}"
            )
        return "\n".join(lines)

    def plot(self) -> Axes:
        """Recall@1 with its interval against operations (left) and time (right) a query; returns the left axes."""
        from matplotlib import pyplot as plt
        from matplotlib.ticker import LogLocator, NullFormatter

        _, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, layout="constrained")
        ways = list(dict.fromkeys(self.table["way"]))
        for number, way in enumerate(ways):
            rows = self.table[self.table["way"] == way]
            for axes, column in ((left, "mflops"), (right, "ms")):
                axes.errorbar(
                    rows[column], rows["recall_1"],
                    yerr=[rows["recall_1"] - rows["low_1"], rows["high_1"] - rows["recall_1"]],
                    marker="osD^v*"[number % 6], color=COLOURS[number % 6], linewidth=1.2, markersize=5, capsize=2,
                    label=way,
                )  # fmt: skip
        for axes, label in ((left, "million operations a query"), (right, "wall milliseconds a query, in a batch")):
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.set_xlabel(label)
            axes.grid(alpha=0.3)
        left.set_ylabel("recall@1 (95 % interval)")
        right.legend(frameon=False, fontsize="small")
        drawn: Axes = left
        return drawn


def compare_ivf(
    model: Any,
    queries: Any,
    keys: Any = None,
    nprobes: Sequence[int] = (1, 2, 4, 8, 16),
    *,
    n_lists: int | None = None,
) -> Comparison:
    """Compare the learned map before an IVF index with the raw query, HNSW and exact search, all of FAISS.

    Operations a query: those of the net (its ``flops_``), 2 d (lists + keys looked at) of the index; 2 d × distances
    computed in HNSW. Time is that of a batch of all queries, median of three, the ways in turn.

    Parameters
    ----------
    model : KeyNet, SupportNet or LearnedRouter
        Fitted.
    queries : (n_queries, d) array-like
        Not those it was fitted to.
    keys : (n_keys, d) array-like, optional
        Those it was fitted to; needed for a loaded model.
    nprobes : sequence of int
        Lists to look through.
    n_lists : int, optional
        Of the index; None: the square root of the number of keys.

    Returns
    -------
    Comparison

    Raises
    ------
    InputError
        The keys are not those that were trained on, or widths differ.
    """
    faiss = need("faiss", extra="search", purpose="a comparison with FAISS")
    unit, known = _given(model, queries, keys)
    index = ivf_index(known, n_lists)
    mapped_index, by_mapped = MappedIndex(index, model), MappedIndex(index, model, rerank=False)
    sizes = np.array([index.invlists.list_size(number) for number in range(index.nlist)])
    k = min(max(DEPTHS), len(known))
    mapped = mapped_index.mapped(unit)
    runs: list[_Run] = []
    for nprobe in (nprobe for nprobe in nprobes if nprobe <= index.nlist):
        for way, net, looked, search in (
            ("raw query, IVF", 0, unit, lambda: index.search(unit, k)[1]),
            ("mapped, ranked by query", model.flops_, mapped, lambda: mapped_index.search(unit, k)[1]),
            ("mapped, ranked by map", model.flops_, mapped, lambda: by_mapped.search(unit, k)[1]),
        ):
            scanned = _scanned(index, sizes, unit, looked, nprobe)
            runs.append(
                _Run(
                    way,
                    nprobe,
                    _at(index, "nprobe", nprobe, search),
                    scanned,
                    net + 2 * unit.shape[1] * (index.nlist + scanned),
                )
            )
    graph = hnsw_index(known)
    for ef in HNSW_SEARCH:
        run = _at(graph.hnsw, "efSearch", ef, lambda: graph.search(unit, k)[1])
        faiss.cvar.hnsw_stats.reset()
        run()
        scanned = faiss.cvar.hnsw_stats.ndis / len(unit)
        runs.append(_Run("raw query, HNSW", ef, run, scanned, 2 * unit.shape[1] * scanned))
    flat = faiss.IndexFlatIP(unit.shape[1])
    flat.add(np.ascontiguousarray(known))
    runs.append(_Run("exact", len(known), lambda: flat.search(unit, k)[1], len(known), 2 * unit.shape[1] * len(known)))
    return _compared(runs, unit, known, model)


def compare_routing(router: Any, queries: Any, keys: Any = None, p: Sequence[int] = (1, 2, 3)) -> Comparison:
    """Compare a learned router with routing by centroids, over the same clusters.

    Parameters
    ----------
    router : LearnedRouter
        Fitted.
    queries, keys
        As in :func:`compare_ivf`.
    p : sequence of int
        Clusters to look through.

    Returns
    -------
    Comparison
    """
    unit, known = _given(router, queries, keys)
    k = min(max(DEPTHS), len(known))
    n_clusters = len(router.members_)
    centroids = router.centroids_ / np.linalg.norm(router.centroids_, axis=1, keepdims=True)

    def by_centroid() -> Vectors:
        scores: Vectors = unit @ centroids.T
        return scores

    def by_router() -> Vectors:
        return np.asarray(router.cluster_scores(unit))

    def searching(score: Callable[[], Vectors], n_probed: int) -> Callable[[], Ids]:
        return lambda: search_clusters(unit, known, router.members_, top(score(), n_probed), k)[1]

    runs = []
    for n_probed in (n for n in p if n <= n_clusters):
        for way, cost, score in (
            ("centroids", 2 * centroids.size, by_centroid),
            ("learned router", router.routing_flops_, by_router),
        ):
            scanned = float(router.sizes_[top(score(), n_probed)].sum(axis=1).mean())
            runs.append(_Run(way, n_probed, searching(score, n_probed), scanned, cost + 2 * unit.shape[1] * scanned))
    return _compared(runs, unit, known, router)


def hnsw_index(keys: Any) -> Any:
    """A FAISS ``IndexHNSWFlat`` over keys of length one, by inner product."""
    faiss = need("faiss", extra="search", purpose="an HNSW index")
    index = faiss.IndexHNSWFlat(keys.shape[1], HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = HNSW_BUILD
    index.add(np.ascontiguousarray(keys))
    return index


class _Run(NamedTuple):
    way: str
    setting: int
    search: Callable[[], Ids]
    scanned: float
    flops: float


def _given(model: Any, queries: Any, keys: Any) -> tuple[Vectors, Vectors]:
    unit = np.ascontiguousarray(unit_rows(queries, "queries", n_features=model.n_features_in_))
    return unit, model._known_keys(keys)


def _at(holder: Any, name: str, value: int, search: Callable[[], Ids]) -> Callable[[], Ids]:
    """The search with one setting of the index set first."""

    def run() -> Ids:
        setattr(holder, name, value)
        return search()

    return run


def _scanned(index: Any, sizes: Any, queries: Vectors, looked: Vectors, nprobe: int) -> float:
    index.nprobe = nprobe
    return float(sizes[choose_lists(index, queries, looked)[0]].sum(axis=1).mean())


def _compared(runs: list[_Run], queries: Vectors, keys: Vectors, model: Any) -> Comparison:
    import pandas as pd

    best = best_keys(queries, keys)[1]
    found = [run.search() for run in runs]
    seconds = np.empty((REPEATS, len(runs)))
    for repeat in range(REPEATS):
        for number, run in enumerate(runs):
            start = time.perf_counter()
            run.search()
            seconds[repeat, number] = time.perf_counter() - start
    rows = []
    for run, ids, taken in zip(runs, found, np.median(seconds, axis=0), strict=True):
        hit = as_good(queries, keys, ids, best)
        recall = {f"recall_{k}": float(hit[:, :k].any(axis=1).mean()) for k in DEPTHS}
        low, high = wilson(recall["recall_1"], len(queries))
        first = np.where(hit.any(axis=1), 1.0 / (1 + hit.argmax(axis=1)), 0.0)
        rows.append(
            {"way": run.way, "setting": run.setting, **recall, "low_1": low, "high_1": high, "mrr": float(first.mean()),
             "scanned": run.scanned / len(keys), "mflops": run.flops / 1e6, "ms": 1e3 * taken / len(queries)}
        )  # fmt: skip
    table = pd.DataFrame(rows).sort_values("way", key=lambda ways: ways.map(_order(runs)), kind="stable")
    return Comparison(table.reset_index(drop=True), len(queries), len(keys), queries.shape[1], int(model.n_parameters_))


def _order(runs: list[_Run]) -> dict[str, int]:
    return {way: number for number, way in enumerate(dict.fromkeys(run.way for run in runs))}


def wilson(share: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of n.

    Examples
    --------
    >>> low, high = wilson(1.0, 100)
    >>> round(low, 3), high
    (0.963, 1.0)
    """
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # It holds the share itself: rounding must not put the end at 0 or 1 a last digit inside.
    return max(0.0, float(min(share, centre - half))), min(1.0, float(max(share, centre + half)))
