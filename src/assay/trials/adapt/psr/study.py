"""The study behind the real part: answers, fits and strengths, each made once and kept below the cache folder.

Generation is what costs. Everything is kept under a hash of what it depends on, so that a second run reads it, an
interrupted one goes on, and all arms speak of the same answers.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.cache import made_dir
from assay._core.files import write_text
from assay.trials.adapt.psr.questions import ATTRIBUTES, ENOUGH, QUESTIONS, Attribute

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from assay.adapt.psr.steering import Steering

#: Raised when what is kept, or how it is made, changes.
_LAYOUT = 1

#: Strengths that are tried, to find where the attribute is as strong as under the prompt: at one layer, and at all.
STRENGTHS = (0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
STRENGTHS_EVERYWHERE = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)

TEMPERATURE = 0.7

#: Ways to answer that need no fit: where their answers are in a pair.
GIVEN = {"prompt": "response", "plain": "plain_response"}


class Setting(NamedTuple):
    """What the study depends on."""

    model: str
    layers: int | str
    n_tokens: int
    n_train: int
    n_dev: int
    questions: tuple[str, ...] = QUESTIONS
    attributes: tuple[tuple[str, Attribute], ...] = tuple(ATTRIBUTES.items())


@lru_cache(maxsize=1)
def language_model(name: str) -> tuple[Any, Any, str]:
    """Model, tokenizer and the model's mark."""
    from assay.adapt.psr.files import fingerprint
    from assay.models import demo_lm, load_lm

    model, tokenizer = demo_lm() if name == "demo" else load_lm(name)
    return model, tokenizer, fingerprint(model)


def kept(kind: str, said: list[Any], make: Callable[[], Any]) -> Any:
    """What `make` gives, as JSON below the cache folder under a hash of `said`."""
    path = folder() / f"{kind}-{_digest(said)}.json"
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))
    made = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(made, ensure_ascii=False))
    return made


def folder() -> Path:
    return made_dir() / "psr"


def _digest(said: list[Any]) -> str:
    return hashlib.sha256(json.dumps([_LAYOUT, *said], sort_keys=True).encode()).hexdigest()[:20]


def pairs_of(setting: Setting, name: str, questions: tuple[str, ...]) -> list[dict[str, Any]]:
    """Questions with an answer under the instruction and a plain one, both sampled; kept in blocks of 16."""
    from assay.adapt.psr.pairs import prompts

    _, tokenizer, mark = language_model(setting.model)
    instruction = dict(setting.attributes)[name].instruction
    made: list[dict[str, Any]] = []
    for start in range(0, len(questions), 16):
        block = questions[start : start + 16]
        asked = [prompts(question, instruction, tokenizer) for question in block]
        said = [mark, block, setting.n_tokens, TEMPERATURE]
        steered = kept("steered", [*said, instruction], partial(_told, setting, asked, "steered_prompt"))
        plain = kept("plain", said, partial(_told, setting, asked, "prompt"))
        made += [
            {**pair, "response": one, "plain_response": other}
            for pair, one, other in zip(asked, steered, plain, strict=True)
        ]
    return made


def _told(setting: Setting, asked: list[dict[str, Any]], key: str) -> list[str]:
    from assay.adapt.psr.pairs import respond

    model, tokenizer, _ = language_model(setting.model)
    prompts = [pair[key] for pair in asked]
    return respond(model, tokenizer, prompts, max_new_tokens=setting.n_tokens, temperature=TEMPERATURE)


def judge_of(setting: Setting, name: str) -> Any:
    """The judge of an attribute: different words of its list."""
    from assay.adapt.psr.judges import word_judge

    return word_judge(dict(setting.attributes)[name].words, enough=ENOUGH)


def training_pairs(setting: Setting, name: str) -> list[dict[str, Any]]:
    """Training questions whose answers show the attribute."""
    from assay.adapt.psr import judged

    told = pairs_of(setting, name, setting.questions[: setting.n_train])
    kept_pairs = judged([pair for pair in told if pair["response"].strip()], judge_of(setting, name))
    # All count alike: the closed forms of the baselines know no soft labels.
    return [{key: value for key, value in pair.items() if key != "alpha"} for pair in kept_pairs]


