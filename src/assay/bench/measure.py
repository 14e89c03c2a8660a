"""Wall time, CPU time and peak memory of one call in this process, measured."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Output = TypeVar("Output")

MIB = 2**20
SAMPLE_SECONDS = 0.005


def measured(fn: Callable[[], Output]) -> tuple[Output, float, float, float]:
    """Call `fn` and measure what it costs.

    Parameters
    ----------
    fn : callable
        Without arguments.

    Returns
    -------
    output
        What `fn` returned.
    wall_s : float
        Seconds on the clock.
    cpu_s : float
        CPU seconds of all threads of this process, and of child processes that ended and were waited for.
    peak_mib : float
        Highest resident memory of this process during the call less the resident memory before it, in MiB.
        Memory of child processes is not in it.

    Examples
    --------
    >>> output, wall_s, cpu_s, peak_mib = measured(lambda: sum(range(1_000_000)))
    >>> output, wall_s > 0, peak_mib < 50
    (499999500000, True, True)
    """
    _hand_back_freed_memory()
    rise = _kernel_peak() or _sampled_peak()
    try:
        cpu, start = _cpu_seconds(), time.perf_counter()
        output = fn()
        wall_s, cpu_s = time.perf_counter() - start, _cpu_seconds() - cpu
    finally:
        peak = rise()
    return output, wall_s, cpu_s, peak / MIB


def _hand_back_freed_memory() -> None:
    # What an earlier arm freed may still be resident in the allocator; a later arm that reuses it would look free.
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def _cpu_seconds() -> float:
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


def _kernel_peak() -> Callable[[], float] | None:
    """Linux: the kernel's own high-water mark, set back to the present (proc(5), clear_refs). Misses no instant."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        start = _high_water_mark()
    except (OSError, StopIteration):
        return None  # another system, or a sandbox that forbids it
    return lambda: _high_water_mark() - start


def _high_water_mark() -> float:
    with Path("/proc/self/status").open() as lines:
        line = next(line for line in lines if line.startswith("VmHWM:"))
    return float(line.split()[1]) * 1024


def _sampled_peak() -> Callable[[], float]:
    """Everywhere else: a thread looks every five milliseconds."""
    import psutil

    process = psutil.Process()
    start = peak = process.memory_info().rss
    is_over = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not is_over.wait(SAMPLE_SECONDS):
            peak = max(peak, process.memory_info().rss)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()

    def rise() -> float:
        is_over.set()
        thread.join()
        return float(max(peak, process.memory_info().rss) - start)

    return rise
