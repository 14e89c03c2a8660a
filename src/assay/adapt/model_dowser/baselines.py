"""What else one would freeze, or merge afterwards: random, magnitude, Wanda-type and gradient masks, DARE, grafting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from assay._core.errors import InputError
from assay.adapt.model_dowser.layers import is_transposed, target_layers, weight_of
from assay.adapt.model_dowser.masks import Mask, build_mask, lowest, n_chosen
from assay.adapt.model_dowser.probes import Probes, as_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def full_mask(model: nn.Module, modules: str = "linear", layers: int | Sequence[int] | None = None) -> Mask:
    """All entries of the same layers: full fine-tuning of them."""
    return Mask(
        {
            name: torch.ones(weight_of(module).shape, dtype=torch.bool)
            for name, module in target_layers(model, modules, layers).items()
        }
    )


def random_mask(
    model: nn.Module,
    rho: float = 0.1,
    modules: str = "linear",
    layers: int | Sequence[int] | None = None,
    seed: int = 0,
) -> Mask:
    """A random share `rho` of every matrix."""
    generator = torch.Generator().manual_seed(seed)
    return build_mask(
        {
            # Whole numbers below 2^53 in double precision: ties, which go by place, are out of the question.
            name: torch.rand(weight_of(module).shape, generator=generator, dtype=torch.float64)
            for name, module in target_layers(model, modules, layers).items()
        },
        rho,
    )


def magnitude_mask(
    model: nn.Module, rho: float = 0.1, modules: str = "linear", layers: int | Sequence[int] | None = None
) -> Mask:
    """The smallest weights of every matrix."""
    found = target_layers(model, modules, layers)
    return build_mask({name: weight_of(module).detach().abs() for name, module in found.items()}, rho)


def wanda_mask(
    model: nn.Module,
    probes: Probes,
    rho: float = 0.1,
    tokenizer: Any = None,
    modules: str = "linear",
    layers: int | Sequence[int] | None = None,
    *,
    batch_size: int = 4,
) -> Mask:
    """The lowest |W_ij| ||h_j|| of every matrix (Sun et al., 2024), with norms of the inputs on `probes`.

    As the method, without the part of a score that says what the layer's outputs do to the model's.
    """
    targets = target_layers(model, modules, layers)
    squares: dict[str, Tensor] = {}
    handles = []

    def watch(name: str) -> Any:
        def hook(_module: nn.Module, inputs: tuple[Tensor, ...], _output: Tensor) -> None:
            rows = inputs[0].detach()
            mask = seen.get("mask")
            rows = rows[mask] if mask is not None and rows.shape[:2] == mask.shape else rows.flatten(0, -2)
            squares[name] = squares.get(name, torch.zeros(1, device=rows.device)) + rows.float().square().sum(0)

        return hook

    seen: dict[str, Tensor] = {}
    modes = [(module, module.training) for module in model.modules()]
    device = next(model.parameters()).device
    try:
        for name, module in targets.items():
            handles.append(module.register_forward_hook(watch(name)))
        model.eval()
        with torch.no_grad():
            for batch in as_batches(probes, tokenizer, batch_size):
                if isinstance(batch, Tensor):
                    model(batch.to(device))
                    continue
                given = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in batch.items()}
                seen = {"mask": given["attention_mask"].bool()} if "attention_mask" in given else {}
                model(**given)
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes:
            module.training = mode
    scores = {}
    for name, module in targets.items():
        norms = squares.get(name, torch.zeros(1, device=device)).sqrt()
        weight = weight_of(module).detach()
        scores[name] = weight.abs() * (norms[:, None] if is_transposed(module) and len(norms) > 1 else norms)
    return build_mask(scores, rho)


def gradient_mask(
    model: nn.Module,
    batches: Iterable[Mapping[str, Any]],
    rho: float = 0.1,
    modules: str = "linear",
    layers: int | Sequence[int] | None = None,
) -> Mask:
    """The entries with the largest squared gradient of the new task's loss (a Fisher mask; Sung et al., 2021).

    Parameters
    ----------
    batches : iterable of mapping
        Keyword arguments of the model with ``labels``, so that it returns a loss. Squares are summed over batches.
    """
    targets = target_layers(model, modules, layers)
    weights = {name: weight_of(module) for name, module in targets.items()}
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    modes = [(module, module.training) for module in model.modules()]
    squares = {name: torch.zeros_like(weight, dtype=torch.float32) for name, weight in weights.items()}
    device = next(model.parameters()).device
    try:
        model.eval()
        model.requires_grad_(False)
        for weight in weights.values():
            weight.requires_grad_(True)
        n = 0
        for batch in batches:
            n += 1
            loss = model(**{key: value.to(device) for key, value in batch.items()}).loss
            gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
            for name, gradient in zip(weights, gradients, strict=True):
                if gradient is not None:  # the loss reaches this layer
                    squares[name] += gradient.float().square()
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
        for module, mode in modes:
            module.training = mode
    if not n:
        raise InputError("batches is empty; a gradient mask needs data of the new task")
    return build_mask({name: -square for name, square in squares.items()}, rho)


def dare_merge(
    base: Mapping[str, Tensor], tuned: Mapping[str, Tensor], p: float = 0.9, seed: int = 0
) -> dict[str, Tensor]:
    """Drop each change with probability `p` and scale the rest by 1 / (1 - p) (DARE; Yu et al., 2024).

    Examples
    --------
    >>> dare_merge({"w": torch.zeros(2)}, {"w": torch.ones(2)}, p=0.0)["w"].tolist()
    [1.0, 1.0]
    """
    if not 0 <= p < 1:
        raise InputError(f"p={p}: expected the share of changes to drop, from 0 to below 1")
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, old in base.items():
        kept = torch.rand(old.shape, generator=generator).to(old.device) >= p
        made[name] = torch.where(kept, old + (tuned[name].detach() - old) / (1 - p), old)
    return made


def graft(base: Mapping[str, Tensor], tuned: Mapping[str, Tensor], keep: float = 0.1) -> dict[str, Tensor]:
    """Keep the share `keep` of each weight's changes that is largest, and undo the others.

    Examples
    --------
    >>> graft({"w": torch.zeros(2)}, {"w": torch.tensor([1.0, -2.0])}, keep=0.5)["w"].tolist()
    [0.0, -2.0]
    """
    if not 0 <= keep <= 1:
        raise InputError(f"keep={keep}: expected the share of changes to keep, from 0 to 1")
    made = {}
    for name, old in base.items():
        change = tuned[name].detach() - old
        kept = lowest(-change.abs(), n_chosen(keep, change.numel()))
        made[name] = torch.where(kept, tuned[name].detach(), old)
    return made
