"""The one interface of all detectors: score, calibrate on human text, and only then decide.

A score is not a probability of guilt. `predict` and `report` exist once `calibrate` has seen human text of the kind
that is to be judged, and every decision they make carries the error rate that this text promises.
"""

# ruff: noqa: N803, scikit-learn's names for data are X and y

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.metaestimators import available_if

from assay._core.errors import InputError
from assay._core.seeds import generator
from assay.audit.style_detect.conformal import Threshold, bootstrap_threshold, conformal_rank, conformal_threshold
from assay.audit.style_detect.door import binary
from assay.audit.style_detect.metrics import auroc, group_rows
from assay.audit.style_detect.report import DetectionReport

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]
    Ints = NDArray[np.int64]


class Documents(NamedTuple):
    """Documents as a detector takes them.

    Parameters
    ----------
    values : (n, d) or (n,) float
        Parts of vectors, or scores; NaN where there is no text.
    there : (n,) bool
    domains : (n,) str or None
    """

    values: NDArray[Any]
    there: NDArray[np.bool_]
    domains: NDArray[np.str_] | None


def _is_calibrated(detector: Any) -> bool:
    if getattr(detector, "thresholds_", None):
        return True
    # scikit-learn asks hasattr, so it is an AttributeError; it shows this sentence.
    raise AttributeError(
        f"{type(detector).__name__} decides only after calibrate(human_texts, target_fpr): without human text of the "
        "same kind a score has no error rate; score_samples needs none"
    )


