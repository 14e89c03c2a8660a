"""The repair: the closed form is the optimum, gradient steps approach it, and the population's answer is found."""

import itertools
import math

import pytest
import torch

from assay._core.errors import InputError
from assay.compress.rt_lynx import Factors, RepairStats, closed_form, sgd, sparse_activation

GAUSSIAN_ENERGY = 0.8678


def data(n=400, k=16, o=6, seed=0):
    """Correlated inputs and a weight, float64."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(k, k, generator=generator, dtype=torch.float64) + torch.eye(k)
    x = torch.randn(n, k, generator=generator, dtype=torch.float64) @ mix
    return x, torch.randn(o, k, generator=generator, dtype=torch.float64)


def filled(x, weight, **options):
    stats = RepairStats(weight, **options)
    stats.update(x)
    return stats


def direct_loss(x, weight, factors):
    """The definition, without statistics: |X Wᵀ - S(X) Wᵀ - X (B A)ᵀ|² over |X Wᵀ - S(X) Wᵀ|²."""
    error = (x - sparse_activation(x)) @ weight.T
    return float((error - x @ factors.lora_A.T @ factors.lora_B.T).square().sum() / error.square().sum())


def test_the_loss_from_statistics_is_the_loss_on_the_tokens():
    x, weight = data()
    factors = Factors(torch.randn(3, 16).double() * 0.1, torch.randn(6, 3).double() * 0.1)
    assert filled(x, weight).loss(factors) == pytest.approx(direct_loss(x, weight, factors), rel=1e-9)


def test_tokens_may_come_in_pieces():
    x, weight = data()
    whole, pieces = filled(x, weight), RepairStats(weight)
    for piece in x.split(37):
        pieces.update(piece[None])
    assert pieces.n_tokens == len(x)
    torch.testing.assert_close(pieces.cross, whole.cross)
    torch.testing.assert_close(pieces.gram, whole.gram)


@pytest.mark.parametrize("o", [6, 40])
def test_full_rank_is_ordinary_least_squares(o):
    x, weight = data(o=o)
    factors = closed_form(filled(x, weight), min(16, o), damp=1e-14)
    error = (x - sparse_activation(x)) @ weight.T
    expected = torch.linalg.lstsq(x, error).solution.T
    torch.testing.assert_close(factors.lora_B @ factors.lora_A, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("o", [6, 40])
def test_no_branch_of_the_same_rank_does_better(o):
    x, weight = data(o=o)
    best = closed_form(filled(x, weight), 2, damp=0.0)
    loss = direct_loss(x, weight, best)
    # The SVD of the fitted outputs is the textbook form of the optimum.
    error = (x - sparse_activation(x)) @ weight.T
    fitted = x @ torch.linalg.lstsq(x, error).solution
    rest = torch.linalg.svdvals(fitted)[2:].square().sum() + (error - fitted).square().sum()
    assert loss == pytest.approx(float(rest / error.square().sum()), rel=1e-9)


def test_the_loss_does_not_rise_with_the_rank():
    x, weight = data()
    losses = [direct_loss(x, weight, closed_form(filled(x, weight), rank, damp=0.0)) for rank in range(1, 7)]
    assert all(after <= before + 1e-12 for before, after in itertools.pairwise(losses))


def test_gradient_steps_do_not_beat_the_closed_form_and_come_close():
    x, weight = data()
    stats = filled(x, weight)
    best = stats.loss(closed_form(stats, 3, damp=0.0))
    trained = stats.loss(sgd(stats, 3, n_steps=1500, lr=1e-2))
    assert best <= trained + 1e-12
    assert trained < best + 0.2 * (1 - best)


def test_gradient_steps_start_from_no_repair():
    x, weight = data()
    stats = filled(x, weight)
    assert not sgd(stats, 3, n_steps=1, lr=0.0).lora_B.any()


@pytest.mark.parametrize("norm_comp", [False, True])
def test_gaussian_inputs_are_corrected_by_a_multiple_of_the_weight(norm_comp):
    """E[x_j S(x)_k] = 0 for j != k: the correction is (1 - f) W, or (1 - sqrt f) W with lengths restored."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200_000, 32, generator=generator)
    weight = torch.linalg.qr(torch.randn(32, 32, generator=generator)).Q
    stats = filled(x, weight, norm_comp=norm_comp)
    factors = closed_form(stats, 32, damp=1e-9)
    share = 1 - (math.sqrt(GAUSSIAN_ENERGY) if norm_comp else GAUSSIAN_ENERGY)
    # Entries of the estimate are off by about sqrt(0.13 / 200,000) = 0.0008, before W turns them.
    torch.testing.assert_close(factors.lora_B @ factors.lora_A, share * weight, rtol=0, atol=0.006)


