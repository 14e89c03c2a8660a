"""One linear layer whose inputs are drawn at random, so that the error to expect is known.

With independent entries 2:4 keeps the share f of the energy, of the inputs or of the weights alike: 0.868 where they
are normal, 0.920 where they are Laplace. What decides is whose tails are heavier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.seeds import child_seed
from assay.bench import Case, Data
from assay.trials.compress.rt_lynx.baselines import input_norms, pruned, pruning_repair

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale

KINDS = ("gelu", "laplace", "normal")
IN_FEATURES, OUT_FEATURES, N_LATENT = 256, 64, 16


class Drawn(NamedTuple):
    """What an arm sees: inputs to calibrate on, inputs to answer for, the weight, and the rank of repairs."""

    known: Any
    fresh: Any
    weight: Any
    rank: int


def load(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    need("torch", extra="lm", purpose="the trial of rt-lynx")
    kind, rank = str(params["inputs"]), int(params["rank"])
    if kind not in KINDS:
        raise InputError(f"-p inputs={kind} is not one of {', '.join(KINDS)}")
    return Data(f"{kind} inputs and normal weights (simulated)", 4096, (kind, rank))


def cases(setting: tuple[str, int], n: int, seed: int) -> Iterator[Case]:
    kind, rank = setting
    for number in range(n):
        rng = np.random.default_rng(child_seed(seed, "layer", number))
        weight = rng.standard_normal((OUT_FEATURES, IN_FEATURES), dtype=np.float32)
        mix = rng.standard_normal((N_LATENT, IN_FEATURES)) / np.sqrt(N_LATENT)
        known, fresh = (inputs(rng, kind, size, mix) for size in (4096, 1024))
        yield Case(f"layer {number + 1}", Drawn(known, fresh, weight, rank), fresh @ weight.T)


def inputs(rng: np.random.Generator, kind: str, n: int, mix: Any) -> Any:
    """Independent entries, or what a GELU makes of correlated ones, as in front of an MLP's second layer."""
    if kind == "normal":
        return rng.standard_normal((n, IN_FEATURES), dtype=np.float32)
    if kind == "laplace":
        return rng.laplace(size=(n, IN_FEATURES)).astype(np.float32)
    from scipy.special import ndtr

    h = np.sqrt(0.5) * (rng.standard_normal((n, N_LATENT)) @ mix + rng.standard_normal((n, IN_FEATURES)))
    return (h * ndtr(h)).astype(np.float32)


def sparse_inputs(norm_comp: bool, repair: bool, drawn: Drawn, seed: int) -> Any:
    import torch

    from assay.compress.rt_lynx import ActivationSparsityConfig, SparseActLinear

    layer = SparseActLinear.from_linear(
        _linear(drawn.weight), ActivationSparsityConfig(norm_comp=norm_comp, rank=drawn.rank)
    )
    if repair:
        layer.fit(torch.from_numpy(drawn.known))
    with torch.inference_mode():
        return layer(torch.from_numpy(drawn.fresh)).numpy()


def sparse_weights(by_norms: bool, repair: bool, drawn: Drawn, seed: int) -> Any:
    import torch

    from assay.compress.rt_lynx import RepairStats

    weight, fresh = torch.from_numpy(drawn.weight), torch.from_numpy(drawn.fresh)
    stats = RepairStats(weight)
    stats.update(torch.from_numpy(drawn.known))
    sparse = pruned(weight, input_norms(stats) if by_norms else None)
    y = fresh @ sparse.T
    if repair:
        a, b = pruning_repair(stats, weight, sparse, drawn.rank)
        y = y + fresh @ a.T @ b.T
    return y.numpy()


def _linear(weight: Any) -> Any:
    import torch
    from torch import nn

    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    made.weight = nn.Parameter(torch.from_numpy(weight), requires_grad=False)
    return made


def score(case: Case, y: Any) -> dict[str, float]:
    return {"output_error": float(((y - case.truth) ** 2).sum() / (case.truth**2).sum())}
