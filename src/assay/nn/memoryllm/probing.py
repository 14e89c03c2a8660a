"""How much a model owes to its memories: its loss with one layer's memory dropped, or with all of them scaled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from assay.nn.memoryllm.model import MemoryLlamaForCausalLM

#: Windows that go through the model at a time.
_BATCH = 8


@dataclass(frozen=True)
class Curve:
    """Loss of a model whose memories were changed, window by window.

    Parameters
    ----------
    what : str
        "layer dropped" or "alpha".
    values : (n_values,) float64
        Which layer, or which alpha.
    loss : (n_values, n_windows) float64
        Mean surprise at the next token with that change, nats.
    whole : (n_windows,) float64
        The same of the model as it is.
    """

    what: str
    values: NDArray[np.float64]
    loss: NDArray[np.float64]
    whole: NDArray[np.float64]

    def to_frame(self) -> pd.DataFrame:
        """A row for each change: value, loss, extra (over the whole model, nats a token), its 95 % interval low, high.

        The interval is Student's, of the paired difference over windows.
        """
        import pandas as pd
        from scipy import stats

        extra = self.loss - self.whole
        n_windows = extra.shape[1]
        half = stats.t.ppf(0.975, n_windows - 1) * extra.std(axis=1, ddof=1) / np.sqrt(n_windows)
        mean = extra.mean(axis=1)
        return pd.DataFrame(
            {
                self.what: self.values,
                "loss": self.loss.mean(axis=1),
                "extra": mean,
                "low": mean - half,
                "high": mean + half,
            }
        )

    def summary(self) -> str:
        """The table, and what the model loses without any change."""
        lines = [f"{len(self.whole)} windows; as it is: {self.whole.mean():.4f} nats a token, "]
        lines[0] += f"perplexity {np.exp(self.whole.mean()):.4g}"
        lines.append(f"{self.what:>13}      loss     extra  95 % interval")
        for value, loss, extra, low, high in self.to_frame().itertuples(index=False):
            lines.append(f"{value:>13g}  {loss:8.4f}  {extra:+8.4f}  [{low:+.4f}, {high:+.4f}]")
        return "\n".join(lines)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Extra loss with its interval."""
        from matplotlib import pyplot as plt

        if ax is None:
            _, ax = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
        table = self.to_frame()
        errors = [table["extra"] - table["low"], table["high"] - table["extra"]]
        ax.errorbar(table[self.what], table["extra"], yerr=errors, fmt="o-", color="#0072B2", capsize=3)
        ax.axhline(0.0, color="0.6", linewidth=0.8)
        ax.set_xlabel(self.what)
        ax.set_ylabel("extra loss (nats a token)")
        return ax


def probe_layers(model: MemoryLlamaForCausalLM, windows: NDArray[np.int64]) -> Curve:
    """The loss with each layer's memory dropped, one at a time.

    Parameters
    ----------
    model : MemoryLlamaForCausalLM
        With its memories or with a table. It is as it was afterwards.
    windows : (n_windows, n_tokens) int64
        Two windows of two tokens, or more.

    Returns
    -------
    Curve

    Raises
    ------
    InputError
        The model is dense, or there are too few windows.
    """
    layers = model.model.layers

    def drop(layer: float) -> None:
        model.drop_layers([int(layer)])

    dropped = [number for number, layer in enumerate(layers) if layer.is_dropped]
    try:
        return _curve(model, windows, "layer dropped", range(len(layers)), drop)
    finally:
        model.drop_layers(dropped)


def probe_alpha(
    model: MemoryLlamaForCausalLM,
    windows: NDArray[np.int64],
    alphas: Sequence[float] = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
) -> Curve:
    """The loss with what all memories add scaled by alpha.

    Parameters
    ----------
    model, windows
        As for :func:`probe_layers`.
    alphas : sequence of float

    Returns
    -------
    Curve

    Raises
    ------
    InputError
        As for :func:`probe_layers`.
    """
    before = model.model.layers[0].alpha
    try:
        return _curve(model, windows, "alpha", alphas, model.set_alpha)
    finally:
        model.set_alpha(before)


def _curve(model: Any, windows: NDArray[np.int64], what: str, values: Sequence[float], change: Any) -> Curve:
    if windows.ndim != 2 or min(windows.shape) < 2:
        raise InputError(f"windows of shape {windows.shape}: expected two or more windows of two or more tokens")
    model._check_memory()
    whole = _losses(model, windows)
    losses = []
    for value in values:
        change(value)
        losses.append(_losses(model, windows))
    return Curve(what, np.array(values, dtype=np.float64), np.array(losses), whole)


def _losses(model: Any, windows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean surprise of each window, nats."""
    was_training = model.training
    model.eval()
    found: list[Tensor] = []
    with torch.inference_mode():
        for start in range(0, len(windows), _BATCH):
            ids = torch.from_numpy(windows[start : start + _BATCH]).to(model.device)
            logits = model(ids, use_cache=False).logits[:, :-1].float()
            losses = cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
            found.append(losses.cpu().double().mean(-1))  # not every device has float64
    model.train(was_training)
    means: NDArray[np.float64] = torch.cat(found).numpy()
    return means
