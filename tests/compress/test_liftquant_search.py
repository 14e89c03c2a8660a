"""LiftQuant's heart: the searches against brute force, the packed form, the matrix and the bounds it must keep."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay._core.errors import InputError
from assay.compress.liftquant import decode, encode, fit_mapping, load_mapping, pair_for_bits, shipped_pairs
from assay.compress.liftquant.mapping import mean_squared_error
from assay.compress.liftquant.search import all_signs, lift_inverse, pack, unpack


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def orthonormal(d, n_bits, seed=0):
    return np.ascontiguousarray(np.linalg.qr(normal(n_bits, n_bits, seed=seed))[0][:d])


def squared(vectors, codes, matrix):
    return ((vectors - decode(codes, matrix)) ** 2).sum(1)


def brute_force(vectors, matrix):
    points = all_signs(matrix.shape[1]).astype(np.float64) @ matrix.T.astype(np.float64)
    return ((vectors[:, None] - points) ** 2).sum(-1).min(1)


# ------------------------------------------------------------------------------------------------ nearest points


@pytest.mark.parametrize(("n_bits", "d"), [(2, 1), (3, 3), (5, 2), (7, 3), (9, 4), (12, 6)])
def test_the_exact_search_finds_the_least_of_all_distances(n_bits, d):
    matrix, vectors = orthonormal(d, n_bits), normal(300, d, seed=1)
    found = squared(vectors, encode(vectors, matrix, search="exact"), matrix)
    np.testing.assert_allclose(found, brute_force(vectors, matrix), rtol=1e-4, atol=1e-6)


def test_the_exact_search_finds_the_least_of_65536_distances():
    matrix, vectors = load_mapping(16, 8).matrix, normal(40, 8, seed=1)
    found = squared(vectors, encode(vectors, matrix, search="exact"), matrix)
    np.testing.assert_allclose(found, brute_force(vectors, matrix), rtol=1e-4, atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([(4, 2), (6, 2), (7, 3)]))
def test_exact_is_never_worse_than_fast_nor_refined_than_fast(seed, pair):
    matrix, vectors = orthonormal(pair[1], pair[0], seed), normal(50, pair[1], seed=seed + 1)
    exact, fast, refined = (
        squared(vectors, encode(vectors, matrix, **options), matrix)
        for options in ({"search": "exact"}, {"search": "fast"}, {"search": "fast", "refine": True})
    )
    assert (exact <= fast + 1e-5).all()
    assert (refined <= fast + 1e-5).all()
    assert (exact <= refined + 1e-5).all()


@pytest.mark.parametrize(("n_bits", "d"), [(4, 2), (16, 8), (20, 8), (26, 16), (40, 33)])
def test_the_fast_search_keeps_the_best_of_the_points_its_pads_lead_to(n_bits, d):
    matrix, vectors = orthonormal(d, n_bits), normal(12, d, seed=2)
    inverse, null = lift_inverse(matrix)
    x = vectors @ inverse.T
    points = x[:, None] + all_signs(n_bits - d) @ null
    signs = np.where(points >= 0, 1.0, -1.0)  # +1 where it is zero: np.sign would give a third value
    best = ((vectors[:, None] - signs @ matrix.T) ** 2).sum(-1).min(1)
    np.testing.assert_allclose(squared(vectors, encode(vectors, matrix, search="fast"), matrix), best, rtol=1e-3)


def test_a_vector_of_zeros_gets_signs_and_no_zeros():
    matrix = np.eye(2, dtype=np.float32)
    assert encode(np.zeros((1, 2), np.float32), matrix, search="fast").tolist() == [3]


def test_matrix_over_null_space_has_the_inverse_that_the_search_uses():
    matrix = normal(5, 12)
    inverse, null = lift_inverse(matrix)
    product = np.vstack([matrix, null]) @ np.hstack([inverse, null.T])
    np.testing.assert_allclose(product, np.eye(12), atol=1e-5)


def test_the_negative_of_a_vector_is_as_far_from_its_point():
    matrix, vectors = load_mapping(5, 2).matrix, normal(500, 2)
    there, back = (squared(v, encode(v, matrix), matrix) for v in (vectors, -vectors))
    np.testing.assert_allclose(there, back, rtol=1e-4, atol=1e-7)


def test_points_of_the_codebook_come_back_without_error():
    matrix = orthonormal(4, 10)
    points = all_signs(10) @ matrix.T
    assert squared(points, encode(points, matrix, search="exact"), matrix).max() < 1e-9


def test_threads_do_not_change_the_codes():
    matrix, vectors = load_mapping(5, 2).matrix, normal(20_000, 2)
    assert np.array_equal(encode(vectors, matrix, threads=1), encode(vectors, matrix, threads=3))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 63), st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=30))
def test_packing_keeps_every_code(n_bits, values):
    codes = np.array([value % 2**n_bits for value in values], dtype=np.uint64)
    packed = pack(codes, n_bits)
    assert len(packed) == math.ceil(len(codes) * n_bits / 8)
    assert np.array_equal(unpack(packed, n_bits, len(codes)), codes)


# ------------------------------------------------------------------------------------------------ the matrix M


@pytest.mark.parametrize("d", [1, 2, 3])
def test_as_many_signs_as_weights_reach_the_one_bit_quantiser(d):
    # M = sqrt(2 / pi) I = 0.7979 I, but for a rotation, under which a normal source stays what it is: its singular
    # values are all 0.7979. The error is flat there: 2 % off in M are 0.0001 in the error.
    found = fit_mapping(d, d, restarts=1)
    assert np.linalg.svd(found.matrix)[1] == pytest.approx(0.7979, abs=0.016)
    assert mean_squared_error(found.matrix, 1_000_000, seed=9, search="exact") == pytest.approx(0.3634, abs=0.001)


@pytest.mark.parametrize("turn", [np.eye(4), orthonormal(4, 4)], ids=["as it is", "rotated"])
def test_the_one_bit_quantiser_has_the_error_of_the_closed_form_and_rotating_it_is_no_better(turn):
    matrix = (0.7979 * turn).astype(np.float32)
    assert mean_squared_error(matrix, search="exact") == pytest.approx(1 - 2 / np.pi, abs=0.001)


def test_two_signs_a_weight_reach_lloyd_and_max():
    # Four levels ±0.4528, ±1.5104 of a normal source: M = (0.9814, 0.5286), error 0.1175.
    found = fit_mapping(2, 1, steps=300, restarts=1)
    assert sorted(np.abs(found.matrix[0])) == pytest.approx([0.5286, 0.9814], abs=0.01)
    assert found.mse == pytest.approx(0.1175, abs=0.001)


def test_twice_and_once_a_step_is_the_uniform_quantiser_of_two_bits():
    matrix = 0.4978 * np.array([[2.0, 1.0]], dtype=np.float32)
    assert mean_squared_error(matrix) == pytest.approx(0.1188, abs=0.001)


#: Error for a normal source that the card states: exact search up to D = 16, fast above.
STATED = {
    (16, 10): 0.150, (16, 8): 0.0906, (16, 7): 0.063, (5, 2): 0.063, (20, 8): 0.049, (6, 2): 0.0356,
}  # fmt: skip


@pytest.mark.parametrize("pair", STATED, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def test_shipped_matrices_are_within_three_percent_of_the_stated_error_or_better(pair):
    n_vectors = 4_000 if pair[0] >= 16 else 100_000  # 4,000 vectors of 7 to 10 weights: a standard error of 0.5 %
    assert mean_squared_error(load_mapping(*pair).matrix, n_vectors, seed=5) <= 1.03 * STATED[pair]


@pytest.mark.parametrize("pair", shipped_pairs(), ids=lambda pair: f"{pair[0]}-{pair[1]}")
def test_the_recorded_error_is_the_matrix_s_and_above_the_bound_of_the_rate(pair):
    made = load_mapping(*pair)
    heavy = made.n_bits - made.d > 12
    error = mean_squared_error(made.matrix, 500 if heavy else 4_000, seed=7)
    assert error == pytest.approx(made.mse, rel=0.08 if heavy else 0.04)
    assert min(error, made.mse) >= 2 ** (-2 * made.rate)


def test_the_error_falls_with_every_step_of_the_rate():
    errors = [load_mapping(*pair_for_bits(bits)).mse for bits in (2.0, 2.14, 2.4, 2.5, 3.0)]
    assert errors == sorted(errors, reverse=True)
    assert len(set(errors)) == 5


def test_training_is_reproducible():
    first, second = (fit_mapping(3, 1, steps=20, restarts=1, n_vectors=5_000, seed=3) for _ in range(2))
    assert np.array_equal(first.matrix, second.matrix)


# ------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pair_for_bits(0.5), "bits=0.5: expected 1 to 4 bits a weight; the nearest is D=16, d=10 (1.6 bits)"),
        (lambda: pair_for_bits(4.5), "bits=4.5: expected 1 to 4 bits a weight; the nearest is D="),
        (lambda: pair_for_bits(1.2), "bits=1.2: the lowest shipped rate is D=16, d=10 (1.6 bits); train a lower one"),
        (lambda: fit_mapping(30, 8), "D=30, d=8: expected 1 <= d <= D <= d + 20; nearest is D=28, d=8"),
        (lambda: fit_mapping(4, 8), "D=4, d=8: expected 1 <= d <= D <= d + 20; nearest is D=8, d=8"),
        (lambda: fit_mapping(2, 1, restarts=0), "restarts=0: expected at least one"),
        (lambda: load_mapping(11, 3), "no matrix is shipped for D=11, d=3; there are 16/10,"),
        (lambda: encode(normal(2, 3), normal(2, 4)), "vectors of shape (2, 3) do not fit a matrix of shape (2, 4)"),
        (lambda: encode(normal(2, 3), normal(3, 24)), "D=24, d=3: expected d <= D <= d + 20, since the search takes"),
        (lambda: encode(normal(2, 2), normal(2, 4), search="best"), "search='best' is not one of auto, exact, fast"),
        (lambda: encode(normal(2, 9), normal(9, 28), search="exact"), 'search="exact" with D=28 goes through 2^28'),
        (lambda: encode(np.full((1, 2), np.nan), normal(2, 4)), "vectors hold NaN or infinity; expected finite"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        call()
