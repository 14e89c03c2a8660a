"""A small trial for the tests of the bench: guess the mean of a sample, with arms that can be made to misbehave."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np

from assay import bench
from assay.bench import Arm, Case, Claim, Data, Metric, Trial

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/result.schema.json").read_text(encoding="utf-8"))

#: The columns of cases.parquet that the clock decides, not the seed.
MEASURED = ["wall_s", "cpu_s", "peak_mib"]


def load(path, scale, params):
    if path is None:
        return Data("samples of a normal distribution", 200, 1.0)
    return Data("samples around a given mean", 200, float(Path(path).read_text()), path=path)


def cases(data, n, seed):
    for number in range(n):
        yield Case(f"case {number}", np.random.default_rng([seed, number]).normal(data, 1.0, 200), data)


def mean(given, seed):
    return float(np.mean(given))


def first_value(given, seed):
    return float(given[0])


def random_value(given, seed):
    """Depends on the seed and on the order of a set of texts: both must be the same in every process."""
    first, *_ = {"alpha", "beta", "gamma", "delta", "epsilon"}
    return float(np.random.default_rng([seed, *first.encode()]).choice(given))


def score(case, output):
    return {"distance": abs(output - case.truth) + 0.01, "bias": output - case.truth}


TOY = Trial(
    slug="toy",
    claim=Claim("guesses the mean better than one value does", metric="distance"),
    load=load,
    cases=cases,
    arms=(
        Arm("mean", mean),
        Arm("first value", first_value, baseline=True),
        Arm("a value", random_value, baseline=True),
    ),
    metrics=(Metric("distance", better="lower", scale="log"), Metric("bias", target=0.0, help="signed error")),
    score=score,
    n_cases={"quick": 8, "standard": 20, "full": 50},
    params={"shift": 0.0, "repeats": 1, "is_sorted": False, "kind": "normal"},
)


def with_method(method, trial=TOY, **changes):
    """The toy trial with another method."""
    return replace(trial, arms=(Arm("mean", method), *trial.arms[1:]), **changes)


def slow_mean(given, seed):
    time.sleep(0.15)
    return float(np.mean(given))


SLOW = with_method(slow_mean)


def raises_on_a_small_mean(given, seed):
    if np.mean(given) < 0.95:
        raise ValueError("the mean is\ntoo small")
    return float(np.mean(given))


def kills_its_process_on_a_small_mean(given, seed):
    if np.mean(given) < 0.95:
        os._exit(9)
    return float(np.mean(given))


def run(trial, out, **options):
    """Run a trial without a progress bar, and check the result of it and of its parts against the schema."""
    result = bench.run(trial, out=out, **{"progress": False, **options})
    return valid(result)


def valid(result):
    for part in (result, *result.parts):
        file = part.folder / "result.json"
        jsonschema.validate(json.loads(file.read_text(encoding="utf-8")), SCHEMA)
    return result


def decided(result):
    """The table of cases without what the clock decides."""
    return result.to_frame().drop(columns=MEASURED)
