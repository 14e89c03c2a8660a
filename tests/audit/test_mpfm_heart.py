"""The numeric heart of mpfm against closed forms: prototypes, flow, calibration, hard examples."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.audit.mpfm import flow, mining
from assay.audit.mpfm import prototypes as proto
from assay.audit.mpfm.calibration import calibrate, robust_scale, threshold


def between_gaussians(mean0, mean1, s0, s1):
    return lambda x, t: flow.gaussian_velocity(x, t, mean0, mean1, s0, s1)


def rows(n, width, seed=0, dtype=torch.float64):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# ---------------------------------------------------------------------------------------------------- prototypes


@given(st.integers(0, 1000))
def test_rows_of_the_soft_assignment_sum_to_one(seed):
    q = proto.assign(3 * rows(20, 4, seed), rows(6, 4, seed + 1), 0.5)
    assert torch.allclose(q.sum(dim=1), torch.ones(20, dtype=q.dtype))


def test_a_small_temperature_gives_the_nearest_prototype():
    z, c = rows(50, 4), rows(6, 4, 1)
    nearest = (z[:, None] - c).norm(dim=2).argmin(dim=1)
    assert torch.allclose(proto.composite(z, c, 1e-6), c[nearest])


def test_a_point_on_a_prototype_has_no_structural_evidence():
    c, own = rows(6, 4), rows(3, 4, 1)
    assert proto.structural([c[[2]], own[[1]]], [c, own]).item() == 0.0


def test_structural_evidence_is_the_minimum_over_the_grid_of_pairs():
    a, b, c, own = rows(9, 4), rows(9, 3, 1), rows(5, 4, 2), rows(4, 3, 3)
    pairs = torch.stack([torch.cat([s, p]) for s in c for p in own])
    brute = (torch.cat([a, b], dim=1)[:, None] - pairs).square().sum(-1).min(dim=1).values
    assert torch.allclose(proto.structural([a, b], [c, own]), brute)


def test_unrelated_halves_are_orthogonal():
    assert proto.orthogonality(rows(10_000, 4), rows(10_000, 4, 1)).item() < 1e-2


def test_equal_whitened_halves_have_half_of_the_largest_correlation():
    q = torch.linalg.qr(rows(10_000, 4) - rows(10_000, 4).mean(dim=0)).Q
    assert proto.orthogonality(q, q).item() == pytest.approx(0.5, abs=1e-3)


def test_diversity_of_two_prototypes_is_the_squared_shortfall():
    c = torch.tensor([[0.0, 0.0], [0.6, 0.0]])
    assert proto.diversity(c, 1.0).item() == pytest.approx(0.4**2)


def test_diversity_never_compares_prototypes_of_two_systems():
    sets = torch.tensor([[[0.0, 0.0], [5.0, 0.0]], [[0.0, 0.0], [5.0, 0.0]]])
    assert proto.diversity(sets, 1.0).item() == 0.0


def test_balance_is_the_divergence_of_each_systems_usage_from_uniform():
    q = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]])
    assert proto.balance(q, torch.tensor([0, 0, 1]), 2).item() == pytest.approx(math.log(2) / 2)


def test_a_collapsed_encoder_pays_one():
    assert proto.spread_floor(torch.ones(50, 8)).item() == pytest.approx(1.0, abs=1e-3)


def test_the_alignment_control_is_zero_for_one_system_and_grows_with_the_distance():
    z, k = rows(60, 3), torch.arange(60) % 2
    assert proto.mean_discrepancy(z, torch.zeros(60, dtype=torch.long), 1).item() == pytest.approx(0, abs=1e-12)
    apart = proto.mean_discrepancy(z + 2.0 * k[:, None], k, 2)
    assert apart > 5 * proto.mean_discrepancy(z, k, 2)


# ---------------------------------------------------------------------------------------------------------- flow


@pytest.mark.parametrize(("s0", "least"), [(1.0, 12.566371), (0.5, 6.283185)])
def test_the_best_velocity_between_gaussians_leaves_half_pi_s0_s1_d(s0, least):
    n, d = 200_000, 8
    z, eps = rows(n, d), rows(n, d, 1)
    # Strata of t and antithetic pairs: the standard error is well under the tolerance of one in a hundred.
    t = ((torch.arange(n, dtype=torch.float64) + 0.5) / n)[
        torch.randperm(n, generator=torch.Generator().manual_seed(2))
    ]
    zero = torch.zeros(d, dtype=torch.float64)
    loss = flow.matching_loss(between_gaussians(zero, zero, s0, 1.0), z, zero, eps, t[:, None], s0).mean().item()
    assert math.pi / 2 * s0 * d == pytest.approx(least, abs=1e-6)
    assert loss == pytest.approx(least, rel=0.01)


@pytest.mark.slow
def test_a_trained_velocity_comes_within_a_twentieth_of_the_least_loss():
    from assay.audit.mpfm.network import N_DOMAIN, VelocityField

    torch.manual_seed(0)
    field, d, n = VelocityField(8), 8, 512
    optimizer = torch.optim.AdamW(field.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 800)
    generator = torch.Generator().manual_seed(0)

    def loss(n):
        z, eps = torch.randn(n, d, generator=generator), torch.randn(n, d, generator=generator)
        velocity = field.given(torch.zeros(n, d), torch.zeros(n, N_DOMAIN))
        return flow.matching_loss(
            velocity, z, torch.zeros(n, d), eps, torch.rand(n, 1, generator=generator), 1.0
        ).mean()

    for _ in range(800):
        optimizer.zero_grad()
        (loss(n) / d).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        assert loss(100_000).item() == pytest.approx(12.566371, rel=0.05)


@pytest.mark.parametrize(
    ("squared", "expected"), [(0.0, 6.283185), (8.0, 12.566371), (32.0, 31.415927), (128.0, 106.814150)]
)
def test_velocity_mismatch_has_its_closed_form(squared, expected):
    d, n = 8, 200_000
    z = torch.full((1, d), math.sqrt(squared / d), dtype=torch.float64)
    zero = torch.zeros(1, d, dtype=torch.float64)
    t = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    eps = rows(n // 2, d)
    eps = torch.cat([eps, -eps])[torch.randperm(n, generator=torch.Generator().manual_seed(5))]
    found = flow.velocity_mismatch(between_gaussians(zero, zero, 1.0, 1.0), z, zero, eps, t, 1.0).item()
    assert flow.optimal_mismatch(squared, d, 1.0, 1.0) == pytest.approx(expected, abs=1e-6)
    assert found == pytest.approx(expected, rel=0.01)


def ode_errors(n_steps, s0=0.5, s1=0.8):
    mean0, mean1 = torch.full((1, 4), 0.3, dtype=torch.float64), torch.full((1, 4), -0.7, dtype=torch.float64)
    z = mean1 + rows(20, 4)
    points, _ = flow.backward_path(between_gaussians(mean0, mean1, s0, s1), z, n_steps)
    found = flow.instability(points[-1], mean0, s0)
    return found / ((z - mean1).square().sum(-1) / s1**2) - 1


def test_ten_steps_of_heun_find_the_source_within_a_hundredth():
    assert ode_errors(10).abs().max() < 0.01


def test_twice_the_steps_leave_a_quarter_of_the_error():
    # The error is c h² + O(h³): a quarter in the limit; at 100 steps the rest is under a tenth of it.
    assert (ode_errors(100) / ode_errors(200)).mean().item() == pytest.approx(4, rel=0.1)


def test_a_straight_path_has_no_roughness():
    _, velocities = flow.backward_path(lambda x, t: torch.ones_like(x), rows(3, 4), 10)
    assert flow.roughness(velocities).abs().max() == 0.0


def test_the_fixed_draws_have_one_time_in_each_stratum():
    _, t = flow.fixed_draws(8, 4, seed=3)
    assert (t * 8).floor().tolist() == list(range(8))


# --------------------------------------------------------------------------------------------------- calibration


def test_the_false_alarm_rate_is_the_promised_one():
    rng = np.random.default_rng(0)
    alarms = [np.mean(rng.normal(size=10_000) > threshold(rng.normal(size=10_000), 0.01)) for _ in range(20)]
    assert np.mean(alarms) == pytest.approx(0.01, abs=0.003)


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=60), st.floats(0.01, 0.5))
def test_of_n_plus_one_exchangeable_scores_at_most_alpha_or_one_is_an_alarm(values, alpha):
    scores = np.array(values, float)
    alarms = sum(score > threshold(np.delete(scores, i), alpha) for i, score in enumerate(scores))
    assert alarms <= max(1, alpha * len(scores) + 1e-9)


def test_p_values_count_calibration_scores_that_are_as_high():
    evidence = np.column_stack([np.arange(9.0)] * 3)
    calibration = calibrate(evidence, weight=0.5, alpha=0.1, what="x")
    scores = np.array(calibration.scores)
    assert calibration.p_value([scores[-1] + 1, scores[-1], scores[0]]).tolist() == [0.1, 0.2, 1.0]


def test_where_most_are_equal_the_standard_deviation_is_the_spread():
    evidence = np.array([1.0] * 8 + [5.0])
    assert robust_scale(evidence).spread == pytest.approx(evidence.std())


def test_where_all_are_equal_it_warns_and_counts_in_absolute_units():
    with pytest.warns(UserWarning, match=r"^domain 'a': the calibration windows all look the same"):
        assert robust_scale(np.ones(9), "domain 'a'").spread == pytest.approx(1.0)


# ------------------------------------------------------------------------------------------------- hard examples


def test_hard_windows_are_the_tenth_with_the_most_drift_of_every_system():
    drift, domain = np.r_[np.arange(100.0), np.arange(20.0) / 1000], np.repeat([0, 1], [100, 20])
    assert np.flatnonzero(mining.hard_windows([drift], domain)).tolist() == [*range(90, 100), 118, 119]


def test_drift_is_averaged_over_three_epochs():
    drifts = [np.array([9.0, 0, 0, 0]), np.array([0.0, 2, 0, 0]), np.array([0.0, 2, 0, 0]), np.array([0.0, 2, 3, 0])]
    assert np.flatnonzero(mining.hard_windows(drifts, np.zeros(4, int), 0.25)).tolist() == [1]


def test_a_window_made_wrong_differs_exactly_where_it_says_so():
    rng = np.random.default_rng(0)
    ids = rng.integers(3, size=(500, 6))
    ids[::2, 4:] = -1
    made, changed = mining.corrupt(ids, np.full(500, 7), np.full(500, 8), rng)
    assert ((made != ids).any(axis=1) == changed).all()
    assert 0.5 < changed.mean() < 1


def test_lines_of_a_window_made_wrong_stand_first_and_one_is_left():
    rng = np.random.default_rng(1)
    ids = np.where(np.arange(6) < rng.integers(1, 7, size=(500, 1)), rng.integers(3, size=(500, 6)), -1)
    made, _ = mining.corrupt(ids, np.full(500, 7), np.full(500, 8), rng)
    mask = made >= 0
    assert mask[:, 0].all()
    assert (mask[:, 1:] <= mask[:, :-1]).all()


def test_features_made_wrong_come_from_the_same_column():
    values = np.arange(40, dtype=np.float32).reshape(10, 4)
    made = mining.shuffle_features(values, np.random.default_rng(0))
    assert (made % 4 == np.arange(4)).all()
