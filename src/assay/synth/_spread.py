"""Run pieces of work on this machine's processes or on a Ray cluster, in flat memory; what the methods here share."""

from __future__ import annotations

import os
from concurrent.futures import FIRST_COMPLETED, wait
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from assay._core.errors import InputError
from assay._core.extras import need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Piece = TypeVar("Piece")
Done = TypeVar("Done")


def in_processes(run: Callable[[Piece], Done], pieces: Iterator[Piece], n_processes: int) -> Iterator[Done]:
    """Results as they finish. Two pieces in flight for each process: enough to keep it busy, few enough for memory.

    One process is this one, and keeps the order.
    """
    if n_processes == 1:
        yield from map(run, pieces)
        return
    import loky

    pool = loky.ProcessPoolExecutor(n_processes)
    try:
        flying = {pool.submit(run, piece) for piece in islice(pieces, 2 * n_processes)}
        while flying:
            finished, flying = wait(flying, return_when=FIRST_COMPLETED)
            flying |= {pool.submit(run, piece) for piece in islice(pieces, len(finished))}
            for future in finished:
                yield future.result()
    finally:
        pool.shutdown(wait=True, kill_workers=True)


def on_ray(run: Callable[[Piece], Done], pieces: Iterator[Piece], address: str | None) -> Iterator[Done]:
    """Results as they finish, two pieces in flight for each CPU of the cluster at `address`.

    Raises
    ------
    InputError
        No cluster can be used there.
    """
    ray: Any = need("ray", extra="ray", purpose="running on a Ray cluster")
    is_ours = not ray.is_initialized()
    if is_ours:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (OSError, ValueError, RuntimeError) as error:
            raise InputError(f"no Ray cluster can be used at {address} ({error}); start one by `ray start`") from None
    remote = ray.remote(run)
    width = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    try:
        flying = [remote.remote(piece) for piece in islice(pieces, width)]
        while flying:
            finished, flying = ray.wait(flying, num_returns=1)
            flying += [remote.remote(piece) for piece in islice(pieces, len(finished))]
            yield from ray.get(finished)
    finally:
        if is_ours:
            ray.shutdown()
