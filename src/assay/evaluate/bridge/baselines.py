"""What people use otherwise: log odds of raw success rates, and METR's logistic regression on human time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import optimize
from scipy.special import expit, logit

if TYPE_CHECKING:
    from assay.evaluate.bridge.likelihood import Array, Responses

#: Rates of zero and one are moved this far inwards before the logit (the authors' code).
CLIP = 1e-6


def success_rate_scale(responses: Responses) -> tuple[Array, Array]:
    """Abilities logit(success rate) and difficulties −logit(success rate), each over what was tried.

    Returns
    -------
    ability : (n_subjects,) float
    difficulty : (n_items,) float

    Examples
    --------
    >>> from assay.evaluate.bridge.likelihood import pack
    >>> pair = pack(np.array([0, 1, 0]), np.array([0, 0, 1]), np.array([1.0, 0.0, 1.0]), n_subjects=2, n_items=2)
    >>> float(success_rate_scale(pair)[1][0])  # solved by one of two
    -0.0
    """
    by_subject = responses.by_subject(responses.solved) / responses.by_subject(responses.attempts)
    by_item = responses.by_item(responses.solved) / responses.by_item(responses.attempts)
    ability, easiness = (logit(np.clip(rate, CLIP, 1.0 - CLIP)) for rate in (by_subject, by_item))
    return np.asarray(ability, np.float64), -np.asarray(easiness, np.float64)


def metr_horizons(responses: Responses, log_minutes: Array, ridge: float = 0.1) -> Array:
    """Log minutes of each model's 50 % horizon by a logistic regression of its successes on log human minutes.

    METR's way; it needs the human time of every task.

    Parameters
    ----------
    responses : Responses
    log_minutes : (n_items,) float
        NaN: tasks without a human time, left out.
    ridge : float
        Penalty on the slope (half its square, per standard deviation of log minutes), so that a model that fails from
        some length on has a finite one.

    Returns
    -------
    (n_subjects,) float
        NaN where there is no horizon: no timed task, all or none of them solved, or no fall of success with time.
    """
    timed = np.isfinite(log_minutes)
    found = np.full(responses.n_subjects, np.nan)
    for subject in range(responses.n_subjects):
        mine = (responses.subject == subject) & timed[responses.item]
        solved, attempts = responses.solved[mine], responses.attempts[mine]
        if not 0 < solved.sum() < attempts.sum():
            continue
        x = log_minutes[responses.item[mine]]
        middle, spread = float(x.mean()), float(x.std()) or 1.0
        u = (x - middle) / spread

        def loss(point: Array, u: Array = u, k: Array = solved, n: Array = attempts) -> tuple[float, Array]:
            z = point[0] + point[1] * u
            gap = n * expit(z) - k
            value = float(n @ np.logaddexp(0.0, z) - k @ z + 0.5 * ridge * point[1] ** 2)
            return value, np.array([gap.sum(), gap @ u + ridge * point[1]])

        intercept, slope = optimize.minimize(loss, np.zeros(2), jac=True, method="BFGS").x
        if slope < 0:
            found[subject] = middle - spread * intercept / slope
    return found
