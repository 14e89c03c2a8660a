"""The transport of caot-stc: its special cases, its optimum, the sizes, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime, minimize
from scipy.special import expit, xlogy

from assay._core.errors import InputError
from assay.solve.caot_stc import transport
from assay.solve.caot_stc.transport import balanced_sizes, consistency_aware_ot, entropic_plan, semantic_gradient

P = np.array([[0.9, 0.1]] * 3 + [[0.45, 0.55]] + [[0.1, 0.9]] * 2)
S = np.zeros((6, 6))
S[:4, :4] = S[4:, 4:] = 1.0
np.fill_diagonal(S, 0.0)
EXACT = {"max_outer": 60, "max_inner": 2000, "tol": 1e-300}


def random_problem(seed, n=12, k=4):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(k), n), rng.random((n, n))


def objective(plan, p, s, lam_sem, barrier=0.0):
    sizes = plan.sum(axis=0)
    value = (plan * -np.log(p)).sum() + xlogy(plan, plan).sum() - lam_sem * (s * (plan @ plan.T)).sum()
    return value - barrier * (np.log(sizes) + np.log1p(-sizes)).sum()


# --- special cases -------------------------------------------------------------------------------------------------


def test_without_semantics_and_with_fixed_sizes_it_is_entropic_transport():
    ot = pytest.importorskip("ot")
    p, _ = random_problem(0)
    sizes = np.array([0.1, 0.2, 0.3, 0.4])
    plan = consistency_aware_ot(p, b=sizes, adaptive_size=False, **EXACT).plan
    peer = ot.sinkhorn(np.full(12, 1 / 12), sizes, -np.log(p), reg=1.0, stopThr=1e-16, numItermax=10_000, warn=False)
    assert np.abs(plan - peer).max() < 1e-12


def test_the_cards_example_of_entropic_transport():
    plan = consistency_aware_ot(P, adaptive_size=False, **EXACT).plan
    expected = [0.846338, 0.846338, 0.846338, 0.333648, 0.063668, 0.063668]
    assert 6 * plan[:, 0] == pytest.approx(expected, abs=1e-6)


def test_with_little_entropy_it_is_unregularised_transport():
    ot = pytest.importorskip("ot")
    p, _ = random_problem(1, n=12, k=3)
    uniform = np.full(12, 1 / 12), np.full(3, 1 / 3)
    plan = consistency_aware_ot(p, adaptive_size=False, lam_entropy=0.02, **EXACT).plan
    exact = ot.emd2(*uniform, -np.log(p))
    # The optimum of the entropic problem costs at most lam × (the largest entropy, log 36) more.
    assert exact - 1e-6 <= (plan * -np.log(p)).sum() <= exact + 0.02 * np.log(36)


def test_uniform_predictions_without_semantics_give_the_product_of_the_marginals():
    sizes = np.array([0.2, 0.3, 0.5])
    plan = consistency_aware_ot(np.full((5, 3), 1 / 3), b=sizes, adaptive_size=False).plan
    assert plan == pytest.approx(np.outer(np.full(5, 0.2), sizes), abs=1e-14)


# --- the semantic term ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lam_sem", "row", "label"), [(0, 0.334, 1), (1, 0.400, 1), (25, 0.664, 0)])
def test_the_cards_labels_of_the_text_between_two_clusters_with_fixed_sizes(lam_sem, row, label):
    found = consistency_aware_ot(P, S, lam_sem=lam_sem, adaptive_size=False)
    assert 6 * found.plan[3, 0] == pytest.approx(row, abs=0.01)
    assert found.labels.tolist() == [0, 0, 0, label, 1, 1]


@pytest.mark.parametrize("lam_sem", [0, 1, 5, 25])
def test_with_fixed_sizes_the_plan_is_the_optimum_that_another_solver_finds(lam_sem):
    """The card gives .541 for text 3 at weight 5; the optimum, found here by SLSQP, is .529."""

    def of_shares(x):
        return objective(np.stack([x, 1 - x], axis=1) / 6, P, S, lam_sem)

    peer = minimize(
        of_shares,
        np.full(6, 0.5),
        bounds=[(1e-9, 1 - 1e-9)] * 6,
        constraints={"type": "eq", "fun": lambda x: x.mean() - 0.5},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    # Ten sweeps leave the columns a little off at weight 25; the row of the text in the middle moves by a hundredth.
    plan = consistency_aware_ot(P, S, lam_sem=lam_sem, adaptive_size=False, max_outer=100, max_inner=500).plan
    assert 6 * plan[:, 0] == pytest.approx(peer.x, abs=0.005)


@pytest.mark.parametrize("lam_sem", [0, 1, 5])
def test_with_adaptive_sizes_the_plan_is_the_optimum_with_the_barrier_divided_by_alpha(lam_sem):
    """The card gives .340, .359, .504 for text 3; the objective of the sizes' own update has its optimum elsewhere."""

    def of_logits(x):
        share = expit(x)
        return objective(np.stack([share, 1 - share], axis=1) / 6, P, S, lam_sem, barrier=10.0)

    start = np.log(P[:, 0] / P[:, 1])
    peer = expit(minimize(of_logits, start, method="BFGS", options={"gtol": 1e-9}).x)
    plan = consistency_aware_ot(P, S, lam_sem=lam_sem, max_outer=200, max_inner=200, tol=1e-12).plan
    assert 6 * plan[:, 0] == pytest.approx(peer, abs=0.005)