class Detector(BaseEstimator):  # type: ignore[misc]  # scikit-learn is not typed
    """What all detectors share: scores of documents and accounts, thresholds, decisions."""

    random_state: Any

    def _documents(self, X: Any, domains: ArrayLike | None) -> Documents:
        raise NotImplementedError

    def _score_rows(self, documents: Documents, rows: Ints) -> Array:
        """Scores of groups of documents: rows (n_groups, n_docs) to (n_groups,)."""
        scores: Array = documents.values[rows].mean(axis=1)
        return scores

    def score_samples(self, X: Any, groups: ArrayLike | None = None, domains: ArrayLike | None = None) -> Array:
        """How machine-like texts, or accounts, are: higher is more so.

        Parameters
        ----------
        X : sequence of n str, or (n, d) float where the detector takes vectors
        groups : (n,) optional
            The account of each text: one score an account, in the order in which accounts appear.
        domains : (n,) optional
            For the modes that look at it.

        Returns
        -------
        (n,) or (n_accounts,) float
            NaN for an empty text, or an account of empty texts.
        """
        documents = self._documents(X, domains)
        n = len(documents.there)
        if groups is None:
            scores = np.full(n, np.nan)
            rows = np.flatnonzero(documents.there)
            if len(rows):
                scores[rows] = self._score_rows(documents, rows[:, None])
            return scores
        members = _members(groups, n, documents.there)
        return np.array([self._score_rows(documents, rows[None, :])[0] if len(rows) else np.nan for rows in members])

    def decision_function(self, X: Any) -> Array:
        """:meth:`score_samples` of texts, under the name that scikit-learn's scorers know."""
        return self.score_samples(X)

    def score(self, X: Any, y: ArrayLike) -> float:
        """Area under the ROC curve of labelled texts: what a grid search maximises."""
        scores = self.score_samples(X)
        return auroc(binary(y, len(scores)), scores)

    def calibrate(
        self,
        human_texts: Any,
        target_fpr: float = 0.01,
        group_size: int = 1,
        *,
        groups: ArrayLike | None = None,
        domains: ArrayLike | None = None,
    ) -> Self:
        """Put the threshold where few human texts, or accounts, lie above it.

        Parameters
        ----------
        human_texts : sequence of str, or (n, d) float
            By people, of the kind that is to be judged, and not what the detector was fitted on.
        target_fpr : float
            The share of them that may be flagged.
        group_size : int
            Documents a decision. Each size has a threshold of its own.
        groups : (n,) optional
            The human account of each text. Texts of one account resemble each other: a block of `group_size` texts is
            then taken from each account, and accounts are what is counted.
        domains : (n,) optional

        Returns
        -------
        self
            ``thresholds_[group_size]`` is new.

        Raises
        ------
        InputError
            There are too few human texts or accounts for this rate.

        Notes
        -----
        Where there are too few disjoint groups for a guarantee, and no accounts are given, groups are resampled; the
        threshold then says that it is an estimate.
        """
        documents = self._documents(human_texts, domains)
        if group_size < 1:
            raise InputError(f"group_size={group_size}: expected 1 or more")
        rng = generator(self.random_state)
        usable = np.flatnonzero(documents.there)
        if group_size == 1 and groups is None:
            scores = self._score_rows(documents, usable[:, None]) if len(usable) else np.empty(0)
            threshold = conformal_threshold(scores, target_fpr)
        elif groups is not None:
            own = same_length(groups, len(documents.there), "groups")[usable]
            blocks, _ = group_rows(own, group_size, rng)
            _, first = np.unique(own[blocks[:, 0]], return_index=True)
            scores = self._score_rows(documents, usable[blocks[first]]) if len(first) else np.empty(0)
            threshold = conformal_threshold(scores, target_fpr, group_size=group_size)
        else:
            threshold = self._calibrated_blocks(documents, usable, target_fpr, group_size, rng)
        self.thresholds_: dict[int, Threshold] = {**getattr(self, "thresholds_", {}), group_size: threshold}
        return self

    def _calibrated_blocks(
        self, documents: Documents, usable: Ints, target_fpr: float, group_size: int, rng: np.random.Generator
    ) -> Threshold:
        n_blocks = len(usable) // group_size
        try:
            conformal_rank(n_blocks, target_fpr)
        except InputError:
            return bootstrap_threshold(
                lambda rows: self._score_rows(documents, usable[rows]),
                len(usable),
                target_fpr,
                group_size=group_size,
                rng=rng,
            )
        rows = rng.permutation(usable)[: n_blocks * group_size].reshape(n_blocks, group_size)
        return conformal_threshold(self._score_rows(documents, rows), target_fpr, group_size=group_size)

    @available_if(_is_calibrated)  # type: ignore[untyped-decorator]  # scikit-learn is not typed
    def predict(self, X: Any, groups: ArrayLike | None = None, domains: ArrayLike | None = None) -> Ints:
        """1 where a text, or an account, lies above the calibrated threshold, else 0.

        :meth:`report` says the same with the error rate beside it.
        """
        flags: Ints = self.report(X, groups, domains).flagged.astype(np.int64)
        return flags

    @available_if(_is_calibrated)  # type: ignore[untyped-decorator]  # scikit-learn is not typed
    def report(
        self,
        X: Any,
        groups: ArrayLike | None = None,
        domains: ArrayLike | None = None,
        *,
        group_size: int | None = None,
    ) -> DetectionReport:
        """Decide on texts, or accounts, and say with which error rate.

        Parameters
        ----------
        X : sequence of str, or (n, d) float
        groups : (n,) optional
            The account of each text. `group_size` texts of an account, drawn at random, make its score; an account with
            fewer gets no decision.
        domains : (n,) optional
        group_size : int, optional
            Of the calibrated sizes; None: 1 for texts, the largest for accounts.

        Returns
        -------
        DetectionReport
        """
        size = (1 if groups is None else max(self.thresholds_)) if group_size is None else group_size
        if size not in self.thresholds_:
            sizes = ", ".join(map(str, sorted(self.thresholds_)))
            raise InputError(
                f"no threshold is calibrated for group_size={size}; there are {sizes}: give group_size and groups, or "
                "calibrate that size"
            )
        threshold = self.thresholds_[size]
        documents = self._documents(X, domains)
        n = len(documents.there)
        if groups is None:
            if size != 1:
                raise InputError(f"group_size={size}: a decision over several texts needs groups")
            names = [str(row) for row in range(n)]
            members = [np.array([row] if documents.there[row] else [], dtype=np.int64) for row in range(n)]
        else:
            own = same_length(groups, n, "groups")
            names = list(dict.fromkeys(own.tolist()))
            rng = generator(self.random_state)
            members = [rng.permutation(rows) for rows in _members(groups, n, documents.there)]
        enough = [len(rows) >= size for rows in members]
        scores = np.full(len(names), np.nan)
        if any(enough):
            rows = np.stack([row[:size] for row, is_enough in zip(members, enough, strict=True) if is_enough])
            scores[enough] = self._score_rows(documents, rows)
        return DetectionReport(
            detector=self._named(),
            what="text" if groups is None else "account",
            names=tuple(names),
            n_texts=tuple(len(rows) for rows in members),
            scores=scores,
            threshold=threshold,
        )

    def _named(self) -> str:
        return type(self).__name__

    def __sklearn_clone__(self) -> Self:
        """A copy that is not fitted; models and encoders are shared, not copied."""
        return type(self)(**self.get_params(deep=False))


def same_length(values: ArrayLike, n: int, what: str) -> NDArray[np.str_]:
    """One string for each text.

    Raises
    ------
    InputError
        There are more or fewer.
    """
    found = np.asarray(values, dtype=str)
    if found.shape != (n,):
        raise InputError(f"{what} has shape {found.shape} for {n} texts; expected one for each")
    return found


def _members(groups: ArrayLike, n: int, there: NDArray[np.bool_]) -> list[Ints]:
    """Rows of each account that hold a text, in the order in which accounts appear."""
    own = same_length(groups, n, "groups")
    rows: dict[str, list[int]] = {name: [] for name in own.tolist()}
    for row in np.flatnonzero(there):
        rows[str(own[row])].append(int(row))
    return [np.asarray(found, dtype=np.int64) for found in rows.values()]
