"""The loop and the interface: what is committed when, batches, baselines, the count of operations, bad input."""

import itertools
import pickle
import re
from dataclasses import replace

import pytest
import torch
from dyllm_models import EOS, MASK, MODELS, VOCAB, bidirectional_llama, dream, llada, modernbert, prompt
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from assay._core.errors import InputError
from assay.decode.dyllm import DyLLMGenerator, adapter_of, dyllm_generate
from assay.decode.dyllm.record import Record, StepRecord, costs_of, step_flops
from assay.decode.dyllm.samplers import block_ends, chosen, propose
from assay.decode.dyllm.schedule import step_kind

pytestmark = pytest.mark.usefixtures("one_thread")


# -------------------------------------------------------------------------------------------- schedule and samplers


def test_the_schedule_is_full_then_three_response_steps_for_each_over_all_rows():
    kinds = [step_kind(step, 2, 4) for step in range(1, 13)]
    assert kinds == ["full"] * 2 + ["rows"] * 2 + ["response", "response", "response", "rows"] * 2


def test_a_refresh_makes_every_rth_step_full():
    kinds = [step_kind(step, 1, 4, refresh_every=6) for step in range(1, 13)]
    assert [step for step, kind in enumerate(kinds, start=1) if kind == "full"] == [1, 6, 12]


LOGITS = torch.log(torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.45, 0.05]]))
SCORES = {
    "confidence": [0.7, 0.5],
    "margin": [0.5, 0.05],
    "entropy": [-0.80182, -0.85568],  # sum of p log p by hand
}


@pytest.mark.parametrize("remasking", SCORES)
def test_scores_are_those_of_their_definition(remasking):
    tokens, scores = propose(LOGITS, remasking, 0.0)
    assert tokens.tolist() == [0, 0]
    assert scores.tolist() == pytest.approx(SCORES[remasking], abs=1e-4)


def test_a_drawn_token_has_the_probability_of_the_scaled_logits():
    tokens, scores = propose(LOGITS[:1].expand(20_000, -1), "confidence", 0.5, torch.Generator().manual_seed(0))
    squares = torch.tensor([0.49, 0.04, 0.01]) / 0.54  # softmax(log p / 0.5) is p^2, normalised
    shares = torch.bincount(tokens, minlength=3) / len(tokens)
    assert shares.tolist() == pytest.approx(squares.tolist(), abs=4 * 0.5 / 20_000**0.5)  # four standard errors
    assert scores == pytest.approx(squares[tokens], abs=1e-5)


def test_a_threshold_commits_the_best_and_all_that_reach_it():
    scores = torch.tensor([0.3, 0.8, 0.9, 0.5])
    assert sorted(chosen(scores, 1, 0.5).tolist()) == [1, 2, 3]
    assert chosen(scores, 1, 0.95).tolist() == [2]


def test_the_current_block_is_the_one_that_is_filled_to_its_end_first():
    assert block_ends(torch.tensor([0, 7, 8, 20]), 8, first=5, last=27).tolist() == [13, 13, 21, 27]


# ------------------------------------------------------------------------------------------------------- decoding


