"""MemoryLLM's blocks: what sees what, how many parameters, gradients, and generation through transformers."""

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from assay._core.errors import InputError
from assay.nn.memoryllm import MemoryLlamaConfig, MemoryLlamaForCausalLM

SHAPE = {
    "vocab_size": 61, "hidden_size": 24, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "bos_token_id": 1, "eos_token_id": None, "pad_token_id": None, "max_position_embeddings": 64,
}  # fmt: skip
H2 = 2048**2


pytestmark = pytest.mark.usefixtures("one_thread")


def made(seed=0, **options):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MemoryLlamaForCausalLM(MemoryLlamaConfig(**{**SHAPE, **options})).eval()


def ids(*shape, seed=0):
    return torch.randint(SHAPE["vocab_size"], shape, generator=torch.Generator().manual_seed(seed))


def memory_outputs(model, tokens):
    """What each layer's memory adds in a forward pass, in the order of the layers."""
    seen = []
    hooks = [layer.memory.register_forward_hook(lambda *call: seen.append(call[-1])) for layer in model.model.layers]
    with torch.no_grad():
        model(tokens)
    for hook in hooks:
        hook.remove()
    return seen


# ------------------------------------------------------------------------------------------------------ the blocks


def test_the_dense_kind_is_transformers_llama():
    model = made(ffn_beta="base")
    llama = LlamaForCausalLM(LlamaConfig(**SHAPE, rms_norm_eps=1e-5)).eval()
    llama.load_state_dict(model.state_dict())
    assert torch.equal(model(ids(2, 9)).logits, llama(ids(2, 9)).logits)


