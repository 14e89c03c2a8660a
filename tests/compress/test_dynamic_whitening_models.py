"""dynamic-whitening on models: what each layer is fitted to, resuming, folders, reports, bad input."""

import copy
import itertools
import json
import warnings

import pytest
import torch
from diffusers_models import noise_levels, tiny_dit
from torch import nn

from assay._core.errors import InputError
from assay.compress.dynamic_whitening import (
    LowRankLinear,
    WhiteningConfig,
    factorize_,
    load,
    merge_,
    save,
    whitened_svd,
)
from assay.compress.dynamic_whitening import models as models_module
from assay.compress.dynamic_whitening.folders import MANIFEST, WEIGHTS

pytestmark = pytest.mark.usefixtures("one_thread")


SMALL = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 96}
LM = {"vocab_size": 97, "num_key_value_heads": 2, "max_position_embeddings": 64, **SMALL}


def tiny_llama(*, tied=True):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**LM, tie_word_embeddings=tied)).eval()


def tiny_qwen():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**LM, bos_token_id=None, eos_token_id=None)).eval()


def tiny_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=97, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None
    )
    return GPT2LMHeadModel(config).eval()


def tiny_vit():
    """A transformer that is no language model: it sees pictures."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    return ViTForImageClassification(ViTConfig(**SMALL, image_size=32, patch_size=4, num_labels=32)).eval()


def tokens(n=24, length=48, seed=0):
    return torch.randint(0, 97, (n, length), generator=torch.Generator().manual_seed(seed))


def pictures():
    return [torch.randn(24, 3, 32, 32, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]


MAKERS = {
    "llama": (tiny_llama, tokens),
    "llama, untied": (lambda: tiny_llama(tied=False), tokens),
    "qwen": (tiny_qwen, tokens),
    "gpt2": (tiny_gpt2, tokens),
    "vit": (tiny_vit, pictures),
}


def mlp(*widths):
    torch.manual_seed(0)
    layers = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def normal(n, width, seed=0):
    return [torch.randn(n, width, generator=torch.Generator().manual_seed(seed)) * torch.linspace(0.1, 3, width)]


def logits(model, x=None):
    with torch.no_grad():
        out = model(tokens(2, seed=9) if x is None else x)
    return getattr(out, "logits", out)


def inputs_of(model, name, calibration):
    """Second moment of what a layer gets, by a hook of the test's own and the whole model."""
    found = []
    layer = model.get_submodule(name)
    handle = layer.register_forward_pre_hook(lambda module, args: found.append(args[0].reshape(-1, args[0].shape[-1])))
    with torch.no_grad():
        for item in calibration:
            model(item[None] if isinstance(calibration, torch.Tensor) else item)
    handle.remove()
    x = torch.cat(found).double()
    return x.T @ x


def weight_of(layer):
    weight = layer.weight.detach().double()
    return weight if isinstance(layer, nn.Linear) else weight.T


# ------------------------------------------------------------------------------------- what a layer is fitted to

ORDER = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LLAMA_NAMES = [
    f"model.layers.{i}.{'self_attn' if part[0] in 'qkvo' else 'mlp'}.{part}" for i in range(2) for part in ORDER
]


def test_every_layer_is_fitted_to_its_inputs_behind_the_compressed_layers_before_it():
    full, made = tiny_llama(), tiny_llama()
    report = factorize_(made, WhiteningConfig(ratio=0.5, eps=0.0), tokens())
    ranks = {layer.layer: layer.rank for layer in report.layers}
    for group in (["q_proj", "k_proj", "v_proj"], ["o_proj"], ["gate_proj", "up_proj"], ["down_proj"]):
        names = [name for name in LLAMA_NAMES if name.rpartition(".")[2] in group and ".0." in name]
        gram = inputs_of(full, names[0], tokens())  # of a model that takes the factors step by step
        for name in names:
            factors = whitened_svd(weight_of(full.get_submodule(name)), gram, ranks[name])
            expected = (factors.a @ factors.b).float()
            torch.testing.assert_close(made.get_submodule(name).weight, expected, atol=2e-5, rtol=1e-3)
        for name in names:
            full.set_submodule(name, made.get_submodule(name))