def plain_decoder(model, ids, n_new, n_commit, block_size, *, shift=False):
    """LLaDA's decoder as a loop over the model's own logits: the most probable tokens of the block, fewest first."""
    ids = torch.cat((ids, torch.full((1, n_new), MASK)), dim=1)[0]
    first = len(ids) - n_new
    while (ids == MASK).any():
        filled = n_new - int((ids == MASK).sum())
        end = min(first + (filled // block_size + 1) * block_size, len(ids))
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0]
        if shift:
            logits = torch.cat((logits[:1], logits[:-1]))
        logits[:, MASK] = -torch.inf
        chances = torch.softmax(logits, -1)
        score = (chances * torch.log(chances + 1e-10)).sum(-1) if shift else chances.max(-1).values
        open_ones = [at for at in range(first, end) if ids[at] == MASK]
        for at in sorted(open_ones, key=lambda at: -float(score[at]))[:n_commit]:
            ids[at] = logits[at].argmax()
    return ids


@pytest.mark.parametrize("name", MODELS)
def test_with_full_steps_only_it_is_the_plain_decoder_token_for_token(name):
    model = MODELS[name]()
    generator = DyLLMGenerator(model, mask_token_id=MASK, num_full_steps=8, block_size=8)
    found = generator.generate(prompt(9), max_new_tokens=16, steps=8)
    assert torch.equal(found.sequences[0], plain_decoder(model, prompt(9), 16, 2, 8, shift=name == "dream"))


def test_full_mode_is_what_full_steps_only_give():
    generator = DyLLMGenerator(llada(), num_full_steps=99, block_size=8)
    always, plain = (generator.generate(prompt(9), max_new_tokens=16, mode=mode) for mode in ("dyllm", "full"))
    assert torch.equal(always.sequences, plain.sequences)


class Seen(list):
    """The state of the response at every forward of a model's embedding."""

    def __init__(self, model, first):
        super().__init__()
        embed = model.model.transformer.wte
        embed.register_forward_pre_hook(lambda _, given: self.append(given[0][0, -16:].clone()))


def test_every_step_fills_its_number_of_tokens_in_the_current_block_and_they_never_change():
    model = llada()
    generator = DyLLMGenerator(model, block_size=8)
    seen = Seen(model, 9)
    last = generator.generate(prompt(9), max_new_tokens=16, steps=8).sequences[0, -16:]
    states = [*seen, last]
    assert len(states) == 9
    for number, (before, after) in enumerate(itertools.pairwise(states)):
        new = (before == MASK) & (after != MASK)
        assert int(new.sum()) == 2
        end = 8 * (number // 4 + 1)
        assert not new[end:].any()
        assert torch.equal(before[before != MASK], after[before != MASK])


def test_the_mask_is_never_committed_as_a_token():
    model = llada()
    with torch.no_grad():
        model.model.transformer.ff_out.weight[MASK] *= 100.0  # on average half the positions would choose it
    found = DyLLMGenerator(model, block_size=8).generate(prompt(9), max_new_tokens=16)
    assert not (found.sequences == MASK).any()


@pytest.mark.parametrize("name", ["llada", "dream", "modernbert", "roberta"])
@pytest.mark.parametrize("mode", ["dyllm", "full", "dual_cache", "dllm_cache"])
def test_a_batch_of_two_lengths_is_two_single_runs(name, mode):
    model = MODELS[name]()
    generator = DyLLMGenerator(model, mask_token_id=MASK, tau=0.995, num_full_steps=2, block_size=8)
    long, short = prompt(11, seed=1), prompt(6, seed=2)
    ids = torch.cat((long, torch.cat((torch.zeros(1, 5, dtype=torch.long), short), dim=1)))
    attended = torch.ones_like(ids)
    attended[1, :5] = 0
    both = generator.generate(ids, attended, max_new_tokens=16, steps=8, mode=mode)
    alone = [generator.generate(one, max_new_tokens=16, steps=8, mode=mode) for one in (long, short)]
    assert torch.equal(both.sequences[0], alone[0].sequences[0])
    assert torch.equal(both.sequences[1, 5:], alone[1].sequences[0])
    for together, *apart in zip(both.record.steps, *(one.record.steps for one in alone), strict=True):
        assert together.mlp_rows == tuple(map(sum, zip(*(step.mlp_rows for step in apart), strict=True)))


def test_with_a_threshold_of_next_to_nothing_a_block_takes_one_step():
    generator = DyLLMGenerator(llada(), block_size=8)
    found = generator.generate(prompt(9), max_new_tokens=16, confidence_threshold=1e-6)
    assert [step.n_committed for step in found.record.steps] == [8, 8]


def test_decoding_stops_when_an_end_token_stands_behind_no_mask():
    model = llada()
    model.config.eos_token_id = EOS
    bias = torch.zeros(VOCAB)
    bias[EOS] = 100.0
    head = model.model.transformer.ff_out
    model.model.transformer["ff_out"] = nn.Linear(head.in_features, VOCAB)
    with torch.no_grad():
        model.model.transformer["ff_out"].weight.copy_(head.weight)
        model.model.transformer["ff_out"].bias.copy_(bias)
    found = DyLLMGenerator(model, block_size=1).generate(prompt(9), max_new_tokens=16)
    assert len(found.record.steps) == 1
    assert (found.sequences[0, 9:] == EOS).all()


@pytest.mark.parametrize("end", [EOS, 5])
def test_every_end_token_of_a_list_ends_a_response_and_fills_what_follows(end):
    model = MODELS["bidirectional llama"]()
    model.config.eos_token_id = [EOS, 5]
    model.lm_head = nn.Linear(32, VOCAB)
    with torch.no_grad():
        model.lm_head.bias.zero_()[end] = 1000.0
    found = DyLLMGenerator(model, block_size=1).generate(prompt(9), max_new_tokens=16)
    assert len(found.record.steps) == 1
    assert (found.sequences[0, 9:] == end).all()


@pytest.mark.parametrize(("name", "n"), [("bert", 128), ("roberta", 129)])
def test_learned_positions_may_be_filled_to_the_last(name, n):
    """RoBERTa's table of 130 begins behind the padding token's number, which is 0 here."""
    generator = DyLLMGenerator(MODELS[name](), mask_token_id=MASK)
    found = generator.generate(prompt(n - 8), max_new_tokens=8, steps=1, mode="full")
    assert found.sequences.shape == (1, n)
    message = rf"^a prompt of {n - 7} tokens and max_new_tokens=8 make {n + 1}, and \w+ has positions for {n}; shorten"
    with pytest.raises(InputError, match=message):
        generator.generate(prompt(n - 7), max_new_tokens=8)


def test_padding_takes_no_learned_position():
    generator = DyLLMGenerator(MODELS["bert"](), mask_token_id=MASK)
    attended = torch.ones(1, 130, dtype=torch.long)
    attended[:, :10] = 0
    found = generator.generate(prompt(130), attended, max_new_tokens=8, steps=1, mode="full")
    assert not (found.sequences == MASK).any()


def test_the_same_seed_draws_the_same_text_and_another_another():
    generator = DyLLMGenerator(llada(), block_size=8)
    texts = [
        generator.generate(prompt(9), max_new_tokens=16, temperature=2.0, seed=seed).sequences for seed in (1, 1, 2)
    ]
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])


