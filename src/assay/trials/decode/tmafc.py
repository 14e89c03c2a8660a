"""tmafc beside self-consistency, adaptive-consistency and early-stopping self-consistency.

Three sources of samples, and three questions to each: does it need fewer samples than its rivals, are its answers as
good as theirs, and what does the fitted prior cost? The main source is a panel of decision trees that read rows of
handwritten digits (or a user's recorded samples); `smollm2` is a small language model that fills in forms, sampled for
real; `simulated` is a model of which everything is known. Nothing is sampled twice: every arm reads the same recorded
samples as far as it needs. The part `smollm2-live` records nothing: each arm asks the language model itself.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay._core.seeds import child_seed
from assay.bench import Arm, Case, Claim, Data, Metric, Trial
from assay.decode.tmafc import (
    History,
    Record,
    Recorded,
    read_samples,
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
from assay.trials.decode import tmafc_live as live
from assay.trials.decode.tmafc_forms import Source, filled_forms, past_votes, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
LIVE = Trial(
    slug="tmafc",
    part="smollm2-live",
    claim=Claim("generates fewer tokens, asked live, than self-consistency and adaptive-consistency", metric="tokens"),
    load=live.live_forms,
    cases=live.one_form,
    arms=(
        Arm("FC + ASCC", live.fractal_live),
        Arm("self-consistency", live.self_consistency_live, baseline=True),
        Arm("adaptive-consistency", live.adaptive_consistency_live, baseline=True),
    ),
    metrics=(
        *METRICS[:3],
        Metric("prompt_tokens", better="lower", help="tokens read per question: once a round"),
        *METRICS[3:],
    ),
    score=live.paid_and_right,
    n_cases={"quick": 6, "standard": 6, "full": live.N_LIVE},
    params={**LIMITS, "model": "", "batch": 4},
    takes_data=False,
)
# The source that may have nothing recorded comes last: what ran before it is finished then.
TRIAL = replace(MAIN[0], also=(*MAIN[1:], *SIMULATED, *SMOLLM2, LIVE))
