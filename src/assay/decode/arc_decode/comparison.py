"""Ways to sample side by side on the same prompts: tokens for each pass of the target, and what they cost."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from assay._core.errors import InputError
from assay._core.progress import progress_bar
from assay._core.seeds import child_seed
from assay.decode.arc_decode.auditing import shift_of_added
from assay.decode.arc_decode.generation import Record, arc_generate
from assay.decode.arc_decode.reader import Reader, Sampling, check_model, check_prompts, plain_settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    import pandas as pd
    from matplotlib.axes import Axes
    from torch import Tensor

    from assay.decode.arc_decode.calibration import ArcCalibration
    from assay.decode.arc_decode.trees import Tree

MODES = ("sample", "assisted", "lossless", "arc")
_LONG = {
    "sample": "plain sampling",
    "assisted": "assisted generation of transformers, lossless",
    "lossless": "lambda 0, lossless",
    "arc": "the boost",
}
_Z = 1.959964
_COLOURS = {"sample": "#999999", "assisted": "#000000", "lossless": "#0072B2", "arc": "#D55E00"}


@dataclass(frozen=True)
class Comparison:
    """Ways to sample side by side.

    Parameters
    ----------
    runs : DataFrame
        A row for each way and prompt: mode, prompt, tokens, tokens_per_forward, acceptance, added (share of the tried
        candidates), price (mean B a position), shift (mean measured shift of added tokens, nats), nll (of the output
        under the target, nats a token), tokens_per_second. NaN where a column does not apply.
    lam : float
    """

    runs: pd.DataFrame
    lam: float

    def to_frame(self) -> pd.DataFrame:
        """One row a way: the mean over prompts of each column, with the half-width of its 95 % interval."""
        import pandas as pd

        rows = []
        for mode, mine in self.runs.groupby("mode", sort=False):
            row: dict[str, Any] = {"mode": mode, "n_prompts": len(mine)}
            for name in mine.columns[2:]:
                values = mine[name].dropna().to_numpy(dtype=float)
                row[name] = values.mean() if len(values) else math.nan
                row[f"{name}_half"] = _Z * values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
            rows.append(row)
        return pd.DataFrame(rows)

    def summary(self) -> str:
        """The ways as a table, with 95 % intervals."""
        import pandas as pd

        frame = self.to_frame()
        columns = {
            "": frame["mode"],
            "tokens a forward": _cells(frame, "tokens_per_forward", 2),
            "acceptance": _cells(frame, "acceptance", 3),
            "added": _cells(frame, "added", 3),
            "price B": _cells(frame, "price", 3),
            "shift, nats": _cells(frame, "shift", 3),
            "NLL, nats": _cells(frame, "nll", 2),
            "tokens/s": _cells(frame, "tokens_per_second", 1),
        }
        n = int(frame["n_prompts"].iloc[0])
        head = f"{n} prompt{'s' * (n != 1)}, lambda {self.lam:g}; means over prompts ± half of the 95 % interval"
        names = [f"{mode:9} {_LONG[mode]}" for mode in frame["mode"]]
        return "\n".join([head, "", pd.DataFrame(columns).to_string(index=False), "", *names])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw tokens a forward pass of each way, with 95 % intervals."""
        if ax is None:
            from matplotlib import pyplot as plt

            _, ax = plt.subplots(figsize=(6.4, 2.8), layout="constrained")
        frame = self.to_frame()
        ax.barh(
            frame["mode"],
            frame["tokens_per_forward"],
            xerr=frame["tokens_per_forward_half"].fillna(0.0),
            color=[_COLOURS[mode] for mode in frame["mode"]],
            capsize=3,
        )
        ax.invert_yaxis()
        ax.set_xlabel("tokens for each forward pass of the target")
        return ax


