"""Finished layers on disk, so that an interrupted run goes on where it was."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.files import replacing, write_text
from assay.compress._layers import dense_weight
from assay.compress.dynamic_whitening.factors import Factors
from assay.compress.dynamic_whitening.layers import LowRankLinear
from assay.compress.dynamic_whitening.report import LayerReport

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from torch import nn

    from assay.compress.dynamic_whitening.layers import WhiteningConfig

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
        cls,
        folder: str | os.PathLike[str] | None,
        config: WhiteningConfig,
        layers: Mapping[str, nn.Module],
        calibration: Any,
    ) -> Self:
        """Make the folder, or check that it belongs to the same options, weights and calibration data.

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
        digest = hashlib.sha256()
        for name, layer in layers.items():
            digest.update(name.encode())
            _digest(dense_weight(layer)[0], digest)
        _digest(calibration, digest)
        run = {"config": json.loads(json.dumps(asdict(config), default=dict)), "data": digest.hexdigest()}
        known = place / _RUN
        if known.is_file() and json.loads(known.read_text(encoding="utf-8")) != run:
            raise InputError(
                f"{place} holds layers of a run with other options, another model or other calibration data; remove "
                f"it or name a new one"
            )
        place.mkdir(parents=True, exist_ok=True)
        write_text(known, json.dumps(run))
        return cls(place)

    def has(self, name: str) -> bool:
        """Whether the layer is finished."""
        return self.folder is not None and self._path(name).is_file()

    def write(self, name: str, layer: LowRankLinear, report: LayerReport) -> None:
        """Keep a finished layer, whole or not at all."""
        if self.folder is None:
            return
        safetensors = need("safetensors.torch", extra="lm", purpose="resuming a run")
        state = {"a": layer.a.detach().cpu(), "b": layer.b.detach().cpu()}
        with replacing(self._path(name)) as temporary:
            safetensors.save_file(state, str(temporary), {"report": json.dumps(vars(report))})

    def read(self, name: str, dense: nn.Module) -> tuple[LowRankLinear, LayerReport]:
        """A finished layer, with the bias of the dense one."""
        safetensors = need("safetensors", extra="lm", purpose="resuming a run")
        path = self._path(name)
        try:
            with safetensors.safe_open(str(path), "pt") as file:
                report = LayerReport(**json.loads(file.metadata()["report"]))
                # Copies in memory of our own: where a mapped tensor begins can change the last bit of a product.
                a, b = file.get_tensor("a").clone(), file.get_tensor("b").clone()
        except (safetensors.SafetensorError, ValueError, KeyError, TypeError, OSError):
            raise InputError(f"{path} is damaged; remove it, and the layer is factorised again") from None
        return LowRankLinear.from_factors(dense, Factors(a, b, None), a.dtype), report

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{hashlib.sha256(name.encode()).hexdigest()[:20]}.safetensors"


def _digest(value: Any, digest: Any) -> None:
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous()
        digest.update(f"{plain.dtype} {tuple(plain.shape)}".encode())
        digest.update(plain.flatten().view(torch.uint8).numpy().data)
        return
    if hasattr(value, "items"):
        value = list(value.items())
    if isinstance(value, list | tuple):
        for part in value:
            _digest(part, digest)
        return
    digest.update(repr(value).encode())
