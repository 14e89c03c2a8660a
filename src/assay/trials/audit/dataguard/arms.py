"""DataGuard's test and what people use in its place. Each gets a suspect's features and returns a one-sided p-value."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import stats
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from assay.audit.dataguard.control import residuals
from assay.audit.dataguard.fraction import usage_fraction
from assay.audit.dataguard.hotelling import Comparison, compare

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


class Suspect(NamedTuple):
    """What an arm sees of one model. Features are (samples, k), the first of them the loss."""

    target: Array
    aux: Array
    ref_target: Array
    ref_aux: Array
    shadow_member: Array
    shadow_other: Array


class Answer(NamedTuple):
    """A p-value, and the share that was used where the arm estimates it."""

    p_value: float
    fraction: float = float("nan")


def _compared(suspect: Suspect, seed: int) -> tuple[Comparison, Array, Array]:
    rng = np.random.default_rng(seed)
    target, aux = residuals(suspect.target, suspect.aux, suspect.ref_target, suspect.ref_aux, rng)
    return compare(target, aux, rng=rng), target, aux


def dataguard(suspect: Suspect, seed: int) -> Answer:
    """All features less what the references foresee, T² with a direction, by permutation."""
    found, target, aux = _compared(suspect, seed)
    shadow = suspect.shadow_member[:, 0], suspect.shadow_other[:, 0]
    fraction = usage_fraction(target[:, 0], aux[:, 0], np.random.default_rng(seed), shadow=shadow)
    return Answer(found.p_value, fraction.estimate)


def loss_test(suspect: Suspect, seed: int) -> Answer:
    """Dataset inference by one feature: Welch's t of the loss."""
    return Answer(_welch(suspect.target[:, 0], suspect.aux[:, 0]))


def membership_attack(suspect: Suspect, seed: int) -> Answer:
    """Membership inference by a threshold on the loss (Yeom et al. 2018), averaged over the set.

    The threshold is the mean loss of the shadow's members; the share below it is compared between the sets.
    """
    bound = suspect.shadow_member[:, 0].mean()
    return Answer(_welch((suspect.target[:, 0] > bound).astype(float), (suspect.aux[:, 0] > bound).astype(float)))


def dataset_inference(suspect: Suspect, seed: int) -> Answer:
    """Dataset inference with a learned score (Maini et al. 2024): a regression tells halves apart, a t-test the others.

    It gets the same features as the method.
    """
    rng = np.random.default_rng(seed)
    halves = [rng.permutation(len(values)) < len(values) // 2 for values in (suspect.target, suspect.aux)]
    known = np.concatenate([suspect.target[halves[0]], suspect.aux[halves[1]]])
    other = np.repeat([0.0, 1.0], [halves[0].sum(), halves[1].sum()])
    score = make_pipeline(StandardScaler(), LinearRegression()).fit(known, other)
    return Answer(_welch(score.predict(suspect.target[~halves[0]]), score.predict(suspect.aux[~halves[1]])))


def adjusted_loss(suspect: Suspect, seed: int) -> Answer:
    """One feature with references: the loss less what they foresee."""
    return Answer(_compared(suspect, seed)[0].p_loss)


def adjusted_sum(suspect: Suspect, seed: int) -> Answer:
    """All features less what the references foresee, added up after standardising (O'Brien)."""
    return Answer(_compared(suspect, seed)[0].p_sum)


def plain_multivariate(suspect: Suspect, seed: int) -> Answer:
    """All features without references."""
    return Answer(compare(suspect.target, suspect.aux, rng=np.random.default_rng(seed)).p_value)


def _welch(target: Array, aux: Array) -> float:
    """One-sided: small where the target lies lower; 1/2 where nothing varies."""
    p = float(stats.ttest_ind(target, aux, equal_var=False, alternative="less").pvalue)
    return p if np.isfinite(p) else 0.5
