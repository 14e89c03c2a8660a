"""A small trial for the tests of the bench: guess the mean of a sample, with arms that can be made to misbehave."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import numpy as np

from assay.bench import Arm, Case, Claim, Data, Metric, Trial


def load(path, scale, params):
    if path is None:
        return Data("samples of a normal distribution", 200, 200)
    with open(path) as stream:
        return Data("samples", int(stream.read()), 200, path=path)


def cases(data, n, seed):
    for number in range(n):
        rng = np.random.default_rng([seed, number])
        yield Case(f"case {number}", rng.normal(1.0, 1.0, data), 1.0)


def mean(given, seed):
    return float(np.mean(given))


def first_value(given, seed):
    return float(given[0])


def random_value(given, seed):
    """Depends on the seed, and on the order of a set of texts: both must be the same in every process."""
    names = list({"alpha", "beta", "gamma", "delta", "epsilon"})
    return float(np.random.default_rng([seed, *names[0].encode()]).choice(given))


def score(case, output):
    return {"distance": abs(output - case.truth) + 0.01, "bias": output - case.truth}


TOY = Trial(
    slug="toy",
    claim=Claim("guesses the mean better than one value does", metric="distance"),
    load=load,
    cases=cases,
    arms=(Arm("mean", mean), Arm("first value", first_value, baseline=True), Arm("a value", random_value, baseline=True)),
    metrics=(Metric("distance", better="lower", scale="log"), Metric("bias", target=0.0, help="signed error")),
    score=score,
    n_cases={"quick": 8, "standard": 20, "full": 50},
    params={"shift": 0.0, "repeats": 1, "is_sorted": False, "kind": "normal"},
)


def with_method(run, trial=TOY, **changes):
    """The toy trial with another method arm."""
    return replace(trial, arms=(Arm("mean", run), *trial.arms[1:]), **changes)


def slow_mean(given, seed):
    time.sleep(0.15)
    return float(np.mean(given))


SLOW = with_method(slow_mean)


def kills_its_process_on_a_small_mean(given, seed):
    if np.mean(given) < 0.95:
        os._exit(9)
    return float(np.mean(given))
