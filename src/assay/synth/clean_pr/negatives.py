"""Files and functions that a model would wrongly change: by retrieval, or from its own errors (paper, stage 7)."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from assay.synth.clean_pr.regions import regions
from assay.synth.clean_pr.samples import LOCALIZE, NAVIGATE, description

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def words(text: str) -> list[str]:
    """Words of code and prose in small letters; ``snake_case`` and ``camelCase`` are taken apart.

    >>> words("parseHeader(self, max_size)")
    ['parse', 'header', 'self', 'max', 'size']
    """
    return [part.lower() for word in _WORD.findall(text.replace("_", " ")) for part in _CAMEL.split(word)]


def bm25(query: str, documents: Sequence[str], k1: float = 1.5, b: float = 0.75) -> list[float]:
    """How well each document fits a query (Robertson and Zaragoza, 2009, eq. 3.15).

    >>> bm25("parse header", ["parse the header", "nothing here"])[1]
    0.0
    """
    counts = [Counter(words(document)) for document in documents]
    lengths = [count.total() for count in counts]
    mean = sum(lengths) / max(len(lengths), 1) or 1.0
    scores = [0.0] * len(documents)
    for word in set(words(query)):
        n_with = sum(word in count for count in counts)
        weight = math.log(1 + (len(documents) - n_with + 0.5) / (n_with + 0.5))
        for k, count in enumerate(counts):
            often = count[word]
            scores[k] += weight * often * (k1 + 1) / (often + k1 * (1 - b + b * lengths[k] / mean))
    return scores


def with_negatives(record: Mapping[str, Any], files: Mapping[str, str], n: int = 2) -> dict[str, Any]:
    """A record with the files that look most like its targets but are not: what a model would wrongly open.

    By retrieval, BM25 of the description, which needs no model; :func:`mine_negatives` takes a model's own errors.
    Files that the pull request touched, even those that were filtered out, are never negatives.

    Parameters
    ----------
    record : dict
    files : mapping of path to text
        Of the repository before the change.
    n : int
    """
    touched = _touched(record)
    paths = [path for path in sorted(files) if path not in touched]
    scores = bm25(description(record), [f"{path}\n{files[path]}" for path in paths])
    best = sorted(range(len(paths)), key=lambda k: (-scores[k], paths[k]))[:n]
    return {**record, "negatives": [{"path": paths[k], "content": files[paths[k]]} for k in best if scores[k] > 0]}


def mine_negatives(
    record: Mapping[str, Any], files: Mapping[str, str], generate: Callable[[str], str], n: int = 2
) -> dict[str, Any]:
    """A record with the files that a model wrongly wants to change: error-driven negatives (paper, stage 7).

    The model is asked the first two questions of :class:`AgentlessEditor`. Of the files it names, those that the pull
    request did not touch are taken, in the order of its answer, with the functions in them that it goes on to name:
    its wrong regions, kept as ``regions`` for whoever wants to look. Where it names none there are no negatives.

    Parameters
    ----------
    record : dict
    files : mapping of path to text
        Of the repository before the change.
    generate : callable
        ``generate(prompt) -> str``.
    n : int
        Most negatives.
    """
    issue = description(record)
    answer = generate(f"{LOCALIZE}{issue}\n\n" + "\n".join(sorted(files)) + "\n")
    wrong = [path for path in named_lines(answer) if path in files and path not in _touched(record)][:n]
    if not wrong:
        return {**record, "negatives": []}
    gold = [file["path"] for file in record["files"] if file["path"] in files]
    shown = "\n".join(f"### {path}\n{files[path]}" for path in sorted([*gold, *wrong]))
    said = named_lines(generate(f"{NAVIGATE}{issue}\n\n{shown}"))
    return {
        **record,
        "negatives": [
            {
                "path": path,
                "content": files[path],
                "regions": [region.name for region in regions(path, files[path]) if region.name in said],
            }
            for path in wrong
        ],
    }


def named_lines(answer: str) -> list[str]:
    r"""What an answer lists, one thing a line, without the signs of lists and quotes; each once.

    >>> named_lines("- `a.py`\n* b.py\n\n- a.py")
    ['a.py', 'b.py']
    """
    lines = (line.strip().strip("`-* ") for line in answer.split("\n"))
    return list(dict.fromkeys(line for line in lines if line))


def _touched(record: Mapping[str, Any]) -> set[str]:
    """Every path of the pull request, those that were filtered out too."""
    of_files = {path for file in record["files"] for path in (file["path"], file["rename_to"]) if path}
    return of_files | set(record.get("other_files", ()))
