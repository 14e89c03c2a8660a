"""One block: saliency, the update by changed values, and what a sparse pass leaves alone."""

import pytest
import torch
from dyllm_models import MASK, MODELS, bert, bidirectional_llama, dream, llada, prompt
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.decode.dyllm import adapter_of
from assay.decode.dyllm import layer as layer_module
from assay.decode.dyllm.layer import LayerCache, added_by_values, attend, rotate, salient_rows, sparse_layer
from assay.decode.dyllm.steps import begin, full_step, logits_at, sparse_step

pytestmark = pytest.mark.usefixtures("one_thread")


def started(model, n_prompt=9, n_response=7, n=1, seed=0):
    """An adapter, and a state behind a full step over a prompt and masks."""
    adapter = adapter_of(model)
    ids = torch.cat((prompt(n_prompt, n, seed), torch.full((n, n_response), MASK)), dim=1)
    state = begin(adapter, ids, torch.ones_like(ids, dtype=torch.bool), n_prompt)
    with torch.no_grad():
        step = full_step(adapter, state)
    return adapter, state, step


def refilled(state, positions, token=5):
    """Put a token at some positions; return which positions changed."""
    changed = torch.zeros_like(state.real)
    for at in positions:
        state.ids[:, at] = token
        changed[:, at] = True
    return changed


def snapshot(state):
    return [
        LayerCache(*(part.clone() for part in (layer.keys, layer.values, layer.context, layer.fed)))
        for layer in state.layers
    ]


def whole(state):
    return slice(0, state.length)


@torch.no_grad()
def model_logits(model, ids):
    return model(input_ids=ids).logits


# ------------------------------------------------------------------------------------------------------- saliency


def test_a_context_that_only_grew_is_not_salient():
    old = torch.randn(1, 5, 12, generator=torch.Generator().manual_seed(0))
    assert not salient_rows(7.0 * old, old, 0.9999).any()


def test_a_context_that_turned_around_is_salient():
    old = torch.randn(1, 5, 12, generator=torch.Generator().manual_seed(0))
    assert salient_rows(-old, old, 0.0).all()


def test_rows_of_zeros_give_no_nan():
    zeros = torch.zeros(1, 2, 4)
    assert salient_rows(zeros, zeros, 0.5).all()  # a cosine of 0
    assert not salient_rows(zeros, zeros, -0.5).any()


def test_the_cosine_is_of_the_whole_vector_and_not_of_single_heads():
    old = torch.tensor([[[10.0, 0.0, 1.0, 0.0]]])  # two heads of width 2
    new = torch.tensor([[[10.0, 0.0, 0.0, 1.0]]])  # the second is orthogonal; over both the cosine is 100 / 101
    assert not salient_rows(new, old, 0.99).any()
    assert salient_rows(new, old, 0.991).all()


@settings(max_examples=40, deadline=None)
@given(st.floats(0.05, 3.09), st.floats(-0.999, 0.999), st.floats(0.01, 100.0))
def test_a_row_is_salient_exactly_when_its_angle_is_larger_than_that_of_tau(angle, tau, length):
    if abs(torch.cos(torch.tensor(angle)) - tau) < 1e-4:
        return
    old = torch.tensor([[[1.0, 0.0]]])
    new = length * torch.tensor([[[float(torch.cos(torch.tensor(angle))), float(torch.sin(torch.tensor(angle)))]]])
    assert bool(salient_rows(new, old, tau)) == (angle > float(torch.arccos(torch.tensor(tau))))


def test_above_one_every_row_is_salient_and_at_minus_one_none():
    old = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    assert salient_rows(old, old, 1.01).all()
    assert not salient_rows(-old, old, -1.0).any()


# ------------------------------------------------------------------------------------------- the update by values


