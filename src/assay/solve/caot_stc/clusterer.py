"""The estimator: short texts, or their embeddings, into clusters."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data

from assay._core.errors import InputError
from assay._core.extras import need
from assay.solve.caot_stc.measures import SILHOUETTE_TEXTS, estimated_clusters
from assay.solve.caot_stc.texts import checked_texts, without_some_words
from assay.solve.caot_stc.transport import Array, consistency_aware_ot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.solve.caot_stc.measures import Look
    from assay.solve.caot_stc.training import Trained

    Labels = NDArray[np.intp]

#: A cluster with more than this share of the texts, while k-means' largest has less than half of it, is a collapse.
COLLAPSED = 0.5

#: Sizes that start the next batch stay above this: a cluster that a batch missed may come back.
SMALLEST_SIZE = 1e-6


class ShortTextClusterer(ClusterMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is not typed
    """Cluster short texts by a classifier that learns from pseudo-labels found by optimal transport.

    k-means on the embeddings starts a small classifier. From then on every batch solves a transport problem that weighs
    what the classifier says (look up), what similar texts of the batch get (look around) and how large clusters are;
    its answers are the labels of the next step.

    Parameters
    ----------
    n_clusters : int or "auto", default 8
        1 is allowed and trivial, as in k-means.
        "auto": where the silhouette of k-means is largest, see :func:`~assay.solve.caot_stc.estimated_clusters`.
    encoder : object, optional
        What turns texts into vectors: a callable, or an object with ``encode(texts)``, such as
        ``assay.models.demo_encoder()`` or a SentenceTransformer. Not needed for embeddings.
    freeze_encoder : bool, default True
        False trains the encoder along: it must be an :class:`assay.models.Encoder`. A copy is trained, see `encoder_`.
    augment : "dropout" or "word-dropout", default "dropout"
        How the two views of a text differ: a tenth of the values of its embedding set to zero, drawn at every step; or
        a tenth of its words left out, drawn once (texts only; the encoder then reads every text three times).
    lam_entropy, lam_size, lam_sem, alpha : float
        See :func:`~assay.solve.caot_stc.consistency_aware_ot`. A smaller `lam_size` lets sizes differ more;
        one that is too small lets a cluster swallow others.
    batch_size : int, default 200
    max_iter : int, default 600
        Training steps; it ends sooner when the labels settle.
    pre_steps : int, default 0
        Steps of contrastive training alone, before k-means. They matter where the encoder is trained.
    warm_steps : int, default 80
        Steps on the labels of k-means.
    learning_rate, encoder_learning_rate : float
    contrast_weight : float, default 5.0
    device : str, default "cpu"
        Any torch device.
    random_state : int, RandomState or None

    Attributes
    ----------
    labels_ : (n,) int
        The classifier's clusters, from 0.
    kmeans_labels_ : (n,) int
        The clusters of k-means that it started from. Cluster j of the one is cluster j of the other.
    kmeans_agreement_ : float
        Share of texts on which both agree.
    cluster_sizes_ : (n_clusters,) int
        Texts in each cluster.
    n_clusters_ : int
    history_ : tuple of Look
        Every 50 steps: the share of labels that changed, agreement with k-means, the largest cluster.
    ended_ : str
        "settled", "diverged" (more than 80 % of the labels changed at once) or "max_iter".
    n_iter_ : int
        Training steps at the last look.
    encoder_ : object
        The encoder, trained unless `freeze_encoder`; None after a fit on embeddings.
    n_features_in_ : int

    Notes
    -----
    The transport, losses and schedule are those of POTA (arXiv:2501.15194), the predecessor of the ICML 2026 paper by
    the same authors. Learning on embeddings that stay as they are is our reading: they are centred and brought to mean
    square one, since the heads expect values of that size.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> embeddings = np.repeat(np.eye(3, 8), 40, axis=0) + 0.1 * rng.standard_normal((120, 8))
    >>> clusterer = ShortTextClusterer(3, batch_size=60, max_iter=100, random_state=0).fit(embeddings)
    >>> clusterer.cluster_sizes_.tolist()
    [40, 40, 40]
    """

    def __init__(
        self,
        n_clusters: int | Literal["auto"] = 8,
        *,
        encoder: Any = None,
        freeze_encoder: bool = True,
        augment: Literal["dropout", "word-dropout"] = "dropout",
        lam_entropy: float = 1.0,
        lam_size: float = 100.0,
        lam_sem: float = 25.0,
        alpha: float = 10.0,
        batch_size: int = 200,
        max_iter: int = 600,
        pre_steps: int = 0,
        warm_steps: int = 80,
        learning_rate: float = 5e-4,
        encoder_learning_rate: float = 5e-6,
        contrast_weight: float = 5.0,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.encoder = encoder
        self.freeze_encoder = freeze_encoder
        self.augment = augment
        self.lam_entropy = lam_entropy
        self.lam_size = lam_size
        self.lam_sem = lam_sem
        self.alpha = alpha
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.pre_steps = pre_steps
        self.warm_steps = warm_steps
        self.learning_rate = learning_rate
        self.encoder_learning_rate = encoder_learning_rate
        self.contrast_weight = contrast_weight
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: None = None, *, views: tuple[Any, Any] | None = None) -> Self:  # noqa: N803
        """Find the clusters.

        Parameters
        ----------
        X : (n, n_features) array-like or sequence of n str
            Embeddings, or texts for the encoder.
        y : None
            Ignored.
        views : pair of (n, n_features) array-like or of sequences of n str, optional
            Two altered versions of each text, in place of `augment`.

        Raises
        ------
        InputError
            `X` is no table of finite numbers and no list of texts, there are fewer texts than clusters, or a parameter
            is out of range.
        """
        need("torch", extra="lm", purpose="ShortTextClusterer")
        self._check_parameters()
        random = check_random_state(self.random_state)
        seed = int(random.randint(2**31 - 1))
        texts = checked_texts(X, "X") if _is_texts(X) else None
        self.encoder_ = None if texts is None else self.encoder
        if texts is None:
            embeddings = self._checked(X, reset=True)
            if self.augment == "word-dropout" and views is None:
                raise InputError('augment="word-dropout" needs texts; with embeddings use "dropout", or give views')
            if not self.freeze_encoder:
                raise InputError("freeze_encoder=False needs texts and an encoder; embeddings cannot be trained")
        else:
            embeddings = self._checked(self._encoded(texts), reset=True)
            if views is None and self.augment == "word-dropout":
                rng = np.random.default_rng(seed)
                views = without_some_words(texts, rng), without_some_words(texts, rng)
        n = len(embeddings)
        self.n_clusters_ = estimated_clusters(embeddings, random_state=seed) if self.n_clusters == "auto" else int(
            self.n_clusters
        )  # fmt: skip
        if n < self.n_clusters_:
            raise InputError(f"n_samples={n} is less than n_clusters={self.n_clusters_}; give more texts, ask for less")
        if n < 2:
            raise InputError(f"n_samples={n}: expected at least two texts")
        if embeddings.shape[1] < 2:
            raise InputError(f"n_features={embeddings.shape[1]}: expected embeddings of at least two values")
        if n < self.batch_size:
            warnings.warn(
                f"{n} texts are fewer than batch_size={self.batch_size}: every batch holds all of them", stacklevel=2
            )
        self.center_ = embeddings.mean(axis=0)
        spread = float(np.sqrt(((embeddings - self.center_) ** 2).mean()))
        self.scale_ = spread if spread > 0 else 1.0
        trained = self._train(texts, embeddings, views, seed) if self.n_clusters_ > 1 else None
        self._keep(trained, n_features=embeddings.shape[1])
        final = embeddings if self.freeze_encoder or texts is None else self._checked(self._encoded(texts), reset=False)
        self.labels_ = self._probabilities(final).argmax(axis=1).astype(np.intp)
        self.kmeans_labels_ = np.zeros(n, np.intp) if trained is None else trained.kmeans_labels
        self.kmeans_agreement_ = float(np.mean(self.labels_ == self.kmeans_labels_))
        self.cluster_sizes_ = np.bincount(self.labels_, minlength=self.n_clusters_)
        self._warn_collapse()
        return self

    def predict(self, X: Any) -> Labels:  # noqa: N803
        """Cluster of each text or embedding, (n,) int."""
        return np.asarray(self.predict_proba(X).argmax(axis=1), dtype=np.intp)

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """Softmax outputs (n, n_clusters) for texts or embeddings."""
        check_is_fitted(self, "coefs_")
        if _is_texts(X):
            X = self._encoded(checked_texts(X, "X"))  # noqa: N806
        return self._probabilities(self._checked(X, reset=False))

    def score(self, X: Any, y: None = None) -> float:  # noqa: N803
        """Mean silhouette of the clusters of `X` (−1: one cluster only): a number for a grid search without labels.

        On at most 2,000 of the rows, the same for the same number of rows.
        """
        from sklearn.metrics import silhouette_score

        check_is_fitted(self, "coefs_")
        embeddings = self._checked(self._encoded(checked_texts(X, "X")) if _is_texts(X) else X, reset=False)
        labels = self._probabilities(embeddings).argmax(axis=1)
        if len(labels) > SILHOUETTE_TEXTS:
            rows = np.random.default_rng(0).choice(len(labels), SILHOUETTE_TEXTS, replace=False)
            embeddings, labels = embeddings[rows], labels[rows]
        if not 1 < len(np.unique(labels)) < len(labels):
            return -1.0
        return float(silhouette_score(embeddings, labels))

    def summary(self) -> str:
        """What came out, as lines for a person: sizes, agreement with k-means, how the labels settled."""
        check_is_fitted(self, "coefs_")
        sizes = self.cluster_sizes_
        lines = [
            f"{len(self.labels_):,} texts in {self.n_clusters_} clusters of {sizes.min():,} to {sizes.max():,} texts "
            f"(median {np.median(sizes):,.0f})",
            f"{self.kmeans_agreement_:.1%} of the texts are where k-means put them",
            f"training {self.ended_} after {self.n_iter_} steps",
        ]
        changes = [f"{look.changed:.1%}" for look in self.history_ if np.isfinite(look.changed)]
        if changes:
            lines.append(f"labels changed per 50 steps: {', '.join(changes[-6:])}")
        return "\n".join(lines)

    def _train(self, texts: list[str] | None, embeddings: Array, views: Any, seed: int) -> Trained:
        import torch
        from sklearn.cluster import KMeans

        from assay.solve.caot_stc.training import Schedule, Stored, train

        def tensor(values: Any) -> torch.Tensor:
            return torch.tensor((values - self.center_) / self.scale_, dtype=torch.float32, device=self.device)

        def cluster(features: Array) -> Labels:
            return np.asarray(
                KMeans(self.n_clusters_, n_init=4, random_state=seed).fit_predict(features), dtype=np.intp
            )

        if views is not None and any(len(view) != len(embeddings) for view in views):
            raise InputError(f"views have {[len(view) for view in views]} rows; expected {len(embeddings)}, as X")
        if not self.freeze_encoder and texts is not None:
            from assay.solve.caot_stc.tuning import Tuned

            altered = (texts, texts) if views is None else views
            if not all(_is_texts(view) for view in altered):
                raise InputError("views: expected texts, since the encoder is trained (freeze_encoder=False)")
            tuned = Tuned(self.encoder, texts, altered, self.center_, self.scale_, self.device)
            self.encoder_ = tuned.encoder
            source: Stored | Tuned = tuned
        elif views is None:
            source = Stored(tensor(embeddings))
        else:
            first, second = (
                tensor(self._checked(self._encoded(list(view)) if _is_texts(view) else view, reset=False))
                for view in views
            )
            source = Stored(tensor(embeddings), (first, second))
        schedule = Schedule(
            n_clusters=self.n_clusters_,
            batch_size=min(self.batch_size, len(embeddings)),
            max_iter=self.max_iter,
            pre_steps=self.pre_steps,
            warm_steps=self.warm_steps,
            learning_rate=self.learning_rate,
            encoder_learning_rate=self.encoder_learning_rate,
            contrast_weight=self.contrast_weight,
        )
        return train(source, schedule, cluster, self._assign, seed=seed)

    def _assign(self, predictions: Array, similarity: Array, sizes: Array) -> tuple[Labels, Array]:
        found = consistency_aware_ot(
            predictions,
            similarity if self.lam_sem else None,
            b=sizes,
            lam_entropy=self.lam_entropy,
            lam_size=self.lam_size,
            lam_sem=self.lam_sem,
            alpha=self.alpha,
        )
        kept = np.maximum(found.sizes, SMALLEST_SIZE)
        return found.labels, kept / kept.sum()

    def _keep(self, trained: Trained | None, n_features: int) -> None:
        if trained is None:  # one cluster: nothing to learn
            self.coefs_, self.intercepts_ = [np.zeros((n_features, 1))], [np.zeros(1)]
            self.history_: tuple[Look, ...] = ()
            self.ended_, self.n_iter_ = "settled", 1
            return
        heads = trained.heads
        layers: list[Any] = [heads.adapt[1], heads.adapt[4], heads.prob]
        self.coefs_ = [layer.weight.detach().cpu().numpy().T.astype(np.float64) for layer in layers]
        self.intercepts_ = [layer.bias.detach().cpu().numpy().astype(np.float64) for layer in layers]
        self.history_ = tuple(trained.looks)
        self.ended_ = trained.ended
        self.n_iter_ = trained.looks[-1].step if trained.looks else self.max_iter

    def _probabilities(self, embeddings: Array) -> Array:
        """The classifier without dropout, in float64, so that a row's answer does not depend on the others."""
        hidden = (embeddings - self.center_) / self.scale_
        for coef, intercept in zip(self.coefs_[:-1], self.intercepts_[:-1], strict=True):
            hidden = np.maximum(hidden @ coef + intercept, 0.0)
        logits = hidden @ self.coefs_[-1] + self.intercepts_[-1]
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True), dtype=np.float64)

    def _encoded(self, texts: Sequence[str]) -> Any:
        encoder = self.encoder if self.encoder_ is None else self.encoder_
        if encoder is None:
            raise InputError("texts need an encoder: encoder=assay.models.demo_encoder(), or give their embeddings")
        encode = encoder.encode if hasattr(encoder, "encode") else encoder
        vectors = np.asarray(encode(list(texts)))
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise InputError(
                f"the encoder gave an array of shape {vectors.shape} for {len(texts)} texts; expected rows"
            )
        return vectors

    def _checked(self, embeddings: Any, *, reset: bool) -> Array:
        try:
            return np.asarray(validate_data(self, embeddings, reset=reset, dtype=np.float64))
        except InputError:
            raise
        except ValueError as error:
            raise InputError(" ".join(str(error).split())) from None

    def _check_parameters(self) -> None:
        if self.n_clusters != "auto" and not (_is_whole(self.n_clusters) and int(self.n_clusters) >= 1):
            raise InputError(f'n_clusters is {self.n_clusters!r}; expected a whole number above 0, or "auto"')
        if self.augment not in ("dropout", "word-dropout"):
            raise InputError(f"augment is {self.augment!r}; expected 'dropout' or 'word-dropout'")
        for name, low in {"batch_size": 2, "max_iter": 1, "pre_steps": 0, "warm_steps": 0}.items():
            value = getattr(self, name)
            if not _is_whole(value) or value < low:
                raise InputError(f"{name} is {value!r}; expected a whole number from {low}")
        for name in ("lam_entropy", "lam_size", "alpha", "learning_rate", "encoder_learning_rate"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value > 0):
                raise InputError(f"{name} is {value!r}; expected a number above 0")
        for name in ("lam_sem", "contrast_weight"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0):
                raise InputError(f"{name} is {value!r}; expected a number from 0")

    def _warn_collapse(self) -> None:
        largest = self.cluster_sizes_.max() / len(self.labels_)
        of_kmeans = np.bincount(self.kmeans_labels_, minlength=self.n_clusters_).max() / len(self.labels_)
        sizes = ", ".join(map(str, sorted(self.cluster_sizes_.tolist(), reverse=True)[:8]))
        if self.n_clusters_ == 1:
            return
        if (self.cluster_sizes_ > 0).sum() == 1:
            warnings.warn(f"all texts are in one cluster (sizes {sizes}); use kmeans_labels_", stacklevel=3)
        elif largest > COLLAPSED and of_kmeans < COLLAPSED * largest:
            warnings.warn(
                f"one cluster took {largest:.0%} of the texts, k-means' largest has {of_kmeans:.0%} (sizes {sizes}); "
                "use kmeans_labels_ or a larger lam_size",
                stacklevel=3,
            )
        elif self.ended_ == "diverged":
            warnings.warn("more than 80 % of the labels changed within 50 steps; use kmeans_labels_", stacklevel=3)


def _is_texts(values: Any) -> bool:
    if isinstance(values, str):
        return True
    if hasattr(values, "dtype") and getattr(values, "ndim", 1) == 1 and len(values):
        return isinstance(values[0] if isinstance(values, np.ndarray) else next(iter(values)), str)
    return isinstance(values, list | tuple) and len(values) > 0 and isinstance(values[0], str)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
