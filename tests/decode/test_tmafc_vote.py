"""The vote on components: its confidence, when it stops, and what it asks for."""

import math
from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from assay._core.errors import InputError
from assay.decode.tmafc import agreeing_answer, beta_confidence, fractal_consistency, normalised
from assay.decode.tmafc.vote import majority

counts = st.integers(0, 60)
priors = st.floats(0.01, 1.0)


def scripted(*samples):
    """A sampler that gives these samples one after the other."""
    queue = iter(samples)
    return lambda pending, resolved, n: [next(queue) for _ in range(n)]


def always(sample):
    return lambda pending, resolved, n: [sample] * n


@pytest.mark.parametrize("c", range(1, 7))
def test_confidence_without_dissent_under_the_uniform_prior_is_one_minus_a_power_of_two(c):
    assert float(beta_confidence(c, 0)) == pytest.approx(1 - 2.0 ** -(c + 1), abs=1e-12)


def test_confidence_of_five_against_one_is_fifteen_sixteenths():
    # P(Beta(6, 2) > 1/2) = P(at most 5 successes of 7 fair coins) = 1 - (7 + 1) / 128
    assert float(beta_confidence(5, 1)) == pytest.approx(0.9375, abs=1e-12)


@given(counts, priors)
def test_confidence_of_a_tie_under_a_symmetric_prior_is_one_half(c, a):
    assert float(beta_confidence(c + 1, c + 1, a, a)) == pytest.approx(0.5, abs=1e-9)


def test_confidence_of_one_vote_under_a_prior_that_expects_no_dissent_has_the_closed_form():
    # P(Beta(2, b) > 1/2) = 1 - (1/2)^b ... from the density (b + 1) b p (1 - p)^(b - 1): (1/2)^(b+1) (b + 2)
    b = 0.01
    assert float(beta_confidence(1, 0, 1, b)) == pytest.approx(0.5 ** (b + 1) * (b + 2), abs=1e-12)
    assert float(beta_confidence(1, 0, 1, b)) == pytest.approx(0.998058, abs=1e-6)


def test_confidence_under_a_prior_that_expects_dissent_is_the_cards():
    expected = [0.503454, 0.751727, 0.875863, 0.937932, 0.968966]
    np.testing.assert_allclose(beta_confidence(np.arange(1, 6), 0, 0.01, 1.0), expected, atol=1e-6)


@pytest.mark.parametrize(("c1", "c2", "a", "b"), [(3, 1, 1.0, 0.5), (7, 6, 0.3, 0.9), (12, 2, 1.0, 1.0)])
def test_confidence_is_the_integral_of_the_beta_density_above_one_half(c1, c2, a, b):
    log_norm = math.lgamma(a + c1) + math.lgamma(b + c2) - math.lgamma(a + b + c1 + c2)
    density = lambda p: math.exp((a + c1 - 1) * math.log(p) + (b + c2 - 1) * math.log1p(-p) - log_norm)  # noqa: E731
    assert float(beta_confidence(c1, c2, a, b)) == pytest.approx(quad(density, 0.5, 1)[0], abs=1e-7)


def test_confidence_is_zero_before_the_first_vote():
    assert float(beta_confidence(0, 0, 1, 0.01)) == 0


@given(st.integers(1, 60), counts, priors, priors)
def test_confidence_rises_with_the_leaders_votes_and_its_prior_and_falls_with_the_rivals(c1, c2, a, b):
    here = float(beta_confidence(c1, c2, a, b))
    tiny = 1e-12  # a confidence that is 1 to the last digit cannot rise
    assert float(beta_confidence(c1 + 1, c2, a, b)) >= here - tiny
    assert float(beta_confidence(c1, c2 + 1, a, b)) <= here + tiny
    assert float(beta_confidence(c1, c2, a + 0.1, b)) >= here - tiny
    assert float(beta_confidence(c1, c2, a, b + 0.1)) <= here + tiny


def test_confidence_near_one_keeps_its_order_down_to_the_last_votes():
    found = beta_confidence(np.arange(1, 50), 0)
    assert (np.diff(found) > 0).all()


@pytest.mark.parametrize(
    ("value", "key"),
    [(" Oslo\n", "Oslo"), ("a\nb", "a b"), ("a\r\nb", "a b"), (12, "12"), (12.0, "12"), (1.5, "1.5"), (True, "true"),
     ({"b": 1, "a": [2]}, '{"a": [2], "b": 1}'), (None, None), ("", "")],
)  # fmt: skip
def test_a_value_is_counted_under_its_normal_text(value, key):
    assert normalised(value) == key


def test_a_model_that_always_says_the_same_is_asked_four_times_under_the_uniform_prior():
    vote = fractal_consistency(["a", "b"], always({"a": 1, "b": 2}))
    assert (vote.n_samples, vote.converged, vote.answer) == (4, True, {"a": 1, "b": 2})


def test_a_model_that_always_says_the_same_is_asked_min_samples_times_when_that_is_more():
    assert fractal_consistency(["a"], always({"a": 1}), min_samples=6).n_samples == 6


