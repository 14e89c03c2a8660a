"""What decoding did: rows by step and block, operations beside full recomputation, seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.axes import Axes

    from assay.decode.dyllm.adapters import ModelAdapter


class BlockCost(NamedTuple):
    """Weights that a row passes in a block, and the width of its context."""

    query_and_output: int
    keys_and_values: int
    mlp: int
    context: int


@dataclass(frozen=True)
class StepRecord:
    """One denoising step, over all sequences of the batch.

    Parameters
    ----------
    kind : str
        ``full``, ``rows`` (sparse, all rows), ``response`` (sparse, rows of the response) or ``cached`` (by
        Fast-dLLM or dLLM-Cache).
    n_rows : int
        Rows with queries and an output projection.
    kv_rows, mlp_rows : tuple of int
        For every block.
    head_rows : int
        Rows whose logits were computed: still masked ones of the current block.
    n_committed : int
    seconds : float
    """

    kind: str
    n_rows: int
    kv_rows: tuple[int, ...]
    mlp_rows: tuple[int, ...]
    head_rows: int
    n_committed: int
    seconds: float


def costs_of(adapter: ModelAdapter) -> tuple[BlockCost, ...]:
    """Weights by block."""
    return tuple(
        BlockCost(
            2 * adapter.d_model * block.n_heads * block.head_dim,
            2 * adapter.d_model * block.n_kv_heads * block.head_dim,
            block.n_mlp_weights,
            block.n_heads * block.head_dim,
        )
        for block in adapter.blocks
    )


def step_flops(step: StepRecord, costs: Sequence[BlockCost], head_weights: int, n_keys: int) -> int:
    """Floating-point operations of a step, two for every multiply-add.

    Rows that are salient see all `n_keys` values; of the others only the changed values are added. Norms, rotations and
    softmax are not counted.
    """
    dense = step.kind in ("full", "cached")
    total = step.head_rows * head_weights
    for cost, kv_rows, mlp_rows in zip(costs, step.kv_rows, step.mlp_rows, strict=True):
        total += step.n_rows * cost.query_and_output + kv_rows * cost.keys_and_values + mlp_rows * cost.mlp
        if dense or kv_rows == step.n_rows:
            total += 2 * step.n_rows * n_keys * cost.context
        elif kv_rows:
            total += (step.n_rows * (n_keys + kv_rows) + 2 * kv_rows * n_keys) * cost.context
    return 2 * total


@dataclass(frozen=True)
class Record:
    """What a call of ``generate`` did.

    Parameters
    ----------
    mode : str
    steps : tuple of StepRecord
    costs : tuple of BlockCost
    head_weights : int
    n_rows : int
        Positions of all sequences, padding left out.
    n_sequences : int
    """

    mode: str
    steps: tuple[StepRecord, ...]
    costs: tuple[BlockCost, ...]
    head_weights: int
    n_rows: int
    n_sequences: int

    @property
    def seconds(self) -> float:
        """Wall time of all steps."""
        return sum(step.seconds for step in self.steps)

    @property
    def n_tokens(self) -> int:
        """Tokens that were filled in."""
        return sum(step.n_committed for step in self.steps)

    @property
    def tokens_per_second(self) -> float:
        """Of the whole call, full steps included."""
        return self.n_tokens / self.seconds if self.seconds else float("nan")

    @property
    def salient_share(self) -> float:
        """Rows that passed the MLP, of the rows in play: mean over sparse steps and blocks; NaN without such a step."""
        shares = [np.mean(step.mlp_rows) / step.n_rows for step in self.steps if step.kind in ("rows", "response")]
        return float(np.mean(shares)) if shares else float("nan")

    @property
    def recomputed_share(self) -> float:
        """Rows that passed the MLP, of all rows: mean over all steps and blocks, full steps included."""
        return float(np.mean([np.mean(step.mlp_rows) / self.n_rows for step in self.steps])) if self.steps else 0.0

    @property
    def flops(self) -> int:
        """Floating-point operations of all steps."""
        return sum(step_flops(step, self.costs, self.head_weights, self._n_keys) for step in self.steps)

    @property
    def full_flops(self) -> int:
        """What full recomputation in every one of these steps would have taken."""
        rows = (self.n_rows,) * len(self.costs)
        full = [StepRecord("full", self.n_rows, rows, rows, step.head_rows, 0, 0.0) for step in self.steps]
        return sum(step_flops(step, self.costs, self.head_weights, self._n_keys) for step in full)

    @property
    def _n_keys(self) -> int:
        return round(self.n_rows / self.n_sequences)

    def to_frame(self) -> pd.DataFrame:
        """One row for every step and block.

        Columns: step, kind, block, rows, kv_rows, mlp_rows, salient_share, seconds (of the whole step), committed.
        """
        import pandas as pd

        return pd.DataFrame(
            [
                (number, step.kind, block, step.n_rows, kv, mlp, mlp / step.n_rows, step.seconds, step.n_committed)
                for number, step in enumerate(self.steps, start=1)
                for block, (kv, mlp) in enumerate(zip(step.kv_rows, step.mlp_rows, strict=True))
            ],
            columns=["step", "kind", "block", "rows", "kv_rows", "mlp_rows", "salient_share", "seconds", "committed"],
        )

    def summary(self) -> str:
        """Steps by kind, the share that was computed, operations and time."""
        lines = [f"{'steps':<12} {'number':>7} {'rows':>7} {'through the MLP':>16} {'ms a step':>10}"]
        for kind in dict.fromkeys(step.kind for step in self.steps):
            some = [step for step in self.steps if step.kind == kind]
            share = np.mean([np.mean(step.mlp_rows) / step.n_rows for step in some])
            lines.append(
                f"{kind:<12} {len(some):>7} {np.mean([step.n_rows for step in some]):>7.0f} {100 * share:>15.1f}% "
                f"{1e3 * np.mean([step.seconds for step in some]):>10.1f}"
            )
        lines.append(
            f"\n{self.n_tokens} tokens in {self.seconds:.2f} s ({self.tokens_per_second:.1f} a second); "
            f"{100 * self.flops / self.full_flops if self.steps else 0:.0f} % of the operations of full recomputation"
        )
        return "\n".join(lines)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Share of rows through the MLP, by step and block."""
        from matplotlib import pyplot as plt

        ax = plt.subplots(figsize=(7, 3.2), layout="constrained")[1] if ax is None else ax
        shares = np.array([[mlp / step.n_rows for mlp in step.mlp_rows] for step in self.steps]).T
        picture = ax.imshow(
            100 * shares, aspect="auto", origin="lower", cmap="cividis", vmin=0, vmax=100, interpolation="nearest",
            extent=(0.5, shares.shape[1] + 0.5, -0.5, shares.shape[0] - 0.5),
        )  # fmt: skip
        ax.set(xlabel="step", ylabel="block")
        ax.figure.colorbar(picture, ax=ax, label="rows through the MLP, %")
        return ax
