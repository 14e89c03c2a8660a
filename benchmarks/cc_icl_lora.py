"""cc-icl: whether multi-criterion training teaches the demo language model to follow a criterion, on a CPU.

Adapters (LoRA) in the last layers of SmolLM2-135M, short items, the shortest prompt: what a step costs and what it
teaches. Prints the loss, and what the model answers before and after, about items it was trained on (in new episodes)
and about items it never saw.

Run: python benchmarks/cc_icl_lora.py [--steps 60] [--criterion strict]
"""

from __future__ import annotations

import argparse
import time
from itertools import product

import numpy as np
import torch

from assay import models
from assay.evaluate.cc_icl import (
    CCReport,
    CriterionSpec,
    Episodes,
    Items,
    LMPredictor,
    MCTConfig,
    build_episodes,
    evaluate,
    mct_,
    with_lora,
)

#: What is found on a part, and where: twenty phrases a category.
PHRASES = {
    "sound": (("clean", "smooth", "even", "bright", "straight"), ("edge", "face", "rim", "seat")),
    "label": (
        ("barcode", "name tag", "date code", "arrow", "serial number"),
        ("on lid", "on side", "on base", "on box"),
    ),
    "crack": (("crack", "fracture", "split", "break", "rupture"), ("in weld", "at corner", "in lid", "in hinge")),
    "missing": (("missing bolt", "no screw", "absent cap", "lost nut", "no pin"), ("front", "rear", "left", "right")),
    "stain": (("stain", "ink spot", "smudge", "grease mark", "drip"), ("on lid", "on side", "on base", "on foot")),
    "scratch": (("scratch", "scuff", "scrape", "rub mark", "graze"), ("on lid", "on side", "on base", "on foot")),
}
DEFECTS, DISPUTED = ("crack", "missing"), ("stain", "scratch")
SPEC = CriterionSpec(
    "Defective?",
    ("No", "Yes"),
    {
        "lenient": {c: "Yes" if c in DEFECTS else "No" for c in PHRASES},
        "strict": {c: "Yes" if c in DEFECTS + DISPUTED else "No" for c in PHRASES},
    },
)
N_HELD_OUT, N_TEST = 5, 20


def items() -> Items:
    pairs = [(f"{what} {where}", c) for c, (whats, wheres) in PHRASES.items() for what, where in product(whats, wheres)]
    return Items("text", *(tuple(column) for column in zip(*pairs, strict=True)))


def split(everything: Items) -> tuple[Items, Items]:
    """Items to train on, and five of each category that are never seen."""
    rng, names = np.random.default_rng(0), np.asarray(everything.category)
    held_out = np.concatenate([rng.permutation(np.flatnonzero(names == c))[:N_HELD_OUT] for c in PHRASES])
    return everything.take(np.setdiff1d(np.arange(len(names)), held_out)), everything.take(held_out)


def told(when: str, model: torch.nn.Module, tokenizer: object, tests: dict[str, Episodes]) -> None:
    for name, episodes in tests.items():
        found: CCReport = evaluate(LMPredictor(model, tokenizer), episodes, batch_size=16)
        accuracy = [f"{k} {share.value:.2f} [{share.low:.2f}, {share.high:.2f}]" for k, share in found.accuracy.items()]
        print(
            f"{when}, {name}: accuracy {', '.join(accuracy)}; CS {found.sensitivity:.2f}, CI {found.invariance:.2f}, "
            f"rigidity {found.rigidity:.2f}",
            flush=True,
        )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=60)
    arguments.add_argument("--batch-size", type=int, default=16)
    arguments.add_argument("--learning-rate", type=float, default=1e-3)
    arguments.add_argument("--rank", type=int, default=16)
    arguments.add_argument("--layers", type=int, default=12)
    arguments.add_argument("--criterion", help="train under this one alone")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = models.demo_lm()
    tokenizer.chat_template = None  # forty tokens less than with its system prompt
    model = model.to(torch.bfloat16)
    seen, held_out = split(items())
    train = build_episodes(seen, SPEC, given.steps * given.batch_size // 2, seed=1)
    tests = {
        "trained items, new episodes": build_episodes(seen, SPEC, N_TEST, seed=2),
        "items never seen": build_episodes(held_out, SPEC, N_TEST, seed=3),
    }
    told("before", model, tokenizer, tests)
    model = with_lora(model, given.rank, n_layers=given.layers)
    config = MCTConfig(given.criterion, batch_size=given.batch_size, learning_rate=given.learning_rate)
    start = time.process_time()
    losses = mct_(model, tokenizer, train, config)
    spent = time.process_time() - start
    tenths = [f"{part.mean():.2f}" for part in np.array_split(losses, 10)]
    print(f"{len(losses)} steps of {given.batch_size}, {spent:.0f} s of CPU time ({spent / len(losses):.1f} a step)")
    print(f"loss by tenths of the steps, nats: {' '.join(tenths)}", flush=True)
    told("after", model, tokenizer, tests)


if __name__ == "__main__":
    main()
