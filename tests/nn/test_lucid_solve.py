"""The numbers of LUCID: closed forms, the dense formula, gradients, blocks, masks and memory."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay._core.errors import InputError
from assay.nn.lucid import condition_number, lucid_attention, precondition_values, preconditioner, solve

pytestmark = pytest.mark.usefixtures("one_thread")


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def dense(q, k, v, visible=None, scale=None):
    """softmax(Q K^T scale + mask) inv(P) V as the paper writes it, with P inverted."""
    n, d = k.shape[-2:]
    scale = d**-0.5 if scale is None else scale
    visible = torch.ones(n, n, dtype=torch.bool).tril() if visible is None else visible
    normalised = math.sqrt(d) * k / k.norm(dim=-1, keepdim=True)
    p = torch.exp(scale * (normalised @ normalised.mT) - scale * d) * visible
    p = p * (1 - torch.eye(n, dtype=k.dtype)) + torch.eye(n, dtype=k.dtype)
    weights = (q @ k.mT * scale).masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(0.0)
    return weights @ torch.linalg.inv(p) @ v


# --------------------------------------------------------------------------------------------------- closed forms


def test_attention_is_the_dense_formula():
    q, k, v = drawn(3, 2, 3, 12, 8).unbind()
    assert (lucid_attention(q, k, v) - dense(q, k, v)).abs().max() < 1e-10


def test_a_scale_enters_the_softmax_and_the_preconditioner():
    q, k, v = drawn(3, 1, 2, 12, 8).unbind()
    assert (lucid_attention(q, k, v, scale=0.11) - dense(q, k, v, scale=0.11)).abs().max() < 1e-10


def test_with_queries_equal_to_normalised_keys_no_other_value_leaks_in():
    v = drawn(1, 1, 9, 3)
    k = drawn(1, 1, 9, 16, seed=1)
    k = 4 * k / k.norm(dim=-1, keepdim=True)
    cos = (k @ k.mT) / 16
    total = torch.exp(4 * (cos - 1)).tril().sum(-1, keepdim=True)
    torch.testing.assert_close(lucid_attention(k, k, v), v / total, rtol=0, atol=1e-13)


def test_one_position_returns_its_value():
    q, k, v = drawn(3, 1, 1, 1, 8).unbind()
    torch.testing.assert_close(lucid_attention(q, k, v), v, rtol=0, atol=0)


def test_the_first_row_is_the_first_value():
    q, k, v = drawn(3, 2, 2, 7, 8).unbind()
    torch.testing.assert_close(lucid_attention(q, k, v)[..., 0, :], v[..., 0, :], rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("d", "cos", "expected"),
    [(4, 0.5, math.exp(-1)), (64, 0.0, 3.3546262790251185e-4), (64, -1.0, 1.1253517471925912e-7)],
)
def test_the_preconditioner_has_the_values_of_the_formula(d, cos, expected):
    key = torch.zeros(2, d, dtype=torch.float64)
    key[0, 0], key[1, 0], key[1, 1] = 1.0, cos, math.sqrt(1 - cos**2)
    p = preconditioner(key)
    assert p[1, 0].item() == pytest.approx(expected, rel=1e-12)
    assert p[0, 1].item() == 0.0
    assert p.diagonal().tolist() == [1.0, 1.0]


def test_with_equal_keys_values_become_differences_and_outputs_shares():
    v, key = drawn(1, 1, 6, 3), torch.ones(1, 1, 6, 8, dtype=torch.float64)
    solved = precondition_values(key, v)
    torch.testing.assert_close(solved, torch.cat([v[..., :1, :], v.diff(dim=-2)], dim=-2), rtol=0, atol=1e-14)
    shares = v / torch.arange(1, 7, dtype=torch.float64)[:, None]
    torch.testing.assert_close(lucid_attention(drawn(1, 1, 6, 8, seed=1), key, v), shares, rtol=0, atol=1e-14)


def test_orthogonal_keys_leave_softmax_attention():
    k = torch.linalg.qr(drawn(256, 256))[0][:40][None, None]
    q, v = drawn(2, 1, 1, 40, 256, seed=1).unbind()
    plain = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert (lucid_attention(q, k, v) - plain).abs().max() < 1e-5


def test_a_zero_key_is_orthogonal_to_all_others():
    key = drawn(1, 1, 3, 16)
    key[..., 1, :] = 0.0
    assert preconditioner(key)[0, 0, 1, 0].item() == pytest.approx(math.exp(-4), rel=1e-14)
    assert preconditioner(key)[0, 0, 2, 1].item() == pytest.approx(math.exp(-4), rel=1e-14)


@pytest.mark.parametrize(("mean", "low", "high"), [(0.0, 1.2, 1.4), (2.0, 150, 350)])
def test_the_condition_number_grows_with_what_keys_share(mean, low, high):
    assert low < condition_number(drawn(1024, 64) + mean).item() < high


# ------------------------------------------------------------------------------------------------------ invariants


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 20), block=st.integers(1, 24), d=st.integers(1, 9), seed=st.integers(0, 2**20))
def test_blocks_of_any_size_give_the_dense_solution(n, block, d, seed):
    k, v = drawn(1, 2, n, d, seed=seed), drawn(1, 2, n, 3, seed=seed + 1)
    expected = torch.linalg.solve(preconditioner(k), v)
    torch.testing.assert_close(precondition_values(k, v, block_size=block), expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(power=st.lists(st.integers(-20, 20), min_size=7, max_size=7), seed=st.integers(0, 2**20))
def test_the_lengths_of_keys_do_not_matter(power, seed):
    k, v = drawn(1, 1, 7, 5, seed=seed), drawn(1, 1, 7, 5, seed=seed + 1)
    stretched = k * 2.0 ** torch.tensor(power, dtype=torch.float64)[:, None]  # powers of two are exact
    torch.testing.assert_close(precondition_values(stretched, v), precondition_values(k, v), rtol=1e-12, atol=1e-12)


def test_a_later_token_changes_no_bit_of_what_came_before():
    q, k, v = drawn(3, 1, 2, 11, 8, dtype=torch.float32).unbind()
    before = lucid_attention(q, k, v, block_size=4)
    for x in (q, k, v):
        x[..., 6, :] += 1.0
    assert torch.equal(lucid_attention(q, k, v, block_size=4)[..., :6, :], before[..., :6, :])


def test_no_gradient_reaches_a_later_token():
    q, k, v = (x.requires_grad_() for x in drawn(3, 1, 2, 11, 8).unbind())
    lucid_attention(q, k, v, block_size=4)[..., :6, :].square().sum().backward()
    assert all(x.grad[..., 6:, :].abs().max() == 0 and x.grad[..., 0, :].abs().min() > 0 for x in (k, v))


def test_shared_heads_are_repeated_heads_and_are_solved_once(monkeypatch):
    q, k, v = drawn(2, 8, 10, 8), drawn(2, 2, 10, 8, seed=1), drawn(2, 2, 10, 8, seed=2)
    repeated = lucid_attention(q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1))
    systems = []
    solver = torch.linalg.solve_triangular

    def counted(a, *arguments, **options):
        systems.append(a.shape[:-2].numel())
        return solver(a, *arguments, **options)

    monkeypatch.setattr(torch.linalg, "solve_triangular", counted)
    torch.testing.assert_close(lucid_attention(q, k, v, enable_gqa=True), repeated, rtol=0, atol=1e-12)
    assert systems == [2 * 2]  # batch times heads of keys


# ------------------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("n_past", [0, 3])
@pytest.mark.parametrize("is_masked", [False, True])
def test_the_backward_pass_is_the_derivative(n_past, is_masked):
    k, v = drawn(1, 1, 7, 5).requires_grad_(), drawn(1, 1, 7 - n_past, 5, seed=1).requires_grad_()
    past = drawn(1, 1, n_past, 5, seed=2).requires_grad_() if n_past else None
    mask = torch.ones(7, 7, dtype=torch.bool).tril().triu(-3)[n_past:] if is_masked else None

    def run(k, v, past=None):
        return precondition_values(k, v, past=past, attn_mask=mask, block_size=3)

    assert torch.autograd.gradcheck(run, (k, v, past) if n_past else (k, v))


def test_gradients_are_those_of_the_dense_formula():
    ours = [x.clone().requires_grad_() for x in drawn(3, 1, 2, 13, 8).unbind()]
    theirs = [x.detach().clone().requires_grad_() for x in ours]
    weight = drawn(1, 2, 13, 8, seed=1)
    (lucid_attention(*ours, block_size=5) * weight).sum().backward()
    (dense(*theirs) * weight).sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-10)


def test_the_jacobian_in_the_query_is_the_papers():
    """do/dq = (K^T / sqrt d)(diag(a) - a a^T) P^{-1} for o the row of weights on V: V = I reads it off."""
    q, k = drawn(1, 1, 6, 4), drawn(1, 1, 6, 4, seed=1)
    eye = torch.eye(6, dtype=torch.float64)[None, None]
    found = torch.autograd.functional.jacobian(
        lambda row: lucid_attention(torch.cat([q[..., :5, :], row], 2), k, eye)[0, 0, 5], q[..., 5:, :]
    )
    a = (q[0, 0, 5] @ k[0, 0].T / 2).softmax(-1)
    expected = (k[0, 0].T / 2) @ (a.diag() - a.outer(a)) @ torch.linalg.inv(preconditioner(k)[0, 0])
    torch.testing.assert_close(found[:, 0, 0, 0], expected.T, rtol=0, atol=1e-12)


# ----------------------------------------------------------------------------------------- masks, decoding, dtypes


MASKS = {
    "left padding": torch.ones(12, 12, dtype=torch.bool).tril() & (torch.arange(12) >= 3),
    "a sliding window": torch.ones(12, 12, dtype=torch.bool).tril().triu(-4),
    "packed sequences": torch.block_diag(torch.ones(5, 5), torch.ones(7, 7)).bool().tril(),
}


@pytest.mark.parametrize("visible", MASKS.values(), ids=MASKS)
def test_what_the_softmax_does_not_see_the_preconditioner_does_not_see(visible):
    q, k, v = drawn(3, 2, 3, 12, 8).unbind()
    found = lucid_attention(q, k, v, attn_mask=visible, block_size=5)
    assert (found - dense(q, k, v, visible)).abs().max() < 1e-10


def test_packed_sequences_are_each_on_their_own():
    q, k, v = drawn(3, 1, 2, 12, 8).unbind()
    found = lucid_attention(q, k, v, attn_mask=MASKS["packed sequences"])
    alone = lucid_attention(q[..., 5:, :], k[..., 5:, :], v[..., 5:, :])
    torch.testing.assert_close(found[..., 5:, :], alone, rtol=0, atol=1e-12)


def test_padding_does_not_leak():
    q, k, v = drawn(3, 1, 2, 12, 8).unbind()
    visible = MASKS["left padding"]
    before = lucid_attention(q, k, v, attn_mask=visible)
    for x in (k, v):
        x[..., :3, :] = 1e3
    assert torch.equal(lucid_attention(q, k, v, attn_mask=visible)[..., 3:, :], before[..., 3:, :])


def test_decoding_token_by_token_is_the_whole_pass():
    q, k, v = drawn(3, 2, 2, 20, 16, dtype=torch.float32).unbind()
    whole = lucid_attention(q, k, v, block_size=8)
    solved = precondition_values(k[..., :5, :], v[..., :5, :])
    for t in range(5, 20):
        solved = precondition_values(k[..., : t + 1, :], v[..., t : t + 1, :], past=solved)
        row = torch.nn.functional.scaled_dot_product_attention(q[..., t : t + 1, :], k[..., : t + 1, :], solved)
        torch.testing.assert_close(row[..., 0, :], whole[..., t, :], rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_solved_in_full_and_returned_in_half(dtype):
    q, k, v = drawn(3, 1, 2, 40, 16, dtype=torch.float32).to(dtype).unbind()
    found = precondition_values(k, v)
    assert found.dtype == dtype
    assert torch.equal(found, precondition_values(k.float(), v.float()).to(dtype))
    assert lucid_attention(q, k, v).dtype == dtype


def test_autocast_does_not_touch_the_preconditioner():
    k, v = drawn(2, 1, 1, 64, 32, dtype=torch.float32).unbind()
    with torch.autocast("cpu", torch.bfloat16):
        found = precondition_values(k, v)
    assert torch.equal(found, precondition_values(k, v))


def test_keys_before_rope_may_make_the_preconditioner():
    q, k, v = drawn(3, 1, 1, 9, 8).unbind()
    other = drawn(1, 1, 9, 8, seed=1)
    found = lucid_attention(q, k, v, precond_keys=other)
    solved = precondition_values(other, v)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, solved, is_causal=True)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


def test_nothing_as_large_as_the_square_of_the_length_is_ever_held(monkeypatch):
    sizes = []
    panel = solve.similarities
    monkeypatch.setattr(solve, "similarities", lambda *a: sizes.append(panel(*a).numel()) or panel(*a))
    k, v = (x.requires_grad_() for x in drawn(2, 1, 1, 300, 4).unbind())
    precondition_values(k, v, block_size=16).sum().backward()
    assert max(sizes) == 16 * 300


@pytest.mark.slow
def test_sixteen_thousand_tokens_of_one_head_take_less_than_a_gibibyte():
    code = (
        "import resource, torch; from assay.nn import lucid_attention\n"
        "torch.set_num_threads(1); q, k, v = torch.randn(3, 1, 1, 16384, 64).unbind()\n"
        "lucid_attention(q, k, v); print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 2**30  # the whole process, torch included


# ------------------------------------------------------------------------------------------------------- bad input

NOT_CAUSAL = "lucid_attention supports causal masks; pass is_causal=True or a causal boolean mask"


def refused(message, run):
    with pytest.raises(InputError) as found:
        run()
    assert str(found.value) == message


def test_masks_that_are_not_causal_are_refused():
    q = drawn(1, 1, 3, 4)
    refused(NOT_CAUSAL, lambda: lucid_attention(q, q, q, is_causal=False))
    refused(NOT_CAUSAL, lambda: lucid_attention(q, q, q, attn_mask=torch.ones(3, 3, dtype=torch.bool)))
    refused(f"{NOT_CAUSAL} (it is torch.float64)", lambda: lucid_attention(q, q, q, attn_mask=drawn(3, 3)))


def test_a_condition_number_becomes_float64_on_the_cpu():
    class OnADeviceWithoutFloat64(torch.Tensor):
        """MPS in small: its tensors become float64 on the CPU only."""

        def cpu(self):
            return self.as_subclass(torch.Tensor)

        def double(self):
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

    k = drawn(2, 9, 4).float()
    assert torch.equal(condition_number(k.as_subclass(OnADeviceWithoutFloat64)), condition_number(k))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_keys_that_are_not_finite_are_refused(bad):
    k = drawn(1, 1, 3, 4)
    k[0, 0, 1, 1] = bad
    message = "key (1, 1, 3, 4) holds NaN or infinity; the preconditioner needs finite keys"
    refused(message, lambda: precondition_values(k, k))


def test_keys_that_are_all_zero_are_refused():
    k = torch.zeros(1, 1, 3, 4)
    message = "key (1, 1, 3, 4) is zero everywhere, so there are no angles between keys"
    refused(message, lambda: precondition_values(k, k))


SHAPES = {
    "d": (
        ((1, 1, 3, 4), (1, 1, 3, 5), (1, 1, 3, 5)),
        "query (1, 1, 3, 4) and key (1, 1, 3, 5): expected (batch, heads, n, d) with the same batch and d",
    ),
    "a longer query": (
        ((1, 1, 4, 4), (1, 1, 3, 4), (1, 1, 3, 4)),
        "query (1, 1, 4, 4) and key (1, 1, 3, 4): expected as many positions; to decode, keep Y with "
        "precondition_values(past=…) or LucidCache",
    ),
    "values": (
        ((1, 1, 3, 4), (1, 1, 3, 4), (1, 1, 2, 4)),
        "key (1, 1, 3, 4) and value (1, 1, 2, 4): expected a key for every position",
    ),
    "heads": (
        ((1, 4, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)),
        "query has 4 heads and key 2; expected the same, or a multiple with enable_gqa=True",
    ),
}


@pytest.mark.parametrize(("shapes", "message"), SHAPES.values(), ids=SHAPES)
def test_shapes_that_do_not_fit_are_named(shapes, message):
    refused(message, lambda: lucid_attention(*(torch.ones(shape) for shape in shapes)))


def test_a_mask_of_another_size_is_refused():
    q = drawn(1, 1, 3, 4)
    message = (
        "attn_mask (2, 2): expected (1, 1, 3, 3), where batch and heads may be 1; heads that share a key share its mask"
    )
    refused(message, lambda: lucid_attention(q, q, q, attn_mask=torch.ones(2, 2, dtype=torch.bool).tril()))


def test_a_block_of_no_rows_is_refused():
    q = drawn(1, 1, 3, 4)
    refused("block_size=0: expected 1 or more", lambda: lucid_attention(q, q, q, block_size=0))
