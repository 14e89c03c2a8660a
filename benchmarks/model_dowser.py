"""What scoring costs beside a forward pass, and what a mask costs beside full fine-tuning of the same layers.

python benchmarks/model_dowser.py [--width 256] [--blocks 6] [--tokens 64]

On one thread, alternating in one process, a random Llama. Scoring a probe with R draws needs one forward and R backward
passes without gradients of weights, each about a forward pass: the floor is (1 + R) forward passes. A step of training:
full fine-tuning, masked, packed. Times are CPU seconds, medians of ratios to the peer beside them.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from typing import TYPE_CHECKING

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from assay.adapt.model_dowser import full_mask, importance, random_mask

if TYPE_CHECKING:
    from collections.abc import Callable

REPEATS = 7
DRAWS = 4
BATCH = 4


def cpu_seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def stepper(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> Callable[[], None]:
    """One step of training."""

    def step() -> None:
        model(ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048, hidden_size=arguments.width, intermediate_size=3 * arguments.width,
        num_hidden_layers=arguments.blocks, num_attention_heads=8, num_key_value_heads=4,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    ids = torch.randint(2048, (BATCH, arguments.tokens))

    def forward() -> None:
        with torch.no_grad():
            model(ids, use_cache=False)

    def score() -> None:
        importance(model, ids, n_hutchinson=DRAWS, batch_size=BATCH)

    full, masked, packed = (copy.deepcopy(model) for _ in range(3))
    weights = [full.get_parameter(name) for name in full_mask(full).trainable]
    full.requires_grad_(False)
    for weight in weights:
        weight.requires_grad_(True)
    mask = random_mask(model)
    tuning, short = mask.apply(masked), mask.pack(packed)
    optimizers = [torch.optim.AdamW(list(p)) for p in (weights, tuning.parameters(), short.parameters())]
    tuning.guard(optimizers[1])
    runs = {
        "forward pass": forward,
        f"scoring, {DRAWS} draws": score,
        "step, full": stepper(full, optimizers[0], ids),
        "step, masked": stepper(masked, optimizers[1], ids),
        "step, packed": stepper(packed, optimizers[2], ids),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(REPEATS + 1):
        for name, run in runs.items():
            spent = cpu_seconds(run)
            if repeat:  # the first is a warm-up
                times[name].append(spent)
    peers = {name: "step, full" if name.startswith("step") else "forward pass" for name in runs}
    n = sum(weight.numel() for weight in weights)
    print(f"{mask.n_trainable:,} of {n:,} weights train; {BATCH} x {arguments.tokens} tokens at a time")
    print(f"{'run':<22}{'ms':>8}{'ratio':>8}  to")
    for name, spent in times.items():
        ratio = statistics.median(a / b for a, b in zip(spent, times[peers[name]], strict=True))
        print(f"{name:<22}{1e3 * statistics.median(spent):>8.1f}{ratio:>8.2f}  {peers[name]}")
    for name, optimizer in zip(("full", "masked", "packed"), optimizers, strict=True):
        state = sum(v.numel() for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v))
        print(f"Adam's moments, {name}: {4 * state / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