def test_on_the_first_group_dynamic_equals_static():
    found = {}
    for whiten in ("dynamic", "static"):
        found[whiten] = tiny_llama()
        factorize_(found[whiten], WhiteningConfig(ratio=0.5, whiten=whiten), tokens())
    for name in LLAMA_NAMES[:3]:
        dynamic, static = (found[whiten].get_submodule(name) for whiten in ("dynamic", "static"))
        assert torch.equal(dynamic.a, static.a)
        assert torch.equal(dynamic.b, static.b)
    assert not torch.equal(
        found["dynamic"].get_submodule(LLAMA_NAMES[3]).b, found["static"].get_submodule(LLAMA_NAMES[3]).b
    )


@pytest.mark.parametrize("name", LLAMA_NAMES[7:])
def test_with_all_earlier_layers_dense_dynamic_equals_static(name):
    made = []
    for whiten in ("dynamic", "static"):
        model = tiny_llama()
        factorize_(model, WhiteningConfig(ranks={name: 9}, whiten=whiten), tokens(8))
        made.append(model.get_submodule(name).weight)
    torch.testing.assert_close(*made, atol=1e-6, rtol=1e-6)


def test_on_what_a_layer_really_gets_dynamic_is_never_worse_than_static():
    # Both truncations of the same weight on the inputs of the dynamically compressed model.
    full, made = tiny_llama(), tiny_llama()
    report = factorize_(made, WhiteningConfig(ratio=0.4, eps=0.0), tokens())
    for layer in report.layers:
        static = inputs_of(full, layer.layer, tokens())
        now = inputs_of(made, layer.layer, tokens())
        weight = weight_of(full.get_submodule(layer.layer))
        factors = whitened_svd(weight, static, layer.rank)
        left = weight - factors.a @ factors.b
        error = (((left @ now) * left).sum() / ((weight @ now) * weight).sum()).sqrt()
        assert layer.error <= float(error) + 1e-4  # the factors are stored in float32


def test_the_error_of_the_stored_factors_is_what_the_singular_values_foresee():
    model = tiny_llama()
    frame = factorize_(model, WhiteningConfig(ratio=0.5, eps=0.0), tokens()).to_frame()
    assert (frame["error"] - frame["predicted"]).abs().max() < 1e-4


def test_the_anchored_target_on_the_first_group_is_the_weight_s():
    made = []
    for target in ("weight", "anchored"):
        model = tiny_llama()
        factorize_(model, WhiteningConfig(ratio=0.5, target=target), tokens())
        made.append(model.get_submodule(LLAMA_NAMES[0]).weight)
    torch.testing.assert_close(*made, atol=1e-5, rtol=1e-4)


def test_the_anchored_target_corrects_the_layers_before_it():
    errors = {}
    x = normal(400, 40)
    for target in ("weight", "anchored"):
        torch.manual_seed(0)
        chain = Chain(40, 3)
        reference = logits(chain, x[0])
        factorize_(chain, WhiteningConfig(ratio=0.5, target=target), x)
        errors[target] = float((logits(chain, x[0]) - reference).norm())
    assert errors["anchored"] < errors["weight"]


class Chain(nn.Module):
    """Blocks one after the other, with a layer before and one behind."""

    def __init__(self, width, n_blocks, skips=False):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(n_blocks)])
        self.last = nn.Linear(width, width)
        self.skips = skips

    def forward(self, x):
        x = kept = self.first(x)
        for number, block in enumerate(self.blocks):
            x = block(x + kept if self.skips and number == 2 else x)
        return self.last(x)


@pytest.mark.parametrize("skips", [False, True], ids=["chain", "with a skip over blocks"])
def test_layers_before_and_behind_the_blocks_are_fitted_in_their_order(skips):
    torch.manual_seed(0)
    full = Chain(40, 3, skips)
    made, x = copy.deepcopy(full), normal(300, 40)
    ranks = {layer.layer: layer.rank for layer in factorize_(made, WhiteningConfig(ratio=0.6, eps=0.0), x).layers}
    for name in ["first", "blocks.0.0", "blocks.1.0", "blocks.2.0", "last"]:
        factors = whitened_svd(weight_of(full.get_submodule(name)), inputs_of(full, name, x), ranks[name])
        expected = (factors.a @ factors.b).float()
        torch.testing.assert_close(made.get_submodule(name).weight, expected, atol=1e-4, rtol=1e-3)
        full.set_submodule(name, made.get_submodule(name))


