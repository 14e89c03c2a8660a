"""LiftQuant on layers and models: transforms, packed layers, training on calibration data, folders, resuming."""

import copy
import json
import re

import numpy as np
import pytest
import torch
from torch import nn

from assay._core.errors import InputError
from assay.compress.liftquant import (
    LiftQuantConfig,
    LiftQuantLinear,
    Mapping,
    decode,
    dense_,
    load,
    load_mapping,
    pair_for_budget,
    quantize_,
    save,
)
from assay.compress.liftquant.search import unpack
from assay.compress.liftquant.store import MANIFEST, WEIGHTS
from assay.compress.liftquant.transform import Transform, factor_sizes, rotation
from assay.compress.liftquant.whiten import Factor, ProxyLinear, best_step, cayley, round_mid

pytestmark = pytest.mark.usefixtures("one_thread")


def tiny_llama(seed=0, *, tied=True, n_layers=2):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=n_layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=tied,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def tiny_qwen():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


def tiny_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=97, n_positions=64, n_embd=64, n_layer=2, n_head=4)).eval()


class DiTBlock(nn.Module):
    """A block of a diffusion transformer: attention and MLP, each shifted, scaled and gated by the condition."""

    def __init__(self, width=32):
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.modulation = nn.Linear(width, 6 * width)

    def forward(self, x, condition):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition)[:, None].chunk(6, -1)
        q, k, v = self.qkv(self.norm(x) * (1 + scale1) + shift1).chunk(3, -1)
        x = x + gate1 * self.out(nn.functional.scaled_dot_product_attention(q, k, v))
        return x + gate2 * self.mlp(self.norm(x) * (1 + scale2) + shift2)


