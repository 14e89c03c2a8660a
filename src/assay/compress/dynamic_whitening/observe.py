"""Second moments of what goes into linear layers, taken while a block runs on calibration data."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from assay._core.errors import InputError
from assay.compress._blocks import Call
from assay.compress._layers import dense_weight

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn


#: Rows of a second moment that are summed at a time.
_ROWS = 128


class _Enough(Exception):  # noqa: N818  # it is no error: it ends a forward pass early
    pass


@dataclass(frozen=True)
class Group:
    """Layers that are called with the same tensor; `is_once`: one call of each in a pass."""

    layers: tuple[str, ...]
    is_once: bool


@dataclass
class Moments:
    """Sums over tokens: x̂ x̂ᵀ of the inputs as they are now, x xᵀ of the full model's, and x x̂ᵀ; None: not taken.

    `energy` goes with `cross`: ‖W x‖² of each layer in the full model.
    """

    now: Tensor | None = None
    full: Tensor | None = None
    cross: Tensor | None = None
    n_tokens: int = 0
    energy: dict[str, float] = field(default_factory=dict)


@dataclass
class Watch:
    """Which moments to take, and where the full model runs beside: a dense copy of the block and its calls."""

    masks: Sequence[Tensor | None]
    dense: nn.Module | None = None
    dense_calls: Sequence[Call] = field(default_factory=list)
    full: bool = False
    cross: bool = False


def token_masks(batches: Sequence[Call]) -> list[Tensor | None]:
    """The padding mask (n_sequences, n_tokens) that came with each batch."""
    found: list[Tensor | None] = []
    for call in batches:
        mask = call.kwargs.get("attention_mask")
        if isinstance(mask, torch.Tensor) and mask.ndim == 2 and not bool(mask.bool().all()):
            found.append(mask.bool())
            continue
        found.append(None)
    return found


def without_cache(calls: Sequence[Call]) -> list[Call]:
    """Calls that can be repeated: keys and values of an earlier pass are not kept."""
    return [
        Call(call.args, {name: None if type(value).__name__.endswith("Cache") else value
                         for name, value in call.kwargs.items()})
        for call in calls
    ]  # fmt: skip


@torch.no_grad()
def groups_in_order(block: nn.Module, layers: Mapping[str, nn.Module], calls: Sequence[Call]) -> list[Group]:
    """Layers by the tensor that they are called with, in the order of the first call. Some may never be called."""
    missing = dict(layers)
    made: list[Group] = []
    for call in calls:
        if not missing:
            break
        seen: list[tuple[Tensor, int, list[str]]] = []  # holds the tensors, so that no identity is used twice
        counts: dict[str, int] = {}

        def note(name: str, x: Tensor, seen: Any = seen, counts: Any = counts) -> None:
            counts[name] = counts.get(name, 0) + 1
            if counts[name] > 1:
                return
            for known, version, names in seen:
                if known is x and version == x._version:
                    names.append(name)
                    return
            seen.append((x, x._version, [name]))

        _run(block, missing, call, note)
        made += [Group(tuple(names), all(counts[name] == 1 for name in names)) for _, _, names in seen]
        missing = {name: layer for name, layer in missing.items() if name not in counts}
    return made


@torch.no_grad()
def moments(
    model: nn.Module, block: nn.Module, prefix: str, groups: Sequence[Group], calls: Sequence[Call], watch: Watch
) -> dict[Group, Moments]:
    """Run the block on every call and sum the moments of the inputs of each group.

    Raises
    ------
    InputError
        An input holds NaN or infinity.
    """
    first = {group.layers[0]: group for group in groups}
    found = {group: Moments() for group in groups}
    now = {name: model.get_submodule(name) for name in first}
    dense = {} if watch.dense is None else {name: _within(watch.dense, prefix, name) for name in first}
    stops_at = groups[0].layers[0] if len(groups) == 1 and groups[0].is_once else None
    for number, call in enumerate(calls):
        inputs = _inputs(block, now, call, watch.masks[number], stops_at)
        full = {}
        if watch.dense is not None:
            full = _inputs(watch.dense, dense, watch.dense_calls[number], watch.masks[number], stops_at)
        for name, x in inputs.items():
            sums = found[first[name]]
            sums.n_tokens += len(x)
            sums.now = _added(sums.now, x, x, name)
            if name not in full or len(full[name]) != len(x):  # routed elsewhere
                continue
            if watch.full:
                sums.full = _added(sums.full, full[name], full[name], name)
            if watch.cross and watch.dense is not None:
                sums.cross = _added(sums.cross, full[name], x, name)
                for layer in first[name].layers:
                    weight, _ = dense_weight(_within(watch.dense, prefix, layer))
                    energy = float((full[name].float() @ weight.float().T).square().sum(dtype=torch.float64))
                    sums.energy[layer] = sums.energy.get(layer, 0.0) + energy
    return {group: sums for group, sums in found.items() if sums.now is not None}


def _within(block: nn.Module, prefix: str, name: str) -> nn.Module:
    """The layer of a copy of the block that has this full name in the model."""
    return block.get_submodule(name[len(prefix) :].lstrip("."))


def _added(total: Tensor | None, left: Tensor, right: Tensor, name: str) -> Tensor:
    # Half-precision sums would not be positive definite; a batch is summed in float32, batches in float64.
    one, other = left.float(), right.float()
    if not bool(torch.isfinite((one * other).sum())):
        raise InputError(f"layer {name!r}: its inputs on the calibration data hold NaN or infinity")
    if total is None:
        total = torch.zeros(one.shape[1], other.shape[1], dtype=torch.float64, device=one.device)
    for start in range(0, len(total), _ROWS):  # in parts: a float32 product and its float64 copy would be as large
        total[start : start + _ROWS] += one[:, start : start + _ROWS].T @ other
    return total


def _inputs(
    block: nn.Module, layers: Mapping[str, nn.Module], call: Call, mask: Tensor | None, stops_at: str | None
) -> dict[str, Tensor]:
    """Inputs of the layers as rows (n_tokens, in_features) without padding."""
    parts: dict[str, list[Tensor]] = {}

    def keep(name: str, x: Tensor) -> None:
        parts.setdefault(name, []).append(_rows(x, mask))
        if name == stops_at:
            raise _Enough

    _run(block, layers, call, keep)
    return {name: xs[0] if len(xs) == 1 else torch.cat(xs) for name, xs in parts.items()}


def _rows(x: Tensor, mask: Tensor | None) -> Tensor:
    rows = x.detach().reshape(-1, x.shape[-1])
    if mask is not None and len(rows) == mask.numel():
        rows = rows[mask.flatten().to(rows.device)]
    return rows


def _run(block: nn.Module, layers: Mapping[str, nn.Module], call: Call, see: Callable[[str, Tensor], None]) -> None:
    def hook(name: str) -> Callable[..., None]:
        return lambda module, args, kwargs: see(name, args[0] if args else next(iter(kwargs.values())))

    handles = [layer.register_forward_pre_hook(hook(name), with_kwargs=True) for name, layer in layers.items()]
    try:
        with contextlib.suppress(_Enough):
            block(*call.args, **call.kwargs)
    finally:
        for handle in handles:
            handle.remove()