def test_half_precision_is_decoded_too():
    found = DyLLMGenerator(bidirectional_llama().bfloat16(), tau=0.99, block_size=8).generate(
        prompt(9), max_new_tokens=16
    )
    assert not (found.sequences == MASK).any()


def test_what_was_decoded_survives_pickling():
    found = DyLLMGenerator(llada(), block_size=8).generate(prompt(9), max_new_tokens=8)
    again = pickle.loads(pickle.dumps(found))
    assert torch.equal(again.sequences, found.sequences)
    assert again.record == found.record


def test_the_function_decodes_as_the_generator_does():
    model = llada()
    once = dyllm_generate(model, prompt(9), tau=0.995, block_size=8, max_new_tokens=16)
    again = DyLLMGenerator(model, tau=0.995, block_size=8).generate(prompt(9), max_new_tokens=16)
    assert torch.equal(once.sequences, again.sequences)


def test_caches_are_refreshed_at_every_block_and_hold_the_rows_they_should():
    generator = DyLLMGenerator(llada(), block_size=8)
    prefix, dual = (
        generator.generate(prompt(9), max_new_tokens=16, steps=8, mode=mode).record.steps
        for mode in ("prefix_cache", "dual_cache")
    )
    assert [step.kind for step in prefix] == (["full"] + ["cached"] * 3) * 2
    assert [step.n_rows for step in prefix] == [25, 16, 16, 16, 25, 8, 8, 8]
    assert [step.n_rows for step in dual] == [25, 8, 8, 8, 25, 8, 8, 8]


def test_a_prefix_cache_over_an_empty_prefix_is_full_recomputation():
    """With one block behind one prompt token, all that is stale is that token's keys and values."""
    model = llada()
    generator = DyLLMGenerator(model, block_size=16)
    cached, full = (
        generator.generate(prompt(1), max_new_tokens=16, steps=8, mode=mode) for mode in ("prefix_cache", "full")
    )
    assert [step.n_rows for step in cached.record.steps[1:]] == [16] * 7
    assert [step.n_rows for step in full.record.steps] == [17] * 8


@pytest.mark.parametrize("name", MODELS)
def test_dllm_cache_that_recomputes_the_whole_response_is_a_prefix_cache_that_is_never_renewed(name, monkeypatch):
    """The whole response over the prompt's keys and values of the first step: as a prefix cache with one block."""
    monkeypatch.setattr("assay.decode.dyllm.baselines.RECOMPUTED", 1.0)
    generator = DyLLMGenerator(MODELS[name](), mask_token_id=MASK, block_size=16)
    whole, prefix = (
        generator.generate(prompt(9), max_new_tokens=16, remasking="confidence", mode=mode).sequences
        for mode in ("dllm_cache", "prefix_cache")
    )
    if name == "dream":  # the prefix cache also renews the row before the block, from which its first logits come
        assert float((whole == prefix).float().mean()) > 0.5
    else:
        assert torch.equal(whole, prefix)


