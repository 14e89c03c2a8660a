"""Take off what is difficult about a sample itself, as models see it that cannot have seen it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

N_FOLDS = 5
#: A residual whose spread is this share of the feature's is rounding: references say all there is to say.
NOTHING_LEFT = 1e-9


def residuals(
    target: Array,
    aux: Array,
    ref_target: Array,
    ref_aux: Array,
    rng: np.random.Generator,
    groups_aux: NDArray[np.int64] | None = None,
) -> tuple[Array, Array]:
    """What is left of the features when the references' features are regressed out.

    The regression φ ~ 1 + r is fitted on auxiliary samples only, since the target's features are what is in question.
    Residuals of auxiliary samples come from fits on the other four fifths: those of a fit on themselves are too small.

    Parameters
    ----------
    target, aux : (n, k) and (m, k) float
        Features of the model in question.
    ref_target, ref_aux : (n, r) and (m, r) float
        Features of the references, means over them.
    rng : numpy Generator
        For the folds.
    groups_aux : (m,) int, optional
        Samples of one group are in one fold.

    Returns
    -------
    target, aux : (n, k) and (m, k) float
        A feature that the references foresee completely is 0 throughout.
    """
    unit = np.arange(len(aux)) if groups_aux is None else np.unique(groups_aux, return_inverse=True)[1]
    n_units = int(unit.max()) + 1
    fold = rng.permutation(np.arange(n_units) % min(N_FOLDS, n_units))[unit]
    left_aux = np.empty_like(aux)
    for k in range(int(fold.max()) + 1):
        held_out = fold == k
        left_aux[held_out] = aux[held_out] - _foreseen(ref_aux[~held_out], aux[~held_out], ref_aux[held_out])
    left_target = target - _foreseen(ref_aux, aux, ref_target)
    scale = np.concatenate([target, aux]).std(axis=0)
    nothing = np.concatenate([left_target, left_aux]).std(axis=0) <= NOTHING_LEFT * np.maximum(scale, 1e-300)
    return np.where(nothing, 0.0, left_target), np.where(nothing, 0.0, left_aux)


def _foreseen(known: Array, values: Array, asked: Array) -> Array:
    """Least squares with an intercept; columns that do not vary are left to it."""
    center, scale = known.mean(axis=0), known.std(axis=0)
    scale = np.where(scale > 0, scale, np.inf)
    design = np.concatenate([np.ones((len(known), 1)), (known - center) / scale], axis=1)
    coefficients, *_ = np.linalg.lstsq(design, values, rcond=1e-10)
    asked_design = np.concatenate([np.ones((len(asked), 1)), (asked - center) / scale], axis=1)
    return np.asarray(asked_design @ coefficients)
