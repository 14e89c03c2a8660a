"""Marginal maximum likelihood for small item sets: abilities N(0, 1), integrated out on Gauss–Hermite nodes.

The classical fit of item response theory (Bock & Aitkin 1981), for a few items and many subjects; no priors on items.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import optimize
from scipy.special import expit, logsumexp, roots_hermitenorm

from assay._core.errors import InputError
from assay.evaluate.bridge.likelihood import Array, Parameters, Responses
from assay.evaluate.bridge.posterior import Fit, start

N_NODES = 41

#: Subjects × items × nodes above this would take gigabytes; the marginal fit is for small item sets.
MAX_CELLS = 5e8


def fit_mml(responses: Responses, *, n_nodes: int = N_NODES, max_iter: int = 500) -> Fit:
    """Maximise Σ_j log ∫ Π_i p_ji^k (1 − p_ji)^(n − k) φ(theta) d theta over (log a, b).

    Parameters
    ----------
    responses : Responses
    n_nodes : int
        Gauss–Hermite nodes.
    max_iter : int
        At most this many steps of BFGS (L-BFGS above 200 items).

    Returns
    -------
    Fit
        Abilities are posterior means with posterior standard deviations; errors of difficulties come from the outer
        products of the subjects' scores.

    Raises
    ------
    InputError
        An item was always or never solved (its difficulty has no finite maximum), or the problem is too large.
    """
    _check(responses, n_nodes)
    nodes, weights = roots_hermitenorm(n_nodes)
    log_weights = np.log(weights / weights.sum())
    solved, attempts = responses.matrix(responses.solved), responses.matrix(responses.attempts)
    n_items = responses.n_items

    def posterior(point: Array) -> tuple[Array, Array, Array]:
        """Log marginal likelihood of each subject, its posterior on the nodes, and z (n_items, n_nodes)."""
        log_a, b = np.split(point, 2)
        z = np.exp(log_a)[:, None] * (nodes - b[:, None])
        joint = solved @ z - attempts @ np.logaddexp(0.0, z) + log_weights
        marginal = logsumexp(joint, axis=1)
        return marginal, np.exp(joint - marginal[:, None]), z

    def loss(point: Array) -> tuple[float, Array]:
        marginal, weight, z = posterior(point)
        residual = attempts.T @ weight * expit(z) - solved.T @ weight
        a = np.exp(point[:n_items])
        return -float(marginal.sum()), np.concatenate([(residual * z).sum(axis=1), -a * residual.sum(axis=1)])

    first = np.concatenate([np.zeros(n_items), start(responses).difficulty])
    options = {"maxiter": max_iter, "gtol": 1e-6 * np.sqrt(responses.n_subjects)}
    minimise: Any = optimize.minimize
    found = minimise(loss, first, jac=True, method="BFGS" if n_items <= 200 else "L-BFGS-B", options=options)
    marginal, weight, z = posterior(found.x)
    ability = weight @ nodes
    spread = np.sqrt(np.maximum(weight @ nodes**2 - ability**2, 0.0))
    scores = _scores(found.x, responses, weight, z)
    covariance = np.linalg.pinv(scores.T @ scores)
    return Fit(
        Parameters(ability, found.x[n_items:], found.x[:n_items]),
        spread,
        np.sqrt(np.diag(covariance)[n_items:]),
        np.sqrt(np.diag(covariance)[:n_items]),
        float(marginal.sum()),
        int(found.nit),
        bool(np.abs(found.jac).max() < 1e-3),
    )


def _scores(point: Array, responses: Responses, weight: Array, z: Array) -> Array:
    """Derivative (n_subjects, 2 n_items) of each subject's log marginal likelihood in (log a, b)."""
    n_items = responses.n_items
    p = expit(z)
    tries = responses.attempts[:, None] * p[responses.item] - responses.solved[:, None]
    gap = tries * weight[responses.subject]
    of_log_a, of_b = np.zeros((2, responses.n_subjects, n_items))
    of_log_a[responses.subject, responses.item] = -(gap * z[responses.item]).sum(axis=1)
    of_b[responses.subject, responses.item] = np.exp(point[:n_items])[responses.item] * gap.sum(axis=1)
    return np.hstack([of_log_a, of_b])


def _check(responses: Responses, n_nodes: int) -> None:
    if len(responses.item) * n_nodes > MAX_CELLS:
        raise InputError(
            f'method="mml" on {len(responses.item):,} responses needs too much memory; use method="map" (the default)'
        )
    share = responses.by_item(responses.solved) / responses.by_item(responses.attempts)
    extreme = np.flatnonzero((share == 0) | (share == 1))
    if len(extreme):
        raise InputError(
            f"{len(extreme)} of {responses.n_items} items were solved by all or by none, which leaves their difficulty "
            'without a finite maximum under method="mml"; drop them or use method="map"'
        )
