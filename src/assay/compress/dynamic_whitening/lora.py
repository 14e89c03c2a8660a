"""Start LoRA in the directions that matter for the outputs on the fine-tuning data.

The rank-r whitened truncation of each adapted weight becomes the adapter, and what is left stays in the frozen weight,
as in PiSSA (which is the case of white inputs): the model is unchanged at the first step.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from assay._core.errors import InputError
from assay._core.extras import need
from assay.compress._blocks import batches_of
from assay.compress._layers import dense_weight, set_dense_weight
from assay.compress.dynamic_whitening.factors import whitened_svd
from assay.compress.dynamic_whitening.layers import LowRankLinear, WhiteningConfig
from assay.compress.dynamic_whitening.models import evaluating, factorize_, full_moments
from assay.compress.dynamic_whitening.observe import token_masks, without_cache
from assay.compress.dynamic_whitening.stack import stack_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from assay.compress._blocks import Calibration


@dataclass(frozen=True)
class LoraStart:
    """Where the adapters began: needed by :func:`restore`.

    Parameters
    ----------
    adapter : str
    a, b : dict of layer to Tensor
        (r, in_features) and (out_features, r).
    """

    adapter: str
    a: dict[str, Tensor]
    b: dict[str, Tensor]


def init_lora_whitened(
    peft_model: nn.Module,
    calibration: Calibration,
    *,
    adapter: str = "default",
    eps: float = 1e-6,
    stats: Literal["dense", "lowrank"] = "dense",
) -> LoraStart:
    """Put whitened factors into the adapters of a PEFT model, and the rest of each weight into its frozen layer.

    B₀ = U_r √s_r / √c and A₀ = √s_r V_rᵀ S⁻¹ / √c with c the adapter's scaling; the frozen weight is W - c B₀ A₀.

    Parameters
    ----------
    peft_model : peft.PeftModel
        With a fresh LoRA adapter (PEFT's default start, with which the model is that of the base).
    calibration : int tensor (n_sequences, n_tokens), or a list of inputs of the model
        The data of the fine-tuning, or some of it.
    adapter : str
    eps : float
    stats : {"dense", "lowrank"}
        Inputs that whiten: of the model as it is, or of one that has only the rank-r parts of the layers before (our
        reading of "distribution-aware"; holds the model twice).

    Returns
    -------
    LoraStart

    Raises
    ------
    InputError
        There is no LoRA adapter of that name on linear layers, or it was trained already.
    """
    layers = _lora_layers(peft_model, adapter)
    if stats not in ("dense", "lowrank"):
        raise InputError(f"stats={stats!r} is not one of dense, lowrank")
    for name, layer in layers.items():
        if bool(layer.lora_B[adapter].weight.any()):
            raise InputError(f"layer {name!r}: its adapter {adapter!r} is not fresh; start from LoraConfig's default")
    bases = {f"{name}.base_layer": name for name in layers}
    start = LoraStart(adapter, {}, {})
    find = _dense_factors if stats == "dense" else _lowrank_factors
    with torch.no_grad(), evaluating(peft_model):
        for base, a, b in find(peft_model, list(bases), layers, bases, calibration, adapter, eps):
            _install(bases[base], layers[bases[base]], a, b, start)
    missing = sorted(set(layers) - set(start.a))
    if missing:
        raise InputError(f"layer {missing[0]!r} was not called on the calibration data; leave it out of the adapter")
    return start


def _dense_factors(
    model: nn.Module, names: list[str], layers: Any, bases: Any, calibration: Any, adapter: str, eps: float
) -> Any:
    batches = without_cache(batches_of(calibration))
    stack = stack_of(model, names, batches)
    for seen in full_moments(model, stack, batches, token_masks(batches)):
        for group, sums in seen.items():
            for base in group.layers:
                weight = dense_weight(model.get_submodule(base))[0]
                found = whitened_svd(weight, sums.now, layers[bases[base]].r[adapter], eps=eps)
                yield base, found.b, found.a


def _lowrank_factors(
    model: nn.Module, names: list[str], layers: Any, bases: Any, calibration: Any, adapter: str, eps: float
) -> Any:
    ranks = {base: layers[bases[base]].r[adapter] for base in names}
    other = copy.deepcopy(model)
    factorize_(other, WhiteningConfig(ranks=ranks, eps=eps, skip=()), calibration)
    for base in names:
        layer = other.get_submodule(base)
        if isinstance(layer, LowRankLinear):
            yield base, layer.b, layer.a


def _lora_layers(model: nn.Module, adapter: str) -> dict[str, Any]:
    lora = need("peft.tuners.lora", extra="peft", purpose="a LoRA start")
    found: dict[str, Any] = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, lora.Linear) and adapter in module.lora_A
    }
    if not found:
        raise InputError(
            f"the model has no LoRA adapter {adapter!r} on linear layers; wrap it with peft.get_peft_model"
        )
    return found


def _install(name: str, layer: Any, a: Tensor, b: Tensor, start: LoraStart) -> None:
    adapter = start.adapter
    scaling = float(layer.scaling[adapter])
    lora_a, lora_b = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
    lora_a.copy_(a / scaling**0.5)
    lora_b.copy_(b / scaling**0.5)
    weight, _ = dense_weight(layer.base_layer)
    # Of the factors as they are stored, so that the sum is the weight.
    rest = weight.double() - scaling * (lora_b.double() @ lora_a.double())
    set_dense_weight(layer.base_layer, rest.to(weight.dtype))
    start.a[name], start.b[name] = lora_a.detach().clone(), lora_b.detach().clone()


def restore(peft_model: nn.Module, start: LoraStart) -> None:
    """Give the frozen layers their original weights back, and turn the adapter into an ordinary LoRA of rank 2 r.

    What training changed is c (B A - B₀ A₀): A is stacked on A₀, B beside -B₀, and the outputs stay the same. After
    this ``peft_model.save_pretrained`` writes an adapter that anyone can put on the original base.

    Parameters
    ----------
    peft_model : peft.PeftModel
        After :func:`init_lora_whitened`, trained or not.
    start : LoraStart
        What it returned.
    """
    layers = _lora_layers(peft_model, start.adapter)
    with torch.no_grad():
        for name, a0 in start.a.items():
            layer, b0 = layers[name], start.b[name]
            scaling = float(layer.scaling[start.adapter])
            weight, _ = dense_weight(layer.base_layer)
            whole = weight.double() + scaling * (b0.double() @ a0.double())
            set_dense_weight(layer.base_layer, whole.to(weight.dtype))
            lora_a, lora_b = layer.lora_A[start.adapter], layer.lora_B[start.adapter]
            learns = lora_a.weight.requires_grad
            lora_a.weight = torch.nn.Parameter(torch.cat([lora_a.weight, a0]), requires_grad=learns)
            lora_b.weight = torch.nn.Parameter(torch.cat([lora_b.weight, -b0], dim=1), requires_grad=learns)
            lora_a.out_features, lora_b.in_features = len(lora_a.weight), lora_b.weight.shape[1]
            layer.r[start.adapter] *= 2
    _double_rank(peft_model, start.adapter)


def _double_rank(model: Any, adapter: str) -> None:
    """The config of twice the rank with the same scaling."""
    config = model.peft_config[adapter]
    more = 2**0.5 if config.use_rslora else 2
    config.r *= 2
    config.lora_alpha *= more
    config.rank_pattern = {name: 2 * rank for name, rank in (config.rank_pattern or {}).items()}
    config.alpha_pattern = {name: more * alpha for name, alpha in (config.alpha_pattern or {}).items()}
