"""Whole models: `quantize_` in place, `prepare_training_`, and folders with packed weights that load the same."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from torch import nn

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.files import replacing, write_text
from assay.compress.mxint.formats import get_format
from assay.compress.mxint.layers import MXConfig, MXLinear, MXTrainingConfig, MXTrainingLinear, dense_weight
from assay.compress.mxint.metrics import crest_factor, qsnr
from assay.compress.mxint.tensors import checked_rules

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from torch import Tensor

MANIFEST, WEIGHTS = "mxint.json", "model.safetensors"
_VERSION = 1


@dataclass(frozen=True)
class LayerReport:
    """What became of one layer: its error (dB, of the weight), its bytes when packed, and the seconds it took."""

    layer: str
    out_features: int
    in_features: int
    format: str
    bits: float
    bytes: int
    kappa: float
    qsnr: float
    seconds: float


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


def linear_layers(model: nn.Module, skip: tuple[str, ...] = ()) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules of the ``nn.Linear`` and GPT-2 ``Conv1D`` layers that are not skipped."""
    for name, module in model.named_modules():
        is_linear = type(module) is nn.Linear or type(module).__name__ == "Conv1D"
        if is_linear and name not in skip and name.rpartition(".")[2] not in skip:
            yield name, module


def quantize_(model: nn.Module, config: MXConfig | None = None) -> MXReport:
    """Quantise the linear layers of a model, in place, one after the other.

    A layer's dense weight is dropped as soon as its packed one is there: memory peaks at the model and one layer.

    Parameters
    ----------
    model : nn.Module
        With ``nn.Linear`` or GPT-2 ``Conv1D`` layers.
    config : MXConfig, optional
        Default: weights in MXINT8, activations as they are, all layers but ``lm_head``.

    Returns
    -------
    MXReport

    Raises
    ------
    InputError
        There is no layer to quantise, a mapping names one that is not there, a format is unknown, or a weight holds
        NaN or infinity.

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
            raise InputError(f"the model has no linear layer {name!r} to quantise; it has {_some(found)}")
    if not formats:
        raise InputError(
            f"the model has no linear layer to quantise apart from those skipped ({', '.join(config.skip)})"
        )
    for fmt in (*formats.values(), *([config.activation] if config.activation else [])):
        get_format(fmt)
    done = []
    for name, fmt in formats.items():
        done.append(_quantize_layer(model, name, found.pop(name), replace(config, weight=fmt)))
    return MXReport(tuple(done), sum(p.numel() * p.element_size() for p in model.parameters()))


def _quantize_layer(model: nn.Module, name: str, linear: nn.Module, config: MXConfig) -> LayerReport:
    start = time.perf_counter()
    try:
        packed = MXLinear.from_linear(linear, config)
    except InputError as error:
        raise InputError(f"layer {name!r}: {error}") from None
    seconds = time.perf_counter() - start
    weight, _ = dense_weight(linear)
    fmt = packed.weight_format
    stored = [packed.codes, packed.scales, *([] if packed.tensor_scale is None else [packed.tensor_scale])]
    n_bytes = sum(part.numel() * part.element_size() for part in stored)
    kappas = crest_factor(weight, packed.width)
    report = LayerReport(
        name,
        packed.out_features,
        packed.in_features,
        fmt.name,
        8 * n_bytes / weight.numel(),
        n_bytes,
        float(pd.Series(kappas).median()),
        qsnr(weight, packed.weight),
        seconds,
    )
    model.set_submodule(name, packed)
    return report


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
    found = [(name, layer) for name, layer in linear_layers(model, config.skip) if isinstance(layer, nn.Linear)]
    if not found:
        raise InputError(f"the model has no nn.Linear to train apart from those skipped ({', '.join(config.skip)})")
    for name, layer in found:
        model.set_submodule(name, MXTrainingLinear.from_linear(layer, config))
    return tuple(name for name, _ in found)


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
    safetensors = need("safetensors.torch", extra="lm", purpose="saving a quantised model")
    layers = {name: module.options() for name, module in model.named_modules() if isinstance(module, MXLinear)}
    if not layers:
        raise InputError("the model holds no quantised layer; call quantize_ first")
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file; give the name of a folder to write to")
    target.mkdir(parents=True, exist_ok=True)
    kept, tied = _untied(model)
    with replacing(target / WEIGHTS) as temporary:
        safetensors.save_file(kept, str(temporary))
    config: Any = getattr(model, "config", None)
    if hasattr(config, "save_pretrained"):
        config.save_pretrained(target)
    # Last: without it the folder is not taken for a quantised model.
    write_text(target / MANIFEST, json.dumps({"version": _VERSION, "layers": layers, "tied": tied}, indent=1))


def _untied(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The state dict without tensors that it holds under another name, and those names."""
    kept: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in model.state_dict().items():
        place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) if tensor.numel() else (name,)
        if place in first:
            tied[name] = first[place]
            continue
        first[place] = name
        kept[name] = tensor.contiguous()
    return kept, tied


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
    safetensors = need("safetensors.torch", extra="lm", purpose="loading a quantised model")
    broken = need("safetensors", extra="lm", purpose="loading a quantised model").SafetensorError
    place = Path(folder)
    layers, tied = _read_manifest(place)
    made: Any = model if model is not None else _empty_model(place)
    modules = dict(made.named_modules())
    for name, options in layers.items():
        if name not in modules:
            raise InputError(f"{place / MANIFEST} names the layer {name!r}, which the model does not have")
        try:
            made.set_submodule(name, MXLinear.from_options(options))
        except (KeyError, TypeError) as error:
            raise InputError(f"{place / MANIFEST}, layer {name!r}: {error} is missing or not understood") from None
    try:
        state = safetensors.load_file(str(place / WEIGHTS))
        state |= {name: state[other] for name, other in tied.items()}
        made.load_state_dict(state, assign=True)
    except (OSError, KeyError, RuntimeError, broken) as error:
        raise InputError(f"{place / WEIGHTS} does not fit the model: {' '.join(str(error).split())[:300]}") from None
    if hasattr(made, "tie_weights"):
        made.tie_weights()
    return made.eval()


def _read_manifest(place: Path) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    path = place / MANIFEST
    if not path.is_file() or not (place / WEIGHTS).is_file():
        raise InputError(f"{place} holds no {MANIFEST} and {WEIGHTS}, so it is not a folder that save wrote")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version, layers, tied = manifest["version"], manifest["layers"], manifest["tied"]
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path} is not a manifest of quantised layers; save the model again") from None
    if version != _VERSION or not isinstance(layers, dict) or not isinstance(tied, dict):
        raise InputError(f"{path} has version {version!r}; this Assay reads version {_VERSION}")
    return layers, tied


def _empty_model(place: Path) -> nn.Module:
    transformers = need("transformers", extra="lm", purpose="loading a language model")
    accelerate = need("accelerate", extra="lm", purpose="loading a language model")
    if not (place / "config.json").is_file():
        raise InputError(f"{place} holds no config.json; give the dense architecture as model=")
    config = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False, local_files_only=True)
    with accelerate.init_empty_weights(include_buffers=False):
        made: nn.Module = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return made


def _some(names: Any) -> str:
    listed = list(names)
    return ", ".join(listed[:4]) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "") or "none"
