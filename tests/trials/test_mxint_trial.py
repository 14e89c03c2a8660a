"""The trial of mxint: its cases are what they say, its arms do what their names say, and it gives a verdict."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from assay import bench
from assay._core.errors import InputError
from assay.compress.mxint import top_k_kl
from assay.trials.compress import mxint as trial


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """The tensors are small: threads that wait for each other would be most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


FOUR_BIT, RANDOM, TRAINING = trial.TRIAL.also


def test_windows_do_not_overlap_and_a_longer_run_starts_with_a_shorter_one(monkeypatch):
    monkeypatch.setattr(trial, "full_model", lambda name: (None, None))
    monkeypatch.setattr(trial, "last_logits", lambda model, ids: np.tile(ids[:40].astype(float), (64, 1)))
    text = trial.Text("demo", np.arange(2000), 100)
    long, short = list(trial.windows(text, 9, seed=1)), list(trial.windows(text, 4, seed=1))
    assert [case.id for case in long[:4]] == [case.id for case in short]
    assert len(np.unique(np.concatenate([case.given.ids for case in long]))) == 900


def test_declaring_the_trial_and_the_command_does_not_load_torch():
    script = "import sys, assay.trials.compress.mxint, assay.cli.use.mxint, assay.compress.mxint as m; m.crossover"
    loaded = subprocess.run(
        [sys.executable, "-c", script + "; print('torch' in sys.modules)"], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "False"


def test_an_arm_sees_the_window_and_not_what_the_full_model_says():
    assert trial.Window._fields == ("model", "ids")


def test_the_score_is_the_divergence_over_the_reference_s_top_tokens():
    rng = np.random.default_rng(0)
    reference, seen = rng.standard_normal((2, 64, 100)).astype(np.float32)
    ids = rng.integers(100, size=128)
    found = trial.distance(bench.Case("c", None, (ids, trial.top_logits(reference))), seen)
    expected = top_k_kl(torch.from_numpy(reference), torch.from_numpy(seen)).mean()
    assert found["kl"] == pytest.approx(float(expected), rel=1e-6)
    assert found["same_token"] == np.mean(reference.argmax(1) == seen.argmax(1))


def test_a_short_text_is_refused(tmp_path, monkeypatch):
    class Tokenizer:
        def __call__(self, text, **options):
            return {"input_ids": list(range(len(text)))}

    monkeypatch.setattr(trial, "full_model", lambda name: (None, Tokenizer()))
    path = tmp_path / "short.txt"
    path.write_text("hello")
    with pytest.raises(InputError, match=r"short\.txt: 5 tokens give fewer than 6 windows of 96; bring a longer text$"):
        trial.load_text(str(path), "quick", trial.TRIAL.params)


def test_a_window_shorter_than_what_is_scored_is_refused():
    with pytest.raises(InputError, match=r"^-p tokens=64: a window needs more than the 64 tokens that are scored$"):
        trial.load_text(None, "quick", {"model": "demo", "tokens": 64})


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "image.png"
    path.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(InputError, match=r"image\.png cannot be read as UTF-8 text"):
        trial.text_of(str(path))


def test_random_tensors_are_independent_draws_with_one_loud_channel_in_64():
    first, second = trial.random_tensors(trial.Kind(400, 20.0), 2, seed=0)
    loud = first.given.std(0) > 5
    assert loud.sum() == 4
    assert abs(np.corrcoef(first.given.ravel(), second.given.ravel())[0, 1]) < 0.1


def test_the_random_part_gives_a_verdict(tmp_path):
    result = bench.run(RANDOM, cases=6, params={"rows": 64}, jobs=1, out=tmp_path / "run", progress=False)
    assert "supported" in result.summary()


def test_training_arms_share_their_start_and_their_batches():
    text = np.random.default_rng(0).integers(97, 123, 3000).astype(np.uint8)
    lesson = trial.Lesson(text, seed=4, n_steps=3)
    first, second = (trial.train(fmt, "sym", lesson, 0) for fmt in (None, "mxint8"))
    steps = max(np.abs(first[name] - second[name]).max() for name in first)
    assert 0 < steps < 3 * 3e-3  # three steps of Adam at the largest rate, and no other start


def test_training_learns_the_text():
    text = np.frombuffer(b"the cat sat on the mat. " * 1000, dtype=np.uint8)
    case = next(iter(trial.lessons((text, 25), 1, seed=0)))
    loss = trial.held_out_loss(case, trial.train("mxint8", "sym", case.given, 0))["loss"]
    assert loss < 2.0 < np.log(256)


@pytest.mark.slow
def test_the_main_part_runs_on_the_demo_model(tmp_path):
    result = bench.run(trial.TRIAL, cases=2, jobs=1, out=tmp_path / "run", progress=False)
    assert "MXINT8" in result.summary()