@lru_cache(maxsize=16)
def fitted(setting: Setting, name: str, method: str) -> Steering:
    """A way of steering, fitted to the training pairs and kept as a folder."""
    from assay.adapt import psr

    model, tokenizer, mark = language_model(setting.model)
    pairs = training_pairs(setting, name)
    said = [mark, setting.layers, [[pair["question"], pair["response"]] for pair in pairs]]
    place = folder() / f"fit-{_digest(said)}" / method
    if not (place / "steering.json").is_file():
        kinds = (psr.PSR, psr.ConstantSteering, psr.DiffInMeans, psr.ProjectionSteering)
        (kind,) = (each for each in kinds if each.kind == method)
        # Through the model is the paper's way, and hours on a CPU; layer after layer on stored activations is minutes.
        options: dict[str, Any] = {"downstream": False} if method in ("psr", "constant") else {}
        psr.save(kind(model, tokenizer, layers=setting.layers).fit(pairs, **options), place)
    return psr.load(place, model, tokenizer)


def mean_score(setting: Setting, name: str, answers: list[str]) -> float:
    """Mean score of the attribute over answers."""
    judge = judge_of(setting, name)
    return float(np.mean([judge("", answer) for answer in answers]))


def strength(setting: Setting, name: str, method: str) -> float:
    """Alpha at which the attribute comes nearest, on the development questions, to what the prompt makes it.

    All strengths answer in one batch. Of two that come equally near, the weaker.
    """
    _, _, mark = language_model(setting.model)
    questions = development(setting)
    alphas = STRENGTHS_EVERYWHERE if setting.layers == "all" else STRENGTHS

    def find() -> float:
        # Eight questions say little about the prompt; its answers to the training questions are there already.
        shown = pairs_of(setting, name, setting.questions[: setting.n_train]) + pairs_of(setting, name, questions)
        target = mean_score(setting, name, [pair["response"] for pair in shown])
        tried = kept("sweep", [mark, setting, method, name, ENOUGH, alphas], sweep)
        return min(alphas, key=lambda alpha: (abs(tried[str(alpha)] - target), alpha))

    def sweep() -> dict[str, float]:
        answers = swept(setting, name, method, alphas, questions)
        return {str(alpha): mean_score(setting, name, said) for alpha, said in answers.items()}

    return find()


def swept(
    setting: Setting, name: str, method: str, alphas: tuple[float, ...], questions: tuple[str, ...]
) -> dict[float, list[str]]:
    """Answers of a method at several strengths, all in one batch."""
    import torch

    from assay.adapt.psr.pairs import prompts, respond

    model, tokenizer, _ = language_model(setting.model)
    instruction = dict(setting.attributes)[name].instruction
    plain = [prompts(question, instruction, tokenizer)["prompt"] for question in questions] * len(alphas)
    rows = torch.tensor(alphas).repeat_interleave(len(questions))
    with fitted(setting, name, method).steer(rows):
        answers = respond(
            model, tokenizer, plain, max_new_tokens=setting.n_tokens, temperature=TEMPERATURE, batch_size=len(plain)
        )
    n = len(questions)
    return {alpha: answers[place * n : (place + 1) * n] for place, alpha in enumerate(alphas)}


def development(setting: Setting) -> tuple[str, ...]:
    """Questions on which strengths are chosen."""
    return setting.questions[setting.n_train : setting.n_train + setting.n_dev]


def answers_of(setting: Setting, name: str, method: str, alpha: float, questions: tuple[str, ...]) -> list[str]:
    """Answers of a method at a strength, sampled; "prompt" is the steering prompt itself, "plain" none of them."""
    _, tokenizer, mark = language_model(setting.model)
    attribute = dict(setting.attributes)[name]
    if method in GIVEN:
        return [pair[GIVEN[method]] for pair in pairs_of(setting, name, questions)]
    said = [mark, setting, name, ENOUGH, method, alpha, questions]

    def make() -> list[str]:
        from assay.adapt.psr.pairs import prompts

        plain = [prompts(question, attribute.instruction, tokenizer)["prompt"] for question in questions]
        steering = fitted(setting, name, method)
        return steering.generate(plain, alpha, max_new_tokens=setting.n_tokens, temperature=TEMPERATURE)

    made: list[str] = kept("answers", said, make)
    return made


def surprise_of(setting: Setting, questions: tuple[str, ...], answers: list[str]) -> list[float | None]:
    """Mean surprise of answers behind the plain prompt, by the model without steering; None for an empty one."""
    model, tokenizer, mark = language_model(setting.model)

    def make() -> list[float | None]:
        from assay.adapt.psr.judges import surprises
        from assay.adapt.psr.pairs import prompts

        plain = [prompts(question, "", tokenizer)["prompt"] for question in questions]
        return [float(value) if np.isfinite(value) else None for value in surprises(model, tokenizer, plain, answers)]

    made: list[float | None] = kept("surprise", [mark, questions, answers], make)
    return made
