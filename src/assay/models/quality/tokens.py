"""Windows of text and questions as tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError
from assay.models.quality.text import N_CHOICES, questions

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Tokens of a continuation that are scored.
CHOICE_TOKENS = 10


def windows_of(tokenizer: Any, text: str, n_windows: int, n_tokens: int) -> NDArray[np.int64]:
    """Windows (n_windows, n_tokens), chosen at random but always the same, each with the token that begins a text."""
    ids = np.asarray(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int64)
    first = np.array(_first_token(tokenizer), dtype=np.int64)
    size = n_tokens - len(first)
    n_there = len(ids) // size
    if n_windows > n_there:
        raise InputError(
            f"the text has {len(ids)} tokens, which is {n_there} windows of {n_tokens}; bring a longer text or ask for "
            f"fewer than {n_windows}"
        )
    chosen = np.random.default_rng(0).permutation(n_there)[:n_windows]
    return np.stack([np.concatenate([first, ids[place * size : (place + 1) * size]]) for place in chosen])


def question_tokens(
    tokenizer: Any, text: str, n_questions: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Contexts (n, n_context), choices (n, 4, 10) filled up with -1, and answers (n,)."""
    if not n_questions:
        return np.empty((0, 1), np.int64), np.empty((0, N_CHOICES, 1), np.int64), np.empty(0, np.int64)
    asked = questions(n_questions, text)

    def tokens(texts: list[str]) -> list[list[int]]:
        found: list[list[int]] = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return found

    contexts = tokens([question.context for question in asked])
    choices = tokens([choice for question in asked for choice in question.choices])
    # Contexts of one length need no padding, which not every model takes in the same way.
    length = min(map(len, contexts))
    padded = np.full((len(choices), CHOICE_TOKENS), -1, dtype=np.int64)
    for row, ids in zip(padded, choices, strict=True):
        row[: len(ids)] = ids[:CHOICE_TOKENS]
    first = _first_token(tokenizer)
    return (
        np.array([[*first, *ids[-length:]] for ids in contexts], dtype=np.int64),
        padded.reshape(n_questions, N_CHOICES, -1),
        np.array([question.answer for question in asked], dtype=np.int64),
    )


def _first_token(tokenizer: Any) -> list[int]:
    """The token that begins every text for this model, where there is one: Llama's is needed, GPT-2 has none."""
    ids = tokenizer("a", verbose=False)["input_ids"]
    return [ids[0]] if tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id else []
