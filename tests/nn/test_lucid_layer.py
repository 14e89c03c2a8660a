"""The layer: it takes the place of nn.MultiheadAttention and loads its weights."""

import copy
import pickle
import re

import pytest
import torch
from torch import nn

from assay._core.errors import InputError
from assay.nn.lucid import LucidAttention, lucid_attention


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def causal(n):
    return nn.Transformer.generate_square_subsequent_mask(n)


def test_the_weights_of_multihead_attention_load_and_mean_the_same():
    theirs, ours = nn.MultiheadAttention(16, 4, batch_first=True), LucidAttention(16, 4)
    ours.load_state_dict(theirs.state_dict())
    x = drawn(2, 7, 16)
    q, k, v = (
        y.unflatten(-1, (4, 4)).transpose(1, 2)
        for y in (x @ theirs.in_proj_weight.T + theirs.in_proj_bias).split(16, -1)
    )
    expected = theirs.out_proj(lucid_attention(q, k, v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(ours(x)[0], expected, rtol=0, atol=1e-6)


def test_at_one_position_it_is_multihead_attention():
    theirs, ours = nn.MultiheadAttention(16, 4, batch_first=True), LucidAttention(16, 4)
    ours.load_state_dict(theirs.state_dict())
    x = drawn(2, 1, 16)
    torch.testing.assert_close(ours(x, x, x)[0], theirs(x, x, x, need_weights=False)[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("is_training", [False, True])
def test_a_transformer_layer_takes_it(is_training):
    block = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    block.self_attn = LucidAttention(16, 4)
    block.train(is_training)
    x = drawn(2, 7, 16)
    with torch.no_grad():
        found = block(x, src_mask=causal(7), is_causal=True)
        expected = block.norm1(x + block.self_attn(x)[0])
        expected = block.norm2(expected + block.linear2(block.linear1(expected).relu()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_padding_of_keys_is_as_if_they_were_not_there():
    layer, x = LucidAttention(16, 4, num_kv_heads=2), drawn(1, 9, 16)
    padding = torch.arange(9)[None] < 3
    torch.testing.assert_close(layer(x, key_padding_mask=padding)[0][:, 3:], layer(x[:, 3:])[0], rtol=0, atol=1e-6)


def test_rotated_logits_depend_on_distances_only():
    layer, x = LucidAttention(16, 2, rope=100.0), drawn(1, 9, 16)
    padding = torch.arange(9)[None] < 3
    torch.testing.assert_close(layer(x, key_padding_mask=padding)[0][:, 3:], layer(x[:, 3:])[0], rtol=0, atol=1e-5)


def test_the_preconditioner_sees_keys_before_rope_where_it_is_told_to():
    one, other = LucidAttention(16, 2, rope=100.0), LucidAttention(16, 2, rope=100.0, precond_keys="unrotated")
    other.load_state_dict(one.state_dict())
    x = drawn(1, 1, 16).expand(1, 5, 16)  # the same token: unrotated keys are equal, so values become differences, 0
    v = one._heads(x)[2].transpose(1, 2).flatten(2)
    first = other(x)[0] - one.out_proj.bias
    torch.testing.assert_close(first[0, 0], v[0, 0] @ one.out_proj.weight.T, rtol=0, atol=1e-6)
    assert (one(x)[0] - other(x)[0]).abs().max() > 1e-3


def test_qk_norm_makes_the_layer_blind_to_the_length_of_its_input():
    layer, x = LucidAttention(16, 4, qk_norm=True, bias=False), drawn(1, 6, 16)
    torch.testing.assert_close(layer(3 * x)[0], 3 * layer(x)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_a_copy_computes_the_same(again):
    layer, x = LucidAttention(16, 4, 2, 100.0, qk_norm=True), drawn(1, 6, 16)
    assert torch.equal(again(layer)(x)[0], layer(x)[0])


def test_its_state_dict_says_all_of_it():
    layer, other = (LucidAttention(16, 4, 2, 100.0, qk_norm=True) for _ in range(2))
    other.load_state_dict(layer.state_dict(), strict=True)
    assert torch.equal(other(drawn(1, 6, 16))[0], layer(drawn(1, 6, 16))[0])


def test_it_prints_what_it_is():
    said = repr(LucidAttention(16, 4, 2, 100.0, dropout=0.1))
    assert "embed_dim=16, num_heads=4, num_kv_heads=2, rope=100.0, precond_keys=rotated, dropout=0.1" in said


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_input_that_is_not_finite_is_refused(bad):
    x = drawn(1, 4, 16)
    x[0, 2, 3] = bad
    with pytest.raises(InputError, match=r"^key \(1, 2, 4, 8\) holds NaN or infinity; the preconditioner needs finite"):
        LucidAttention(16, 2)(x)


X = torch.zeros(1, 4, 16)
BAD = {
    "zero keys": (
        lambda: LucidAttention(16, 2)(X),
        "key (1, 2, 4, 8) is zero everywhere, so there are no angles between keys",
    ),
    "heads": (lambda: LucidAttention(16, 3), "embed_dim=16 and num_heads=3: expected a whole number for each head"),
    "kv heads": (lambda: LucidAttention(16, 4, 3), "num_kv_heads=3: expected a divisor of num_heads=4"),
    "odd rope": (lambda: LucidAttention(12, 4, rope=9.0), "rope=9: heads of 3 cannot be rotated in pairs"),
    "keys": (
        lambda: LucidAttention(16, 4, precond_keys="both"),
        "precond_keys='both' is not one of 'rotated', 'unrotated'",
    ),
    "cross": (
        lambda: LucidAttention(16, 4)(X, X.clone()),
        "LucidAttention attends within one sequence; key and value must be query or None",
    ),
    "weights": (
        lambda: LucidAttention(16, 4)(X, need_weights=True),
        "need_weights=True: the weights are never held; pass need_weights=False",
    ),
    "width": (lambda: LucidAttention(16, 4)(X[..., :8]), "query (1, 4, 8): expected (batch, n, 16)"),
    "not causal": (
        lambda: LucidAttention(16, 4)(X, attn_mask=torch.zeros(4, 4, dtype=torch.bool)),
        "lucid_attention supports causal masks; pass is_causal=True or a causal boolean mask",
    ),
    "weights in the mask": (
        lambda: LucidAttention(16, 4)(X, attn_mask=torch.full((4, 4), -1.0)),
        "lucid_attention supports causal masks; pass is_causal=True or a causal boolean mask (it has weights other "
        "than 0 and -inf)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("run", "message"), BAD.values(), ids=BAD)
def test_what_it_cannot_do_is_said_in_a_sentence(run, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        run()
