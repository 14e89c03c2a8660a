"""Time of one whitened truncation beside SVD-LLM's way of computing it, and of a factorised layer beside a dense one.

python benchmarks/dynamic_whitening.py [--repeats 5]

The peer: Cholesky factor in float64, singular value decomposition of W S in float32 by torch, triangular solve, as in
SVD-LLM's published code. Ours: one symmetric eigenproblem of the smaller side, in float64. They alternate in one
process on one thread. The floor of the truncation is the product W G, which any whitening needs; that of a layer is its
share of the parameters.
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import time
from typing import TYPE_CHECKING

import torch
from torch import nn

from assay.compress.dynamic_whitening import LowRankLinear, output_error, rank_for_ratio, whitened_svd
from assay.trials.compress.svd_baselines import svd_llm

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES = ((576, 576), (192, 576), (1536, 576), (576, 1536))
RATIO = 0.8


def cpu_seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def alternating(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(cpu_seconds(run))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"CPU seconds on one thread, {platform.machine()}; medians of {repeats}, ratios of pairs in one run")
    print(f"{'weight':<12} {'SVD-LLM':>8} {'ours':>8} {'W G':>8} {'ratio':>6} {'error, SVD-LLM / ours':>22}")
    for rows, columns in SHAPES:
        weight = torch.randn(rows, columns)
        x = torch.randn(4096, columns) * torch.logspace(-2, 1, columns) @ torch.randn(columns, columns)
        gram = (x.T @ x).double()
        rank = rank_for_ratio(rows, columns, RATIO)
        wide = weight.double()
        times = alternating(
            {
                "peer": lambda w=weight, g=gram: svd_llm(w, g),
                "ours": lambda w=weight, g=gram, k=rank: whitened_svd(w, g, k, eps=1e-6),
                "floor": lambda w=wide, g=gram: w @ g,
            },
            repeats,
        )
        ratio = statistics.median(p / o for p, o in zip(times["peer"], times["ours"], strict=True))
        peer, ours, floor = (statistics.median(times[name]) for name in ("peer", "ours", "floor"))
        pair, made = svd_llm(weight, gram).cut(rank), whitened_svd(weight, gram, rank, eps=1e-6)
        errors = output_error(weight, (pair.a, pair.b), gram) / output_error(weight, (made.a, made.b), gram)
        print(f"{rows:>5} x {columns:<4} {peer:>8.3f} {ours:>8.3f} {floor:>8.4f} {ratio:>6.2f} {errors:>22.6f}")
    print("\nforward of 256 tokens, 1536 x 576: time of dense over factorised (floor: 1 / share kept), one thread")
    dense, x = nn.Linear(576, 1536), torch.randn(256, 576)
    for ratio in (0.8, 0.5, 0.2):
        rank = rank_for_ratio(1536, 576, ratio)
        layer = LowRankLinear.from_factors(dense, whitened_svd(dense.weight, torch.eye(576), rank))
        with torch.inference_mode():
            times = alternating(
                {
                    "dense": lambda: [dense(x) for _ in range(20)],
                    "thin": lambda layer=layer: [layer(x) for _ in range(20)],
                },
                repeats,
            )
        gain = statistics.median(d / t for d, t in zip(times["dense"], times["thin"], strict=True))
        print(f"{ratio:<6} {gain:.2f} ({1 / ratio:.2f})")
    print(f"peak memory of the process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
