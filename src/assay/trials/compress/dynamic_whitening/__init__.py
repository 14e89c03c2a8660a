"""dynamic-whitening beside SVD-LLM, ASVD and plain SVD at equal bytes.

Four questions. Does SmolLM2, cut to low rank with inputs taken anew behind every compressed layer, stay closer to
itself than with inputs of the full model (SVD-LLM)? Does the anchored target (ours) do better? Who keeps the outputs of
deep networks on digits, trained on the spot? Does a LoRA that starts in whitened directions learn faster than PEFT's
default and PiSSA?
"""

from __future__ import annotations

from functools import partial
from typing import Any

from assay.bench import Arm, Claim, Metric, Trial
from assay.trials.compress.dynamic_whitening import digits, lora, real

REAL: dict[str, Any] = {
    "slug": "dynamic-whitening",
    "cases": real.model_cases,
    "metrics": (
        Metric("kl", better="lower", scale="log", unit="nats", help="divergence from the full model, 25 top tokens"),
        Metric("perplexity", better="lower", scale="log", help="on held-out text"),
        Metric("same_token", better="higher", help="share of positions with the same likeliest token"),
        Metric("accuracy", better="higher", help="multiple choice, chance 0.25"),
    ),
    "score": real.closeness,
    "n_cases": {"quick": 8, "standard": 16, "full": 40},
    "params": {"model": "demo", "ratio": 0.8, "sequences": 32, "windows": 0},
}


def on_model(name: str, arm: str, *, baseline: bool = False) -> Arm:
    return Arm(name, partial(real.answer, arm), baseline=baseline)


STATIC = on_model("SVD-LLM (static whitening)", real.STATIC, baseline=True)
OTHERS = (on_model("ASVD (channel scales)", real.ASVD, baseline=True), on_model("plain SVD", real.PLAIN, baseline=True))

DIGITS: dict[str, Any] = {
    "slug": "dynamic-whitening",
    "load": digits.load,
    "cases": digits.networks,
    "metrics": (
        Metric("output_error", better="lower", scale="log", help="of the logits, relative to the full network's"),
        Metric("accuracy", better="higher", help="on held-out digits"),
    ),
    "score": digits.kept,
    "n_cases": {"quick": 8, "standard": 24, "full": 100},
    "params": {"digits_ratio": 0.2, "depth": 8},
    "takes_data": False,
}
DYNAMIC_DIGITS = partial(digits.whitened, "dynamic", "weight")
DIGITS_BASELINES = (
    Arm("SVD-LLM (static whitening)", partial(digits.baseline, real.STATIC), baseline=True),
    Arm("ASVD (channel scales)", partial(digits.baseline, real.ASVD), baseline=True),
    Arm("plain SVD", partial(digits.baseline, real.PLAIN), baseline=True),
)

TRIAL = Trial(
    claim=Claim("stays closer to the full model than static whitening does, at equal bytes", metric="kl"),
    load=partial(real.load_model, (real.DYNAMIC,)),
    arms=(on_model("dynamic whitening", real.DYNAMIC), STATIC, *OTHERS),
    also=(
        Trial(
            part="anchored",
            claim=Claim("stays closer with the anchored target (ours) than with the paper's", metric="kl"),
            load=partial(real.load_model, (real.DYNAMIC, real.ANCHORED)),
            arms=(
                on_model("dynamic whitening, anchored", real.ANCHORED),
                on_model("dynamic whitening", real.DYNAMIC, baseline=True),
                STATIC,
            ),
            **REAL,
        ),
        Trial(
            part="digits",
            claim=Claim("keeps the outputs of a deep network better than static whitening does", metric="output_error"),
            arms=(Arm("dynamic whitening", DYNAMIC_DIGITS), *DIGITS_BASELINES),
            **DIGITS,
        ),
        Trial(
            part="digits-anchored",
            claim=Claim("keeps the outputs of a deep network better with the anchored target", metric="output_error"),
            arms=(
                Arm("dynamic whitening, anchored", partial(digits.whitened, "dynamic", "anchored")),
                Arm("dynamic whitening", DYNAMIC_DIGITS, baseline=True),
                *DIGITS_BASELINES[:1],
            ),
            **DIGITS,
        ),
        Trial(
            slug="dynamic-whitening",
            part="lora",
            claim=Claim("learns faster as a start of LoRA than PEFT's default and PiSSA", metric="loss"),
            load=lora.load,
            cases=lora.lessons,
            arms=(
                Arm("whitened start", partial(lora.tuned, "whitened")),
                Arm("PEFT's default", partial(lora.tuned, "default"), baseline=True),
                Arm("PiSSA (peft)", partial(lora.tuned, "pissa"), baseline=True),
            ),
            metrics=(
                Metric("loss", better="lower", unit="nats", help="on held-out text after the fine-tuning"),
                Metric("half_way", better="lower", unit="nats", help="the same after half of the steps"),
            ),
            score=lora.losses,
            n_cases={"quick": 6, "standard": 12, "full": 24},
            params={"lora_model": "small", "steps": 0, "rank": 4, "rates": "1e-3,4e-3"},
            takes_data=False,
        ),
    ),
    **REAL,
)
