"""Two checks that every audit carries: that the test holds its level here, and that the data sets are of one kind.

A test of exchangeable samples cannot tell "was trained on" from "was collected elsewhere". The blind check asks whether
the two data sets can be told apart without the model; where they can, a difference in the model is no evidence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.stats import binomtest

from assay.audit.dataguard.control import residuals
from assay.audit.dataguard.hotelling import Test, compare

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

#: Splits of the auxiliary data, and permutations of each (more where the level asks for it).
N_SPLITS, N_SPLIT_PERMUTATIONS = 200, 299
#: Below this p the data sets are taken as different in kind.
SHIFT_ALPHA = 0.05
#: Samples of each set that the blind check looks at, and permutations of it.
MAX_BLIND, N_BLIND_PERMUTATIONS = 1000, 400
BLIND_FOLDS = 5


class Rate(NamedTuple):
    """A share of trials with its exact (Clopper–Pearson) 95 % interval."""

    n_found: int
    n: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """The share itself."""
        return self.n_found / self.n


def exact_rate(count: int, n: int) -> Rate:
    """Clopper–Pearson 95 % interval of a share.

    Examples
    --------
    >>> rate = exact_rate(0, 200)  # no event in 200: the upper end is 1 − 0.025^(1/200)
    >>> round(rate.high, 5)
    0.01828
    """
    interval = binomtest(count, n).proportion_ci(0.95, method="exact")
    return Rate(count, n, float(interval.low), float(interval.high))


def null_rejections(
    aux: Array,
    ref_aux: Array | None,
    groups_aux: NDArray[np.int64] | None,
    *,
    alpha: float,
    test: Test,
    rng: np.random.Generator,
    n_splits: int,
) -> Rate:
    """How often the same test says "used" between two random halves of the auxiliary data.

    Parameters
    ----------
    aux : (m, k) float
    ref_aux : (m, r) float, optional
    groups_aux : (m,) int, optional
        Groups stay whole.
    """
    unit = np.arange(len(aux)) if groups_aux is None else np.unique(groups_aux, return_inverse=True)[1]
    n_units = int(unit.max()) + 1
    n_permutations = max(N_SPLIT_PERMUTATIONS, int(np.ceil(2 / alpha)))
    rejected = 0
    for _ in range(n_splits):
        first = (rng.permutation(n_units) < n_units // 2)[unit]
        one, two = aux[first], aux[~first]
        groups = None if groups_aux is None else (unit[first], unit[~first])
        if ref_aux is not None:
            one, two = residuals(one, two, ref_aux[first], ref_aux[~first], rng, None if groups is None else groups[1])
        found = compare(one, two, test=test, n_permutations=n_permutations, rng=rng, groups=groups)
        rejected += found.p_value < alpha
    return exact_rate(int(rejected), n_splits)


class Shift(NamedTuple):
    """The blind check: how well, and how surely, the two data sets can be told apart without the model."""

    auc: float
    p_value: float
    seen: str

    @property
    def found(self) -> bool:
        """Whether the data sets differ in kind, at 5 %."""
        return self.p_value < SHIFT_ALPHA


def blind_check(
    target: Array,
    aux: Array,
    rng: np.random.Generator,
    *,
    groups: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
    n_permutations: int = N_BLIND_PERMUTATIONS,
) -> tuple[float, float]:
    """Classifier two-sample test between the inputs of the two data sets.

    Kernel ridge regression (Gaussian kernel, width by the median distance) foresees from which set a sample is, in five
    folds; the statistic is the mean AUC of the folds. Its p is by permutation with all fits repeated, which costs one
    fit, since the prediction is linear in the labels. Beside each standardised column stands its absolute value, so
    that a change of spread is seen as well as one of position.

    Parameters
    ----------
    target, aux : (n, d) and (m, d) float
        Inputs; at most a thousand of each are looked at.
    groups : pair of (n,) int and (m,) int, optional
        Samples of one group are in one fold and change sides together.

    Returns
    -------
    auc, p_value : float
    """
    from sklearn.kernel_ridge import KernelRidge

    kept = [_some(len(target), rng), _some(len(aux), rng)]
    both = np.concatenate([target[kept[0]], aux[kept[1]]])
    member = np.repeat([1.0, 0.0], [len(kept[0]), len(kept[1])])
    unit = np.arange(len(both))
    if groups is not None:
        unit = np.unique(np.concatenate([groups[0][kept[0]], groups[1][kept[1]]]), return_inverse=True)[1]
    n_units = int(unit.max()) + 1
    of_unit = (np.bincount(unit, weights=member) > 0).astype(np.float64)
    permuted = rng.permuted(np.tile(of_unit, (n_permutations, 1)), axis=1)
    labels = np.concatenate([of_unit[None], permuted])[:, unit].T  # (samples, 1 + permutations)
    both = _standardised(both)
    gamma = 1.0 / max(_median_square_distance(both, rng), 1e-12)
    fold = rng.permutation(np.arange(n_units) % BLIND_FOLDS)[unit]
    areas = []
    for k in range(BLIND_FOLDS):
        held_out = fold == k
        known = labels[~held_out]
        model = KernelRidge(kernel="rbf", gamma=gamma, alpha=1.0).fit(both[~held_out], known - known.mean(axis=0))
        areas.append(_areas(model.predict(both[held_out]), labels[held_out]))
    means = np.nanmean(np.stack(areas), axis=0)
    return float(means[0]), float((1 + (means[1:] >= means[0] - 1e-12).sum()) / (n_permutations + 1))


def _some(n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return np.arange(n) if n <= MAX_BLIND else np.sort(rng.choice(n, MAX_BLIND, replace=False))


def _standardised(values: Array) -> Array:
    spread = values.std(axis=0)
    varies = spread > 1e-12
    scaled = (values[:, varies] - values[:, varies].mean(axis=0)) / spread[varies]
    if not scaled.shape[1]:
        return np.zeros((len(values), 1))
    return np.concatenate([scaled, np.abs(scaled) - np.abs(scaled).mean(axis=0)], axis=1)


def _median_square_distance(values: Array, rng: np.random.Generator) -> float:
    first, second = rng.integers(len(values), size=(2, 2000))
    return float(np.median(((values[first] - values[second]) ** 2).sum(axis=1)[first != second]))


def _areas(scores: Array, labels: Array) -> Array:
    """Area under the ROC curve of each column, NaN where a column has one class; ties are as they fall."""
    ranks = scores.argsort(axis=0).argsort(axis=0) + 1.0
    positive = labels.sum(axis=0)
    negative = len(labels) - positive
    with np.errstate(invalid="ignore", divide="ignore"):
        area = ((ranks * labels).sum(axis=0) - positive * (positive + 1) / 2) / (positive * negative)
    return np.asarray(np.where(positive * negative > 0, area, np.nan))
