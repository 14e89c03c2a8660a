"""The fixed text: Python's own reference, which every installation holds, in two halves that share no paragraph."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

import numpy as np

from assay._core.errors import InputError

#: Words of a question's context and of each continuation: about 32 and 10 tokens. With longer contexts the questions
#: are so easy that little is left for a compressed model to lose.
CONTEXT_WORDS, CHOICE_WORDS = 24, 7
N_CHOICES = 4


class Question(NamedTuple):
    """Which of `choices` follows `context` in the text? The one at place `answer`."""

    context: str
    choices: tuple[str, ...]
    answer: int


def held_out_text() -> str:
    """The text on which models are measured: about 190,000 characters of Python's reference.

    It belongs to the installed Python, so figures compare within a version of it.

    Examples
    --------
    >>> "statement" in held_out_text()
    True
    """
    return _halves()[0]


def calibration_text() -> str:
    r"""Text for methods that look at activations: the other half, which has no paragraph of :func:`held_out_text`.

    Examples
    --------
    >>> set(calibration_text().split("\n\n")) & set(held_out_text().split("\n\n"))
    set()
    """
    return _halves()[1]


@cache
def _halves() -> tuple[str, str]:
    from pydoc_data.topics import topics

    return split_topics(topics)


def split_topics(topics: dict[str, str]) -> tuple[str, str]:
    """Held-out and calibration text of named texts, some of which contain others.

    A paragraph counts once, where the longest topic has it; topics then go, in order of their names, to the half that
    is the shorter so far.
    """
    kept: dict[str, list[str]] = {}
    seen: set[str] = set()
    for name in sorted(topics, key=lambda name: (-len(topics[name]), name)):
        kept[name] = []
        for paragraph in re.split(r"\n\s*\n", topics[name].strip()):
            essence = " ".join(paragraph.split())
            if essence and essence not in seen:
                seen.add(essence)
                kept[name].append(paragraph)
    halves: tuple[list[str], list[str]] = ([], [])
    lengths = [0, 0]
    for name in sorted(kept):
        shorter = int(lengths[1] < lengths[0])
        halves[shorter].extend(kept[name])
        lengths[shorter] += sum(map(len, kept[name]))
    return "\n\n".join(halves[0]), "\n\n".join(halves[1])


def questions(n: int, text: str | None = None) -> tuple[Question, ...]:
    """Ask which words come next: questions of multiple choice made of real text.

    The wrong continuations are the true ones of other places of the same text, so that none is likelier than another
    to someone who does not read the context: chance is one in four.

    Parameters
    ----------
    n : int
    text : str, optional
        None: :func:`held_out_text`.

    Returns
    -------
    tuple of n Question
        Always the same for the same text; the first of a longer list are those of a shorter one.

    Raises
    ------
    InputError
        The text is too short for `n` questions.

    Examples
    --------
    >>> question = questions(1)[0]
    >>> len(question.choices), question.context + question.choices[question.answer] in held_out_text()
    (4, True)
    """
    if n < 1:
        raise InputError(f"n={n}: expected 1 question or more")
    places = _places(held_out_text() if text is None else text)
    if n > len(places):
        raise InputError(
            f"the text gives {len(places)} questions of {CONTEXT_WORDS + CHOICE_WORDS} words, {n} were asked for; "
            f"bring a longer text or ask for fewer"
        )
    order = np.random.default_rng(0).permutation(len(places))
    made = []
    for number, place in enumerate(order[:n]):
        rng = np.random.default_rng([0, number])
        others = rng.permutation(len(places) - 1)[: N_CHOICES - 1]
        wrong = [places[other + (other >= place)][1] for other in others]
        answer = int(rng.integers(N_CHOICES))
        context, right = places[place]
        made.append(Question(context, (*wrong[:answer], right, *wrong[answer:]), answer))
    return tuple(made)


def _places(text: str) -> list[tuple[str, str]]:
    """(context, continuation), one after the other through the text, of prose only; no continuation comes twice."""
    words = re.findall(r"\S+\s*", text)
    length = CONTEXT_WORDS + CHOICE_WORDS
    found: dict[str, str] = {}
    for start in range(0, len(words) - length + 1, length):
        context = "".join(words[start : start + CONTEXT_WORDS])
        # The space before a word belongs to its token.
        space = context[len(context.rstrip()) :]
        continuation = space + "".join(words[start + CONTEXT_WORDS : start + length]).rstrip()
        if _is_prose(context) and _is_prose(continuation):
            found.setdefault(continuation, context.rstrip())
    if len(found) < N_CHOICES:
        raise InputError(f"the text holds {len(words)} words; questions need {N_CHOICES * length} or more, of prose")
    return [(context, continuation) for continuation, context in found.items()]


def _is_prose(text: str) -> bool:
    """Grammars, tables and code have many signs that are no letters."""
    solid = "".join(text.split())
    return sum(map(str.isalpha, solid)) >= 0.8 * len(solid)