def test_a_prior_that_expects_no_dissent_still_waits_for_two_values():
    assert fractal_consistency(["a"], always({"a": 1}), (1.0, 0.01)).n_samples == 2


def test_a_prior_that_expects_dissent_needs_five_equal_values():
    assert fractal_consistency(["a"], always({"a": 1}), (0.01, 1.0)).n_samples == 5


def test_a_missing_value_is_no_vote_and_does_not_count_towards_the_minimum():
    vote = fractal_consistency(["a"], scripted({}, {"a": None}, {"a": 1}, {"a": 1}), (1.0, 0.01))
    (found,) = vote.components
    assert (vote.n_samples, found.count, found.runner_up_count, found.n_missing) == (4, 2, 0, 2)


def test_the_threshold_must_be_passed_not_met():
    # 1 - 2^-4 = 0.9375 after three equal values
    assert fractal_consistency(["a"], always({"a": 1}), tau=0.9375).n_samples == 4
    assert fractal_consistency(["a"], always({"a": 1}), tau=0.9374).n_samples == 3


def test_partly_right_samples_still_give_the_right_answer():
    samples = [{"A": 1, "B": "x"}, {"A": 1, "B": 2}, {"A": "y", "B": 2}]
    vote = fractal_consistency(["A", "B"], scripted(*samples), n_max=3)
    assert vote.answer == {"A": 1, "B": 2}
    assert [found.count for found in vote.components] == [2, 2]
    assert Counter(map(normalised, samples)).most_common(1)[0][1] == 1  # the vote on whole answers is a tie of three


def test_of_equally_many_votes_the_value_that_appeared_first_leads():
    vote = fractal_consistency(["a"], scripted({"a": "x"}, {"a": "y"}, {"a": "y"}, {"a": "x"}), n_max=4)
    assert (vote.answer["a"], vote.components[0].runner_up) == ("x", "y")


def test_the_winner_keeps_the_type_in_which_it_first_appeared():
    assert fractal_consistency(["a"], scripted({"a": 12}, {"a": "12"}), n_max=2).answer == {"a": 12}


def test_a_reply_that_cannot_be_parsed_is_a_sample_that_is_paid_for():
    vote = fractal_consistency(["a"], scripted(None, *[{"a": 1}] * 4))
    assert (vote.n_samples, vote.n_unparsed, vote.components[0].n_requests) == (5, 1, 5)


def test_what_is_not_settled_at_the_limit_is_returned_and_flagged():
    vote = fractal_consistency(["a"], scripted({"a": 1}, {"a": 2}, {"a": 1}), n_max=3)
    assert (vote.answer, vote.converged, vote.components[0].converged) == ({"a": 1}, False, False)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.sampled_from([(1.0, 1.0), (1.0, 0.3), (0.5, 1.0)]))
def test_a_settled_component_is_never_asked_for_again_and_keeps_its_value(seed, n_components, prior):
    rng = np.random.default_rng(seed)
    names = [f"c{index}" for index in range(n_components)]
    accuracy = rng.uniform(0.4, 0.95, n_components)
    asked, settled = [], {}

    def sample(pending, resolved, n):
        asked.append(pending)
        assert not set(pending) & set(resolved)
        assert set(pending) | set(resolved) == set(names)
        assert all(settled.setdefault(name, value) == value for name, value in resolved.items())
        return [{name: int(rng.random() > accuracy[int(name[1])]) for name in pending}]

    vote = fractal_consistency(names, sample, prior, n_max=30)
    assert vote.n_requests == sum(map(len, asked))
    assert vote.n_samples == len(asked)
    assert {name: vote.answer[name] for name in settled} == settled


def test_one_component_under_the_uniform_prior_is_adaptive_consistency():
    def adaptive_consistency(stream, tau=0.95, n_max=40):
        """Independent: sums the binomial tail instead of the incomplete beta function."""
        votes = Counter()
        for n_drawn, value in enumerate(stream[:n_max], start=1):
            votes[value] += 1
            v1, v2 = ([*sorted(votes.values(), reverse=True), 0])[:2]
            n = v1 + v2 + 1
            n_samples = n_drawn
            tail = sum(math.comb(n, j) for j in range(v1 + 1)) / 2**n  # P(Beta(v1 + 1, v2 + 1) > 1/2)
            if tail > tau:
                break
        return max(votes, key=votes.get), n_samples

    rng = np.random.default_rng(0)
    for _ in range(1000):
        weights = rng.dirichlet([2.0, 1.0, 0.7])
        stream = rng.choice(["a", "b", "c"], 40, p=weights).tolist()
        vote = fractal_consistency(["x"], scripted(*({"x": value} for value in stream)), n_max=40)
        assert (vote.answer["x"], vote.n_samples) == adaptive_consistency(stream)


