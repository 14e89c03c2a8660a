"""memoryllm beside dense models of the same active and of the same total size, its tables, and its speed.

Does MemoryLLM read text better than a dense model with as many active parameters, be it shallower, narrower or pruned
(main)? Does Flex-MemoryLLM read better than MemoryLLM at equal total (`flex`)? How far is MemoryLLM behind the dense
model of the same total (`total`)? Is a table of four bits as good as the memories (`table`)? Does it decode faster than
its dense twin (`speed`)? And may a dense model be changed into one without training (`switched`, on SmolLM2-135M)?
"""

from __future__ import annotations

from functools import partial
from typing import Any

from assay.bench import Arm, Claim, Metric, Trial
from assay.trials.nn.memoryllm.decoding import decode, load_speed, prompts, speed
from assay.trials.nn.memoryllm.reading import (
    load_switched,
    load_trained,
    pages,
    perplexity,
    read,
    read_pruned,
    read_switched,
    read_table,
    windows,
)

PERPLEXITY = Metric("perplexity", better="lower", scale="log", help="of held-out text")
CASES = {"quick": 12, "standard": 40, "full": 200}

READING: dict[str, Any] = {
    "slug": "memoryllm",
    "cases": windows,
    "metrics": (PERPLEXITY,),
    "score": perplexity,
    "n_cases": CASES,
    "params": {"steps": 0},
}

TRIAL = Trial(
    claim=Claim("reads text better than a dense model with as many active parameters", metric="perplexity"),
    load=partial(load_trained, ("memory", "shallow", "narrow", "base")),
    arms=(
        Arm("MemoryLLM", partial(read, "memory")),
        Arm("dense, half the layers", partial(read, "shallow"), baseline=True),
        Arm("dense, narrower", partial(read, "narrow"), baseline=True),
        Arm("dense of three times the size, pruned (magnitude)", partial(read_pruned, "magnitude"), baseline=True),
        Arm("dense of three times the size, pruned (Wanda)", partial(read_pruned, "wanda"), baseline=True),
    ),
    also=(
        Trial(
            part="flex",
            claim=Claim("reads better with 3 h^2 parameters a layer on the context (Flex)", metric="perplexity"),
            load=partial(load_trained, ("flex3", "flex1", "memory")),
            arms=(
                Arm("Flex-MemoryLLM, 3 h^2", partial(read, "flex3")),
                Arm("Flex-MemoryLLM, h^2", partial(read, "flex1"), baseline=True),
                Arm("MemoryLLM", partial(read, "memory"), baseline=True),
            ),
            **READING,
        ),
        Trial(
            part="total",
            claim=Claim(
                "is within the paper's 12 % of a dense model with as many parameters in total",
                metric="perplexity", margin=0.12, expects="no_worse",
            ),
            load=partial(load_trained, ("memory", "base")),
            arms=(
                Arm("MemoryLLM", partial(read, "memory")),
                Arm("dense", partial(read, "base"), baseline=True),
            ),
            **READING,
        ),
        Trial(
            part="table",
            claim=Claim(
                "reads nearly as well from an int4 table on disk", metric="perplexity", margin=0.01, expects="no_worse"
            ),
            load=partial(load_trained, ("memory",)),
            arms=(
                Arm("table, int4", partial(read_table, "int4")),
                Arm("table, int8", partial(read_table, "int8"), baseline=True),
                Arm("table, float16", partial(read_table, "float16"), baseline=True),
                Arm("feed-forward layers", partial(read, "memory"), baseline=True),
            ),
            **READING,
        ),
        Trial(
            slug="memoryllm",
            part="speed",
            claim=Claim("decodes faster than its dense twin of the same total size", metric="cpu_ms"),
            load=load_speed,
            cases=prompts,
            arms=(
                Arm("MemoryLLM, float16 table on disk", partial(decode, "table")),
                Arm("dense", partial(decode, "base"), baseline=True),
            ),
            metrics=(
                Metric("cpu_ms", better="lower", scale="log", unit="ms", help="CPU time of a decoded token"),
                Metric("memory_mib", better="lower", scale="log", unit="MiB", help="weights and rows held in memory"),
                Metric("mapped_mib", better="lower", unit="MiB", help="of the table, mapped from disk"),
            ),
            score=speed,
            n_cases={"quick": 8, "standard": 24, "full": 60},
            params={"width": 512, "layers": 8, "tokens": 16},
            takes_data=False,
        ),
        Trial(
            slug="memoryllm",
            part="switched",
            claim=Claim(
                "keeps the perplexity of a dense model that is changed into it without training",
                metric="perplexity", margin=0.02, expects="no_worse",
            ),
            load=load_switched,
            cases=pages,
            arms=(
                Arm("switched, not trained", partial(read_switched, "memory")),
                Arm("dense, as it was", partial(read_switched, "dense"), baseline=True),
            ),
            metrics=(PERPLEXITY,),
            score=perplexity,
            n_cases={"quick": 6, "standard": 24, "full": 100},
            params={"model": "demo"},
            takes_data=False,
        ),
    ),
    **READING,
)  # fmt: skip
