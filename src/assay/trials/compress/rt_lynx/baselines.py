"""What people prune with today: 2:4 weights by magnitude, by Wanda, and Wanda with a low-rank repair (as SLiM has it).

Wanda: Sun et al., "A Simple and Effective Pruning Approach for Large Language Models", arXiv:2306.11695. SLiM:
Mozaffari et al., arXiv:2410.09615; its repair is here the exact optimum on the calibration data, which is no weaker
there than its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def pruned(weight: Any, norms: Any = None, n: int = 2, m: int = 4) -> Any:
    """A weight (out_features, in_features) with the `n` most important of every `m` inputs of a row.

    Importance is |W|, or with the norms (in_features,) of the inputs |W| times these, which is Wanda's.
    """
    import torch

    from assay.compress.rt_lynx import nm_topk

    importance = weight.abs() if norms is None else weight.abs() * norms
    # An importance may be zero, and its weight is then kept or not: the choice is by mask, not by value.
    return torch.where(nm_topk(importance.float(), n, m)[1], weight, torch.zeros((), dtype=weight.dtype))


def prune_(model: Any, names: list[str], norms: Mapping[str, Any] | None = None, n: int = 2, m: int = 4) -> None:
    """Prune the weights of the named layers in place."""
    from assay.compress._layers import dense_weight, set_dense_weight

    for name in names:
        layer = model.get_submodule(name)
        set_dense_weight(layer, pruned(dense_weight(layer)[0], None if norms is None else norms[name], n, m))


def input_norms(stats: Any) -> Any:
    """Norms (in_features,) of the inputs over all tokens of the statistics."""
    return stats.gram.diagonal().sqrt()


def pruning_repair(stats: Any, weight: Any, sparse_weight: Any, rank: int) -> Any:
    """The low-rank branch that makes good best what pruning took: least |X (W - W~)ᵀ - X Lᵀ|² on the statistics."""
    from assay.compress.rt_lynx import RepairStats, closed_form

    made = RepairStats(weight)
    made.gram, made.cross = stats.gram, stats.gram @ (weight - sparse_weight).to(stats.gram.dtype).T
    made.n_tokens = stats.n_tokens
    return closed_form(made, rank)


def repaired_(model: Any, name: str, factors: Any) -> None:
    """Put a low-rank branch beside a dense layer (a sparse one with the pattern 4:4)."""
    from assay.compress.rt_lynx import ActivationSparsityConfig, SparseActLinear

    layer = SparseActLinear.from_linear(model.get_submodule(name), ActivationSparsityConfig(n=4, m=4))
    model.set_submodule(name, layer.repair(factors))


def slim_(model: Any, names: list[str], collect: Callable[..., Any], rank: int, config: Any) -> None:
    """Prune by Wanda and repair by a branch of the given rank, in place; statistics come from the dense model."""
    from assay.compress._layers import dense_weight, set_dense_weight

    done = {}
    for name, stats in collect({name: model.get_submodule(name) for name in names}, config):
        weight = dense_weight(model.get_submodule(name))[0]
        sparse = pruned(weight, input_norms(stats))
        done[name] = (sparse, pruning_repair(stats, weight, sparse, rank))
    for name, (sparse, factors) in done.items():
        set_dense_weight(model.get_submodule(name), sparse)
        repaired_(model, name, factors)
