"""The numeric part of judge-rank against closed forms, independent computations and simulated truth."""

from dataclasses import replace

import choix
import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_rank_helpers import cells_of
from scipy import stats
from scipy.optimize import approx_fprime, minimize

from assay.evaluate.judge_rank.covariance import covariance
from assay.evaluate.judge_rank.fit import Prior, fit
from assay.evaluate.judge_rank.intervals import critical_value, rank_intervals, ranks, z_and_p
from assay.evaluate.judge_rank.likelihood import (
    cells_of_votes,
    count_votes,
    gradient,
    information,
    log_likelihood,
    pool,
    residual_curvature,
    squared_residuals,
)

SCORES = np.array([0.9, 0.4, 0.1, -0.5, -0.9])
GAMMA = np.exp([0.7, 0.1, -0.8])


def drawn(per=40, seed=0, scores=SCORES, gamma=GAMMA):
    return cells_of(scores, gamma, per, rng=np.random.default_rng(seed))


def random_votes(n_votes, seed, n_models=5, n_judges=3):
    rng = np.random.default_rng(seed)
    a = rng.integers(n_models, size=n_votes)
    b = (a + rng.integers(1, n_models, size=n_votes)) % n_models
    return a, b, rng.integers(n_judges, size=n_votes), rng.choice([0.0, 0.5, 1.0], size=n_votes)


# --- counting -------------------------------------------------------------------------------------------------------


def by_hand(a, b, k, y):
    """The cells by a Python loop: {(i, j, k): [votes]}."""
    found = {}
    for first, second, judge, share in zip(a, b, k, y, strict=True):
        if first > second:
            first, second, share = second, first, 1 - share
        found.setdefault((first, second, judge), []).append(share)
    return dict(sorted(found.items()))


@pytest.mark.parametrize("n_models", [5, 2000])  # a table of all possible keys, and sorting
def test_votes_are_counted_as_a_loop_would(n_models):
    a, b, k, y = random_votes(500, seed=1, n_models=n_models)
    cells = count_votes(a, b, k, y, n_models, 3)
    expected = by_hand(a, b, k, y)
    assert list(zip(cells.first, cells.second, cells.judge, strict=True)) == list(expected)
    assert cells.count.tolist() == [len(shares) for shares in expected.values()]
    assert cells.share == pytest.approx([np.mean(shares) for shares in expected.values()])
    assert cells.spread == pytest.approx([np.var(shares) * len(shares) for shares in expected.values()])
    assert (cells.first[cells_of_votes(cells, a, b, k)] == np.minimum(a, b)).all()


def test_pooling_cells_counts_the_votes_as_if_one_judge_had_cast_them():
    a, b, k, y = random_votes(500, seed=2)
    pooled = pool(count_votes(a, b, k, y, 5, 3))
    direct = count_votes(a, b, np.zeros_like(k), y, 5, 1)
    for name in ("first", "second", "judge", "count", "share", "spread"):
        assert getattr(pooled, name) == pytest.approx(getattr(direct, name)), name


# --- likelihood and its derivatives (checks 3) ----------------------------------------------------------------------


def test_the_log_likelihood_is_the_sum_over_votes():
    a, b, k, y = random_votes(200, seed=3)
    cells = count_votes(a, b, k, y, 5, 3)
    p = 1 / (1 + np.exp(-GAMMA[k] * (SCORES[a] - SCORES[b])))
    expected = np.sum(y * np.log(p) + (1 - y) * np.log(1 - p))
    assert log_likelihood(SCORES, GAMMA, cells) == pytest.approx(expected, rel=1e-12)


def test_a_tie_is_half_a_win_for_each_model():
    a, b, k = np.array([0, 0]), np.array([1, 1]), np.array([0, 0])
    tied = count_votes(a, b, k, np.array([0.5, 0.5]), 2, 1)
    split = count_votes(a, b, k, np.array([1.0, 0.0]), 2, 1)
    scores = np.array([0.7, -0.7])
    assert log_likelihood(scores, np.ones(1), tied) == log_likelihood(scores, np.ones(1), split)


