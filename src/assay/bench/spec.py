"""What a trial is: a claim, cases, arms and metrics, all declared before anything runs.

An arm never sees the truth of a case: it gets what a user would have (`Case.given`) and a seed, and what it returns
is scored by the trial. Only the arm's own work is timed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Scale = Literal["quick", "standard", "full"]
SCALES: tuple[Scale, ...] = ("quick", "standard", "full")

Parameter = str | int | float | bool

#: Columns of ``cases.parquet`` that no metric may have the name of.
TAKEN = ("case", "arm", "baseline", "error")


@dataclass(frozen=True)
class Metric:
    """A number that each arm gets on each case.

    Parameters
    ----------
    name : str
        Key in the mapping that `Trial.score` returns. The names ``wall_s``, ``cpu_s`` and ``peak_mib`` are filled by
        the bench with what it measured around the arm: that is how a claim about time or memory is declared.
    better : "higher" or "lower", optional
        Which way is better. Exactly one of `better` and `target` is given.
    target : float, optional
        Closer to this value is better (0.95 for the coverage of an interval).
    scale : "linear" or "log"
        On the log scale arms are compared by ratios and averaged by geometric means (time, perplexity);
        its values are positive.
    unit : str
        Printed behind the value, such as ``"nats"``.
    help : str
        One line for people: what the number says.
    """

    name: str
    better: Literal["higher", "lower"] | None = None
    target: float | None = None
    scale: Literal["linear", "log"] = "linear"
    unit: str = ""
    help: str = ""

    def __post_init__(self) -> None:
        if self.name in TAKEN:
            raise ValueError(f"metric {self.name!r}: the table of cases has a column of that name; choose another")
        if (self.better is None) == (self.target is None):
            raise ValueError(f"metric {self.name!r}: give exactly one of better= and target=")
        if self.target is not None and self.scale == "log":
            raise ValueError(f"metric {self.name!r}: a target is compared on the linear scale")


@dataclass(frozen=True)
class Claim:
    """What the paper says, as a sentence about one metric that a trial can support or contradict.

    Parameters
    ----------
    text : str
        Completes "The method …".
    metric : str
        Name of the primary metric.
    margin : float
        Differences within ±margin do not matter in practice (on the log scale: within a factor of 1 + margin).
        Zero: every difference matters.
    expects : "better" or "no_worse"
        "better": supported when the method beats the strongest baseline. "no_worse": supported when it is better
        or equivalent (needs a margin above zero).
    """

    text: str
    metric: str
    margin: float = 0.0
    expects: Literal["better", "no_worse"] = "better"

    def __post_init__(self) -> None:
        if self.margin < 0:
            raise ValueError("margin must not be negative")
        if self.expects == "no_worse" and self.margin == 0:
            raise ValueError('a "no_worse" claim needs a margin above zero')


@dataclass(frozen=True)
class Case:
    """One paired unit: every arm runs on it.

    Parameters
    ----------
    id : str
        Unique within a run, and the same in every run with the same data and seed.
    given : Any
        What an arm may see. Must pickle.
    truth : Any
        What only `Trial.score` sees. Must pickle.
    """

    id: str
    given: Any
    truth: Any = None


@dataclass(frozen=True)
class Arm:
    """A way to do the job: the method, or a baseline.

    Parameters
    ----------
    name : str
        As a person would say it: ``"judge-blind Bradley–Terry (choix)"``.
    run : callable
        ``run(given, seed)`` returns any output that pickles. A module-level function.
    baseline : bool
        Exactly one arm of a trial is the method; all others are baselines.
    """

    name: str
    run: Callable[[Any, int], Any]
    baseline: bool = False


@dataclass(frozen=True)
class Data:
    """What `Trial.load` returns: the data and how to speak of it.

    Parameters
    ----------
    name : str
        For people: ``"20 judges on MT-Bench (simulated)"``.
    n : int
        Number of records.
    value : Any
        What `Trial.cases` gets.
    path : str, optional
        The file or folder that was read; its SHA-256 goes into the result.
    """

    name: str
    n: int
    value: Any
    path: str | None = None


@dataclass(frozen=True)
class Trial:
    """A method beside its baselines, on paired cases.

    Parameters
    ----------
    slug : str
        The method's slug in the catalog.
    claim : Claim
    load : callable
        ``load(path, scale, params)`` returns `Data`. `path` is None for the embedded example.
    cases : callable
        ``cases(data, n, seed)`` yields `n` cases; data is ``Data.value``. Deterministic in (data, n, seed), and
        with the same seed the first cases of a longer run are the cases of a shorter one where that is possible.
    arms : sequence of Arm
    metrics : sequence of Metric
    score : callable
        ``score(case, output)`` returns a mapping with a value for every metric (NaN: does not apply here).
    n_cases : mapping of scale to int
        How many cases each scale runs.
    params : mapping of name to default
        What ``-p name=value`` may set; a value is converted to the type of its default.
    takes_data : bool
        Whether ``--data`` makes sense; a simulated part says False and is left out when a user brings data.
    part : str
        Empty for the main trial of a method; a short name for a further part.
    also : sequence of Trial
        Further parts (for example the same claim on simulated data with known truth). The verdict of the main trial
        is the method's verdict; each part has a verdict of its own.
    tags : frozenset of str
        ``"tour"`` puts the trial into ``assay tour``.
    threads : int
        Threads that an arm may use; an executor runs ``cores // threads`` cases at a time.
    pictures : callable, optional
        ``pictures(data, seed)`` yields pairs of a title and a piece of HTML that the report shows beside the numbers,
        in a frame without scripts. It is called once, when every case is finished and the result is on disk.
    """

    slug: str
    claim: Claim
    load: Callable[[str | None, Scale, Mapping[str, Parameter]], Data]
    cases: Callable[[Any, int, int], Iterable[Case]]
    arms: tuple[Arm, ...]
    metrics: tuple[Metric, ...]
    score: Callable[[Case, Any], Mapping[str, float]]
    n_cases: Mapping[Scale, int]
    params: Mapping[str, Parameter] = field(default_factory=dict)
    takes_data: bool = True
    part: str = ""
    also: tuple[Trial, ...] = ()
    tags: frozenset[str] = frozenset()
    threads: int = 1
    pictures: Callable[[Any, int], Iterable[tuple[str, str]]] | None = None

    def __post_init__(self) -> None:
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names):
            raise ValueError(f"trial {self.slug!r}: two arms have the same name")
        if sum(not arm.baseline for arm in self.arms) != 1 or len(self.arms) < 2:
            raise ValueError(f"trial {self.slug!r}: exactly one arm is the method, and there is at least one baseline")
        if self.claim.metric not in {metric.name for metric in self.metrics}:
            raise ValueError(f"trial {self.slug!r}: the claim's metric {self.claim.metric!r} is not among its metrics")
        if self.primary.target is not None:
            raise ValueError(f"trial {self.slug!r}: the primary metric needs a direction, not a target")
        if set(self.n_cases) != set(SCALES):
            raise ValueError(f"trial {self.slug!r}: n_cases needs a number for each of {', '.join(SCALES)}")

    @property
    def primary(self) -> Metric:
        """The metric that the claim and the verdict are about."""
        return next(metric for metric in self.metrics if metric.name == self.claim.metric)

    @property
    def method(self) -> Arm:
        """The arm that is not a baseline."""
        return next(arm for arm in self.arms if not arm.baseline)

    @property
    def baselines(self) -> tuple[Arm, ...]:
        """All other arms, in the order in which they were declared."""
        return tuple(arm for arm in self.arms if arm.baseline)
