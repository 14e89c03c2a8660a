"""What the estimators share: labels, training, mapping, saving."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.files import replacing
from assay.nn.amips.labels import Ids, best_keys, best_keys_by_cluster, make_pool
from assay.nn.amips.vectors import Vectors, digest, unit_rows

if TYPE_CHECKING:
    import os

    from assay.nn.amips.networks import Learned

    Route = tuple[Vectors, Vectors]

#: Fewer queries than this share of the keys cannot cover them.
FEW_QUERIES = 0.1

#: A memory map of these is not copied; other numbers become float32.
NUMBERS = [np.float32, np.float64]

#: Name of our entry in the header of a file of weights, and the version of its form.
ENTRY, FORM = "assay.amips", 1

#: Settings that belong to a run, not to what was learned.
UNSAVED = ("random_state", "device", "verbose")


class Learner(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is not typed
    """What the three estimators share: labels, training, mapping, saving."""

    def fit(self, X: Any, y: Any = None, *, labels: Any = None) -> Self:  # noqa: N803
        """Learn where the best keys of these queries are.

        Parameters
        ----------
        X : (n_queries, n_features) array-like
            Queries as they will come. Rows are scaled to length one, with a warning. They and their noisy copies are
            held in memory, the keys are not: a memory map of keys stays one. Repeats of a query are held out together.
        y : (n_keys, n_features) array-like, optional
            The keys. None: the rows of `X` are keys and, with noise, queries too. (One-dimensional `y` is ignored, as
            by every scikit-learn transformer.)
        labels : (n_queries,) int array-like, optional
            Id of the best key of each query; noisy copies take that of their query. None: found by exact search.

        Raises
        ------
        InputError
            Queries or keys are no table of finite numbers, have rows of zeros or different widths, or a parameter is
            out of range.
        """
        need("torch", extra="search", purpose=type(self).__name__)
        from assay.nn.amips.training import Schedule, apply, train

        self._check_parameters()
        random = check_random_state(self.random_state)
        seed = int(random.randint(2**31 - 1))
        rng = np.random.default_rng(seed)
        checked = validate_data(self, X, dtype=NUMBERS, ensure_min_features=2, ensure_all_finite=False, reset=True)
        queries = unit_rows(checked, "queries")
        keys = queries
        if y is not None and (given_keys := y if isinstance(y, np.ndarray) else np.asarray(y)).ndim != 1:
            keys = unit_rows(given_keys, "keys", n_features=queries.shape[1])
        if len(queries) < FEW_QUERIES * len(keys):
            warnings.warn(
                f"{len(queries):,} queries for {len(keys):,} keys are fewer than a tenth: "
                "expect memorisation, not a map",
                stacklevel=2,
            )
        self.keys_: Vectors | None = keys
        self.keys_digest_ = digest(keys)
        self._members = self._divide(keys, seed)
        pool = make_pool(
            queries, noise=self.noise, test_size=self.test_size, official_split=self.official_split, rng=rng
        )
        given = None if labels is None else _checked_labels(labels, len(queries), len(keys), len(self._members))
        ids, _ = self._labelled(pool.queries) if given is None else (given[pool.source, None], None)
        network = self._built(queries.shape[1], len(keys), seed)
        schedule = Schedule(self.steps, min(self.batch_size, len(pool.queries)), self.learning_rate)
        trained, losses = train(network, pool.queries, ids, keys, schedule, seed=seed, verbose=self.verbose)
        self.network_, self.loss_curve_ = trained.eval(), losses
        self._count()
        self.match_rate_, self.relative_error_ = float("nan"), float("nan")
        self.held_out_ = np.unique(pool.held_out_source)
        if len(pool.held_out):
            best = self._best(pool.held_out) if given is None else given[pool.held_out_source]
            mapped = self._chosen(*apply(self.network_, pool.held_out))
            self.relative_error_ = relative_error(pool.held_out, mapped, keys[best])
            self.match_rate_ = matched(pool.held_out, mapped, keys)
        self.score_ = 1.0 - self.relative_error_
        return self

    def transform(self, X: Any) -> Vectors:  # noqa: N803
        """Map queries (n, n_features) to where their best keys are predicted, (n, n_features) float32.

        The result is not of length one: it is a direction to look in, and its inner products with keys are not scores
        of the query.
        """
        from assay.nn.amips.training import apply

        queries = self._queries(X)
        return self._chosen(*apply(self.network_, queries))

    def predict(self, X: Any, keys: Any = None) -> Ids:  # noqa: N803
        """Id (n,) of the key closest to each mapped query, by exact search.

        Parameters
        ----------
        X : (n, n_features) array-like
        keys : (n_keys, n_features) array-like, optional
            Needed after :meth:`load`: the keys are not part of the file. They must be those that were trained on.

        Raises
        ------
        InputError
            The keys are others, or were changed in place since the fit.
        """
        mapped = self.transform(X)
        return best_keys(mapped, self._known_keys(keys))[0]

    def score(self, X: Any, y: None = None) -> float:  # noqa: N803
        """1 − relative error on queries `X`: 1 is exact, 0 no better than leaving the queries as they are."""
        queries = self._queries(X)
        keys = self._known_keys(None)
        return 1.0 - relative_error(queries, self.transform(queries), keys[self._best(queries)])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights, and settings as JSON in their header, to one ``.safetensors`` file; keys are not in it."""
        from safetensors.torch import save_file

        check_is_fitted(self, "network_")
        settings = {name: value for name, value in self.get_params().items() if name not in UNSAVED}
        learned = {
            "n_features": int(self.n_features_in_),
            "width": int(self.width_),
            "n_keys": len(self.keys_) if self.keys_ is not None else self.n_keys_,
            "keys_digest": self.keys_digest_,
            "relative_error": _or_none(self.relative_error_),
            "match_rate": _or_none(self.match_rate_),
        }
        told = {"form": FORM, "kind": type(self).__name__, "settings": settings, "learned": learned}
        tensors = {name: value.detach().cpu().contiguous() for name, value in self.network_.state_dict().items()}
        with replacing(path) as temporary:
            save_file(tensors | self._more_tensors(), temporary, metadata={ENTRY: json.dumps(told, default=_plain)})

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, keys: Any = None) -> Self:
        """Read what :meth:`save` wrote.

        Parameters
        ----------
        path : path
        keys : (n_keys, n_features) array-like, optional
            The keys that were trained on, for ``predict`` and ``score``.

        Raises
        ------
        InputError
            The file is not one of this estimator, or the keys are others.
        """
        told, tensors = read_saved(path)
        if told["kind"] != cls.__name__:
            raise InputError(f"{path} holds a {told['kind']}; load it by {told['kind']}.load")
        settings, learned = told["settings"], told["learned"]
        wrong = InputError(f"{path}: the weights do not fit the settings in its header; save the model again")
        try:
            model = cls(
                **{name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
            )
            model._restore(learned, tensors)
        except (KeyError, TypeError, RuntimeError, AttributeError):
            raise wrong from None
        model._count()
        if keys is not None:
            model.keys_ = model._known_keys(keys)
        return model

    def _restore(self, learned: dict[str, Any], tensors: dict[str, Any]) -> None:
        """Fill the learned attributes; RuntimeError where the header tells of other sizes than the weights have."""
        self.n_features_in_, self.n_keys_ = learned["n_features"], learned["n_keys"]
        self.keys_, self.keys_digest_ = None, learned["keys_digest"]
        self.loss_curve_, self.held_out_ = [], np.empty(0, np.int64)
        for name in ("relative_error", "match_rate"):
            setattr(self, f"{name}_", float("nan") if learned[name] is None else learned[name])
        self.score_ = 1.0 - self.relative_error_
        self._members = self._divided(tensors)
        # Before memory is taken for a net of the header's sizes, they must be those of the weights in the file.
        width, n_outputs = learned["width"], self._n_outputs(self.n_features_in_, len(self._members))
        n_layers = sum(name.startswith("net.weights.") for name in tensors)
        first, last = tensors["net.from_input"].shape, tensors[f"net.weights.{n_layers - 1}"].shape
        if (first, last, n_layers) != ((width, self.n_features_in_), (n_outputs, width), self.depth):
            raise RuntimeError
        network = self._built(self.n_features_in_, self.n_keys_, seed=0, width=width)
        network.load_state_dict(tensors)
        self.network_ = network.eval()

    # ------------------------------------------------------------------------------------- what a subclass may change

    def _divide(self, keys: Vectors, seed: int) -> list[Ids]:
        """Ids of the keys in each cluster: one cluster with all."""
        return [np.arange(len(keys))]

    def _more_tensors(self) -> dict[str, Any]:
        """What is saved beside the weights."""
        return {}

    def _divided(self, tensors: dict[str, Any]) -> list[Ids]:
        """The clusters, from what was saved; takes its own entries out of `tensors`."""
        return [np.empty(0, np.int64)]

    def _network(self, net_options: dict[str, Any], n_features: int, n_clusters: int) -> Learned:
        raise NotImplementedError

    def _n_outputs(self, n_features: int, n_clusters: int) -> int:
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------- what they share

    def _built(self, n_features: int, n_keys: int, seed: int, width: int | None = None) -> Learned:
        import torch

        from assay.nn.amips.networks import width_for_budget

        n_clusters = len(self._members)
        n_outputs = self._n_outputs(n_features, n_clusters)
        inject = int(self.inject)
        self.width_ = width or self.width or width_for_budget(
            n_keys, n_features, n_outputs, fraction=self.fraction, depth=self.depth, inject=inject
        )  # fmt: skip
        options = {
            "n_features": n_features,
            "n_outputs": n_outputs,
            "width": self.width_,
            "depth": self.depth,
            "inject": inject,
            "generator": torch.Generator().manual_seed(seed),
        }
        return self._network(options, n_features, n_clusters).to(_device(self.device))

    def _count(self) -> None:
        self.n_parameters_ = sum(parameter.numel() for parameter in self.network_.parameters())

    def _labelled(self, queries: Vectors) -> tuple[Ids, Vectors]:
        keys = self._held_keys()
        if len(self._members) > 1:
            return best_keys_by_cluster(queries, keys, self._members)
        ids, scores = best_keys(queries, keys)
        return ids[:, None], scores[:, None]

    def _best(self, queries: Vectors) -> Ids:
        return best_keys(queries, self._held_keys())[0]

    def _chosen(self, values: Vectors, keys: Vectors) -> Vectors:
        """Predicted key (n, n_features) of the cluster whose predicted score is largest."""
        mapped: Vectors = keys[np.arange(len(keys)), values.argmax(axis=1)]
        return mapped

    def _queries(self, X: Any) -> Vectors:  # noqa: N803
        check_is_fitted(self, "network_")
        checked = validate_data(self, X, dtype=NUMBERS, ensure_all_finite=False, reset=False)  # unit_rows names the row
        return unit_rows(checked, "queries")

    def _held_keys(self) -> Vectors:
        if self.keys_ is None:
            raise InputError("keys: a loaded model does not hold them; give the keys that were trained on")
        return self.keys_

    def _known_keys(self, keys: Any) -> Vectors:
        """The keys that were trained on; the model's own too may have been changed in place since."""
        known = self._held_keys() if keys is None else unit_rows(keys, "keys", n_features=self.n_features_in_)
        check_same_keys(self, known)
        return known

    def _check_parameters(self) -> None:
        whole = {"depth": (self.depth, 1), "steps": (self.steps, 0), "batch_size": (self.batch_size, 1)}
        for name, (value, least) in whole.items():
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
                raise InputError(f"{name} is {value!r}; expected a whole number from {least}")
        if not isinstance(self.inject, int | np.integer) or self.inject < 0:
            raise InputError(f"inject is {self.inject!r}; expected True, False or a whole number from 0")
        if self.width is not None and (not isinstance(self.width, int | np.integer) or self.width < 1):
            raise InputError(f"width is {self.width!r}; expected a whole number from 1, or None for the budget's")
        for name, number in {"fraction": self.fraction, "learning_rate": self.learning_rate}.items():
            if not number > 0:
                raise InputError(f"{name} is {number!r}; expected a number above zero")
        if not 0 <= self.test_size < 1:
            raise InputError(f"test_size is {self.test_size!r}; expected a share from 0 to below 1")
        try:
            copies, sd = self.noise
            is_fine = int(copies) == copies >= 0 and float(sd) >= 0
        except (TypeError, ValueError):
            is_fine = False
        if not is_fine:
            raise InputError(
                f"noise is {self.noise!r}; expected (copies of each query, sd of a coordinate): (10, 0.02)"
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # float32 comes out, whatever went in
        return tags


def relative_error(queries: Vectors, mapped: Vectors, targets: Vectors) -> float:
    """Mean of |mapped − target|² over the mean of |query − target|²: below 1, mapping helps."""
    left = float(np.square(queries - targets).sum(dtype=np.float64))
    return float(np.square(mapped - targets).sum(dtype=np.float64)) / left if left > 0 else float("nan")


def matched(queries: Vectors, mapped: Vectors, keys: Vectors) -> float:
    """Share of queries whose mapped query is closest to a best key (to one as good as the best, where keys repeat)."""
    found = best_keys(mapped, keys)[0]
    return float(np.mean(as_good(queries, keys, found[:, None], best_keys(queries, keys)[1])))


def as_good(queries: Vectors, keys: Vectors, found: Ids, best: Vectors) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of the found ids (n, k) score as the best key does, up to rounding; −1 (nothing found) does not."""
    hit = np.empty(found.shape, bool)
    for column in range(found.shape[1]):
        ids = found[:, column]
        hit[:, column] = (np.einsum("nd,nd->n", queries, keys[np.maximum(ids, 0)]) >= best - 1e-5) & (ids >= 0)
    return hit


def check_same_keys(model: Any, keys: Vectors) -> None:
    """Raise an InputError where keys are not those that the model was trained on."""
    if digest(keys) != model.keys_digest_:
        raise InputError(
            f"refit: keys differ from those trained on ({len(keys):,} keys given); a map knows its own keys alone"
        )


def check_rectifier(rectifier: Any) -> None:
    """Raise an InputError where a rectifier is none of the four."""
    known: tuple[Literal["softplus", "relu", "exp", "identity"], ...] = ("softplus", "relu", "exp", "identity")
    if rectifier not in known:
        raise InputError(f"rectifier is {rectifier!r}; expected one of {', '.join(known)}")


def read_saved(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and tensors of a saved model.

    Raises
    ------
    InputError
        The file is missing or was not written by ``save``.
    """
    need("torch", extra="search", purpose="reading a saved model")
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise InputError(f"{path}: no such file")
    try:
        with safe_open(path, "pt") as opened:
            told = json.loads((opened.metadata() or {})[ENTRY])
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # not a mapping
        if told["form"] != FORM:
            raise InputError(f"{path} has form {told['form']} of this file; this version reads form {FORM}")
        return {name: told[name] for name in ("kind", "settings", "learned")}, tensors
    except (SafetensorError, KeyError, TypeError, json.JSONDecodeError):
        raise InputError(
            f"{path} is not a model of amips; expected a file that save() or the fit command wrote"
        ) from None


def _device(name: str) -> str:
    import torch

    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def _checked_labels(labels: Any, n_queries: int, n_keys: int, n_clusters: int) -> Ids:
    found = np.asarray(labels)
    if n_clusters > 1:
        raise InputError("labels: a router needs the best key of every cluster, not one; leave labels out")
    if found.shape != (n_queries,) or found.dtype.kind not in "iu":
        raise InputError(f"labels have shape {found.shape}, {found.dtype}; expected {n_queries:,} whole numbers")
    wrong = np.flatnonzero((found < 0) | (found >= n_keys))
    if len(wrong):
        raise InputError(f"labels, row {wrong[0] + 1}: {found[wrong[0]]} is not an id from 0 to {n_keys - 1:,}")
    return found.astype(np.int64)


def _plain(value: Any) -> Any:
    """A numpy number as Python's own."""
    return value.item()


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
