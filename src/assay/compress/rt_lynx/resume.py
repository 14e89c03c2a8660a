"""Finished layers on disk, so that an interrupted run goes on where it was."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Self

from assay.compress._resume import FinishedLayers, digest_of, take_in
from assay.compress.rt_lynx.repair import Factors

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from torch import nn

    from assay.compress.rt_lynx.calibrate import Runner
    from assay.compress.rt_lynx.layers import ActivationSparsityConfig
    from assay.compress.rt_lynx.models import LayerReport


class Checkpoint(FinishedLayers):
    """Repairs of a run."""

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str] | None,
        config: ActivationSparsityConfig,
        layers: Mapping[str, nn.Module],
        runner: Runner | None,
    ) -> Self:
        """Make the folder, or check that it belongs to the same options, weights and calibration data."""
        if folder is None:
            return cls(None)
        options = {key: value for key, value in asdict(config).items() if key not in ("max_error", "backend")}
        digest = digest_of(layers)
        if runner is not None:
            runner.show_inputs(lambda call: take_in(call, digest))
        return cls.opened(folder, {"config": options, "data": digest.hexdigest()})

    def write(self, name: str, factors: Factors | None, report: LayerReport) -> None:
        """Keep the repair of a finished layer."""
        self.keep(name, {} if factors is None else factors._asdict(), {"report": vars(report)})

    def read(self, name: str) -> tuple[Factors | None, LayerReport]:
        """The repair of a finished layer, and what was reported of it."""
        from assay.compress.rt_lynx.models import LayerReport

        state, about = self.kept(name)
        return (Factors(**state) if state else None), LayerReport(**about["report"])
