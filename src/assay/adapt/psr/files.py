"""Keep what was learned: a folder with safetensors, bound to its model; constant vectors also for llama.cpp.

`to_control_vector` writes the GGUF file that repeng (``ControlVector.import_gguf``) and llama.cpp
(``--control-vector-scaled``) read: ``direction.N`` is added to the output of layer N, counted
from 0, at every position.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.files import replacing, write_text
from assay.adapt.psr.baselines import ConstantSteering, DiffInMeans, ProjectionSteering
from assay.adapt.psr.steering import PSR, Steering

if TYPE_CHECKING:
    import os

WEIGHTS, MANIFEST = "steering.safetensors", "steering.json"
_VERSION = 1
_KINDS: dict[str, type[Steering]] = {
    kind.kind: kind for kind in (PSR, ConstantSteering, DiffInMeans, ProjectionSteering)
}

#: First numbers of every weight that make a model's mark.
_MARKED = 16


def fingerprint(model: Any) -> str:
    """A mark of a model: its type and the first numbers of every weight, the same in float32 and bfloat16."""
    digest = hashlib.sha256(str(getattr(model.config, "model_type", "")).encode())
    for name, weight in sorted(model.state_dict().items()):
        first = weight.detach().flatten()[:_MARKED].to("cpu", torch.bfloat16).float()
        digest.update(f"{name} {tuple(weight.shape)} ".encode() + first.numpy().tobytes())
    return digest.hexdigest()


def save(steering: Steering, folder: str | os.PathLike[str], note: str = "") -> None:
    """Write what was learned to a folder: steering.safetensors and steering.json.

    Parameters
    ----------
    steering : Steering
    folder : path
        Made if it is not there; what was saved there before is replaced.
    note : str
        For people: kept as it is.
    """
    safetensors = need("safetensors.torch", extra="lm", purpose="saving what was learned")
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file; give the name of a folder to write to")
    target.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().cpu().contiguous() for name, value in steering.state_dict().items()}
    with replacing(target / WEIGHTS) as temporary:
        safetensors.save_file(tensors, str(temporary))
    said = {
        "version": _VERSION, "kind": steering.kind, "layers": steering.layers, "span": steering.span,
        "blocks": steering.blocks.path, "model": fingerprint(steering.model), "note": note,
    }  # fmt: skip
    write_text(target / MANIFEST, json.dumps(said, indent=1, ensure_ascii=False) + "\n")


def load(folder: str | os.PathLike[str], model: Any, tokenizer: Any) -> Steering:
    """Read what :func:`save` wrote, for the model that it was learned on.

    Raises
    ------
    InputError
        The folder or a part of it is missing or broken, or it was learned on another model.
    """
    safetensors = need("safetensors.torch", extra="lm", purpose="loading what was learned")
    broken = need("safetensors", extra="lm", purpose="loading what was learned").SafetensorError
    place = Path(folder)
    said = _manifest(place)
    if said["model"] != fingerprint(model):
        raise InputError(f"{place} was learned on another model than this {type(model).__name__}; load that one")
    steering = _KINDS[said["kind"]](model, tokenizer, layers=said["layers"], span=said["span"], blocks=said["blocks"])
    try:
        steering.load_state_dict(safetensors.load_file(place / WEIGHTS))
    except (OSError, RuntimeError, broken) as error:
        raise InputError(f"{place / WEIGHTS} cannot be read: {str(error).splitlines()[0]}") from None
    return steering


def _manifest(place: Path) -> dict[str, Any]:
    try:
        said = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
    except OSError:
        raise InputError(
            f"{place} holds no {MANIFEST}; expected a folder that save or `assay use psr train` wrote"
        ) from None
    except ValueError as error:
        raise InputError(f"{place / MANIFEST} is broken: {error}") from None
    wanted = {"kind": str, "layers": list, "span": str, "blocks": str, "model": str}
    for key, kind in wanted.items():
        if not isinstance(said, dict) or not isinstance(said.get(key), kind):
            raise InputError(f"{place / MANIFEST}: {key} is missing or of another type than {kind.__name__}")
    if said.get("version") != _VERSION or said["kind"] not in _KINDS:
        raise InputError(
            f"{place / MANIFEST}: version {said.get('version')!r}, kind {said['kind']!r}; this version of Assay reads "
            f"version {_VERSION} of {', '.join(_KINDS)}"
        )
    checked: dict[str, Any] = said
    return checked


def to_control_vector(steering: Steering, path: str | os.PathLike[str], alpha: float = 1.0) -> None:
    """Write constant vectors as the GGUF file of repeng and llama.cpp, `alpha` multiplied in.

    There they are added at every position, the prompt's too; here only from its last token on.

    Raises
    ------
    InputError
        The coefficients depend on the token (PSR, projection), or the layer is the first, which the format leaves out.
    """
    gguf = need("gguf", extra="lm", purpose="a control vector")
    if not isinstance(steering, ConstantSteering | DiffInMeans):
        raise InputError(
            f"a control vector is the same at every token, and {steering.kind} is not; export ConstantSteering or "
            "DiffInMeans"
        )
    if 0 in steering.layers:
        raise InputError(
            "layer 0 has no place in a control vector: llama.cpp counts its directions from 1; steer others"
        )
    with replacing(path) as temporary:
        writer = gguf.GGUFWriter(temporary, "controlvector")
        writer.add_string("controlvector.model_hint", steering.model.config.model_type)
        writer.add_uint32("controlvector.layer_count", len(steering.layers))
        for layer, direction in zip(steering.layers, steering.directions.detach().cpu(), strict=True):
            writer.add_tensor(f"direction.{layer}", (alpha * direction).float().numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
