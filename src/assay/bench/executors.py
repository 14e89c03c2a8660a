"""Where tasks run: processes of this machine (loky), or a Ray cluster. The same tasks give the same rows on both.

Both take tasks one by one as room appears, so that a long run of large cases never stands in memory as a whole, and
yield rows in the order in which they finish.
"""

from __future__ import annotations

import os
import socket
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay._core.extras import need
from assay.bench.environment import cores
from assay.bench.worker import Row, Task, died, end_with, environment, work

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

#: How often Ray runs a task again that was lost with its node or process.
RAY_RETRIES = 2

KNOCK_SECONDS = 10

#: By default loky restarts a worker that has grown by 300 MB: a model that an arm keeps would be loaded, and timed,
#: again and again. A worker that leaks until it dies is replaced, and its task runs again.
LOKY = {"LOKY_MAX_MEMORY_LEAK_SIZE": "1e18"}


def local(tasks: Iterable[Task], *, threads: int, jobs: int | None = None) -> Generator[Row]:
    """Run tasks in processes of this machine.

    A task may take its process down (out of memory, a crash in compiled code). The tasks that were running then
    run again, each in a process of its own; the one that goes down again is recorded as failed.

    Parameters
    ----------
    tasks : iterable of Task
    threads : int
        Threads of each task.
    jobs : int, optional
        Tasks at a time; by default the number of cores divided by `threads`.
    """
    width = jobs or max(1, cores() // threads)
    queue = iter(tasks)
    while True:
        pool = _pool(width, threads)
        try:
            suspects = yield from _through(pool, queue, width)
        finally:
            pool.shutdown(wait=True, kill_workers=True)
        if not suspects:
            return
        for suspect in suspects:
            yield _alone(suspect, threads)


def _pool(width: int, threads: int) -> Any:
    import loky

    variables = environment(threads) | LOKY
    return loky.ProcessPoolExecutor(width, env=variables, initializer=end_with, initargs=(os.getpid(),))


def _through(pool: Any, queue: Iterator[Task], width: int) -> Generator[Row, None, list[Task]]:
    """Keep `width` tasks in flight; return those that were in flight when a process died (none: all are done)."""
    in_flight: dict[Future[Row], Task] = {}
    suspects: list[Task] = []
    while True:
        for task in islice(queue, 0 if suspects else width - len(in_flight)):
            try:
                in_flight[pool.submit(work, task)] = task
            except BrokenProcessPool:
                suspects.append(task)
                break
        if not in_flight:
            return suspects
        for future in wait(in_flight, return_when=FIRST_COMPLETED).done:
            task = in_flight.pop(future)
            if isinstance(future.exception(), BrokenProcessPool):
                suspects.append(task)  # a broken pool ends every task that was in flight this way
            else:
                yield future.result()


def _alone(task: Task, threads: int) -> Row:
    pool = _pool(1, threads)
    try:
        row: Row = pool.submit(work, task).result()
    except BrokenProcessPool:
        return died(task)
    else:
        return row
    finally:
        pool.shutdown(wait=True, kill_workers=True)


def on_ray(
    tasks: Iterable[Task], *, threads: int, jobs: int | None = None, address: str | None = None
) -> Generator[Row]:
    """Run tasks on a Ray cluster.

    Parameters
    ----------
    tasks : iterable of Task
    threads : int
        CPUs that each task asks the cluster for.
    jobs : int, optional
        Tasks at a time; by default the CPUs of the cluster divided by `threads`.
    address : str, optional
        Of a running cluster. None: the cluster that this process is connected to, else the one in ``RAY_ADDRESS``,
        else a cluster on this machine for the time of the run.

    Raises
    ------
    InputError
        No cluster answers, or no node of it has `threads` CPUs.
    """
    ray = need("ray", extra="ray", purpose="the ray executor")
    is_ours = not ray.is_initialized()
    if is_ours:
        _connect(ray, address)
    in_flight: dict[Any, Task] = {}
    try:
        width = jobs or _slots(ray, threads)
        remote = ray.remote(work).options(
            num_cpus=threads, max_retries=RAY_RETRIES, runtime_env={"env_vars": environment(threads)}
        )
        queue = iter(tasks)
        while True:
            for task in islice(queue, width - len(in_flight)):
                in_flight[remote.remote(task)] = task
            if not in_flight:
                return
            for reference in ray.wait(list(in_flight), num_returns=1)[0]:
                yield _fetched(ray, reference, in_flight.pop(reference))
    finally:
        for reference in in_flight:
            ray.cancel(reference, force=True)
        if is_ours:
            ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that we start reports to nobody
    try:
        if address is not None and ":" in address:
            _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        where = f"at {address}" if address else "here"
        raise InputError(
            f"no Ray cluster can be used {where} ({reason}); give the address that `ray start --head` printed"
        ) from None


def _knock(address: str) -> None:
    """Raise OSError or ValueError where nobody listens: Ray itself would try for five minutes before it says so."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_SECONDS):
        pass


def _slots(ray: Any, threads: int) -> int:
    cpus = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    if max(cpus, default=0) < threads:
        raise InputError(
            f"the trial's arms use {threads} threads, and the largest node of the Ray cluster has "
            f"{max(cpus, default=0)} CPUs; add a node with at least {threads}"
        )
    return sum(count // threads for count in cpus)


def _fetched(ray: Any, reference: Any, task: Task) -> Row:
    lost = (
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.OutOfMemoryError,
        ray.exceptions.NodeDiedError,
        ray.exceptions.LocalRayletDiedError,
    )
    try:
        row: Row = ray.get(reference)
    except lost:
        return died(task)
    return row
