"""DataGuard's numbers: features, the multivariate test, control variates, calibration and the share that was used."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from assay.audit.dataguard import exact_rate
from assay.audit.dataguard.calibration import blind_check, null_rejections
from assay.audit.dataguard.control import residuals
from assay.audit.dataguard.features import (
    class_features,
    entropy,
    jensen_gap,
    label_features,
    negative_margin,
    self_information,
)
from assay.audit.dataguard.fraction import detectable_fraction, detectable_gap, usage_fraction
from assay.audit.dataguard.hotelling import compare, holm

SEEDS = st.integers(0, 2**32 - 1)


def rng(seed=0):
    return np.random.default_rng(seed)


def correlated(n, k=4, seed=0, mean=0.0):
    """Normal features of variance one with correlations of one half."""
    random = rng(seed)
    return mean + np.sqrt(0.5) * (random.normal(size=(n, k)) + random.normal(size=(n, 1)))


# --------------------------------------------------------------------------------------------------------- features


def test_self_information_is_minus_log_of_the_true_class_and_stops_at_six():
    probs = np.array([[0.2, 0.8], [1e-9, 1 - 1e-9]])
    np.testing.assert_allclose(self_information(probs, np.array([0, 0])), [-np.log(0.2), 6.0], atol=1e-12)


@pytest.mark.parametrize("n_classes", [2, 10, 1000])
def test_entropy_of_a_uniform_answer_is_log_of_the_classes(n_classes):
    assert entropy(np.full(n_classes, 1 / n_classes)) == pytest.approx(np.log(n_classes), abs=1e-12)


def test_the_margin_is_the_log_ratio_to_the_best_other_class_and_is_clipped():
    probs = np.array([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    margin = negative_margin(probs, np.zeros(4, dtype=int))
    np.testing.assert_allclose(margin, [np.log(0.3 / 0.5), np.log(0.5 / 0.2), -12.0, 6.0], atol=1e-12)


@given(SEEDS)
def test_the_jensen_gap_is_never_below_zero(seed):
    augmented = rng(seed).dirichlet(np.full(5, 0.3), (4, 20))
    assert (jensen_gap(augmented) >= 0).all()


def test_the_jensen_gap_is_zero_where_all_augmentations_agree():
    augmented = np.tile(rng().dirichlet(np.ones(5), 20), (4, 1, 1))
    np.testing.assert_allclose(jensen_gap(augmented), 0.0, atol=1e-12)


def test_the_jensen_gap_of_opposite_certain_answers_is_log_two():
    assert jensen_gap(np.array([[[1.0, 0.0]], [[0.0, 1.0]]])) == pytest.approx(np.log(2), abs=1e-10)


def test_features_have_the_declared_order():
    probs, labels = rng().dirichlet(np.ones(3), 10), np.zeros(10, dtype=int)
    augmented = rng(1).dirichlet(np.ones(3), (4, 10))
    expected = [
        self_information(probs, labels),
        entropy(probs),
        negative_margin(probs, labels),
        jensen_gap(augmented),
    ]
    np.testing.assert_array_equal(class_features(probs, labels, augmented), np.stack(expected, axis=1))
    assert class_features(probs, labels).shape == (10, 3)


def test_a_model_that_says_classes_only_has_errors_for_features():
    features = label_features(np.array([0, 1]), np.array([0, 0]), np.array([[0, 1], [1, 0]]))
    np.testing.assert_allclose(features, [[0, 0.5, 0.5], [1, 0.5, 0.5]])


# ------------------------------------------------------------------------------------------------------------- test


def test_one_feature_gives_the_square_of_students_t_and_its_p():
    one, two = rng().normal(0.0, 1.0, (60, 1)), rng(1).normal(0.2, 1.0, (80, 1))
    found = compare(one, two, test="F", rng=rng())
    student = stats.ttest_ind(one[:, 0], two[:, 0])
    assert found.t2 == pytest.approx(student.statistic**2, abs=1e-12)
    assert found.p_two_sided == pytest.approx(student.pvalue, abs=1e-12)
    assert found.z[0] == pytest.approx(student.statistic, abs=1e-12)


def test_t2_is_that_of_the_textbook():
    one, two = correlated(60), correlated(80, seed=1)
    d = one.mean(axis=0) - two.mean(axis=0)
    pooled = (59 * np.cov(one.T) + 79 * np.cov(two.T)) / 138
    t2 = 60 * 80 / 140 * d @ np.linalg.solve(pooled, d)
    found = compare(one, two, test="F", rng=rng())
    assert found.t2 == pytest.approx(t2, rel=1e-10)
    assert found.p_two_sided == pytest.approx(stats.f.sf(t2 * 135 / (4 * 138), 4, 135), abs=1e-12)


@given(SEEDS)
def test_t2_does_not_change_under_an_invertible_affine_map(seed):
    one, two = correlated(60), correlated(70, seed=1)
    random = rng(seed)
    turn, _ = np.linalg.qr(random.normal(size=(4, 4)))
    matrix = turn * np.exp(random.uniform(-3, 3, 4))
    shift = random.normal(size=4)
    found = compare(one @ matrix + shift, two @ matrix + shift, test="F", rng=rng())
    assert found.t2 == pytest.approx(compare(one, two, test="F", rng=rng()).t2, rel=1e-8)


@pytest.mark.parametrize("test", ["permutation", "F"])
def test_swapping_the_data_sets_keeps_t2_and_turns_the_direction(test):
    one, two = correlated(60, mean=-1.0), correlated(60, seed=1)  # T² is expected at 30 · 1.6 = 48
    there = compare(one, two, test=test, rng=rng())
    back = compare(two, one, test=test, rng=rng())
    assert there.t2 == pytest.approx(back.t2, rel=1e-12)
    np.testing.assert_allclose(there.z, -back.z, atol=1e-12)
    assert there.p_value < 0.01
    assert back.p_value > 0.99


def test_a_copy_has_no_difference_and_a_permutation_p_of_one():
    values = correlated(100)
    found = compare(values, values.copy(), rng=rng())
    np.testing.assert_allclose(found.delta, 0.0, atol=1e-12)
    assert found.p_two_sided == 1.0
    assert found.p_value > 0.2


@pytest.mark.parametrize("test", ["permutation", "F"])
def test_both_p_are_uniform_when_both_samples_are_of_one_normal(test):
    found = [
        compare(correlated(40, seed=i), correlated(50, seed=10_000 + i), test=test, n_permutations=199, rng=rng(i))
        for i in range(1000)
    ]
    # A permutation p has steps of 1/200; drawing within its step makes it continuous.
    jitter = rng().uniform(0, 1 / 200, 1000) if test == "permutation" else 0.0
    for p in ([one.p_value for one in found], [one.p_two_sided for one in found]):
        assert stats.kstest(np.array(p) - jitter, "uniform").pvalue > 0.01


def test_the_one_sided_permutation_holds_its_level_for_skewed_features_and_unequal_sizes():
    rejected = 0
    for i in range(600):
        both = rng(i).lognormal(0, 1.5, (160, 3))
        rejected += compare(both[:30], both[30:], n_permutations=199, rng=rng(i)).p_value <= 0.05
    # Exact: binomial with 0.05; a rate outside its 99.9 % region would be a wrong test.
    low, high = stats.binom.ppf([0.0005, 0.9995], 600, 0.05)
    assert low <= rejected <= high


def test_the_permutation_p_agrees_with_scipys():
    one, two = rng().exponential(1.0, (60, 1)), rng(1).exponential(1.3, (50, 1))

    def t(x, y, axis):
        return stats.ttest_ind(x, y, axis=axis).statistic

    theirs = stats.permutation_test(
        (one[:, 0], two[:, 0]), t, alternative="less", vectorized=True, n_resamples=9999, rng=rng()
    )
    ours = compare(one, two, n_permutations=9999, rng=rng(1))
    # Two estimates of one p from 10,000 draws each: four standard errors of their difference.
    error = np.sqrt(2 * theirs.pvalue * (1 - theirs.pvalue) / 10_000)
    assert ours.p_loss == pytest.approx(theirs.pvalue, abs=4 * error)
    assert ours.p_value == ours.p_loss  # one feature: all tests are the same


def test_features_that_repeat_each_other_count_once():
    one, two = correlated(60, k=2), correlated(60, k=2, seed=1)
    repeated = [np.concatenate([values, values[:, :1] * 3 + 1], axis=1) for values in (one, two)]
    found = compare(*repeated, test="F", rng=rng())
    assert found.rank == 2
    assert found.t2 == pytest.approx(compare(one, two, test="F", rng=rng()).t2, rel=1e-8)


def test_groups_change_sides_whole():
    # Ten copies of each of 12 + 12 samples: as independent samples they look decisive, as groups they are not.
    one, two = correlated(12, k=1, seed=4, mean=-0.4), correlated(12, k=1, seed=5)
    copies = np.repeat(one, 10, axis=0), np.repeat(two, 10, axis=0)
    groups = np.repeat(np.arange(12), 10), np.repeat(np.arange(12, 24), 10)
    alone = compare(one, two, n_permutations=4999, rng=rng())
    grouped = compare(*copies, groups=groups, n_permutations=4999, rng=rng(1))
    error = np.sqrt(2 * alone.p_value * (1 - alone.p_value) / 5000)
    assert grouped.p_value == pytest.approx(alone.p_value, abs=4 * error)
    assert compare(*copies, rng=rng()).p_value < alone.p_value / 5


def test_permutations_do_not_depend_on_how_many_are_held_at_a_time(monkeypatch):
    one, two = correlated(60), correlated(60, seed=1)
    whole = compare(one, two, rng=rng())
    monkeypatch.setattr("assay.audit.dataguard.hotelling.CHUNK", 12_000)
    assert compare(one, two, rng=rng()).p_value == whole.p_value


def test_obriens_sum_finds_a_difference_that_all_features_share():
    one, two = correlated(100, mean=-0.35), correlated(100, seed=1)
    found = compare(one, two, test="F", rng=rng())
    both = np.concatenate([one, two])
    total = (both / both.std(axis=0)).sum(axis=1)
    expected = stats.ttest_ind(total[:100], total[100:], alternative="less").pvalue
    assert found.p_sum == pytest.approx(expected, abs=1e-12)


def test_holm_is_that_of_statsmodels():
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p = rng().uniform(0, 0.1, 20)
    np.testing.assert_allclose(holm(p), multitest.multipletests(p, method="holm")[1], atol=1e-12)


# ---------------------------------------------------------------------------------------------------------- control


def test_references_that_are_the_suspect_leave_nothing():
    target, aux = correlated(100, mean=-1.0), correlated(100, seed=1)
    left = residuals(target, aux, target, aux, rng())
    assert not left[0].any()
    assert not left[1].any()
    assert compare(*left, rng=rng()).p_two_sided == 1.0


def test_difficulty_that_references_see_is_taken_off():
    difficulty = rng().normal(size=(2000, 1))
    features = difficulty @ np.array([[1.0, 2.0]]) + rng(1).normal(0, 0.1, (2000, 2))
    left_target, left_aux = residuals(features[:1000], features[1000:], difficulty[:1000], difficulty[1000:], rng())
    # The noise alone is left: its spread is 0.1, known to one part in sqrt(2 · 2000).
    assert np.concatenate([left_target, left_aux]).std(axis=0) == pytest.approx([0.1, 0.1], rel=0.08)


def test_the_test_of_residuals_holds_its_level_where_spread_grows_with_difficulty():
    rejected = 0
    for i in range(300):
        random = rng(i)
        difficulty = random.exponential(1.0, (160, 2))
        values = difficulty + random.normal(size=(160, 2)) * difficulty
        left = residuals(values[:80], values[80:], difficulty[:80], difficulty[80:], random)
        rejected += compare(*left, n_permutations=199, rng=random).p_value <= 0.05
    low, high = stats.binom.ppf([0.0005, 0.9995], 300, 0.05)
    assert low <= rejected <= high


def test_residuals_of_auxiliary_samples_come_from_fits_without_them():
    # As many columns as samples of a fit: in-sample residuals would vanish.
    target, aux = correlated(100, k=1), correlated(100, k=1, seed=1)
    references = rng(2).normal(size=(200, 99))
    _, left = residuals(target, aux, references[:100], references[100:], rng())
    assert left.std() > aux.std() / 2


# ------------------------------------------------------------------------------------------------------ calibration


def test_the_exact_interval_is_that_of_clopper_and_pearson():
    rate = exact_rate(3, 200)
    assert rate.low == pytest.approx(stats.beta.ppf(0.025, 3, 198), abs=1e-9)
    assert rate.high == pytest.approx(stats.beta.ppf(0.975, 4, 197), abs=1e-9)
    assert exact_rate(0, 200).high == pytest.approx(1 - 0.025 ** (1 / 200), abs=1e-9)


def test_halves_of_one_data_set_are_rarely_called_different():
    rate = null_rejections(correlated(200), None, None, alpha=0.05, test="permutation", rng=rng(), n_splits=200)
    # A random split of fixed data is itself a permutation, so that each rejects with at most 0.05, independently.
    assert rate.n_found <= stats.binom.ppf(0.9995, 200, 0.05)


@pytest.mark.parametrize(
    "changed",
    [lambda x: x + 0.5, lambda x: x * 1.6, lambda x: np.where(np.arange(8) < 4, np.sort(x[:, ::-1], axis=1), x)],
    ids=["moved", "wider", "dependent"],
)
def test_the_blind_check_sees_a_shift(changed):
    auc, p = blind_check(changed(rng().normal(size=(300, 8))), rng(1).normal(size=(300, 8)), rng())
    assert auc > 0.6
    assert p < 0.01


def test_the_blind_check_holds_its_level():
    p = [blind_check(*rng(i).normal(size=(2, 60, 3)), rng(i), n_permutations=99)[1] for i in range(100)]
    assert np.sum(np.array(p) <= 0.05) <= stats.binom.ppf(0.9995, 100, 0.05)


# ---------------------------------------------------------------------------------------------------------- fraction


def test_the_share_of_a_mixed_set_is_found_with_the_true_loss_of_members():
    members, others = rng().exponential(0.05, 1500), rng(1).exponential(0.6, 3500)
    aux = rng(2).exponential(0.6, 5000)
    found = usage_fraction(np.concatenate([members, others]), aux, rng(), full_gap=aux.mean() - 0.05)
    assert found.estimate == pytest.approx(0.3, abs=0.1)
    assert found.low < found.estimate < found.high


def test_a_perfect_memoriser_has_used_everything():
    found = usage_fraction(np.zeros(100), np.full(100, np.log(2)), rng(), full_gap=np.log(2))
    assert tuple(found) == (1.0, 1.0, 1.0)


def test_a_shadow_without_a_gap_explains_nothing():
    found = usage_fraction(np.ones(100), np.ones(100), rng(), shadow=(np.ones(50), np.ones(50)))
    assert found.estimate == 0.0


def test_what_the_audit_could_find_is_found_four_times_of_five():
    delta, n = np.array([-1.0, -1.0, -1.0, -1.0]), 100
    least = detectable_fraction(delta, 0.5 * np.eye(4) + 0.5, n, n, 0.05)
    found = [
        compare(
            correlated(n, seed=i, mean=-least), correlated(n, seed=5000 + i), test="F", rng=rng()
        ).p_value < 0.05
        for i in range(1000)
    ]  # fmt: skip
    # The direction is right nearly always at this power; 0.04 is three standard errors of 1000 draws.
    assert np.mean(found) == pytest.approx(0.8, abs=0.04)


def test_no_gap_can_be_found_by_nobody():
    assert detectable_fraction(np.zeros(2), np.eye(2), 100, 100, 0.01) == float("inf")


def test_the_gap_that_is_found_has_the_closed_form():
    expected = (stats.norm.isf(0.01) + stats.norm.isf(0.2)) * 2.0 * np.sqrt(2 / 50)
    assert detectable_gap(2.0, 50, 50, 0.01) == pytest.approx(expected, abs=1e-12)
