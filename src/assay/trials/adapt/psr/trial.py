"""psr beside the steering prompt, difference-in-means, one constant vector and projection matching.

Does it mimic what the prompt does to the states of held-out answers more closely (SmolLM2-135M as a pirate and as a
butler, one layer; all layers: `all-layers`)? Is it more fluent where the attribute is as strong as the prompt makes it
(`answers`, `all-answers`)? Does it find a known intervention on the states of a random model again (`oracle`)?
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.seeds import child_seed
from assay.bench import Arm, Case, Claim, Data, Metric, Trial
from assay.trials.adapt.psr import study
from assay.trials.adapt.psr.questions import ATTRIBUTES, QUESTIONS, Attribute

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale

METHODS = ("psr", "prompt", "difference-in-means", "constant", "projection")

#: No steering is no way to get the attribute: it shows how often the attribute comes by itself.
ANSWERING = (*METHODS, "plain")

#: Held-out questions that are answered at a time: the first of a longer run are those of a shorter one.
BLOCK = 12

#: Held-out questions of each attribute.
HELD_OUT: dict[Scale, int] = {"quick": 12, "standard": 36, "full": 44}

# ------------------------------------------------------------------------------- as fluent where equally strong?


class Study(NamedTuple):
    """The setting, and the held-out questions of this scale."""

    setting: study.Setting
    held_out: tuple[str, ...]


class Told(NamedTuple):
    """What an arm sees: a question, and what each way of steering answered; generation is kept, so arms look it up."""

    question: str
    answers: dict[str, str]


def load_study(
    is_generated: bool, is_everywhere: bool, path: str | None, scale: Scale, params: Mapping[str, Parameter]
) -> Data:
    """Answer, fit, choose strengths and answer again; minutes once, with progress, then kept."""
    need("torch", extra="lm", purpose="the trial of psr")
    model, _, _ = study.language_model(str(params["model"]))
    made = Study(*_setting(is_everywhere, path, scale, params, model))
    for name, _ in made.setting.attributes:
        for method in METHODS:
            if method in study.GIVEN:
                continue
            study.fitted(made.setting, name, method)
            if is_generated:
                study.strength(made.setting, name, method)
        if is_generated:
            for block in _blocks(made.held_out):
                told(made.setting, name, block)
        else:
            for block in _blocks(made.held_out):
                study.pairs_of(made.setting, name, block)
    said = "SmolLM2-135M-Instruct" if params["model"] == "demo" else str(params["model"])
    names = " and ".join(name for name, _ in made.setting.attributes)
    where = "all layers" if is_everywhere else f"layer {made.setting.layers}"
    title = f"{said} as {names}, {where}, {made.setting.n_train} training questions"
    return Data(title, len(made.held_out), made, path=path)


def _setting(
    is_everywhere: bool, path: str | None, scale: Scale, params: Mapping[str, Parameter], model: Any
) -> tuple[study.Setting, tuple[str, ...]]:
    from assay.adapt.psr.hooks import Blocks, check_layers

    layers: int | str = "all"
    if not is_everywhere:
        (layers,) = check_layers(int(params["layer"]) or "middle", len(Blocks(model)))
    n_tokens = int(params["tokens"])
    if n_tokens < 1:
        raise InputError(f"tokens={n_tokens}: expected 1 or more")
    questions = QUESTIONS if path is None else _read(path)
    n_dev, n_held_out = 8, HELD_OUT[scale]
    if path is None:
        n_train = 48
    else:
        n_held_out = min(n_held_out, max(6, len(questions) // 4))
        n_train = min(48, len(questions) - n_dev - n_held_out)
    if n_train < 8:
        raise InputError(f"{path} has {len(questions)} questions; expected {8 + n_dev + n_held_out} or more")
    attributes = tuple(ATTRIBUTES.items())
    if params["instruction"]:
        words = tuple(word.strip().lower() for word in str(params["words"]).split(",") if word.strip())
        if not words:
            raise InputError("-p instruction=… needs -p words=…, the words that show the attribute, with commas")
        attributes = (("attribute", Attribute(str(params["instruction"]), words)),)
    setting = study.Setting(str(params["model"]), layers, n_tokens, n_train, n_dev, questions, attributes)
    first = n_train + n_dev
    return setting, questions[first : first + n_held_out]


def _read(path: str) -> tuple[str, ...]:
    from assay._core.tables import read_table

    questions = tuple(dict.fromkeys(read_table(path, {"question": "text"})["question"]))
    if any(not question.strip() for question in questions):
        raise InputError(f"{path}, column question: a question is empty")
    return questions


def _blocks(questions: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [questions[start : start + BLOCK] for start in range(0, len(questions), BLOCK)]


def told(setting: study.Setting, name: str, block: tuple[str, ...]) -> dict[str, tuple[list[str], list[float | None]]]:
    """Of each method: its answers to the questions, and their mean surprise behind the plain prompt, unsteered."""
    found = {}
    for method in ANSWERING:
        alpha = 1.0 if method in study.GIVEN else study.strength(setting, name, method)
        answers = study.answers_of(setting, name, method, alpha, block)
        found[method] = (answers, study.surprise_of(setting, block, answers))
    return found


def cases(made: Study, n: int, seed: int) -> Iterator[Case]:
    """A held-out question and an attribute each."""
    number = 0
    for block in _blocks(made.held_out):
        by_name = {name: told(made.setting, name, block) for name, _ in made.setting.attributes}
        for place, question in enumerate(block):
            for name, found in by_name.items():
                if number == n:
                    return
                number += 1
                answers = {method: said[place] for method, (said, _) in found.items()}
                surprise = {said[place]: values[place] for said, values in found.values()}
                words = dict(made.setting.attributes)[name].words
                yield Case(f"{name}: {question}", Told(question, answers), (words, surprise))


class Said(NamedTuple):
    """An answer; one without steering is not compared by its fluency, as it does not have the prompt's strength."""

    text: str
    is_steered: bool = True


