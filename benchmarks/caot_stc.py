"""Speed of caot-stc: its transport beside POT's solvers, and 20,000 texts from file to clusters.

python benchmarks/caot_stc.py [--texts 20000] [--encode]

A batch of 200 predictions and similarities. Four ways to pseudo-labels alternate in one process: ours with the semantic
term and adaptive sizes; ours without the semantic term; POT's entropic solver; POT's generalised conditional gradient
with the semantic term given to it as a regulariser (sizes fixed: it knows no adaptive ones). Then training on
`--texts` embeddings beside k-means. `--encode` makes them of as many texts of the questions set
(ASSAY_DATA/short_text) with the demo encoder.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from assay.solve.caot_stc import ShortTextClusterer, consistency_aware_ot

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH, REPEATS = 200, 15


def batch(n_clusters: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Predictions that lean to a cluster, and a similarity that knows it."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(n_clusters, size=BATCH)
    logits = 2.0 * np.eye(n_clusters)[truth] + rng.standard_normal((BATCH, n_clusters))
    predictions = np.exp(logits)
    similarity = 0.5 * (truth[:, None] == truth) + 0.3 * rng.random((BATCH, BATCH))
    np.fill_diagonal(similarity, 0.0)
    return predictions / predictions.sum(axis=1, keepdims=True), similarity


def ours(p: np.ndarray, s: np.ndarray) -> np.ndarray:
    return consistency_aware_ot(p, s).labels


def ours_plain(p: np.ndarray, s: np.ndarray) -> np.ndarray:
    return consistency_aware_ot(p).labels


def pot_entropic(p: np.ndarray, s: np.ndarray) -> np.ndarray:
    import ot

    a, b = np.full(len(p), 1 / len(p)), np.full(p.shape[1], 1 / p.shape[1])
    return ot.sinkhorn(a, b, -np.log(p), reg=1.0, warn=False).argmax(axis=1)


def pot_gradient(p: np.ndarray, s: np.ndarray) -> np.ndarray:
    import ot

    a, b = np.full(len(p), 1 / len(p)), np.full(p.shape[1], 1 / p.shape[1])
    plan = ot.optim.gcg(
        a, b, -np.log(p), 1.0, 25.0,
        lambda q: -float((s * (q @ q.T)).sum()),
        lambda q: -(s @ q + s.T @ q),
        numItermax=10, numInnerItermax=10, stopThr=1e-6, stopThr2=1e-6,
    )  # fmt: skip
    return plan.argmax(axis=1)


RUNS = {run.__name__: run for run in (ours, ours_plain, pot_entropic, pot_gradient)}


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def transports() -> None:
    for n_clusters in (20, 152):
        p, s = batch(n_clusters)
        cpu: dict[str, list[float]] = {name: [] for name in RUNS}
        for run in RUNS.values():
            run(p, s)  # warm
        for _ in range(REPEATS):
            for name, run in RUNS.items():
                cpu[name].append(timed(partial(run, p, s))[1])
        floor = 10 * 2 * 2 * BATCH * BATCH * n_clusters / 1e6
        print(f"\n{BATCH} texts, {n_clusters} clusters; medians of {REPEATS}, CPU ms, and the ratio to ours")
        print(f"floor of ours: at most ten steps of two products, {floor:.0f} million operations")
        for name in RUNS:
            share = statistics.median(t / own for t, own in zip(cpu[name], cpu["ours"], strict=True))
            print(f"{name:<14} {1000 * statistics.median(cpu[name]):>8.2f} {share:>8.2f}")


def training(embeddings: np.ndarray) -> None:
    print(f"\n{len(embeddings):,} embeddings of {embeddings.shape[1]}, 20 clusters: seconds")
    print(f"{'':<22} {'wall':>7} {'cpu':>7}")
    for name, run in {
        "k-means, 10 starts": lambda: KMeans(20, n_init=10, random_state=0).fit(embeddings),
        "caot-stc, 600 steps": lambda: ShortTextClusterer(20, random_state=0).fit(embeddings),
    }.items():
        wall, cpu = timed(run)
        print(f"{name:<22} {wall:>7.1f} {cpu:>7.1f}")


def questions(n: int) -> np.ndarray:
    from assay._core.cache import cache_dir
    from assay._core.tables import read_table
    from assay.models import demo_encoder

    texts = read_table(cache_dir() / "short_text" / "stackoverflow.csv.gz", {"text": "text"})["text"].tolist()[:n]
    encoder = demo_encoder()
    encoder.encode(texts[:64])  # warm
    out: list[np.ndarray] = []
    wall, cpu = timed(lambda: out.append(encoder.encode(texts)))
    print(f"\n{len(texts):,} texts of {np.mean([len(text.split()) for text in texts]):.1f} words, demo encoder: "
          f"{wall:.1f} s wall, {cpu:.1f} s CPU, {len(texts) / cpu:.0f} texts per CPU second")  # fmt: skip
    return out[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--encode", action="store_true", help="read real texts instead of drawing embeddings")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="Sinkhorn did not converge", category=UserWarning)  # ten sweeps, as ours
    with threadpool_limits(1):
        transports()
    if arguments.encode:
        training(questions(arguments.texts))
        return
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((20, 384))
    drawn = centres[rng.integers(20, size=arguments.texts)] + 2.0 * rng.standard_normal((arguments.texts, 384))
    training((drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32))


if __name__ == "__main__":
    main()
