"""The numeric heart of bridge: derivatives, the three fits, and their known answers."""

import numpy as np
import pytest
from bridge_worlds import lsat6, packed, simulated
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from assay._core.errors import InputError
from assay.evaluate.bridge.likelihood import (
    Parameters,
    Prior,
    curvature,
    gradient,
    log_likelihood,
    objective,
    pack,
)
from assay.evaluate.bridge.marginal import fit_mml
from assay.evaluate.bridge.posterior import fit_map, standard_errors
from assay.evaluate.bridge.variational import fit_svi


def somewhere(n_models, n_tasks, seed=1):
    rng = np.random.default_rng(seed)
    return Parameters(rng.normal(size=n_models), rng.normal(size=n_tasks), rng.normal(0, 0.5, n_tasks))


def central_difference(function, point, size=1e-5):
    flat = np.concatenate(point)
    ends = np.cumsum([len(part) for part in point])[:-1]
    slopes = []
    for i in range(len(flat)):
        step = np.zeros_like(flat)
        step[i] = size
        up, down = (Parameters(*np.split(flat + sign * step, ends)) for sign in (1, -1))
        slopes.append((function(up) - function(down)) / (2 * size))
    return np.array(slopes)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_the_gradient_is_the_slope_of_the_objective(seed):
    responses = packed(simulated(6, 5, seed=seed, share=0.7)[0])
    point = somewhere(6, 5, seed)
    numeric = central_difference(lambda at: objective(at, responses, Prior()), point)
    analytic = gradient(point, responses, Prior())
    assert np.abs(analytic - numeric).max() <= 1e-6 * max(1.0, np.abs(analytic).max())


def test_the_hessian_is_the_slope_of_the_gradient():
    responses, point = packed(simulated(6, 5, share=0.7)[0]), somewhere(6, 5)
    numeric = central_difference(lambda at: gradient(at, responses, Prior()), point)
    exact = curvature(point, responses, Prior())
    analytic = np.column_stack([exact.product(unit) for unit in np.eye(16)])
    assert np.abs(analytic - numeric).max() <= 1e-6 * np.abs(analytic).max()


def test_standard_errors_are_the_roots_of_the_inverse_of_the_full_information():
    responses = packed(simulated(12, 9, share=0.6)[0])
    found = fit_map(responses)
    info = curvature(found.parameters, responses, Prior(), expected=True)
    full = np.linalg.inv(np.column_stack([info.product(unit) for unit in np.eye(30)]))
    expected = np.sqrt(np.diag(full))
    errors = np.concatenate([found.ability_se, found.difficulty_se, found.log_discrimination_se])
    assert errors == pytest.approx(expected, rel=1e-9)


def test_discriminations_that_are_held_at_one_have_no_error():
    found = fit_map(packed(simulated(12, 9, share=0.6)[0]), Prior(log_discrimination=0.0))
    assert (found.log_discrimination_se == 0).all()


def test_with_too_many_subjects_errors_are_those_of_each_block_alone(monkeypatch):
    from assay.evaluate.bridge import posterior

    monkeypatch.setattr(posterior, "MAX_DENSE_SUBJECTS", 5)
    responses = packed(simulated(12, 9, share=0.6)[0])
    point = fit_map(responses).parameters
    info = curvature(point, responses, Prior(), expected=True)
    ability_se, *_ = standard_errors(point, responses, Prior())
    assert ability_se == pytest.approx(info.subject**-0.5, rel=1e-12)


def test_newton_finds_the_minimum_that_a_general_optimiser_finds():
    responses = packed(simulated(15, 20, seed=2, share=0.7)[0])

    def flat(x):
        point = Parameters(x[:15], x[15:35], x[35:])
        return objective(point, responses, Prior()), gradient(point, responses, Prior())

    general = minimize(
        flat, np.zeros(55), jac=True, method="L-BFGS-B", options={"gtol": 1e-9, "ftol": 1e-15, "maxiter": 5000}
    )
    ours = fit_map(responses)
    assert objective(ours.parameters, responses, Prior()) == pytest.approx(general.fun, abs=1e-6)


def test_the_gradient_vanishes_at_the_fit():
    responses = packed(simulated(40, 60, share=0.5)[0])
    found = fit_map(responses)
    assert found.converged
    assert np.abs(gradient(found.parameters, responses, Prior())).max() < 1e-7


def test_one_subject_and_one_item_have_the_closed_form_of_the_rasch_posterior():
    # theta − b = d, theta = −b = d/2 by symmetry; the slope of the objective is sigmoid(d) − 1 + (d/2)/9 = 0.
    from scipy.optimize import brentq

    responses = pack(np.array([0]), np.array([0]), np.array([1.0]), n_subjects=1, n_items=1)
    found = fit_map(responses, Prior(3.0, 3.0, 0.0)).parameters
    d = brentq(lambda d: 1 / (1 + np.exp(-d)) - 1 + d / 18, 0, 20)
    assert (found.ability[0], found.difficulty[0]) == pytest.approx((d / 2, -d / 2), abs=1e-9)


def test_mml_reproduces_the_published_values_of_lsat6():
    # R's ltm: a, b and the log-likelihood of the two-parameter model on this table.
    found = fit_mml(packed(lsat6().astype(float)), n_nodes=21)
    assert np.exp(found.parameters.log_discrimination) == pytest.approx(
        [0.8257, 0.7227, 0.8909, 0.6884, 0.6569], abs=2e-3
    )
    assert found.parameters.difficulty == pytest.approx([-3.3588, -1.3701, -0.2797, -1.8664, -3.1259], abs=2e-3)
    assert found.log_likelihood == pytest.approx(-2466.6534, abs=1e-3)


