"""model-dowser beside other masks, full fine-tuning, LoRA and DARE.

Do the weights that it lets train matter less? Noise of one size on the chosen tenth of the weights (main part), noise
in proportion to each weight (`proportional`), masks from text that the model wrote itself beside masks from real text
(`probes`), the highest scores in place of the lowest (`inverted`). Then what it is for (`tuning`): teach SmolLM2 a
narrow task in eight ways, and compare what is forgotten where all have learned equally much. And the counter-case
(`digits`): a small network, which has little to protect.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from assay.bench import Arm, Claim, Metric, Trial
from assay.trials.adapt.model_dowser import digits, masks, noise, tuning

KL = Metric("kl", better="lower", scale="log", unit="nats", help="from the model before, on its 25 likeliest tokens")
SAME = Metric("same_token", better="higher", help="share of positions with the same likeliest token as before")


def shaken(arm: str) -> Any:
    return partial(noise.shaken, arm)


def tuned(arm: str) -> Any:
    return partial(tuning.tuned, arm)


NOISE: dict[str, Any] = {
    "slug": "model-dowser",
    "cases": noise.cases,
    "metrics": (KL, SAME),
    "score": noise.score,
    "n_cases": {"quick": 8, "standard": 24, "full": 100},
    "params": masks.PARAMS,
}
METHOD = Arm("Model-Dowser", shaken(masks.DOWSER))
FREE = (
    METHOD,
    Arm("|W| |h| (Wanda-type)", shaken(masks.WANDA), baseline=True),
    Arm("smallest |W|", shaken(masks.MAGNITUDE), baseline=True),
    Arm("random", shaken(masks.RANDOM), baseline=True),
)

TRIAL = Trial(
    claim=Claim("finds a tenth of the weights whose change by noise of one size moves the model less", metric="kl"),
    load=partial(noise.load, "uniform"),
    arms=FREE,
    also=(
        Trial(
            part="proportional",
            claim=Claim("finds a tenth of the weights whose change in proportion moves the model less", metric="kl"),
            load=partial(noise.load, "proportional"),
            arms=FREE,
            **NOISE,
        ),
        Trial(
            part="probes",
            claim=Claim(
                "does as well with text that the model wrote as with real text of the kind that is asked about",
                metric="kl",
                margin=0.25,
                expects="no_worse",
            ),
            load=partial(noise.load, "uniform"),
            arms=(METHOD, Arm("Model-Dowser, real text", shaken(masks.REAL), baseline=True)),
            **NOISE,
        ),
        Trial(
            part="inverted",
            claim=Claim("tells what matters from what does not: its highest scores move the model more", metric="kl"),
            load=partial(noise.load, "uniform"),
            arms=(METHOD, Arm("highest scores (inverted)", shaken(masks.INVERTED), baseline=True)),
            **NOISE,
        ),
        Trial(
            slug="model-dowser",
            part="tuning",
            claim=Claim("forgets less than the others where all have learned the new task equally well", metric="kl"),
            load=tuning.load,
            cases=tuning.cases,
            arms=(
                Arm("Model-Dowser", tuned(masks.DOWSER)),
                Arm("full fine-tuning", tuned(tuning.FULL), baseline=True),
                Arm("LoRA (PEFT)", tuned(tuning.LORA), baseline=True),
                Arm("random mask", tuned(masks.RANDOM), baseline=True),
                Arm("magnitude mask", tuned(masks.MAGNITUDE), baseline=True),
                Arm("|W| |h| mask (Wanda-type)", tuned(masks.WANDA), baseline=True),
                Arm("gradient mask", tuned(tuning.GRADIENT), baseline=True),
                Arm("full, then DARE", tuned(tuning.DARE), baseline=True),
            ),
            metrics=(
                KL,
                Metric("perplexity", better="lower", scale="log", help="on held-out prose"),
                Metric("accuracy", better="higher", help="questions of multiple choice answered right"),
                Metric("steps", better="lower", help="steps until the new task was learned to the target"),
            ),
            score=tuning.score,
            n_cases={"quick": 12, "standard": 12, "full": 48},
            params={**masks.PARAMS, "target": 0.5, "steps": 240},
        ),
        Trial(
            slug="model-dowser",
            part="digits",
            claim=Claim("keeps and learns more (harmonic mean of both), in a small network", metric="h", margin=0.01),
            load=digits.load,
            cases=digits.cases,
            arms=(
                Arm("Model-Dowser", partial(digits.taught, masks.DOWSER)),
                Arm("full fine-tuning", partial(digits.taught, tuning.FULL), baseline=True),
                Arm("random mask", partial(digits.taught, masks.RANDOM), baseline=True),
                Arm("magnitude mask", partial(digits.taught, masks.MAGNITUDE), baseline=True),
                Arm("|W| |h| mask (Wanda-type)", partial(digits.taught, masks.WANDA), baseline=True),
            ),
            metrics=(
                Metric("h", better="higher", help="harmonic mean of the two shares below"),
                Metric("old", better="higher", help="share of upright digits still read"),
                Metric("new", better="higher", help="share of lying digits read"),
            ),
            score=digits.score,
            n_cases={"quick": 8, "standard": 24, "full": 100},
            params={"rho": 0.1, "before": digits.BEFORE, "after": digits.AFTER},
            takes_data=False,
        ),
    ),
    **NOISE,
)
