"""Whole models: `quantize_` in place, `prepare_training_`, and folders with packed weights that load the same."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from assay._core.errors import InputError
from assay.compress._folders import read_folder, write_folder
from assay.compress._layers import dense_weight, linear_layers, replace_layer, some
from assay.compress._memory import let_go, put
from assay.compress.mxint.formats import get_format
from assay.compress.mxint.layers import MXConfig, MXLinear, MXTrainingConfig, MXTrainingLinear
from assay.compress.mxint.metrics import crest_factor, decibels, energy
from assay.compress.mxint.resume import LayerReport, opened, read, unfinished_path, write
from assay.compress.mxint.tensors import checked_rules, refuse_nonfinite

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from matplotlib.axes import Axes
    from torch import Tensor

MANIFEST = "mxint.json"


@dataclass(frozen=True)
class MXReport:
    """What :func:`quantize_` did, layer by layer.

    Parameters
    ----------
    layers : tuple of LayerReport
    n_other : int
        Bytes of parameters that were left alone (embeddings, norms, biases, skipped layers).
    """

    layers: tuple[LayerReport, ...]
    n_other: int

    @property
    def bits_per_weight(self) -> float:
        """Packed bits over number of weights, of the quantised layers."""
        n_weights = sum(layer.out_features * layer.in_features for layer in self.layers)
        return 8 * sum(layer.bytes for layer in self.layers) / n_weights

    @property
    def n_bytes(self) -> int:
        """Bytes of all weights as saved."""
        return sum(layer.bytes for layer in self.layers) + self.n_other

    def to_frame(self) -> pd.DataFrame:
        """One row a layer: layer, out_features, in_features, format, bits, bytes, kappa, qsnr, seconds."""
        return pd.DataFrame([vars(layer) for layer in self.layers])

    def summary(self) -> str:
        """The layers as a table, and the sums."""
        frame = self.to_frame()
        table = frame.to_string(
            index=False,
            formatters={
                "bits": "{:.3f}".format,
                "kappa": "{:.2f}".format,
                "qsnr": "{:.2f}".format,
                "seconds": "{:.2f}".format,
            },
        )
        return (
            f"{table}\n\n{len(frame)} layers at {self.bits_per_weight:.3f} bits a weight; "
            f"{self.n_bytes / 1e6:.1f} MB in all, of which {self.n_other / 1e6:.1f} MB are not quantised; "
            f"{frame['seconds'].sum():.1f} s"
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Error of every layer (dB) against its crest factor."""
        from matplotlib import pyplot as plt

        axes = ax or plt.figure(figsize=(6, 4), layout="constrained").add_subplot()
        frame = self.to_frame()
        for color, (name, part) in zip(
            ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"), frame.groupby("format"), strict=False
        ):
            axes.scatter(part["kappa"], part["qsnr"], s=14, color=color, label=str(name))
        axes.set_xlabel("median crest factor of a block (max / rms)")
        axes.set_ylabel("QSNR of the weight (dB)")
        axes.legend(frameon=False)
        return axes


def quantize_(
    model: nn.Module, config: MXConfig | None = None, *, checkpoint: str | os.PathLike[str] | None = None
) -> MXReport:
    """Quantise the linear layers of a model, in place, one after the other.

    A layer's dense weight is dropped as soon as its packed one is there: memory peaks at the model and one layer.

    Parameters
    ----------
    model : nn.Module
        With ``nn.Linear`` or GPT-2 ``Conv1D`` layers.
    config : MXConfig, optional
        Default: weights in MXINT8, activations as they are, all layers but ``lm_head``.
    checkpoint : path, optional
        Folder for finished layers: an interrupted call goes on behind the last of them. Each is kept under a hash of
        its dense weight and the options, so another model or format finds nothing there. It can go when the model is
        saved.

    Returns
    -------
    MXReport

    Raises
    ------
    InputError
        There is no layer to quantise, a mapping names one that is not there, a format is unknown, or a weight holds
        NaN or infinity, or `checkpoint` is a file.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4))
    >>> report = quantize_(model, MXConfig(weight="mxint4", skip=("2",)))
    >>> report.bits_per_weight, model[0].extra_repr()
    (4.25, 'in_features=64, out_features=8, bias=True, weight=mxint4, activation=None')
    """
    config = config or MXConfig()
    checked_rules(config.scale_rule, config.clip, "raise")
    found = dict(linear_layers(model, config.skip))
    formats = config.weight if isinstance(config.weight, dict) else dict.fromkeys(found, config.weight)
    for name in formats:
        if name not in found:
            raise InputError(f"the model has no linear layer {name!r} to quantise; it has {some(found)}")
    if not formats:
        raise InputError(
            f"the model has no linear layer to quantise apart from those skipped ({', '.join(config.skip)})"
        )
    for fmt in (*formats.values(), *([config.activation] if config.activation else [])):
        get_format(fmt)
    for name, fmt in formats.items():  # all of them first: a model is quantised as a whole or stays as it was
        _check(name, dense_weight(found[name])[0], replace(config, weight=fmt))
    folder = None if checkpoint is None else opened(checkpoint)
    done = []
    for name, fmt in formats.items():
        done.append(_quantize_layer(model, name, found.pop(name), replace(config, weight=fmt), folder))
    return MXReport(tuple(done), sum(p.numel() * p.element_size() for p in model.parameters()))


