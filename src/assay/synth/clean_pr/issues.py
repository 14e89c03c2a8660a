"""Find the issues that a pull request speaks of (paper, stage 4)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_CODE = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|`[^`\n]*`", re.DOTALL)
_REFERENCE = re.compile(
    r"(?:https?://[\w.-]+/(?P<url>[\w.-]+/[\w.-]+)/(?:-/)?(?:issues|pull)/(?P<url_number>\d+)\b)"
    r"|(?<![\w&/#])(?P<repo>[\w.-]+/[\w.-]+)?#(?P<number>\d+)\b(?!\w)"
)
_CLOSES = re.compile(r"(?:clos(?:e[sd]?|ing)|fix(?:e[sd]|ing)?|resolv(?:e[sd]?|ing)):?\s*$", re.IGNORECASE)


class Reference(NamedTuple):
    """An issue that a text names; `closes`: by one of the words that close it on merging."""

    repo: str
    number: int
    closes: bool

    def __str__(self) -> str:
        return f"{self.repo}#{self.number}"


def find_references(text: str, repo: str) -> list[Reference]:
    """Issues named in a text, each once, in order; code is passed over.

    Examples
    --------
    >>> [str(found) for found in find_references("Fixes #12, closes org/x#7 and `#3`", "org/y")]
    ['org/y#12', 'org/x#7']
    """
    text = _CODE.sub(" ", text)
    found: dict[tuple[str, int], Reference] = {}
    for match in _REFERENCE.finditer(text):
        name = match["url"] or match["repo"] or repo
        number = int(match["url_number"] or match["number"])
        closes = bool(_CLOSES.search(text[max(0, match.start() - 20) : match.start()]))
        earlier = found.get((name, number))
        found[name, number] = Reference(name, number, closes or (earlier is not None and earlier.closes))
    return list(found.values())


def link_issues(text: str, repo: str, issues: Mapping[str, str]) -> list[dict[str, str]]:
    """The issues that `text` names and `issues` (``owner/name#7`` to title and body) holds, as records.

    >>> link_issues("Fixes #12 and #13", "org/y", {"org/y#12": "Crash on empty input"})
    [{'ref': 'org/y#12', 'text': 'Crash on empty input'}]
    """
    return [
        {"ref": str(reference), "text": issues[str(reference)]}
        for reference in find_references(text, repo)
        if str(reference) in issues
    ]
