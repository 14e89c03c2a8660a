"""mxint on models: packed layers and their folders, training through quantised products."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from assay._core.errors import InputError
from assay.compress._folders import WEIGHTS
from assay.compress.mxint import (
    MXConfig,
    MXLinear,
    MXTrainingConfig,
    MXTrainingLinear,
    crest_factor,
    fake_quant,
    get_format,
    hadamard,
    load,
    prepare_training_,
    qsnr,
    quantize_,
    save,
)
from assay.compress.mxint.models import MANIFEST

pytestmark = pytest.mark.usefixtures("one_thread")


EVERY = ["mxint8", "mxfp8", "mxint6", "mxfp6", "mxint4", "mxfp4", "nvint4", "nvfp4", "int8"]


def mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(80, 64), nn.GELU(), nn.Linear(64, 10))


def tiny_llama(seed=0, *, tied=True):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=tied,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def tiny_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=97, n_positions=64, n_embd=64, n_layer=2, n_head=4)).eval()


def logits(model):
    with torch.no_grad():
        return model(torch.arange(48)[None] % 97).logits


# ------------------------------------------------------------------------------------------------ packed layers


@pytest.mark.parametrize("fmt", EVERY)
def test_a_packed_layer_multiplies_by_the_quantised_weight(fmt):
    linear, x = mlp()[0], torch.randn(3, 7, 80)
    layer = MXLinear.from_linear(linear, MXConfig(weight=fmt))
    expected = nn.functional.linear(x, fake_quant(linear.weight, fmt), linear.bias)
    assert torch.equal(layer(x), expected)


@pytest.mark.parametrize("fmt", ["mxint8", "mxfp4", "nvint4"])
def test_activations_are_quantised_as_they_come(fmt):
    linear, x = mlp()[0], torch.randn(7, 80)
    layer = MXLinear.from_linear(linear, MXConfig(weight="mxint8", activation=fmt))
    expected = fake_quant(x, fmt) @ fake_quant(linear.weight, "mxint8").T + linear.bias
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("activation", [None, "nvint4"])
def test_a_rotated_layer_is_the_product_of_rotated_and_quantised_operands(activation):
    linear, x = mlp()[0], torch.randn(7, 80)
    layer = MXLinear.from_linear(linear, MXConfig(weight="nvint4", activation=activation, rotate="hadamard", seed=3))
    turn = torch.block_diag(*[torch.from_numpy(hadamard(16, 3))] * 5)
    turned = x @ turn
    left = turned if activation is None else fake_quant(turned, activation)
    expected = left @ fake_quant(linear.weight @ turn, "nvint4").T + linear.bias
    torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=1e-5)


def test_rotation_alone_does_not_change_a_product():
    x, weight, turn = torch.randn(5, 32), torch.randn(4, 32), torch.from_numpy(hadamard(32))
    torch.testing.assert_close((x @ turn) @ (weight @ turn).T, x @ weight.T, atol=1e-5, rtol=1e-5)


def test_blocks_of_different_size_cannot_be_rotated_together():
    with pytest.raises(InputError, match=r"^layer '0': rotate='hadamard' turns weights and inputs by the same"):
        quantize_(mlp(), MXConfig(weight="nvint4", activation="mxint8", rotate="hadamard"))


def test_the_bytes_of_a_layer_are_the_stated_bits():
    report = quantize_(nn.Sequential(nn.Linear(512, 64)), MXConfig(weight="mxint6"))
    assert report.bits_per_weight == 6.25


@pytest.mark.parametrize("fmt", ["mxint8", "int4", "nvfp4"])
def test_the_report_has_the_error_of_the_whole_weight(fmt):
    model = nn.Sequential(nn.Linear(900, 700))
    weight = model[0].weight.detach().clone()
    (layer,) = quantize_(model, MXConfig(weight=fmt)).layers
    assert layer.qsnr == pytest.approx(qsnr(weight, fake_quant(weight, fmt)), rel=1e-9)
    assert layer.kappa == pytest.approx(np.median(crest_factor(weight, get_format(fmt).block)), rel=1e-9)


def test_a_layer_goes_through_autocast_dtype():
    layer = MXLinear.from_linear(mlp()[0])
    assert layer(torch.randn(2, 80).bfloat16()).dtype == torch.bfloat16


# ------------------------------------------------------------------------------------------------ models and folders


def test_lm_head_is_left_alone_and_all_other_linears_are_not():
    model = tiny_llama()
    report = quantize_(model)
    assert len(report.layers) == 2 * 7
    assert type(model.lm_head) is nn.Linear
    assert not any(type(m) is nn.Linear for name, m in model.named_modules() if name != "lm_head")


def test_gpt2_s_conv1d_is_quantised_along_its_input():
    model = tiny_gpt2()
    weight = model.transformer.h[0].attn.c_attn.weight.detach().clone()  # (in, out)
    quantize_(model, MXConfig(weight="mxint4"))
    assert torch.equal(model.transformer.h[0].attn.c_attn.weight, fake_quant(weight.T, "mxint4"))


def test_mxint8_hardly_moves_the_logits_and_mxint4_moves_them_more():
    reference = logits(tiny_llama())
    errors = []
    for fmt in ("mxint8", "mxint4"):
        model = tiny_llama()
        quantize_(model, MXConfig(weight=fmt, activation=fmt))
        errors.append(float((logits(model) - reference).norm() / reference.norm()))
    assert errors[0] < 0.02 < errors[1]


@pytest.mark.parametrize(
    ("make", "fmt"),
    [(tiny_llama, "mxint8"), (lambda: tiny_llama(tied=False), "mxfp6"), (tiny_gpt2, "nvint4")],
    ids=["tied", "untied", "gpt2"],
)
def test_a_saved_model_loads_with_the_same_logits(make, fmt, tmp_path):
    model = make()
    quantize_(model, MXConfig(weight=fmt, activation=fmt, rotate="hadamard"))
    save(model, tmp_path / "out")
    assert torch.equal(logits(load(tmp_path / "out")), logits(model))


def test_the_file_is_as_large_as_the_report_says(tmp_path):
    model = nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 256))
    report = quantize_(model, MXConfig(weight="mxint4"))
    save(model, tmp_path)
    assert (tmp_path / WEIGHTS).stat().st_size == pytest.approx(report.n_bytes, rel=0.01)


def test_any_module_loads_into_its_architecture(tmp_path):
    model, x = mlp(), torch.randn(4, 80)
    quantize_(model, MXConfig(weight={"0": "nvfp4", "2": "mxint6"}))
    save(model, tmp_path)
    assert torch.equal(load(tmp_path, mlp(seed=1))(x), model(x))


def test_the_report_prints_draws_and_has_a_row_a_layer():
    report = quantize_(mlp(), MXConfig(weight={"0": "nvfp4", "2": "mxint6"}))
    assert report.to_frame()["format"].tolist() == ["nvfp4", "mxint6"]
    assert "2 layers at" in report.summary()
    assert "dB" in report.plot().get_ylabel()


# ------------------------------------------------------------------------------------------------ training


def test_nothing_quantised_is_an_ordinary_linear_layer():
    x = torch.randn(5, 80)
    plain, made = mlp(), mlp()
    prepare_training_(made, MXTrainingConfig.all_points(None))
    for model in (plain, made):
        model(x).square().sum().backward()
    for first, second in zip(plain.parameters(), made.parameters(), strict=True):
        torch.testing.assert_close(first.grad, second.grad)


def test_the_six_points_are_where_the_paper_has_them():
    torch.manual_seed(0)
    config = MXTrainingConfig(x="mxint8", w="mxint6", dy="mxint4", w_back="mxfp8", dy_back="mxfp4", x_back="nvint4")
    layer = MXTrainingLinear.from_linear(nn.Linear(48, 40, bias=False), config)
    x, dy = torch.randn(70, 48, requires_grad=True), torch.randn(70, 40)
    y = layer(x)
    y.backward(dy)
    weight = layer.weight.detach()
    torch.testing.assert_close(y, fake_quant(x, "mxint8") @ fake_quant(weight, "mxint6").T)
    torch.testing.assert_close(x.grad, fake_quant(dy, "mxint4") @ fake_quant(weight, "mxfp8", axis=0))
    expected = fake_quant(dy, "mxfp4", axis=0).T @ fake_quant(x.detach(), "nvint4", axis=0)
    torch.testing.assert_close(layer.weight.grad, expected)


def test_the_weight_is_quantised_again_for_the_way_back_not_transposed():
    weight = torch.randn(64, 64)
    assert not torch.equal(fake_quant(weight, "mxint4", axis=0), fake_quant(weight, "mxint4", axis=1))


def test_the_parameters_stay_the_same_objects():
    model = mlp()
    before = list(model.parameters())
    prepare_training_(model)
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))


def train(fmt, steps=40):
    """Loss of a small regression at the end; the same data and start for every format."""
    model = mlp()
    prepare_training_(model, MXTrainingConfig.all_points(fmt))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    rng = torch.Generator().manual_seed(0)
    teacher = torch.randn(80, 10, generator=rng) / 80**0.5
    for _ in range(steps):
        x = torch.randn(128, 80, generator=rng)
        loss = (model(x) - torch.tanh(x @ teacher)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def test_training_in_mxint8_follows_full_precision_within_a_percent():
    assert train("mxint8") == pytest.approx(train(None), rel=0.01)


# ------------------------------------------------------------------------------------------------ bad input


def test_a_model_without_linear_layers_is_refused():
    with pytest.raises(InputError, match=r"^the model has no linear layer to quantise apart from those skipped"):
        quantize_(nn.Sequential(nn.ReLU()))


def test_a_layer_that_is_not_there_is_refused():
    with pytest.raises(InputError, match=r"^the model has no linear layer '7' to quantise; it has 0, 2$"):
        quantize_(mlp(), MXConfig(weight={"7": "mxint8"}))


def test_an_unknown_format_is_refused_before_anything_changes():
    model = mlp()
    with pytest.raises(InputError, match=r"^format 'mxint5' is not one of"):
        quantize_(model, MXConfig(weight={"0": "mxint8", "2": "mxint5"}))
    assert type(model[0]) is nn.Linear


def test_a_weight_with_nan_is_named():
    model = mlp()
    with torch.no_grad():
        model[2].weight[0, 0] = np.nan
    with pytest.raises(InputError, match=r"^layer '2': x holds 1 values that are NaN or infinite"):
        quantize_(model)


def test_a_model_that_was_not_quantised_is_not_saved(tmp_path):
    with pytest.raises(InputError, match=r"^the model holds no compressed layer; call quantize_ first$"):
        save(mlp(), tmp_path / "out")


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"holds no mxint\.json and model\.safetensors, so it is not a folder"):
        load(tmp_path)


def saved(tmp_path):
    model = mlp()
    quantize_(model)
    save(model, tmp_path)
    return tmp_path


def test_a_manifest_that_names_another_layer_is_refused(tmp_path):
    path = saved(tmp_path) / MANIFEST
    manifest = json.loads(path.read_text())
    manifest["layers"]["9"] = manifest["layers"].pop("0")
    path.write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"mxint\.json names the layer '9', which the model does not have$"):
        load(tmp_path, mlp())


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 1}'])
def test_a_broken_manifest_is_refused(tmp_path, text):
    (saved(tmp_path) / MANIFEST).write_text(text)
    with pytest.raises(InputError, match=r"mxint\.json is not a manifest of compressed layers; save the model again$"):
        load(tmp_path, mlp())


def test_cut_weights_are_refused(tmp_path):
    path = saved(tmp_path) / WEIGHTS
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"model\.safetensors does not fit the model"):
        load(tmp_path, mlp())


def test_another_architecture_is_refused(tmp_path):
    saved(tmp_path)
    with pytest.raises(InputError, match=r"does not fit the model"):
        load(tmp_path, nn.Sequential(nn.Linear(80, 64), nn.GELU(), nn.Linear(64, 10), nn.Linear(10, 2)))


def test_a_plain_module_needs_its_architecture(tmp_path):
    with pytest.raises(InputError, match=r"holds no config\.json; give the dense architecture as model=$"):
        load(saved(tmp_path))


def test_gpt2_s_layers_keep_their_stated_shape():
    layer = MXLinear.from_linear(tiny_gpt2().transformer.h[0].mlp.c_fc)
    assert (layer.in_features, layer.out_features) == (64, 256)
    assert get_format("mxint8").name in layer.extra_repr()


# ------------------------------------------------------------------------------------------------ the demo model


def demo_gradient(fmt):
    """The demo model, its loss on one sentence, and the gradient with one format at all six points."""
    from assay.models import demo_lm

    model, tokenizer = demo_lm()
    ids = tokenizer(
        "Blocks of thirty-two integers share a scale that is a power of two.", return_tensors="pt"
    ).input_ids
    prepare_training_(model, MXTrainingConfig.all_points(fmt))
    loss = model(ids, labels=ids).loss
    loss.backward()
    return model, ids, loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.slow
def test_the_demo_model_trains_in_mxint8_along_the_gradient_of_full_precision():
    _, _, full_loss, full = demo_gradient(None)
    model, ids, loss, gradient = demo_gradient("mxint8")
    assert loss == pytest.approx(full_loss, rel=0.01)
    assert float(torch.nn.functional.cosine_similarity(full, gradient, dim=0)) > 0.97
    torch.optim.SGD(model.parameters(), lr=1e-4).step()
    with torch.no_grad():
        assert model(ids, labels=ids).loss.item() < loss


@pytest.mark.slow
def test_the_demo_model_is_saved_at_its_stated_size_and_loads_with_the_same_logits(tmp_path):
    from assay.models import demo_lm

    model, _ = demo_lm()
    report = quantize_(model, MXConfig(weight="mxint4"))
    save(model, tmp_path)
    assert report.bits_per_weight == 4.25
    assert (tmp_path / WEIGHTS).stat().st_size == pytest.approx(report.n_bytes, rel=0.01)
    assert torch.equal(logits(load(tmp_path)), logits(model))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_training_goes_through_autocast(dtype):
    torch.manual_seed(0)
    layer, x = MXTrainingLinear.from_linear(nn.Linear(64, 32)), torch.randn(8, 64)
    plain = layer(x)
    plain.square().mean().backward()
    exact = layer.weight.grad.clone()
    layer.zero_grad()
    with torch.autocast("cpu", dtype):
        made = layer(x)
        made.float().square().mean().backward()
    assert made.dtype == dtype
    assert layer.weight.grad.dtype == torch.float32
    torch.testing.assert_close(made.float(), plain, atol=0.03, rtol=0.03)
    torch.testing.assert_close(layer.weight.grad, exact, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("fmt", ["mxint8", "nvint4", "nvfp4", "int8", "int8-bf16"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_converting_a_packed_model_does_not_change_its_weights(fmt, dtype):
    torch.manual_seed(0)
    layer = MXLinear.from_linear(nn.Linear(64, 32), MXConfig(fmt))
    before = layer.weight
    model = nn.Sequential(layer).to(dtype)
    assert torch.equal(model[0].weight, before)
    assert model(torch.randn(3, 64, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("spoiled", ["weight", "options"])
def test_a_model_that_cannot_be_quantised_stays_as_it_was(spoiled):
    model, config = mlp(), MXConfig()
    if spoiled == "weight":
        model[2].weight.data[1, 2] = torch.nan
    else:  # blocks of 16 and of 32 values cannot be turned by one rotation
        config = MXConfig({"0": "mxint8", "2": "nvint4"}, "mxint8", "hadamard")
    with pytest.raises(InputError, match=r"^layer '2': "):
        quantize_(model, config)
    assert [type(layer) for layer in model] == [type(layer) for layer in mlp()]


def test_layers_of_gpt2_that_do_not_train_in_mx_are_named():
    from transformers.pytorch_utils import Conv1D

    model = nn.ModuleDict({"a": nn.Linear(32, 32), "b": Conv1D(32, 32)})
    with pytest.warns(UserWarning, match=r"^b: Conv1D layers train as they are$"):
        assert prepare_training_(model) == ("a",)