class DiT(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.blocks = nn.ModuleList([DiTBlock(width) for _ in range(2)])

    def forward(self, x, condition):
        for block in self.blocks:
            x = block(x, condition)
        return x


def ids(n=6, length=32, seed=0):
    return torch.randint(97, (n, length), generator=torch.Generator().manual_seed(seed))


def output(model):
    with torch.no_grad():
        if isinstance(model, DiT):
            generator = torch.Generator().manual_seed(0)
            return model(torch.randn(3, 10, 32, generator=generator), torch.randn(3, 32, generator=generator))
        return model(ids()).logits


MODELS = {"llama": tiny_llama, "qwen": tiny_qwen, "gpt2": tiny_gpt2, "diffusion transformer": DiT}


def trained_transform(in_features=50, d=4, seed=0):
    """A transform with nothing at its start: factors that are not orthogonal, both scales."""
    generator = torch.Generator().manual_seed(seed)
    t1, t2 = factor_sizes(in_features, d)
    left, right = (torch.eye(t) + 0.3 * torch.randn(t, t, generator=generator) / t**0.5 for t in (t1, t2))
    s1, s2 = (0.5 + torch.rand(shape, generator=generator) for shape in (in_features, (t1, t2 // d)))
    return Transform(in_features, d, left.half(), right.half(), s1.half(), s2.half())


# ------------------------------------------------------------------------------------------------ the transform


def test_the_transform_and_its_inverse_are_the_identity_padding_included():
    t, weight = trained_transform(), torch.randn(7, 50)
    assert factor_sizes(50, 4)[0] * factor_sizes(50, 4)[1] > 50
    torch.testing.assert_close(t.weights_back(t.weights(weight)), weight, atol=1e-5, rtol=1e-5)


def test_the_transform_of_weights_and_the_inverse_of_activations_keep_every_product():
    t, weight, x = trained_transform(), torch.randn(7, 50), torch.randn(9, 50)
    torch.testing.assert_close(t.activations(x) @ t.weights(weight).T, x @ weight.T, atol=1e-4, rtol=1e-4)


def test_the_factors_are_the_kronecker_product_between_two_diagonals():
    t, weight = trained_transform(in_features=48), torch.randn(3, 48, dtype=torch.float64)
    p1, p2 = (torch.linalg.inv(part.double()).T for part in (t.left, t.right))
    s2 = t.block_scale.double().repeat_interleave(t.d, 1).flatten()
    expected = (weight * t.channel_scale.double()) @ torch.kron(p1, p2) * s2
    torch.testing.assert_close(t.weights(weight), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("size", [8, 24, 39])
def test_rotations_are_orthogonal_as_far_as_float16_goes(size):
    turn = rotation(size, 0).double()
    torch.testing.assert_close(turn @ turn.T, torch.eye(size).double(), atol=2e-3, rtol=0)


def test_the_cayley_map_gives_orthogonal_matrices_and_starts_at_the_identity():
    assert torch.equal(cayley(torch.zeros(5, 5)), torch.eye(5))
    turned = cayley(torch.randn(6, 6, dtype=torch.float64))
    torch.testing.assert_close(turned @ turned.T, torch.eye(6).double())


@pytest.mark.parametrize("bits", [2, 3])
def test_the_proxy_rounds_to_the_nearest_of_its_levels_with_gradient_one(bits):
    x = (3 * torch.randn(200)).requires_grad_()
    levels = torch.arange(2**bits) - (2**bits - 1) / 2
    done = round_mid(x, bits)
    expected = levels[(x.detach()[:, None] - levels).abs().argmin(1)]
    torch.testing.assert_close(done.detach(), expected)
    done.sum().backward()
    assert torch.equal(x.grad, torch.ones(200))


def test_the_proxy_s_step_is_the_best_for_a_normal_source():
    step = best_step(torch.randn(4, 100, 100), 2)  # 0.9957 (Max, 1960)
    assert float(step.mean()) == pytest.approx(0.9957, abs=0.03)


@pytest.mark.parametrize("scale", [None, torch.ones(50).half()], ids=["plain", "scaled"])
def test_what_is_trained_lies_where_the_weight_is(scale):
    transform = trained_transform()  # on the CPU, as rotations are
    transform.channel_scale = scale
    proxy = ProxyLinear(nn.Linear(50, 12, device="meta"), transform, 2)
    parts = dict(proxy.named_parameters()) | dict(proxy.named_buffers())
    assert {name for name, part in parts.items() if part.device.type != "meta"} == set()
    assert {part.device.type for part in Factor(torch.eye(4, device="meta")).parameters()} == {"meta"}


# ------------------------------------------------------------------------------------------------ packed layers


@pytest.mark.parametrize("n_rows", [1, 3, 40])  # few rows are lifted, many meet the decoded weight
@pytest.mark.parametrize("transform", [None, trained_transform(50, 2)], ids=["plain", "trained"])
def test_the_packed_forward_multiplies_by_the_dequantised_weight(n_rows, transform):
    linear, x = nn.Linear(50, 12), torch.randn(n_rows, 50)
    layer = LiftQuantLinear.from_linear(linear, (5, 2), transform)
    expected = nn.functional.linear(x, layer.dequantize(), linear.bias)
    torch.testing.assert_close(layer(x), expected, atol=1e-4, rtol=1e-4)


def test_dequantising_is_unpacking_and_decoding_bit_for_bit():
    # Multiples of 1/64: sums of them are exact in any order, so that numpy and torch must agree to the last bit.
    mapping = Mapping(np.round(64 * load_mapping(5, 2).matrix) / np.float32(64), mse=np.nan)
    layer = LiftQuantLinear.from_linear(nn.Linear(50, 12), mapping, trained_transform(50, 2))
    n = layer.shape.n_vectors
    rows = [decode(unpack(row, 5, n), mapping.matrix).flatten() for row in layer.codes.numpy()]
    turned = torch.from_numpy(np.stack(rows)) * layer.row_scale.float()[:, None]
    assert torch.equal(layer.dequantize(), layer.transform().weights_back(turned))


@pytest.mark.parametrize("n_rows", [3, 40])  # few rows are lifted, many meet the decoded weight
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_layer_converted_to_16_bits_keeps_its_weight_and_answers_in_16_bits(dtype, n_rows):
    layer, x = LiftQuantLinear.from_linear(nn.Linear(50, 12), (5, 2), trained_transform(50, 2)), torch.randn(n_rows, 50)
    weight, dtypes, expected = layer.dequantize(), [b.dtype for b in layer.buffers()], layer(x)
    layer.to(dtype)
    assert torch.equal(layer.dequantize(), weight)
    assert [buffer.dtype for buffer in layer.buffers()] == dtypes
    found = layer(x.to(dtype))
    assert found.dtype == layer.bias.dtype == dtype
    torch.testing.assert_close(found.float(), expected, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_quantised_model_runs_in_16_bits_dense_again_too(dtype):
    model = tiny_llama()
    quantize_(model, LiftQuantConfig(bits=2.5))
    expected = output(model)
    model.to(dtype)
    torch.testing.assert_close(output(model).float(), expected, atol=0.02, rtol=0.05)
    dense_(model)
    torch.testing.assert_close(output(model).float(), expected, atol=0.02, rtol=0.05)


def test_scaling_a_weight_scales_its_rows_and_leaves_its_bits():
    linear = nn.Linear(64, 8)
    first = LiftQuantLinear.from_linear(linear, (16, 8))
    with torch.no_grad():
        linear.weight *= 4.0  # a power of two, so that rounding is the same
    second = LiftQuantLinear.from_linear(linear, (16, 8))
    assert torch.equal(first.codes, second.codes)
    assert torch.equal(4 * first.row_scale, second.row_scale)


def test_permuting_output_rows_permutes_the_bits():
    linear, order = nn.Linear(64, 8), torch.randperm(8)
    first = LiftQuantLinear.from_linear(linear, (5, 2))
    with torch.no_grad():
        linear.weight.copy_(linear.weight[order].clone())
    assert torch.equal(LiftQuantLinear.from_linear(linear, (5, 2)).codes, first.codes[order])


def test_a_row_of_zeros_stays_zero():
    linear = nn.Linear(40, 3)
    with torch.no_grad():
        linear.weight[1] = 0
    layer = LiftQuantLinear.from_linear(linear, (5, 2))
    assert torch.equal(layer.dequantize()[1], torch.zeros(40))


def test_a_normal_weight_has_the_error_of_the_matrix():
    linear = nn.Linear(256, 256)
    nn.init.normal_(linear.weight)
    layer = LiftQuantLinear.from_linear(linear, (16, 8))
    weight = linear.weight.detach()
    error = (layer.dequantize() - weight).square().mean() / weight.square().mean()
    assert float(error) == pytest.approx(load_mapping(16, 8).mse, rel=0.03)


@pytest.fixture(scope="module")
def digits_network():
    """Handwritten digits to their classes, by training: 64 pixels, 96 hidden units; 97 % of the images are right."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    x, y = torch.from_numpy(digits.data / 16).float(), torch.from_numpy(digits.target)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert float((model(x).argmax(1) == y).float().mean()) > 0.97
    return model


def normal_network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))
    for layer in (model[0], model[2]):
        nn.init.normal_(layer.weight)
    return model


@pytest.mark.parametrize("source", ["normal numbers", "a trained network"])
def test_more_bits_have_a_smaller_error_on_normal_and_on_trained_weights(source, digits_network):
    errors = []
    for bits in (2.0, 2.14, 2.4, 2.5, 3.0):
        model = normal_network() if source == "normal numbers" else copy.deepcopy(digits_network)
        errors.append([layer.error for layer in quantize_(model, LiftQuantConfig(bits=bits)).layers])
    assert (np.diff(errors, axis=0) < 0).all()


# ------------------------------------------------------------------------------------------------ models, folders


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_a_saved_model_loads_with_the_same_outputs_to_the_last_bit(make, tmp_path):
    model = make()
    quantize_(model, LiftQuantConfig(bits=2.5))
    save(model, tmp_path / "small")
    loaded = load(tmp_path / "small", make() if make is DiT else None)
    assert torch.equal(output(loaded), output(model))


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_a_model_that_was_trained_on_calibration_data_loads_the_same(make, tmp_path):
    generator = torch.Generator().manual_seed(1)
    calibration = ids(4, 16, seed=1) if make is not DiT else [
        (torch.randn(2, 10, 32, generator=generator), torch.randn(2, 32, generator=generator)) for _ in range(4)
    ]  # fmt: skip
    model = make()
    report = quantize_(model, LiftQuantConfig(bits=2.5, whiten_steps=3, correct_steps=3), calibration)
    assert all(model.get_submodule(layer.layer).block_scale is not None for layer in report.layers)
    save(model, tmp_path / "small")
    loaded = load(tmp_path / "small", make() if make is DiT else None)
    assert torch.equal(output(loaded), output(model))


def test_scaled_channels_and_then_trained_signs_keep_the_outputs_closer():
    # Inputs whose channels differ in size by a factor of ten, as those of a language model do; fresh ones are scored.
    torch.manual_seed(0)
    size = torch.logspace(-0.5, 0.5, 64)[torch.randperm(64)]
    calibration, x = [torch.randn(64, 64) * size for _ in range(16)], torch.randn(2000, 64) * size
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64))
    gaps = []
    for config, data in (
        (LiftQuantConfig(bits=2.0, search="fast"), None),
        (LiftQuantConfig(bits=2.0, search="fast", whiten_steps=0, correct_steps=0), calibration),
        (LiftQuantConfig(bits=2.0, search="fast", whiten_steps=0, correct_steps=80), calibration),
    ):
        model = copy.deepcopy(first)
        quantize_(model, config, data)
        with torch.no_grad():
            gaps.append(float((model(x) - first(x)).square().mean()))
    assert gaps == sorted(gaps, reverse=True)


def test_lm_head_and_tied_embeddings_are_left_alone_and_named():
    model = tiny_llama()
    report = quantize_(model)
    assert report.skipped == ("lm_head",)
    assert "Left alone: lm_head" in report.summary()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert len(report.layers) == 14


def test_gpt2_s_conv1d_is_quantised_along_its_input():
    model = tiny_gpt2()
    weight = model.transformer.h[0].mlp.c_fc.weight.detach().clone()  # (in, out)
    quantize_(model, LiftQuantConfig(bits=3.0))
    done = model.transformer.h[0].mlp.c_fc
    assert (done.in_features, done.out_features) == (64, 256)
    assert float((done.dequantize().T - weight).square().mean() / weight.square().mean()) < 0.05


def test_the_file_has_the_stated_bits_within_one_percent(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)])
    report = quantize_(model, LiftQuantConfig(bits=2.5))
    save(model, tmp_path / "small")
    n_weights = 4 * 512 * 512
    n_bits = 8 * ((tmp_path / "small" / WEIGHTS).stat().st_size - report.n_other)
    assert n_bits / n_weights == pytest.approx(report.bits_per_weight, rel=0.01)


def test_the_stated_bits_are_signs_scales_and_transforms():
    # 16/8 on 64 inputs: t1 = t2 = 8. Signs 2 bits a weight, a float16 a row; one 8 x 8 rotation on both sides, and M.
    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(64, 32))
    report = quantize_(model, LiftQuantConfig(pair=(16, 8)))
    shared = 2 * 8 * 8 + 4 * 8 * 16
    assert [layer.bytes for layer in report.layers] == [32 * (16 + 2) + shared, 32 * (16 + 2)]


def test_dense_layers_give_the_same_outputs():
    model = tiny_llama()
    quantize_(model, LiftQuantConfig(bits=2.5))
    before = output(model)
    dense_(model)
    assert not any(isinstance(module, LiftQuantLinear) for module in model.modules())
    torch.testing.assert_close(output(model), before, atol=1e-4, rtol=1e-4)


def test_a_budget_is_filled_and_not_passed(tmp_path):
    model = tiny_llama()
    pair = pair_for_budget(model, 220_000)
    report = quantize_(model, LiftQuantConfig(budget=220_000))
    save(model, tmp_path / "small")
    assert report.layers[0].code == f"{pair[0]}/{pair[1]}"
    assert (tmp_path / "small" / WEIGHTS).stat().st_size <= 220_000


def least_budget_of_three_bits(model):
    """Without data; and the bytes of channel scales: 64 inputs but for down_proj's 96, in each of two blocks."""
    plain = next(size for size in range(160_000, 300_000, 100) if pair_for_budget(model, size) == (6, 2))
    return plain, 2 * 2 * (6 * 64 + 96)


def test_a_budget_with_calibration_is_filled_as_far_as_one_without(tmp_path):
    model = tiny_llama()
    plain, scales = least_budget_of_three_bits(model)
    assert pair_for_budget(model, plain + scales - 100, calibrated=True) == (20, 8)
    report = quantize_(model, LiftQuantConfig(budget=plain + scales, correct_steps=0), ids())
    save(model, tmp_path / "small")
    assert report.layers[0].code == "6/2"
    assert (tmp_path / "small" / WEIGHTS).stat().st_size <= plain + scales


def test_a_budget_leaves_room_for_transforms_that_are_trained():
    model = tiny_llama()
    plain, scales = least_budget_of_three_bits(model)
    report = quantize_(model, LiftQuantConfig(budget=plain + scales, whiten_steps=1, correct_steps=0), ids(1))
    assert report.rate < 3


@pytest.mark.parametrize(
    ("bits", "said"),
    [
        (3.9, "Asked for 3.9 bits a weight, took 3 (6/2), the nearest shipped rate below"),
        (2.3, "Asked for 2.3 bits a weight, took 2.286 (16/7), the nearest shipped rate below"),
        (2.14, None),
        (2.5, None),
    ],
)
def test_a_rate_that_is_not_the_one_asked_for_is_said(bits, said):
    report = quantize_(nn.Sequential(nn.Linear(16, 4)), LiftQuantConfig(bits=bits))
    lines = [line for line in report.summary().splitlines() if line.startswith("Asked for")]
    assert lines == ([] if said is None else [said])


def test_a_pair_or_a_budget_asks_for_no_rate():
    for config in (LiftQuantConfig(pair=(5, 2)), LiftQuantConfig(budget=200_000)):
        report = quantize_(nn.Sequential(nn.Linear(16, 4)), config)
        assert report.asked is None
        assert "Asked for" not in report.summary()


def test_a_matrix_that_is_not_shipped_is_trained_once_and_made_again_when_damaged(tmp_path, monkeypatch):
    from assay.compress.liftquant import mapping

    trained, fit = [], mapping.fit_mapping

    def quick(n_bits, d):
        trained.append((n_bits, d))
        return fit(n_bits, d, steps=5, restarts=1, n_vectors=1000)

    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    monkeypatch.setattr(mapping, "fit_mapping", quick)
    models = [nn.Sequential(nn.Linear(16, 4)) for _ in range(3)]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    quantize_(models[0], LiftQuantConfig(pair=(4, 2)))
    quantize_(models[1], LiftQuantConfig(pair=(4, 2)))
    assert trained == [(4, 2)]
    (kept,) = (tmp_path / "liftquant").iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    quantize_(models[2], LiftQuantConfig(pair=(4, 2)))
    assert trained == [(4, 2)] * 2
    assert torch.equal(models[0][0].codes, models[1][0].codes)
    assert torch.equal(models[0][0].matrix, models[2][0].matrix)


def test_an_interrupted_run_goes_on_behind_the_last_finished_layer(tmp_path, monkeypatch):
    whole = tiny_llama()
    report = quantize_(whole, LiftQuantConfig(bits=2.5))
    n_done, from_linear = 0, LiftQuantLinear.from_linear.__func__

    def stop_at_the_sixth(cls, *arguments, **options):
        nonlocal n_done
        n_done += 1
        if n_done == 6:
            raise KeyboardInterrupt
        return from_linear(cls, *arguments, **options)

    monkeypatch.setattr(LiftQuantLinear, "from_linear", classmethod(stop_at_the_sixth))
    with pytest.raises(KeyboardInterrupt):
        quantize_(tiny_llama(), LiftQuantConfig(bits=2.5), checkpoint=tmp_path / "part")
    resumed = tiny_llama()
    found = quantize_(resumed, LiftQuantConfig(bits=2.5), checkpoint=tmp_path / "part")
    assert n_done == 6 + 14 - 5
    assert torch.equal(output(resumed), output(whole))
    assert [layer.bytes for layer in found.layers] == [layer.bytes for layer in report.layers]


def test_an_interrupted_run_with_calibration_gives_the_same_model(tmp_path, monkeypatch):
    config = LiftQuantConfig(bits=2.5, whiten_steps=4, correct_steps=4)
    whole = tiny_llama()
    quantize_(whole, config, ids())
    from assay.compress.liftquant import whiten

    n_done, correct = 0, whiten.correct

    def stop_at_the_second(*arguments):
        nonlocal n_done
        n_done += 1
        if n_done == 2:
            raise KeyboardInterrupt
        correct(*arguments)

    monkeypatch.setattr(whiten, "correct", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        quantize_(tiny_llama(), config, ids(), checkpoint=tmp_path / "part")
    resumed = tiny_llama()
    quantize_(resumed, config, ids(), checkpoint=tmp_path / "part")
    assert n_done == 3
    assert torch.equal(output(resumed), output(whole))


# ------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LiftQuantConfig(bits=0.9), "bits=0.9: expected 1 to 4 bits a weight; the nearest is D=16, d=10"),
        (LiftQuantConfig(pair=(30, 8)), "D=30, d=8: expected 1 <= d <= D <= d + 20; nearest is D=28, d=8"),
        (LiftQuantConfig(budget=1000), "budget of 0.0 MB: the least is 0."),
        (LiftQuantConfig(search="best"), "search='best' is not one of auto, exact, fast"),
        (
            LiftQuantConfig(stages=("whiten", "encode")),
            "stages holds 'whiten', which needs calibration data; give calib",
        ),
        (
            LiftQuantConfig(stages=("encode", "polish")),
            "stages holds 'polish', which is not one of whiten, encode, cor",
        ),
        (LiftQuantConfig(stages=()), "stages lacks 'encode', without which nothing is quantised"),
        (LiftQuantConfig(skip=("0",)), "the model has no linear layer to quantise apart from those skipped (0)"),
    ],
)
def test_bad_options_are_named(config, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        quantize_(nn.Sequential(nn.Linear(16, 4)), config)


def test_a_weight_that_is_not_finite_is_named_and_nothing_is_changed():
    model = nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 4))
    with torch.no_grad():
        model[1].weight[0, 0] = torch.nan
    with pytest.raises(InputError, match=r"^layer '1': its weight holds 1 values that are NaN or infinite$"):
        quantize_(model)
    assert type(model[0]) is nn.Linear


def test_empty_calibration_data_is_refused():
    with pytest.raises(InputError, match=r"^calibration holds no sequences; give token ids"):
        quantize_(tiny_llama(), None, [])


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    quantize_(tiny_llama(), LiftQuantConfig(bits=2.5), checkpoint=tmp_path)
    with pytest.raises(
        InputError, match=r"holds layers of a run with other options, another model or other data; remove it or"
    ):
        quantize_(tiny_llama(), LiftQuantConfig(bits=3.0), checkpoint=tmp_path)


ANOTHER_RUN = r"holds layers of a run with other options, another model or other data; remove it or name a new one$"


def test_a_checkpoint_of_another_model_of_the_same_shape_is_refused(tmp_path):
    quantize_(tiny_llama(seed=0), checkpoint=tmp_path)
    with pytest.raises(InputError, match=ANOTHER_RUN):
        quantize_(tiny_llama(seed=1), checkpoint=tmp_path)


@pytest.mark.parametrize("other", [ids(2, seed=1), None], ids=["other data", "no data"])
def test_a_checkpoint_of_other_calibration_data_is_refused(tmp_path, other):
    config = LiftQuantConfig(correct_steps=0)
    quantize_(tiny_llama(), config, ids(2), checkpoint=tmp_path)
    with pytest.raises(InputError, match=ANOTHER_RUN):
        quantize_(tiny_llama(), config, other, checkpoint=tmp_path)


class Chain(nn.Module):
    """Three blocks, each called with what `path` says."""

    def __init__(self, path):
        super().__init__()
        self.blocks, self.path = nn.ModuleList(Residual() for _ in range(3)), path

    def forward(self, x):
        return self.path(self.blocks, x)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x, shift=0.0, context=None):
        done = x + self.linear(x).tanh() + shift
        return done if context is None else (context + done.mean(1, keepdim=True), done)


def over_a_block(blocks, x):
    middle = blocks[0](x)
    return blocks[2](blocks[1](middle) + middle)


def over_a_block_in_place(blocks, x):
    first = blocks[0](x)
    second = blocks[1](first)
    second += first
    return blocks[2](second)


def other_arguments(blocks, x):
    return blocks[2](blocks[1](blocks[0](x, 0.0), 1.0), 0.0)


def two_streams(blocks, x):
    """As Flux: a block returns the text first, and is called with the image first."""
    context = torch.zeros_like(x)
    for block in blocks:
        context, x = block(x, context=context)
    return x


def twice(blocks, x):
    for block in [*blocks, *blocks]:
        x = block(x)
    return x


def not_the_last(blocks, x):
    return blocks[1](blocks[0](x))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (over_a_block, "blocks.2"),
        (over_a_block_in_place, "blocks.2"),
        (other_arguments, "blocks.1"),
        (two_streams, "blocks.1"),
        (twice, "blocks.0"),
        (not_the_last, "blocks.2"),
    ],
)
def test_calibration_of_blocks_that_are_no_plain_chain_is_refused_and_nothing_is_changed(path, name, tmp_path):
    model = Chain(path)
    said = (
        f"block {name!r} is not called once with just what the block before returned and the same other arguments, so "
        f"calibration would show it wrong inputs; quantise this model without calibration data"
    )
    with pytest.raises(InputError, match=f"^{re.escape(said)}$"):
        quantize_(model, None, [torch.randn(2, 5, 32)], checkpoint=tmp_path / "part")
    assert not any(isinstance(module, LiftQuantLinear) for module in model.modules())
    assert not (tmp_path / "part").exists()
    assert len(quantize_(model).layers) == 3  # as the message says


def test_a_plain_chain_is_calibrated():
    model = Chain(lambda blocks, x: blocks[2](blocks[1](blocks[0](x))))
    quantize_(model, LiftQuantConfig(correct_steps=1), [torch.randn(2, 5, 32)])
    assert model.blocks[2].linear.channel_scale is not None


def test_a_model_that_is_not_quantised_is_not_saved(tmp_path):
    with pytest.raises(InputError, match=r"^the model holds no compressed layer; call quantize_ first$"):
        save(tiny_llama(), tmp_path)


def test_a_folder_that_save_did_not_write_is_named(tmp_path):
    with pytest.raises(InputError, match=r"holds no liftquant\.json and model\.safetensors, so it is not a folder"):
        load(tmp_path)


def test_a_manifest_of_another_version_is_refused(tmp_path):
    model = nn.Sequential(nn.Linear(16, 4))
    quantize_(model)
    save(model, tmp_path)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps(manifest | {"version": 9}))
    with pytest.raises(InputError, match=r"liftquant\.json has version 9; this Assay reads version 1$"):
        load(tmp_path, nn.Sequential(nn.Linear(16, 4)))


def test_weights_that_do_not_fit_are_named(tmp_path):
    model = nn.Sequential(nn.Linear(16, 4))
    quantize_(model)
    save(model, tmp_path)
    (tmp_path / WEIGHTS).write_bytes((tmp_path / WEIGHTS).read_bytes()[:-20])
    with pytest.raises(InputError, match=r"model\.safetensors does not fit the model: "):
        load(tmp_path, nn.Sequential(nn.Linear(16, 4)))
