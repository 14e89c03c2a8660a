"""Was this data set used? DataGuard beside one-feature tests, membership inference and dataset inference.

Main part: networks trained on a quarter, a half, all or none of a target data set (handwritten digits, or a table of
yours), so that the truth is known. `unrelated` asks each test about models that never saw the target: one model a case.
`features` takes the method apart. `language` does the main part's work with a small language model that was tuned on
passages of the Python documentation, `smollm2` with SmolLM2-135M.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay._core.seeds import child_seed
from assay.audit.dataguard.features import CLASS_FEATURES
from assay.audit.dataguard.judging import Evidence, Settings, judge
from assay.bench import Arm, Case, Claim, Data, Metric, Trial
from assay.trials.audit.dataguard import language
from assay.trials.audit.dataguard.arms import (
    Answer,
    Suspect,
    adjusted_loss,
    adjusted_sum,
    dataguard,
    dataset_inference,
    loss_test,
    membership_attack,
    plain_multivariate,
)
from assay.trials.audit.dataguard.worlds import Table, World, digits, made_worlds, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from assay.bench.spec import Parameter, Scale

ALPHA = 0.01
FRACTIONS = (0.0, 0.25, 0.5, 1.0)


# ---------------------------------------------------------------------------------- main part: use in whole and in part


def load(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    noise = float(params["label_noise"])
    if not 0 <= noise < 0.5:
        raise InputError(f"label_noise={noise}: expected a share from 0 and below 0.5")
    table = digits(noise) if path is None else table_of(path, str(params["label"]), noise)
    name = "handwritten digits (scikit-learn)" if path is None else Path(path).name
    return Data(f"{name}, {noise:.0%} of labels wrong", len(table.X), table, path)


def used_in_part(table: Table, n: int, seed: int) -> Iterator[Case]:
    """One split a case, with a suspect for every share."""
    for number, world in enumerate(made_worlds(table, FRACTIONS, n, child_seed(seed, "used"))):
        yield Case(f"split {number + 1}", suspects_of(world), FRACTIONS)


def suspects_of(world: World) -> list[Suspect]:
    return [
        Suspect(target, aux, world.ref_target, world.ref_aux, world.shadow_member, world.shadow_other)
        for target, aux in zip(world.target, world.aux, strict=True)
    ]


def each(judge_one: Callable[[Suspect, int], Answer], suspects: list[Suspect], seed: int) -> list[Answer]:
    return [judge_one(suspect, child_seed(seed, number)) for number, suspect in enumerate(suspects)]


def detections(case: Case, answers: list[Answer]) -> dict[str, float]:
    """Which suspects are called used, by the same rule for all arms: p below 0.01."""
    found = {rho: float(answer.p_value < ALPHA) for rho, answer in zip(case.truth, answers, strict=True)}
    errors = [abs(answer.fraction - rho) for rho, answer in zip(case.truth, answers, strict=True)]
    return {
        "found_in_part": float(np.mean([found[rho] for rho in found if 0 < rho < 1])),
        "found_quarter": found[0.25],
        "found_half": found[0.5],
        "found_whole": found[1.0],
        "false_positive": found[0.0],
        "fraction_error": float(np.mean(errors)),
    }


PART = Metric("found_in_part", better="higher", help="share of data sets used to a quarter or a half that are found")
METRICS = (
    PART,
    Metric("found_quarter", better="higher", help="found where a quarter was used"),
    Metric("found_half", better="higher", help="found where a half was used"),
    Metric("found_whole", better="higher", help="found where all was used"),
    Metric("false_positive", better="lower", help="called used though nothing was"),
    Metric("fraction_error", better="lower", help="mean error of the estimated share, over 0, ¼, ½ and 1"),
)
METHOD = Arm("DataGuard", partial(each, dataguard))
BASELINES = (
    Arm("t-test of the loss", partial(each, loss_test), baseline=True),
    Arm("membership threshold", partial(each, membership_attack), baseline=True),
    Arm("dataset inference (regression)", partial(each, dataset_inference), baseline=True),
)
ABLATIONS = (
    Arm("loss with references", partial(each, adjusted_loss), baseline=True),
    Arm("sum of features with references", partial(each, adjusted_sum), baseline=True),
    Arm("T² without references", partial(each, plain_multivariate), baseline=True),
)


# ------------------------------------------------------------------------------ unrelated: models that never saw it


class Unrelated(NamedTuple):
    """A model that never saw the target, and the inputs for the blind check."""

    suspect: Suspect
    world: World


def unrelated_models(table: Table, n: int, seed: int) -> Iterator[Case]:
    """One model a case, with a split, references and a shadow of its own."""
    for number, world in enumerate(made_worlds(table, (0.0,), n, child_seed(seed, "unrelated"))):
        yield Case(f"model {number + 1}", Unrelated(suspects_of(world)[0], world))


class Called(NamedTuple):
    """A p-value, and the verdict of a whole audit where the arm makes one."""

    p_value: float
    verdict: str | None = None


def whole_audit(given: Unrelated, seed: int) -> Called:
    """The audit as a user gets it: test, null calibration, blind check, verdict."""
    suspect, world = given
    evidence = Evidence(
        names=CLASS_FEATURES,
        target=suspect.target,
        aux=suspect.aux,
        ref_target=suspect.ref_target,
        ref_aux=suspect.ref_aux,
        inputs=(world.inputs_target, world.inputs_aux),
    )
    report = judge(evidence, Settings(alpha=ALPHA, random_state=seed))
    return Called(report.p_value, report.verdict)


def p_value_only(judge_one: Callable[[Suspect, int], Answer], given: Unrelated, seed: int) -> Called:
    return Called(judge_one(given.suspect, seed).p_value)


def alarms(case: Case, called: Called) -> dict[str, float]:
    verdict = called.verdict
    return {
        "false_positive": float(called.p_value < ALPHA),
        "p_below_5": float(called.p_value < 0.05),
        "called_used": float("nan") if verdict is None else float(verdict == "used"),
        "called_not_valid": float("nan") if verdict is None else float(verdict == "not valid"),
    }


# ---------------------------------------------------------------------------------------------------- the trial

PARAMS: Mapping[str, Parameter] = {"label_noise": 0.1, "label": "label"}

TRIAL = Trial(
    slug="dataguard",
    claim=Claim("finds use of a part of a data set more often than simpler tests at one level", metric="found_in_part"),
    load=load,
    cases=used_in_part,
    arms=(METHOD, *BASELINES),
    metrics=METRICS,
    score=detections,
    n_cases={"quick": 8, "standard": 40, "full": 200},
    params=PARAMS,
    also=(
        Trial(
            slug="dataguard",
            part="unrelated",
            claim=Claim(
                "calls unrelated models used no more often than simpler tests",
                metric="false_positive",
                margin=0.02,
                expects="no_worse",
            ),
            load=load,
            cases=unrelated_models,
            arms=(
                Arm("DataGuard", whole_audit),
                Arm("t-test of the loss", partial(p_value_only, loss_test), baseline=True),
                Arm("membership threshold", partial(p_value_only, membership_attack), baseline=True),
                Arm("dataset inference (regression)", partial(p_value_only, dataset_inference), baseline=True),
            ),
            metrics=(
                Metric("false_positive", better="lower", help="p below 0.01 though the target was not used"),
                Metric("p_below_5", target=0.05, help="p below 0.05: one in twenty where the test is exact"),
                Metric("called_used", better="lower", help="verdict of the whole audit"),
                Metric("called_not_valid", better="lower", help="the blind check saw a shift that is not there"),
            ),
            score=alarms,
            n_cases={"quick": 12, "standard": 200, "full": 1000},
            params=PARAMS,
        ),
        Trial(
            slug="dataguard",
            part="features",
            claim=Claim("finds more by all features and references than by one of the two", metric="found_in_part"),
            load=load,
            cases=used_in_part,
            arms=(METHOD, *ABLATIONS),
            metrics=METRICS,
            score=detections,
            n_cases={"quick": 8, "standard": 40, "full": 200},
            params=PARAMS,
        ),
        *(
            Trial(
                slug="dataguard",
                part=part,
                claim=Claim(f"finds that {model} was tuned on a part of a set of texts", metric="found_in_part"),
                load=load_model,
                cases=language.blocks,
                arms=(METHOD, *BASELINES, ABLATIONS[0]),
                metrics=METRICS[:-1],
                score=detections,
                n_cases={"quick": n_blocks, "standard": n_blocks, "full": n_blocks},
                takes_data=False,
            )
            for part, model, load_model, n_blocks in (
                ("language", "a small language model", language.load_small, language.N_BLOCKS["small"]),
                ("smollm2", "SmolLM2-135M", language.load_demo, language.N_BLOCKS["smollm2"]),
            )
        ),
    ),
)
