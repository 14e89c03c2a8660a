"""`MPFMDetector`: the estimator around the numeric part."""

# ruff: noqa: N803, scikit-learn's name for data is X

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.metrics import roc_auc_score
from sklearn.utils.validation import check_is_fitted, validate_data

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.seeds import generator
from assay.audit.mpfm.calibration import Calibration, best_f1, calibrate, pooled
from assay.audit.mpfm.mining import novelty
from assay.audit.mpfm.split import n_windows, split_by_time, warn_few
from assay.audit.mpfm.windows import LogWindows

if TYPE_CHECKING:
    import os

    from numpy.typing import ArrayLike, NDArray

    from assay.audit.mpfm.explanation import Explanation
    from assay.audit.mpfm.training import Recipe, Rows

N_DRAWS, N_STEPS = 8, 10


class Input(NamedTuple):
    """What a user gave, as the network takes it."""

    table: NDArray[np.float32]
    ids: NDArray[np.int64]
    names: NDArray[np.str_]
    is_log: bool
    has_templates: bool = False


class MPFMDetector(BaseEstimator):  # type: ignore[misc]  # scikit-learn is not typed
    """Score windows of the logs of several systems by how badly their normal mechanism generates them.

    It learns from normal windows. A higher score is more anomalous.

    Parameters
    ----------
    n_shared, n_private : int, default 16 and 8
        Prototypes that all systems share, and that each has for itself.
    d : int, default 128
        Width of a window's embedding; a multiple of 8.
    sigma0 : float, default 0.5
        Spread of the source around a prototype.
    w : float, default 0.5
        Weight of the structural evidence in the score; 1: no flow, 0: flow only.
    contamination : float, default 0.01
        Share of a system's normal windows that may raise an alarm.
    mining : bool, default True
        Train on windows whose prototype drifts, and on windows made wrong on purpose.
    shared, private : bool, default True
        Without one or the other: what each is for.
    align : {None, "mmd"}, default None
        Force the systems' embeddings together: the control that shows what alignment costs.
    epochs : (int, int), default (10, 20)
        For prototypes alone, and for everything.
    batch_size : int, default 64
        Windows of all systems together. With millions of windows 256 is enough; logs of thousands of lines need the
        steps.
    learning_rate : float, default 3e-3
        The encoder takes half of it.
    random_state : int, Generator, RandomState or None, default 0
    device : str, default "cpu"
        Where torch works.

    Attributes
    ----------
    domains_ : list of str
        In the order in which they came.
    calibration_ : dict of domain to Calibration
    threshold_ : dict of domain to float
    decision_scores_ : (n_windows,) ndarray
        Scores of what `fit` was given.
    labels_ : (n_windows,) ndarray
        1 where such a score is above the threshold.
    history_ : list of dict
        Losses of every epoch, `std` of the embeddings (near zero: they have collapsed), `usage` of the shared
        prototypes, `hard_share`: share of hard windows.
    n_features_in_ : int

    References
    ----------
    "Cross Multi-Domain Prototype Flow Matching for Log Anomaly Detection", ICML 2026; reconstructed from its abstract.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> normal = rng.normal(size=(300, 4))
    >>> detector = MPFMDetector(d=16, epochs=(5, 5)).fit(normal)
    >>> near, far = detector.score_samples(np.array([[0.0, 0.0, 0.0, 0.0], [9.0, -9.0, 9.0, 9.0]]))
    >>> bool(far > near), detector.predict(np.array([[9.0, -9.0, 9.0, 9.0]])).tolist()
    (True, [1])
    """

    def __init__(
        self,
        n_shared: int = 16,
        n_private: int = 8,
        d: int = 128,
        *,
        sigma0: float = 0.5,
        w: float = 0.5,
        contamination: float = 0.01,
        mining: bool = True,
        shared: bool = True,
        private: bool = True,
        align: str | None = None,
        epochs: tuple[int, int] = (10, 20),
        batch_size: int = 64,
        learning_rate: float = 3e-3,
        random_state: Any = 0,
        device: str = "cpu",
    ) -> None:
        self.n_shared = n_shared
        self.n_private = n_private
        self.d = d
        self.sigma0 = sigma0
        self.w = w
        self.contamination = contamination
        self.mining = mining
        self.shared = shared
        self.private = private
        self.align = align
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state
        self.device = device

    # ------------------------------------------------------------------------------------------------ learning

    def fit(self, X: LogWindows | ArrayLike, y: ArrayLike | None = None, *, domain: ArrayLike | None = None) -> Self:
        """Learn from windows, in the order of time.

        Parameters
        ----------
        X : LogWindows, or (n, n_features) or (n, length, n_features) array
        y : (n,) array, optional
            1: a known anomaly, left out. Default: the labels that the windows carry. Give zeros to learn from all.
        domain : (n,) array of str, optional
            System of every window; LogWindows carry their own. Default for arrays: one system, "all".

        Raises
        ------
        InputError
            A parameter is wrong, a system has fewer than two normal windows, or lengths differ.
        """
        self._check_parameters()
        need("torch", extra="lm", purpose="MPFMDetector")
        from assay.audit.mpfm.flow import fixed_draws
        from assay.audit.mpfm.network import Size
        from assay.audit.mpfm.training import train

        given = self._door(X, domain, fitting=True)
        seed = int(generator(self.random_state).integers(2**31))
        normal = self._normal(X, y, given)
        self.domains_ = list(dict.fromkeys(given.names[normal].tolist()))
        fit_rows, held_rows = [], []
        for name in self.domains_:
            own = normal[given.names[normal] == name]
            warn_few(len(own), name)
            train_rows, held = split_by_time(own, X)
            fit_rows.append(train_rows)
            held_rows.append(held)
        places = np.concatenate(fit_rows)
        self.known_ = {"": _used(given, places)} if given.has_templates else {}
        rows = self._rows(given, places)
        length = given.ids.shape[1]
        size = Size(rows.table.shape[1], length, self.d, self.n_shared, self.n_private,
                    shared=self.shared, private=self.private)  # fmt: skip
        recipe = self._recipe()
        self.network_ = train(rows, size, len(self.domains_), recipe, seed, self.device)
        self.history_ = recipe.history
        width = self.d // 2 * (self.shared + self.private)
        self.draws_ = fixed_draws(N_DRAWS, width, seed)
        self.calibration_: dict[str, Calibration] = {}
        for name, held in zip(self.domains_, held_rows, strict=True):
            self._calibrate(name, self._evidence(given, held))
        self.landmarks_ = self._landmarks(X, given, places) if isinstance(X, LogWindows) else {}
        self.decision_scores_ = self._scores(given)
        self.labels_ = (self.decision_scores_ > self._thresholds(given.names)).astype(int)
        return self

    def add_domain(self, X: LogWindows | ArrayLike | None, name: str, *, learn: bool = True) -> Self:
        """Take in a new system; the scores of the others stay as they are, bit by bit.

        Parameters
        ----------
        X : LogWindows, array or None
            Mostly normal windows of the system. None: nothing is known of it. It then borrows private prototypes of
            all other systems and their pooled constants: its scores can be ranked, its alarms are many.
        name : str
        learn : bool, default True
            False: prototypes are borrowed as well, and only the constants (what is usual, threshold) come from X.
            For judging a log by itself: the median and its spread stand as long as under half of it is anomalous.

        Raises
        ------
        InputError
            The system is known already.
        """
        check_is_fitted(self)
        from assay.audit.mpfm.training import initial_private, train_domain

        if name in self.domains_:
            raise InputError(f"domain {name!r} is known already; choose another name")
        if X is None or not learn:
            self.network_.grow()
            self.network_.eval().requires_grad_(False)
            self.domains_.append(name)
            if X is None:
                if self.known_:
                    self.known_[name] = np.empty((0, self.n_features_in_), np.float32)
                others = list(self.calibration_.values())
                self.calibration_[name] = pooled(others, self.w)
                return self
            given = self._door(X, np.full(n_windows(X), name), fitting=False)
            if given.has_templates:
                self.known_[name] = _used(given, np.arange(len(given.ids)))
            self._calibrate(name, self._evidence(given, np.arange(len(given.ids))), borrowed=True)
            return self
        given = self._door(X, np.full(n_windows(X), name), fitting=False, known=False)
        normal = self._normal(X, None, given)
        warn_few(len(normal), name)
        train_rows, held = split_by_time(normal, X)
        self.domains_.append(name)
        if given.has_templates:
            self.known_[name] = _used(given, train_rows)
        rows = self._rows(given, train_rows, name)
        seed = int(generator(self.random_state).integers(2**31))
        self.network_.grow(initial_private(self.network_, rows, seed, self.device))
        train_domain(self.network_, rows, self._recipe(), seed, self.device)
        self._calibrate(name, self._evidence(given, held))
        if isinstance(X, LogWindows):
            self.landmarks_ = self.landmarks_ | self._landmarks(X, given, train_rows, private_only=True)
        return self

    def tune(self, X: LogWindows | ArrayLike, y: ArrayLike, *, domain: ArrayLike | None = None) -> Self:
        """Choose weight and threshold of each system by F1 on a few labelled windows.

        Raises
        ------
        InputError
            Labels are not 0 and 1, or a system has only one of them.
        """
        check_is_fitted(self)
        given, labels = self._door(X, domain, fitting=False), np.asarray(y)
        if len(labels) != len(given.ids) or not np.isin(labels, (0, 1)).all():
            raise InputError(f"y has {len(labels)} values for {len(given.ids)} windows; expected a 0 or 1 for each")
        for name in dict.fromkeys(given.names.tolist()):
            own = np.flatnonzero(given.names == name)
            if len(np.unique(labels[own])) < 2:
                raise InputError(
                    f"domain {name!r}: tuning needs normal and anomalous windows; all are {labels[own][0]}"
                )
            evidence = self._evidence(given, own)
            choices = []
            for weight in np.linspace(0, 1, 5):
                tried = replace(self.calibration_[name], weight=float(weight))
                f1, at = best_f1(tried.score(evidence), labels[own])
                choices.append((f1, -abs(weight - self.w), replace(tried, threshold=at)))
            self.calibration_[name] = max(choices, key=lambda choice: choice[:2])[2]
        return self

    # ------------------------------------------------------------------------------------------------- scoring

    def score_samples(self, X: LogWindows | ArrayLike, domain: ArrayLike | None = None) -> NDArray[np.float64]:
        """(n,) scores; higher is more anomalous, zero is usual for the system, one a robust standard deviation more.

        Raises
        ------
        InputError
            A system was not fitted.
        """
        check_is_fitted(self)
        return self._scores(self._door(X, domain, fitting=False))

    def evidence(self, X: LogWindows | ArrayLike, domain: ArrayLike | None = None) -> NDArray[np.float64]:
        """(n, 3) what the score is made of, before it is standardised: S_str, S_vel, S_ode."""
        check_is_fitted(self)
        given = self._door(X, domain, fitting=False)
        return self._evidence(given, np.arange(len(given.ids)))

    def decision_function(self, X: LogWindows | ArrayLike, domain: ArrayLike | None = None) -> NDArray[np.float64]:
        """(n,) scores less the threshold of the system: above zero is an alarm."""
        check_is_fitted(self)
        given = self._door(X, domain, fitting=False)
        return self._scores(given) - self._thresholds(given.names)

    def predict(self, X: LogWindows | ArrayLike, domain: ArrayLike | None = None) -> NDArray[np.int64]:
        """(n,) 1 for an anomaly, 0 for a normal window."""
        return (self.decision_function(X, domain) > 0).astype(np.int64)

    def p_values(self, X: LogWindows | ArrayLike, domain: ArrayLike | None = None) -> NDArray[np.float64]:
        """(n,) split-conformal p-values: small where few calibration windows scored as high."""
        check_is_fitted(self)
        given = self._door(X, domain, fitting=False)
        scores, found = self._scores(given), np.empty(len(given.ids))
        for name in dict.fromkeys(given.names.tolist()):
            own = given.names == name
            found[own] = self.calibration_[name].p_value(scores[own])
        return found

    def score(self, X: LogWindows | ArrayLike, y: ArrayLike | None = None) -> float:
        """AUROC of the scores against labels (1, or any value but zero: anomaly), for searches over parameters.

        Without labels: minus the mean score. Where all labels are alike: 0.5.
        """
        scores = self.score_samples(X)
        labels = y if y is not None or not isinstance(X, LogWindows) else X.y
        if labels is None:
            return -float(scores.mean())
        anomalous = np.asarray(labels) != 0
        return float(roc_auc_score(anomalous, scores)) if 0 < anomalous.sum() < len(scores) else 0.5

    def explain(self, windows: LogWindows, i: int) -> Explanation:
        """Say why window `i` has its score: offending lines, nearest prototypes, path of the flow."""
        check_is_fitted(self)
        from assay.audit.mpfm.explanation import explain

        return explain(self, windows, i)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``model.safetensors`` and ``model.json`` into a folder, which is made where it does not exist."""
        check_is_fitted(self)
        from assay.audit.mpfm.storage import save

        save(self, folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> MPFMDetector:
        """Read what :meth:`save` wrote."""
        from assay.audit.mpfm.storage import load

        return load(folder)

    # ------------------------------------------------------------------------------------------------- inside

    def _check_parameters(self) -> None:
        if self.d < 8 or self.d % 8:
            raise InputError(f"d={self.d}: expected a multiple of 8")
        if not (self.shared or self.private):
            raise InputError("shared=False, private=False: there would be no prototypes; leave one True")
        if self.align not in (None, "mmd"):
            raise InputError(f"align={self.align!r}: expected None or 'mmd'")
        for name, low, high in (("w", 0, 1), ("contamination", 0, 0.5)):
            if not low <= getattr(self, name) <= high:
                raise InputError(f"{name}={getattr(self, name)}: expected a number from {low} to {high}")
        if min(self.n_shared, self.n_private, self.batch_size) < 1 or min(self.epochs) < 0 or self.sigma0 <= 0:
            raise InputError("n_shared, n_private and batch_size start at 1, epochs at 0, and sigma0 is above 0")

    def _recipe(self) -> Recipe:
        from assay.audit.mpfm.training import Recipe

        return Recipe(
            (self.epochs[0], self.epochs[1]), self.batch_size, self.learning_rate, self.sigma0, self.mining, self.align
        )

    def _door(self, X: LogWindows | ArrayLike, domain: ArrayLike | None, *, fitting: bool, known: bool = True) -> Input:
        """Check what a user gave, once."""
        given = self._log(X, domain, fitting) if isinstance(X, LogWindows) else self._array(X, domain, fitting)
        if len(given.names) != len(given.ids):
            raise InputError(f"domain has {len(given.names)} names for {len(given.ids)} windows; give one for each")
        if not fitting and known:
            unknown = [name for name in dict.fromkeys(given.names.tolist()) if name not in self.domains_]
            if unknown:
                raise InputError(
                    f"domain {unknown[0]!r} was not fitted (known: {', '.join(self.domains_)}); "
                    f"take it in with add_domain(windows, {unknown[0]!r}) first"
                )
        return given

    def _log(self, X: LogWindows, domain: ArrayLike | None, fitting: bool) -> Input:
        if not len(X):
            raise InputError("there are no windows; give at least one")
        empty = ~X.mask.any(axis=1)
        if empty.any():
            raise InputError(f"window {int(empty.argmax())} has no lines; leave empty windows out")
        n_features, length = X.vectors.shape[1], X.shape[1]
        if fitting:
            self.n_features_in_ = n_features
        elif (n_features, length) != (self.n_features_in_, self.network_.size.length):
            raise InputError(f"windows of {length} lines with {n_features} features; the model was fitted on windows "
                             f"of {self.network_.size.length} lines with {self.n_features_in_}")  # fmt: skip
        names = X.domain if domain is None else np.asarray(domain, np.str_)
        table = (X.vectors * np.sqrt(n_features)).astype(np.float32)  # coordinates of a unit vector are about one then
        return Input(table, X.ids.astype(np.int64), names, is_log=True, has_templates=True)

    def _array(self, X: ArrayLike, domain: ArrayLike | None, fitting: bool) -> Input:
        options: dict[str, Any] = {"dtype": np.float64, "allow_nd": True, "ensure_min_samples": 2 if fitting else 1}
        values: NDArray[np.float64] = validate_data(self, X, reset=fitting, **options)
        if values.ndim > 3:
            raise InputError(
                f"X has {values.ndim} dimensions; expected windows × features or windows × lines × features"
            )
        flat = values.reshape(-1, values.shape[-1])
        if fitting:
            self.center_, self.spread_ = flat.mean(axis=0), flat.std(axis=0)
            self.spread_[self.spread_ <= 1e-9 * np.abs(self.center_)] = 1.0
            self.spread_[self.spread_ == 0] = 1.0
        table = ((flat - self.center_) / self.spread_).clip(-1e4, 1e4).astype(np.float32)
        if domain is None and not fitting and len(self.domains_) > 1:
            raise InputError(f"domain is missing; name the system of every window ({', '.join(self.domains_)})")
        default = "all" if fitting else self.domains_[0]
        names = np.full(len(values), default) if domain is None else np.asarray(domain, np.str_)
        return Input(table, np.arange(len(table)).reshape(len(values), -1), names, is_log=values.ndim == 3)

    def _normal(self, X: LogWindows | ArrayLike, y: ArrayLike | None, given: Input) -> NDArray[np.int64]:
        """Places of the windows that are not known anomalies."""
        carried = X.y if isinstance(X, LogWindows) else None
        labels = carried if y is None else np.asarray(y)
        if labels is None:
            return np.arange(len(given.ids))
        if len(labels) != len(given.ids):
            raise InputError(f"y has {len(labels)} values for {len(given.ids)} windows; give one for each")
        known = labels == 1
        if y is None and known.mean() > 0.05:
            warnings.warn(
                f"{known.mean():.0%} of the training windows carry the label of an anomaly and were left out",
                stacklevel=3,
            )
        names = given.names
        for name in dict.fromkeys(names.tolist()):
            if known[names == name].all():
                raise InputError(f"domain {name!r} has no normal window: all {int((names == name).sum())} are labelled "
                                 "as anomalies")  # fmt: skip
        return np.flatnonzero(~known)

    def _table(self, given: Input, name: str = "") -> NDArray[np.float32]:
        """Rows as the network takes them; templates with their novelty, to all systems of `fit` and to one added."""
        if not given.has_templates:
            return given.table
        if name in self.known_ and not len(self.known_[name]):  # of this system nothing is known: nothing is new to it
            return np.concatenate([given.table, np.zeros((len(given.table), 1), np.float32)], axis=1)
        known = [self.known_[one] for one in dict.fromkeys(("", name)) if one in self.known_]
        return novelty(given.table, np.concatenate(known))

    def _rows(self, given: Input, places: NDArray[np.int64], name: str = "") -> Rows:
        from assay.audit.mpfm.training import Rows

        numbers = {name: k for k, name in enumerate(self.domains_)}
        domain = np.array([numbers[name] for name in given.names[places].tolist()])
        ids = given.ids[places]
        if given.is_log:
            return Rows(self._table(given, name), ids, domain, is_log=True, has_novelty=given.has_templates)
        return Rows(given.table[ids[:, 0]], np.arange(len(ids))[:, None], domain, is_log=False)

    def _evidence(self, given: Input, places: NDArray[np.int64]) -> NDArray[np.float64]:
        from assay.audit.mpfm.scoring import evidence

        found = np.empty((len(places), 3))
        for name in dict.fromkeys(given.names[places].tolist()):
            own = given.names[places] == name
            found[own] = evidence(
                self.network_,
                self.draws_,
                self._table(given, name),
                given.ids[places[own]],
                np.full(int(own.sum()), self.domains_.index(name)),
                sigma0=self.sigma0,
                n_steps=N_STEPS,
                is_log=given.is_log,
                device=self.device,
            )
        return found

    def _calibrate(self, name: str, evidence: NDArray[np.float64], *, borrowed: bool = False) -> None:
        self.calibration_[name] = calibrate(
            evidence, weight=self.w, alpha=self.contamination, what=f"domain {name!r}", borrowed=borrowed
        )

    def _scores(self, given: Input) -> NDArray[np.float64]:
        evidence, scores = self._evidence(given, np.arange(len(given.ids))), np.empty(len(given.ids))
        for name in dict.fromkeys(given.names.tolist()):
            own = given.names == name
            scores[own] = self.calibration_[name].score(evidence[own])
        return scores

    def _thresholds(self, names: NDArray[np.str_]) -> NDArray[np.float64]:
        return np.array([self.calibration_[name].threshold for name in names.tolist()])

    @property
    def threshold_(self) -> dict[str, float]:
        """Threshold of every system."""
        return {name: one.threshold for name, one in self.calibration_.items()}

    def _landmarks(
        self, X: LogWindows, given: Input, places: NDArray[np.int64], *, private_only: bool = False
    ) -> dict[str, list[str]]:
        from assay.audit.mpfm.explanation import landmarks

        rows = self._rows(given, places, self.domains_[-1] if private_only else "")
        return landmarks(self.network_, rows, self.domains_, X.templates, self.device,
                         private_only=private_only)  # fmt: skip


def _used(given: Input, places: NDArray[np.int64]) -> NDArray[np.float32]:
    """Embeddings of the templates of some windows."""
    ids = given.ids[places]
    return given.table[np.unique(ids[ids >= 0])]
