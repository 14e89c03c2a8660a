"""mxint beside floating-point formats of the same bits, and beside one scale for each channel.

Five questions. Does a language model cast to MXINT8 stay closer to itself than one cast to MXFP8? Do rotated 4-bit
integers do so against NVFP4? On tensors drawn at random, is the error as foreseen? Does training in MXINT8 reach the
loss of full precision? Which format keeps most of what a layer multiplies when it trains (`mxint_points`)? A cast
quantises weights and activations of every linear layer but `lm_head`, as in the paper.
"""

from __future__ import annotations

from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.seeds import child_seed
from assay.bench import Arm, Case, Claim, Data, Metric, Trial
from assay.trials.compress.mxint_points import POINTS, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale

# --------------------------------------------------------------------------------------------- the text, the model

#: Tokens of a window, and questions of multiple choice that go with it. At quick a case must take about a second, and
#: its six questions are too few to tell formats apart; at standard a window is one of those in the family's picture.
TOKENS = {"quick": 64, "standard": 128, "full": 512}
QUESTIONS = {"quick": 1, "standard": 2, "full": 5}


def fresh_model(name: str) -> tuple[Any, Any]:
    """A model of its own, as it is changed in place, and the tokenizer."""
    from assay.models import named_lm

    return named_lm(name)


@lru_cache(maxsize=4)  # the arms of the largest part; packed, each is a quarter of the model or less
def cast_model(name: str, weight: str, activation: str, rotate: str | None) -> tuple[Any, Any]:
    from assay.compress.mxint import MXConfig, quantize_

    model, tokenizer = fresh_model(name)
    turned: Any = rotate
    quantize_(model, MXConfig(weight=weight, activation=activation, rotate=turned))
    return model, tokenizer


@lru_cache(maxsize=1)
def torchao_model(name: str) -> tuple[Any, Any]:
    """INT8 as people run it today: a scale for each channel of a weight and, as they come, for each token."""
    import torch

    quantization = need("torchao.quantization", extra="torchao", purpose="the INT8 baseline of mxint")
    model, tokenizer = fresh_model(name)
    quantization.quantize_(
        model.requires_grad_(False),
        quantization.Int8DynamicActivationInt8WeightConfig(),
        lambda module, layer: type(module) is torch.nn.Linear and layer != "lm_head",
    )
    return model, tokenizer


class Text(NamedTuple):
    """A text, the model that reads it, the tokens of a window and the questions that go with it."""

    model: str
    text: str
    n_tokens: int
    n_questions: int


class Asked(NamedTuple):
    """What an arm sees: which model to cast, and a window and questions with what the full model said."""

    model: str
    part: Any


