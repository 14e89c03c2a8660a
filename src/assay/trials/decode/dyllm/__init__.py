"""dyllm beside full recomputation, Fast-dLLM's two caches and dLLM-Cache.

Is the text of a trained model as likely under the model itself as that of full recomputation or of whichever cache
does best (the main part)? The control never finds a token salient: where it does as well, this data
does not test saliency. How far are the logits off when every step sees the same tokens (`logits`)? And does it take
less time at a width and length where saved rows are saved time (`speed`, random weights, the salient share set)?
"""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.seeds import child_seed
from assay.bench import Arm, Case, Claim, Data, Metric, Trial

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale
    from assay.decode.dyllm.generate import Mode

PROMPT, RESPONSE, BLOCK = 32, 64, 32

#: Steps of training where `-p steps` does not say: minutes, a quarter of an hour, hours; once, then kept.
STEPS = {"quick": 800, "standard": 4000, "full": 40_000}


class Task(NamedTuple):
    """What an arm sees: a model (a folder, or the number of steps of the small one), a prompt, and how to decode."""

    model: str
    n_steps: int
    prompt: tuple[int, ...]
    n_new: int
    tau: float


class Decoded(NamedTuple):
    """Prompt and response, seconds of all steps, rows through the MLP, operations beside full recomputation."""

    ids: tuple[int, ...]
    seconds: float
    recomputed: float
    operations: float


class Source(NamedTuple):
    """Tokens to cut prompts from, and which model decodes."""

    model: str
    n_steps: int
    pieces: tuple[tuple[int, ...], ...]
    n_new: int
    tau: float


# ------------------------------------------------------------------------------------------------- a trained model


