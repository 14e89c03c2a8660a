"""Short forms for a language model to fill in, and its answers: recorded once, read by every arm of tmafc's trial."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.cache import made_dir
from assay._core.errors import InputError
from assay._core.progress import progress_bar
from assay.bench import Data
from assay.decode.tmafc import (
    History,
    LoggedSampler,
    Record,
    Recorded,
    Reply,
    Task,
    TransformersSampler,
    record_samples,
)
from assay.decode.tmafc.replay import Settings, calibrated_fractal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.bench.spec import Parameter, Scale


class Source(NamedTuple):
    """Recorded samples and the limits under which they are read."""

    records: list[Recorded]
    settings: Settings


def settings_of(params: Mapping[str, Parameter]) -> Settings:
    return Settings(float(params["tau"]), int(params["n_max"]), int(params["window"]))


def past_votes(records: Sequence[Recorded], settings: Settings) -> tuple[Record, ...]:
    history = History()
    calibrated_fractal([replace(record, gold=None) for record in records], settings, history)
    return history.records


# ------------------------------------------------------------------------------------------------------ the forms

N_SAMPLES = 40
FORMS: Mapping[Scale, int] = {"quick": 24, "standard": 24, "full": 200}
FEWEST_FORMS = 12
POOL_NAME = "demo model, temperature 0.7, seed 0"


def forms(n: int) -> list[Task]:
    """Short texts with three facts to read off; the same for the same number, always."""
    rng = np.random.default_rng(20260)
    made = [FORM_KINDS[number % len(FORM_KINDS)](rng) for number in range(n)]
    return [Task(text, dict.fromkeys(gold, ""), gold) for text, gold in made]


NAMES = ("Maria Lopez", "Tom Baker", "Aisha Khan", "Erik Lund", "Mei Chen", "Paul Weber", "Ines Costa", "John Murphy")
CITIES = ("Oslo", "Madrid", "Lyon", "Dublin", "Kyoto", "Lima", "Prague", "Boston")
ITEMS = ("lamps", "chairs", "mugs", "towels", "shelves")
COLOURS = ("green", "red", "blue", "white", "black")
DAYS = ("Monday", "Tuesday", "Thursday", "Friday", "Sunday")
JOBS = ("nurse", "baker", "pilot", "teacher", "lawyer", "welder")


def person(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    name, job, age = pick(rng, NAMES), pick(rng, JOBS), int(rng.integers(21, 70))
    before, now = rng.permutation(CITIES)[:2]
    text = f"{name}, {age}, a {job}, moved from {before} to {now} last year."
    return text, {"name": name, "age": age, "lives_in": str(now)}


def order(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    name, city, item, colour = pick(rng, NAMES), pick(rng, CITIES), pick(rng, ITEMS), pick(rng, COLOURS)
    number, amount = int(rng.integers(1000, 9999)), int(rng.integers(2, 30))
    text = f"Order {number}: {amount} {colour} {item} for {name}, to be sent to {city}."
    return text, {"order_number": number, "quantity": amount, "colour": colour}


def concert(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    day, city = pick(rng, DAYS), pick(rng, CITIES)
    hour, price = int(rng.integers(5, 10)), int(rng.integers(8, 60))
    text = (
        f"The concert in {city} is on {day}. Doors open at {hour - 1} pm, it starts at {hour} pm. "
        f"A ticket is {price} euros."
    )
    return text, {"city": city, "day": day, "price_in_euros": price}


FORM_KINDS = (person, order, concert)


def pick(rng: np.random.Generator, names: Sequence[str]) -> str:
    return names[int(rng.integers(len(names)))]


@lru_cache(maxsize=1)
def language_model(name: str) -> tuple[Any, Any]:
    from assay import models

    return models.load_lm(name) if name else models.demo_lm()


class DemoSampler:
    """The demo model, loaded when the first reply is really needed: a recorded pool needs no model."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.name = f"{model}, temperature 0.7, seed 0" if model else POOL_NAME
        self._sampler: TransformersSampler | None = None

    def __call__(self, prompt: str, n: int, /) -> list[Reply]:
        """Sample the model."""
        if self._sampler is None:
            self._sampler = sampler_of(self.model, 0)
        return self._sampler(prompt, n)


def sampler_of(model: str, seed: int) -> TransformersSampler:
    return TransformersSampler(*language_model(model), temperature=0.7, max_new_tokens=56, batch_size=40, seed=seed)


class NotRecordedError(Exception):
    """A reply that the log does not hold."""


class NothingNew:
    """Stands for a model that must not be asked: what the log does not hold is not recorded."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, prompt: str, n: int, /) -> list[str]:
        """Refuse."""
        raise NotRecordedError


def filled_forms(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    """Answers of a language model to forms: recorded once and kept in the cache folder."""
    sampler = DemoSampler(str(params["model"]))
    folder = made_dir() / "tmafc"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "forms.jsonl"
    tasks = forms(FORMS[scale])
    if scale == "quick":  # must not take the minutes that a recording takes
        records = recorded_forms(LoggedSampler(NothingNew(sampler.name), log), tasks)
    else:
        with progress_bar() as bar:
            watched = bar.add_task(f"recording {N_SAMPLES} answers to each form", total=len(tasks))
            records = record_samples(
                LoggedSampler(sampler, log), tasks, N_SAMPLES, on_task=lambda record: bar.advance(watched)
            )
    if len(records) < FEWEST_FORMS:
        raise InputError(
            f"{log} holds the answers to {len(records)} forms and the trial needs {FEWEST_FORMS}; "
            "`assay try tmafc --scale standard` records them once, which takes some minutes"
        )
    name = f"{params['model'] or 'SmolLM2-135M-Instruct'} fills in {len(records)} forms, {N_SAMPLES} samples each"
    return Data(name, len(records), Source(records, settings_of(params)))


def recorded_forms(log: LoggedSampler, tasks: Sequence[Task]) -> list[Recorded]:
    records = []
    for task in tasks:
        try:
            records += record_samples(log, [task], N_SAMPLES)
        except NotRecordedError:
            break
    return records
