"""From texts to vectors of style: one that learns from plain counts, and those that come as a checkpoint.

Anything with ``encode(texts)`` that gives a row a text is an encoder: one of these, ``assay.models.demo_encoder()``, a
SentenceTransformer. One with ``parts(texts)`` and ``pool(parts)`` as well pools several documents in its own way.
"""

# ruff: noqa: N803, scikit-learn's names for data are X and y

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.decomposition import TruncatedSVD
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, CountVectorizer, TfidfVectorizer
from sklearn.utils.validation import check_is_fitted

from assay._core.errors import InputError
from assay._core.extras import need
from assay.audit.style_detect.door import check_texts
from assay.audit.style_detect.prototypes import normalized

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]

_WORD = r"(?u)\b\w+\b"  # words of one letter too
PUNCTUATION = ".,;:!?()[]\"'-–/"


class StylometricEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is not typed
    """Vectors of how a text is written, from counts alone: no model, no network.

    Function words (log-scaled frequencies), character trigrams (TF-IDF) and ratios of punctuation, case and lengths,
    each standardised on human background text, reduced by a truncated SVD, and where authors are given turned towards
    what tells them apart (linear discriminants). It is our stand-in for LUAR where no checkpoint is at hand.

    Parameters
    ----------
    n_components : int, default 128
        Length of a vector, at most; the background may have fewer directions.
    n_trigrams : int, default 3000
        Most frequent trigrams of the background that are counted.
    random_state : int, default 0

    Attributes
    ----------
    n_features : int
        Length of a vector.

    Examples
    --------
    >>> background = ["The cat, it sat.", "A dog ran; it did not stop.", "We know that they are here.", "Is it so? No!"]
    >>> vectors = StylometricEncoder(n_components=2).fit(background).encode(["The dog, it sat."])
    >>> vectors.shape, round(float(np.linalg.norm(vectors)), 6)
    ((1, 2), 1.0)
    """

    def __init__(self, n_components: int = 128, n_trigrams: int = 3000, random_state: int = 0) -> None:
        self.n_components = n_components
        self.n_trigrams = n_trigrams
        self.random_state = random_state

    def fit(self, X: Sequence[str], y: ArrayLike | None = None) -> Self:
        """Learn vocabulary, scale and directions from human background text.

        Parameters
        ----------
        X : sequence of str
            Human text that is not to be judged: what is judged must not shape the vectors.
        y : (n,) optional
            The author of each: vectors are turned towards what tells authors apart.
        """
        texts, there = check_texts(X, "background")
        texts = [text for text, is_there in zip(texts, there, strict=True) if is_there]
        if len(texts) < 3:
            raise InputError(f"background has {len(texts)} texts; expected at least 3, better hundreds")
        self._words = CountVectorizer(vocabulary=sorted(ENGLISH_STOP_WORDS), token_pattern=_WORD)
        self._trigrams = TfidfVectorizer(
            analyzer="char", ngram_range=(3, 3), max_features=self.n_trigrams, sublinear_tf=True
        ).fit(texts)
        raw = self._raw(texts)
        self._means = [block.mean(axis=0) for block in raw]
        self._scales = [np.where(block.std(axis=0) > 0, block.std(axis=0), 1) for block in raw]
        table = self._standardised(texts)
        n_components = min(self.n_components, *(side - 1 for side in table.shape))
        self._svd = TruncatedSVD(n_components, random_state=self.random_state).fit(table)
        self._lda = None
        if y is not None:
            authors = np.asarray(y, dtype=str)[there]
            # Shrinkage: there are rarely many more texts than directions.
            self._lda = LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto")
            self._lda.fit(self._svd.transform(table), authors)
        self.n_features = self.encode(texts[:1]).shape[1]
        return self

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one vector of length one for each text: (n, n_features) float32."""
        check_is_fitted(self, "_svd")
        values = self._svd.transform(self._standardised(texts))
        return normalized(values if self._lda is None else self._lda.transform(values))

    def transform(self, X: Sequence[str]) -> NDArray[np.float32]:
        """The same, under the name that pipelines know."""
        return self.encode(X)

    def _raw(self, texts: Sequence[str]) -> list[Array]:
        words = self._words.transform(texts).toarray().astype(np.float64)
        n_words = np.array([max(1, len(text.split())) for text in texts])
        words = np.log1p(1000 * words / n_words[:, None])
        return [words, self._trigrams.transform(texts).toarray(), np.array([ratios(text) for text in texts])]

    def _standardised(self, texts: Sequence[str]) -> Array:
        blocks = [
            (block - mean) / scale / np.sqrt(block.shape[1])  # a block counts as one, however many columns it has
            for block, mean, scale in zip(self._raw(texts), self._means, self._scales, strict=True)
        ]
        return np.concatenate(blocks, axis=1)


def ratios(text: str) -> list[float]:
    """Shares of punctuation marks, capitals, digits and spaces, and lengths of words and sentences."""
    words = re.findall(r"\w+", text)
    n, n_words = max(1, len(text)), max(1, len(words))
    sentences = [part for part in re.split(r"[.!?]+(?:\s|$)", text) if part.strip()]
    return [
        *(text.count(mark) / n for mark in PUNCTUATION),
        sum(letter.isupper() for letter in text) / n,
        sum(letter.isdigit() for letter in text) / n,
        sum(map(len, words)) / n_words,
        float(np.std([len(word) for word in words])) if words else 0.0,
        len({word.lower() for word in words}) / n_words,
        np.log1p(n_words / max(1, len(sentences))),
    ]


class MeanEncoder:
    """A transformer, the mean over its tokens, and length one.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    tokenizer : transformers.PreTrainedTokenizerBase
    max_length, batch_size : int
    """

    def __init__(self, model: Any, tokenizer: Any, max_length: int = 512, batch_size: int = 64) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.batch_size = batch_size

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one vector of length one for each text: (n, hidden_size) float32."""
        import torch

        found = np.empty((len(texts), self.model.config.hidden_size), dtype=np.float32)
        order = np.argsort([len(text) for text in texts], kind="stable")
        for start in range(0, len(texts), self.batch_size):
            rows = order[start : start + self.batch_size]
            inputs = self.tokenizer(
                [texts[row] for row in rows],
                padding=True,
                truncation=True,
                max_length=self.max_length,
                return_tensors="pt",
            ).to(self.model.device)
            with torch.inference_mode():
                hidden = self.model(**inputs).last_hidden_state.float()
            mask = inputs["attention_mask"].unsqueeze(-1)
            found[rows] = ((hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp_min(1)).cpu().numpy()
        return normalized(found)


def load_style_encoder(name: str | os.PathLike[str], kind: Literal["luar", "hf-mean"] = "hf-mean") -> Any:
    """Load an encoder from a folder, or from the local Hugging Face cache.

    Parameters
    ----------
    name : str or path
        A folder; for ``"hf-mean"`` also an id of the Hub that was downloaded before.
    kind : {"luar", "hf-mean"}
        ``"hf-mean"``: any transformer whose tokens are averaged, which is what AnnaWegmann/Style-Embedding and
        sentence-transformers/all-mpnet-base-v2 are.

    Returns
    -------
    LuarEncoder or MeanEncoder

    Raises
    ------
    InputError
        It is not there, or the extra ``lm`` is not installed.
    """
    for module in ("torch", "transformers"):
        need(module, extra="lm", purpose="loading a style encoder")
    if kind == "luar":
        from assay.audit.style_detect.luar import load_luar

        return load_luar(name)
    if kind != "hf-mean":
        raise InputError(f"kind={kind!r}: expected 'luar' or 'hf-mean'")
    import torch
    from transformers import AutoModel, AutoTokenizer

    place = str(Path(name).expanduser()) if Path(name).expanduser().is_dir() else str(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=True)
        model = AutoModel.from_pretrained(place, dtype=torch.float32, local_files_only=True, use_safetensors=True)
    except (OSError, ValueError, KeyError) as error:
        if not Path(place).is_dir():
            raise InputError(f"{name} is neither a folder nor a model in the local Hugging Face cache") from None
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{name} cannot be loaded as an encoder: {first}") from None
    return MeanEncoder(model, tokenizer, max_length=min(512, int(model.config.max_position_embeddings) - 2))
