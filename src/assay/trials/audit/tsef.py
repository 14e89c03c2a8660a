"""TSEF beside gradient steps on the label, gradient steps on both losses, and noise.

How often can a prediction be moved to another class while its explanation stays? The main part has a known truth:
series whose class is the spread of a short window, and the explanation has to stay on that window. `series` asks the
same of real ones (GunPoint, BasicMotions and ItalyPowerDemand as they come in aeon, or a file of yours). In both a
case trains a classifier of its own and attacks series that it has not seen. All arms have the same number of passes;
those that weigh the two losses may try several weights (-p weights=0.3,0.05,0.01) and keep, for each series, the best.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay import datasets
from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.seeds import child_seed
from assay.bench import Arm, Case, Claim, Data, Metric, Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from assay.bench.spec import Parameter, Scale

    Array = np.ndarray[Any, Any]

#: Rounds, steps for the mask, steps for the filter; the other attacks get as many passes.
ROUNDS: dict[str, tuple[int, int, int]] = {"quick": (8, 6, 18), "standard": (20, 6, 18), "full": (100, 10, 20)}

DATASETS = ("GunPoint", "BasicMotions", "ItalyPowerDemand")

#: Series attacked in each case, and the steps of integrated gradients.
N_ATTACKED, IG_STEPS, RHO = 12, 4, 0.1


class Setting(NamedTuple):
    """How hard the arms try."""

    rounds: tuple[int, int, int]
    eps: float
    weights: tuple[float, ...]
    sources: tuple[Source, ...]


class Source(NamedTuple):
    """Labelled series to learn from and to attack."""

    name: str
    train: tuple[Array, Array]
    test: tuple[Array, Array]


class Given(NamedTuple):
    """What an arm sees: a classifier's weights, the series to attack, and where the explanation has to stay."""

    shape: tuple[int, int, int]
    state: dict[str, Array]
    X: Array
    y: Array
    target: Array
    reference: Array | None
    setting: tuple[tuple[int, int, int], float, tuple[float, ...]]


class Found(NamedTuple):
    """What an arm returns for each series: of its tries the one that serves best."""

    success: Array
    apart: Array
    auprc: Array


# ---------------------------------------------------------------------------------------------------- the classifier


def network(channels: int, length: int, n_classes: int) -> Any:
    """Softplus features of windows, averaged over time: smooth enough for a second derivative."""
    from torch import nn

    width = min(24, length // 2)
    step = min(4, max(1, length // 12))

    class WindowNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.feature = nn.Linear(channels * width, 24)
            self.readout = nn.Linear(24, n_classes)

        def forward(self, x: Any) -> Any:
            windows = x.unfold(2, width, step).transpose(1, 2).flatten(2)
            return self.readout(nn.functional.softplus(self.feature(windows)).mean(dim=1))

    return WindowNet()


def trained(train: tuple[Array, Array], n_classes: int, seed: int) -> Any:
    """Train the classifier on all of `train`."""
    import torch

    X, y = torch.from_numpy(train[0]), torch.from_numpy(train[1])  # noqa: N806
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = network(X.shape[1], X.shape[2], n_classes)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, weight_decay=0.01)
    for _ in range(300):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(X), y).backward()  # type: ignore[no-untyped-call]  # torch has no type
        optimizer.step()
    return model.eval()


def prepared(source: Source, rows: Array, setting: Setting, seed: int, marked: Array | None = None) -> Given:
    """Train a classifier and choose, from `rows` of the test series, those it gets right."""
    import torch

    mean = source.train[0].mean(axis=(0, 2), keepdims=True)
    spread = source.train[0].std(axis=(0, 2), keepdims=True) + 1e-8
    X, tests = (((part - mean) / spread).astype(np.float32) for part in (source.train[0], source.test[0][rows]))  # noqa: N806
    y = source.test[1][rows]
    n_classes = int(max(source.train[1].max(), source.test[1].max())) + 1
    model = trained((X, source.train[1]), n_classes, child_seed(seed, "weights"))
    with torch.no_grad():
        right = np.flatnonzero(model(torch.from_numpy(tests)).argmax(dim=1).numpy() == y)[:N_ATTACKED]
    if len(right) == 0:
        raise InputError(f"{source.name}: a classifier gets none of {len(y)} series right; there is nothing to attack")
    rng = np.random.default_rng(child_seed(seed, "targets"))
    target = (y[right] + rng.integers(1, n_classes, len(right))) % n_classes
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    shape = (X.shape[1], X.shape[2], n_classes)
    chosen = None if marked is None else marked[rows][right]
    return Given(shape, state, tests[right], y[right], target, chosen, setting[:3])


# ------------------------------------------------------------------------------------------------------------ arms


def attack_with(make: Callable[..., Any], weighs: bool, given: Given, seed: int) -> Found:
    """Run an attack with each weight, and keep for each series what came apart, or else the better of flip and map."""
    import torch

    from assay.audit.tsef import IntegratedGradients

    model = network(*given.shape)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in given.state.items()})
    explainer = IntegratedGradients(model.eval(), steps=IG_STEPS)
    (iters, k1, k2), eps, weights = given.setting
    tries = []
    for weight in weights if weighs else weights[:1]:
        attack = make(model, explainer, eps=eps, weight=weight, rounds=(iters, k1, k2), seed=seed)
        found = attack(given.X, given.y, given.target, given.reference, RHO)
        tries.append(np.stack([found.apart, found.success, np.nan_to_num(found.auprc)]))
    stacked = np.stack(tries)
    worth = stacked[:, 0] * 4 + stacked[:, 1] * 2 + stacked[:, 2]
    apart, success, auprc = np.take_along_axis(stacked, worth.argmax(axis=0)[None, None], axis=0)[0]
    return Found(success, apart, auprc)


