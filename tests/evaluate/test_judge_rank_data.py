"""The authors' votes and AlpacaEval's, beside the figures of the paper's code. Runs where ASSAY_DATA is set."""

import os
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from assay.evaluate import JudgeRanking, read_votes

pytestmark = pytest.mark.skipif("ASSAY_DATA" not in os.environ, reason="ASSAY_DATA is not set")


def read(name):
    return read_votes(Path(os.environ["ASSAY_DATA"]) / name)


@pytest.fixture(scope="module")
def arena():
    return read("judge_votes/chatbot_arena.csv.gz")


@pytest.fixture(scope="module")
def arena_ranking(arena):
    return JudgeRanking(prior_sd=None).fit(arena)


def test_the_arena_votes_are_read_and_63_unknown_ones_left_out(arena):
    assert len(arena) == 9937
    assert arena.attrs == {"n_unknown": 63, "n_self": 0}


def test_the_arena_log_likelihoods_are_those_of_the_paper(arena_ranking):
    assert arena_ranking.log_likelihood_pooled_ == pytest.approx(-6264.78, abs=0.005)
    assert arena_ranking.log_likelihood_ == pytest.approx(-6063.28, abs=0.005)


def test_the_arena_discriminations_reach_from_086_to_2_67(arena_ranking):
    gamma = arena_ranking.discrimination_
    assert gamma.min() == pytest.approx(0.086, abs=0.0005)
    assert gamma.max() == pytest.approx(2.67, abs=0.005)


def test_the_arena_rankings_with_and_without_judges_correlate_at_967(arena, arena_ranking):
    blind = JudgeRanking().fit(arena, judge=None)
    rho = stats.spearmanr(blind.scores_, arena_ranking.scores_).statistic
    assert rho == pytest.approx(0.967, abs=0.0005)


def test_correlating_the_order_of_the_scores_would_not_be_spearmans_rho(arena, arena_ranking):
    blind = JudgeRanking().fit(arena, judge=None)
    wrong = np.corrcoef(np.argsort(blind.scores_.to_numpy()), np.argsort(arena_ranking.scores_.to_numpy()))[0, 1]
    assert abs(wrong - 0.967) > 0.01


def test_the_ultrafeedback_file_is_flagged_under_pure_maximum_likelihood():
    ultrafeedback = read("judge_votes/ultrafeedback.csv.gz")
    with pytest.warns(UserWarning, match="no finite discrimination fits the votes of"):
        ranking = JudgeRanking(prior_sd=None).fit(ultrafeedback)
    assert ranking.judges_["at_boundary"].sum() == 3
    assert ranking.converged_


def test_the_ultrafeedback_judges_at_the_boundary_vote_against_the_others():
    ultrafeedback = read("judge_votes/ultrafeedback.csv.gz")
    flagged = JudgeRanking().fit(ultrafeedback).judges_.query("at_boundary")["judge"]
    signed = JudgeRanking(signed=True).fit(ultrafeedback)
    assert set(signed.judges_.query("high < 0")["judge"]) == set(flagged)
    assert signed.log_likelihood_ > JudgeRanking().fit(ultrafeedback).log_likelihood_ + 20


def test_alpaca_votes_are_ranked_and_two_judges_of_a_single_pair_named():
    alpaca = read("alpaca_eval/votes.parquet")
    assert (len(alpaca), alpaca.attrs["n_self"]) == (103_771, 1610)
    with pytest.warns(UserWarning, match="discrimination of 'alpaca_eval_gpt4_0613', 'bedrock_claude' from"):
        ranking = JudgeRanking().fit(alpaca)
    assert len(ranking.scores_) == 103
    assert (ranking.ranking_["rank_high"] - ranking.ranking_["rank_low"]).median() < 30
