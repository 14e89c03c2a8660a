"""One model for the logs of several systems, beside one model for each.

Main part: systems simulated as Markov chains, faults put into every second window, so that the truth is known. `real`
asks the same of ten systems' real logs (or a folder of yours): a case is one system, learned together with two others
and judged on its later lines. `bgl` takes the labels that operators gave to a supercomputer's log. `new` judges a
system of which nothing was learned. `ablation` takes the method apart. Faults are not made the way in which the method
makes its training negatives; both are disorder, repetition and strange messages, though, and that favours it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

from assay._core.errors import InputError
from assay._core.seeds import child_seed
from assay.bench import Arm, Case, Claim, Data, Metric, Trial
from assay.trials.audit.mpfm.arms import count_forest, count_pca, mpfm, next_event, one_class, per_system, pooled_svdd
from assay.trials.audit.mpfm.worlds import FAULTS, Log, logs_of, real_logs, simulated_logs, windows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale

    Array = np.ndarray[Any, np.dtype[np.float64]]

SIZE = 10
N_TRAIN, N_TEST, N_SYSTEMS = 900, 600, 3

#: Width and epochs of each scale: quick has to end within a minute.
WIDTH: dict[str, int] = {"quick": 32, "standard": 64, "full": 128}


class Setting(NamedTuple):
    """What cases are made of."""

    logs: list[Log]
    size: int
    width: int


class Truth(NamedTuple):
    """What only the score sees, for every window to judge."""

    label: np.ndarray[Any, Any]
    kind: np.ndarray[Any, Any]
    domain: np.ndarray[Any, Any]


class Given(NamedTuple):
    """What an arm sees: windows, and how wide the method's network is at this scale."""

    fleet: Any
    width: int


def by_mpfm(given: Given, seed: int, **parameters: Any) -> Array:
    return mpfm(given.fleet, seed, d=given.width, **parameters)


def by_system(judge: Any, given: Given, seed: int) -> Array:
    return per_system(judge, given.fleet, seed)


def by_pooled(given: Given, seed: int) -> Array:
    return pooled_svdd(given.fleet, seed)


METHOD = Arm("MPFM", by_mpfm)
BASELINES = (
    Arm("next event (LSTM) per system", partial(by_system, next_event), baseline=True),
    Arm("PCA of counts per system", partial(by_system, count_pca), baseline=True),
    Arm("isolation forest on counts per system", partial(by_system, count_forest), baseline=True),
    Arm("one-class SVM per system", partial(by_system, one_class), baseline=True),
    Arm("Deep SVDD, pooled", by_pooled, baseline=True),
)
ABLATIONS = (
    Arm("without flow", partial(by_mpfm, w=1.0), baseline=True),
    Arm("without structure", partial(by_mpfm, w=0.0), baseline=True),
    Arm("without private prototypes", partial(by_mpfm, private=False), baseline=True),
    Arm("without shared prototypes", partial(by_mpfm, shared=False), baseline=True),
    Arm("without mining", partial(by_mpfm, mining=False), baseline=True),
    Arm("alignment forced (MMD)", partial(by_mpfm, align="mmd"), baseline=True),
)

AUROC = Metric("auroc", better="higher", help="mean over systems: a faulty window scores above a normal one")
METRICS = (
    AUROC,
    Metric("average_precision", better="higher", help="mean over systems"),
    *(
        Metric(f"auroc_{fault.replace(' ', '_')}", better="higher", help=f"this fault alone: {fault}")
        for fault in FAULTS
    ),
)


# --------------------------------------------------------------------------------------------------------- cases


