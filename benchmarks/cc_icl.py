"""cc-icl: the metrics beside a pandas groupby, and a training step beside torch's own transformer layers.

Run: python benchmarks/cc_icl.py
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from assay.evaluate.cc_icl import score
from assay.evaluate.cc_icl.network import InContextNetwork

if TYPE_CHECKING:
    from collections.abc import Callable

N_ITEMS, N_CRITERIA, REPEATS = 1_000_000, 3, 5


def by_groupby(table: pd.DataFrame) -> tuple[float, float]:
    """CS and CI as a person would write them on a long table: a row for each item and criterion."""
    items = table.assign(hit=table["prediction"] == table["truth"]).groupby("item")
    joint, n_truths = items["hit"].all(), items["truth"].nunique()
    return float(joint[n_truths > 1].mean()), float(joint[n_truths == 1].mean())


class TorchLayers(InContextNetwork):
    """The same network with torch's TransformerEncoderLayer."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        d_model, n_layers, n_heads = sizes[2:]
        layer = nn.TransformerEncoderLayer(d_model, n_heads, 4 * d_model, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, n_layers, enable_nested_tensor=False)
        del self.layers

    def forward(self, support: torch.Tensor, labels: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        """Logits, as the base class."""
        asked = torch.full_like(labels[:, :1], self.answer.num_embeddings - 1)
        items = torch.cat([query[:, None], support], dim=1)
        tokens = self.item(items) + self.answer(torch.cat([asked, labels], dim=1))
        return self.head(self.norm(self.encoder(tokens)[:, 0]))


def training_step(network: nn.Module, batch: tuple[torch.Tensor, ...], truth: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        for _ in range(20):
            loss = nn.functional.cross_entropy(network(*batch), truth)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

    return step


def alternating(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[float, float, float]:
    """Median CPU seconds of both, and the median of the ratios of neighbouring runs."""
    ours(), theirs()
    times = []
    for _ in range(REPEATS):
        pair = []
        for run in (ours, theirs):
            start = time.process_time()
            run()
            pair.append(time.process_time() - start)
        times.append(pair)
    mine, peer = (statistics.median(column) for column in zip(*times, strict=True))
    return mine, peer, statistics.median(b / a for a, b in times)


def peak_mib(run: Callable[[], Any]) -> float:
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    p, g = rng.integers(2, size=(2, N_ITEMS, N_CRITERIA))
    table = pd.DataFrame(
        {"item": np.repeat(np.arange(N_ITEMS), N_CRITERIA), "prediction": p.ravel(), "truth": g.ravel()}
    )
    ours, theirs = (lambda: score(p, g)), (lambda: by_groupby(table))
    found = score(p, g)
    np.testing.assert_allclose((found.sensitivity, found.invariance), by_groupby(table))
    mine, peer, ratio = alternating(ours, theirs)
    print(
        f"metrics, {N_ITEMS:,} items × {N_CRITERIA} criteria: {mine:.2f} s, pandas groupby {peer:.2f} s: {ratio:.1f}×"
    )
    print(f"  peak memory {peak_mib(ours):.0f} MiB, pandas {peak_mib(theirs):.0f} MiB")
    start = time.perf_counter()
    for _ in range(20):
        np.equal(p, g).all()
    print(f"  floor, comparing the two arrays once: {(time.perf_counter() - start) / 20:.3f} s")

    torch.manual_seed(0)
    sizes = (64, 2, 64, 3, 4)
    batch = torch.randn(128, 3, 64), torch.randint(2, (128, 3)), torch.randn(128, 64)
    truth = torch.randint(2, (128,))
    ours, theirs = (training_step(network(*sizes), batch, truth) for network in (InContextNetwork, TorchLayers))
    mine, peer, ratio = alternating(ours, theirs)
    print(
        f"training step, 128 episodes of 3 examples: {mine * 50:.1f} ms, torch layers {peer * 50:.1f} ms: {ratio:.1f}×"
    )
    print("  (one thread, CPU time)")


if __name__ == "__main__":
    main()