def _check(name: str, weight: Tensor, config: MXConfig) -> None:
    try:
        with torch.device("meta"):
            MXLinear(weight.shape[1], weight.shape[0], False, config)  # whether its options go together
        if not bool(torch.isfinite(weight.sum(dtype=torch.float64))):
            refuse_nonfinite(weight)
        let_go(weight)  # read again when it is its turn
    except InputError as error:
        raise InputError(f"layer {name!r}: {error}") from None


def _quantize_layer(
    model: nn.Module, name: str, linear: nn.Module, config: MXConfig, folder: Path | None
) -> LayerReport:
    path = None if folder is None else unfinished_path(folder, linear, config)
    known = None if path is None else read(path, linear)
    if known is not None:
        packed, report = known
    else:
        packed, report = _packed(name, linear, config)
        if path is not None:
            write(path, packed, report)
    put(model, name, packed)
    return replace(report, layer=name)


def _packed(name: str, linear: nn.Module, config: MXConfig) -> tuple[MXLinear, LayerReport]:
    start = time.perf_counter()
    try:
        packed = MXLinear.from_linear(linear, config)
    except InputError as error:
        raise InputError(f"layer {name!r}: {error}") from None
    seconds = time.perf_counter() - start
    weight, _ = dense_weight(linear)
    stored = [packed.codes, packed.scales, *([] if packed.tensor_scale is None else [packed.tensor_scale])]
    n_bytes = sum(part.numel() * part.element_size() for part in stored)
    noise = signal = 0.0
    kappas = []
    for span, decoded in packed.row_parts():  # in parts: the copies of a whole layer would be the peak of memory
        signal, noise = signal + energy(weight[span]), noise + energy(weight[span] - decoded)
        kappas.append(crest_factor(weight[span], packed.width))
    report = LayerReport(
        name,
        packed.out_features,
        packed.in_features,
        packed.weight_format.name,
        8 * n_bytes / weight.numel(),
        n_bytes,
        float(pd.Series(np.concatenate(kappas)).median()),
        decibels(signal, noise),
        seconds,
    )
    return packed, report


def prepare_training_(model: nn.Module, config: MXTrainingConfig | None = None) -> tuple[str, ...]:
    """Let the ``nn.Linear`` layers of a model train through quantised products, in place.

    The parameters stay the same objects, so an optimiser made before or after works.

    Returns
    -------
    tuple of str
        Names of the layers that were converted.

    Raises
    ------
    InputError
        There is no ``nn.Linear`` to convert, or a format is unknown.

    Warns
    -----
    UserWarning
        Some layers are GPT-2's ``Conv1D``, which stay as they are.

    Examples
    --------
    >>> prepare_training_(nn.Sequential(nn.Linear(32, 8), nn.Tanh()), MXTrainingConfig.all_points("mxint8"))
    ('0',)
    """
    config = config or MXTrainingConfig()
    checked_rules("ceil", config.clip, "raise")
    for fmt in (config.x, config.w, config.dy, config.w_back, config.dy_back, config.x_back):
        if fmt is not None:
            get_format(fmt)
    layers = dict(linear_layers(model, config.skip, with_tied=True))
    found = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)]
    if not found:
        raise InputError(f"the model has no nn.Linear to train apart from those skipped ({', '.join(config.skip)})")
    others = [name for name in layers if name not in found]
    if others:
        warnings.warn(f"{some(others)}: Conv1D layers train as they are", stacklevel=2)
    for name in found:
        replace_layer(model, name, MXTrainingLinear.from_linear(layers[name], config))
    return tuple(found)


# ---------------------------------------------------------------------------------------------------- folders


def save(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write a quantised model to a folder: packed weights in safetensors, and what is needed to load them.

    Parameters
    ----------
    model : nn.Module
        After :func:`quantize_`.
    folder : path
        Made if it is not there.

    Raises
    ------
    InputError
        The model holds no quantised layer, or the folder cannot be written.
    """
    write_folder(model, folder, MANIFEST, MXLinear)


def load(folder: str | os.PathLike[str], model: nn.Module | None = None) -> Any:
    """Load a model that :func:`save` wrote; it gives the same outputs to the last bit.

    Parameters
    ----------
    folder : path
    model : nn.Module, optional
        The dense architecture, whose values do not matter; None: a Hugging Face causal language model, built from the
        folder's ``config.json``.

    Returns
    -------
    nn.Module
        In evaluation mode.

    Raises
    ------
    InputError
        The folder or a part of it is missing, was changed, or does not fit `model`.
    """
    return read_folder(folder, MANIFEST, MXLinear, model)
