"""Speed and memory of judge-rank on a million votes, judge-blind beside choix on the same frame.

python benchmarks/judge_rank.py [--votes 1000000]

The frame holds 100 models and 30 judges, drawn from the model. Judge-blind, three ways to the same scores alternate in
one process: our fit (checks, scores, standard errors, tests of all pairs), choix as its users call it (a list of
winner and loser), and choix's fastest path with the counting vectorised by hand. choix gives no standard errors. Its
general optimiser, opt_pairwise, takes seconds for each ten thousand votes and is timed once, on 20,000 of them.
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from assay.evaluate import JudgeRanking

if TYPE_CHECKING:
    from collections.abc import Callable

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


def choix_optimiser(frame: pd.DataFrame) -> np.ndarray:
    import choix

    winner, loser, n = coded(frame)
    return choix.opt_pairwise(n, list(zip(winner.tolist(), loser.tolist(), strict=True)))


def timed(run: Callable[[pd.DataFrame], np.ndarray], frame: pd.DataFrame) -> tuple[float, float, np.ndarray]:
    """Wall seconds, CPU seconds, scores."""
    wall, cpu = time.perf_counter(), time.process_time()
    scores = run(frame)
    return time.perf_counter() - wall, time.process_time() - cpu, scores


RUNS = {run.__name__: run for run in (assay_aware, assay_blind, choix_list, choix_dense)}


def ratio(times: dict[str, list[float]], name: str) -> float:
    """Median over repeats of the time beside that of our judge-blind fit in the same repeat."""
    return statistics.median(t / own for t, own in zip(times[name], times["assay_blind"], strict=True))


def peak_mib(name: str, n_votes: int) -> float:
    """Peak resident memory of a fresh process that draws the votes and runs once."""
    command = [sys.executable, str(Path(__file__).resolve()), "--votes", str(n_votes), "--memory", name]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def memory_of(name: str, n_votes: int) -> None:
    RUNS[name](votes(n_votes))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


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
        f"{len(frame):,} votes, {N_MODELS} models, {N_JUDGES} judges, {n_cells:,} ordered cells, {platform.machine()}"
    )
    for run in RUNS.values():
        run(frame.head(100_000))  # warm: imports, allocator
    walls: dict[str, list[float]] = {name: [] for name in RUNS}
    cpus: dict[str, list[float]] = {name: [] for name in RUNS}
    scores = {}
    # The systems are small; BLAS threads that wait for each other on a busy machine would be most of the time.
    with threadpool_limits(1):
        for _ in range(REPEATS):
            for name, run in RUNS.items():
                wall, cpu, scores[name] = timed(run, frame)
                walls[name].append(wall)
                cpus[name].append(cpu)
    for name in ("choix_list", "choix_dense"):
        gap = float(np.abs(scores[name] - scores["assay_blind"]).max())
        print(f"largest difference of scores from {name}: {gap:.1e}")
    print(f"\nmedians of {REPEATS}; peak memory of a process that draws the votes and runs once")
    print(f"{'run':<12} {'wall s':>7} {'cpu s':>7} {'wall ÷ blind':>13} {'cpu ÷ blind':>12} {'peak MiB':>9}")
    for name in RUNS:
        print(
            f"{name:<12} {statistics.median(walls[name]):>7.3f} {statistics.median(cpus[name]):>7.3f} "
            f"{ratio(walls, name):>13.2f} {ratio(cpus, name):>12.2f} {peak_mib(name, arguments.votes):>9.0f}"
        )
    few = frame.head(20_000)
    with threadpool_limits(1):
        own, theirs = timed(assay_blind, few)[1], timed(choix_optimiser, few)[1]
    print(
        f"\nchoix's opt_pairwise on {len(few):,} votes: {theirs:.2f} CPU s, ours {own:.3f}: {theirs / own:.0f} times it"
    )
    columns = 3 * 8 * len(frame)
    print(
        f"\nfloor judge-blind: reading three columns as 8-byte codes once is {columns / 2**20:.0f} MiB; after "
        f"counting, an iteration reads {N_MODELS * (N_MODELS - 1) // 2:,} cells (judge-blind) or at most "
        f"{N_JUDGES * N_MODELS * (N_MODELS - 1) // 2:,} (judge-aware) and solves one system of "
        f"{N_MODELS} or {N_MODELS + N_JUDGES} unknowns"
    )


if __name__ == "__main__":
    main()
