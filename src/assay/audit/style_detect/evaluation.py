"""What detectors are worth on labelled text, attack by attack, for one document and for several."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError
from assay._core.files import replacing
from assay._core.seeds import child_seed
from assay.audit.style_detect.door import check_texts, digests
from assay.audit.style_detect.metrics import auroc, blocks, group_rows, pauroc, tpr_at_fpr

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe–Ito
MARKS = "osD^vPX"
#: What an attack column says of text that was not attacked.
PLAIN = "none"


@dataclass(frozen=True)
class Evaluation:
    """A row for every detector, attack and number of documents.

    Parameters
    ----------
    table : pandas.DataFrame
        detector, attack, n_docs, auroc, pauroc, pauroc_low, pauroc_high (95 %, bootstrap over blocks), tpr (at a
        false-positive rate of 1 %, linear), tpr_straddling (the authors' toolbox), n_human, n_machine (blocks).
    max_fpr : float
    how : str
        How documents were put together.
    n_duplicates : int
        Texts that stood in the table before; they were left out.
    n_small_groups : int
        Groups, over all attacks and sizes, with too few documents.
    matrices : mapping of detector to (n_trials, n) float32
        Of detectors with several supports.
    """

    table: pd.DataFrame
    max_fpr: float
    how: str
    n_duplicates: int
    n_small_groups: int
    matrices: Mapping[str, NDArray[np.float32]]

    def to_frame(self) -> pd.DataFrame:
        """The table, as a copy."""
        return self.table.copy()

    def summary(self) -> str:
        """The table for people; its last block is the best detector on each, which nobody knows beforehand."""
        lines = [f"pAUROC up to a false-positive rate of {self.max_fpr:g} (0.5 is chance); {self.how}"]
        if self.n_duplicates:
            lines.append(f"{self.n_duplicates} repeated texts were left out")
        if self.n_small_groups:
            lines.append(f"{self.n_small_groups} times a group had too few documents and was left out")
        head = (
            f"{'detector':<26} {'attack':<14} {'N':>3} {'AUROC':>6} {'pAUROC':>7} {'95 % interval':>16} {'TPR@1%':>7}"
        )
        lines += ["", f"{head}  blocks (human, machine)"]
        for row in self.table.itertuples():
            interval = f"[{row.pauroc_low:.3f}, {row.pauroc_high:.3f}]"
            lines.append(
                f"{row.detector!s:<26.26} {row.attack!s:<14.14} {row.n_docs:>3} {row.auroc:>6.3f} {row.pauroc:>7.3f} "
                f"{interval:>16} {row.tpr:>7.3f}  {row.n_human}, {row.n_machine}"
            )
        lines += ["", "the best detector of each (max pAUROC; chosen with the labels)"]
        for (attack, n_docs), rows in self.table.groupby(["attack", "n_docs"], sort=False):
            if rows["pauroc"].notna().any():
                best = rows.iloc[int(rows["pauroc"].fillna(-1).to_numpy().argmax())]
                lines.append(f"{attack!s:<14.14} {n_docs:>3} {best['pauroc']:.3f}  {best['detector']}")
        return "\n".join(lines)

    def plot(self) -> Figure:
        """Draw pAUROC against the number of documents, an attack beside the other."""
        from matplotlib import pyplot as plt

        attacks = list(dict.fromkeys(self.table["attack"]))
        figure, axes = plt.subplots(1, len(attacks), figsize=(3.6 * len(attacks), 3.6), sharey=True, squeeze=False)
        for ax, attack in zip(axes[0], attacks, strict=True):
            for place, name in enumerate(dict.fromkeys(self.table["detector"])):
                rows = self.table[(self.table["attack"] == attack) & (self.table["detector"] == name)]
                style = {"color": COLOURS[place % len(COLOURS)], "marker": MARKS[place % len(MARKS)]}
                ax.plot(rows["n_docs"], rows["pauroc"], label=name, **style)
                ax.fill_between(
                    rows["n_docs"], rows["pauroc_low"], rows["pauroc_high"], alpha=0.12, color=style["color"]
                )
            ax.set_title(attack)
            ax.set_xlabel("documents a decision")
        lowest = self.table["pauroc_low"].min()
        axes[0, 0].set_ylim(0.49 if np.isnan(lowest) else min(0.5, lowest) - 0.01, 1.01)  # from chance to the best
        axes[0, 0].set_ylabel(f"pAUROC (false-positive rate up to {self.max_fpr:g})")
        axes[0, -1].legend(frameon=False, fontsize="small")
        return figure

    def save_scores(self, path: str | os.PathLike[str]) -> None:
        """Write the score matrices as ``.npz``, an array a detector."""
        with replacing(Path(path)) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **self.matrices)


def evaluate_detectors(
    frame: pd.DataFrame,
    detectors: Mapping[str, Any],
    *,
    text: str = "text",
    label: str = "label",
    attack: str | None = "attack",
    group: str | None = None,
    domain: str | None = None,
    n_docs: Sequence[int] = (1, 5, 10, 25, 50),
    max_fpr: float = 0.01,
    n_boot: int = 200,
    random_state: int = 0,
) -> Evaluation:
    """Compare fitted detectors on labelled text.

    A text that stands in the table twice counts once. Several documents are scored by the mean of their scores, in
    blocks of a shuffled order (`group` None) or of one author each; neighbours in a file often resemble each other, so
    blocks of consecutive rows would be another, easier experiment.

    Parameters
    ----------
    frame : pandas.DataFrame
    detectors : mapping of name to fitted detector
    text, label : str
        Columns; a label is 0 (human) or 1 (machine).
    attack : str, optional
        Column that says what was done to a machine text (``"none"``, ``"paraphrase"``, …): each is compared with all
        human texts. None, or a column that is not there: no attack.
    group : str, optional
        Column with the author: blocks are of one author.
    domain : str, optional
        Column with the domain, for the modes that look at it.
    n_docs : sequence of int
        Documents a decision.
    max_fpr : float
    n_boot : int
        Resamples of blocks for the intervals.
    random_state : int

    Returns
    -------
    Evaluation

    Raises
    ------
    InputError
        A column is not there, a label is neither 0 nor 1, or there is only one class.
    """
    for column in (text, label, *(name for name in (group, domain) if name is not None)):
        if column not in frame.columns:
            raise InputError(f"the table has no column {column!r}; it has {', '.join(map(str, frame.columns))}")
    labels = _labels(frame[label].to_numpy(), label)
    texts, there = check_texts(frame[text].tolist(), f"column {text!r}")
    of_attack = np.full(len(frame), PLAIN, dtype=object)
    if attack is not None and attack in frame.columns:
        given = frame[attack].fillna(PLAIN).astype(str).replace("", PLAIN).to_numpy()
        of_attack = np.where(labels == 1, given, PLAIN)
    kept = there & _first(texts, of_attack)
    n_duplicates = int((there & ~kept).sum())
    scores, matrices = {}, {}
    domains = None if domain is None else frame[domain].astype(str).to_numpy()
    for name, detector in detectors.items():
        if hasattr(detector, "score_matrix"):  # its mean is the score: texts are read once
            matrices[name] = detector.score_matrix(texts, domains=domains)
            scores[name] = matrices[name].mean(axis=0, dtype=np.float64)
        else:
            scores[name] = detector.score_samples(texts, domains=domains)
    owners = None if group is None else frame[group].astype(str).to_numpy()
    rows, n_small, thin = [], 0, set()
    attacks = sorted(set(of_attack[labels == 1]), key=lambda name: (name != PLAIN, name))
    for one in attacks:
        chosen = [np.flatnonzero(kept & (labels == 0)), np.flatnonzero(kept & (labels == 1) & (of_attack == one))]
        for n in n_docs:
            rng = np.random.default_rng(child_seed(random_state, "blocks", str(one), n))
            members, dropped = zip(*(_blocks_of(part, owners, n, rng) for part in chosen), strict=True)
            n_small += sum(dropped)
            for name in detectors:
                human, machine = ([scores[name][rows_].mean() for rows_ in part] for part in members)
                found = _measured(np.array(human), np.array(machine), max_fpr, n_boot, rng)
                rows.append({"detector": name, "attack": one, "n_docs": n, **found})
            if len(members[0]) < 1 / max_fpr:
                thin.add(n)
    if thin:
        warnings.warn(
            f"max_fpr={max_fpr:g} is below 1 / (number of human blocks) for N = {', '.join(map(str, sorted(thin)))}: "
            "pAUROC there hangs on the single highest human block",
            UserWarning,
            stacklevel=2,
        )
    import pandas as pd

    how = "blocks of a shuffled order" if group is None else f"blocks of one {group} each"
    return Evaluation(pd.DataFrame(rows), max_fpr, how, n_duplicates, n_small, matrices)


def _labels(given: NDArray[Any], label: str) -> NDArray[np.int64]:
    for row, value in enumerate(given):
        if str(value) not in ("0", "1", "0.0", "1.0", "True", "False"):
            raise InputError(
                f"column {label!r}, row {row}: {value!r} is not a label; expected 0 (human) or 1 (machine)"
            )
    labels = np.array([str(value) in ("1", "1.0", "True") for value in given], dtype=np.int64)
    if len(np.unique(labels)) != 2:
        raise InputError(f"column {label!r} has one class; expected both 0 (human) and 1 (machine)")
    return labels


def _first(texts: list[str], of_attack: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether a text stands here for the first time under its attack."""
    seen: set[tuple[str, str]] = set()
    found = []
    for key in zip(digests(texts), map(str, of_attack), strict=True):
        found.append(key not in seen)
        seen.add(key)
    return np.array(found, dtype=bool)


def _blocks_of(
    rows: NDArray[np.int64], owners: NDArray[Any] | None, n_docs: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], int]:
    if owners is None:
        order = rng.permutation(rows)
        return order[: len(order) // n_docs * n_docs].reshape(-1, n_docs), 0
    found, n_small = group_rows(owners[rows], n_docs, rng)
    return rows[found], n_small


def _measured(human: Array, machine: Array, max_fpr: float, n_boot: int, rng: np.random.Generator) -> dict[str, float]:
    human, machine = blocks(human, 1), blocks(machine, 1)  # without NaN
    counts = {"n_human": len(human), "n_machine": len(machine)}
    names = ("auroc", "pauroc", "pauroc_low", "pauroc_high", "tpr", "tpr_straddling")
    if not (len(human) and len(machine)):
        return {**dict.fromkeys(names, float("nan")), **counts}
    labels = np.repeat([0, 1], [len(human), len(machine)])
    scores = np.concatenate([human, machine])
    areas = []
    for _ in range(n_boot):
        again = [rng.choice(part, len(part)) for part in (human, machine)]
        areas.append(pauroc(labels, np.concatenate(again), max_fpr))
    low, high = np.quantile(areas, [0.025, 0.975]) if areas else (np.nan, np.nan)
    tpr = tpr_at_fpr(labels, scores, 0.01)
    values = (
        auroc(labels, scores),
        pauroc(labels, scores, max_fpr),
        float(low),
        float(high),
        tpr.linear,
        tpr.straddling,
    )
    return {**dict(zip(names, values, strict=True)), **counts}
