"""How often prediction and explanation come apart at each budget, and which explainers notice."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError
from assay._core.progress import progress_bar
from assay.audit.tsef.attack import TSEF
from assay.audit.tsef.baselines import PGD, RandomNoise
from assay.audit.tsef.metrics import wilson
from assay.audit.tsef.noticing import COLUMNS, FALSE_ALARMS, watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from torch import Tensor

    from assay.audit.tsef.door import Layout
    from assay.audit.tsef.explainers import Explainer
    from assay.audit.tsef.noticing import Noticed
    from assay.audit.tsef.result import AttackResult
    from assay.audit.tsef.run import Explained
    from assay.audit.tsef.watchers import Watcher

#: Noise; steps on the label, to the end and to the first flip; steps on both losses; the dual attack.
ATTACKS = ("random", "pgd", "pgd_first", "pgd_joint", "tsef")
BUDGETS = (0.02, 0.05, 0.1, 0.2)
LAMBDAS = (0.3, 0.05, 0.01)

#: Okabe–Ito, and a mark for each attack.
STYLE = {
    "random": ("#999999", "x"),
    "pgd": ("#E69F00", "s"),
    "pgd_first": ("#009E73", "^"),
    "pgd_joint": ("#0072B2", "o"),
    "tsef": ("#D55E00", "D"),
}


@dataclass(frozen=True)
class Run:
    """One attack at one budget, and, for those that weigh both losses, one weight of the class."""

    attack: str
    eps: float
    lambda_cls: float
    result: AttackResult


@dataclass(frozen=True)
class RobustnessReport:
    """Attacks of one classifier and one explainer at several budgets.

    Parameters
    ----------
    explainer : str
    explain : str
        "label" or "target": whose explanation had to stay.
    runs : tuple of Run
    noticed : tuple of Noticed
        For each watcher, attack and budget.
    """

    explainer: str
    explain: str
    runs: tuple[Run, ...]
    noticed: tuple[Noticed, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out; the same for every run."""
        return self.runs[0].result.notes

    def to_frame(self) -> pd.DataFrame:
        """One row for each run: shares with 95 % Wilson intervals, agreement with standard errors."""
        import pandas as pd

        return pd.DataFrame([_row(run) for run in self.runs])

    def curve(self) -> pd.DataFrame:
        """Of each attack and budget the run at the weight with which prediction and explanation come apart most often.

        An attacker may choose the weight, having seen the outcome; so does this.
        """
        frame = self.to_frame()
        best = frame.groupby(["attack", "eps"], sort=False)["apart"].idxmax()
        return frame.loc[best].reset_index(drop=True)

    def series_frame(self) -> pd.DataFrame:
        """One row for each series of each run."""
        import pandas as pd

        frames = []
        for run in self.runs:
            frame = run.result.to_frame()
            frame.insert(0, "lambda_cls", run.lambda_cls)
            frame.insert(0, "eps", run.eps)
            frame.insert(0, "attack", run.attack)
            frames.append(frame)
        return pd.concat(frames, ignore_index=True)

    def noticed_frame(self) -> pd.DataFrame:
        """One row for each watcher, attack and budget."""
        import pandas as pd

        return pd.DataFrame([one.row() for one in self.noticed], columns=list(COLUMNS))

    def to_dict(self) -> dict[str, Any]:
        """Everything but single series, ready for JSON: numbers that do not exist are null."""
        return {
            "explainer": self.explainer,
            "explain": self.explain,
            "notes": list(self.notes),
            "runs": [_plain(_row(run)) for run in self.runs],
            "noticed": [_plain(one.row()) for one in self.noticed],
        }

    def summary(self) -> str:
        """The curve, and who notices at the largest budget, as text."""
        first = self.runs[0].result
        own = "own class (before and after)" if self.explain == "label" else "target class (after)"
        lines = [
            f"{first.n_attacked} of {len(first.y)} series attacked; {self.explainer} explains the {own}",
            *self.notes,
            "",
            f"{'budget':>6}  {'attack':<10} {'weight':>6}  {'flipped':>7}  {'come apart':>10}  {'95 % interval':<15} "
            f"{'AUPRC':>6}  ± s.e.",
        ]
        for row in sorted(self.curve().to_dict("records"), key=lambda row: row["eps"]):
            weight = "" if np.isnan(row["lambda_cls"]) else f"{row['lambda_cls']:g}"
            lines.append(
                f"{row['eps']:>6g}  {row['attack']:<10} {weight:>6}  {row['success']:>7.3f}  {row['apart']:>10.3f}  "
                f"[{row['apart_low']:.3f}, {row['apart_high']:.3f}]  {row['auprc']:>6.3f}  ± {row['auprc_se']:.3f}"
            )
        lines += [
            "",
            "budget: share of a channel's range. flipped: predicted as the target. come apart: flipped, and the AUPRC",
            "of the explanation is at least 0.9 of the clean one. weight: of the class, that with the most come apart.",
        ]
        if self.noticed:
            eps = max(one.eps for one in self.noticed)
            lines += ["", f"who notices at budget {eps:g} (alarm set to {FALSE_ALARMS:.0%} of noisy series)"]
            lines.append(f"{'explainer':<22} {'attack':<10} {'noticed':>8}  {'95 % interval':<15}  says")
            for one in self.noticed:
                if one.eps == eps:
                    low, high = one.interval
                    lines.append(
                        f"{one.watcher:<22} {one.attack:<10} {f'{one.n_noticed}/{one.n_flipped}':>8}  "
                        f"{f'[{low:.3f}, {high:.3f}]' if one.n_flipped else '':<15}  {one.verdict}"
                    )
        return "\n".join(lines)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the share of series whose prediction and explanation come apart over the budget, with 95 % intervals."""
        ax = _axes(ax)
        curve = self.curve()
        attacks = list(dict.fromkeys(curve["attack"]))
        apart = 0.012 * float(curve["eps"].max())  # side by side: intervals on one spot cannot be told apart
        for number, attack in enumerate(attacks):
            colour, mark = STYLE[attack]
            part = curve[curve["attack"] == attack].sort_values("eps")
            ends = [part["apart"] - part["apart_low"], part["apart_high"] - part["apart"]]
            beside = part["eps"] + (number - (len(attacks) - 1) / 2) * apart
            ax.errorbar(
                beside, part["apart"], yerr=np.clip(ends, 0, 1), color=colour, marker=mark, capsize=2, label=attack
            )
        ax.set_xlabel("budget (share of each channel's range)")
        ax.set_ylabel("share of series that come apart")
        ax.set_ylim(-0.02, 1.02)
        ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        return ax

    def plot_frontier(self, ax: Axes | None = None) -> Axes:
        """Draw flips against agreement of the explanation at the largest budget, a point for each weight."""
        ax = _axes(ax)
        frame = self.to_frame()
        frame = frame[frame["eps"] == frame["eps"].max()]
        for attack, part in frame.groupby("attack", sort=False):
            colour, mark = STYLE[str(attack)]
            part = part.sort_values("success")
            ax.errorbar(part["success"], part["auprc"], yerr=1.96 * part["auprc_se"], color=colour, marker=mark,
                        capsize=2, label=attack)  # fmt: skip
        ax.set_xlabel(f"share predicted as the target, budget {frame['eps'].iloc[0]:g}")
        ax.set_ylabel("AUPRC of the explanation with its clean self")
        ax.set_xlim(-0.02, 1.02)
        ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        return ax


def robustness_report(
    model: Callable[[Tensor], Tensor],
    explainer: Explainer | Callable[[Tensor, Tensor], Tensor],
    X: Any,  # noqa: N803
    y: Any = None,
    *,
    attacks: Sequence[str] = ATTACKS,
    budgets: Sequence[float] = BUDGETS,
    lambda_grid: Sequence[float] = LAMBDAS,
    watchers: Mapping[str, Watcher] | None = None,
    target: Any = None,
    reference: Any = None,
    rho: float = 0.1,
    iters: int = 10,
    k1: int = 10,
    k2: int = 20,
    layout: Layout = "BDT",
    explain: Explained = "label",
    batch_size: int = 64,
    seed: int = 0,
) -> RobustnessReport:
    """Attack a classifier and its explainer at several budgets.

    Parameters
    ----------
    model, explainer, X, y, target, reference, rho, layout, explain, batch_size, seed
        As for :class:`TSEF`.
    attacks : sequence of "random", "pgd", "pgd_first", "pgd_joint", "tsef"
        Noise; gradient steps on the label to the end, as in the paper, or to the first flip; gradient steps on both
        losses; the dual attack.
    budgets : sequence of float
        Shares of each channel's range.
    lambda_grid : sequence of float
        Weights of the class, for "pgd_joint" and "tsef".
    watchers : mapping of name to ``(x, class) -> saliency``, optional
        Explainers that are asked whether they notice, such as :func:`captum_watchers` makes.
    iters, k1, k2 : int
        Of TSEF. Gradient steps get as many passes: iters · (k1 + k2). The paper takes 100, 10 and 20.

    Raises
    ------
    InputError
        An attack's name or a budget is none, or the input cannot be used.
    """
    if not attacks or not budgets or not lambda_grid:
        raise InputError("attacks, budgets and lambda_grid each need at least one entry")
    for name in attacks:
        if name not in ATTACKS:
            raise InputError(f"attack {name!r} is not one of {', '.join(ATTACKS)}")
    same: dict[str, Any] = {"layout": layout, "explain": explain, "batch_size": batch_size, "seed": seed}
    steps = iters * (k1 + k2)

    def attack(name: str, eps: float, weight: float) -> Any:
        if name == "random":
            return RandomNoise(model, explainer, eps=eps, **same)
        if name == "tsef":
            return TSEF(model, explainer, eps=eps, lambda_cls=weight, iters=iters, k1=k1, k2=k2, **same)
        if name == "pgd_joint":
            return PGD(model, explainer, eps=eps, steps=steps, lambda_exp=1.0, lambda_cls=weight, **same)
        return PGD(model, explainer, eps=eps, steps=steps, keep="last" if name == "pgd" else "best", **same)

    plan = [
        (name, eps, weight)
        for name in dict.fromkeys(attacks)
        for eps in sorted(set(budgets))
        for weight in (lambda_grid if name in ("pgd_joint", "tsef") else (float("nan"),))
    ]
    runs = []
    with progress_bar() as bar, warnings.catch_warnings():
        task = bar.add_task("attacks", total=len(plan))
        for number, (name, eps, weight) in enumerate(plan):
            result = attack(name, eps, weight)(X, y, target, reference, rho)
            runs.append(Run(name, eps, weight, result))
            bar.advance(task)
            if number == 0:
                warnings.simplefilter("ignore", UserWarning)  # said once, and again in the summary
    made = RobustnessReport(runs[0].result.explainer, explain, tuple(runs), ())
    if not watchers:
        return made
    best = {(row["attack"], row["eps"]): row["lambda_cls"] for row in made.curve().to_dict("records")}
    worst = [run for run in runs if run.attack != "random" and _same(best[run.attack, run.eps], run.lambda_cls)]
    attacked = {(run.attack, run.eps): run.result for run in worst}
    return RobustnessReport(made.explainer, explain, made.runs, watch(watchers, model, attacked, rho, layout, seed))


def _same(a: float, b: float) -> bool:
    return a == b or bool(np.isnan(a) and np.isnan(b))


def _row(run: Run) -> dict[str, Any]:
    result, n = run.result, run.result.n_attacked
    row: dict[str, Any] = {"attack": run.attack, "eps": run.eps, "lambda_cls": run.lambda_cls, "n": n}
    for name, which in (("success", result.success), ("apart", result.apart)):
        count = int(which.sum())
        row[name] = count / n
        row[f"{name}_low"], row[f"{name}_high"] = wilson(count, n)
    row["f1"] = result.f1
    for name in ("auprc", "auprc_clean", "aup", "aur", "iou", "linf", "l2", "dtw"):
        values = getattr(result, name)[result.attacked]
        row[name] = float(values.mean())
        if name == "auprc":
            row["auprc_se"] = float(values.std(ddof=1) / np.sqrt(n)) if n > 1 else float("nan")
    return row


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: None if isinstance(value, float) and np.isnan(value) else value for name, value in row.items()}


def _axes(ax: Axes | None) -> Axes:
    from matplotlib import pyplot as plt

    return ax if ax is not None else plt.subplots(figsize=(6, 4), layout="constrained")[1]