def test_once_a_block_takes_inputs_before_any_layer_of_the_block_is_compressed():
    full, made = tiny_llama(), tiny_llama()
    factorize_(made, WhiteningConfig(ranks=dict.fromkeys(LLAMA_NAMES, 9), granularity="block", eps=0.0), tokens())
    name = LLAMA_NAMES[6]  # behind everything else of the first block
    factors = whitened_svd(weight_of(full.get_submodule(name)), inputs_of(full, name, tokens()), 9)
    torch.testing.assert_close(made.get_submodule(name).weight, (factors.a @ factors.b).float(), atol=2e-5, rtol=1e-3)


def test_the_drift_of_inputs_that_did_not_move_is_nothing_and_grows_behind():
    report = factorize_(tiny_llama(), WhiteningConfig(ratio=0.5, drift=True), tokens())
    assert [layer.drift for layer in report.layers[:3]] == pytest.approx([0, 0, 0], abs=1e-4)
    assert report.layers[3].drift > 0.01


def test_only_variances_is_the_truncation_in_channels_of_equal_strength():
    model, x = mlp(40, 40), normal(300, 40)
    weight, scale = weight_of(model[0]), x[0].double().square().sum(0).sqrt()
    factorize_(model, WhiteningConfig(ratio=0.5, whiten="diag", eps=0.0), x)
    u, s, vt = torch.linalg.svd(weight * scale)
    expected = ((u[:, :10] * s[:10]) @ vt[:10] / scale).float()
    torch.testing.assert_close(model[0].weight, expected, atol=1e-5, rtol=1e-4)


def test_a_data_loader_resumes(tmp_path):
    rows = torch.utils.data.DataLoader(list(normal(300, 64)[0]), batch_size=50)
    for _ in range(2):
        factorize_(mlp(64, 64), WhiteningConfig(ratio=0.5), rows, checkpoint=tmp_path)


def test_padding_is_kept_out_of_the_moments():
    ids = tokens(12)
    padded = torch.nn.functional.pad(ids, (0, 10), value=5)
    mask = torch.nn.functional.pad(torch.ones_like(ids), (0, 10))
    made = []
    for calibration in ([{"input_ids": ids}], [{"input_ids": padded, "attention_mask": mask}]):
        model = tiny_llama()
        report = factorize_(model, WhiteningConfig(ratio=0.5), calibration)
        assert {layer.n_tokens for layer in report.layers} == {12 * 48}
        made.append(logits(model))
    torch.testing.assert_close(*made, atol=1e-3, rtol=1e-3)


def test_half_precision_inputs_are_summed_in_full():
    model = tiny_llama().bfloat16()
    report = factorize_(model, WhiteningConfig(ratio=0.5), tokens())
    assert model.get_submodule(LLAMA_NAMES[0]).a.dtype == torch.bfloat16
    assert all(layer.error < 1 for layer in report.layers)


