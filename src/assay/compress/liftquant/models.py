"""Whole models: `quantize_` in place block by block, resumable, and what became of each layer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import nn

from assay._core.decoder import decoder_blocks
from assay._core.errors import InputError
from assay.compress._blocks import Call, batches_of, each_block_input
from assay.compress._layers import dense_weight, linear_layers, replace_layer
from assay.compress._memory import Spilled, SpilledCalls, let_go, put, spilled_outputs, trim
from assay.compress.liftquant.chain import check_chain
from assay.compress.liftquant.layers import LiftQuantLinear, plain_transform
from assay.compress.liftquant.mapping import load_mapping, made_mapping
from assay.compress.liftquant.plan import ROUNDED, pair_for_bits, pair_for_budget
from assay.compress.liftquant.resume import Checkpoint
from assay.compress.liftquant.search import SEARCHES

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping as Mapped
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from torch import Tensor

    from assay.compress._blocks import Calibration
    from assay.compress.liftquant.mapping import Mapping
    from assay.compress.liftquant.search import Search

STAGES = ("whiten", "encode", "correct")


@dataclass(frozen=True)
class LiftQuantConfig:
    """How `quantize_` quantises a model.

    Parameters
    ----------
    bits : float
        Bits a weight before scales and transforms, 1 to 4: the shipped pair with the highest rate up to it.
    pair : (D, d), optional
        Signs and weights of a vector, in place of `bits`; a pair that is not shipped is trained first, and kept in the
        cache folder.
    budget : int, optional
        Bytes of the saved weights, in place of `bits`.
    stages : tuple of str, optional
        Of "whiten" (scale channels by calibration data, and train the transform), "encode", and "correct" (train signs
        and scales so that each block's output is kept). None: all three with calibration data, "encode" without.
    whiten_steps, correct_steps : int
        Gradient steps a block. Without whitening steps channels are scaled and the transform stays a rotation that
        layers share: training it briefly made small layers worse, and the paper trains long on much data.
    latent_rate : float
        Learning rate of the latents behind the signs, in row scales.
    search : {"auto", "exact", "fast"}
    refine : bool
        Flip single signs while that helps, after a fast search (ours).
    skip : tuple of str
        Layers to leave alone: by their full name or the last part of it.
    seed : int
        Of rotations and of the order of calibration data.
    """

    bits: float = 2.0
    pair: tuple[int, int] | None = None
    budget: int | None = None
    stages: tuple[str, ...] | None = None
    whiten_steps: int = 0
    correct_steps: int = 80
    latent_rate: float = 0.02
    search: Search = "auto"
    refine: bool = False
    skip: tuple[str, ...] = ("lm_head",)
    seed: int = 0


@dataclass(frozen=True)
class LayerReport:
    """What became of one layer: its code, bits and bytes as stored, squared error over squared norm, and seconds."""

    layer: str
    out_features: int
    in_features: int
    code: str
    bits: float
    bytes: int
    error: float
    seconds: float


@dataclass(frozen=True)
class LiftQuantReport:
    """What :func:`quantize_` did, layer by layer.

    Parameters
    ----------
    layers : tuple of LayerReport
        Tensors that layers share count in the first of them.
    n_other : int
        Bytes of parameters that were left alone (embeddings, norms, biases, skipped layers).
    skipped : tuple of str
        Linear layers that were left alone.
    asked : float, optional
        Bits a weight that were asked for; None: a pair or a budget was.
    """

    layers: tuple[LayerReport, ...]
    n_other: int
    skipped: tuple[str, ...] = ()
    asked: float | None = None

    @property
    def rate(self) -> float:
        """Bits a weight of the code that was taken, before scales and transforms."""
        n_bits, d = map(int, self.layers[0].code.split("/"))
        return n_bits / d

    @property
    def bits_per_weight(self) -> float:
        """Stored bits over number of weights of the quantised layers, scales and transforms included."""
        n_weights = sum(layer.out_features * layer.in_features for layer in self.layers)
        return 8 * sum(layer.bytes for layer in self.layers) / n_weights

    @property
    def n_bytes(self) -> int:
        """Bytes of all weights as saved."""
        return sum(layer.bytes for layer in self.layers) + self.n_other

    def to_frame(self) -> pd.DataFrame:
        """One row a layer: layer, out_features, in_features, code, bits, bytes, error, seconds."""
        return pd.DataFrame([vars(layer) for layer in self.layers])

    def summary(self) -> str:
        """The layers as a table, and the sums."""
        frame = self.to_frame()
        formats = {"bits": "{:.3f}".format, "error": "{:.4f}".format, "seconds": "{:.2f}".format}
        ends = self._taken() + (f"\nLeft alone: {', '.join(self.skipped)}" if self.skipped else "")
        return (
            f"{frame.to_string(index=False, formatters=formats)}\n\n"
            f"{len(frame)} layers at {self.bits_per_weight:.3f} bits a weight; {self.n_bytes / 1e6:.1f} MB in all, of "
            f"which {self.n_other / 1e6:.1f} MB are not quantised; {frame['seconds'].sum():.1f} s{ends}"
        )

    def _taken(self) -> str:
        """A line on the rate, where it is not the one that was asked for."""
        if self.asked is None or abs(self.asked - self.rate) <= ROUNDED:
            return ""
        taken = f"{self.rate:.4g} ({self.layers[0].code})"
        return f"\nAsked for {self.asked:g} bits a weight, took {taken}, the nearest shipped rate below"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Relative error of every layer, in the order of the model."""
        from matplotlib import pyplot as plt

        axes = ax or plt.figure(figsize=(6, 4), layout="constrained").add_subplot()
        frame = self.to_frame()
        axes.plot(frame.index, frame["error"], "o", markersize=3.5, color="#0072B2")
        axes.set_xlabel("layer, in the order of the model")
        axes.set_ylabel("squared error / squared norm of the weight")
        axes.set_ylim(bottom=0)
        return axes


def quantize_(
    model: nn.Module,
    config: LiftQuantConfig | None = None,
    calibration: Calibration | None = None,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
) -> LiftQuantReport:
    """Quantise the linear layers of a model, in place, block by block.

    A layer's dense weight is dropped as soon as its signs are there. Memory peaks at the model and one layer; with
    calibration data, whose hidden states lie in a temporary file, at the model and the latents of one block.

    Parameters
    ----------
    model : nn.Module
        With ``nn.Linear`` or GPT-2 ``Conv1D`` layers.
    config : LiftQuantConfig, optional
        Default: 2 bits a weight, all layers but ``lm_head``.
    calibration : int tensor (n_sequences, n_tokens), or a list of inputs of the model, optional
        For the stages that look at data.
    checkpoint : path, optional
        Folder for finished layers: a run that was interrupted goes on behind the last of them. It can go when the model
        is saved.

    Returns
    -------
    LiftQuantReport

    Raises
    ------
    InputError
        There is nothing to quantise, a weight holds NaN or infinity, an option is out of range, a stage needs
        calibration data and there is none, there is and the blocks of the model are no plain chain, or `checkpoint`
        belongs to another run.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    >>> report = quantize_(model, LiftQuantConfig(bits=2.0, skip=("2",)))
    >>> model[0].extra_repr(), report.skipped
    ('in_features=64, out_features=32, bias=True, code=16/8', ('2',))
    """
    config = config or LiftQuantConfig()
    stages = _stages(config, calibration)
    found = dict(linear_layers(model, config.skip))
    if not found:
        raise InputError(
            f"the model has no linear layer to quantise apart from those skipped ({', '.join(config.skip)})"
        )
    _check_weights(found)
    calls: Sequence[Call] = [] if calibration is None else batches_of(calibration)
    blocks = decoder_blocks(model) if calls else [("", model)]
    first = blocks[0][1]
    if first is not model:
        check_chain(model, blocks, calls[0])
    mapping = mapping_for(model, config, calibrated="whiten" in stages)
    skipped = tuple(name for name, _ in linear_layers(model, with_tied=True) if name not in found)
    done = Checkpoint.open(checkpoint, config, found, calls)
    run = _Run(model, config, stages, mapping, done, {})
    if first is not model:
        calls = SpilledCalls.of(each_block_input(model, first, calls), done.folder)
    for number, (prefix, block) in enumerate(blocks):
        inside = {name: found.pop(name) for name in list(found) if not prefix or name.startswith(f"{prefix}.")}
        calls = run.block(block, inside, calls, last=number == len(blocks) - 1)
    run.block(model, found, [], last=True)  # outside the blocks: no data was seen
    order = [name for name, module in model.named_modules() if isinstance(module, LiftQuantLinear)]
    by_bits = config.pair is None and config.budget is None
    return LiftQuantReport(
        tuple(_with_bytes(model, run.reports, order)), _other_bytes(model), skipped, config.bits if by_bits else None
    )


def mapping_for(model: nn.Module, config: LiftQuantConfig, *, calibrated: bool) -> Mapping:
    """The matrix that `config` asks for: of a pair, within a budget, or for a number of bits."""
    if config.pair is not None:
        return made_mapping(*config.pair)
    if config.budget is not None:
        whitened = calibrated and config.whiten_steps > 0
        pair = pair_for_budget(model, config.budget, config.skip, calibrated=calibrated, whitened=whitened)
        return load_mapping(*pair)
    return load_mapping(*pair_for_bits(config.bits))


def _stages(config: LiftQuantConfig, calibration: Calibration | None) -> tuple[str, ...]:
    if config.search not in SEARCHES:
        raise InputError(f"search={config.search!r} is not one of {', '.join(SEARCHES)}")
    stages = config.stages
    if stages is None:
        return ("encode",) if calibration is None else STAGES
    for stage in stages:
        if stage not in STAGES:
            raise InputError(f"stages holds {stage!r}, which is not one of {', '.join(STAGES)}")
    if "encode" not in stages:
        raise InputError("stages lacks 'encode', without which nothing is quantised")
    needing = [stage for stage in stages if stage != "encode"]
    if needing and calibration is None:
        raise InputError(f"stages holds {needing[0]!r}, which needs calibration data; give calibration=")
    return stages


def _check_weights(layers: Mapped[str, nn.Module]) -> None:
    for name, layer in layers.items():
        weight = dense_weight(layer)[0]
        n_bad = weight.numel() - int(torch.isfinite(weight).sum())
        if n_bad:
            raise InputError(f"layer {name!r}: its weight holds {n_bad} values that are NaN or infinite")


@dataclass
class _Run:
    """One call of `quantize_`: what stays the same from block to block."""

    model: nn.Module
    config: LiftQuantConfig
    stages: tuple[str, ...]
    mapping: Mapping
    done: Checkpoint
    reports: dict[str, LayerReport]

    def block(
        self, block: nn.Module, layers: dict[str, nn.Module], calls: Sequence[Call], *, last: bool
    ) -> Sequence[Call]:
        """Quantise the layers of one block; return the calls of the next, with full-precision hidden states.

        `layers` is emptied: a weight that something still names stays in memory.
        """
        outputs = Spilled(self.done.folder)
        if calls and (not last or (layers and "correct" in self.stages)):
            outputs = spilled_outputs(block, calls, self.done.folder)
        for name in [name for name in layers if self.done.has(name)]:
            linear = layers.pop(name)
            layer, self.reports[name] = self.done.read(name, linear)
            put(self.model, name, layer)
        if layers:
            self._quantise(block, layers, calls, outputs)
        return [] if last or not isinstance(calls, SpilledCalls) else calls.with_states(outputs)

    def _quantise(
        self, block: nn.Module, layers: dict[str, nn.Module], calls: Sequence[Call], outputs: Sequence[Tensor]
    ) -> None:
        start = time.perf_counter()
        config, d = self.config, self.mapping.d
        transforms = {
            name: plain_transform(dense_weight(layer)[0].shape[1], d, config.seed) for name, layer in layers.items()
        }
        if calls and "whiten" in self.stages:
            from assay.compress.liftquant.whiten import channel_scales, whiten

            scales = channel_scales(block, layers, calls)
            for name, scale in scales.items():
                transforms[name].channel_scale = scale
            if config.whiten_steps:
                bits = max(2, round(self.mapping.rate))
                transforms = whiten(block, layers, calls, outputs, transforms, config, bits)
        shared = (time.perf_counter() - start) / len(layers)
        names, dense = list(layers), Spilled(self.done.folder)
        for name in names:
            begun = time.perf_counter()
            layer = layers.pop(name)
            made = LiftQuantLinear.from_linear(
                layer, self.mapping, transforms[name], search=config.search, refine=config.refine
            )
            weight = dense_weight(layer)[0]
            error = relative_error(weight, made)
            replace_layer(self.model, name, made)
            if calls and "correct" in self.stages:
                dense.append(weight)
            let_go(weight)
            del layer, weight
            trim()
            seconds = time.perf_counter() - begun + shared
            code = f"{made.shape.n_bits}/{made.shape.d}"
            self.reports[name] = LayerReport(name, made.out_features, made.in_features, code, 0.0, 0, error, seconds)
            if not dense:
                self.done.write(name, made, self.reports[name])
        if dense:
            self._correct(block, names, dense, calls, outputs)

    def _correct(
        self,
        block: nn.Module,
        names: list[str],
        dense: Sequence[Tensor],
        calls: Sequence[Call],
        outputs: Sequence[Tensor],
    ) -> None:
        from assay.compress.liftquant.whiten import correct

        start = time.perf_counter()
        made = {name: _quantised(self.model, name) for name in names}
        correct(block, made, calls, outputs, self.config)
        trim()
        seconds = (time.perf_counter() - start) / len(made)
        for place, (name, layer) in enumerate(made.items()):
            before = self.reports[name]
            error = relative_error(dense[place], layer)
            self.reports[name] = LayerReport(**{**vars(before), "error": error, "seconds": before.seconds + seconds})
            self.done.write(name, layer, self.reports[name])


def _quantised(model: nn.Module, name: str) -> LiftQuantLinear:
    layer = model.get_submodule(name)
    assert isinstance(layer, LiftQuantLinear)
    return layer


def relative_error(weight: Tensor, layer: LiftQuantLinear) -> float:
    """Squared error over squared norm, in the original space."""
    noise = signal = 0.0
    for rows, decoded in layer.row_parts():  # in parts: copies of a whole layer would be the peak of memory
        dense = weight[rows].float()
        noise += float((decoded - dense).square().sum())
        signal += float(dense.square().sum())
    return noise / max(signal, 1e-30)


def _with_bytes(model: nn.Module, reports: Mapped[str, LayerReport], order: list[str]) -> list[LayerReport]:
    """The reports with bytes: a tensor that several layers hold counts in the first."""
    seen: set[int] = set()
    found = []
    for name in order:
        module: Any = model.get_submodule(name)
        n_bytes = 0
        for buffer in module.buffers():
            if buffer.data_ptr() not in seen:
                n_bytes += buffer.numel() * buffer.element_size()
                seen.add(buffer.data_ptr())
        report = reports[name]
        bits = 8 * n_bytes / (report.out_features * report.in_features)
        found.append(LayerReport(**{**vars(report), "bits": bits, "bytes": n_bytes}))
    return found


def _other_bytes(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


def dense_(model: nn.Module) -> None:
    """Replace quantised layers by ``nn.Linear`` with the weights that they stand for: more memory, and faster.

    The weights get the dtype of the model's other parameters.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(64, 32))
    >>> _ = quantize_(model)
    >>> dense_(model)
    >>> type(model[0]).__name__
    'Linear'
    """
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    for name, layer in [(n, m) for n, m in model.named_modules() if isinstance(m, LiftQuantLinear)]:
        made = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        made.weight = nn.Parameter(layer.dequantize().to(dtype), requires_grad=False)
        if layer.bias is not None:
            made.bias = layer.bias
        made.train(layer.training)
        replace_layer(model, name, made)
