"""LUCID in transformers: the architectures, the cache, padding, sliding windows, and what is refused."""

import copy
import re
import warnings

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
)

from assay._core.errors import InputError
from assay.nn.lucid import LucidCache, convert_, hub, load, lucid_attention, register

register()

TINY = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
CONFIGS = {
    "llama": LlamaConfig(**TINY),
    "qwen2": Qwen2Config(**TINY),
    "qwen3": Qwen3Config(**TINY),
    "gemma": GemmaConfig(**TINY),
    "gemma2": Gemma2Config(**TINY, attn_logit_softcapping=None, sliding_window=6),
    "gemma3": Gemma3TextConfig(
        **TINY, sliding_window=6, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=8
    ),
}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=CONFIGS)
def model(request):
    return made(request.param)


def made(name, attention="lucid"):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(copy.deepcopy(CONFIGS[name]), attn_implementation=attention).eval()


def ids(n=18, batch=2, seed=1):
    return torch.randint(2, 61, (batch, n), generator=torch.Generator().manual_seed(seed))


def with_cache(model, tokens, cache, **options):
    """Under the name that this release of transformers has for it."""
    import inspect

    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    return model(tokens, **{name: cache}, **options)


def generate(model, tokens, cache, **options):
    import inspect

    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    options = {"max_new_tokens": 12, "do_sample": False, **options}
    return model.generate(tokens, **{name: cache}, **options)


@torch.no_grad()
@pytest.mark.parametrize("name", CONFIGS)
def test_every_architecture_computes_lucid_and_not_softmax(name):
    model, softmax = made(name), made(name, "eager")
    assert (model(ids()).logits - softmax(ids()).logits).abs().max() > 1e-3


@torch.no_grad()
def test_a_layer_of_llama_computes_what_the_function_computes():
    model = made("llama")
    attention = model.model.layers[0].self_attn
    x, position = torch.randn(2, 9, 32), torch.arange(9)[None]
    cos, sin = rotary = model.model.rotary_emb(x, position)
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    q, k, v = (
        projection(x).view(2, 9, -1, 8).transpose(1, 2)
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    q, k = apply_rotary_pos_emb(q, k, cos, sin)
    mixed = lucid_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2)
    found, _ = attention(x, position_embeddings=rotary, attention_mask=None)
    torch.testing.assert_close(found, attention.o_proj(mixed), rtol=0, atol=1e-5)


@torch.no_grad()
def test_generate_with_the_cache_says_what_it_says_without(model):
    model.config.use_cache = True
    without = model.generate(ids(), max_new_tokens=12, do_sample=False, use_cache=False)
    assert torch.equal(generate(model, ids(), LucidCache(config=model.config)), without)
    assert without.shape == (2, 30)  # past the windows of Gemma 2 and 3


@torch.no_grad()
def test_logits_by_token_and_by_several_tokens_are_those_of_the_whole_pass(model):
    whole = model(ids(), use_cache=False).logits
    cache = LucidCache(config=model.config)
    parts = [with_cache(model, part, cache).logits for part in ids().split([7, 1, 1, 5, 1, 3], dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=2e-5)


@torch.no_grad()
def test_left_padding_changes_nothing(model):
    alone = generate(model, ids(batch=1), LucidCache(config=model.config))
    padded = torch.cat([torch.zeros(1, 5, dtype=torch.long), ids(batch=1)], 1)
    batch = torch.cat([padded, ids(23, batch=1, seed=2)])
    mask = (torch.arange(23) >= torch.tensor([[5], [0]])).long()
    found = generate(model, batch, LucidCache(config=model.config), attention_mask=mask)
    assert torch.equal(found[:1, 5:], alone)


@torch.no_grad()
def test_beams_are_reordered_with_the_cache():
    model = made("llama")
    found = generate(model, ids(), LucidCache(config=model.config), num_beams=3)
    assert torch.equal(found, model.generate(ids(), num_beams=3, max_new_tokens=12, do_sample=False, use_cache=False))


@torch.no_grad()
def test_the_cache_keeps_solved_values_and_no_more_than_the_window():
    model = made("gemma3")
    cache = LucidCache(config=model.config)
    generate(model, ids(), cache)
    sliding, full = cache.layers
    assert sliding.keys.shape[-2] == sliding.values.shape[-2] == 5
    assert full.keys.shape[-2] == full.values.shape[-2] == 29


@torch.no_grad()
def test_a_cropped_cache_goes_on_as_if_the_tokens_had_not_been_there():
    model = made("llama")
    cache = LucidCache()
    with_cache(model, ids(), cache)
    cache.crop(-8)
    found = with_cache(model, ids()[:, 10:12], cache).logits
    torch.testing.assert_close(found, model(ids()[:, :12]).logits[:, 10:], rtol=0, atol=2e-5)


def test_all_weights_get_gradients_and_training_lowers_the_loss():
    model = made("qwen3").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(8):
        loss = model(ids(), labels=ids()).loss
        loss.backward()
        assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5


def test_packed_sequences_do_not_see_each_other():
    model = made("llama")
    position = torch.cat([torch.arange(8), torch.arange(10)])[None]
    with torch.no_grad():
        packed = model(ids(batch=1), position_ids=position, use_cache=False).logits[:, 8:]
        alone = model(ids(batch=1)[:, 8:], use_cache=False).logits
    torch.testing.assert_close(packed, alone, rtol=0, atol=2e-5)


# --------------------------------------------------------------------------------------------------- whole models


def saved(folder, model):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(61)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)
    return folder


