"""What the criteria say: which answer each of them gives to an item of each category."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from assay._core.errors import InputError
from assay._core.extras import need

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

Codes = NDArray[np.int64]

#: A file of criteria is a page of text; one that is larger than this is something else.
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class CriterionSpec:
    """Criteria over one set of categories: the same question, answered more or less strictly.

    Parameters
    ----------
    question : str
        What is asked of every item. It never names the criterion: only the labelled examples show it.
    answers : sequence of str
        The possible answers, two or more. By custom the last is the alarm: ``("No", "Yes")``.
    criteria : mapping of criterion to mapping of category to answer
        Every criterion answers for every category.
    categories : sequence of str, optional
        In the order of the tables below; by default the order of the first criterion.
    task : str
        A title for people.

    Raises
    ------
    InputError
        A category has no answer under a criterion, an answer is not in the set, or two criteria are the same.

    Examples
    --------
    >>> spec = CriterionSpec(
    ...     "Is there an anomaly?", ("No", "Yes"),
    ...     {"A": {"good": "No", "print": "No", "cut": "Yes"}, "B": {"good": "No", "print": "Yes", "cut": "Yes"}},
    ... )
    >>> spec.boundary
    ('print',)
    """

    question: str
    answers: tuple[str, ...]
    criteria: Mapping[str, Mapping[str, str]]
    categories: tuple[str, ...] = ()
    task: str = ""
    where: str = field(default="criteria", repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "answers", check_answers(self.answers, self.where))
        if not self.question.strip():
            raise InputError(f"{self.where}: the question is empty; write what is asked of every item")
        if not self.criteria:
            raise InputError(f"{self.where}: there are no criteria; name at least two, each with an answer by category")
        categories = tuple(self.categories) or tuple(next(iter(self.criteria.values())))
        if len(set(categories)) < len(categories):
            raise InputError(f"{self.where}: a category is listed twice among {', '.join(categories)}; list it once")
        object.__setattr__(self, "categories", categories)
        for name, mapping in self.criteria.items():
            self._check_criterion(name, mapping)
        self._check_distinct()

    def _check_criterion(self, name: str, mapping: Mapping[str, str]) -> None:
        known = ", ".join(self.answers)
        for category in self.categories:
            if category not in mapping:
                raise InputError(
                    f"{self.where}: criterion {name!r} has no answer for {category!r}; give it one of {known}"
                )
        for category, answer in mapping.items():
            if category not in self.categories:
                raise InputError(
                    f"{self.where}: criterion {name!r} answers for {category!r}, which is not a category; there are "
                    f"{', '.join(self.categories)}"
                )
            if answer not in self.answers:
                raise InputError(
                    f"{self.where}: criterion {name!r} answers {answer!r} to {category!r}; expected one of {known}"
                )

    def _check_distinct(self) -> None:
        seen: dict[bytes, str] = {}
        for name, row in zip(self.names, self.table, strict=True):
            twin = seen.setdefault(row.tobytes(), name)
            if twin != name:
                raise InputError(f"{self.where}: the criteria {twin!r} and {name!r} are the same; remove one of them")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the criteria."""
        return tuple(self.criteria)

    @cached_property
    def table(self) -> Codes:
        """(n_criteria, n_categories) int64: kappa(c), as an index into `answers`."""
        index = {answer: code for code, answer in enumerate(self.answers)}
        return np.array([[index[self.criteria[k][c]] for c in self.categories] for k in self.names], dtype=np.int64)

    @property
    def boundary(self) -> tuple[str, ...]:
        """The categories on which the criteria differ."""
        differs = (self.table != self.table[:1]).any(axis=0)
        return tuple(c for c, is_boundary in zip(self.categories, differs, strict=True) if is_boundary)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> CriterionSpec:
        """Read ``{task, question, answers, categories, criteria}`` from a YAML or JSON file.

        Every word stays the word that is written: ``No`` is an answer here, not a truth value.

        Raises
        ------
        InputError
            The file is missing or is not such a mapping, or the criteria cannot be used.
        """
        document = _document(Path(path))
        for name in ("question", "answers", "criteria"):
            if name not in document:
                raise InputError(f"{path}: there is no {name!r}; expected question, answers and criteria")
        criteria = document["criteria"]
        if not isinstance(criteria, dict) or not all(isinstance(mapping, dict) for mapping in criteria.values()):
            raise InputError(f"{path}: criteria must be a mapping of criterion to mapping of category to answer")
        unknown = set(document) - {"task", "question", "answers", "categories", "criteria"}
        if unknown:
            raise InputError(
                f"{path}: {sorted(unknown)[0]!r} is not known; expected task, question, answers, categories, criteria"
            )
        return cls(
            question=_text(document["question"], path, "question"),
            answers=tuple(_texts(document["answers"], path, "answers")),
            criteria={name: {c: _text(a, path, c) for c, a in mapping.items()} for name, mapping in criteria.items()},
            categories=tuple(_texts(document.get("categories", []), path, "categories")),
            task=_text(document.get("task", ""), path, "task"),
            where=str(path),
        )


def check_answers(answers: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the answers as a tuple; two or more, and different even when upper and lower case are not told apart."""
    if isinstance(answers, str) or len(answers) < 2:
        raise InputError(f"{where}: answers is {answers!r}; expected at least two, such as No and Yes")
    if any(not answer.strip() for answer in answers):
        raise InputError(f"{where}: an answer is empty; write a word for it")
    if len({answer.casefold() for answer in answers}) < len(answers):
        raise InputError(f"{where}: two of the answers {', '.join(answers)} are the same word; name them apart")
    return tuple(answers)


def _document(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected criteria in YAML or JSON")
    if path.stat().st_size > MAX_BYTES:
        raise InputError(f"{path} is larger than 1 MiB, so it is no file of criteria")
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text) if path.suffix.lower() == ".json" else _yaml(text, path)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is not readable: {error}") from None
    if not isinstance(document, dict):
        raise InputError(f"{path}: expected a mapping with question, answers and criteria")
    return document


def _yaml(text: str, path: Path) -> Any:
    yaml = need("yaml", extra="evaluate", purpose="reading criteria from YAML")
    try:
        node = yaml.compose(text, Loader=yaml.BaseLoader)
        _refuse_twins(node, path, yaml)
        # BaseLoader makes texts, lists and mappings only: nothing is run, and No does not become False.
        return yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{path}{line} is not YAML: {getattr(error, 'problem', error)}") from None


def _refuse_twins(node: Any, path: Path, yaml: Any, depth: int = 4) -> None:
    """YAML keeps the last of two equal keys without a word; two answers for one category must not pass."""
    if not isinstance(node, yaml.MappingNode) or depth == 0:
        return
    seen = set()
    for key, value in node.value:
        if key.value in seen:
            raise InputError(f"{path}, line {key.start_mark.line + 1}: {key.value!r} is there twice; keep one")
        seen.add(key.value if isinstance(key.value, str) else id(key))
        _refuse_twins(value, path, yaml, depth - 1)


def _text(value: Any, path: str | os.PathLike[str], name: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{path}: {name} is {value!r}; expected a text")
    return value


def _texts(value: Any, path: str | os.PathLike[str], name: str) -> list[str]:
    if not isinstance(value, list):
        raise InputError(f"{path}: {name} is {value!r}; expected a list of texts")
    return [_text(entry, path, name) for entry in value]