@pytest.mark.parametrize(("lam_sem", "label"), [(0, 1), (1, 1), (5, 0), (25, 0)])
def test_the_label_flips_between_weight_one_and_five_with_adaptive_sizes(lam_sem, label):
    assert consistency_aware_ot(P, S, lam_sem=lam_sem).labels.tolist() == [0, 0, 0, label, 1, 1]


def test_the_gradient_of_the_semantic_term_counts_both_directions_of_s():
    rng = np.random.default_rng(0)
    plan, s = rng.random((4, 3)), rng.random((4, 4))
    numeric = approx_fprime(plan.ravel(), lambda q: (s * (q.reshape(4, 3) @ q.reshape(4, 3).T)).sum(), 1e-7)
    assert semantic_gradient(plan, s).ravel() == pytest.approx(numeric, abs=1e-5)


def test_the_diagonal_of_s_is_ignored():
    assert (consistency_aware_ot(P, S + 5 * np.eye(6)).plan == consistency_aware_ot(P, S).plan).all()


def test_the_given_similarity_is_not_changed():
    s = S + np.eye(6)
    consistency_aware_ot(P, s)
    assert (s.diagonal() == 1).all()


# --- properties ----------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.1, 1.0, 100.0]), st.sampled_from([0.0, 1.0, 25.0]))
def test_rows_sum_to_one_over_the_texts_and_columns_to_the_sizes(seed, lam_size, lam_sem):
    p, s = random_problem(seed)
    for n_steps in (1, 2, 10):
        found = consistency_aware_ot(p, s, lam_size=lam_size, lam_sem=lam_sem, max_outer=n_steps)
        assert np.abs(found.plan.sum(axis=1) - 1 / 12).max() < 1e-9
        assert np.abs(found.plan.sum(axis=0) - found.sizes).max() < 1e-15


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.1, 1.0, 100.0]), st.booleans())
def test_the_objective_never_rises(seed, lam_size, adaptive):
    p, s = random_problem(seed)
    values = consistency_aware_ot(p, s, lam_size=lam_size, adaptive_size=adaptive).objective
    assert (np.diff(values) <= 1e-12 * np.abs(values[0])).all()


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_the_order_of_texts_and_clusters_does_not_matter(seed):
    p, s = random_problem(seed)
    rng = np.random.default_rng(seed)
    rows, columns = rng.permutation(12), rng.permutation(4)
    one = consistency_aware_ot(p, s).plan[np.ix_(rows, columns)]
    other = consistency_aware_ot(p[np.ix_(rows, columns)], s[np.ix_(rows, rows)]).plan
    assert np.abs(one - other).max() < 1e-9


@pytest.mark.parametrize("adaptive", [False, True])
def test_sweeps_with_logarithms_are_the_plain_ones(monkeypatch, adaptive):
    cost = -np.log(random_problem(3)[0])
    options = {"lam_entropy": 0.5, "lam_size": 1.0, "alpha": 10.0, "n_sweeps": 10, "adaptive": adaptive}
    plain, sizes = entropic_plan(cost, np.full(4, 0.25), **options)
    monkeypatch.setattr(transport, "LARGEST_RANGE", -1.0)
    in_logs, sizes_in_logs = entropic_plan(cost, np.full(4, 0.25), **options)
    assert np.abs(plain - in_logs).max() < 1e-14
    assert np.abs(sizes - sizes_in_logs).max() < 1e-13


def test_costs_that_would_underflow_still_give_a_plan():
    p = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    found = consistency_aware_ot(p, lam_entropy=0.01)
    assert found.labels[:2].tolist() == [0, 1]
    assert np.abs(found.plan.sum(axis=1) - 1 / 3).max() < 1e-9


