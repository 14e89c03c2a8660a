"""The trial of rt-lynx: its baselines are what they say, its cases are paired and independent, a verdict comes out."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from assay import bench
from assay._core.errors import InputError
from assay.trials.compress.rt_lynx import TRIAL, baselines, diffusion, digits, language, layer

DENSE, LENGTH, LAYER, LANGUAGE = TRIAL.also


pytestmark = pytest.mark.usefixtures("one_thread")


def random_model():
    """An untrained transformer whose velocities are not all zero."""
    torch.manual_seed(0)
    model = digits.model_class()().eval().requires_grad_(False)
    for parameter in model.parameters():
        if not parameter.any():
            parameter.normal_(std=0.1)
    return model


@pytest.fixture
def untrained(monkeypatch):
    """A trial whose models are not trained, which takes no time."""
    model = random_model()
    generated, labels = torch.randn(64, 64).clamp(-1, 1), torch.arange(64) % 10
    monkeypatch.setattr(digits, "trained", lambda seed, n_steps: digits.Trained(model, generated, labels))
    monkeypatch.setattr(diffusion, "N_CALIBRATION", 2)
    return model


TASK = diffusion.Task(0, 10, seed=3, n_samples=128, n_euler=2, rank=4)

# --------------------------------------------------------------------------------------------------- baselines


def test_magnitude_pruning_keeps_the_two_largest_weights_of_four_inputs():
    weight = torch.tensor([[1.0, -3.0, 2.0, 0.5], [0.1, 0.2, -0.4, 0.3]])
    assert baselines.pruned(weight).tolist() == [[0, -3, 2, 0], [0, 0, pytest.approx(-0.4), pytest.approx(0.3)]]


def test_wanda_weighs_by_the_norms_of_the_inputs():
    weight = torch.tensor([[1.0, -3.0, 2.0, 0.5]])
    assert baselines.pruned(weight, torch.tensor([10.0, 1.0, 1.0, 10.0])).tolist() == [[1.0, 0.0, 0.0, 0.5]]


def test_wanda_s_importance_is_that_of_the_paper_on_random_input():
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(50, 16, generator=generator), torch.randn(6, 16, generator=generator)
    importance = (weight.abs() * x.norm(dim=0)).view(6, 4, 4)
    expected = importance >= importance.topk(2, dim=-1).values[..., 1:]
    from assay.compress.rt_lynx import RepairStats

    stats = RepairStats(weight)
    stats.update(x)
    found = baselines.pruned(weight, baselines.input_norms(stats)) != 0
    assert torch.equal(found, expected.view(6, 16))


def test_pruned_weights_have_torch_s_semi_structured_pattern():
    weight = baselines.pruned(torch.randn(32, 64))
    assert ((weight.view(-1, 4) != 0).sum(1) <= 2).all()


def test_the_repair_of_a_pruned_layer_is_its_least_squares():
    from assay.compress.rt_lynx import RepairStats

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 16, generator=generator, dtype=torch.float64)
    weight = torch.randn(4, 16, generator=generator, dtype=torch.float64)
    stats = RepairStats(weight)
    stats.update(x)
    sparse = baselines.pruned(weight)
    a, b = baselines.pruning_repair(stats, weight, sparse, rank=4)
    # Of full rank it is what was taken away, up to the damping of 1e-4.
    torch.testing.assert_close(b @ a, weight - sparse, rtol=0, atol=1e-3)


# --------------------------------------------------------------------------------------------------- diffusion


def test_declaring_the_trial_and_the_command_does_not_load_torch():
    script = "import sys, assay.trials.compress.rt_lynx, assay.cli.use.rt_lynx, assay.compress.rt_lynx"
    loaded = subprocess.run(
        [sys.executable, "-c", script + "; print('torch' in sys.modules)"], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "False"


def test_cases_take_turns_with_the_models_and_draw_their_own_noise():
    cases = list(diffusion.cases((2, TASK), 4, seed=0))
    assert [case.given.model_seed for case in cases] == [0, 1, 0, 1]
    assert len({case.given.seed for case in cases}) == 4
    assert [case.id for case in cases[:2]] == [case.id for case in diffusion.cases((2, TASK), 2, seed=0)]


def test_the_arms_make_projections_and_mlps_sparse_and_nothing_else(untrained):
    names = diffusion.layer_names(untrained)
    assert names == [f"blocks.{i}.{part}" for i in range(4) for part in ("qkv", "up", "down")]


@pytest.mark.parametrize("arm", ["rt-lynx", "slim", "wanda", "magnitude", "naive", "norm"])
def test_an_arm_changes_a_copy_and_draws_from_it(untrained, arm):
    before = {name: x.clone() for name, x in untrained.state_dict().items()}
    output = diffusion.draw(arm, TASK, 0)
    assert output["samples"].shape == (128, 64)
    found = diffusion.score(bench.Case("c", TASK, TASK), output)
    assert 0 < found["velocity_error"] < 1
    assert all(torch.equal(x, before[name]) for name, x in untrained.state_dict().items())


def test_the_dense_arm_is_the_model_itself(untrained):
    output = diffusion.draw("dense", TASK, 0)
    assert diffusion.score(bench.Case("c", TASK, TASK), output)["velocity_error"] == 0.0


@pytest.mark.parametrize("arm", ["magnitude", "wanda", "slim"])
def test_weights_of_the_pruned_arms_are_two_of_four(untrained, arm):
    model = diffusion.made_sparse(arm, TASK)
    for name in diffusion.layer_names(untrained):
        assert ((model.get_submodule(name).weight.view(-1, 4) != 0).sum(1) == 2).all()


def test_a_sparse_diffusion_transformer_is_saved_and_loads_with_the_same_velocities(untrained, tmp_path):
    from assay.compress.rt_lynx import load, save

    model = diffusion.made_sparse("rt-lynx", TASK)
    save(model, tmp_path)
    batch = diffusion.velocity_batch(TASK)
    with torch.no_grad():
        assert torch.equal(load(tmp_path, digits.model_class()())(*batch), model(*batch))


def test_calibration_covers_all_times():
    found = digits.Trained(None, torch.zeros(64, 64), torch.zeros(64, dtype=torch.long))
    t = torch.cat([batch[1] for batch in digits.calibration(found, 0, 16)])
    assert torch.histc(t, 10, 0, 1).min() > 50  # of 102 expected a tenth


def test_the_flow_goes_from_noise_at_zero_to_data_at_one():
    clean = torch.ones(3, 64)
    x, t, velocity = digits.noised_batch(clean, torch.Generator().manual_seed(0))
    torch.testing.assert_close(x + (1 - t[:, None]) * velocity, clean)


def test_euler_s_method_is_exact_for_a_constant_velocity():
    noise = torch.randn(5, 64)
    samples = digits.sample(lambda x, t, label: torch.full_like(x, 2.0), noise, None, 7)
    torch.testing.assert_close(samples, noise + 2.0)


def test_the_frechet_distance_of_shifted_and_scaled_samples_has_its_closed_form():
    x = np.random.default_rng(0).standard_normal((500, 6))
    scaled = 1.5 * x + 2.0
    # The same directions: |mean|² + sum of squared differences of standard deviations.
    shift = ((x.mean(0) - scaled.mean(0)) ** 2).sum()
    assert digits.frechet(x, scaled) == pytest.approx(shift + 0.25 * np.trace(np.cov(x, rowvar=False)), rel=1e-9)


def test_the_classifier_reads_the_digits():
    pixels, classes = digits.images()
    assert np.mean(digits.classifier().predict(pixels) == classes) > 0.99


def test_training_learns_and_a_resumed_one_ends_at_the_same_weights(tmp_path, monkeypatch):
    whole = digits._train(0, 6, tmp_path / "a.part")
    monkeypatch.setattr(digits.time, "monotonic", iter(range(0, 100_000, 1000)).__next__)  # a checkpoint every step

    class StoppedError(Exception):
        pass

    real = digits.noised_batch
    calls = []

    def stopping(*args):
        calls.append(1)
        if len(calls) == 4:
            raise StoppedError
        return real(*args)

    monkeypatch.setattr(digits, "noised_batch", stopping)
    with pytest.raises(StoppedError):
        digits._train(0, 6, tmp_path / "b.part")
    resumed = digits._train(0, 6, tmp_path / "b.part")
    assert len(calls) == 4 + 3
    for name, x in whole.state_dict().items():
        assert torch.equal(x, resumed.state_dict()[name]), name


def test_numbers_out_of_range_are_refused():
    with pytest.raises(InputError, match=r"^-p models=2 -p samples=20 -p rank=16 -p train=1200: expected 1 model, 128"):
        diffusion.load(None, "quick", {**TRIAL.params, "samples": 20})


# ------------------------------------------------------------------------------------------------------ a layer


def test_the_layer_part_gives_a_verdict(tmp_path):
    result = bench.run(LAYER, cases=6, jobs=1, out=tmp_path / "run", progress=False)
    assert "supported" in result.summary()


@pytest.mark.parametrize(("kind", "error"), [("normal", 1 - 0.8678), ("laplace", 1 - 0.9200)])
def test_bare_inputs_lose_what_their_energy_says(kind, error):
    case = next(iter(layer.cases((kind, 16), 1, seed=0)))
    found = layer.score(case, layer.sparse_inputs(False, False, case.given, 0))
    # Independent entries: the error of the output is that of the input, up to the draw of the weight.
    assert found["output_error"] == pytest.approx(error, rel=0.05)


def test_weights_pruned_by_magnitude_lose_what_their_energy_says():
    case = next(iter(layer.cases(("laplace", 16), 1, seed=0)))
    found = layer.score(case, layer.sparse_weights(False, False, case.given, 0))
    assert found["output_error"] == pytest.approx(1 - 0.8678, rel=0.05)


def test_an_unknown_kind_of_inputs_is_refused():
    with pytest.raises(InputError, match=r"^-p inputs=cauchy is not one of gelu, laplace, normal$"):
        layer.load(None, "quick", {"inputs": "cauchy", "rank": 16})


# --------------------------------------------------------------------------------------------------- language


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """A two-layer Llama over bytes in place of SmolLM2."""
    from transformers import LlamaConfig, LlamaForCausalLM

    class Bytes:
        bos_token_id = None

        def __call__(self, text, **options):
            ids = [list(t.encode()) for t in ([text] if isinstance(text, str) else text)]
            return {"input_ids": ids[0] if isinstance(text, str) else ids}

        def __len__(self):
            return 256

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():  # so that its answers differ enough to tell the arms apart
        for layer_ in model.modules():
            if isinstance(layer_, nn.Linear):
                layer_.weight.mul_(10)
    monkeypatch.setattr(language, "full_model", lambda name: (model, Bytes()))
    monkeypatch.setattr(language, "made_dir", lambda: tmp_path)
    monkeypatch.setattr("assay.models.quality.measuring.made_dir", lambda: tmp_path)
    for cached in (language.dense_layers, language.fitted, language.arm_layers):
        cached.cache_clear()
    yield model
    for cached in (language.dense_layers, language.fitted, language.arm_layers):
        cached.cache_clear()


def parts(n=2):
    data = language.load(None, "quick", {"model": "tiny", "rank": 4, "calibration": 8})
    return list(language.cases(data.value, n, seed=0))


def test_each_arm_answers_for_itself_and_leaves_the_model_as_it_was(tiny):
    before = dict(tiny.named_modules())
    case = parts()[0]
    arms = ("rt-lynx", "slim", "wanda", "magnitude", "naive", "norm")
    kl = [language.score(case, language.ask(arm, case.given, 0))["kl"] for arm in arms]
    assert len(set(kl)) == len(arms)
    assert min(kl) > 0
    assert dict(tiny.named_modules()) == before


def test_arms_with_sparse_inputs_share_the_weights(tiny):
    setting = parts()[0].given.setting
    for name, made in language.arm_layers("rt-lynx", setting).items():
        assert made.weight is tiny.get_submodule(name).weight


def test_what_was_fitted_is_read_again(tiny, monkeypatch):
    case = parts()[0]
    first = language.fitted(case.given.setting)
    language.fitted.cache_clear()
    monkeypatch.setattr("assay.compress.rt_lynx.calibrate.Runner.collect", None)
    again = language.fitted(case.given.setting)
    assert all(torch.equal(again[name], x) for name, x in first.items())


def test_windows_are_dealt_out_once(tiny):
    windows = [part.given.reference.windows for part in parts(4)]
    assert sum(map(len, windows)) == 8


def test_more_cases_than_windows_are_refused(tiny):
    with pytest.raises(InputError, match=r"^9 cases were asked for, and there are 8 windows; use a larger scale$"):
        parts(9)


def test_a_file_that_is_no_text_is_refused(tiny, tmp_path):
    path = tmp_path / "image.png"
    path.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(InputError, match=r"image\.png cannot be read as UTF-8 text"):
        language.load(str(path), "quick", {"model": "tiny", "rank": 4, "calibration": 8})


@pytest.mark.slow
def test_the_main_part_runs_on_a_trained_model(tmp_path):
    result = bench.run(TRIAL, cases=2, jobs=1, params={"train": 100}, out=tmp_path / "run", progress=False)
    assert "RT-Lynx" in result.summary()