def make_tsef(model: Any, explainer: Any, *, eps: float, weight: float, rounds: tuple[int, int, int], seed: int) -> Any:
    from assay.audit.tsef import TSEF

    iters, k1, k2 = rounds
    return TSEF(model, explainer, eps=eps, lambda_cls=weight, iters=iters, k1=k1, k2=k2, seed=seed)


def make_pgd(
    lambda_exp: float, keep: Any, model: Any, explainer: Any, *, eps: float, weight: float, rounds: Any, seed: int
) -> Any:
    from assay.audit.tsef import PGD

    iters, k1, k2 = rounds
    return PGD(
        model,
        explainer,
        eps=eps,
        lambda_exp=lambda_exp,
        lambda_cls=weight,
        steps=iters * (k1 + k2),
        keep=keep,
        seed=seed,
    )


def make_noise(model: Any, explainer: Any, *, eps: float, weight: float, rounds: Any, seed: int) -> Any:
    from assay.audit.tsef import RandomNoise

    return RandomNoise(model, explainer, eps=eps, seed=seed)


def shares(case: Case, found: Found) -> dict[str, float]:
    return {name: float(np.mean(getattr(found, name))) for name in ("apart", "success", "auprc")}


ARMS = (
    Arm("TSEF", partial(attack_with, make_tsef, True)),
    Arm("joint PGD", partial(attack_with, partial(make_pgd, 1.0, "best"), True), baseline=True),
    Arm("PGD on the label, stopped", partial(attack_with, partial(make_pgd, 0.0, "best"), False), baseline=True),
    Arm("PGD on the label", partial(attack_with, partial(make_pgd, 0.0, "last"), False), baseline=True),
    Arm("random noise", partial(attack_with, make_noise, False), baseline=True),
)  # fmt: skip

METRICS = (
    Metric("apart", better="higher", help="share of series: target reached, explanation's AUPRC at least 0.9 of clean"),
    Metric("success", better="higher", help="share of series predicted as the target"),
    Metric("auprc", better="higher", help="agreement of the explanation with its reference, flipped or not"),
)


# -------------------------------------------------------------------------------------- simulated: where it must stay


