"""`JudgeRanking` as its users meet it."""

import pickle
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from judge_rank_helpers import votes, votes_of
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from assay._core.errors import InputError
from assay.evaluate import JudgeRanking

SCORES = [1.0, 0.4, 0.0, -0.5, -0.9]
GAMMA = [2.0, 1.0, 0.5]


@pytest.fixture(scope="module")
def drawn():
    return votes_of(SCORES, GAMMA, 3000, seed=0, ties=0.1)


@pytest.fixture(scope="module")
def ranking(drawn):
    return JudgeRanking().fit(drawn)


# --- results --------------------------------------------------------------------------------------------------------


def test_two_models_one_judge_has_the_closed_form():
    ranking = JudgeRanking(prior_sd=None).fit(votes(a_wins=30, b_wins=10))
    assert ranking.scores_["a"] - ranking.scores_["b"] == pytest.approx(np.log(3), abs=1e-8)


def test_a_tie_counts_as_half_a_win_each_way():
    ranking = JudgeRanking().fit(votes(a_wins=20, ties=20))
    assert ranking.scores_["a"] - ranking.scores_["b"] == pytest.approx(np.log(3), abs=1e-8)


def test_the_ranking_is_sorted_best_first_and_its_intervals_hold_the_score(ranking):
    table = ranking.ranking_
    assert list(table) == ["model", "score", "se", "low", "high", "rank", "rank_low", "rank_high"]
    assert table["model"].tolist() == ["m0", "m1", "m2", "m3", "m4"]
    assert table["rank"].tolist() == [1, 2, 3, 4, 5]
    assert (table["high"] - table["low"]).to_numpy() == pytest.approx(2 * 1.959964 * table["se"], rel=1e-6)
    assert table["rank"].between(table["rank_low"], table["rank_high"]).all()


def test_the_judges_are_sorted_by_discrimination_and_their_votes_counted(ranking, drawn):
    table = ranking.judges_
    assert list(table) == ["judge", "discrimination", "low", "high", "n_votes", "at_boundary"]
    assert table["judge"].tolist() == ["j0", "j1", "j2"]
    assert table.set_index("judge")["n_votes"].to_dict() == drawn["judge"].value_counts().to_dict()
    assert not table["at_boundary"].any()


def test_the_interval_of_a_discrimination_is_symmetric_on_the_log_scale_and_stays_above_zero():
    weak = votes_of(SCORES, [3.0, 0.02], 300, seed=1)
    table = JudgeRanking().fit(weak).judges_
    assert (table["low"] > 0).all()
    assert (table["low"] * table["high"]).to_numpy() == pytest.approx(table["discrimination"] ** 2)


def test_scores_sum_to_zero_and_discriminations_have_geometric_mean_one(ranking):
    assert abs(ranking.scores_.sum()) < 1e-12
    assert abs(np.log(ranking.discrimination_).mean()) < 1e-12


def test_the_covariance_holds_the_errors_of_the_ranking(ranking):
    errors = ranking.ranking_.set_index("model")["se"][ranking.scores_.index]
    assert np.sqrt(np.diag(ranking.covariance_)[:5]) == pytest.approx(errors.to_numpy())


def test_votes_without_a_judge_column_are_pooled_as_bradley_terry(drawn):
    blind = JudgeRanking(prior_sd=None).fit(drawn.drop(columns="judge"), judge=None)
    one_judge = JudgeRanking(prior_sd=None).fit(drawn.assign(judge="everyone"))
    assert blind.scores_.to_numpy() == pytest.approx(one_judge.scores_.to_numpy(), abs=1e-12)
    assert blind.judges_["judge"].tolist() == ["all votes"]
    assert blind.judges_["discrimination"].tolist() == [1.0]


def test_the_judge_blind_log_likelihood_is_kept_beside_the_judge_aware_one(ranking, drawn):
    blind = JudgeRanking().fit(drawn, judge=None)
    assert ranking.log_likelihood_pooled_ == pytest.approx(blind.log_likelihood_, abs=1e-9)
    assert ranking.log_likelihood_ > blind.log_likelihood_


