"""Find the module that holds the answer: by words (BM25), by the meaning of sentences, or by your own rule."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from assay._core.errors import InputError
from assay._core.extras import need

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from assay.adapt.lora_memory.store import Module


class Encoder(Protocol):
    """What turns texts into vectors: sentence-transformers' models have this method."""

    def encode(self, texts: Sequence[str]) -> Any:
        """Return one vector a text, (n, n_features)."""


class WordIndex:
    """BM25 over texts (Lucene's variant, by the package bm25s)."""

    def __init__(self, texts: Sequence[str]) -> None:
        bm25s = need("bm25s", extra="peft", purpose="routing by words")
        words = [_words(text) for text in texts]
        self.is_empty = not any(words)
        if not self.is_empty:
            self._index = bm25s.BM25()
            self._index.index(words, show_progress=False)
        self.n_texts = len(texts)

    def scores(self, questions: Sequence[str]) -> NDArray[np.float64]:
        """(n_questions, n_texts), from 0; higher is nearer."""
        if self.is_empty:
            return np.zeros((len(questions), self.n_texts))
        rows = [self._scores(_words(question)) for question in questions]
        return np.asarray(rows, dtype=np.float64).reshape(len(questions), self.n_texts)

    def _scores(self, words: list[str]) -> Any:
        known = [word for word in words if word in self._index.vocab_dict]
        return self._index.get_scores(known) if known else np.zeros(self.n_texts)


def _words(text: str) -> list[str]:
    """Lower-case words and numbers. No stop words: what all keys share has no weight anyway, in any language."""
    return re.findall(r"\w+", text.lower())


class SentenceIndex:
    """Exact inner products of unit vectors."""

    def __init__(self, texts: Sequence[str], encoder: Encoder) -> None:
        self.encoder = encoder
        self.vectors = _unit(encoder.encode(list(texts)))

    def scores(self, questions: Sequence[str]) -> NDArray[np.float64]:
        """Cosine similarities, (n_questions, n_texts)."""
        scores: NDArray[np.float64] = _unit(self.encoder.encode(list(questions))) @ self.vectors.T
        return scores


def _unit(vectors: Any) -> NDArray[np.float64]:
    rows = np.asarray(vectors, dtype=np.float64)
    found: NDArray[np.float64] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return found


class Router:
    """Scores of every module for a question: the best of its keys.

    The paper gives a module one key, a summary of its sector. A module with several (by default its questions) is as
    near as the nearest of them: a sector of a phone book has no summary that tells who is in it.

    Parameters
    ----------
    modules : sequence of Module
    kind : "bm25", "embedding", "oracle" or callable
        A callable gets the question and the list of :class:`Module`, and returns a score for each.
    encoder : Encoder, optional
        For ``"embedding"``.
    """

    def __init__(
        self,
        modules: Sequence[Module],
        kind: str | Callable[[str, Sequence[Module]], Sequence[float]],
        encoder: Encoder | None = None,
    ) -> None:
        self.modules = list(modules)
        self.kind = kind
        if kind not in ("bm25", "embedding"):
            return
        keys = [key for module in self.modules for key in module.keys]
        keyless = [module.id for module in self.modules if not module.keys]
        if keyless:
            raise InputError(f"module {keyless[0]!r} has no keys to route by; give write(…, keys=[…])")
        if kind == "embedding" and encoder is None:
            raise InputError("router='embedding' needs an encoder; give encoder=… with a method encode(texts)")
        self._owner = np.repeat(np.arange(len(self.modules)), [len(module.keys) for module in self.modules])
        self._index = WordIndex(keys) if kind == "bm25" else SentenceIndex(keys, encoder)  # type: ignore[arg-type]  # checked above

    def scores(self, questions: Sequence[str]) -> NDArray[np.float64]:
        """(n_questions, n_modules); higher is better."""
        if callable(self.kind):
            rows = [np.asarray(self.kind(question, self.modules), dtype=np.float64) for question in questions]
            if any(row.shape != (len(self.modules),) for row in rows):
                raise InputError(f"the router must return one score for each of the {len(self.modules)} modules")
            return np.stack(rows)
        if self.kind == "oracle":
            return np.stack([self._holds(question) for question in questions])
        by_key = self._index.scores(questions)
        best = np.full((len(questions), len(self.modules)), -np.inf)
        np.maximum.at(best.T, self._owner, by_key.T)
        return best

    def best(self, questions: Sequence[str], k: int) -> list[list[tuple[str, float]]]:
        """Ids and scores of the k best modules for each question; of equal ones the earlier is the better."""
        chosen = []
        for row in self.scores(questions):
            places = sorted(range(len(row)), key=lambda place: -row[place])[:k]
            chosen.append([(self.modules[place].id, float(row[place])) for place in places])
        return chosen

    def _holds(self, question: str) -> NDArray[np.float64]:
        holds = np.array([question in module.questions for module in self.modules], dtype=np.float64)
        if not holds.any():
            raise InputError(
                f"router='oracle' knows only questions that were written, not {question!r:.60}; choose another router"
            )
        return holds
