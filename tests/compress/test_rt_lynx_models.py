"""Whole models: which layers, what is reported, what is kept, what is saved, and what is refused."""

import math
import re
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from assay._core.errors import InputError
from assay.compress.rt_lynx import (
    ActivationSparsityConfig,
    Factors,
    SparseActLinear,
    bypassed,
    closed_form,
    load,
    save,
    sparse_activation,
    sparsify_,
)
from assay.compress.rt_lynx.backends import semi_structured_linear
from assay.compress.rt_lynx.calibrate import is_auto

ALL = ActivationSparsityConfig(targets=".*", rank=4)


def mlp(seed=0, k=32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(k, 24), nn.GELU(), nn.Linear(24, 8)).eval()


def batches(n=4, rows=40, k=32, seed=1):
    return list(torch.randn(n, rows, k, generator=torch.Generator().manual_seed(seed)))


def tiny_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def tiny_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64)).eval()


def tiny_qwen():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


def ids(n=12, length=20):
    return torch.randint(61, (n, length), generator=torch.Generator().manual_seed(2))


def sparse_names(model):
    return [name for name, module in model.named_modules() if isinstance(module, SparseActLinear)]


def quiet(model, config, calibration=None, **options):
    """Sparsify; so few tokens are warned of, which is not the matter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return sparsify_(model, config, calibration, **options)


# ------------------------------------------------------------------------------------------------- one layer


def test_a_layer_is_its_equation():
    linear, x = nn.Linear(32, 6), torch.randn(3, 5, 32)
    layer = SparseActLinear.from_linear(linear, ActivationSparsityConfig(rank=2))
    layer.repair(Factors(torch.randn(2, 32), torch.randn(6, 2)))
    branch = x @ layer.lora_A.T @ layer.lora_B.T
    expected = sparse_activation(x) @ linear.weight.T + branch + linear.bias
    torch.testing.assert_close(layer(x), expected)


def test_a_dense_pattern_is_the_dense_layer_to_the_last_bit():
    linear, x = nn.Linear(32, 6), torch.randn(7, 32)
    layer = SparseActLinear.from_linear(linear, ActivationSparsityConfig(n=4, m=4))
    assert torch.equal(layer(x), linear(x))


def test_weight_and_bias_are_the_same_parameters():
    linear = nn.Linear(32, 6)
    layer = SparseActLinear.from_linear(linear)
    assert layer.weight is linear.weight
    assert layer.bias is linear.bias


def test_fitting_a_layer_to_inputs_is_the_closed_form():
    linear, x = nn.Linear(32, 6), torch.randn(2, 100, 32)
    layer = SparseActLinear.from_linear(linear, ActivationSparsityConfig(rank=3)).fit(x)
    stats = layer.stats()
    stats.update(x)
    expected = closed_form(stats, 3)
    assert torch.equal(layer.lora_A, expected.lora_A)
    assert torch.equal(layer.lora_B, expected.lora_B)


def test_a_layer_can_be_fitted_by_gradient_steps():
    torch.manual_seed(0)
    x = torch.randn(200, 32) + 1.0
    layer = SparseActLinear.from_linear(nn.Linear(32, 6), ActivationSparsityConfig(rank=3))
    stats = layer.stats()
    stats.update(x)
    layer.fit(stats, solver="sgd")
    assert stats.loss(Factors(layer.lora_A, layer.lora_B)) < 0.95


def test_a_layer_s_state_dict_makes_the_round_trip():
    torch.manual_seed(0)
    linear, x = nn.Linear(32, 6), torch.randn(50, 32)
    first = SparseActLinear.from_linear(linear, ActivationSparsityConfig(rank=3)).fit(x)
    second = SparseActLinear.from_linear(nn.Linear(32, 6), ActivationSparsityConfig(rank=3)).fit(torch.randn(50, 32))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x), second(x))


def test_a_fresh_layer_takes_a_repair_from_a_state_dict():
    torch.manual_seed(0)
    x = torch.randn(50, 32)
    fitted = nn.Sequential(SparseActLinear.from_linear(nn.Linear(32, 6), ActivationSparsityConfig(rank=3)).fit(x))
    fresh = nn.Sequential(SparseActLinear.from_linear(nn.Linear(32, 6)))
    fresh.load_state_dict(fitted.state_dict())
    assert torch.equal(fresh(x), fitted(x))
    assert not fresh[0].lora_A.requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_half_precision(dtype):
    x = torch.randn(4, 32, dtype=dtype)
    layer = SparseActLinear.from_linear(nn.Linear(32, 6, dtype=dtype)).fit(torch.randn(60, 32, dtype=dtype))
    assert layer(x).dtype == dtype


def test_a_training_run_on_top_reaches_the_layers_below():
    model = mlp()
    quiet(model, ALL, batches())
    x = torch.randn(3, 32, requires_grad=True)
    model(x).sum().backward()
    assert x.grad.abs().sum() > 0


# ---------------------------------------------------------------------------------------------- which layers


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj", "model.layers.11.mlp.down_proj", "transformer.h.0.attn.c_attn",
        "transformer.h.0.mlp.c_proj", "transformer.h.0.mlp.c_fc", "blocks.3.attn.qkv", "blocks.3.mlp.fc1",
        "transformer_blocks.0.attn.to_q", "transformer_blocks.0.attn.add_k_proj", "transformer_blocks.0.ff.net.0.proj",
        "transformer_blocks.0.ff.net.2", "transformer_blocks.0.ff_context.net.2", "transformer_blocks.7.img_mlp.net.2",
        "single_transformer_blocks.5.proj_mlp", "layers.2.feed_forward.w2", "blocks.1.up", "blocks.1.qkv",
        "encoder.layer.0.intermediate.dense", "encoder.layer.0.output.dense", "transformer_blocks.0.attn1.to_v",
    ],
)  # fmt: skip
def test_auto_takes_projections_and_mlps(name):
    assert is_auto(name)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.o_proj", "transformer.h.0.attn.c_proj", "blocks.3.attn.proj", "lm_head",
        "transformer_blocks.0.attn.to_out.0", "transformer_blocks.0.norm1.linear", "blocks.1.modulation",
        "single_transformer_blocks.5.proj_out", "x_embedder", "time_text_embed.timestep_embedder.linear_1", "proj_out",
        "blocks.0.adaLN_modulation.1", "encoder.layer.0.attention.output.dense", "norm_out.linear", "context_embedder",
        "transformer_blocks.0.attn.to_add_out", "model.layers.0.mlp.gate", "transformer_blocks.0.img_mod.1",
        "layers.2.attention.to_out.0",
    ],
)  # fmt: skip
def test_auto_leaves_outputs_modulations_and_embeddings_dense(name):
    assert not is_auto(name)


def test_a_llama_s_projections_and_mlps_become_sparse():
    model = tiny_llama()
    sparsify_(model)
    parts = {name.rpartition(".")[2] for name in sparse_names(model)}
    assert parts == {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj"}


def test_a_regular_expression_chooses_layers_and_skip_takes_some_away():
    model = tiny_llama()
    quiet(model, ActivationSparsityConfig(targets=r"\.mlp\.", skip=("gate_proj", "model.layers.0.mlp.up_proj"), rank=0))
    assert sparse_names(model) == ["model.layers.0.mlp.down_proj", "model.layers.1.mlp.up_proj",
                                   "model.layers.1.mlp.down_proj"]  # fmt: skip


def test_a_layer_whose_width_does_not_divide_stays_dense_with_a_notice():
    model = nn.Sequential(nn.Linear(30, 24), nn.GELU(), nn.Linear(24, 8))
    report = sparsify_(model, ALL)
    assert report.skipped == ("0",)
    assert type(model[0]) is nn.Linear
    assert "dense: 4 does not divide in_features" in report.summary()


# --------------------------------------------------------------------------------------------------- the repair


def test_repairs_are_fitted_to_the_inputs_of_the_dense_model():
    model, data = mlp(), batches()
    dense = mlp()
    quiet(model, ALL, data)
    stats = SparseActLinear.from_linear(dense[2], ALL).stats()
    for batch in data:
        stats.update(dense[1](dense[0](batch[:32])))  # the last fifth of 40 rows is held out
    expected = closed_form(stats, 4)
    torch.testing.assert_close(model[2].lora_B @ model[2].lora_A, expected.lora_B @ expected.lora_A)


def test_conv1d_is_repaired_as_a_linear_layer():
    model = tiny_gpt2()
    dense = tiny_gpt2()
    report = quiet(model, ActivationSparsityConfig(rank=4), ids())
    assert len(report.layers) == 6
    with torch.no_grad(), bypassed(model):
        torch.testing.assert_close(model(ids()).logits, dense(ids()).logits)
    layer = model.transformer.h[1].mlp.c_proj
    assert (layer.in_features, layer.out_features, tuple(layer.weight.shape)) == (128, 32, (128, 32))


def test_bypassed_is_the_dense_model_and_the_sparse_one_comes_back():
    model, x = tiny_llama(), ids()
    with torch.no_grad():
        dense = model(x).logits
        quiet(model, ActivationSparsityConfig(rank=4), x)
        with bypassed(model):
            assert torch.equal(model(x).logits, dense)
        assert not torch.equal(model(x).logits, dense)


def test_batches_a_function_and_keywords_give_the_same_repair():
    first, second, third = tiny_llama(), tiny_llama(), tiny_llama()
    config = ActivationSparsityConfig(rank=4)
    quiet(first, config, ids())
    quiet(second, config, lambda model: [model(row[None]) for row in ids()][-1])
    quiet(third, config, [{"input_ids": row[None]} for row in ids()])
    for name in sparse_names(first):
        a, b, c = (model.get_submodule(name) for model in (first, second, third))
        assert torch.equal(a.lora_A, c.lora_A)
        torch.testing.assert_close(a.lora_B @ a.lora_A, b.lora_B @ b.lora_A, rtol=1e-4, atol=1e-6)


def test_a_layer_that_is_called_twice_sees_the_tokens_of_both_calls():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.last = nn.Linear(32, 32), nn.Linear(32, 8)

        def forward(self, x):
            return self.last(self.layer(torch.relu(self.layer(x))))

    torch.manual_seed(0)
    model = Twice()
    with pytest.warns(UserWarning, match=r"^fewer tokens reached last than they have inputs"):
        sparsify_(model, ALL, batches(n=2, rows=17))  # 2 x 14 rows fitted for `last`, twice as many for `layer`


def test_the_model_is_left_in_the_mode_it_was_in():
    model = mlp().train()
    model[1].eval()
    quiet(model, ALL, batches())
    assert [module.training for module in (model, *model)] == [True, True, False, True]


def test_few_tokens_are_warned_of():
    with pytest.warns(UserWarning, match=r"^fewer tokens reached 0 than they have inputs: their repair rests on the"):
        sparsify_(mlp(), ALL, batches(n=1, rows=31))  # 25 of 31 rows are fitted: fewer than 32, more than 24


def test_inputs_along_one_direction_are_repaired_exactly_by_rank_one():
    """S(a v) = a S(v): on a line the error is linear in the input."""
    torch.manual_seed(0)
    x = [torch.randn(40, 1) * torch.randn(32, generator=torch.Generator().manual_seed(3)) for _ in range(4)]
    report = quiet(nn.Sequential(nn.Linear(32, 8, bias=False)), ActivationSparsityConfig(targets=".*", rank=1), x)
    assert report.layers[0].norm > 0.01
    assert report.output_error < 1e-9


# --------------------------------------------------------------------------------------------------- the report


def test_the_report_counts_multiply_adds_and_parameters():
    model = mlp()
    report = quiet(model, ALL, batches())
    first, second = report.layers
    assert first.flops == 0.5 + 4 * (32 + 24) / (32 * 24)
    assert report.n_added == 4 * (32 + 24) + 4 * (24 + 8)
    assert report.flops == pytest.approx((32 * 24 * first.flops + 24 * 8 * second.flops) / (32 * 24 + 24 * 8))


def test_the_report_s_output_error_is_that_of_the_outputs():
    model, data = mlp(), batches()
    report = quiet(model, ALL, data)
    with torch.no_grad():
        gaps = [(model(x) - mlp()(x)).square().sum() for x in data]
        norms = [mlp()(x).square().sum() for x in data]
    assert report.output_error == pytest.approx(float(sum(gaps) / sum(norms)), rel=1e-5)


def test_the_report_prints_as_a_table_and_draws():
    import matplotlib as mpl

    mpl.use("Agg")
    report = quiet(mlp(), ALL, batches())
    assert re.search(r"2 of 2 layers with 2:4 inputs, 0\.\d+ of their multiply-adds; 352 parameters added; relative",
                     report.summary())  # fmt: skip
    assert len(report.to_frame()) == 2
    assert report.plot().get_ylabel() == "relative squared error of its output"


def test_without_calibration_nothing_is_measured_or_repaired():
    model = mlp()
    report = sparsify_(model, ALL)
    assert math.isnan(report.output_error)
    assert math.isnan(report.layers[0].energy)
    assert model[0].rank == 0
    assert 0.7 < report.layers[0].weight_energy < 1


def test_layers_are_left_dense_until_the_output_is_close_enough():
    data = batches()
    free = quiet(mlp(), ALL, data)
    worst = max(free.layers, key=lambda layer: layer.error).layer
    model = mlp()
    report = quiet(model, ActivationSparsityConfig(targets=".*", rank=4, max_error=0.9 * free.output_error), data)
    assert report.output_error <= 0.9 * free.output_error
    assert worst in report.skipped
    assert type(model.get_submodule(worst)) is nn.Linear


def test_an_error_that_no_layer_can_keep_leaves_the_model_dense():
    model = mlp()
    report = quiet(model, ActivationSparsityConfig(targets=".*", rank=4, max_error=1e-12), batches())
    assert report.output_error == 0.0
    assert sparse_names(model) == []


# ---------------------------------------------------------------------------------------------------- folders


def test_a_llama_is_saved_and_loads_with_the_same_logits(tmp_path):
    model = tiny_llama()
    quiet(model, ActivationSparsityConfig(rank=4), ids())
    save(model, tmp_path / "out")
    with torch.no_grad():
        assert torch.equal(load(tmp_path / "out")(ids()).logits, model(ids()).logits)


def test_the_saved_folder_still_loads_as_the_dense_model(tmp_path):
    from transformers import AutoModelForCausalLM

    model = tiny_llama()
    with torch.no_grad():
        dense = model(ids()).logits
        quiet(model, ActivationSparsityConfig(rank=4), ids())
        save(model, tmp_path)
        assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path)(ids()).logits, dense)


@pytest.mark.parametrize("make", [tiny_gpt2, tiny_qwen], ids=["gpt2", "qwen"])
def test_other_models_are_saved_and_load_with_the_same_logits(make, tmp_path):
    model = make()
    quiet(model, ActivationSparsityConfig(rank=4), ids())
    save(model, tmp_path)
    with torch.no_grad():
        assert torch.equal(load(tmp_path)(ids()).logits, model(ids()).logits)


def test_a_loaded_model_holds_nothing_of_the_file(tmp_path, monkeypatch):
    """What a mapped file holds can change under a model, and where its tensors begin the last bit of a product."""
    import safetensors.torch

    model, x = mlp(), batches()[0]
    quiet(model, ALL, batches())
    save(model, tmp_path)
    read, real = [], safetensors.torch.load_file
    monkeypatch.setattr(safetensors.torch, "load_file", lambda path: read.append(real(path)) or read[-1])
    loaded = load(tmp_path, mlp(seed=3))
    for state in read:
        for tensor in state.values():
            tensor.zero_()
    assert len(read) == 2
    assert torch.equal(loaded(x), model(x))


def test_repairs_alone_are_put_on_a_dense_model(tmp_path):
    model, x = mlp(), batches()[0]
    quiet(model, ALL, batches())
    save(model, tmp_path, weights=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter_model.safetensors", "rt_lynx.json"]
    assert torch.equal(load(tmp_path, mlp())(x), model(x))


def test_repairs_have_peft_s_names_and_shapes(tmp_path):
    from safetensors.torch import load_file

    model = mlp()
    quiet(model, ALL, batches())
    save(model, tmp_path)
    shapes = {name: tuple(x.shape) for name, x in load_file(tmp_path / "adapter_model.safetensors").items()}
    assert shapes["base_model.model.2.lora_A.weight"] == (4, 24)
    assert shapes["base_model.model.2.lora_B.weight"] == (8, 4)


def test_layers_left_dense_are_dense_after_loading(tmp_path):
    model = tiny_llama()
    quiet(model, ActivationSparsityConfig(rank=2, skip=("down_proj",)), ids())
    save(model, tmp_path)
    assert sparse_names(load(tmp_path)) == sparse_names(model)


def test_a_model_pickles_with_the_same_outputs():
    import pickle

    model, x = mlp(), batches()[0]
    quiet(model, ALL, batches())
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), model(x))


def saved(tmp_path):
    model = mlp()
    quiet(model, ALL, batches())
    save(model, tmp_path)
    return tmp_path


def test_a_damaged_file_is_refused(tmp_path):
    path = saved(tmp_path) / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=r"^the weights in .* do not fit the model"):
        load(tmp_path, mlp())


def test_another_architecture_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"do not fit the model"):
        load(saved(tmp_path), nn.Sequential(nn.Linear(32, 24)))


def test_a_layer_that_is_not_there_is_refused(tmp_path):
    model = mlp()
    quiet(model, ALL, batches())
    save(model, tmp_path, weights=False)
    with pytest.raises(
        InputError, match=r"rt_lynx\.json names the layer '2', which the model does not have; it has 0$"
    ):
        load(tmp_path, nn.Sequential(nn.Linear(32, 24)))


def test_repairs_alone_need_the_dense_model(tmp_path):
    model = mlp()
    quiet(model, ALL, batches())
    save(model, tmp_path, weights=False)
    with pytest.raises(InputError, match=r"holds repairs only; give the dense model as model=$"):
        load(tmp_path)


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"holds no rt_lynx\.json and adapter_model\.safetensors, so it is not a folder"
    ):
        load(tmp_path)


def test_a_later_version_is_refused(tmp_path):
    path = saved(tmp_path) / "rt_lynx.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(InputError, match=r"rt_lynx\.json has version 2; this Assay reads version 1$"):
        load(tmp_path, mlp())


def test_a_dense_model_is_not_saved_as_a_sparse_one(tmp_path):
    with pytest.raises(InputError, match=r"^the model holds no sparse layer; call sparsify_ first$"):
        save(mlp(), tmp_path)


# ---------------------------------------------------------------------------------------------------- resuming


def test_an_interrupted_run_goes_on_after_the_finished_layers(tmp_path, monkeypatch):
    from assay.compress.rt_lynx import models

    whole = mlp()
    quiet(whole, ALL, batches())
    solved = []
    real = models.solve

    def interrupted(stats, config):
        if solved:
            raise KeyboardInterrupt
        solved.append(len(stats.gram))
        return real(stats, config)

    model = mlp()
    monkeypatch.setattr(models, "solve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quiet(model, ALL, batches(), checkpoint=tmp_path)
    assert sparse_names(model) == []
    rest = []
    monkeypatch.setattr(models, "solve", lambda stats, config: (rest.append(len(stats.gram)), real(stats, config))[1])
    quiet(model, ALL, batches(), checkpoint=tmp_path)
    assert (solved, rest) == ([32], [24])
    assert torch.equal(model(batches()[0]), whole(batches()[0]))


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    quiet(mlp(), ALL, batches(), checkpoint=tmp_path)
    with pytest.raises(InputError, match=r"holds layers of a run with other options, another model or other data"):
        quiet(mlp(seed=5), ALL, batches(), checkpoint=tmp_path)


@pytest.mark.parametrize("as_function", [False, True], ids=["batches", "a function"])
def test_a_checkpoint_of_other_calibration_data_is_refused(as_function, tmp_path):
    def calibration(seed):
        data = batches(seed=seed)
        return (lambda model: [model(x) for x in data][-1]) if as_function else data

    quiet(mlp(), ALL, calibration(1), checkpoint=tmp_path)
    quiet(mlp(), ALL, calibration(1), checkpoint=tmp_path)
    with pytest.raises(InputError, match=r"holds layers of a run with other options, another model or other data"):
        quiet(mlp(), ALL, calibration(3), checkpoint=tmp_path)


@pytest.mark.parametrize("least", [0.0, 32e6], ids=["a layer at a time", "a block at a time"])
def test_walking_the_blocks_gives_the_statistics_of_whole_passes(least, monkeypatch):
    from assay.compress.rt_lynx import calibrate

    monkeypatch.setattr(calibrate, "_LEAST", least)
    model, config = tiny_llama(), ActivationSparsityConfig(rank=4)
    layers = calibrate.target_layers(model, config)
    runner = calibrate.Runner(model, ids())
    assert len(runner._stack(layers)) == 2
    walked = dict(runner.collect(layers, config))
    monkeypatch.setattr(calibrate.Runner, "_stack", lambda self, layers: [])
    for name, stats in runner.collect(layers, config):
        torch.testing.assert_close(walked[name].gram, stats.gram)
        torch.testing.assert_close(walked[name].cross, stats.cross)


class Skips(nn.Module):
    """Blocks of which the last also gets the input of the first: no plain stack."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(3)])

    def forward(self, x):
        h = self.blocks[1](self.blocks[0](x))
        return self.blocks[2](h + x)


