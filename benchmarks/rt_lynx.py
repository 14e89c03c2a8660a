"""What a sparse layer costs on a CPU, which has no sparse product: selection and lengths beside the dense layer.

python benchmarks/rt_lynx.py [--tokens 1024] [--features 1536] [--outputs 576]

On one thread, alternating in one process: a copy of the inputs (the floor of any selection: every byte read once and
written once), our selection, torch.topk and scatter (what one would write), selection with lengths, and whole layers:
dense, sparse, sparse with a repair. Times are CPU seconds.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from typing import TYPE_CHECKING

import torch
from torch import nn

from assay.compress.rt_lynx import (
    ActivationSparsityConfig,
    Factors,
    SparseActLinear,
    nm_topk,
    relative_flops,
    sparse_activation,
)

if TYPE_CHECKING:
    from collections.abc import Callable

REPEATS = 9
RANK = 64


def by_topk(x: torch.Tensor) -> torch.Tensor:
    """2:4 by torch's own topk, which does not say which of two equals it keeps."""
    groups = x.view(-1, 4)
    kept = groups.abs().topk(2, dim=1, sorted=False).indices
    return torch.zeros_like(groups).scatter_(1, kept, groups.gather(1, kept)).view(x.shape)


def cpu_seconds(run: Callable[[torch.Tensor], object], x: torch.Tensor) -> float:
    start = time.process_time()
    run(x)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--features", type=int, default=1536)
    parser.add_argument("--outputs", type=int, default=576)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(arguments.tokens, arguments.features)
    dense = nn.Linear(arguments.features, arguments.outputs).requires_grad_(False)
    sparse = SparseActLinear.from_linear(dense, ActivationSparsityConfig())
    repaired = SparseActLinear.from_linear(dense, ActivationSparsityConfig())
    repaired.repair(Factors(torch.randn(RANK, arguments.features), torch.randn(arguments.outputs, RANK)))
    runs: dict[str, Callable[[torch.Tensor], object]] = {
        "copy of the inputs": torch.clone,
        "selection": nm_topk,
        "selection by torch.topk": by_topk,
        "selection and lengths": sparse_activation,
        "dense layer": dense,
        "sparse layer": sparse,
        f"sparse layer, rank {RANK}": repaired,
    }
    print(f"the two selections agree: {torch.equal(nm_topk(x)[0], by_topk(x))}")
    times: dict[str, list[float]] = {name: [] for name in runs}
    with torch.inference_mode():
        for run in runs.values():
            run(x)
        for _ in range(REPEATS):
            for name, run in runs.items():
                times[name].append(cpu_seconds(run, x))
    print(
        f"{arguments.tokens} tokens, {arguments.features} to {arguments.outputs} features, float32; {REPEATS} repeats"
    )
    print(f"{'run':<26} {'ms':>8} {'of a copy':>10} {'of the dense layer':>19}")
    for name, taken in times.items():
        copy, layer = (
            statistics.median(t / f for t, f in zip(taken, times[floor], strict=True))
            for floor in ("copy of the inputs", "dense layer")
        )
        print(f"{name:<26} {1000 * statistics.median(taken):>8.2f} {copy:>10.1f} {layer:>19.2f}")
    flops = relative_flops(arguments.features, arguments.outputs, RANK)
    print(f"multiply-adds that a sparse product would need, of the dense layer's: {flops:.3f}")
    print(f"peak memory of the process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