def answer(method: str, given: Told, seed: int) -> Said:
    return Said(given.answers[method], method != "plain")


def strength_and_fluency(case: Case, said: Said) -> dict[str, float]:
    from assay.adapt.psr.judges import word_judge, words_of
    from assay.trials.adapt.psr.questions import ENOUGH

    words, surprise = case.truth
    used = words_of(said.text)
    return {
        "perplexity": math.exp(surprise[said.text])
        if said.is_steered and surprise[said.text] is not None
        else math.nan,
        "attribute": word_judge(words, enough=ENOUGH)("", said.text),
        "different_words": len(set(used)) / len(used) if used else math.nan,
    }


# ------------------------------------------------------------------------------------- does it mimic the prompt?


class Heard(NamedTuple):
    """What an arm sees: the study, the attribute, and a held-out question with both prompts and an answer."""

    setting: study.Setting
    attribute: str
    pair: dict[str, Any]


def heard(made: Study, n: int, seed: int) -> Iterator[Case]:
    """A held-out question and an attribute each, with an answer that was given under the prompt."""
    number = 0
    for block in _blocks(made.held_out):
        by_name = {name: study.pairs_of(made.setting, name, block) for name, _ in made.setting.attributes}
        for place, question in enumerate(block):
            for name, pairs in by_name.items():
                if number == n:
                    return
                if pairs[place]["response"].strip():
                    number += 1
                    yield Case(f"{name}: {question}", Heard(made.setting, name, pairs[place]))


def mimic(method: str, given: Heard, seed: int) -> float:
    """Relative error of the states over the tokens of the answer, mean over the steered layers."""
    steering = study.fitted(given.setting, given.attribute, method)
    errors = steering.relative_rmse([given.pair], through=steering.layers[-1])
    return float(np.nanmean(list(errors.values())))


def distance(case: Case, found: float) -> dict[str, float]:
    return {"relative_rmse": found}


def strips(made: Study, seed: int) -> Iterator[tuple[str, str]]:
    """Where PSR acts, token by token, on a held-out answer of each attribute."""
    from assay.adapt.psr.strip import strip_html

    for name, _ in made.setting.attributes:
        pairs = study.pairs_of(made.setting, name, _blocks(made.held_out)[0])
        pair = next((pair for pair in pairs if pair["response"].strip()), None)
        if pair is not None:
            coefficients = study.fitted(made.setting, name, "psr").coefficients(pair["prompt"], pair["response"])
            yield f"Where PSR acts on an answer that was given as {name}", strip_html(coefficients)


# ----------------------------------------------------------------------------------- is a known truth found again?

WIDTH, LENGTH = 32, 24


class Moved(NamedTuple):
    """What an arm sees: states before and after (n_sequences, n_tokens, d) to learn from, and others before alone."""

    before: np.ndarray[Any, Any]
    after: np.ndarray[Any, Any]
    new: np.ndarray[Any, Any]