@pytest.mark.parametrize("beta", [0, 3])
def test_a_block_is_the_paper_s_equation(beta):
    model = made(ffn_beta=beta, num_hidden_layers=1)
    block, tokens = model.model.layers[0], ids(1, 7)
    with torch.no_grad():
        found = model.model(tokens, output_hidden_states=True).hidden_states  # before the block, and behind the norm
        x = found[0]
        normed = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
        position = torch.arange(7)[None]
        mask = torch.full((7, 7), -torch.inf).triu(1)[None, None]
        attended, _ = block.self_attn(
            normed, position_embeddings=model.model.rotary_emb(x, position), attention_mask=mask
        )

        def swiglu(layer, y):
            up, gate, down = (getattr(layer, f"{name}_proj").weight for name in ("up", "gate", "down"))
            return (y @ up.T * torch.nn.functional.silu(y @ gate.T)) @ down.T

        expected = x + attended + swiglu(block.memory, normed)  # all norms weigh 1 at the start
        if beta:
            between = x + attended
            between_normed = between / (between.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
            expected = expected + swiglu(block.mlp, between_normed)
        assert torch.allclose(found[1], model.model.norm(expected), atol=1e-5)


def test_what_a_memory_adds_depends_on_the_token_alone():
    """The others are permuted and the position moved; the contribution is the same to the last bit."""
    model, tokens = made(ffn_beta=3), ids(1, 8)
    moved = tokens[:, torch.tensor([3, 1, 7, 0, 2, 6, 5, 4])]  # the token at 0 stands at 3 now
    for here, there in zip(memory_outputs(model, tokens), memory_outputs(model, moved), strict=True):
        assert torch.equal(here[0, 0], there[0, 3])


def test_a_memory_has_no_derivative_by_the_residual_stream():
    model = made()
    block = model.model.layers[1]
    x0 = model.model.embed_tokens(ids(1, 5)).detach().requires_grad_()
    stream = torch.randn(1, 5, SHAPE["hidden_size"], requires_grad=True)
    position = model.model.rotary_emb(stream, torch.arange(5)[None])
    with_memory = block(stream, embeddings=x0, position_embeddings=position, attention_mask=None)
    without = block(stream, position_embeddings=position, attention_mask=None)
    weights = torch.randn_like(with_memory)
    by_stream = [
        torch.autograd.grad((out * weights).sum(), stream, retain_graph=True)[0] for out in (with_memory, without)
    ]
    assert torch.equal(*by_stream)
    assert torch.autograd.grad((with_memory * weights).sum(), x0)[0].abs().min() > 0


def test_beta_0_has_no_layer_that_sees_the_context():
    assert all(layer.mlp is None for layer in made(ffn_beta=0).model.layers)


def test_a_flex_model_whose_context_layer_adds_nothing_is_memoryllm():
    flex = made(ffn_beta=3)
    memory = made(ffn_beta=0, intermediate_size=flex.config.memory_size)
    with torch.no_grad():
        for layer in flex.model.layers:
            layer.mlp.down_proj.weight.zero_()
    memory.load_state_dict({name: value for name, value in flex.state_dict().items() if name in memory.state_dict()})
    assert torch.equal(flex(ids(2, 6)).logits, memory(ids(2, 6)).logits)


# ------------------------------------------------------------------------------------------- alpha, dropped layers


def test_alpha_1_changes_nothing():
    model = made()
    before = model(ids(2, 6)).logits
    model.set_alpha(1.0)
    assert torch.equal(model(ids(2, 6)).logits, before)


@pytest.mark.parametrize("leave_out", ["alpha", "drop"])
def test_without_its_memories_a_model_is_its_attention(leave_out):
    model, attention = made(), made()
    with torch.no_grad():
        for layer in attention.model.layers:
            layer.memory.down_proj.weight.zero_()
    if leave_out == "alpha":
        model.set_alpha(0.0)
    else:
        model.drop_layers([0, 1, 2])
    assert torch.equal(model(ids(2, 6)).logits, attention(ids(2, 6)).logits)


def test_alpha_scales_what_every_memory_adds():
    model, scaled = made(), made()
    with torch.no_grad():
        for layer in scaled.model.layers:
            layer.memory.down_proj.weight.mul_(0.5)
    model.set_alpha(0.5)
    assert torch.allclose(model(ids(2, 6)).logits, scaled(ids(2, 6)).logits, atol=1e-6)


def test_a_dropped_layer_is_one_whose_down_projection_is_zero_and_comes_back():
    model, zeroed = made(), made()
    before = model(ids(2, 6)).logits
    with torch.no_grad():
        zeroed.model.layers[1].memory.down_proj.weight.zero_()
    model.drop_layers([1])
    assert torch.equal(model(ids(2, 6)).logits, zeroed(ids(2, 6)).logits)
    model.drop_layers([])
    assert torch.equal(model(ids(2, 6)).logits, before)


# ------------------------------------------------------------------------------------------------------ parameters


@pytest.mark.parametrize(("beta", "memory_size"), [(0, 5464), (1, 4778), (2, 4096), (3, 3418)])
def test_the_split_at_width_2048_is_the_paper_s_within_its_rounding(beta, memory_size):
    """The paper rounds sizes to multiples of 8 or less; with SwiGLU, beta h^2 is exact where 3 divides beta h."""
    config = MemoryLlamaConfig(hidden_size=2048, intermediate_size=5464, ffn_beta=beta)
    assert abs(config.memory_size - memory_size) <= 4
    cell = 3 * 2048  # parameters of one cell
    assert abs(cell * config.context_size - beta * H2) <= cell / 2
    assert abs(cell * config.memory_size - (8 - beta) * H2) <= 4 * cell
    assert cell * (config.context_size + config.memory_size) == cell * 5464  # as many in total as the dense model


def test_the_context_layer_has_exactly_beta_h2_parameters_with_beta_3_and_as_one_matrix():
    flex3 = MemoryLlamaConfig(hidden_size=2048, intermediate_size=5464, ffn_beta=3)
    assert 3 * 2048 * flex3.context_size == 3 * H2
    linear = made(ffn_beta=1, ffn_c="linear")
    assert linear.model.layers[0].mlp.weight.numel() == SHAPE["hidden_size"] ** 2


@pytest.mark.parametrize(("beta", "millions"), [(0, 402.65), (3, 704.64), ("base", 1208.35)])
def test_active_parameters_of_the_1b_shape_are_the_paper_s(beta, millions):
    """24 (4 + beta) h^2, embeddings not counted; the dense model's 5464 is a little above 8 h / 3."""
    config = MemoryLlamaConfig(
        vocab_size=8,
        hidden_size=2048,
        intermediate_size=5464,
        num_hidden_layers=24,
        num_attention_heads=32,
        ffn_beta=beta,
    )
    with torch.device("meta"):
        model = MemoryLlamaForCausalLM(config)
    assert model.active_parameters() / 1e6 == pytest.approx(millions, abs=0.005)


def test_all_kinds_of_a_shape_have_as_many_parameters_but_for_norms():
    def matrices(beta):
        return sum(weight.numel() for weight in made(ffn_beta=beta).parameters() if weight.ndim == 2)

    assert len({matrices(beta) for beta in (0, 1, 2, 3, "base")}) == 1


# ------------------------------------------------------------------------------------------------------- gradients


def test_every_layer_has_a_norm_of_its_own_with_a_gradient_of_its_own():
    model = made()
    model(ids(2, 8), labels=ids(2, 8)).loss.backward()
    weights = [layer.memory_norm.weight for layer in model.model.layers]
    assert len({weight.data_ptr() for weight in weights}) == 3
    gradients = [weight.grad for weight in weights]
    assert not torch.equal(gradients[0], gradients[1])
    assert not torch.equal(gradients[1], gradients[2])


def test_the_loss_reaches_the_embedding_through_the_memories_alone():
    """Attention is detached, and so is the residual stream's own embedding: its head is not tied."""
    model, tokens = made(), ids(1, 6)
    hooks = [
        layer.self_attn.register_forward_hook(lambda *call: (call[-1][0].detach(), None))
        for layer in model.model.layers
    ]
    hooks.append(
        model.model.layers[0].register_forward_pre_hook(
            lambda _, args, kwargs: ((args[0].detach(),), kwargs), with_kwargs=True
        )
    )
    model(tokens, labels=ids(1, 6, seed=1)).loss.backward()
    for hook in hooks:
        hook.remove()
    gradient = model.model.embed_tokens.weight.grad
    seen = torch.zeros(SHAPE["vocab_size"], dtype=torch.bool)
    seen[tokens[0, :-1]] = True  # the last position predicts nothing
    assert (gradient[seen].abs().sum(-1) > 0).all()
    assert (gradient[~seen] == 0).all()


@pytest.mark.parametrize("beta", [0, 3])
def test_checkpointed_gradients_are_the_same(beta):
    plain, saving = made(ffn_beta=beta).train(), made(ffn_beta=beta).train()
    saving.gradient_checkpointing_enable()
    for model in (plain, saving):
        model(ids(2, 8), labels=ids(2, 8)).loss.backward()
    for one, other in zip(plain.parameters(), saving.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-7)


# -------------------------------------------------------------------------------------------------- in transformers


@pytest.mark.parametrize("beta", [0, 1, 3, "base"])
def test_a_saved_model_comes_back_with_the_same_logits(beta, tmp_path):
    model = made(ffn_beta=beta)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is MemoryLlamaForCausalLM
    assert AutoConfig.from_pretrained(tmp_path).ffn_beta == beta
    assert torch.equal(loaded(ids(2, 6)).logits, model(ids(2, 6)).logits)


def test_a_tied_head_stays_tied_through_a_folder(tmp_path):
    made(tie_word_embeddings=True).save_pretrained(tmp_path)
    loaded = MemoryLlamaForCausalLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_generation_with_the_cache_is_generation_without():
    model = made(ffn_beta=1)
    with_cache, without = (
        model.generate(ids(2, 5), max_new_tokens=12, do_sample=False, use_cache=use, pad_token_id=0)
        for use in (True, False)
    )
    assert torch.equal(with_cache, without)


def test_padding_on_the_left_changes_nothing():
    model, tokens = made(), ids(1, 5)
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), tokens], dim=1)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    found = model.generate(padded, attention_mask=mask, max_new_tokens=10, do_sample=False, pad_token_id=0)
    whole = torch.ones_like(tokens)
    expected = model.generate(tokens, attention_mask=whole, max_new_tokens=10, do_sample=False, pad_token_id=0)
    assert torch.equal(found[:, 3:], expected)


