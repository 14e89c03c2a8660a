"""arbitrage beside the best single provider, round-robin and a learned router.

The main part has real solvers with real costs and a perfect verifier: three algorithms that factor numbers p × q, paid
by the modular multiplication. `attempts` has recorded attempts of a user's own providers, or of three coding agents.

Cases are disjoint folds of tasks. An arm sees the attempts on all other tasks, the names of the fold's tasks and, if
the user brings them (`-p features=TABLE`), columns of what is known of a task before it is tried; it says for each
solve rate what to do and how much to spend on a task at most. On the fold that solves and costs what it does: what is
short of the solve rate is bought, and what is over is sold, at the price that the best single provider asks for one
more solved task. So the score is linear in the tasks, and folds of any size agree with the whole on average.
"""

from __future__ import annotations

import warnings
from math import gcd, isqrt
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from assay import datasets
from assay._core.seeds import child_seed
from assay.bench.spec import Arm, Case, Claim, Data, Metric, Parameter, Scale, Trial
from assay.evaluate.arbitrage import CascadePolicy, Market, read_market
from assay.evaluate.arbitrage.curves import budget_at, cascade, expected_spend, failure_table, price, round_robin
from assay.trials.evaluate.arbitrage_router import cheap_features, foreseen, read_features

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Array = NDArray[np.float64]

#: Points between the lowest solve rate and the frontier.
N_RATES = 101

# ------------------------------------------------------------------------- what an arm sees, and what it answers


class Known(NamedTuple):
    """Attempts to learn from, the names of the tasks to come, and where solve rates begin, relative to the frontier.

    `order` is the cascade's, if the user gave one, and `features` what is known of all tasks beforehand, by task.
    """

    market: Market
    tasks: tuple[str, ...]
    start: float
    order: tuple[str, ...] | None
    features: pd.DataFrame | None = None


class Way(NamedTuple):
    """One thing to do: a cascade (one provider is a cascade of one), providers in turn, or a provider for each task."""

    order: tuple[str, ...] = ()
    thresholds: tuple[float, ...] = ()
    in_turn: bool = False
    routes: tuple[str, ...] = ()


class Plan(NamedTuple):
    """For each solve rate, from the lowest to the frontier: which way to take, and the most to spend on a task."""

    ways: tuple[Way, ...]
    choice: tuple[int, ...]
    budgets: tuple[float, ...]


def curves_of(way: Way, market: Market) -> tuple[Array, Array]:
    """Solve rate and expected spend over the market's budgets."""
    if way.in_turn:
        tables = [failure_table(n, c, int(n.max())) for n, c in zip(market.n_attempts, market.n_correct, strict=True)]
        solved = round_robin(tables, market.attempt_cost, market.budgets).mean(axis=0)
    elif way.routes:
        at = [market.index(name) for name in way.routes]
        solved = market.solved[at, np.arange(market.n_problems)].mean(axis=0)
    else:
        solved = cascade(*market.stages(way.order), market.budgets, way.thresholds, market.uniform)[1][0]
    return solved, expected_spend(solved, market.budgets)


def rates_of(market: Market, start: float) -> Array:
    return np.linspace(start, 1.0, N_RATES) * market.frontier


def singles(market: Market) -> tuple[Way, ...]:
    return tuple(Way((name,), (market.max_budget,)) for name in market.providers)


def cheapest(known: Known, ways: Sequence[Way], learned: Sequence[Way] | None = None) -> Plan:
    """The way that is cheapest on the known tasks, for each solve rate; the first of equals.

    `learned` are the ways as they act on the known tasks, where that differs (a router).
    """
    rates = rates_of(known.market, known.start)
    curves = [curves_of(way, known.market) for way in learned or ways]
    choice = np.argmin([price(solved, spend, rates) for solved, spend in curves], axis=0)
    budgets = np.array([budget_at(solved, known.market.budgets, rates) for solved, _ in curves])
    return Plan(tuple(ways), tuple(choice.tolist()), tuple(budgets[choice, np.arange(N_RATES)].tolist()))


# ----------------------------------------------------------------------------------------------------------- arms


