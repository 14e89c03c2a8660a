"""dynamic-whitening as a start of LoRA: nothing changes at step 0, PiSSA is the white case, and it can be undone."""

import pytest
import torch

from assay._core.errors import InputError
from assay.compress.dynamic_whitening import init_lora_whitened, restore, whitened_svd

peft = pytest.importorskip("peft")

TARGETS = ["q_proj", "v_proj", "down_proj"]


pytestmark = pytest.mark.usefixtures("one_thread")


def base():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def adapted(r=4, model=None, **options):
    config = peft.LoraConfig(r=r, lora_alpha=2 * r, target_modules=TARGETS, **options)
    return peft.get_peft_model(model or base(), config)


def tokens():
    return torch.randint(0, 97, (16, 32), generator=torch.Generator().manual_seed(0))


def logits(model):
    with torch.no_grad():
        return model(tokens()[:2]).logits


def layers(model):
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}


def product(layer):
    """c B A."""
    return layer.scaling["default"] * layer.lora_B["default"].weight @ layer.lora_A["default"].weight


@pytest.mark.parametrize("stats", ["dense", "lowrank"])
@pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"r": 1}], ids=["plain", "rslora", "rank 1"])
def test_the_model_is_unchanged_at_the_first_step(stats, options):
    model = adapted(**options)
    before = logits(model)
    init_lora_whitened(model, tokens(), stats=stats)
    torch.testing.assert_close(logits(model), before, atol=1e-5, rtol=1e-5)
    assert all(layer.lora_B["default"].weight.any() for layer in layers(model).values())


def test_a_base_with_dropout_that_is_in_evaluation_mode_stays_so():
    """peft.get_peft_model returns a wrapper in training mode around a base that is in evaluation mode."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=97, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=None,
                        eos_token_id=None)  # fmt: skip
    assert config.resid_pdrop == 0.1
    lora = peft.LoraConfig(r=4, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    model = peft.get_peft_model(GPT2LMHeadModel(config).eval(), lora)
    modes = {name: module.training for name, module in model.named_modules()}
    before = logits(model)
    init_lora_whitened(model, tokens())
    torch.testing.assert_close(logits(model), before, atol=1e-5, rtol=0)
    assert {name: module.training for name, module in model.named_modules()} == modes


def test_in_bfloat16_the_first_step_moves_by_the_rounding_of_what_is_left():
    """W - c B A is rounded to eight bits: it moves outputs about as much as rounding the weights did."""
    model = adapted(model=base().bfloat16())
    before = logits(model).float()
    init_lora_whitened(model, tokens())
    moved = float((logits(model).float() - before).norm() / before.norm())
    assert 0 < moved < 2**-6


def test_the_adapter_is_the_whitened_truncation_on_the_data():
    model = adapted()
    layer = next(m for n, m in layers(model).items() if n.endswith("1.mlp.down_proj"))
    found = []
    handle = layer.base_layer.register_forward_pre_hook(lambda m, args: found.append(args[0].reshape(-1, 96)))
    with torch.no_grad():
        model(tokens())
    handle.remove()
    x = torch.cat(found).double()
    expected = whitened_svd(layer.base_layer.weight, x.T @ x, 4, eps=1e-6)
    init_lora_whitened(model, tokens())
    torch.testing.assert_close(product(layer), (expected.a @ expected.b).float(), atol=1e-5, rtol=1e-3)
    assert layer.lora_A["default"].weight.shape == (4, 96)


def test_with_white_inputs_it_is_pissa(monkeypatch):
    from assay.compress.dynamic_whitening import lora

    monkeypatch.setattr(lora, "whitened_svd", lambda w, gram, rank, eps: whitened_svd(w, torch.eye(len(gram)), rank))
    ours, theirs = adapted(), adapted(init_lora_weights="pissa")
    init_lora_whitened(ours, tokens())
    for name, layer in layers(ours).items():
        torch.testing.assert_close(product(layer), product(layers(theirs)[name]), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(
            layer.base_layer.weight, layers(theirs)[name].base_layer.weight, atol=1e-5, rtol=1e-4
        )


def test_the_columns_of_the_second_factor_are_orthogonal():
    # B₀ᵀ B₀ is diag(s) / c: its columns are orthogonal, with the root of a singular value as their length.
    model = adapted()
    init_lora_whitened(model, tokens())
    layer = next(iter(layers(model).values()))
    b = layer.lora_B["default"].weight.detach()
    square = b.T @ b
    torch.testing.assert_close(square, torch.diag(square.diagonal()), atol=1e-3 * float(square.max()), rtol=0)


def train(model, steps=3):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(steps):
        loss = model(tokens(), labels=tokens()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_only_the_adapter_trains():
    model = adapted()
    init_lora_whitened(model, tokens())
    assert {name.rpartition(".lora_")[2][0] for name, p in model.named_parameters() if p.requires_grad} == {"A", "B"}


@pytest.mark.parametrize("options", [{}, {"use_rslora": True}], ids=["plain", "rslora"])
def test_after_restoring_anyone_can_load_the_adapter_on_the_original_base(options, tmp_path):
    model = adapted(**options)
    start = init_lora_whitened(model, tokens())
    train(model)
    trained = logits(model)
    restore(model, start)
    torch.testing.assert_close(logits(model), trained, atol=1e-4, rtol=1e-4)
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(base(), tmp_path).eval()
    torch.testing.assert_close(logits(loaded), trained, atol=1e-4, rtol=1e-4)
    assert loaded.peft_config["default"].r == 8


def test_restoring_gives_the_frozen_weights_back():
    model = adapted()
    before = {name: layer.base_layer.weight.clone() for name, layer in layers(model).items()}
    restore(model, init_lora_whitened(model, tokens()))
    for name, layer in layers(model).items():
        torch.testing.assert_close(layer.base_layer.weight, before[name], atol=1e-6, rtol=1e-5)


def test_a_weight_that_another_model_shares_stays_as_it_is():
    plain = base()
    other = torch.nn.Linear(64, 64, bias=False)
    other.weight = plain.model.layers[0].self_attn.q_proj.weight
    before = other.weight.clone()
    init_lora_whitened(adapted(model=plain), tokens())
    assert torch.equal(other.weight, before)


def test_a_trained_adapter_is_refused():
    model = adapted()
    train(model, steps=1)
    with pytest.raises(InputError, match=r"its adapter 'default' is not fresh; start from LoraConfig's default$"):
        init_lora_whitened(model, tokens())


def test_a_model_without_an_adapter_is_refused():
    with pytest.raises(
        InputError, match=r"^the model has no LoRA adapter 'default' on linear layers; wrap it with peft"
    ):
        init_lora_whitened(base(), tokens())


def test_unknown_statistics_are_refused():
    with pytest.raises(InputError, match=r"^stats='odd' is not one of dense, lowrank$"):
        init_lora_whitened(adapted(), tokens(), stats="odd")
