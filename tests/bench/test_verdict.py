import math
from dataclasses import replace

import numpy as np
import pytest
from toy_trial import TOY

from assay.bench import Claim, Metric, verdict
from assay.bench.worker import Row

LINEAR = replace(
    TOY,
    claim=Claim("hits more often", metric="hits"),
    metrics=(Metric("hits", better="higher"), Metric("bias", target=0.0)),
)


def rows(trial, method, rival, other=None, failing=()):
    """Rows with these values of the primary metric; `failing` are pairs of arm and case that raised."""
    values = {"mean": method, "first value": rival, "a value": rival if other is None else other}
    return [
        Row(f"case {number}", arm, error="ValueError: no")
        if (arm, number) in failing
        else Row(f"case {number}", arm, {trial.primary.name: values[arm][number], "bias": math.nan}, 1.0, 2.0, 3.0)
        for number in range(len(method))
        for arm in values
    ]


def judged(trial, *values, **options):
    return verdict.judge(trial, verdict.cases_frame(trial, rows(trial, *values, **options)))


UP = np.array([1.0, 1.2, 0.9, 1.1, 1.3, 0.8, 1.0, 1.1, 0.9, 1.0])
ZERO = np.zeros(10)


def test_the_sentence_of_a_better_method():
    found, _ = judged(LINEAR, UP, ZERO, ZERO - 1)
    low, high = found.ci_low, found.ci_high
    assert found.sentence == (
        "On hits (higher is better), mean is better than first value: a mean difference of +1.03 "
        f"(95 % interval {low:+.3g} to {high:+.3g}) over 10 cases."
    )


def test_the_sentence_of_a_ratio():
    found, _ = judged(TOY, np.full(8, 1.5), np.full(8, 3.0))
    assert found.sentence == (
        "On distance (lower is better), mean is better than first value: a mean ratio of 0.5 "
        "(95 % interval 0.5 to 0.5) over 8 cases."
    )


def test_the_sentence_names_the_unit():
    trial = replace(LINEAR, metrics=(Metric("hits", better="higher", unit="nats"), *LINEAR.metrics[1:]))
    assert "a mean difference of +1.03 nats (95 %" in judged(trial, UP, ZERO)[0].sentence


def test_the_sentence_of_too_few_cases():
    found, _ = judged(LINEAR, UP[:4], ZERO[:4])
    assert found.sentence == (
        "Too few cases to tell: on hits (higher is better), mean against first value shows a mean difference of +1.05 "
        "over 4 cases, and fewer than 6 decide nothing."
    )


def test_the_sentence_when_no_case_was_finished():
    found, _ = judged(LINEAR, UP[:2], ZERO[:2], failing={("mean", 0), ("mean", 1)})
    assert found.sentence == (
        "Too few cases to tell: on hits (higher is better), no case has a value for both mean and first value; "
        "2 of 2 cases failed."
    )


def test_the_sentence_of_equivalence_names_the_margin():
    trial = replace(LINEAR, claim=replace(LINEAR.claim, margin=0.05))
    assert judged(trial, UP / 100, ZERO)[0].sentence.startswith(
        "On hits (higher is better), mean is equivalent to first value, within ±0.05: a mean difference of +0.0103"
    )


def test_the_sentence_of_equivalence_of_ratios_names_the_factor():
    trial = replace(TOY, claim=replace(TOY.claim, margin=0.1))
    assert "within a factor of 1.1: a mean ratio of 1.05" in judged(trial, np.full(8, 2.1), np.full(8, 2.0))[0].sentence


def test_the_sentence_of_equal_arms():
    sentence = judged(LINEAR, ZERO, ZERO)[0].sentence
    assert "mean is equal to first value in every case: a mean difference of +0" in sentence


def test_the_sentence_of_an_unclear_verdict():
    sentence = judged(LINEAR, UP - UP.mean(), ZERO)[0].sentence
    assert sentence.startswith("On hits (higher is better), it is unclear whether mean differs from first value: ")


def test_an_unclear_verdict_whose_interval_leaves_out_zero_says_what_it_lacks():
    found, _ = judged(LINEAR, np.array([5.0, 4.0, 3.0, 0.1, -0.2, -0.3, -0.4, 0.5]), np.zeros(8))
    assert found.outcome == "unclear"
    assert found.ci_low > 0
    assert found.sentence.endswith(" over 8 cases; the stricter tests that a verdict needs do not agree.")