def test_a_model_that_is_no_plain_stack_is_not_walked():
    from assay.compress.rt_lynx import calibrate

    model, data = Skips().eval(), batches()
    layers = calibrate.target_layers(model, ALL)
    runner = calibrate.Runner(model, data)
    assert runner._stack(layers) == []
    stats = dict(runner.collect(layers, ALL))["blocks.2.0"]
    with torch.no_grad():
        inputs = torch.cat([(model.blocks[1](model.blocks[0](x)) + x)[:32] for x in data])
    torch.testing.assert_close(stats.gram, inputs.T @ inputs)


def test_statistics_held_at_a_time_are_a_small_share_of_the_model(monkeypatch):
    from assay.compress.rt_lynx import calibrate
    from assay.compress.rt_lynx.calibrate import Runner

    monkeypatch.setattr(calibrate, "_LEAST", 0.0)
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(40)))
    layers = {str(i): layer for i, layer in enumerate(model)}
    sizes = [len(group) * 4 * 32 * 64 for group in Runner(model, batches())._groups(layers)]
    assert sum(sizes) == 40 * 4 * 32 * 64
    assert max(sizes) <= 0.1 * sum(4 * p.numel() for p in model.parameters())


# ------------------------------------------------------------------------------------------------------ bad input


def test_no_matching_layer_lists_those_that_are_there():
    with pytest.raises(InputError, match=r"^no linear layer matches targets='auto'; give targets a regular expression; "
                                         r"the model has 0, 2$"):  # fmt: skip
        sparsify_(mlp())