def test_dllm_cache_computes_a_quarter_of_the_response_between_its_refreshes():
    record = DyLLMGenerator(llada(), block_size=16).generate(prompt(9), max_new_tokens=16, mode="dllm_cache").record
    assert [step.n_rows for step in record.steps] == [25] + [4] * 6 + [16] + [4] * 6 + [16] + [4]
    assert record.steps[1].mlp_rows == (4, 4, 4)
    assert record.steps[1].kv_rows == (10, 10, 10)  # values of 16 rows, keys of 4


# ------------------------------------------------------------------------------------------------- what is counted


def test_operations_of_a_step_are_those_of_the_formulas():
    adapter = adapter_of(llada())
    costs = costs_of(adapter)
    d, kv, mlp = 32, 16, 3 * 32 * 48
    assert costs[0] == (2 * d * d, 2 * d * kv, mlp, d)
    full = StepRecord("full", 25, (25,) * 3, (25,) * 3, 8, 2, 0.1)
    rows = 2 * d * d + 2 * d * kv + mlp + 2 * 25 * d
    assert step_flops(full, costs, d * VOCAB, 25) == 2 * (3 * 25 * rows + 8 * d * VOCAB)
    sparse = replace(full, kind="response", n_rows=16, kv_rows=(2, 1, 0), mlp_rows=(1, 0, 0))
    linear = 3 * 16 * 2 * d * d + 3 * 2 * d * kv + mlp
    # Scores and added columns for 16 rows, a second look at all keys and values for the salient ones.
    attention = (16 * (25 + 2) + 2 * 2 * 25 + 16 * (25 + 1) + 2 * 1 * 25) * d
    assert step_flops(sparse, costs, d * VOCAB, 25) == 2 * (linear + attention + 8 * d * VOCAB)


def test_shares_are_means_over_steps_and_full_steps_count():
    costs = costs_of(adapter_of(llada()))
    steps = (
        StepRecord("full", 20, (20,) * 3, (20,) * 3, 8, 1, 0.2),
        StepRecord("rows", 20, (1, 2, 3), (2, 4, 6), 7, 1, 0.1),
        StepRecord("response", 10, (1, 0, 0), (3, 0, 0), 6, 2, 0.1),
    )
    record = Record("dyllm", steps, costs, 32 * VOCAB, 20, 1)
    assert record.salient_share == pytest.approx((4 / 20 + 1 / 10) / 2)
    assert record.recomputed_share == pytest.approx((1 + 4 / 20 + 1 / 20) / 3)
    assert record.tokens_per_second == pytest.approx(4 / 0.4)
    assert record.full_flops > record.flops
    frame = record.to_frame()
    assert len(frame) == 9
    assert frame["mlp_rows"].tolist() == [20, 20, 20, 2, 4, 6, 3, 0, 0]


def test_the_rows_that_are_counted_are_the_rows_of_the_steps():
    model = llada()
    generator = DyLLMGenerator(model, tau=1.5, num_full_steps=2, block_size=8)
    found = generator.generate(prompt(9), max_new_tokens=16, steps=8)
    assert [step.n_rows for step in found.record.steps] == [25, 25, 25, 25, 16, 16, 16, 25]
    assert found.record.steps[4].kv_rows == (2, 16, 16)
    assert found.record.steps[4].mlp_rows == (16, 16, 16)
    assert [step.head_rows for step in found.record.steps] == [8, 6, 4, 2, 8, 6, 4, 2]


def test_a_summary_and_a_picture_are_made():
    record = DyLLMGenerator(llada(), block_size=8).generate(prompt(9), max_new_tokens=16).record
    text = record.summary()
    assert re.search(r"^full +4 +25 +100\.0%", text, re.MULTILINE)
    assert "16 tokens in" in text
    assert record.plot().get_xlabel() == "step"


# ------------------------------------------------------------------------------------------------------- bad input


def causal():
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    return LlamaForCausalLM(config).eval()


def gpt2():
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=16, n_layer=1, n_head=2, n_positions=32)).eval()


BAD_GENERATORS = {
    "a causal model": (causal, {"mask_token_id": MASK}, "DyLLM needs a bidirectional masked diffusion model"),
    "unknown blocks": (gpt2, {"mask_token_id": MASK}, "is made of blocks that are not known here; known are LLaDA"),
    "no mask": (modernbert, {}, "has no mask token: neither its configuration nor its tokenizer names one"),
    "a mask that is no token": (llada, {"mask_token_id": 99}, r"mask_token_id=99: the model knows tokens 0 to 60"),
    "training": (lambda: llada().train(), {}, "LLaDA is in training mode; call model.eval"),
    "tau too low": (llada, {"tau": -1.5}, "tau=-1.5: expected a cosine from -1"),
    "tau in percent": (llada, {"tau": 99}, "tau=99: expected a cosine from -1"),
    "tau is not a number": (llada, {"tau": float("nan")}, "tau=nan: expected a cosine from -1"),
    "no full step": (llada, {"num_full_steps": 0}, "num_full_steps=0: expected a whole number from 1"),
    "no block": (llada, {"block_size": 0}, "block_size=0: expected a whole number from 1"),
    "no refresh": (llada, {"refresh_every": 0}, "refresh_every=0: expected a whole number from 1"),
}


