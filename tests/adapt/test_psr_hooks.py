"""psr on a model: which positions are steered, with cache, padding, sampling and beams; nothing stays behind."""

import inspect

import pytest
import torch
from psr_helpers import FAMILIES, SHAPE, pairs, text, tiny, tokenizer

from assay._core.errors import InputError
from assay.adapt.psr import PSR, ConstantSteering
from assay.adapt.psr.activations import run
from assay.adapt.psr.hooks import Blocks, check_layers, last_positions
from assay.adapt.psr.objectives import steered
from assay.adapt.psr.pairs import left_padded

PROMPT = torch.tensor([[5, 6, 7, 8, 9]])


pytestmark = pytest.mark.usefixtures("one_thread")


def random_psr(model, layers="all", span="answer_only", seed=1, size=0.5, kind=PSR):
    made = kind(model, tokenizer(), layers=layers, span=span)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(size * torch.randn(parameter.shape, generator=rng))
    return made


def logits(model, ids=PROMPT, **options):
    with torch.no_grad():
        return model(input_ids=ids, **options).logits


def greedy(model, ids, mask=None, n=8, **options):
    mask = torch.ones_like(ids) if mask is None else mask
    made = model.generate(
        input_ids=ids, attention_mask=mask, max_new_tokens=n, do_sample=False, pad_token_id=0, **options
    )
    return made[:, ids.shape[1] :]


@pytest.mark.parametrize("family", FAMILIES)
def test_steering_changes_a_model_and_detaching_leaves_its_logits_to_the_bit(family):
    model = tiny(family)
    before = logits(model)
    psr = random_psr(model).attach()
    during = logits(model)
    psr.detach()
    assert not torch.allclose(during[:, -1], before[:, -1])
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exception_within_a_pass_leaves_nothing_on_the_model(family):
    model = tiny(family)
    before = logits(model)
    psr = random_psr(model)

    def fail(*_):
        raise RuntimeError("in the middle")

    broken = psr.blocks.blocks[1].register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="in the middle"), psr.steer():
        logits(model)
    broken.remove()
    assert torch.equal(logits(model), before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_alpha_zero_a_zero_direction_and_a_dead_gate_leave_the_logits_to_the_bit():
    model = tiny()
    before = logits(model)
    psr = random_psr(model)
    with psr.steer(alpha=0.0):
        assert torch.equal(logits(model), before)
    with ConstantSteering(model, tokenizer(), layers="all").steer():
        assert torch.equal(logits(model), before)
    with torch.no_grad():
        psr.biases.fill_(-1e6)
    with psr.steer():
        assert torch.equal(logits(model), before)


def test_a_block_gives_h_plus_alpha_relu_z_at_the_span_and_h_elsewhere():
    model = tiny()
    psr = random_psr(model, layers=1)
    plain = run(psr.blocks, [5, 6, 7, 8], [0, 1, 2, 3], [1])[1]
    with torch.no_grad():
        made = run(psr.blocks, [5, 6, 7, 8], [2, 3], [1], psr.edits(alpha=0.7))[1]
        both = run(psr.blocks, [5, 6, 7, 8], [0, 1, 2, 3], [1])[1]
    w, b, z = psr.weights[0], psr.biases[0], psr.directions[0]
    expected = plain[2:] + 0.7 * torch.relu(plain[2:] @ w + b)[:, None] * z
    torch.testing.assert_close(made, expected)
    assert torch.equal(both[:2], plain[:2])


def test_in_a_prompt_only_the_last_real_token_is_steered_whichever_side_the_padding_is():
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]])
    assert last_positions(mask).nonzero().tolist() == [[0, 3], [1, 2]]


