"""What became of each layer, and of the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class LayerReport:
    """What became of one layer.

    Parameters
    ----------
    layer : str
    out_features, in_features, rank : int
        Rank 0: left dense, `note` says why.
    kept : float
        Parameters of the factors over those of the weight.
    energy : float
        Share of the squared output that the truncation keeps, as its singular values say.
    error : float
        Relative error of the output as the stored factors have it, ‖(W - A B) X‖ / ‖W X‖, on the inputs that it was
        fitted to; with ``target="anchored"`` against the output of the full model, ‖W X - A B X̂‖ / ‖W X‖.
    drift : float
        How far these inputs have moved from those of the full model, in units of its whitened space; NaN: not asked.
    n_tokens : int
        That the layer saw.
    bytes : int
        Of the factors.
    seconds : float
    note : str
    """

    layer: str
    out_features: int
    in_features: int
    rank: int
    kept: float
    energy: float
    error: float
    drift: float
    n_tokens: int
    bytes: int
    seconds: float
    note: str = ""


@dataclass(frozen=True)
class WhiteningReport:
    """What :func:`~assay.compress.dynamic_whitening.factorize_` did, layer by layer.

    Parameters
    ----------
    layers : tuple of LayerReport
    n_other : int
        Bytes of parameters that were left alone (embeddings, norms, biases, skipped layers, layers left dense).
    skipped : tuple of str
        Linear layers that were left alone because they were asked to be, or because their weight is shared.
    """

    layers: tuple[LayerReport, ...]
    n_other: int
    skipped: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """Share of the parameters of all layers that is kept; a layer left dense counts whole."""
        dense = [layer.out_features * layer.in_features for layer in self.layers]
        return sum(layer.kept * n for layer, n in zip(self.layers, dense, strict=True)) / max(1, sum(dense))

    @property
    def n_bytes(self) -> int:
        """Bytes of all weights as saved."""
        return sum(layer.bytes for layer in self.layers) + self.n_other

    def to_frame(self) -> pd.DataFrame:
        """One row a layer, with the fields of :class:`LayerReport` and `predicted`, the error that `energy` means."""
        frame = pd.DataFrame([vars(layer) for layer in self.layers])
        frame.insert(frame.columns.get_loc("error"), "predicted", (1 - frame["energy"]).clip(lower=0) ** 0.5)  # type: ignore[arg-type]  # pandas types the place as more than the int that it is
        return frame

    def summary(self) -> str:
        """The layers as a table, and the sums."""
        frame = self.to_frame()
        frame = frame.drop(columns=[name for name in ("drift",) if frame[name].isna().all()])
        if not frame["note"].any():
            frame = frame.drop(columns="note")
        formats = {
            "kept": "{:.3f}".format,
            "energy": "{:.4f}".format,
            "predicted": "{:.4f}".format,
            "error": "{:.4f}".format,
            "drift": "{:.3g}".format,
            "seconds": "{:.2f}".format,
        }
        skipped = f"\nLeft alone: {', '.join(self.skipped)}" if self.skipped else ""
        return (
            f"{frame.to_string(index=False, formatters={k: v for k, v in formats.items() if k in frame})}\n\n"
            f"{len(frame)} layers keep {self.ratio:.3f} of their parameters; {self.n_bytes / 1e6:.1f} MB in all, of "
            f"which {self.n_other / 1e6:.1f} MB are not factorised; {frame['seconds'].sum():.1f} s{skipped}"
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Relative error of the output of every layer, in the order of the model."""
        from matplotlib import pyplot as plt

        axes = ax or plt.figure(figsize=(6, 4), layout="constrained").add_subplot()
        frame = self.to_frame()
        axes.plot(frame.index, frame["error"], "o", markersize=3.5, color="#0072B2")
        axes.set_xlabel("layer, in the order of the model")
        axes.set_ylabel("relative error of the layer's output")
        axes.set_ylim(bottom=0)
        return axes
