import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as reference

from assay.bench import Metric, stats

HIGHER = Metric("accuracy", better="higher")
LOWER = Metric("loss", better="lower")
RATIO = Metric("time", better="lower", scale="log")

values = st.lists(st.integers(-1000, 1000).map(lambda whole: whole / 64), min_size=6, max_size=25).map(np.array)


def compared(differences, metric=HIGHER, margin=0.0, **options):
    return stats.paired(np.asarray(differences, float), np.zeros(len(differences)), metric, margin, **options)


# ------------------------------------------------------------------ the interval


def bca_by_hand(sample, n_resamples):
    """Efron (1987), equations 2.3, 3.8 and 6.6, one resample at a time."""
    rng = np.random.default_rng(1)
    means = np.array([rng.choice(sample, len(sample)).mean() for _ in range(n_resamples)])
    bias = reference.norm.ppf((means < sample.mean()).mean())
    left_out = np.array([np.delete(sample, i).mean() for i in range(len(sample))])
    centred = left_out.mean() - left_out
    acceleration = (centred**3).sum() / (6 * (centred**2).sum() ** 1.5)
    z = bias + reference.norm.ppf([0.025, 0.975])
    return np.quantile(means, reference.norm.cdf(bias + z / (1 - acceleration * z)))


def test_the_interval_is_efrons_bca_interval():
    sample = np.random.default_rng(0).exponential(size=30)
    by_hand = bca_by_hand(sample, 20_000)
    # The ends are 2.5 % quantiles of some 10,000 means: their Monte Carlo error is about 0.03 standard errors of the
    # mean, so 0.15 of one is five of these.
    assert stats.interval(sample) == pytest.approx(by_hand, abs=0.15 * sample.std() / np.sqrt(30))


def studentised_by_hand(sample, n_resamples):
    rng = np.random.default_rng(1)
    pivots = []
    for _ in range(n_resamples):
        resample = rng.choice(sample, len(sample))
        pivots.append((resample.mean() - sample.mean()) / (resample.std(ddof=1) / np.sqrt(len(sample))))
    low, high = np.quantile(pivots, [0.025, 0.975])
    return sample.mean() - high * reference.sem(sample), sample.mean() - low * reference.sem(sample)


def test_the_studentised_interval_is_halls():
    sample = np.random.default_rng(0).exponential(size=30)
    by_hand = studentised_by_hand(sample, 10_000)
    assert stats.studentised_interval(sample) == pytest.approx(by_hand, abs=0.2 * reference.sem(sample))


@pytest.mark.parametrize("interval", [stats.interval, stats.studentised_interval])
def test_the_interval_of_many_normal_values_is_the_textbook_one(interval):
    sample = np.random.default_rng(0).normal(5, 2, 2_000)
    textbook = sample.mean() + np.array([-1.96, 1.96]) * reference.sem(sample)
    assert interval(sample) == pytest.approx(textbook, abs=0.15 * reference.sem(sample))


@pytest.mark.parametrize("interval", [stats.interval, stats.studentised_interval])
@given(sample=values, shift=st.integers(-8, 8), factor=st.sampled_from([0.25, 2.0, 8.0]))
@settings(max_examples=25, deadline=None)
def test_an_interval_follows_a_change_of_units(interval, sample, shift, factor):
    low, high = interval(sample, n_resamples=199)
    moved = interval(shift + factor * sample, n_resamples=199)
    assert moved == pytest.approx((shift + factor * low, shift + factor * high), abs=1e-6)


@pytest.mark.parametrize("interval", [stats.interval, stats.studentised_interval])
def test_values_that_are_all_the_same_have_an_interval_of_no_width(interval):
    assert interval(np.full(9, 0.1)) == pytest.approx((0.1, 0.1), abs=1e-15)


def test_an_interval_is_finite_when_only_one_value_differs():
    low, high = stats.interval(np.array([0.0] * 19 + [1.0]))
    assert 0.0 <= low <= 0.05 <= high <= 1.0


def test_resamples_in_batches_are_as_good_as_all_at_once():
    sample = np.random.default_rng(0).normal(size=5_000)  # 2**21 / 5,000: 24 batches
    assert stats.interval(sample) == pytest.approx(
        sample.mean() + np.array([-1.96, 1.96]) * reference.sem(sample), abs=0.15 * reference.sem(sample)
    )


# ------------------------------------------------------------------ the test


def test_six_differences_of_one_sign_have_the_smallest_p_value_of_six():
    assert stats.signed_rank(np.array([0.5, 1.0, 1.5, 2.0, 2.5, 3.0])) == pytest.approx(2 / 2**6)