def test_the_geometric_mean_stops_earlier_when_one_component_stays_open():
    samples = [{"a": 1, "b": 1}] * 3 + [{"a": 1, "b": 2}] * 40
    by_mean = fractal_consistency(["a", "b"], scripted(*samples), n_max=40, stopping="geometric_mean")
    # After three equal values both confidences are 0.9375, and so is their geometric mean: 0.9 is passed.
    assert by_mean.n_samples == 3
    assert not by_mean.converged


def test_the_geometric_mean_waits_for_the_minimum_too():
    assert fractal_consistency(["a"], always({"a": 1}), (1.0, 0.01), stopping="geometric_mean").n_samples == 2


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 8])
def test_batches_answer_as_single_rounds_do_and_report_what_was_drawn_in_vain(batch):
    samples = [{"a": i % 3 == 0, "b": i % 5 == 0} for i in range(60)]
    single = fractal_consistency(["a", "b"], scripted(*samples), n_max=40)
    batched = fractal_consistency(["a", "b"], scripted(*samples), n_max=40, batch_rounds=batch)
    assert batched.answer == single.answer
    assert batched.n_samples - batched.n_unused == single.n_samples
    assert batched.n_samples == math.ceil(single.n_samples / batch) * batch


def test_the_last_batch_does_not_go_past_the_limit():
    samples = [{"a": i % 2} for i in range(10)]
    assert fractal_consistency(["a"], scripted(*samples), n_max=10, batch_rounds=4).n_samples == 10


def test_the_final_answer_is_voted_among_samples_that_agree_with_the_settled_anchors():
    # The anchor settles at 1 after four votes; the three samples that said 2 are left out of the final vote.
    samples = [{"anchor": 2, "final_answer": "wrong"}] * 2 + [{"anchor": 1, "final_answer": "right"}] + [
        {"anchor": 1, "final_answer": f"unsure {i}"} for i in range(12)
    ]  # fmt: skip
    vote = fractal_consistency(["anchor", "final_answer"], scripted(*samples), n_max=15, always=["final_answer"])
    assert vote.components[0].value == 1
    assert vote.components[0].converged
    assert vote.answer["final_answer"] == "wrong"
    assert agreeing_answer(vote) == "right"


def test_an_anchor_that_was_not_asked_for_any_more_counts_as_agreeing():
    samples = [{"anchor": 1, "final_answer": i % 2} for i in range(4)] + [{"final_answer": 7}] * 5
    vote = fractal_consistency(["anchor", "final_answer"], scripted(*samples), n_max=9, always=["final_answer"])
    assert agreeing_answer(vote) == 7


def test_the_final_answer_is_asked_for_in_every_round_though_it_is_settled():
    asked = []

    def sample(pending, resolved, n):
        asked.append(pending)
        return [{"anchor": len(asked), "final_answer": 3}]

    vote = fractal_consistency(["anchor", "final_answer"], sample, n_max=8, always=["final_answer"])
    assert asked == [("anchor", "final_answer")] * 8
    assert agreeing_answer(vote) == 3


def test_where_no_sample_agrees_with_all_anchors_the_majority_of_all_answers():
    pairs = [(1, 2), (2, 1)] * 1
    samples = [{"a": a, "b": b, "final_answer": a + b} for a, b in pairs]
    samples += [{"a": 1}] * 5 + [{"b": 1}] * 5
    vote = fractal_consistency(["a", "b", "final_answer"], scripted(*samples), n_max=12, always=["final_answer"])
    assert vote.answer["a"] == 1
    assert agreeing_answer(vote) == 3


def test_the_majority_of_nothing_is_nothing():
    assert majority([None, None]) is None


def test_the_answer_does_not_depend_on_where_the_components_stand():
    for order in product(["a", "b"], repeat=2):
        if order[0] != order[1]:
            vote = fractal_consistency(order, always({"a": 1, "b": 2}))
            assert vote.answer == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"components": []}, "the schema has no keys"),
        ({"components": ["a", "b", "a"]}, "the component 'a' is named twice"),
        ({"tau": 0.5}, r"tau is 0\.5; expected a confidence above 0\.5 and below 1"),
        ({"tau": 1}, "tau is 1; expected"),
        ({"tau": math.nan}, "tau is nan; expected"),
        ({"n_max": 1}, "n_max is 1 and min_samples is 2; n_max must not be smaller"),
        ({"min_samples": 0}, "min_samples is 0"),
        ({"batch_rounds": 0}, "batch_rounds is 0"),
        ({"stopping": "soon"}, "stopping is 'soon'; expected 'all' or 'geometric_mean'"),
        ({"prior": (0, 1)}, r"the prior is \(0, 1\); expected two finite numbers above 0"),
        ({"sample_fn": lambda pending, resolved, n: []}, "the sampler returned 0 samples where 1 were asked for"),
    ],
)
def test_a_parameter_that_cannot_be_used_is_named(arguments, message):
    with pytest.raises(InputError, match=message):
        fractal_consistency(**{"components": ["a"], "sample_fn": always({"a": 1}), **arguments})


def test_a_negative_count_is_refused():
    with pytest.raises(InputError, match="must not be negative"):
        beta_confidence(-1, 0)
