"""dynamic-whitening on one weight: the truncation, its optimality, drift, the anchored target, ranks."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay._core.errors import InputError
from assay.compress.dynamic_whitening import (
    allocate_ranks,
    anchored_weight,
    drift,
    output_error,
    rank_for_ratio,
    whitened_svd,
    whitener,
)

pytestmark = pytest.mark.usefixtures("one_thread")


SHAPES = [(12, 20), (20, 12), (16, 16)]


def problem(m, n, n_tokens=200, seed=0):
    """A weight and inputs whose directions differ a lot in strength."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((n, n)))[0]
    x = (turn * np.geomspace(10, 0.1, n)) @ rng.standard_normal((n, n_tokens))
    return rng.standard_normal((m, n)), x


def loss(weight, made, x):
    return float(np.linalg.norm((weight - made) @ x) ** 2)


def cut(weight, gram, rank, eps=0.0):
    found = whitened_svd(weight, gram, rank, eps=eps)
    return found.a @ found.b


# ------------------------------------------------------------------------------------------------ the truncation


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [1, 5, 11])
def test_the_output_error_is_the_sum_of_the_squares_behind_the_cut(shape, rank):
    weight, x = problem(*shape)
    found = whitened_svd(weight, x @ x.T, rank)
    tail = float((found.singular_values[rank:] ** 2).sum())
    assert loss(weight, found.a @ found.b, x) == pytest.approx(tail, rel=1e-8)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_factors_are_those_of_the_singular_value_decomposition_of_w_s(shape):
    weight, x = problem(*shape)
    s = np.linalg.cholesky(x @ x.T)
    u, values, vt = np.linalg.svd(weight @ s, full_matrices=False)
    found = whitened_svd(weight, x @ x.T, 4)
    np.testing.assert_allclose(found.singular_values, values, rtol=1e-8)
    np.testing.assert_allclose(found.a @ found.b, (u[:, :4] * values[:4]) @ vt[:4] @ np.linalg.inv(s), atol=1e-8)
    signs = np.sign((found.a * u[:, :4]).sum(0))
    np.testing.assert_allclose(found.a, u[:, :4] * np.sqrt(values[:4]) * signs, atol=1e-7)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_perturbed_weight_of_the_same_rank_does_better(shape):
    weight, x = problem(*shape)
    found = whitened_svd(weight, x @ x.T, 5)
    best = loss(weight, found.a @ found.b, x)
    rng = np.random.default_rng(1)
    for size in np.geomspace(1e-6, 1.0, 1000):
        a, b = (part + size * rng.standard_normal(part.shape) * np.abs(part).mean() for part in (found.a, found.b))
        assert loss(weight, a @ b, x) >= best * (1 - 1e-12)


def test_alternating_least_squares_does_not_do_better():
    weight, x = problem(12, 20)
    rng = np.random.default_rng(2)
    a = rng.standard_normal((12, 5))
    for _ in range(300):
        b = np.linalg.lstsq(a, weight, rcond=None)[0]  # the best B of a given A does not depend on X of full rank
        a = np.linalg.lstsq((b @ x).T, (weight @ x).T, rcond=None)[0].T
    best = loss(weight, cut(weight, x @ x.T, 5), x)
    assert loss(weight, a @ b, x) >= best * (1 - 1e-9)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0])
