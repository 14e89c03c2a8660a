"""Finished layers on disk, so that an interrupted run goes on where it was."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.files import replacing, write_text
from assay.compress._layers import dense_weight
from assay.compress.rt_lynx.repair import Factors

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from torch import nn

    from assay.compress.rt_lynx.layers import ActivationSparsityConfig
    from assay.compress.rt_lynx.models import LayerReport

_RUN = "run.json"


@dataclass(frozen=True)
class Checkpoint:
    """A folder with a file for each finished layer, or nothing where no folder was asked for.

    Parameters
    ----------
    folder : Path, optional
    """

    folder: Path | None

    @classmethod
    def open(
        cls, folder: str | os.PathLike[str] | None, config: ActivationSparsityConfig, layers: Mapping[str, nn.Module]
    ) -> Self:
        """Make the folder, or check that it belongs to the same options and layers.

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
        options = {key: value for key, value in asdict(config).items() if key not in ("max_error", "backend")}
        run = {
            "config": json.loads(json.dumps(options)),
            "layers": {name: [*dense_weight(layer)[0].shape, _digest(layer)] for name, layer in layers.items()},
        }
        known = place / _RUN
        if known.is_file() and json.loads(known.read_text(encoding="utf-8")) != run:
            raise InputError(
                f"{place} holds layers of a run with other options or another model; remove it or name a new one"
            )
        place.mkdir(parents=True, exist_ok=True)
        write_text(known, json.dumps(run))
        return cls(place)

    def has(self, name: str) -> bool:
        """Whether the layer is finished."""
        return self.folder is not None and self._path(name).is_file()

    def write(self, name: str, factors: Factors | None, report: LayerReport) -> None:
        """Keep a finished layer, whole or not at all."""
        if self.folder is None:
            return
        safetensors = need("safetensors.torch", extra="lm", purpose="resuming a run")
        state = {} if factors is None else factors._asdict()
        with replacing(self._path(name)) as temporary:
            safetensors.save_file(state, str(temporary), {"report": json.dumps(vars(report))})

    def read(self, name: str) -> tuple[Factors | None, LayerReport]:
        """The repair of a finished layer, and what was reported of it."""
        from assay.compress.rt_lynx.models import LayerReport

        safetensors = need("safetensors", extra="lm", purpose="resuming a run")
        path = self._path(name)
        try:
            with safetensors.safe_open(str(path), "pt") as file:
                report = LayerReport(**json.loads(file.metadata()["report"]))
                state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  # it is no mapping
                return (Factors(**state) if state else None), report
        except (safetensors.SafetensorError, ValueError, OSError, KeyError, TypeError):
            raise InputError(f"{path} is damaged; remove it, and the layer is repaired again") from None

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{hashlib.sha256(name.encode()).hexdigest()[:20]}.safetensors"


def _digest(layer: nn.Module) -> str:
    """A mark of the layer's weight: a sum tells one model from another without reading every byte twice."""
    weight = dense_weight(layer)[0]
    return f"{float(weight.double().sum()):.9e}"
