"""Recorded samples: make them with any sampler, read and write them, check them at the door."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay._core.tables import read_table, write_table
from assay.decode.tmafc.prior import CATEGORIES
from assay.decode.tmafc.prompts import Components, answer_prompt, components_of, parse_object
from assay.decode.tmafc.vote import FINAL_ANSWER, Sample

if TYPE_CHECKING:
    import os

    import pandas as pd

    from assay.decode.tmafc.samplers import Sampler


@dataclass(frozen=True)
class Task:
    """A question whose answer has components.

    Parameters
    ----------
    question : str
    components : mapping of str to str
        Names of the components, each with a hint for the prompt.
    gold : mapping, optional
        The right value of every component.
    """

    question: str
    components: Components
    gold: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Recorded:
    """A question with samples of a model's answer.

    Parameters
    ----------
    question : str
    components : tuple of str
    samples : tuple of (mapping or None)
        In the order in which they were drawn; None for a reply that could not be parsed.
    gold : mapping, optional
    tokens : tuple of int, optional
        Tokens of each reply.
    category : str, optional
        Easy, Middle or Hard, where somebody knows it; else a classifier guesses it.
    """

    question: str
    components: tuple[str, ...]
    samples: tuple[Sample | None, ...]
    gold: Mapping[str, Any] | None = None
    tokens: tuple[int, ...] | None = None
    category: str | None = None


def record_samples(
    sampler: Sampler,
    tasks: Iterable[Task],
    n: int = 40,
    *,
    on_task: Callable[[Recorded], None] = lambda record: None,
) -> list[Recorded]:
    """Sample every task `n` times, all components at once: what the methods can then be replayed on.

    Parameters
    ----------
    sampler : Sampler
        In a :class:`LoggedSampler`, an interrupted recording goes on where it stopped.
    tasks : iterable of Task
    n : int
    on_task : callable, optional
        Gets each record as it is made.

    Examples
    --------
    >>> task = Task("Ann is 34.", {"name": "", "age": ""}, {"name": "Ann", "age": 34})
    >>> record_samples(lambda prompt, n: ['{"name": "Ann", "age": 43}'] * n, [task], 2)[0].samples
    ({'name': 'Ann', 'age': 43}, {'name': 'Ann', 'age': 43})
    """
    if n < 1:
        raise InputError(f"the number of samples is {n}; expected a whole number from 1")
    records = []
    for task in tasks:
        replies = sampler(answer_prompt(task.question, task.components, {}), n)
        if len(replies) != n:
            raise InputError(
                f"the sampler returned {len(replies)} samples where {n} were asked for; it must return all"
            )
        tokens = [getattr(reply, "tokens", None) for reply in replies]
        record = Recorded(
            question=task.question,
            components=tuple(task.components),
            samples=tuple(parse_object(reply) for reply in replies),
            gold=task.gold,
            tokens=tuple(count for count in tokens if count is not None) if None not in tokens else None,
        )
        on_task(record)
        records.append(record)
    return records


def read_tasks(path: str | os.PathLike[str], components: Sequence[str] | None = None) -> list[Task]:
    """Read questions: a table with ``question``, and ``schema`` or ``gold`` (JSON objects) for the components.

    Parameters
    ----------
    path : path
        JSON Lines, JSON, CSV, TSV or Parquet; in the flat formats an object is JSON text in its cell.
    components : sequence of str, optional
        The components of every answer. Without them: the row's ``schema``, else the keys of its ``gold``, else one
        component ``final_answer``.
    """
    tasks = []
    for where, row in _rows(path, {"question": "question"}):
        gold = _gold(row.get("gold"), where)
        schema = _parsed(row.get("schema"), f"{where}, column 'schema'")
        names = components or schema or (list(gold) if gold else None)
        wanted = _components(names or {FINAL_ANSWER: "the short final answer"}, where)
        tasks.append(Task(row["question"], wanted, gold))
    return tasks


def read_samples(
    path: str | os.PathLike[str],
    *,
    components: Sequence[str] | None = None,
    question: str = "question",
    samples: str = "samples",
    gold: str = "gold",
) -> list[Recorded]:
    """Read recorded samples.

    Parameters
    ----------
    path : path
        A row is ``{"question": "…", "samples": [{…}, null, …], "gold": {…}}``; ``gold``, ``tokens`` (a number for
        each sample), ``components`` (names) and ``category`` may be absent. A sample is a mapping from component to
        value, null or a text without a JSON object for a reply that could not be parsed; a bare value stands for the
        one component ``final_answer``. JSON Lines, JSON, Parquet; or CSV and TSV with JSON text in the cells.
    components : sequence of str, optional
        The components of every answer. Without them: the row's own, else the keys of its gold answer, else all keys
        that its samples have.
    question, samples, gold : str
        Names of the columns.

    Raises
    ------
    InputError
        The file or a row of it cannot be used; the message names file, row and column.
    """
    names = {"question": question, "samples": samples, "gold": gold}
    return [
        _recorded(row, where, names, components)
        for where, row in _rows(path, {"question": question, "samples": samples})
    ]


def write_samples(records: Sequence[Recorded], path: str | os.PathLike[str]) -> None:
    """Write recorded samples so that :func:`read_samples` reads them again.

    Lists and objects are JSON text in the cells of CSV, TSV and Parquet.
    """
    import pandas as pd

    rows = [
        {
            "question": record.question,
            "components": list(record.components),
            "samples": [None if sample is None else dict(sample) for sample in record.samples],
            "gold": None if record.gold is None else dict(record.gold),
            "tokens": None if record.tokens is None else list(record.tokens),
            "category": record.category,
        }
        for record in records
    ]
    if not any(suffix in (".json", ".jsonl", ".ndjson") for suffix in Path(path).suffixes):
        rows = [{name: _cell(value) for name, value in row.items()} for row in rows]
    frame = pd.DataFrame({name: pd.Series([row[name] for row in rows], dtype=object) for name in rows[0]})
    write_table(frame, path)


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _rows(path: str | os.PathLike[str], names: Mapping[str, str]) -> list[tuple[str, dict[str, Any]]]:
    """Every row with the words that name its place; the question checked to be text that is not empty."""
    frame: pd.DataFrame = read_table(path, {names["question"]: "text"})
    for name in names.values():
        if name not in frame.columns:
            has = ", ".join(repr(str(column)) for column in frame.columns)
            raise InputError(f"{path}: no column {name!r}; it has {has}")
    rows = [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
    if not rows:
        raise InputError(f"{path} has no rows; expected at least one question")
    return [(f"{Path(path)}, row {number}", row) for number, row in enumerate(rows, start=1)]


def _parsed(value: Any, where: str) -> Any:
    """A cell as Python objects: JSON text becomes what it says, an empty cell None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, str):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            raise InputError(f"{where}: {value[:60]!r} is not JSON; expected JSON text in this cell") from None
    return None if isinstance(value, float) and value != value else value


