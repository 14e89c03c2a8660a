"""Markets that several tests of arbitrage use, and the paper's formulas written once more, a problem at a time."""

import numpy as np
import pandas as pd

from assay.evaluate.arbitrage import Market


def table(rows):
    """Rows (model, task, solved, cost), each attempted twice so that nothing warns."""
    return pd.DataFrame([row for row in rows for _ in range(2)], columns=["model", "task", "solved", "cost"])


def specialists(n=20):
    """Two providers at cost 1: each solves its half of the tasks always, and the other half never."""
    rows = [("a", f"t{i}", i < n // 2, 1.0) for i in range(n)] + [("b", f"t{i}", i >= n // 2, 1.0) for i in range(n)]
    return table(rows).astype({"solved": int})


def two_bernoulli(p_cheap=0.3, p_dear=0.6, n=20_000, max_budget=15.0, n_budgets=20_000):
    """One kind of problem: attempts at cost 1 and 3 succeed with known probabilities; a grid so fine that steps are."""
    counts = {"cheap": (p_cheap, 1.0), "dear": (p_dear, 3.0)}
    frames = []
    for name, (p, cost) in counts.items():
        solved = (np.arange(n) < round(p * n)).astype(int)
        frames.append(pd.DataFrame({"model": name, "task": "t", "solved": solved, "cost": cost}))
    return Market.from_attempts(pd.concat(frames), budgets=np.geomspace(0.5, max_budget, n_budgets))


def random_market(seed=0, n_problems=60, n_attempts=12, providers=2, **options):
    """Providers of rising strength and price on problems of mixed difficulty."""
    rng = np.random.default_rng(seed)
    ease = rng.normal(size=n_problems)
    tasks = np.repeat([f"t{i}" for i in range(n_problems)], n_attempts)
    frames = []
    for m in range(providers):
        p = 1 / (1 + np.exp(-(ease * 2 - 1 + m + rng.normal(size=n_problems))))
        cost = np.repeat(10.0**m * rng.uniform(0.5, 2, size=n_problems), n_attempts)
        solved = (rng.random(n_problems * n_attempts) < np.repeat(p, n_attempts)).astype(int)
        frames.append(pd.DataFrame({"model": f"m{m}", "task": tasks, "solved": solved, "cost": cost}))
    return Market.from_attempts(pd.concat(frames), **options)


def worthwhile_market(n_problems=100, n_attempts=20, extra=None, **options):
    """A cheap provider that often solves the easy half and never the rest, and a dear one that solves nine in ten."""
    rng = np.random.default_rng(0)
    easy, within_reach = np.arange(n_problems) % 2 == 0, np.arange(n_problems) % 10 != 0
    providers = {"cheap": (0.6 * easy, 1.0), "dear": (0.5 * within_reach, 10.0), **(extra or {})}
    frames = []
    for name, (p, cost) in providers.items():
        solved = rng.random((n_problems, n_attempts)) < np.broadcast_to(p, n_problems)[:, None]
        tasks = np.repeat([f"t{i}" for i in range(n_problems)], n_attempts)
        frames.append(pd.DataFrame({"model": name, "task": tasks, "solved": solved.ravel().astype(int), "cost": cost}))
    return Market.from_attempts(pd.concat(frames), **{"max_budget": 100.0, **options})


def cascade_one_by_one(curves, budgets, thresholds):
    """The paper's cascade for each problem on its own, then the mean over problems: (n_budgets,)."""
    found = []
    for problem in range(curves.shape[1]):
        q, s, xs, ys = 0.0, 0.0, [], []
        for curve, tau in zip(curves[:, problem], thresholds, strict=True):
            if tau <= 0:
                continue
            g = np.interp(np.log(tau), np.log(budgets), curve) if tau >= budgets[0] else 0.0
            xs += list(np.minimum(budgets, tau) + s)
            ys += list(np.minimum(curve, g) * (1 - q) + q)
            q, s = g * (1 - q) + q, s + tau
        found.append(np.interp(np.log(budgets), np.log(xs), ys))
    return np.mean(found, axis=0)
