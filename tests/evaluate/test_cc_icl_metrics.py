"""Criterion sensitivity and invariance: closed forms, the paper's published counts, the file of criteria."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay._core.errors import InputError
from assay.evaluate.cc_icl import CriterionSpec, is_identifiable, parse_answer, score
from assay.evaluate.cc_icl.metrics import METRICS, shares

# Rows of truths under two criteria, answers No (0) and Yes (1): sensitive, sensitive, invariant Yes, No, No.
TRUTHS = np.array([[0, 1], [1, 0], [1, 1], [0, 0], [0, 0]])


def simulated(rng, n, k, joint):
    """Predictions that are right under every criterion with probability `joint`, and wrong under all of them else."""
    truths = rng.integers(2, size=(n, k))
    right = rng.random(n) < joint
    return np.where(right[:, None], truths, 1 - truths), truths


def test_the_truth_itself_scores_one_everywhere_and_is_not_rigid():
    found = score(TRUTHS, TRUTHS)
    assert (found.sensitivity, found.invariance, found.overall, found.rigidity) == (1, 1, 1, 0)


def test_always_yes_has_no_sensitivity_and_is_right_on_the_invariant_items_whose_answer_is_yes():
    found = score(np.ones_like(TRUTHS), TRUTHS)
    assert (found.sensitivity, found.invariance) == (0, 1 / 3)


def test_always_yes_is_right_half_of_the_time_on_sensitive_items_of_complementary_criteria():
    assert score(np.ones_like(TRUTHS), TRUTHS).accuracy_sensitive.mean() == 0.5


def test_right_under_a_and_blind_to_the_criterion_is_fully_rigid_and_fully_invariant():
    found = score(TRUTHS[:, [0, 0]], TRUTHS)
    assert (found.sensitivity, found.rigidity, found.invariance) == (0, 1, 1)


def test_direction_is_the_share_of_rigid_items_answered_with_the_last_answer():
    found = score([[1, 1], [1, 1], [0, 0], [0, 1], [0, 0]], [[0, 1], [1, 0], [0, 1], [0, 1], [0, 0]])
    assert (found.rigidity, found.direction) == (3 / 4, 2 / 3)


def test_a_changed_prediction_on_an_invariant_item_is_a_flip_error():
    found = score([[0, 0], [0, 1]], [[0, 1], [0, 0]])
    assert (found.flip_error, found.invariance) == (1, 0)


def test_always_flipping_raises_sensitivity_and_lowers_invariance():
    found = score([[0, 1]] * 4, [[0, 1], [0, 1], [0, 0], [1, 1]])
    assert (found.sensitivity, found.invariance) == (1, 0)


def test_an_unparsed_answer_is_wrong_and_not_rigid():
    found = score([[-1, -1], [-1, 0]], [[0, 1], [0, 0]])
    assert (found.rigidity, found.invariance, found.unparsed) == (0, 0, 0.75)


@pytest.mark.parametrize(("k", "expected"), [(2, 0.25), (3, 0.125)])
def test_coin_flips_are_right_under_all_criteria_once_in_two_to_the_number_of_criteria(k, expected):
    rng = np.random.default_rng(0)
    found = score(rng.integers(2, size=(100_000, k)), rng.integers(2, size=(100_000, k)))
    # The standard deviation of either share is below 0.003 with 25,000 items and more.
    assert found.sensitivity == pytest.approx(expected, abs=0.005)
    assert found.overall == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize(
    ("n_sensitive", "n_invariant", "right_s", "right_i", "published"),
    [
        (528, 472, 64, 208, (12.12, 44.07, 27.20)),
        (464, 536, 64, 213, (13.79, 39.74, 27.70)),
        (210, 210, 0, 60, (0.00, 28.57, 14.29)),
        (210, 210, 78, 157, (37.14, 74.76, 55.95)),
    ],
)
def test_published_counts_give_the_published_table(n_sensitive, n_invariant, right_s, right_i, published):
    truths = np.array([[0, 1]] * n_sensitive + [[0, 0]] * n_invariant)
    right = np.concatenate([np.arange(n_sensitive) < right_s, np.arange(n_invariant) < right_i])
    found = score(np.where(right[:, None], truths, 1 - truths), truths)
    assert tuple(round(100 * v, 2) for v in (found.sensitivity, found.invariance, found.overall)) == published


def test_one_criterion_has_no_sensitive_items_and_invariance_is_accuracy():
    found = score([[0], [1], [1]], [[0], [1], [0]])
    assert np.isnan(found.sensitivity)
    assert (found.n_sensitive, found.invariance) == (0, 2 / 3)


def test_more_than_two_answers_are_compared_by_equality():
    found = score([[2, 0], [1, 1]], [[2, 0], [2, 2]])
    assert (found.sensitivity, found.invariance) == (1, 0)


tables = st.integers(1, 3).flatmap(
    lambda k: st.lists(
        st.tuples(
            st.lists(st.integers(-1, 2), min_size=k, max_size=k), st.lists(st.integers(0, 2), min_size=k, max_size=k)
        ),
        min_size=1,
        max_size=12,
    )
)


def plain(found):
    return [found.sensitivity, found.invariance, found.overall, found.rigidity, found.direction, found.flip_error]


@given(tables, st.randoms(use_true_random=False))
def test_the_order_of_items_and_of_criteria_does_not_matter(rows, random):
    p, g = (np.array(part) for part in zip(*rows, strict=True))
    items, criteria = list(range(len(p))), list(range(p.shape[1]))
    random.shuffle(items)
    random.shuffle(criteria)
    again = score(p[items][:, criteria], g[items][:, criteria], n_answers=3)
    np.testing.assert_allclose(plain(again), plain(score(p, g, n_answers=3)), rtol=1e-12)


@given(tables)
def test_overall_is_the_mean_of_sensitivity_and_invariance_weighted_by_their_items(rows):
    p, g = (np.array(part) for part in zip(*rows, strict=True))
    found = score(p, g, n_answers=3)
    parts = [(found.n_sensitive, found.sensitivity), (found.n_invariant, found.invariance)]
    assert found.overall == pytest.approx(sum(n * share for n, share in parts if n) / len(p))


@given(tables)
def test_another_criterion_never_makes_a_wrong_item_right(rows):
    p, g = (np.array(part) for part in zip(*rows, strict=True))
    assert score(p, g, n_answers=3).overall <= score(p[:, :1], g[:, :1], n_answers=3).overall


@given(tables)
def test_the_metrics_agree_with_a_loop_over_items(rows):
    hits = {True: [], False: []}
    for p, g in rows:
        hits[len(set(g)) > 1].append(p == g)
    found = score(*(np.array(part) for part in zip(*rows, strict=True)), n_answers=3)
    expected = [np.mean(hits[kind]) if hits[kind] else np.nan for kind in (True, False)]
    np.testing.assert_allclose([found.sensitivity, found.invariance], expected)


def test_many_criteria_and_answers_are_counted_right_too():
    rng = np.random.default_rng(0)
    g = rng.integers(9, size=(50, 12))
    p = np.where(rng.random((50, 1)) < 0.5, g, (g + 1) % 9)
    assert score(p, g).overall == pytest.approx((p == g).all(axis=1).mean())


def test_the_bootstrap_interval_holds_the_true_share_about_95_times_in_100():
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(400):
        p, g = simulated(rng, 300, 2, joint=0.4)
        low, high = shares(p, g, n_resamples=600, random_state=rng)[METRICS.index("sensitivity")][1:3]
        held += low <= 0.4 <= high
    # 400 trials at 0.95 have a standard deviation of 0.011; the percentile bootstrap itself loses up to a point.
    assert held / 400 == pytest.approx(0.95, abs=0.035)


def test_a_share_of_zero_has_the_exact_upper_bound_not_a_certain_zero():
    found = shares(np.zeros((30, 2), int), np.array([[0, 1]] * 30))[0]
    assert (found.value, found.low, found.high) == (0, 0, pytest.approx(1 - 0.025 ** (1 / 30)))


def test_a_million_items_under_three_criteria_take_under_a_second():
    rng = np.random.default_rng(0)
    p, g = rng.integers(2, size=(2, 1_000_000, 3))
    start = time.process_time()
    score(p, g)
    assert time.process_time() - start < 1


def test_an_item_is_identifiable_unless_equal_labels_go_with_different_answers():
    labels = np.array([[[0, 0], [1, 1]], [[0, 1], [1, 1]], [[0, 0], [1, 1]]])
    truths = np.array([[0, 1], [0, 1], [0, 0]])
    assert is_identifiable(labels, truths).tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("p", "g", "message"),
    [
        ([[0]], [[0, 1]], r"predictions have the shape \(1, 1\) and truths \(1, 2\)"),
        ([0, 1], [[0, 1]], "predictions have 1 dimensions"),
        (np.empty((0, 2), int), np.empty((0, 2), int), "there are no items to score"),
        ([[0, 0]], [[0, -1]], "truths, item 1, criterion 2: -1 is not the code of an answer"),
        ([[0.5, 0]], [[0, 1]], "predictions must be whole numbers"),
        ([[np.nan, 0]], [[0, 1]], "predictions must be whole numbers"),
    ],
)
def test_arrays_that_cannot_be_scored_are_refused(p, g, message):
    with pytest.raises(InputError, match=message):
        score(p, g)


def test_a_code_outside_the_answers_is_refused():
    with pytest.raises(InputError, match="item 1, criterion 1: 2 is not the code of an answer; expected -1 to 1"):
        score([[2, 0]], [[0, 1]], n_answers=2)


# --------------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("No, ... Final answer: Yes.", 1),
        ("not anomalous", -1),
        ("Yes.", 1),
        ("YES", 1),
        ("yes or no? No", 0),
        ("Yes. Final answer: unclear", -1),
        ("Nobody knows", -1),
        ("", -1),
        (None, -1),
    ],
)
def test_a_reply_is_read_by_its_last_whole_word_answer_after_the_final_mark(reply, code):
    assert parse_answer(reply, ("No", "Yes")) == code


def test_an_answer_that_contains_another_is_read_whole():
    assert parse_answer("It is very likely.", ("likely", "very likely")) == 1


# -------------------------------------------------------------------------------------------------------- criteria

GOOD = {"good": "No", "print": "No", "cut": "Yes"}


def spec(**criteria):
    return CriterionSpec("Is there an anomaly?", ("No", "Yes"), criteria)


def test_yes_and_no_in_yaml_stay_words(tmp_path):
    path = tmp_path / "criteria.yaml"
    path.write_text(
        "question: Is there an anomaly?\nanswers: [No, Yes]\ncategories: [good, print, cut]\ncriteria:\n"
        "  A: {good: No, print: No, cut: Yes}\n  B: {good: No, print: Yes, cut: Yes}\n"
    )
    assert CriterionSpec.from_yaml(path) == spec(A=GOOD, B={**GOOD, "print": "Yes"})


def test_boundary_categories_are_those_the_criteria_differ_on():
    assert spec(A=GOOD, B={**GOOD, "print": "Yes"}).boundary == ("print",)


@pytest.mark.parametrize(
    ("criteria", "message"),
    [
        (
            {"A": GOOD, "B": {"good": "No", "cut": "Yes"}},
            "criterion 'B' has no answer for 'print'; give it one of No, Yes",
        ),
        ({"A": GOOD, "B": GOOD}, "the criteria 'A' and 'B' are the same; remove one of them"),
        ({"A": GOOD, "B": {**GOOD, "cut": "Maybe"}}, "criterion 'B' answers 'Maybe' to 'cut'; expected one of No, Yes"),
        ({"A": GOOD, "B": {**GOOD, "hole": "Yes"}}, "answers for 'hole', which is not a category"),
        ({}, "there are no criteria"),
    ],
)
def test_criteria_that_cannot_be_used_are_refused(criteria, message):
    with pytest.raises(InputError, match=message):
        spec(**criteria)


@pytest.mark.parametrize("answers", [("Yes",), ("yes", "Yes"), ("", "Yes")])
def test_answers_must_be_two_different_words(answers):
    with pytest.raises(InputError, match="answer"):
        CriterionSpec("?", answers, {"A": GOOD})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("answers: [No, Yes]\ncriteria: {}", "there is no 'question'"),
        ("question: Q\nanswers: [No, Yes]\ncriteria:\n  A: {cut: Yes, cut: No}", "line 4: 'cut' is there twice"),
        ("question: Q\nanswers: No\ncriteria: {}", "answers is 'No'; expected a list of texts"),
        ("question: Q\nanswers: [No, Yes]\ncriteria: [A]", "criteria must be a mapping"),
        ("question: Q\nanswers: [No, Yes]\nstrict: B\ncriteria: {}", "'strict' is not known"),
        ("question: [", "line 1 is not YAML"),
        ("- a", "expected a mapping"),
        ("question: !!python/object/apply:os.getcwd []\nanswers: [No, Yes]\ncriteria: {}", "expected a text"),
    ],
)
def test_a_file_of_criteria_that_cannot_be_used_is_refused(tmp_path, text, message):
    path = tmp_path / "criteria.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        CriterionSpec.from_yaml(path)