UNTRAINED = "was trained with another attention: with LUCID its outputs change until it is trained further"


def backward(model):
    model.train()(ids(), labels=ids()).loss.backward()
    return model.eval()


@torch.no_grad()
def says_nothing(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return model(ids()).logits


@pytest.fixture
def fresh(monkeypatch):
    monkeypatch.setattr(hub, "_warned", set())


def test_a_converted_model_comes_back_with_its_attention(tmp_path):
    model = made("llama", "sdpa")
    convert_(model)
    backward(model)
    again, _ = load(saved(tmp_path / "m", model))
    assert torch.equal(says_nothing(again), says_nothing(model))
    assert again.config._attn_implementation == "lucid"


@torch.no_grad()
@pytest.mark.usefixtures("fresh")
def test_a_converted_checkpoint_warns_once_when_it_is_evaluated(tmp_path):
    folder = saved(tmp_path / "m", made("llama", "sdpa"))
    model = AutoModelForCausalLM.from_pretrained(folder)
    convert_(model)
    with pytest.warns(UserWarning, match=f"^{re.escape(f'{folder} {UNTRAINED}')}$") as found:
        model(ids())
    assert len(found) == 1
    says_nothing(model)


@torch.no_grad()
@pytest.mark.usefixtures("fresh")
def test_a_converted_model_that_was_never_saved_warns_too():
    model = made("llama", "sdpa")
    convert_(model)
    with pytest.warns(UserWarning, match=f"^this model {UNTRAINED}$"):
        model(ids())


@torch.no_grad()
@pytest.mark.usefixtures("fresh")
def test_that_a_model_was_only_switched_is_saved_with_it(tmp_path):
    model = made("llama", "sdpa")
    convert_(model)
    again, _ = load(saved(tmp_path / "m", model))
    with pytest.warns(UserWarning, match=UNTRAINED):
        again(ids())


@pytest.mark.usefixtures("fresh")
def test_a_forward_in_training_is_no_training(tmp_path):
    folder = saved(tmp_path / "m", made("llama", "sdpa"))
    for convert in (False, True):
        model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa" if convert else "lucid")
        if convert:
            convert_(model)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.train()(ids())  # about to be trained: no warning yet
        hub._warned.clear()
        with pytest.warns(UserWarning, match=UNTRAINED):
            model.eval()(ids())
        hub._warned.clear()
        says_nothing(backward(model))


def test_a_converted_model_that_is_converted_again_stays_trained():
    model = made("llama", "sdpa")
    convert_(model)
    backward(model)
    convert_(model)
    says_nothing(model)


def test_a_model_made_with_lucid_is_saved_and_loaded_as_such(tmp_path):
    model = made("qwen3")
    model(ids())
    again, _ = load(saved(tmp_path / "m", model))
    assert torch.equal(again(ids()).logits, model(ids()).logits)


def test_training_a_softmax_model_with_lucid_makes_it_one(tmp_path):
    folder = saved(tmp_path / "softmax", made("llama", "sdpa"))
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="lucid").train()
    model(ids(), labels=ids()).loss.backward()
    assert load(saved(tmp_path / "lucid", model))[0].config._attn_implementation == "lucid"


@torch.no_grad()
@pytest.mark.usefixtures("fresh")
def test_a_model_trained_with_softmax_warns_once(tmp_path):
    folder = saved(tmp_path / "m", made("llama", "sdpa"))
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="lucid")
    with pytest.warns(UserWarning, match=f"^{re.escape(f'{folder} {UNTRAINED}')}$") as found:
        model(ids())
    assert len(found) == 1
    says_nothing(model)


def test_a_folder_without_the_mark_is_not_loaded_as_lucid(tmp_path):
    folder = saved(tmp_path / "m", made("llama", "sdpa"))
    with pytest.raises(InputError, match=r"its config\.json does not say that it has LUCID attention; convert it"):
        load(folder)
    with pytest.raises(InputError, match=r"nowhere holds no config\.json"):
        load(tmp_path / "nowhere")


def test_a_cache_of_plain_values_is_refused():
    model = made("llama")
    with pytest.raises(InputError, match=r"this cache keeps plain ones \(1 queries, 19 keys\): pass cache=LucidCache"):
        generate(model, ids(), DynamicCache(config=model.config))


def test_capped_logits_are_refused():
    config = Gemma2Config(**TINY)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="lucid")
    with pytest.raises(InputError, match=r"changes its logits \(softcap\), .*\(Gemma 2: attn_logit_softcapping=None"):
        model(ids())
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(InputError, match=r"caps its logits \(attn_logit_softcapping=50\.0\)"):
        convert_(model)


def test_attention_in_both_directions_is_refused():
    config = Gemma3TextConfig(**TINY, use_bidirectional_attention=True)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="lucid")
    with pytest.raises(InputError, match="Gemma3Attention attends in both directions; LUCID attention is causal"):
        model(ids(), use_cache=False)


def test_a_mask_of_weights_is_refused():
    with pytest.raises(InputError, match=r"was given a mask of torch\.float32; LUCID needs to know what is masked"):
        made("llama")(ids(), attention_mask=torch.zeros(2, 1, 18, 18), use_cache=False)