def attention(q, k, v, scale):
    """Written out, query head by query head; keys are shared by groups of them."""
    group = q.shape[2] // k.shape[1]
    heads = []
    for head in range(q.shape[2]):
        scores = torch.einsum("brd,btd->brt", q[:, :, head], k[:, head // group]) * scale
        heads.append(torch.softmax(scores, -1) @ v[:, head // group])
    return torch.cat(heads, -1)


def tensors(n=2, rows=6, length=10, heads=4, kv=2, width=8):
    draw = torch.Generator().manual_seed(0)
    return (
        torch.randn(n, rows, heads, width, generator=draw),
        torch.randn(n, kv, length, width, generator=draw),
        torch.randn(n, kv, length, width, generator=draw),
    )


def test_query_heads_use_the_key_head_of_their_group():
    q, k, v = tensors()
    assert attend(q, k, v, 0.3, None) == pytest.approx(attention(q, k, v, 0.3), abs=1e-5)


def test_the_update_is_exact_where_keys_stay_and_values_change():
    q, k, v = tensors()
    new, columns = v.clone(), torch.tensor([[1, 4, 7], [0, 2, 9]])
    change = torch.randn(2, 2, 3, 8, generator=torch.Generator().manual_seed(1))
    for sequence in range(2):
        new[sequence, :, columns[sequence]] += change[sequence]
    added = added_by_values(q, k, columns, change, 0.3, None)
    expected = attention(q, k, new, 0.3) - attention(q, k, v, 0.3)
    assert float((added - expected).abs().max()) < 1e-6


def test_the_softmax_runs_over_all_keys_and_not_over_the_changed_ones():
    q, k, _v = tensors(n=1, heads=1, kv=1)
    change = torch.ones(1, 1, 1, 8)
    added = added_by_values(q, k, torch.tensor([[3]]), change, 1.0, None)
    weights = torch.softmax(torch.einsum("rd,td->rt", q[0, :, 0], k[0, 0]), -1)[:, 3]
    assert added[0, :, 0] == pytest.approx(weights, abs=1e-6)
    assert float(weights.max()) < 1  # over column 3 alone it would be 1 everywhere


def test_rows_in_pieces_add_what_all_rows_at_once_add(monkeypatch):
    q, k, _v = tensors()
    seen = torch.rand(2, 1, 6, 10, generator=torch.Generator().manual_seed(2)) < 0.8
    seen[..., 0] = True
    columns, change = torch.tensor([[1, 4], [0, 2]]), torch.ones(2, 2, 2, 8)
    at_once = added_by_values(q, k, columns, change, 0.3, seen)
    monkeypatch.setattr("assay.decode.dyllm.layer.WEIGHTS_AT_A_TIME", 1)
    assert added_by_values(q, k, columns, change, 0.3, seen) == pytest.approx(at_once, abs=1e-6)


def test_a_rotation_keeps_products_where_both_positions_move_alike():
    draw = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 8, generator=draw)[:, None]
    angle = torch.tensor([0.3, 0.1, 0.02, 0.7]).repeat(2)

    def at(x, position):
        return rotate(x, ((position * angle).cos(), (position * angle).sin()))

    assert float((at(q, 3.0) * at(k, 5.0)).sum()) == pytest.approx(float((at(q, 13.0) * at(k, 15.0)).sum()), abs=1e-5)


# ------------------------------------------------------------------------------------------------ a sparse step


@pytest.mark.parametrize("name", MODELS)
def test_the_pieces_compute_what_the_model_computes(name):
    model = MODELS[name]()
    adapter, state, step = started(model, n=2)
    expected = model_logits(model, state.ids)
    with torch.no_grad():
        assert float((adapter.head(step.hidden) - expected).norm() / expected.norm()) < 1e-5


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_with_every_row_salient_from_the_start_a_sparse_step_is_a_full_one(name):
    model = MODELS[name]()
    adapter, state, _ = started(model)
    refilled(state, [10, 13])
    step = sparse_step(adapter, state, torch.ones_like(state.real), whole(state), 1.5)
    expected = model_logits(model, state.ids)
    assert float((adapter.head(step.hidden) - expected).norm() / expected.norm()) < 1e-5


@torch.no_grad()
def test_above_one_only_the_first_block_is_approximate():
    """Behind the first block's output, the others compute what they compute in a full forward."""
    model = llada()
    adapter, state, _ = started(model)
    changed = refilled(state, [10, 13])
    step = sparse_step(adapter, state, changed, whole(state), 1.5)
    assert step.kv_rows == (2, 16, 16)
    assert step.mlp_rows == (16, 16, 16)
    first = state.layers[0]
    x = adapter.embed(state.ids, state.positions) + adapter.blocks[0].o(first.context)
    x = x + first.fed
    for block in model.model.transformer.blocks[1:]:
        x = block(x)
    assert step.hidden == pytest.approx(x, rel=1e-4, abs=1e-4)
    assert not torch.allclose(adapter.head(step.hidden), model_logits(model, state.ids), rtol=1e-2)


@torch.no_grad()
def test_where_every_row_is_salient_blocks_are_computed_densely(monkeypatch):
    """Of three blocks only the first, which begins with the changed tokens, gathers rows."""
    gathered = []
    partial = layer_module._partial_context

    def watched(block, *rest):
        gathered.append(block)
        return partial(block, *rest)

    monkeypatch.setattr(layer_module, "_partial_context", watched)
    adapter, state, _ = started(llada())
    sparse_step(adapter, state, refilled(state, [10, 13]), whole(state), 1.5)
    assert gathered == [adapter.blocks[0]]


@torch.no_grad()
def test_a_higher_tau_is_closer_to_the_full_forward():
    errors = []
    for tau in (-1.0, 0.99, 1.5):
        total = 0.0
        for seed in range(8):
            model = llada(seed=seed)
            adapter, state, _ = started(model, seed=seed)
            changed = refilled(state, [10, 13])
            step = sparse_step(adapter, state, changed, whole(state), tau)
            exact = model_logits(model, state.ids)
            total += float((adapter.head(step.hidden) - exact).norm() / exact.norm())
        errors.append(total / 8)
    assert errors[0] > errors[1] > errors[2]


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_where_nothing_changed_nothing_is_computed_and_logits_stay_to_the_last_bit(name):
    adapter, state, before = started(MODELS[name]())
    step = sparse_step(adapter, state, torch.zeros_like(state.real), whole(state), 1.0)
    assert step.kv_rows == step.mlp_rows == (0, 0, 0)
    assert torch.equal(step.hidden, before.hidden)


@torch.no_grad()
def test_at_minus_one_only_changed_rows_of_the_first_block_are_computed():
    adapter, state, _ = started(llada())
    before = snapshot(state)
    changed = refilled(state, [10, 13])
    step = sparse_step(adapter, state, changed, whole(state), -1.0)
    assert step.kv_rows == (2, 0, 0)
    assert step.mlp_rows == (0, 0, 0)
    moved = (state.layers[0].keys != before[0].keys).any(-1).any(1)[0].nonzero().flatten().tolist()
    assert moved == [10, 13]
    for layer, old in zip(state.layers[1:], before[1:], strict=True):
        assert torch.equal(layer.keys, old.keys)
        assert torch.equal(layer.values, old.values)
        assert torch.equal(layer.context, old.context)
    assert all(torch.equal(layer.fed, old.fed) for layer, old in zip(state.layers, before, strict=True))


@torch.no_grad()
def test_a_response_step_leaves_the_prompt_alone_and_still_sees_it():
    adapter, state, _ = started(llada())
    before = snapshot(state)
    changed = refilled(state, [10, 13])
    rows = slice(9, 16)
    step = sparse_step(adapter, state, changed, rows, 1.5)
    for layer, old in zip(state.layers, before, strict=True):
        assert torch.equal(layer.keys[:, :, :9], old.keys[:, :, :9])
        assert torch.equal(layer.values[:, :, :9], old.values[:, :, :9])
        assert torch.equal(layer.context[:, :9], old.context[:, :9])
        assert torch.equal(layer.fed[:, :9], old.fed[:, :9])
    other, blind, _ = started(llada())
    refilled(blind, [10, 13])
    for layer in blind.layers:
        layer.values[:, :, :9] = 0.0
    assert not torch.allclose(sparse_step(other, blind, changed, rows, 1.5).hidden, step.hidden, atol=1e-2)


@torch.no_grad()
def test_contexts_of_rows_that_are_not_salient_are_stored_as_well():
    """Otherwise small changes would never add up to one that counts."""
    adapter, state, _ = started(llada())
    before = state.layers[0].context.clone()
    changed = refilled(state, [10, 13])
    sparse_step(adapter, state, changed, whole(state), -1.0)
    others = [at for at in range(16) if at not in (10, 13)]
    assert (state.layers[0].context[:, others] != before[:, others]).any(-1).all()


@torch.no_grad()
def test_saliency_compares_with_the_previous_step_and_not_with_the_latest_full_one():
    adapter, state, _ = started(llada())
    changed = refilled(state, [10, 13])
    sparse_step(adapter, state, changed, whole(state), -1.0)
    now = state.layers[0].context.clone()
    same = sparse_step(adapter, state, torch.zeros_like(changed), whole(state), 1.0)
    assert same.mlp_rows == (0, 0, 0)
    assert torch.equal(state.layers[0].context, now)


@torch.no_grad()
def test_the_mlp_is_for_the_rows_that_are_salient_behind_the_attention():
    """Not for those that were salient before it: a changed token whose context did not turn keeps its MLP output."""
    adapter, state, _ = started(llada())
    block, layer = adapter.blocks[0], state.layers[0]
    before = layer.fed.clone()
    changed = refilled(state, [10])
    x = adapter.embed(state.ids, state.positions)
    _, now = sparse_layer(block, x, layer, state.ropes[0], whole(state), None, changed, 0.9999, state.real)
    assert (layer.fed != before).any(-1).tolist() == now.tolist()
    assert bool(now.any())
    assert now.tolist() != changed.tolist()


@torch.no_grad()
def test_every_row_gets_the_output_projection_of_its_new_context():
    adapter, state, _ = started(llada())
    block, layer = adapter.blocks[0], state.layers[0]
    changed = refilled(state, [10])
    x = adapter.embed(state.ids, state.positions)
    out, _ = sparse_layer(block, x, layer, state.ropes[0], whole(state), None, changed, -1.0, state.real)
    assert out == pytest.approx(x + block.o(layer.context) + layer.fed, abs=1e-6)


@torch.no_grad()
def test_a_block_that_normalises_behind_the_sum_does_so_in_a_sparse_step():
    adapter, state, _ = started(bert())
    block, layer = adapter.blocks[0], state.layers[0]
    changed = refilled(state, [10])
    x = adapter.embed(state.ids, state.positions)
    out, _ = sparse_layer(block, x, layer, None, whole(state), None, changed, -1.0, state.real)
    middle = block.after_attention(x + block.o(layer.context))
    assert out == pytest.approx(block.after_mlp(middle + layer.fed), abs=1e-6)


@torch.no_grad()
def test_one_key_head_for_all_queries_is_sparse_as_repeated_ones_are():
    """The rows' contexts, computed again with every key head repeated."""
    adapter, state, _ = started(bidirectional_llama())
    block, layer = adapter.blocks[0], state.layers[0]
    old = layer.context.clone()
    values = layer.values.clone()
    changed = refilled(state, [10, 13])
    x = adapter.embed(state.ids, state.positions)
    sparse_layer(block, x, layer, state.ropes[0], whole(state), None, changed, -1.0, state.real)
    q = rotate(block.q(block.norm1(x)), state.ropes[0])
    keys, was, values = (part.expand(-1, 4, -1, -1) for part in (layer.keys, values, layer.values))
    exact = attention(q, keys, values, block.scale)
    updated = old + exact - attention(q, keys, was, block.scale)
    expected = torch.where(changed[..., None], exact, updated)
    assert layer.context == pytest.approx(expected, abs=1e-5)


@torch.no_grad()
def test_shifted_logits_come_from_the_left_neighbour_and_at_the_first_response_row_from_the_prompt():
    model = dream()
    adapter, state, before = started(model, n=2)
    at = torch.tensor([9, 12])
    expected = model_logits(model, state.ids)[torch.tensor([0, 1]), at - 1]
    assert logits_at(adapter, state, before, torch.tensor([0, 1]), at) == pytest.approx(expected, abs=1e-4)
    changed = refilled(state, [10])
    step = sparse_step(adapter, state, changed, slice(9, 16), 1.5)
    found = logits_at(adapter, state, step, torch.tensor([0, 1]), at)
    assert found[0] == pytest.approx(expected[0], abs=1e-4)  # the prompt's row as it was
    assert found[1] == pytest.approx(adapter.head(step.hidden[1, 2]), abs=1e-5)
