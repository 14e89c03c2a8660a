"""Folders with packed weights, the same for every method of the family: safetensors, a manifest, the model's config.

A layer class has ``options()``, plain JSON values, and ``from_options(options)``, which makes the empty layer again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.files import replacing, write_text
from assay.compress._layers import replace_layer

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from torch import Tensor, nn

WEIGHTS = "model.safetensors"
_VERSION = 1


def write_folder(
    model: nn.Module, folder: str | os.PathLike[str], manifest: str, layer_class: Any, verb: str = "quantize_"
) -> None:
    """Write a model whose compressed layers are of one class, made by `verb`.

    Raises
    ------
    InputError
        There is no such layer, or the folder cannot be written.
    """
    safetensors = need("safetensors.torch", extra="lm", purpose="saving a compressed model")
    layers = {name: module.options() for name, module in model.named_modules() if isinstance(module, layer_class)}
    if not layers:
        raise InputError(f"the model holds no compressed layer; call {verb} first")
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file; give the name of a folder to write to")
    target.mkdir(parents=True, exist_ok=True)
    kept, tied = untied(model.state_dict())
    with replacing(target / WEIGHTS) as temporary:
        safetensors.save_file(kept, str(temporary))
    config: Any = getattr(model, "config", None)
    if hasattr(config, "save_pretrained"):
        config.save_pretrained(target)
    # Last: without it the folder is not taken for a compressed model.
    write_text(target / manifest, json.dumps({"version": _VERSION, "layers": layers, "tied": tied}, indent=1))


def untied(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A state dict without tensors that it holds under another name, and those names."""
    kept: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in state.items():
        place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) if tensor.numel() else (name,)
        if place in first:
            tied[name] = first[place]
            continue
        first[place] = name
        kept[name] = tensor.contiguous()
    return kept, tied


def read_folder(folder: str | os.PathLike[str], manifest: str, layer_class: Any, model: nn.Module | None = None) -> Any:
    """Load a model that :func:`write_folder` wrote, into `model` or the architecture of the folder's ``config.json``.

    Raises
    ------
    InputError
        The folder or a part of it is missing, was changed, or does not fit `model`.
    """
    safetensors = need("safetensors.torch", extra="lm", purpose="loading a compressed model")
    broken = need("safetensors", extra="lm", purpose="loading a compressed model").SafetensorError
    place = Path(folder)
    layers, tied = _read_manifest(place, manifest)
    made: Any = model if model is not None else empty_model(place)
    modules = dict(made.named_modules())
    for name, options in layers.items():
        if name not in modules:
            raise InputError(f"{place / manifest} names the layer {name!r}, which the model does not have")
        try:
            replace_layer(made, name, layer_class.from_options(options))
        except (KeyError, TypeError, RuntimeError) as error:
            said = " ".join(str(error).split())[:200]
            raise InputError(f"{place / manifest}, layer {name!r}: {said} is missing or not understood") from None
    try:
        # Copies in memory of our own: where a mapped tensor begins can change the last bit of a product.
        state = {name: tensor.clone() for name, tensor in safetensors.load_file(str(place / WEIGHTS)).items()}
        state |= {name: state[other] for name, other in tied.items()}
        made.load_state_dict(state, assign=True)
    except (OSError, KeyError, RuntimeError, broken) as error:
        raise InputError(f"{place / WEIGHTS} does not fit the model: {' '.join(str(error).split())[:300]}") from None
    if hasattr(made, "tie_weights"):
        made.tie_weights()
    return made.eval()


def _read_manifest(place: Path, manifest: str) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    path = place / manifest
    if not path.is_file() or not (place / WEIGHTS).is_file():
        raise InputError(f"{place} holds no {manifest} and {WEIGHTS}, so it is not a folder that save wrote")
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        version, layers, tied = read["version"], read["layers"], read["tied"]
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path} is not a manifest of compressed layers; save the model again") from None
    if version != _VERSION or not isinstance(layers, dict) or not isinstance(tied, dict):
        raise InputError(f"{path} has version {version!r}; this Assay reads version {_VERSION}")
    return layers, tied


def empty_model(place: Path) -> nn.Module:
    """The language model of the folder's ``config.json``, without memory for its weights."""
    transformers = need("transformers", extra="lm", purpose="loading a language model")
    accelerate = need("accelerate", extra="lm", purpose="loading a language model")
    if not (place / "config.json").is_file():
        raise InputError(f"{place} holds no config.json; give the dense architecture as model=")
    config = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False, local_files_only=True)
    with accelerate.init_empty_weights(include_buffers=False):
        made: nn.Module = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return made
