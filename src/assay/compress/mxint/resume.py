"""Finished layers on disk, so that an interrupted `quantize_` goes on where it was."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.files import replacing
from assay.compress._layers import dense_weight
from assay.compress.mxint.layers import MXConfig, MXLinear

if TYPE_CHECKING:
    import os

    from torch import nn


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


def opened(checkpoint: str | os.PathLike[str]) -> Path:
    """The folder, made if it is not there.

    Raises
    ------
    InputError
        It is a file.
    """
    folder = Path(checkpoint)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"checkpoint={folder}: it is a file; give the name of a folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def unfinished_path(folder: Path, linear: nn.Module, config: MXConfig) -> Path:
    """Where a layer is kept: under a hash of its dense weight and of the options."""
    weight = dense_weight(linear)[0].contiguous()
    digest = hashlib.sha256(json.dumps([asdict(config), str(weight.dtype), list(weight.shape)]).encode())
    digest.update(weight.cpu().flatten().view(torch.uint8).numpy().data)
    return folder / f"{digest.hexdigest()[:32]}.safetensors"


def write(path: Path, layer: MXLinear, report: LayerReport) -> None:
    """Keep a finished layer, whole or not at all; its bias stays in the model."""
    safetensors = need("safetensors.torch", extra="lm", purpose="resuming an interrupted run")
    state = {name: tensor.contiguous() for name, tensor in layer.named_buffers()}
    about = {"options": json.dumps(layer.options()), "report": json.dumps(vars(report))}
    with replacing(path) as temporary:
        safetensors.save_file(state, str(temporary), about)


def read(path: Path, linear: nn.Module) -> tuple[MXLinear, LayerReport] | None:
    """A finished layer with the bias of the dense one, or None: it is not there, or damaged and is made again."""
    if not path.is_file():
        return None
    safetensors = need("safetensors", extra="lm", purpose="resuming an interrupted run")
    weight, bias = dense_weight(linear)
    try:
        with safetensors.safe_open(str(path), "pt") as file:
            about = {name: json.loads(text) for name, text in file.metadata().items()}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no mapping
        layer = MXLinear.from_options(about["options"])
        layer.bias = None
        layer.load_state_dict(state, assign=True)
        report = LayerReport(**about["report"])
    except (safetensors.SafetensorError, RuntimeError, ValueError, KeyError, TypeError, AttributeError, OSError):
        return None
    layer.to(weight.device)
    layer.bias = bias
    layer.train(linear.training)
    return layer, report