def as_function(cells):
    """The log-likelihood of (scores, log gamma) stacked."""
    return lambda x: log_likelihood(x[: cells.n_models], np.exp(x[cells.n_models :]), cells)


def gradient_in_logs(x, cells):
    gamma = np.exp(x[cells.n_models :])
    chain = np.concatenate([np.ones(cells.n_models), gamma])
    return chain * gradient(x[: cells.n_models], gamma, cells)


def test_the_gradient_agrees_with_central_differences():
    cells, x, h = drawn(), np.concatenate([SCORES, np.log(GAMMA)]) + 0.1, 1e-5
    value = as_function(cells)
    numeric = [(value(x + h * e) - value(x - h * e)) / (2 * h) for e in np.eye(len(x))]
    assert gradient_in_logs(x, cells) == pytest.approx(np.array(numeric), abs=1e-5)


def test_the_observed_information_agrees_with_central_differences_of_the_gradient():
    cells, h = drawn(), 1e-5
    x = np.concatenate([SCORES, GAMMA]) + 0.1
    n = cells.n_models
    numeric = [
        (gradient(*np.split(x - h * e, [n]), cells) - gradient(*np.split(x + h * e, [n]), cells)) / (2 * h)
        for e in np.eye(len(x))
    ]
    observed = information(*np.split(x, [n]), cells) - residual_curvature(*np.split(x, [n]), cells)
    assert observed == pytest.approx(np.array(numeric), abs=1e-4)


def test_expected_and_observed_information_are_equal_when_every_share_is_its_probability():
    cells = cells_of(SCORES, GAMMA, per=10)
    assert residual_curvature(SCORES, GAMMA, cells) == pytest.approx(np.zeros((8, 8)), abs=1e-12)


def test_the_information_assembled_by_blocks_is_the_sum_of_outer_products():
    cells = drawn()
    delta = SCORES[cells.first] - SCORES[cells.second]
    rows = np.zeros((len(delta), 8))
    at = np.arange(len(delta))
    rows[at, cells.first] += GAMMA[cells.judge]
    rows[at, cells.second] -= GAMMA[cells.judge]
    rows[at, 5 + cells.judge] = delta
    p = 1 / (1 + np.exp(-GAMMA[cells.judge] * delta))
    expected = rows.T @ ((cells.count * p * (1 - p))[:, None] * rows)
    assert information(SCORES, GAMMA, cells) == pytest.approx(expected, abs=1e-10)


def test_the_information_couples_scores_and_discriminations():
    assert np.abs(information(SCORES, GAMMA, drawn())[:5, 5:]).max() > 1


def test_the_squared_residuals_of_a_cell_are_summed_over_its_votes():
    a, b, k, y = random_votes(300, seed=4)
    cells = count_votes(a, b, k, y, 5, 3)
    cell = cells_of_votes(cells, a, b, k)
    p = 1 / (1 + np.exp(-GAMMA[k] * (SCORES[a] - SCORES[b])))
    expected = np.bincount(cell, (y - p) ** 2)
    assert squared_residuals(SCORES, GAMMA, cells) == pytest.approx(expected)


# --- the estimate (checks 1, 2, 4, 6, 7, 11) ------------------------------------------------------------------------


def test_with_one_judge_the_scores_are_those_of_choix():
    cells = drawn(per=40, gamma=np.ones(1))
    wins = [(i, j) for i, j, n, y in zip(cells.first, cells.second, cells.count, cells.share, strict=True)
            for _ in range(round(n * y))]  # fmt: skip
    losses = [(j, i) for i, j, n, y in zip(cells.first, cells.second, cells.count, cells.share, strict=True)
              for _ in range(round(n * (1 - y)))]  # fmt: skip
    expected = choix.ilsr_pairwise(5, wins + losses, alpha=0, tol=1e-12)
    assert fit(cells).scores == pytest.approx(expected - expected.mean(), abs=1e-6)


