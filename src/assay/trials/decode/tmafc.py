"""tmafc beside self-consistency, adaptive-consistency and early-stopping self-consistency.

Three sources of samples, and three questions to each: does it need fewer samples than its rivals, are its answers as
good as theirs, and what does the fitted prior cost? The main source is a panel of decision trees that read rows of
handwritten digits (or a user's recorded samples); `smollm2` is a small language model that fills in forms, sampled for
real; `simulated` is a model of which everything is known. Nothing is sampled twice: every arm reads the same recorded
samples as far as it needs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.cache import made_dir
from assay._core.errors import InputError
from assay._core.progress import progress_bar
from assay._core.seeds import child_seed
from assay.bench import Arm, Case, Claim, Data, Metric, Trial
from assay.decode.tmafc import (
    History,
    LoggedSampler,
    Record,
    Recorded,
    Reply,
    Task,
    TransformersSampler,
    read_samples,
    record_samples,
)
from assay.decode.tmafc.prior import CATEGORIES
from assay.decode.tmafc.replay import (
    Outcome,
    Settings,
    adaptive_consistency,
    calibrated_fractal,
    component_f1,
    component_majority,
    early_stopping,
    fractal,
    is_right,
    self_consistency,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from assay.bench.spec import Parameter, Scale

# ------------------------------------------------------------------------------------------------------- the arms


class Block(NamedTuple):
    """What an arm sees: questions with samples, none with its gold answer, and votes on other questions before."""

    records: list[Recorded]
    settings: Settings
    past: tuple[Record, ...] = ()


def one_by_one(method: Any, block: Block, seed: int) -> list[Outcome]:
    return [method(record, block.settings) for record in block.records]


def calibrated(block: Block, seed: int) -> list[Outcome]:
    history = History()
    for record in block.past:
        history.append(record.question, record.T, record.G, record.category)
    return calibrated_fractal(block.records, block.settings, history)


def cost_and_quality(case: Case, outcomes: list[Outcome]) -> dict[str, float]:
    pairs = list(zip(case.truth, outcomes, strict=True))
    n_components = sum(len(record.components) for record, _ in pairs)
    return {
        "samples": float(np.mean([outcome.n_samples for outcome in outcomes])),
        "requests": sum(outcome.n_requests for outcome in outcomes) / n_components,
        "tokens": float(np.mean([outcome.tokens for outcome in outcomes])),
        "accuracy": float(np.mean([is_right(record, outcome) for record, outcome in pairs])),
        "component_f1": float(np.mean([component_f1(record, outcome) for record, outcome in pairs])),
    }


class Source(NamedTuple):
    """Recorded samples and the limits under which they are read."""

    records: list[Recorded]
    settings: Settings


def settings_of(params: Mapping[str, Parameter]) -> Settings:
    return Settings(float(params["tau"]), int(params["n_max"]), int(params["window"]))


def blocks(source: Source, n: int, seed: int) -> Iterator[Case]:
    """Disjoint blocks of questions. Each half of the questions is the history of the other half."""
    rng = np.random.default_rng(child_seed(seed, "blocks"))
    shuffled = [source.records[index] for index in rng.permutation(len(source.records))]
    n = min(n, len(shuffled))
    parts = [list(part) for part in np.array_split(np.arange(len(shuffled)), n)]
    halves = [[shuffled[index] for part in parts[start::2] for index in part] for start in (0, 1)]
    pasts = [past_votes(half, source.settings) for half in halves]
    for number, part in enumerate(parts):
        asked = [shuffled[index] for index in part]
        given = Block([replace(record, gold=None) for record in asked], source.settings, pasts[1 - number % 2])
        yield Case(f"block {number + 1} of {n}", given, asked)


def past_votes(records: Sequence[Recorded], settings: Settings) -> tuple[Record, ...]:
    history = History()
    calibrated_fractal([replace(record, gold=None) for record in records], settings, history)
    return history.records


# --------------------------------------------------------- main source: trees that read digits, or a user's samples

N_TREES = 200


def digits_or_file(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    settings = settings_of(params)
    if path is None:
        records = rows_of_digits()
        return Data(f"decision trees that read {len(records)} rows of digits", len(records), Source(records, settings))
    records = read_samples(path)
    if any(record.gold is None for record in records):
        records = [replace(record, gold=component_majority(record, settings).answer) for record in records]
        name = f"{path} (no gold answers: right means as all samples by component would answer)"
        return Data(name, len(records), Source(records, settings), path)
    return Data(path, len(records), Source(records, settings), path)


def rows_of_digits() -> list[Recorded]:
    """Rows of two to five handwritten digits; a sample is how one tree, drawn at random, reads the row."""
    # Here and not above: the processes that run the arms need none of it.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.tree import DecisionTreeClassifier

    images, labels = load_digits(return_X_y=True)
    train, test, train_labels, test_labels = train_test_split(
        images, labels, train_size=0.3, stratify=labels, random_state=0
    )
    rng = np.random.default_rng(0)
    readings = np.empty((N_TREES, len(test)), dtype=int)
    for number in range(N_TREES):
        drawn = rng.integers(len(train), size=len(train) // 3)
        tree = DecisionTreeClassifier(max_features=8, random_state=number).fit(train[drawn], train_labels[drawn])
        readings[number] = tree.predict(test)
    records: list[Recorded] = []
    start = 0
    while start + 5 <= len(test):
        length = int(rng.integers(2, 6))
        row = np.arange(start, start + length)
        names = tuple(f"digit {position + 1}" for position in range(length))
        samples = tuple(
            dict(zip(names, map(int, readings[tree, row]), strict=True)) for tree in rng.permutation(N_TREES)[:40]
        )
        gold = dict(zip(names, map(int, test_labels[row]), strict=True))
        # A user knows how long the row is before asking, and longer rows are harder to read without a mistake.
        category = CATEGORIES[min((length - 2), 2)]
        records.append(Recorded(f"row {len(records) + 1}", names, samples, gold, category=category))
        start += length
    return records


# ------------------------------------------------------------------------- smollm2: a language model fills in forms

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


class DemoSampler:
    """The demo model, loaded when the first reply is really needed: a recorded pool needs no model."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.name = f"{model}, temperature 0.7, seed 0" if model else POOL_NAME
        self._sampler: TransformersSampler | None = None

    def __call__(self, prompt: str, n: int, /) -> list[Reply]:
        """Sample the model."""
        if self._sampler is None:
            from assay import models

            lm, tokenizer = models.load_lm(self.model) if self.model else models.demo_lm()
            self._sampler = TransformersSampler(lm, tokenizer, temperature=0.7, max_new_tokens=56, batch_size=40)
        return self._sampler(prompt, n)


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


