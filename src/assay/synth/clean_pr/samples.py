"""Training samples from cleaned records: mid-training, and the three steps of a repair (paper, stages 6 and 7)."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from assay._core.errors import InputError
from assay.synth.clean_pr.apply import apply_blocks
from assay.synth.clean_pr.filters import DOCUMENTS
from assay.synth.clean_pr.form import parse_blocks
from assay.synth.clean_pr.patch import blocks_to_diff
from assay.synth.clean_pr.regions import MODULE, enclosing, regions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

STAGES = ("midtrain", "localize", "navigate", "edit")
FORMATS = ("sr", "diff", "whole")
NO_CHANGE = "No changes needed"

# The paper does not print its prompts; these are ours.
LOCALIZE = "Which files must change? Answer with one path a line.\n\n"
NAVIGATE = "Which classes and functions must change? Answer with '### path' and one name a line for every file.\n\n"
EDIT = "Write the change as search-and-replace blocks. A search text is whole lines that stand once in the file.\n\n"


def to_samples(
    records: Iterable[Mapping[str, Any]],
    stage: Literal["midtrain", "localize", "navigate", "edit"] = "midtrain",
    fmt: Literal["sr", "diff", "whole"] = "sr",
) -> Iterator[dict[str, Any]]:
    """Prompts and completions to train on, with the provenance of each.

    Parameters
    ----------
    records : iterable of dict
        Of :func:`read_records`.
    stage : str
        "midtrain": description and files to edit. "localize": issue and tree to paths (records need ``tree``).
        "navigate": issue and files to names of functions. "edit": as "midtrain", asked as a question. A record with
        ``negatives`` (see :func:`with_negatives` and :func:`mine_negatives`) brings them into "navigate" and "edit".
    fmt : str
        "sr": search-and-replace blocks. "diff": a unified diff. "whole": the files after the change. The last two are
        what to compare with, and pass over records that hold only windows of their files.

    Yields
    ------
    dict
        ``prompt``, ``completion``, ``stage``, ``repo``, ``id``, ``base_commit``, ``license``.

    Raises
    ------
    InputError
        Unknown `stage` or `fmt`, or "localize" without trees.
    """
    if stage not in STAGES:
        raise InputError(f"stage {stage!r} is not one of {', '.join(STAGES)}")
    if fmt not in FORMATS:
        raise InputError(f"fmt {fmt!r} is not one of {', '.join(FORMATS)}")
    make = {"localize": _localize, "navigate": _navigate}
    for record in records:
        pair = make[stage](record) if stage in make else _edit(record, fmt, asks=stage == "edit")
        if pair is not None:
            origin = {name: record.get(name) for name in ("repo", "id", "base_commit", "license")}
            yield {"prompt": pair[0], "completion": pair[1], "stage": stage, **origin}


def description(record: Mapping[str, Any]) -> str:
    """What the change is about: repository, title, body, and the linked issues (paper, stage 4)."""
    pieces = [f"Repository: {record['repo']}", record["title"], record["body"]]
    pieces += [f"Issue {issue['ref']}: {issue['text']}" for issue in record.get("issues", ())]
    return "\n\n".join(piece for piece in pieces if piece)


def _localize(record: Mapping[str, Any]) -> tuple[str, str]:
    tree = record.get("tree")
    if not tree:
        raise InputError(f"record {record['id']} has no `tree`; build with --tree to make samples of this stage")
    code = [path for path in tree if PurePosixPath(path).suffix.lower() not in DOCUMENTS]
    targets = [file["path"] for file in record["files"] if file["blob_before"] is not None]
    return f"{LOCALIZE}{description(record)}\n\n" + "\n".join(code) + "\n", "\n".join(targets) + "\n"


def _navigate(record: Mapping[str, Any]) -> tuple[str, str] | None:
    files = [file for file in record["files"] if file["content"] is not None]
    if not files:
        return None
    answers = []
    for file in files:
        found = regions(file["path"], file["content"])
        names = {enclosing(found, line): None for span in file["lines"] for line in range(span[0] + 1, span[1] + 1)}
        answers.append(f"### {file['path']}\n" + "\n".join(names or {MODULE: None}) + "\n")
    answers += [f"### {negative['path']}\n{NO_CHANGE}\n" for negative in record.get("negatives", ())]
    return f"{NAVIGATE}{description(record)}\n\n{_shown(record)}", "\n".join(answers)


def _edit(record: Mapping[str, Any], fmt: str, *, asks: bool) -> tuple[str, str] | None:
    target = _target(record, fmt)
    if target is None:
        return None
    return f"{EDIT if asks else ''}{description(record)}\n\n{_shown(record)}", target


def _target(record: Mapping[str, Any], fmt: str) -> str | None:
    if fmt == "sr":
        return str(record["edit"])
    if any(file["blob_before"] is not None and file["content"] is None for file in record["files"]):
        return None
    before = {file["path"]: file["content"].encode() for file in record["files"] if file["content"] is not None}
    after = apply_blocks(before, parse_blocks(record["edit"]).edits).files
    if fmt == "diff":
        return blocks_to_diff(before, after).decode("utf-8")
    return "\n".join(f"### {path}\n{data.decode('utf-8')}" for path, data in sorted(after.items()))


def _shown(record: Mapping[str, Any]) -> str:
    """Files as the model sees them, negatives among them by the order of paths: a place must give nothing away."""
    pieces = {negative["path"]: negative["content"] for negative in record.get("negatives", ())}
    for file in record["files"]:
        if file["content"] is not None:
            pieces[file["path"]] = file["content"]
        elif file["windows"]:
            windows = (f"(from line {window['first_line']})\n{window['text']}" for window in file["windows"])
            pieces[file["path"]] = "…\n".join(windows)
    return "\n".join(f"### {path}\n{text}" for path, text in sorted(pieces.items()))
