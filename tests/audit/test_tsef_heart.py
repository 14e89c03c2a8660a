"""TSEF's parts against closed forms: masks, filters, the exact budget, explanations and their measures."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from assay.audit.tsef import GradientxInput, IntegratedGradients, MaskExplainer, Saliency
from assay.audit.tsef.explainers import explanation_distance
from assay.audit.tsef.filters import apply_filter, bend, box, gain
from assay.audit.tsef.masks import connectivity, gumbel_sigmoid, sparsity
from assay.audit.tsef.metrics import agreement, dtw, top_share, wilson


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def net():
    """A softplus network in float64: two channels, ten steps, three classes."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layers = torch.nn.Linear(20, 8), torch.nn.Softplus(), torch.nn.Linear(8, 3)
        return torch.nn.Sequential(torch.nn.Flatten(), *layers).double()


def series(rng, n=3, channels=2, length=10):
    return torch.randn(n, channels, length, generator=rng, dtype=torch.float64)


# ------------------------------------------------------------------------------------------------------------ masks


def test_a_sampled_mask_holds_zeros_and_ones_only(rng):
    mask = gumbel_sigmoid(torch.rand(1000, generator=rng), torch.rand(1000, generator=rng))
    assert set(mask.tolist()) == {0.0, 1.0}


def test_a_mask_of_chance_zero_is_zero_and_of_chance_one_is_one(rng):
    uniform = torch.rand(1000, generator=rng)
    assert gumbel_sigmoid(torch.zeros(1000), uniform).sum() == 0
    assert gumbel_sigmoid(torch.ones(1000), uniform).sum() == 1000


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.8])
def test_the_mean_of_many_masks_is_the_chance(rng, chance):
    masks = gumbel_sigmoid(torch.full((20_000,), chance), torch.rand(20_000, generator=rng))
    standard_error = (chance * (1 - chance) / 20_000) ** 0.5
    assert float(masks.mean()) == pytest.approx(chance, abs=4 * standard_error)


def test_the_gradient_of_a_mask_is_that_of_the_relaxed_sample_and_finite_at_the_ends(rng):
    chance = torch.tensor([0.0, 0.2, 0.7, 1.0], dtype=torch.float64, requires_grad=True)
    uniform = torch.tensor([0.5, 0.6, 0.1, 0.5], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(gumbel_sigmoid(chance, uniform).sum(), chance)
    assert torch.isfinite(gradient).all()
    p, u = 0.2, 0.6
    relaxed = 1 / (1 + np.exp(-(np.log(p / (1 - p)) + np.log(u / (1 - u)))))
    assert float(gradient[1]) == pytest.approx(relaxed * (1 - relaxed) / (p * (1 - p)), rel=1e-6)


def test_the_draw_is_that_of_torchs_gumbel_softmax():
    """The difference of two Gumbel draws is logistic: the relaxed samples have the same distribution."""
    torch.manual_seed(0)
    logits = torch.log(torch.tensor([0.7, 0.3])).expand(20_000, 2)
    theirs = torch.nn.functional.gumbel_softmax(logits, tau=1)[:, 1]
    ours = torch.sigmoid(torch.logit(torch.tensor(0.3)) + torch.logit(torch.rand(20_000)))
    shares = torch.linspace(0.05, 0.95, 19)
    # a quantile's standard error is sqrt(q (1 − q) / n) / density; the density is above 0.2 at all of these
    torch.testing.assert_close(theirs.quantile(shares), ours.quantile(shares), atol=5 * 0.5 / 20_000**0.5 / 0.2, rtol=0)


def test_sparsity_is_zero_where_all_chances_are_the_ratio_and_positive_elsewhere():
    assert float(sparsity(torch.full((1, 2, 5), 0.3), 0.3)) == pytest.approx(0, abs=1e-5)
    for chance in (0.0, 0.1, 0.5, 1.0):
        assert float(sparsity(torch.full((1, 2, 5), chance), 0.3)) > 0.01


def test_sparsity_is_the_divergence_of_two_coins():
    expected = 0.5 * np.log(0.5 / 0.3) + 0.5 * np.log(0.5 / 0.7)
    assert float(sparsity(torch.full((1, 1, 4), 0.5), 0.3)) == pytest.approx(expected, abs=1e-5)


def test_connectivity_is_zero_for_a_constant_mask_and_one_for_an_alternating_one():
    alternating = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0]).expand(1, 2, 5)
    assert connectivity(torch.full((1, 2, 5), 0.4)).tolist() == [0.0]
    assert connectivity(alternating).tolist() == [1.0]


