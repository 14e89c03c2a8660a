"""Where there is little to protect: a small gated network that reads digits and then learns lying ones."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.extras import need
from assay._core.seeds import child_seed
from assay.bench import Case, Data
from assay.trials.adapt.model_dowser import masks
from assay.trials.adapt.model_dowser.tuning import FULL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale

WIDTH, BLOCKS, BATCH = 48, 4, 64
BEFORE, AFTER = 300, 120

#: Learning rates to choose from, by the score on digits that are kept for it.
RATES = (1e-3, 3e-3, 1e-2)


class Lesson(NamedTuple):
    """Which start, the share that trains, and the steps of learning upright and lying digits."""

    seed: int
    rho: float
    before: int
    after: int


@cache
def digits() -> dict[str, tuple[Any, Any, Any]]:
    """Upright pixels, lying pixels and labels, to train on, to choose a rate on, and to score on."""
    from sklearn.datasets import load_digits

    found = load_digits()
    pixels = (found.data / 8 - 1).astype(np.float32)
    lying = np.ascontiguousarray(np.rot90(pixels.reshape(-1, 8, 8), axes=(1, 2)).reshape(-1, 64))
    order = np.random.default_rng(0).permutation(len(pixels))
    parts = {"train": order[:1000], "tune": order[1000:1300], "test": order[1300:]}
    return {name: (pixels[rows], lying[rows], found.target[rows]) for name, rows in parts.items()}


def load(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    need("torch", extra="lm", purpose="the trial of model-dowser")
    lesson = Lesson(0, float(params["rho"]), int(params["before"]), int(params["after"]))
    return Data("scikit-learn's digits, then lying ones", 1797, lesson)


def cases(lesson: Lesson, n: int, seed: int) -> Iterator[Case]:
    for number in range(n):
        yield Case(f"start {number + 1}", lesson._replace(seed=child_seed(seed, "digits", number)))


def network() -> Any:
    """Four gated layers of SiLU with what comes in added, and a layer for the classes."""
    import torch
    from torch import nn

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
            self.down = nn.Linear(2 * WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))
            return made

    return nn.Sequential(nn.Linear(64, WIDTH), *[Gated() for _ in range(BLOCKS)], nn.Linear(WIDTH, 10))


def fit(
    model: Any, weights: list[Any], pixels: Any, labels: Any, rate: float, steps: int, seed: int, guard: Any
) -> None:
    """Adam on batches drawn with the seed."""
    import torch

    optimizer = torch.optim.Adam(weights, rate)
    if guard is not None:
        guard(optimizer)
    x, y = torch.from_numpy(pixels), torch.from_numpy(labels)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(x), (BATCH,), generator=generator)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()


@lru_cache(maxsize=4)
def reader(seed: int, steps: int) -> Any:
    """A network that reads upright digits."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network()
    pixels, _, labels = digits()["train"]
    fit(model, list(model.parameters()), pixels, labels, 3e-3, steps, seed, None)
    return model


def taught(arm: str, lesson: Lesson, seed: int) -> dict[str, float]:
    """Learn lying digits at each rate; the better one on the tuning digits answers."""
    import copy

    tried = []
    for rate in RATES:
        model = copy.deepcopy(reader(lesson.seed, lesson.before))
        with mask_for(arm, model, lesson).apply(model) as tuning:
            _, lying, labels = digits()["train"]
            fit(model, tuning.parameters(), lying, labels, rate, lesson.after, lesson.seed, tuning.guard)
        tried.append((harmonic(**accuracies(model, "tune")), model))
    return accuracies(max(tried, key=lambda found: found[0])[1], "test")


def mask_for(arm: str, model: Any, lesson: Lesson) -> Any:
    """What an arm lets train of the network; probes are standard normal inputs."""
    from assay.adapt import model_dowser as dowser

    if arm == FULL:
        return dowser.full_mask(model)
    if arm == masks.RANDOM:
        return dowser.random_mask(model, lesson.rho, seed=lesson.seed)
    if arm == masks.MAGNITUDE:
        return dowser.magnitude_mask(model, lesson.rho)
    probes = dowser.normal_probes((64,), 128, seed=lesson.seed)
    if arm == masks.WANDA:
        return dowser.wanda_mask(model, probes, lesson.rho)
    return dowser.build_mask(dowser.importance(model, probes, batch_size=128), lesson.rho)


def accuracies(model: Any, part: str) -> dict[str, float]:
    """Share of upright (old) and lying (new) digits that are read."""
    import torch

    upright, lying, labels = digits()[part]
    with torch.inference_mode():
        old, new = (float((model(torch.from_numpy(x)).argmax(1).numpy() == labels).mean()) for x in (upright, lying))
    return {"old": old, "new": new}


def harmonic(old: float, new: float) -> float:
    """The harmonic mean of what was kept and what was learned."""
    return 2 * old * new / (old + new) if old + new else 0.0


def score(case: Case, found: dict[str, float]) -> dict[str, float]:
    return {"h": harmonic(**found), **found}
