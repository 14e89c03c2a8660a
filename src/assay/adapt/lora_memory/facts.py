"""The user's own facts: questions with answers from a table, documents from a folder, and their division in sectors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from assay._core.errors import InputError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    import pandas as pd

#: Suffixes of the files that a folder of documents is read from.
TEXTS = (".txt", ".md", ".rst")

#: A document larger than this is more than a memory module can hold by orders of magnitude.
MOST_BYTES = 20_000_000


@dataclass(frozen=True)
class Fact:
    """A question and its answer.

    Parameters
    ----------
    question, answer : str
        Not empty.
    rephrased : str
        The same question in other words, for the audit: it is never written. Empty: the audit makes one.
    """

    question: str
    answer: str
    rephrased: str = ""

    @property
    def text(self) -> str:
        """Question and answer as a line for a prompt or an index."""
        return f"{self.question} {self.answer}"


@dataclass(frozen=True)
class Document:
    """A text and the name by which questions speak of it."""

    name: str
    text: str


Record = TypeVar("Record", Fact, Document)


def read_facts(
    source: str | os.PathLike[str] | pd.DataFrame,
    *,
    question: str = "question",
    answer: str = "answer",
    rephrased: str = "rephrased",
) -> list[Fact]:
    """Read facts from a table.

    Parameters
    ----------
    source : path or DataFrame
        CSV, TSV, JSON Lines, JSON or Parquet with a column of questions and one of answers. A table without these
        whose columns are ``key`` and ``value`` is read as such: :func:`facts_from_table`.
    question, answer, rephrased : str
        Names of columns; the last may be absent.

    Raises
    ------
    InputError
        A column is missing, a cell is empty, or a question has two different answers.

    Examples
    --------
    >>> import pandas as pd
    >>> read_facts(pd.DataFrame({"question": ["Who wrote Emma?"], "answer": ["Jane Austen"]}))
    [Fact(question='Who wrote Emma?', answer='Jane Austen', rephrased='')]
    """
    from assay._core.tables import check_columns

    frame, where = _frame(source)
    if question not in frame and {"key", "value"} <= set(frame.columns):
        return facts_from_table(frame, key="key", where=where)
    wanted = [question, answer] + [rephrased] * (rephrased in frame)
    frame = check_columns(frame, dict.fromkeys(wanted, "text"), where=where, allow_missing=(rephrased,))
    others = frame[rephrased].fillna("") if rephrased in frame else [""] * len(frame)
    facts = [
        Fact(q.strip(), a.strip(), r.strip()) for q, a, r in zip(frame[question], frame[answer], others, strict=True)
    ]
    return check_facts(facts, where=where)


def facts_from_table(source: str | os.PathLike[str] | pd.DataFrame, *, key: str, where: str = "table") -> list[Fact]:
    """Make a question for every cell of a table of things and their properties, by rule.

    Parameters
    ----------
    source : path or DataFrame
        A column with the name of each thing, and one for each property.
    key : str
        The column of names.
    where : str
        Names a frame in errors.

    Examples
    --------
    >>> import pandas as pd
    >>> book = pd.DataFrame({"name": ["Ada Quill"], "phone number": ["603-556-7631"]})
    >>> facts_from_table(book, key="name")[0].question
    'What is the phone number of Ada Quill?'
    """
    from assay._core.tables import check_columns

    frame, where = _frame(source, where)
    frame = check_columns(frame, dict.fromkeys([key, *map(str, frame.columns)], "text"), where=where)
    properties = [str(name) for name in frame.columns if name != key]
    if not properties:
        raise InputError(f"{where}: no column beside {key!r}; expected one column for each property")
    facts = [
        Fact(f"What is the {name} of {thing}?", str(value), f"Please tell me {thing}'s {name}.")
        for name in properties
        for thing, value in zip(frame[key], frame[name], strict=True)
    ]
    return check_facts(facts, where=where)


def read_documents(folder: str | os.PathLike[str]) -> list[Document]:
    """Read the text files of a folder (or one file), in the order of their names.

    Raises
    ------
    InputError
        There is none, one is empty, too large or not UTF-8.
    """
    place = Path(folder)
    paths = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.suffix.lower() in TEXTS)
    if not paths:
        raise InputError(f"{folder}: no text files; expected files that end in {', '.join(TEXTS)}")
    return [_document(path, place) for path in paths]


def _document(path: Path, folder: Path) -> Document:
    name = path.stem if path == folder else path.relative_to(folder).with_suffix("").as_posix()
    if path.stat().st_size > MOST_BYTES:
        raise InputError(f"{path} has {path.stat().st_size:,} bytes; expected at most {MOST_BYTES:,}: split it")
    try:
        text = path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 at byte {error.start}; save it as UTF-8") from None
    if not text:
        raise InputError(f"{path} is empty; remove it or write something in it")
    return Document(name, text)


def check_facts(facts: Sequence[Fact], *, where: str = "facts") -> list[Fact]:
    """Return the facts without exact repetitions; refuse empty ones and questions with two answers.

    Raises
    ------
    InputError
        Nothing is there, or one module could not hold all that is: it lists the questions with several answers.
    """
    if not facts:
        raise InputError(f"{where}: no facts; expected at least one question with its answer")
    answers: dict[str, set[str]] = {}
    for row, fact in enumerate(facts, start=1):
        if not fact.question.strip() or not fact.answer.strip():
            raise InputError(f"{where}, row {row}: the question or the answer is empty; expected both")
        answers.setdefault(fact.question, set()).add(fact.answer)
    torn = [question for question, found in answers.items() if len(found) > 1]
    if torn:
        listed = "; ".join(f"{q!r} ({', '.join(sorted(answers[q]))})" for q in torn[:5])
        more = f" and {len(torn) - 5} more" if len(torn) > 5 else ""
        raise InputError(f"{where}: a memory cannot hold two answers to one question: {listed}{more}; keep one of each")
    return list({(fact.question, fact.answer): fact for fact in facts}.values())


def partition(
    records: Sequence[Record], tokens_per_sector: int, count: Callable[[Record], int] | None = None
) -> list[list[Record]]:
    """Divide records into contiguous sectors of about equal token count; no record is split.

    The number of sectors K is the least that the budget allows on average; a sector ends before the record that would
    take it over the budget, or once it has its share of what is left.

    Parameters
    ----------
    records : sequence of Fact or Document
    tokens_per_sector : int
        A sector has at most this many, unless one record alone has more.
    count : callable, optional
        Tokens of a record; by default its words.

    Returns
    -------
    list of lists of records
        Together, in order, all of them.

    Examples
    --------
    >>> facts = [Fact(f"q{i}", "a") for i in range(6)]
    >>> [len(sector) for sector in partition(facts, 4, count=lambda fact: 1)]
    [3, 3]
    """
    if tokens_per_sector < 1:
        raise InputError(f"tokens_per_sector is {tokens_per_sector}; expected 1 or more")
    if not records:
        raise InputError("no records to divide into sectors; expected at least one")
    sizes = [(count or _words)(record) for record in records]
    left, n_left = sum(sizes), max(1, -(-sum(sizes) // tokens_per_sector))
    sectors: list[list[Record]] = [[]]
    filled = 0
    for record, size in zip(records, sizes, strict=True):
        share = left / n_left
        # Half a record over the share is nearer to it than half a record under it.
        if sectors[-1] and (filled + size > tokens_per_sector or (n_left > 1 and filled + size / 2 > share)):
            left, n_left, filled = left - filled, max(1, n_left - 1), 0
            sectors.append([])
        sectors[-1].append(record)
        filled += size
    return sectors


def _words(record: Fact | Document) -> int:
    return len(record.text.split())


def chunks(ids: Sequence[int], size: int = 2048, overlap: int = 200) -> list[list[int]]:
    """Cut a document's tokens into pieces of `size`, each beginning `overlap` before the end of the last one.

    Examples
    --------
    >>> chunks(range(7), size=4, overlap=1)
    [[0, 1, 2, 3], [3, 4, 5, 6]]
    """
    if not 0 <= overlap < size:
        raise InputError(f"overlap is {overlap}; expected a number from 0 to {size - 1}, below the size of a chunk")
    starts = range(0, max(len(ids) - overlap, 1), size - overlap)
    return [list(ids[start : start + size]) for start in starts]


def split_document(document: Document, tokenizer: Any, size: int = 2048, overlap: int = 200) -> list[Document]:
    """Cut a long document into pieces of `size` tokens that overlap, named by their place: for a module each.

    The defaults are the paper's for books; a document that is short enough stays as it is.
    """
    ids = tokenizer(document.text, add_special_tokens=False)["input_ids"]
    pieces = chunks(ids, size, overlap)
    if len(pieces) == 1:
        return [document]
    return [
        Document(f"{document.name}, part {place}", tokenizer.decode(piece))
        for place, piece in enumerate(pieces, start=1)
    ]


def sentences(text: str) -> list[str]:
    """Cut English prose after full stops, question and exclamation marks, and at blank lines."""
    return [part.strip() for part in re.split(r"(?<=[.!?])\s+|\n\s*\n", text) if part.strip()]


def rephrase(fact: Fact) -> str:
    """The question in other words: the fact's own, or a polite detour around the written one."""
    if fact.rephrased:
        return fact.rephrased
    question = fact.question.strip().rstrip("?.")
    return f"Could you tell me this, please: {question}?"


def _frame(source: Any, where: str = "table") -> tuple[pd.DataFrame, str]:
    import pandas as pd

    from assay._core.tables import read_table

    if isinstance(source, pd.DataFrame):
        return source, where
    return read_table(source, {}), str(source)


def as_facts(records: Any) -> list[Fact]:
    """Facts from whatever a user has: a list of them, of pairs, a frame or a path."""
    if isinstance(records, list | tuple):
        made = [record if isinstance(record, Fact) else Fact(*map(str, record)) for record in records]
        return check_facts(made)
    return read_facts(records)


def is_documents(records: Iterable[Any] | Any) -> bool:
    """Whether records are documents rather than facts."""
    return isinstance(records, list | tuple) and bool(records) and isinstance(records[0], Document)
