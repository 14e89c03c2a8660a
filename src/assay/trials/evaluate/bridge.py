"""A scale learned from who solves what, beside raw success rates: foresight of human time.

Main part: a real process with a known answer. Tasks are numbers n = p q, models are Pollard's rho with a budget of
iterations, human time is trial division at one step a second (p seconds). Weak models ran the easy suites and strong
ones the hard, as in life; the middle suite is the one that nobody timed. `trend` asks the same worlds for their
doubling time. `timed` holds out times of a benchmark fold by fold (METR's tasks, or a folder of your own), `transfer`
those of another benchmark (SWE-bench, from METR's times).
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from assay import datasets
from assay._core.errors import InputError
from assay._core.seeds import child_seed
from assay.bench import Arm, Case, Claim, Data, Metric, Trial
from assay.evaluate.bridge import TimeHorizonIRT, read_responses, score_minutes
from assay.evaluate.bridge.baselines import metr_horizons, success_rate_scale
from assay.evaluate.bridge.calibration import calibrate
from assay.evaluate.bridge.horizons import forecast
from assay.evaluate.bridge.responses import code_responses
from assay.evaluate.bridge.side_tables import minutes_by_task, read_minutes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from assay.bench.spec import Parameter, Scale
    from assay.evaluate.bridge.calibration import Calibration
    from assay.evaluate.bridge.likelihood import Array


class Given(NamedTuple):
    """What an arm sees: who solved what, the human minutes of some tasks, and the tasks whose minutes are asked for."""

    responses: pd.DataFrame
    minutes: pd.Series[float]
    asked: list[str]
    discrimination_sd: float = 0.5


# --------------------------------------------------------------------------------- ways to foresee human minutes


def by_bridge(given: Given, seed: int) -> Array:
    """Human minutes by the method."""
    irt = TimeHorizonIRT(prior_sd=(3.0, 3.0, given.discrimination_sd)).fit(given.responses, given.minutes)
    return irt.predict_minutes(given.asked)


def by_success_rate(given: Given, seed: int) -> Array:
    """The paper's baseline: the log odds of a task's failure rate as its difficulty, then the same line."""
    coded = code_responses(given.responses)
    difficulty = success_rate_scale(coded.records)[1]
    timed, asked = coded.tasks.get_indexer(given.minutes.index), coded.tasks.get_indexer(pd.Index(given.asked))
    return calibrate(difficulty[timed], given.minutes.to_numpy(np.float64)).predict(difficulty[asked])


def by_typical_time(given: Given, seed: int) -> Array:
    """No model at all: every task takes the geometric mean of the known times."""
    return np.full(len(given.asked), np.exp(np.log(given.minutes).mean()))


def foresight(case: Case, predicted: Array) -> dict[str, float]:
    """How far the predicted minutes are from those that people took."""
    return score_minutes(predicted, case.truth)


FORESEE = (
    Arm("BRIDGE", by_bridge),
    Arm("logit success rate", by_success_rate, baseline=True),
    Arm("typical time", by_typical_time, baseline=True),
)
METRICS = (
    Metric("log_error", better="lower", help="mean |log(predicted / human minutes)|: 0.69 is a factor of two"),
    Metric("within_2x", better="higher", help="share of tasks within a factor of two of the human time"),
    Metric("r2_log", better="higher", help="R² of log minutes on tasks whose times were used nowhere"),
    Metric("bucket_accuracy", better="higher", help="share of tasks in the right class: <= 15, 60, 240, > 240 minutes"),
    Metric("macro_f1", better="higher", help="F1 of these classes, averaged"),
    Metric("linear_kappa", better="higher", help="agreement in these classes beyond chance; 0 for a constant answer"),
)

# ------------------------------------------------------------------ a world with a known answer: factoring by rho

SUITES = ((2.0, 3.6, range(15)), (3.2, 4.8, range(4, 21)), (4.4, 6.2, range(11, 24)))
N_MODELS, TASKS_PER_SUITE, SHARE_DROPPED = 24, 100, 0.1
BUDGETS = np.array([int(4 * 2 ** (0.42 * j)) for j in range(N_MODELS)])

#: Budgets double every 6 months; rho takes about √p steps, so the horizon grows as the budget squared.
MONTHS_BETWEEN_MODELS, TRUE_DOUBLING = 6 * 0.42, 3.0

RHO = "24 budgets of Pollard's rho on 300 numbers to factor"
N_TRIED = int(TASKS_PER_SUITE * sum(len(models) for _, _, models in SUITES) * (1 - SHARE_DROPPED))


class World(NamedTuple):
    """One draw: who factored what, human minutes and suite of every number, release date of every model."""

    responses: pd.DataFrame
    minutes: pd.Series[float]
    suite: pd.Series[int]
    dates: pd.Series[pd.Timestamp]


@cache
def _primes(up_to: int = 30_000_000) -> NDArray[np.int64]:
    odd = np.ones(up_to // 2, bool)
    for k in range(3, int(up_to**0.5) + 1, 2):
        if odd[k // 2]:
            odd[k * k // 2 :: k] = False
    return np.concatenate([[2], 2 * np.flatnonzero(odd)[1:] + 1])


def rho_steps(p: NDArray[np.int64], q: NDArray[np.int64], limit: NDArray[np.int64], rng: np.random.Generator) -> Array:
    """Steps after which Pollard's rho has split n = p q, infinity where `limit` steps are not enough.

    Works modulo p and modulo q side by side: gcd(x − y, n) is a proper factor exactly when x = y modulo one of them.
    """
    steps = np.full(len(p), np.inf)
    start, c = rng.integers(2, 1000, len(p)), rng.integers(1, 1000, len(p))
    running = np.arange(len(p))
    slow = np.stack([start % p, start % q])
    fast = slow.copy()
    modulus, c = np.stack([p, q]), np.stack([c, c])
    for step in range(1, int(limit.max()) + 1):
        slow = (slow * slow + c) % modulus
        fast = (fast * fast + c) % modulus
        fast = (fast * fast + c) % modulus
        met = slow == fast
        split = met[0] ^ met[1]
        steps[running[split]] = step
        going = ~met.any(axis=0) & (limit[running] > step)
        if not going.all():
            running = running[going]
            slow, fast, modulus, c = (array[:, going] for array in (slow, fast, modulus, c))
        if not len(running):
            break
    return steps


def make_world(seed: int) -> World:
    """Draw numbers, and run every model of a suite on its numbers, each attempt with a start of its own."""
    rng = np.random.default_rng(seed)
    primes = _primes()
    records: list[pd.DataFrame] = []
    minutes: dict[str, float] = {}
    suite: dict[str, int] = {}
    for number, (low, high, models) in enumerate(SUITES, start=1):
        small = primes[np.searchsorted(primes, 10 ** rng.uniform(low, high, TASKS_PER_SUITE))]
        large = primes[np.searchsorted(primes, small * rng.uniform(8, 16, TASKS_PER_SUITE))]
        names = [f"suite {number}/{task:03d}" for task in range(TASKS_PER_SUITE)]
        minutes |= dict(zip(names, small / 60.0, strict=True))
        suite |= dict.fromkeys(names, number)
        model, task = (grid.ravel() for grid in np.meshgrid(list(models), np.arange(TASKS_PER_SUITE)))
        kept = rng.random(len(model)) >= SHARE_DROPPED
        model, task = model[kept], task[kept]
        solved = np.isfinite(rho_steps(small[task], large[task], BUDGETS[model], rng))
        records.append(
            pd.DataFrame(
                {
                    "model": [f"rho {BUDGETS[m]}" for m in model],
                    "task": [names[t] for t in task],
                    "correct": solved.astype(float),
                }
            )
        )
    days = (np.arange(N_MODELS) * MONTHS_BETWEEN_MODELS * 30.4375).round()
    dates = pd.Timestamp("2020-01-15") + pd.to_timedelta(days, unit="D")
    responses = pd.concat(records, ignore_index=True)
    tried = responses["task"].unique()
    return World(
        responses,
        pd.Series(minutes).reindex(tried),
        pd.Series(suite).reindex(tried),
        pd.Series(dates, [f"rho {budget}" for budget in BUDGETS]),
    )


def load_worlds(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    """Nothing to load: every case draws its own world."""
    return Data(RHO, N_TRIED, params.get("discrimination_sd"))


def untimed_suite(discrimination_sd: float, n: int, seed: int) -> Iterator[Case]:
    """Worlds drawn one by one; the times of suites 1 and 3 are known, those of suite 2 are asked for."""
    for number in range(n):
        world = make_world(child_seed(seed, "rho", number))
        untimed = world.suite == 2
        asked = world.minutes[untimed]
        given = Given(world.responses, world.minutes[~untimed], list(asked.index), discrimination_sd)
        yield Case(f"world {number + 1}", given, asked.to_numpy())


# ------------------------------------------------------------------------------ the same world's doubling time


class Dated(NamedTuple):
    """What an arm of the trend sees; METR's way alone needs the minutes of all tasks, so every arm gets them."""

    responses: pd.DataFrame
    minutes: pd.Series[float]
    dates: pd.Series[pd.Timestamp]