def test_embeddings_may_be_given_in_place_of_ids():
    model = made()
    assert torch.equal(model(inputs_embeds=model.model.embed_tokens(ids(1, 5))).logits, model(ids(1, 5)).logits)


def test_a_lora_adapter_is_saved_and_comes_back(tmp_path):
    peft = pytest.importorskip("peft")
    base = made()
    adapted = peft.get_peft_model(
        copy.deepcopy(base), peft.LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    ).eval()
    adapted.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path).eval()
    assert not torch.equal(adapted(ids(1, 5)).logits, base(ids(1, 5)).logits)
    assert torch.equal(again(ids(1, 5)).logits, adapted(ids(1, 5)).logits)


def test_trainer_trains_and_saves_it(tmp_path):
    from transformers import Trainer, TrainingArguments

    model = made(ffn_beta=1)
    before = model.model.layers[0].memory.up_proj.weight.clone()
    rows = [{"input_ids": row, "labels": row} for row in ids(4, 8)]
    options = TrainingArguments(
        tmp_path / "run", max_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True, disable_tqdm=True
    )
    trainer = Trainer(model, options, train_dataset=rows)
    trainer.train()
    trainer.save_model(tmp_path / "out")
    assert not torch.equal(model.model.layers[0].memory.up_proj.weight, before)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(loaded(ids(1, 5)).logits, model.eval()(ids(1, 5)).logits)