def fitted_cascade(known: Known, seed: int) -> Plan:
    """Where the cascade is not cheaper than a provider alone, a reseller uses that provider."""
    lowest = known.start * known.market.frontier
    policy = CascadePolicy(known.order, stages=3, solve_rates=(lowest, None)).fit(known.market)
    way = Way(policy.order_, tuple(policy.thresholds_.tolist()))
    return cheapest(known, [*singles(known.market), way])


def best_single(known: Known, seed: int) -> Plan:
    return cheapest(known, singles(known.market))


def providers_in_turn(known: Known, seed: int) -> Plan:
    return cheapest(known, [*singles(known.market), Way(in_turn=True)])


def learned_router(known: Known, seed: int) -> Plan:
    """A provider for each task, by its pass@1 and cost as foreseen from cheap features of the task.

    Which of three models foresees them, and how much cost counts, is chosen on predictions for known tasks that the
    models did not see (five inner folds).
    """
    market = known.market
    rate = market.n_correct / market.n_attempts
    targets = np.concatenate([rate, np.log(market.attempt_cost)]).T
    rates = rates_of(market, known.start)
    alone = np.min([price(*curves_of(way, market), rates) for way in singles(market)], axis=0)
    best, best_saving = (Way(), Way()), -np.inf
    about = (cheap_features(tasks, known.features) for tasks in (market.problems, known.tasks))
    for among_known, to_come in foreseen(next(about), targets, next(about), seed):
        for weight in np.linspace(0.0, 2.0, 41):
            way = routed(among_known, weight, market)
            cost = price(*curves_of(way, market), rates)
            saving = float(np.maximum(0.0, 1.0 - cost / alone).mean())
            if saving > best_saving:
                best, best_saving = (way, routed(to_come, weight, market)), saving
    ways = singles(market)
    return cheapest(known, [*ways, best[1]], [*ways, best[0]])


def routed(expected: Array, weight: float, market: Market) -> Way:
    """To each task the provider of the largest log pass@1 − weight × log cost."""
    passes, log_cost = np.split(expected, 2, axis=1)
    worth = np.log(np.maximum(passes, 1e-3)) - weight * log_cost
    return Way(routes=tuple(market.providers[m] for m in worth.argmax(axis=1)))


# ------------------------------------------------------------------------------------------------- folds and score


class Recorded(NamedTuple):
    """What `load` hands to `folds`: the attempts, where solve rates begin, and what the user gave beside them."""

    market: Market
    start: float
    order: tuple[str, ...] | None
    features: pd.DataFrame | None = None


