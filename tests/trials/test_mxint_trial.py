"""The trial of mxint: its cases are what they say, its arms do what their names say, and it gives a verdict."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from assay import bench
from assay._core.errors import InputError
from assay.trials.compress import mxint as trial

pytestmark = pytest.mark.usefixtures("one_thread")


FOUR_BIT, RANDOM, TRAINING, POINTS = trial.TRIAL.also


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A model of two layers in place of the demo model, which asks the fixed text in a vocabulary of 97."""
    from transformers import LlamaConfig, LlamaForCausalLM

    class Tokenizer:
        bos_token_id = None

        def __call__(self, text, **options):
            if isinstance(text, list):
                return {"input_ids": [self(part)["input_ids"] for part in text]}
            return {"input_ids": [sum(word.encode()) % 97 for word in text.split()]}

        def __len__(self):
            return 97

    def fresh_model(name):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.3,
        )  # fmt: skip
        return LlamaForCausalLM(config).eval(), Tokenizer()

    monkeypatch.setenv("ASSAY_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(trial, "fresh_model", fresh_model)
    for made in (trial.cast_model, trial.torchao_model):
        made.cache_clear()
    yield trial.Text("tiny", trial.text_of(None), 32, 2)
    for made in (trial.cast_model, trial.torchao_model):
        made.cache_clear()


def test_cases_share_no_window_and_a_longer_run_starts_with_a_shorter_one(tiny):
    long, short = list(trial.windows(tiny, 9, seed=1)), list(trial.windows(tiny, 4, seed=1))
    assert [case.id for case in long[:4]] == [case.id for case in short]
    for first, second in zip(short, long, strict=False):
        np.testing.assert_array_equal(first.given.part.windows, second.given.part.windows)
        np.testing.assert_array_equal(first.given.part.choices, second.given.part.choices)
    assert len({case.given.part.windows.tobytes() for case in long}) == 9


def test_mxint8_is_closer_to_the_full_model_than_4_bits_are(tiny):
    (case,) = trial.windows(tiny, 1, seed=0)
    found = {fmt: trial.distance(case, trial.both(fmt)(case.given, 0)) for fmt in ("mxint8", "mxint4")}
    assert 0 < found["mxint8"]["kl"] < 0.1 * found["mxint4"]["kl"]
    assert set(found["mxint8"]) == {metric.name for metric in trial.TRIAL.metrics}


def test_torchao_s_int8_quantises_all_linear_layers_but_lm_head(tiny):
    pytest.importorskip("torchao")
    model, _ = trial.torchao_model("tiny")
    kinds = {name: type(m.weight.data).__name__ for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    assert kinds.pop("lm_head") == "Tensor"
    assert len(kinds) == 14
    assert set(kinds.values()) == {"Int8Tensor"}


def test_torchao_s_int8_weights_are_within_a_step_of_the_dense_ones(tiny):
    pytest.importorskip("torchao")
    dense = trial.fresh_model("tiny")[0].model.layers[0].mlp.up_proj.weight.detach()
    theirs = trial.torchao_model("tiny")[0].model.layers[0].mlp.up_proj.weight.dequantize()
    step = dense.abs().amax(1, keepdim=True) / 127
    assert 0 < float(((theirs - dense).abs() / step).max()) < 1.05  # half a step, and the largest may be clipped by one


def test_declaring_the_trial_and_the_command_does_not_load_torch():
    script = "import sys, assay.trials.compress.mxint, assay.cli.use.mxint, assay.compress.mxint as m; m.crossover"
    loaded = subprocess.run(
        [sys.executable, "-c", script + "; print('torch' in sys.modules)"], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "False"


def test_a_short_text_is_refused(tiny):
    short = tiny._replace(text="hello there " * 50)
    with pytest.raises(InputError, match=r"^the text has 100 tokens, which is 3 windows of 32; bring a longer text or"):
        list(trial.windows(short, 6, seed=0))


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


def test_the_six_operands_are_those_of_the_layer_that_trains(model_dir):
    from assay.models import load_lm
    from assay.trials.compress.mxint_points import kept, quantised

    data = POINTS.load(None, "quick", {"model": str(model_dir), "tokens": 32})
    cases = list(POINTS.cases(data.value, 3, 0))
    assert len({case.id for case in cases}) == 3
    model, _ = load_lm(model_dir)
    for case in cases:
        weight = model.get_submodule(case.id).weight.detach().numpy()
        operands = case.given
        np.testing.assert_array_equal(operands["w"], weight)
        np.testing.assert_array_equal(operands["w_back"], weight.T)
        assert operands["x"].shape == (32, weight.shape[1])
        assert operands["dy_back"].shape == (weight.shape[0], 32)
        exact, coarse = (kept(case, quantised(fmt, operands, 0)) for fmt in ("mxint8", "nvint4"))
        assert coarse["mean"] + 10 < exact["mean"]
        assert exact["kappa"] == coarse["kappa"] >= 1
