"""Folders: the dense weights under their own names, the repairs in PEFT's naming, and a manifest.

`rt_lynx.json` says which layers are sparse and how; `adapter_model.safetensors` holds the repairs;
`model.safetensors`, which may be left out, the weights, as they were.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.files import replacing, write_text
from assay.compress._folders import WEIGHTS, empty_model, untied
from assay.compress._layers import replace_layer, some
from assay.compress.rt_lynx.layers import ActivationSparsityConfig, SparseActLinear
from assay.compress.rt_lynx.repair import Factors

if TYPE_CHECKING:
    import os

MANIFEST, REPAIRS = "rt_lynx.json", "adapter_model.safetensors"
_VERSION = 1
_PREFIX = "base_model.model."


def save(model: nn.Module, folder: str | os.PathLike[str], *, weights: bool = True) -> None:
    """Write a sparse model to a folder.

    Parameters
    ----------
    model : nn.Module
        After :func:`~assay.compress.rt_lynx.sparsify_`.
    folder : path
        Made if it is not there.
    weights : bool
        False: only the repairs and the manifest, for a dense model that is elsewhere.

    Raises
    ------
    InputError
        The model holds no sparse layer, or the folder cannot be written.
    """
    safetensors = need("safetensors.torch", extra="lm", purpose="saving a sparse model")
    layers = {name: module for name, module in model.named_modules() if isinstance(module, SparseActLinear)}
    if not layers:
        raise InputError("the model holds no sparse layer; call sparsify_ first")
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file; give the name of a folder to write to")
    target.mkdir(parents=True, exist_ok=True)
    repairs = {}
    for name, layer in layers.items():
        if layer.lora_A is not None and layer.lora_B is not None:
            repairs[f"{_PREFIX}{name}.lora_A.weight"] = layer.lora_A.detach().contiguous()
            repairs[f"{_PREFIX}{name}.lora_B.weight"] = layer.lora_B.detach().contiguous()
    with replacing(target / REPAIRS) as temporary:
        safetensors.save_file(repairs, str(temporary))
    tied: dict[str, str] = {}
    if weights:
        # A layer may have two names; its repair is in a file of its own.
        everywhere = [name for name, m in model.named_modules(remove_duplicate=False) if isinstance(m, SparseActLinear)]
        inside = {f"{name}.lora_{part}" for name in everywhere for part in "AB"}
        kept, tied = untied({name: x for name, x in model.state_dict().items() if name not in inside})
        with replacing(target / WEIGHTS) as temporary:
            safetensors.save_file(kept, str(temporary), {"format": "pt"})
        config: Any = getattr(model, "config", None)
        if hasattr(config, "save_pretrained"):
            config.save_pretrained(target)
    # Last: without it the folder is not taken for a sparse model.
    configs = [json.loads(json.dumps(asdict(layer.config))) for layer in layers.values()]
    manifest = {
        "version": _VERSION,
        "config": configs[0],
        "layers": {
            name: {"rank": layer.rank, **_differing(made, configs[0])}
            for (name, layer), made in zip(layers.items(), configs, strict=True)
        },
        "weights": weights,
        "tied": tied,
    }
    write_text(target / MANIFEST, json.dumps(manifest, indent=1))


def _differing(config: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    return {} if config == common else {"config": config}


def load(folder: str | os.PathLike[str], model: nn.Module | None = None) -> Any:
    """Load a model that :func:`save` wrote; it gives the same outputs to the last bit.

    Parameters
    ----------
    folder : path
    model : nn.Module, optional
        The dense architecture: its values do not matter if the folder holds the weights, and are kept if it does not.
        None: a Hugging Face causal language model, built from the folder's ``config.json``.

    Returns
    -------
    nn.Module
        `model`, or the one that was built, in evaluation mode.

    Raises
    ------
    InputError
        The folder or a part of it is missing, was changed, or does not fit `model`.
    """
    safetensors = need("safetensors.torch", extra="lm", purpose="loading a sparse model")
    broken = need("safetensors", extra="lm", purpose="loading a sparse model").SafetensorError
    place = Path(folder)
    manifest = _read_manifest(place)
    if model is None and not manifest["weights"]:
        raise InputError(f"{place} holds repairs only; give the dense model as model=")
    made: Any = model if model is not None else empty_model(place)
    try:
        if manifest["weights"]:
            # Copies in memory of our own: where a mapped tensor begins can change the last bit of a product.
            state = {name: tensor.clone() for name, tensor in safetensors.load_file(str(place / WEIGHTS)).items()}
            state |= {name: state[other] for name, other in manifest["tied"].items()}
            made.load_state_dict(state, assign=True)
            if hasattr(made, "tie_weights"):
                made.tie_weights()
        repairs = {name: tensor.clone() for name, tensor in safetensors.load_file(str(place / REPAIRS)).items()}
    except (OSError, KeyError, RuntimeError, broken) as error:
        raise InputError(f"the weights in {place} do not fit the model: {' '.join(str(error).split())[:300]}") from None
    modules = dict(made.named_modules())
    for name, options in manifest["layers"].items():
        if name not in modules:
            raise InputError(
                f"{place / MANIFEST} names the layer {name!r}, which the model does not have; it has "
                f"{some(key for key, module in modules.items() if isinstance(module, nn.Linear))}"
            )
        try:
            layer = _layer(modules[name], {**manifest["config"], **options.get("config", {})})
            if options["rank"]:
                found = (repairs[f"{_PREFIX}{name}.lora_{part}.weight"] for part in "AB")
                layer.repair(_fitting(Factors(*found), layer))
        except (KeyError, TypeError, AttributeError, InputError) as error:
            raise InputError(f"{place / MANIFEST}, layer {name!r}: {error} is missing or not understood") from None
        layer.name = name
        replace_layer(made, name, layer)
    return made.eval()


def _layer(dense: nn.Module, options: dict[str, Any]) -> SparseActLinear:
    config = ActivationSparsityConfig(**{**options, "skip": tuple(options["skip"])})
    return SparseActLinear.from_linear(dense, config)


def _fitting(factors: Factors, layer: SparseActLinear) -> Factors:
    a, b = factors
    if a.shape[1] != layer.in_features or b.shape[0] != layer.out_features or len(a) != b.shape[1]:
        raise InputError(f"a repair of shapes {tuple(a.shape)} and {tuple(b.shape)}")
    return factors


def _read_manifest(place: Path) -> dict[str, Any]:
    path = place / MANIFEST
    if not path.is_file() or not (place / REPAIRS).is_file():
        raise InputError(f"{place} holds no {MANIFEST} and {REPAIRS}, so it is not a folder that save wrote")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version = manifest["version"]
        is_whole = all(isinstance(manifest[key], dict) for key in ("config", "layers", "tied"))
        is_whole = is_whole and isinstance(manifest["weights"], bool)
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path} is not a manifest of sparse layers; save the model again") from None
    if version != _VERSION or not is_whole:
        raise InputError(f"{path} has version {version!r}; this Assay reads version {_VERSION}")
    return dict(manifest)