@pytest.mark.parametrize(("norm_comp", "before", "after"), [(False, 0.132, 0.115), (True, 0.137, 0.132)])
def test_relative_errors_of_gaussian_inputs(norm_comp, before, after):
    """1 - f to f (1 - f); with lengths restored 2 (1 - sqrt f) to 1 - f (orthogonal weight, f = 0.8678)."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(100_000, 64, generator=generator)
    weight = torch.linalg.qr(torch.randn(64, 64, generator=generator)).Q
    stats = filled(x, weight, norm_comp=norm_comp)
    error = stats.error_energy / float((x @ weight.T).square().sum())
    assert error == pytest.approx(before, abs=1.5e-3)
    assert error * stats.loss(closed_form(stats, 64, damp=1e-9)) == pytest.approx(after, abs=1.5e-3)


def test_held_out_rows_are_not_in_the_fit():
    x, weight = data(n=100)
    stats = filled(x, weight, hold_out=True)
    assert stats.n_tokens == 80
    torch.testing.assert_close(stats.gram, x[:80].T @ x[:80])
    assert torch.equal(torch.cat(stats.held), x[80:])


def test_no_more_rows_are_held_than_needed():
    x, weight = data(n=5000)
    stats = RepairStats(weight, hold_out=True)
    for _ in range(6):
        stats.update(x)
    assert sum(map(len, stats.held)) <= 1024


def test_held_out_errors_are_their_definitions():
    x, weight = data()
    stats = filled(x, weight, hold_out=True)
    factors = closed_form(stats, 3)
    rows = torch.cat(stats.held)
    total = (rows @ weight.T).square().sum()
    found = stats.errors(factors)
    norm = (rows - sparse_activation(rows)) @ weight.T
    assert found.norm == pytest.approx(float(norm.square().sum() / total), rel=1e-9)
    naive = (rows - sparse_activation(rows, norm_comp=False)) @ weight.T
    assert found.naive == pytest.approx(float(naive.square().sum() / total), rel=1e-9)
    left = norm - rows @ factors.lora_A.T @ factors.lora_B.T
    assert found.repaired == pytest.approx(float(left.square().sum() / total), rel=1e-9)


def test_nan_is_refused_with_the_call_that_brought_it():
    x, weight = data()
    stats = filled(x, weight)
    x[3, 2] = math.nan
    with pytest.raises(InputError, match=r"^call 2: the input holds NaN or infinity$"):
        stats.update(x)


def test_a_repair_of_no_rank_or_from_no_token_is_refused():
    x, weight = data()
    with pytest.raises(InputError, match=r"^rank=0: expected 1 or more$"):
        closed_form(filled(x, weight), 0)
    with pytest.raises(InputError, match=r"^no token reached the layer, so there is nothing to fit its repair to$"):
        sgd(RepairStats(weight), 2)


def test_inputs_that_are_all_zero_give_no_repair():
    stats = filled(torch.zeros(50, 16), torch.randn(6, 16))
    factors = closed_form(stats, 3)
    assert not (factors.lora_B @ factors.lora_A).any()
    assert stats.loss(factors) == 0.0
