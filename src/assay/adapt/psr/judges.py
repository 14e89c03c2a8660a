"""Judges that need no model of their own: each is ``judge(prompt, response)`` in [0, 1]; and fluency as perplexity.

An answer of nothing but one word of the list is not a pirate's: `word_judge` counts different words.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from assay._core.errors import InputError
from assay.adapt.psr.hooks import frozen
from assay.adapt.psr.pairs import encode_prompt

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from assay.adapt.psr.pairs import Judge, Prompt


def words_of(text: str) -> list[str]:
    """Words in lower case, apostrophes included.

    Examples
    --------
    >>> words_of("Aye, 'tis so!")
    ['aye', 'tis', 'so']
    """
    return [word.strip("'’") for word in re.findall(r"[\w'’]+", text.lower())]


def word_judge(words: Collection[str], enough: int = 3) -> Judge:
    """How many different words of a list the answer uses; `enough` of them score 1.

    Examples
    --------
    >>> judge = word_judge(["aye", "matey", "ye"], enough=2)
    >>> judge("", "Aye aye aye!"), judge("", "Aye, matey.")
    (0.5, 1.0)
    """
    listed = {word.lower() for word in words}
    if not listed or enough < 1:
        raise InputError(f"{len(listed)} words, enough={enough}: expected at least one word, and 1 or more")

    def judge(prompt: Any, response: str) -> float:
        return min(len(listed & set(words_of(response))) / enough, 1.0)

    return judge


def pattern_judge(pattern: str) -> Judge:
    r"""1 where a regular expression is found, else 0.

    Examples
    --------
    >>> pattern_judge(r"!\s*$")("", "Great!")
    1.0
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise InputError(f"the pattern {pattern!r} is no regular expression: {error}") from None
    return lambda prompt, response: float(compiled.search(response) is not None)


def bullet_judge(prompt: Any, response: str) -> float:
    r"""Share of the lines, empty ones aside, that begin as those of a list.

    Examples
    --------
    >>> bullet_judge("", "Bring:\n- water\n- bread\n1. a map")
    0.75
    """
    lines = [line for line in response.splitlines() if line.strip()]
    return sum(bool(re.match(r"\s*([-*•]|\d+[.)])\s", line)) for line in lines) / max(len(lines), 1)


def length_judge(n_words: int) -> Judge:
    """1 up to so many words, falling to 0 at twice as many.

    Examples
    --------
    >>> length_judge(4)("", "one two three four five six")
    0.5
    """
    if n_words < 1:
        raise InputError(f"n_words={n_words}: expected 1 or more")
    return lambda prompt, response: min(max(2 - len(response.split()) / n_words, 0.0), 1.0)


def perplexity_judge(model: Any, tokenizer: Any, limit: float) -> Judge:
    """Coherence as the model itself sees it: 1 up to a perplexity of `limit`, 0.5 at twice that."""
    if not limit > 1:
        raise InputError(f"limit={limit}: expected a perplexity above 1")

    def judge(prompt: Prompt, response: str) -> float:
        surprise = surprises(model, tokenizer, [prompt], [response])[0]
        return limit / max(limit, math.exp(min(surprise, 700.0))) if math.isfinite(surprise) else 0.0

    return judge


@torch.no_grad()
def surprises(
    model: Any, tokenizer: Any, prompts: Sequence[Prompt], responses: Sequence[str], *, batch_size: int = 8
) -> NDArray[np.float64]:
    """Mean surprise of each response behind its prompt, in nats a token; its exponential is the perplexity.

    Parameters
    ----------
    prompts : sequence of str or list of messages
    responses : sequence of str
        NaN for an empty one.

    Returns
    -------
    (n,) float64
    """
    rows = []
    for prompt, response in zip(prompts, responses, strict=True):
        asked = encode_prompt(prompt, tokenizer)[0]
        rows.append((asked, list(tokenizer(response, add_special_tokens=False, verbose=False)["input_ids"])))
    found = np.full(len(rows), np.nan)
    order = sorted((i for i in range(len(rows)) if rows[i][1]), key=lambda i: len(rows[i][0]) + len(rows[i][1]))
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        longest = max(len(rows[i][0]) + len(rows[i][1]) for i in batch)
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, i in enumerate(batch):
            whole = rows[i][0] + rows[i][1]
            ids[row, : len(whole)], mask[row, : len(whole)] = torch.tensor(whole), 1
        with frozen(model):
            logits = model(input_ids=ids.to(model.device), attention_mask=mask.to(model.device), use_cache=False).logits
        for row, i in enumerate(batch):
            n_prompt, n = len(rows[i][0]), len(rows[i][1])
            answer = torch.tensor(rows[i][1], device=logits.device)
            said = logits[row, n_prompt - 1 : n_prompt + n - 1].float()
            found[i] = float(torch.nn.functional.cross_entropy(said, answer))
    return found
