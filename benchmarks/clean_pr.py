"""File changes per second of clean-pr on one core, beside the same work by difflib and by `git` processes.

python benchmarks/clean_pr.py [--commits 600]

A repository is made of the source files of Python's standard library and `--commits` commits of one to three edits to
one to three of them. Every commit is read, compared, turned into blocks, written, read back, applied and compared byte
for byte with the merged file. Peers, alternating in one process: (a) the same with difflib in place of libgit2's diff,
the natural choice in pure Python; (b) `git show` for every commit, which only reads and prints the diff.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import tempfile
import time
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING

from assay.synth.clean_pr import make
from assay.synth.clean_pr.changes import Reject
from assay.synth.clean_pr.cleaning import clean_one
from assay.synth.clean_pr.edits import lines_of
from assay.synth.clean_pr.sources import GitSource
from assay.trials.synth.clean_pr import history_of_the_standard_library

if TYPE_CHECKING:
    from collections.abc import Callable

REPEATS = 3


def ours(repo_dir: Path) -> int:
    """Every commit to a JSON line; returns the file changes that were kept."""
    source = GitSource(str(repo_dir), mode="commit")
    n_files = 0
    for item in source.items():
        pr = source.read(item)
        outcome = pr if isinstance(pr, Reject) else clean_one(pr)
        if not isinstance(outcome, Reject):
            n_files += len(outcome["files"])
            json.dumps(outcome, ensure_ascii=False)
    return n_files


def with_difflib(repo_dir: Path) -> int:
    libgit2 = make.changed_spans
    make.changed_spans = difflib_spans
    try:
        return ours(repo_dir)
    finally:
        make.changed_spans = libgit2


def difflib_spans(before: bytes, after: bytes) -> list[make.Span]:
    matcher = SequenceMatcher(None, lines_of(before), lines_of(after), autojunk=False)
    return [make.Span(i1, i2, j1, j2) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal"]


def git_show(repo_dir: Path) -> int:
    """One process a commit, as scripts around `git` do it; only the diffs, no blocks."""
    listed = subprocess.run(["git", "-C", repo_dir, "rev-list", "HEAD"], capture_output=True, text=True, check=True)
    n_files = 0
    for commit in listed.stdout.split()[:-1]:
        shown = subprocess.run(["git", "-C", repo_dir, "show", "-U0", commit], capture_output=True, check=True)
        n_files += shown.stdout.count(b"\ndiff --git ")
    return n_files


def timed(run: Callable[[Path], int], repo_dir: Path) -> tuple[float, float]:
    """File changes per second: of wall time, and of this process's CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    n_files = run(repo_dir)
    return n_files / (time.perf_counter() - wall), n_files / (time.process_time() - cpu)


def long_file() -> None:
    """A change in the middle of a file of 100,000 equal lines: the worst case of finding an anchor."""
    before = b"x\n" * 100_000
    after = b"x\n" * 50_000 + b"y\n" + b"x\n" * 50_000
    start = time.perf_counter()
    blocks = make.diff_to_blocks(before, after)
    print(f"100,000 equal lines, one inserted: {time.perf_counter() - start:.2f} s, {len(blocks)} block")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=600)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repo_dir = Path(folder)
        sizes = history_of_the_standard_library(repo_dir, arguments.commits, seed=0)
        subprocess.run(["git", "-C", repo_dir, "gc", "-q"], check=True)  # a clone comes packed
        print(f"{arguments.commits} commits, median file {statistics.median(sizes):,.0f} bytes, {platform.machine()}")
        runs = {"assay": ours, "difflib": with_difflib, "git show (diff only)": git_show}
        speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
        ours(repo_dir)  # warm
        for _ in range(REPEATS):
            for name, run in runs.items():
                speeds[name].append(timed(run, repo_dir))
    print(f"{'run':<22} {'files/s (wall)':>14} {'files/s (cpu)':>14} {'assay is faster by (wall)':>26}")
    for name, measured in speeds.items():
        wall, cpu = (statistics.median(speed[k] for speed in measured) for k in (0, 1))
        ratio = statistics.median(own[0] / other[0] for own, other in zip(speeds["assay"], measured, strict=True))
        shown = f"{cpu:>14,.0f}" if "git show" not in name else f"{'(other process)':>14}"
        print(f"{name:<22} {wall:>14,.0f} {shown} {ratio:>25.1f}x")
    long_file()
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