def test_with_one_judge_scores_and_errors_are_those_of_a_logistic_regression_on_differences():
    cells = drawn(per=40, gamma=np.ones(1))
    design = np.eye(5)[cells.first] - np.eye(5)[cells.second]
    wins = cells.count * cells.share
    model = sm.GLM(np.column_stack([wins, cells.count - wins]), design[:, 1:], family=sm.families.Binomial())
    expected = model.fit(tol=1e-14)  # the score of the first model is zero there
    found = fit(cells)
    assert found.scores[1:] - found.scores[0] == pytest.approx(expected.params, abs=1e-6)
    assert covariance(found, cells).difference_errors()[0, 1:] == pytest.approx(expected.bse, abs=1e-6)


def test_shares_equal_to_the_probabilities_give_back_scores_and_discriminations():
    scores = np.array([0.84, 0.74, 0.43, -0.25, -0.54, -1.22])
    log_gamma = np.linspace(-2, 1, 20) + 0.5
    found = fit(cells_of(scores, np.exp(log_gamma), per=10_000))
    assert found.scores == pytest.approx(scores, abs=1e-6)
    assert found.gamma == pytest.approx(np.exp(log_gamma), abs=1e-6)


def test_the_maximum_is_the_one_a_general_optimiser_finds():
    cells, prior = drawn(per=10), Prior(2.0, 1.5)

    def loss(x):
        s, alpha = x[:5] - x[:5].mean(), x[5:] - x[5:].mean()
        penalty = s @ s / (2 * 1.5**2) + alpha @ alpha / (2 * 2.0**2)
        return penalty - log_likelihood(s, np.exp(alpha), cells)

    x = minimize(loss, np.zeros(8), method="BFGS", options={"gtol": 1e-7}).x
    found = fit(cells, prior)
    assert found.scores == pytest.approx(x[:5] - x[:5].mean(), abs=1e-5)
    assert np.log(found.gamma) == pytest.approx(x[5:] - x[5:].mean(), abs=1e-5)


def test_the_gradient_vanishes_at_the_estimate():
    cells = drawn()
    found = fit(cells)
    x = np.concatenate([found.scores, np.log(found.gamma)])
    assert found.converged
    assert np.abs(gradient_in_logs(x, cells)).max() < 1e-8 * cells.n_votes


def test_scores_sum_to_zero_and_log_gamma_averages_zero():
    found = fit(drawn())
    assert abs(found.scores.sum()) < 1e-12
    assert abs(np.log(found.gamma).mean()) < 1e-12


def test_the_covariance_has_zero_row_sums_over_scores_and_over_judges():
    cells = drawn()
    matrix = covariance(fit(cells), cells).matrix
    assert matrix[:, :5].sum(axis=1) == pytest.approx(np.zeros(8), abs=1e-12)
    assert matrix[:, 5:].sum(axis=1) == pytest.approx(np.zeros(8), abs=1e-12)


def test_the_covariance_is_the_inverse_information_in_an_orthonormal_basis():
    cells = drawn()
    found = fit(cells)

    def basis(n):
        return np.linalg.qr(np.vstack([np.eye(n - 1), -np.ones(n - 1)]))[0]

    jacobian = np.zeros((8, 6))
    jacobian[:5, :4], jacobian[5:, 4:] = basis(5), basis(3)
    chain = np.concatenate([np.ones(5), found.gamma])
    full = chain[:, None] * information(found.scores, found.gamma, cells) * chain
    expected = jacobian @ np.linalg.inv(jacobian.T @ full @ jacobian) @ jacobian.T
    assert covariance(found, cells).matrix == pytest.approx(expected, abs=1e-10)


def test_errors_that_forget_the_discriminations_are_too_small():
    cells = drawn()
    found = fit(cells)
    with_judges = covariance(found, cells).standard_errors()[:5]
    of_scores = np.linalg.pinv(information(found.scores, found.gamma, cells)[:5, :5])
    assert (with_judges > np.sqrt(np.diag(of_scores))).all()


def test_four_times_the_votes_leave_the_estimate_and_halve_every_error_exactly():
    once, four = drawn(), cells_of(SCORES, GAMMA, 160, rng=np.random.default_rng(1))
    four = type(once)(once.first, once.second, once.judge, 4 * once.count, once.share, 4 * once.spread, 5, 3)
    one_fit, four_fit = fit(once), fit(four)
    assert (one_fit.scores == four_fit.scores).all()
    assert (one_fit.gamma == four_fit.gamma).all()
    errors = covariance(one_fit, once).standard_errors(), covariance(four_fit, four).standard_errors()
    assert errors[0] == pytest.approx(2 * errors[1], rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), data=st.data())
