"""What LUCID costs beside softmax attention: both in one run, alternating, for a prompt and for a decoded token."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from assay._core.errors import InputError
from assay.nn.lucid.attention import preconditioned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd
    from matplotlib.axes import Axes

#: Least and greatest ratio of this many repeats hold the median with 98.4 % (1 - 2 / 2^7).
REPEATS = 7

#: Tokens that are decoded in a row for one time, so that a clock can tell.
DECODED = 16


@dataclass(frozen=True)
class Speed:
    """Times of one shape.

    Parameters
    ----------
    what : {"prompt", "token"}
        A whole prompt of `n_tokens`, or one more token behind as many.
    heads, kv_heads, head_dim, n_tokens : int
    sdpa_s, lucid_s : float
        Median seconds.
    ratio : float
        Median of LUCID over SDPA, measured in turns.
    low, high : float
        Least and greatest ratio: a 98 % interval of the median.
    """

    what: str
    heads: int
    kv_heads: int
    head_dim: int
    n_tokens: int
    sdpa_s: float
    lucid_s: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Timing:
    """Times of several shapes.

    Parameters
    ----------
    speeds : tuple of Speed
    """

    speeds: tuple[Speed, ...]

    def to_frame(self) -> pd.DataFrame:
        """One row a shape."""
        import pandas as pd

        return pd.DataFrame([vars(speed) for speed in self.speeds])

    def summary(self) -> str:
        """A table: milliseconds of both, and the ratio with its interval."""
        lines = [f"{'':<7} {'heads':>9} {'n':>7} {'SDPA ms':>10} {'LUCID ms':>10} {'ratio':>7}"]
        lines += [
            f"{s.what:<7} {f'{s.heads}/{s.kv_heads}x{s.head_dim}':>9} {s.n_tokens:>7} {1e3 * s.sdpa_s:>10.2f} "
            f"{1e3 * s.lucid_s:>10.2f} {s.ratio:>7.2f}  [{s.low:.2f}, {s.high:.2f}]"
            for s in self.speeds
        ]
        return "\n".join([*lines, "", "heads/KV heads x head dimension; the interval of a ratio's median is 98 %"])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Ratio against length, a line a shape, with intervals."""
        from matplotlib import pyplot as plt

        ax = plt.subplots(figsize=(6, 4), layout="constrained")[1] if ax is None else ax
        colours = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
        shapes = dict.fromkeys((s.what, s.heads, s.kv_heads, s.head_dim) for s in self.speeds)
        for number, (what, heads, kv_heads, head_dim) in enumerate(shapes):
            mine = [
                s for s in self.speeds if (s.what, s.heads, s.kv_heads, s.head_dim) == (what, heads, kv_heads, head_dim)
            ]
            ax.errorbar(
                [s.n_tokens for s in mine],
                [s.ratio for s in mine],
                yerr=[[s.ratio - s.low for s in mine], [s.high - s.ratio for s in mine]],
                color=colours[number % len(colours)],
                marker="o" if what == "prompt" else "s",
                linestyle="-" if what == "prompt" else "--",
                capsize=3,
                label=f"{what}, {heads} heads on {kv_heads}",
            )
        ax.axhline(1.0, color="0.6", linewidth=1)
        ax.set(xscale="log", xlabel="length (tokens)", ylabel="time of LUCID over SDPA (ratio)")
        ax.legend(frameon=False)
        return ax


def compare_speed(
    shapes: Sequence[tuple[int, int, int]],
    lengths: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    repeats: int = REPEATS,
) -> Timing:
    """Time both attentions on random tensors, forward only: a prompt of each length, and a token behind it.

    Parameters
    ----------
    shapes : sequence of (heads, kv_heads, head_dim)
    lengths : sequence of int
        Tokens.
    dtype : torch.dtype
    device : str or torch.device
        On the CPU the clock is that of the process (all threads), which other programs disturb less.
    repeats : int
        Of each; the two alternate.

    Returns
    -------
    Timing
    """
    for heads, kv_heads, head_dim in shapes:
        if min(heads, kv_heads, head_dim) < 1 or heads % kv_heads:
            raise InputError(f"heads={heads}, kv_heads={kv_heads}, head_dim={head_dim}: kv_heads must divide heads")
    if min(lengths, default=0) < 1 or repeats < 1:
        raise InputError(f"lengths={list(lengths)}, repeats={repeats}: expected positive numbers")
    speeds = []
    for heads, kv_heads, head_dim in shapes:
        for n in lengths:
            q = torch.randn(1, heads, n, head_dim, dtype=dtype, device=device)
            k, v = torch.randn(2, 1, kv_heads, n, head_dim, dtype=dtype, device=device).unbind()
            for what, run in (("prompt", _prompt), ("token", _tokens)):
                speeds.append(_timed(run(q, k, v), repeats, q.device, (what, heads, kv_heads, head_dim, n)))
    return Timing(tuple(speeds))


def _prompt(q: Tensor, k: Tensor, v: Tensor) -> tuple[Callable[[], Any], Callable[[], Any], int]:
    shared = q.shape[1] != k.shape[1]

    def softmax() -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)

    def lucid() -> Tensor:
        return scaled_dot_product_attention(q, k, preconditioned(k, v), is_causal=True, enable_gqa=shared)

    return softmax, lucid, 1


def _tokens(q: Tensor, k: Tensor, v: Tensor) -> tuple[Callable[[], Any], Callable[[], Any], int]:
    """Each time the cache grows by concatenation, as transformers' dynamic cache does."""
    q, new_k, new_v = q[..., -1:, :], k[..., -1:, :], v[..., -1:, :]
    shared = q.shape[1] != k.shape[1]

    def softmax() -> None:
        keys, values = k, v
        for _ in range(DECODED):
            keys, values = torch.cat([keys, new_k], -2), torch.cat([values, new_v], -2)
            scaled_dot_product_attention(q, keys, values, enable_gqa=shared)

    def lucid() -> None:
        keys, solved = k, v
        for _ in range(DECODED):
            keys = torch.cat([keys, new_k], -2)
            solved = preconditioned(keys, new_v, past=solved)
            scaled_dot_product_attention(q, keys, solved, enable_gqa=shared)

    return softmax, lucid, DECODED


@torch.inference_mode()
def _timed(
    runs: tuple[Callable[[], Any], Callable[[], Any], int],
    repeats: int,
    device: torch.device,
    shape: tuple[str, int, int, int, int],
) -> Speed:
    softmax, lucid, n = runs
    softmax(), lucid()  # warm: allocator, threads
    pairs = [(_seconds(softmax, device) / n, _seconds(lucid, device) / n) for _ in range(repeats)]
    ratios = sorted(mine / theirs for theirs, mine in pairs)
    sdpa_s, lucid_s = (sorted(times)[repeats // 2] for times in zip(*pairs, strict=True))
    return Speed(*shape, sdpa_s, lucid_s, ratios[repeats // 2], ratios[0], ratios[-1])


def _seconds(run: Callable[[], Any], device: torch.device) -> float:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
        start = time.perf_counter()
        run()
        torch.accelerator.synchronize(device)
        return time.perf_counter() - start
    start = time.process_time()
    run()
    return max(time.process_time() - start, 1e-9)
