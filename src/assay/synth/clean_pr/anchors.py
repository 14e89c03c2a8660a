"""The fewest lines around a change that stand exactly once in the file.

A block of lines [p, q) is unique exactly when it is longer than the longest run of lines from p that stands elsewhere
too. With a few lines of context a scan of the bytes for a second occurrence decides; beyond that the longest repeated
run of every line is found by a suffix array, so that a file of 100,000 equal lines costs no more than any other.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

#: Lines of context up to which candidates are tried one by one.
NEAR = 6


class Anchors:
    r"""Find the shortest unique block of lines around a span of a file.

    Parameters
    ----------
    lines : list of bytes
        The file, with line ends.

    Examples
    --------
    >>> Anchors([b"x\n", b"x\n", b"y\n"]).around(2, 3)
    (2, 3)
    """

    def __init__(self, lines: list[bytes]) -> None:
        self.lines = lines
        self._bytes = b"\n" + b"".join(lines)  # every line has a newline before it: whole lines are found by bytes

    def around(self, first: int, last: int) -> tuple[int, int]:
        """The shortest unique range of lines that holds [first, last) and is not empty.

        Of equally short ones the most balanced, then the one with more lines above (our reading; the paper leaves
        ties open). A range always exists where the file has a line: the whole file stands once.
        """
        n_lines = len(self.lines)
        for context in range(NEAR + 1):
            for up, down in _balanced(context):
                low, high = first - up, last + down
                if low < 0 or high > n_lines or low == high:
                    continue
                if self._is_unique(low, high):
                    return low, high
        return self._far(first, last)

    def _is_unique(self, low: int, high: int) -> bool:
        window = b"\n" + b"".join(self.lines[low:high])
        if not window.endswith(b"\n"):
            return True  # only the end of a file lacks a newline
        return self._bytes.find(window, self._bytes.find(window) + 1) == -1

    def _far(self, first: int, last: int) -> tuple[int, int]:
        """The same by the longest repeated run L: [p, q) is unique if and only if q - p > L[p]."""
        up = np.arange(first + 1)
        down = np.maximum(0, self.repeated[first - up] + 1 - (last - first) - up)
        context = np.where(last + down <= len(self.lines), up + down, np.iinfo(np.int64).max)
        best = np.flatnonzero(context == context.min())
        best = best[np.lexsort((-up[best], np.abs(up - down)[best]))]
        return first - int(up[best[0]]), last + int(down[best[0]])

    @cached_property
    def repeated(self) -> Ints:
        """(n_lines + 1,) Lines of the longest run from each line that stands elsewhere too; past the end: no anchor."""
        ids: dict[bytes, int] = {}
        codes = np.array([ids.setdefault(line, len(ids)) for line in self.lines], dtype=np.int64)
        run = longest_repeats(codes)
        return np.append(run, len(codes) + 1)


def _balanced(context: int) -> list[tuple[int, int]]:
    pairs = [(up, context - up) for up in range(context + 1)]
    return sorted(pairs, key=lambda pair: (abs(pair[0] - pair[1]), -pair[0]))


def longest_repeats(codes: Ints) -> Ints:
    """Length of the longest run from each position that occurs at another position too.

    Suffix array by doubling, longest common prefixes by Kasai et al. (2001): O(n log² n).

    >>> longest_repeats(np.array([0, 1, 0, 1, 2])).tolist()
    [2, 1, 2, 1, 0]
    """
    n = len(codes)
    if n < 2:
        return np.zeros(n, dtype=np.int64)
    order = _suffix_array(codes)
    rank = np.empty(n, dtype=np.int64)
    rank[order] = np.arange(n)
    common = np.array(_common_prefixes(codes.tolist(), order.tolist(), rank.tolist()), dtype=np.int64)
    padded = np.concatenate([[0], common, [0]])  # common[k]: of the suffixes at order[k] and order[k + 1]
    longest: Ints = np.maximum(padded[:-1], padded[1:])[rank]
    return longest


def _suffix_array(codes: Ints) -> Ints:
    n = len(codes)
    rank, step = np.unique(codes, return_inverse=True)[1].astype(np.int64), 1
    while True:
        behind = np.full(n, -1, dtype=np.int64)
        behind[: max(n - step, 0)] = rank[step:]
        key = rank * (n + 1) + behind + 1
        order = np.argsort(key, kind="stable")
        ordered = key[order]
        rank = np.empty(n, dtype=np.int64)
        rank[order] = np.concatenate([[0], np.cumsum(ordered[1:] != ordered[:-1])])
        if rank[order[-1]] == n - 1:
            return np.asarray(order, dtype=np.int64)
        step *= 2


def _common_prefixes(codes: list[int], order: list[int], rank: list[int]) -> list[int]:
    n, common, length = len(codes), [0] * (len(codes) - 1), 0
    for i in range(n):
        if rank[i] == n - 1:
            length = 0
            continue
        j = order[rank[i] + 1]
        while i + length < n and j + length < n and codes[i + length] == codes[j + length]:
            length += 1
        common[rank[i]] = length
        length = max(length - 1, 0)
    return common
