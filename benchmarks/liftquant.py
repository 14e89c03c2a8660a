"""Speed of encoding and of packed layers beside rounding to nearest and a dense layer, and the memory of a whole run.

python benchmarks/liftquant.py [--weights 2097152] [--model]

Encoding: CPU seconds a million weights of normal vectors, alternating with rounding to nearest by a clip search in
torch (which is what a user would otherwise run), and what the 106 million linear weights of SmolLM2-135M would take.
The floor of the fast search is its 2^(D - d) candidates of D comparisons and D / 8 additions of d numbers each.

Layers: seconds of `LiftQuantLinear` (packed) and of `nn.Linear` on the same inputs.

--model quantises the demo model at 16/8 and prints wall seconds and peak memory over that of the model.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np
import psutil
import torch
from torch import nn

from assay.compress.liftquant import LiftQuantConfig, LiftQuantLinear, encode, load_mapping, quantize_
from assay.trials.compress.baselines import fit_grid

if TYPE_CHECKING:
    from collections.abc import Callable

REPEATS = 5
SMOLLM2 = 106_168_320
CODES = (
    ((16, 8), "exact"),
    ((16, 8), "fast"),
    ((16, 10), "exact"),
    ((5, 2), "exact"),
    ((6, 2), "exact"),
    ((20, 8), "fast"),
)


def cpu_seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def rounding(weight: torch.Tensor) -> Callable[[], object]:
    return lambda: fit_grid(weight, 2).nearest(weight)


def encoding(n_weights: int) -> None:
    rng = np.random.default_rng(0)
    weight = torch.from_numpy(rng.standard_normal((n_weights // 1024, 1024), dtype=np.float32))
    runs: dict[str, Callable[[], object]] = {"round to nearest, 2 bits, clip search": rounding(weight)}
    for pair, search in CODES:
        matrix = load_mapping(*pair).matrix
        vectors = weight.numpy().reshape(-1)[: n_weights // 40 * 40].reshape(-1, pair[1])
        vectors = vectors[: len(vectors) // (16 if search == "fast" and pair[0] > 16 else 1)]
        run = lambda v=vectors, m=matrix, s=search: encode(v, m, search=s, threads=1)  # noqa: E731
        encode(vectors[:10], matrix, search=search)  # compiled before it is timed
        runs[f"{pair[0]}/{pair[1]}, {search}"] = run
    sizes = {
        name: n_weights if "round" in name else n_weights // (16 if name.startswith("20/8") else 1) for name in runs
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(REPEATS):
        for name, run in runs.items():
            times[name].append(cpu_seconds(run) / sizes[name])
    print(f"{'encoding, one thread':<40} {'s / 1M weights':>15} {'SmolLM2, CPU s':>15} {'over rounding':>14}")
    first = times["round to nearest, 2 bits, clip search"]
    for name, taken in times.items():
        ratio = statistics.median(t / f for t, f in zip(taken, first, strict=True))
        each = statistics.median(taken)
        print(f"{name:<40} {each * 1e6:>15.3f} {each * SMOLLM2:>15.1f} {ratio:>13.1f}x")


def layers() -> None:
    linear = nn.Linear(1536, 576)
    packed = LiftQuantLinear.from_linear(linear, (16, 8), search="fast")
    print(f"\n{'layer 1536 to 576, 16/8':<40} {'packed, ms':>12} {'dense, ms':>12} {'ratio':>8}")
    for n_rows in (1, 8, 64, 512):
        x = torch.randn(n_rows, 1536)
        times = [[], []]
        with torch.inference_mode():
            for _ in range(4 * REPEATS):
                for taken, layer in zip(times, (packed, linear), strict=True):
                    taken.append(cpu_seconds(lambda layer=layer, x=x: layer(x)))
        ratio = statistics.median(p / max(d, 1e-9) for p, d in zip(*times, strict=True))
        mine, dense = (1e3 * statistics.median(taken) for taken in times)
        print(f"{f'{n_rows} rows':<40} {mine:>12.2f} {dense:>12.2f} {ratio:>7.1f}x")


def whole_model() -> None:
    from assay.models import demo_lm

    model, _ = demo_lm()
    model = model.float()
    for p in model.parameters():  # out of the mapped file, so that it counts as memory
        p.data = p.data.clone()
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    quantize_(nn.Sequential(nn.Linear(64, 8)), LiftQuantConfig())  # compiled before it is timed
    process = psutil.Process()
    before, peak = process.memory_info().rss, 0
    start, cpu = time.perf_counter(), time.process_time()

    def watch(*_: object) -> None:
        nonlocal peak
        peak = max(peak, process.memory_info().rss)

    import threading

    done = threading.Event()
    thread = threading.Thread(target=lambda: [watch() for _ in iter(lambda: done.wait(0.02), True)])
    thread.start()
    report = quantize_(model, LiftQuantConfig(pair=(16, 8)))
    done.set()
    thread.join()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    share = (size + max(0, peak - before)) / size
    print(f"\nSmolLM2-135M at {report.bits_per_weight:.3f} bits, {torch.get_num_threads()} threads:")
    print(f"{seconds:.0f} s wall, {cpu:.0f} s CPU; peak memory {share:.2f} x the model")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=int, default=1 << 21)
    parser.add_argument("--model", action="store_true")
    arguments = parser.parse_args()
    if arguments.model:
        whole_model()
        return
    torch.set_num_threads(1)
    print(f"{arguments.weights:,} weights, {platform.machine()}; medians of {REPEATS}")
    encoding(arguments.weights)
    layers()


if __name__ == "__main__":
    main()