def test_left_and_right_padding_give_the_same_logits_at_the_last_token():
    model = tiny()
    left, left_mask = left_padded([[5, 6, 7], [8, 9, 10, 11]], "cpu")
    right, right_mask = torch.tensor([[5, 6, 7, 0], [8, 9, 10, 11]]), torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    with random_psr(model).steer():
        one = logits(model, left, attention_mask=left_mask, position_ids=(left_mask.cumsum(1) - 1).clamp(min=0))[:, -1]
        other = logits(model, right, attention_mask=right_mask)[[0, 1], [2, 3]]
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_answers_are_those_without_the_cache(family):
    model = tiny(family)
    ids = PROMPT.repeat(2, 1)
    psr = random_psr(model)
    with psr.steer():
        cached = greedy(model, ids)
    # Without a cache the whole sequence is one pass: its last prompt token and its answer are the mask.
    sequence = PROMPT
    for _ in range(8):
        mask = torch.zeros_like(sequence, dtype=torch.bool)
        mask[:, PROMPT.shape[1] - 1 :] = True
        with psr.steer(mask=mask):
            sequence = torch.cat([sequence, logits(model, sequence, use_cache=False)[:, -1:].argmax(-1)], 1)
    assert cached[0].tolist() == cached[1].tolist() == sequence[0, PROMPT.shape[1] :].tolist()


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
@pytest.mark.parametrize("family", FAMILIES)
def test_generating_without_a_cache_answers_as_with_one(family, options):
    model = tiny(family)
    ids, real = left_padded([[5, 6, 7], [8, 9, 10, 11, 12, 13]], "cpu")
    with random_psr(model).steer():
        cached = greedy(model, ids, real, **options)
        assert greedy(model, ids, real, use_cache=False, **options).tolist() == cached.tolist()
        assert greedy(model, ids, real, use_cache=False, **options).tolist() == cached.tolist()  # from the start again
    assert greedy(model, ids, real, **options).tolist() != cached.tolist()


def test_without_a_cache_the_question_and_the_strength_of_a_row_stay_what_they_were():
    model = tiny()
    ids, real = left_padded([[5, 6, 7], [8, 9, 10, 11]], "cpu")
    mask = torch.tensor([[False, True, False, True], [False, True, False, True]])
    with random_psr(model, span="question_and_answer").steer(mask=mask):
        assert greedy(model, ids, real, use_cache=False).tolist() == greedy(model, ids, real).tolist()
    with random_psr(model).steer(torch.tensor([0.3, 2.0])):
        assert greedy(model, ids, real, use_cache=False).tolist() == greedy(model, ids, real).tolist()


OTHER_CALLS = {
    "another prompt": ([[4, 6, 7, 8, 9, 3]], None),
    "two tokens longer": ([[5, 6, 7, 8, 9, 3, 4]], None),
    "another batch": ([[5, 6, 7, 8, 9, 3]] * 2, None),
    "other padding": ([[5, 6, 7, 8, 9, 3]], [[0, 1, 1, 1, 1, 1]]),
}


@pytest.mark.parametrize(("ids", "real"), OTHER_CALLS.values(), ids=OTHER_CALLS)
def test_an_unrelated_pass_without_a_cache_is_a_prompt_of_its_own(ids, real):
    model = tiny()
    ids = torch.tensor(ids)
    real = torch.ones_like(ids) if real is None else torch.tensor(real)
    psr = random_psr(model)
    with psr.steer():
        alone = logits(model, ids, attention_mask=real)
    with psr.steer():
        logits(model, use_cache=False)
        assert torch.equal(logits(model, ids, attention_mask=real), alone)


