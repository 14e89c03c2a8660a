"""Find the templates of log messages: Drain, a tree of fixed depth (He, Zhu, Zheng, Lyu, ICWS 2017).

Our own page of code, and not the package drain3: that one pins old versions of two packages and keeps its state by
jsonpickle, which can run code when it is read. On the ten logs of the trial both make the same groups.
"""

from __future__ import annotations

import re
from typing import Any

WILDCARD = "<*>"

# One pass over the message. Order matters: what stands first wins at a place.
_MASKS = re.compile(
    r"(?P<blk>\bblk_-?\d+)"
    r"|(?P<ip>(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.]*\w)(?::\d+)?)"
    r"|(?P<path>(?<![\w<>])(?:/[\w.+\-@%$]+){2,}/?)"
    r"|(?P<hex>\b0x[0-9a-fA-F]+\b|(?<![\w-])(?=[0-9a-fA-F]*\d)(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}(?![\w-]))"
    r"|(?P<num>(?<![a-zA-Z\d])[-+]?\d+(?:\.\d+)*(?![a-zA-Z]))"
)


class _MaskedTokens(dict[str, str]):
    """Masked tokens by token; words repeat so much that a look-up is most of the work."""

    def __missing__(self, token: str) -> str:
        masked = _MASKS.sub(lambda found: f"<{found.lastgroup}>", token)
        if len(self) > 200_000:
            self.clear()
        self[token] = masked
        return masked


_MASKED = _MaskedTokens()


def mask(message: str) -> str:
    """Replace block ids, IP addresses, paths and numbers by their kind, and white space by one blank.

    Examples
    --------
    >>> mask("Accepted 42 from 10.0.0.7:8080, wrote /var/log/app.log at 0x3f")
    'Accepted <num> from <ip>, wrote <path> at <hex>'
    """
    return " ".join(map(_MASKED.__getitem__, message.split()))


class Drain:
    """Group masked messages; each group has a template.

    Parameters
    ----------
    depth : int, default 4
        Of the tree, counting the root and the leaf: depth − 2 levels look at the number of tokens and the first ones.
    similarity : float, default 0.4
        Share of equal tokens from which a message joins a group.
    max_children : int, default 100
        Of a node; further tokens share a wildcard.

    Attributes
    ----------
    templates : list of list of str
        Tokens of every template; a group keeps its place for good.

    Examples
    --------
    >>> drain = Drain()
    >>> [drain.add("user <num> logged in"), drain.add("user <num> logged out"), drain.add("disk full")]
    [0, 0, 1]
    >>> drain.template(0)
    'user <num> logged <*>'
    """

    def __init__(self, depth: int = 4, similarity: float = 0.4, max_children: int = 100) -> None:
        self.depth, self.similarity, self.max_children = depth, similarity, max_children
        self.templates: list[list[str]] = []
        self._tree: dict[str, Any] = {}
        self._known: dict[str, int] = {}  # a message seen before needs no walk

    def template(self, group: int) -> str:
        """The template of a group as text."""
        return " ".join(self.templates[group])

    def add(self, message: str) -> int:
        """Put a masked message into a group, a new one where none is similar; return its number."""
        tokens = message.split()
        leaf = self._leaf(tokens, grow=True)
        group = self._closest(leaf, tokens)
        if group is None:
            group = len(self.templates)
            self.templates.append(tokens)
            leaf.append(group)
            return group
        old = self.templates[group]
        if old != tokens:
            self.templates[group] = [a if a == b else WILDCARD for a, b in zip(old, tokens, strict=True)]
        return group

    def match(self, message: str) -> int | None:
        """Number of the group that a masked message belongs to, or None; nothing is learned."""
        known = self._known.get(message)
        if known is None:
            tokens = message.split()
            leaf = self._leaf(tokens, grow=False)
            found = None if leaf is None else self._closest(leaf, tokens)
            known = -1 if found is None else found
            if len(self._known) > 200_000:
                self._known.clear()
            self._known[message] = known
        return None if known < 0 else known

    def _leaf(self, tokens: list[str], *, grow: bool) -> Any:
        node = self._tree
        keys = [f"#{len(tokens)}", *tokens[: self.depth - 3]]
        for level, key in enumerate(keys):
            is_last = level == len(keys) - 1
            if level and (key.startswith("<") or any(character.isdigit() for character in key)):
                key = WILDCARD
            if key not in node:
                if not grow:
                    key = WILDCARD
                    if key not in node:
                        return None
                else:
                    if level and len(node) >= self.max_children:
                        key = WILDCARD
                    node.setdefault(key, [] if is_last else {})
            node = node[key]
        return node

    def _closest(self, leaf: list[int], tokens: list[str]) -> int | None:
        best, best_equal, best_wild = None, -1, -1
        for group in leaf:
            template = self.templates[group]
            equal = wild = 0
            for a, b in zip(template, tokens, strict=True):
                if a == WILDCARD:
                    wild += 1
                elif a == b:
                    equal += 1
            if (equal, wild) > (best_equal, best_wild):
                best, best_equal, best_wild = group, equal, wild
        return best if best is not None and best_equal >= self.similarity * len(tokens) else None

    def to_dict(self) -> dict[str, Any]:
        """State that JSON can hold."""
        return {
            "depth": self.depth,
            "similarity": self.similarity,
            "max_children": self.max_children,
            "templates": self.templates,
            "tree": self._tree,
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Drain:
        """Build from what :meth:`to_dict` gave."""
        drain = cls(state["depth"], state["similarity"], state["max_children"])
        drain.templates, drain._tree = state["templates"], state["tree"]
        return drain
