"""Trees of candidates: their masks, and which part of them is worth verifying."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay._core.errors import InputError
from assay.decode.arc_decode.trees import Draft, Tree, chain, prune_tree, utilities


@st.composite
def drafts(draw):
    n = draw(st.integers(1, 25))
    parents = [draw(st.integers(-1, place - 1)) for place in range(n)]
    logq = [draw(st.floats(-4.0, 0.0)) for _ in range(n)]
    return Draft(list(range(n)), parents, logq)


def test_utility_is_the_path_s_probability_discounted_by_depth_and_entropy():
    u = utilities(Draft([3], [-1], [math.log(0.35)]), entropy=0.5, lambda_h=1.0)
    assert u[0] == pytest.approx(0.35 * math.exp(-0.5))  # 0.212286
    two = utilities(chain([1, 2]), entropy=0.25, lambda_h=2.0)
    assert two == pytest.approx([math.exp(-0.5), math.exp(-1.0)])


@given(drafts(), st.floats(0.0, 1.0), st.floats(0.0, 0.9), st.floats(0.0, 0.9))
@settings(max_examples=80, deadline=None)
def test_what_is_kept_holds_the_parents_of_all_it_holds(draft, entropy, theta, tau_leaf):
    _, places = prune_tree(draft, entropy, theta=theta, tau_leaf=tau_leaf)
    assert all(draft.parents[place] in {-1, *places} for place in places)


@given(drafts(), st.floats(0.0, 1.0), st.floats(0.0, 0.5), st.floats(0.0, 0.5))
@settings(max_examples=80, deadline=None)
def test_the_kept_part_shrinks_as_the_threshold_grows(draft, entropy, theta, more):
    wide, narrow = (prune_tree(draft, entropy, theta=t, tau_leaf=0.0)[1] for t in (theta, theta + more))
    assert set(narrow) <= set(wide)


@given(drafts(), st.floats(0.0, 1.0))
@settings(max_examples=40, deadline=None)
def test_without_thresholds_all_is_kept(draft, entropy):
    assert prune_tree(draft, entropy, lambda_h=0.0, theta=0.0, tau_leaf=0.0)[0] == draft


@given(drafts(), st.floats(0.0, 1.0), st.floats(0.0, 0.6))
@settings(max_examples=60, deadline=None)
def test_the_mask_of_the_kept_part_is_the_sub_matrix(draft, entropy, theta):
    kept, places = prune_tree(draft, entropy, theta=theta)
    np.testing.assert_array_equal(kept.ancestors(), draft.ancestors()[places][:, places])
    assert kept.depths == [draft.depths[place] for place in places]
    assert [kept.path(i) for i in range(len(places))] == [draft.path(place) for place in places]


@given(drafts(), st.integers(0, 25))
@settings(max_examples=60, deadline=None)
def test_a_budget_keeps_the_best_and_their_parents(draft, budget):
    _, places = prune_tree(draft, 0.0, theta=0.0, tau_leaf=0.0, budget=budget)
    u = utilities(draft, 0.0, 1.0)
    assert len(places) == min(budget, len(u))
    assert sorted((u[i] for i in places), reverse=True) == sorted(u, reverse=True)[: len(places)]
    assert all(draft.parents[place] in {-1, *places} for place in places)


def test_leaves_below_their_threshold_go_once():
    draft = chain([1, 2, 3])
    draft = Draft(draft.tokens, draft.parents, [math.log(0.5)] * 3)  # utilities .5, .25, .125
    assert prune_tree(draft, 0.0, theta=0.0, tau_leaf=0.3)[1] == [0, 1]  # the second was no leaf


def test_a_sampled_draft_is_not_pruned():
    with pytest.raises(InputError, match=r"^a sampled draft cannot be pruned: dropping tokens for what they are"):
        prune_tree(chain([1], torch.full((1, 4), 0.25)), 0.5)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (([1, 2], [-1], [0.0]), r"^the draft has 2 tokens, 1 parents and 1 log-probabilities; expected as many of"),
        (([1, 2], [-1, 1], [0.0, 0.0]), r"^the draft's token 1 has the parent 1; expected -1 \(the root\) or an ear"),
        (([1], [-1], [0.0], torch.ones(2, 4)), r"^the draft has 1 tokens and q has 2 rows$"),
    ],
)
def test_a_draft_whose_parts_do_not_fit_is_refused(parts, message):
    with pytest.raises(InputError, match=message):
        Draft(*parts)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [("n_tokens", 0, "1 or more"), ("depth", 0, "1 or more"), ("theta", -1, "0 or more")],
)
def test_a_tree_that_cannot_grow_is_refused(field, value, expected):
    with pytest.raises(InputError, match=rf"^{field}={value}: expected {expected}$"):
        Tree(**{field: value})
