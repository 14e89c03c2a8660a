"""Scores of model-dowser against Jacobians, finite differences and invariances; what cannot be scored is said."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from assay._core.errors import InputError
from assay.adapt.model_dowser import build_mask, importance, target_layers
from assay.adapt.model_dowser.scores import rademacher, squared_gains


def mlp(seed=0, sizes=(5, 7, 6, 4), activation=nn.GELU, dtype=torch.float64):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        parts = []
        for i, (a, b) in enumerate(pairwise(sizes)):
            parts += [activation()] if i else []
            parts.append(nn.Linear(a, b, dtype=dtype))
    return nn.Sequential(*parts)


def inputs(n=6, d=5, seed=1, dtype=torch.float64):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def brute_force(model, x, name):
    """Mean over samples of ||J_i|| |W_ij| |h_j| with the Jacobian by torch.func.jacrev."""
    layers = list(model)
    place = int(name.split(".")[0])
    total = 0
    for sample in x:
        h = nn.Sequential(*layers[:place])(sample)
        z = layers[place](h)
        jacobian = torch.func.jacrev(nn.Sequential(*layers[place + 1 :]))(z)
        total = total + torch.outer(jacobian.norm(dim=0), h.abs())
    return (layers[place].weight.abs() * total / len(x)).detach()


# ------------------------------------------------------------------------------------------------- closed forms


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_score_of_one_linear_layer_is_w_times_x_for_every_draw(seed):
    layer = nn.Linear(4, 3)
    x = inputs(1, 4, dtype=torch.float32)
    found = importance(layer, x, n_hutchinson=1, seed=seed)["weight"]
    assert torch.equal(found, layer.weight.detach().abs() * x[0].abs())


def test_hutchinson_finds_the_columns_of_the_next_layer_within_5_percent():
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 8, bias=False)).double()
    x = inputs(1, 4)
    found = importance(model, x, n_hutchinson=4096)["0.weight"]
    gains = model[1].weight.detach().norm(dim=0)
    expected = model[0].weight.detach().abs() * torch.outer(gains, x[0].abs())
    # The relative variance of g^2 is at most 2, so 4,096 draws have a relative error of 1.1 % in the gain.
    assert (found / expected - 1).abs().max() < 0.05


def test_the_error_of_the_estimate_falls_as_one_over_the_root_of_the_draws():
    next_layer = torch.randn(16, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    truth = next_layer.square().sum(0)
    z = torch.zeros(400, 12, dtype=torch.float64, requires_grad=True)

    def rms(n):
        draws = [rademacher((400, 16), 1000 * n + r, z) for r in range(n)]
        return ((squared_gains(z @ next_layer.T, [z], draws)[0] / truth - 1) ** 2).mean().sqrt()

    # 4,800 estimates, correlated over 12 units of 400 samples: the ratio of two rms errors is known to about 5 %.
    assert float(rms(4) / rms(64)) == pytest.approx(4.0, rel=0.15)


def test_exact_scores_are_those_of_jacrev():
    model, x = mlp(), inputs()
    found = importance(model, x, n_hutchinson="exact")
    for name in found:
        torch.testing.assert_close(found[name], brute_force(model, x, name), rtol=1e-5, atol=1e-12)


def test_the_estimated_square_is_unbiased():
    model, x = mlp(), inputs(1)
    z = model[0](x).detach().requires_grad_()
    exact = torch.func.jacrev(model[1:])(z[0]).detach().square().sum(0)
    many = z.detach().expand(20_000, -1).clone().requires_grad_()
    f = model[1:](many)
    found = squared_gains(f, [many], [rademacher(tuple(f.shape), 5, f)])[0]
    error = found.std(0) / len(many) ** 0.5
    assert ((found.mean(0) - exact).abs() < 4.5 * error).all()


class Cumulative(nn.Module):
    """Position t of the output is the sum of z over positions up to t: every z reaches all later outputs."""

    def forward(self, z):
        return z.cumsum(-2)


def test_independent_signs_at_every_position_are_unbiased_and_shared_ones_are_not():
    n, t = 20_000, 4
    z = torch.zeros(n, t, 1, dtype=torch.float64, requires_grad=True)
    f = Cumulative()(z)
    independent = squared_gains(f, [z], [rademacher((n, t, 1), 0, f)])[0].mean(0).flatten()
    shared = squared_gains(f, [z], [rademacher((n, 1, 1), 0, f).expand(n, t, 1)])[0].mean(0).flatten()
    # Position s reaches t - s outputs with weight one: ||J||^2 = t - s; one shared sign adds them up to (t - s)^2.
    expected = torch.arange(t, 0, -1, dtype=torch.float64)
    torch.testing.assert_close(independent, expected, rtol=0.05, atol=0)
    torch.testing.assert_close(shared, expected**2, rtol=1e-12, atol=0)


def test_positions_are_scored_as_the_jacobian_of_all_later_outputs():
    layer = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    model = nn.Sequential(layer, Cumulative())
    x = torch.tensor([[[1.0, 2.0], [3.0, -1.0]]], dtype=torch.float64)
    found = importance(model, x, n_hutchinson="exact")["0.weight"]
    expected = layer.weight.detach().abs() * torch.tensor([[(2**0.5 * 1 + 3) / 2, (2**0.5 * 2 + 1) / 2]])
    torch.testing.assert_close(found, expected.double())


def test_the_score_is_the_first_order_effect_of_a_change():
    model, x = mlp(), inputs(1)
    found = importance(model, x, n_hutchinson="exact")
    eps = 1e-6
    for name, place in (("0.weight", (3, 2)), ("2.weight", (5, 1)), ("4.weight", (0, 3))):
        weight = model.get_parameter(name)
        with torch.no_grad():
            before = model(x)
            old = weight[place].item()
            weight[place] += eps
            moved = (model(x) - before).norm() / eps
            weight[place] = old
        assert float(found[name][place] / abs(old)) == pytest.approx(float(moved), rel=1e-3)


# -------------------------------------------------------------------------------------------------- invariances


def test_the_order_of_probes_does_not_matter():
    model, x = mlp(), inputs(8)
    first, second = (importance(model, probes, n_hutchinson="exact") for probes in (x, x.flip(0)))
    for name in first:
        torch.testing.assert_close(first[name], second[name])


def test_the_size_of_a_batch_does_not_matter():
    model, x = mlp(), inputs(8)
    first, second = (importance(model, x, n_hutchinson=3, batch_size=size) for size in (1, 8))
    for name in first:
        torch.testing.assert_close(first[name], second[name])


def test_a_unit_that_nobody_reads_scores_zero_and_trains():
    model = mlp()
    with torch.no_grad():
        model[2].weight[:, 3] = 0
    scores = importance(model, inputs())
    assert not scores["0.weight"][3].any()
    assert build_mask(scores, rho=0.15).trainable["0.weight"][3].all()  # 5 of 35 train, the row's 5


def test_an_input_that_is_always_zero_scores_zero():
    x = inputs()
    x[:, 2] = 0
    assert not importance(mlp(), x)["0.weight"][:, 2].any()


def test_a_larger_output_scales_all_scores_and_leaves_the_mask():
    model, x = mlp(), inputs()
    scores = importance(model, x)
    with torch.no_grad():
        model[4].weight *= 8
        model[4].bias *= 8
    scaled = importance(model, x)
    for name in ("0.weight", "2.weight"):
        torch.testing.assert_close(scaled[name], 8 * scores[name])
    assert torch.equal(build_mask(scores).trainable["0.weight"], build_mask(scaled).trainable["0.weight"])


def test_rescaling_a_relu_unit_leaves_the_scores_of_the_pair():
    model, x = mlp(activation=nn.ReLU), inputs()
    scores = importance(model, x, n_hutchinson="exact")
    with torch.no_grad():
        model[0].weight[1] *= 4
        model[0].bias[1] *= 4
        model[2].weight[:, 1] /= 4
    again = importance(model, x, n_hutchinson="exact")
    for name in ("0.weight", "2.weight"):
        torch.testing.assert_close(again[name], scores[name])


def test_an_activation_that_overwrites_its_input_is_scored_as_one_that_does_not():
    plain, inplace = mlp(activation=nn.ReLU), mlp(activation=lambda: nn.ReLU(inplace=True))
    first, second = (importance(model, inputs()) for model in (plain, inplace))
    for name in first:
        torch.testing.assert_close(first[name], second[name])


def test_mean_averages_gains_and_inputs_over_positions_first():
    layer = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    model = nn.Sequential(layer, Cumulative())
    x = torch.tensor([[[1.0, 2.0], [3.0, -1.0]]], dtype=torch.float64)
    found = importance(model, x, n_hutchinson="exact", reduce="mean")["0.weight"]
    gain = (2**0.5 + 1) / 2
    torch.testing.assert_close(found, layer.weight.detach().abs() * gain * torch.tensor([[2.0, 1.5]]).double())


# -------------------------------------------------------------------------------------------- nothing is left


def everything(model):
    return (
        {name: value.clone() for name, value in model.state_dict().items()},
        [p.requires_grad for p in model.parameters()],
        [p.grad for p in model.parameters()],
        [m.training for m in model.modules()],
        [len(m._forward_hooks) + len(m._backward_hooks) for m in model.modules()],
    )


def assert_same(before, after):
    for name, value in before[0].items():
        assert torch.equal(value, after[0][name])
    assert before[1:] == after[1:]


def test_scoring_leaves_the_model_as_it_was():
    model = mlp().train()
    model[0].weight.requires_grad_(False)
    model[2].eval()
    before, state = everything(model), torch.get_rng_state()
    importance(model, inputs())
    assert_same(before, everything(model))
    assert torch.equal(state, torch.get_rng_state())


def test_an_exception_leaves_the_model_as_it_was():
    model = mlp().train()
    before = everything(model)
    with pytest.raises(RuntimeError):
        importance(model, inputs(d=3))
    assert_same(before, everything(model))


def test_scoring_works_under_no_grad():
    with torch.no_grad():
        found = importance(mlp(), inputs())
    assert all(score.any() for score in found.values())


def test_dropout_is_off():
    with_dropout = nn.Sequential(mlp(), nn.Dropout(0.9)).train()
    torch.testing.assert_close(
        importance(with_dropout, inputs())["0.0.weight"], importance(mlp(), inputs())["0.weight"]
    )


# ---------------------------------------------------------------------------------------------------- bad input


def test_scores_that_are_not_finite_name_the_layer():
    model = mlp()
    with torch.no_grad():
        model[2].weight[0, 0] = float("nan")
    with pytest.raises(InputError, match=r"^0\.weight has scores that are not finite; look for NaN in its weights"):
        importance(model, inputs())


def test_a_model_without_linear_layers_is_refused():
    with pytest.raises(InputError, match=r"^modules='linear', layers=None: no linear layer .* matches; it has none$"):
        target_layers(nn.Conv2d(1, 1, 3))


def test_a_pattern_that_matches_nothing_shows_what_is_there():
    with pytest.raises(InputError, match=r"^modules='q_proj', layers=None: .*its linear layers are 0, 2, 4, …$"):
        importance(mlp(), inputs(), modules="q_proj")


def test_a_quantised_weight_is_refused():
    model = mlp()
    model[2].weight = nn.Parameter(torch.zeros(6, 7, dtype=torch.int8), requires_grad=False)
    with pytest.raises(InputError, match=r"^2\.weight is quantised or sharded \(torch\.int8\), so it can neither"):
        importance(model, inputs())


def test_a_network_that_does_not_write_needs_probes():
    with pytest.raises(InputError, match=r"^Sequential cannot generate text; give probes=, inputs to run it on$"):
        importance(mlp())


def test_shared_weights_are_skipped_with_a_warning():
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 4)).double()
    model[1].weight = model[0].weight
    with pytest.warns(UserWarning, match=r"^weights shared with another layer are not scored: 0, 1$"):
        found = importance(model, inputs())
    assert list(found) == ["2.weight"]


def test_strings_need_a_tokenizer():
    with pytest.raises(InputError, match=r"^probes are strings; give the tokenizer that belongs to the model$"):
        importance(mlp(), ["hello"])


def test_no_probes_are_refused():
    with pytest.raises(InputError, match=r"^probes is empty; give at least one$"):
        importance(mlp(), [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_hutchinson": 0}, r"^n_hutchinson=0: expected 1 or more, or 'exact'$"),
        ({"reduce": "sum"}, r"^reduce='sum': expected 'position' or 'mean'$"),
        ({"batch_size": 0}, r"^batch_size=0: expected 1 or more$"),
        ({"layers": 2}, r"^layers=2: expected a number from 1 to 1, the model's number of blocks$"),
        ({"layers": [3]}, r"^layers holds 3; the model has 1 blocks, numbered from 0$"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        importance(mlp(), inputs(), **options)


def test_an_output_that_does_not_depend_on_the_layers_is_refused():
    class Deaf(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 2).double()

        def forward(self, x):
            self.layer(x)
            return x

    with pytest.raises(InputError, match=r"^the model returned Tensor that does not depend on the layers"):
        importance(Deaf(), inputs())


def test_a_dtype_that_the_device_cannot_run_is_said():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, x):
            raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'")

    with pytest.raises(
        InputError, match=r"^the model cannot run in its dtype on cpu \(.*'Half'\); load it in float32$"
    ):
        importance(Half(), inputs())


# ------------------------------------------------------------------------------------------------- what it is for


def test_noise_of_one_size_moves_the_output_least_on_the_lowest_scores_and_most_on_the_highest():
    # Inputs of unlike size, as features of language models are: |h| is what noise of one size meets.
    model, x = mlp(sizes=(20, 40, 40, 10)), inputs(64, 20) * torch.linspace(-2, 2, 20, dtype=torch.float64).exp()
    scores = importance(model, x, batch_size=64)
    masks = {
        "lowest": build_mask(scores, 0.1).trainable,
        "highest": build_mask({name: -score for name, score in scores.items()}, 0.1).trainable,
        "random": {name: torch.rand(score.shape) < 0.1 for name, score in scores.items()},
    }
    moved = {}
    with torch.no_grad():
        before = model(x)
        for kind, chosen in masks.items():
            total = 0.0
            for seed in range(20):
                generator = torch.Generator().manual_seed(seed)
                changes = {
                    name: 0.02 * torch.randn(score.shape, generator=generator, dtype=torch.float64) * chosen[name]
                    for name, score in scores.items()
                }
                for sign in (1, -1):
                    for name, change in changes.items():
                        model.get_parameter(name).add_(change, alpha=sign)
                    total += float((model(x) - before).norm()) if sign == 1 else 0.0
            moved[kind] = total
    assert moved["lowest"] < moved["random"] < moved["highest"]
