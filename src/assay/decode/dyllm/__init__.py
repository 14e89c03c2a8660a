"""Decode a masked diffusion language model and recompute only the tokens whose attention context turned.

Such a model fills masked positions in any order, and plain decoding recomputes the whole sequence in every step,
although between two steps most tokens hardly move. Here every block keeps keys, values, contexts and MLP outputs; a
step recomputes those of salient tokens, and corrects the other contexts by what the changed values add.

:class:`DyLLMGenerator` wraps a model; :func:`compare` puts it beside full recomputation, Fast-dLLM's caches and
dLLM-Cache on your prompts. Nothing is trained.

Paper: "DyLLM: Efficient Diffusion LLM Inference via Saliency-based Token Selection and Partial Attention",
arXiv:2603.08026 (ICML 2026). The method is the paper's; batches in one padded tensor, the dense path where every token
is salient, and a shift of logits (Dream) that stays within a sequence are ours.

The folder: `layer` is the method on one block, `steps` on the whole stack, `decoding` the loop, `generate` and
`comparison` the interface, `adapters` the known architectures, `baselines` full recomputation and other caches.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.decode.dyllm.adapters import ModelAdapter, adapter_of
    from assay.decode.dyllm.comparison import Comparison, compare, pseudo_nll, step_errors
    from assay.decode.dyllm.generate import DyLLMGenerator, Generation, dyllm_generate
    from assay.decode.dyllm.layer import BlockAdapter
    from assay.decode.dyllm.loading import load_masked_lm, prompt_ids
    from assay.decode.dyllm.record import Record

__all__ = [
    "BlockAdapter",
    "Comparison",
    "DyLLMGenerator",
    "Generation",
    "ModelAdapter",
    "Record",
    "adapter_of",
    "compare",
    "dyllm_generate",
    "load_masked_lm",
    "prompt_ids",
    "pseudo_nll",
    "step_errors",
]

_NAMES = {
    "adapters": ("ModelAdapter", "adapter_of"),
    "comparison": ("Comparison", "compare", "pseudo_nll", "step_errors"),
    "generate": ("DyLLMGenerator", "Generation", "dyllm_generate"),
    "layer": ("BlockAdapter",),
    "loading": ("load_masked_lm", "prompt_ids"),
    "record": ("Record",),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
