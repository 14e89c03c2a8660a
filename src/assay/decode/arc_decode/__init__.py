"""Sample faster with a draft model, at a price that you set and can measure.

Speculative decoding throws a drafted token away when the target would have sampled it more rarely. ARC-Decode keeps
that rule as a floor and accepts some of the rejected tokens as well: those after which the target's next step would
hardly differ from the one after its own favourite. With lam=0 the law of the output is the target's; above it the law
is off by at most what the record reports as its price.

Paper: Li, Wang, Chen, Lv, Wang, "ARC-Decode: Accelerated Decoding with Risk-Bounded Acceptance", ICML 2026.
Differences: the residual is renewed between siblings and chosen candidates count as proposed with probability 1, so
that lam=0 is exact; only trees of chosen tokens are pruned; the price of the boost is reported.

The folder: `scores` and `trees` are functions of tensors, `verify` decides, `calibration` fits the tolerance and
`auditing` checks it, `reader` and `drafts` are the models, `generation` the loop, `comparison` the ways to decode side
by side.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from assay._core.extras import need

if TYPE_CHECKING:
    from assay.decode.arc_decode.auditing import Audit, audit
    from assay.decode.arc_decode.calibration import ArcCalibration, calibrate
    from assay.decode.arc_decode.comparison import Comparison, compare
    from assay.decode.arc_decode.drafts import Drafter, State
    from assay.decode.arc_decode.generation import Added, ArcOutput, Record, arc_generate
    from assay.decode.arc_decode.reader import Sampling
    from assay.decode.arc_decode.scores import acceptance, js_topk, lts_scores, normalised_entropy, output_law
    from assay.decode.arc_decode.trees import Draft, Tree, prune_tree
    from assay.decode.arc_decode.verify import Draws, Verdict, verify_chain, verify_tree

__all__ = [
    "Added",
    "ArcCalibration",
    "ArcOutput",
    "Audit",
    "Comparison",
    "Draft",
    "Drafter",
    "Draws",
    "Record",
    "Sampling",
    "State",
    "Tree",
    "Verdict",
    "acceptance",
    "arc_generate",
    "audit",
    "calibrate",
    "compare",
    "js_topk",
    "lts_scores",
    "normalised_entropy",
    "output_law",
    "prune_tree",
    "verify_chain",
    "verify_tree",
]

_NAMES = {
    "auditing": ("Audit", "audit"),
    "calibration": ("ArcCalibration", "calibrate"),
    "comparison": ("Comparison", "compare"),
    "drafts": ("Drafter", "State"),
    "generation": ("Added", "ArcOutput", "Record", "arc_generate"),
    "reader": ("Sampling",),
    "scores": ("acceptance", "js_topk", "lts_scores", "normalised_entropy", "output_law"),
    "trees": ("Draft", "Tree", "prune_tree"),
    "verify": ("Draws", "Verdict", "verify_chain", "verify_tree"),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        need("torch", extra="lm", purpose="arc-decode")
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