def simulated_setting(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    need("torch", extra="series", purpose="the trial of tsef")
    setting = _setting(scale, params, ())
    return Data("series whose class is the spread of a window (simulated)", 100, setting)


def spread_series(n: int, rng: np.random.Generator, length: int = 100) -> tuple[Array, Array, Array]:
    """Noise, calmer (class 0) or rougher (class 1) within a window of a fifth of the series; and the window's cells."""
    y = np.arange(n) % 2
    X = rng.standard_normal((n, 1, length))  # noqa: N806
    start = rng.integers(0, length - length // 5, n)
    inside = (np.arange(length) >= start[:, None]) & (np.arange(length) < start[:, None] + length // 5)
    X[:, 0] *= np.where(inside, np.where(y == 0, 0.2, 2.0)[:, None], 1.0)
    return X, y, inside[:, None]


def simulated_cases(setting: Setting, n: int, seed: int) -> Iterator[Case]:
    for number in range(n):
        own = child_seed(seed, "spread", number)
        rng = np.random.default_rng(own)
        X, y, inside = spread_series(260, rng)  # noqa: N806
        source = Source("simulated", (X[:200], y[:200]), (X[200:], y[200:]))
        yield Case(f"draw {number + 1}", prepared(source, np.arange(60), setting, own, inside[200:]))


# ----------------------------------------------------------------------------------------------------- real series


def load_series(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    need("torch", extra="series", purpose="the trial of tsef")
    from assay.audit.tsef import read_series

    if path is None:
        sources = tuple(shipped(name) for name in DATASETS)
        n = sum(len(source.train[1]) + len(source.test[1]) for source in sources)
        return Data(f"{', '.join(DATASETS)} (aeon)", n, _setting(scale, params, sources))
    read = read_series(path)
    if read.y is None or len(np.unique(read.y)) < 2:
        raise InputError(f"{path}: the trial learns a classifier and needs series of at least two classes, with labels")
    if len(read.y) < 40:
        raise InputError(f"{path}: {len(read.y)} series; the trial learns from half of them and needs at least 40")
    order = np.random.default_rng(0).permutation(len(read.y))
    half = len(order) // 2
    train, test = ((read.X[part], read.y[part]) for part in (order[:half], order[half:]))
    return Data(Path(path).name, len(order), _setting(scale, params, (Source(Path(path).name, train, test),)), path)


def shipped(name: str) -> Source:
    """Training and test series that lie inside the package aeon; it is not imported, only its files are read."""
    from assay.audit.tsef import read_series

    folder = datasets.path("time-series") / "datasets" / "data" / name
    train, test = (read_series(folder / f"{name}_{part}.ts") for part in ("TRAIN", "TEST"))
    assert train.y is not None
    assert test.y is not None  # the archive's files are labelled
    return Source(name, (train.X, train.y), (test.X, test.y))


def series_cases(setting: Setting, n: int, seed: int) -> Iterator[Case]:
    """Data sets in turn; the cases of one share no test series until all of them were attacked once."""
    pools: dict[str, list[Array]] = {}
    for number in range(n):
        source = setting.sources[number % len(setting.sources)]
        own = child_seed(seed, "series", number)
        pool = pools.setdefault(source.name, [])
        if not pool:
            order = np.random.default_rng(own).permutation(len(source.test[1]))
            pool.extend(np.array_split(order, max(1, len(order) // 20)))
        yield Case(f"{source.name} {number // len(setting.sources) + 1}", prepared(source, pool.pop(), setting, own))


def _setting(scale: Scale, params: Mapping[str, Parameter], sources: tuple[Source, ...]) -> Setting:
    rounds = ROUNDS[scale]
    try:
        weights = tuple(float(part) for part in str(params["weights"]).split(","))
    except ValueError:
        raise InputError(
            f"weights={params['weights']}: expected numbers with commas between, such as 0.3,0.05"
        ) from None
    iters = int(params["iters"]) or rounds[0]
    eps = float(params["eps"])
    if not 0 < eps <= 1 or iters < 1 or min(weights) <= 0:
        raise InputError(f"eps={eps}, iters={iters}, weights={params['weights']}: expected a budget in (0, 1], and "
                         "rounds and weights above 0")  # fmt: skip
    return Setting((iters, *rounds[1:]), eps, weights, sources)


PARAMS: dict[str, Parameter] = {"eps": 0.1, "weights": "0.05", "iters": 0}

TRIAL = Trial(
    slug="tsef",
    claim=Claim("moves predictions and leaves explanations more often than other attacks", metric="apart"),
    load=simulated_setting,
    cases=simulated_cases,
    arms=ARMS,
    metrics=METRICS,
    score=shares,
    n_cases={"quick": 8, "standard": 20, "full": 50},
    params=PARAMS,
    takes_data=False,
    also=(
        Trial(
            slug="tsef",
            part="series",
            claim=Claim("moves predictions and leaves explanations more often than other attacks", metric="apart"),
            load=load_series,
            cases=series_cases,
            arms=ARMS,
            metrics=METRICS,
            score=shares,
            n_cases={"quick": 9, "standard": 15, "full": 45},
            params=PARAMS,
        ),
    ),
)
