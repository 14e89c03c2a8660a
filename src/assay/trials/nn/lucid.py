"""lucid beside softmax attention as it is, at a lower temperature, and DeltaNet.

Does a layer with bounded logits (queries and keys RMS-normalised, as current language models do) recall a value among
similar keys more closely, when both attentions may choose their temperature? Does it at the usual one (`usual`, the
paper's comparison)? Does it without the bound, where softmax can sharpen by itself (`free`, the honest counter-case)?
Does a small language model lose nothing by it (`language`)? And may it replace softmax in a trained model without
training (`swapped`, on SmolLM2-135M)?
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.seeds import child_seed
from assay.bench import Arm, Case, Claim, Data, Metric, Trial

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale

# -------------------------------------------------------------------------------------- recall of one value in many

#: Width of a token, of queries and keys; sequences a step, questions on each; Adam's step; sequences that are scored.
WIDTH, HEAD, BATCH, ASKED, RATE, SCORED = 32, 16, 16, 8, 3e-3, 128

#: To choose from, by the error on fresh sequences; at 1, the usual one, both are behind by two orders of magnitude.
TEMPERATURES = (0.25, 0.125, 0.0625)


class World(NamedTuple):
    """How many keys, how long to train, what all keys share, and whether logits are bounded."""

    n_keys: int
    n_steps: int
    mean: float
    is_bounded: bool


class Lesson(NamedTuple):
    """What an arm sees: the world, the seed of its weights and batches, and sequences with questions."""

    world: World
    seed: int
    keys: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]
    asked: np.ndarray[Any, Any]


def load_recall(is_bounded: bool, path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    need("torch", extra="lm", purpose="the trial of lucid")
    world = World(int(params["keys"]), int(params["steps"]), float(params["mean"]), is_bounded)
    if world.n_keys < 1 or world.n_steps < 1:
        raise InputError(f"keys={world.n_keys}, steps={world.n_steps}: expected 1 or more")
    kind = "bounded logits" if is_bounded else "free logits"
    return Data(f"{world.n_keys} keys of mean {world.mean:g}, {kind} (simulated)", world.n_keys, world)


def sequences(world: World, n: int, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Keys (n, n_keys, width) around a shared mean, values of mean 0, and which keys are asked for (n, asked)."""
    keys = world.mean + rng.standard_normal((n, world.n_keys, WIDTH), dtype=np.float32)
    values = rng.standard_normal((n, world.n_keys, WIDTH), dtype=np.float32)
    return keys, values, rng.integers(world.n_keys, size=(n, ASKED))


def lessons(world: World, n: int, seed: int) -> Iterator[Case]:
    """A start, its batches and the sequences that are scored; none is shared."""
    for number in range(n):
        own = child_seed(seed, "recall", number)
        keys, values, asked = sequences(world, SCORED, np.random.default_rng(child_seed(own, "scored")))
        truth = np.take_along_axis(values, asked[..., None], axis=1)
        yield Case(f"start {number + 1}", Lesson(world, own, keys, values, asked), truth)


def recall(kind: str, temperatures: tuple[float, ...], lesson: Lesson, seed: int) -> np.ndarray[Any, Any]:
    """Train at each temperature, keep the one that is best on fresh sequences, and answer."""
    tried = [trained(kind, temperature, lesson) for temperature in temperatures]
    if len(tried) == 1:
        answer = tried[0]
    else:
        keys, values, asked = sequences(lesson.world, SCORED, np.random.default_rng(child_seed(lesson.seed, "tune")))
        truth = np.take_along_axis(values, asked[..., None], axis=1)
        answer = min(tried, key=lambda answer: float(np.mean((answer(keys, values, asked) - truth) ** 2)))
    found: np.ndarray[Any, Any] = answer(lesson.keys, lesson.values, lesson.asked)
    return found


