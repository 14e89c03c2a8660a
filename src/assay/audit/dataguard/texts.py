"""Texts as samples: what the blind check sees of them, and how they are changed a little."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

DROPPED = 0.1


def are_texts(samples: Any) -> bool:
    """Whether samples are texts, one string each."""
    return len(samples) > 0 and np.ndim(samples) == 1 and isinstance(next(iter(samples)), str)


def without_some_words(texts: Sequence[str], rng: np.random.Generator) -> list[str]:
    """Each text with a tenth of its words dropped by chance, and at least one kept.

    Examples
    --------
    >>> without_some_words(["one"], np.random.default_rng(0))
    ['one']
    """
    changed = []
    for text in texts:
        words = text.split()
        kept = [word for word, chance in zip(words, rng.random(len(words)), strict=True) if chance >= DROPPED]
        changed.append(" ".join(kept or words[:1]))
    return changed


def text_vectors(target: Sequence[str], aux: Sequence[str]) -> tuple[Array, Array]:
    """Texts as the blind check sees them: words and pairs of words, lengths, and the share of kinds of characters."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = [*target, *aux]
    try:
        words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, max_features=20_000, sublinear_tf=True).fit_transform(
            texts
        )
    except ValueError:  # no word occurs twice
        words = None
    plain = np.array([_shape_of(text) for text in texts])
    if words is not None and words.shape[1] > 1:
        n_components = min(50, words.shape[1] - 1, len(texts) - 1)
        plain = np.concatenate([TruncatedSVD(n_components, random_state=0).fit_transform(words), plain], axis=1)
    return plain[: len(target)], plain[len(target) :]


def _shape_of(text: str) -> list[float]:
    n = max(len(text), 1)
    kinds = (str.isdigit, str.isupper, str.isspace, str.isalpha)
    return [
        np.log(n),
        *(sum(map(kind, text)) / n for kind in kinds),
        float(np.mean([len(w) for w in text.split()] or [0])),
    ]
