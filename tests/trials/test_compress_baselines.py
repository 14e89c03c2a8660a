"""Round to nearest and GPTQ, checked against closed forms and brute force."""

import itertools
import re

import pytest
import torch
from torch import nn

from assay._core.decoder import decoder_blocks
from assay._core.errors import InputError
from assay.compress._blocks import after, batches_of, block_inputs, run_block
from assay.trials.compress.baselines import fit_grid, gptq_, gptq_weight, rtn_

pytestmark = pytest.mark.usefixtures("one_thread")


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def curvature_of(x):
    return x.T @ x / len(x)


def loss(weight, done, curvature):
    return float(torch.einsum("oi,ij,oj->", weight - done, curvature, weight - done))


def tiny_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def tiny_gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=97, n_positions=64, n_embd=64, n_layer=2, n_head=4)).eval()


# ------------------------------------------------------------------------------------------------ round to nearest


def test_two_bits_have_the_mean_squared_error_of_the_best_uniform_quantiser_of_a_normal_source():
    # Four uniform levels ±1/2, ±3/2 at step 0.9957: 0.1188 (Max 1960); the search has 21 shrinks, rows are long.
    weight = normal(16, 20_000)
    error = (fit_grid(weight, 2).nearest(weight) - weight).square().mean()
    assert float(error) == pytest.approx(0.1188, rel=0.01)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_a_weight_goes_to_the_nearest_of_its_row_s_levels(bits):
    weight = normal(5, 40)
    grid = fit_grid(weight, bits)
    levels = grid.scale * (torch.arange(2**bits) - grid.zero)  # (rows, levels)
    nearest = (weight[:, :, None] - levels[:, None]).abs().argmin(-1)
    torch.testing.assert_close(grid.nearest(weight), levels.gather(1, nearest))


def test_a_weight_that_lies_on_a_grid_keeps_its_values():
    weight = torch.tensor([[-1.5, -0.5, 0.5, 1.5], [0.0, 1.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0]])
    assert torch.equal(fit_grid(weight, 2).nearest(weight), weight)


def test_a_group_is_rounded_as_a_weight_of_its_own():
    model = nn.Sequential(nn.Linear(48, 6))
    weight = model[0].weight.detach().clone()
    rtn_(model, 3, 16)
    for part, done in zip(weight.split(16, 1), model[0].weight.split(16, 1), strict=True):
        assert torch.equal(fit_grid(part, 3).nearest(part), done)


def test_the_bytes_are_codes_scales_and_offsets():
    found = rtn_(nn.Sequential(nn.Linear(128, 10)), 2, 32)
    assert found.n_bytes == 10 * (128 * 2 + 4 * (16 + 3)) // 8
    assert found.n_other == 40


def test_lm_head_and_the_embedding_tied_to_it_stay():
    model = tiny_llama()
    before = model.lm_head.weight.clone()
    assert len(rtn_(model, 4).error) == 14
    assert torch.equal(model.lm_head.weight, before)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_gpt2_s_conv1d_is_rounded_along_its_input():
    model = tiny_gpt2()
    weight = model.transformer.h[0].mlp.c_fc.weight.detach().clone()
    rtn_(model, 3)
    assert torch.equal(model.transformer.h[0].mlp.c_fc.weight, fit_grid(weight.T, 3).nearest(weight.T).T)


# ------------------------------------------------------------------------------------------------------------ GPTQ


@pytest.mark.parametrize("group_size", [None, 8])
def test_with_independent_inputs_gptq_is_round_to_nearest(group_size):
    weight = normal(6, 32)
    diagonal = torch.diag(torch.linspace(0.5, 4.0, 32))
    parts = weight.split(group_size or 32, 1)
    expected = torch.cat([fit_grid(part, 3).nearest(part) for part in parts], 1)
    assert torch.equal(gptq_weight(weight, diagonal, 3, group_size, damp=0.0), expected)


def test_the_first_column_s_error_moves_the_second_by_the_conditional_mean():
    # Two inputs of variances 2 and 1 and covariance c: the first is rounded first, leaving the error e; the second then
    # minimises (e, f) H (e, f), so it aims at w2 + c e and is rounded there.
    weight, c = normal(200, 2), 0.9
    done = gptq_weight(weight, torch.tensor([[2.0, c], [c, 1.0]]), 4, damp=0.0)
    grid = fit_grid(weight, 4)
    first = grid.nearest(weight[:, :1])
    second = grid.nearest(weight[:, 1:] + c * (weight[:, :1] - first))
    torch.testing.assert_close(done, torch.cat([first, second], 1))


def test_the_last_column_is_the_best_on_the_grid_given_the_others():
    weight, curvature = normal(8, 3), curvature_of(normal(50, 3, seed=1) @ normal(3, 3, seed=2))
    order = torch.argsort(curvature.diagonal(), descending=True)
    done, grid = gptq_weight(weight, curvature, 3, damp=0.0), fit_grid(weight, 3)
    for row in range(8):
        for code in range(8):
            other = done[row].clone()
            other[order[-1]] = grid.scale[row, 0] * (code - grid.zero[row, 0])
            assert (
                loss(weight[row, None], done[row, None], curvature)
                <= loss(weight[row, None], other[None], curvature) + 1e-5
            )