def test_one_failure_in_ten_still_decides_and_is_told():
    found, _ = judged(LINEAR, UP, ZERO, ZERO - 1, failing={("mean", 3)})
    assert (found.outcome, found.n_cases) == ("better", 9)
    assert found.sentence.endswith("over 9 cases; 1 of 10 cases failed.")


@pytest.mark.parametrize("failing", [{("mean", 3), ("mean", 4)}, {("mean", 3), ("first value", 4)}])
def test_more_failures_than_one_in_ten_make_the_verdict_unclear(failing):
    found, claim = judged(LINEAR, UP, ZERO, ZERO - 1, failing=failing)
    assert (found.outcome, claim.outcome) == ("unclear", "unclear")
    assert found.sentence.startswith("Unclear, as 2 of 10 cases failed: on hits")


def test_failures_of_a_weaker_baseline_do_not_touch_the_verdict():
    found, _ = judged(LINEAR, UP, ZERO, ZERO - 1, failing={("a value", 3), ("a value", 4)})
    assert (found.outcome, found.n_cases) == ("better", 10)


def test_the_verdict_is_against_the_strongest_baseline():
    found, _ = judged(LINEAR, UP, ZERO, UP + 1)
    assert (found.baseline, found.outcome) == ("a value", "worse")


def test_the_claim_is_repeated_as_declared():
    trial = replace(LINEAR, claim=Claim("is no worse", metric="hits", margin=2.0, expects="no_worse"))
    _, claim = judged(trial, UP, ZERO)
    assert (claim.text, claim.margin, claim.expects, claim.better, claim.outcome) == (
        *("is no worse", 2.0, "no_worse", "higher"),
        "supported",
    )


def test_arms_are_summarised_over_the_cases_that_they_finished():
    frame = verdict.cases_frame(LINEAR, rows(LINEAR, UP, ZERO, failing={("mean", 3)}))
    method, *_ = verdict.arm_summaries(LINEAR, frame)
    assert (method.n_finished, method.n_failed) == (9, 1)
    assert method.metrics["hits"].mean == pytest.approx(np.delete(UP, 3).mean())


def test_costs_are_the_median_time_and_the_highest_peak():
    times, peaks = [1.0, 2.0, 9.0], [5.0, 7.0, 6.0]
    table = [
        Row(str(number), arm.name, {"hits": 1.0, "bias": 0.0}, times[number], times[number] / 2, peaks[number])
        for number in range(3)
        for arm in LINEAR.arms
    ]
    arm = verdict.arm_summaries(LINEAR, verdict.cases_frame(LINEAR, table))[0]
    assert (arm.wall_s, arm.cpu_s, arm.peak_mib) == (2.0, 1.0, 7.0)


def test_an_arm_that_never_finished_has_no_numbers():
    frame = verdict.cases_frame(LINEAR, rows(LINEAR, UP[:1], ZERO[:1], failing={("mean", 0)}))
    arm = verdict.arm_summaries(LINEAR, frame)[0]
    assert (arm.metrics["hits"].mean, arm.wall_s, arm.cpu_s, arm.peak_mib) == (None, None, None, None)


def test_every_failure_is_listed():
    frame = verdict.cases_frame(LINEAR, rows(LINEAR, UP, ZERO, failing={("mean", 3), ("a value", 5)}))
    assert [(failure.arm, failure.case, failure.error) for failure in verdict.failures(frame)] == [
        ("mean", "case 3", "ValueError: no"),
        ("a value", "case 5", "ValueError: no"),
    ]


def test_the_table_of_cases_has_the_columns_of_the_contract():
    frame = verdict.cases_frame(LINEAR, rows(LINEAR, UP, ZERO))
    assert list(frame) == ["case", "arm", "baseline", "hits", "bias", "wall_s", "cpu_s", "peak_mib", "error"]


def test_a_measured_metric_has_one_column():
    trial = replace(
        TOY, claim=Claim("is faster", metric="wall_s"), metrics=(Metric("wall_s", better="lower", scale="log"),)
    )
    assert list(verdict.cases_frame(trial, [])) == ["case", "arm", "baseline", "wall_s", "cpu_s", "peak_mib", "error"]