def test_no_differences_at_all_have_the_p_value_one():
    assert stats.signed_rank(np.zeros(10)) == 1.0


# ------------------------------------------------------------------ the decision


def test_the_effect_is_the_mean_difference():
    method, baseline = np.array([3.0, 5, 4, 6, 8, 7]), np.array([1.0, 2, 5, 3, 4, 4])
    assert stats.paired(method, baseline, HIGHER).effect == pytest.approx(14 / 6)


def test_the_effect_on_the_log_scale_is_the_geometric_mean_of_the_ratios():
    method, baseline = np.array([1.0, 2, 4, 1, 2, 4]), np.array([2.0, 4, 8, 4, 8, 16])
    assert stats.paired(method, baseline, RATIO).effect == pytest.approx(8**-0.5)


def test_a_large_effect_is_better_where_higher_is_better():
    assert compared([1.0, 1.2, 0.9, 1.1, 1.3, 0.8, 1.0]).outcome == "better"


def test_the_same_effect_is_worse_where_lower_is_better():
    assert compared([1.0, 1.2, 0.9, 1.1, 1.3, 0.8, 1.0], LOWER).outcome == "worse"


def test_half_the_time_is_better():
    assert stats.paired(np.linspace(1, 2, 8), np.linspace(2.1, 3.9, 8), RATIO).outcome == "better"


def test_constant_differences_decide():
    found = compared([0.5] * 8)
    assert (found.outcome, found.ci_low, found.ci_high) == ("better", 0.5, 0.5)


def test_five_cases_are_too_few():
    found = compared([1.0] * 5)
    assert (found.outcome, found.effect, found.ci_low, found.ci_high, found.p_value) == (
        "unclear",
        1.0,
        None,
        None,
        None,
    )


def test_no_case_gives_no_effect():
    assert compared([]) == stats.Comparison("unclear", None, None, None, None, 0)


def test_pairs_with_a_nan_are_left_out():
    method = np.array([1.0, np.nan, 3, 4, 5, 6, 7, 8])
    baseline = np.array([0.0, 1, np.nan, 3, 4, 5, 6, 7])
    assert stats.paired(method, baseline, HIGHER).n == 6


def test_no_difference_in_any_case_is_equivalent():
    found = compared([0.0] * 7)
    assert (found.outcome, found.p_value, found.ci_low, found.ci_high) == ("equivalent", 1.0, 0.0, 0.0)


def test_differences_of_rounding_are_no_differences():
    baseline = np.linspace(0.1, 0.9, 9)
    assert stats.paired(baseline * (1 + 1e-14), baseline, HIGHER).outcome == "equivalent"


def test_an_interval_inside_the_margin_is_equivalent():
    assert compared([0.01, -0.01, 0.02, 0.0, 0.01, 0.005, -0.005], margin=0.05).outcome == "equivalent"


def test_a_clear_effect_inside_the_margin_is_equivalent_too():
    assert compared([0.02, 0.021, 0.019, 0.02, 0.022, 0.018], margin=0.05).outcome == "equivalent"


def test_without_a_margin_small_differences_are_not_equivalent():
    assert compared([0.01, -0.01, 0.02, 0.0, 0.01, 0.005, -0.005]).outcome == "unclear"


@pytest.mark.parametrize(("ratio", "outcome"), [(1.09, "equivalent"), (1.11, "worse"), (1 / 1.09, "equivalent")])
def test_a_margin_on_the_log_scale_is_a_factor(ratio, outcome):
    baseline = np.linspace(1, 5, 8)
    assert stats.paired(ratio * baseline, baseline, RATIO, 0.1).outcome == outcome


def test_worse_than_the_strongest_of_two_needs_half_the_p_value():
    differences = [-1.0, -2, -3, -4, -5, -6]  # p = 2 / 64 = 0.031
    assert [compared(differences, n_baselines=n).outcome for n in (1, 2)] == ["worse", "unclear"]


def test_better_than_the_strongest_of_two_needs_no_smaller_p_value():
    assert compared([1.0, 2, 3, 4, 5, 6], n_baselines=2).outcome == "better"


@given(differences=values)
@settings(max_examples=40, deadline=None)
def test_swapping_the_arms_swaps_the_outcome(differences):
    swapped = {"better": "worse", "worse": "better", "equivalent": "equivalent", "unclear": "unclear"}
    one, other = (compared(sign * differences, n_resamples=199) for sign in (1, -1))
    assert other.outcome == swapped[one.outcome]


