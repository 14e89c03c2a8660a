"""The heart of arc-decode: scores, acceptance, divergence, and the law of what is emitted."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from assay.decode.arc_decode.scores import (
    acceptance,
    estimated_shift,
    inverse_deviation,
    js_topk,
    lts_scores,
    normalised_entropy,
    output_law,
    raw_distances,
    residual,
)

P, Q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.2, 0.7, 0.1], dtype=torch.float64)
ALL = torch.arange(3)[None]


class WithoutDoubles(torch.Tensor):
    """Stands for a device without float64, such as Apple's: what is on it comes to the CPU first."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.double:
            raise TypeError("this device has no float64")
        found = super().__torch_function__(func, types, args, kwargs or {})
        return found.as_subclass(torch.Tensor) if func is torch.Tensor.cpu else found


def laws(p, q, scores, lam):
    """Acceptance of every token, its score given (U = 1 - s at gamma 1)."""
    shift = 1.0 - torch.as_tensor(scores, dtype=torch.float64)
    a0, a = acceptance(p[None], q[None], torch.arange(len(p))[None], shift[None], gamma=1.0, lam=lam, p_min=0.0)
    return a0[0], a[0]


def test_the_example_of_three_tokens():
    a0, a = laws(P, Q, [0.0, 0.6, 0.0], lam=0.25)
    law, price = output_law(P, Q, a0, a)
    np.testing.assert_allclose(a0, [1.0, 3 / 7, 1.0], atol=1e-12)
    assert a[1].item() == pytest.approx(3 / 7 + 0.25 * (4 / 7) * 0.6)  # 0.514286
    assert price == pytest.approx(0.7 * 0.25 * (4 / 7) * 0.6)  # 0.06
    np.testing.assert_allclose(law, [0.455, 0.36, 0.185], atol=1e-12)


def test_full_scores_and_lambda_one_make_the_output_the_draft():
    a0, a = laws(P, Q, [1.0, 1.0, 1.0], lam=1.0)
    assert a.tolist() == [1.0, 1.0, 1.0]
    np.testing.assert_allclose(output_law(P, Q, a0, a)[0], Q, atol=1e-12)


def test_lambda_zero_makes_the_output_the_target():
    a0, a = laws(P, Q, [1.0, 1.0, 1.0], lam=0.0)
    law, price = output_law(P, Q, a0, a)
    np.testing.assert_allclose(law, P, atol=1e-12)
    assert price == 0.0


weights = st.lists(st.floats(0.01, 1.0), min_size=5, max_size=5)


@given(weights, weights, st.lists(st.floats(0.0, 1.0), min_size=5, max_size=5), st.floats(0.0, 1.0))
@settings(max_examples=60, deadline=None)
def test_the_price_is_the_total_variation_and_the_gain_in_acceptance(one, other, scores, lam):
    p, q = (torch.tensor(w, dtype=torch.float64) / sum(w) for w in (one, other))
    a0, a = laws(p, q, scores, lam)
    law, price = output_law(p, q, a0, a)
    assert law.sum().item() == pytest.approx(1.0)
    assert 0.5 * (law - p).abs().sum().item() == pytest.approx(price, abs=1e-9)
    assert (q * a).sum().item() - (q * a0).sum().item() == pytest.approx(price, abs=1e-12)


def test_the_favourite_has_no_shift_and_full_tolerance():
    p = torch.tensor([[0.1, 0.6, 0.3]])
    embedding = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    by_embedding, by_logit = raw_distances(p, torch.tensor([[1]]), embedding, inverse_deviation(embedding))
    shift = estimated_shift(by_embedding, by_logit, 2.0, 3.0)
    assert shift.item() == 0.0
    a0, a = acceptance(p, torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([[1]]), shift, gamma=1.0, lam=0.5, p_min=0.05)
    assert a.item() == pytest.approx(a0.item() + 0.5 * (1 - a0.item()))
    assert a0.item() == pytest.approx(0.6)


def test_below_p_min_the_standard_rule_stands_alone():
    p, q = torch.tensor([[0.96, 0.04]]), torch.tensor([[0.5, 0.5]])
    a0, a = acceptance(p, q, torch.tensor([[1]]), torch.zeros(1, 1), gamma=1.0, lam=1.0, p_min=0.05)
    assert a.item() == a0.item() == pytest.approx(0.08)


def test_a_token_of_exactly_p_min_is_tolerated():
    p = torch.tensor([[0.95, 0.05]])
    assert lts_scores(p, torch.tensor([[1]]), torch.zeros(1, 1), gamma=1.0, p_min=p[0, 1].item()).item() == 1.0


