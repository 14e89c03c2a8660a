"""What the model is asked, and how its replies are read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from assay._core.errors import InputError
from assay.decode.tmafc.prior import CATEGORIES
from assay.decode.tmafc.vote import FINAL_ANSWER, check_components

MAX_ANCHORS = 5

Components = dict[str, str]


def components_of(schema: Any) -> Components:
    """Names of an answer's components, each with a hint for the prompt (which may be empty).

    Parameters
    ----------
    schema : sequence of str, mapping, or pydantic model class
        Names; or names with hints; or a JSON Schema of an object (``{"properties": {…}}``); or a class with
        ``model_json_schema``.

    Raises
    ------
    InputError
        No keys, repeated names, or something that is no schema.

    Examples
    --------
    >>> components_of(["name", "city"])
    {'name': '', 'city': ''}
    >>> components_of({"properties": {"age": {"type": "integer", "description": "in years"}}})
    {'age': 'integer, in years'}
    """
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    if isinstance(schema, Mapping):
        properties = schema.get("properties", schema)
        if not isinstance(properties, Mapping):
            raise InputError(
                f"the schema's 'properties' is {properties!r}; expected an object with a key per component"
            )
        check_components(list(properties))
        return {str(name): _hint(about) for name, about in properties.items()}
    if isinstance(schema, Sequence) and not isinstance(schema, str) and all(isinstance(name, str) for name in schema):
        check_components(schema)
        return dict.fromkeys(schema, "")
    raise InputError(f"the schema is {schema!r}; expected names of components, a JSON Schema or a pydantic model")


def _hint(about: Any) -> str:
    if isinstance(about, Mapping):
        return ", ".join(str(about[key]) for key in ("type", "description") if about.get(key))
    return str(about or "")


def answer_prompt(question: str, pending: Components, resolved: Mapping[str, Any]) -> str:
    """Ask for the components `pending`, with those of `resolved` as given.

    Examples
    --------
    >>> print(answer_prompt("Ann, 34, lives in Oslo.", {"city": "a town"}, {"name": "Ann"}))
    Ann, 34, lives in Oslo.
    <BLANKLINE>
    Already known, take it as given: {"name": "Ann"}
    <BLANKLINE>
    Answer with one JSON object and nothing else. It has exactly these keys:
    "city": a town
    """
    keys = [f"{json.dumps(name, ensure_ascii=False)}" + (f": {hint}" if hint else "") for name, hint in pending.items()]
    parts = [question]
    if resolved:
        parts.append(f"Already known, take it as given: {json.dumps(resolved, ensure_ascii=False)}")
    parts.append("\n".join(["Answer with one JSON object and nothing else. It has exactly these keys:", *keys]))
    return "\n\n".join(parts)


def anchors_prompt(question: str) -> str:
    """Ask for sub-questions that every right derivation answers in the same way."""
    return (
        f"{question}\n\nDo not answer the question. Name 2 to {MAX_ANCHORS} short sub-questions whose answers any "
        "right solution must agree on. Each has one short answer that can be checked; none needs another's answer.\n"
        'Answer with one JSON object and nothing else: {"anchors": ["…", "…"]}'
    )


def anchors_in(reply: str) -> Components:
    """Components of a task with anchors: those that `reply` names, at most five, and the final answer."""
    parsed = parse_object(reply) or {}
    given = parsed.get("anchors")
    texts = (
        [item.strip() for item in given if isinstance(item, str) and item.strip()] if isinstance(given, list) else []
    )
    return anchored(list(dict.fromkeys(texts))[:MAX_ANCHORS])


def anchored(anchors: Sequence[str]) -> Components:
    """Components for the sub-questions `anchors`, and one for the final answer."""
    names = {f"anchor_{number}": text for number, text in enumerate(anchors, start=1)}
    return {**names, FINAL_ANSWER: "the short final answer to the question"}


def difficulty_prompt(question: str, examples: Sequence[tuple[str, str]]) -> str:
    """Ask how hard a question is for the model, with past questions as examples."""
    known = "".join(f"Question: {text}\nDifficulty: {label}\n\n" for text, label in examples)
    return (
        f"How hard is the last question for you? Answer with one word: {', '.join(CATEGORIES)}.\n\n"
        f"{known}Question: {question}\nDifficulty:"
    )


def difficulty_in(reply: str) -> str:
    """The label in `reply`; "Middle" where there is none, or more than one."""
    found = {label for label in CATEGORIES if re.search(rf"\b{label}\b", reply, re.IGNORECASE)}
    return found.pop() if len(found) == 1 else "Middle"


def parse_object(reply: str) -> dict[str, Any] | None:
    r"""The JSON object in a reply: the whole of it, else the first ``{…}`` that is one; None if there is none.

    Examples
    --------
    >>> parse_object('Sure! ```json\n{"age": 34}\n```')
    {'age': 34}
    >>> parse_object("I do not know") is None
    True
    """
    decoder = json.JSONDecoder()
    start = reply.find("{")
    while start >= 0:
        try:
            value, _ = decoder.raw_decode(reply, start)
        except RecursionError:
            return None  # a thousand objects in each other: each of them would fail as slowly as this one
        except ValueError:
            start = reply.find("{", start + 1)
            continue
        return value if isinstance(value, dict) else None
    return None
