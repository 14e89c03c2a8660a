"""Ways to write the same texts, on two small models and on SmolLM2."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.cache import made_dir
from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.seeds import child_seed
from assay._core.tables import read_table
from assay.bench import Case, Data
from assay.models.quality import calibration_text, held_out_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale
    from assay.decode.arc_decode import ArcCalibration, Record

#: Tokens of an embedded prompt; prompts and positions a prompt of a calibration.
PROMPT, CALIBRATED, POSITIONS = 24, {"small": 16, "demo": 8}, 25
#: Prompts of a case: with a small target a text costs a tenth of a second, with SmolLM2 seconds.
TEXTS = {"small": 6, "demo": 1}
#: Tokens that SmolLM2 writes to a prompt; with fewer, the boost often adds none at all.
WRITTEN: Mapping[Scale, int] = {"quick": 40, "standard": 40, "full": 128}


class Settings(NamedTuple):
    """Which models, and how they are run: a pair's name ("small" or "demo"), or a folder with its draft's."""

    model: str
    draft: str
    lam: float
    p_min: float
    num_draft: int
    n_tokens: int


class Task(NamedTuple):
    """What an arm sees: prompts as token ids, settings, the calibration, and (for `choice`) thresholds of its rules."""

    prompts: tuple[tuple[int, ...], ...]
    settings: Settings
    calibration: ArcCalibration
    thresholds: Mapping[str, float]


class Source(NamedTuple):
    """Prompts to draw cases from."""

    prompts: list[tuple[int, ...]]
    n_texts: int
    settings: Settings
    calibration: ArcCalibration
    thresholds: Mapping[str, float]


class Written(NamedTuple):
    """Texts as token ids, and how each came about."""

    texts: tuple[tuple[int, ...], ...]
    records: tuple[Record, ...]


@lru_cache(maxsize=2)
def models_of(model: str, draft: str) -> tuple[Any, Any, Any]:
    """Target, draft ("prompt_lookup" is its own) and tokenizer."""
    from assay.trials.decode.arc_decode import models

    if model == "small":
        return models.small_pair()
    if draft == "distilled":
        return models.demo_pair()
    from assay import models as loading

    target, tokenizer = loading.demo_lm() if model == "demo" else loading.load_lm(model)
    return target, (draft if draft == "prompt_lookup" else loading.load_lm(draft)[0]), tokenizer


def settings_of(params: Mapping[str, Parameter], model: str, draft: str, n_tokens: int) -> Settings:
    settings = Settings(model, draft, float(params["lam"]), float(params["p_min"]), int(params["num_draft"]), n_tokens)
    if not 0 <= settings.lam <= 1:
        raise InputError(f"lam is {settings.lam}; expected from 0 (lossless) to 1")
    if settings.num_draft < 1 or settings.n_tokens < 2:
        raise InputError(
            f"num_draft={settings.num_draft}, n_tokens={settings.n_tokens}: expected 1 or more, and 2 or more"
        )
    return settings


def load_small(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    need("torch", extra="lm", purpose="the trial of arc-decode")
    settings = settings_of(params, "small", "draft", int(params["n_tokens"]))
    prompts, fitted = prepared(settings)
    source = Source(prompts, TEXTS["small"], settings, fitted, {})
    return Data("Python's reference, continued by a model of 3 layers with a draft of 1", len(prompts), source)


def load_demo(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    return load_model("distilled", path, scale, params)


def load_lookup(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    return load_model("prompt_lookup", path, scale, params)


def load_model(draft: str, path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    need("torch", extra="lm", purpose="the trial of arc-decode")
    if scale == "quick" and path is None:
        raise InputError(
            "this part distils a draft once and writes with SmolLM2, which takes minutes: "
            "`assay try arc-decode --scale standard` runs it"
        )
    model = str(params["model"]) or "demo"
    if draft == "distilled" and (model != "demo" or params["draft"]):
        draft = str(params["draft"])
        if not draft:
            raise InputError("a model of yours needs a draft that shares its tokenizer: -p draft=FOLDER")
    settings = settings_of(params, model, draft, int(params["n_tokens"]) or WRITTEN[scale])
    if path is None:
        prompts, fitted = prepared(settings)
        name = "Python's reference, continued" if draft != "prompt_lookup" else "passages to copy with a change"
    else:
        frame = read_table(path, {"prompt": "text"})
        prompts, fitted = split(token_ids(settings, list(frame["prompt"]), is_chat=bool(params["chat"])), settings)
        name = f"prompts of {path}"
    who = "SmolLM2-135M-Instruct" if model == "demo" else model
    return Data(f"{name}, by {who}", len(prompts), Source(prompts, TEXTS["demo"], settings, fitted, {}), path)


def prepared(settings: Settings) -> tuple[list[tuple[int, ...]], ArcCalibration]:
    """Embedded prompts from the held-out text, and a calibration on prompts from the other half."""
    kind = "small" if settings.model == "small" else "demo"
    _, _, tokenizer = models_of(settings.model, settings.draft)
    held_out, other = (cut(tokenizer, text) for text in (held_out_text(), calibration_text()))
    if settings.draft == "prompt_lookup":
        held_out, other = ([to_copy(tokenizer, tokenizer.decode(ids)) for ids in some] for some in (held_out, other))
    return held_out, calibrated(settings, other[: CALIBRATED[kind]])


def split(prompts: list[tuple[int, ...]], settings: Settings) -> tuple[list[tuple[int, ...]], ArcCalibration]:
    """A user's prompts: the first for calibration, the others for cases."""
    n = CALIBRATED["demo"]
    if len(prompts) < n + 6:
        raise InputError(f"there are {len(prompts)} prompts; the trial needs {n} to calibrate on and 6 or more to run")
    return prompts[n:], calibrated(settings, prompts[:n])


