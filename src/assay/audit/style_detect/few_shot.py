"""`StyleFewShotDetector`: likeness in style to a few known machine texts (the paper's detector)."""

# ruff: noqa: N803, scikit-learn's names for data are X and y

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.utils import ClassifierTags
from sklearn.utils.validation import check_is_fitted, validate_data

from assay._core.errors import InputError
from assay._core.seeds import generator
from assay.audit.style_detect.detector import Detector, Documents, same_length
from assay.audit.style_detect.door import binary, check_texts, digests, warn_of_copies
from assay.audit.style_detect.prototypes import (
    MODES,
    Mode,
    draw_supports,
    likeness,
    mean_pool,
    normalized,
    prototypes,
    strata,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]
    Ints = NDArray[np.int64]


class StyleFewShotDetector(Detector):
    """Likeness in style to a few known machine texts.

    Parameters
    ----------
    encoder : object with ``encode(texts)``, optional
        Such as ``assay.models.demo_encoder()``, a :class:`StylometricEncoder`, LUAR by
        :func:`load_style_encoder`. None: X are vectors already, or come from an earlier step of a pipeline.
    mode : {"single", "max", "instance", "domain", "domain-single"}, optional
        What a text is compared with. None: "max" where sources are given, else "single".
    n_support : int, optional
        Texts of every source that make a prototype. None: all, in one support.
    n_trials : int
        Random supports over which scores are averaged.
    group_by : {"scores", "vectors"}
        An account's score: the mean of its texts' scores, or the score of its texts' pooled vector.
    random_state : int, Generator, RandomState or None

    Attributes
    ----------
    mode_ : str
    thresholds_ : dict of group size to Threshold
        After `calibrate`.
    n_support_ : int

    References
    ----------
    Rivera Soto, Chen, Andrews: Attacks on Machine-Text Detectors Retain Stylistic Fingerprints. arXiv:2505.14608

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> human, machine = rng.normal([0, 1, 0], 0.5, (99, 3)), rng.normal([1, 0, 0], 0.5, (30, 3))
    >>> detector = StyleFewShotDetector(n_support=10, n_trials=20).fit(machine[:20])
    >>> detector.calibrate(human, target_fpr=0.05).predict(machine[20:]).mean() > 0.5
    np.True_
    """

    def __init__(
        self,
        encoder: Any = None,
        mode: Mode | None = None,
        n_support: int | None = 100,
        n_trials: int = 100,
        *,
        group_by: str = "scores",
        random_state: Any = 0,
    ) -> None:
        self.encoder = encoder
        self.mode = mode
        self.n_support = n_support
        self.n_trials = n_trials
        self.group_by = group_by
        self.random_state = random_state

    def fit(
        self, X: Any, y: ArrayLike | None = None, *, sources: ArrayLike | None = None, domains: ArrayLike | None = None
    ) -> Self:
        """Take machine texts as support; human texts are not needed.

        Parameters
        ----------
        X : sequence of n str, or (n, d) float
            Unmodified output of the machine: a support of disguised text is another, easier experiment.
        y : (n,) of 0 and 1, optional
            Where X holds human texts too: the support is what has a 1.
        sources, domains : (n,) optional
            Which model wrote a text, and its domain.

        Raises
        ------
        InputError
            There is no machine text, or a source has fewer than `n_support`.
        """
        if self.mode is not None and self.mode not in MODES:
            raise InputError(f"mode={self.mode!r}: expected one of {', '.join(MODES)}")
        if self.group_by not in ("scores", "vectors"):
            raise InputError(f"group_by={self.group_by!r}: expected 'scores' or 'vectors'")
        if self.n_trials < 1 or (self.n_support is not None and self.n_support < 1):
            raise InputError(f"n_support={self.n_support}, n_trials={self.n_trials}: expected 1 or more")
        parts, there, texts = self._parts(X, "support", reset=True)
        kept = there if y is None else there & (binary(y, len(there)) == 1)
        if not kept.any():
            raise InputError(f"the support has no machine text among {len(there)} texts; y=1 marks them")
        of_source = np.full(len(there), "") if sources is None else same_length(sources, len(there), "sources")
        of_domain = None if domains is None else same_length(domains, len(there), "domains")[kept]
        self.mode_: Mode = self.mode or ("single" if sources is None else "max")
        numbers, names = strata(self.mode_, of_source[kept], of_domain)
        smallest = int(np.bincount(numbers).min())
        self.n_support_ = smallest if self.n_support is None else self.n_support
        # Where all of a support is taken, every trial is the same.
        is_whole = len(names) * self.n_support_ == int(kept.sum())
        drawn = draw_supports(
            numbers, names, self.n_support_, 1 if is_whole else self.n_trials, generator(self.random_state)
        )
        self._targets, self._target_domains = prototypes(parts[kept], drawn, names, self.mode_, self._pool)
        self._known = {digest for digest, keep in zip(digests(texts), kept, strict=False) if keep}
        self.__dict__.pop("thresholds_", None)  # of an earlier fit
        return self

    def score_matrix(self, X: Any, domains: ArrayLike | None = None) -> NDArray[np.float32]:
        """Scores of texts under every support: (n_trials, n) float32, whose mean is :meth:`score_samples`."""
        documents = self._documents(X, domains)
        matrix = np.full((len(self._targets), len(documents.there)), np.nan, dtype=np.float32)
        rows = np.flatnonzero(documents.there)
        if len(rows):
            matrix[:, rows] = self._matrix(documents, rows[:, None])
        return matrix

    def _matrix(self, documents: Documents, rows: Ints) -> NDArray[np.float32]:
        own = None if documents.domains is None else documents.domains[rows[:, 0]]
        return likeness(self._pool(documents.values[rows]), self._targets, self._target_domains, own)

    def _score_rows(self, documents: Documents, rows: Ints) -> Array:
        if rows.shape[1] == 1 or self.group_by == "vectors":
            pooled: Array = self._matrix(documents, rows).mean(axis=0, dtype=np.float64)
            return pooled
        flat, back = np.unique(rows, return_inverse=True)
        single = self._matrix(documents, flat[:, None]).mean(axis=0, dtype=np.float64)
        scores: Array = single[back.reshape(rows.shape)].mean(axis=1)
        return scores

    def _documents(self, X: Any, domains: ArrayLike | None) -> Documents:
        check_is_fitted(self, "_targets")
        parts, there, texts = self._parts(X, "texts", reset=False)
        warn_of_copies(self._known, texts, "the support")
        own = None if domains is None else same_length(domains, len(there), "domains")
        return Documents(parts, there, own)

    def _pool(self, parts: NDArray[np.float32]) -> NDArray[np.float32]:
        pooled: NDArray[np.float32] = (self.encoder.pool if hasattr(self.encoder, "pool") else mean_pool)(parts)
        return pooled

    def _parts(self, X: Any, what: str, *, reset: bool) -> tuple[NDArray[np.float32], NDArray[np.bool_], list[str]]:
        """Parts of each text, which texts there are, and the texts (none where X are vectors)."""
        if self.encoder is None:
            vectors = normalized(validate_data(self, X, reset=reset, dtype=[np.float64, np.float32]))
            return vectors, np.ones(len(vectors), dtype=bool), []
        texts, there = check_texts(X, what)
        rows = np.flatnonzero(there)
        given = [texts[row] for row in rows]
        encode = self.encoder.parts if hasattr(self.encoder, "pool") else self.encoder.encode
        found = np.asarray(encode(given) if given else np.empty((0, 1)), dtype=np.float32)
        parts = np.full((len(texts), found.shape[1]), np.nan, dtype=np.float32)
        parts[rows] = found if hasattr(self.encoder, "pool") else normalized(found)
        return parts, there, texts

    def _named(self) -> str:
        return f"few-shot style ({self.mode_}, {self.n_support_} known machine texts a source)"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = self.encoder is not None
        tags.input_tags.two_d_array = self.encoder is None
        tags.classifier_tags = ClassifierTags(multi_class=False)  # two labels where there are any
        return tags
