"""Whole models: `factorize_` in place, layer by layer in forward order, resumable."""

from __future__ import annotations

import copy
import math
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from assay._core.errors import InputError
from assay.compress._blocks import batches_of, each_block_input
from assay.compress._layers import dense_weight, linear_layers, some
from assay.compress._memory import SpilledCalls, put, spilled_outputs, trim
from assay.compress.dynamic_whitening.factors import (
    allocate_ranks,
    anchored_error,
    anchored_weight,
    drift,
    output_error,
    rank_for_ratio,
    whitened_svd,
)
from assay.compress.dynamic_whitening.layers import DTYPES, LowRankLinear, WhiteningConfig
from assay.compress.dynamic_whitening.observe import (
    Group,
    Moments,
    Watch,
    groups_in_order,
    moments,
    token_masks,
    without_cache,
)
from assay.compress.dynamic_whitening.report import LayerReport, WhiteningReport
from assay.compress.dynamic_whitening.resume import Checkpoint
from assay.compress.dynamic_whitening.stack import Stack, stack_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from assay.compress._blocks import Calibration, Call

#: Bytes that a safetensors file spends on naming one tensor.
_HEADER = 160


def factorize_(
    model: nn.Module,
    config: WhiteningConfig | None = None,
    calibration: Calibration | None = None,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
) -> WhiteningReport:
    """Replace the linear layers of a model by two thin factors each, in place, in forward order.

    Before a layer is truncated, the second moment of its inputs is taken from the calibration data in the model whose
    earlier layers are already compressed (whiten="dynamic"). A layer's dense weight is dropped as soon as its factors
    are there: memory peaks at the model, one second moment and one layer. The hidden states of the calibration data lie
    in a temporary file, in the folder of `checkpoint` or that of the system.

    Parameters
    ----------
    model : nn.Module
        With ``nn.Linear`` or GPT-2 ``Conv1D`` layers.
    config : WhiteningConfig, optional
        Default: keep 80 % of the parameters of all layers but ``lm_head``.
    calibration : int tensor (n_sequences, n_tokens), or a list of inputs of the model, optional
        Not needed with ``whiten="none"``. An ``attention_mask`` that comes with it keeps padding out of the moments.
    checkpoint : path, optional
        Folder for finished layers: a run that was interrupted goes on behind the last of them. It can go when the model
        is saved.

    Returns
    -------
    WhiteningReport

    Raises
    ------
    InputError
        There is nothing to factorise, an option or a rank is out of range, a weight or an input holds NaN or infinity,
        a weight is quantised or on the meta device, calibration data is missing, or `checkpoint` is of another run.

    Warns
    -----
    UserWarning
        A layer saw fewer tokens than it has inputs.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))
    >>> calibration = [torch.randn(100, 64, generator=torch.Generator().manual_seed(0))]
    >>> report = factorize_(model, WhiteningConfig(ratio=0.5), calibration)
    >>> [layer.rank for layer in report.layers], model[0].extra_repr()
    ([10, 5], 'in_features=64, out_features=32, rank=10, bias=True')
    """
    config = config or WhiteningConfig()
    config.check()
    found, skipped = layers_to_factorise(model, config)
    if calibration is None and config.whiten != "none":
        raise InputError(f"whiten={config.whiten!r} needs calibration data; give calibration=, or whiten='none'")
    batches = [] if calibration is None else without_cache(batches_of(calibration))
    with torch.no_grad(), evaluating(model):
        stack = stack_of(model, list(found), batches)
        ranks = _ranks(model, config, found, stack, batches)
        done = Checkpoint.open(checkpoint, config, found, batches)
        del found  # the layers stay alive in the model only, until each is replaced
        run = _Run(model, config, ranks, token_masks(batches), done)
        if config.whiten == "none":
            pass
        elif config.whiten == "dynamic":
            run.dynamic(stack, batches)
        else:
            for seen in full_moments(model, stack, batches, run.masks):
                for group in list(seen):
                    sums = seen.pop(group)
                    run.fit(group.layers, Moments(sums.now, sums.now, None, sums.n_tokens))
        run.fit([name for name in ranks if name not in run.reports], Moments())
    order = [name for name in ranks if name in run.reports]
    n_factors = sum(report.bytes for report in run.reports.values())
    n_all = sum(p.numel() * p.element_size() for p in model.parameters())
    return WhiteningReport(tuple(run.reports[name] for name in order), n_all - n_factors, skipped)


