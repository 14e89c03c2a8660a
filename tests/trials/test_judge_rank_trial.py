"""The trial of judge-rank: its cases are what they say, its arms are the real thing, and it gives a verdict."""

import numpy as np
import pandas as pd
import pytest

from assay import bench
from assay._core.errors import InputError
from assay.trials.evaluate import judge_rank as trial

VOTES, SIMULATED = trial.TRIAL.also


@pytest.fixture(scope="module")
def digits():
    return trial.train_classifiers(None, "quick", trial.TRIAL.params).value


def some_votes(n=400, n_prompts=80, seed=0):
    """A frame as a user brings it: four models, two judges, several votes on each prompt."""
    rng = np.random.default_rng(seed)
    a, b = np.array([rng.choice(4, 2, replace=False) for _ in range(n)]).T
    wins = rng.random(n) < 1 / (1 + np.exp(a - b))
    return pd.DataFrame(
        {
            "question_id": rng.integers(n_prompts, size=n),
            "model_a": np.char.add("model ", a.astype(str)),
            "model_b": np.char.add("model ", b.astype(str)),
            "judge": rng.choice(["x", "y"], n),
            "winner": np.where(wins, "model_a", "model_b"),
        }
    )


def test_the_classifiers_differ_and_the_truth_is_their_accuracy(digits):
    correct, _ = digits
    assert correct.shape == (1079, 14)
    assert correct.mean().between(0.3, 0.99).all()
    assert correct.mean().nunique() > 10


def test_a_thorough_judge_sides_with_the_better_classifier_more_often(digits):
    correct, _ = digits
    votes = trial.panel_votes(correct, 8_000, np.random.default_rng(0))
    lead = np.sign(votes["model_a"].map(correct.mean()) - votes["model_b"].map(correct.mean()))
    sided = (np.sign(votes["share"] - 0.5) == lead).groupby(votes["judge"]).mean()
    assert sided.filter(like="60 digits").min() > sided.filter(like="(1 digits").max() + 0.3


def test_each_judge_of_the_panel_casts_the_same_number_of_votes(digits):
    correct, _ = digits
    votes = trial.panel_votes(correct, 800, np.random.default_rng(0))
    assert votes["judge"].value_counts().tolist() == [100] * 8


def test_the_same_seed_gives_the_same_cases_and_a_longer_run_starts_with_them(digits):
    short, long = (list(trial.judged_digits(digits, n, seed=1)) for n in (2, 3))
    for one, other in zip(short, long, strict=False):
        pd.testing.assert_frame_equal(one.given, other.given)


def test_no_prompt_is_both_learned_from_and_foreseen():
    votes = trial.read_votes(some_votes())
    order = []
    for case in trial.folds(votes, 8, seed=0):
        known, asked = case.given
        assert len(known) + len(asked) == len(votes)
        known_prompts = set(known["cluster"])
        rest = votes[~votes["cluster"].isin(known_prompts)]
        assert len(rest) == len(asked) == len(case.truth)
        order += rest.index.tolist()
    assert sorted(order) == list(range(len(votes)))


def test_an_arm_does_not_see_the_votes_it_is_asked_for():
    case = next(iter(trial.folds(trial.read_votes(some_votes()), 8, seed=0)))
    assert list(case.given.questions.columns) == ["model_a", "model_b", "judge"]


def test_saying_a_half_always_costs_log_two():
    case = bench.Case("fold", None, np.array([1.0, 0.0, 0.5]))
    assert trial.held_out_loss(case, np.full(3, 0.5))["log_loss"] == pytest.approx(np.log(2), abs=1e-12)


def test_choix_and_our_own_judge_blind_fit_agree():
    votes = trial.read_votes(some_votes(n=2_000))
    ours = trial.judge_blind(votes, 0)
    theirs = trial.choix_scores(votes, alpha=0.0)
    np.testing.assert_allclose(ours, theirs[ours.index], atol=1e-5)


def test_elo_gives_and_takes_the_same():
    ratings = trial.elo(trial.read_votes(some_votes()), 0)
    assert ratings.mean() == pytest.approx(1500, abs=1e-9)
    assert ratings.idxmax() == "model 0"


def test_a_win_counts_for_one_and_against_the_other():
    votes = pd.DataFrame({"model_a": ["x", "x"], "model_b": ["y", "y"], "judge": "j", "share": [1.0, 0.5]})
    assert trial.win_rate(votes, 0).to_dict() == {"x": 0.75, "y": 0.25}


def test_a_judge_blind_fit_is_given_the_scale_of_the_truth():
    truth = pd.Series([-1.0, 1.0], ["x", "y"])
    scores = trial.Scores(truth / 10, truth / 10 - 0.01, truth / 10 + 0.01, own_scale=True)
    assert trial.agreement_and_coverage(bench.Case("c", None, truth), scores)["ci_coverage"] == 1.0
    assert trial.agreement_and_coverage(bench.Case("c", None, truth), scores._replace(own_scale=False)) == {
        "kendall_tau": pytest.approx(1.0),
        "ci_coverage": 0.0,
    }


def test_on_the_users_votes_only_the_part_for_votes_runs(tmp_path):
    some_votes().to_csv(tmp_path / "votes.csv", index=False)
    result = bench.run("judge-rank", data=tmp_path / "votes.csv", cases=6, out=tmp_path / "run", progress=False)
    assert (result.part, result.also, result.skipped) == ("votes", (), ())
    assert result.failures == ()
    assert result.data.n == 400
    assert result.verdict.n_cases == 6


def test_without_the_arena_votes_that_part_is_named_and_the_others_run(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path / "nothing"))
    result = bench.run("judge-rank", cases=6, out=tmp_path / "run", progress=False)
    assert result.also == ("simulated",)
    assert [skipped.part for skipped in result.skipped] == ["votes"]
    assert "run assay data get judge-votes-arena" in result.skipped[0].reason
    assert result.failures == ()
    assert "left out: part votes" in result.summary()


def test_votes_that_cannot_be_read_stop_the_run_and_leave_no_folder(tmp_path):
    (tmp_path / "votes.csv").write_text("model_a,model_b,judge,winner\n")
    with pytest.raises(InputError, match=r"votes\.csv has a header but no rows$"):
        bench.run("judge-rank", data=tmp_path / "votes.csv", out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_the_arena_votes_are_foreseen_better_with_a_model_of_the_judges(tmp_path, real_data):
    result = bench.run(VOTES, cases=6, out=tmp_path / "run", progress=False)
    assert result.failures == ()
    method, *baselines = (arm.metrics["log_loss"].mean for arm in result.arms)
    assert method < min(baselines)