def test_embeddings_go_on_as_tokens_do():
    """As inside a vision-language model, whose decoder never sees tokens."""
    model = tiny()
    embed = model.get_input_embeddings()
    longer = torch.cat([PROMPT, torch.tensor([[20]])], 1)
    with random_psr(model).steer(mask=torch.tensor([[False, False, False, False, True, True]])):
        expected = logits(model, longer)
    with random_psr(model).steer(), torch.no_grad():
        model(inputs_embeds=embed(PROMPT))
        torch.testing.assert_close(model(inputs_embeds=embed(longer)).logits, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_left_padded_batch_answers_as_each_prompt_alone(family):
    model = tiny(family)
    rows = [[5, 6, 7], [8, 9, 10, 11, 12, 13]]
    ids, mask = left_padded(rows, "cpu")
    with random_psr(model).steer():
        together = greedy(model, ids, mask)
        alone = [greedy(model, torch.tensor([row]))[0] for row in rows]
    assert together.tolist() == [row.tolist() for row in alone]


@pytest.mark.parametrize("family", FAMILIES)
def test_forced_tokens_in_one_pass_have_the_logits_of_decoding_step_by_step(family):
    model = tiny(family)
    forced = torch.tensor([[20, 21, 22]])
    psr = random_psr(model)
    whole = torch.cat([PROMPT, forced], 1)
    mask = torch.zeros_like(whole, dtype=torch.bool)
    mask[:, 4:] = True
    with psr.steer(mask=mask):
        at_once = logits(model, whole)[:, 4:]
    # transformers renamed the argument
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    with psr.steer(), torch.no_grad():
        out = model(input_ids=PROMPT, use_cache=True)
        steps = [out.logits[:, -1]]
        for token in forced[0]:
            out = model(input_ids=token.view(1, 1), **{name: out.past_key_values}, use_cache=True)
            steps.append(out.logits[:, -1])
    torch.testing.assert_close(torch.stack(steps, 1), at_once, atol=1e-4, rtol=1e-4)


def test_beams_and_samples_are_steered_with_a_mask_for_each_prompt():
    model = tiny()
    ids, real = left_padded([[5, 6, 7], [8, 9, 10, 11]], "cpu")
    mask = torch.tensor([[False, True, True, True], [False, True, False, True]])
    psr = random_psr(model, span="question_and_answer")
    plain = greedy(model, ids, real, num_beams=3)
    with psr.steer(mask=mask):
        beams = greedy(model, ids, real, num_beams=3)
    single = psr.steer(mask=mask[:, 1:][:1])
    with single:
        alone = greedy(model, ids[:1, 1:], num_beams=3)
    assert beams.tolist() != plain.tolist()
    assert beams[0].tolist() == alone[0].tolist()
    with psr.steer(mask=mask):
        sampled = model.generate(input_ids=ids, attention_mask=real, max_new_tokens=4, do_sample=True, pad_token_id=0,
                                 num_return_sequences=2)  # fmt: skip
    assert sampled.shape == (4, 8)


def test_two_constant_vectors_add():
    model = tiny()
    one, other = (random_psr(model, layers=1, seed=seed, kind=ConstantSteering) for seed in (1, 2))
    both = ConstantSteering(model, tokenizer(), layers=1)
    with torch.no_grad():
        both.directions.copy_(one.directions + other.directions)
    with one.steer(), other.steer():
        nested = logits(model)
    with both.steer():
        torch.testing.assert_close(logits(model), nested)


def test_of_two_nested_gates_the_second_reads_what_the_first_made_and_both_act():
    model = tiny()
    one, other = (random_psr(model, layers=1, seed=seed) for seed in (1, 2))
    with torch.no_grad():
        one.biases.fill_(1.0)
        other.biases.fill_(1.0)
        plain = run(one.blocks, [5, 6, 7, 8], [3], [1])[1]
        with one.steer(0.5), other.steer(2.0):
            made = run(one.blocks, [5, 6, 7, 8], [3], [1])[1]
    expected = plain
    for psr, alpha in ((one, 0.5), (other, 2.0)):
        gate = torch.relu(expected @ psr.weights[0] + psr.biases[0])
        assert float(gate.detach()) > 0
        expected = expected + alpha * gate * psr.directions[0]
    torch.testing.assert_close(made, expected.detach())
    assert "generate" not in vars(model)


def test_alpha_scales_the_intervention_linearly_at_a_single_layer():
    model = tiny()
    psr = random_psr(model, layers=2)
    ids, places = [5, 6, 7, 8], [3]
    with torch.no_grad():
        plain, one, three = (run(psr.blocks, ids, places, [2], psr.edits(alpha))[2] for alpha in (0.0, 1.0, 3.0))
    torch.testing.assert_close(three - plain, 3 * (one - plain))


def test_each_row_of_a_batch_may_have_a_strength_of_its_own():
    model = tiny()
    psr = random_psr(model)
    ids, mask = left_padded([[5, 6, 7], [5, 6, 7], [8, 9, 10, 11]], "cpu")
    with psr.steer(torch.tensor([0.0, 2.0, 0.5])):
        together = greedy(model, ids, mask)
    alone = []
    for alpha, row in ((0.0, [5, 6, 7]), (2.0, [5, 6, 7]), (0.5, [8, 9, 10, 11])):
        with psr.steer(alpha):
            alone.append(greedy(model, torch.tensor([row]))[0].tolist())
    assert together.tolist() == alone
    with pytest.raises(InputError, match=r"^a strength for each row needs span='answer_only' and no mask$"):
        psr.attach(torch.ones(3), mask)


def test_strengths_of_rows_are_for_their_beams_too_and_must_be_as_many_as_rows():
    model = tiny()
    ids, real = left_padded([[5, 6, 7], [8, 9, 10, 11]], "cpu")
    psr = random_psr(model)
    with psr.steer(torch.tensor([0.0, 2.0])):
        together = greedy(model, ids, real, num_beams=3)
        with pytest.raises(InputError, match=r"^alpha has 2 strengths for 1 rows; expected one for each row$"):
            logits(model)
    with psr.steer(2.0):
        alone = greedy(model, ids[1:], real[1:], num_beams=3)
    assert together[0].tolist() == greedy(model, ids[:1, 1:], num_beams=3)[0].tolist()
    assert together[1].tolist() == alone[0].tolist()


def test_strengths_on_another_device_than_the_states_are_brought_there():
    hidden, strength, z = torch.zeros(2, 4, device="meta"), torch.ones(2, device="meta"), torch.ones(4, device="meta")
    assert steered(hidden, strength, z, torch.ones(2)).device.type == "meta"


def test_a_mask_on_another_device_than_the_tokens_is_brought_there():
    model = tiny().to("meta")
    with random_psr(model).steer(mask=torch.ones(1, 5, dtype=torch.bool)) as psr:
        (handle,) = psr.blocks.backbone._forward_pre_hooks.values()
        handle(psr.blocks.backbone, (), {"input_ids": PROMPT.to("meta")})
        assert handle.__self__.now.device.type == "meta"


def test_a_false_mask_of_a_prompt_of_one_token_leaves_it_alone():
    model = tiny()
    one = PROMPT[:, :1]
    before = logits(model, one)
    psr = random_psr(model)
    with psr.steer(mask=torch.zeros(1, 1, dtype=torch.bool)):
        assert torch.equal(logits(model, one), before)
    with psr.steer():
        assert not torch.equal(logits(model, one), before)


SPLIT = {
    "prompt lookup": {"prompt_lookup_num_tokens": 2},
    "a prompt in chunks": {"prefill_chunk_size": 3},
}


@pytest.mark.parametrize("options", SPLIT.values(), ids=SPLIT)
def test_ways_to_generate_whose_passes_cannot_be_told_apart_are_refused_while_steering(options):
    model = tiny()
    psr = random_psr(model)
    (name,) = options
    plain = greedy(model, PROMPT, **options)
    with psr.steer(), pytest.raises(InputError, match=rf"^generate with {name} cannot be steered: "):
        greedy(model, PROMPT, **options)
    assert "generate" not in vars(model)
    assert greedy(model, PROMPT, **options).tolist() == plain.tolist()
    setattr(model.generation_config, name, options[name])
    with psr.steer(), random_psr(model).steer(), pytest.raises(InputError, match=rf"^generate with {name} "):
        greedy(model, PROMPT)


def test_a_generate_that_another_library_put_there_stays_there():
    model = tiny()
    theirs = model.generate
    model.generate = theirs
    with random_psr(model).steer():
        pass
    assert vars(model)["generate"] is theirs


def test_half_precision_states_stay_so_and_the_gate_is_computed_in_float32():
    model = tiny().to(torch.bfloat16)
    psr = random_psr(model, layers=1)
    with torch.no_grad():
        plain = run(psr.blocks, [5, 6, 7], [2], [1])[1]
        made = run(psr.blocks, [5, 6, 7], [2], [1], psr.edits())[1]
    w, b, z = psr.weights[0], psr.biases[0], psr.directions[0]
    assert psr.weights.dtype == torch.float32
    assert made.dtype == torch.bfloat16
    assert torch.equal(made, plain + (torch.relu(plain.float() @ w + b)[:, None] * z).bfloat16())


def test_the_blocks_of_a_named_path_are_taken_and_a_wrong_one_is_refused():
    model = tiny()
    assert Blocks(model, "model.layers").blocks == Blocks(model).blocks
    with pytest.raises(InputError, match=r"^blocks='model.norm': LlamaForCausalLM has no list of modules there$"):
        Blocks(model, "model.norm")
    with pytest.raises(InputError, match=r"^blocks='nowhere': LlamaForCausalLM has no list of modules there$"):
        Blocks(model, "nowhere")


def test_a_model_without_a_list_of_blocks_asks_for_its_path():
    with pytest.raises(
        InputError, match=r"^no list of blocks was found in Linear; name it, as in blocks='model.layers'$"
    ):
        Blocks(torch.nn.Linear(2, 2))


def test_a_vision_language_model_is_steered_in_its_decoder_however_many_blocks_its_eye_has():
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    vision = CLIPVisionConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=5, num_attention_heads=2,
                              image_size=8, patch_size=4)  # fmt: skip
    config = LlavaConfig(vision_config=vision, text_config=LlamaConfig(**SHAPE), image_token_id=96)
    model = LlavaForConditionalGeneration(config).eval()
    model.generation_config.eos_token_id = None
    psr = random_psr(model, size=5.0)
    assert psr.blocks.path == "model.language_model.layers"
    assert psr.layers == [0, 1, 2]
    assert psr.directions.shape == (3, 32)
    before = logits(model)
    with psr.steer():
        assert not torch.equal(logits(model)[:, -1], before[:, -1])
        cached = greedy(model, PROMPT)
        assert greedy(model, PROMPT, use_cache=False).tolist() == cached.tolist()
    assert Blocks(model, psr.blocks.path).blocks == psr.blocks.blocks