# ------------------------------------------------------------------------------------------------- layers and ranks


def layers_to_factorise(model: nn.Module, config: WhiteningConfig) -> tuple[dict[str, nn.Module], tuple[str, ...]]:
    """The linear layers that `config` asks for, checked, and the names of those that are left alone."""
    found = dict(linear_layers(model, config.skip))
    if config.ranks is not None:
        for name in config.ranks:
            if name not in found:
                raise InputError(
                    f"ranks names {name!r}, which is no linear layer to factorise; there are {some(found)}"
                )
        found = {name: layer for name, layer in found.items() if name in config.ranks}
    for name, module in model.named_modules():
        weight: Any = getattr(module, "weight", None)
        is_linear = isinstance(module, nn.Linear) or name in found
        if is_linear and isinstance(weight, torch.Tensor) and (weight.is_meta or not weight.is_floating_point()):
            state = "on the meta device" if weight.is_meta else f"quantised ({weight.dtype})"
            raise InputError(f"layer {name!r}: its weight is {state}; load the model in float32 or bfloat16 first")
    if not found:
        raise InputError(
            f"the model has no linear layer to factorise apart from those skipped ({', '.join(config.skip)})"
        )
    for name, layer in found.items():
        weight = dense_weight(layer)[0]
        n_bad = weight.numel() - int(torch.isfinite(weight).sum())
        if n_bad:
            raise InputError(f"layer {name!r}: its weight holds {n_bad} values that are NaN or infinite")
    return found, tuple(name for name, _ in linear_layers(model, with_tied=True) if name not in found)


def _ranks(
    model: nn.Module,
    config: WhiteningConfig,
    found: Mapping[str, nn.Module],
    stack: Stack,
    batches: Sequence[Call],
) -> dict[str, int]:
    """The rank of every layer; 0: stays dense."""
    shapes = {name: (int(w.shape[0]), int(w.shape[1])) for name, w in _weights(found)}
    if config.ranks is not None:
        for name, rank in config.ranks.items():
            rows, columns = shapes[name]
            if not 1 <= rank <= min(rows, columns):
                raise InputError(
                    f"ranks[{name!r}]={rank}: a weight of {rows} x {columns} has ranks 1 to {min(rows, columns)}"
                )
        wanted = {name: config.ranks[name] for name in shapes}
    else:
        ratio = config.ratio if config.budget is None else ratio_for_budget(model, config)
        if ratio >= 1:
            return dict.fromkeys(shapes, 0)
        wanted = {name: rank_for_ratio(*shape, ratio) for name, shape in shapes.items()}
        if config.allocation == "energy":
            spectra = {}
            for seen in full_moments(model, stack, batches, token_masks(batches)):
                for group, sums in seen.items():
                    for name in group.layers:
                        weight = dense_weight(model.get_submodule(name))[0]
                        spectra[name] = whitened_svd(weight, sums.now, 1, eps=config.eps).singular_values.cpu()
            n_kept = ratio * sum(shapes[name][0] * shapes[name][1] for name in spectra)
            wanted |= allocate_ranks(spectra, {name: shapes[name] for name in spectra}, n_kept)
    return {name: rank if rank * sum(shapes[name]) < math.prod(shapes[name]) else 0 for name, rank in wanted.items()}


def _weights(found: Mapping[str, nn.Module]) -> Iterator[tuple[str, Tensor]]:
    for name, layer in found.items():
        yield name, dense_weight(layer)[0]


