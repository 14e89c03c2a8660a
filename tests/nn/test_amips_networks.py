"""The networks of amips: convex where they say so, homogeneous, with the gradients and the start that theory wants."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from assay.nn.amips import networks, training  # noqa: E402  # after the check for torch
from assay.nn.amips.networks import InputNetwork, KeyMap, SupportFunctions  # noqa: E402


def support(n_features=5, n_outputs=1, *, rectifier="softplus", homogenize=True, width=24, depth=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    net = InputNetwork(
        n_features, n_outputs, width=width, depth=depth, inject=2, rectifier=rectifier, generator=generator
    )
    return SupportFunctions(net, homogenize=homogenize)


def points(n, n_features=5, *, dtype=torch.float32, seed=1):
    return torch.randn(n, n_features, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("rectifier", ["softplus", "relu", "exp"])
def test_every_output_is_convex_at_ten_thousand_midpoints(rectifier):
    f = support(n_outputs=3, rectifier=rectifier, homogenize=False)
    with torch.no_grad():
        for parameter in f.parameters():  # any weights will do, not only those of the start
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
        x, y = points(10_000, seed=3).double(), points(10_000, seed=4).double()
        f = f.double()
        assert bool((f((x + y) / 2) <= (f(x) + f(y)) / 2 + 1e-6).all())


def test_the_identity_rectifier_does_not_keep_a_net_convex():
    f = support(rectifier="identity", homogenize=False).double()
    x, y = points(10_000, seed=3).double(), points(10_000, seed=4).double()
    with torch.no_grad():
        assert bool((f((x + y) / 2) <= (f(x) + f(y)) / 2 + 1e-6).all())  # at the start it is
        f.net.weights[-1].neg_()
        assert not bool((f((x + y) / 2) <= (f(x) + f(y)) / 2 + 1e-6).all())


@pytest.mark.parametrize("factor", [0.1, 3.0, 100.0])
def test_a_homogenised_net_scales_with_its_input_and_its_gradient_does_not(factor):
    f = support(n_outputs=2).double()
    x = points(200, dtype=torch.float64)
    values, keys = f.value_and_key(x)
    scaled_values, scaled_keys = f.value_and_key(factor * x)
    torch.testing.assert_close(scaled_values, factor * values, rtol=1e-10, atol=0)
    torch.testing.assert_close(scaled_keys, keys, rtol=1e-8, atol=1e-10)


def test_homogenising_a_convex_net_may_cost_its_convexity():
    """f(x) = |x| h(x / |x|) with h = −1, as convex as any constant, is −|x|."""
    f = support().double()
    with torch.no_grad():
        for parameter in f.net.parameters():
            parameter.zero_()
        f.net.weights[-1].fill_(-100.0)  # softplus makes nothing of it
        f.net.biases[-1].fill_(-1.0)
        f.net.injections.clear()
        x, y = torch.eye(5, dtype=torch.float64)[:1], -torch.eye(5, dtype=torch.float64)[:1]
        assert float(f.net(x)) == pytest.approx(-1.0, abs=1e-6)
        assert float(f((x + y + 1e-6) / 2)) > float((f(x) + f(y)) / 2) + 0.9


def test_eulers_identity_holds_for_a_homogenised_net():
    x = points(200)
    values, keys = support(n_outputs=2).value_and_key(x)
    torch.testing.assert_close((keys * x[:, None]).sum(dim=2), values, rtol=1e-5, atol=1e-5)


def test_the_key_is_the_gradient_by_central_differences():
    f = support(n_outputs=2).double()
    x = points(20, dtype=torch.float64)
    _, keys = f.value_and_key(x)
    step = 1e-6
    for coordinate in range(5):
        along = torch.zeros(5, dtype=torch.float64)
        along[coordinate] = step
        with torch.no_grad():
            slope = (f(x + along) - f(x - along)) / (2 * step)
        torch.testing.assert_close(keys[:, :, coordinate], slope, rtol=0, atol=1e-6)


def test_a_loss_on_keys_reaches_the_weights_only_through_a_graph():
    x, target = points(8), torch.zeros(8, 1, 5)
    f = support()
    values, keys = f.value_and_key(x, create_graph=True)
    training.loss(values, keys, values.detach(), target).backward()
    assert all(parameter.grad is not None for parameter in f.net.weights)
    assert float(f.net.weights[0].grad.abs().max()) > 0
    _, without = f.value_and_key(x)
    assert not without.requires_grad


def test_the_activation_has_its_value_slope_and_ends():
    x = torch.tensor([-50.0, 0.0, 50.0], dtype=torch.float64, requires_grad=True)
    a = networks.soft_leaky_relu(x)
    np.testing.assert_allclose(a.detach().numpy(), [-5.0, 0.9 * np.log(2) / 20, 50.0], atol=1e-12)
    a.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [0.1, 0.55, 1.0], atol=1e-12)


def test_the_activation_has_curvature_for_a_loss_on_gradients():
    x = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(networks.soft_leaky_relu(x), x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, x)
    assert float(curvature) == pytest.approx(0.9 * 20 / 4, abs=1e-12)  # (1 − s) beta sigmoid'(0)


@pytest.mark.parametrize("rectifier", networks.RECTIFIERS)
def test_a_rectifier_and_its_inverse_cancel(rectifier):
    weight = torch.logspace(-6, 1.5, 50, dtype=torch.float64)
    there = networks.rectify(networks.unrectify(weight, rectifier), rectifier)
    torch.testing.assert_close(there, weight, rtol=1e-9, atol=0)


def test_the_start_has_the_closed_form_moments():
    found = networks.positive_init(256, 0.0)
    n, alpha = 256, 0.0
    a = 6 * np.pi - 6 * n + (n - 1) * (3 * np.sqrt(3) + 2 * np.pi)
    assert found.squared_mean == pytest.approx(6 * np.pi / (n * a), rel=1e-12)
    assert found.squared_mean == pytest.approx(5.22176e-5, rel=1e-5)
    assert found.variance == pytest.approx(1 / (n * (1 + alpha**2)), rel=1e-12)
    assert found.bias == pytest.approx(-0.738004, abs=1e-6)


def test_a_linear_output_needs_no_bias_and_its_moments_are_those_of_n_plus_one():
    found = networks.positive_init(256, 1.0)
    assert found == pytest.approx((1 / (256 * 257), 1 / 512, 0.0), rel=1e-12)


def test_a_million_drawn_weights_have_the_moments():
    weights = networks.positive_weights((3907, 256), 0.0, torch.Generator().manual_seed(0)).double()
    assert weights.numel() >= 10**6
    assert bool((weights > 0).all())
    # The mean has a standard error of 0.0625 / 1000 = 0.9 % of itself; four of them, doubled for the square.
    assert float(weights.mean() ** 2) == pytest.approx(5.22176e-5, rel=0.07)
    # A sample's variance says little of so skewed a law (after a million draws its standard error is several times the
    # variance). It is taken from the moments of the logarithm: E[w] = e^(m + s²/2), Var[w] = (e^(s²) − 1) E[w]². The
    # error of s², 4.33 sqrt(2 / 10^6) = 0.006, makes 0.6 % of Var[w] / E[w]², that of m + s²/2 half a percent.
    log = weights.log()
    mean, spread = float(log.mean()), float(log.var())
    squared_mean = np.exp(2 * mean + spread)
    assert squared_mean == pytest.approx(5.22176e-5, rel=0.03)
    assert (np.exp(spread) - 1) * squared_mean == pytest.approx(1 / 256, rel=0.05)


def relu_moments(mean, sd):
    """E[relu(s)] and E[relu(s)²] of a normal s, by Gauss–Hermite."""
    node, weight = np.polynomial.hermite_e.hermegauss(200)
    active = np.maximum(mean + sd * node, 0.0)
    return weight @ active / np.sqrt(2 * np.pi), weight @ active**2 / np.sqrt(2 * np.pi)


def test_a_relu_layer_maps_unit_variance_and_correlation_one_half_to_themselves():
    """Expectations over inputs and weights, with the shared part of the inputs integrated out."""
    n = 256
    squared_mean, variance, bias = networks.positive_init(n, 0.0)
    node, weight = np.polynomial.hermite_e.hermegauss(60)
    weight = weight / weight.sum()
    # Given the shared part z / sqrt(2), pre-activations are independent normals of variance 1/2.
    first, second = np.array([relu_moments(z / np.sqrt(2), np.sqrt(0.5)) for z in node]).T
    mean_out = n * np.sqrt(squared_mean) * first + bias
    own = n * (variance + squared_mean) * second - n * squared_mean * first**2
    assert weight @ mean_out == pytest.approx(0.0, abs=2e-3)
    shared = weight @ mean_out**2
    total = weight @ own + shared
    assert total == pytest.approx(1.0, abs=5e-3)
    assert (total - weight @ (n * variance * second)) / total == pytest.approx(0.5, abs=5e-3)


def test_through_eight_layers_that_is_not_stable():
    """Where the shared part is above 0.74 / 0.86, a wide layer enlarges it (its gain is 1.86, its bias −0.74).

    So variance near 1 and correlation near 1/2, which the specification expects after eight ReLU layers, hold for one
    layer on average, not for eight: samples whose units are all high run off, the others fade.
    """
    mean, variance = np.sqrt(2.0), 0.5  # two sd of the shared part
    moments = networks.positive_init(4096, 0.0)
    for _ in range(8):
        first, second = relu_moments(mean, np.sqrt(variance))
        mean, variance = 4096 * np.sqrt(moments.squared_mean) * first + moments.bias, 4096 * moments.variance * second
    assert mean > 50


def test_a_map_without_positive_weights_starts_as_lecun_normal():
    generator = torch.Generator().manual_seed(0)
    net = InputNetwork(64, 64, width=256, depth=3, inject=0, rectifier=None, generator=generator)
    assert float(net.weights[0].detach().std()) == pytest.approx(1 / 16, rel=0.02)
    assert all(bool((bias == 0).all()) for bias in net.biases)


def test_the_width_of_the_cards_example_is_704():
    width = networks.width_for_budget(56_000, 384, 384, fraction=0.2, depth=8, inject=4)
    assert width == 704


@pytest.mark.parametrize(("n_outputs", "depth", "inject"), [(384, 8, 4), (1, 8, 4), (384, 4, 3), (10, 5, 0), (1, 2, 1)])
def test_parameters_are_within_two_percent_of_the_budget_but_for_the_injection_at_the_output(n_outputs, depth, inject):
    """The budget's equation (the paper's) leaves out d k parameters where `inject` divides `depth`: 3.4 % at 704."""
    n_keys, d, fraction = 56_000, 384, 0.2
    width = networks.width_for_budget(n_keys, d, n_outputs, fraction=fraction, depth=depth, inject=inject)
    net = InputNetwork(
        d, n_outputs, width=width, depth=depth, inject=inject, rectifier="identity", generator=torch.Generator()
    )
    at_output = d * n_outputs if inject and depth % inject == 0 else 0
    n_parameters = sum(parameter.numel() for parameter in net.parameters())
    assert n_parameters - at_output == pytest.approx(fraction * n_keys * d, rel=0.02)


def test_the_input_comes_in_again_at_every_fourth_layer():
    net = InputNetwork(3, 2, width=4, depth=8, inject=4, rectifier="identity", generator=torch.Generator())
    assert list(net.injections) == ["4", "8"]


def test_an_untrained_residual_map_leaves_the_query_almost_where_it_is():
    generator = torch.Generator().manual_seed(0)
    net = InputNetwork(16, 16, width=64, depth=8, inject=4, rectifier=None, generator=generator)
    x = torch.nn.functional.normalize(points(200, 16), dim=1)
    moved = (KeyMap(net, residual=True)(x)[:, 0] - x).detach()
    assert float(moved.norm(dim=1).max()) < 0.2


def test_the_loss_is_the_weighted_sum_of_two_means():
    values, true_values = torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 1.0]])
    keys, true_keys = torch.tensor([[[1.0, 2.0], [0.0, 0.0]]]), torch.zeros(1, 2, 2)
    expected = 0.01 * (1 + 4) / 2 + (1 + 4) / 4
    assert float(training.loss(values, keys, true_values, true_keys)) == pytest.approx(expected, rel=1e-6)
