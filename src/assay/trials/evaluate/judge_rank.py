"""judge-rank beside Bradley–Terry that treats all judges alike, Elo and win rates.

Three parts. The main one has real comparisons and a known truth: fourteen classifiers of handwritten digits are ranked
by judges who compare them on 1 or on 60 digits at a time; the truth is their accuracy on all held-out digits.
`votes` has no truth but the votes themselves (a user's, or Chatbot Arena's): which ranking foresees held-out votes?
`simulated` draws votes from the paper's own model and asks whether 95 % intervals hold the truth 95 % of the time.
"""

from __future__ import annotations

from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import choix
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit, xlogy
from scipy.stats import kendalltau
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

from assay._core.seeds import child_seed
from assay.bench import Arm, Case, Claim, Data, Metric, Trial
from assay.evaluate import JudgeRanking
from assay.evaluate.judge_rank import read_votes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale

Array = NDArray[np.float64]

# ------------------------------------------------------------------------------------------------- ranking models
# Each gets tidy votes (model_a, model_b, judge, share: 1 if a wins, 0.5 for a tie) and returns scores by model.


def judge_aware(votes: pd.DataFrame, seed: int) -> pd.Series[float]:
    return JudgeRanking().fit(votes).scores_


def judge_blind(votes: pd.DataFrame, seed: int) -> pd.Series[float]:
    return JudgeRanking().fit(votes, judge=None).scores_


def choix_bradley_terry(votes: pd.DataFrame, seed: int) -> pd.Series[float]:
    """Bradley–Terry by choix, its regularisation chosen on a fifth of the votes."""
    held_out = np.random.default_rng(seed).random(len(votes)) < 0.2

    def loss(alpha: float) -> float:
        predicted = win_probability(choix_scores(votes[~held_out], alpha), votes[held_out])
        return log_loss(votes.loc[held_out, "share"], predicted)

    return choix_scores(votes, min((1e-4, 1e-3, 1e-2, 1e-1), key=loss))


def agreement_weighted(votes: pd.DataFrame, seed: int) -> pd.Series[float]:
    """The usual remedy by hand: weigh each judge by how much more often than a coin it agrees with all together."""
    expected = win_probability(choix_bradley_terry(votes, seed), votes) > 0.5
    decisive = votes["share"] != 0.5
    agrees = (votes["share"] > 0.5) == expected
    agreement = agrees[decisive].groupby(votes.loc[decisive, "judge"]).mean()
    weight = votes["judge"].map((2 * agreement - 1).clip(lower=0.01)).fillna(0.01)
    return choix_scores(votes, 1e-3, weight / weight.mean())


def choix_scores(votes: pd.DataFrame, alpha: float, weight: pd.Series[float] | float = 1.0) -> pd.Series[float]:
    models = pd.Index(np.unique(votes[["model_a", "model_b"]]))
    first, second = models.get_indexer(votes["model_a"]), models.get_indexer(votes["model_b"])
    wins = np.zeros((len(models), len(models)))
    np.add.at(wins, (first, second), weight * votes["share"])
    np.add.at(wins, (second, first), weight * (1 - votes["share"]))
    return pd.Series(choix.ilsr_pairwise_dense(wins, alpha=alpha), models)


def elo(votes: pd.DataFrame, seed: int) -> pd.Series[float]:
    """Elo in the order of the votes: 1500 to start with, K = 32, as chess and the first LLM arenas do it."""
    ratings = dict.fromkeys(np.unique(votes[["model_a", "model_b"]]), 1500.0)
    for a, b, share in votes[["model_a", "model_b", "share"]].itertuples(index=False):
        gain = 32 * (share - 1 / (1 + 10 ** ((ratings[b] - ratings[a]) / 400)))
        ratings[a], ratings[b] = ratings[a] + gain, ratings[b] - gain
    return pd.Series(ratings)


def win_rate(votes: pd.DataFrame, seed: int) -> pd.Series[float]:
    as_a = votes[["model_a", "share"]].set_axis(["model", "share"], axis=1)
    as_b = votes[["model_b"]].set_axis(["model"], axis=1).assign(share=1 - votes["share"])
    return pd.concat([as_a, as_b]).groupby("model")["share"].mean()


