"""Finished layers on disk, so that an interrupted run goes on where it was."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self

from assay.compress._layers import dense_weight
from assay.compress._resume import FinishedLayers, digest_of, take_in
from assay.compress.liftquant.layers import LiftQuantLinear, same_tensor

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from torch import nn

    from assay.compress.liftquant.models import LayerReport, LiftQuantConfig


class Checkpoint(FinishedLayers):
    """Packed layers of a run."""

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str] | None,
        config: LiftQuantConfig,
        layers: Mapping[str, nn.Module],
        calibration: Any,
    ) -> Self:
        """Make the folder, or check that it belongs to the same options, weights and calibration data."""
        if folder is None:
            return cls(None)
        digest = digest_of(layers)
        take_in(calibration, digest)
        return cls.opened(folder, {"config": asdict(config), "data": digest.hexdigest()})

    def write(self, name: str, layer: LiftQuantLinear, report: LayerReport) -> None:
        """Keep a finished layer; its bias stays in the model."""
        state = {key: tensor for key, tensor in layer.state_dict().items() if key != "bias"}
        self.keep(name, state, {"options": layer.options(), "report": vars(report)})

    def read(self, name: str, dense: nn.Module) -> tuple[LiftQuantLinear, LayerReport]:
        """A finished layer, with the bias of the dense one."""
        from assay.compress.liftquant.models import LayerReport

        state, about = self.kept(name)
        layer = LiftQuantLinear.from_options(about["options"])
        weight, bias = dense_weight(dense)
        layer.bias = None
        placed = {key: same_tensor(tensor.to(weight.device)) for key, tensor in state.items()}
        layer.load_state_dict(placed, assign=True)
        layer.bias = bias
        layer.train(dense.training)
        return layer, LayerReport(**about["report"])
