"""One arm on one case: what the executors send to their processes, and the row that comes back."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

from assay._core.logs import hush
from assay._core.seeds import child_seed
from assay.bench.measure import measured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from assay.bench.spec import Arm, Case, Metric, Trial

#: Measured by the bench around the arm alone. A metric with such a name takes this value, and `Trial.score` need not
#: give it: that is how a claim about time or memory is declared.
COSTS = ("wall_s", "cpu_s", "peak_mib")

MAX_ERROR = 500


@dataclass(frozen=True)
class Row:
    """What one arm did on one case.

    Parameters
    ----------
    case, arm : str
    metrics : mapping of name to float
        A value for every metric (NaN: does not apply); empty when the arm failed.
    wall_s, cpu_s, peak_mib : float
        NaN when the arm failed.
    error : str or None
        One line, at most 500 characters.
    traceback : str or None
    """

    case: str
    arm: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    wall_s: float = math.nan
    cpu_s: float = math.nan
    peak_mib: float = math.nan
    error: str | None = None
    traceback: str | None = None


@dataclass(frozen=True)
class Task:
    """One arm on one case, ready to be sent to another process or machine.

    Parameters
    ----------
    case, arm : str
    seed : int
        The same for every arm of the case.
    threads : int
        Threads that the arm may use.
    job, unit : bytes
        What is run, and the case, pickled. Bytes, so that nothing of the trial is imported before it is needed.
    """

    case: str
    arm: str
    seed: int
    threads: int
    job: bytes
    unit: bytes


@dataclass(frozen=True)
class _Job:
    run: Callable[[Any, int], Any]
    score: Callable[[Case, Any], Mapping[str, float]]
    metrics: tuple[Metric, ...]


def environment(threads: int) -> dict[str, str]:
    """Environment variables for a fresh worker: the thread limit of libraries that are not loaded yet.

    The hash seed makes the order of sets of strings the same in every process: same seeds, same results.
    """
    libraries = ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "NUMBA", "RAYON")
    limits = {f"{library}_NUM_THREADS": str(threads) for library in libraries}
    return {**limits, "VECLIB_MAXIMUM_THREADS": str(threads), "PYTHONHASHSEED": "0"}


def end_with(parent: int) -> None:
    """Let this local worker end when the process `parent` does, which may be killed with no time to end its workers.

    Without this, a run that was killed would leave its arms running.
    """

    def watch() -> None:
        import psutil

        # The first half notices on POSIX, where an orphan gets another parent; the second on Windows.
        while os.getppid() == parent and psutil.pid_exists(parent):
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def pack(trial: Trial, arm: Arm) -> bytes:
    """Pickle what `arm` needs to run and be scored."""
    return _pickled(trial, _Job(arm.run, trial.score, trial.metrics))


def pack_case(trial: Trial, case: Case) -> bytes:
    """Pickle a case of `trial`."""
    return _pickled(trial, case)


def task(trial: Trial, arm: Arm, case_id: str, seed: int, *, job: bytes, unit: bytes) -> Task:
    """The task of `arm` on a case, with the seed that all arms of the case share."""
    return Task(case_id, arm.name, child_seed(seed, case_id), trial.threads, job, unit)


def _pickled(trial: Trial, value: Any) -> bytes:
    """Pickle `value`, with modules that a worker may not be able to import (a script, a test) by value."""
    functions = (trial.load, trial.cases, trial.score, *(arm.run for arm in trial.arms))
    modules = [sys.modules[name] for name in sorted({_module(function) for function in functions}) if _is_loose(name)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        pickled: bytes = cloudpickle.dumps(value)
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
    return pickled


def _module(function: Any) -> str:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__module__", None) or ""


def _is_loose(name: str) -> bool:
    package = name.partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or package in {"assay", "__main__", *sys.stdlib_module_names}:
        return False  # what is defined in __main__ cloudpickle always sends by value
    return not {"site-packages", "dist-packages"} & set(Path(file).parts)


def work(item: Task) -> Row:
    """Run one arm on one case and score it. Whatever it raises becomes the row's error."""
    hush()
    try:
        job, case = _job(item.job), cloudpickle.loads(item.unit)
        with _thread_limit(item.threads):
            output, wall_s, cpu_s, peak_mib = measured(lambda: job.run(case.given, item.seed))
            costs = dict(zip(COSTS, (wall_s, cpu_s, peak_mib), strict=True))
            metrics = _checked(job, {**job.score(case, output), **costs})
        return Row(item.case, item.arm, metrics, wall_s, cpu_s, peak_mib)
    except (Exception, SystemExit) as error:  # a library that calls sys.exit must not take the run with it
        return Row(item.case, item.arm, error=_one_line(error), traceback=traceback.format_exc())


def died(item: Task) -> Row:
    """The row of a task that took its process down."""
    return Row(item.case, item.arm, error="the worker process died")


@lru_cache(maxsize=16)
def _job(packed: bytes) -> _Job:
    job: _Job = cloudpickle.loads(packed)
    return job


@contextmanager
def _thread_limit(threads: int) -> Iterator[None]:
    from threadpoolctl import threadpool_limits

    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    with threadpool_limits(threads):
        yield


def _checked(job: _Job, values: Mapping[str, Any]) -> dict[str, float]:
    checked = {}
    for metric in job.metrics:
        if metric.name not in values:
            raise KeyError(f"score gave no value for the metric {metric.name!r}")
        value = float(values[metric.name])
        if math.isinf(value):
            raise ValueError(f"the metric {metric.name!r} is infinite")
        if metric.scale == "log" and value <= 0:
            raise ValueError(f"the metric {metric.name!r} is {value:g}; on the log scale values are positive")
        checked[metric.name] = value
    return checked


def _one_line(error: BaseException) -> str:
    text = " ".join((str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)).split())
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return line if len(line) <= MAX_ERROR else line[: MAX_ERROR - 1] + "…"