@given(differences=values, factor=st.sampled_from([0.125, 4.0, 1024.0]))
@settings(max_examples=25, deadline=None)
def test_ratios_do_not_depend_on_the_unit(differences, factor):
    baseline = np.linspace(1, 2, len(differences))
    method = baseline * np.exp(differences / 20)
    one = stats.paired(method, baseline, RATIO, n_resamples=199)
    other = stats.paired(factor * method, factor * baseline, RATIO, n_resamples=199)
    assert other.effect == pytest.approx(one.effect)


# ------------------------------------------------------------------ how often it is wrong

NO_EFFECT = {
    "normal": lambda rng, n: rng.normal(size=n),
    "exponential": lambda rng, n: rng.exponential(size=n) - 1,  # skewness 2
}


@pytest.mark.parametrize("n", [6, 10, 20])
@pytest.mark.parametrize("shape", NO_EFFECT)
def test_without_an_effect_at_most_seven_percent_of_trials_decide(shape, n):
    rng = np.random.default_rng(0)
    found = [compared(NO_EFFECT[shape](rng, n), n_resamples=499).outcome for _ in range(1_000)]
    assert sum(outcome in ("better", "worse") for outcome in found) <= 70


def test_an_effect_of_one_standard_deviation_is_seen_in_twenty_cases():
    rng = np.random.default_rng(0)
    found = [compared(rng.normal(1, 1, 20), n_resamples=499).outcome for _ in range(1_000)]
    assert found.count("better") >= 950


def test_against_the_luckiest_of_four_equal_baselines_at_most_seven_percent_decide():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(500):
        method, *baselines = rng.normal(size=(5, 10))
        rival = max(baselines, key=np.mean)
        found.append(stats.paired(method, rival, HIGHER, n_baselines=4, n_resamples=499).outcome)
    assert sum(outcome in ("better", "worse") for outcome in found) <= 35


# ------------------------------------------------------------------ the strongest baseline


def test_the_strongest_baseline_has_the_best_mean():
    baselines = {"a": np.array([1.0, 2.0]), "b": np.array([3.0, 1.0])}
    assert [stats.strongest(baselines, np.ones(2), metric) for metric in (HIGHER, LOWER)] == ["b", "a"]


def test_means_are_geometric_on_the_log_scale():
    baselines = {"steady": np.array([3.0, 3.0]), "uneven": np.array([1.0, 8.0])}  # means 3, 4.5; geometric 3, 2.8
    assert stats.strongest(baselines, np.ones(2), RATIO) == "uneven"


def test_only_cases_that_all_arms_finished_choose_the_strongest():
    baselines = {"a": np.array([1.0, 1.0, 9.0]), "b": np.array([2.0, 2.0, np.nan])}
    assert stats.strongest(baselines, np.ones(3), HIGHER) == "b"


def test_an_arm_that_never_finishes_does_not_spoil_the_choice():
    baselines = {"broken": np.full(3, np.nan), "a": np.array([1.0, 1.0, np.nan]), "b": np.array([0.5, 0.5, 9.0])}
    assert stats.strongest(baselines, np.ones(3), HIGHER) == "a"


def test_baselines_without_a_common_case_are_judged_by_their_own():
    baselines = {"a": np.array([1.0, np.nan]), "b": np.array([np.nan, 2.0])}
    assert stats.strongest(baselines, np.ones(2), HIGHER) == "b"


def test_where_no_baseline_finished_the_first_one_is_named():
    assert stats.strongest({"a": np.full(2, np.nan), "b": np.full(2, np.nan)}, np.ones(2), HIGHER) == "a"


# ------------------------------------------------------------------ the claim, and one arm


@pytest.mark.parametrize(
    ("outcome", "expects", "claim"),
    [
        ("better", "better", "supported"),
        ("equivalent", "better", "contradicted"),
        ("worse", "better", "contradicted"),
        ("unclear", "better", "unclear"),
        ("better", "no_worse", "supported"),
        ("equivalent", "no_worse", "supported"),
        ("worse", "no_worse", "contradicted"),
        ("unclear", "no_worse", "unclear"),
    ],
)
def test_the_claim_follows_from_the_verdict(outcome, expects, claim):
    assert stats.claim_outcome(outcome, expects) == claim


def test_the_mean_of_an_arm_leaves_out_nan():
    assert stats.summary(np.array([1.0, np.nan, 3.0]), HIGHER) == (2.0, None, None)


def test_the_mean_of_an_arm_is_geometric_on_the_log_scale():
    assert stats.summary(np.array([1.0, 4.0]), RATIO)[0] == pytest.approx(2.0)


def test_an_arm_without_values_has_no_mean():
    assert stats.summary(np.array([np.nan]), HIGHER) == (None, None, None)