def all_timed(data: None, n: int, seed: int) -> Iterator[Case]:
    """The worlds of the main part, all human times known."""
    for number in range(n):
        world = make_world(child_seed(seed, "rho", number))
        yield Case(f"world {number + 1}", Dated(world.responses, world.minutes, world.dates), TRUE_DOUBLING)


def doubling_by_bridge(given: Dated, seed: int) -> tuple[float, float, float]:
    """By the method, the frontier chosen anew in every bootstrap draw."""
    irt = TimeHorizonIRT().fit(given.responses, given.minutes, given.dates)
    found = irt.forecast(bootstrap="models")
    return found.doubling_months, found.ci_low, found.ci_high


def doubling_by_success_rate(given: Dated, seed: int) -> tuple[float, float, float]:
    """The log odds of a model's success rate as its ability."""
    coded = code_responses(given.responses)
    ability, difficulty = success_rate_scale(coded.records)
    line = calibrate(difficulty, given.minutes.reindex(coded.tasks).to_numpy(np.float64))
    return _doubling(coded.models, ability, line, given)


def doubling_by_metr(given: Dated, seed: int) -> tuple[float, float, float]:
    """METR's own method: horizons by a logistic regression for every model."""
    coded = code_responses(given.responses)
    log_minutes = np.log(given.minutes.reindex(coded.tasks).to_numpy(np.float64))
    # Horizons are log minutes already: the line from position to log minutes is the identity.
    line = calibrate(log_minutes, np.exp(log_minutes))
    return _doubling(coded.models, metr_horizons(coded.records, log_minutes), line, given)