def test_tolerance_falls_linearly_to_zero_at_gamma():
    shift = torch.tensor([[0.0, 0.5, 1.5, 2.0, 9.0]])
    scores = lts_scores(torch.full((1, 5), 0.2), torch.arange(5)[None], shift, gamma=2.0, p_min=0.05)
    np.testing.assert_allclose(scores[0], [1.0, 0.75, 0.25, 0.0, 0.0], atol=1e-7)


def test_distances_are_those_written_out():
    rng = np.random.default_rng(0)
    embedding = rng.normal(size=(6, 3)) * [1.0, 10.0, 0.1]
    p = rng.dirichlet(np.ones(6))
    found_e, found_l = raw_distances(
        torch.tensor(p)[None],
        torch.tensor([[4]]),
        torch.tensor(embedding),
        inverse_deviation(torch.tensor(embedding)),
    )
    best = p.argmax()
    w = 1 / (embedding.std(axis=0) + 1e-6)  # over the vocabulary, one a coordinate
    assert found_e.item() == pytest.approx((((embedding[4] - embedding[best]) * w) ** 2).sum(), rel=1e-5)
    assert found_l.item() == pytest.approx((np.log(p[best]) - np.log(p[4])) ** 2, rel=1e-6)


def test_a_probability_of_zero_is_clamped_before_its_logarithm():
    p = torch.tensor([[1.0, 0.0]])
    by_logit = raw_distances(p, torch.tensor([[1]]), torch.eye(2), torch.ones(2))[1]
    assert by_logit.item() == pytest.approx(math.log(1e-12) ** 2, rel=1e-5)


@pytest.mark.parametrize(
    ("p", "q", "expected"),
    [([0.3, 0.7], [0.3, 0.7], 0.0), ([1.0, 0.0], [0.0, 1.0], math.log(2)), ([1.0, 0.0], [0.5, 0.5], 0.215762)],
)
def test_divergences_with_known_values(p, q, expected):
    found = js_topk(torch.tensor([p]), torch.tensor([q]), k=128).item()
    assert found == pytest.approx(expected, abs=1e-6)
    assert found == pytest.approx(jensenshannon(p, q) ** 2, abs=1e-6)


def test_the_divergence_is_of_the_renormalised_union_of_both_top_sets():
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.full(50, 0.3)), rng.dirichlet(np.full(50, 0.3))
    union = sorted({*np.argsort(-p)[:7], *np.argsort(-q)[:7]})
    expected = jensenshannon(p[union] / p[union].sum(), q[union] / q[union].sum()) ** 2
    assert js_topk(torch.tensor(p)[None], torch.tensor(q)[None], k=7).item() == pytest.approx(expected, abs=1e-9)


def test_entropy_is_one_when_uniform_and_zero_when_certain():
    assert normalised_entropy(torch.full((64,), 1 / 64)) == pytest.approx(1.0)
    assert normalised_entropy(torch.eye(64)[0]) == 0.0


def test_entropy_is_that_of_scipy_over_the_log_of_the_vocabulary():
    p = np.random.default_rng(0).dirichlet(np.ones(30))
    assert normalised_entropy(torch.tensor(p)) == pytest.approx(entropy(p) / math.log(30))


def test_the_residual_is_what_the_proposal_left_and_p_where_it_left_nothing():
    np.testing.assert_allclose(residual(P, Q), [0.75, 0.0, 0.25], atol=1e-12)
    assert torch.equal(residual(P, P), P)


@pytest.mark.parametrize("k", [2, 3])
def test_a_device_needs_no_float64(k):
    there = [of.float()[None].as_subclass(WithoutDoubles) for of in (P, Q)]
    assert js_topk(*there, k=k).item() == pytest.approx(js_topk(P[None], Q[None], k).item(), abs=1e-6)
    assert normalised_entropy(there[0][0]) == pytest.approx(normalised_entropy(P), abs=1e-6)


def test_distances_of_bfloat16_embeddings_are_those_of_their_values():
    """1 and 2^-9 are bfloat16 numbers, and their difference is not."""
    embedding = torch.tensor([[1.0], [2.0**-9]], dtype=torch.bfloat16)
    by_embedding, _ = raw_distances(torch.tensor([[0.6, 0.4]]), torch.tensor([[1]]), embedding, torch.ones(1))
    assert by_embedding.item() == pytest.approx((1 - 2.0**-9) ** 2, abs=1e-7)
