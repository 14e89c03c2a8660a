"""Run self-consistency, its adaptive relatives and fractal consistency over samples that are already recorded.

Nothing is sampled anew: each method reads as far into the recorded samples of a question as its stopping rule says.
"""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError
from assay.decode.tmafc.history import History
from assay.decode.tmafc.prior import CATEGORIES, Prior, rule_difficulty
from assay.decode.tmafc.recorded import Recorded
from assay.decode.tmafc.vote import N_MAX, TAU, Sample, check_limits, fractal_consistency, normalised
from assay.decode.tmafc.vote import beta_confidence as beta_confidence  # the rule of both adaptive methods

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

WINDOW = 5
#: Okabe–Ito, distinguishable with colour-blind eyes.
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00")


@dataclass(frozen=True)
class Outcome:
    """What a method answered to one question, and what it would have paid.

    Parameters
    ----------
    answer : mapping
    n_samples : int
        Samples drawn (rounds).
    n_requests : int
        Requests for a component, summed over components.
    tokens : float
        Tokens generated; NaN where the record has none. A round that asks for some of the components pays the share
        of the recorded reply that they take up.
    category : str
        Difficulty, where the method uses it.
    prior : Prior
    """

    answer: Mapping[str, Any]
    n_samples: int
    n_requests: int
    tokens: float
    category: str = ""
    prior: Prior = Prior()


@dataclass(frozen=True)
class Settings:
    """Limits that all methods share.

    Parameters
    ----------
    tau : float
        Threshold of the adaptive methods.
    n_max : int
        Most samples of a question.
    window : int
        Early-stopping self-consistency stops when so many answers in a row are equal.
    """

    tau: float = TAU
    n_max: int = 40
    window: int = WINDOW

    def __post_init__(self) -> None:
        check_limits(self.tau, self.n_max)
        if self.window < 1:
            raise InputError(f"window is {self.window}; expected a whole number from 1")


def self_consistency(record: Recorded, settings: Settings) -> Outcome:
    """Draw all samples and take the most frequent whole answer (Wang et al., arXiv:2203.11171)."""
    return _whole(record, min(settings.n_max, len(record.samples)))


def component_majority(record: Recorded, settings: Settings) -> Outcome:
    """Draw all samples and take the most frequent value of every component: what voting by component alone gains."""
    n = min(settings.n_max, len(record.samples))
    parsed = [sample for sample in record.samples[:n] if sample is not None]
    answer = {name: _majority([sample.get(name) for sample in parsed]) for name in record.components}
    return Outcome(answer, n, n * len(record.components), _tokens(record, n))


def adaptive_consistency(record: Recorded, settings: Settings) -> Outcome:
    """Stop when the leading whole answer has the majority with confidence tau (Aggarwal et al., arXiv:2305.11860)."""
    from assay.decode.tmafc.vote import _confidence

    counts: Counter[str] = Counter()
    n = min(settings.n_max, len(record.samples))
    for number, key in enumerate(_keys(record, n), start=1):
        if key is not None:
            counts[key] += 1
        (_, c1), (_, c2) = [*counts.most_common(2), ("", 0), ("", 0)][:2]
        if _confidence(c1, c2, 1.0, 1.0) > settings.tau:
            return _whole(record, number)
    return _whole(record, n)


def early_stopping(record: Recorded, settings: Settings) -> Outcome:
    """Draw windows of samples and stop after one whose whole answers are all equal (Li et al., arXiv:2401.10480)."""
    n = min(settings.n_max, len(record.samples))
    keys = _keys(record, n)
    for start in range(0, n - settings.window + 1, settings.window):
        window = set(keys[start : start + settings.window])
        if len(window) == 1 and None not in window:
            return _whole(record, start + settings.window)
    return _whole(record, n)


def fractal(record: Recorded, settings: Settings, prior: Prior = Prior(), category: str = "") -> Outcome:  # noqa: B008
    """Vote by component; only open components are read from the next sample (Algorithm 1).

    The recorded samples were drawn without the settled components as context, so what a live model gains or loses by
    seeing them does not show here.
    """
    drawn = iter(enumerate(record.samples))
    shares: list[float] = []

    def sample(pending: tuple[str, ...], resolved: dict[str, Any], n: int) -> list[Sample | None]:
        index, found = next(drawn)
        shares.append(_tokens(record, index + 1, index) * _share(found, pending, record.components))
        return [found]

    n_max = min(settings.n_max, len(record.samples))
    vote = fractal_consistency(
        record.components, sample, prior, tau=settings.tau, n_max=n_max, min_samples=min(2, n_max)
    )
    return Outcome(vote.answer, vote.n_samples, vote.n_requests, sum(shares), category, prior)