# --- the sizes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lam_size", "sizes", "h"),
    [
        (0.1, (0.007558, 0.012148, 0.030926, 0.949367), -1.813032),
        (1.0, (0.067099, 0.100570, 0.196974, 0.635357), -1.883151),
        (10.0, (0.210789, 0.233551, 0.261075, 0.294585), -3.976999),
        (100.0, (0.245809, 0.248567, 0.251379, 0.254246), -27.922760),
    ],
)
def test_the_cards_sizes(lam_size, sizes, h):
    found, multiplier = balanced_sizes(np.array([-0.5, -1.0, -1.5, -2.0]), lam_size, alpha=10.0)
    assert found == pytest.approx(sizes, abs=1e-6)
    assert multiplier == pytest.approx(h, abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-30, 30), min_size=2, max_size=40),
    st.sampled_from([0.1, 1.0, 10.0, 100.0, 1e4]),
    st.sampled_from([1.0, 10.0, 100.0]),
)
def test_sizes_solve_their_equation_and_sum_to_one(potential, lam_size, alpha):
    sizes, h = balanced_sizes(np.array(potential), lam_size, alpha)
    x = alpha * (np.array(potential) - h)
    assert abs(sizes.sum() - 1.0) < 1e-12
    assert (sizes > 0).all()
    # Both sides multiplied by b (1 − b): near 0 and 1 the equation itself has no digits left.
    residual = x * sizes * (1.0 - sizes) - lam_size * (1.0 - 2.0 * sizes)
    assert np.abs(residual).max() <= 1e-9 * max(lam_size, np.abs(x).max())


def test_equal_potentials_give_equal_sizes():
    assert balanced_sizes(np.full(7, -3.0), 0.1, 10.0)[0] == pytest.approx(np.full(7, 1 / 7), abs=1e-15)


def test_a_heavy_barrier_makes_sizes_equal():
    sizes = balanced_sizes(np.array([-0.5, -1.0, -1.5, -2.0]), 1e8, 10.0)[0]
    assert sizes == pytest.approx(np.full(4, 0.25), abs=1e-7)


# --- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "message"),
    [
        (np.ones((3, 1)), r"^p has shape \(3, 1\); expected \(texts, clusters\) with at least two clusters$"),
        (np.array([[0.5, 0.5], [np.nan, 1.0]]), r"^p, row 1: a value is negative or not finite"),
        (np.array([[0.5, 0.5], [-0.5, 1.5]]), r"^p, row 1: a value is negative or not finite"),
        (np.array([[0.5, 0.5], [0.5, 0.9]]), r"^p, row 1 sums to 1\.4; expected 1: give softmax outputs$"),
    ],
)
def test_predictions_that_are_none_are_refused(p, message):
    with pytest.raises(InputError, match=message):
        consistency_aware_ot(p)


def test_predictions_of_zero_are_lifted_a_little():
    found = consistency_aware_ot(np.array([[1.0, 0.0], [0.0, 1.0]]))
    assert np.isfinite(found.plan).all()


@pytest.mark.parametrize(
    ("s", "message"),
    [
        (np.ones((5, 5)), r"^s has shape \(5, 5\); expected \(6, 6\)"),
        (np.where(np.eye(6), 0, np.nan), r"^s, row 0 holds a number that is not finite"),
    ],
)
def test_a_similarity_that_is_none_is_refused(s, message):
    with pytest.raises(InputError, match=message):
        consistency_aware_ot(P, s)


def test_a_negative_similarity_is_allowed_with_a_warning():
    with pytest.warns(UserWarning, match=r"^s has similarities below zero \(the lowest -1\)"):
        consistency_aware_ot(P, -S)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lam_size": 0.0}, r"^lam_size is 0\.0; expected a number above 0$"),
        ({"lam_entropy": -1.0}, r"^lam_entropy is -1\.0; expected a number above 0$"),
        ({"alpha": np.nan}, r"^alpha is nan; expected a number above 0$"),
        ({"lam_sem": -1.0}, r"^lam_sem is -1\.0; expected a number from 0$"),
        ({"max_outer": 0}, r"^max_outer is 0; expected 1 or more$"),
        ({"b": [0.5, 0.3, 0.2]}, r"^b has shape \(3,\); expected \(2,\), a size for each cluster$"),
        ({"b": [0.5, 0.6]}, r"^b sums to 1\.1, smallest 0\.5; expected sizes above 0 that sum to 1$"),
    ],
)
def test_weights_and_sizes_out_of_range_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        consistency_aware_ot(P, **options)
