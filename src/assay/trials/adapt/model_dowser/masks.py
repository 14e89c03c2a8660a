"""The model and every arm's mask of it, made once and kept below the cache folder under a hash of the weights."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from assay._core.cache import made_dir
from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from assay.adapt.model_dowser import Mask
    from assay.bench.spec import Parameter

#: Raised when what is kept, or how it is made, changes.
_LAYOUT = 1

LENGTH = 48

DOWSER, RANDOM, MAGNITUDE, WANDA, REAL, INVERTED = "dowser", "random", "magnitude", "wanda", "real text", "inverted"


class Setting(NamedTuple):
    """Which model, how many of its last blocks, the share that trains, and how it is scored."""

    model: str
    layers: int
    rho: float
    n_probes: int
    n_hutchinson: int


PARAMS: dict[str, Parameter] = {"model": "demo", "layers": 15, "rho": 0.1, "probes": 16, "hutchinson": 4}


def setting_of(params: Mapping[str, Parameter]) -> Setting:
    """Read and check what the parts share."""
    need("torch", extra="lm", purpose="the trial of model-dowser")
    made = Setting(
        str(params["model"]), int(params["layers"]), float(params["rho"]), int(params["probes"]),
        int(params["hutchinson"]),
    )  # fmt: skip
    if not 0 < made.rho < 1 or min(made.layers, made.n_probes, made.n_hutchinson) < 1:
        raise InputError(
            f"-p rho={made.rho:g} layers={made.layers} probes={made.n_probes} hutchinson={made.n_hutchinson}: expected "
            f"a share between 0 and 1, and numbers from 1"
        )
    return made


def said_of(setting: Setting) -> str:
    """The model's name for people."""
    return "SmolLM2-135M-Instruct" if setting.model == "demo" else setting.model


def fresh_model(name: str) -> tuple[Any, Any]:
    """A model of one's own, to change."""
    from assay.models import named_lm

    return named_lm(name)


@lru_cache(maxsize=1)
def full_model(name: str) -> tuple[Any, Any]:
    """The process's one copy, which every arm leaves as it found it."""
    return fresh_model(name)


@lru_cache(maxsize=2)
def folder_of(setting: Setting) -> Path:
    """Where masks and curves of this model and setting are kept."""
    from assay.adapt.model_dowser.deltas import weight_hash

    model, _ = full_model(setting.model)
    weights = [weight_hash(weight) for weight in model.parameters()]
    digest = hashlib.sha256(json.dumps([_LAYOUT, LENGTH, setting[1:], weights]).encode()).hexdigest()[:24]
    folder = made_dir() / "model-dowser" / digest
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def prepare(setting: Setting) -> None:
    """Make the masks that are missing: the model writes probes and is scored, a few minutes once.

    Each is kept as soon as it is made, so an interrupted run goes on.
    """
    from filelock import FileLock

    folder = folder_of(setting)
    with FileLock(folder / "lock"):
        missing = [arm for arm in _MAKERS if not _path(folder, arm).is_file()]
        with progress_bar() as progress:
            task = progress.add_task("scoring the language model, once", total=len(missing))
            for arm in missing:
                _MAKERS[arm](setting, folder)
                progress.advance(task)


def _probes(setting: Setting, folder: Path) -> Any:
    """What the model writes to be scored on; kept, since two masks need it."""
    from safetensors.torch import load_file, save_file

    from assay._core.files import replacing
    from assay.adapt.model_dowser import generate_probes

    path = folder / "probes.safetensors"
    if not path.is_file():
        made = generate_probes(*full_model(setting.model), setting.n_probes, LENGTH)
        with replacing(path) as temporary:
            save_file(made, str(temporary))
    return load_file(str(path))


def _dowser(setting: Setting, folder: Path) -> None:
    from assay.adapt.model_dowser import build_mask, importance

    model, _ = full_model(setting.model)
    scores = importance(model, _probes(setting, folder), layers=setting.layers, n_hutchinson=setting.n_hutchinson)
    build_mask({name: -score for name, score in scores.items()}, setting.rho).save(_path(folder, INVERTED))
    build_mask(scores, setting.rho).save(_path(folder, DOWSER))


def _real(setting: Setting, folder: Path) -> None:
    import torch

    from assay.adapt.model_dowser import build_mask, importance
    from assay.models.quality import calibration_text

    model, tokenizer = full_model(setting.model)
    ids = torch.tensor(tokenizer(calibration_text(), add_special_tokens=False, verbose=False)["input_ids"])
    rows = ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)
    chosen = rows[torch.linspace(0, len(rows) - 1, setting.n_probes).round().long()]
    scores = importance(model, chosen, layers=setting.layers, n_hutchinson=setting.n_hutchinson)
    build_mask(scores, setting.rho).save(_path(folder, REAL))


def _wanda(setting: Setting, folder: Path) -> None:
    from assay.adapt.model_dowser import wanda_mask

    model, _ = full_model(setting.model)
    made = wanda_mask(model, _probes(setting, folder), setting.rho, layers=setting.layers)
    made.save(_path(folder, WANDA))


def _magnitude(setting: Setting, folder: Path) -> None:
    from assay.adapt.model_dowser import magnitude_mask

    model, _ = full_model(setting.model)
    magnitude_mask(model, setting.rho, layers=setting.layers).save(_path(folder, MAGNITUDE))


def _random(setting: Setting, folder: Path) -> None:
    from assay.adapt.model_dowser import random_mask

    model, _ = full_model(setting.model)
    random_mask(model, setting.rho, layers=setting.layers).save(_path(folder, RANDOM))


#: The inverted mask is a by-product of the method's.
_MAKERS = {DOWSER: _dowser, REAL: _real, WANDA: _wanda, MAGNITUDE: _magnitude, RANDOM: _random}


def _path(folder: Path, arm: str) -> Path:
    return folder / f"mask {arm}.safetensors"


@lru_cache(maxsize=4)
def mask_of(arm: str, setting: Setting) -> Mask:
    """An arm's mask, from disk."""
    from assay.adapt.model_dowser import Mask

    return Mask.load(_path(folder_of(setting), arm))