def test_simultaneous_rank_intervals_are_at_least_as_wide(drawn, ranking):
    wide = JudgeRanking(simultaneous=True).fit(drawn).ranking_
    assert (wide["rank_low"] <= ranking.ranking_["rank_low"]).all()
    assert (wide["rank_high"] >= ranking.ranking_["rank_high"]).all()


def test_a_prior_on_the_scores_keeps_an_unbeaten_model_finite():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ranking = JudgeRanking(prior_sd_score=2.0).fit(votes(a_wins=20))
    assert 0 < ranking.scores_["a"] < 4


def test_a_judge_who_always_says_the_first_gets_a_small_discrimination():
    fair = votes_of(SCORES, [1.5, 1.0], 2000, seed=2)
    lazy = votes_of(SCORES, [1.0], 1000, seed=3).assign(judge="lazy", winner="model_a")
    with_it = JudgeRanking().fit(pd.concat([fair, lazy]))
    lowest = with_it.judges_.iloc[-1]
    assert lowest["judge"] == "lazy"
    assert lowest["discrimination"] < 0.2 * with_it.judges_["discrimination"].iloc[0]


def test_names_with_commas_quotes_and_other_alphabets_are_kept():
    names = {"a": 'gpt, "large"', "b": "модель-Ω"}
    frame = votes(a_wins=3, b_wins=2, judge="裁判's").replace({"model_a": names, "model_b": names})
    ranking = JudgeRanking().fit(frame)
    assert ranking.ranking_["model"].tolist() == ['gpt, "large"', "модель-Ω"]
    assert ranking.judges_["judge"].tolist() == ["裁判's"]


def test_other_column_names_can_be_given(drawn, ranking):
    renamed = drawn.rename(columns={"model_a": "left", "model_b": "right", "judge": "who", "winner": "verdict"})
    other = JudgeRanking().fit(renamed, model_a="left", model_b="right", judge="who", winner="verdict")
    assert other.scores_.equals(ranking.scores_)


def test_numbers_categories_and_objects_are_names_too(drawn, ranking):
    other = drawn.assign(
        model_a=drawn["model_a"].str[1:].astype(int),
        model_b=drawn["model_b"].str[1:].astype(int),
        judge=drawn["judge"].astype("category"),
        winner=drawn["winner"].astype(object),
    )
    assert JudgeRanking().fit(other).scores_.to_numpy() == pytest.approx(ranking.scores_.to_numpy(), abs=1e-12)


def test_the_winner_may_be_the_share_of_the_first_model(drawn, ranking):
    share = drawn["winner"].map({"model_a": 1.0, "model_b": 0.0, "tie": 0.5})
    assert JudgeRanking().fit(drawn.assign(winner=share)).scores_.equals(ranking.scores_)


def test_unknown_and_empty_verdicts_are_left_out_and_counted(drawn, ranking):
    more = pd.concat([drawn, drawn.head(7).assign(winner="unknown"), drawn.head(3).assign(winner=None)])
    other = JudgeRanking().fit(more)
    assert other.n_dropped_ == 10
    assert other.n_votes_ == len(drawn)
    assert other.scores_.to_numpy() == pytest.approx(ranking.scores_.to_numpy(), abs=1e-12)


# --- comparisons and predictions ------------------------------------------------------------------------------------


def test_compare_tests_the_difference_of_two_scores(ranking):
    found = ranking.compare("m0", "m3")
    assert found.difference == pytest.approx(ranking.scores_["m0"] - ranking.scores_["m3"])
    c = ranking.covariance_
    assert found.se == pytest.approx(np.sqrt(c[0, 0] + c[3, 3] - 2 * c[0, 3]))
    assert found.p == pytest.approx(2 * stats.norm.sf(abs(found.z)))
    assert ranking.compare("m3", "m0").z == pytest.approx(-found.z)


def test_a_judge_blind_comparison_is_the_wald_test(drawn):
    found = JudgeRanking().fit(drawn, judge=None).compare("m1", "m2")
    assert found.z == pytest.approx(found.difference / found.se)


def test_pairs_holds_every_pair_once_with_the_better_model_first(ranking):
    table = ranking.pairs()
    assert len(table) == 10
    assert (table["difference"] >= 0).all()
    row = table.set_index(["model_a", "model_b"]).loc[("m0", "m3")]
    assert row["p"] == pytest.approx(ranking.compare("m0", "m3").p)
    assert row["high"] - row["low"] == pytest.approx(2 * 1.959964 * row["se"], rel=1e-6)


