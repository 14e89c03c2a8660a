"""Write a detector to a folder and read it again: safetensors and JSON, nothing that could run when it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError
from assay._core.files import replacing, write_text
from assay.audit.mpfm.calibration import Calibration

if TYPE_CHECKING:
    import os

    from assay.audit.mpfm.detector import MPFMDetector

FORMAT = 1
WEIGHTS, STATE = "model.safetensors", "model.json"


def save(detector: MPFMDetector, folder: str | os.PathLike[str]) -> None:
    """Write the weights, then the state; a folder with both is whole."""
    import torch
    from safetensors.torch import save_file

    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    tensors = {f"network.{name}": value.detach().cpu().contiguous() for name, value in _state(detector).items()}
    tensors |= {"draws.eps": detector.draws_[0], "draws.t": detector.draws_[1]}
    tensors |= {f"known.{name}": torch.from_numpy(known) for name, known in detector.known_.items()}
    with replacing(path / WEIGHTS) as temporary:
        save_file(tensors, temporary)
    parameters = detector.get_params()
    seed = parameters["random_state"]
    parameters["random_state"] = int(seed) if isinstance(seed, int | np.integer) else None
    state = {
        "format": FORMAT,
        "parameters": parameters,
        "size": detector.network_.size._asdict(),
        "domains": detector.domains_,
        "calibration": {name: one.to_dict() for name, one in detector.calibration_.items()},
        "landmarks": detector.landmarks_,
        "n_features_in": detector.n_features_in_,
        "scaling": [detector.center_.tolist(), detector.spread_.tolist()] if hasattr(detector, "center_") else None,
        "history": detector.history_,
    }
    write_text(path / STATE, json.dumps(state, ensure_ascii=False))


def load(folder: str | os.PathLike[str]) -> MPFMDetector:
    """Read a detector.

    Raises
    ------
    InputError
        The folder holds no model, or one of another version.
    """
    from assay._core.extras import need

    need("torch", extra="lm", purpose="MPFMDetector")
    from safetensors.torch import load_file

    from assay.audit.mpfm.detector import MPFMDetector
    from assay.audit.mpfm.network import PrototypeFlow, Size

    path = Path(folder)
    for name in (WEIGHTS, STATE):
        if not (path / name).is_file():
            raise InputError(f"{path} holds no model: {name} is missing; fit one first")
    state: dict[str, Any] = json.loads((path / STATE).read_text(encoding="utf-8"))
    if state.get("format") != FORMAT:
        raise InputError(f"{path / STATE}: format {state.get('format')!r}; this version reads format {FORMAT}")
    parameters = state["parameters"]
    detector = MPFMDetector(**{**parameters, "epochs": tuple(parameters["epochs"])})
    tensors = load_file(path / WEIGHTS)
    network = PrototypeFlow(Size(**state["size"]), len(state["domains"]))
    network.load_state_dict({name[8:]: value for name, value in tensors.items() if name.startswith("network.")})
    detector.network_ = network.to(detector.device).eval().requires_grad_(False)
    detector.draws_ = (tensors["draws.eps"], tensors["draws.t"])
    detector.known_ = {name[6:]: known.numpy() for name, known in tensors.items() if name.startswith("known.")}
    detector.domains_ = state["domains"]
    detector.calibration_ = {name: Calibration.from_dict(one) for name, one in state["calibration"].items()}
    detector.landmarks_, detector.history_ = state["landmarks"], state["history"]
    detector.n_features_in_ = state["n_features_in"]
    if state["scaling"] is not None:
        detector.center_, detector.spread_ = map(np.array, state["scaling"])
    return detector


def _state(detector: MPFMDetector) -> dict[str, Any]:
    return dict(detector.network_.state_dict())