def _components(schema: Any, where: str) -> Components:
    try:
        return components_of(schema)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _gold(value: Any, where: str) -> Mapping[str, Any] | None:
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        return {FINAL_ANSWER: value}
    parsed = _parsed(value, f"{where}, column 'gold'")
    if parsed is None or isinstance(parsed, Mapping):
        return parsed
    return {FINAL_ANSWER: parsed}


def _recorded(
    row: Mapping[str, Any], where: str, names: Mapping[str, str], components: Sequence[str] | None
) -> Recorded:
    drawn = _parsed(row[names["samples"]], f"{where}, column {names['samples']!r}")
    if not isinstance(drawn, list) or not drawn:
        raise InputError(f"{where}, column {names['samples']!r}: {drawn!r} is not a list of samples")
    samples = tuple(_sample(item) for item in drawn)
    gold = _gold(row.get(names["gold"]), where)
    keys = (
        components or _parsed(row.get("components"), f"{where}, column 'components'") or (list(gold) if gold else None)
    )
    if keys is None:
        keys = list(dict.fromkeys(key for sample in samples if sample for key in sample))
    if not keys:
        raise InputError(f"{where}: no sample has a JSON object, so the components are unknown; name them")
    tokens = _parsed(row.get("tokens"), f"{where}, column 'tokens'")
    if tokens is not None:
        if not isinstance(tokens, list) or len(tokens) != len(samples) or not all(_is_count(item) for item in tokens):
            raise InputError(f"{where}, column 'tokens': expected {len(samples)} whole numbers, one for each sample")
        tokens = tuple(int(item) for item in tokens)
    category = row.get("category")
    category = category if isinstance(category, str) else None
    if category not in (None, *CATEGORIES):
        raise InputError(f"{where}, column 'category': {category!r} is not one of {', '.join(CATEGORIES)}")
    return Recorded(row[names["question"]], tuple(_components(keys, where)), samples, gold, tokens, category)


def _sample(item: Any) -> Sample | None:
    if item is None or isinstance(item, Mapping):
        return item
    if isinstance(item, str):
        parsed = parse_object(item)
        if parsed is not None:
            return parsed
        return {FINAL_ANSWER: item} if "{" not in item and item.strip() else None
    return {FINAL_ANSWER: item}


def _is_count(value: Any) -> bool:
    return isinstance(value, int | float) and value >= 0 and value == int(value)
