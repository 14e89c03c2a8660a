"""Arms of tmafc's trial that ask the language model themselves, round by round, and wait for its answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay._core.seeds import child_seed
from assay.bench import Case, Data
from assay.decode.tmafc import TMAFC, History, Record, Recorded, Reply, Task
from assay.decode.tmafc.prompts import answer_prompt, parse_object
from assay.decode.tmafc.replay import (
    Outcome,
    Settings,
    adaptive_consistency,
    component_f1,
    is_right,
    self_consistency,
)
from assay.trials.decode.tmafc_forms import FORMS, Source, filled_forms, forms, past_votes, sampler_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale


class Asked(NamedTuple):
    """What an arm sees of a form: the text and its components, votes on other forms, limits, and whom to ask."""

    task: Task
    past: tuple[Record, ...]
    settings: Settings
    batch: int
    model: str


class Paid(NamedTuple):
    """An answer and what it cost for real."""

    answer: Mapping[str, Any]
    n_samples: int
    n_requests: int
    n_tokens: int
    n_prompt_tokens: int


class Live(NamedTuple):
    """Forms to ask about, and recorded ones whose votes are the history."""

    tasks: list[Task]
    past: tuple[Record, ...]
    settings: Settings
    batch: int
    model: str


#: Forms that the part asks about live, behind those of the recorded pool.
N_LIVE = 60


def live_forms(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    """Forms that are in no pool; the votes on the recorded forms are their history."""
    if scale == "quick":
        raise InputError(
            "every arm of this part asks the language model anew, which takes minutes: "
            "`assay try tmafc --scale standard` runs it"
        )
    if int(params["batch"]) < 1:
        raise InputError(f"batch is {params['batch']}; expected a whole number from 1")
    source: Source = filled_forms(path, scale, params).value
    n = FORMS[scale]
    live = Live(
        forms(n + N_LIVE)[n:],
        past_votes(source.records, source.settings),
        source.settings,
        int(params["batch"]),
        str(params["model"]),
    )
    return Data(f"{params['model'] or 'SmolLM2-135M-Instruct'} fills in forms, live", N_LIVE, live)


def one_form(live: Live, n: int, seed: int) -> Iterator[Case]:
    """A form a case, in an order that the seed decides."""
    order = np.random.default_rng(child_seed(seed, "live")).permutation(len(live.tasks))
    for number, index in enumerate(order[:n], start=1):
        task = live.tasks[index]
        given = Asked(replace(task, gold=None), live.past, live.settings, live.batch, live.model)
        yield Case(f"form {number}", given, task)


def fractal_live(asked: Asked, seed: int) -> Paid:
    """The method as a person runs it: round by round, with settled components given to the model."""
    history = History()
    for record in asked.past:
        history.append(record.question, record.T, record.G, record.category)
    method = TMAFC(
        sampler_of(asked.model, seed),
        tau=asked.settings.tau,
        n_max=asked.settings.n_max,
        history=history,
        classifier="rule",
        batch_rounds=asked.batch,
    )
    found = method.answer(asked.task.question, schema=asked.task.components)
    n_requests = sum(vote.n_requests for vote in found.components)
    return Paid(found.answer, found.n_samples, n_requests, found.n_tokens or 0, found.n_prompt_tokens or 0)


def self_consistency_live(asked: Asked, seed: int) -> Paid:
    """All samples in one batch."""
    return whole_answers(asked, seed, asked.settings.n_max, stops=False)


def adaptive_consistency_live(asked: Asked, seed: int) -> Paid:
    """As many at a time as the method draws, until the vote on the whole answer is settled."""
    return whole_answers(asked, seed, asked.batch, stops=True)


def whole_answers(asked: Asked, seed: int, batch: int, *, stops: bool) -> Paid:
    sampler = sampler_of(asked.model, seed)
    prompt = answer_prompt(asked.task.question, asked.task.components, {})
    replies: list[Reply] = []
    names = tuple(asked.task.components)
    while True:
        replies += sampler(prompt, min(batch, asked.settings.n_max - len(replies)))
        samples = tuple(parse_object(reply) for reply in replies)
        record = Recorded(asked.task.question, names, samples)
        if len(replies) == asked.settings.n_max or (stops and is_settled(record, asked.settings)):
            break
    answer = self_consistency(record, asked.settings).answer
    n_prompt = sum(reply.prompt_tokens or 0 for reply in replies)
    n_tokens = sum(reply.tokens or 0 for reply in replies)
    return Paid(answer, len(replies), len(replies) * len(names), n_tokens, n_prompt)


def is_settled(record: Recorded, settings: Settings) -> bool:
    """Whether adaptive-consistency needs no further sample: one that holds nothing would not be read."""
    one_more = replace(record, samples=(*record.samples, None))
    return adaptive_consistency(one_more, settings).n_samples <= len(record.samples)


def paid_and_right(case: Case, paid: Paid) -> dict[str, float]:
    task: Task = case.truth
    record = Recorded(task.question, tuple(task.components), (), task.gold)
    outcome = Outcome(paid.answer, paid.n_samples, paid.n_requests, paid.n_tokens)
    return {
        "samples": float(paid.n_samples),
        "requests": paid.n_requests / len(task.components),
        "tokens": float(paid.n_tokens),
        "prompt_tokens": float(paid.n_prompt_tokens),
        "accuracy": is_right(record, outcome),
        "component_f1": component_f1(record, outcome),
    }