# -------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ffn_beta": 8}, r"^ffn_beta=8: expected a number from 0 to below 8, or 'base'$"),
        ({"ffn_beta": -0.5}, r"^ffn_beta=-0.5: expected a number from 0 to below 8, or 'base'$"),
        ({"ffn_beta": "dense"}, r"^ffn_beta='dense': expected a number from 0 to below 8, or 'base'$"),
        ({"ffn_c": "conv"}, r"^ffn_c='conv': expected 'swiglu' or 'linear'$"),
        ({"ffn_beta": 2, "ffn_c": "linear"}, r"^ffn_c='linear' is one square matrix, h.2 parameters: ffn_beta=2 must"),
        ({"ffn_beta": 3, "intermediate_size": 24}, r"^ffn_beta=3 takes 24 of intermediate_size=24 and leaves nothing"),
        ({"mlp_bias": True}, r"^mlp_bias=True: the feed-forward layers of MemoryLLM have no biases$"),
    ],
    ids=["8", "negative", "a word", "a layer of no kind", "linear with 2", "nothing left", "biases"],
)  # fmt: skip
def test_a_configuration_out_of_range_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        MemoryLlamaConfig(**{**SHAPE, **options})


def test_a_dense_model_has_no_memory_to_scale():
    with pytest.raises(
        InputError, match=r"^this is a dense model \(ffn_beta='base'\): it has no memory to scale or drop$"
    ):
        made(ffn_beta="base").set_alpha(0.5)


def test_a_layer_that_is_not_there_cannot_be_dropped():
    with pytest.raises(InputError, match=r"^layers=\[3\]: this model has layers 0 to 2$"):
        made().drop_layers([0, 3])


def test_alpha_is_a_finite_number():
    with pytest.raises(InputError, match=r"^alpha=nan: expected a finite number, 1 for the model as it is$"):
        made().set_alpha(float("nan"))
