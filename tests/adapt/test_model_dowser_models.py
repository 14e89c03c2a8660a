"""model-dowser on transformers' decoders: scores, padding, generation, vision-language models; nothing stays behind."""

import pytest
import torch
from model_dowser_models import ARCHITECTURES, decoder, tokens, vision_language

from assay._core.errors import InputError
from assay.adapt.model_dowser import (
    DowserConfig,
    Mask,
    build_mask,
    generate_probes,
    gradient_mask,
    importance,
    noise_image_probes,
    random_mask,
    target_layers,
)


def logits(model, ids=None):
    with torch.no_grad():
        return model(tokens() if ids is None else ids).logits


def train(tuning, model, steps=2):
    optimizer = torch.optim.AdamW(tuning.parameters(), lr=0.05, weight_decay=0.1)
    if hasattr(tuning, "guard"):
        tuning.guard(optimizer)
    for _ in range(steps):
        model(tokens(), labels=tokens()).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


# --------------------------------------------------------------------------------------------------- scoring


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_all_linear_layers_of_the_chosen_blocks_are_scored_and_nothing_else(architecture):
    model = decoder(architecture)
    scores = importance(model, n_probes=2, length=8, n_hutchinson=1, layers=2)
    n_linear = 4 if architecture == "gpt2" else 7
    assert len(scores) == 2 * n_linear
    for name, score in scores.items():
        assert score.shape == model.get_parameter(name).shape
        assert score.any()
        assert ".0." not in name
    assert not any("lm_head" in name or "norm" in name for name in scores)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_scores_are_the_first_order_effect_of_a_change(architecture):
    model, ids = decoder(architecture).double(), tokens(1, 5)
    scores = importance(model, ids, n_hutchinson="exact", layers=1)
    name = "transformer.h.2.mlp.c_fc.weight" if architecture == "gpt2" else "model.layers.2.mlp.down_proj.weight"
    weight, place, eps = model.get_parameter(name), (3, 7), 3e-3
    with torch.no_grad():
        old = weight[place].item()
        # The score takes the change at one position at a time, so it is made by a hook on the layer's output; central
        # differences, because norms are computed in float32 even in a double model.
        layer = model.get_submodule(name.removesuffix(".weight"))
        out, into = (place[1], place[0]) if architecture == "gpt2" else place
        total = 0.0
        for t in range(ids.shape[1]):

            def moved(size, t=t):
                def nudge(_module, inputs, output):
                    output = output.clone()
                    output[0, t, out] += size * inputs[0][0, t, into]
                    return output

                handle = layer.register_forward_hook(nudge)
                said = model(ids).logits
                handle.remove()
                return said

            total += float((moved(eps) - moved(-eps)).norm() / (2 * eps))
    assert float(scores[name][place]) / abs(old) == pytest.approx(total / ids.shape[1], rel=1e-3)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("reduce", ["position", "mean"])
def test_padding_does_not_change_scores(architecture, side, reduce):
    model, ids = decoder(architecture), tokens()
    pads, ones = torch.zeros(3, 4, dtype=torch.long), torch.ones_like(ids)
    order = (lambda *parts: parts) if side == "left" else (lambda *parts: parts[::-1])
    padded = {"input_ids": torch.cat(order(pads, ids), 1), "attention_mask": torch.cat(order(pads, ones), 1)}
    plain, with_pads = (importance(model, probes, n_hutchinson=2, reduce=reduce) for probes in (ids, padded))
    for name in plain:
        torch.testing.assert_close(with_pads[name], plain[name], rtol=1e-4, atol=1e-4 * float(plain[name].mean()))


def test_probes_begin_with_ordinary_tokens_and_are_the_same_with_the_same_seed():
    model, state = decoder(), torch.get_rng_state()
    first, again, other = (generate_probes(model, n_probes=40, length=6, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first["input_ids"], again["input_ids"])
    assert not torch.equal(first["input_ids"], other["input_ids"])
    assert first["input_ids"].shape == (40, 6)
    assert int(first["input_ids"][:, 0].min()) > 2  # 0, 1 and 2 are special
    assert torch.equal(state, torch.get_rng_state())


def test_a_tokenizer_that_begins_texts_with_a_token_begins_probes_with_it():
    class Tokenizer:
        bos_token_id, all_special_ids = 1, [0, 1, 2]

        def __call__(self, text, **_):
            return {"input_ids": [1, 5]}

        def __len__(self):
            return 50

    probes = generate_probes(decoder(), Tokenizer(), n_probes=30, length=6)["input_ids"]
    assert (probes[:, 0] == 1).all()
    assert int(probes[:, 1].min()) > 2
    assert int(probes[:, 1].max()) < 50


def test_probes_out_of_range_are_refused():
    with pytest.raises(InputError, match=r"^n_probes=0, length=64, temperature=1\.0: expected 1 probe or more"):
        generate_probes(decoder(), n_probes=0)


def test_a_bfloat16_model_is_scored_in_float32():
    scores = importance(decoder().bfloat16(), tokens(), n_hutchinson=1)
    assert {score.dtype for score in scores.values()} == {torch.float32}


def test_an_expert_that_is_never_reached_scores_zero():
    class Experts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x):
            chosen = x[..., 0] > -1e9  # all rows go to the first
            return torch.zeros_like(x).masked_scatter(chosen[..., None], self.first(x[chosen]))

    scores = importance(Experts(), torch.randn(2, 3, 4))
    assert scores["first.weight"].any()
    assert not scores["second.weight"].any()


