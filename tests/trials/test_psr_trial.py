"""The trial of psr: its known truth is what it says, its study is made once, and every part gives a verdict."""

import dataclasses
import math

import numpy as np
import pytest

from assay import bench
from assay._core.errors import InputError
from assay.trials.adapt.psr import TRIAL, study, trial
from assay.trials.adapt.psr.questions import ATTRIBUTES, QUESTIONS

ANSWERS = TRIAL.also[0]

# Words of the tiny model; half of them show the attribute.
PARAMS = {"tokens": 5, "instruction": "w9 w10", "words": ",".join(f"w{n}" for n in range(0, 97, 2))}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def params(model_dir, tmp_path, monkeypatch):
    """Parameters of a study on the tiny model, kept in a fresh folder."""
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path / "cache"))
    study.language_model.cache_clear()
    study.fitted.cache_clear()
    yield {**TRIAL.params, **PARAMS, "model": str(model_dir)}
    study.language_model.cache_clear()
    study.fitted.cache_clear()


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.csv"
    path.write_text("question\n" + "".join(f"w{n} w{n + 1}\n" for n in range(20, 44)), encoding="utf-8")
    return str(path)


# ------------------------------------------------------------------------------------------------------ known truth


def test_the_truth_moves_half_of_the_positions_along_one_direction():
    (case,) = trial.interventions(6, 1, seed=0)
    moved = (case.given.after - case.given.before).reshape(-1, trial.WIDTH)
    lengths = np.linalg.norm(moved, axis=1)
    assert (lengths < 1e-4).mean() == pytest.approx(0.5, abs=0.1)
    singular = np.linalg.svd(moved, compute_uv=False)
    assert singular[1] < 1e-4 * singular[0]


def test_the_same_seed_gives_the_same_truths_and_a_longer_run_starts_with_them():
    short, long = (list(trial.interventions(3, n, seed=1)) for n in (2, 3))
    for one, other in zip(short, long, strict=False):
        np.testing.assert_array_equal(one.given.after, other.given.after)
    assert len({case.given.before.tobytes() for case in long}) == 3


def test_what_is_scored_was_not_seen():
    (case,) = trial.interventions(4, 1, seed=0)
    seen = {row.tobytes() for row in case.given.before.reshape(-1, trial.WIDTH)}
    # The first token of a sequence has a state of its own only by its word, so that some of them come again.
    fresh = [row.tobytes() not in seen for row in case.given.new[:, 1:].reshape(-1, trial.WIDTH)]
    assert all(fresh)


def test_psr_finds_the_truth_again_and_a_constant_vector_cannot():
    (case,) = trial.interventions(40, 1, seed=0)
    found = {name: trial.recovered(case, trial.recover(name, case.given, 0)) for name in ("psr", "constant")}
    assert found["psr"]["relative_rmse"] < 0.05
    assert found["psr"]["cosine"] > 0.99
    before, after, _ = case.truth
    least = np.linalg.norm(after - before - (after - before).mean((0, 1))) / np.linalg.norm(after - before)
    assert found["constant"]["relative_rmse"] >= least - 1e-6
    assert least > 0.5


def test_too_few_sequences_are_refused():
    with pytest.raises(InputError, match=r"^sequences=1: expected 2 or more$"):
        trial.load_random(None, "quick", {"sequences": 1})


# -------------------------------------------------------------------------------------------------------- the study


def test_the_study_s_questions_are_shared_by_no_two_uses():
    assert len(set(QUESTIONS)) == len(QUESTIONS) >= 48 + 8 + trial.HELD_OUT["full"]


def test_the_words_of_the_two_attributes_differ():
    pirate, butler = (set(attribute.words) for attribute in ATTRIBUTES.values())
    assert not pirate & butler


def test_the_answers_to_own_questions_gives_a_verdict(params, questions, tmp_path):
    alone = dataclasses.replace(ANSWERS, params=params)
    result = bench.run(alone, cases=6, data=questions, out=tmp_path / "run", progress=False, jobs=1)
    assert result.failures == ()
    assert result.verdict.n_cases == 6


def test_every_way_of_steering_mimics_a_held_out_answer_to_some_degree(params, questions):
    made = TRIAL.load(questions, "quick", params).value
    told = list(TRIAL.cases(made, 4, 0))
    assert len({case.id for case in told}) == 4
    for case in told:
        found = {arm.name: TRIAL.score(case, arm.run(case.given, 0))["relative_rmse"] for arm in TRIAL.arms}
        assert len(set(found.values())) == len(TRIAL.arms)
        assert all(0 < value < 10 for value in found.values())


def test_a_study_is_made_once(params, questions, monkeypatch):
    first = trial.load_study(True, False, questions, "quick", params).value
    told = list(trial.cases(first, 6, 0))

    def generated(*_, **__):
        raise AssertionError("it was kept")

    monkeypatch.setattr("assay.adapt.psr.pairs.respond", generated)
    monkeypatch.setattr("assay.adapt.psr.steering.respond", generated)
    second = trial.load_study(True, False, questions, "quick", params).value
    assert [case.given for case in trial.cases(second, 6, 0)] == [case.given for case in told]


