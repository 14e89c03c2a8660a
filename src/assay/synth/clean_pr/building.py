"""Clean a whole history: in chunks, on all cores or a Ray cluster, in flat memory, going on after a kill.

Each chunk of pull requests becomes two small files in a folder beside the output, whole or not at all; a run that
starts again passes over the chunks that are there. When all are there, they are put together in order, what is double
or over a repository's limit is left out, and the folder goes. The output is the same for any number of processes.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay._core.files import replacing, write_text
from assay._core.progress import progress_bar
from assay.synth._spread import in_processes, on_ray
from assay.synth.clean_pr.changes import Reject
from assay.synth.clean_pr.cleaning import Report, clean_one
from assay.synth.clean_pr.draw import Draw
from assay.synth.clean_pr.filters import PRFilter

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from assay.synth.clean_pr.sources import Source

#: Pull requests in a chunk: what a killed run does again.
CHUNK = 100
#: Raised when what a record holds changes, so that no run goes on with parts of another shape.
RECORD_VERSION = 1


@dataclass(frozen=True)
class Chunk:
    """Some items of a source and all that is needed to clean them, in this process or another."""

    number: int
    source: Source
    items: tuple[Any, ...]
    filter_: PRFilter
    issues: Mapping[str, str]


@dataclass(frozen=True)
class Done:
    """The lines of a chunk's two files."""

    number: int
    kept: bytes
    rejected: bytes


def clean_chunk(chunk: Chunk) -> Done:
    """Clean the items of one chunk."""
    kept, rejected = [], []
    for item in chunk.items:
        pr = chunk.source.read(item)
        outcome = pr if isinstance(pr, Reject) else clean_one(pr, chunk.filter_, chunk.issues)
        if isinstance(outcome, Reject):
            rejected.append(_line(asdict(outcome)))
        else:
            kept.append(_line(outcome))
    return Done(chunk.number, b"".join(kept), b"".join(rejected))


def _line(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, ensure_ascii=False)
    try:
        return f"{text}\n".encode()
    except UnicodeEncodeError:  # a lone surrogate in a title: JSON can say it, UTF-8 cannot
        return f"{json.dumps(value)}\n".encode()


def build(
    source: Source,
    out: str | os.PathLike[str],
    *,
    filter_: PRFilter | None = None,
    issues: Mapping[str, str] | None = None,
    seed: int = 0,
    jobs: int = 1,
    ray_address: str | None = None,
    limit: int | None = None,
) -> Report:
    """Clean a source into a file of training records, with a file of rejects and their reasons beside it.

    Parameters
    ----------
    source : Source
        As :func:`open_source` gives it.
    out : path
        ``edits.jsonl``; ``edits.rejects.jsonl`` and ``edits.report.json`` are written beside it.
    filter_ : PRFilter, optional
    issues : mapping of reference (``owner/name#7``) to text, optional
    seed : int
        Of the draw from repositories with too many pull requests.
    jobs : int
        Processes.
    ray_address : str, optional
        Run on this Ray cluster instead (``"auto"``: the one that is running). Its nodes must see the source at the same
        path.
    limit : int, optional
        Only the first pull requests of the source.

    Returns
    -------
    Report

    Raises
    ------
    InputError
        The source cannot be read, or the folder beside `out` holds parts of a run with other arguments.
    """
    filter_ = filter_ or PRFilter()
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    for number in (jobs, 1 if limit is None else limit):
        if number < 1:
            raise InputError(f"jobs and limit are whole numbers from 1, not {number}")
    total = source.count() if limit is None else min(limit, source.count())
    parts = out.with_name(f"{out.name}.parts")
    _open_parts(parts, source, filter_, issues or {}, limit)
    items = islice(source.items(), limit)
    chunks = (
        Chunk(number, source, chunk, filter_, issues or {})
        for number, chunk in enumerate(_batched(items))
        if not (parts / _name(number, "rejects")).exists()
    )
    n_chunks = -(-total // CHUNK)
    n_there = sum((parts / _name(number, "rejects")).exists() for number in range(n_chunks))
    start, n_now = time.perf_counter(), 0
    with progress_bar() as bar:
        task = bar.add_task("pull requests", total=total, completed=min(n_there * CHUNK, total))
        for done in _run(chunks, jobs, ray_address):
            for kind, data in (("edits", done.kept), ("rejects", done.rejected)):  # rejects last: they say "done"
                with replacing(parts / _name(done.number, kind)) as temporary:
                    temporary.write_bytes(data)
            n_now += min(CHUNK, total - done.number * CHUNK)
            rate = n_now / max(time.perf_counter() - start, 1e-9)
            bar.update(task, advance=min(CHUNK, total - done.number * CHUNK), description=f"{rate:,.0f} a second")
    report = _assemble(parts, n_chunks, out, filter_, seed)
    shutil.rmtree(parts)
    return report


def _batched(items: Iterator[Any]) -> Iterator[tuple[Any, ...]]:
    while batch := tuple(islice(items, CHUNK)):
        yield batch


def _name(number: int, kind: str) -> str:
    return f"{number:08d}.{kind}.jsonl"


def _open_parts(parts: Path, source: Source, filter_: PRFilter, issues: Mapping[str, str], limit: int | None) -> None:
    """Make the folder of parts, or check that the one that is there belongs to the same run."""
    known = asdict(filter_) | {"exclude": sorted(filter_.exclude), "languages": list(filter_.languages)}
    del known["max_per_repo"]  # decided at the end
    linked = {"issues": len(issues), "limit": limit, "chunk": CHUNK, "record": RECORD_VERSION}
    plan = json.dumps({"source": source.fingerprint(), "filter": known, **linked}, indent=2, sort_keys=True)
    place = parts / "plan.json"
    if not place.exists():
        parts.mkdir(exist_ok=True)
        write_text(place, plan)
    elif place.read_text(encoding="utf-8") != plan:
        raise InputError(
            f"{parts} holds parts of a run with another source or other options; remove it, or choose another output"
        )


def _assemble(parts: Path, n_chunks: int, out: Path, filter_: PRFilter, seed: int) -> Report:
    draw = Draw(filter_.max_per_repo, seed)
    for number in range(n_chunks):
        for line in _lines(parts / _name(number, "edits")):
            record = json.loads(line)
            draw.see(record["repo"], record["id"], record["edit"])
    report = Report()
    base = out.with_name(out.name.removesuffix(".jsonl"))
    rejects = base.with_name(f"{base.name}.rejects.jsonl")
    with (
        replacing(out) as kept_path,
        replacing(rejects) as rejects_path,
        kept_path.open("wb") as kept,
        rejects_path.open("wb") as rejected,
    ):
        for number in range(n_chunks):
            for line in _lines(parts / _name(number, "edits")):
                outcome = draw.decide(json.loads(line))
                report.add(outcome)
                if isinstance(outcome, Reject):
                    rejected.write(_line(asdict(outcome)))
                else:
                    kept.write(line)
            for line in _lines(parts / _name(number, "rejects")):
                report.add(Reject(**json.loads(line)))
                rejected.write(line)
    counts = {"pull_requests": report.n, "kept": report.kept, "rejected": dict(Counter(report.reasons).most_common())}
    write_text(base.with_name(f"{base.name}.report.json"), json.dumps(counts, indent=2) + "\n")
    return report


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as lines:
        yield from lines


def _run(chunks: Iterator[Chunk], jobs: int, ray_address: str | None) -> Iterator[Done]:
    if ray_address is not None:
        return on_ray(clean_chunk, chunks, None if ray_address == "local" else ray_address)
    return in_processes(clean_chunk, chunks, jobs)