def load_random(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    need("torch", extra="lm", purpose="the trial of psr")
    need("transformers", extra="lm", purpose="the trial of psr")
    n_sequences = int(params["sequences"])
    if n_sequences < 2:
        raise InputError(f"sequences={n_sequences}: expected 2 or more")
    return Data("states of a random Llama of 3 layers, moved by a known intervention", n_sequences, n_sequences)


def interventions(n_sequences: int, n: int, seed: int) -> Iterator[Case]:
    """Each its own model, w and z; the gate leaves half of the positions untouched."""
    for number in range(n):
        states = random_states(2 * n_sequences, child_seed(seed, "states", number))
        rng = np.random.default_rng(child_seed(seed, "truth", number))
        w, z = rng.standard_normal((2, WIDTH)) / states.std()
        level = states @ w
        moved = states + np.maximum(level - np.median(level), 0)[..., None] * z
        states, moved = states.astype(np.float32), moved.astype(np.float32)
        given = Moved(states[:n_sequences], moved[:n_sequences], states[n_sequences:])
        yield Case(f"truth {number + 1}", given, (states[n_sequences:], moved[n_sequences:], z))


def random_states(n: int, seed: int) -> np.ndarray[Any, Any]:
    """States after the second block of a random Llama on random tokens (n, length, d)."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=97, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = LlamaModel(config)  # without dropout
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(0, 0.25)  # at the usual start the states are nearly zero
        out = model(torch.randint(97, (n, LENGTH)), output_hidden_states=True).hidden_states[2]
    states: np.ndarray[Any, Any] = out.double().numpy()
    return states


def recover(method: str, given: Moved, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Learn the movement; say where the new states go, and along which direction."""
    import torch

    from assay.adapt.psr.activations import Activations
    from assay.adapt.psr.baselines import projection
    from assay.adapt.psr.training import fit_arrays, mean_shift

    n, length, width = given.before.shape
    before, after = (torch.from_numpy(a.reshape(-1, width)) for a in (given.before, given.after))
    new = torch.from_numpy(given.new.reshape(-1, width))
    every = torch.ones(n * length)
    data = Activations(before, after, torch.arange(n).repeat_interleave(length), every.bool(), every)
    if method == "psr":
        (w, b, z), _ = fit_arrays(data, n_steps=600)
        strength = torch.relu(new @ w + b)
    elif method == "constant":
        z = mean_shift(data)
        strength = torch.ones(len(new))
    else:
        z, level = projection(data)
        strength = level - new @ z
    return (new + strength[:, None] * z).numpy().reshape(given.new.shape), z.numpy()


def recovered(case: Case, found: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]) -> dict[str, float]:
    before, after, truth = case.truth
    made, z = found
    error = np.linalg.norm(made - after) / np.linalg.norm(before - after)
    return {
        "relative_rmse": float(error),
        "cosine": float(z @ truth / np.linalg.norm(z) / np.linalg.norm(truth)),
    }


# ------------------------------------------------------------------------------------------------------ the trial

RMSE = Metric("relative_rmse", better="lower", help="distance to the states under the prompt; 1: no steering")

ARMS = {
    "psr": "PSR",
    "prompt": "steering prompt",
    "difference-in-means": "difference-in-means",
    "constant": "constant vector (least squares)",
    "projection": "projection matching",
    "plain": "no steering",
}


def arms(run: Any, methods: tuple[str, ...]) -> tuple[Arm, ...]:
    return tuple(Arm(ARMS[method], partial(run, method), baseline=method != "psr") for method in methods)


STUDY: dict[str, Any] = {
    "slug": "psr",
    "n_cases": {scale: 2 * n for scale, n in HELD_OUT.items()},
}
ASKED: dict[str, Any] = {"model": "demo", "tokens": 32, "instruction": "", "words": ""}
MIMICRY: dict[str, Any] = {
    "claim": Claim("mimics the prompt's effect on held-out answers more closely", metric="relative_rmse"),
    "cases": heard,
    "arms": arms(mimic, ("psr", "difference-in-means", "constant", "projection")),
    "metrics": (RMSE,),
    "score": distance,
}
ANSWERS: dict[str, Any] = {
    "claim": Claim("is more fluent where the attribute is as strong as the prompt makes it", metric="perplexity"),
    "cases": cases,
    "arms": arms(answer, ANSWERING),
    "metrics": (
        Metric("perplexity", better="lower", scale="log", help="of a steered answer, by the unsteered model"),
        Metric(
            "attribute",
            better="higher",
            help="different words of its list, two make 1; perplexities compare where it is as high as the prompt's; "
            "without steering: the base rate",
        ),
        Metric("different_words", better="higher", help="share of the answer's words that differ"),
    ),
    "score": strength_and_fluency,
}

TRIAL = Trial(
    load=partial(load_study, False, False),
    params={**ASKED, "layer": 0},
    pictures=strips,
    also=(
        Trial(part="answers", load=partial(load_study, True, False), params={**ASKED, "layer": 0}, **ANSWERS, **STUDY),
        Trial(part="all-layers", load=partial(load_study, False, True), params=ASKED, **MIMICRY, **STUDY),
        Trial(part="all-answers", load=partial(load_study, True, True), params=ASKED, **ANSWERS, **STUDY),
        Trial(
            slug="psr",
            part="oracle",
            claim=Claim("finds a known intervention again, on states it has not seen", metric="relative_rmse"),
            load=load_random,
            cases=interventions,
            arms=arms(recover, ("psr", "constant", "projection")),
            metrics=(RMSE, Metric("cosine", better="higher", help="of the direction that was found and the true one")),
            score=recovered,
            n_cases={"quick": 8, "standard": 24, "full": 100},
            params={"sequences": 40},
            takes_data=False,
        ),
    ),
    **MIMICRY,
    **STUDY,
)
