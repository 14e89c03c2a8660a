"""Finished layers on disk, so that an interrupted run goes on where it was; the same for every method of the family."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.files import replacing, write_text
from assay.compress._layers import dense_weight

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from torch import Tensor, nn

_RUN = "run.json"


@dataclass(frozen=True)
class FinishedLayers:
    """A folder with a file for each finished layer, or nothing where no folder was asked for.

    Parameters
    ----------
    folder : Path, optional
    """

    folder: Path | None

    @classmethod
    def opened(cls, folder: str | os.PathLike[str] | None, run: Mapping[str, Any]) -> Self:
        """Make the folder, or check that it belongs to the same run.

        Parameters
        ----------
        folder : path, optional
        run : mapping that JSON can hold
            All that a finished layer follows from: options, and what tells this model and its data from others.

        Raises
        ------
        InputError
            It belongs to another run, or is a file.
        """
        if folder is None:
            return cls(None)
        place = Path(folder)
        if place.exists() and not place.is_dir():
            raise InputError(f"checkpoint={folder}: it is a file; give the name of a folder")
        said = json.dumps(run, default=dict)
        known = place / _RUN
        if known.is_file() and known.read_text(encoding="utf-8") != said:
            raise InputError(
                f"{place} holds layers of a run with other options, another model or other data; remove it or name a "
                "new one"
            )
        place.mkdir(parents=True, exist_ok=True)
        write_text(known, said)
        return cls(place)

    def has(self, name: str) -> bool:
        """Whether the layer is finished."""
        return self.folder is not None and self._path(name).is_file()

    def keep(self, name: str, state: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Keep the tensors of a finished layer and what JSON can say of it, whole or not at all."""
        if self.folder is None:
            return
        safetensors = need("safetensors.torch", extra="lm", purpose="resuming a run")
        tensors = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in state.items()}
        with replacing(self._path(name)) as temporary:
            safetensors.save_file(tensors, str(temporary), {"about": json.dumps(about)})

    def kept(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors of a finished layer, in memory of their own, and what was said of it.

        Raises
        ------
        InputError
            The file is damaged.
        """
        safetensors = need("safetensors", extra="lm", purpose="resuming a run")
        path = self._path(name)
        try:
            with safetensors.safe_open(str(path), "pt") as file:
                about: dict[str, Any] = json.loads(file.metadata()["about"])
                # Copies: where a mapped tensor begins can change the last bit of a product.
                return {key: file.get_tensor(key).clone() for key in file.keys()}, about  # noqa: SIM118  # no mapping
        except (safetensors.SafetensorError, ValueError, KeyError, TypeError, OSError):
            raise InputError(f"{path} is damaged; remove it, and the layer is made again") from None

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{hashlib.sha256(name.encode()).hexdigest()[:20]}.safetensors"


def digest_of(layers: Mapping[str, nn.Module]) -> Any:
    """A digest of the weights of layers, which :func:`take_in` adds data to."""
    digest = hashlib.sha256()
    for name, layer in layers.items():
        digest.update(name.encode())
        take_in(dense_weight(layer)[0], digest)
    return digest


def take_in(value: Any, digest: Any) -> None:
    """Add tensors, in whatever they are nested, to a digest."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous()
        digest.update(f"{plain.dtype} {tuple(plain.shape)}".encode())
        digest.update(plain.flatten().view(torch.uint8).numpy().data)
        return
    if hasattr(value, "items"):
        value = list(value.items())
    if isinstance(value, list | tuple):
        for part in value:
            take_in(part, digest)
        return
    digest.update(repr(value).encode())
