"""Turn what authors serve into the files that the registry describes; the same bytes always give the same file."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Tokens and turns of a recorded run, in the order of our columns.
RUN = ("input_tokens", "output_tokens", "reasoning_tokens", "num_turns")


def responses_from_pyirt(content: bytes) -> bytes:
    """A line per model, ``{"subject_id", "responses": {task: 0 or 1}}``, as model, task, correct."""
    rows = (
        (line["subject_id"], task, correct) for line in _lines(content) for task, correct in line["responses"].items()
    )
    return _csv(("model", "task", "correct"), rows)


def minutes_from_jsonl(content: bytes) -> bytes:
    """A line per task, ``{"task_id", "human_minutes"}``, as task, human_minutes; without Cybench.

    Cybench's times have other task names than its responses (they end in ``_unguided``), so nothing could be matched.
    """
    rows = (
        (line["task_id"], line["human_minutes"])
        for line in _lines(content)
        if not line["task_id"].endswith("_unguided")
    )
    return _csv(("task", "human_minutes"), rows)


def runs_from_jsonl(content: bytes) -> bytes:
    """A line per run, ``{"model", "task_id", "score", "metadata"}``, as model, task, solved, tokens and turns."""
    rows = (
        (line["model"], line["task_id"], line["score"], *(line["metadata"].get(name) for name in RUN))
        for line in _lines(content)
    )
    return _csv(("model", "task", "solved", *RUN), rows)


def _lines(content: bytes) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in content.splitlines() if line.strip())


def _csv(columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> bytes:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return stream.getvalue().encode()
