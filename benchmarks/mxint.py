"""Speed of fake quantisation on one core beside the floor of the memory, and beside torchao where it is installed.

python benchmarks/mxint.py [--elements 16777216]

Three runs alternate in one process on one thread: a copy of the tensor into new memory (the floor: every byte read once
and written once, pages included), ours, and torchao's cast to MX and back (floor rule; it has no integer MX format, so
its E4M3 stands beside our E4M3). Rates are bytes of the float32 input a second of CPU time. Behind them, what training
costs: a layer of 576 inputs and 1,536 outputs on 1,024 tokens, forward and backward, beside ``nn.Linear``.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import resource
import statistics
import time
from typing import TYPE_CHECKING

import torch

from assay.compress.mxint import PAPER_FORMATS, MXTrainingConfig, MXTrainingLinear, fake_quant

if TYPE_CHECKING:
    from collections.abc import Callable

REPEATS = 7


def torchao_cast(x: torch.Tensor) -> torch.Tensor:
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_dtype, to_mx

    scale, data = to_mx(x, torch.float8_e4m3fn, 32, ScaleCalculationMode.FLOOR)
    return to_dtype(data, scale, torch.float8_e4m3fn, 32, torch.float32)


def cpu_seconds(run: Callable[[torch.Tensor], object], x: torch.Tensor) -> float:
    start = time.process_time()
    run(x)
    return time.process_time() - start


def training() -> None:
    dense = torch.nn.Linear(576, 1536)
    layers = {"nn.Linear": dense}
    for fmt in ("mxint8", "mxfp8"):
        layers[fmt] = MXTrainingLinear.from_linear(dense, MXTrainingConfig.all_points(fmt))
    x = torch.randn(1024, 576, requires_grad=True)
    times: dict[str, list[float]] = {name: [] for name in layers}
    for _ in range(REPEATS):
        for name, layer in layers.items():
            times[name].append(cpu_seconds(lambda given, layer=layer: layer(given).square().sum().backward(), x))
    print("\ntraining, of nn.Linear's time:")
    for name, taken in times.items():
        ratio = statistics.median(t / f for t, f in zip(taken, times["nn.Linear"], strict=True))
        print(f"{name:<20} {1000 * statistics.median(taken):>6.1f} ms {ratio:>6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=1 << 24)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randn(arguments.elements // 32, 32)
    runs: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"copy to new memory": torch.clone}
    for fmt in PAPER_FORMATS:
        runs[f"{fmt}"] = lambda x, fmt=fmt: fake_quant(x, fmt)
    runs["mxfp8, OCP rule"] = lambda x: fake_quant(x, "mxfp8", scale_rule="ocp")
    if importlib.util.find_spec("torchao"):
        runs["torchao mxfp8"] = torchao_cast
        same = torch.equal(torchao_cast(x[:1024]), fake_quant(x[:1024], "mxfp8", scale_rule="ocp"))
        print(f"torchao's values are ours: {same}")
    for run in runs.values():
        run(x[:4096])
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(REPEATS):
        for name, run in runs.items():
            times[name].append(cpu_seconds(run, x))
    n_bytes = x.numel() * 4
    floor = times["copy to new memory"]
    print(f"{x.numel():,} float32, {n_bytes / 1e6:.0f} MB, one thread, {platform.machine()}; medians of {REPEATS}")
    print(f"{'run':<20} {'GB/s':>6} {'of the floor':>13}")
    for name, taken in times.items():
        share = statistics.median(f / t for f, t in zip(floor, taken, strict=True))
        print(f"{name:<20} {n_bytes / statistics.median(taken) / 1e9:>6.2f} {share:>12.0%}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of the process {peak:.0f} MiB; input and output are {2 * n_bytes / 2**20:.0f} MiB")
    training()


if __name__ == "__main__":
    main()