def test_swapping_the_models_of_any_votes_changes_nothing(seed, data):
    a, b, k, y = random_votes(300, seed)
    swap = np.array(data.draw(st.lists(st.booleans(), min_size=300, max_size=300)))
    swapped = np.where(swap, b, a), np.where(swap, a, b), k, np.where(swap, 1 - y, y)
    one = count_votes(a, b, k, y, 5, 3)
    other = count_votes(*swapped, 5, 3)
    for name in ("first", "second", "judge", "count", "share"):
        assert (getattr(one, name) == getattr(other, name)).all(), name


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), order=st.permutations(range(5)), judges=st.permutations(range(3)))
def test_renaming_models_and_judges_permutes_the_estimate(seed, order, judges):
    a, b, k, y = random_votes(300, seed)
    order, judges = np.array(order), np.array(judges)
    one = fit(count_votes(a, b, k, y, 5, 3), Prior(2.0))
    other = fit(count_votes(order[a], order[b], judges[k], y, 5, 3), Prior(2.0))
    assert other.scores[order] == pytest.approx(one.scores, abs=1e-6)
    assert other.gamma[judges] == pytest.approx(one.gamma, abs=1e-6, rel=1e-6)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), factor=st.sampled_from([2, 4, 8]))
def test_scaling_all_counts_scales_every_variance(seed, factor):
    cells = drawn(seed=seed)
    more = type(cells)(
        cells.first, cells.second, cells.judge, factor * cells.count, cells.share, factor * cells.spread, 5, 3
    )
    one, many = fit(cells), fit(more)
    assert many.scores == pytest.approx(one.scores, abs=1e-9)
    assert factor * covariance(many, more).matrix == pytest.approx(covariance(one, cells).matrix, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(("wins", "losses"), [(30, 10), (1, 3), (500, 499)])
def test_two_models_and_one_judge_have_a_closed_form(wins, losses):
    n, share = wins + losses, wins / (wins + losses)
    zero = np.zeros(n, np.intp)
    cells = count_votes(zero, zero + 1, zero, np.repeat([1.0, 0.0], [wins, losses]), 2, 1)
    found = fit(cells)
    assert found.scores[0] - found.scores[1] == pytest.approx(np.log(wins / losses), abs=1e-8)
    error = covariance(found, cells).difference_errors()[0, 1]
    assert error == pytest.approx(1 / np.sqrt(n * share * (1 - share)), rel=1e-6)


def test_two_models_and_two_judges_have_a_closed_form():
    a, b = np.zeros(40, np.intp), np.ones(40, np.intp)
    judge = np.repeat([0, 1], 20)
    share = np.concatenate([np.repeat([1.0, 0.0], [18, 2]), np.repeat([1.0, 0.0], [12, 8])])
    found = fit(count_votes(a, b, judge, share, 2, 2))
    logits = np.log([9.0, 1.5])  # gamma_k (s_1 − s_2), one for each judge
    assert found.gamma == pytest.approx(logits / np.sqrt(logits.prod()), abs=1e-6)
    assert found.scores[0] - found.scores[1] == pytest.approx(np.sqrt(logits.prod()), abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_the_likelihood_is_at_least_the_judge_blind_one(seed):
    found = fit(drawn(per=5, seed=seed))
    assert found.log_likelihood >= found.log_likelihood_pooled


def test_equal_judges_give_the_judge_blind_scores():
    shares = cells_of(SCORES, np.ones(3), per=50)
    assert fit(shares).scores == pytest.approx(fit(pool(shares)).scores, abs=1e-6)


def test_many_models_and_judges_are_fitted_too():
    scores, gamma = np.linspace(-2, 2, 250), np.exp(np.linspace(-1, 1, 100))
    a, b = np.divmod(np.arange(250 * 249), 249)
    b += b >= a
    k = np.arange(len(a)) % 100
    p = 1 / (1 + np.exp(-gamma[k] * (scores[a] - scores[b])))
    found = fit(count_votes(a, b, k, p, 250, 100))  # more than 300 parameters
    assert found.scores == pytest.approx(scores, abs=1e-6)


# --- existence (checks 9, 10) ---------------------------------------------------------------------------------------


INVERTED = np.array([2.0, 1.0, 0.5, -0.7])


def inverted_cells(per=200):
    return cells_of(np.linspace(-1, 1, 8), INVERTED, per, rng=np.random.default_rng(3))


def test_an_inverted_judge_has_no_finite_discrimination_and_is_flagged():
    found = fit(inverted_cells())
    assert found.at_boundary.tolist() == [False, False, False, True]


def test_an_inverted_judge_does_not_shrink_the_scores_of_the_others():
    found = fit(inverted_cells())
    # The geometric mean over the other three is one: theirs is one in truth too.
    assert found.scores == pytest.approx(np.linspace(-1, 1, 8), abs=0.15)
    assert found.gamma[:3] == pytest.approx(INVERTED[:3], rel=0.15)


def test_the_interval_of_an_inverted_judge_does_not_reach_into_the_scores():
    cells = inverted_cells()
    found = fit(cells)
    rest = cells.judge < 3
    others = type(cells)(
        cells.first[rest], cells.second[rest], cells.judge[rest], cells.count[rest], cells.share[rest],
        cells.spread[rest], 8, 3,
    )  # fmt: skip
    expected = covariance(fit(others), others).standard_errors()[:8]
    # What the judge's gamma of e⁻⁸ still tells about the scores is below 1e-4 of the information.
    assert covariance(found, cells).standard_errors()[:8] == pytest.approx(expected, rel=2e-3)


def test_signed_gives_an_inverted_judge_a_negative_discrimination_and_restores_the_scores():
    found = fit(inverted_cells(), signed=True)
    size = np.abs(INVERTED).mean()  # the signed normalisation: mean |gamma| of one
    assert found.gamma == pytest.approx(INVERTED / size, abs=0.1)
    assert found.scores == pytest.approx(size * np.linspace(-1, 1, 8), abs=0.1)


def test_signed_recovers_exact_probabilities_exactly():
    scores = np.linspace(-1, 1, 8)
    found = fit(cells_of(scores, INVERTED, per=1000), signed=True)
    assert found.gamma == pytest.approx(INVERTED / np.abs(INVERTED).mean(), abs=1e-6)


def test_signed_takes_the_sign_of_the_majority_of_the_votes():
    found = fit(cells_of(np.linspace(-1, 1, 8), -INVERTED, per=200), signed=True)
    assert found.gamma[0] > 0  # three of four, and the strongest, define what "better" means
    assert found.scores[0] > found.scores[-1]


def test_signed_errors_agree_with_the_curvature_of_the_likelihood():
    cells = cells_of(SCORES, np.array([1.5, 1.0, -0.5]), per=100)
    found = fit(cells, signed=True)

    def free(x):  # s_4 = −Σ s, gamma_0 = 3 − gamma_1 + gamma_2: sum of scores zero, sum of |gamma| three
        s = np.append(x[:4], -x[:4].sum())
        return log_likelihood(s, np.array([3 - x[4] + x[5], x[4], x[5]]), cells)

    x, h = np.concatenate([found.scores[:4], found.gamma[1:]]), 1e-4
    hessian = np.array([
        (approx_fprime(x + h * e, free, 1e-6) - approx_fprime(x - h * e, free, 1e-6)) / (2 * h) for e in np.eye(6)
    ])  # fmt: skip
    expected = np.sqrt(np.diag(np.linalg.inv(-hessian)))
    errors = covariance(found, cells).standard_errors()
    assert errors[[0, 1, 2, 3, 6, 7]] == pytest.approx(expected, rel=1e-2)


def separable_cells():
    cells = cells_of(SCORES, GAMMA, 40, rng=np.random.default_rng(5))
    share = np.where(cells.judge == 0, 1.0, cells.share)  # models are sorted best first: judge 0 never errs
    return type(cells)(cells.first, cells.second, cells.judge, cells.count, share, cells.spread, 5, 3)


def test_a_judge_who_never_errs_is_flagged_and_the_fit_ends():
    found = fit(separable_cells())
    assert found.at_boundary.tolist() == [True, False, False]
    assert np.isfinite(found.scores).all()


def test_a_prior_keeps_a_judge_who_never_errs_finite():
    found = fit(separable_cells(), Prior(2.0))
    assert found.converged
    assert abs(np.log(found.gamma).mean()) < 1e-12
    assert np.log(found.gamma[0]) < 6


def with_noise_judge(per=2000):
    cells = cells_of(SCORES, np.append(GAMMA, 0.0), per, rng=np.random.default_rng(6))
    return cells, cells.judge < 3


def test_a_random_judge_has_an_interval_that_reaches_near_zero():
    cells, _ = with_noise_judge()
    found = fit(cells, Prior(2.0))
    error = covariance(found, cells, Prior(2.0)).standard_errors()[8]
    low = found.gamma[3] * np.exp(-critical_value(0.95) * error) / np.median(found.gamma)
    assert low < 0.02


def test_leaving_out_a_random_judge_moves_no_difference_by_more_than_its_error():
    cells, rest = with_noise_judge()
    others = type(cells)(
        cells.first[rest], cells.second[rest], cells.judge[rest], cells.count[rest], cells.share[rest],
        cells.spread[rest], 5, 3,
    )  # fmt: skip
    with_it, without = fit(cells, Prior(2.0)), fit(others, Prior(2.0))
    # Scales differ (a judge fewer in the geometric mean): compare on that of the first judge.
    moved = with_it.scores * with_it.gamma[0] - without.scores * without.gamma[0]
    errors = covariance(without, others, Prior(2.0)).standard_errors()[:5] * without.gamma[0]
    assert (np.abs(moved) < errors).all()


def test_equal_scores_leave_the_discriminations_undetermined_and_say_so():
    cells = cells_of(np.zeros(4), np.ones(3), per=10)
    estimate = covariance(fit(cells), cells)
    assert np.isinf(estimate.standard_errors()[4:]).all()
    assert np.isfinite(estimate.standard_errors()[:4]).all()
    assert estimate.undetermined.any()


def test_a_model_seen_by_one_judge_who_saw_nothing_else_leaves_only_these_two_undetermined():
    # Judge 2 alone judged model 4, and nothing but model 4 against model 0: only the product is determined.
    cells = cells_of(SCORES, GAMMA, per=100)
    keep = np.where(cells.judge == 2, (cells.first == 0) & (cells.second == 4), cells.second < 4)
    cells = type(cells)(
        cells.first[keep], cells.second[keep], cells.judge[keep], cells.count[keep], cells.share[keep],
        cells.spread[keep], 5, 3,
    )  # fmt: skip
    assert covariance(fit(cells, Prior(2.0)), cells, Prior(2.0)).undetermined.tolist() == [False, False, True]


# --- sandwich -------------------------------------------------------------------------------------------------------


def test_the_sandwich_without_clusters_is_the_sum_over_votes():
    a, b, k, y = random_votes(400, seed=7)
    cells = count_votes(a, b, k, y, 5, 3)
    cell = cells_of_votes(cells, a, b, k)
    found = fit(cells, Prior(2.0))
    oriented = np.where(a < b, y, 1 - y)
    each = covariance(found, cells, Prior(2.0), sandwich=True, clusters=(cell, oriented, np.arange(400)))
    assert covariance(found, cells, Prior(2.0), sandwich=True).matrix == pytest.approx(each.matrix, abs=1e-12)


def test_the_clustered_filling_is_the_sum_of_outer_products_of_cluster_gradients():
    a, b, k, y = random_votes(400, seed=8)
    cells = count_votes(a, b, k, y, 5, 3)
    cell = cells_of_votes(cells, a, b, k)
    cluster = np.arange(400) % 50
    found = fit(cells, Prior(2.0))
    oriented = np.where(a < b, y, 1 - y)
    clustered = covariance(found, cells, Prior(2.0), sandwich=True, clusters=(cell, oriented, cluster))
    chain = np.concatenate([np.ones(5), found.gamma])
    filling = np.zeros((8, 8))
    for number in range(50):
        part = cluster == number
        one = count_votes(a[part], b[part], k[part], y[part], 5, 3)
        slope = chain * gradient(found.scores, found.gamma, one)
        filling += np.outer(slope, slope)
    bread = covariance(found, cells, Prior(2.0)).matrix
    assert clustered.matrix == pytest.approx(bread @ filling @ bread, abs=1e-12)


def test_every_vote_repeated_in_its_cluster_leaves_the_clustered_errors_alone():
    a, b, k, y = random_votes(400, seed=9)
    errors = []
    for times in (1, 5):
        repeated = [np.repeat(x, times) for x in (a, b, k, y)]
        cells = count_votes(*repeated, 5, 3)
        cell = cells_of_votes(cells, *repeated[:3])
        oriented = np.repeat(np.where(a < b, y, 1 - y), times)
        clusters = (cell, oriented, np.repeat(np.arange(400), times))
        errors.append(covariance(fit(cells), cells, sandwich=True, clusters=clusters).standard_errors())
    assert errors[0] == pytest.approx(errors[1], rel=1e-6)


def test_ties_make_sandwich_errors_smaller_than_fisher_errors():
    cells = cells_of(np.zeros(5), np.ones(1), per=20)
    all_ties = type(cells)(cells.first, cells.second, cells.judge, cells.count, cells.share, 0 * cells.spread, 5, 1)
    assert covariance(fit(all_ties), all_ties, sandwich=True).standard_errors().max() == 0.0
    assert covariance(fit(all_ties), all_ties).standard_errors()[:5].min() > 0.1


# --- tests and rank intervals ---------------------------------------------------------------------------------------


def test_the_rank_interval_counts_who_is_significantly_better_and_worse():
    scores = np.array([0.0, 3.0, 1.0, 0.5])
    low, high = rank_intervals(scores, np.full((4, 4), 0.4), 0.95)  # significant: more than 0.784 apart
    assert low.tolist() == [3, 1, 2, 2]
    assert high.tolist() == [4, 1, 3, 4]


def test_simultaneous_rank_intervals_use_bonferroni_over_the_pairs():
    scores = np.array([0.9, 0.0, -0.05])
    errors = np.full((3, 3), 0.4)
    assert rank_intervals(scores, errors, 0.95)[1][0] == 1  # 0.9 > 1.96 · 0.4
    assert rank_intervals(scores, errors, 0.95, simultaneous=True)[1][0] == 3  # 0.9 < 2.394 · 0.4
    assert critical_value(0.95, 3) == pytest.approx(stats.norm.isf(0.05 / 6))


def test_ranks_start_at_one_for_the_highest_score_and_ties_share():
    assert ranks(np.array([0.2, 0.9, 0.2, -1.0])).tolist() == [2, 1, 2, 4]


def test_an_infinite_error_means_no_evidence():
    z, p = z_and_p(np.array([3.0]), np.array([np.inf]))
    assert (z.item(), p.item()) == (0.0, 1.0)


def test_with_one_judge_tests_use_the_ordinary_errors():
    cells = drawn(gamma=np.ones(1))
    estimate = covariance(fit(cells), cells)
    assert estimate.test_errors(fit(cells).scores) == pytest.approx(estimate.difference_errors(), rel=1e-12)


def test_the_test_errors_are_the_errors_of_differences_on_the_scale_they_name():
    cells = drawn()
    found = fit(cells)
    estimate = covariance(found, cells)
    assert estimate.scale.sum() == pytest.approx(
        1.0
    )  # so that the stretched scores do not change with (c s, gamma / c)
    stretch = np.hstack([np.eye(5), found.scores[:, None] * estimate.scale])
    variance = stretch @ estimate.matrix @ stretch.T
    expected = np.sqrt(variance[0, 0] + variance[4, 4] - 2 * variance[0, 4])
    assert estimate.test_errors(found.scores)[0, 4] == pytest.approx(expected)
    assert estimate.test_errors(found.scores)[0, 4] < estimate.difference_errors()[0, 4]


@pytest.mark.parametrize("signed", [False, True])
def test_the_test_errors_do_not_depend_on_the_scale_that_the_normalisation_chose(signed):
    """Fix gamma_0 instead of the mean: scores and their covariance change, z does not."""
    cells = drawn()
    found = fit(cells, signed=signed)
    estimate = covariance(found, cells)
    theta = found.gamma if signed else np.log(found.gamma)
    along = theta if signed else np.ones(3)  # d theta / d log gamma when all gamma stretch together
    pick = np.array([1.0, 0.0, 0.0]) / along[0]
    to_other = np.block([
        [np.eye(5), np.outer(found.scores, pick)],
        [np.zeros((3, 5)), np.eye(3) - np.outer(along, pick)],
    ])  # fmt: skip
    other = replace(estimate, matrix=to_other @ estimate.matrix @ to_other.T)
    assert other.test_errors(found.scores) == pytest.approx(estimate.test_errors(found.scores), abs=1e-12)


def test_equal_models_are_called_different_no_more_often_than_the_level_says():
    scores = np.linspace(-1, 1, 10)
    scores[4] = scores[5] = 0.0
    gamma = np.exp(np.linspace(-1.5, 1.5, 6))
    rng = np.random.default_rng(0)
    rejected = 0
    for _ in range(400):
        cells = cells_of(scores, gamma, 5, rng=rng)
        found = fit(cells, Prior(2.0))
        error = covariance(found, cells, Prior(2.0)).test_errors(found.scores)[4, 5]
        rejected += abs(found.scores[4] - found.scores[5]) > critical_value(0.95) * error
    # Above this more than one time in a thousand if the level were 5 %.
    assert rejected <= stats.binom.isf(1e-3, 400, 0.05)


@pytest.mark.parametrize("prior", [None, Prior(2.0)])
def test_intervals_cover_the_truth_as_often_as_they_say(prior):
    """Card: 10 models, 6 judges, every pair judged five times by every judge: .955 (s), .962 (gamma), .954 (s_i − s_j).

    The mean coverage of one repeat lies in [0, 1] with mean 0.95, so its variance is at most 0.95 · 0.05 (reached when
    all intervals of a repeat miss together): over 300 repeats the standard error is at most 0.0126, and ±0.03 is at
    least 2.4 of them.
    """
    scores, log_gamma = np.linspace(-1, 1, 10), np.linspace(-1.5, 1.5, 6)
    rng = np.random.default_rng(0)
    upper = np.triu_indices(10, 1)
    z = critical_value(0.95)
    hits = []
    for _ in range(300):
        cells = cells_of(scores, np.exp(log_gamma), 5, rng=rng)
        found = fit(cells, prior)
        estimate = covariance(found, cells, prior)
        errors = estimate.standard_errors()
        errors[10:][found.fixed] = np.inf
        gaps = np.abs((found.scores[:, None] - found.scores) - (scores[:, None] - scores))[upper]
        hits.append([
            np.mean(np.abs(found.scores - scores) <= z * errors[:10]),
            np.mean(np.abs(np.log(found.gamma) - log_gamma) <= z * errors[10:]),
            np.mean(gaps <= z * estimate.difference_errors()[upper]),
        ])  # fmt: skip
    coverage = np.mean(hits, axis=0)
    assert (coverage > 0.92).all(), coverage
    assert (coverage < 0.98).all(), coverage


def test_learning_the_judges_orders_models_closer_to_the_truth_than_ignoring_them():
    """Card: Kendall's tau .952 against .912 with every pair judged twice by every judge."""
    scores, gamma = np.linspace(-1, 1, 10), np.exp(np.linspace(-1.5, 1.5, 6))
    rng = np.random.default_rng(0)
    aware, blind = [], []
    for _ in range(100):
        cells = cells_of(scores, gamma, 2, rng=rng)
        aware.append(stats.kendalltau(fit(cells, Prior(2.0)).scores, scores)[0])
        blind.append(stats.kendalltau(fit(pool(cells)).scores, scores)[0])
    gain = np.subtract(aware, blind)
    assert gain.mean() > 3 * gain.std(ddof=1) / 10
    assert np.mean(aware) == pytest.approx(0.952, abs=3 * np.std(aware, ddof=1) / 10)
    assert np.mean(blind) == pytest.approx(0.912, abs=3 * np.std(blind, ddof=1) / 10)
