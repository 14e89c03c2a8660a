"""Texts on both sides of the clustering: what may come in, altered versions of it, and names for what comes out."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def checked_texts(texts: Any, where: str = "texts") -> list[str]:
    """Texts as a list of strings, with a warning about those that are the same.

    Parameters
    ----------
    texts : iterable of str
    where : str
        What to call them in a message.

    Raises
    ------
    InputError
        It is one string, an entry is no string or empty, or all of them are whole numbers, all different: then they
        are labels or ids, not texts.
    """
    if isinstance(texts, str):
        raise InputError(f"{where} is one string; give a list of strings")
    given: list[str] = list(texts)
    for place, text in enumerate(given):
        if not isinstance(text, str):
            raise InputError(f"{where}[{place}] is {text!r:.60}; expected a string")
        if not text.strip():
            raise InputError(f"{where}[{place}] is empty; leave empty texts out")
    n_different = len(set(given))
    if len(given) > 1 and n_different == len(given) and all(text.strip().lstrip("+-").isdigit() for text in given):
        raise InputError(f"{where}: all {len(given)} are different whole numbers; is this a column of labels or ids?")
    if n_different < len(given):
        warnings.warn(
            f"{where}: {len(given) - n_different} of {len(given)} repeat another one; repeated texts agree trivially",
            stacklevel=3,
        )
    return given


def without_some_words(texts: Sequence[str], rng: np.random.Generator, share: float = 0.1) -> list[str]:
    """Each text less a share of its words, at random; at least one word stays.

    Examples
    --------
    >>> without_some_words(["one two three four five six"], np.random.default_rng(1), share=0.5)
    ['one two four']
    """
    shorter = []
    for text in texts:
        words = text.split()
        kept = rng.random(len(words)) >= share
        if not kept.any():
            kept[rng.integers(len(words))] = True
        shorter.append(" ".join(word for word, is_kept in zip(words, kept, strict=True) if is_kept))
    return shorter


def top_terms(
    texts: Sequence[str], labels: NDArray[np.integer[Any]], n_terms: int = 4, n_clusters: int | None = None
) -> list[list[str]]:
    """The words that set each cluster apart: class-based TF-IDF.

    A cluster's texts count as one document; the weight of a term is its frequency there times
    log(1 + mean words per cluster / its frequency in all), as in BERTopic (Grootendorst, arXiv:2203.05794).

    Parameters
    ----------
    texts : sequence of n str
    labels : (n,) int
        From 0; negative ones are left out.
    n_terms : int
    n_clusters : int, optional
        Clusters to name, also where no text is in them; up to the largest label if None.

    Returns
    -------
    list of list of str
        For each cluster, the best first; fewer than `n_terms` where there are no more.

    Examples
    --------
    >>> top_terms(["red apple", "green apple", "fast car", "old car"], np.array([0, 0, 1, 1]), n_terms=1)
    [['apple'], ['car']]
    """
    weights, words = class_tfidf(texts, labels, n_clusters)
    best = np.argsort(-weights, axis=1, kind="stable")[:, :n_terms]
    return [[str(words[term]) for term in row if weights[number, term] > 0] for number, row in enumerate(best)]


def class_tfidf(
    texts: Sequence[str], labels: NDArray[np.integer[Any]], n_clusters: int | None = None
) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    """Class-based TF-IDF weights (n_clusters, n_terms) and the terms (n_terms,); see :func:`top_terms`."""
    from scipy import sparse
    from sklearn.feature_extraction.text import CountVectorizer

    labels = np.asarray(labels)
    count = int(labels.max(initial=-1)) + 1 if n_clusters is None else n_clusters
    try:
        vectorizer = CountVectorizer(stop_words="english", min_df=1)
        counts = vectorizer.fit_transform(texts)
    except ValueError:  # nothing but stop words or punctuation
        return np.zeros((count, 0)), np.array([], dtype=np.str_)
    used = np.flatnonzero(labels >= 0)
    member = sparse.csr_array((np.ones(len(used)), (labels[used], used)), shape=(count, len(texts)))
    by_cluster = np.asarray((member @ counts).toarray(), dtype=np.float64)
    of_term = by_cluster.sum(axis=0)
    rarity = np.log1p(by_cluster.sum() / max(count, 1) / np.maximum(of_term, 1.0))
    share = by_cluster / np.maximum(by_cluster.sum(axis=1, keepdims=True), 1.0)
    return share * rarity, vectorizer.get_feature_names_out()
