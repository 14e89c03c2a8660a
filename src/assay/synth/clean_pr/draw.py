"""Leave out what was kept before, and all but a seeded draw of a repository that has too many (paper, stage 5)."""

from __future__ import annotations

import hashlib
import heapq
from typing import Any

from assay.synth.clean_pr.changes import Reject


class Draw:
    """Sees every record once, then decides about each in the same order.

    Records are drawn by the smallest hashes of (seed, repository, id): the draw depends on no order, and memory holds
    at most `limit` hashes a repository and a hash of 12 bytes a record.

    Parameters
    ----------
    limit : int
        Records a repository.
    seed : int
    """

    def __init__(self, limit: int, seed: int) -> None:
        self.limit, self.seed = limit, seed
        self._heaps: dict[str, list[int]] = {}
        self._seen: set[bytes] = set()
        self._decided: set[bytes] = set()

    def see(self, repo: str, id_: str, edit: str) -> None:
        """Take note of a record."""
        key = _key(repo, edit)
        if key in self._seen:
            return
        self._seen.add(key)
        heap = self._heaps.setdefault(repo, [])
        rank = -self._rank(repo, id_)  # heapq has the smallest on top; we need the largest
        if len(heap) < self.limit:
            heapq.heappush(heap, rank)
        else:
            heapq.heappushpop(heap, rank)

    def decide(self, record: dict[str, Any]) -> dict[str, Any] | Reject:
        """The record, or why it is left out."""
        repo, id_ = record["repo"], record["id"]
        key = _key(repo, record["edit"])
        if key in self._decided:
            return Reject(repo, id_, "duplicate", "the same edit stands in an earlier record of the repository")
        self._decided.add(key)
        heap = self._heaps[repo]
        if len(heap) == self.limit and self._rank(repo, id_) > -heap[0]:
            return Reject(repo, id_, "over_repository_cap", f"at most {self.limit:,} of one repository")
        return record

    def _rank(self, repo: str, id_: str) -> int:
        name = f"{self.seed}\0{repo}\0{id_}".encode("utf-8", "surrogatepass")
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")


def _key(repo: str, edit: str) -> bytes:
    return hashlib.blake2b(f"{repo}\0{edit}".encode("utf-8", "surrogatepass"), digest_size=12).digest()
