"""Which part of the keys to look through, by predicted best scores in place of distances to centroids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from sklearn.cluster import KMeans

from assay._core.errors import InputError
from assay.nn.amips.learner import Learner, check_rectifier

if TYPE_CHECKING:
    from assay.nn.amips.labels import Ids
    from assay.nn.amips.networks import Learned, Rectifier
    from assay.nn.amips.vectors import Vectors

#: Starts and iterations of k-means on the keys: the paper's.
STARTS, ITERATIONS = 20, 300


class LearnedRouter(Learner):
    """Score the clusters of the keys for a query by one learned support function each, and search the best few.

    Parameters
    ----------
    n_clusters : int, default 10
        k-means clusters of the keys.
    base : "keynet" or "supportnet", default "keynet"
    rectifier : "softplus", "relu", "exp" or "identity", default "softplus"
        Of "supportnet": every cluster's function stays convex unless it is "identity".
    depth, fraction, width, inject, steps, batch_size, learning_rate, noise, test_size, official_split, device, verbose
        And `random_state`: as in :class:`~assay.nn.amips.KeyNet`.

    Attributes
    ----------
    centroids_ : (n_clusters, n_features) float32
    members_ : list of int arrays
        Ids of the keys in each cluster.
    sizes_ : (n_clusters,) int
    network_, keys_, keys_digest_, width_, n_parameters_, score_, relative_error_, match_rate_, held_out_, loss_curve_
        As in :class:`~assay.nn.amips.KeyNet`; errors are means over the cluster that is chosen.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> keys = np.repeat(np.eye(3, 6), 20, axis=0) + 0.1 * rng.standard_normal((60, 6))
    >>> keys = (keys / np.linalg.norm(keys, axis=1, keepdims=True)).astype(np.float32)
    >>> router = LearnedRouter(3, depth=2, width=24, steps=200, random_state=0).fit(keys, keys)
    >>> scores, ids = router.search(keys, k=1, p=1)
    >>> bool((ids[:, 0] == np.arange(60)).mean() > 0.95)
    True
    """

    def __init__(
        self,
        n_clusters: int = 10,
        *,
        base: Literal["keynet", "supportnet"] = "keynet",
        rectifier: Rectifier = "softplus",
        depth: int = 8,
        fraction: float = 0.2,
        width: int | None = None,
        inject: int | bool = 4,
        steps: int = 2_500,
        batch_size: int = 512,
        learning_rate: float = 2e-3,
        noise: tuple[int, float] = (10, 0.02),
        test_size: float = 0.1,
        official_split: bool = False,
        device: str = "auto",
        verbose: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.base = base
        self.rectifier = rectifier
        self.depth = depth
        self.fraction = fraction
        self.width = width
        self.inject = inject
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.noise = noise
        self.test_size = test_size
        self.official_split = official_split
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    @property
    def members_(self) -> list[Ids]:
        """Ids of the keys in each cluster."""
        return self._members

    @property
    def sizes_(self) -> Ids:
        """Keys in each cluster."""
        return np.array([len(mine) for mine in self._members], dtype=np.int64)

    @property
    def flops_(self) -> int:
        """Operations to map a query: forward, and for "supportnet" a pass backward for each cluster."""
        n_backward = len(self._members) if self.base == "supportnet" else 0
        return 2 * (1 + n_backward) * int(self.n_parameters_)

    @property
    def routing_flops_(self) -> int:
        """Operations to route a query: forward alone, since routing needs no more than the scores."""
        return 2 * int(self.n_parameters_)

    def cluster_scores(self, X: Any) -> Vectors:  # noqa: N803
        """Predicted best score (n, n_clusters) of each cluster for each query."""
        from assay.nn.amips.training import values

        queries = self._queries(X)
        return values(self.network_, queries)

    def route(self, X: Any, p: int = 1) -> Ids:  # noqa: N803
        """Ids (n, p) of the clusters with the largest predicted scores, best first."""
        return top(self.cluster_scores(X), self._checked_p(p))

    def search(self, X: Any, k: int = 10, p: int = 1) -> tuple[Vectors, Ids]:  # noqa: N803
        """Best `k` keys among those of the `p` clusters that the router chooses, by exact inner products.

        Returns
        -------
        scores : (n, k) float32
            In the order of ``faiss.Index.search``: scores, then ids.
        ids : (n, k) int64
            Best first; −1 where the clusters hold fewer than `k` keys.
        """
        if k < 1:
            raise InputError(f"k is {k}; expected 1 or more")
        queries = self._queries(X)
        return search_clusters(queries, self._held_keys(), self._members, self.route(queries, p), k)

    def _checked_p(self, p: int) -> int:
        if not 1 <= p <= len(self._members):
            raise InputError(f"p is {p}; expected 1 to {len(self._members)}, the number of clusters")
        return p

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.base not in ("keynet", "supportnet"):
            raise InputError(f"base is {self.base!r}; expected 'keynet' or 'supportnet'")
        if not isinstance(self.n_clusters, int | np.integer) or self.n_clusters < 1:
            raise InputError(f"n_clusters is {self.n_clusters!r}; expected a whole number from 1")
        check_rectifier(self.rectifier)

    def _divide(self, keys: Vectors, seed: int) -> list[Ids]:
        if len(keys) < self.n_clusters:
            raise InputError(f"n_clusters is {self.n_clusters} for {len(keys)} keys; expected no more than keys")
        import warnings

        from sklearn.exceptions import ConvergenceWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # said below, with what to do
            found = KMeans(self.n_clusters, n_init=STARTS, max_iter=ITERATIONS, random_state=seed).fit(keys)
        self.centroids_ = found.cluster_centers_.astype(np.float32)
        members = [np.flatnonzero(found.labels_ == cluster) for cluster in range(self.n_clusters)]
        n_empty = sum(len(mine) == 0 for mine in members)
        if n_empty:
            raise InputError(
                f"n_clusters is {self.n_clusters}, and k-means left {n_empty} clusters empty (many keys are the same); "
                f"ask for {self.n_clusters - n_empty} or fewer"
            )
        return members

    def _more_tensors(self) -> dict[str, Any]:
        import torch

        cluster = np.empty(int(self.sizes_.sum()), np.int64)
        for number, mine in enumerate(self._members):
            cluster[mine] = number
        return {"cluster_of_key": torch.from_numpy(cluster), "centroids": torch.from_numpy(self.centroids_)}

    def _divided(self, tensors: dict[str, Any]) -> list[Ids]:
        cluster = tensors.pop("cluster_of_key").numpy()
        self.centroids_ = tensors.pop("centroids").numpy()
        return [np.flatnonzero(cluster == number) for number in range(len(self.centroids_))]

    def _n_outputs(self, n_features: int, n_clusters: int) -> int:
        return n_clusters if self.base == "supportnet" else n_features * n_clusters

    def _network(self, net_options: dict[str, Any], n_features: int, n_clusters: int) -> Learned:
        from assay.nn.amips.networks import InputNetwork, KeyMap, SupportFunctions

        if self.base == "supportnet":
            return SupportFunctions(InputNetwork(**net_options, rectifier=self.rectifier), homogenize=True)
        return KeyMap(InputNetwork(**net_options, rectifier=None), residual=False)


def top(scores: Vectors, k: int) -> Ids:
    """Ids (n, k) of the largest scores of each row, largest first; of equal ones the lowest id."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :k].astype(np.int64)


def search_clusters(queries: Vectors, keys: Vectors, members: list[Ids], routes: Ids, k: int) -> tuple[Vectors, Ids]:
    """Best `k` keys (scores and ids) of each query among the clusters in its row of `routes`."""
    n, p = routes.shape
    candidate_ids = np.full((n, p * k), -1, np.int64)
    candidate_scores = np.full((n, p * k), -np.inf, np.float32)
    for cluster, mine in enumerate(members):
        rows, places = np.nonzero(routes == cluster)
        if len(rows) == 0:
            continue
        own = keys[mine]
        for start in range(0, len(rows), 4096):
            some, place = rows[start : start + 4096], places[start : start + 4096]
            product = queries[some] @ own.T
            best = top(product, k)
            columns = place[:, None] * k + np.arange(best.shape[1])
            candidate_ids[some[:, None], columns] = mine[best]
            candidate_scores[some[:, None], columns] = np.take_along_axis(product, best, axis=1)
    order = top(candidate_scores, k)
    return np.take_along_axis(candidate_scores, order, axis=1), np.take_along_axis(candidate_ids, order, axis=1)