def test_states_wider_than_the_embeddings_are_steered():
    """As in OPT-350m."""
    from transformers import OPTConfig, OPTForCausalLM

    torch.manual_seed(0)
    model = OPTForCausalLM(
        OPTConfig(vocab_size=97, hidden_size=32, ffn_dim=48, num_hidden_layers=3, num_attention_heads=4,
                  max_position_embeddings=64, word_embed_proj_dim=16, do_layer_norm_before=False)
    ).eval()  # fmt: skip
    psr = PSR(model, tokenizer(), layers=1).fit(pairs(3), downstream=False, epochs=2)
    assert psr.directions.shape == (1, 32)


def test_layers_count_from_the_end_too():
    assert check_layers([-1, 1], 4) == [1, 3]
    assert check_layers("all", 3) == [0, 1, 2]


BAD_LAYERS = {
    "past the end": (3, r"^layer 3: the model has 3; expected -3 to 2$"),
    "before the start": ([-4], r"^layer -4: the model has 3; expected -3 to 2$"),
    "twice": ([0, -3], r"^layers=\[0, -3\]: a layer comes twice$"),
    "none": ([], r"^layers=\[\]: expected 'middle', 'all', a number or a list of numbers$"),
    "a word": ("top", r"^layers='top': expected 'middle', 'all', a number or a list of numbers$"),
}