def trained(kind: str, temperature: float, lesson: Lesson) -> Any:
    """One layer, trained by Adam on mean squared error; returns it as a function of numpy arrays."""
    import torch
    from torch.nn import functional

    from assay.nn.lucid import precondition_values

    world = lesson.world
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lesson.seed)
        to_q, to_k, to_v, out = (torch.nn.Linear(WIDTH, width, bias=False) for width in (HEAD, HEAD, WIDTH, WIDTH))
    scale = HEAD**-0.5 / temperature

    def forward(keys: Any, values: Any, asked: Any) -> Any:
        of_query = keys.gather(1, asked[..., None].expand(-1, -1, WIDTH))
        q, k, v = to_q(of_query), to_k(keys), to_v(values)
        if world.is_bounded:
            q, k = functional.rms_norm(q, (HEAD,)), functional.rms_norm(k, (HEAD,))
        if kind == "delta":  # linear attention with the delta rule: phi is the identity, keys are unit vectors
            q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
            system = (k @ k.mT).tril(-1)
            return out(q @ k.mT @ torch.linalg.solve_triangular(system, v, upper=False, unitriangular=True))
        if kind == "lucid":
            v = precondition_values(k[:, None], v[:, None], scale=scale)[:, 0]
        return out(functional.scaled_dot_product_attention(q, k, v, scale=scale))  # all keys come before the questions

    optimizer = torch.optim.Adam([layer.weight for layer in (to_q, to_k, to_v, out)], RATE)
    rng = np.random.default_rng(lesson.seed)
    for _ in range(world.n_steps):
        keys, values, asked = map(torch.from_numpy, sequences(world, BATCH, rng))
        truth = values.gather(1, asked[..., None].expand(-1, -1, WIDTH))
        loss = functional.mse_loss(forward(keys, values, asked), truth)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()

    def answer(keys: Any, values: Any, asked: Any) -> Any:
        with torch.inference_mode():
            return forward(*map(torch.from_numpy, (keys, values, asked))).numpy()

    return answer


def recall_error(case: Case, answer: np.ndarray[Any, Any]) -> dict[str, float]:
    return {"mse": float(np.mean((answer - case.truth) ** 2))}


# ------------------------------------------------------------------------------------------------ a language model

STEPS = {"quick": 150, "standard": 400, "full": 5000}
SEEDS = {"quick": 1, "standard": 2, "full": 5}
WINDOW = 128


class Read(NamedTuple):
    """What an arm sees: which training, and windows of text with what the softmax model said of them."""

    seed: int
    n_steps: int
    part: Any