def _doubling(models: pd.Index[Any], position: Array, line: Calibration, given: Dated) -> tuple[float, float, float]:
    dated = pd.DataFrame(
        {"model": models, "release_date": given.dates.reindex(models).to_numpy(), "position": position}
    )
    found = forecast(dated[np.isfinite(position)].reset_index(drop=True), line, bootstrap="models")
    return found.doubling_months, found.ci_low, found.ci_high


def distance_from_truth(case: Case, found: tuple[float, float, float]) -> dict[str, float]:
    """How far the doubling time is from three months, and whether its interval holds them."""
    months, low, high = found
    return {
        "doubling_error": abs(float(np.log(months / case.truth))),
        "doubling_months": months,
        "ci_coverage": float(low <= case.truth <= high),
    }


# ----------------------------------------------------------------------------------------- a folder of your own


#: Ids of SWE-bench tasks, such as astropy__astropy-12907.
SWE_BENCH = "*__*"


class Timed(NamedTuple):
    """Responses, human minutes of the timed tasks, which of them are held out for good (None: folds of all)."""

    responses: pd.DataFrame
    minutes: pd.Series[float]
    held_out: NDArray[np.bool_] | None
    discrimination_sd: float


def load_table(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    """Read the user's folder, or the paper's table."""
    if path is None:
        responses_file, minutes_file = (datasets.path(name) for name in ("bridge-responses", "bridge-human-minutes"))
    else:
        responses_file, minutes_file = (_file(Path(path), stem) for stem in ("responses", "human_minutes"))
    folder = responses_file.parent
    responses = read_responses(responses_file)
    coded = code_responses(responses)
    timed = pd.Series(minutes_by_task(read_minutes(minutes_file), coded.tasks), coded.tasks).dropna()
    pattern = str(params["holdout"])
    if path is None and not pattern:  # SWE-bench's times are classes, not minutes: METR's tasks alone
        timed = timed[[not fnmatchcase(str(task), SWE_BENCH) for task in timed.index]]
    held_out = np.array([fnmatchcase(str(task), pattern) for task in timed.index])
    n_test = int(held_out.sum()) if pattern else len(timed)
    if n_test < 10 or (pattern and len(timed) - n_test < 3):
        matched = f"holdout {pattern!r} matches" if pattern else "there are human times for"
        raise InputError(
            f"{folder}: {matched} {n_test} of {len(timed)} timed tasks; at least 10 have to be held out, and 3 kept"
        )
    what = f"{len(coded.models)} models, {len(coded.tasks)} tasks, {len(timed)} of them timed"
    name = f"the paper's table: {what}" if path is None else f"{path}: {what}"
    value = Timed(responses, timed, held_out if pattern else None, float(params["discrimination_sd"]))
    return Data(name, len(responses), value, str(folder))


def _file(folder: Path, stem: str) -> Path:
    for suffix in (".csv", ".tsv", ".jsonl", ".parquet"):
        for path in (folder / f"{stem}{suffix}.gz", folder / f"{stem}{suffix}"):
            if path.is_file():
                return path
    raise InputError(
        f"{folder}: expected a folder with responses.csv (model, task, correct) and human_minutes.csv (task, "
        f"human_minutes), also as .tsv, .jsonl, .parquet or .gz; there is no {stem} file"
    )


def untimed_folds(data: Timed, n: int, seed: int) -> Iterator[Case]:
    """Disjoint folds of timed tasks, each with short and long ones.

    A fold is asked for from the times of all other timed tasks or, where tasks are held out for good, of those kept.
    The folds share the fit to the responses (no human time enters it): their differences speak of these responses.
    """
    test = data.minutes if data.held_out is None else data.minutes[data.held_out]
    # Dealt out by length, ties in random order.
    order = test.sample(frac=1, random_state=child_seed(seed, "folds")).sort_values(kind="stable").index
    n_folds = max(2, min(n, len(test) // 5))
    for number in range(n_folds):
        fold = order[number::n_folds]
        known = data.minutes.drop(fold) if data.held_out is None else data.minutes[~data.held_out]
        given = Given(data.responses, known, list(fold), data.discrimination_sd)
        yield Case(f"fold {number + 1} of {n_folds}", given, test[fold].to_numpy())


# ---------------------------------------------------------------------------------------------------- the trial

TRIAL = Trial(
    slug="bridge",
    claim=Claim("foresees the human time of tasks that nobody timed better than raw success rates do", "log_error"),
    load=load_worlds,
    cases=untimed_suite,
    arms=FORESEE,
    metrics=METRICS,
    score=foresight,
    n_cases={"quick": 12, "standard": 60, "full": 300},
    params={"discrimination_sd": 0.5},
    takes_data=False,
    tags=frozenset({"tour"}),
    also=(
        Trial(
            slug="bridge",
            part="trend",
            claim=Claim("finds the doubling time as well as METR's own method", "doubling_error", 0.05, "no_worse"),
            load=load_worlds,
            cases=all_timed,
            arms=(
                Arm("BRIDGE", doubling_by_bridge),
                Arm("logistic regression on log minutes (METR)", doubling_by_metr, baseline=True),
                Arm("logit success rate", doubling_by_success_rate, baseline=True),
            ),
            metrics=(
                Metric("doubling_error", better="lower", help="|log(doubling time / true one)|: 0.05 is five percent"),
                Metric("doubling_months", target=TRUE_DOUBLING, unit="months", help="3.0 in this world"),
                Metric("ci_coverage", target=0.95, help="share of 95 % intervals that hold 3.0 (models resampled)"),
            ),
            score=distance_from_truth,
            n_cases={"quick": 12, "standard": 60, "full": 300},
            takes_data=False,
        ),
        Trial(
            slug="bridge",
            part="timed",
            claim=Claim("foresees held-out human times of a benchmark better than raw success rates do", "log_error"),
            load=load_table,
            cases=untimed_folds,
            arms=FORESEE,
            metrics=METRICS,
            score=foresight,
            n_cases={"quick": 10, "standard": 17, "full": 34},
            params={"holdout": "", "discrimination_sd": 0.5},
        ),
        Trial(
            slug="bridge",
            part="transfer",
            claim=Claim("puts SWE-bench tasks into classes of human time, from METR's times alone", "linear_kappa"),
            load=load_table,
            cases=untimed_folds,
            arms=FORESEE,
            metrics=METRICS,
            score=foresight,
            n_cases={"quick": 10, "standard": 20, "full": 50},
            params={"holdout": SWE_BENCH, "discrimination_sd": 0.5},
            takes_data=False,
        ),
    ),
)
