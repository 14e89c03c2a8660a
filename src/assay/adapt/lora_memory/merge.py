"""Merge memory modules: weighted sums, concatenation, TIES and DARE, of the factors A and B or of the product BA.

A module changes a layer by delta = (alpha / r) B A. PEFT combines the factors separately, which is cheap and adds
cross terms such as B₁A₂; with ``space="delta"`` the products are combined, exactly up to the rank of the result.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

Method = Literal["linear", "cat", "ties", "dare_linear"]
METHODS: tuple[Method, ...] = ("linear", "cat", "ties", "dare_linear")


# --------------------------------------------------------------------------------------------------------- arithmetic


def linear(deltas: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Weighted sum of tensors of one shape."""
    return sum((weight * delta for weight, delta in zip(weights, deltas, strict=True)), deltas[0] * 0)


def ties(
    deltas: Sequence[Tensor],
    weights: Sequence[float],
    density: float = 0.5,
    sign: Literal["total", "frequency"] = "total",
) -> Tensor:
    """TIES: keep the largest entries of each tensor, agree on a sign for every entry, average those that have it.

    Parameters
    ----------
    deltas : sequence of tensors of one shape
    weights : sequence of float
    density : float
        Share of the entries of each tensor that are kept, in (0, 1].
    sign : "total" or "frequency"
        The sign of the sum of what is kept, or of its signs.

    Examples
    --------
    >>> import torch
    >>> one, two = torch.tensor([3.0, -1.0, 0.5, 2.0]), torch.tensor([-2.0, -4.0, 0.1, 1.0])
    >>> ties([one, two], [1.0, 1.0], density=0.5).tolist()
    [3.0, -4.0, 0.0, 2.0]
    """
    import torch

    kept = torch.stack([_largest(delta, density) for delta in deltas])
    elected = (kept if sign == "total" else kept.sign()).sum(dim=0).sign()
    agrees = (kept.sign() == elected) & (kept != 0)
    weight = torch.tensor(list(weights), dtype=kept.dtype, device=kept.device).view(-1, *[1] * deltas[0].ndim)
    return (kept * agrees * weight).sum(dim=0) / agrees.sum(dim=0).clamp(min=1)


def _largest(delta: Tensor, density: float) -> Tensor:
    import torch

    flat = delta.flatten()
    n_kept = max(1, int(density * flat.numel()))
    kept = torch.zeros_like(flat)
    places = flat.abs().topk(n_kept).indices
    kept[places] = flat[places]
    return kept.view_as(delta)


def dare_linear(
    deltas: Sequence[Tensor], weights: Sequence[float], density: float = 0.5, generator: Any = None
) -> Tensor:
    """DARE: drop entries at random, divide the others by `density` so that the mean stays, and add with weights."""
    import torch

    kept = [
        delta * (torch.rand(delta.shape, generator=generator).to(delta.device) < density) / density for delta in deltas
    ]
    return linear(kept, weights)


