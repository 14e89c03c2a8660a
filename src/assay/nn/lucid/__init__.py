"""Causal attention that erases what similar keys wrote before it writes: a drop-in for softmax attention.

`lucid_attention` stands where `scaled_dot_product_attention` stands and has no parameters of its own; `LucidAttention`
stands where `nn.MultiheadAttention` stands; `register` makes ``attn_implementation="lucid"`` known to transformers, and
`LucidCache` is its cache for ``generate``. A model must be trained with it: swapped into a trained one it changes what
the model computes.

Why it may help: exp(<q, k>) is the inner product of infinite-dimensional features phi(q) and phi(k), and the numerator
of softmax attention the state S_t = S_{t-1} + v_t phi(k_t)^T, one gradient step on -v_t^T S phi(k_t). One step on
1/2 ||S phi(k_t) - v_t||^2 instead is the delta rule S_t = S_{t-1} (I - phi phi^T) + v_t phi_t^T: first erase what is
stored under this key, then write. In parallel form Y_t = v_t - sum_{j<t} P_tj Y_j, and Y takes the place of V. DeltaNet
is the same with phi the identity.

Paper: Duvvuri, Patel, Gupta, Dhillon, "LUCID: Attention with Preconditioned Representations", arXiv:2602.10410
(ICML 2026). The equations are the paper's; the blocked solve, its backward pass, the rule for decoding, masks other
than the plain causal one and the place of RoPE are ours.

The folder: `solve` is the method on tensors, `attention` and `layer` its interfaces in torch, `hub` the one in
transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.nn.lucid.attention import condition_number, lucid_attention, precondition_values, preconditioner
    from assay.nn.lucid.hub import LucidCache, convert_, load, register
    from assay.nn.lucid.layer import LucidAttention

__all__ = [
    "LucidAttention",
    "LucidCache",
    "condition_number",
    "convert_",
    "load",
    "lucid_attention",
    "precondition_values",
    "preconditioner",
    "register",
]

_NAMES = {
    "attention": ("condition_number", "lucid_attention", "precondition_values", "preconditioner"),
    "hub": ("LucidCache", "convert_", "load", "register"),
    "layer": ("LucidAttention",),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