def win_probability(scores: pd.Series[float], votes: pd.DataFrame) -> Array:
    difference = votes["model_a"].map(scores) - votes["model_b"].map(scores)
    return np.asarray(expit(difference), dtype=np.float64)


def log_loss(share: pd.Series[float] | Array, predicted: Array) -> float:
    """Mean negative log-likelihood of a vote in nats; a tie counts as half a win each way."""
    return float(-np.mean(xlogy(share, predicted) + xlogy(1 - np.asarray(share), 1 - predicted)))


# ------------------------------------------------------------------------- main part: real comparisons, known truth


def train_classifiers(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    """Fourteen classifiers from poor to good, and which held-out digits each gets right."""
    digits, labels = load_digits(return_X_y=True)
    train, test, train_labels, test_labels = train_test_split(
        digits, labels, train_size=0.4, stratify=labels, random_state=0
    )
    classifiers = {
        **{f"tree, depth {d}": DecisionTreeClassifier(max_depth=d, random_state=0) for d in (3, 4, 5, 6, 8)},
        "naive Bayes": GaussianNB(),
        **{f"{k} nearest neighbours": KNeighborsClassifier(k) for k in (150, 60, 5)},
        **{f"logistic regression, C={c:g}": LogisticRegression(C=c, max_iter=2000) for c in (1e-4, 1e-2)},
        "forest of 5": RandomForestClassifier(5, random_state=0),
        "forest of 20, depth 5": RandomForestClassifier(20, max_depth=5, random_state=0),
        "forest of 100": RandomForestClassifier(100, random_state=0),
    }
    correct = pd.DataFrame(
        {name: model.fit(train, train_labels).predict(test) == test_labels for name, model in classifiers.items()}
    )
    comparisons = int(params["comparisons"])
    return Data("14 classifiers of handwritten digits (scikit-learn)", len(correct), (correct, comparisons))


#: Digits that each judge looks at for one vote: six careless judges and two thorough ones, equally busy.
PANEL = (1, 1, 1, 1, 1, 1, 60, 60)


def judged_digits(data: tuple[pd.DataFrame, int], n: int, seed: int) -> Iterator[Case]:
    correct, comparisons = data
    accuracy = correct.mean()
    for number in range(n):
        rng = np.random.default_rng(child_seed(seed, "digits", number))
        yield Case(f"panel {number + 1}", panel_votes(correct, comparisons, rng), accuracy)


def panel_votes(correct: pd.DataFrame, comparisons: int, rng: np.random.Generator) -> pd.DataFrame:
    """Votes of the panel: each prefers the classifier with more correct answers on the digits it drew."""
    right = correct.to_numpy()
    judges = np.arange(comparisons) % len(PANEL)
    pairs = np.array([rng.choice(right.shape[1], 2, replace=False) for _ in range(comparisons)])
    lead = np.empty(comparisons)
    for judge, n_digits in enumerate(PANEL):
        mine = judges == judge
        drawn = rng.integers(len(right), size=(int(mine.sum()), n_digits))
        a, b = pairs[mine, :1], pairs[mine, 1:]
        lead[mine] = right[drawn, a].sum(axis=1) - right[drawn, b].sum(axis=1).astype(float)
    names = correct.columns.to_numpy()
    return pd.DataFrame(
        {
            "model_a": names[pairs[:, 0]],
            "model_b": names[pairs[:, 1]],
            "judge": [f"judge {judge + 1} ({PANEL[judge]} digits)" for judge in judges],
            "share": (np.sign(lead) + 1) / 2,
        }
    ).sample(frac=1, random_state=rng, ignore_index=True)


def rank_agreement(case: Case, scores: pd.Series[float]) -> dict[str, float]:
    return {"kendall_tau": float(kendalltau(scores[case.truth.index], case.truth).statistic)}


# ------------------------------------------------------------------------------------- votes: no truth but the votes


class Fold(NamedTuple):
    """What an arm sees of a fold: the votes to learn from, and the questions (without votes) to foresee."""

    votes: pd.DataFrame
    questions: pd.DataFrame


def load_votes(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    if path is None:
        from assay.datasets import load_judge_votes

        votes = read_votes(load_judge_votes("arena"))
        return Data("10 judges on Chatbot Arena answers of 20 models", len(votes), votes)
    votes = read_votes(path)
    return Data(Path(path).name, len(votes), votes, path)


def folds(votes: pd.DataFrame, n: int, seed: int) -> Iterator[Case]:
    """Disjoint folds; all votes on one prompt stay together, so that no fold is foreseen from its own prompts."""
    groups = votes["cluster"] if "cluster" in votes else pd.Series(np.arange(len(votes)))
    n_folds = min(n, groups.nunique())
    splitter = GroupKFold(n_folds, shuffle=True, random_state=seed % 2**32)
    for number, (train, test) in enumerate(splitter.split(votes, groups=groups)):
        known, questions = votes.iloc[train], votes.iloc[test]
        models = np.unique(known[["model_a", "model_b"]])
        questions = questions[questions[["model_a", "model_b"]].isin(models).all(axis=1)]
        given = Fold(known.reset_index(drop=True), questions[["model_a", "model_b", "judge"]].reset_index(drop=True))
        yield Case(f"fold {number + 1} of {n_folds}", given, questions["share"].to_numpy())


def foresee_judge_aware(fold: Fold, seed: int) -> Array:
    ranking = JudgeRanking().fit(fold.votes)
    difference = fold.questions["model_a"].map(ranking.scores_) - fold.questions["model_b"].map(ranking.scores_)
    discrimination = fold.questions["judge"].map(ranking.discrimination_).fillna(1.0)  # never seen: a typical judge
    return np.asarray(expit(discrimination * difference), dtype=np.float64)


def foresee_by_scores(rank: Any, fold: Fold, seed: int) -> Array:
    return win_probability(rank(fold.votes, seed), fold.questions)


def foresee_by_pair(fold: Fold, seed: int) -> Array:
    """How often a won against b so far, with one win added to either side."""
    votes = fold.votes
    mirrored = votes.rename(columns={"model_a": "model_b", "model_b": "model_a"}).assign(share=1 - votes["share"])
    record = pd.concat([votes, mirrored]).groupby(["model_a", "model_b"])["share"].agg(["sum", "size"])
    asked = pd.MultiIndex.from_frame(fold.questions[["model_a", "model_b"]])
    so_far = record.reindex(asked, fill_value=0)
    return ((so_far["sum"] + 1) / (so_far["size"] + 2)).to_numpy(dtype=np.float64)


def held_out_loss(case: Case, predicted: Array) -> dict[str, float]:
    leaning = case.truth != 0.5
    return {
        "log_loss": log_loss(case.truth, predicted),
        "accuracy": float(np.mean((predicted > 0.5)[leaning] == (case.truth > 0.5)[leaning])),
    }


# ------------------------------------------------------------------------- simulated: are the intervals honest?


class Scores(NamedTuple):
    """Estimates by model, with the ends of their 95 % intervals where the arm gives them."""

    estimate: pd.Series[float]
    low: pd.Series[float] | None = None
    high: pd.Series[float] | None = None
    own_scale: bool = False


def simulation(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    votes_per_pair = int(params["votes_per_pair"])
    n_votes = 45 * 6 * votes_per_pair
    return Data("10 models, 6 judges, votes drawn from the paper's model", n_votes, votes_per_pair)


def simulated_panels(votes_per_pair: int, n: int, seed: int) -> Iterator[Case]:
    names = [f"model {number}" for number in range(10)]
    truth = pd.Series(np.linspace(-1, 1, 10), names)
    discrimination = np.exp(np.linspace(-1.5, 1.5, 6))
    first, second = np.array(list(combinations(range(10), 2))).T
    pair, judge = (grid.ravel() for grid in np.meshgrid(np.arange(45), np.arange(6)))
    pair, judge = np.repeat(pair, votes_per_pair), np.repeat(judge, votes_per_pair)
    difference = truth.to_numpy()[first] - truth.to_numpy()[second]
    probability = expit(discrimination[judge] * difference[pair])
    for number in range(n):
        rng = np.random.default_rng(child_seed(seed, "simulated", number))
        votes = pd.DataFrame(
            {
                "model_a": np.array(names)[first[pair]],
                "model_b": np.array(names)[second[pair]],
                "judge": np.char.add("judge ", judge.astype(str)),
                "share": (rng.random(len(pair)) < probability).astype(float),
            }
        )
        yield Case(f"panel {number + 1}", votes, truth)


def scores_with_intervals(judge: str | None, votes: pd.DataFrame, seed: int) -> Scores:
    ranking = JudgeRanking().fit(votes, judge=judge).ranking_.set_index("model")
    return Scores(ranking["score"], ranking["low"], ranking["high"], own_scale=judge is None)


def scores_alone(rank: Any, votes: pd.DataFrame, seed: int) -> Scores:
    return Scores(rank(votes, seed))


def agreement_and_coverage(case: Case, scores: Scores) -> dict[str, float]:
    """Kendall's tau, and the share of models whose interval holds their true score.

    A judge-blind fit has a scale of its own; it is given the scale that fits the truth best before its intervals are
    judged, which favours it.
    """
    truth = case.truth
    found = rank_agreement(case, scores.estimate)
    if scores.low is None or scores.high is None:
        return found | {"ci_coverage": float("nan")}
    estimate = scores.estimate[truth.index]
    stretch = float(truth @ estimate / (estimate @ estimate)) if scores.own_scale else 1.0
    holds = (scores.low[truth.index] * stretch <= truth) & (truth <= scores.high[truth.index] * stretch)
    return found | {"ci_coverage": float(holds.mean())}


# ---------------------------------------------------------------------------------------------------- the trial

TAU = Metric("kendall_tau", better="higher", help="agreement with the true order: 1 the same, 0 unrelated")

TRIAL = Trial(
    slug="judge-rank",
    claim=Claim("orders models closer to the truth than rankings without a model of the judges", metric="kendall_tau"),
    load=train_classifiers,
    cases=judged_digits,
    arms=(
        Arm("judge-aware", judge_aware),
        Arm("Bradley–Terry (choix)", choix_bradley_terry, baseline=True),
        Arm("Bradley–Terry, judges weighted by agreement", agreement_weighted, baseline=True),
        Arm("Elo", elo, baseline=True),
        Arm("win rate", win_rate, baseline=True),
    ),
    metrics=(TAU,),
    score=rank_agreement,
    n_cases={"quick": 50, "standard": 200, "full": 500},
    params={"comparisons": 600},
    takes_data=False,
    tags=frozenset({"tour"}),
    also=(
        Trial(
            slug="judge-rank",
            part="votes",
            claim=Claim(
                "foresees held-out votes better than rankings without a model of the judges", metric="log_loss"
            ),
            load=load_votes,
            cases=folds,
            arms=(
                Arm("judge-aware", foresee_judge_aware),
                Arm("Bradley–Terry (choix)", partial(foresee_by_scores, choix_bradley_terry), baseline=True),
                Arm("Bradley–Terry (ours)", partial(foresee_by_scores, judge_blind), baseline=True),
                Arm("win rate of the pair", foresee_by_pair, baseline=True),
            ),
            metrics=(
                Metric("log_loss", better="lower", unit="nats", help="mean surprise at a held-out vote"),
                Metric("accuracy", better="higher", help="share of held-out decisive votes foreseen"),
            ),
            score=held_out_loss,
            n_cases={"quick": 10, "standard": 20, "full": 50},
        ),
        Trial(
            slug="judge-rank",
            part="simulated",
            claim=Claim("orders models closer to the truth, with honest intervals", metric="kendall_tau"),
            load=simulation,
            cases=simulated_panels,
            arms=(
                Arm("judge-aware", partial(scores_with_intervals, "judge")),
                Arm("Bradley–Terry (ours)", partial(scores_with_intervals, None), baseline=True),
                Arm("Bradley–Terry (choix)", partial(scores_alone, choix_bradley_terry), baseline=True),
            ),
            metrics=(TAU, Metric("ci_coverage", target=0.95, help="share of 95 % intervals that hold the true score")),
            score=agreement_and_coverage,
            n_cases={"quick": 40, "standard": 200, "full": 1000},
            params={"votes_per_pair": 2},
            takes_data=False,
        ),
    ),
)
