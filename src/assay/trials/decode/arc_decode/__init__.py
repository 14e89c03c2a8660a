"""arc-decode beside the lossless ways to speculate, and beside other ways to accept more.

Does the boost write more tokens for each pass of the target than lossless speculation, and at what price (the main
part, on two small models trained on the spot, at lambda 1: all the tolerance there is)? Does the text stay as probable
under the target (`quality`)? Are the tokens it adds better chosen than those of a blind boost, of fuzzy acceptance and
of typical acceptance at the same price (`choice`)? And the first question on SmolLM2-135M, with a draft distilled from
it (`smollm2`) and with prompt lookup (`smollm2-lookup`).
"""

from __future__ import annotations

from dataclasses import replace

from assay.bench import Arm, Claim, Metric, Trial
from assay.trials.decode.arc_decode.choice import blind, chosen_by_arc, fuzzy, load_choice, shift_score, typical
from assay.trials.decode.arc_decode.runs import (
    assisted,
    boosted,
    cases,
    load_demo,
    load_lookup,
    load_small,
    lossless,
    plain,
    run_score,
)

METRICS = (
    Metric("tokens_per_forward", better="higher", help="tokens written for each forward pass of the target"),
    Metric("acceptance", better="higher", help="share of the tried candidates that were accepted"),
    Metric("added", better="higher", help="share of the tried candidates that only the boost accepted"),
    Metric("price", better="lower", help="mean B a position: total variation between the law and the target's"),
    Metric("shift", better="lower", unit="nats", help="mean divergence of the next step after an added token"),
    Metric("nll", better="lower", unit="nats", help="surprise of the target at the output, a token"),
    Metric("tokens_per_second", better="higher", scale="log", help="wall clock; on a CPU with a small target no goal"),
)
ARMS = (
    Arm("ARC-Decode", boosted),
    Arm("lambda 0 (lossless)", lossless, baseline=True),
    Arm("assisted generation (transformers)", assisted, baseline=True),
    Arm("plain sampling", plain, baseline=True),
)
MORE = Claim("writes more tokens for each pass of the target than lossless speculation", metric="tokens_per_forward")

SMALL = Trial(
    slug="arc-decode",
    claim=MORE,
    load=load_small,
    cases=cases,
    arms=ARMS,
    metrics=METRICS,
    score=run_score,
    n_cases={"quick": 20, "standard": 80, "full": 400},
    params={"lam": 1.0, "p_min": 0.05, "num_draft": 4, "n_tokens": 40},
    takes_data=False,
)

QUALITY = replace(
    SMALL,
    part="quality",
    claim=Claim(
        "writes text that is as probable under the target as sampled text",
        metric="nll",
        margin=0.1,
        expects="no_worse",
    ),
)

CHOICE = Trial(
    slug="arc-decode",
    part="choice",
    claim=Claim("adds tokens that shift the next step less than other rules do at the same price", metric="shift"),
    load=load_choice,
    cases=cases,
    arms=(
        Arm("ARC-Decode", chosen_by_arc),
        Arm("blind boost", blind, baseline=True),
        Arm("fuzzy: JS(p, q) < T", fuzzy, baseline=True),
        Arm("typical acceptance (Medusa)", typical, baseline=True),
    ),
    metrics=(METRICS[4], METRICS[0], METRICS[3], METRICS[5]),
    score=shift_score,
    n_cases={"quick": 12, "standard": 40, "full": 200},
    params={"lam": 1.0, "p_min": 0.05, "num_draft": 4, "n_tokens": 40},
    takes_data=False,
)

DEMO = replace(
    SMALL,
    part="smollm2",
    load=load_demo,
    n_cases={"quick": 6, "standard": 8, "full": 100},
    params={"lam": 1.0, "p_min": 0.05, "num_draft": 4, "n_tokens": 0, "model": "", "draft": "", "chat": False},
    takes_data=True,
)

LOOKUP = replace(DEMO, part="smollm2-lookup", load=load_lookup)

TRIAL = replace(SMALL, also=(QUALITY, CHOICE, DEMO, LOOKUP))
