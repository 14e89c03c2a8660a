"""rt-lynx beside pruned weights: in a diffusion transformer, against the dense model, in one layer, in SmolLM2's MLPs.

Are samples of a diffusion transformer whose layers multiply 2:4 inputs closer to the data than those of one with 2:4
weights? Are they as close as the dense model's? Does restoring lengths alone help? Does a single layer with drawn
inputs lose less? And does it hold for a language model, for which the paper does not claim it? Repairs of both sides
have the same rank.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from assay.bench import Arm, Claim, Metric, Trial
from assay.trials.compress.rt_lynx import diffusion, language, layer

DIFFUSION: dict[str, Any] = {
    "slug": "rt-lynx",
    "load": diffusion.load,
    "cases": diffusion.cases,
    "metrics": (
        Metric("frechet", better="lower", scale="log", help="Fréchet distance of samples from the data, on pixels"),
        Metric("class_agreement", better="higher", help="share of samples that a classifier reads as asked for"),
        Metric("velocity_error", better="lower", help="relative squared error of one step against the dense model"),
    ),
    "score": diffusion.score,
    "params": {"rank": 16, "models": 0, "samples": 0, "train": 1200},
    "takes_data": False,
}


def drawn(arm: str) -> Any:
    return partial(diffusion.draw, arm)


def asked(arm: str) -> Any:
    return partial(language.ask, arm)


TRIAL = Trial(
    claim=Claim("draws samples closer to the data than 2:4 weights or bare 2:4 inputs do", metric="frechet"),
    arms=(
        Arm("RT-Lynx (2:4 inputs, length, repair)", drawn("rt-lynx")),
        Arm("2:4 weights, Wanda and repair (SLiM-style)", drawn("slim"), baseline=True),
        Arm("2:4 weights, Wanda", drawn("wanda"), baseline=True),
        Arm("2:4 weights, magnitude", drawn("magnitude"), baseline=True),
        Arm("2:4 inputs alone", drawn("naive"), baseline=True),
    ),
    n_cases={"quick": 8, "standard": 12, "full": 24},
    also=(
        Trial(
            part="dense",
            claim=Claim(
                "draws samples as close to the data as the dense model's",
                metric="frechet",
                margin=0.1,
                expects="no_worse",
            ),
            arms=(
                Arm("RT-Lynx (2:4 inputs, length, repair)", drawn("rt-lynx")),
                Arm("dense", drawn("dense"), baseline=True),
            ),
            n_cases={"quick": 8, "standard": 12, "full": 24},
            **DIFFUSION,
        ),
        Trial(
            part="length",
            claim=Claim("draws samples closer to the data, unrepaired, once lengths are restored", metric="frechet"),
            arms=(
                Arm("2:4 inputs, length", drawn("norm")),
                Arm("2:4 inputs alone", drawn("naive"), baseline=True),
            ),
            n_cases={"quick": 8, "standard": 12, "full": 24},
            **DIFFUSION,
        ),
        Trial(
            slug="rt-lynx",
            part="layer",
            claim=Claim("loses less of a layer's output than 2:4 weights or bare 2:4 inputs do", metric="output_error"),
            load=layer.load,
            cases=layer.cases,
            arms=(
                Arm("RT-Lynx (2:4 inputs, length, repair)", partial(layer.sparse_inputs, True, True)),
                Arm(
                    "2:4 weights, Wanda and repair (SLiM-style)",
                    partial(layer.sparse_weights, True, True),
                    baseline=True,
                ),
                Arm("2:4 weights, Wanda", partial(layer.sparse_weights, True, False), baseline=True),
                Arm("2:4 weights, magnitude", partial(layer.sparse_weights, False, False), baseline=True),
                Arm("2:4 inputs alone", partial(layer.sparse_inputs, False, False), baseline=True),
            ),
            metrics=(
                Metric("output_error", better="lower", scale="log", help="relative squared error on fresh inputs"),
            ),
            score=layer.score,
            n_cases={"quick": 12, "standard": 40, "full": 200},
            params={"inputs": "gelu", "rank": 16},
            takes_data=False,
        ),
        Trial(
            slug="rt-lynx",
            part="language",
            claim=Claim("stays closer to the full language model than 2:4 weights or bare 2:4 inputs do", metric="kl"),
            load=language.load,
            cases=language.cases,
            arms=(
                Arm("RT-Lynx (2:4 inputs, length, repair)", asked("rt-lynx")),
                Arm("2:4 weights, Wanda and repair (SLiM-style)", asked("slim"), baseline=True),
                Arm("2:4 weights, Wanda", asked("wanda"), baseline=True),
                Arm("2:4 weights, magnitude", asked("magnitude"), baseline=True),
                Arm("2:4 inputs alone", asked("naive"), baseline=True),
            ),
            metrics=(
                Metric("kl", better="lower", scale="log", unit="nats", help="from the full model on its 25 top tokens"),
                Metric("same_token", better="higher", help="share of positions with the same likeliest token"),
                Metric("perplexity", better="lower", scale="log", help="on the true next tokens"),
                Metric("accuracy", better="higher", help="questions answered right (none at quick)"),
            ),
            score=language.score,
            n_cases={"quick": 8, "standard": 24, "full": 48},
            params={"model": "demo", "rank": 64, "calibration": 48},
        ),
    ),
    **DIFFUSION,
)
