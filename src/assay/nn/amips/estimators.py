"""The estimators: queries and keys in, mapped queries out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sklearn.base import ClassNamePrefixFeaturesOutMixin

from assay.nn.amips.learner import Learner, check_rectifier

if TYPE_CHECKING:
    import numpy as np

    from assay.nn.amips.networks import Learned, Rectifier
    from assay.nn.amips.vectors import Vectors


class KeyNet(ClassNamePrefixFeaturesOutMixin, Learner):  # type: ignore[misc]  # scikit-learn is not typed
    """Map a query to its predicted best key: a query rewriter to put before any inner-product index.

    Parameters
    ----------
    depth : int, default 8
        Layers behind the first.
    fraction : float, default 0.2
        Parameters of the net, as a share of the numbers in the keys. A query costs 2 × parameters operations: at 0.2 as
        much as looking through a fifth of the keys. 0.005 to 0.05 is the useful range below a million keys.
    width : int, optional
        Of the layers, in place of what `fraction` allows.
    inject : int or bool, default 4
        The query comes in again at every so many layers; False: never.
    residual : bool, default True
        Learn the difference to the query; an untrained net is then the identity, up to a few percent. (The paper's
        tables have it off; with it a net needs fewer steps.)
    steps, batch_size : int
        Of training. The paper's: 100,000 steps of 4,096 (a GPU).
    learning_rate : float, default 2e-3
        At its peak.
    noise : (int, float), default (10, 0.02)
        Noisy copies of each query, and the sd of a coordinate's noise.
    test_size : float, default 0.1
        Share of the queries that is held out, before copies are made, to fill `score_`.
    official_split : bool, default False
        Hold out after copies are made, as the paper's script does: the figures are then too good.
    device : str, default "auto"
        Any torch device; "auto": the GPU if there is one.
    verbose : bool, default False
        Draw a bar while training.
    random_state : int, RandomState or None

    Attributes
    ----------
    network_ : torch.nn.Module
        With the running mean of the weights.
    keys_ : (n_keys, n_features) float32
        The keys, of length one; a memory map stays one. None after :meth:`load` without keys.
    keys_digest_ : str
        Tells other keys from these.
    width_, n_parameters_ : int
    score_ : float
        1 − `relative_error_`: 1 is exact, 0 no better than the query itself.
    relative_error_ : float
        Mean of |mapped − best key|² over that of |query − best key|², on the held-out queries; nan without any.
    match_rate_ : float
        Share of the held-out queries whose mapped query is closest to the best key.
    held_out_ : (n_test,) int64
        Rows of the queries that were held out.
    loss_curve_ : list of float
        Training loss, means of 50 steps.
    n_features_in_ : int

    Notes
    -----
    Olausson et al., arXiv:2603.08001; called VectorICNN in the first version's code.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> keys = np.eye(4, dtype=np.float32)
    >>> queries = keys[rng.integers(4, size=400)] + 0.3 * rng.standard_normal((400, 4), dtype=np.float32)
    >>> queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    >>> net = KeyNet(depth=2, width=32, steps=300, noise=(0, 0.0), random_state=0).fit(queries, keys)
    >>> net.predict(keys).tolist()
    [0, 1, 2, 3]
    """

    def __init__(
        self,
        *,
        depth: int = 8,
        fraction: float = 0.2,
        width: int | None = None,
        inject: int | bool = 4,
        residual: bool = True,
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
        self.depth = depth
        self.fraction = fraction
        self.width = width
        self.inject = inject
        self.residual = residual
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
    def flops_(self) -> int:
        """Operations a query: a multiplication and an addition for each parameter."""
        return 2 * int(self.n_parameters_)

    @property
    def _n_features_out(self) -> int:
        return int(self.n_features_in_)

    def _n_outputs(self, n_features: int, n_clusters: int) -> int:
        return n_features * n_clusters

    def _network(self, net_options: dict[str, Any], n_features: int, n_clusters: int) -> Learned:
        from assay.nn.amips.networks import InputNetwork, KeyMap

        return KeyMap(InputNetwork(**net_options, rectifier=None), residual=self.residual)


class SupportNet(ClassNamePrefixFeaturesOutMixin, Learner):  # type: ignore[misc]  # scikit-learn is not typed
    """Learn the support function of the keys, sigma(x) = max <x, key>; its gradient is the predicted best key.

    Mapping a query takes a pass backward as well: prefer :class:`KeyNet` for search, and this where the function
    itself, convex or positively homogeneous, is wanted.

    Parameters
    ----------
    depth, fraction, width, inject, steps, batch_size, learning_rate, noise, test_size, official_split, device, verbose
        And `random_state`: as in :class:`KeyNet`.
    homogenize : bool, default True
        f(x) = |x| h(x / |x|): f(c x) = c f(x) for c > 0, exactly. That h is convex does not make f so (h = −1 does
        not); False gives f = h, which is convex everywhere.
    rectifier : "softplus", "relu", "exp" or "identity", default "softplus"
        What keeps weights above zero, and with them the net h convex. The paper's settings have "identity": convex at
        the start alone.

    Attributes
    ----------
    As in :class:`KeyNet`.

    Examples
    --------
    >>> import numpy as np
    >>> keys = np.array([[1.0, 0.0], [-1.0, 0.0]], np.float32)
    >>> angle = np.random.default_rng(0).uniform(0, 2 * np.pi, 500)
    >>> queries = np.column_stack([np.cos(angle), np.sin(angle)]).astype(np.float32)
    >>> net = SupportNet(depth=2, width=32, steps=400, learning_rate=1e-2, random_state=0).fit(queries, keys)
    >>> bool(np.abs(net.support([[0.6, 0.8]]) - 0.6).max() < 0.05)  # sigma(x) = |x_1|
    True
    """

    def __init__(
        self,
        *,
        depth: int = 8,
        fraction: float = 0.2,
        width: int | None = None,
        inject: int | bool = 4,
        homogenize: bool = True,
        rectifier: Rectifier = "softplus",
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
        self.depth = depth
        self.fraction = fraction
        self.width = width
        self.inject = inject
        self.homogenize = homogenize
        self.rectifier = rectifier
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.noise = noise
        self.test_size = test_size
        self.official_split = official_split
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    def support(self, X: Any) -> Vectors:  # noqa: N803
        """Predicted support function (n,) of queries scaled to length one."""
        from assay.nn.amips.training import values

        queries = self._queries(X)
        return values(self.network_, queries)[:, 0]

    @property
    def flops_(self) -> int:
        """Operations a query: a pass forward and one backward to the query."""
        return 4 * int(self.n_parameters_)

    @property
    def _n_features_out(self) -> int:
        return int(self.n_features_in_)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_rectifier(self.rectifier)

    def _n_outputs(self, n_features: int, n_clusters: int) -> int:
        return n_clusters

    def _network(self, net_options: dict[str, Any], n_features: int, n_clusters: int) -> Learned:
        from assay.nn.amips.networks import InputNetwork, SupportFunctions

        return SupportFunctions(InputNetwork(**net_options, rectifier=self.rectifier), homogenize=self.homogenize)