class Experts(nn.Module):
    """Two experts, of which calibration reaches one."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(40, 40), nn.Linear(40, 40)])

    def forward(self, x):
        return self.experts[0](x)


def test_an_expert_without_tokens_is_truncated_plainly_and_the_report_says_so():
    torch.manual_seed(0)
    model = Experts()
    u, s, vt = torch.linalg.svd(model.experts[1].weight.detach())
    report = factorize_(model, WhiteningConfig(ratio=0.5), normal(100, 40))
    assert [layer.note for layer in report.layers] == ["", "no data reached it: plain truncation"]
    torch.testing.assert_close(model.experts[1].weight, (u[:, :10] * s[:10]) @ vt[:10], atol=1e-5, rtol=1e-4)


# ------------------------------------------------------------------------------------------------ ranks and bytes


@pytest.mark.parametrize("ratio", [0.9, 0.5])
def test_no_layer_has_more_than_its_share_of_parameters(ratio):
    report = factorize_(tiny_llama(), WhiteningConfig(ratio=ratio, whiten="none"))
    assert len(report.layers) == 14
    assert all(layer.rank * (layer.out_features + layer.in_features) <= ratio * layer.out_features * layer.in_features
               for layer in report.layers)  # fmt: skip


def test_energy_gives_more_rank_where_it_saves_more_and_keeps_the_sum():
    even, greedy = (
        factorize_(tiny_llama(), WhiteningConfig(ratio=0.5, allocation=how, whiten="static"), tokens())
        for how in ("uniform", "energy")
    )
    assert greedy.ratio <= 0.5
    assert greedy.to_frame()["energy"].sum() > even.to_frame()["energy"].sum()


def test_factors_that_would_not_be_smaller_are_not_made():
    model = mlp(64, 64, 1)
    report = factorize_(model, WhiteningConfig(ratio=0.5), normal(100, 64))
    assert type(model[2]) is nn.Linear
    assert report.layers[1].note == "left dense: factors would not be smaller"


def test_all_parameters_means_that_everything_stays_dense():
    model = mlp(64, 64, 64)
    factorize_(model, WhiteningConfig(ratio=1.0), normal(100, 64))
    assert not any(isinstance(module, LowRankLinear) for module in model.modules())


def test_merged_layers_give_the_same_outputs():
    model = tiny_llama()
    factorize_(model, WhiteningConfig(ratio=0.5), tokens())
    before = logits(model)
    merge_(model)
    assert not any(isinstance(module, LowRankLinear) for module in model.modules())
    torch.testing.assert_close(logits(model), before, atol=1e-4, rtol=1e-4)


def test_biases_stay_as_they_are():
    model = tiny_qwen()
    bias = model.model.layers[0].self_attn.q_proj.bias
    factorize_(model, WhiteningConfig(ratio=0.5), tokens())
    assert model.model.layers[0].self_attn.q_proj.bias is bias


def test_a_tied_head_is_left_alone_even_when_it_is_not_skipped():
    model = tiny_llama()
    report = factorize_(model, WhiteningConfig(ratio=0.5, skip=()), tokens())
    assert report.skipped == ("lm_head",)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_budget_is_kept_and_used(tmp_path):
    torch.manual_seed(0)
    model = mlp(512, 512, 512, 512)
    factorize_(model, WhiteningConfig(budget=1_500_000, whiten="none"))
    save(model, tmp_path)
    assert 0.98 * 1_500_000 < (tmp_path / WEIGHTS).stat().st_size <= 1_500_000


# ------------------------------------------------------------------------------------------------ interrupted runs


class StoppedError(RuntimeError):
    pass


@pytest.mark.parametrize("target", ["weight", "anchored"])
def test_an_interrupted_run_goes_on_behind_the_last_finished_layer(target, tmp_path, monkeypatch):
    config = WhiteningConfig(ratio=0.5, target=target)
    expected = tiny_llama()
    factorize_(expected, config, tokens())

    done = []

    def failing(*args, **kwargs):
        if len(done) == 9:
            raise StoppedError
        done.append(args)
        return whitened_svd(*args, **kwargs)

    monkeypatch.setattr(models_module, "whitened_svd", failing)
    with pytest.raises(StoppedError):
        factorize_(tiny_llama(), config, tokens(), checkpoint=tmp_path / "run")
    again = []
    monkeypatch.setattr(models_module, "whitened_svd", lambda *a, **k: again.append(a) or whitened_svd(*a, **k))
    model = tiny_llama()
    report = factorize_(model, config, tokens(), checkpoint=tmp_path / "run")
    assert len(again) == 14 - 9
    assert [layer.layer for layer in report.layers] == LLAMA_NAMES
    assert torch.equal(logits(model), logits(expected))


@pytest.mark.parametrize("change", ["options", "calibration"])
def test_a_checkpoint_of_another_run_is_refused(change, tmp_path):
    factorize_(mlp(64, 64), WhiteningConfig(ratio=0.5), normal(100, 64), checkpoint=tmp_path)
    ratio, seed = (0.6, 0) if change == "options" else (0.5, 1)
    with pytest.raises(InputError, match=r"holds layers of a run with other options, another model or other"):
        factorize_(mlp(64, 64), WhiteningConfig(ratio=ratio), normal(100, 64, seed), checkpoint=tmp_path)


def test_a_damaged_layer_of_a_checkpoint_is_named(tmp_path):
    factorize_(mlp(64, 64), WhiteningConfig(ratio=0.5), normal(100, 64), checkpoint=tmp_path)
    next(tmp_path.glob("*.safetensors")).write_bytes(b"half")
    with pytest.raises(InputError, match=r"\.safetensors is damaged; remove it, and the layer is made again$"):
        factorize_(mlp(64, 64), WhiteningConfig(ratio=0.5), normal(100, 64), checkpoint=tmp_path)


# ------------------------------------------------------------------------------------------------ folders


@pytest.mark.parametrize("name", list(MAKERS))
def test_a_saved_model_loads_with_the_same_outputs(name, tmp_path):
    make, calibration = MAKERS[name]
    model = make()
    factorize_(model, WhiteningConfig(ratio=0.6), calibration())
    save(model, tmp_path / "out")
    x = pictures()[0] if name == "vit" else None
    loaded = load(tmp_path / "out", make() if name == "vit" else None)
    assert torch.equal(logits(loaded, x), logits(model, x))


@pytest.mark.parametrize("ratio", [0.8, 0.5])
def test_the_file_is_as_large_as_the_ratio_and_the_report_say(ratio, tmp_path):
    model = mlp(600, 900, 600)
    dense = sum(p.numel() * p.element_size() for p in model.parameters())
    report = factorize_(model, WhiteningConfig(ratio=ratio, whiten="none"))
    save(model, tmp_path)
    size = (tmp_path / WEIGHTS).stat().st_size
    assert size == pytest.approx(report.n_bytes, rel=0.01)
    assert size == pytest.approx(ratio * dense, rel=0.01)


def test_factors_can_be_stored_in_half_precision(tmp_path):
    model = mlp(256, 256, 256)
    x = normal(300, 256)
    factorize_(model, WhiteningConfig(ratio=0.5, dtype="float16"), x)
    save(model, tmp_path)
    assert (tmp_path / WEIGHTS).stat().st_size == pytest.approx(0.5 * 2 * 2 * 256 * 256, rel=0.05)
    assert logits(model, x[0]).dtype == torch.float32
    assert torch.equal(logits(load(tmp_path, mlp(256, 256, 256)), x[0]), logits(model, x[0]))


@pytest.mark.filterwarnings("ignore:.*tokens of calibration data:UserWarning")  # modulations see a row a picture
def test_a_diffusion_transformer_is_factorised_saved_and_loads_with_the_same_outputs(tmp_path):
    model, call = tiny_dit(), noise_levels(1, 4)[0]
    report = factorize_(model, WhiteningConfig(ratio=0.6), noise_levels(16, 4))
    factorised = {layer.layer for layer in report.layers if layer.rank}
    parts = ("attn1.to_q", "attn1.to_k", "attn1.to_v", "attn1.to_out.0", "ff.net.0.proj", "ff.net.2")
    assert {f"transformer_blocks.{i}.{part}" for i in range(2) for part in parts} <= factorised
    save(model, tmp_path)
    with torch.no_grad():
        before, after = tiny_dit()(**call).sample, model(**call).sample
        assert torch.equal(load(tmp_path, tiny_dit())(**call).sample, after)
    assert 0 < float((after - before).norm() / before.norm()) < 1


@pytest.mark.filterwarnings("ignore:.*tokens of calibration data:UserWarning")
def test_in_a_diffusion_transformer_whitened_factors_lose_less_than_plain_ones():
    call = noise_levels(1, 4)[0]
    with torch.no_grad():
        full = tiny_dit()(**call).sample
        lost = {}
        for whiten in ("dynamic", "none"):
            model = tiny_dit()
            config = WhiteningConfig(ratio=0.5, whiten=whiten, skip=("linear", "linear_1", "linear_2", "proj_out_1"))
            factorize_(model, config, noise_levels(16, 4))
            lost[whiten] = float((model(**call).sample - full).norm())
    assert lost["dynamic"] < lost["none"]


@pytest.mark.parametrize("ratio", [None, 1.0], ids=["never factorised", "all kept"])
def test_a_model_without_a_factorised_layer_is_not_saved(ratio, tmp_path):
    model = mlp(64, 64)
    if ratio is not None:
        factorize_(model, WhiteningConfig(ratio=ratio), normal(100, 64))
    with pytest.raises(InputError, match=r"^the model holds no factorised layer: call factorize_ first, and with a "
                                         r"ratio at which factors are smaller than the weights; a model whose layers "
                                         r"all stayed dense is saved with its own save_pretrained$"):  # fmt: skip
        save(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"holds no dynamic_whitening\.json and model\.safetensors, so it is not a"):
        load(tmp_path)


def saved(folder):
    model = mlp(64, 64)
    factorize_(model, WhiteningConfig(ratio=0.5, whiten="none"))
    save(model, folder)
    return folder


def test_a_manifest_that_names_another_layer_is_refused(tmp_path):
    path = saved(tmp_path) / MANIFEST
    manifest = json.loads(path.read_text())
    manifest["layers"]["9"] = manifest["layers"].pop("0")
    path.write_text(json.dumps(manifest))
    with pytest.raises(
        InputError, match=r"dynamic_whitening\.json names the layer '9', which the model does not have$"
    ):
        load(tmp_path, mlp(64, 64))


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 1}'])
def test_a_broken_manifest_is_refused(text, tmp_path):
    (saved(tmp_path) / MANIFEST).write_text(text)
    with pytest.raises(InputError, match=r"is not a manifest of compressed layers; save the model again$"):
        load(tmp_path, mlp(64, 64))


def test_weights_that_were_cut_off_are_refused(tmp_path):
    path = saved(tmp_path) / WEIGHTS
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=r"model\.safetensors does not fit the model: "):
        load(tmp_path, mlp(64, 64))


def test_the_report_prints_draws_and_has_a_row_a_layer():
    report = factorize_(mlp(64, 64, 64), WhiteningConfig(ratio=0.5), normal(100, 64))
    assert report.to_frame()["rank"].tolist() == [16, 16]
    assert "2 layers keep 0.500 of their parameters" in report.summary()
    assert report.plot().get_ylabel() == "relative error of the layer's output"


# ------------------------------------------------------------------------------------------------ bad input


def refused(message, config=None, calibration=None, model=None):
    with pytest.raises(InputError, match=message):
        factorize_(model or mlp(64, 64), config or WhiteningConfig(), calibration or normal(100, 64))


@pytest.mark.parametrize("ratio", [0.0, -1.0, 1.2, float("nan")])
def test_a_ratio_out_of_range_is_refused(ratio):
    refused(rf"^ratio={ratio}: expected the share of parameters to keep, above 0 and at most 1", WhiteningConfig(ratio))


@pytest.mark.parametrize("rank", [0, 65])
def test_a_rank_out_of_range_is_refused(rank):
    refused(rf"^ranks\['0'\]={rank}: a weight of 64 x 64 has ranks 1 to 64$", WhiteningConfig(ranks={"0": rank}))


def test_a_rank_for_a_layer_that_is_not_there_is_refused():
    refused(r"^ranks names '7', which is no linear layer to factorise; there are 0$", WhiteningConfig(ranks={"7": 3}))


@pytest.mark.parametrize("option", ["whiten", "target", "granularity", "allocation", "dtype"])
def test_an_unknown_option_is_refused(option):
    refused(rf"^{option}='odd' is not one of ", WhiteningConfig(**{option: "odd"}))


def test_the_anchored_target_needs_dynamic_inputs():
    refused(r"^target='anchored' needs whiten='dynamic'", WhiteningConfig(target="anchored", whiten="static"))


def test_calibration_data_is_asked_for():
    with pytest.raises(InputError, match=r"^whiten='dynamic' needs calibration data; give calibration=, or whiten"):
        factorize_(mlp(64, 64))


def test_too_few_tokens_are_told_with_the_numbers():
    with pytest.warns(UserWarning, match=r"^layer '0' saw 10 tokens of calibration data and has 64 inputs"):
        factorize_(mlp(64, 64, 64), WhiteningConfig(), normal(10, 64))


def test_enough_tokens_are_no_reason_to_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        factorize_(mlp(64, 64), WhiteningConfig(), normal(64, 64))


def test_inputs_with_nan_name_the_layer():
    x = normal(100, 64)
    x[0][3, 5] = float("nan")
    refused(r"^layer '0': its inputs on the calibration data hold NaN or infinity$", calibration=x)


def test_a_weight_with_nan_is_named():
    model = mlp(64, 64)
    with torch.no_grad():
        model[0].weight[0, 0] = torch.inf
    refused(r"^layer '0': its weight holds 1 values that are NaN or infinite$", model=model)


def test_weights_on_the_meta_device_are_refused():
    refused(r"^layer '0' is on the meta device, which holds no numbers; load", model=mlp(64, 64).to("meta"))


def test_quantised_weights_are_refused():
    model = mlp(64, 64)
    model[0].weight = nn.Parameter(torch.zeros(64, 64, dtype=torch.int8), requires_grad=False)
    refused(r"^layer '0': its weight is quantised \(torch\.int8\); load the model in float32", model=model)


def test_a_model_without_linear_layers_is_refused():
    refused(r"^the model has no linear layer to factorise apart from those skipped", model=nn.Sequential(nn.ReLU()))


def test_a_budget_below_what_is_not_factorised_is_refused():
    refused(
        r"^budget of 0\.0 MB: 0\.0 MB are embeddings, norms and skipped layers, which are", WhiteningConfig(budget=9)
    )
