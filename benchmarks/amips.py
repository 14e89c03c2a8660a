"""Speed of amips: exact labels beside FAISS's exact search, and mapped search beside IVF, HNSW and exact search.

python benchmarks/amips.py [--queries 330000] [--keys 30000] [--features 64] [--threads 2] [--search]

Labels: the best of 30,000 keys for each of 330,000 queries, without the matrix of scores (40 GB); ours and
`faiss.knn` (k = 1) alternate in one process. With `--search`, a KeyNet of a twentieth of the keys' numbers is trained
for 300 steps and searched with: the table says what a query costs in operations and in milliseconds.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time

import faiss
import numpy as np
import torch
from threadpoolctl import threadpool_limits

from assay.nn.amips import KeyNet, best_keys, compare_ivf

REPEATS = 3


def unit(n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    vectors = rng.standard_normal((n, d), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def labels(queries: np.ndarray, keys: np.ndarray, n_threads: int) -> None:
    operations = 2 * len(queries) * len(keys) * queries.shape[1]
    before = peak_mib()
    ways = {
        "best_keys": lambda: best_keys(queries, keys, n_jobs=n_threads)[0],
        "faiss.knn": lambda: faiss.knn(queries, keys, 1, metric=faiss.METRIC_INNER_PRODUCT)[1][:, 0],
        "matrix products alone": lambda: products(queries, keys),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    rose = {}
    for repeat in range(REPEATS):
        for name, run in ways.items():
            start, busy = time.perf_counter(), time.process_time()
            run()
            seconds[name].append(time.perf_counter() - start)
            cpu[name].append(time.process_time() - busy)
            if repeat == 0:
                rose[name] = peak_mib() - before
                before = peak_mib()
    print(
        f"{len(queries):,} queries, {len(keys):,} keys of {queries.shape[1]}, {n_threads} threads; medians of {REPEATS}"
    )
    print(f"floor: {operations / 1e9:,.0f} billion operations; the matrix of scores would be "
          f"{4 * len(queries) * len(keys) / 2**30:.0f} GiB")  # fmt: skip
    print(f"{'':<22} {'wall s':>8} {'CPU s':>8} {'to ours':>8} {'MiB more':>9}  (the ratio is of CPU seconds)")
    for name, taken in cpu.items():
        ratio = statistics.median(t / own for t, own in zip(taken, cpu["best_keys"], strict=True))
        middle = statistics.median(seconds[name])
        print(f"{name:<22} {middle:>8.1f} {statistics.median(taken):>8.1f} {ratio:>8.2f} {rose[name]:>9.0f}")


def products(queries: np.ndarray, keys: np.ndarray) -> None:
    """What no exact way can save: the products of blocks, thrown away."""
    buffer = np.empty((8192, 2048), np.float32)
    for start in range(0, len(queries), 8192):
        some = queries[start : start + 8192]
        for first in range(0, len(keys), 2048):
            part = keys[first : first + 2048]
            np.matmul(some, part.T, out=buffer[: len(some), : len(part)] if len(part) == 2048 else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=330_000)
    parser.add_argument("--keys", type=int, default=30_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--search", action="store_true")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    queries = unit(arguments.queries, arguments.features, rng)
    keys = unit(arguments.keys, arguments.features, rng)
    faiss.omp_set_num_threads(arguments.threads)
    torch.set_num_threads(arguments.threads)
    with threadpool_limits(arguments.threads):
        if not arguments.search:
            labels(queries, keys, arguments.threads)
            return
        # Queries lie around the keys that they look for, and not near: |query − key|² is 0.5 on average.
        near = keys[rng.integers(len(keys), size=len(queries))] + 0.75 * unit(len(queries), arguments.features, rng)
        near /= np.linalg.norm(near, axis=1, keepdims=True)
        net = KeyNet(depth=2, fraction=0.05, steps=300, noise=(0, 0.0), random_state=0).fit(near[2_000:], keys)
        print(compare_ivf(net, near[:2_000]).summary())


if __name__ == "__main__":
    main()
