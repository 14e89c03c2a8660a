"""The trial of tmafc: its sources of samples, what the arms may see, and that it runs."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import beta

from assay import bench
from assay._core.errors import InputError
from assay.decode.tmafc import Recorded, write_samples
from assay.trials.decode import tmafc, tmafc_forms
from assay.trials.decode.tmafc import MAIN, SIMULATED, SMOLLM2


def run_all(trial, data, n, seed=0):
    rows = [
        {"case": case.id, "arm": arm.name, **trial.score(case, arm.run(case.given, 0))}
        for case in trial.cases(data.value, n, seed)
        for arm in trial.arms
    ]
    return pd.DataFrame(rows).groupby("arm").mean(numeric_only=True)


@pytest.fixture(scope="module")
def digits():
    return tmafc.digits_or_file(None, "quick", MAIN[0].params)


def test_the_arms_see_no_gold_answers(digits):
    for trial, data in (
        (MAIN[0], digits),
        (SIMULATED[0], tmafc.simulation(None, "quick", {**MAIN[0].params, "questions": 5})),
    ):
        for case in trial.cases(data.value, 2, 0):
            assert all(record.gold is None for record in case.given.records)
            assert all(record.gold is not None for record in case.truth)


def test_blocks_share_no_question_and_leave_none_out(digits):
    asked = [record.question for case in tmafc.blocks(digits.value, 20, 0) for record in case.given.records]
    assert sorted(asked) == sorted(record.question for record in digits.value.records)


def test_the_history_of_a_block_holds_no_question_of_it(digits):
    for case in tmafc.blocks(digits.value, 4, 0):
        past = {record.question for record in case.given.past}
        assert past
        assert not past & {record.question for record in case.given.records}


def test_every_image_of_a_digit_is_read_in_one_row_only(digits):
    n_digits = sum(len(record.components) for record in digits.value.records)
    assert n_digits <= 0.7 * 1797 + 1


def test_on_the_simulated_model_voting_by_component_saves_samples_and_mistakes():
    data = tmafc.simulation(None, "quick", {**MAIN[0].params, "questions": 100})
    parts, rivals = run_all(SIMULATED[2], data, 3), run_all(SIMULATED[0], data, 3)
    uniform, whole = parts.loc["FC, uniform prior"], rivals.loc["adaptive-consistency"]
    assert uniform["samples"] < 0.85 * whole["samples"]
    assert uniform["accuracy"] > whole["accuracy"]
    assert parts.loc["FC + ASCC", "samples"] < uniform["samples"]


def test_the_simulated_model_is_as_accurate_as_it_says():
    # Mean of clip(N(0.95 - 0.45 d, 0.08), 0.3, 0.99) with d ~ Beta(2, 2), by drawing it without the code of the trial.
    rng = np.random.default_rng(1)
    expected = np.clip(rng.normal(0.95 - 0.45 * rng.beta(2, 2, 200_000), 0.08), 0.3, 0.99).mean()
    rng = np.random.default_rng(0)
    records = [tmafc.simulated_question(rng, number, 40) for number in range(600)]
    right = [value == "right" for record in records for sample in record.samples for value in sample.values()]
    # 600 questions with a standard deviation of about 0.13 between them: a standard error of 0.006.
    assert np.mean(right) == pytest.approx(expected, abs=0.02)


def test_a_third_of_the_simulated_questions_is_in_each_category():
    rng = np.random.default_rng(0)
    labels = [tmafc.simulated_question(rng, number, 1).category for number in range(3000)]
    # Standard error of a share: sqrt(2/9 / 3000) = 0.0086
    assert [labels.count(label) / 3000 for label in ("Easy", "Middle", "Hard")] == pytest.approx([1 / 3] * 3, abs=0.035)


def test_the_limits_of_the_thirds_are_those_of_a_beta_distribution():
    assert beta(2, 2).cdf(tmafc.THIRDS) == pytest.approx([1 / 3, 2 / 3], abs=1e-4)


def test_forms_are_always_the_same_and_more_of_them_begin_with_the_fewer():
    assert tmafc_forms.forms(24)[:8] == tmafc_forms.forms(8)
    assert len({task.question for task in tmafc_forms.forms(24)}) == 24


def test_the_facts_of_a_form_stand_in_it():
    for task in tmafc_forms.forms(40):
        assert all(str(value) in task.question for value in task.gold.values())


def test_quick_without_recorded_forms_says_what_records_them(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"holds the answers to 0 forms .* `assay try tmafc --scale standard` records"):
        tmafc_forms.filled_forms(None, "quick", SMOLLM2[0].params)


def test_recorded_forms_need_no_model(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    rng = np.random.default_rng(0)

    def stands_in(self, prompt, n):
        return [f'{{"name": "{pick}"}}' for pick in rng.choice(["Ann", "Bo"], n)]

    with monkeypatch.context() as patch:
        patch.setattr(tmafc_forms.DemoSampler, "__call__", stands_in)
        first = tmafc_forms.filled_forms(None, "standard", SMOLLM2[0].params)
    assert tmafc_forms.filled_forms(None, "quick", SMOLLM2[0].params).value == first.value
    assert first.name == "SmolLM2-135M-Instruct fills in 24 forms, 40 samples each"


def user_samples(tmp_path, gold):
    rng = np.random.default_rng(0)
    records = []
    for number in range(40):
        values = rng.choice([1, 2], p=[0.8, 0.2], size=(20, 2)).tolist()
        samples = tuple({"a": a, "b": b} for a, b in values)
        records.append(Recorded(f"question {number}?", ("a", "b"), samples, {"a": 1, "b": 1} if gold else None))
    write_samples(records, tmp_path / "samples.jsonl")
    return str(tmp_path / "samples.jsonl")


def test_recorded_samples_of_a_user_are_tried(tmp_path):
    data = tmafc.digits_or_file(user_samples(tmp_path, gold=True), "quick", MAIN[0].params)
    found = run_all(MAIN[0], data, 10)
    assert (data.n, found.loc["self-consistency", "samples"]) == (40, 20)
    assert found.loc["FC + ASCC", "samples"] < 20


def test_without_gold_answers_right_means_as_all_samples_would_answer(tmp_path):
    data = tmafc.digits_or_file(user_samples(tmp_path, gold=False), "quick", MAIN[0].params)
    assert "no gold answers" in data.name
    assert run_all(MAIN[2], data, 10).loc["SC by component", "accuracy"] == 1


def test_the_trial_runs_in_the_bench_and_fewer_samples_are_found(tmp_path):
    trial = replace(SIMULATED[0], params={**SIMULATED[0].params, "questions": 20})
    result = bench.run(trial, cases=8, jobs=1, out=tmp_path / "run", progress=False)
    assert not result.failures
    assert result.verdict.outcome == "better"
    assert result.claim.outcome == "supported"
