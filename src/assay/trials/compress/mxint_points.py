"""The part `points` of the trial of mxint: what formats keep of the six operands of a layer that trains.

A case is a linear layer of a language model: its inputs, its weight and the gradients of its outputs on one window of
text, each along the axis that the product sums over (Y = Q(X) Q(W)ᵀ, dX = Q(dY) Q(Wᵀ)ᵀ, dW = Q(dYᵀ) Q(Xᵀ)ᵀ).
"""

from __future__ import annotations

from functools import partial
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

OPERANDS = ("x", "w", "dy", "w_back", "dy_back", "x_back")


class Text(NamedTuple):
    """A text, the model that reads it, and the tokens of the window."""

    model: str
    text: str
    n_tokens: int


def text_of(path: str | None) -> str:
    """A user's file, or the held-out text of the family."""
    if path is None:
        from assay.models import quality

        return quality.held_out_text()
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as UTF-8 text: {error}") from None


def load_text(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    need("torch", extra="lm", purpose="the trial of mxint")
    model, n_tokens, text = str(params["model"]), int(params["tokens"]), text_of(path)
    said = "SmolLM2-135M-Instruct" if model == "demo" else model
    name = "the Python reference" if path is None else path
    return Data(f"layers of {said} on {n_tokens} tokens of {name}", n_tokens, Text(model, text, n_tokens), path)


def layers(text: Text, n: int, seed: int) -> Iterator[Case]:
    """Layers drawn from all, with what went through them in one forward and backward pass."""
    from assay.compress._layers import dense_weight
    from assay.compress.mxint import capture, six_points
    from assay.models import named_lm

    model, tokenizer = named_lm(text.model)
    ids = tokenizer(text.text[: 20 * text.n_tokens], return_tensors="pt", verbose=False)["input_ids"]
    ids = ids[:, : text.n_tokens]
    if ids.shape[1] < text.n_tokens:
        raise InputError(f"the text has {ids.shape[1]} tokens; bring at least {text.n_tokens}, or -p tokens=…")
    seen = capture(model, lambda: model(ids, labels=ids).loss.backward())
    names = sorted(np.random.default_rng(child_seed(seed, "layers")).permutation(sorted(seen))[:n].tolist())
    for name in names:
        x, dy = seen[name]
        assert dy is not None
        weight, _ = dense_weight(model.get_submodule(name))
        operands = {key: operand.contiguous().numpy() for key, operand in six_points(x, weight, dy).items()}
        yield Case(name, operands, operands)


def quantised(fmt: str, operands: Mapping[str, np.ndarray[Any, Any]], seed: int) -> dict[str, np.ndarray[Any, Any]]:
    from assay.compress.mxint import fake_quant

    return {key: np.asarray(fake_quant(operand, fmt)) for key, operand in operands.items()}


def kept(case: Case, made: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, float]:
    """Signal to noise of each operand, their mean, and the crest factor that decides it."""
    from assay.compress.mxint import crest_factor, qsnr

    noise = {key: qsnr(case.truth[key], made[key]) for key in OPERANDS}
    kappa = np.mean([np.median(crest_factor(case.truth[key], 32)) for key in OPERANDS])
    return {"mean": float(np.mean(list(noise.values()))), **noise, "kappa": float(kappa)}


POINTS = Trial(
    slug="mxint",
    part="points",
    claim=Claim("keeps more of the operands of training than 8-bit floating point does", metric="mean"),
    load=load_text,
    cases=layers,
    arms=(
        Arm("MXINT8", partial(quantised, "mxint8")),
        Arm("MXFP8 (E4M3)", partial(quantised, "mxfp8"), baseline=True),
        Arm("INT8, a scale a row", partial(quantised, "int8"), baseline=True),
        Arm("FP8, a scale a row", partial(quantised, "fp8"), baseline=True),
        Arm("NVINT4", partial(quantised, "nvint4"), baseline=True),
        Arm("NVFP4", partial(quantised, "nvfp4"), baseline=True),
    ),
    metrics=(
        Metric("mean", better="higher", unit="dB", help="signal to quantisation noise, over the six operands"),
        *(Metric(key, better="higher", unit="dB", help=f"the same, of {key} alone") for key in OPERANDS),
        Metric(
            "kappa", better="lower", help="median crest factor of blocks of 32, over the six; the same for all arms"
        ),
    ),
    score=kept,
    n_cases={"quick": 12, "standard": 60, "full": 200},
    params={"model": "demo", "tokens": 256},
)