def simulate(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    setting = Setting([], int(params["size"]), WIDTH[scale])
    return Data(f"{N_SYSTEMS} systems simulated as Markov chains", N_SYSTEMS * (N_TRAIN + N_TEST), setting)


def simulated_fleets(setting: Setting, n: int, seed: int) -> Iterator[Case]:
    for number in range(n):
        drawn = child_seed(seed, "fleet", number)
        logs = simulated_logs(drawn, N_TRAIN, N_TEST, N_SYSTEMS)
        yield _case(f"fleet {number + 1}", logs, setting, drawn)


def load_real(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    logs = real_logs() if path is None else logs_of(path)
    if len(logs) < 3:
        raise InputError(f"{path}: {len(logs)} logs; the trial learns a system together with two others, so it needs 3")
    n_lines = sum(len(log.train) + len(log.test) for log in logs)
    name = "ten systems of loghub" if path is None else f"{len(logs)} logs of {Path(path).name}"
    return Data(f"{name}, faults put in", n_lines, Setting(logs, int(params["size"]), WIDTH[scale]), path)


def systems(setting: Setting, n: int, seed: int, *, as_new: bool = False) -> Iterator[Case]:
    """One system a case, learned with the next two of the list (or not learned at all, and they alone are)."""
    logs = setting.logs
    for number in range(min(n, len(logs))):
        company = [logs[(number + step) % len(logs)] for step in range(3)]
        drawn = child_seed(seed, "faults", company[0].name)
        yield _case(company[0].name, company, setting, drawn, target=company[0].name, as_new=as_new)


def load_bgl(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    logs = [log for log in real_logs() if log.name in ("BGL", "HPC", "Thunderbird")]
    return Data("BGL with operators' labels", 2_000, Setting(logs, int(params["size"]), WIDTH[scale]))


def bgl_stretches(setting: Setting, n: int, seed: int) -> Iterator[Case]:
    """Learn from the first 1,200 lines less the labelled ones, judge the later 800: one fit a case, another seed."""
    for number in range(n):
        drawn = child_seed(seed, "bgl", number)
        yield _case(f"fit {number + 1}", setting.logs, setting, drawn, target="BGL", with_faults=False)


def _case(
    name: str,
    logs: list[Log],
    setting: Setting,
    seed: int,
    *,
    target: str = "",
    as_new: bool = False,
    with_faults: bool = True,
) -> Case:
    fleet, label, kind = windows_of(
        logs, setting.size, seed, left_out=target if as_new else "", with_faults=with_faults
    )
    asked = fleet.test.domain == target if target else np.ones(len(fleet.test), bool)
    fleet = fleet._replace(test=fleet.test[asked])
    return Case(name, Given(fleet, setting.width), Truth(label[asked], kind[asked], fleet.test.domain))


def separation(case: Case, scores: Array) -> dict[str, float]:
    """AUROC and average precision, of all faults and AUROC of each, averaged over systems."""
    truth = case.truth
    found = {"auroc": _mean(truth, scores, None), "average_precision": _mean(truth, scores, None, precision=True)}
    return found | {f"auroc_{fault.replace(' ', '_')}": _mean(truth, scores, fault) for fault in FAULTS}


def _mean(truth: Truth, scores: Array, fault: str | None, *, precision: bool = False) -> float:
    measure = average_precision_score if precision else roc_auc_score
    values = []
    for name in np.unique(truth.domain):
        own = truth.domain == name
        if fault is not None:
            own &= (truth.label == 0) | (truth.kind == fault)
        if 0 < truth.label[own].sum() < own.sum():
            values.append(float(measure(truth.label[own], scores[own])))
    return float(np.mean(values)) if values else float("nan")


# ---------------------------------------------------------------------------------------------------- the trial

BETTER = "finds faulty windows with one model for all systems, better than models of each system"
UNKNOWN = "ranks the windows of a system of which it learned nothing better than pooled models of other systems"
PARAMS: Mapping[str, Parameter] = {"size": SIZE}


TRIAL = Trial(
    slug="mpfm",
    claim=Claim(BETTER, metric="auroc", margin=0.01),
    load=simulate,
    cases=simulated_fleets,
    arms=(METHOD, *BASELINES),
    metrics=METRICS,
    score=separation,
    n_cases={"quick": 6, "standard": 16, "full": 40},
    params=PARAMS,
    takes_data=False,
    also=(
        Trial(
            slug="mpfm",
            part="real",
            claim=Claim(BETTER, metric="auroc", margin=0.01),
            load=load_real,
            cases=systems,
            arms=(METHOD, *BASELINES),
            metrics=METRICS,
            score=separation,
            n_cases={"quick": 6, "standard": 10, "full": 10},
            params=PARAMS,
        ),
        Trial(
            slug="mpfm",
            part="new",
            claim=Claim(UNKNOWN, metric="auroc", margin=0.01),
            load=load_real,
            cases=partial(systems, as_new=True),
            arms=(METHOD, *BASELINES),
            metrics=METRICS,
            score=separation,
            n_cases={"quick": 1, "standard": 10, "full": 10},
            params=PARAMS,
        ),
        Trial(
            slug="mpfm",
            part="bgl",
            claim=Claim("finds windows labelled by operators better than others do", metric="auroc", margin=0.01),
            load=load_bgl,
            cases=bgl_stretches,
            arms=(METHOD, *BASELINES),
            metrics=METRICS[:2],
            score=separation,
            n_cases={"quick": 1, "standard": 6, "full": 10},
            params=PARAMS,
            takes_data=False,
        ),
        Trial(
            slug="mpfm",
            part="ablation",
            claim=Claim("finds more with all of its parts than without any of them", metric="auroc", margin=0.01),
            load=simulate,
            cases=simulated_fleets,
            arms=(METHOD, *ABLATIONS),
            metrics=METRICS,
            score=separation,
            n_cases={"quick": 1, "standard": 8, "full": 40},
            params=PARAMS,
            takes_data=False,
        ),
    ),
)