def load_prompts(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    """Pieces of held-out text, or the paragraphs of a user's file; trains the small model if it is not there yet."""
    need("torch", extra="lm", purpose="the trial of dyllm")
    model, n_new = str(params["model"]), int(params["new_tokens"])
    n_steps = int(params["steps"]) or STEPS[scale]
    tau = float(params["tau"])
    if n_new < 1 or n_steps < 1:
        raise InputError(f"new_tokens={n_new}, steps={n_steps}: expected 1 or more")
    from assay.decode.dyllm import prompt_ids

    _, tokenizer = model_of(model, n_steps)
    if tokenizer is None:
        raise InputError(f"{model} has no tokenizer; save it into the folder with save_pretrained")
    if path is None:
        from assay.models.quality import held_out_text

        texts, name = [held_out_text()], "held-out documentation of Python"
    else:
        texts, name = _paragraphs(Path(path)), f"paragraphs of {path}"
    pieces = [tuple(prompt_ids(tokenizer, text)) for text in texts]
    if path is None:
        # Every other stretch, so that prompts do not follow one another.
        pieces = [pieces[0][at : at + PROMPT] for at in range(0, len(pieces[0]) - PROMPT, 2 * PROMPT)]
    if not pieces:
        raise InputError(
            f"{path} holds no paragraph; the trial takes paragraphs, an empty line between two, as prompts"
        )
    who = model or f"a small ModernBERT, {n_steps} steps"
    return Data(f"{who}, prompts from {name}", len(pieces), Source(model, n_steps, tuple(pieces), n_new, tau), path)


def _paragraphs(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as UTF-8 text: {error}") from None
    return [paragraph.strip() for paragraph in text.split("\n\n") if paragraph.strip()]


@lru_cache(maxsize=2)
def model_of(model: str, n_steps: int) -> tuple[Any, Any]:
    """The user's model, or the small one."""
    if model:
        from assay.decode.dyllm import load_masked_lm

        return load_masked_lm(model)
    from assay.trials.decode.dyllm.model import trained

    small = trained(n_steps)
    return small.model, small.tokenizer


@lru_cache(maxsize=8)
def generator_of(model: str, n_steps: int, tau: float) -> Any:
    from assay.decode.dyllm import DyLLMGenerator
    from assay.trials.decode.dyllm.model import VOCABULARY

    mask = None if model else VOCABULARY
    return DyLLMGenerator(*model_of(model, n_steps), tau=tau, block_size=BLOCK, mask_token_id=mask)


def one_prompt(source: Source, n: int, seed: int) -> Iterator[Case]:
    """A prompt a case, in an order that the seed decides."""
    order = np.random.default_rng(child_seed(seed, "prompts")).permutation(len(source.pieces))
    for number, index in enumerate(order[:n], start=1):
        task = Task(source.model, source.n_steps, source.pieces[index], source.n_new, source.tau)
        yield Case(f"prompt {number}", task)


def decoded(mode: Mode, tau: float | None, task: Task, seed: int) -> Decoded:
    """One token a step; `tau` None is the user's."""
    import torch

    generator = generator_of(task.model, task.n_steps, task.tau if tau is None else tau)
    found = generator.generate(torch.tensor([task.prompt]), max_new_tokens=task.n_new, mode=mode)
    record = found.record
    ids = tuple(found.sequences[0].tolist())
    return Decoded(ids, record.seconds, record.recomputed_share, record.flops / record.full_flops)


@lru_cache(maxsize=512)
def full_decoding(task: Task) -> tuple[int, ...]:
    """What full recomputation gives, to score agreement with."""
    return decoded("full", None, task, 0).ids


def quality(case: Case, found: Decoded) -> dict[str, float]:
    import torch

    from assay.decode.dyllm import pseudo_nll

    task: Task = case.given
    generator = generator_of(task.model, task.n_steps, task.tau)
    first = len(task.prompt)
    response = found.ids[first:]
    return {
        "pseudo_nll": pseudo_nll(generator.adapter, torch.tensor(found.ids), first, generator.mask_token_id),
        "agreement": float(np.mean(np.equal(response, full_decoding(task)[first:]))),
        "distinct": len(set(response)) / len(response),
        "seconds": found.seconds,
        "recomputed": found.recomputed,
        "operations": found.operations,
    }


OTHERS = (
    Arm("full recomputation", partial(decoded, "full", None), baseline=True),
    Arm("Fast-dLLM prefix cache", partial(decoded, "prefix_cache", None), baseline=True),
    Arm("Fast-dLLM dual cache", partial(decoded, "dual_cache", None), baseline=True),
    Arm("dLLM-Cache", partial(decoded, "dllm_cache", None), baseline=True),
    Arm("control: never salient", partial(decoded, "dyllm", -1.0), baseline=True),
)
SECONDS = Metric("seconds", better="lower", scale="log", unit="s", help="of all steps, without loading the model")
METRICS = (
    Metric("pseudo_nll", better="lower", scale="log", unit="nats", help="surprise of the full model at its text"),
    Metric("agreement", better="higher", help="share of tokens that full recomputation gives"),
    Metric("distinct", better="higher", help="different tokens per token: repetition is easy to predict"),
    Metric("recomputed", better="lower", help="share of rows through the MLP, full steps included"),
    Metric("operations", better="lower", help="floating-point operations, of full recomputation's"),
    SECONDS,
)

# --------------------------------------------------------------------------------------- logits, step by step


class Followed(NamedTuple):
    """Logit error of every step behind the full ones."""

    errors: tuple[float, ...]


def followed(tau: float | None, task: Task, seed: int) -> Followed:
    """DyLLM's logits beside the exact ones while full recomputation chooses the tokens."""
    import torch

    from assay.decode.dyllm import step_errors

    generator = generator_of(task.model, task.n_steps, task.tau if tau is None else tau)
    errors = step_errors(generator, torch.tensor([task.prompt]), max_new_tokens=task.n_new)
    return Followed(tuple(errors[generator.num_full_steps :].tolist()))


def mean_error(case: Case, found: Followed) -> dict[str, float]:
    return {"logit_error": float(np.mean(found.errors)), "largest_error": float(np.max(found.errors))}


LOGITS = Trial(
    slug="dyllm",
    part="logits",
    claim=Claim("has logits nearer the full model's than with no token ever salient", metric="logit_error"),
    load=load_prompts,
    cases=one_prompt,
    arms=(
        Arm("DyLLM", partial(followed, None)),
        Arm("control: never salient", partial(followed, -1.0), baseline=True),
    ),
    metrics=(
        Metric("logit_error", better="lower", scale="log", help="relative, mean over sparse steps"),
        Metric("largest_error", better="lower", scale="log"),
    ),
    score=mean_error,
    n_cases={"quick": 8, "standard": 24, "full": 100},
    params={"model": "", "steps": 0, "new_tokens": RESPONSE, "tau": 0.999},
)

# ----------------------------------------------------------------------------------------- time at a larger size

#: Width, blocks, prompt and response of a model with random weights, where time goes into matrices.
WIDE: dict[str, int] = {"width": 512, "blocks": 4, "prompt": 448, "new_tokens": 64}

#: Share of salient rows that is set by tau: between 5 and 10 %.
SHARE = 0.07


class Wide(NamedTuple):
    """A random model's seed, its prompt's, and the salience threshold."""

    seed: int
    tau: float


def load_wide(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    """A model with random weights: its text means nothing, its time is that of a trained one of its size."""
    if scale == "quick":
        raise InputError(
            "every arm of this part computes for seconds a case; `assay try dyllm --scale standard` runs it"
        )
    share = float(params["salient_share"])
    if not 0 < share < 1:
        raise InputError(f"salient_share={share}: expected a share between 0 and 1")
    tau = tau_of_share(share)
    name = f"random weights, width {WIDE['width']}, {WIDE['prompt'] + WIDE['new_tokens']} tokens, tau {tau:.6g}"
    return Data(name, WIDE["prompt"] + WIDE["new_tokens"], tau)


@lru_cache(maxsize=1)
def wide_model() -> Any:
    import torch
    from transformers import EuroBertConfig, EuroBertForMaskedLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = EuroBertConfig(
            vocab_size=4096, mask_token_id=4095, hidden_size=WIDE["width"], intermediate_size=1376,
            num_hidden_layers=WIDE["blocks"], num_attention_heads=8, num_key_value_heads=8,
            max_position_embeddings=1024, pad_token_id=0, bos_token_id=0, eos_token_id=None,
        )  # fmt: skip
        model: Any = EuroBertForMaskedLM(config)
        return model.eval()


@lru_cache(maxsize=2)
def tau_of_share(share: float) -> float:
    """The tau at which about this share of rows is salient, by bisection on 1 - tau over decades."""
    low, high = -6.5, -1.0  # log10(1 - tau): everything is salient at the left, next to nothing at the right
    for _ in range(7):
        middle = (low + high) / 2
        record = wide_run("dyllm", WIDE["new_tokens"], Wide(0, 1 - 10**middle)).record
        low, high = (middle, high) if record.salient_share > share else (low, middle)
    return float(1 - 10 ** ((low + high) / 2))


def wide_run(mode: Mode, n_new: int, wide: Wide) -> Any:
    import torch

    from assay.decode.dyllm import DyLLMGenerator

    draw = torch.Generator().manual_seed(wide.seed)
    prompt = torch.randint(1, 4000, (1, WIDE["prompt"]), generator=draw)
    generator = DyLLMGenerator(wide_model(), tau=wide.tau, block_size=BLOCK)
    return generator.generate(prompt, max_new_tokens=n_new, mode=mode)


def wide_prompts(tau: float, n: int, seed: int) -> Iterator[Case]:
    for number in range(n):
        yield Case(f"prompt {number + 1}", Wide(child_seed(seed, "wide", number), tau))


def timed(mode: Mode, wide: Wide, seed: int) -> tuple[float, ...]:
    record = wide_run(mode, WIDE["new_tokens"], wide).record
    return record.seconds, record.salient_share, record.recomputed_share, record.flops / record.full_flops


def shares(case: Case, found: tuple[float, ...]) -> dict[str, float]:
    return dict(zip(("seconds", "salient", "recomputed", "operations"), found, strict=True))


SPEED = Trial(
    slug="dyllm",
    part="speed",
    claim=Claim("decodes in less time than recomputing everything and than three other caches", metric="seconds"),
    load=load_wide,
    cases=wide_prompts,
    arms=(
        Arm("DyLLM", partial(timed, "dyllm")),
        Arm("full recomputation", partial(timed, "full"), baseline=True),
        Arm("Fast-dLLM prefix cache", partial(timed, "prefix_cache"), baseline=True),
        Arm("Fast-dLLM dual cache", partial(timed, "dual_cache"), baseline=True),
        Arm("dLLM-Cache", partial(timed, "dllm_cache"), baseline=True),
    ),
    metrics=(
        SECONDS,
        Metric("salient", better="lower", help="rows through the MLP in sparse steps, of the rows in play"),
        Metric("recomputed", better="lower", help="share of rows through the MLP, full steps included"),
        Metric("operations", better="lower", help="floating-point operations, of full recomputation's"),
    ),
    score=shares,
    n_cases={"quick": 6, "standard": 8, "full": 30},
    params={"salient_share": SHARE},
    takes_data=False,
)

TRIAL = Trial(
    slug="dyllm",
    claim=Claim(
        "writes text that is as likely under the model as that of the best of the other ways, within 5 %",
        metric="pseudo_nll",
        margin=0.05,
        expects="no_worse",
    ),
    load=load_prompts,
    cases=one_prompt,
    arms=(Arm("DyLLM", partial(decoded, "dyllm", None)), *OTHERS),
    metrics=METRICS,
    score=quality,
    n_cases={"quick": 10, "standard": 40, "full": 200},
    params={"model": "", "steps": 0, "new_tokens": RESPONSE, "tau": 0.999},
    also=(LOGITS, SPEED),
)
