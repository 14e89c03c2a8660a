"""The trial of lucid: its cases are what they say, its arms do what their names say, and it gives a verdict."""

import dataclasses

import numpy as np
import pytest
import torch

from assay import bench
from assay._core.errors import InputError
from assay.trials.nn import lucid as trial

USUAL, FREE, LANGUAGE, SWAPPED = trial.TRIAL.also


pytestmark = pytest.mark.usefixtures("one_thread")


def world(n_keys=12, n_steps=2, is_bounded=True, mean=1.0):
    return trial.World(n_keys, n_steps, mean, is_bounded)


def test_the_truth_is_the_value_of_the_key_that_is_asked_for():
    (case,) = trial.lessons(world(), 1, seed=0)
    lesson = case.given
    for place in (0, 7):
        np.testing.assert_array_equal(case.truth[3, place], lesson.values[3, lesson.asked[3, place]])


def test_the_same_seed_gives_the_same_cases_and_a_longer_run_starts_with_them():
    short, long = (list(trial.lessons(world(), n, seed=1)) for n in (2, 4))
    for one, other in zip(short, long, strict=False):
        np.testing.assert_array_equal(one.given.keys, other.given.keys)
        assert one.given.seed == other.given.seed
    assert len({case.given.keys.tobytes() for case in long}) == 4


def test_keys_share_a_mean_and_values_do_not():
    keys, values, _ = trial.sequences(world(200), 50, np.random.default_rng(0))
    assert keys.mean() == pytest.approx(1.0, abs=5 / np.sqrt(keys.size))  # five standard errors
    assert values.mean() == pytest.approx(0.0, abs=5 / np.sqrt(values.size))


def test_an_answer_of_nothing_has_the_variance_of_the_values_as_error():
    (case,) = trial.lessons(world(64), 1, seed=0)
    assert trial.recall_error(case, 0 * case.truth)["mse"] == pytest.approx(1.0, abs=0.05)


def test_without_training_lucid_and_softmax_differ_and_start_from_the_same_weights():
    (case,) = trial.lessons(world(n_steps=0), 1, seed=0)
    answers = {kind: trial.recall(kind, (1.0,), case.given, 0) for kind in ("softmax", "lucid", "delta")}
    assert np.abs(answers["lucid"] - answers["softmax"]).max() > 1e-3
    np.testing.assert_array_equal(answers["softmax"], trial.recall("softmax", (1.0,), case.given, 5))


def test_the_temperature_that_is_kept_is_one_of_those_tried():
    (case,) = trial.lessons(world(32, 60), 1, seed=0)
    errors = [trial.recall_error(case, trial.recall("softmax", (t,), case.given, 0))["mse"] for t in trial.TEMPERATURES]
    found = trial.recall_error(case, trial.recall("softmax", trial.TEMPERATURES, case.given, 0))["mse"]
    assert found in errors
    assert len(set(errors)) == len(trial.TEMPERATURES)


def test_lucid_recalls_more_closely_than_softmax_at_the_usual_temperature():
    """As many steps as the trial takes: until about 200, LUCID is behind."""
    (case,) = trial.lessons(world(32, 300), 1, seed=0)
    lucid, softmax = (
        trial.recall_error(case, trial.recall(kind, (1.0,), case.given, 0))["mse"] for kind in ("lucid", "softmax")
    )
    assert lucid < 0.85 * softmax


def test_the_two_language_models_share_their_start(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    seen = []
    from assay.models import small

    def train(name, said, build, recipe, **options):
        with torch.random.fork_rng():
            torch.manual_seed(recipe.seed)
            seen.append((said["attention"], build()))
        return small.Small(seen[-1][1], None, np.zeros(0))

    monkeypatch.setattr(small, "train", train)
    trial.language_model.cache_clear()
    for attention in ("sdpa", "lucid"):
        trial.language_model(attention, 1, 0)
    trial.language_model.cache_clear()
    (_, one), (_, other) = seen
    assert [name for name, _ in seen] == ["sdpa", "lucid"]
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert (one.config._attn_implementation, other.config._attn_implementation) == ("sdpa", "lucid")


def test_the_main_part_gives_a_verdict(tmp_path):
    short = dataclasses.replace(trial.TRIAL, also=(), params={**trial.TRIAL.params, "keys": 16, "steps": 5})
    result = bench.run(short, cases=6, out=tmp_path / "run", progress=False)
    assert result.failures == ()
    assert result.verdict.n_cases == 6


def test_no_steps_are_refused():
    with pytest.raises(InputError, match=r"^keys=64, steps=0: expected 1 or more$"):
        trial.load_recall(True, None, "quick", {**trial.TRIAL.params, "steps": 0})


def test_without_the_demo_model_the_part_says_what_brings_it(monkeypatch, tmp_path):
    from assay import models

    def missing():
        raise InputError("run assay data get demo-lm")

    monkeypatch.setattr(models, "demo_lm", missing)
    trial.switched.cache_clear()
    with pytest.raises(InputError, match="assay data get demo-lm"):
        trial.load_trained(None, "quick", SWAPPED.params)


@pytest.mark.slow
def test_a_trained_model_is_not_itself_with_the_other_attention(tmp_path):
    result = bench.run(SWAPPED, cases=6, out=tmp_path / "run", progress=False)
    assert result.failures == ()
    method, baseline = (arm.metrics["loss"].mean for arm in result.arms)
    assert method > 1.02 * baseline