def test_held_out_questions_were_neither_trained_on_nor_used_to_choose(params, questions):
    made = trial.load_study(False, False, questions, "quick", params).value
    n = made.setting.n_train
    assert not set(made.held_out) & {*made.setting.questions[:n], *study.development(made.setting)}
    assert len(made.held_out) == 6


def test_the_score_of_an_answer_is_its_words_its_surprise_and_its_variety():
    case = bench.Case("one", None, (("aye", "matey"), {"Aye, aye, Sir!": math.log(12.0)}))
    found = trial.strength_and_fluency(case, trial.Said("Aye, aye, Sir!"))
    assert found == pytest.approx({"perplexity": 12.0, "attribute": 0.5, "different_words": 2 / 3})


def test_an_answer_without_steering_has_the_attribute_s_base_rate_and_is_no_rival_in_fluency():
    case = bench.Case("one", trial.Told("?", {"plain": "Aye."}), (("aye", "matey"), {"Aye.": 0.1}))
    found = trial.strength_and_fluency(case, trial.answer("plain", case.given, 0))
    assert found["attribute"] == 0.5
    assert math.isnan(found["perplexity"])


def test_no_steering_answers_as_the_plain_prompt_did_when_pairs_were_made(params, questions):
    made = trial.load_study(False, False, questions, "quick", params).value
    told = study.pairs_of(made.setting, "attribute", made.held_out)
    found = study.answers_of(made.setting, "attribute", "plain", 1.0, made.held_out)
    assert found == [pair["plain_response"] for pair in told]
    assert [arm.name for arm in ANSWERS.arms][-1] == "no steering"


def test_an_empty_answer_has_no_perplexity():
    case = bench.Case("one", None, (("aye",), {"": None}))
    found = trial.strength_and_fluency(case, trial.Said(""))
    assert math.isnan(found["perplexity"])
    assert found["attribute"] == 0.0


def test_too_few_questions_are_refused(params, tmp_path):
    path = tmp_path / "few.csv"
    path.write_text("question\nw1\nw2\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"few.csv has 2 questions; expected 22 or more$"):
        trial.load_study(True, False, str(path), "quick", params)


def test_an_instruction_without_words_is_refused(params, questions):
    with pytest.raises(InputError, match=r"^-p instruction=… needs -p words=…, the words that show the attribute"):
        trial.load_study(True, False, questions, "quick", {**params, "words": " "})


@pytest.mark.parametrize("is_everywhere", [False, True])
def test_all_layers_are_steered_where_the_part_says_so(params, questions, is_everywhere):
    made = trial.load_study(False, is_everywhere, questions, "quick", params).value
    steering = study.fitted(made.setting, "attribute", "psr")
    assert steering.layers == ([0, 1] if is_everywhere else [1])
    (case,) = trial.heard(made, 1, 0)
    errors = steering.relative_rmse([case.given.pair], through=steering.layers[-1])
    assert trial.mimic("psr", case.given, 0) == pytest.approx(np.mean(list(errors.values())), rel=1e-6)


def test_the_strength_is_the_one_whose_score_is_nearest_to_the_prompt_s(params, questions):
    setting = trial.load_study(True, False, questions, "quick", params).value.setting
    shown = study.pairs_of(setting, "attribute", setting.questions[: setting.n_train])
    shown += study.pairs_of(setting, "attribute", study.development(setting))
    target = study.mean_score(setting, "attribute", [pair["response"] for pair in shown])
    tried = study.swept(setting, "attribute", "psr", study.STRENGTHS, study.development(setting))
    distances = [abs(study.mean_score(setting, "attribute", said) - target) for said in tried.values()]
    assert study.strength(setting, "attribute", "psr") == study.STRENGTHS[int(np.argmin(distances))]


def test_no_tokens_are_refused(params, questions):
    with pytest.raises(InputError, match=r"^tokens=0: expected 1 or more$"):
        trial.load_study(True, False, questions, "quick", {**params, "tokens": 0})


def test_without_the_demo_model_the_part_says_what_brings_it(monkeypatch):
    from assay import models

    def missing():
        raise InputError("run assay data get demo-lm")

    monkeypatch.setattr(models, "demo_lm", missing)
    study.language_model.cache_clear()
    study.fitted.cache_clear()
    with pytest.raises(InputError, match="assay data get demo-lm"):
        trial.load_study(True, False, None, "quick", TRIAL.params)


@pytest.mark.slow
def test_on_the_demo_model_training_mimics_the_prompt_more_closely_than_any_constant_vector():
    """On the answers it was trained on; what holds on others is the trial's to say."""
    import assay.adapt.psr as method

    model, tokenizer, _ = study.language_model("demo")
    told = method.make_pairs(
        model, tokenizer, QUESTIONS[:8], ATTRIBUTES["pirate"].instruction, max_new_tokens=24, temperature=0.7
    )
    psr, constant = (
        kind(model, tokenizer, layers=15).fit(told, downstream=False).relative_rmse(told, through=15)[15]
        for kind in (method.PSR, method.ConstantSteering)
    )
    assert psr < constant < 1