def test_lsat6_has_its_published_item_means():
    assert lsat6().mean(axis=0) == pytest.approx([0.924, 0.709, 0.553, 0.763, 0.870], abs=1e-12)


def test_mml_errors_of_difficulty_match_the_spread_over_simulated_tables():
    rng = np.random.default_rng(5)
    a, b = np.array([1.5, 1.0, 1.2, 0.9]), np.array([-0.5, 0.0, 0.5, 0.2])
    found = []
    for _ in range(40):
        p = 1 / (1 + np.exp(-a * (rng.normal(size=(800, 1)) - b)))
        found.append(fit_mml(packed((rng.random(p.shape) < p).astype(float)), n_nodes=21))
    spread = np.std([fit.parameters.difficulty for fit in found], axis=0, ddof=1)
    claimed = np.median([fit.difficulty_se for fit in found], axis=0)
    # A standard deviation from 40 tables has a relative error of 1/sqrt(78) = 0.113: three of them.
    assert claimed == pytest.approx(spread, rel=0.34)


def test_mml_refuses_an_item_that_everybody_solved():
    matrix = lsat6().astype(float)
    matrix[:, 2] = 1
    with pytest.raises(InputError, match=r'1 of 5 items were solved by all or by none.*use method="map"'):
        fit_mml(packed(matrix))


def test_under_rasch_equal_totals_on_a_complete_table_give_equal_abilities():
    matrix = np.array([[1, 1, 0, 0, 1], [0, 1, 1, 1, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 0]], float)
    ability = fit_map(packed(matrix), Prior(3.0, 3.0, 0.0)).parameters.ability
    assert ability[0] == pytest.approx(ability[1], abs=1e-9)


def test_under_rasch_every_discrimination_is_one():
    found = fit_map(packed(simulated(8, 9)[0]), Prior(3.0, 3.0, 0.0))
    assert np.all(found.parameters.log_discrimination == 0)


def test_swapping_success_and_failure_turns_the_scale_round():
    matrix = simulated(20, 30, share=0.8)[0]
    one, other = fit_map(packed(matrix)).parameters, fit_map(packed(1 - matrix)).parameters
    assert np.concatenate(other) == pytest.approx(
        np.concatenate([-one.ability, -one.difficulty, one.log_discrimination]), abs=1e-6
    )


def test_a_count_of_trials_is_the_same_as_so_many_responses():
    matrix = simulated(5, 4)[0]
    subject, item = np.nonzero(~np.isnan(matrix))
    solved = matrix[subject, item]
    counted = pack(subject, item, 2 * solved, np.full(20, 2.0), n_subjects=5, n_items=4)
    twice = Parameters(*somewhere(5, 4))
    assert log_likelihood(twice, counted) == pytest.approx(2 * log_likelihood(twice, packed(matrix)), rel=1e-12)


def test_a_complete_simulated_table_gives_back_its_truth():
    matrix, ability, difficulty, _ = simulated(200, 500, seed=0)
    found = fit_map(packed(matrix)).parameters
    assert np.corrcoef(found.difficulty, difficulty)[0, 1] > 0.98
    assert np.corrcoef(found.ability, ability)[0, 1] > 0.99


def test_the_error_of_minutes_falls_as_models_are_added():
    from assay.evaluate.bridge.calibration import calibrate

    def error(n_models):
        matrix, _, difficulty, _ = simulated(n_models, 200, seed=0)
        found = fit_map(packed(matrix)).parameters.difficulty
        line = calibrate(found[:100], np.exp(2 + difficulty[:100]))
        return np.sqrt(np.mean((np.log(line.predict(found[100:])) - 2 - difficulty[100:]) ** 2))

    errors = [error(n_models) for n_models in (10, 40, 160)]
    assert errors[0] > errors[1] > errors[2]


@pytest.fixture
def torch():
    """Torch on one thread: threads that wait for each other on a busy machine cost more than they bring."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch
    torch.set_num_threads(before)


def test_svi_is_the_same_again_and_leaves_torch_as_it_was(torch):
    responses = packed(simulated(10, 12)[0])
    state = torch.random.get_rng_state()
    one, two = (fit_svi(responses, epochs=20, seed=4).parameters for _ in range(2))
    assert np.array_equal(np.concatenate(one), np.concatenate(two))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_svi_and_map_order_tasks_alike(torch):
    from scipy.stats import spearmanr

    responses = packed(simulated(60, 80, seed=6)[0])
    one = fit_svi(responses, epochs=400).parameters.difficulty
    assert spearmanr(one, fit_map(responses).parameters.difficulty).statistic > 0.98


def test_the_guide_reads_one_over_u_as_a_standard_deviation(torch):
    # Every draw of u is made 4: the prior of the abilities must then be asked with scale 1/4.
    from assay.evaluate.bridge import variational

    seen = {}

    class Spy(torch.distributions.Normal):
        def log_prob(self, value):
            if value.numel() == 3:  # abilities, the only part of this size
                seen.setdefault("scales", []).append(self.scale.detach().clone())
            return super().log_prob(value)

    class FixedGamma(torch.distributions.Gamma):
        def rsample(self, *shape):
            return torch.full_like(self.concentration, 4.0)

    distributions = type("D", (), {"Normal": Spy, "Gamma": FixedGamma})
    fake = type(
        "T", (), {"distributions": distributions, "zeros": torch.zeros, "log": torch.log, "tensor": torch.tensor}
    )
    variational._Guide(fake, 3, 5, torch.device("cpu")).sample()
    assert [float(scale.flatten()[0]) for scale in seen["scales"]] == [0.25, 1.0]  # the prior's 1/u, the guide's own
