"""The detectors of the trial: each learns, calibrates and scores on what a case gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay.audit.style_detect import StyleFewShotDetector, TfidfDetector, auroc, conformal_threshold
from assay.audit.style_detect.metrics import blocks
from assay.trials.audit.style_detect.features import ZERO_SHOT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.bench import Case
    from assay.trials.audit.style_detect.features import Features

    Array = NDArray[np.float64]
    Ints = NDArray[np.int64]

#: Known machine texts in a support, and the share of human texts that may be flagged.
N_SUPPORT, N_TRIALS, TARGET_FPR = 50, 100, 0.05
#: Documents of an account, and how often accounts are put together anew.
N_DOCS, N_SHUFFLES = 4, 20


class Given(NamedTuple):
    """What a detector may see.

    Parameters
    ----------
    texts : list of str
    features : Features
        Of all of them.
    machine, human : (…,) int
        Rows to learn from: plain machine text, and human text of the same sources.
    calibration : (…,) int
        Rows of human text of other sources.
    """

    texts: list[str]
    features: Features
    machine: Ints
    human: Ints
    calibration: Ints


class Scored(NamedTuple):
    """Scores of all texts of a case, and a threshold."""

    scores: Array
    threshold: float


class Truth(NamedTuple):
    """Rows that are judged: human, and machine by what was done to it."""

    human: Ints
    machine: dict[str, Ints]


def _few_shot(vectors: NDArray[np.float32], given: Given, seed: int) -> Scored:
    detector = StyleFewShotDetector(
        n_support=min(N_SUPPORT, len(given.machine)), n_trials=N_TRIALS, random_state=seed
    ).fit(vectors[given.machine])
    return _calibrated(detector.score_samples(vectors), given)


def style(given: Given, seed: int) -> Scored:
    return _few_shot(given.features.style, given, seed)


def meaning(given: Given, seed: int) -> Scored:
    return _few_shot(given.features.meaning, given, seed)


def tfidf(given: Given, seed: int) -> Scored:
    rows = np.concatenate([given.human, given.machine])
    labels = np.repeat([0, 1], [len(given.human), len(given.machine)])
    detector = TfidfDetector(random_state=seed).fit([given.texts[row] for row in rows], labels)
    judged = np.setdiff1d(np.arange(len(given.texts)), rows)
    scores = np.full(len(given.texts), np.nan)
    scores[judged] = detector.score_samples([given.texts[row] for row in judged])
    return _calibrated(scores, given)


def zero_shot(name: str, given: Given, seed: int) -> Scored:
    return _calibrated(given.features.zero_shot[:, ZERO_SHOT.index(name)], given)


def _calibrated(scores: Array, given: Given) -> Scored:
    return Scored(scores, conformal_threshold(scores[given.calibration], TARGET_FPR).value)


def measured(case: Case, found: Scored) -> dict[str, float]:
    """AUROC on plain and on changed machine text, for a text and for an account; what is flagged at the threshold."""
    truth: Truth = case.truth
    plain = truth.machine["none"]
    changed = {name: rows for name, rows in truth.machine.items() if name != "none"} or {"none": plain}
    areas = {name: area(found.scores, truth.human, rows) for name, rows in truth.machine.items()}
    flagged = np.concatenate(list(changed.values()))
    rng = np.random.default_rng(0)
    by_account = [_account_area(found.scores, truth.human, rows, rng) for rows in changed.values()]
    return {
        "auroc_changed": float(np.mean([areas[name] for name in changed])),
        "auroc_plain": areas["none"],
        "drop": areas["none"] - float(np.mean([areas[name] for name in changed])),
        "auroc_worst": min(areas[name] for name in changed),
        "auroc_account": float(np.mean(by_account)),
        "human_flagged": float(np.mean(found.scores[truth.human] > found.threshold)),
        "changed_flagged": float(np.mean(found.scores[flagged] > found.threshold)),
    }


def area(scores: Array, human: Ints, machine: Ints) -> float:
    """AUROC of these rows."""
    return auroc(np.repeat([0, 1], [len(human), len(machine)]), scores[np.concatenate([human, machine])])


def _account_area(scores: Array, human: Ints, machine: Ints, rng: np.random.Generator) -> float:
    areas = []
    for _ in range(N_SHUFFLES):
        parts = [blocks(scores[rows], N_DOCS, rng.permutation(len(rows))) for rows in (human, machine)]
        if not all(map(len, parts)):
            return float("nan")
        # AUROC by its definition: of so few blocks all pairs are quickly compared.
        above = np.subtract.outer(parts[1], parts[0])
        areas.append(np.mean((above > 0) + 0.5 * (above == 0)))
    return float(np.mean(areas))


def picked(features: Features, rows: Any) -> Features:
    """Features of these rows."""
    return type(features)(*(values[rows] for values in features))
