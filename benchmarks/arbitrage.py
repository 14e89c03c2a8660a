"""Speed of arbitrage: fitting thresholds beside the same formulas a problem at a time, and a whole report.

Run: python benchmarks/arbitrage.py [--problems 445] [--repeats 5]

The peer is the method as its paper states it: for each problem the curve of the cascade, interpolated back to the grid
of budgets, then the mean. Ours takes the mean first where that is the same (a cascade is linear in the problems'
weights). The floor is one product of (1 × problems) with (problems × budgets) per stage and threshold: what must be
read at least once.
"""

import argparse
import statistics
import time
import tracemalloc

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from assay.evaluate.arbitrage import CascadePolicy, Market, arbitrage
from assay.evaluate.arbitrage.curves import cascade, expected_spend, margin, price


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--problems", type=int, default=445)
    options.add_argument("--repeats", type=int, default=5)
    given = options.parse_args()
    market = simulated(given.problems)
    tried = CascadePolicy(["cheap", "dear"]).candidates(market, ("cheap", "dear"))
    rates = np.linspace(0.9, 1.0, 1000) * market.frontier
    print(
        f"{given.problems} problems, {len(market.budgets)} budgets, {len(tried)} thresholds, {len(rates)} solve rates"
    )

    ours, theirs, floor = [], [], []
    for _ in range(given.repeats):
        first = timed(ours, lambda: margins(market, tried, rates, vectorised))
        second = timed(theirs, lambda: margins(market, tried, rates, one_by_one))
        timed(floor, lambda: [market.uniform @ curves for curves in market.solved for _ in tried])
    assert np.allclose(first, second, atol=1e-6)
    ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    print(f"fit          {statistics.median(ours):8.3f} s")
    print(f"one by one   {statistics.median(theirs):8.3f} s   {ratio:.0f} times ours (median of {given.repeats})")
    print(f"floor        {statistics.median(floor):8.3f} s   reading every curve once per threshold")

    start = time.process_time()
    arbitrage(market, ["cheap", "dear"], n_boot=500)
    seconds = time.process_time() - start
    tracemalloc.start()  # slows the work down, so it gets a run of its own
    arbitrage(market, ["cheap", "dear"], n_boot=500)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"report       {seconds:8.1f} s   500 bootstrap samples refitted, 5 folds; peak {peak / 2**20:.0f} MiB")
    four = simulated(given.problems, providers=4)
    start = time.process_time()
    policy = CascadePolicy(list(four.providers))
    policy.fit(four)
    n_tried = len(policy.candidates(four, four.providers))
    print(f"four stages  {time.process_time() - start:8.1f} s   {n_tried} thresholds")


def timed(seconds, work):
    start = time.process_time()
    result = work()
    seconds.append(time.process_time() - start)
    return result


def margins(market, tried, rates, curve):
    prices = market.market_price(rates)
    found = []
    for thresholds in tried:
        solved = curve(market, thresholds)
        found.append(np.nan_to_num(margin(prices, price(solved, expected_spend(solved, market.budgets), rates))).mean())
    return np.array(found)


def vectorised(market, thresholds):
    return cascade(*market.stages(market.providers), market.budgets, thresholds, market.uniform)[1][0]


def one_by_one(market, thresholds):
    log = np.log(market.budgets)
    found = np.zeros(len(log))
    for problem in range(market.n_problems):
        passed, spent, xs, ys = 0.0, 0.0, [], []
        for curve, threshold in zip(market.solved[:, problem], thresholds, strict=True):
            if threshold <= 0:
                continue
            at = np.interp(np.log(threshold), log, curve) if threshold >= market.budgets[0] else 0.0
            xs.append(np.minimum(market.budgets, threshold) + spent)
            ys.append(np.minimum(curve, at) * (1 - passed) + passed)
            passed, spent = at * (1 - passed) + passed, spent + threshold
        found += np.interp(log, np.log(np.concatenate(xs)), np.concatenate(ys))
    return found / market.n_problems


def simulated(n_problems, providers=2, n_attempts=60):
    rng = np.random.default_rng(0)
    ease = rng.normal(size=n_problems)
    names = ["cheap", "dear", "dearer", "dearest"][:providers]
    frames = []
    for number, name in enumerate(names):
        p = 1 / (1 + np.exp(-(2 * ease - 1.5 + number + rng.normal(size=n_problems))))
        frames.append(
            pd.DataFrame(
                {
                    "model": name,
                    "task": np.repeat(np.arange(n_problems), n_attempts),
                    "solved": (rng.random((n_problems, n_attempts)) < p[:, None]).ravel().astype(int),
                    "cost": np.repeat(0.005 * 6.0**number * rng.lognormal(0, 0.5, n_problems), n_attempts),
                }
            )
        )
    return Market.from_attempts(pd.concat(frames))


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