@pytest.mark.parametrize(("make", "options", "message"), BAD_GENERATORS.values(), ids=BAD_GENERATORS)
def test_a_generator_refuses(make, options, message):
    with pytest.raises(InputError, match=message):
        DyLLMGenerator(make(), **options)


def test_an_adapter_that_leaves_something_out_is_refused():
    model = llada()
    adapter = adapter_of(model)
    without = replace(adapter, blocks=adapter.blocks[:2], rope=lambda positions: adapter.rope(positions)[:2])
    with pytest.raises(InputError, match=r"and those of its blocks as described here differ by [\d.]+ %"):
        DyLLMGenerator(model, adapter=without)


def test_an_adapter_of_one_s_own_is_used():
    model = llada()
    own = replace(adapter_of(model))
    found = DyLLMGenerator(model, adapter=own, block_size=8).generate(prompt(9), max_new_tokens=16)
    assert torch.equal(
        found.sequences, DyLLMGenerator(model, block_size=8).generate(prompt(9), max_new_tokens=16).sequences
    )


LEFT = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
BAD_CALLS = {
    "steps": ({"max_new_tokens": 16, "steps": 5}, "max_new_tokens=16 is not a multiple of steps=5"),
    "blocks": (
        {"max_new_tokens": 24, "steps": 8},
        "block_size=8 is not a multiple of the 3 tokens that a step",
    ),
    "nothing to fill": ({"max_new_tokens": 0}, "max_new_tokens=0: expected a whole number from 1"),
    "a mask in the prompt": ({"input_ids": torch.tensor([[4, MASK]])}, "prompt 0 holds the mask token 60"),
    "no prompt": ({"input_ids": torch.zeros(1, 0, dtype=torch.long)}, r"input_ids has shape \(1, 0\): expected"),
    "one dimension": ({"input_ids": torch.tensor([4, 5])}, r"input_ids has shape \(2,\): expected"),
    "an unknown token": ({"input_ids": torch.tensor([[4, 99]])}, "input_ids holds token 99; the model knows 0 to 60"),
    "a negative token": ({"input_ids": torch.tensor([[5, -1]])}, "input_ids holds token -1; the model knows 0 to 60"),
    "padding on the right": ({"input_ids": prompt(4, 2), "attention_mask": LEFT}, "are padded on the left"),
    "a mask of another shape": ({"attention_mask": LEFT}, r"attention_mask has shape \(2, 4\) and input_ids \(1, 9\)"),
    "a threshold over one": ({"confidence_threshold": 1.2}, "confidence_threshold=1.2: expected a number above 0"),
    "a threshold on entropy": (
        {"confidence_threshold": 0.9, "remasking": "entropy"},
        "confidence_threshold is a probability",
    ),
    "remasking": ({"remasking": "topk"}, "remasking='topk': expected one of confidence, margin, entropy, random"),
    "cold": ({"temperature": -1.0}, "temperature=-1.0: expected a number from 0"),
    "mode": ({"mode": "fast"}, "mode='fast': expected one of full, prefix_cache, dual_cache, dllm_cache, dyllm"),
}


@pytest.mark.parametrize(("options", "message"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_generate_refuses(options, message):
    generator = DyLLMGenerator(llada(), block_size=8)
    with pytest.raises(InputError, match=message):
        generator.generate(**{"input_ids": prompt(9), "max_new_tokens": 16, **options})


def test_generate_refuses_a_model_that_was_put_in_training_mode_since():
    model = llada()
    generator = DyLLMGenerator(model, block_size=8)
    model.train()
    with pytest.raises(InputError, match=r"^LLaDA is in training mode; call model\.eval\(\) first$"):
        generator.generate(prompt(9), max_new_tokens=16)


def test_dream_takes_the_entropy_unless_told_otherwise():
    generator = DyLLMGenerator(dream(), block_size=8)
    default, entropy, confidence = (
        generator.generate(prompt(9), max_new_tokens=16, mode="full", remasking=name).sequences
        for name in (None, "entropy", "confidence")
    )
    assert torch.equal(default, entropy)
    assert not torch.equal(default, confidence)