def ratio_for_budget(model: nn.Module, config: WhiteningConfig) -> float:
    """The ratio at which all weights, as saved, take at most ``config.budget`` bytes.

    Raises
    ------
    InputError
        What is not factorised takes more than that already.
    """
    assert config.budget is not None
    found, _ = layers_to_factorise(model, config)
    dense = after_ = 0
    for _, weight in _weights(found):
        dense += weight.numel() * weight.element_size()
        kind = DTYPES[config.dtype] if config.dtype else weight.dtype
        after_ += weight.numel() * kind.itemsize
    kept = {tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in model.state_dict().values()}
    rest = sum(kept.values()) - dense + _HEADER * (len(kept) + len(found))
    ratio: float = (config.budget - rest) / after_
    if ratio <= 0:
        raise InputError(
            f"budget of {config.budget / 1e6:.1f} MB: {rest / 1e6:.1f} MB are embeddings, norms and skipped layers, "
            f"which are not factorised"
        )
    return min(1.0, ratio)


# ------------------------------------------------------------------------------------------------- going through


def full_moments(
    model: nn.Module, stack: Stack, batches: Sequence[Call], masks: Sequence[Tensor | None]
) -> Iterator[dict[Group, Moments]]:
    """Moments of the inputs of all layers in the model as it is, block by block.

    A block's outputs are computed before its moments are handed out: the receiver may change its layers.
    """
    watch = Watch(masks)
    outer = (*stack.before, *stack.behind)
    seen = moments(model, model, "", outer, batches, watch) if outer else {}
    calls = _first_calls(model, stack, batches, None)
    yield seen
    for number, (prefix, block) in enumerate(stack.blocks):
        groups = groups_in_order(block, stack.layers_of(model, prefix), calls)
        seen = moments(model, block, prefix, groups, calls, watch)
        if number < len(stack.blocks) - 1:
            calls = _next_calls(block, calls)
        yield seen


def _first_calls(
    model: nn.Module, stack: Stack, batches: Sequence[Call], folder: str | os.PathLike[str] | None
) -> SpilledCalls:
    first = each_block_input(model, stack.blocks[0][1], batches) if stack.blocks else ()
    return SpilledCalls.of(first, folder)


