"""`JudgeRanking`: the estimator around the numeric part."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import pandas as pd
from scipy.special import expit
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from assay._core.errors import InputError
from assay.evaluate.judge_rank.checks import check_connected, check_size, warn_unbeaten
from assay.evaluate.judge_rank.covariance import Covariance
from assay.evaluate.judge_rank.covariance import covariance as estimate_covariance
from assay.evaluate.judge_rank.fit import Fit, Prior
from assay.evaluate.judge_rank.fit import fit as fit_scores
from assay.evaluate.judge_rank.intervals import judges_table, pairs_table, ranking_table, z_and_p
from assay.evaluate.judge_rank.likelihood import (
    Array,
    Cells,
    Indices,
    cells_of_votes,
    count_votes,
    log_likelihood,
    sums,
)
from assay.evaluate.judge_rank.votes import CodedVotes, code_votes, some_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Comparison:
    """A test of the difference between two models' scores.

    Parameters
    ----------
    model_a, model_b : str
    difference : float
        Score of a minus score of b (log-odds that a typical judge prefers a).
    se : float
        Standard error of the difference.
    z, p : float
        Wald statistic and two-sided p-value of "the scores are equal". This does not depend on the scale of the scores,
        so its uncertainty, which is in `se`, is left out: z is at least about difference / se, and equal to it for a
        judge-blind ranking.
    """

    model_a: str
    model_b: str
    difference: float
    se: float
    z: float
    p: float


class JudgeRanking(BaseEstimator):  # type: ignore[misc]  # scikit-learn is not typed
    r"""Rank models by pairwise votes of judges whose reliability differs.

    Judge k prefers model i to model j with probability sigmoid(gamma_k (s_i − s_j)). Scores s and discriminations
    gamma are learned together: sum of s zero, geometric mean of gamma one.

    Parameters
    ----------
    prior_sd : float or None, default 2.0
        Standard deviation of a normal prior on log gamma (on gamma when `signed`). None: pure maximum likelihood, as
        in the paper; it has no finite solution when a judge never errs or votes against the others on balance.
    prior_sd_score : float or None, default None
        Standard deviation of a normal prior on the scores; keeps a model finite that wins or loses every vote.
    signed : bool, default False
        Let a judge vote against the others (gamma < 0). The mean of \|gamma\| is one then.
    cov : {"fisher", "sandwich"}, default "fisher"
        "sandwich" stays right when votes are correlated (give `cluster` to `fit`) or do not follow the model.
    confidence : float, default 0.95
        Of every interval.
    simultaneous : bool, default False
        Let all rank intervals hold together (Bonferroni over the pairs).
    max_iter : int, default 200
    tol : float, default 1e-8
        Converged when no component of the gradient exceeds `tol` × number of votes.

    Attributes
    ----------
    scores_ : Series
        Score of every model, by name.
    discrimination_ : Series
        gamma of every judge, by name.
    ranking_ : DataFrame
        model, score, se, low, high, rank, rank_low, rank_high; best first.
    judges_ : DataFrame
        judge, discrimination, low, high, n_votes, at_boundary; most discriminating first. `at_boundary`: given the
        scores, the judge's own votes have no finite likelihood maximum. Where pure maximum likelihood drives such a
        judge to the bound, `low` and `high` are 0 and infinity and the others alone set the scale.
    covariance_ : (n_models + n_judges, n_models + n_judges) ndarray
        Of the scores in the order of `scores_` and of log gamma (gamma when `signed`) in the order of
        `discrimination_`. Infinite on the diagonal where the votes do not determine a parameter.
    log_likelihood_, log_likelihood_pooled_ : float
        In nats, of all votes; pooled: of the judge-blind fit to the same votes.
    n_votes_, n_dropped_ : int
        Votes used, and votes without a verdict.
    n_iter_ : int
    converged_ : bool

    References
    ----------
    Xu, Tan, Wu, Zhou: "A Judge-Aware Ranking Framework for Evaluating Large Language Models without Ground Truth",
    arXiv:2601.21817.

    Examples
    --------
    >>> votes = pd.DataFrame(
    ...     [("x", "y", "expert", "model_a")] * 9 + [("x", "y", "expert", "model_b")]
    ...     + [("x", "y", "novice", "model_a")] * 6 + [("x", "y", "novice", "model_b")] * 4,
    ...     columns=["model_a", "model_b", "judge", "winner"],
    ... )
    >>> ranking = JudgeRanking().fit(votes)
    >>> ranking.ranking_["model"].tolist(), ranking.judges_["judge"].tolist()
    (['x', 'y'], ['expert', 'novice'])
    """

    scores_: pd.Series[float]
    discrimination_: pd.Series[float]
    ranking_: pd.DataFrame
    judges_: pd.DataFrame
    covariance_: Array
    log_likelihood_: float
    log_likelihood_pooled_: float
    n_votes_: int
    n_dropped_: int
    n_iter_: int
    converged_: bool

    def __init__(
        self,
        prior_sd: float | None = 2.0,
        *,
        prior_sd_score: float | None = None,
        signed: bool = False,
        cov: Literal["fisher", "sandwich"] = "fisher",
        confidence: float = 0.95,
        simultaneous: bool = False,
        max_iter: int = 200,
        tol: float = 1e-8,
    ) -> None:
        self.prior_sd = prior_sd
        self.prior_sd_score = prior_sd_score
        self.signed = signed
        self.cov = cov
        self.confidence = confidence
        self.simultaneous = simultaneous
        self.max_iter = max_iter
        self.tol = tol

    def fit(
        self,
        votes: pd.DataFrame,
        *,
        model_a: str = "model_a",
        model_b: str = "model_b",
        judge: str | None = "judge",
        winner: str = "winner",
        cluster: str | None = None,
    ) -> Self:
        """Learn scores and discriminations.

        Parameters
        ----------
        votes : DataFrame
            One row a vote.
        model_a, model_b : str
            Columns with the names of the two models.
        judge : str or None
            Column with the name of the judge. None: judge-blind Bradley–Terry, all votes pooled.
        winner : str
            Column with the verdict: ``"model_a"``, ``"model_b"``, ``"tie"``, ``"tie (bothbad)"`` (or the authors'
            ``"a"``, ``"b"``, ``"c"``, ``"unknown"``), or the share of a as a number from 0 to 1. Empty and unknown
            verdicts are left out. In a frame from :func:`read_votes` it is the column ``"share"``.
        cluster : str, optional
            Column that says which votes belong together (the prompt); used by ``cov="sandwich"``.

        Returns
        -------
        self

        Raises
        ------
        InputError
            A column or cell is missing, a label is not understood, a model is compared with itself, there are fewer
            votes than parameters, or the comparisons do not connect all models.
        """
        self._check_parameters()
        if cluster is not None and self.cov != "sandwich":
            raise InputError(
                f"cluster {cluster!r} needs cov='sandwich'; the Fisher covariance takes votes as independent"
            )
        coded = code_votes(votes, model_a=model_a, model_b=model_b, judge=judge, winner=winner, cluster=cluster)
        cells = count_votes(
            coded.model_a, coded.model_b, coded.judge, coded.share, len(coded.models), len(coded.judges)
        )
        check_size(cells)
        check_connected(cells, coded.models)
        if self.prior_sd_score is None:
            warn_unbeaten(cells, coded.models)
        prior = Prior(self.prior_sd, self.prior_sd_score)
        found = fit_scores(cells, prior, signed=self.signed, max_iter=self.max_iter, tol=self.tol)
        covariance = estimate_covariance(
            found,
            cells,
            prior,
            sandwich=self.cov == "sandwich",
            clusters=None if coded.cluster is None else _clusters(coded, cells),
        )
        self._warn(found, covariance, coded.judges)
        self._keep(found, covariance, cells, coded)
        return self

    def compare(self, model_a: str, model_b: str) -> Comparison:
        """Test whether two models have the same score.

        Raises
        ------
        InputError
            A name is not among the ranked models.
        """
        check_is_fitted(self)
        a, b = self._places([model_a, model_b], self.scores_, "model")
        scores = self.scores_.to_numpy()
        difference = scores[[a]] - scores[[b]]
        z, p = z_and_p(difference, self._test_errors[[a], [b]])
        return Comparison(model_a, model_b, difference.item(), float(self._difference_errors[a, b]), z.item(), p.item())

    def pairs(self) -> pd.DataFrame:
        """Every pair of models: difference, se, low, high, z, p; the better model is model_a.

        Returns
        -------
        DataFrame
            One row a pair, in the order of the ranking. The p-values are not corrected for the number of pairs.
        """
        check_is_fitted(self)
        scores = np.asarray(self.scores_, dtype=np.float64)
        errors = self._difference_errors, self._test_errors
        return pairs_table(list(self.scores_.index), scores, *errors, self.confidence)

    def predict_proba(
        self, model_a: str | Sequence[str], model_b: str | Sequence[str], judge: str | Sequence[str] | None = None
    ) -> Any:
        """Probability that model a is preferred to model b.

        Parameters
        ----------
        model_a, model_b : str or sequence of str
        judge : str or sequence of str, optional
            None: a typical judge (discrimination one).

        Returns
        -------
        float, or (n,) ndarray where an argument is a sequence

        Raises
        ------
        InputError
            A name was not among the votes.
        """
        check_is_fitted(self)
        a = self._places(model_a, self.scores_, "model")
        b = self._places(model_b, self.scores_, "model")
        scores = self.scores_.to_numpy()
        gamma: Any = 1.0
        if judge is not None:
            gamma = self.discrimination_.to_numpy()[self._places(judge, self.discrimination_, "judge")]
        probability = expit(gamma * (scores[a] - scores[b]))
        return float(probability) if np.ndim(probability) == 0 else probability

    def score(
        self,
        votes: pd.DataFrame,
        *,
        model_a: str = "model_a",
        model_b: str = "model_b",
        judge: str | None = "judge",
        winner: str = "winner",
    ) -> float:
        """Mean log-likelihood of votes, in nats a vote (a tie is half a vote for each); higher is better.

        A judge-blind ranking, or ``judge=None``, takes every vote as a typical judge's.

        Raises
        ------
        InputError
            As for `fit`; or a model or judge that `fit` did not see.
        """
        check_is_fitted(self)
        judge = None if self._is_blind else judge
        coded = code_votes(votes, model_a=model_a, model_b=model_b, judge=judge, winner=winner, cluster=None)
        models = self._places(coded.models, self.scores_, "model")
        gamma = np.ones(1)
        if judge is not None:
            gamma = self.discrimination_.to_numpy()[self._places(coded.judges, self.discrimination_, "judge")]
        cells = count_votes(
            coded.model_a, coded.model_b, coded.judge, coded.share, len(coded.models), len(coded.judges)
        )
        return log_likelihood(self.scores_.to_numpy()[models], gamma, cells) / cells.n_votes

    def summary(self) -> str:
        """The ranking, the judges and what to be careful about, as text."""
        check_is_fitted(self)
        lines = [
            f"{len(self.scores_)} models, {len(self.discrimination_)} judges, {self.n_votes_} votes"
            + (f" ({self.n_dropped_} without a verdict left out)" if self.n_dropped_ else ""),
            f"log-likelihood {self.log_likelihood_:.2f}",
        ]
        if not self._is_blind:
            n_more = len(self.discrimination_) - 1
            lines[1] += f"; judge-blind {self.log_likelihood_pooled_:.2f} with {n_more} parameters fewer"
        lines += ["", _table(self.ranking_)]
        if not self._is_blind:
            lines += ["", _table(self.judges_)]
        loose = self.judges_.loc[self.judges_["at_boundary"], "judge"].tolist()
        if loose:
            lines += ["", f"No finite discrimination fits the votes of {some_names(loose)} {_reason(self.signed)}."]
        if not self.converged_:
            lines += ["", f"The fit did not converge in {self.n_iter_} iterations."]
        return "\n".join(lines)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the ranking with its intervals; return the matplotlib Axes."""
        check_is_fitted(self)
        from assay.evaluate.judge_rank.plots import draw_ranking

        return draw_ranking(self.ranking_, self.confidence, ax)

    def plot_judges(self, ax: Axes | None = None) -> Axes:
        """Draw the judges by discrimination; return the matplotlib Axes."""
        check_is_fitted(self)
        from assay.evaluate.judge_rank.plots import draw_judges

        return draw_judges(self.judges_, self.confidence, signed=self.signed, ax=ax)

    def _check_parameters(self) -> None:
        for name in ("prior_sd", "prior_sd_score"):
            value = getattr(self, name)
            if value is not None and not 0 < value < np.inf:
                raise InputError(f"{name}={value!r}: expected a number above zero, or None for no prior")
        if self.cov not in ("fisher", "sandwich"):
            raise InputError(f"cov={self.cov!r}: expected 'fisher' or 'sandwich'")
        if not 0 < self.confidence < 1:
            raise InputError(f"confidence={self.confidence!r}: expected a number between 0 and 1, such as 0.95")

    def _warn(self, found: Fit, covariance: Covariance, judges: list[str]) -> None:
        if not found.converged:
            warnings.warn(
                f"the fit did not converge in {found.n_iter} iterations; raise max_iter or set prior_sd",
                ConvergenceWarning,
                stacklevel=3,
            )
        loose = [name for name, is_loose in zip(judges, found.at_boundary, strict=True) if is_loose]
        if loose and self.prior_sd is None:
            way_out = (
                "prior_sd=2 keeps it finite"
                if self.signed
                else "prior_sd=2 keeps it finite, signed=True lets it be negative"
            )
            warnings.warn(
                f"no finite discrimination fits the votes of {some_names(loose)} {_reason(self.signed)}; {way_out}",
                stacklevel=3,
            )

        unknown = [name for name, is_unknown in zip(judges, covariance.undetermined, strict=True) if is_unknown]
        if unknown:
            warnings.warn(
                f"the votes do not tell the discrimination of {some_names(unknown)} from the scores of the models they "
                "judged: too few other judges judged these, or their scores are equal; leave these judges out or pool "
                "all judges with judge=None",
                stacklevel=3,
            )

    def _keep(self, found: Fit, covariance: Covariance, cells: Cells, coded: CodedVotes) -> None:
        n = cells.n_models
        errors = covariance.standard_errors()
        self.scores_ = pd.Series(found.scores, index=pd.Index(coded.models, name="model"), name="score")
        self.discrimination_ = pd.Series(found.gamma, index=pd.Index(coded.judges, name="judge"), name="discrimination")
        self._difference_errors = covariance.difference_errors()
        self._test_errors = covariance.test_errors(found.scores)
        errors[n:][found.fixed] = np.inf
        self.covariance_ = covariance.matrix.copy()
        self.covariance_[np.diag_indices(len(errors))] = np.where(np.isinf(errors), np.inf, np.diag(covariance.matrix))
        self.log_likelihood_, self.log_likelihood_pooled_ = found.log_likelihood, found.log_likelihood_pooled
        self.n_votes_, self.n_dropped_ = int(cells.n_votes), coded.n_dropped
        self.n_iter_, self.converged_ = found.n_iter, found.converged
        self._is_blind = len(coded.judges) == 1
        self.ranking_ = ranking_table(
            coded.models,
            found.scores,
            errors[:n],
            self._test_errors,
            self.confidence,
            simultaneous=self.simultaneous,
        )
        self.judges_ = judges_table(
            coded.judges,
            found.gamma,
            errors[n:],
            sums(cells.judge, cells.count, cells.n_judges),
            found.at_boundary,
            self.confidence,
            signed=self.signed,
        )

    @staticmethod
    def _places(names: Any, among: pd.Series[float], what: str) -> Any:
        """Positions of names in the index of `among`."""
        wanted = [names] if isinstance(names, str) else list(names)
        places = among.index.get_indexer(pd.Index(wanted, dtype=object))
        if (places < 0).any():
            unknown = wanted[int((places < 0).argmax())]
            raise InputError(
                f"{what} {unknown!r} is not among the {what}s of this ranking: {some_names(list(among.index))}"
            )
        return places[0] if isinstance(names, str) else places


def _clusters(coded: CodedVotes, cells: Cells) -> tuple[Indices, Array, Indices]:
    """The votes, oriented as their cells are, with their clusters."""
    assert coded.cluster is not None
    n_clusters, n_parameters = len(np.unique(coded.cluster)), cells.n_models + cells.n_judges - 2
    if n_clusters < n_parameters + 1:
        raise InputError(
            f"cluster: {n_clusters} clusters are too few for the covariance of {n_parameters} parameters; "
            "use a finer cluster, or cov='fisher'"
        )
    oriented = np.where(coded.model_a < coded.model_b, coded.share, 1.0 - coded.share)
    return cells_of_votes(cells, coded.model_a, coded.model_b, coded.judge), oriented, coded.cluster


def _reason(signed: bool) -> str:
    if signed:
        return "(their votes never contradict the order of the scores, or always do)"
    return "(they never contradict the order of the scores, or go against it on balance)"


def _table(frame: pd.DataFrame) -> str:
    return frame.to_string(index=False, float_format=lambda value: f"{value:.3f}")
