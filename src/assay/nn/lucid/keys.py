"""How alike the keys of a model are, layer by layer: where they are not, LUCID changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from assay._core.errors import InputError
from assay.nn.lucid.attention import condition_number, preconditioned
from assay.nn.lucid.solve import unit_keys

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes
    from numpy.typing import NDArray


#: Tokens of a text: P of one head is held as a whole, 0.5 GB at this length, and the work grows as its cube.
MOST_TOKENS = 8192


@dataclass(frozen=True)
class KeyReport:
    """One number for each layer, text and head of keys.

    Parameters
    ----------
    cosine : (n_layers, n_texts * n_kv_heads) float64
        Mean cosine between a key and those before it.
    condition : (n_layers, n_texts * n_kv_heads) float64
        Condition number of the preconditioner P.
    change : (n_layers, n_texts * n_kv_heads) float64
        Norm of Y - V over the norm of V: how much of the values LUCID would erase.
    n_tokens : int
        Of each text.
    """

    cosine: NDArray[np.float64]
    condition: NDArray[np.float64]
    change: NDArray[np.float64]
    n_tokens: int

    def to_frame(self) -> pd.DataFrame:
        """One row a layer: medians over texts and heads, and their quartiles."""
        import numpy as np
        import pandas as pd

        columns: dict[str, Any] = {"layer": np.arange(len(self.cosine))}
        for name in ("cosine", "condition", "change"):
            low, middle, high = np.quantile(getattr(self, name), [0.25, 0.5, 0.75], axis=1)
            columns |= {name: middle, f"{name}_q25": low, f"{name}_q75": high}
        return pd.DataFrame(columns)

    def summary(self) -> str:
        """A table: medians with quartiles."""
        n = self.cosine.shape[1]
        lines = [f"{len(self.cosine)} layers, {n} heads of keys over all texts, {self.n_tokens} tokens each"]
        lines.append(f"{'layer':>5}  {'cosine of keys':>20}  {'condition of P':>24}  {'change of values':>20}")
        lines += [
            f"{row.layer:>5}  {row.cosine:>6.2f} [{row.cosine_q25:>5.2f}, {row.cosine_q75:>4.2f}]  "
            f"{row.condition:>8.3g} [{row.condition_q25:>6.3g}, {row.condition_q75:>6.3g}]  "
            f"{row.change:>6.2f} [{row.change_q25:>4.2f}, {row.change_q75:>4.2f}]"
            for row in self.to_frame().itertuples(index=False)
        ]
        return "\n".join([*lines, "", "medians over heads and texts, with quartiles; a condition near 1: no change"])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Condition number by layer, with quartiles."""
        from matplotlib import pyplot as plt

        ax = plt.subplots(figsize=(6, 4), layout="constrained")[1] if ax is None else ax
        frame = self.to_frame()
        ax.fill_between(frame["layer"], frame["condition_q25"], frame["condition_q75"], color="#56B4E9", alpha=0.4)
        ax.plot(frame["layer"], frame["condition"], color="#0072B2", marker="o", label="median and quartiles of heads")
        ax.set(yscale="log", xlabel="layer", ylabel="condition number of P")
        ax.legend(frameon=False)
        return ax


def mean_cosine(key: Tensor) -> Tensor:
    """Mean cosine (...) between a key and those before it, for keys (..., n, d).

    The sum over pairs is (|sum u|^2 - sum |u|^2) / 2, so that no matrix of pairs is held.

    Examples
    --------
    >>> mean_cosine(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])).item()  # of the three pairs one is alike
    0.3333333432674408
    """
    units = unit_keys(key)
    n = units.shape[-2]
    return (units.sum(-2).square().sum(-1) - units.square().sum((-2, -1))) / (n * (n - 1))


@torch.inference_mode()
def inspect_keys(model: Any, ids: Tensor) -> KeyReport:
    """Look at the keys with which a causal language model attends, after RoPE, as LUCID would see them.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Not changed.
    ids : (n_texts, n_tokens) int
        Tokens of texts without padding.

    Returns
    -------
    KeyReport

    Raises
    ------
    InputError
        The model does not take its attention from transformers' registry, or a text has fewer than two tokens or more
        than 8,192.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    if ids.ndim != 2 or ids.shape[1] < 2:
        raise InputError(f"ids {tuple(ids.shape)}: expected (n_texts, n_tokens) with at least two tokens")
    if ids.shape[1] > MOST_TOKENS:
        raise InputError(f"ids {tuple(ids.shape)}: expected texts of {MOST_TOKENS:,} tokens at most; cut them")
    if not model._supports_attention_backend:
        raise InputError(f"{type(model).__name__} does not take its attention from transformers' registry")
    rows: list[tuple[Tensor, Tensor, Tensor]] = []

    def look(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Any:
        scale = options.get("scaling")
        changed = preconditioned(key, value, scale=scale).float() - value.float()
        rows.append(
            (
                mean_cosine(key).flatten(),
                torch.stack([condition_number(head, scale=scale) for head in key.flatten(0, -3)]),
                (changed.norm(dim=(-2, -1)) / value.float().norm(dim=(-2, -1))).flatten(),
            )
        )
        return sdpa_attention_forward(module, query, key, value, mask, **options)

    AttentionInterface.register("lucid_look", look)
    AttentionMaskInterface.register("lucid_look", sdpa_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation("lucid_look")
    try:
        model(ids, use_cache=False)
    finally:
        model.set_attn_implementation(before)
    cosine, condition, change = (torch.stack(column).cpu().double().numpy() for column in zip(*rows, strict=True))
    return KeyReport(cosine, condition, change, ids.shape[1])
