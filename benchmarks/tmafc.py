"""Speed of tmafc: what the stopping rule and its calibration add to the model's own time.

Run: python benchmarks/tmafc.py [--questions 200] [--records 10000] [--repeats 7]

Two peers, run in turn with ours in the same process. The rule: Algorithm 1 written out with `scipy.stats.beta.sf` for
every component in every round. The fit: `scipy.optimize.minimize` on all records with differences for a gradient. The
floor of the rule is one look at every value that is asked for; the floor of the fit is one pass over the records.
"""

import argparse
import statistics
import time
import tracemalloc
from collections import Counter

import numpy as np
from scipy.optimize import minimize
from scipy.special import betaln
from scipy.stats import beta

from assay.decode.tmafc import Recorded, fit_beta_prior
from assay.decode.tmafc.replay import Settings, fractal


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--questions", type=int, default=200)
    options.add_argument("--records", type=int, default=10_000)
    options.add_argument("--repeats", type=int, default=7)
    given = options.parse_args()
    rng = np.random.default_rng(0)

    records = [question(rng, number) for number in range(given.questions)]
    n_rounds = sum(fractal(record, Settings()).n_samples for record in records)
    ours, theirs, floor = [], [], []
    for _ in range(given.repeats):
        first = timed(ours, lambda: [fractal(record, Settings()).answer for record in records])
        second = timed(theirs, lambda: [written_out(record) for record in records])
        timed(floor, lambda: [sample[name] for record in records for sample in record.samples for name in sample])
    assert first == second
    print(f"the rule: {given.questions} questions, {n_rounds} rounds")
    print(f"  ours        {1e6 * statistics.median(ours) / n_rounds:8.1f} µs a round")
    print(f"  written out {1e6 * statistics.median(theirs) / n_rounds:8.1f} µs a round   {ratio(theirs, ours)}")
    print(f"  floor       {1e6 * statistics.median(floor) / n_rounds:8.1f} µs a round   reading every value")

    votes = rng.integers(2, 41, given.records)
    agreeing = np.maximum(1, rng.binomial(votes, 0.8))
    ours, theirs, floor = [], [], []
    for _ in range(given.repeats):
        first = timed(ours, lambda: fit_beta_prior(votes, agreeing))
        second = timed(theirs, lambda: plain_fit(votes, agreeing))
        timed(floor, lambda: np.bincount(votes * 64 + agreeing))
    assert np.allclose(first, second, atol=1e-3)
    tracemalloc.start()
    fit_beta_prior(votes, agreeing)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"the fit: {given.records} records, peak {peak / 2**20:.1f} MiB")
    print(f"  ours        {1e3 * statistics.median(ours):8.2f} ms")
    print(f"  plain       {1e3 * statistics.median(theirs):8.2f} ms   {ratio(theirs, ours)}")
    print(f"  floor       {1e3 * statistics.median(floor):8.2f} ms   counting the records once")


def timed(seconds, work):
    start = time.perf_counter()
    result = work()
    seconds.append(time.perf_counter() - start)
    return result


def ratio(theirs, ours):
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    return f"{statistics.median(ratios):.1f} times ours (median of {len(ratios)})"


def question(rng, number):
    names = ("a", "b", "c")
    values = rng.choice(["right", "x", "y"], size=(40, 3), p=[0.65, 0.2, 0.15]).tolist()
    return Recorded(f"question {number}", names, tuple(dict(zip(names, row, strict=True)) for row in values))


def written_out(record):
    counts = {name: Counter() for name in record.components}
    settled = set()
    for sample in record.samples:
        for name in record.components:
            if name in settled:
                continue
            counts[name][sample[name]] += 1
            (_, c1), (_, c2) = [*counts[name].most_common(2), ("", 0)][:2]
            if c1 + c2 >= 2 and beta.sf(0.5, 1 + c1, 1 + c2) > 0.95:
                settled.add(name)
        if len(settled) == len(counts):
            break
    return {name: votes.most_common(1)[0][0] for name, votes in counts.items()}


def plain_fit(votes, agreeing):
    def loss(prior):
        a, b = prior
        return -np.sum(betaln(a + agreeing, b + votes - agreeing) - betaln(a, b))

    return minimize(loss, [1.0, 1.0], method="L-BFGS-B", bounds=[(0.01, 1.0)] * 2).x


if __name__ == "__main__":
    main()