def truncated(delta: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Factors B (d_out, rank) and A (rank, d_in) whose product is nearest to `delta` in the Frobenius norm."""
    import torch

    u, s, vh = torch.linalg.svd(delta, full_matrices=False)
    root = s[:rank].sqrt()
    return u[:, :rank] * root, root[:, None] * vh[:rank]


# ----------------------------------------------------------------------------------------------------------- adapters


def lora_layers(model: nn.Module, name: str) -> dict[str, Any]:
    """The layers of `model` that have an adapter of that name, by their place."""
    return {place: layer for place, layer in model.named_modules() if name in getattr(layer, "lora_A", {})}


def delta_of(layer: Any, name: str) -> Tensor:
    """(alpha / r) B A of one layer: (d_out, d_in) float32."""
    b, a = layer.lora_B[name].weight.float(), layer.lora_A[name].weight.float()
    delta: Tensor = layer.scaling[name] * (b @ a)
    return delta.detach()


def merge_adapters(
    model: Any,
    names: Sequence[str],
    method: Method = "linear",
    weights: Sequence[float] | None = None,
    *,
    new_name: str,
    density: float = 0.5,
    space: Literal["factors", "delta"] = "factors",
    rank: int | None = None,
    seed: int = 0,
) -> str:
    """Add an adapter that combines others.

    Parameters
    ----------
    model : peft.PeftModel
    names : sequence of str
        Adapters to combine. Of one alone, whatever the method, the result is that one times its weight.
    method : "linear", "cat", "ties" or "dare_linear"
        ``cat`` is the exact weighted sum, its rank the sum of the ranks.
    weights : sequence of float, optional
        By default 1 each for ``cat`` and ``ties``, and 1/k for the others.
    new_name : str
        Of the new adapter.
    density : float
        For ``ties`` and ``dare_linear``, in (0, 1].
    space : "factors" or "delta"
        Combine A and B separately (PEFT), or the products B A.
    rank : int, optional
        Of the result in the space of products: by default the sum of the ranks, where ``linear`` is exact and the
        others are the nearest of that rank.
    seed : int
        For ``dare_linear``.

    Returns
    -------
    str
        `new_name`.

    Raises
    ------
    InputError
        An adapter is unknown, they do not fit together, or an argument is out of range.
    """
    import torch

    names = list(names)
    _check(model, names, method, density, space)
    if weights is None:
        weights = [1.0 if method in ("cat", "ties") or len(names) == 1 else 1.0 / len(names)] * len(names)
    if len(weights) != len(names):
        raise InputError(f"{len(weights)} weights for {len(names)} adapters; give one for each")
    try:
        if len(names) == 1:  # exact, without the square roots of a weight
            model.base_model.add_weighted_adapter(names, [float(weights[0])], new_name, combination_type="cat")
        elif space == "factors":
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                model.base_model.add_weighted_adapter(
                    names, [float(w) for w in weights], new_name, combination_type=method,
                    density=density if method in ("ties", "dare_linear") else None,
                )  # fmt: skip
        else:
            _merge_products(model, names, method, weights, new_name, density, rank, seed)
    except BaseException:
        with suppress(ValueError):  # it may not have been added yet
            model.delete_adapter(new_name)
        raise
    return new_name


def _merge_products(
    model: Any,
    names: list[str],
    method: str,
    weights: Sequence[float],
    new_name: str,
    density: float,
    rank: int | None,
    seed: int,
) -> None:
    import torch

    rank = rank or sum(model.peft_config[name].r for name in names)
    config = model.peft_config[names[0]]
    model.add_adapter(new_name, replace(config, r=rank, lora_alpha=rank, use_rslora=False))  # to be filled
    generator = torch.Generator().manual_seed(seed)
    for layer in lora_layers(model, new_name).values():
        deltas = [delta_of(layer, name) for name in names]
        if method in ("linear", "cat"):
            merged = linear(deltas, weights)
        elif method == "ties":
            merged = ties(deltas, weights, density)
        else:
            merged = dare_linear(deltas, weights, density, generator)
        b, a = truncated(merged, rank)
        for factor, values in ((layer.lora_B[new_name].weight, b), (layer.lora_A[new_name].weight, a)):
            filled = torch.zeros_like(factor, dtype=torch.float32)  # a layer may be smaller than the rank
            filled[: values.shape[0], : values.shape[1]] = values
            factor.data.copy_(filled)


def _check(model: Any, names: list[str], method: str, density: float, space: str) -> None:
    if method not in METHODS:
        raise InputError(f"merge is {method!r}; expected one of {', '.join(METHODS)}")
    if space not in ("factors", "delta"):
        raise InputError(f"space is {space!r}; expected 'factors' or 'delta'")
    if not 0 < density <= 1:
        raise InputError(f"density is {density}; expected a share above 0, at most 1")
    if not names:
        raise InputError("no adapters to merge; name at least one")
    for name in names:
        if name not in model.peft_config:
            known = ", ".join(list(model.peft_config)[:20])
            raise InputError(f"there is no module {name!r}; there are {known}")
        config = model.peft_config[name]
        if config.use_dora:
            raise InputError(f"module {name!r} uses DoRA, which is no plain product BA; only plain LoRA can be merged")
        if config.use_rslora and len(names) > 1 and space == "factors":
            raise InputError(f"module {name!r} uses rsLoRA, whose scaling differs; merge it with space='delta'")
    if len(names) < 2:
        return
    configs = [model.peft_config[name] for name in names]
    first = set(lora_layers(model, names[0]))
    for name in names[1:]:
        if set(lora_layers(model, name)) != first:
            raise InputError(f"modules {names[0]!r} and {name!r} adapt different layers; they cannot be merged")
    ranks = sorted({config.r for config in configs})
    if len(ranks) > 1 and method != "cat" and space == "factors":
        raise InputError(
            f"the modules have ranks {', '.join(map(str, ranks))}; {method} of the factors needs one rank: "
            "use space='delta' or merge='cat'"
        )
