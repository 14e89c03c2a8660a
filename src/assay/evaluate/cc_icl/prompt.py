"""What a model is asked, word for word, and how its reply is read."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from assay.evaluate.cc_icl.metrics import UNPARSED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.evaluate.cc_icl.episodes import Question

#: The paper's instruction for reasoning before the answer, without its mention of anomalies.
THINK = "Think step by step by comparing with the examples. End with 'Final answer:' and one of {answers}."

FINAL = re.compile(r"final\s+answer", re.IGNORECASE)


def prompt_parts(question: Question, *, cot: bool = False) -> list[dict[str, str]]:
    """One user turn: every example with the question and its answer, then the query with the question alone.

    Nothing names the criterion. The same episode has the same parts under every criterion but for the answers.

    Parameters
    ----------
    question : Question
    cot : bool
        Ask for reasoning before the answer.

    Returns
    -------
    list of {"type": "text", "text": …} and {"type": "image", "path": …}
        As in the content of a chat message of transformers.

    Examples
    --------
    >>> from assay.evaluate.cc_icl import Question
    >>> asked = Question("e1", "text", "Is it a defect?", ("No", "Yes"), ("slit",), ("Yes",), "dent")
    >>> print(prompt_text(asked))
    slit
    Question: Is it a defect? Answer: Yes
    <BLANKLINE>
    dent
    Question: Is it a defect? Answer with No or Yes.
    """
    answers = " or ".join(question.answers)
    parts: list[dict[str, str]] = []
    for item, answer in zip(question.support, question.support_answers, strict=True):
        parts += _shown(question.kind, item, f"Question: {question.question} Answer: {answer}\n\n")
    last = THINK.format(answers=answers) if cot else f"Answer with {answers}."
    return parts + _shown(question.kind, question.query, f"Question: {question.question} {last}")


def prompt_text(question: Question, *, cot: bool = False) -> str:
    """The parts as one text, for models that read no images."""
    return "".join(part.get("text", f"[{part.get('path')}]\n") for part in prompt_parts(question, cot=cot))


def _shown(kind: str, item: str, text: str) -> list[dict[str, Any]]:
    if kind == "image":
        return [{"type": "image", "path": item}, {"type": "text", "text": text}]
    return [{"type": "text", "text": f"{item}\n{text}"}]


def parse_answer(reply: str | None, answers: Sequence[str]) -> int:
    """Code of the last answer that stands in `reply` as a whole word, whatever its case; `UNPARSED` if there is none.

    After the words "final answer", if they occur, only what follows the last of them counts.

    Examples
    --------
    >>> parse_answer("No, it differs. Final answer: Yes.", ("No", "Yes"))
    1
    >>> parse_answer("not anomalous", ("No", "Yes"))
    -1
    """
    if reply is None:
        return UNPARSED
    marks = list(FINAL.finditer(reply))
    text = reply[marks[-1].end() :] if marks else reply
    found = _pattern(tuple(answers)).findall(text)
    if not found:
        return UNPARSED
    return [answer.casefold() for answer in answers].index(found[-1].casefold())


@lru_cache(maxsize=64)
def _pattern(answers: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(answers, key=len, reverse=True)  # "very likely" before "likely"
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)", re.IGNORECASE)
