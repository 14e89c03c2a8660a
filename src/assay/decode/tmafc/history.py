"""What a model's votes looked like so far: one JSON object a line, shared safely by several writers."""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock

from assay._core.errors import InputError
from assay._core.files import replacing
from assay.decode.tmafc.prior import CATEGORIES, Prior, difficulty_groups, fit_beta_prior

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager

MIN_RECORDS = 3
RECLUSTER_EVERY = 50
EXAMPLES_PER_CATEGORY = 2


class JsonLines:
    """A file that grows by whole lines: appended under a lock, safe against a writer that dies half-way.

    Parameters
    ----------
    path : path
        Its folder must exist; the file need not. The lock is the file ``<path>.lock`` beside it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            raise InputError(f"{self.path} is a folder; give the name of a .jsonl file")
        if not self.path.parent.is_dir():
            raise InputError(f"cannot write {self.path}: the folder {self.path.parent} does not exist")

    def locked(self) -> AbstractContextManager[Any]:
        """Hold the file against other threads and processes."""
        return FileLock(f"{self.path}.lock")

    def state(self) -> tuple[int, int, int]:
        """Changes when the file changes."""
        if not self.path.exists():
            return (0, 0, 0)
        found = self.path.stat()
        return (found.st_ino, found.st_size, found.st_mtime_ns)

    def read(self) -> list[tuple[int, dict[str, Any]]]:
        """Line numbers (from 1) and objects. A last line that was cut off is left out, with a warning."""
        if not self.path.exists():
            return []
        *whole, last = self.path.read_bytes().split(b"\n")
        numbered = list(enumerate(whole, start=1))
        if last:
            if _is_json(last):
                numbered.append((len(whole) + 1, last))
            else:
                warnings.warn(f"{self.path}: the last line was cut off and is left out", stacklevel=2)
        return [(number, self._object(number, line)) for number, line in numbered if line.strip()]

    def append(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Add a line for each object, behind the last whole line. Call it while the file is locked."""
        text = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in objects)
        with self.path.open("ab+") as stream:
            stream.seek(0)
            before = b"\n"
            if stream.seek(0, os.SEEK_END):
                stream.seek(-1, os.SEEK_END)
                before = stream.read(1)
            if before != b"\n":
                stream.seek(0)
                content = stream.read()
                last = content[content.rfind(b"\n") + 1 :]
                if _is_json(last):
                    text = "\n" + text
                else:
                    stream.truncate(len(content) - len(last))
            stream.write(text.encode("utf-8"))

    def rewrite(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Replace the whole file at once. Call it while the file is locked."""
        with replacing(self.path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as stream:
            stream.writelines(json.dumps(item, ensure_ascii=False) + "\n" for item in objects)

    def _object(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise InputError(f"{self.path}, line {number} is not JSON; correct or delete the line") from None
        if not isinstance(value, dict):
            raise InputError(f"{self.path}, line {number}: expected a JSON object, found {type(value).__name__}")
        return value


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


@dataclass(frozen=True)
class Record:
    """How the vote on one past question went.

    Parameters
    ----------
    question : str
    T : int
        Votes of leading value and runner-up, mean over components, rounded; at least 1.
    G : int
        Votes of the leading value, likewise; 1 <= G <= T.
    category : str
        Easy, Middle or Hard.
    extra : mapping
        Whatever the writer wants to keep with it.
    """

    question: str
    T: int
    G: int
    category: str
    extra: Mapping[str, Any] = field(default_factory=dict)


class History:
    """Past votes, in memory or in a JSON Lines file that outlives the program.

    Every 50 records all categories are renewed: three groups of equal size by the votes that were needed.

    Parameters
    ----------
    path : path, optional
        File of ``{"question", "T", "G", "category", "extra"}`` objects; None keeps the history in memory.

    Raises
    ------
    InputError
        A line of the file is not such a record; the message names the line.

    Examples
    --------
    >>> history = History()
    >>> for number in range(3):
    ...     history.append(f"question {number}", votes=4, agreeing=4, category="Easy")
    >>> history.prior("Easy"), history.prior("Hard")
    (Prior(alpha=1.0, beta=0.01), Prior(alpha=1.0, beta=1.0))
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._file = None if path is None else JsonLines(path)
        self._records: list[Record] = []
        self._state: tuple[int, int, int] | None = None
        self._refresh()

    @property
    def records(self) -> tuple[Record, ...]:
        """All records, oldest first, those of other writers included."""
        self._refresh()
        return tuple(self._records)

    def append(
        self, question: str, votes: float, agreeing: float, category: str, extra: Mapping[str, Any] | None = None
    ) -> None:
        """Add a question. `votes` and `agreeing` are rounded and kept within 1 <= G <= T."""
        total = max(1, round(votes))
        record = Record(question, total, min(total, max(1, round(agreeing))), category, dict(extra or {}))
        if self._file is None:
            self._add(record)
            return
        with self._file.locked():
            self._reload()  # another writer may have added records since; the fiftieth counts theirs
            self._file.append([asdict(record)])
            if self._add(record):
                self._file.rewrite(asdict(item) for item in self._records)
            self._state = self._file.state()

    def prior(self, category: str, without: str | None = None) -> Prior:
        """Prior fitted to the records of `category`; (1, 1) while there are fewer than three.

        Records of the question `without` are left out: a question must not calibrate its own stopping.
        """
        known = [item for item in self.records if item.category == category and item.question != without]
        if len(known) < MIN_RECORDS:
            return Prior()
        return fit_beta_prior([item.T for item in known], [item.G for item in known])

    def examples(self, seed: int, without: str | None = None) -> list[tuple[str, str]]:
        """Up to two past questions of every category, drawn at random, as (question, category)."""
        rng = np.random.default_rng(seed)
        chosen = []
        for category in CATEGORIES:
            known = [item.question for item in self.records if item.category == category and item.question != without]
            picked = rng.permutation(len(known))[:EXAMPLES_PER_CATEGORY]
            chosen += [(known[index], category) for index in picked]
        return chosen

    def _add(self, record: Record) -> bool:
        """Add a record; true when all categories were renewed."""
        self._records.append(record)
        if len(self._records) % RECLUSTER_EVERY:
            return False
        labels = difficulty_groups([item.T for item in self._records])
        self._records = [
            Record(item.question, item.T, item.G, label, item.extra)
            for item, label in zip(self._records, labels, strict=True)
        ]
        return True

    def _refresh(self) -> None:
        if self._file is not None and self._file.state() != self._state:
            with self._file.locked():  # or half of a line that is being written would look like a cut-off one
                self._reload()

    def _reload(self) -> None:
        assert self._file is not None
        state = self._file.state()
        if state == self._state:
            return
        self._state = state
        self._records = [_record(item, f"{self._file.path}, line {number}") for number, item in self._file.read()]


def _record(item: Mapping[str, Any], where: str) -> Record:
    absent = [name for name in ("question", "T", "G", "category") if name not in item]
    if absent:
        raise InputError(f"{where}: no field {absent[0]!r}; expected question, T, G and category")
    total, lead, category = item["T"], item["G"], item["category"]
    if type(total) is not int or type(lead) is not int or not 1 <= lead <= total:
        raise InputError(
            f"{where}: G is {lead!r} and T is {total!r}; expected whole numbers with 1 <= G <= T; "
            "correct or delete the line"
        )
    if category not in CATEGORIES:
        raise InputError(f"{where}: category {category!r} is not one of {', '.join(CATEGORIES)}")
    return Record(str(item["question"]), total, lead, category, item.get("extra") or {})
