"""mxint beside floating-point formats of the same bits, and beside one scale for each channel.

Four questions. Does a language model cast to MXINT8 stay closer to itself than one cast to MXFP8? Do rotated 4-bit
integers do so against NVFP4? On tensors drawn at random, is the error as foreseen? Does training in MXINT8 reach the
loss of full precision? A cast quantises weights and activations of every linear layer but `lm_head`, as in the paper.
"""

from __future__ import annotations

from functools import cache, lru_cache, partial
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

# --------------------------------------------------------------------------------------------- the text, the model

#: Positions of a window that are compared; those before them are context.
N_SCORED = 64


def text_of(path: str | None) -> str:
    """A user's file, or the topics of Python's own reference that every installation holds."""
    if path is None:
        from pydoc_data.topics import topics

        return "\n\n".join(topics[name] for name in sorted(topics))
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as UTF-8 text: {error}") from None


@lru_cache(maxsize=1)
def full_model(name: str) -> tuple[Any, Any]:
    from assay.models import demo_lm, load_lm

    return demo_lm() if name == "demo" else load_lm(name)


@lru_cache(maxsize=4)  # the arms of the largest part; packed, each is a quarter of the model or less
def cast_model(name: str, weight: str, activation: str, rotate: str | None) -> Any:
    from assay.compress.mxint import MXConfig, quantize_
    from assay.models import demo_lm, load_lm

    model, _ = demo_lm() if name == "demo" else load_lm(name)  # one of its own: it is changed in place
    quantize_(model, MXConfig(weight=weight, activation=activation, rotate=rotate))  # type: ignore[arg-type]
    return model


class Text(NamedTuple):
    """A text as tokens, the model, and the length of a window."""

    model: str
    ids: np.ndarray[Any, Any]
    n_tokens: int


class Window(NamedTuple):
    """What an arm sees: which model to cast, and a window of text."""

    model: str
    ids: np.ndarray[Any, Any]


def load_text(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    need("torch", extra="lm", purpose="the trial of mxint")
    model, n_tokens = str(params["model"]), int(params["tokens"])
    if n_tokens <= N_SCORED:
        raise InputError(f"-p tokens={n_tokens}: a window needs more than the {N_SCORED} tokens that are scored")
    text = text_of(path)[:400_000]
    _, tokenizer = full_model(model)
    ids = np.asarray(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    if len(ids) < 6 * n_tokens:
        raise InputError(f"{path}: {len(ids)} tokens give fewer than 6 windows of {n_tokens}; bring a longer text")
    name = "the Python reference" if path is None else path
    said = "SmolLM2-135M-Instruct" if model == "demo" else model
    return Data(f"{said} on {name}", len(ids), Text(model, ids, n_tokens), path)


def windows(text: Text, n: int, seed: int) -> Iterator[Case]:
    """Windows that do not overlap, in random order, with what the full model says on each."""
    starts = np.arange(len(text.ids) // text.n_tokens) * text.n_tokens
    for start in np.random.default_rng(seed).permutation(starts)[:n]:
        ids = text.ids[start : start + text.n_tokens]
        logits = last_logits(full_model(text.model)[0], ids)
        yield Case(f"tokens {start} to {start + text.n_tokens}", Window(text.model, ids), (ids, top_logits(logits)))


def last_logits(model: Any, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Logits (N_SCORED, n_vocabulary) at the last positions."""
    import torch

    with torch.inference_mode():
        return np.asarray(model(torch.from_numpy(ids)[None], logits_to_keep=N_SCORED).logits[0].float())


def top_logits(logits: np.ndarray[Any, Any], k: int = 25) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    ids = np.argpartition(-logits, k, axis=1)[:, :k]
    return ids, np.take_along_axis(logits, ids, axis=1)


def cast(weight: str, activation: str, rotate: str | None, window: Window, seed: int) -> np.ndarray[Any, Any]:
    return last_logits(cast_model(window.model, weight, activation, rotate), window.ids)


def distance(case: Case, logits: np.ndarray[Any, Any]) -> dict[str, float]:
    """KL of the 25 likeliest tokens (the paper's metric), agreement on the likeliest, loss on the true next token."""
    import torch

    from assay.compress.mxint import token_losses, top_k_kl

    ids, (top, reference) = case.truth
    seen = torch.from_numpy(np.take_along_axis(logits, top, axis=1))
    kl = top_k_kl(torch.from_numpy(reference), seen, k=top.shape[1])
    first = np.take_along_axis(top, reference.argmax(1)[:, None], axis=1)[:, 0]
    return {
        "kl": float(kl.mean()),
        "same_token": float(np.mean(logits.argmax(1) == first)),
        "loss": float(token_losses(torch.from_numpy(logits), torch.from_numpy(ids[-N_SCORED:])).mean()),
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
        loss.backward()  # type: ignore[no-untyped-call]
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
)
CAST: dict[str, Any] = {
    "slug": "mxint",
    "load": load_text,
    "cases": windows,
    "metrics": CAST_METRICS,
    "score": distance,
    "params": {"model": "demo", "tokens": 96},
}

TRIAL = Trial(
    claim=Claim("stays closer to the full model than 8-bit floating point does", metric="kl"),
    arms=(
        Arm("MXINT8", both("mxint8")),
        Arm("MXFP8 (E4M3)", both("mxfp8"), baseline=True),
        Arm("INT8, a scale a channel and a token", both("int8"), baseline=True),
        Arm("FP8, a scale a channel and a token", both("fp8"), baseline=True),
    ),
    n_cases={"quick": 6, "standard": 40, "full": 200},
    also=(
        Trial(
            part="four-bit",
            claim=Claim("stays closer to the full model in rotated NVINT4 than in NVFP4", metric="kl"),
            arms=(
                Arm("NVINT4, rotated", both("nvint4", "hadamard")),
                Arm("NVFP4", both("nvfp4"), baseline=True),
                Arm("NVINT4", both("nvint4"), baseline=True),
            ),
            n_cases={"quick": 6, "standard": 40, "full": 200},
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
            n_cases={"quick": 6, "standard": 12, "full": 24},
            params={"steps": 0},
        ),
    ),
    **CAST,
)