def test_on_three_weights_gptq_lies_between_brute_force_and_round_to_nearest():
    curvature = curvature_of(normal(50, 3, seed=1) @ (torch.eye(3) + 0.8))
    weight = normal(200, 3)
    grid = fit_grid(weight, 2)
    codes = torch.tensor(list(itertools.product(range(4), repeat=3)))
    every = grid.scale[:, :, None] * (codes.T - grid.zero[:, :, None])  # (rows, 3, 64)
    gap = weight[:, :, None] - every
    best = torch.einsum("oik,ij,ojk->ok", gap, curvature, gap).amin(1).sum()
    found = loss(weight, gptq_weight(weight, curvature, 2, damp=0.0), curvature)
    assert float(best) <= found < loss(weight, grid.nearest(weight), curvature)


def test_columns_in_blocks_of_128_are_the_columns_one_by_one():
    x = normal(600, 150, seed=3) @ (torch.eye(150) + 0.1 * normal(150, 150, seed=4))
    weight, curvature = normal(4, 150), curvature_of(x)
    done, grid = gptq_weight(weight, curvature, 4, damp=0.01), fit_grid(weight, 4)
    # Optimal brain surgery, with the inverse of what is left computed anew at every column, in float64.
    order = torch.argsort(curvature.diagonal(), descending=True, stable=True)
    h = (curvature + 0.01 * curvature.diagonal().mean() * torch.eye(150))[order][:, order].double()
    left, expected = weight[:, order].double(), torch.empty(4, 150)
    for i in range(150):
        expected[:, i] = grid.nearest(left[:, i : i + 1].float())[:, 0]
        inverse = torch.linalg.inv(h[i:, i:])
        left[:, i:] -= ((left[:, i] - expected[:, i]) / inverse[0, 0])[:, None] * inverse[0]
    assert (done[:, order] == expected).float().mean() > 0.99  # float32 may tip a weight midway between levels


def test_gptq_has_the_smaller_error_in_the_layers_outputs():
    x = normal(400, 64, seed=1) @ normal(64, 64, seed=2)
    weight, curvature = normal(16, 64), curvature_of(x)
    rounded = loss(weight, fit_grid(weight, 3).nearest(weight), curvature)
    assert loss(weight, gptq_weight(weight, curvature, 3), curvature) < 0.7 * rounded


def test_an_input_that_is_always_zero_changes_nothing():
    x = normal(100, 8)
    x[:, 3] = 0
    weight = normal(4, 8)
    done = gptq_weight(weight, curvature_of(x), 4)
    assert torch.equal(done[:, 3], fit_grid(weight, 4).nearest(weight)[:, 3])


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
def test_gptq_keeps_a_model_s_logits_closer_than_round_to_nearest(make):
    ids = torch.randint(97, (8, 48), generator=torch.Generator().manual_seed(0))
    gaps = []
    for run in (lambda m: gptq_(m, ids, 3), lambda m: rtn_(m, 3)):
        model = make()
        with torch.no_grad():
            reference = model(ids).logits
            found = run(model)
            gaps.append(float((model(ids).logits - reference).square().mean()))
        assert len(found.error) == len([n for n, m in model.named_modules() if n in found.error])
    assert gaps[0] < gaps[1]


def test_the_blocks_of_a_model_are_its_decoder_layers():
    assert [name for name, _ in decoder_blocks(tiny_llama())] == ["model.layers.0", "model.layers.1"]
    assert [name for name, _ in decoder_blocks(tiny_gpt2())] == ["transformer.h.0", "transformer.h.1"]


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
def test_blocks_run_one_after_the_other_are_the_model(make):
    model, ids = make(), torch.arange(30)[None] % 97
    blocks = decoder_blocks(model)
    with torch.no_grad():
        expected = model(ids, output_hidden_states=True).hidden_states
        (call,) = block_inputs(model, blocks[0][1], batches_of([ids]))
        for (_, block), after_block in zip(blocks[:-1], expected[1:], strict=False):
            for _ in range(2):  # a second call must not see what a cache kept of the first
                states = run_block(block, call)
            torch.testing.assert_close(states, after_block)
            call = after(call, states)


def test_a_model_without_blocks_is_one_block():
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    assert len(gptq_(model, [normal(64, 16)], 3).error) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: rtn_(m, 9), "bits=9: expected a whole number from 2 to 8"),
        (lambda m: rtn_(m, 4, 0), "group_size=0: expected a number of columns, or None for whole rows"),
        (lambda m: rtn_(nn.ReLU(), 4), "the model has no linear layer to quantise apart from those skipped (lm_head)"),
        (lambda m: gptq_(m, [], 4), "calibration holds no sequences; give token ids (n_sequences, n_tokens) or a list"),
        (lambda m: gptq_(m, ["text"], 4), "calibration holds a str; expected tensors, tuples of arguments or dict"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        call(nn.Sequential(nn.Linear(4, 4)))