def compare(
    model: Any,
    assistant: Any,
    prompts: Sequence[Tensor],
    *,
    calibration: ArcCalibration,
    modes: Sequence[str] = ("sample", "lossless", "arc"),
    lam: float = 0.25,
    p_min: float = 0.05,
    num_draft: int = 5,
    tree: Tree | None = None,
    max_new_tokens: int = 40,
    seed: int = 0,
) -> Comparison:
    """Continue every prompt in every way, in turn, so that a busy machine is busy for all of them.

    Parameters
    ----------
    model, assistant, calibration, lam, p_min, num_draft, tree, max_new_tokens, seed
        As for :func:`arc_generate`; the sampling settings are the calibration's.
    prompts : sequence of (length,) int64 tensors
    modes : sequence of str
        Of "sample", "assisted" (transformers' own, with the same number of drafted tokens), "lossless" and "arc".

    Returns
    -------
    Comparison
    """
    import pandas as pd

    unknown = [mode for mode in modes if mode not in MODES]
    if unknown or not modes:
        raise InputError(f"modes={list(modes)}: expected some of {', '.join(MODES)}")
    if "assisted" in modes and (hasattr(assistant, "propose") or tree is not None):
        raise InputError(
            "mode 'assisted': transformers drafts by a model or by prompt lookup, without a tree; leave it out"
        )
    check_model(model, "model")
    check_prompts(model, prompts)
    sampling = Sampling(calibration.temperature, calibration.top_k, calibration.top_p)
    rows = []
    with progress_bar() as bar:
        task = bar.add_task("comparing", total=len(prompts) * len(modes))
        for number, prompt in enumerate(prompts):
            for mode in modes:
                child = child_seed(seed, "compare", number)
                if mode == "assisted":
                    ids, record = assisted(model, assistant, prompt, sampling, num_draft, max_new_tokens, child)
                else:
                    output = arc_generate(
                        model,
                        None if mode == "sample" else assistant,
                        prompt[None],
                        max_new_tokens=max_new_tokens,
                        calibration=calibration,
                        temperature=sampling.temperature,
                        top_k=sampling.top_k,
                        top_p=sampling.top_p,
                        lam=lam if mode == "arc" else 0.0,
                        p_min=p_min,
                        num_draft=num_draft,
                        tree=tree,
                        seed=child,
                    )
                    ids, record = output.sequences[0], output.records[0]
                rows.append({"mode": mode, "prompt": number} | described(model, ids, record, sampling, calibration))
                bar.advance(task)
    return Comparison(pd.DataFrame(rows), lam)


def described(
    model: Any, ids: Tensor, record: Record, sampling: Sampling, calibration: ArcCalibration
) -> dict[str, float]:
    """The numbers of one run; acceptance, addition and price are NaN where nothing was drafted by us."""
    shifts = shift_of_added(model, ids.to(model.device), record.added, sampling, calibration.n_top)
    return {
        "tokens": float(record.n_tokens),
        "tokens_per_forward": record.tokens_per_forward,
        "acceptance": record.acceptance,
        "added": len(record.added) / record.n_tried if record.n_tried else math.nan,
        "price": record.mean_price,
        "shift": float(np.mean(shifts)) if len(shifts) else math.nan,
        "nll": output_nll(model, ids, len(ids) - record.n_tokens),
        "tokens_per_second": record.n_tokens / record.seconds,
    }


def assisted(
    model: Any, assistant: Any, prompt: Tensor, sampling: Sampling, num_draft: int, max_new_tokens: int, seed: int
) -> tuple[Tensor, Record]:
    """Assisted generation of transformers with `num_draft` tokens a cycle, its forward passes counted.

    Both models sample by their plain laws, as :func:`arc_generate` does. The confidence at which a draft stops early is
    set to 0, so that both ways draft equally many tokens.
    """
    n_forwards = 0

    def count(*_: Any) -> None:
        nonlocal n_forwards
        n_forwards += 1

    options: dict[str, Any] = {"prompt_lookup_num_tokens": num_draft}
    drafting: AbstractContextManager[None] = nullcontext()
    if not isinstance(assistant, str):
        options = {"assistant_model": assistant}
        drafting = plain_settings(
            assistant,
            num_assistant_tokens=num_draft,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=0.0,
        )
    hook = model.register_forward_hook(count)
    started = time.perf_counter()
    try:
        with torch.random.fork_rng(), torch.inference_mode(), plain_settings(model), drafting:
            torch.manual_seed(seed)
            ids = model.generate(
                prompt[None].to(model.device),
                attention_mask=torch.ones_like(prompt)[None].to(model.device),
                do_sample=sampling.temperature > 0,
                temperature=sampling.temperature or None,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                max_new_tokens=max_new_tokens,
                pad_token_id=0,
                **options,
            )[0]
    finally:
        hook.remove()
    seconds = time.perf_counter() - started
    return ids, Record(n_tokens=len(ids) - len(prompt), n_forwards=n_forwards, seconds=seconds)


def output_nll(model: Any, ids: Tensor, start: int) -> float:
    """Mean surprise of the target at the tokens from `start` on, at temperature 1, nats a token."""
    with torch.inference_mode():
        logits = Reader(model).read_all(ids.to(model.device))[start - 1 : -1]
        return float(torch.nn.functional.cross_entropy(logits, ids[start:].to(logits.device)))


def _cells(frame: pd.DataFrame, name: str, digits: int) -> list[str]:
    cells = []
    for value, half in zip(frame[name], frame[f"{name}_half"], strict=True):
        if math.isnan(value):
            cells.append("–")
        else:
            cells.append(f"{value:.{digits}f}" + ("" if math.isnan(half) else f" ± {half:.{digits}f}"))
    return cells