def test_connectivity_of_a_constant_mask_has_a_finite_gradient():
    mask = torch.full((1, 1, 5), 0.4, requires_grad=True)
    (gradient,) = torch.autograd.grad(connectivity(mask).sum(), mask)
    assert torch.isfinite(gradient).all()


# ---------------------------------------------------------------------------------------------------------- filters


@pytest.mark.parametrize("length", [149, 150])
def test_a_gain_of_one_restores_the_series_at_odd_and_even_lengths(rng, length):
    x = series(rng, length=length)
    torch.testing.assert_close(bend(x, torch.ones(3, 2, length // 2 + 1)), x, atol=1e-12, rtol=0)


@pytest.mark.parametrize("length", [149, 150])
def test_the_spectrum_keeps_the_energy(rng, length):
    """Parseval, norm="ortho": a gain on one frequency leaves its energy, which counts twice except at the ends."""
    x = series(rng, n=1, channels=1, length=length)
    spectrum = torch.fft.rfft(x, norm="ortho").abs().square()[0, 0]
    doubled = torch.full_like(spectrum, 2.0)
    doubled[0] = 1.0
    if length % 2 == 0:
        doubled[-1] = 1.0
    assert float((doubled * spectrum).sum()) == pytest.approx(float(x.square().sum()), rel=1e-12)
    for k in (0, 7):
        only = torch.zeros(1, 1, length // 2 + 1, dtype=torch.float64)
        only[..., k] = 1.0
        assert float(bend(x, only).square().sum()) == pytest.approx(float(doubled[k] * spectrum[k]), rel=1e-9)


def test_a_filter_of_ones_changes_nothing_under_any_mask(rng):
    x = series(rng).float()
    mask = (torch.rand(x.shape, generator=rng) < 0.5).float()
    frequency_gain = gain(torch.zeros(3, 2, 6), x, mask, box(x, 0.1).eps)
    torch.testing.assert_close(apply_filter(x, mask, frequency_gain), x, atol=1e-6, rtol=0)


def test_outside_the_mask_nothing_changes(rng):
    x = series(rng)
    assert torch.equal(apply_filter(x, torch.zeros_like(x), torch.rand(3, 2, 6, generator=rng)), x)


def test_a_mask_of_ones_and_a_filter_of_zeros_leave_zeros(rng):
    x = series(rng)
    assert float(apply_filter(x, torch.ones_like(x), torch.zeros(3, 2, 6)).abs().max()) == 0


def test_before_clipping_the_change_peaks_at_98_percent_of_the_budget(rng):
    x = series(rng, n=5, length=31)
    mask = (torch.rand(x.shape, generator=rng) < 0.5).double()
    theta = torch.randn(5, 2, 16, generator=rng, dtype=torch.float64)
    eps = box(x, 0.05).eps
    frequency_gain = gain(theta, x, mask, eps)
    assert float((frequency_gain - 1).abs().max()) < 1  # nothing was clipped
    peak = bend(mask * x, frequency_gain - 1).abs().amax(dim=2, keepdim=True)
    torch.testing.assert_close(peak, 0.98 * eps, rtol=1e-12, atol=0)


def test_alpha_stops_at_five_where_the_window_holds_almost_nothing(rng):
    x = series(rng, n=1, channels=1, length=8)
    tiny = torch.full((1, 1, 5), 1e-3, dtype=torch.float64)
    found = gain(tiny, x, torch.zeros_like(x), box(x, 0.1).eps)
    torch.testing.assert_close(found, 1 + 5 * torch.tanh(tiny))


def test_alpha_is_not_differentiated(rng):
    """With alpha a constant, the gain of one frequency depends on its own theta only."""
    x = series(rng, n=1, channels=1, length=8)
    theta = torch.full((1, 1, 5), 0.1, dtype=torch.float64, requires_grad=True)
    first = gain(theta, x, torch.ones_like(x), box(x, 0.01).eps)[0, 0, 1]
    (gradient,) = torch.autograd.grad(first, theta)
    assert torch.count_nonzero(gradient) == 1


@settings(max_examples=60, deadline=None)
@given(
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
    offset=st.sampled_from([0.0, 1.0, -1e4]),
    attack=st.floats(1e-4, 0.5),
    seed=st.integers(0, 2**31),
    double=st.booleans(),
)
def test_a_projected_series_keeps_budget_and_range_exactly(scale, offset, attack, seed, double):
    dtype = torch.float64 if double else torch.float32
    rng = torch.Generator().manual_seed(seed)
    x0 = (torch.randn(2, 2, 12, generator=rng, dtype=torch.float64) * scale + offset).to(dtype)
    allowed = box(x0, attack)
    projected = allowed.project(x0 + scale * torch.randn(x0.shape, generator=rng, dtype=dtype))
    assert bool(((projected.double() - x0.double()).abs() <= allowed.eps.double()).all())
    assert bool((projected >= x0.amin(dim=2, keepdim=True)).all())
    assert bool((projected <= x0.amax(dim=2, keepdim=True)).all())


# ------------------------------------------------------------------------------------------------------ explanations


def test_integrated_gradients_sum_to_the_difference_of_the_logits(rng, net):
    x, target = series(rng), torch.tensor([0, 1, 2])
    found = IntegratedGradients(net, steps=64).attribute(x, target).sum(dim=(1, 2)).detach()
    expected = (net(x) - net(torch.zeros_like(x))).gather(1, target[:, None])[:, 0].detach()
    torch.testing.assert_close(found, expected, rtol=0.01, atol=0)


def test_our_integrated_gradients_are_captums(rng, net):
    captum = pytest.importorskip("captum.attr", reason="captum is not installed")
    x, target = series(rng), torch.tensor([0, 1, 2])
    theirs = captum.IntegratedGradients(net).attribute(x, target=target, n_steps=8, method="riemann_middle")
    ours = IntegratedGradients(net, steps=8).attribute(x, target).detach()
    torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=0)


@pytest.mark.parametrize("kind", [IntegratedGradients, GradientxInput])
@pytest.mark.parametrize("normalise", [True, False])
def test_the_second_derivative_matches_finite_differences(rng, net, kind, normalise):
    explain, target = kind(net, normalise=normalise), torch.tensor([0, 2])
    reference = (torch.rand(2, 2, 10, generator=rng) < 0.2).double()
    direction = torch.randn(2, 2, 10, generator=rng, dtype=torch.float64)
    x = series(rng, n=2).requires_grad_()

    def distance(point):
        return explanation_distance(explain(point, target), reference, "mse").sum()

    (gradient,) = torch.autograd.grad(distance(x), x)
    step = 1e-6
    difference = (distance(x + step * direction) - distance(x - step * direction)).detach() / (2 * step)
    assert float((gradient * direction).sum()) == pytest.approx(float(difference), rel=1e-5)


def test_detached_gradients_are_constants(rng, net):
    x, target = series(rng, n=1).requires_grad_(), torch.tensor([0])
    explain = IntegratedGradients(net, steps=4, detach_grad=True)
    attribution = explain.attribute(x, target)
    (gradient,) = torch.autograd.grad(attribution.sum(), x)
    torch.testing.assert_close(gradient, (attribution / x).detach())


def test_saliency_of_a_linear_model_is_the_size_of_its_weights(rng):
    weight = torch.randn(3, 8, generator=rng)
    explain = Saliency(lambda x: x.flatten(1) @ weight.T, normalise=False)
    found = explain(torch.randn(2, 1, 8, generator=rng), torch.tensor([2, 0]))
    torch.testing.assert_close(found[:, 0].detach(), weight[[2, 0]].abs())


def test_a_normalised_explanation_has_its_largest_value_at_one(rng, net):
    saliency = IntegratedGradients(net)(series(rng), torch.tensor([0, 1, 2])).detach()
    torch.testing.assert_close(saliency.flatten(1).amax(dim=1), torch.ones(3, dtype=torch.float64))
    assert float(saliency.min()) == 0


def test_masks_are_compared_by_cross_entropy(rng):
    explain = MaskExplainer(torch.nn.Sigmoid())
    saliency = explain(torch.zeros(1, 1, 4), torch.tensor([0]))
    reference = torch.tensor([[[1.0, 0.0, 0.0, 1.0]]])
    assert float(explanation_distance(saliency, reference, explain.distance)) == pytest.approx(np.log(2), abs=1e-6)


# ---------------------------------------------------------------------------------------------------------- measures


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31), share=st.floats(0.05, 0.9))
def test_auprc_is_average_precision(seed, share):
    rng = np.random.default_rng(seed)
    saliency, reference = rng.random((2, 15)), rng.random((2, 15)) < share
    reference[0, 0] = True
    expected = average_precision_score(reference.ravel(), saliency.ravel())
    assert agreement(saliency, reference).auprc == pytest.approx(expected, abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31), rho=st.floats(0.01, 1.0), ties=st.booleans())