def test_white_inputs_give_the_plain_truncation(shape, scale):
    weight, _ = problem(*shape)
    u, s, vt = np.linalg.svd(weight, full_matrices=False)
    np.testing.assert_allclose(cut(weight, scale * np.eye(shape[1]), 4), (u[:, :4] * s[:4]) @ vt[:4], atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_full_rank_gives_the_weight_back(shape):
    weight, x = problem(*shape)
    np.testing.assert_allclose(cut(weight, x @ x.T, min(shape)), weight, atol=1e-6)


@pytest.mark.parametrize("root", ["symmetric", "turned"])
def test_any_root_of_the_gram_gives_the_same_weight(root):
    weight, x = problem(12, 20)
    gram = x @ x.T
    values, basis = np.linalg.eigh(gram)
    s = (basis * np.sqrt(values)) @ basis.T
    if root == "turned":
        s = s @ np.linalg.qr(np.random.default_rng(3).standard_normal((20, 20)))[0]
    u, singular, vt = np.linalg.svd(weight @ s, full_matrices=False)
    expected = (u[:, :5] * singular[:5]) @ vt[:5] @ np.linalg.inv(s)
    np.testing.assert_allclose(cut(weight, gram, 5), expected, atol=1e-7)


@settings(max_examples=25, deadline=None)
@given(st.floats(1e-3, 1e3), st.integers(0, 2**31), st.sampled_from(SHAPES))
def test_the_scale_and_the_order_of_the_inputs_do_not_matter(scale, seed, shape):
    weight, x = problem(*shape)
    turned = scale * x[:, np.random.default_rng(seed).permutation(x.shape[1])]
    np.testing.assert_allclose(cut(weight, turned @ turned.T, 5), cut(weight, x @ x.T, 5), atol=1e-7)


def test_the_gram_is_of_features_not_of_tokens():
    weight, x = problem(12, 20)
    with pytest.raises(
        InputError, match=r"^the weight has shape \(12, 20\) and the Gram matrix \(200, 200\); expected"
    ):
        whitened_svd(weight, x.T @ x, 5)


def test_no_mean_is_subtracted():
    x = np.array([[3.0, 3.0], [0.1, -0.1]])  # the first input is constant, and is what matters
    weight = np.eye(2)
    np.testing.assert_allclose(cut(weight, x @ x.T, 1), [[1, 0], [0, 0]], atol=1e-12)


def test_tensors_come_back_as_tensors_and_arrays_as_arrays():
    weight, x = problem(12, 20)
    assert isinstance(whitened_svd(weight, x @ x.T, 2).a, np.ndarray)
    assert isinstance(whitened_svd(torch.from_numpy(weight), torch.from_numpy(x @ x.T), 2).a, torch.Tensor)


# ------------------------------------------------------------------------------------------------ singular inputs


def deficient(kind):
    weight, x = problem(20, 12) if kind.startswith("tall") else problem(12, 20)
    if kind.endswith("few tokens"):
        return weight, x[:, :7]
    if kind.endswith("duplicates"):
        return weight, np.repeat(x[:, :7], 30, axis=1)
    x[3:6] = 0.0  # dead channels
    return weight, x


@pytest.mark.parametrize("kind", ["few tokens", "duplicates", "dead", "tall, few tokens", "tall, dead"])
def test_a_singular_gram_gives_the_least_error_on_the_data(kind):
    weight, x = deficient(kind)
    made = cut(weight, x @ x.T, 4, eps=1e-9)
    u, s, vt = np.linalg.svd(weight @ x, full_matrices=False)
    best = (u[:, :4] * s[:4]) @ vt[:4] @ np.linalg.pinv(x)  # least squares onto the best outputs of rank 4
    assert np.isfinite(made).all()
    assert loss(weight, made, x) == pytest.approx(loss(weight, best, x), rel=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_inputs_that_are_all_zero_give_the_plain_truncation(shape):
    weight, _ = problem(*shape)
    zero = np.zeros((shape[1], shape[1]))
    np.testing.assert_allclose(cut(weight, zero, 4), cut(weight, np.eye(shape[1]), 4), atol=1e-9)


def test_a_whitener_is_a_root_of_the_gram():
    gram = torch.from_numpy(problem(12, 20)[1])
    gram = gram @ gram.T
    s = whitener(gram)
    torch.testing.assert_close(s @ s.T, gram)
    assert torch.equal(s, s.tril())


def test_a_gram_that_is_not_positive_definite_is_lifted_by_a_millionth():
    gram = torch.diag(torch.tensor([4.0, 2.0, 0.0], dtype=torch.float64))
    s = whitener(gram)
    torch.testing.assert_close(s @ s.T, gram + 2e-6 * torch.eye(3, dtype=torch.float64))


# ------------------------------------------------------------------------------------------------ drift


def test_inputs_that_did_not_move_have_no_drift():
    _, x = problem(12, 20)
    assert drift(x @ x.T, x @ x.T) == pytest.approx(0, abs=1e-9)


def test_the_first_term_of_the_drift_is_the_ridge_alone():
    # S Sᵀ = (1 + eps) I for G = I, so S⁻¹ G S⁻ᵀ - I = 1 / (1 + eps) - 1.
    assert drift(np.eye(4), np.eye(4), eps=0.25) == pytest.approx(0.2)


def shifted(seed=0):
    weight, x = problem(12, 20, seed=seed)
    rng = np.random.default_rng(seed + 100)
    return weight, x, (np.eye(20) + 0.3 * rng.standard_normal((20, 20))) @ x


@pytest.mark.parametrize("seed", range(5))
def test_a_static_truncation_stays_within_the_bound_of_the_drift(seed):
    weight, x, moved = shifted(seed)
    found = whitened_svd(weight, x @ x.T, 5)
    promised = float((found.singular_values[5:] ** 2).sum())
    bound = (1 + drift(x @ x.T, moved @ moved.T)) * promised
    assert loss(weight, found.a @ found.b, moved) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_on_the_inputs_that_there_are_dynamic_is_never_worse_than_static(seed):
    weight, x, moved = shifted(seed)
    dynamic = loss(weight, cut(weight, moved @ moved.T, 5), moved)
    assert dynamic <= loss(weight, cut(weight, x @ x.T, 5), moved) + 1e-9


# ------------------------------------------------------------------------------------------------ the anchored target


def test_the_anchored_target_on_unmoved_inputs_is_the_weight():
    weight, x = problem(12, 20)
    gram = torch.from_numpy(x @ x.T)
    made = anchored_weight(torch.from_numpy(weight), gram, gram, eps=1e-2)
    np.testing.assert_allclose(made.numpy(), weight, atol=1e-8)


def test_the_anchored_truncation_has_the_closed_form_of_the_reduced_rank_regression():
    weight, x, moved = shifted()
    gram, cross = moved @ moved.T, x @ moved.T
    s = np.linalg.cholesky(gram)
    u, values, vt = np.linalg.svd(weight @ cross @ np.linalg.inv(s).T, full_matrices=False)
    expected = (u[:, :5] * values[:5]) @ vt[:5] @ np.linalg.inv(s)
    wanted = anchored_weight(torch.from_numpy(weight), torch.from_numpy(cross), torch.from_numpy(gram))
    np.testing.assert_allclose(cut(wanted.numpy(), gram, 5), expected, atol=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_against_the_original_outputs_anchored_is_never_worse(seed):
    weight, x, moved = shifted(seed)
    gram, cross = (torch.from_numpy(part) for part in (moved @ moved.T, x @ moved.T))
    wanted = anchored_weight(torch.from_numpy(weight), cross, gram).numpy()

    def away(made):
        return float(np.linalg.norm(weight @ x - made @ moved))

    assert away(cut(wanted, gram.numpy(), 5)) <= away(cut(weight, gram.numpy(), 5)) + 1e-9


# ------------------------------------------------------------------------------------------------ ranks and errors


def test_the_relative_output_error_is_what_it_says():
    weight, x = problem(12, 20)
    found = whitened_svd(weight, x @ x.T, 5)
    expected = np.linalg.norm((weight - found.a @ found.b) @ x) / np.linalg.norm(weight @ x)
    a, b = torch.from_numpy(found.a), torch.from_numpy(found.b)
    assert output_error(torch.from_numpy(weight), (a, b), torch.from_numpy(x @ x.T)) == pytest.approx(expected)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 3000), st.floats(0.01, 1.0))
def test_factors_have_at_most_the_share_of_the_parameters_and_one_rank_more_would_have_more(m, n, ratio):
    rank = rank_for_ratio(m, n, ratio)
    assert rank * (m + n) <= ratio * m * n * (1 + 1e-9) + 1e-6
    assert (rank + 1) * (m + n) > ratio * m * n * (1 - 1e-9)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [0, 17])