def test_rank_intervals_agree_with_the_tests_of_the_pairs(ranking):
    pairs = ranking.pairs()
    for row in ranking.ranking_.itertuples():
        worse = ((pairs["model_a"] == row.model) & (pairs["p"] < 0.05)).sum()
        better = ((pairs["model_b"] == row.model) & (pairs["p"] < 0.05)).sum()
        assert (row.rank_low, row.rank_high) == (1 + better, 5 - worse)


def test_the_probability_follows_the_model(ranking):
    s, gamma = ranking.scores_, ranking.discrimination_
    expected = 1 / (1 + np.exp(-gamma["j2"] * (s["m0"] - s["m1"])))
    assert ranking.predict_proba("m0", "m1", judge="j2") == pytest.approx(expected)
    assert ranking.predict_proba("m0", "m1") == pytest.approx(1 / (1 + np.exp(-(s["m0"] - s["m1"]))))


def test_probabilities_come_for_whole_columns(ranking, drawn):
    p = ranking.predict_proba(drawn["model_a"], drawn["model_b"], judge=drawn["judge"])
    first = drawn.iloc[0]
    assert p.shape == (3000,)
    assert p[0] == ranking.predict_proba(first["model_a"], first["model_b"], judge=first["judge"])


def test_the_score_of_the_training_votes_is_their_mean_log_likelihood(ranking, drawn):
    assert ranking.score(drawn) == pytest.approx(ranking.log_likelihood_ / 3000)


def test_the_score_is_the_mean_log_probability_of_the_verdicts_with_ties_as_half(ranking):
    held_out = votes_of(SCORES, GAMMA, 50, seed=9, ties=0.3)
    p = ranking.predict_proba(held_out["model_a"], held_out["model_b"], judge=held_out["judge"])
    y = held_out["winner"].map({"model_a": 1.0, "model_b": 0.0, "tie": 0.5}).to_numpy()
    assert ranking.score(held_out) == pytest.approx(np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)))


def test_held_out_votes_are_predicted_better_by_knowing_the_judges(drawn):
    held_out = votes_of(SCORES, GAMMA, 20_000, seed=10, ties=0.1)
    aware, blind = JudgeRanking().fit(drawn), JudgeRanking().fit(drawn, judge=None)
    assert aware.score(held_out) > blind.score(held_out)


# --- the scikit-learn contract --------------------------------------------------------------------------------------


def test_parameters_are_stored_as_given_and_cloned():
    ranking = JudgeRanking(prior_sd=1.0, signed=True, cov="sandwich", confidence=0.9)
    assert clone(ranking).get_params() == ranking.get_params()
    assert ranking.set_params(prior_sd=None).prior_sd is None


def test_fitting_twice_gives_the_same(drawn, ranking):
    assert JudgeRanking().fit(drawn).ranking_.equals(ranking.ranking_)


def test_a_pickled_ranking_gives_identical_outputs(ranking):
    again = pickle.loads(pickle.dumps(ranking))
    assert again.ranking_.equals(ranking.ranking_)
    assert again.judges_.equals(ranking.judges_)
    assert again.pairs().equals(ranking.pairs())
    assert again.predict_proba("m0", "m4", "j1") == ranking.predict_proba("m0", "m4", "j1")


def test_fit_leaves_the_votes_as_they_were():
    frame = votes(a_wins=3, b_wins=2)
    before = frame.copy()
    JudgeRanking().fit(frame)
    pd.testing.assert_frame_equal(frame, before)


