"""Run a method beside its strongest baselines on the same cases, and say honestly what came out.

>>> from assay import bench
>>> result = bench.run("judge-rank", data="votes.csv", scale="quick")  # doctest: +SKIP
>>> print(result.verdict.sentence)  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from assay.bench.spec import Arm, Case, Claim, Data, Metric, Trial

if TYPE_CHECKING:
    from assay.bench.part import Step
    from assay.bench.result import Result, Verdict
    from assay.bench.runner import Interrupted, resume, run

# fmt: off
__all__ = [
    "Arm", "Case", "Claim", "Data", "Interrupted", "Metric", "Result", "Step", "Trial", "Verdict", "resume", "run",
]
# fmt: on

# A trial's file needs only the specification; what runs it is loaded when somebody runs something.
_ELSEWHERE = {
    "Result": "assay.bench.result",
    "Verdict": "assay.bench.result",
    "Interrupted": "assay.bench.runner",
    "Step": "assay.bench.part",
    "resume": "assay.bench.runner",
    "run": "assay.bench.runner",
}


def __getattr__(name: str) -> Any:
    if name in _ELSEWHERE:
        return getattr(importlib.import_module(_ELSEWHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