def _next_calls(block: nn.Module, calls: SpilledCalls) -> SpilledCalls:
    return calls.with_states(spilled_outputs(block, calls, calls.states.folder))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run a model in evaluation mode; after that each module is in its own mode again."""
    modes = {name: module.training for name, module in model.named_modules()}
    model.eval()
    try:
        yield
    finally:
        for name, module in model.named_modules():
            module.training = modes.get(name, module.training)


@dataclass
class _Run:
    """One call of `factorize_`: what stays the same from layer to layer."""

    model: nn.Module
    config: WhiteningConfig
    ranks: dict[str, int]
    masks: list[Tensor | None]
    done: Checkpoint
    reports: dict[str, LayerReport] = field(default_factory=dict)
    has_warned: bool = False

    def dynamic(self, stack: Stack, batches: Sequence[Call]) -> None:
        """Moments anew before each group (or block), with what comes earlier already compressed."""
        keeps_full = self.config.target == "anchored" or self.config.drift
        if keeps_full:
            full_calls = _first_calls(self.model, stack, batches, self.done.folder)
        for group in stack.before:
            self.groups(self.model, "", [group], batches, Watch(self.masks))
        calls = _first_calls(self.model, stack, batches, self.done.folder)
        for number, (prefix, block) in enumerate(stack.blocks):
            is_last = number == len(stack.blocks) - 1
            watch = Watch(self.masks)
            if keeps_full:
                is_anchored = self.config.target == "anchored"
                watch = Watch(self.masks, copy.deepcopy(block), full_calls, full=self.config.drift, cross=is_anchored)
            layers = stack.layers_of(self.model, prefix)
            for name in layers:
                self.take_finished(name)
            is_finished = all(name in self.reports for name in layers)
            groups = [] if is_finished else groups_in_order(block, layers, calls)
            del layers  # or the dense weights of the block would stay until its end
            if groups:
                self.groups(block, prefix, groups, calls, watch)
            if is_last:
                break
            calls = _next_calls(block, calls)
            if watch.dense is not None:
                full_calls = _next_calls(watch.dense, full_calls)
        for group in stack.behind:
            self.groups(self.model, "", [group], batches, Watch(self.masks))

    def groups(
        self, block: nn.Module, prefix: str, groups: Sequence[Group], calls: Sequence[Call], watch: Watch
    ) -> None:
        """Factorise groups of layers in their order."""
        at_once = [[group] for group in groups] if self.config.granularity == "group" else [list(groups)]
        for together in at_once:
            names = [name for group in together for name in group.layers]
            for name in names:
                self.take_finished(name)
            if all(name in self.reports for name in names):
                continue
            start = time.perf_counter()
            seen = moments(self.model, block, prefix, together, calls, watch)
            trim()
            shared = (time.perf_counter() - start) / len(names)
            for group in list(seen):
                self.fit(group.layers, seen.pop(group), shared)

    def take_finished(self, name: str) -> None:
        """Install a layer that an earlier, interrupted run finished."""
        if name not in self.reports and self.done.has(name):
            layer, self.reports[name] = self.done.read(name, self.model.get_submodule(name))
            self.put(name, layer)

    def put(self, name: str, layer: LowRankLinear) -> None:
        """Put the factors in the place of a dense layer, whose weight is dropped."""
        put(self.model, name, layer)
        trim()

    def fit(self, names: Sequence[str], sums: Moments, shared: float = 0.0) -> None:
        """Truncate layers whose inputs have these moments, and put the factors in their place."""
        for name in names:
            self.take_finished(name)
        names = [name for name in names if name not in self.reports]
        moved = math.nan
        if names and sums.full is not None and sums.now is not None and self.config.drift:
            moved = drift(sums.full, sums.now, eps=self.config.eps)
        for name in names:
            start = time.perf_counter()
            layer, report = self._factorised(name, sums, moved)
            seconds = time.perf_counter() - start + shared
            self.reports[name] = report = LayerReport(**{**vars(report), "seconds": seconds})
            if layer is not None:
                self.done.write(name, layer, report)
                self.put(name, layer)

    def _factorised(self, name: str, sums: Moments, moved: float) -> tuple[LowRankLinear | None, LayerReport]:
        linear = self.model.get_submodule(name)
        weight, _ = dense_weight(linear)
        rows, columns = weight.shape
        rank = self.ranks[name]
        if rank == 0:
            why = "left dense: factors would not be smaller"
            return None, LayerReport(name, rows, columns, 0, 1.0, 1.0, 0.0, moved, sums.n_tokens, 0, 0.0, why)
        gram, note = sums.now, ""
        if gram is None or not bool(gram.diagonal().sum() > 0):
            note = "" if self.config.whiten == "none" else "no data reached it: plain truncation"
            gram = torch.eye(columns, dtype=torch.float64, device=weight.device)
        elif sums.n_tokens < columns:
            self._warn(name, sums.n_tokens, columns)
        shape = torch.diag(gram.diagonal()) if self.config.whiten == "diag" else gram
        wanted = weight
        if self.config.target == "anchored" and sums.cross is not None:
            wanted = anchored_weight(weight, sums.cross, gram, eps=self.config.eps)
        factors = whitened_svd(wanted, shape, rank, eps=self.config.eps)
        trim()
        layer = LowRankLinear.from_factors(linear, factors, DTYPES[self.config.dtype] if self.config.dtype else None)
        spectrum = factors.singular_values
        del factors, wanted  # in float64: not held while the error is computed
        error = output_error(weight, (layer.a, layer.b), gram)
        if self.config.target == "anchored" and sums.cross is not None:
            error = anchored_error(weight, (layer.a, layer.b), (sums.cross, gram), sums.energy[name])
        squares = spectrum.square()
        energy = float(squares[:rank].sum() / squares.sum()) if bool(squares.sum() > 0) else 1.0
        n_bytes = layer.a.numel() * layer.a.element_size() + layer.b.numel() * layer.b.element_size()
        kept = rank * (rows + columns) / (rows * columns)
        return layer, LayerReport(
            name, rows, columns, rank, kept, energy, error, moved, sums.n_tokens, n_bytes, 0.0, note
        )

    def _warn(self, name: str, n_tokens: int, columns: int) -> None:
        if not self.has_warned:
            self.has_warned = True
            warnings.warn(
                f"layer {name!r} saw {n_tokens} tokens of calibration data and has {columns} inputs: its second moment "
                f"leaves directions open; give more tokens (said once)",
                stacklevel=2,
            )
