"""N:M selection and restored lengths: brute force, identities, and the closed forms for random inputs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay._core.errors import InputError
from assay.compress.rt_lynx import energy_kept, nm_topk, norm_compensate, relative_flops, sparse_activation


def brute_force(row, n, m):
    """Sort each group by falling magnitude, equals by index, and keep the first n."""
    kept = np.zeros(len(row))
    for start in range(0, len(row), m):
        group = sorted(range(start, start + m), key=lambda i: (-abs(row[i]), i))
        for i in group[:n]:
            kept[i] = row[i]
    return kept


def gaussian(n, k, seed=0, dtype=torch.float32):
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_the_card_s_example():
    x = torch.tensor([1, -3, 2, 0.5, 0, 0, 4, -4])
    assert nm_topk(x)[0].tolist() == [0, -3, 2, 0, 0, 0, 4, -4]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([(1, 2), (1, 4), (2, 4), (3, 4), (4, 8), (2, 8), (4, 4)]),
    st.lists(st.integers(-3, 3), min_size=16, max_size=16),
)
def test_selection_is_brute_force_with_ties_to_the_lower_index(pattern, values):
    row = torch.tensor(values, dtype=torch.float32)
    assert nm_topk(row, *pattern)[0].tolist() == brute_force(values, *pattern).tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_select_the_same_and_stay_what_they_are(dtype):
    x = gaussian(5, 64).to(dtype)
    kept, mask = nm_topk(x)
    assert kept.dtype == dtype
    assert torch.equal(mask, nm_topk(x.double())[1])


def test_every_group_keeps_two_and_groups_run_along_features():
    x = gaussian(50, 64)
    assert (nm_topk(x)[1].view(50, 16, 4).sum(-1) == 2).all()
    assert torch.equal(nm_topk(x)[1][7], nm_topk(x[7])[1])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([(2, 4), (1, 4), (4, 8)]))
def test_tokens_keep_their_length_and_the_cosine_is_the_root_of_the_energy(seed, pattern):
    x = gaussian(3, 48, seed, torch.float64)
    s = sparse_activation(x, *pattern)
    torch.testing.assert_close(s.norm(dim=1), x.norm(dim=1), rtol=1e-6, atol=0)
    f = nm_topk(x, *pattern)[0].square().sum(1) / x.square().sum(1)
    torch.testing.assert_close(torch.cosine_similarity(x, s), f.sqrt(), rtol=1e-7, atol=0)


def test_compensation_keeps_the_direction_of_the_sparse_token():
    x = gaussian(20, 32)
    x_sparse, _ = nm_topk(x)
    assert torch.allclose(torch.cosine_similarity(norm_compensate(x, x_sparse), x_sparse), torch.ones(20), atol=1e-6)


def test_the_scale_is_at_least_one_and_at_most_the_root_of_m_over_n():
    # All magnitudes equal is the worst case: half the energy is lost.
    worst = sparse_activation(torch.ones(1, 64))
    assert worst.max().item() == pytest.approx(math.sqrt(2), abs=1e-6)
    x = gaussian(200, 64)
    ratio = sparse_activation(x).norm(dim=1) / nm_topk(x)[0].norm(dim=1)
    assert (ratio >= 1 - 1e-6).all()
    assert (ratio <= math.sqrt(2) + 1e-6).all()


@pytest.mark.parametrize("factor", [1e-1, 7.0, 1e6, -3.0])
def test_it_is_equivariant_to_scale(factor):
    x = gaussian(10, 64, dtype=torch.float64)
    torch.testing.assert_close(sparse_activation(factor * x), factor * sparse_activation(x), rtol=1e-7, atol=0)


def test_sparse_input_passes_unchanged():
    x, _ = nm_topk(gaussian(10, 64))
    assert torch.equal(sparse_activation(x), x)


def test_a_zero_token_stays_zero():
    assert sparse_activation(torch.zeros(2, 16)).tolist() == [[0.0] * 16] * 2


def test_n_equal_to_m_is_the_input_itself():
    x = gaussian(4, 16)
    assert torch.equal(sparse_activation(x, 4, 4), x)


def test_half_precision_lengths_do_not_overflow():
    x = torch.full((1, 12288), 300.0, dtype=torch.float16)
    assert torch.isfinite(sparse_activation(x)).all()
    assert sparse_activation(x).float().norm().item() == pytest.approx(300 * math.sqrt(12288), rel=1e-3)


# Energy kept for independent entries: E of the largest two of four squares over four. Gaussian and Laplace by the card;
# the tolerance is the card's, more than three standard errors of two million groups.
@pytest.mark.parametrize(
    ("kind", "pattern", "energy"),
    [
        ("gaussian", (2, 4), 0.8678),
        ("laplace", (2, 4), 0.9200),
        ("gaussian", (1, 4), 0.618),
        ("gaussian", (4, 8), 0.897),
        ("laplace", (4, 8), 0.944),
    ],
)
def test_energy_kept_of_independent_entries(kind, pattern, energy):
    rng = np.random.default_rng(0)
    shape = (1000, 8000)
    x = rng.standard_normal(shape, np.float32) if kind == "gaussian" else rng.laplace(size=shape).astype(np.float32)
    assert energy_kept(torch.from_numpy(x), *pattern) == pytest.approx(energy, abs=1e-3)


def test_the_laplace_energy_is_its_closed_form():
    # |x| is exponential: the order statistics of four are sums of independent exponentials with rates 4, 3, 2, 1.
    means = np.cumsum([1 / 4, 1 / 3, 1 / 2, 1])
    variances = np.cumsum([1 / 16, 1 / 9, 1 / 4, 1])
    second_moments = variances + means**2
    assert second_moments[2:].sum() / second_moments.sum() == pytest.approx(0.9200, abs=2e-4)


@pytest.mark.parametrize(("kind", "scale"), [("gaussian", 1.0735), ("laplace", 1.0426)])
def test_the_scale_of_independent_entries(kind, scale):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((50, 40_000)) if kind == "gaussian" else rng.laplace(size=(50, 40_000))
    x = torch.from_numpy(x)
    found = (sparse_activation(x).norm(dim=1) / nm_topk(x)[0].norm(dim=1)).mean().item()
    assert found == pytest.approx(scale, abs=1e-3)


def test_no_gradient_passes_through_the_choice():
    x = gaussian(2, 8).requires_grad_()
    kept, mask = nm_topk(x)
    kept.sum().backward()
    assert torch.equal(x.grad, mask.float())


def test_multiply_adds_of_a_repaired_layer():
    k, o, r = 3072, 12288, 64
    assert relative_flops(k, o, r) == 0.5 + (r * k + r * o) / (k * o)


@pytest.mark.parametrize(("n", "m"), [(5, 4), (0, 4), (-1, 4), (2, 0), (8, 32)])
def test_what_is_no_pattern_is_refused(n, m):
    with pytest.raises(InputError, match=rf"^n={n}, m={m}: expected 1 <= n <= m <= 16, such as n=2, m=4$"):
        nm_topk(torch.zeros(64), n, m)


def test_features_that_do_not_divide_are_refused():
    with pytest.raises(InputError, match=r"^x has 6 features, which is no multiple of m=4$"):
        nm_topk(torch.zeros(2, 6))


def test_quantised_activations_are_refused():
    with pytest.raises(
        InputError, match=r"^x is torch\.int8: activations that are already quantised are not supported"
    ):
        nm_topk(torch.zeros(8, dtype=torch.int8))
