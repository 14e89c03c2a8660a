"""What the boost did to the next step, measured on prompts that calibration has not seen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from assay._core.errors import InputError
from assay._core.progress import progress_bar
from assay._core.seeds import child_seed
from assay.decode.arc_decode.calibration import measure, shift_between
from assay.decode.arc_decode.generation import arc_generate
from assay.decode.arc_decode.reader import Reader, Sampling, check_model, check_prompts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from numpy.typing import NDArray
    from torch import Tensor

    from assay.decode.arc_decode.calibration import ArcCalibration
    from assay.decode.arc_decode.generation import Added
    from assay.decode.arc_decode.trees import Tree

_Z = 1.959964
_BLUE, _ORANGE = "#0072B2", "#D55E00"


@dataclass(frozen=True)
class Audit:
    """Measured shifts beside estimated ones.

    Parameters
    ----------
    added : DataFrame
        A row for each token that the boost added: prompt (from 0), place, token, favourite, estimated (U, nats),
        measured (Jensen-Shannon divergence, nats; 0 where the token is the favourite).
    runner_ups : DataFrame
        A row for each written position: estimated and measured shift of the runner-up, and whether each of the two
        estimates alone lies above the measured one (covered_by_embedding, covered_by_logit).
    eps : float
        Shift that is too much, nats.
    delta, gamma, lam : float
        The calibration's delta, and the tolerance and lambda of the run.
    n_prompts, n_tokens, n_positions, n_eligible : int
        Texts, tokens written, positions at which a candidate was tried, tried candidates that the boost might take.
    price : float
        Mean B a position: how much the law of a token may be off.
    """

    added: pd.DataFrame
    runner_ups: pd.DataFrame
    eps: float
    delta: float
    gamma: float
    lam: float
    n_prompts: int
    n_tokens: int
    n_positions: int
    n_eligible: int
    price: float

    @property
    def risk(self) -> tuple[float, float, float]:
        """P(shift > eps) among added tokens, with the ends of Wilson's 95 % interval."""
        return wilson(int((self.added["measured"] > self.eps).sum()), len(self.added))

    @property
    def coverage(self) -> tuple[float, float, float]:
        """Share of positions whose measured shift is at most U, with Wilson's 95 % interval.

        The estimate is the smaller of two that each cover 1 - delta of the positions of calibration: 1 - 2 delta is
        all that is implied.
        """
        covered = self.runner_ups["measured"] <= self.runner_ups["estimated"]
        return wilson(int(covered.sum()), len(covered))

    @property
    def bound_per_sequence(self) -> float:
        """The paper's bound on bad additions in a text: delta times the mean number of eligible candidates."""
        return self.delta * self.n_eligible / self.n_prompts

    def gamma_for(self, risk: float) -> float:
        """The largest tolerance, up to the run's, at which P(shift > eps) among added tokens would be at most `risk`.

        A smaller gamma' takes a token of estimate U with (1 - U / gamma') / (1 - U / gamma) of its probability: the
        run's tokens are weighted so. (lambda scales all of them alike, and cannot change this share.) NaN where even
        the smallest does not reach it, or nothing was added.
        """
        estimated, bad = self.added["estimated"].to_numpy(), (self.added["measured"] > self.eps).to_numpy()
        before = np.maximum(1.0 - estimated / self.gamma, 1e-9)
        for gamma in np.linspace(self.gamma, self.gamma / 100, 100):
            weights = np.maximum(1.0 - estimated / gamma, 0.0) / before
            if weights.sum() > 0 and (weights * bad).sum() <= risk * weights.sum():
                return float(gamma)
        return math.nan

    def to_frame(self) -> pd.DataFrame:
        """One row a question: quantity, value, low, high (95 %), n."""
        import pandas as pd

        mean, low, high = _mean(self.added["measured"].to_numpy(dtype=float))
        n_added, n_runner_ups = len(self.added), len(self.runner_ups)
        rows: list[tuple[str, float, float, float, int]] = [
            ("P(shift > eps) among added tokens", *self.risk, n_added),
            ("mean shift of added tokens, nats", mean, low, high, n_added),
            ("added tokens, share of written", *wilson(n_added, self.n_tokens), self.n_tokens),
            ("mean shift of runner-ups, nats", *_mean(self.runner_ups["measured"].to_numpy(dtype=float)), n_runner_ups),
            ("coverage: shift <= U", *self.coverage, n_runner_ups),
            ("coverage by embedding alone", *self._branch("covered_by_embedding"), n_runner_ups),
            ("coverage by logit alone", *self._branch("covered_by_logit"), n_runner_ups),
            ("price: mean B a position", self.price, math.nan, math.nan, self.n_positions),
        ]
        return pd.DataFrame(rows, columns=["quantity", "value", "low", "high", "n"])

    def _branch(self, name: str) -> tuple[float, float, float]:
        return wilson(int(self.runner_ups[name].sum()), len(self.runner_ups))

    def summary(self) -> str:
        """The audit as a table; 95 % intervals in brackets."""
        frame = self.to_frame()
        lines = [
            f"{self.n_prompts} texts, {self.n_tokens} tokens, lambda {self.lam:g}, gamma {self.gamma:.3f} nats, "
            f"eps {self.eps:g} nats, delta {self.delta:g}",
            "",
        ]
        for row in frame.itertuples():
            ends = "" if math.isnan(float(str(row.low))) else f" [{row.low:.3f}, {row.high:.3f}]"
            lines.append(f"{row.quantity:36} {row.value:.3f}{ends}  (n = {row.n})")
        best = self.gamma_for(self.delta)
        if not len(self.added):
            lines += ["", "nothing was added: there is nothing to audit; try more prompts or a larger lambda"]
        elif math.isnan(best):
            lines += ["", f"no gamma brings the share above eps down to {self.delta:g}; use lambda 0"]
        else:
            lines += ["", f"largest gamma with at most {self.delta:g} above eps: {best:.3f}"]
        return "\n".join(lines)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw measured against estimated shift: below the diagonal the estimate was enough."""
        if ax is None:
            from matplotlib import pyplot as plt

            _, ax = plt.subplots(figsize=(5.4, 4.6), layout="constrained")
        for frame, colour, marker, name in (
            (self.runner_ups, _BLUE, ".", "runner-ups"),
            (self.added, _ORANGE, "o", "added tokens"),
        ):
            ax.scatter(frame["estimated"], frame["measured"], s=16, color=colour, marker=marker, label=name, alpha=0.7)
        ax.axline((0, 0), slope=1, color="black", linewidth=0.8)
        ax.axhline(self.eps, color="black", linewidth=0.8, linestyle=":")
        ax.axvline(self.gamma, color="#999999", linewidth=0.8, linestyle="--")
        ax.set_xlim(0, 2 * self.gamma)
        ax.set_ylim(0, math.log(2))
        ax.set_xlabel("estimated shift U (nats); dashed: gamma")
        ax.set_ylabel("measured shift, Jensen–Shannon (nats); dotted: eps")
        ax.legend(frameon=False)
        return ax


def audit(
    model: Any,
    calibration: ArcCalibration,
    prompts: Sequence[Tensor],
    *,
    assistant: Any,
    eps: float = 0.1,
    lam: float = 1.0,
    p_min: float = 0.05,
    gamma: float | None = None,
    num_draft: int = 5,
    tree: Tree | None = None,
    max_new_tokens: int = 40,
    force: bool = False,
    seed: int = 0,
) -> Audit:
    """Generate from held-out prompts and measure what each added token did to the next step.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    calibration : ArcCalibration
        Sampling settings are those it was made for.
    prompts : sequence of (length,) int64 tensors
        Others than those of the calibration.
    assistant, lam, p_min, gamma, num_draft, tree, max_new_tokens, force, seed
        As for :func:`arc_generate`. lambda 1 shows the most additions; it scales all of them alike.
    eps : float
        Shift of the next step that is too much, nats (at most log 2 = 0.693).

    Returns
    -------
    Audit
    """
    import pandas as pd

    if not 0 < eps < math.log(2):
        raise InputError(f"eps={eps}: expected above 0 and below log 2 = 0.693, the largest divergence there is")
    check_model(model, "model")
    check_prompts(model, prompts)
    sampling = Sampling(calibration.temperature, calibration.top_k, calibration.top_p)
    rows, texts = [], []
    counts = np.zeros(4)
    with progress_bar() as bar:
        task = bar.add_task("writing and measuring", total=len(prompts))
        for number, prompt in enumerate(prompts):
            output = arc_generate(
                model,
                assistant,
                prompt[None],
                max_new_tokens=max_new_tokens,
                calibration=calibration,
                temperature=calibration.temperature,
                top_k=calibration.top_k,
                top_p=calibration.top_p,
                lam=lam,
                p_min=p_min,
                gamma=gamma,
                num_draft=num_draft,
                tree=tree,
                force=force,
                seed=child_seed(seed, "audit", number),
            )
            ids, record = output.sequences[0].to(model.device), output.records[0]
            counts += (record.n_tokens, record.n_positions, record.n_eligible, record.price)
            texts.append((ids, len(prompt)))
            measured = shift_of_added(model, ids, record.added, sampling, calibration.n_top)
            for item, shift in zip(record.added, measured, strict=True):
                rows.append((number, item.place, item.token, item.favourite, item.shift, float(shift)))
            bar.advance(task)
    found = measure(model, texts, sampling, calibration.inverse_std, n_top=calibration.n_top, seed=seed)
    by_embedding, by_logit = calibration.c_e * found.by_embedding, calibration.c_l * found.by_logit
    runner_ups = pd.DataFrame(
        {
            "estimated": np.minimum(by_embedding, by_logit),
            "measured": found.js,
            "covered_by_embedding": found.js <= by_embedding,
            "covered_by_logit": found.js <= by_logit,
        }
    )
    columns = ["prompt", "place", "token", "favourite", "estimated", "measured"]
    return Audit(
        added=pd.DataFrame(rows, columns=columns),
        runner_ups=runner_ups,
        eps=eps,
        delta=calibration.delta,
        gamma=calibration.gamma if gamma is None else gamma,
        lam=lam,
        n_prompts=len(prompts),
        n_tokens=int(counts[0]),
        n_positions=int(counts[1]),
        n_eligible=int(counts[2]),
        price=float(counts[3] / counts[1]) if counts[1] else math.nan,
    )


def shift_of_added(
    model: Any, ids: Tensor, added: Sequence[Added], sampling: Sampling, n_top: int
) -> NDArray[np.float64]:
    """Divergence (n,) of the next step after each added token of a text from the one after the favourite, nats."""
    if not added:
        return np.empty(0)
    with torch.inference_mode():
        reader = Reader(model)
        reader.read_all(ids)
        places = [item.place for item in added]
        tokens, favourites = (torch.tensor([getattr(item, name) for item in added]) for name in ("token", "favourite"))
        shift = shift_between(reader, ids, places, tokens, favourites, sampling, n_top)
    found: NDArray[np.float64] = shift.numpy()
    return found


def wilson(n_hits: int, n: int) -> tuple[float, float, float]:
    """A share with Wilson's 95 % interval; NaN without observations."""
    from scipy.stats import binomtest

    if n == 0:
        return math.nan, math.nan, math.nan
    interval = binomtest(n_hits, n).proportion_ci(0.95, method="wilson")
    return n_hits / n, float(interval.low), float(interval.high)


def _mean(values: NDArray[np.float64]) -> tuple[float, float, float]:
    if len(values) < 2:
        return (float(values.mean()) if len(values) else math.nan), math.nan, math.nan
    mean, half = float(values.mean()), _Z * float(values.std(ddof=1)) / math.sqrt(len(values))
    return mean, mean - half, mean + half