def folds(data: Recorded, n: int, seed: int) -> Iterator[Case]:
    """Disjoint folds of the tasks, at least ten tasks each."""
    n_folds = max(2, min(n, data.market.n_problems // 10))
    order = np.random.default_rng(child_seed(seed, "folds")).permutation(data.market.n_problems)
    for number in range(n_folds):
        inside = np.zeros(data.market.n_problems, dtype=bool)
        inside[order[number::n_folds]] = True
        fold = data.market.subset(inside)
        known = Known(data.market.subset(~inside), fold.problems, data.start, data.order, data.features)
        rates = rates_of(known.market, data.start)
        truth = Truth(fold, rates, known.market.market_price(rates))
        yield Case(f"fold {number + 1} of {n_folds}", known, truth)


class Truth(NamedTuple):
    """The fold with its attempts; the solve rates, and the best single prices for them on the known tasks."""

    fold: Market
    rates: Array
    prices: Array


def relative_cost(case: Case, plan: Plan) -> dict[str, float]:
    """Cost of reaching the solve rates, relative to the best single price; see the head of this file."""
    fold, rates, prices = case.truth
    one_more = (prices[-1] - prices[0]) / (rates[-1] - rates[0])
    log_grid, log_budget = np.log(fold.budgets), np.log(plan.budgets)
    curves = [[np.interp(log_budget, log_grid, curve) for curve in curves_of(way, fold)] for way in plan.ways]
    solved, spend = np.array(curves)[plan.choice, :, np.arange(len(rates))].T
    cost = spend + one_more * (rates - solved)
    return {"relative_cost": float(cost.mean() / prices.mean()), "solved": float(solved.mean())}


# -------------------------------------------------------------------- main part: algorithms that factor n = p × q

#: What an attempt may use, and how many attempts are recorded for each number.
BOUND_P1, STEPS_RHO, BOUND_ECM = 400, 1500, 200
N_ATTEMPTS = {"p-1": 2, "rho": 12, "ecm": 30}


def primes_up_to(bound: int) -> list[int]:
    return [n for n in range(2, bound + 1) if all(n % d for d in range(2, isqrt(n) + 1))]


def p_minus_1(n: int, rng: np.random.Generator) -> tuple[int, int]:
    """Pollard's p − 1: finds p when all prime powers of p − 1 are small. Returns (divisor, multiplications)."""
    base, cost = int(rng.integers(2, 2**31)), 0
    for prime in primes_up_to(BOUND_P1):
        power = prime
        while power * prime <= BOUND_P1:
            power *= prime
        base = pow(base, power, n)
        cost += power.bit_length() - 1 + power.bit_count() - 1  # square and multiply
    return gcd(base - 1, n), cost


def rho(n: int, rng: np.random.Generator) -> tuple[int, int]:
    """Pollard's rho with Floyd's cycle and products of differences: needs about √p steps of four multiplications."""
    x = y = int(rng.integers(2, 2**31))
    shift, product = int(rng.integers(1, 2**31)), 1
    for _ in range(STEPS_RHO):
        x = (x * x + shift) % n
        y = (y * y + shift) % n
        y = (y * y + shift) % n
        product = product * (x - y) % n
    return gcd(product, n), 4 * STEPS_RHO


def ecm(n: int, rng: np.random.Generator) -> tuple[int, int]:
    """Lenstra's method on one random Montgomery curve (Suyama's parametrisation), first stage only."""
    sigma = int(rng.integers(6, 2**31))
    u, v = (sigma * sigma - 5) % n, 4 * sigma % n
    x, z = pow(u, 3, n), pow(v, 3, n)
    denominator = 4 * x * v % n
    found = gcd(denominator, n)
    if found != 1:
        return found, 0
    a24 = (pow(v - u, 3, n) * (3 * u + v) * pow(denominator, -1, n)) * pow(4, -1, n) % n  # (a + 2) / 4
    cost = 10
    for prime in primes_up_to(BOUND_ECM):
        power = prime
        while power * prime <= BOUND_ECM:
            power *= prime
        x, z, spent = _ladder(x, z, power, a24, n)
        cost += spent
    return gcd(z, n), cost


def _ladder(x: int, z: int, k: int, a24: int, n: int) -> tuple[int, int, int]:
    """K times the point (x : z): a doubling (5 multiplications) and a differential addition (6) for each bit."""
    x1, z1 = x, z
    s = (x + z) * (x + z) % n
    d = (x - z) * (x - z) % n
    t = s - d
    x2, z2 = s * d % n, t * (d + a24 * t) % n
    for bit in bin(k)[3:]:
        a, b = (x1 - z1) * (x2 + z2) % n, (x1 + z1) * (x2 - z2) % n
        px, pz = z * (a + b) * (a + b) % n, x * (a - b) * (a - b) % n
        dx, dz = (x2, z2) if bit == "1" else (x1, z1)
        s, d = (dx + dz) * (dx + dz) % n, (dx - dz) * (dx - dz) % n
        t = s - d
        doubled = s * d % n, t * (d + a24 * t) % n
        (x1, z1), (x2, z2) = ((px, pz), doubled) if bit == "1" else (doubled, (px, pz))
    return x1, z1, 5 + 11 * (k.bit_length() - 1)


SOLVERS = {"p-1": p_minus_1, "rho": rho, "ecm": ecm}


def is_prime(n: int) -> bool:
    """Miller–Rabin with bases that are exact below 3e24."""
    small = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
    if n < 2 or any(n % p == 0 for p in small):
        return n in small
    odd = n - 1
    twos = (odd & -odd).bit_length() - 1
    odd >>= twos
    return all(_passes(pow(base, odd, n), n, twos) for base in small)


def _passes(x: int, n: int, twos: int) -> bool:
    if x in (1, n - 1):
        return True
    for _ in range(twos - 1):
        x = x * x % n
        if x == n - 1:
            return True
    return False


def semiprime(rng: np.random.Generator) -> int:
    """P × q with log10 p uniform in [5, 10.5] and q from 1e13 to 9e13."""
    p, q = int(10 ** rng.uniform(5, 10.5)) | 1, int(rng.uniform(1e13, 9e13)) | 1
    while not is_prime(p):
        p += 2
    while not is_prime(q):
        q += 2
    return p * q


def factoring_attempts(n_numbers: int, seed: int) -> pd.DataFrame:
    """A row per attempt: model, task, solved, cost in modular multiplications."""
    rows = []
    for number in range(n_numbers):
        n = semiprime(np.random.default_rng(child_seed(seed, "number", number)))
        for name, solver in SOLVERS.items():
            for attempt in range(N_ATTEMPTS[name]):
                rng = np.random.default_rng(child_seed(seed, "number", number, name, attempt))
                divisor, cost = solver(n, rng)
                rows.append((name, str(n), int(1 < divisor < n), max(cost, 1)))
    return pd.DataFrame(rows, columns=["model", "task", "solved", "cost"])


NUMBERS = {"quick": 400, "standard": 1000, "full": 4000}


def load_factoring(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    attempts = factoring_attempts(NUMBERS[scale], seed=0)
    market = Market.from_attempts(attempts, unit="multiplications", budgets=np.geomspace(1e2, 3e5, 250))
    name = f"{NUMBERS[scale]} numbers p × q and three algorithms that factor"
    return Data(name, market.n_problems, Recorded(market, float(params["start"]), None))


# ------------------------------------------------------------------------------- attempts: recorded by their owner

#: Data sets of the embedded example.
AGENTS = ("market-mini-coder-4b", "market-qwen3-coder-30b", "market-qwen3-coder-480b")

FORMATS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".gz")


def load_attempts(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    if path is None:
        files = [datasets.path(name) for name in AGENTS]
    else:
        source = Path(path)
        files = [source]
        if source.is_dir():
            files = sorted(file for file in source.glob("*") if file.suffix.lower() in FORMATS)
    order = tuple(name.strip() for name in str(params["order"]).split(",") if name.strip()) or None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one attempt per task: the same for every arm
        market = read_market(files, prices=str(params["prices"]) or None, max_budget=float(params["budget"]) or None)
    name = f"{' and '.join(market.providers)} on {market.n_problems} tasks"
    features = read_features(str(params["features"]), market.problems) if params["features"] else None
    return Data(name, market.n_problems, Recorded(market, float(params["start"]), order, features), path)


# ------------------------------------------------------------------------------------------------------ the trial

ARMS = (
    Arm("cascade", fitted_cascade),
    Arm("best single provider", best_single, baseline=True),
    Arm("round-robin", providers_in_turn, baseline=True),
    Arm("learned router", learned_router, baseline=True),
)

METRICS = (
    Metric("relative_cost", better="lower", help="cost of the solve rates; 1 is the best single provider's price"),
    Metric("solved", better="higher", help="share of the tasks solved, mean over the budgets of all solve rates"),
)

CLAIM = Claim(
    "reaches the same solve rates for less than single providers, round-robin and a router",
    metric="relative_cost",
    margin=0.02,
)

TRIAL = Trial(
    slug="arbitrage",
    claim=CLAIM,
    load=load_factoring,
    cases=folds,
    arms=ARMS,
    metrics=METRICS,
    score=relative_cost,
    n_cases={"quick": 10, "standard": 20, "full": 40},
    params={"start": 0.9},
    takes_data=False,
    also=(
        Trial(
            slug="arbitrage",
            part="attempts",
            claim=CLAIM,
            load=load_attempts,
            cases=folds,
            arms=ARMS,
            metrics=METRICS,
            score=relative_cost,
            n_cases={"quick": 10, "standard": 20, "full": 40},
            params={"start": 0.9, "order": "", "prices": "", "budget": 0.0, "features": ""},
        ),
    ),
)