@pytest.mark.parametrize(("layers", "message"), BAD_LAYERS.values(), ids=BAD_LAYERS)
def test_layers_that_are_not_there_are_refused(layers, message):
    with pytest.raises(InputError, match=message):
        check_layers(layers, 3)


def test_a_right_padded_batch_is_refused_when_it_starts_to_answer():
    model = tiny()
    ids, mask = torch.tensor([[5, 6, 7, 8], [5, 6, 0, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    message = r"^row 1 of the batch is padded on the right, .*; set tokenizer.padding_side = 'left'$"
    with random_psr(model).steer(), pytest.raises(InputError, match=message):
        greedy(model, ids, mask)


def test_the_question_must_be_known_where_it_is_steered():
    model = tiny()
    psr = random_psr(model, span="question_and_answer")
    with psr.steer(), pytest.raises(InputError, match=r"must know where the question is: use generate"):
        logits(model)
    with (
        psr.steer(mask=torch.ones(1, 3, dtype=torch.bool)),
        pytest.raises(InputError, match=r"^mask: expected the shape of the first pass, \(1, 5\), not \(1, 3\)$"),
    ):
        logits(model)


def test_an_attached_steering_is_not_attached_again():
    psr = random_psr(tiny()).attach()
    with pytest.raises(InputError, match=r"^it is attached already; call detach\(\) first$"):
        psr.attach()
    psr.detach()
    psr.attach().detach()


def test_a_strength_that_is_no_number_is_refused():
    with pytest.raises(InputError, match=r"^alpha=nan: expected a finite number$"):
        random_psr(tiny()).attach(float("nan"))


def test_generate_answers_as_the_model_under_steering_does():
    model, words = tiny(), tokenizer()
    prompts = [text(5, 6, 7), text(8, 9, 10, 11)]
    psr = random_psr(model)
    ids, mask = left_padded([[5, 6, 7], [8, 9, 10, 11]], "cpu")
    with psr.steer(alpha=0.5):
        expected = words.batch_decode(greedy(model, ids, mask, n=5), skip_special_tokens=True)
    assert psr.generate(prompts, 0.5, max_new_tokens=5) == expected


def test_generate_steers_the_question_where_the_span_has_it():
    model = tiny()
    psr = random_psr(model, span="question_and_answer")
    prompt, question = text(5, 6, 7, 8, 9), text(7, 8)
    mask = torch.tensor([[False, False, True, True, True]])
    with psr.steer(mask=mask):
        expected = tokenizer().batch_decode(greedy(model, PROMPT, n=5), skip_special_tokens=True)
    assert psr.generate([prompt], max_new_tokens=5, questions=[question]) == expected


def test_more_than_one_answer_a_prompt_is_refused():
    with pytest.raises(InputError, match=r"^num_return_sequences=2: each prompt gets one answer; repeat the prompts$"):
        random_psr(tiny()).generate(["w5", "w6"], temperature=1.0, num_return_sequences=2)


def test_fitting_leaves_the_weights_of_the_model_and_no_gradient_on_them():
    model = tiny()
    model.train()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    PSR(model, tokenizer(), layers=1).fit(pairs(2), epochs=1)
    assert model.training
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
