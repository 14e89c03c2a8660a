"""A small in-context classifier, trained under many criteria or under one, and the baselines it must beat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.seeds import generator
from assay.evaluate.cc_icl.episodes import Episodes, needed_features

if TYPE_CHECKING:
    import torch
    from numpy.typing import ArrayLike, NDArray
    from torch import nn

    from assay.evaluate.cc_icl.items import Array
    from assay.evaluate.cc_icl.metrics import Codes


class InContextClassifier(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A transformer over a few labelled examples and a query, trained by multi-criterion training (MCT).

    Each training step draws episodes and, independently of them, a criterion for each; the criterion labels support and
    query, and the loss is the cross-entropy of the query's answer. The same episode comes with contradictory answers
    that only the labels of its examples explain, so the classifier learns to read them. No training when the
    criterion changes: it shows in the examples.

    Parameters
    ----------
    criterion : str or None, default None
        None: MCT over all criteria of the episodes. A name: single-criterion training, the baseline.
    d_model : int, default 64
    n_layers : int, default 3
        Pre-norm transformer layers over the support tokens and the query token. There are no positions: the order of
        the support does not matter.
    n_heads : int, default 4
    n_steps : int, default 600
    batch_size : int, default 128
        Episodes a step.
    learning_rate : float, default 1e-3
    weight_decay : float, default 1e-2
    device : str, default "cpu"
        Any torch device.
    random_state : int, default 0

    Attributes
    ----------
    module_ : nn.Module
    answers_ : tuple of str
        What the codes mean.
    loss_ : (n_steps,) ndarray
        Training loss in nats.
    n_features_in_ : int

    Notes
    -----
    The sizes and the optimiser are reconstructed: the full text of the paper was not available to us.

    Examples
    --------
    >>> from assay.evaluate.cc_icl import CriterionSpec, Items, build_episodes, evaluate
    >>> spec = CriterionSpec("Is it large?", ("No", "Yes"), {"A": {"small": "No", "middle": "No", "large": "Yes"},
    ...                                                      "B": {"small": "No", "middle": "Yes", "large": "Yes"}})
    >>> size = np.tile([0.0, 1.0, 2.0], 20) + np.linspace(-0.1, 0.1, 60)
    >>> items = Items("row", tuple(map(str, range(60))), ("small", "middle", "large") * 20, size[:, None])
    >>> episodes = build_episodes(items, spec, 500)
    >>> model = InContextClassifier(
    ...     d_model=16, n_layers=1, n_heads=2, n_steps=60, batch_size=64, learning_rate=1e-2
    ... )
    >>> evaluate(model.fit(episodes), episodes).sensitivity > 0.9
    True
    """

    def __init__(
        self,
        criterion: str | None = None,
        *,
        d_model: int = 64,
        n_layers: int = 3,
        n_heads: int = 4,
        n_steps: int = 600,
        batch_size: int = 128,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-2,
        device: str = "cpu",
        random_state: int = 0,
    ) -> None:
        self.criterion = criterion
        self.d_model = d_model
        self.n_layers = n_layers
        self.n_heads = n_heads
        self.n_steps = n_steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.device = device
        self.random_state = random_state

    def fit(self, episodes: Episodes) -> Self:
        """Train on episodes whose items have features.

        Raises
        ------
        InputError
            The items have no features, there is no such criterion, or a size is out of range.
        """
        torch = need("torch", extra="lm", purpose="the in-context classifier")
        self._check()
        features = needed_features(episodes)
        if self.criterion is not None:
            episodes = episodes.with_criteria([self.criterion])
        used = features[np.unique(np.concatenate([episodes.support.ravel(), episodes.query]))]
        self.mean_ = used.mean(axis=0)
        self.scale_ = np.where(used.std(axis=0) > 0, used.std(axis=0), 1.0)
        self.answers_ = episodes.answers
        self.n_features_in_ = used.shape[1]

        rng = generator(self.random_state)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            module = build_module(self.n_features_in_, len(self.answers_), self.d_model, self.n_layers, self.n_heads)
        self.module_ = module.to(self.device)
        pool = self._tensor(features)
        optimizer = torch.optim.AdamW(
            module.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay, fused=True
        )
        self.loss_ = np.empty(self.n_steps)
        for step in range(self.n_steps):
            rows = rng.integers(len(episodes), size=self.batch_size)
            criterion = draw_criteria(self.batch_size, len(episodes.criteria), rng)
            logits = module(
                pool[episodes.support[rows]],
                torch.as_tensor(episodes.labels[rows, :, criterion], device=self.device),
                pool[episodes.query[rows]],
            )
            truth = torch.as_tensor(episodes.truth[rows, criterion], device=self.device)
            loss = torch.nn.functional.cross_entropy(logits, truth)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            self.loss_[step] = loss.item()
        module.eval()
        return self

    def predict(self, support_X: ArrayLike, support_y: ArrayLike, query_X: ArrayLike) -> Codes:  # noqa: N803
        """Answer queries by their examples.

        Parameters
        ----------
        support_X : (n, n_support, n_features) float
        support_y : (n, n_support) int
            Codes of answers: positions in `answers_`.
        query_X : (n, n_features) float

        Returns
        -------
        (n,) int64
            Codes of answers.

        Raises
        ------
        InputError
            The shapes do not fit each other or the training data.
        """
        return np.asarray(self.predict_proba(support_X, support_y, query_X).argmax(axis=1), dtype=np.int64)

    def predict_proba(self, support_X: ArrayLike, support_y: ArrayLike, query_X: ArrayLike) -> Array:  # noqa: N803
        """Probability of each answer: (n, n_answers). Parameters as in :meth:`predict`."""
        import torch

        check_is_fitted(self, "module_")
        support, labels, query = check_arrays(support_X, support_y, query_X, len(self.answers_), self.n_features_in_)
        chunks = []
        with torch.inference_mode():
            for start in range(0, len(query), 4096):
                part = slice(start, start + 4096)
                logits = self.module_(
                    self._tensor(support[part]),
                    torch.as_tensor(labels[part], device=self.device),
                    self._tensor(query[part]),
                )
                chunks.append(torch.softmax(logits.double(), dim=1).cpu().numpy())
        return np.concatenate(chunks) if chunks else np.empty((0, len(self.answers_)))

    def _tensor(self, features: Array) -> torch.Tensor:
        import torch

        return torch.as_tensor((features - self.mean_) / self.scale_, dtype=torch.float32, device=self.device)

    def _check(self) -> None:
        for name in ("d_model", "n_layers", "n_heads", "n_steps", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if self.d_model % self.n_heads:
            raise InputError(
                f"d_model is {self.d_model}, which n_heads={self.n_heads} does not divide; choose a multiple"
            )


def draw_criteria(n: int, n_criteria: int, rng: np.random.Generator) -> Codes:
    """One criterion for each of n episodes: uniform, and independent of what is in them."""
    return rng.integers(n_criteria, size=n)


def build_module(n_features: int, n_answers: int, d_model: int, n_layers: int, n_heads: int) -> nn.Module:
    """Build the network: (support, labels, query) to logits of the query's answer."""
    from assay.evaluate.cc_icl.network import InContextNetwork

    return InContextNetwork(n_features, n_answers, d_model, n_layers, n_heads)


class NearestSupport(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Answer with the label of the example that is nearest to the query. Nothing is learned.

    It follows any criterion that its examples show, as far as distances between features tell categories apart: a
    trained model has to beat it.
    """

    def predict(self, support_X: ArrayLike, support_y: ArrayLike, query_X: ArrayLike) -> Codes:  # noqa: N803
        """Codes of answers (n,); parameters as in :meth:`InContextClassifier.predict`."""
        support, labels, query = check_arrays(support_X, support_y, query_X)
        distance = ((support - query[:, None, :]) ** 2).sum(axis=2)
        return np.take_along_axis(labels, distance.argmin(axis=1)[:, None], axis=1)[:, 0]


class FixedBoundary(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """An ordinary classifier, trained under one criterion; it never looks at the examples.

    Parameters
    ----------
    criterion : str
    estimator : scikit-learn classifier, optional
        By default logistic regression on standardised features.
    """

    def __init__(self, criterion: str, estimator: Any = None) -> None:
        self.criterion = criterion
        self.estimator = estimator

    def fit(self, episodes: Episodes) -> Self:
        """Train on the items of the episodes, with the answers of the criterion."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        features = needed_features(episodes)
        k = episodes.criterion(self.criterion)
        answer = np.full(len(episodes.items), -1, dtype=np.int64)
        answer[episodes.support] = episodes.labels[:, :, k]
        answer[episodes.query] = episodes.truth[:, k]
        used = np.flatnonzero(answer >= 0)
        chosen = self.estimator or make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        self.estimator_ = clone(chosen).fit(features[used], answer[used])
        return self

    def predict(self, support_X: ArrayLike, support_y: ArrayLike, query_X: ArrayLike) -> Codes:  # noqa: N803
        """Codes of answers (n,), from the queries alone."""
        check_is_fitted(self, "estimator_")
        _, _, query = check_arrays(support_X, support_y, query_X)
        return np.asarray(self.estimator_.predict(query), dtype=np.int64)


def check_arrays(
    support_X: ArrayLike,  # noqa: N803
    support_y: ArrayLike,
    query_X: ArrayLike,  # noqa: N803
    n_answers: int | None = None,
    n_features: int | None = None,
) -> tuple[Array, Codes, Array]:
    """Supports, labels and queries as arrays that fit each other."""
    support: NDArray[np.float64] = np.asarray(support_X, dtype=np.float64)
    query: NDArray[np.float64] = np.asarray(query_X, dtype=np.float64)
    labels = np.asarray(support_y)
    shapes = f"support_X {support.shape}, support_y {labels.shape}, query_X {query.shape}"
    if support.ndim != 3 or support.shape[:2] != labels.shape or query.shape != (len(support), support.shape[2]):
        raise InputError(f"{shapes}: expected (n, n_support, n_features), (n, n_support) and (n, n_features)")
    if n_features is not None and support.shape[2] != n_features:
        raise InputError(f"items have {support.shape[2]} features; the classifier was trained on {n_features}")
    if not (np.isfinite(support).all() and np.isfinite(query).all()):
        raise InputError("a feature is not finite; fill or drop it")
    is_code = labels.dtype.kind in "iu"
    outside = (labels < 0) | (labels >= (n_answers or np.inf)) if is_code else np.ones(labels.shape, dtype=bool)
    if outside.any():
        raise InputError(f"support_y holds {labels[outside][0]!s}; expected codes of answers, whole numbers from 0")
    return support, labels.astype(np.int64), query
