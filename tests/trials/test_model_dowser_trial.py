"""The trial of model-dowser: noise goes where a mask says, arms train to one loss, models are left as they were."""

import copy

import numpy as np
import pytest
import torch

from assay import bench
from assay._core.errors import InputError
from assay.trials.adapt.model_dowser import TRIAL, digits, masks, noise, task, tuning

TUNING = next(part for part in TRIAL.also if part.part == "tuning")
SETTING = {"model": "tiny", "layers": 2, "rho": 0.1, "probes": 2, "hutchinson": 1}


class Bytes:
    """Every byte is a token."""

    bos_token_id, eos_token_id, all_special_ids = None, 0, (0,)

    def __call__(self, text, **_):
        ids = [list(t.encode()) for t in ([text] if isinstance(text, str) else text)]
        return {"input_ids": ids[0] if isinstance(text, str) else ids}

    def __len__(self):
        return 256


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """A two-layer Llama over bytes in place of SmolLM2, and a cache of its own."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.1, eos_token_id=0, bos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(masks, "full_model", lambda name: (model, Bytes()))
    for module in (masks, tuning):
        monkeypatch.setattr(module, "fresh_model", lambda name: (copy.deepcopy(model), Bytes()))
    monkeypatch.setattr(noise, "full_model", lambda name: (model, Bytes()))
    masks.folder_of.cache_clear()
    masks.mask_of.cache_clear()
    yield model
    masks.folder_of.cache_clear()
    masks.mask_of.cache_clear()


def shakes(kind="uniform", n=2):
    data = noise.load(kind, None, "quick", SETTING)
    return [case.given for case in noise.cases(data.value, n, 0)]


# -------------------------------------------------------------------------------------------------------- noise


def test_every_arm_s_mask_has_its_share_and_inverted_shares_nothing_with_the_method(tiny):
    given = shakes()[0]
    found = {arm: masks.mask_of(arm, given.setting) for arm in (masks.DOWSER, masks.RANDOM, masks.REAL, masks.INVERTED)}
    assert all(mask.density() == pytest.approx(0.1, abs=0.001) for mask in found.values())
    assert found[masks.DOWSER].overlap(found[masks.INVERTED]) == 0
    assert found[masks.DOWSER].overlap(found[masks.REAL]) > 2 * found[masks.DOWSER].overlap(found[masks.RANDOM])


@pytest.mark.parametrize("kind", ["uniform", "proportional"])
def test_noise_moves_the_masked_entries_alone_by_its_size_and_is_taken_away(tiny, monkeypatch, kind):
    given = shakes(kind)[0]
    before, during = copy.deepcopy(tiny.state_dict()), {}

    def look(model, tokenizer, part):
        during.update(copy.deepcopy(model.state_dict()))

    monkeypatch.setattr("assay.models.quality.measure", look)
    noise.shaken(masks.RANDOM, given, 0)
    sizes = []
    for name, chosen in masks.mask_of(masks.RANDOM, given.setting).trainable.items():
        moved = during[name] - before[name]
        assert not moved[~chosen].any()
        scale = 0.2 * before[name].std() if kind == "uniform" else 0.7 * before[name][chosen].abs()
        sizes.append(moved[chosen] / scale)
    # Standard normal: of n values the mean square is 1 +- sqrt(2 / n).
    sizes = torch.cat(sizes)
    assert float(sizes.square().mean()) == pytest.approx(1, abs=5 * (2 / len(sizes)) ** 0.5)
    for name, value in tiny.state_dict().items():
        assert torch.equal(value, before[name])


def test_all_arms_of_a_case_see_one_window_and_cases_share_none(tiny):
    first, second = shakes()
    assert first.seed != second.seed
    assert not np.array_equal(first.part.windows, second.part.windows)


def test_the_parts_of_noise_run_and_give_a_verdict(tiny, tmp_path):
    data = noise.load("uniform", None, "quick", SETTING)
    case = next(iter(noise.cases(data.value, 1, 0)))
    found = {arm.name: noise.score(case, arm.run(case.given, 0)) for arm in TRIAL.arms}
    assert all(0 < said["kl"] < 1 for said in found.values())


def test_more_cases_than_windows_are_refused(tiny):
    data = noise.load("uniform", None, "quick", SETTING)
    with pytest.raises(InputError, match=r"^9 cases were asked for, and there are 8 windows; use a larger scale$"):
        list(noise.cases(data.value, 9, 0))


@pytest.mark.parametrize("name", ["rho", "layers", "probes", "hutchinson"])
def test_settings_out_of_range_are_refused(name):
    with pytest.raises(InputError, match=r"^-p rho=.*: expected a share between 0 and 1, and numbers from 1$"):
        masks.setting_of({**SETTING, name: 0})


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "image.png").write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(InputError, match=r"image\.png cannot be read as UTF-8 text"):
        noise.load("uniform", str(tmp_path / "image.png"), "quick", SETTING)


# ------------------------------------------------------------------------------------------------------- tuning


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("prompt,answer\n" + "".join(f"{n} is,{'even' if n % 2 == 0 else 'odd'}\n" for n in range(100)))
    return str(path)


def lesson(pairs, target=0.9, n_steps=24):
    setting = masks.setting_of(SETTING)
    return tuning.Lesson(setting, target, n_steps, pairs, 3, 0)


@pytest.mark.parametrize("arm", list(tuning.CHOICES))
def test_every_arm_learns_to_the_target_and_what_it_forgot_is_between_two_measures(tiny, pairs, monkeypatch, arm):
    # Random weights learn slowly at rates that suit a trained model.
    monkeypatch.setitem(tuning.CHOICES, arm, (0.9 if arm == tuning.DARE else 1e-3,))
    monkeypatch.setattr(tuning, "DARE_RATE", 1e-3)
    found = lesson(pairs, target=0.97, n_steps=60)
    masks.prepare(found.setting)
    before = copy.deepcopy(tiny.state_dict())
    (choice,) = tuning.CHOICES[arm]
    tuning.learn(arm, choice, found, task.examples_at(pairs), 0)
    with np.load(tuning.curve_path(found, arm, choice, 0)) as kept:
        losses = kept["losses"][:, 1]
        goal = 0.97 * losses[0]
        assert losses[-1] <= goal < losses[-2]
        share = (losses[-2] - goal) / (losses[-2] - losses[-1])
        assert float(kept["share"]) == pytest.approx(share)
        expected = (1 - share) * kept["kl before"] + share * kept["kl after"]
    said = [tuning.tuned(arm, tuning.Look(found, 0, part, 3), 0)["kl"] for part in range(3)]
    np.testing.assert_allclose(said, expected, rtol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in tiny.state_dict().items())


def test_an_arm_that_does_not_reach_the_target_says_so(tiny, pairs):
    found = lesson(pairs, target=0.01, n_steps=4)
    masks.prepare(found.setting)
    for choice in tuning.CHOICES[masks.DOWSER]:
        tuning.learn(masks.DOWSER, choice, found, task.examples_at(pairs), 0)
    with pytest.raises(
        InputError, match=r"^dowser did not bring the loss to 0\.01 of what it was in 4 steps at any rate"
    ):
        tuning.best_of(masks.DOWSER, found, 0)


def test_the_rate_that_forgot_least_on_the_tuning_windows_counts(tiny, pairs):
    found = lesson(pairs)
    low, high = tuning.CHOICES[tuning.FULL]
    for choice, tune in ((low, 0.2), (high, 0.1)):
        path = tuning.curve_path(found, tuning.FULL, choice, 0)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, tune=tune, choice=choice)
    assert tuning.best_of(tuning.FULL, found, 0)["choice"] == high


def test_a_rate_that_did_not_learn_does_not_count(tiny, pairs):
    found = lesson(pairs)
    low, high = tuning.CHOICES[tuning.FULL]
    for choice, said in ((low, {"tune": 0.2, "choice": low}), (high, {})):
        path = tuning.curve_path(found, tuning.FULL, choice, 0)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **said)
    assert tuning.best_of(tuning.FULL, found, 0)["choice"] == low


def test_quick_does_not_train_eight_models(tiny, pairs):
    with pytest.raises(InputError, match=r"^this part trains the model 16 times, .* --scale standard$"):
        tuning.load(pairs, "quick", {**SETTING, "target": 0.5, "steps": 48})


def test_the_target_out_of_range_is_refused(pairs):
    with pytest.raises(InputError, match=r"^-p target=1\.5 steps=48: expected a share of the loss between 0 and 1"):
        tuning.load(pairs, "standard", {**SETTING, "target": 1.5, "steps": 48})


def test_a_table_that_is_too_short_is_refused(tmp_path):
    path = tmp_path / "short.csv"
    path.write_text("prompt,answer\na,b\n")
    with pytest.raises(InputError, match=r"short\.csv has 1 rows; 80 or more are needed, 40 to watch the loss$"):
        task.examples_at(str(path))


def test_the_names_of_characters_are_real_and_watched_ones_are_never_trained_on():
    examples = task.unicode_names()
    assert task.Example("Character: ж\nName:", " CYRILLIC SMALL LETTER ZHE") in examples
    train, held_out = task.dealt(examples, 3)
    assert len(train) + len(held_out) == len(examples)
    assert not set(train) & set(held_out)
    assert task.dealt(examples, 4)[1] == held_out


def test_only_answers_are_learned():
    batch = task.batch_of(Bytes(), [task.Example("ab", "c"), task.Example("a", "b")])
    assert batch["labels"].tolist() == [[-100, -100, ord("c"), 0], [-100, ord("b"), 0, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]


# ------------------------------------------------------------------------------------------------------- digits


def test_lying_digits_are_the_upright_ones_turned_and_no_digit_is_in_two_parts():
    upright, lying, _ = digits.digits()["train"]
    assert np.array_equal(np.rot90(upright[0].reshape(8, 8)), lying[0].reshape(8, 8))
    assert sum(len(labels) for _, _, labels in digits.digits().values()) == 1797


@pytest.mark.parametrize("arm", [masks.DOWSER, tuning.FULL, masks.RANDOM, masks.MAGNITUDE, masks.WANDA])
def test_every_arm_learns_lying_digits_and_leaves_the_reader_as_it_was(arm):
    lesson = digits.Lesson(3, 0.2, 100, 40)
    reader = digits.reader(3, 100)
    before = copy.deepcopy(reader.state_dict())
    start = digits.accuracies(reader, "test")
    found = digits.taught(arm, lesson, 0)
    assert found["new"] > start["new"] + 0.1
    assert all(torch.equal(value, before[name]) for name, value in reader.state_dict().items())


def test_the_harmonic_mean_is_low_where_either_share_is():
    assert digits.harmonic(1.0, 0.5) == pytest.approx(2 / 3)
    assert digits.harmonic(0.0, 0.0) == 0.0


@pytest.mark.slow
def test_the_noise_parts_run_on_the_demo_model(tmp_path):
    result = bench.run(TRIAL, cases=2, jobs=1, out=tmp_path / "run", progress=False)
    assert "Model-Dowser" in result.summary()
