"""`TimeHorizonIRT`: the estimator around the numeric part."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import pandas as pd
from scipy.special import expit
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from assay._core.errors import InputError
from assay.evaluate.bridge.calibration import Calibration, calibrate
from assay.evaluate.bridge.horizons import (
    GAP,
    Forecast,
    forecast,
    horizon_difficulty,
    readable,
    rolling_horizon_difficulty,
)
from assay.evaluate.bridge.likelihood import Array, Parameters, Prior, Responses
from assay.evaluate.bridge.marginal import fit_mml
from assay.evaluate.bridge.posterior import Fit, fit_map, standardized
from assay.evaluate.bridge.responses import code_responses, warn_disconnected
from assay.evaluate.bridge.side_tables import dates_by_model, minutes_by_task
from assay.evaluate.bridge.variational import fit_svi

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

METHODS = ("map", "svi", "mml")


class TimeHorizonIRT(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Put models and tasks on one scale, and that scale into human minutes.

    Model j solves task i with probability sigmoid(a_i (theta_j − b_i)). The human minutes of some tasks turn
    difficulties b and abilities theta into time: log(minutes) = beta0 + beta1 b.

    Parameters
    ----------
    method : {"map", "svi", "mml"}, default "map"
        "map": mode of the posterior, deterministic, the fastest. "svi": the paper's variational inference (torch).
        "mml": marginal maximum likelihood with abilities N(0, 1) and no priors, for a few items.
    prior_sd : (float, float, float), default (3, 3, 0.5)
        For "map": standard deviations of the normal priors on ability, difficulty and log discrimination. A third of 0
        holds every discrimination at one (the Rasch model).
    threshold : float, optional
        Scores of at least this are successes. None: responses are 0 or 1 (or shares with a column `n_trials`).
    min_responses : int, default 3
        Tasks with fewer are flagged, and left out of the calibration.
    standardize : bool, default False
        Report abilities with mean 0 and standard deviation 1. Minutes, horizons and probabilities do not change; the
        gap of the frontier is in these units.
    confidence : float, default 0.95
        Of every interval.
    epochs : int, default 1000
        For "svi".
    device : str, default "cpu"
        For "svi": a torch device.
    random_state : int, default 0
        For "svi".

    Attributes
    ----------
    items_ : DataFrame, by task
        difficulty, discrimination, se (of the difficulty), log_discrimination_se, n_responses, solve_rate, extreme
        (solved by all or by none: the prior decides its place), few (under `min_responses`), human_minutes, calibration
        (took part in it), predicted_minutes, pi_low, pi_high (prediction interval), extrapolated (easier or harder than
        every task of the calibration).
    subjects_ : DataFrame, by model
        ability, se, n_responses, solve_rate, extreme, release_date, horizon_50_minutes, ci_low, ci_high (the interval
        holds the uncertainty of the ability and of the calibration line).
    calibration_ : Calibration or None
    parameters_ : Parameters
        Abilities, difficulties and log discriminations in the order of the two tables.
    log_likelihood_ : float
    n_merged_, n_human_ : int
        Repeated rows merged (by majority, a tie a success), and rows of the model "human" left out.
    n_iter_ : int
    converged_ : bool

    References
    ----------
    Liu, Gala, Nilaksh, Bahdanau, Reddy, Larochelle: "BRIDGE: Predicting Human Task Completion Time From Model
    Performance", arXiv:2602.07267.

    Examples
    --------
    >>> solved = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, np.nan]])
    >>> irt = TimeHorizonIRT().fit(solved, human_minutes=[1, 5, 20, np.nan])
    >>> bool(irt.items_["predicted_minutes"].is_monotonic_increasing)
    True
    >>> round(float(irt.predict_minutes([3])[0])) > 20  # the task that only the best model solved
    True
    """

    def __init__(
        self,
        method: Literal["map", "svi", "mml"] = "map",
        prior_sd: tuple[float, float, float] = (3.0, 3.0, 0.5),
        threshold: float | None = None,
        min_responses: int = 3,
        standardize: bool = False,
        confidence: float = 0.95,
        epochs: int = 1000,
        device: str = "cpu",
        random_state: int = 0,
    ) -> None:
        self.method = method
        self.prior_sd = prior_sd
        self.threshold = threshold
        self.min_responses = min_responses
        self.standardize = standardize
        self.confidence = confidence
        self.epochs = epochs
        self.device = device
        self.random_state = random_state

    def fit(self, responses: pd.DataFrame | ArrayLike, human_minutes: Any = None, release_dates: Any = None) -> Self:
        """Fit abilities and difficulties, and calibrate them where human times are given.

        Parameters
        ----------
        responses : DataFrame or (n_models, n_tasks) array
            `model`, `task`, `correct`; or a matrix of 0 and 1 with NaN where a model did not try a task. What was not
            tried is never taken for a failure.
        human_minutes : DataFrame, Series, mapping or array, optional
            `task` and `human_minutes`, above zero; for some of the tasks. Tasks not among the responses are ignored.
        release_dates : DataFrame, Series, mapping or array, optional
            `model` and `release_date`.

        Returns
        -------
        self

        Raises
        ------
        InputError
            Responses, times or dates that cannot be used; the message says where.
        """
        self._check_parameters()
        coded = code_responses(responses, self.threshold)
        minutes = minutes_by_task(human_minutes, coded.tasks)
        dates = dates_by_model(release_dates, coded.models)
        warn_disconnected(coded)
        if coded.n_merged:
            rule = "" if isinstance(responses, pd.DataFrame) and "n_trials" in responses else " by majority"
            warnings.warn(f"{coded.n_merged} repeated rows of the same model and task were merged{rule}", stacklevel=2)
        found = self._estimate(coded.records)
        if not found.converged:
            warnings.warn(f"the fit did not converge in {found.n_iter} iterations", ConvergenceWarning, stacklevel=2)
        if self.standardize:
            found = standardized(found)
        self.parameters_: Parameters = found.parameters
        self.log_likelihood_, self.n_iter_, self.converged_ = found.log_likelihood, found.n_iter, found.converged
        self.n_merged_, self.n_human_ = coded.n_merged, coded.n_human
        self.items_ = self._items(coded.tasks, coded.records, found, minutes)
        self.calibration_ = self._calibration()
        self.subjects_ = self._subjects(coded.models, coded.records, found, dates)
        self._add_minutes()
        return self

    def predict_proba(self, subjects: Any, items: Any) -> Array:
        """Probability that each model solves each task (names, paired or broadcast against each other)."""
        check_is_fitted(self)
        model, task = np.broadcast_arrays(
            _positions(self.subjects_.index, subjects), _positions(self.items_.index, items)
        )
        return np.asarray(expit(self.parameters_.logits(model, task)), np.float64)

    def predict_minutes(self, items: Any) -> Array:
        """Predicted (median) human minutes of tasks, by name; timed tasks get the line's value as well."""
        calibration = self._calibrated()
        return calibration.predict(self.parameters_.difficulty[_positions(self.items_.index, items)])

    def horizon(
        self, q: float = 0.5, *, how: Literal["rolling", "closed_form"] = "rolling", calibration_error: bool = True
    ) -> pd.DataFrame:
        """Human time of a task that each model solves with probability `q`.

        Parameters
        ----------
        q : float
            Between 0 and 1.
        how : "rolling" or "closed_form"
            For q other than 0.5: the paper's smoothed success curve over the items of the fit, or
            b = theta − logit(q) / median(a).
        calibration_error : bool
            Let the interval hold the uncertainty of the calibration line besides that of the ability.

        Returns
        -------
        DataFrame, by model
            position (difficulty), horizon_minutes, low, high. NaN for a model that never reaches `q` ("rolling").
        """
        calibration = self._calibrated()
        position = self._horizon_positions(q, how)
        se = self.subjects_["se"].to_numpy()
        if calibration_error:
            low, high = calibration.interval(position, self.confidence, se)
        else:
            from scipy.stats import norm

            half = norm.ppf(0.5 + self.confidence / 2) * se
            low, high = np.sort([calibration.predict(position - half), calibration.predict(position + half)], axis=0)
        columns = {"position": position, "horizon_minutes": calibration.predict(position), "low": low, "high": high}
        return pd.DataFrame(columns, index=self.subjects_.index)

    def forecast(
        self,
        q: float = 0.5,
        gap: float = GAP,
        n_boot: int = 2000,
        *,
        bootstrap: Literal["frontier", "models"] = "frontier",
        how: Literal["rolling", "closed_form"] = "rolling",
        since: str | None = None,
        random_state: int = 42,
    ) -> Forecast:
        """Growth of the frontier's horizon: its doubling time, with an interval.

        Parameters
        ----------
        q : float
            Level of the horizon.
        gap : float
            A model joins the frontier when it is better than all before it by more than this (units of ability).
        n_boot : int
            Bootstrap draws.
        bootstrap : "frontier" or "models"
            "frontier" resamples the frontier's points, as the paper does; "models" resamples all dated models and
            chooses the frontier anew each time, which is stricter.
        how : "rolling" or "closed_form"
            As in :meth:`horizon`.
        since : str, optional
            Leave out models released before this date: a trend that changed is not one line.
        random_state : int

        Raises
        ------
        InputError
            No human times, or fewer than three models on the frontier.
        """
        calibration = self._calibrated()
        if bootstrap not in ("frontier", "models"):
            raise InputError(f"bootstrap is {bootstrap!r}; expected 'frontier' or 'models'")
        if n_boot < 1:
            raise InputError(f"n_boot is {n_boot}; at least 1 bootstrap draw is needed")
        models = pd.DataFrame(
            {
                "model": self.subjects_.index,
                "release_date": self.subjects_["release_date"].to_numpy(),
                "position": self._horizon_positions(q, how),
                "se": self.subjects_["se"].to_numpy(),
            }
        )
        undated = models["release_date"].isna()
        if undated.any() and not undated.all():
            warnings.warn(
                f"{int(undated.sum())} of {len(models)} models have no release date and are left out of the forecast",
                stacklevel=2,
            )
        if since is not None:
            models = models[models["release_date"] >= _date(since)]
        dated = models[models["release_date"].notna() & models["position"].notna()].reset_index(drop=True)
        return forecast(
            dated, calibration, level=q, gap=gap, n_boot=n_boot, bootstrap=bootstrap, confidence=self.confidence,
            seed=random_state,
        )  # fmt: skip

    def summary(self) -> str:
        """The fit as a printed page: its size, the calibration, the strongest models."""
        check_is_fitted(self)
        n_extreme, n_few = int(self.items_["extreme"].sum()), int(self.items_["few"].sum())
        lines = [
            f"{len(self.subjects_)} models, {len(self.items_)} tasks, "
            f"{int(self.subjects_['n_responses'].sum()):,} responses "
            f"(method {self.method}, log-likelihood {self.log_likelihood_:.1f})",
            f"{n_extreme} tasks solved by all or by none, {n_few} with fewer than {self.min_responses} responses",
        ]
        if self.calibration_ is None:
            return "\n".join([*lines, "no human times: difficulties have no minutes"])
        lines += [
            "",
            self.calibration_.summary(self.confidence),
            "",
            f"Strongest models, 50 % horizon with {self.confidence:.0%} interval:",
        ]
        for name, row in self.subjects_.nlargest(8, "ability").iterrows():
            ends = f"[{readable(row['ci_low'])}, {readable(row['ci_high'])}]"
            lines.append(f"  {readable(row['horizon_50_minutes']):>9}  {ends:<22} {name}")
        return "\n".join(lines)

    # ------------------------------------------------------------------------------------------------ inside

    def _check_parameters(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"method is {self.method!r}; expected one of {', '.join(METHODS)}")
        if len(self.prior_sd) != 3 or min(self.prior_sd[:2]) <= 0 or self.prior_sd[2] < 0:
            raise InputError(
                f"prior_sd is {self.prior_sd!r}; expected three standard deviations above zero "
                "(the third may be 0: Rasch)"
            )
        if not 0 < self.confidence < 1:
            raise InputError(f"confidence is {self.confidence}; expected a number between 0 and 1, such as 0.95")

    def _estimate(self, records: Responses) -> Fit:
        if self.method == "map":
            return fit_map(records, Prior(*self.prior_sd))
        if self.method == "mml":
            return fit_mml(records)
        return fit_svi(records, epochs=self.epochs, seed=self.random_state, device=self.device)

    def _items(self, tasks: pd.Index[Any], records: Responses, found: Fit, minutes: Array) -> pd.DataFrame:
        attempts = records.by_item(records.attempts)
        solve_rate = records.by_item(records.solved) / attempts
        n_responses = np.bincount(records.item, minlength=records.n_items)
        few = n_responses < self.min_responses
        return pd.DataFrame(
            {
                "difficulty": found.parameters.difficulty,
                "discrimination": np.exp(found.parameters.log_discrimination),
                "se": found.difficulty_se,
                "log_discrimination_se": found.log_discrimination_se,
                "n_responses": n_responses,
                "solve_rate": solve_rate,
                "extreme": (solve_rate == 0) | (solve_rate == 1),
                "few": few,
                "human_minutes": minutes,
                "calibration": np.isfinite(minutes) & ~few,
            },
            index=tasks.rename("task"),
        )

    def _subjects(self, models: pd.Index[Any], records: Responses, found: Fit, dates: pd.Series[Any]) -> pd.DataFrame:
        solve_rate = records.by_subject(records.solved) / records.by_subject(records.attempts)
        return pd.DataFrame(
            {
                "ability": found.parameters.ability,
                "se": found.ability_se,
                "n_responses": np.bincount(records.subject, minlength=records.n_subjects),
                "solve_rate": solve_rate,
                "extreme": (solve_rate == 0) | (solve_rate == 1),
                "release_date": dates.to_numpy(),
            },
            index=models.rename("model"),
        )

    def _calibration(self) -> Calibration | None:
        if self.items_["human_minutes"].isna().all():
            return None
        used = self.items_[self.items_["calibration"]]
        return calibrate(used["difficulty"].to_numpy(), used["human_minutes"].to_numpy())

    def _add_minutes(self) -> None:
        line, items, subjects = self.calibration_, self.items_, self.subjects_
        if line is None:
            items[["predicted_minutes", "pi_low", "pi_high"]] = np.nan
            items["extrapolated"] = False
            subjects[["horizon_50_minutes", "ci_low", "ci_high"]] = np.nan
            return
        difficulty, ability = items["difficulty"].to_numpy(), subjects["ability"].to_numpy()
        items["predicted_minutes"] = line.predict(difficulty)
        items["pi_low"], items["pi_high"] = line.interval(difficulty, self.confidence)
        items["extrapolated"] = line.extrapolates(difficulty)
        subjects["horizon_50_minutes"] = line.predict(ability)
        subjects["ci_low"], subjects["ci_high"] = line.interval(ability, self.confidence, subjects["se"].to_numpy())
        outside = int(items["extrapolated"].sum())
        if outside > len(items) / 4:
            warnings.warn(
                f"{outside} of {len(items)} tasks are easier or harder than every task of the calibration; "
                "their minutes are extrapolated",
                stacklevel=3,
            )

    def _calibrated(self) -> Calibration:
        check_is_fitted(self)
        if self.calibration_ is None:
            raise InputError("there are no human times to turn difficulty into minutes; give human_minutes= to fit")
        return self.calibration_

    def _horizon_positions(self, q: float, how: str) -> Array:
        if not 0 < q < 1:
            raise InputError(f"q is {q}; expected a success rate between 0 and 1, such as 0.8")
        if how not in ("rolling", "closed_form"):
            raise InputError(f"how is {how!r}; expected 'rolling' or 'closed_form'")
        if q == 0.5 or how == "closed_form":
            return horizon_difficulty(self.parameters_, q)
        return rolling_horizon_difficulty(self.parameters_, q)


def _date(text: str) -> pd.Timestamp:
    date = pd.to_datetime(text, errors="coerce")
    if pd.isna(date):
        raise InputError(f"since is {text!r}; expected a date such as 2022-01-01")
    return date


def _positions(index: pd.Index[Any], names: Any) -> NDArray[np.intp]:
    asked = pd.Index(np.atleast_1d(np.asarray(names, dtype=object)) if not isinstance(names, str) else [names])
    found = index.get_indexer(asked)
    if (found < 0).any():
        name = asked[int(np.argmin(found))]
        raise InputError(f"there is no {index.name} {name!r} in the fit, which has {len(index)}")
    return np.asarray(found, dtype=np.intp)
