"""DyLLM beside full recomputation and other caches, on your model and prompts: time, agreement, likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from assay._core.errors import InputError
from assay.decode.dyllm.adapters import ModelAdapter, visible
from assay.decode.dyllm.decoding import Situation, commit, dyllm_plan, finish, open_positions
from assay.decode.dyllm.generate import MODES, DyLLMGenerator, Mode
from assay.decode.dyllm.layer import dense_layer
from assay.decode.dyllm.steps import begin, full_step, logits_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

LONG: dict[str, str] = {
    "full": "full recomputation",
    "prefix_cache": "Fast-dLLM prefix cache",
    "dual_cache": "Fast-dLLM dual cache",
    "dllm_cache": "dLLM-Cache",
    "dyllm": "DyLLM",
}
#: Okabe–Ito, distinguishable with colour-blind eyes; and markers for print.
_LOOKS = {
    "full": ("s", "#000000"),
    "prefix_cache": ("^", "#E69F00"),
    "dual_cache": ("v", "#56B4E9"),
    "dllm_cache": ("D", "#009E73"),
    "dyllm": ("o", "#D55E00"),
}

#: Sequences whose surprise is computed at a time.
_BATCH = 16


@torch.inference_mode()
def pseudo_nll(adapter: ModelAdapter, ids: Tensor, first: int, mask_token_id: int) -> float:
    """Mean surprise of the model at every response token when it sees all others, nats a token.

    It is low for text that the model finds coherent, and also for text that repeats itself.

    Parameters
    ----------
    adapter : ModelAdapter
    ids : (T,) int64
    first : int
        The response is positions first, ..., T - 1.
    mask_token_id : int
    """
    where = torch.arange(first, len(ids), device=ids.device)
    total = 0.0
    for some in torch.split(where, _BATCH):
        rows = torch.arange(len(some), device=ids.device)
        masked = ids.repeat(len(some), 1)
        masked[rows, some] = mask_token_id
        positions = torch.arange(len(ids), device=ids.device).expand(len(some), -1)
        x = adapter.embed(masked, positions)
        for block, rope in zip(adapter.blocks, adapter.rope(positions), strict=True):
            seen = visible(block, None, len(ids), ids.device)
            x, _ = dense_layer(block, x, None, rope, slice(0, len(ids)), seen)
        hidden = x[rows, some - int(adapter.shifts_logits)]
        total -= float(torch.log_softmax(adapter.head(hidden).float(), dim=-1)[rows, ids[some]].sum())
    return total / len(where)


@torch.inference_mode()
def step_errors(generator: DyLLMGenerator, input_ids: Tensor, **options: Any) -> NDArray[np.float64]:
    """Relative error of DyLLM's logits in every step while full recomputation decides what is filled.

    A flip early on changes everything behind it; here both see the same tokens in every step.

    Parameters
    ----------
    generator : DyLLMGenerator
    input_ids : (1, n) int64
    **options
        Of ``generate``: max_new_tokens, steps, ...

    Returns
    -------
    (n_steps,) float64
        Norm of the difference over the norm of the full logits, at the open positions; 0 in full steps.
    """
    if len(input_ids) != 1:
        raise InputError(f"input_ids holds {len(input_ids)} prompts; step_errors takes one")
    adapter = generator.adapter
    state, sampling = generator.prepare(input_ids, **options)
    other = begin(adapter, state.ids, state.real, state.first)
    plan = dyllm_plan(generator.tau, generator.num_full_steps, generator.response_period, generator.refresh_every)
    done = torch.zeros(1, dtype=torch.bool, device=state.ids.device)
    changed = torch.zeros_like(state.real)
    errors: list[float] = []
    while (now := open_positions(state, sampling, done)) is not None:
        exact = logits_at(adapter, state, full_step(adapter, state, keep=False), now.sequence, now.position)
        _, step = plan(adapter, other, Situation(len(errors) + 1, changed, now, False))
        found = logits_at(adapter, other, step, now.sequence, now.position)
        errors.append(float((found.float() - exact.float()).norm() / exact.float().norm()))
        changed = commit(state, sampling, exact, now)
        finish(state, sampling, done)  # both states share their tokens
    return np.asarray(errors)


@dataclass(frozen=True)
class Comparison:
    """Ways to decode, side by side.

    Parameters
    ----------
    rows : DataFrame
        One for every prompt and mode: prompt (number from 0), mode, seconds, tokens, tokens_per_second, agreement
        (share of response tokens that are full decoding's), pseudo_nll, salient_share, recomputed_share, flops_share,
        steps.
    tau : float
    """

    rows: pd.DataFrame
    tau: float

    def to_frame(self) -> pd.DataFrame:
        """One row a mode: means over prompts with 95 % t-intervals, speed-ups as ratios of paired times."""
        import pandas as pd

        wide = self.rows.pivot_table(index="prompt", columns="mode", values="seconds", sort=False)
        found = []
        for mode in dict.fromkeys(self.rows["mode"]):
            mine = self.rows[self.rows["mode"] == mode]
            row: dict[str, Any] = {"mode": mode, "n_prompts": len(mine)}
            for name in ("tokens_per_second", "agreement", "pseudo_nll"):
                row[name], row[f"{name}_low"], row[f"{name}_high"] = _interval(mine[name].to_numpy())
            if "full" in wide:
                ratios = np.log((wide["full"] / wide[mode]).to_numpy())
                row["speed_up"], row["speed_up_low"], row["speed_up_high"] = np.exp(_interval(ratios))
            for name in ("salient_share", "recomputed_share", "flops_share"):
                row[name] = mine[name].mean()
            found.append(row)
        return pd.DataFrame(found)

    def summary(self) -> str:
        """The modes as a table; 95 % intervals in brackets."""
        frame = self.to_frame()
        has_full = "speed_up" in frame
        head = f"{'':<24} {'tokens/s':>9} "
        head += f"{'speed-up':>20} {'as full':>20} " if has_full else ""
        lines = [head + f"{'pseudo-NLL':>22} {'through MLP':>12} {'operations':>11}"]
        for row in frame.to_dict("records"):
            line = f"{LONG[row['mode']]:<24} {row['tokens_per_second']:>9.1f} "
            if has_full:
                line += f"{_cell(row, 'speed_up', '.2f'):>20} {_cell(row, 'agreement', '.2f'):>20} "
            line += f"{_cell(row, 'pseudo_nll', '.3f'):>22} {100 * row['recomputed_share']:>11.1f}% "
            lines.append(line + f"{100 * row['flops_share']:>10.0f}%")
        n = int(frame["n_prompts"].iloc[0])
        share = frame.loc[frame["mode"] == "dyllm", "salient_share"]
        salient = f"; salient in sparse steps: {100 * share.iloc[0]:.1f} %" if len(share) else ""
        lines += [
            "",
            f"{n} prompts, tau {self.tau:g}{salient}",
            "as full: share of tokens that full recomputation gives; pseudo-NLL: nats a token, the full model's;",
            "through MLP, operations: of what full recomputation computes",
        ]
        return "\n".join(lines)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Speed against pseudo-NLL, a point a mode with 95 % intervals."""
        from matplotlib import pyplot as plt

        ax = plt.subplots(figsize=(6, 4), layout="constrained")[1] if ax is None else ax
        for row in self.to_frame().to_dict("records"):
            marker, colour = _LOOKS[row["mode"]]
            ax.errorbar(
                row["tokens_per_second"],
                row["pseudo_nll"],
                xerr=[[_below(row, "tokens_per_second")], [_above(row, "tokens_per_second")]],
                yerr=[[_below(row, "pseudo_nll")], [_above(row, "pseudo_nll")]],
                fmt=marker,
                color=colour,
                label=LONG[row["mode"]],
                capsize=3,
            )
        ax.set(xlabel="tokens a second", ylabel="pseudo-NLL, nats a token")
        ax.legend()
        return ax


def compare(
    generator: DyLLMGenerator,
    prompts: Sequence[Tensor],
    modes: Sequence[Mode] = MODES,
    *,
    on_decoded: Callable[[], None] | None = None,
    **options: Any,
) -> Comparison:
    """Decode every prompt in every mode, alternating, and say what each cost and how good its text is.

    Parameters
    ----------
    generator : DyLLMGenerator
    prompts : sequence of (n,) int64
    modes : sequence of {"full", "prefix_cache", "dual_cache", "dllm_cache", "dyllm"}
    on_decoded : callable, optional
        Called behind every decoded prompt.
    **options
        Of ``generate``: max_new_tokens, steps, confidence_threshold, ...

    Raises
    ------
    InputError
        No prompts, or an unknown mode.

    Examples
    --------
    >>> generator = DyLLMGenerator(model, tokenizer)  # doctest: +SKIP
    >>> prompts = [tokenizer(text, return_tensors="pt").input_ids[0] for text in texts]  # doctest: +SKIP
    >>> print(compare(generator, prompts, max_new_tokens=64).summary())  # doctest: +SKIP
    """
    import pandas as pd

    if not prompts:
        raise InputError("there are no prompts; give one or more")
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown or not modes:
        raise InputError(f"modes={list(modes)}: expected some of {', '.join(MODES)}")
    rows = []
    for number, prompt in enumerate(prompts):
        given = prompt.reshape(1, -1)
        first = given.shape[1]
        found = {}
        # The first mode is not always the same: whoever comes first finds cold caches.
        for mode in [*modes[number % len(modes) :], *modes[: number % len(modes)]]:
            found[mode] = generator.generate(given, mode=mode, **options)
            if on_decoded is not None:
                on_decoded()
        for mode in modes:
            ids, record = found[mode].sequences[0], found[mode].record
            same = float("nan")
            if "full" in found:
                same = float((ids[first:] == found["full"].sequences[0, first:]).float().mean())
            rows.append(
                {
                    "prompt": number,
                    "mode": mode,
                    "seconds": record.seconds,
                    "tokens": record.n_tokens,
                    "tokens_per_second": record.tokens_per_second,
                    "agreement": same,
                    "pseudo_nll": pseudo_nll(generator.adapter, ids, first, generator.mask_token_id),
                    "salient_share": record.salient_share,
                    "recomputed_share": record.recomputed_share,
                    "flops_share": record.flops / record.full_flops,
                    "steps": len(record.steps),
                }
            )
    return Comparison(pd.DataFrame(rows), generator.tau)


def _interval(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Mean and its 95 % t-interval; NaN ends for a single value."""
    from scipy import stats

    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, float("nan"), float("nan")
    half = float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))
    return mean, mean - half, mean + half


def _cell(row: dict[Any, Any], name: str, form: str) -> str:
    if np.isnan(row[f"{name}_low"]):
        return f"{row[name]:{form}}"
    return f"{row[name]:{form}} [{row[f'{name}_low']:{form}}, {row[f'{name}_high']:{form}}]"


def _below(row: dict[Any, Any], name: str) -> float:
    return float(np.nan_to_num(row[name] - row[f"{name}_low"]))


def _above(row: dict[Any, Any], name: str) -> float:
    return float(np.nan_to_num(row[f"{name}_high"] - row[name]))
