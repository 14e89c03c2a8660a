"""Vote per component of an answer, and ask again only for the components whose vote is still open (Algorithm 1)."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import betaincc

from assay._core.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Sample = Mapping[str, Any]
SampleFunction = Callable[[tuple[str, ...], dict[str, Any], int], Sequence[Sample | None]]
Stopping = Literal["all", "geometric_mean"]

TAU = 0.95
N_MAX = 50
MIN_SAMPLES = 2
#: Threshold on the geometric mean of the confidences (stopping="geometric_mean").
GEOMETRIC_MEAN = 0.9
FINAL_ANSWER = "final_answer"


def normalised(value: Any) -> str | None:
    r"""The text under which `value` is counted: two values are the same vote when this is the same.

    Texts are stripped and their newlines become spaces; everything else becomes JSON with sorted keys, so that
    ``12`` and ``"12"`` are one vote. None stays None: a missing value is no vote.

    Examples
    --------
    >>> normalised(" 12\n"), normalised(12), normalised(12.0)
    ('12', '12', '12')
    >>> normalised({"b": 1, "a": 2})
    '{"a": 2, "b": 1}'
    """
    if value is None:
        return None
    if type(value) is int:
        return str(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    except RecursionError:
        return None  # a thousand brackets in each other are no answer
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\n", " ").strip()


def beta_confidence(c1: ArrayLike, c2: ArrayLike, alpha0: float = 1.0, beta0: float = 1.0) -> NDArray[np.float64]:
    """Probability that the leading value has the majority (eq. 1).

    p1 ~ Beta(alpha0 + c1, beta0 + c2); the confidence is P(p1 > 1/2), and 0 where there is no vote yet.

    Parameters
    ----------
    c1, c2 : array-like of int
        Votes of the leading value and of the runner-up; broadcast against each other.
    alpha0, beta0 : float
        The prior, above 0.

    Returns
    -------
    ndarray of float64
        A 0-d array for scalars.

    Raises
    ------
    InputError
        A negative count, or a prior that is not above 0.

    Examples
    --------
    >>> beta_confidence([1, 2, 3, 4], 0)
    array([0.75   , 0.875  , 0.9375 , 0.96875])
    """
    first, second = np.asarray(c1, dtype=np.float64), np.asarray(c2, dtype=np.float64)
    _check_prior(alpha0, beta0)
    if (first < 0).any() or (second < 0).any():
        raise InputError("c1 and c2 count votes; a count must not be negative")
    # The survival function itself: 1 - CDF would lose the digits of a confidence near 1.
    return np.where(first > 0, betaincc(alpha0 + first, beta0 + second, 0.5), 0.0)


@lru_cache(maxsize=1 << 16)
def leader_confidence(c1: int, c2: int, alpha0: float = 1.0, beta0: float = 1.0) -> float:
    """:func:`beta_confidence` of one component, remembered: a replay asks for the same few counts again and again."""
    return float(betaincc(alpha0 + c1, beta0 + c2, 0.5)) if c1 else 0.0


@dataclass
class _Tally:
    """The votes of one component so far."""

    id: str
    counts: Counter[str] = field(default_factory=Counter)
    originals: dict[str, Any] = field(default_factory=dict)
    n_requests: int = 0
    n_missing: int = 0
    confidence: float = 0.0
    converged: bool = False

    def add(self, value: Any) -> None:
        key = normalised(value)
        if key is None:
            self.n_missing += 1
            return
        self.counts[key] += 1
        self.originals.setdefault(key, value.strip() if isinstance(value, str) else value)

    def top_two(self) -> tuple[tuple[str | None, int], tuple[str | None, int]]:
        # most_common sorts stably: of equally many votes, the value that appeared first leads.
        first, second = [*self.counts.most_common(2), (None, 0), (None, 0)][:2]
        return first, second

    def value(self) -> Any:
        leader = self.top_two()[0][0]
        return None if leader is None else self.originals[leader]

    def close(self) -> ComponentVote:
        (_, c1), (runner_up, c2) = self.top_two()
        return ComponentVote(
            id=self.id,
            value=self.value(),
            count=c1,
            runner_up=None if runner_up is None else self.originals[runner_up],
            runner_up_count=c2,
            confidence=self.confidence,
            converged=self.converged,
            n_requests=self.n_requests,
            n_missing=self.n_missing,
        )


@dataclass(frozen=True)
class ComponentVote:
    """How the vote on one component ended.

    Parameters
    ----------
    id : str
    value : Any
        The leading value, as it first appeared; None when no sample had one.
    count, runner_up_count : int
        Votes of the leading value and of the runner-up (c1, c2).
    runner_up : Any
    confidence : float
        Of eq. 1, when the component was last asked for.
    converged : bool
    n_requests : int
        How often the model was asked for this component.
    n_missing : int
        How many of these replies had no value for it.
    """

    id: str
    value: Any
    count: int
    runner_up: Any
    runner_up_count: int
    confidence: float
    converged: bool
    n_requests: int
    n_missing: int


@dataclass(frozen=True)
class FractalVote:
    """What :func:`fractal_consistency` found.

    Parameters
    ----------
    components : tuple of ComponentVote
        In the order in which they were given.
    n_samples : int
        Samples drawn, whether they could be parsed or not: what is paid for.
    n_unused : int
        Samples of the last batch that came after everything was settled (0 when `batch_rounds` is 1).
    n_unparsed : int
        Samples without a JSON object.
    samples : tuple of (mapping or None)
        The samples that were counted, in order.
    """

    components: tuple[ComponentVote, ...]
    n_samples: int
    n_unused: int
    n_unparsed: int
    samples: tuple[Sample | None, ...]

    @property
    def answer(self) -> dict[str, Any]:
        """The leading value of every component."""
        return {vote.id: vote.value for vote in self.components}

    @property
    def converged(self) -> bool:
        """Whether every component passed the threshold."""
        return all(vote.converged for vote in self.components)

    @property
    def n_requests(self) -> int:
        """Requests for a component, summed over components."""
        return sum(vote.n_requests for vote in self.components)

    @property
    def mean_counts(self) -> tuple[float, float]:
        """Mean of c1 and mean of c2 over the components."""
        n = len(self.components)
        return sum(v.count for v in self.components) / n, sum(v.runner_up_count for v in self.components) / n


def fractal_consistency(
    components: Sequence[str],
    sample_fn: SampleFunction,
    prior: tuple[float, float] = (1.0, 1.0),
    *,
    tau: float = TAU,
    n_max: int = N_MAX,
    min_samples: int = MIN_SAMPLES,
    stopping: Stopping = "all",
    batch_rounds: int = 1,
    always: Sequence[str] = (),
) -> FractalVote:
    """Sample until the vote on every component is settled (Algorithm 1).

    Parameters
    ----------
    components : sequence of str
        Names of the parts of an answer.
    sample_fn : callable
        ``sample_fn(pending, resolved, n)`` asks the model `n` times for the components `pending`, with the values
        `resolved` as given, and returns `n` mappings from component to value (None for a reply that could not be
        parsed; a component that is absent or None is a missing value).
    prior : (float, float)
        alpha0 and beta0 of eq. 1, such as :func:`fit_beta_prior` gives.
    tau : float
        A component is settled when its confidence is above `tau`, in (0.5, 1).
    n_max : int
        At most so many samples.
    min_samples : int
        A component needs at least so many values before it may be settled.
    stopping : "all" or "geometric_mean"
        Stop when every component is settled; or already when the geometric mean of the confidences is 0.9 or more.
    batch_rounds : int
        Draw so many samples at once, for a GPU that likes batches. The last batch may hold samples that nobody
        needed; they are counted in `n_unused`.
    always : sequence of str
        Components that are asked for in every round, settled or not. Their settled value stays.

    Returns
    -------
    FractalVote

    Raises
    ------
    InputError
        A parameter out of its range, no or repeated components, or a sampler that returns another number of samples.

    Examples
    --------
    Two fields of an invoice; every reply is right, so four rounds are enough under the uniform prior.

    >>> reply = {"total": 12, "currency": "EUR"}
    >>> vote = fractal_consistency(["total", "currency"], lambda pending, resolved, n: [reply] * n)
    >>> vote.answer, vote.n_samples, vote.converged
    ({'total': 12, 'currency': 'EUR'}, 4, True)
    """
    check_components(components)
    check_limits(tau, n_max, min_samples)
    _check_prior(*prior)
    if stopping not in ("all", "geometric_mean"):
        raise InputError(f"stopping is {stopping!r}; expected 'all' or 'geometric_mean'")
    if batch_rounds < 1:
        raise InputError(f"batch_rounds is {batch_rounds}; expected a whole number from 1")

    tallies = [_Tally(name) for name in components]
    samples: list[Sample | None] = []
    n_drawn = n_unparsed = 0
    while n_drawn < n_max and not _is_settled(tallies, stopping, len(samples) >= min_samples):
        asked = [tally for tally in tallies if not tally.converged or tally.id in always]
        resolved = {tally.id: tally.value() for tally in tallies if tally.converged and tally.id not in always}
        n = min(batch_rounds, n_max - n_drawn)
        batch = sample_fn(tuple(tally.id for tally in asked), resolved, n)
        if len(batch) != n:
            raise InputError(f"the sampler returned {len(batch)} samples where {n} were asked for; it must return all")
        n_drawn += n
        n_unparsed += sum(sample is None for sample in batch)
        for tally in asked:
            tally.n_requests += n
        for sample in batch:
            if _is_settled(tallies, stopping, len(samples) >= min_samples):
                break
            samples.append(sample)
            _count(sample or {}, asked, prior, tau, min_samples)
    return FractalVote(
        components=tuple(tally.close() for tally in tallies),
        n_samples=n_drawn,
        n_unused=n_drawn - len(samples),
        n_unparsed=n_unparsed,
        samples=tuple(samples),
    )


def _count(sample: Sample, asked: list[_Tally], prior: tuple[float, float], tau: float, min_samples: int) -> None:
    for tally in asked:
        if tally.converged:
            continue
        tally.add(sample.get(tally.id))
        (_, c1), (_, c2) = tally.top_two()
        tally.confidence = leader_confidence(c1, c2, *prior)
        tally.converged = tally.confidence > tau and tally.counts.total() >= min_samples


def _is_settled(tallies: list[_Tally], stopping: Stopping, has_minimum: bool) -> bool:
    if stopping == "geometric_mean" and has_minimum:
        mean_log = sum(math.log(max(tally.confidence, 1e-9)) for tally in tallies) / len(tallies)
        if math.exp(mean_log) >= GEOMETRIC_MEAN:
            return True
    return all(tally.converged for tally in tallies)


def agreeing_answer(vote: FractalVote, answer: str = FINAL_ANSWER) -> Any:
    """The final answer of a task with anchors: the majority among the samples that agree with every settled anchor.

    An anchor that a sample was not asked for, because it was settled by then, counts as agreeing. When no sample
    agrees, the majority over all.

    Parameters
    ----------
    vote : FractalVote
        Whose components are the anchors and `answer`.
    answer : str
        The component that holds the final answer.

    Examples
    --------
    >>> replies = iter([{"a": 1, "final_answer": 9}] + [{"a": 2, "final_answer": 8}] * 5)
    >>> vote = fractal_consistency(["a", "final_answer"], lambda pending, resolved, n: [next(replies)], n_max=6)
    >>> agreeing_answer(vote)
    8
    """
    settled = {v.id: normalised(v.value) for v in vote.components if v.converged and v.id != answer}
    parsed = [sample for sample in vote.samples if sample is not None and sample.get(answer) is not None]
    agreeing = [s for s in parsed if all(normalised(s.get(key)) in (None, value) for key, value in settled.items())]
    return majority([sample[answer] for sample in agreeing or parsed])


def majority(values: Iterable[Any]) -> Any:
    """The most frequent value, as it first appeared; of equally frequent ones the first. None without a value."""
    tally = _Tally("")
    for value in values:
        tally.add(value)
    return tally.value()


def check_components(components: Sequence[str]) -> None:
    """Refuse an answer without components, and two components of the same name."""
    if not components:
        raise InputError("the schema has no keys; name at least one component of an answer")
    repeated = [name for name, count in Counter(components).items() if count > 1]
    if repeated:
        raise InputError(f"the component {repeated[0]!r} is named twice; every component needs a name of its own")


def check_limits(tau: float, n_max: int, min_samples: int = MIN_SAMPLES) -> None:
    """Refuse a threshold outside (0.5, 1) and limits that contradict each other."""
    if not 0.5 < tau < 1:
        raise InputError(f"tau is {tau!r}; expected a confidence above 0.5 and below 1")
    if min_samples < 1:
        raise InputError(f"min_samples is {min_samples}; expected a whole number from 1")
    if n_max < min_samples:
        raise InputError(f"n_max is {n_max} and min_samples is {min_samples}; n_max must not be smaller")


def _check_prior(alpha0: float, beta0: float) -> None:
    if not (0 < alpha0 < math.inf and 0 < beta0 < math.inf):
        raise InputError(f"the prior is ({alpha0!r}, {beta0!r}); expected two finite numbers above 0")
