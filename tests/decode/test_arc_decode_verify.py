"""Chains and trees are verified so that lambda 0 is exact, and the boost costs what the card says."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from assay.decode.arc_decode.trees import Draft, chain
from assay.decode.arc_decode.verify import Draws, _price, verify_chain, verify_tree

N_VOCABULARY = 8
RNG = np.random.default_rng(5)
P = torch.tensor(RNG.dirichlet(np.ones(N_VOCABULARY)), dtype=torch.float64)
Q = torch.tensor(RNG.dirichlet(np.ones(N_VOCABULARY)), dtype=torch.float64)
AFTER = torch.tensor(RNG.dirichlet(np.ones(N_VOCABULARY)), dtype=torch.float64)  # the target after any first token
NOTHING = [{}] * 9
#: Every push, and by `make trials`.
DRAWS = pytest.mark.parametrize("n", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
#: A correct sampler fails a test at this level once in ten thousand seeds.
LEVEL = 1e-4


pytestmark = pytest.mark.usefixtures("one_thread")


def sampled(draws, n):
    """A draft of n siblings drawn independently from Q."""
    return Draft([draws.draft_token(Q) for _ in range(n)], [-1] * n, [0.0] * n, Q.expand(n, -1))


def emitted(verdict, draft):
    return draft.tokens[verdict.path[0]] if verdict.path else verdict.token


def counts(proposals, n, lam=0.0, scores=NOTHING):
    """How often each token is emitted first."""
    draws = Draws(1)
    rows = torch.stack([P, *[AFTER] * 8])
    found = np.zeros(N_VOCABULARY)
    for _ in range(n):
        draft = proposals(draws)
        found[emitted(verify_tree(rows[: len(draft.tokens) + 1], draft, scores, lam, draws), draft)] += 1
    return found


def agrees(found, law):
    return chisquare(found, found.sum() * np.asarray(law)).pvalue > LEVEL


@DRAWS
def test_at_lambda_zero_a_sampled_chain_gives_the_target(n):
    assert agrees(counts(lambda draws: sampled(draws, 1), n), P)


@DRAWS
def test_at_lambda_zero_a_sampled_tree_gives_the_target(n):
    assert agrees(counts(lambda draws: sampled(draws, 3), n), P)


@DRAWS
def test_at_lambda_zero_a_tree_of_chosen_tokens_gives_the_target(n):
    best = Q.topk(3).indices.tolist()
    draft = Draft(best, [-1] * 3, Q[best].log().tolist())
    assert agrees(counts(lambda draws: draft, n), P)


def test_taking_the_draft_s_probability_of_a_chosen_token_would_not_give_the_target():
    """The trap of the released default: the test above would notice."""
    best = Q.topk(1).indices.tolist()
    found = counts(lambda draws: Draft(best, [-1], [0.0], Q[None]), 5_000)
    assert not agrees(found, P)


def test_the_second_token_follows_the_target_as_well():
    draws, rows, found = Draws(2), torch.stack([P, AFTER, AFTER]), np.zeros(N_VOCABULARY)
    for _ in range(4_000):
        draft = chain([draws.draft_token(Q), draws.draft_token(Q)], torch.stack([Q, Q]))
        verdict = verify_tree(rows, draft, NOTHING, 0.0, draws)
        text = [*(draft.tokens[place] for place in verdict.path), verdict.token]
        if len(text) > 1:
            found[text[1]] += 1
    assert agrees(found, AFTER)


@DRAWS
def test_the_boost_gives_the_law_of_the_card(n):
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.7, 0.1])
    draws, found, added, price = Draws(3), np.zeros(3), 0, 0.0
    for _ in range(n):
        draft = chain([draws.draft_token(q)], q[None])
        verdict = verify_tree(torch.stack([p, p]), draft, [{1: 0.6}, {}], 0.25, draws)
        found[emitted(verdict, draft)] += 1
        added += len(verdict.added)
        price += verdict.price
    assert agrees(found, [0.455, 0.36, 0.185])
    assert price / n == pytest.approx(0.06, abs=1e-6)
    assert added / n == pytest.approx(0.06, abs=5 * np.sqrt(0.06 * 0.94 / n))  # five standard errors


def test_full_scores_and_lambda_one_accept_every_draft():
    draws, full = Draws(0), [dict.fromkeys(range(N_VOCABULARY), 1.0)] * 4
    for _ in range(200):
        tokens = [draws.draft_token(Q) for _ in range(3)]
        verdict = verify_chain(torch.stack([P, P, P, AFTER]), tokens, Q.expand(3, -1), full, 1.0, draws)
        assert verdict.path == (0, 1, 2)


def plain_speculative_sampling(rows, tokens, q, draws):
    """The rule of Leviathan et al. as its paper writes it, with the same uniform numbers."""
    for place, token in enumerate(tokens):
        if draws.uniform() >= min(1.0, rows[place, token] / q[place, token]):
            left = (rows[place] - q[place]).clamp(min=0)
            return [*tokens[:place], draws.token(left / left.sum())]
    return [*tokens, draws.token(rows[len(tokens)])]


def test_with_one_seed_lambda_zero_and_plain_speculative_sampling_write_the_same():
    ours, theirs, drafts = Draws(7), Draws(7), Draws(8)
    rows = torch.stack([P, AFTER, P, AFTER])
    for _ in range(500):
        tokens = [drafts.draft_token(Q) for _ in range(3)]
        verdict = verify_chain(rows, tokens, Q.expand(3, -1), NOTHING, 0.0, ours)
        mine = [*(tokens[place] for place in verdict.path), verdict.token]
        assert mine == plain_speculative_sampling(rows, tokens, Q.expand(3, -1), theirs)


def test_a_boosted_run_accepts_whatever_the_lossless_run_of_the_same_seed_accepts():
    scores = [dict.fromkeys(range(N_VOCABULARY), 0.7)] * 2
    for seed in range(300):
        token = Draws(seed).draft_token(Q)
        lossless = verify_chain(torch.stack([P, AFTER]), [token], Q[None], NOTHING, 0.0, Draws(seed))
        boosted = verify_chain(torch.stack([P, AFTER]), [token], Q[None], scores, 0.5, Draws(seed))
        assert set(lossless.path) <= set(boosted.path)
        assert (boosted.added == ()) == (lossless.path == boosted.path)


def test_the_price_of_a_chosen_token_is_the_rise_of_its_acceptance():
    x = int(P.argmin())
    verdict = verify_chain(torch.stack([P, AFTER]), [x], None, [{x: 0.5}, {}], 0.5, Draws(0))
    assert verdict.price == pytest.approx(0.5 * (1 - P[x].item()) * 0.5)


def test_the_hard_rule_accepts_exactly_what_has_a_score():
    rows, tokens = torch.stack([P, P, P]), [int(P.argmin()), int(P.argmax())]
    verdict = verify_tree(rows, chain(tokens), [{tokens[0]: 1.0}, {}, {}], 0.0, Draws(0), is_hard=True)
    assert verdict.path == (0,)
    assert verdict.token != tokens[1]


def test_a_certain_target_accepts_the_certain_token_alone():
    """Temperature 0: probabilities of one and zero."""
    certain = torch.eye(N_VOCABULARY)[[2, 5, 1]]
    verdict = verify_chain(certain, [2, 3], None, NOTHING, 0.0, Draws(0))
    assert (verdict.path, verdict.token) == ((0,), 5)


def test_a_token_of_probability_zero_is_never_drawn():
    draws, p = Draws(0), torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
    assert {draws.token(p) for _ in range(500)} == {1, 3}


def test_an_empty_draft_is_a_plain_step():
    verdict = verify_tree(P[None], Draft([], [], []), [{}], 0.25, Draws(0))
    assert verdict.path == ()
    assert verdict.n_tried == 0


def test_the_price_of_a_sampled_token_is_read_in_one_go():
    """However many tokens the boost might take, and it is the sum of q (a - a0)."""
    read = []

    class Counted(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func in (torch.Tensor.tolist, torch.Tensor.__float__, torch.Tensor.item):
                read.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    scores = {x: 0.1 * x for x in range(N_VOCABULARY)}
    price = _price(P.as_subclass(Counted), Q.as_subclass(Counted), 0, scores, 0.5)
    a0 = np.minimum(1, P.numpy() / Q.numpy())
    assert price == pytest.approx(Q.numpy() @ (0.5 * (1 - a0) * 0.1 * np.arange(N_VOCABULARY)))
    assert len(read) == 2  # p and q