def test_an_explanation_agrees_with_its_own_top_wholly(seed, rho, ties):
    saliency = np.random.default_rng(seed).random((3, 2, 12))
    saliency = np.round(saliency, 1) + 0.1 if ties else saliency
    for one, top in zip(saliency, top_share(saliency, rho), strict=True):
        assert agreement(one, top).auprc == pytest.approx(1.0, abs=1e-12)
        assert agreement(one, top).iou == 1.0


def test_the_top_tenth_of_twenty_cells_is_two(rng):
    assert top_share(torch.rand(4, 2, 10, generator=rng).numpy(), 0.1).sum(axis=(1, 2)).tolist() == [2, 2, 2, 2]


def test_areas_under_precision_and_recall_have_their_closed_form():
    """Thresholds 0, 1/2, 1: precision 1/3, 1/2, 1 and recall 1 throughout, by trapezoids."""
    found = agreement(np.array([0.0, 1.0, 2.0]), np.array([0, 0, 1]))
    assert found.aup == pytest.approx((1 / 3 + 1 / 2) / 4 + (1 / 2 + 1) / 4, abs=1e-12)
    assert found.aur == pytest.approx(1.0, abs=1e-12)


def test_an_explanation_of_zeros_agrees_with_nothing():
    found = agreement(np.zeros(10), np.arange(10) < 2)
    assert found == pytest.approx((0.2, 0.0, 0.0, 0.0))