def test_a_rank_out_of_range_is_refused(shape, rank):
    weight, x = problem(*shape)
    with pytest.raises(InputError, match=rf"^rank={rank}: a weight of {shape[0]} x {shape[1]} has ranks 1 to "):
        whitened_svd(weight, x @ x.T, rank)


def test_a_gram_with_nan_is_refused():
    weight, x = problem(12, 20)
    with pytest.raises(InputError, match=r"^the Gram matrix holds NaN or infinity$"):
        whitened_svd(weight, (x @ x.T) * np.nan, 3)


def test_greedy_ranks_are_the_best_of_all_where_costs_are_equal():
    spectra = {"a": [4.0, 3.0, 0.5, 0.1, 0.1, 0.1], "b": [2.0, 2.0, 2.0, 2.0, 1.0, 1.0]}
    shapes = {"a": (6, 6), "b": (6, 6)}

    def lost(a, b):
        ends = {"a": a, "b": b}
        return sum(sum(v**2 for v in s[ends[k] :]) / sum(v**2 for v in s) for k, s in spectra.items())

    found = allocate_ranks(spectra, shapes, 12 * 5)
    best = min(((a, b) for a in range(1, 4) for b in range(1, 4) if a + b <= 5), key=lambda pair: lost(*pair))
    assert lost(found["a"], found["b"]) == pytest.approx(lost(*best))


def test_too_few_parameters_for_rank_one_are_refused():
    with pytest.raises(InputError, match=r"^10 parameters: rank 1 in each of the 1 layers takes 12; raise the ratio"):
        allocate_ranks({"a": [1.0] * 6}, {"a": (6, 6)}, 10)