def cut(tokenizer: Any, text: str) -> list[tuple[int, ...]]:
    """Pieces of a text, in a fixed random order."""
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    places = np.random.default_rng(0).permutation(len(ids) // PROMPT)
    return [tuple(ids[place * PROMPT : (place + 1) * PROMPT]) for place in places]


def to_copy(tokenizer: Any, passage: str) -> tuple[int, ...]:
    """A request whose answer repeats much of it: what prompt lookup is for."""
    asked = f"Repeat this passage word for word, then say what it is about.\n\n{passage.strip()}"
    if not getattr(tokenizer, "chat_template", None):
        return tuple(tokenizer(f"{asked}\n\n", verbose=False)["input_ids"])
    return chat(tokenizer, asked)


def chat(tokenizer: Any, asked: str) -> tuple[int, ...]:
    messages = [{"role": "user", "content": asked}]
    return tuple(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"])


def token_ids(settings: Settings, prompts: list[str], *, is_chat: bool) -> list[tuple[int, ...]]:
    _, _, tokenizer = models_of(settings.model, settings.draft)
    if is_chat and not getattr(tokenizer, "chat_template", None):
        raise InputError("the tokenizer has no chat template; leave out -p chat=true")
    return [chat(tokenizer, text) if is_chat else tuple(tokenizer(text)["input_ids"]) for text in prompts]


def calibrated(settings: Settings, prompts: list[tuple[int, ...]]) -> ArcCalibration:
    """A calibration, made once for the same model and prompts."""
    import torch

    from assay.decode.arc_decode import ArcCalibration, calibrate
    from assay.decode.arc_decode.calibration import embedding_hash

    target, _, _ = models_of(settings.model, settings.draft)
    said = json.dumps([1, embedding_hash(target.get_input_embeddings().weight), prompts, POSITIONS])
    folder = made_dir() / "arc-decode" / hashlib.sha256(said.encode()).hexdigest()[:16]
    if not (folder / "calibration.json").is_file():
        calibrate(target, [torch.tensor(ids) for ids in prompts], n_tokens=POSITIONS).save(folder)
    return ArcCalibration.load(folder)


def cases(source: Source, n: int, seed: int) -> Iterator[Case]:
    """Other prompts for every case, in an order that the seed decides."""
    order = np.random.default_rng(child_seed(seed, "prompts")).permutation(len(source.prompts))
    n_there = len(order) // source.n_texts
    for number in range(min(n, n_there)):
        chosen = order[number * source.n_texts : (number + 1) * source.n_texts]
        prompts = tuple(source.prompts[place] for place in chosen)
        task = Task(prompts, source.settings, source.calibration, source.thresholds)
        yield Case(f"texts {number + 1}", task, task)


# ------------------------------------------------------------------------------------------------------ the arms


def boosted(task: Task, seed: int) -> Written:
    return ours(task, seed, task.settings.lam)


def lossless(task: Task, seed: int) -> Written:
    return ours(task, seed, 0.0)


def plain(task: Task, seed: int) -> Written:
    return ours(task, seed, 0.0, is_drafted=False)


def ours(task: Task, seed: int, lam: float, *, is_drafted: bool = True) -> Written:
    import torch

    from assay.decode.arc_decode import arc_generate

    target, draft, _ = models_of(task.settings.model, task.settings.draft)
    texts: list[tuple[int, ...]] = []
    records: list[Record] = []
    for number, ids in enumerate(task.prompts):
        output = arc_generate(
            target,
            draft if is_drafted else None,
            torch.tensor([ids]),
            max_new_tokens=task.settings.n_tokens,
            calibration=task.calibration,
            lam=lam,
            p_min=task.settings.p_min,
            num_draft=task.settings.num_draft,
            seed=child_seed(seed, number),
        )
        texts.append(tuple(output.sequences[0].tolist()))
        records += output.records
    return Written(tuple(texts), tuple(records))


def assisted(task: Task, seed: int) -> Written:
    """What transformers offers: the same draft, as many drafted tokens, no early stop."""
    import torch

    from assay.decode.arc_decode import Sampling
    from assay.decode.arc_decode.comparison import assisted as theirs

    target, draft, _ = models_of(task.settings.model, task.settings.draft)
    texts, records = [], []
    for number, prompt in enumerate(task.prompts):
        ids, record = theirs(
            target,
            draft,
            torch.tensor(prompt),
            Sampling(),
            task.settings.num_draft,
            task.settings.n_tokens,
            child_seed(seed, number),
        )
        texts.append(tuple(ids.tolist()))
        records.append(record)
    return Written(tuple(texts), tuple(records))


# ------------------------------------------------------------------------------------------------------ the score


def run_score(case: Case, written: Written) -> dict[str, float]:
    """Sums over the texts of a case: every token counts alike."""
    import torch

    from assay.decode.arc_decode import Sampling
    from assay.decode.arc_decode.auditing import shift_of_added
    from assay.decode.arc_decode.comparison import output_nll

    task: Task = case.truth
    target, _, _ = models_of(task.settings.model, task.settings.draft)
    shifts, surprise = [], []
    for text, record in zip(written.texts, written.records, strict=True):
        ids = torch.tensor(text)
        shifts.append(shift_of_added(target, ids, record.added, Sampling(), task.calibration.n_top))
        surprise.append(output_nll(target, ids, len(ids) - record.n_tokens) * record.n_tokens)
    total = {
        name: float(sum(getattr(record, name) for record in written.records))
        for name in ("n_tokens", "n_forwards", "n_tried", "n_accepted", "n_positions", "price", "seconds")
    }
    all_shifts = np.concatenate(shifts)
    tried, positions = total["n_tried"] or np.nan, total["n_positions"] or np.nan
    return {
        "tokens_per_forward": total["n_tokens"] / total["n_forwards"],
        "acceptance": total["n_accepted"] / tried,
        "added": len(all_shifts) / tried,
        "price": total["price"] / positions,
        "shift": float(all_shifts.mean()) if len(all_shifts) else float("nan"),
        "nll": sum(surprise) / total["n_tokens"],
        "tokens_per_second": total["n_tokens"] / total["seconds"],
    }