def test_a_width_that_divides_nowhere_names_the_layer():
    with pytest.raises(
        InputError, match=r"^m=4 divides the number of inputs of none of the layers 0; choose another m"
    ):
        sparsify_(nn.Sequential(nn.Linear(30, 8)), ALL)


def test_from_linear_refuses_a_width_that_does_not_divide():
    with pytest.raises(InputError, match=r"^in_features=30 is no multiple of m=4; leave the layer dense \(skip=\)$"):
        SparseActLinear.from_linear(nn.Linear(30, 8))


def test_nan_in_use_names_the_layer_and_the_call():
    model = mlp()
    sparsify_(model, ALL)
    x = batches()[0]
    model(x)
    with pytest.raises(InputError, match=r"^layer '0', call 2: the input holds NaN or infinity$"):
        model(torch.full_like(x, math.nan))


def test_nan_in_calibration_names_the_layer_and_the_call():
    data = batches()
    data[2][1, 1] = math.nan
    with pytest.raises(InputError, match=r"^layer '0', call 3: the input holds NaN or infinity$"):
        sparsify_(mlp(), ALL, data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 5}, r"^n=5, m=4: expected 1 <= n <= m <= 16"),
        ({"rank": -1}, r"^rank=-1: expected 0 \(no repair\) or more$"),
        ({"max_error": 0.0}, r"^max_error=0\.0: expected a positive relative squared error, or None$"),
        ({"solver": "adam"}, r"^solver='adam' is not one of closed_form, sgd$"),
        ({"backend": "cuda"}, r"^backend='cuda' is not one of masked, semi-structured, triton$"),
        ({"backend": "triton", "m": 8}, r"^backend='triton' knows groups of 4, not m=8; use backend='masked'$"),
        ({"backend": "semi-structured", "n": 1}, r"^backend='semi-structured' is 2:4, not 1:4; use backend='masked'$"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        ActivationSparsityConfig(**options)


def test_an_expression_that_cannot_be_read_is_refused():
    with pytest.raises(InputError, match=r"^targets='\(' is no regular expression: "):
        sparsify_(mlp(), ActivationSparsityConfig(targets="("))


def test_the_semi_structured_backend_says_what_it_needs():
    model = mlp()
    sparsify_(model, ActivationSparsityConfig(targets=".*", backend="semi-structured"))
    with pytest.raises(InputError, match=r"^backend='semi-structured' needs a CUDA GPU of compute capability 8\.0 or "
                                         r"later, not cpu; use backend='masked'$"):  # fmt: skip
        model(batches()[0])


def on_a_gpu(dtype):
    """What the backend asks a tensor on a GPU before it computes; there is none here."""
    return SimpleNamespace(device=torch.device("cuda", 0), dtype=dtype)


def test_the_semi_structured_backend_names_an_old_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(InputError, match=r"^backend='semi-structured' needs a CUDA GPU of compute capability 8\.0 or "
                                         r"later, not cuda:0; use backend='masked'$"):  # fmt: skip
        semi_structured_linear(on_a_gpu(torch.float16), torch.ones(4, 8), None)


def test_the_semi_structured_backend_names_a_dtype_that_it_cannot_multiply(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(InputError, match=r"^backend='semi-structured' multiplies float16 and bfloat16, not "
                                         r"torch\.float32; convert the model, or use backend='masked'$"):  # fmt: skip
        semi_structured_linear(on_a_gpu(torch.float32), torch.ones(4, 8), None)


def test_an_error_target_needs_calibration_data():
    with pytest.raises(InputError, match=r"^max_error=0\.1 is measured on calibration data; give calibration=$"):
        sparsify_(mlp(), ActivationSparsityConfig(targets=".*", max_error=0.1))


def test_an_error_target_needs_an_output():
    config = ActivationSparsityConfig(targets=".*", max_error=0.1)
    with pytest.raises(InputError, match=r"^max_error=0\.1: the calibration returns no tensor to compare; return the"):
        quiet(mlp(), config, lambda model: [model(x) for x in batches()] and None)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_semi_structured_backend_gives_what_the_masked_one_gives():
    torch.manual_seed(0)
    x = torch.randn(100, 256, device="cuda", dtype=torch.float16)
    linear = nn.Linear(256, 128, device="cuda", dtype=torch.float16)
    masked = SparseActLinear.from_linear(linear)
    sparse = SparseActLinear.from_linear(linear, ActivationSparsityConfig(backend="semi-structured"))
    torch.testing.assert_close(sparse(x), masked(x), rtol=2e-2, atol=2e-2)


# ------------------------------------------------------------------------------------------------- real sizes


@pytest.mark.slow
def test_the_demo_model_is_saved_and_loads_with_the_same_logits(tmp_path):
    from assay.models import demo_lm

    model, _ = demo_lm()
    tokens = torch.randint(49_000, (2, 64), generator=torch.Generator().manual_seed(0))
    quiet(model, ActivationSparsityConfig(targets=r"layers\.\d\.mlp\.", rank=8), tokens)
    save(model, tmp_path)
    with torch.no_grad():
        assert torch.equal(load(tmp_path)(tokens).logits, model(tokens).logits)