def test_importing_the_family_loads_neither_pandas_nor_matplotlib():
    code = (
        "import sys, assay.evaluate; print(any(m in sys.modules for m in ('pandas', 'matplotlib', 'sklearn', 'torch')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_fitting_does_not_load_matplotlib():
    code = (
        "import sys, pandas as pd; from assay.evaluate import JudgeRanking\n"
        "f = pd.DataFrame({'model_a': ['x'] * 3, 'model_b': ['y'] * 3, 'judge': 'k', 'winner': ['a', 'b', 'c']})\n"
        "JudgeRanking().fit(f).summary(); print('matplotlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- warnings -------------------------------------------------------------------------------------------------------


def test_a_model_that_wins_every_vote_is_named_with_the_way_out():
    with pytest.warns(UserWarning, match=r"'a' won, and 'b' lost, every vote .*prior_sd_score=2"):
        JudgeRanking().fit(votes(a_wins=20))


def test_a_group_that_wins_every_vote_against_the_rest_is_named_too():
    frame = votes_of([0.2, 0.0, -0.2], [1.0], 60, seed=5)
    frame = pd.concat([frame, votes_of([0.1, -0.1], [1.0], 60, seed=6).replace({"m0": "n0", "m1": "n1"})])
    bridge = pd.DataFrame({"model_a": ["n0"] * 5, "model_b": ["m0"] * 5, "judge": "j0", "winner": "model_a"})
    with pytest.warns(UserWarning, match="'n0', 'n1' won, and 'm0', 'm1', 'm2' lost"):
        JudgeRanking().fit(pd.concat([frame, bridge]))


def test_ordinary_votes_raise_no_warning(drawn):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        JudgeRanking(prior_sd=None).fit(drawn)


def test_an_inverted_judge_under_pure_maximum_likelihood_does_not_return_silently():
    frame = votes_of(np.linspace(1, -1, 6), [2.0, 1.0, 0.5, -0.7], 6000, seed=7)
    with pytest.warns(UserWarning, match="no finite discrimination fits the votes of 'j3' .*signed=True"):
        ranking = JudgeRanking(prior_sd=None).fit(frame)
    row = ranking.judges_.iloc[-1]
    assert (row["judge"], bool(row["at_boundary"]), row["low"], row["high"]) == ("j3", True, 0.0, np.inf)


def test_signed_gives_an_inverted_judge_a_negative_discrimination():
    frame = votes_of(np.linspace(1, -1, 6), [2.0, 1.0, 0.5, -0.7], 6000, seed=7)
    judges = JudgeRanking(signed=True).fit(frame).judges_.set_index("judge")
    assert judges.loc["j3", "high"] < 0
    assert judges["discrimination"].abs().mean() == pytest.approx(1.0)


def test_a_fit_that_stops_early_says_so(drawn):
    with pytest.warns(ConvergenceWarning, match="did not converge in 1 iterations"):
        assert not JudgeRanking(max_iter=1).fit(drawn).converged_


def test_a_judge_without_any_verdict_is_left_out_with_a_message(drawn):
    silent = drawn.head(5).assign(judge="silent", winner="unknown")
    with pytest.warns(UserWarning, match="judge 'silent' has no vote with a verdict and is left out"):
        assert "silent" not in JudgeRanking().fit(pd.concat([drawn, silent])).discrimination_


def test_a_judge_whose_discrimination_cannot_be_told_from_a_model_is_named(drawn):
    alone = votes(a_wins=30, b_wins=10, judge="alone").replace({"model_a": {"a": "m0"}, "model_b": {"b": "new"}})
    with pytest.warns(UserWarning, match="do not tell the discrimination of 'alone' from the scores"):
        JudgeRanking().fit(pd.concat([drawn, alone]))


@pytest.mark.parametrize("prior_sd", [2.0, None])
def test_a_judge_of_one_isolated_pair_leaves_the_order_of_the_others_as_certain(drawn, ranking, prior_sd):
    alone = votes(a_wins=30, b_wins=10, judge="alone").replace({"model_a": {"a": "m0"}, "model_b": {"b": "new"}})
    with pytest.warns(UserWarning, match="do not tell"):
        pairs = JudgeRanking(prior_sd=prior_sd).fit(pd.concat([drawn, alone])).pairs().set_index(["model_a", "model_b"])
    assert pairs.loc[("m0", "m3"), "z"] == pytest.approx(ranking.compare("m0", "m3").z, rel=0.05)


# --- bad input ------------------------------------------------------------------------------------------------------


def message(frame, **arguments):
    with pytest.raises(InputError) as caught:
        JudgeRanking().fit(frame, **arguments)
    return str(caught.value)


def test_groups_that_were_never_compared_are_listed():
    other = votes(a_wins=3, b_wins=2).replace({"a": "x", "b": "y"})
    assert message(pd.concat([votes(a_wins=3, b_wins=2), other])) == (
        "votes: the models fall into 2 groups that were never compared with each other: 'a', 'b' | 'x', 'y'; add votes "
        "between the groups, or rank each group alone"
    )


def test_a_model_compared_with_itself_is_an_error():
    frame = votes(a_wins=3, b_wins=2)
    frame.loc[1, "model_b"] = "a"
    assert message(frame) == "votes, row 2: 'a' is compared with itself; remove these rows"


def test_one_model_is_not_a_ranking():
    frame = votes(a_wins=3).assign(model_b="a")
    assert message(frame) == "votes name one model, 'a'; a ranking needs at least two"


def test_a_label_that_is_not_understood_is_shown():
    frame = votes(a_wins=3, b_wins=2)
    frame.loc[2, "winner"] = "left"
    assert message(frame) == (
        "votes, row 3, column 'winner': 'left' is not one of model_a, a, model_b, b, tie, tie (bothbad), both_bad, c, "
        "unknown; translate it with winner_map"
    )


def test_a_share_outside_zero_and_one_is_an_error():
    frame = votes(a_wins=3).assign(winner=[1.0, 0.0, 2.0])
    assert message(frame) == (
        "votes, row 3, column 'winner': 2.0 is not a share from 0 (b wins) to 1 (a wins); for labels give a winner_map"
    )


def test_a_missing_judge_is_an_error_that_offers_pooling():
    frame = votes(a_wins=3, b_wins=2)
    frame.loc[3, "judge"] = None
    assert message(frame) == (
        "votes, row 4, column 'judge': the cell is empty; name the judge, or pool all votes: judge=None"
    )


def test_a_missing_judge_does_not_matter_when_votes_are_pooled():
    frame = votes(a_wins=3, b_wins=2)
    frame.loc[3, "judge"] = None
    assert JudgeRanking().fit(frame, judge=None).n_votes_ == 5


def test_a_missing_model_is_an_error():
    frame = votes(a_wins=3, b_wins=2)
    frame.loc[0, "model_b"] = None
    assert message(frame) == "votes, row 1, column 'model_b': the cell is empty; name the model"


def test_fewer_votes_than_parameters_are_an_error():
    frame = pd.DataFrame(
        {
            "model_a": ["a", "b", "c"],
            "model_b": ["b", "c", "d"],
            "judge": ["x", "y", "z"],
            "winner": ["a", "b", "a"],
        }
    )
    assert message(frame) == (
        "votes: 3 votes cannot determine 5 parameters (4 models, 3 judges); collect more votes, or pool the judges: "
        "judge=None"
    )


def test_more_models_than_fit_into_memory_are_refused_before_it_is_taken():
    n = 10_003
    frame = pd.DataFrame({"model_a": np.arange(n), "model_b": np.arange(1, n + 1), "judge": "j", "winner": "tie"})
    assert message(frame).startswith("votes: 10,004 models and 1 judges are more than the 10,000")


def test_a_missing_column_is_named_with_those_there_are():
    frame = votes(a_wins=3).drop(columns="model_b")
    assert message(frame) == "votes: no column 'model_b'; it has 'model_a', 'judge', 'winner'"


def test_a_missing_judge_column_offers_pooling():
    frame = votes(a_wins=3).drop(columns="judge")
    assert (
        message(frame) == "votes: no column 'judge' with the judge; name it with judge=, or pool all votes: judge=None"
    )


def test_a_frame_without_rows_is_an_error():
    assert message(votes()) == "votes has a header but no rows"


def test_votes_without_any_verdict_are_an_error():
    frame = votes(a_wins=3).assign(winner="unknown")
    assert message(frame) == "votes, column 'winner': none of the 3 rows has a verdict"


def test_something_that_is_no_frame_is_an_error():
    assert message("votes.csv") == "votes: expected a pandas DataFrame, got str; read_votes reads a file"


def test_a_cluster_without_the_sandwich_is_an_error():
    assert message(votes(a_wins=3).assign(prompt=1), cluster="prompt") == (
        "cluster 'prompt' needs cov='sandwich'; the Fisher covariance takes votes as independent"
    )


def test_a_missing_cluster_is_an_error():
    frame = votes(a_wins=3, b_wins=2).assign(prompt=["p", "q", None, "p", "q"])
    with pytest.raises(
        InputError, match=r"votes, row 3, column 'prompt': the cell is empty; give every vote a cluster"
    ):
        JudgeRanking(cov="sandwich").fit(frame, cluster="prompt")


def test_too_few_clusters_are_an_error():
    frame = votes_of(SCORES, GAMMA, 200, seed=0).assign(prompt=[0, 1] * 100)
    with pytest.raises(InputError, match="cluster: 2 clusters are too few for the covariance of 6 parameters"):
        JudgeRanking(cov="sandwich").fit(frame, cluster="prompt")


@pytest.mark.parametrize(
    ("parameters", "start"),
    [
        ({"prior_sd": 0}, "prior_sd=0: expected a number above zero, or None"),
        ({"prior_sd_score": -1.0}, "prior_sd_score=-1.0: expected a number above zero, or None"),
        ({"cov": "hessian"}, "cov='hessian': expected 'fisher' or 'sandwich'"),
        ({"confidence": 95}, "confidence=95: expected a number between 0 and 1"),
    ],
)
def test_a_parameter_out_of_range_is_an_error(parameters, start):
    with pytest.raises(InputError) as caught:
        JudgeRanking(**parameters).fit(votes(a_wins=3, b_wins=2))
    assert str(caught.value).startswith(start)


def test_an_unknown_model_or_judge_is_named(ranking):
    with pytest.raises(InputError, match="model 'm9' is not among the models of this ranking: 'm0', 'm1'"):
        ranking.compare("m0", "m9")
    with pytest.raises(InputError, match="judge 'j9' is not among the judges of this ranking: 'j0', 'j1'"):
        ranking.predict_proba("m0", "m1", judge="j9")


# --- what people see ------------------------------------------------------------------------------------------------


def test_the_summary_shows_both_tables_and_both_likelihoods(ranking):
    text = ranking.summary()
    assert text.startswith("5 models, 3 judges, 3000 votes\nlog-likelihood -")
    assert f"judge-blind {ranking.log_likelihood_pooled_:.2f} with 2 parameters fewer" in text
    assert "rank_low" in text
    assert "discrimination" in text


def test_the_plot_of_the_ranking_shows_every_model_best_on_top(ranking):
    ax = ranking.plot()
    labels = {label.get_text(): y for label, y in zip(ax.get_yticklabels(), ax.get_yticks(), strict=True)}
    assert max(labels, key=labels.get) == "m0"
    assert "log-odds" in ax.get_xlabel()
    ax.figure.canvas.draw()


def test_the_plot_of_the_judges_marks_those_without_a_finite_estimate():
    frame = votes_of(np.linspace(1, -1, 6), [2.0, 1.0, 0.5, -0.7], 6000, seed=7)
    with pytest.warns(UserWarning, match="no finite"):
        ax = JudgeRanking(prior_sd=None).fit(frame).plot_judges()
    assert ax.get_xscale() == "log"
    assert ax.get_legend().get_texts()[0].get_text() == "no finite estimate"
    ax.figure.canvas.draw()


def test_a_signed_plot_has_a_linear_axis_with_zero_in_it():
    frame = votes_of(np.linspace(1, -1, 6), [2.0, 1.0, 0.5, -0.7], 6000, seed=7)
    ax = JudgeRanking(signed=True).fit(frame).plot_judges()
    assert ax.get_xscale() == "linear"
    assert ax.get_xlim()[0] < 0 < ax.get_xlim()[1]


def test_a_name_that_looks_like_a_formula_is_drawn_as_it_is():
    frame = votes(a_wins=3, b_wins=2).replace({"a": r"$\nosuch$"})
    JudgeRanking().fit(frame).plot().figure.canvas.draw()


@pytest.fixture(autouse=True)
def _close_figures():
    import matplotlib

    matplotlib.use("Agg")
    yield
    from matplotlib import pyplot as plt

    plt.close("all")
