"""Finished layers on disk, so that an interrupted run goes on where it was."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self

from assay.compress._resume import FinishedLayers, digest_of, take_in
from assay.compress.dynamic_whitening.factors import Factors
from assay.compress.dynamic_whitening.layers import LowRankLinear
from assay.compress.dynamic_whitening.report import LayerReport

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from torch import nn

    from assay.compress.dynamic_whitening.layers import WhiteningConfig


class Checkpoint(FinishedLayers):
    """Factors of a run."""

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str] | None,
        config: WhiteningConfig,
        layers: Mapping[str, nn.Module],
        calibration: Any,
    ) -> Self:
        """Make the folder, or check that it belongs to the same options, weights and calibration data."""
        if folder is None:
            return cls(None)
        digest = digest_of(layers)
        take_in(calibration, digest)
        return cls.opened(folder, {"config": asdict(config), "data": digest.hexdigest()})

    def write(self, name: str, layer: LowRankLinear, report: LayerReport) -> None:
        """Keep a finished layer; its bias stays in the model."""
        self.keep(name, {"a": layer.a, "b": layer.b}, {"report": vars(report)})

    def read(self, name: str, dense: nn.Module) -> tuple[LowRankLinear, LayerReport]:
        """A finished layer, with the bias of the dense one."""
        state, about = self.kept(name)
        factors = Factors(state["a"], state["b"], None)
        return LowRankLinear.from_factors(dense, factors, state["a"].dtype), LayerReport(**about["report"])
