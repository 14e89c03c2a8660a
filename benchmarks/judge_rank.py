"""Speed and memory of judge-rank on a million votes, judge-blind beside choix on the same frame.

python benchmarks/judge_rank.py [--votes 1000000]

The frame holds 100 models and 30 judges, drawn from the model. Judge-blind, three ways to the same scores alternate in
one process: our fit (checks, scores, standard errors, tests of all pairs), choix as its users call it (a list of
winner and loser), and choix's fastest path with the counting vectorised by hand. choix gives no standard errors.
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from assay.evaluate import JudgeRanking

N_MODELS, N_JUDGES, REPEATS = 100, 30, 5


def votes(n_votes: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    scores, gamma = np.linspace(-2.0, 2.0, N_MODELS), np.exp(np.linspace(-1.5, 1.5, N_JUDGES))
    a = rng.integers(N_MODELS, size=n_votes)
    b = (a + rng.integers(1, N_MODELS, size=n_votes)) % N_MODELS
    k = rng.integers(N_JUDGES, size=n_votes)
    a_wins = rng.random(n_votes) < 1.0 / (1.0 + np.exp(-gamma[k] * (scores[a] - scores[b])))
    models = np.array([f"model-{i:03d}" for i in range(N_MODELS)])
    judges = np.array([f"judge-{i:02d}" for i in range(N_JUDGES)])
    winner = np.array(["model_b", "model_a"])[a_wins.astype(int)]
    return pd.DataFrame({"model_a": models[a], "model_b": models[b], "judge": judges[k], "winner": winner}, dtype="str")


def assay_aware(frame: pd.DataFrame) -> np.ndarray:
    return JudgeRanking(prior_sd=None).fit(frame).scores_.to_numpy()


def assay_blind(frame: pd.DataFrame) -> np.ndarray:
    return JudgeRanking(prior_sd=None).fit(frame, judge=None).scores_.to_numpy()


def coded(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, int]:
    """Winner and loser of every vote as integers, in the order of the names."""
    both, names = pd.factorize(pd.concat([frame["model_a"], frame["model_b"]]), sort=True)
    a, b = both[: len(frame)], both[len(frame) :]
    a_wins = (frame["winner"] == "model_a").to_numpy()
    return np.where(a_wins, a, b), np.where(a_wins, b, a), len(names)


def choix_list(frame: pd.DataFrame) -> np.ndarray:
    import choix

    winner, loser, n = coded(frame)
    return choix.ilsr_pairwise(n, list(zip(winner.tolist(), loser.tolist(), strict=True)))


def choix_dense(frame: pd.DataFrame) -> np.ndarray:
    import choix

    winner, loser, n = coded(frame)
    return choix.ilsr_pairwise_dense(np.bincount(winner * n + loser, minlength=n * n).reshape(n, n).astype(float))


def seconds(run: Callable[[pd.DataFrame], Any], frame: pd.DataFrame) -> tuple[float, np.ndarray]:
    start = time.perf_counter()
    scores = run(frame)
    return time.perf_counter() - start, scores


RUNS = {run.__name__: run for run in (assay_aware, assay_blind, choix_list, choix_dense)}


def peak_mib(name: str, n_votes: int) -> tuple[float, float]:
    """Peak resident memory of a fresh process before and after one fit."""
    command = [sys.executable, str(Path(__file__).resolve()), "--votes", str(n_votes), "--memory", name]
    before, after = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(before), float(after)


def memory_of(name: str, n_votes: int) -> None:
    RUNS[name](votes(max(n_votes // 100, 10_000)))  # so that imports and buffers of libraries are there already
    frame = votes(n_votes)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    RUNS[name](frame)
    print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--votes", type=int, default=1_000_000)
    parser.add_argument("--memory", choices=RUNS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        memory_of(arguments.memory, arguments.votes)
        return
    frame = votes(arguments.votes)
    n_cells = frame.groupby(["model_a", "model_b", "judge"]).ngroups
    print(
        f"{len(frame):,} votes, {N_MODELS} models, {N_JUDGES} judges, {n_cells:,} ordered cells; {platform.processor()}"
    )
    for run in RUNS.values():
        run(frame.head(100_000))  # warm: imports, allocator
    times: dict[str, list[float]] = {name: [] for name in RUNS}
    scores = {}
    for _ in range(REPEATS):
        for name, run in RUNS.items():
            took, scores[name] = seconds(run, frame)
            times[name].append(took)
    for name in ("choix_list", "choix_dense"):
        gap = float(np.abs(scores[name] - scores["assay_blind"]).max())
        print(f"largest difference from {name}: {gap:.1e}")
    print(f"\n{'run':<12} {'median s':>9} {'min s':>7} {'÷ assay_blind':>14} {'peak MiB':>9} {'of it fit':>10}")
    for name, taken in times.items():
        ratio = statistics.median(t / o for t, o in zip(taken, times["assay_blind"], strict=True))
        before, after = peak_mib(name, arguments.votes)
        print(
            f"{name:<12} {statistics.median(taken):>9.3f} {min(taken):>7.3f} {ratio:>14.2f} {after:>9.0f} "
            f"{after - before:>10.0f}"
        )
    columns = 3 * 8 * len(frame)
    print(
        f"\nfloor judge-blind: reading three columns as 8-byte codes once is {columns / 2**20:.0f} MiB; after counting, "
        f"an iteration reads {N_MODELS * (N_MODELS - 1) // 2:,} cells (judge-blind) or at most "
        f"{N_JUDGES * N_MODELS * (N_MODELS - 1) // 2:,} (judge-aware) and solves one system of "
        f"{N_MODELS} or {N_MODELS + N_JUDGES} unknowns"
    )


if __name__ == "__main__":
    main()
