"""Areas, blocks, prototypes, thresholds and zero-shot scores against closed forms."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from assay._core.errors import InputError
from assay.audit.style_detect import (
    auroc,
    blocks,
    conformal_threshold,
    few_shot_trials,
    group_trials,
    pauroc,
    tpr_at_fpr,
)
from assay.audit.style_detect.conformal import bootstrap_threshold, conformal_rank, fpr_bound
from assay.audit.style_detect.metrics import group_rows, macro_average
from assay.audit.style_detect.prototypes import CHUNK, likeness, mean_pool, normalized
from assay.audit.style_detect.zero_shot import (
    binoculars,
    fast_detect_gpt,
    log_likelihood,
    log_rank,
    lrr,
    token_statistics,
)

# --------------------------------------------------------------------------------------------------------- metrics


def test_no_true_positive_at_one_percent_has_the_floor_of_pauroc():
    assert pauroc([0, 0, 1, 1], [3.0, 4.0, 1.0, 2.0], 0.01) == pytest.approx(0.49748743718592964, abs=1e-15)


def test_perfect_scores_have_a_pauroc_of_one():
    assert pauroc([0, 0, 1, 1], [1.0, 2.0, 3.0, 4.0], 0.01) == 1.0


def test_equal_scores_have_a_pauroc_of_one_half():
    assert pauroc([0, 0, 1, 1], [1.0, 1.0, 1.0, 1.0], 0.01) == pytest.approx(0.5, abs=1e-12)


AREAS = [
    (1.0, 1, 0.760250, 0.5250), (1.0, 5, 0.943077, 0.6697), (1.0, 10, 0.987326, 0.8416), (1.0, 25, 0.999797, 0.9930),
    (0.5, 1, 0.638163, 0.5067), (0.5, 5, 0.785402, 0.5320), (0.5, 10, 0.868224, 0.5728), (0.5, 25, 0.961450, 0.7184),
    (0.5, 50, 0.993790, 0.8986),
]  # fmt: skip


@pytest.mark.parametrize(("distance", "n_docs", "area", "partial"), AREAS)
def test_blocks_of_gaussian_scores_have_the_area_of_the_closed_form(distance, n_docs, area, partial):
    assert stats.norm.cdf(distance * np.sqrt(n_docs / 2)) == pytest.approx(area, abs=5e-7)
    rng = np.random.default_rng([n_docs, int(10 * distance)])
    # Means of n_docs normal scores are normal with 1 / n_docs of the variance: 200,000 blocks are drawn as such.
    human, machine = rng.normal(0, 1, 200_000), rng.normal(distance * np.sqrt(n_docs), 1, 200_000)
    labels, scores = np.repeat([0, 1], 200_000), np.concatenate([human, machine])
    assert auroc(labels, scores) == pytest.approx(area, abs=0.003)
    assert pauroc(labels, scores) == pytest.approx(partial, abs=0.01)


def test_a_block_of_gaussian_scores_has_the_spread_of_a_mean():
    means = blocks(np.random.default_rng(0).normal(size=100_000), 25)
    # sd of an sd estimated from 4,000 normal values is 0.2 / sqrt(8,000): four of them.
    assert means.std() == pytest.approx(0.2, abs=4 * 0.2 / np.sqrt(8_000))


def test_blocks_drop_the_remainder_and_average_their_own():
    found = blocks(np.arange(23.0), 5)
    assert len(found) == 4
    assert found[0] == np.mean([0, 1, 2, 3, 4])


def test_documents_without_a_score_are_dropped_before_blocks_are_cut():
    assert blocks([np.nan, 1.0, 3.0, np.nan, 5.0], 2).tolist() == [2.0]


def test_blocks_follow_the_order_that_is_given():
    assert blocks([1.0, 2.0, 3.0, 4.0], 2, order=[0, 3, 1, 2]).tolist() == [2.5, 2.5]


def test_true_positives_by_both_conventions():
    # The curve goes (0, 0), (0, ½), (½, ½), (½, 1), (1, 1).
    assert tpr_at_fpr([0, 0, 1, 1], [1.0, 3.0, 2.0, 4.0], 0.25) == (0.5, 0.5)
    assert tpr_at_fpr([0, 0, 1, 1], [1.0, 3.0, 2.0, 4.0], 0.5) == (1.0, 1.0)


def test_true_positives_within_a_tie_lie_on_the_line():
    # A human and a machine share one score: from (0, 0) to (1, 1) in a straight line.
    assert tpr_at_fpr([0, 1], [1.0, 1.0], 0.3) == (pytest.approx(0.3), 0.5)


def test_one_class_is_refused():
    with pytest.raises(InputError, match=r"^labels: 1 class has scores; expected both 0 \(human\) and 1 \(machine\)$"):
        auroc([1, 1], [0.1, 0.2])


def test_a_partial_area_up_to_nothing_is_refused():
    with pytest.raises(InputError, match=r"^max_fpr=0: expected a number above 0, at most 1$"):
        pauroc([0, 1], [0.1, 0.2], 0)


def test_macro_average_skips_trials_of_one_class():
    matrix = [[0.1, np.nan, 0.9], [0.5, 0.2, np.nan], [np.nan, 0.3, 0.4]]
    assert macro_average(auroc, [0, 1, 1], matrix) == 0.5  # 1, 0 and none


def test_blocks_of_groups_hold_one_group_and_no_row_twice():
    groups = np.repeat(["a", "b", "c"], [7, 5, 2])
    rows, n_dropped = group_rows(groups, 3, np.random.default_rng(0))
    assert n_dropped == 1
    assert len(np.unique(rows)) == rows.size == 9
    assert all(len(set(groups[block])) == 1 for block in rows)


# ------------------------------------------------------------------------------------------------------ prototypes

E1, E2 = np.eye(2, dtype=np.float32)


@pytest.mark.parametrize(("mode", "cosine"), [("single", 1 / np.sqrt(2)), ("max", 1.0), ("instance", 1.0)])
def test_orthonormal_supports_have_the_cosine_of_their_mode(mode, cosine):
    vectors = np.array([E1, E2, E1])  # two of support, from two sources, and a text like the first
    labels, sources = [1, 1, 0], ["a", "b", ""]
    matrix = few_shot_trials(vectors, labels, sources, mode=mode, n_support=1, n_trials=2)
    assert matrix[:, 2] == pytest.approx([cosine] * 2, abs=1e-6)


def table(n=60, d=6, seed=0):
    rng = np.random.default_rng(seed)
    vectors = normalized(rng.normal(size=(n, d)))
    labels = np.repeat([0, 1], [n // 2, n - n // 2])
    return vectors, labels, np.where(np.arange(n) % 3 == 0, "a", "b"), np.where(np.arange(n) % 2 == 0, "x", "y")


def scores(mode, n_support=3, sources=None, domains=None, seed=5):
    vectors, labels, *_ = table()
    return few_shot_trials(
        vectors, labels, sources, domains, mode=mode, n_support=n_support, n_trials=7, random_state=seed
    )


def test_with_one_text_of_each_class_max_is_instance():
    sources = table()[2]
    np.testing.assert_array_equal(scores("max", 1, sources), scores("instance", 1, sources))


def test_with_one_class_max_is_single():
    np.testing.assert_array_equal(scores("max"), scores("single"))


def test_in_one_domain_domain_is_max():
    sources = table()[2]
    np.testing.assert_array_equal(scores("domain", 3, sources, ["x"] * 60), scores("max", 3, sources))


def test_in_one_domain_domain_single_is_single():
    sources = table()[2]
    np.testing.assert_array_equal(scores("domain-single", 3, sources, ["x"] * 60), scores("single", 3, sources))


def test_domain_compares_with_prototypes_of_the_texts_own_domain_only():
    vectors = np.array([E1, E2, E1, E1])
    matrix = few_shot_trials(vectors, [1, 1, 0, 0], None, ["x", "y", "x", "y"], mode="domain", n_support=1, n_trials=1)
    assert matrix[0, 2:].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(("mode", "n_classes"), [("single", 2), ("max", 2), ("instance", 2)])
def test_a_row_lacks_exactly_its_support(mode, n_classes):
    matrix = scores(mode, 4, table()[2])
    assert (np.isnan(matrix).sum(axis=1) == 4 * n_classes).all()
    assert not np.isnan(matrix[:, :30]).any()  # human texts are never in a support


def test_a_copy_of_a_support_text_at_another_row_keeps_its_score():
    vectors = np.array([E1, E1, E2, E2])
    matrix = few_shot_trials(vectors, [1, 1, 0, 0], n_support=1, n_trials=4)
    assert (np.isnan(matrix[:, :2]).sum(axis=1) == 1).all()


def test_scores_are_those_of_a_loop_over_texts():
    vectors, _labels, sources, _ = table()
    matrix = scores("max", 3, sources)
    for trial, text in itertools.product(range(7), range(60)):
        support = np.flatnonzero(np.isnan(matrix[trial]))
        if text in support:
            continue
        best = -1.0
        for source in ("a", "b"):
            total = sum(vectors[row].astype(float) for row in support if sources[row] == source)
            best = max(best, float(vectors[text] @ total / np.linalg.norm(total)))
        assert matrix[trial, text] == pytest.approx(best, abs=1e-6)


def test_the_same_seed_gives_the_same_matrix_and_another_does_not():
    np.testing.assert_array_equal(scores("single", seed=1), scores("single", seed=1))
    assert not np.array_equal(scores("single", seed=1), scores("single", seed=2), equal_nan=True)


def test_cutting_texts_into_chunks_changes_no_score():
    rng = np.random.default_rng(0)
    vectors, targets = normalized(rng.normal(size=(CHUNK + 3, 4))), normalized(rng.normal(size=(2, 1, 4)))
    found = likeness(vectors, targets, [""])
    np.testing.assert_allclose(found, targets[:, 0] @ vectors.T, atol=1e-6)


@given(st.integers(1, 6), st.integers(2, 5), st.integers(0, 1000))
def test_a_mean_pool_has_length_one(n_docs, d, seed):
    pooled = mean_pool(normalized(np.random.default_rng(seed).normal(size=(n_docs, d))))
    assert np.linalg.norm(pooled) == pytest.approx(1.0, abs=1e-5)


def test_a_vector_of_zeros_stays_zero():
    assert normalized([[0.0, 0.0]]).tolist() == [[0.0, 0.0]]


def test_groups_of_one_document_have_the_scores_of_documents():
    vectors, labels, *_ = table()
    truth, grouped = group_trials(vectors, labels, n_docs=1, n_support=5, n_trials=3, random_state=4)
    single = few_shot_trials(vectors, labels, n_support=5, n_trials=3, random_state=4)
    for row, other in zip(grouped, single, strict=True):
        np.testing.assert_allclose(np.sort(row), np.sort(other[~np.isnan(other)]), atol=1e-6)
    assert truth.tolist() == [0] * 30 + [1] * 25


def test_groups_do_not_hold_the_support_and_drop_the_remainder():
    vectors, labels, *_ = table()
    truth, grouped = group_trials(vectors, labels, n_docs=4, n_support=5, n_trials=3)
    assert truth.tolist() == [0] * (30 // 4) + [1] * (25 // 4)
    assert grouped.shape == (3, 13)


def test_too_small_a_support_names_the_class_and_its_texts():
    with pytest.raises(
        InputError, match=r"^the support has too few texts for n_support=15: 'a' 10; add texts or lower n_support$"
    ):
        scores("max", 15, table()[2])


def test_an_unknown_domain_is_refused():
    vectors, labels, _, domains = table()
    domains = np.where(np.arange(60) == 0, "z", domains)
    with pytest.raises(InputError, match=r"^domain 'z' is not among the support's: x, y; add support texts of it or"):
        few_shot_trials(vectors, labels, None, domains, mode="domain", n_support=3)


def test_the_modes_of_domains_need_domains():
    with pytest.raises(InputError, match=r"^mode='domain' needs domains; give them or use 'max'$"):
        scores("domain")


def test_groups_that_nobody_can_fill_are_refused():
    vectors, labels, *_ = table()
    with pytest.raises(InputError, match=r"^n_docs=40: no origin has so many texts outside the support$"):
        group_trials(vectors, labels, n_docs=40, n_support=5)


# ------------------------------------------------------------------------------------------------------- threshold


def test_of_99_human_scores_the_99th_is_the_threshold_at_one_percent():
    threshold = conformal_threshold(np.arange(1, 100), 0.01)
    assert (threshold.value, threshold.n_units, threshold.is_exact) == (99.0, 99, True)


def test_a_rate_that_the_scores_cannot_show_is_refused():
    with pytest.raises(
        InputError,
        match=r"^target_fpr=0.005 needs at least 199 human texts or groups, there are 99; bring more, or allow 0.01$",
    ):
        conformal_threshold(np.arange(1, 100), 0.005)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1])
def test_a_rate_outside_of_zero_and_one_is_refused(rate):
    with pytest.raises(InputError, match=r"expected a number between 0 and 1$"):
        conformal_threshold([1.0], rate)


@given(st.integers(1, 400), st.floats(0.005, 0.9))
def test_a_new_score_is_above_the_threshold_no_more_often_than_asked(n, rate):
    if rate < 1 / (n + 1):
        return
    # All n + 1 ranks of an exchangeable new score are equally likely: it is above the k-th of n for n + 1 − k of them.
    assert (n + 1 - conformal_rank(n, rate)) / (n + 1) <= rate + 1e-9


def test_the_bound_of_one_threshold_is_the_quantile_of_its_beta():
    # k = n: the rate is the smallest of 99 uniform values turned round, P(rate > x) = (1 − x)^99.
    assert fpr_bound(99, 99) == pytest.approx(1 - 0.05 ** (1 / 99), abs=1e-12)


def test_the_guarantee_holds_in_simulation():
    rng = np.random.default_rng(0)
    draws = rng.exponential(size=(4000, 99))
    rates = np.exp([-conformal_threshold(row, 0.05).value for row in draws])  # the true rate above each threshold
    assert rates.mean() == pytest.approx(0.05, abs=4 * rates.std() / np.sqrt(4000))
    share_within = (rates <= conformal_threshold(draws[0], 0.05).fpr_bound).mean()
    assert share_within == pytest.approx(0.95, abs=4 * np.sqrt(0.95 * 0.05 / 4000))


def test_resampled_groups_promise_nothing():
    values = np.random.default_rng(0).normal(size=100)
    threshold = bootstrap_threshold(
        lambda rows: values[rows].mean(axis=1), 100, 0.05, group_size=10, rng=np.random.default_rng(1)
    )
    assert not threshold.is_exact
    assert np.isnan(threshold.fpr_bound)
    assert "no guarantee" in threshold.in_words()


def test_a_group_larger_than_the_human_texts_is_refused():
    with pytest.raises(InputError, match=r"^group_size=9: there are 8 human texts to draw groups from; bring more$"):
        bootstrap_threshold(lambda rows: rows[:, 0], 8, 0.5, group_size=9, rng=np.random.default_rng(0))


# ------------------------------------------------------------------------------------------------------- zero-shot


def coin(ids):
    return token_statistics(np.log(np.tile([0.75, 0.25], (len(ids), 1))), ids)


def test_fast_detect_gpt_on_two_tokens_has_the_moments_of_the_closed_form():
    found = coin([0])
    mean = 0.75 * np.log(0.75) + 0.25 * np.log(0.25)
    assert found.mean[0] == pytest.approx(mean, abs=1e-12)
    assert mean == pytest.approx(-0.5623351446, abs=1e-10)
    variance = 0.75 * np.log(0.75) ** 2 + 0.25 * np.log(0.25) ** 2 - mean**2
    assert found.variance[0] == pytest.approx(variance, abs=1e-12)
    assert variance == pytest.approx(0.2263029302, abs=1e-10)


def test_fast_detect_gpt_on_two_tokens_has_the_values_of_the_closed_form():
    assert fast_detect_gpt(coin([0, 0, 0, 0])) == pytest.approx(1.1547005384, abs=1e-10)
    assert fast_detect_gpt(coin([0, 0, 1, 0])) == pytest.approx(0.0, abs=1e-12)


def test_a_text_of_likeliest_tokens_has_a_log_rank_of_zero():
    logits = np.random.default_rng(0).normal(size=(7, 20))
    found = token_statistics(logits, logits.argmax(axis=1))
    assert log_rank(found) == 0.0
    assert np.isnan(lrr(found))


def test_a_text_of_third_likeliest_tokens_has_log_three():
    logits = np.random.default_rng(0).normal(size=(7, 20))
    assert log_rank(token_statistics(logits, np.argsort(logits)[:, -3])) == pytest.approx(-np.log(3), abs=1e-12)


def test_lrr_is_the_surprise_over_the_log_rank():
    logits = np.tile(np.log([0.5, 0.3, 0.2]), (4, 1))
    # Surprise log 5, rank 3.
    assert lrr(token_statistics(logits, [2] * 4)) == pytest.approx(np.log(5) / np.log(3), abs=1e-12)
    assert log_likelihood(token_statistics(logits, [2] * 4)) == pytest.approx(-np.log(5), abs=1e-12)


def test_binoculars_of_uniform_models_is_one():
    logits = np.zeros((5, 11))
    assert -binoculars(token_statistics(logits, [1, 2, 3, 4, 5], logits)) == pytest.approx(1.0, abs=1e-12)


def test_binoculars_divides_by_the_cross_entropy_of_observer_and_performer():
    performer, observer = np.log([[0.9, 0.1]]), np.log([[0.5, 0.5]])
    cross = -0.5 * (np.log(0.9) + np.log(0.1))
    assert -binoculars(token_statistics(performer, [1], observer)) == pytest.approx(-np.log(0.1) / cross, abs=1e-12)


def test_the_variance_of_a_nearly_uniform_model_keeps_its_digits_in_float32():
    logits = 1e-3 * np.random.default_rng(0).normal(size=(1, 50_000))
    logs = logits - np.log(np.exp(logits).sum())
    exact = np.exp(logs) @ (logs - (np.exp(logs) @ logs.T)).T ** 2
    found = token_statistics(logits.astype(np.float32), [0]).variance
    assert found[0] == pytest.approx(float(exact[0, 0]), rel=1e-2)


def test_impossible_tokens_of_the_reference_do_not_spoil_the_moments():
    found = token_statistics(np.array([[0.0, 0.0, -np.inf]]), [0])
    assert found.mean[0] == pytest.approx(-np.log(2), abs=1e-12)
    assert found.variance[0] == pytest.approx(0.0, abs=1e-12)
