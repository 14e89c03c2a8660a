"""Run self-consistency, its adaptive relatives and fractal consistency over samples that are already recorded.

Nothing is sampled anew: each method reads as far into the recorded samples of a question as its stopping rule says.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay.decode.tmafc.history import History
from assay.decode.tmafc.prior import CATEGORIES, Prior, rule_difficulty
from assay.decode.tmafc.vote import (
    MIN_SAMPLES,
    TAU,
    Sample,
    check_limits,
    fractal_consistency,
    leader_confidence,
    majority,
    normalised,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.decode.tmafc.recorded import Recorded

WINDOW = 5
UNIFORM = Prior()


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
    prior: Prior = UNIFORM


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
    answer = {name: majority([sample.get(name) for sample in parsed]) for name in record.components}
    return Outcome(answer, n, n * len(record.components), _tokens(record, 0, n))


def adaptive_consistency(record: Recorded, settings: Settings) -> Outcome:
    """Stop when the leading whole answer has the majority with confidence tau (Aggarwal et al., arXiv:2305.11860)."""
    counts: Counter[tuple[str | None, ...]] = Counter()
    n = min(settings.n_max, len(record.samples))
    for number, key in enumerate(_keys(record, n), start=1):
        if key is not None:
            counts[key] += 1
        (_, c1), (_, c2) = [*counts.most_common(2), ((), 0), ((), 0)][:2]
        if leader_confidence(c1, c2) > settings.tau:
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


def fractal(
    record: Recorded, settings: Settings, prior: Prior = UNIFORM, category: str = "", history: History | None = None
) -> Outcome:
    """Vote by component; only open components are read from the next sample (Algorithm 1).

    The recorded samples were drawn without the settled components as context, so what a live model gains or loses by
    seeing them does not show here. The votes are added to `history`, if one is given.
    """
    drawn = iter(enumerate(record.samples))
    tokens: list[float] = []

    def sample(pending: tuple[str, ...], resolved: dict[str, Any], n: int) -> list[Sample | None]:
        index, found = next(drawn)
        if record.tokens is not None:
            tokens.append(record.tokens[index] * _share(found, pending, record.components))
        return [found]

    n_max = min(settings.n_max, len(record.samples))
    vote = fractal_consistency(
        record.components, sample, prior, tau=settings.tau, n_max=n_max, min_samples=min(MIN_SAMPLES, n_max)
    )
    if history is not None:
        c1, c2 = vote.mean_counts
        history.append(record.question, c1 + c2, c1, category)
    paid = math.nan if record.tokens is None else math.fsum(tokens)
    return Outcome(vote.answer, vote.n_samples, vote.n_requests, paid, category, prior)


def calibrated_fractal(
    records: Sequence[Recorded],
    settings: Settings,
    history: History | None = None,
    classifier: Callable[[str], str] = rule_difficulty,
) -> list[Outcome]:
    """Fractal consistency with a prior fitted to the votes on the questions before (Algorithm 2), in their order.

    Parameters
    ----------
    records : sequence of Recorded
        A record's own `category` goes before the classifier's guess.
    settings : Settings
    history : History, optional
        Votes on earlier questions; it grows. None: a new one.
    classifier : callable
        From question to Easy, Middle or Hard.
    """
    history = History() if history is None else history
    outcomes = []
    for record in records:
        category = record.category or classifier(record.question)
        category = category if category in CATEGORIES else "Middle"
        prior = history.prior(category, without=record.question)
        outcomes.append(fractal(record, settings, prior, category, history))
    return outcomes


def is_right(record: Recorded, outcome: Outcome) -> float:
    """1 when every component has its gold value, 0 when not, NaN without a gold answer."""
    if record.gold is None:
        return math.nan
    return float(all(normalised(outcome.answer.get(name)) == normalised(value) for name, value in record.gold.items()))


def component_f1(record: Recorded, outcome: Outcome) -> float:
    """F1 of the components against the gold answer; NaN without one.

    A component with a wrong value counts against precision and recall, one without a value against recall alone.
    """
    if record.gold is None:
        return math.nan
    wanted = {name: normalised(value) for name, value in record.gold.items() if value is not None}
    given = {name: normalised(value) for name, value in outcome.answer.items() if value is not None}
    if not wanted and not given:
        return 1.0
    n_right = sum(given.get(name) == value for name, value in wanted.items())
    return 2 * n_right / (len(wanted) + len(given))


def _whole(record: Recorded, n: int) -> Outcome:
    """The most frequent whole answer among the first `n` samples; the first to appear wins a tie."""
    counts = Counter(key for key in _keys(record, n) if key is not None)
    best = counts.most_common(1)[0][0] if counts else None
    found = next((sample for sample in record.samples[:n] if _key(sample, record.components) == best), None) or {}
    answer = {name: found.get(name) for name in record.components}
    return Outcome(answer, n, n * len(record.components), _tokens(record, 0, n))


def _keys(record: Recorded, n: int) -> list[tuple[str | None, ...] | None]:
    return [_key(sample, record.components) for sample in record.samples[:n]]


def _key(sample: Sample | None, components: Sequence[str]) -> tuple[str | None, ...] | None:
    """The whole answer as one vote; None for a sample that has none of the components."""
    key = tuple(normalised(sample.get(name)) for name in components) if sample else ()
    return key if any(value is not None for value in key) else None


def _tokens(record: Recorded, start: int, stop: int) -> float:
    return math.nan if record.tokens is None else float(sum(record.tokens[start:stop]))


def _share(sample: Sample | None, pending: Sequence[str], components: Sequence[str]) -> float:
    """Part of a reply that the components `pending` take up, in characters of JSON; all of it when unparsed."""
    if not sample or len(pending) == len(components):
        return 1.0
    size = {name: len(json.dumps({name: sample.get(name)}, default=str)) for name in components}
    return sum(size[name] for name in pending) / sum(size.values())