# -------------------------------------------------------------------------------- nothing stays, generation works


@pytest.mark.parametrize("kind", ["apply", "pack"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_mask_that_was_taken_off_leaves_the_logits_to_the_bit(architecture, kind):
    model = decoder(architecture)
    before, modules = logits(model), [type(m) for m in model.modules()]
    handle = getattr(random_mask(model), kind)(model)
    handle.detach()
    assert torch.equal(logits(model), before)
    assert [type(m) for m in model.modules()] == modules
    assert all(p.requires_grad and not p._backward_hooks for p in model.parameters())


@pytest.mark.parametrize("kind", ["apply", "pack"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_exception_while_training_puts_the_model_back_to_the_bit(architecture, kind):
    model = decoder(architecture)
    before = logits(model)
    with pytest.raises(KeyboardInterrupt), getattr(random_mask(model), kind)(model) as tuning:  # noqa: PT012
        train(tuning, model)
        assert not torch.equal(logits(model), before)
        raise KeyboardInterrupt
    assert torch.equal(logits(model), before)
    assert all(p.requires_grad and p.grad is None and not p._backward_hooks for p in model.parameters())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_delta_that_was_taken_off_leaves_the_logits_to_the_bit(architecture):
    model = decoder(architecture)
    before = logits(model)
    with random_mask(model).apply(model) as tuning:
        train(tuning, model)
        tuned, delta = logits(model), tuning.delta()
        tuning.restore()
    with delta.apply(model):
        assert torch.equal(logits(model), tuned)
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize("kind", ["apply", "pack"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_tuned_model_generates_with_the_cache_as_without_and_padded_as_alone(architecture, kind):
    model, ids = decoder(architecture), tokens(2, 6)
    with getattr(random_mask(model), kind)(model) as tuning:
        train(tuning, model)
        options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
        plain = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        uncached = model.generate(ids, attention_mask=torch.ones_like(ids), use_cache=False, **options)
        pads = torch.zeros(2, 3, dtype=torch.long)
        padded = {"input_ids": torch.cat([pads, ids], 1), "attention_mask": torch.cat([pads, torch.ones_like(ids)], 1)}
        assert torch.equal(plain, uncached)
        assert torch.equal(model.generate(**padded, **options)[:, 3:], plain)


@pytest.mark.parametrize("options", [{"num_beams": 3, "do_sample": False}, {"do_sample": True, "temperature": 0.8}])
@pytest.mark.parametrize("kind", ["apply", "pack"])
def test_beams_and_sampling_say_the_same_while_attached_and_after(kind, options):
    model, ids = decoder(), tokens(2, 6)

    def say():
        torch.manual_seed(0)
        return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, pad_token_id=0, **options)

    with getattr(random_mask(model), kind)(model) as tuning:
        train(tuning, model)
        attached = say()
    assert torch.equal(say(), attached)


def test_a_mask_of_another_model_is_refused():
    mask = random_mask(decoder("gpt2"))
    with pytest.raises(
        InputError, match=r"^the mask is about transformer\.h\.0\.attn\.c_attn\.weight, which the model"
    ):
        mask.apply(decoder("llama"))
    wide = random_mask(torch.nn.Linear(3, 4))
    with pytest.raises(InputError, match=r"^the mask has weight with shape \(4, 3\), and the model's is \(2, 3\): it"):
        wide.pack(torch.nn.Linear(3, 2))


# ------------------------------------------------------------------------------------------- vision and language


def test_of_a_vision_language_model_the_decoder_alone_is_scored():
    names = list(target_layers(vision_language()))
    assert len(names) == 21  # the vision tower has more blocks, and is left out
    assert all("language_model" in name for name in names)


def test_a_vision_language_model_probes_itself_with_text():
    model = vision_language()
    scores = importance(model, n_probes=2, length=8, n_hutchinson=1)
    assert all(score.any() for score in scores.values())


def seen(model, n=2):
    ids = torch.cat([torch.full((n, 4), 3), tokens(n, 5)], 1)
    images = torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": images}


def test_a_vision_language_model_is_tuned_on_images_and_the_vision_tower_stays():
    model = vision_language()
    given = seen(model)
    mask = build_mask(importance(model, given, n_hutchinson=1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with mask.apply(model) as tuning:
        optimizer = torch.optim.AdamW(tuning.parameters(), lr=0.01, weight_decay=0.1)
        tuning.guard(optimizer)
        losses = []
        for _ in range(10):
            loss = model(**given, labels=given["input_ids"]).loss
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert losses[-1] < losses[0]
    for name, value in model.state_dict().items():
        moved = value != before[name]
        assert not moved.any() if name not in mask.trainable else not moved[~mask.trainable[name]].any()


def test_images_of_noise_are_probes_through_a_processor():
    from transformers import BatchFeature

    class Processor:
        image_token = "<image>"

        def __call__(self, images, text, return_tensors):
            pixels = torch.tensor([[list(image.resize((8, 8)).convert("L").tobytes())] for image in images]).float()
            pixels = pixels.view(1, 1, 8, 8).expand(1, 3, 8, 8) / 64 - 2
            ids = torch.full((1, 4), 3)
            return BatchFeature({"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels})

    model = vision_language()
    probes = noise_image_probes(model, Processor(), n_probes=2, length=5)
    assert [batch["input_ids"].shape for batch in probes] == [(1, 9), (1, 9)]
    assert not torch.equal(probes[0]["pixel_values"], probes[1]["pixel_values"])
    assert all(score.any() for score in importance(model, probes, n_hutchinson=1).values())
    with pytest.raises(InputError, match=r"^object has no image_token; use probes of text, or make your own$"):
        noise_image_probes(model, object())


def test_probes_of_images_are_drawn_from_the_whole_law():
    """A model that ships top_p near zero would write the same text for each image."""
    model = vision_language()
    model.generation_config.top_p, model.generation_config.temperature = 1e-6, 0.1

    class Processor:
        image_token = "<image>"

        def __call__(self, images, text, return_tensors):
            return {"input_ids": torch.full((1, 4), 3), "pixel_values": torch.zeros(1, 3, 8, 8)}

    first, second = noise_image_probes(model, Processor(), n_probes=2, length=12)
    assert not torch.equal(first["input_ids"], second["input_ids"])


def test_what_each_token_has_grows_with_the_text():
    from assay.adapt.model_dowser.probes import _to_length

    prompt, ids = torch.ones(1, 4, dtype=torch.long), torch.ones(1, 9, dtype=torch.long)
    assert _to_length(torch.ones(1, 4), prompt, ids).tolist() == [[1.0] * 4 + [0.0] * 5]
    assert _to_length(torch.ones(1, 3, 8, 8), prompt, ids).shape == (1, 3, 8, 8)


def test_scores_in_inference_mode_are_refused():
    with torch.inference_mode(), pytest.raises(InputError, match=r"^scores need gradients, which inference mode"):
        importance(torch.nn.Linear(2, 1), torch.ones(3, 2))


def test_a_layer_that_the_loss_does_not_reach_is_no_error():
    from types import SimpleNamespace

    class Half(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x, labels):
            return SimpleNamespace(loss=(self.used(x) - labels).square().mean())

    batches = [{"x": torch.ones(2, 4), "labels": torch.zeros(2, 4)}]
    with pytest.warns(UserWarning, match="only zero scores, such as unused"):
        mask = gradient_mask(Half(), batches, rho=0.25)
    assert int(mask.trainable["used.weight"].sum()) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_delta_goes_onto_a_weight_that_is_not_contiguous(dtype):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6, bias=False)).to(dtype)
    model[0].weight = torch.nn.Parameter(torch.randn(4, 6).to(dtype).T)
    before = model[0].weight.detach().clone()
    with Mask({"0.weight": torch.arange(24).view(6, 4) % 3 == 0}).apply(model) as tuning:
        model[0].weight.data[0, 0] += 1
        delta = tuning.delta()
    model[0].weight.data.copy_(before)
    with delta.apply(model):
        assert model[0].weight[0, 0].item() == (before[0, 0] + 1).item()
        assert int((model[0].weight != before).sum()) == 1
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize(("options", "message"), [({"rho": 1.5}, r"^rho=1.5: "), ({"scope": "all"}, r"^scope='all': ")])
def test_a_choice_that_cannot_be_made_is_refused_before_scoring(options, message):
    with pytest.raises(InputError, match=message):
        DowserConfig(**options)
