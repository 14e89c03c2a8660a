"""The arms, and what their answers are worth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from assay._core.extras import need
from assay.trials.nn.amips.data import Task, Vectors, unit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from assay.bench import Case
    from assay.nn.amips import KeyNet, SupportNet


class Answer(NamedTuple):
    """What an arm found: ids (n, 10) at each number of probes, what was looked at, and operations a query."""

    ids: Mapping[int, NDArray[np.int64]]
    scanned: Mapping[int, float]
    flops: Mapping[int, float]
    relative_error: float


#: Lists that are looked through; the first is what the claim is about.
PROBES = (1, 2, 4, 8)


def index_of(task: Task, seed: int) -> tuple[Any, NDArray[np.int64]]:
    """IVF-Flat with sqrt(n) lists, and the sizes of its lists."""
    from assay.nn.amips import ivf_index

    index = ivf_index(task.keys, seed=seed % 2**31)
    return index, np.array([index.invlists.list_size(number) for number in range(index.nlist)])


def probing(task: Task, seed: int, mapped: Vectors, extra_flops: float, *, rank_by_map: bool = False) -> Answer:
    """Look in the lists closest to `mapped`; rank by the query, or by `mapped`."""
    from assay.nn.amips.index import choose_lists
    from assay.nn.amips.labels import best_keys
    from assay.nn.amips.learner import relative_error

    index, sizes = index_of(task, seed)
    ids, scanned, flops = {}, {}, {}
    ranked = np.ascontiguousarray(mapped if rank_by_map else task.queries)
    for nprobe in PROBES:
        index.nprobe = min(nprobe, index.nlist)
        lists, scores = choose_lists(index, ranked, np.ascontiguousarray(mapped))
        ids[nprobe] = index.search_preassigned(ranked, 10, lists, scores)[1]
        looked = float(sizes[lists].sum(axis=1).mean())
        scanned[nprobe] = looked / len(task.keys)
        flops[nprobe] = extra_flops + 2 * task.keys.shape[1] * (index.nlist + looked)
    error = relative_error(task.queries, mapped, task.keys[best_keys(task.queries, task.keys)[0]])
    return Answer(ids, scanned, flops, error)


def raw(task: Task, seed: int) -> Answer:
    return probing(task, seed, task.queries, 0.0)


def trained(net: type[KeyNet] | type[SupportNet], task: Task, seed: int) -> KeyNet | SupportNet:
    return net(
        depth=4, **task.training._asdict(), noise=(1, 0.02), test_size=0.0, device="cpu", random_state=seed % 2**31
    ).fit(task.log, task.keys)


def learned(task: Task, seed: int) -> Answer:
    from assay.nn.amips import KeyNet

    net = trained(KeyNet, task, seed)
    return probing(task, seed, net.transform(task.queries), net.flops_)


def gradient(task: Task, seed: int) -> Answer:
    from assay.nn.amips import SupportNet

    net = trained(SupportNet, task, seed)
    return probing(task, seed, net.transform(task.queries), net.flops_)


def linear(task: Task, seed: int) -> Answer:
    """The cheap way to learn a map: ridge regression from query to best key, its penalty by leave-one-out."""
    from sklearn.linear_model import RidgeCV

    from assay.nn.amips import best_keys

    targets = task.keys[best_keys(task.log, task.keys)[0]]
    found = RidgeCV(alphas=np.logspace(-3, 3, 7)).fit(task.log, targets).predict(task.queries)
    return probing(task, seed, found.astype(np.float32), 2.0 * task.keys.shape[1] ** 2)


def hnsw(task: Task, seed: int) -> Answer:
    """HNSW with as many distances as IVF computes at each number of probes: the largest efSearch within that budget."""
    faiss = need("faiss", extra="search", purpose="the trial of amips")
    from assay.nn.amips.compare import hnsw_index

    budget = raw(task, seed)
    graph = hnsw_index(task.keys)
    stats = faiss.cvar.hnsw_stats
    d = task.keys.shape[1]
    tried = []
    for ef in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96):
        graph.hnsw.efSearch = ef
        stats.reset()
        ids = graph.search(task.queries, 10)[1] if ef >= 10 else padded(graph.search(task.queries, ef)[1])
        tried.append((stats.ndis / len(task.queries), ids))
    ids, scanned, flops = {}, {}, {}
    for nprobe in PROBES:
        within = [one for one in tried if 2 * d * one[0] <= budget.flops[nprobe]] or tried[:1]
        distances, found = within[-1]
        ids[nprobe], scanned[nprobe], flops[nprobe] = found, distances / len(task.keys), 2 * d * distances
    return Answer(ids, scanned, flops, 1.0)


def padded(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.pad(ids, ((0, 0), (0, 10 - ids.shape[1])), constant_values=-1)


def recall(case: Case, answer: Answer) -> dict[str, float]:
    from assay.nn.amips.learner import as_good

    task = case.given
    hits = {nprobe: as_good(task.queries, task.keys, ids, case.truth[:, 0]) for nprobe, ids in answer.ids.items()}
    among_ten = as_good(task.queries, task.keys, answer.ids[1], case.truth[:, 9])
    return {
        **{f"recall_1_{nprobe}": float(hit[:, 0].mean()) for nprobe, hit in hits.items()},
        "ten_1": float(among_ten.mean()),
        "scanned_1": answer.scanned[1],
        "kflops_1": answer.flops[1] / 1e3,
        "relative_error": answer.relative_error,
    }


# ------------------------------------------------------------------------------------------------------------- routing

CLUSTERS = 10


class Routes(NamedTuple):
    """Clusters of the keys, and which two an arm would look through, best first."""

    cluster: NDArray[np.int64]
    chosen: NDArray[np.int64]


def learned_router(task: Task, seed: int, base: Literal["keynet", "supportnet"] = "keynet") -> Routes:
    from assay.nn.amips import LearnedRouter

    router = LearnedRouter(
        CLUSTERS, base=base, depth=4, **task.training._asdict(), noise=(1, 0.02), test_size=0.0, device="cpu",
        random_state=seed % 2**31,
    )  # fmt: skip
    router.fit(task.log, task.keys)
    return Routes(cluster_of(router.members_, len(task.keys)), router.route(task.queries, 2))


def centroid_router(task: Task, seed: int) -> Routes:
    """The same clusters (the same seed of k-means), chosen by the cosine with their centroids."""
    from assay.nn.amips import LearnedRouter

    router = LearnedRouter(CLUSTERS, depth=1, width=4, steps=0, noise=(0, 0.0), test_size=0.0, device="cpu",
                           random_state=seed % 2**31).fit(task.log[: len(task.keys) // 10 + 1], task.keys)  # fmt: skip
    scores = task.queries @ unit(router.centroids_).T
    return Routes(cluster_of(router.members_, len(task.keys)), np.argsort(-scores, axis=1, kind="stable")[:, :2])


def cluster_of(members: Sequence[NDArray[np.int64]], n_keys: int) -> NDArray[np.int64]:
    found = np.empty(n_keys, np.int64)
    for number, mine in enumerate(members):
        found[mine] = number
    return found


def routed(case: Case, routes: Routes) -> dict[str, float]:
    """How often the best key is in the first cluster, or in the first two, and what share of the keys that looks at."""
    from assay.nn.amips import best_keys

    task = case.given
    true = routes.cluster[best_keys(task.queries, task.keys)[0]]
    share = np.bincount(routes.cluster, minlength=CLUSTERS) / len(task.keys)
    return {
        "routed_1": float((routes.chosen[:, 0] == true).mean()),
        "routed_2": float((routes.chosen == true[:, None]).any(axis=1).mean()),
        "scanned_1": float(share[routes.chosen[:, 0]].mean()),
    }