def load_language(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    """Train both, or find them trained; a few minutes once, with progress."""
    n_steps = int(params["steps"]) or STEPS[scale]
    for seed in range(SEEDS[scale]):
        for attention in ("sdpa", "lucid"):
            language_model(attention, n_steps, seed)
    name = f"a Llama of 3 layers on Python's docstrings, {n_steps} steps, {SEEDS[scale]} start(s)"
    return Data(name, n_steps, (n_steps, SEEDS[scale]))


@lru_cache(maxsize=4)
def language_model(attention: str, n_steps: int, seed: int) -> tuple[Any, Any]:
    """Trained by the shared recipe; the two attentions share weights at the start, batches and all else."""
    need("transformers", extra="lm", purpose="the trial of lucid")
    from transformers import AutoModelForCausalLM, LlamaConfig

    from assay.models.small import Recipe, train
    from assay.nn.lucid import register

    register()
    recipe = Recipe(n_steps, batch_size=8, n_tokens=WINDOW, seed=seed)
    shape: dict[str, Any] = {
        "vocab_size": recipe.vocab_size, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2 * WINDOW,
        "tie_word_embeddings": True, "use_cache": False,
    }  # fmt: skip
    said = {"attention": attention, **shape}
    config = LlamaConfig(**shape)
    make: Any = AutoModelForCausalLM.from_config  # transformers leaves it untyped
    small = train("lucid-llama", said, lambda: make(config, attn_implementation=attention), recipe)
    return small.model, small.tokenizer


def windows(trained: tuple[int, int], n: int, seed: int) -> Iterator[Case]:
    """A window of held-out text each, dealt to the starts in turn."""
    from assay.models import quality

    n_steps, n_starts = trained
    for start in range(n_starts):
        mine = range(start, n, n_starts)
        if mine:
            reference = quality.reference(
                *language_model("sdpa", n_steps, start), n_windows=n, n_tokens=WINDOW, n_questions=0
            )
            parts = reference.split(n)
            for number in mine:
                yield Case(f"window {number + 1}, start {start + 1}", Read(start, n_steps, parts[number]))


def read(attention: str, given: Read, seed: int) -> Any:
    from assay.models import quality

    return quality.measure(*language_model(attention, given.n_steps, given.seed), given.part)


def surprise(case: Case, found: Any) -> dict[str, float]:
    return {"loss": float(found.nll.mean())}


# ---------------------------------------------------------------------------------- a trained model, only switched


class Page(NamedTuple):
    """Which model reads, and a window with what it says with its own attention."""

    model: str
    part: Any


def load_trained(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    from assay.models.quality import held_out_text

    model = str(params["model"])
    switched(model, "sdpa")  # what is missing is said here
    said = "SmolLM2-135M-Instruct" if model == "demo" else model
    return Data(f"{said}, switched without training", len(held_out_text()), model)


@lru_cache(maxsize=2)
def switched(name: str, attention: str) -> tuple[Any, Any]:
    from assay.models import demo_lm, load_lm
    from assay.nn.lucid import convert_

    model, tokenizer = demo_lm() if name == "demo" else load_lm(name)
    if attention == "lucid":
        convert_(model)
    return model, tokenizer


def pages(model: str, n: int, seed: int) -> Iterator[Case]:
    from assay.models import quality

    reference = quality.reference(*switched(model, "sdpa"), n_windows=n, n_tokens=64, n_questions=0)
    for number, part in enumerate(reference.split(n)):
        yield Case(f"window {number + 1}", Page(model, part))


def read_page(attention: str, page: Page, seed: int) -> Any:
    from assay.models import quality

    return quality.measure(*switched(page.model, attention), page.part)


# --------------------------------------------------------------------------------------------------------- the trial

MSE = Metric("mse", better="lower", scale="log", help="squared error of the recalled value; 1: nothing recalled")
LOSS = Metric("loss", better="lower", scale="log", unit="nats", help="surprise at the next token of held-out text")

RECALL: dict[str, Any] = {
    "slug": "lucid",
    "cases": lessons,
    "metrics": (MSE,),
    "score": recall_error,
    "params": {"keys": 64, "steps": 300, "mean": 1.0},
    "takes_data": False,
}

TRIAL = Trial(
    claim=Claim("recalls a value among similar keys more closely, both at their best temperature", metric="mse"),
    load=partial(load_recall, True),
    arms=(
        Arm("LUCID", partial(recall, "lucid", TEMPERATURES)),
        Arm("softmax (SDPA)", partial(recall, "softmax", TEMPERATURES), baseline=True),
    ),
    n_cases={"quick": 8, "standard": 24, "full": 100},
    also=(
        Trial(
            part="usual",
            claim=Claim("recalls a value among similar keys more closely at the usual temperature", metric="mse"),
            load=partial(load_recall, True),
            arms=(
                Arm("LUCID", partial(recall, "lucid", (1.0,))),
                Arm("softmax (SDPA)", partial(recall, "softmax", (1.0,)), baseline=True),
                Arm("DeltaNet (parallel form)", partial(recall, "delta", (1.0,)), baseline=True),
            ),
            n_cases={"quick": 8, "standard": 24, "full": 100},
            **RECALL,
        ),
        Trial(
            part="free",
            claim=Claim("recalls a value among similar keys more closely, with free logits", metric="mse"),
            load=partial(load_recall, False),
            arms=(
                Arm("LUCID", partial(recall, "lucid", (1.0,))),
                Arm("softmax (SDPA)", partial(recall, "softmax", (1.0,)), baseline=True),
            ),
            n_cases={"quick": 8, "standard": 24, "full": 100},
            **RECALL,
        ),
        Trial(
            slug="lucid",
            part="language",
            claim=Claim(
                "models text as well as softmax does, trained alike", metric="loss", margin=0.02, expects="no_worse"
            ),
            load=load_language,
            cases=windows,
            arms=(Arm("LUCID", partial(read, "lucid")), Arm("softmax (SDPA)", partial(read, "sdpa"), baseline=True)),
            metrics=(LOSS,),
            score=surprise,
            n_cases={"quick": 12, "standard": 40, "full": 200},
            params={"steps": 0},
            takes_data=False,
        ),
        Trial(
            slug="lucid",
            part="swapped",
            claim=Claim(
                "keeps the loss of a trained model that it is put into without training",
                metric="loss", margin=0.02, expects="no_worse",
            ),
            load=load_trained,
            cases=pages,
            arms=(
                Arm("LUCID, not trained", partial(read_page, "lucid")),
                Arm("softmax (SDPA)", partial(read_page, "sdpa"), baseline=True),
            ),
            metrics=(LOSS,),
            score=surprise,
            n_cases={"quick": 6, "standard": 24, "full": 100},
            params={"model": "demo"},
            takes_data=False,
        ),
    ),
    **RECALL,
)  # fmt: skip
