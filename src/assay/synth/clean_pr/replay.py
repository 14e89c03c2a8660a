"""Read the records of a finished run: the edits they hold, what they amount to, and whether they still replay."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay.synth.clean_pr.apply import apply_blocks
from assay.synth.clean_pr.form import parse_blocks
from assay.synth.clean_pr.sources.given import blob_id

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pandas as pd
    from matplotlib.axes import Axes

FIELDS = ("repo", "id", "title", "body", "files", "edit")


def read_records(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The records of a file that :func:`build` wrote, one after another.

    Raises
    ------
    InputError
        The file is missing, or a line of it is not such a record.
    """
    place = Path(path)
    if not place.is_file():
        raise InputError(f"{path}: no such file")
    with gzip.open(place) if place.suffix == ".gz" else place.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict) or any(name not in record for name in FIELDS):
                raise InputError(f"{path}, line {number} is not a record of edits; expected what `clean-pr` wrote")
            yield record


def replays(record: Mapping[str, Any]) -> bool | None:
    """Whether the record's edit gives the merged files, by Git's hashes; None where it holds no whole files."""
    files = record["files"]
    if any(file["blob_before"] is not None and file["content"] is None for file in files):
        return None
    before = {file["path"]: file["content"].encode() for file in files if file["content"] is not None}
    if any(file["blob_before"] != blob_id(before[file["path"]]) for file in files if file["path"] in before):
        return False
    parsed = parse_blocks(record["edit"])
    applied = apply_blocks(before, parsed.edits)
    after = {file["rename_to"] or file["path"]: file["blob_after"] for file in files if file["blob_after"] is not None}
    return applied.ok and not parsed.problems and {path: blob_id(data) for path, data in applied.files.items()} == after


@dataclass(frozen=True)
class Stats:
    """What a file of records amounts to.

    Attributes
    ----------
    n, n_files, n_blocks : int
    n_replayed, n_checked : int
        Records whose edits give the merged files, of those that hold their files whole.
    languages, repos : Counter
    search_lines : tuple of int
        Lines of every search text.
    edit_characters : tuple of int
        Length of every record's written edit.
    """

    n: int
    n_files: int
    n_blocks: int
    n_replayed: int
    n_checked: int
    languages: Counter[str]
    repos: Counter[str]
    search_lines: tuple[int, ...]
    edit_characters: tuple[int, ...]

    def to_frame(self) -> pd.DataFrame:
        """One row a language: language, records."""
        import pandas as pd

        return pd.DataFrame(self.languages.most_common(), columns=["language", "records"])

    def summary(self) -> str:
        """The figures as a table."""
        rows = [
            ("records", f"{self.n:,}"),
            ("repositories", f"{len(self.repos):,}"),
            ("files", f"{self.n_files:,}"),
            ("blocks", f"{self.n_blocks:,}"),
            ("lines of a search text", _quantiles(self.search_lines)),
            ("characters of an edit", _quantiles(self.edit_characters)),
            ("replay byte for byte", f"{self.n_replayed:,} of {self.n_checked:,} that hold whole files"),
            ("languages", ", ".join(f"{name} {count:,}" for name, count in self.languages.most_common())),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """How many lines a search text has, as a cumulative share."""
        import matplotlib.pyplot as plt
        import numpy as np

        if ax is None:
            _, ax = plt.subplots(figsize=(6, 4), layout="constrained")
        lengths = np.sort(self.search_lines)
        ax.step(lengths, np.arange(1, len(lengths) + 1) / max(len(lengths), 1), where="post", color="#0072B2")
        ax.set(xscale="symlog", xlabel="lines of the search text", ylabel="share of blocks (at most)", ylim=(0, 1.02))
        return ax


def stats(records: Iterable[Mapping[str, Any]]) -> Stats:
    """Count records, and replay each that can be replayed."""
    languages, repos = Counter[str](), Counter[str]()
    search_lines, lengths = list[int](), list[int]()
    n_files = n_replayed = n_checked = 0
    for record in records:
        languages[record["language"]] += 1
        repos[record["repo"]] += 1
        n_files += len(record["files"])
        lengths.append(len(record["edit"]))
        search_lines += [_n_lines(block["search"]) for file in record["files"] for block in file["blocks"]]
        replayed = replays(record)
        n_checked += replayed is not None
        n_replayed += replayed is True
    return Stats(
        len(lengths),
        n_files,
        len(search_lines),
        n_replayed,
        n_checked,
        languages,
        repos,
        tuple(search_lines),
        tuple(lengths),
    )


def _n_lines(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n") and bool(text))


def _quantiles(values: Sequence[int]) -> str:
    if not values:
        return "–"
    ordered = sorted(values)
    high = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return f"{ordered[len(ordered) // 2]:,} (median), {high:,} (95 %)"