def test_intersection_over_union_of_half_the_cells():
    assert agreement(np.array([4.0, 3.0, 2.0, 1.0]), np.array([1, 0, 1, 0])).iou == pytest.approx(1 / 3)


def slow_dtw(a, b):
    cost = np.full((a.shape[1] + 1, b.shape[1] + 1), np.inf)
    cost[0, 0] = 0
    for i in range(1, len(cost)):
        for j in range(1, cost.shape[1]):
            apart = ((a[:, i - 1] - b[:, j - 1]) ** 2).sum()
            cost[i, j] = apart + min(cost[i - 1, j], cost[i, j - 1], cost[i - 1, j - 1])
    return cost[-1, -1] ** 0.5


def test_dynamic_time_warping_is_that_of_the_textbook(rng):
    a, b = series(rng).numpy(), series(rng).numpy()
    np.testing.assert_allclose(dtw(a, b), [slow_dtw(*pair) for pair in zip(a, b, strict=True)], atol=1e-12)


def test_a_shift_within_the_series_costs_dynamic_time_warping_nothing():
    bump = np.exp(-0.5 * (np.arange(30) - 12) ** 2)[None, None]
    assert dtw(bump, np.roll(bump, 3))[0] < 1e-6 < np.linalg.norm(bump - np.roll(bump, 3))


def test_wilsons_interval_has_its_closed_form():
    z, share, n = 1.959963984540054, 0.3, 20
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * (share * (1 - share) / n + z**2 / (4 * n**2)) ** 0.5
    assert wilson(6, 20) == pytest.approx((centre - half, centre + half), abs=1e-9)