# ----------------------------------------------------------------------- simulated: a model of which all is known


class Simulation(NamedTuple):
    """What a stream of simulated questions is made from."""

    n_questions: int
    settings: Settings


def simulation(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    n = int(params["questions"])
    if n < 1:
        raise InputError(f"questions is {n}; expected a whole number from 1")
    return Data("a simulated model of known accuracy", n, Simulation(n, settings_of(params)))


def simulated_questions(data: Simulation, n: int, seed: int) -> Iterator[Case]:
    """Streams of questions, each with a history of its own that starts empty."""
    for number in range(n):
        rng = np.random.default_rng(child_seed(seed, "simulated", number))
        records = [simulated_question(rng, index, data.settings.n_max) for index in range(data.n_questions)]
        given = Block([replace(record, gold=None) for record in records], data.settings)
        yield Case(f"stream {number + 1}", given, records)


#: Splits questions of a Beta(2, 2) difficulty into thirds: 3 x² - 2 x³ is 1/3 and 2/3.
THIRDS = (0.38696, 0.61304)


def simulated_question(rng: np.random.Generator, number: int, n_samples: int) -> Recorded:
    """Two to five components that the model gets right independently; wrong values are "a", "b", "c" in 5 : 3 : 2.

    The difficulty group is known, which no classifier could do better: it favours the calibrated arm.
    """
    difficulty = rng.beta(2, 2)
    n_components = int(rng.integers(2, 6))
    accuracy = np.clip(rng.normal(0.95 - 0.45 * difficulty, 0.08, n_components), 0.3, 0.99)
    is_right = rng.random((n_samples, n_components)) < accuracy
    wrong = rng.choice(["a", "b", "c"], p=[0.5, 0.3, 0.2], size=is_right.shape)
    values = np.where(is_right, "right", wrong).tolist()
    names = tuple(f"part {index + 1}" for index in range(n_components))
    samples = tuple(dict(zip(names, row, strict=True)) for row in values)
    category = CATEGORIES[int(np.searchsorted(THIRDS, difficulty))]
    return Recorded(f"question {number + 1}", names, samples, dict.fromkeys(names, "right"), category=category)


# ------------------------------------------------------------------------------------------------------ the trial

METHOD = Arm("FC + ASCC", calibrated)
RIVALS = (
    Arm("self-consistency", partial(one_by_one, self_consistency), baseline=True),
    Arm("adaptive-consistency", partial(one_by_one, adaptive_consistency), baseline=True),
    Arm("early-stopping SC", partial(one_by_one, early_stopping), baseline=True),
)
ABLATIONS = (
    Arm("FC, uniform prior", partial(one_by_one, fractal), baseline=True),
    Arm("SC by component", partial(one_by_one, component_majority), baseline=True),
)
METRICS = (
    Metric("samples", better="lower", help="samples drawn per question"),
    Metric("requests", better="lower", help="requests per component"),
    Metric("tokens", better="lower", help="tokens generated per question, where they are recorded"),
    Metric("accuracy", better="higher", help="share of answers with every component right"),
    Metric("component_f1", better="higher", help="F1 of the components of an answer"),
)
#: The paper's two claims, and the question that it leaves open: what the saving by the fitted prior costs.
SAVES = Claim("needs fewer samples than adaptive and early-stopping self-consistency", metric="samples")
KEEPS = Claim(
    "answers no less accurately than self-consistency and its adaptive relatives (within two points)",
    metric="accuracy",
    margin=0.02,
    expects="no_worse",
)
GIVES_NOTHING_BACK = Claim(
    "answers with the fitted prior no less accurately than voting by component without it (within two points)",
    metric="accuracy",
    margin=0.02,
    expects="no_worse",
)
LIMITS: Mapping[str, Parameter] = {"tau": 0.95, "n_max": 40, "window": 5}


def three(source: str, **shared: Any) -> tuple[Trial, Trial, Trial]:
    """Three questions to one source of samples."""
    prefix = f"{source}-" if source else ""
    shared = {"slug": "tmafc", "metrics": METRICS, "score": cost_and_quality, **shared}
    return (
        Trial(claim=SAVES, arms=(METHOD, *RIVALS), part=source, **shared),
        Trial(claim=KEEPS, arms=(METHOD, *RIVALS), part=f"{prefix}accuracy", **shared),
        Trial(claim=GIVES_NOTHING_BACK, arms=(METHOD, *ABLATIONS), part=f"{prefix}calibration", **shared),
    )


MAIN = three("", load=digits_or_file, cases=blocks, n_cases={"quick": 20, "standard": 40, "full": 60}, params=LIMITS)
SIMULATED = three(
    "simulated",
    load=simulation,
    cases=simulated_questions,
    n_cases={"quick": 10, "standard": 40, "full": 200},
    params={**LIMITS, "questions": 100},
    takes_data=False,
)
SMOLLM2 = three(
    "smollm2",
    load=filled_forms,
    cases=blocks,
    n_cases={"quick": 12, "standard": 12, "full": 40},
    params={**LIMITS, "model": ""},
    takes_data=False,
)
# The source that may have nothing recorded comes last: what ran before it is finished then.
TRIAL = replace(MAIN[0], also=(*MAIN[1:], *SIMULATED, *SMOLLM2))
