"""`ZeroShotDetector` and `TfidfDetector`: what people use otherwise, behind the same interface."""

# ruff: noqa: N803, scikit-learn's names for data are X and y

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.utils import ClassifierTags
from sklearn.utils.validation import check_is_fitted

from assay._core.errors import InputError
from assay.audit.style_detect.detector import Detector, Documents
from assay.audit.style_detect.door import binary, check_texts, digests, warn_of_copies
from assay.audit.style_detect.zero_shot import SCORES, text_statistics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike


class ZeroShotDetector(Detector):
    """What a causal language model makes of a text, without any example.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The scoring model (Binoculars: the performer); ``assay.models.demo_lm()`` gives one.
    tokenizer : transformers.PreTrainedTokenizerBase
    statistic : {"fast-detect-gpt", "log-rank", "lrr", "log-likelihood", "binoculars"}
    reference : transformers.PreTrainedModel, optional
        Of the same tokenizer: whose samples Fast-DetectGPT expects; the observer of Binoculars. None: the model itself.
    random_state : int, Generator, RandomState or None
        Which texts make a group in a calibration.

    Examples
    --------
    >>> from assay.models import demo_lm  # doctest: +SKIP
    >>> detector = ZeroShotDetector(*demo_lm()).fit()  # doctest: +SKIP
    >>> detector.score_samples(["The quick brown fox jumps over the lazy dog."])  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        statistic: str = "fast-detect-gpt",
        *,
        reference: Any = None,
        random_state: Any = 0,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.statistic = statistic
        self.reference = reference
        self.random_state = random_state

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Nothing is learned; the settings are checked."""
        if self.statistic not in SCORES:
            raise InputError(f"statistic={self.statistic!r}: expected one of {', '.join(SCORES)}")
        self.is_fitted_ = True
        self.__dict__.pop("thresholds_", None)
        return self

    def _documents(self, X: Any, domains: ArrayLike | None) -> Documents:
        check_is_fitted(self)
        texts, there = check_texts(X, "texts")
        score, max_length = SCORES[self.statistic]
        rows = np.flatnonzero(there)
        found = text_statistics(
            self.model, self.tokenizer, [texts[row] for row in rows], reference=self.reference, max_length=max_length
        )
        scores = np.full(len(texts), np.nan)
        scores[rows] = [np.nan if tokens is None else score(tokens) for tokens in found]
        return Documents(scores, there & ~np.isnan(scores), None)

    def _named(self) -> str:
        return f"zero-shot {self.statistic}"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.requires_fit = False
        return tags


class TfidfDetector(Detector):
    """Logistic regression on words, pairs of words and runs of letters: the classifier that everybody has.

    Parameters
    ----------
    C : float
        Inverse strength of the penalty.
    random_state : int, Generator, RandomState or None

    Examples
    --------
    >>> texts = ["it is what it is", "so be it then", "as an assistant I cannot", "as a model I cannot say"]
    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")  # short texts
    ...     detector = TfidfDetector().fit(texts, [0, 0, 1, 1])
    ...     human, machine = detector.score_samples(["it is so", "as a model"])
    >>> bool(machine > human)
    True
    """

    def __init__(self, C: float = 10.0, *, random_state: Any = 0) -> None:
        self.C = C
        self.random_state = random_state

    def fit(self, X: Sequence[str], y: ArrayLike) -> Self:
        """Learn from human (0) and machine (1) texts.

        Raises
        ------
        InputError
            Only one class is there.
        """
        texts, there = check_texts(X, "training texts")
        labels = binary(y, len(texts))[there]
        kept = [text for text, is_there in zip(texts, there, strict=True) if is_there]
        if len(np.unique(labels)) != 2:
            raise InputError("y has one class; TF-IDF with logistic regression learns from human and machine texts")
        self._classifier = make_pipeline(
            FeatureUnion(
                [
                    ("words", TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)),
                    ("letters", TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)),
                ]
            ),
            LogisticRegression(C=self.C, class_weight="balanced", max_iter=1000),
        ).fit(kept, labels)
        self._known = set(digests(kept))
        self.__dict__.pop("thresholds_", None)
        return self

    def _documents(self, X: Any, domains: ArrayLike | None) -> Documents:
        check_is_fitted(self, "_classifier")
        texts, there = check_texts(X, "texts")
        warn_of_copies(self._known, texts, "the training texts")
        rows = np.flatnonzero(there)
        scores = np.full(len(texts), np.nan)
        if len(rows):
            scores[rows] = self._classifier.decision_function([texts[row] for row in rows])
        return Documents(scores, there, None)

    def _named(self) -> str:
        return "TF-IDF with logistic regression"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.target_tags.required = True
        tags.classifier_tags = ClassifierTags(multi_class=False)
        return tags