def load_text(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    need("torch", extra="lm", purpose="the trial of mxint")
    need("torchao", extra="torchao", purpose="the INT8 baseline of mxint")
    model, n_tokens = str(params["model"]), int(params["tokens"]) or TOKENS[scale]
    text = text_of(path)[:1_000_000]
    name = "the Python reference" if path is None else path
    said = "SmolLM2-135M-Instruct" if model == "demo" else model
    return Data(f"{said} on {name}", len(text), Text(model, text, n_tokens, QUESTIONS[scale]), path)


def windows(text: Text, n: int, seed: int) -> Iterator[Case]:
    """A window and a few questions each, which no other case has: the same ones for every method of the family."""
    from assay.models import quality

    model, tokenizer = fresh_model(text.model)
    reference = quality.reference(
        model, tokenizer, n_windows=n, n_tokens=text.n_tokens, n_questions=text.n_questions * n, text=text.text
    )
    for number, part in enumerate(reference.split(n)):
        yield Case(f"window {number + 1} and its questions", Asked(text.model, part))


def cast(weight: str, activation: str, rotate: str | None, asked: Asked, seed: int) -> Any:
    from assay.models import quality

    return quality.measure(*cast_model(asked.model, weight, activation, rotate), asked.part)


def torchao_int8(asked: Asked, seed: int) -> Any:
    from assay.models import quality

    return quality.measure(*torchao_model(asked.model), asked.part)


def distance(case: Case, found: Any) -> dict[str, float]:
    """KL of the 25 likeliest tokens (the paper's metric), agreement, loss on the true next token, right answers."""
    return {
        "kl": found.kl_mean,
        "same_token": found.same_token_mean,
        "loss": float(found.nll.mean()),
        "choice": found.accuracy,
    }


# ------------------------------------------------------------------------------------------------ random tensors


class Kind(NamedTuple):
    """How large, and how heavy the tails."""

    n_rows: int
    outlier: float


def load_random(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    need("torch", extra="lm", purpose="the trial of mxint")
    n_rows, outlier = int(params["rows"]), float(params["outlier"])
    name = f"normal tensors, one channel of 64 {outlier:g} times as large"
    return Data(name, n_rows * 256, Kind(n_rows, outlier))


def random_tensors(kind: Kind, n: int, seed: int) -> Iterator[Case]:
    for number in range(n):
        rng = np.random.default_rng(child_seed(seed, "tensor", number))
        x = rng.standard_normal((kind.n_rows, 256), dtype=np.float32)
        x[:, rng.integers(64) :: 64] *= kind.outlier
        yield Case(f"tensor {number + 1}", x, x)


def quantised(fmt: str, rotate: Any, x: np.ndarray[Any, Any], seed: int) -> np.ndarray[Any, Any]:
    from assay.compress.mxint import fake_quant

    return np.asarray(fake_quant(x, fmt, rotate=rotate))


def signal_to_noise(case: Case, x_hat: np.ndarray[Any, Any]) -> dict[str, float]:
    from assay.compress.mxint import qsnr

    return {"qsnr": qsnr(case.truth, x_hat)}


# ----------------------------------------------------------------------------------------------------- training


class Lesson(NamedTuple):
    """What an arm trains on: bytes, the seed of its start and of its batches, and how long."""

    text: np.ndarray[Any, Any]
    seed: int
    n_steps: int


STEPS = {"quick": 40, "standard": 300, "full": 3000}
CONTEXT, BATCH = 64, 8


def load_bytes(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    need("torch", extra="lm", purpose="the trial of mxint")
    n_steps = int(params["steps"]) or STEPS[scale]
    text = np.frombuffer(text_of(path).encode()[:400_000], dtype=np.uint8)
    if len(text) < 20_000:
        raise InputError(f"{path}: {len(text)} bytes are too few to train on; bring at least 20,000")
    name = "the Python reference" if path is None else path
    return Data(f"a byte-level transformer on {name}, {n_steps} steps", len(text), (text, n_steps), path)


def lessons(data: tuple[np.ndarray[Any, Any], int], n: int, seed: int) -> Iterator[Case]:
    """One start and one order of batches each; the last tenth of the text is held out."""
    text, n_steps = data
    cut = len(text) * 9 // 10
    for number in range(n):
        lesson = Lesson(text[:cut], child_seed(seed, "lesson", number), n_steps)
        yield Case(f"start {number + 1}", lesson, text[cut:])


@cache
def byte_model_class() -> Any:
    """A small transformer; the class is made on demand, as torch is loaded on demand."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, d: int, n_heads: int) -> None:
            super().__init__()
            self.n_heads = n_heads
            self.norm, self.norm_mlp = nn.LayerNorm(d), nn.LayerNorm(d)
            self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def forward(self, x: Any) -> Any:
            b, n, d = x.shape
            q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(b, n, d))
            return x + self.down(nn.functional.gelu(self.up(self.norm_mlp(x))))

    class ByteModel(nn.Module):
        def __init__(self, d: int = 64, n_layers: int = 2, n_heads: int = 4) -> None:
            super().__init__()
            self.token, self.place = nn.Embedding(256, d), nn.Embedding(CONTEXT, d)
            self.blocks = nn.ModuleList([Block(d, n_heads) for _ in range(n_layers)])
            self.norm, self.lm_head = nn.LayerNorm(d), nn.Linear(d, 256)

        def forward(self, ids: Any) -> Any:
            x = self.token(ids) + self.place(torch.arange(ids.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.lm_head(self.norm(x))

    return ByteModel


def train(fmt: str | None, clip: Any, lesson: Lesson, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Train with one format at all six points of every linear layer; the arms share start and batches."""
    import torch

    from assay.compress.mxint import MXTrainingConfig, prepare_training_

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lesson.seed)
        model = byte_model_class()()
    if fmt is not None:
        prepare_training_(model, MXTrainingConfig.all_points(fmt, clip=clip))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=lesson.n_steps)
    text = torch.from_numpy(lesson.text.astype(np.int64))
    starts = np.random.default_rng(lesson.seed).integers(len(text) - CONTEXT - 1, size=(lesson.n_steps, BATCH))
    for row in torch.from_numpy(starts):
        batch = text[row[:, None] + torch.arange(CONTEXT + 1)]
        loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves backward untyped
        optimizer.step()
        schedule.step()
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def held_out_loss(case: Case, weights: dict[str, np.ndarray[Any, Any]]) -> dict[str, float]:
    """Nats a byte on held-out text, of the trained weights in full precision."""
    import torch

    model = byte_model_class()()
    model.load_state_dict({name: torch.from_numpy(values) for name, values in weights.items()})
    n_windows = min(128, len(case.truth) // (CONTEXT + 1))
    ids = torch.from_numpy(case.truth[: n_windows * (CONTEXT + 1)].astype(np.int64)).view(n_windows, -1)
    with torch.inference_mode():
        logits = model(ids[:, :-1]).flatten(0, 1)
        return {"loss": float(torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten()))}


# --------------------------------------------------------------------------------------------------- the trial


def both(fmt: str, rotate: str | None = None) -> Any:
    """Weights and activations in one format."""
    return partial(cast, fmt, fmt, rotate)


CAST_METRICS = (
    Metric("kl", better="lower", scale="log", unit="nats", help="divergence from the full model on its 25 top tokens"),
    Metric("same_token", better="higher", help="share of positions with the same likeliest token"),
    Metric("loss", better="lower", unit="nats", help="surprise at the true next token"),
    Metric("choice", better="higher", help="share of multiple-choice questions answered right; chance is 0.25"),
)
CAST: dict[str, Any] = {
    "slug": "mxint",
    "load": load_text,
    "cases": windows,
    "metrics": CAST_METRICS,
    "score": distance,
    "params": {"model": "demo", "tokens": 0},
    "threads": 2,
}

TRIAL = Trial(
    claim=Claim("stays closer to the full model than 8-bit floating point does", metric="kl"),
    arms=(
        Arm("MXINT8", both("mxint8")),
        Arm("MXFP8 (E4M3)", both("mxfp8"), baseline=True),
        Arm("INT8, a scale a channel and a token (torchao)", torchao_int8, baseline=True),
        Arm("FP8, a scale a channel and a token", both("fp8"), baseline=True),
    ),
    n_cases={"quick": 6, "standard": 12, "full": 200},
    also=(
        Trial(
            part="four-bit",
            claim=Claim("stays closer to the full model in rotated NVINT4 than in NVFP4", metric="kl"),
            arms=(
                Arm("NVINT4, rotated", both("nvint4", "hadamard")),
                Arm("NVFP4", both("nvfp4"), baseline=True),
                Arm("NVINT4", both("nvint4"), baseline=True),
            ),
            n_cases={"quick": 6, "standard": 12, "full": 200},
            **CAST,
        ),
        Trial(
            slug="mxint",
            part="random",
            claim=Claim("keeps more of a tensor with outliers in rotated NVINT4 than in NVFP4", metric="qsnr"),
            load=load_random,
            cases=random_tensors,
            arms=(
                Arm("NVINT4, rotated", partial(quantised, "nvint4", "hadamard")),
                Arm("NVFP4", partial(quantised, "nvfp4", None), baseline=True),
                Arm("NVFP4, rotated", partial(quantised, "nvfp4", "hadamard"), baseline=True),
                Arm("NVINT4", partial(quantised, "nvint4", None), baseline=True),
                Arm("INT4, a scale a row", partial(quantised, "int4", None), baseline=True),
            ),
            metrics=(Metric("qsnr", better="higher", unit="dB", help="signal to quantisation noise"),),
            score=signal_to_noise,
            n_cases={"quick": 20, "standard": 100, "full": 1000},
            params={"rows": 1024, "outlier": 20.0},
            takes_data=False,
        ),
        Trial(
            slug="mxint",
            part="training",
            claim=Claim(
                "trains to the loss of full precision and of MXFP8", metric="loss", margin=0.01, expects="no_worse"
            ),
            load=load_bytes,
            cases=lessons,
            arms=(
                Arm("MXINT8", partial(train, "mxint8", "sym")),
                Arm("full precision", partial(train, None, "sym"), baseline=True),
                Arm("MXFP8 (E4M3)", partial(train, "mxfp8", "sym"), baseline=True),
                Arm("INT8, bf16 scale, [-127, 127]", partial(train, "int8-bf16", "sym"), baseline=True),
                Arm("INT8, bf16 scale, [-128, 127]", partial(train, "int8-bf16", "asym"), baseline=True),
            ),
            metrics=(Metric("loss", better="lower", scale="log", unit="nats a byte", help="on held-out text"),),
            score=held_out_loss,
            n_cases={"quick": 6, "standard": 8, "full": 24},
            params={"steps": 0},
        ),
        POINTS,
    ),
    **CAST,
)
