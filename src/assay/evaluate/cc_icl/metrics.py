"""Criterion sensitivity and criterion invariance from predictions and truths: arrays in, numbers out.

An item counts as right only when its prediction is right under every criterion. Averaging accuracy over criteria
instead gives a rigid classifier half marks for the items that were made to catch it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay._core.errors import InputError
from assay._core.seeds import generator

Array = NDArray[np.float64]
Codes = NDArray[np.int64]

#: Code of an answer that could not be read; it is never right.
UNPARSED = -1


class Share(NamedTuple):
    """A share with its interval, and the number of items it is a share of (NaN when there are none)."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Score:
    """The metrics as plain numbers; NaN where there is no item to measure on.

    Parameters
    ----------
    sensitivity, invariance, overall : float
        CS, CI and Ov: share of sensitive, invariant and all items that are right under every criterion.
    rigidity : float
        Share of sensitive items with one and the same answer under all criteria.
    direction : float
        Share of those rigid items that get the last answer (the alarm).
    flip_error : float
        Share of invariant items whose prediction changes with the criterion.
    unparsed : float
        Share of predictions that are no answer; counted as wrong.
    accuracy, accuracy_sensitive : (n_criteria,) float
        The usual accuracy under each criterion, on all items and on the sensitive ones.
    n_sensitive, n_invariant : int
    """

    sensitivity: float
    invariance: float
    overall: float
    rigidity: float
    direction: float
    flip_error: float
    unparsed: float
    accuracy: Array
    accuracy_sensitive: Array
    n_sensitive: int
    n_invariant: int


def score(predictions: ArrayLike, truths: ArrayLike, *, n_answers: int | None = None) -> Score:
    """Criterion sensitivity, invariance and the diagnostics beside them.

    The formulas are inferred from the paper's tables, whose "overall" columns they give to the last digit.

    Parameters
    ----------
    predictions : (n_items, n_criteria) int
        Codes of answers; `UNPARSED` (-1) where there is none.
    truths : (n_items, n_criteria) int
        Codes from 0. Item i is the same episode in every column: same support, same query, other labels.
    n_answers : int, optional
        Size of the set of answers; by default one more than the largest code.

    Raises
    ------
    InputError
        The shapes differ, there are no items, or a code is outside the set.

    Examples
    --------
    The worked example: "print" is tolerated under A and not under B; the model says No to everything.

    >>> result = score([[0, 0], [0, 0]], [[0, 1], [0, 0]])
    >>> result.sensitivity, result.invariance, result.rigidity
    (0.0, 1.0, 1.0)
    """
    p, g, size = checked(predictions, truths, n_answers)
    types = outcome_types(p, g, size)
    numerators, denominators = indicators(types.predictions, types.truths, size)
    with np.errstate(invalid="ignore"):
        values = (types.counts @ numerators) / (types.counts @ denominators)
    first, k = len(METRICS), g.shape[1]
    n_sensitive = int((g != g[:, :1]).any(axis=1).sum())
    named = dict(zip(METRICS, values[:first].tolist(), strict=True))
    return Score(
        **named,
        accuracy=values[first : first + k],
        accuracy_sensitive=values[first + k :],
        n_sensitive=n_sensitive,
        n_invariant=len(g) - n_sensitive,
    )


#: The first columns of `indicators`; after them come accuracy and accuracy_sensitive under each criterion.
METRICS = ("sensitivity", "invariance", "overall", "rigidity", "direction", "flip_error", "unparsed")


def indicators(p: Codes, g: Codes, n_answers: int) -> tuple[Array, Array]:
    """What each item adds to the numerator and to the denominator of every metric: two (n, n_metrics) arrays."""
    hit = p == g
    joint = hit.all(axis=1)
    sensitive = (g != g[:, :1]).any(axis=1)
    same = (p == p[:, :1]).all(axis=1)
    rigid = sensitive & same & (p[:, 0] != UNPARSED)
    everything = np.ones(len(p), dtype=bool)
    alarm = p[:, 0] == n_answers - 1
    pairs = [
        (joint & sensitive, sensitive),
        (joint & ~sensitive, ~sensitive),
        (joint, everything),
        (rigid, sensitive),
        (rigid & alarm, rigid),
        (~sensitive & ~same, ~sensitive),
        ((p == UNPARSED).mean(axis=1), everything),
        *((column, everything) for column in hit.T),
        *((column & sensitive, sensitive) for column in hit.T),
    ]
    return (
        np.column_stack([np.asarray(top, dtype=np.float64) for top, _ in pairs]),
        np.column_stack([np.asarray(bottom, dtype=np.float64) for _, bottom in pairs]),
    )


class OutcomeTypes(NamedTuple):
    """The distinct rows of (predictions, truths), and how many items have each."""

    predictions: Codes
    truths: Codes
    counts: Codes


def outcome_types(p: Codes, g: Codes, n_answers: int) -> OutcomeTypes:
    """Count items by what was predicted and what was true.

    All metrics depend on these counts alone, so a bootstrap over items is a multinomial draw of them: its cost does
    not grow with the number of items.
    """
    base = n_answers + 1
    if 2 * g.shape[1] * np.log2(base) >= 62:  # too many combinations for one integer
        rows, counts = np.unique(np.concatenate([p, g], axis=1), axis=0, return_counts=True)
        return OutcomeTypes(rows[:, : p.shape[1]], rows[:, p.shape[1] :], counts)
    code = np.zeros(len(p), dtype=np.int64)
    for column in (*p.T, *g.T):
        code *= base
        code += column + 1
    size = base ** (2 * g.shape[1])
    if size <= 1 << 20:
        by_code = np.bincount(code, minlength=size)
        present = np.flatnonzero(by_code)
        counts = by_code[present]
    else:
        present, counts = np.unique(code, return_counts=True)
    digits = [(present // base**place) % base - 1 for place in reversed(range(2 * g.shape[1]))]
    rows = np.stack(digits, axis=1)
    return OutcomeTypes(rows[:, : p.shape[1]], rows[:, p.shape[1] :], counts)


def shares(
    predictions: ArrayLike,
    truths: ArrayLike,
    *,
    n_answers: int | None = None,
    confidence: float = 0.95,
    n_resamples: int = 2000,
    random_state: int | np.random.Generator | None = 0,
) -> list[Share]:
    """Every metric with a percentile bootstrap interval over items, in the order of :func:`indicators`.

    Whole items are resampled, never single answers: the answers to one item under several criteria are not
    independent. Where a share is exactly 0 or 1 all resamples agree and would claim certainty; the exact binomial
    bound 1 − (α/2)^(1/n) is used there.

    Raises
    ------
    InputError
        As :func:`score`, or `confidence` is not between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise InputError(f"confidence is {confidence}; expected a number between 0 and 1, such as 0.95")
    p, g, size = checked(predictions, truths, n_answers)
    types = outcome_types(p, g, size)
    numerators, denominators = indicators(types.predictions, types.truths, size)
    draws = generator(random_state).multinomial(len(p), types.counts / len(p), size=n_resamples)
    tail = (1 - confidence) / 2
    found = []
    for top, bottom in zip(numerators.T, denominators.T, strict=True):
        n = int(types.counts @ bottom)
        if n == 0:
            found.append(Share(np.nan, np.nan, np.nan, 0))
            continue
        value = float(types.counts @ top) / n
        below = draws @ bottom
        resampled = (draws @ top)[below > 0] / below[below > 0]
        low, high = np.quantile(resampled, [tail, 1 - tail])
        exact = tail ** (1 / n)
        low = exact if value == 1 else low
        high = 1 - exact if value == 0 else high
        found.append(Share(value, float(low), float(high), n))
    return found


def is_identifiable(labels: Codes, truths: Codes) -> NDArray[np.bool_]:
    """Whether the support of each item shows which criterion is active, as far as the query depends on it.

    Parameters
    ----------
    labels : (n_items, n_support, n_criteria) int
    truths : (n_items, n_criteria) int

    Returns
    -------
    (n_items,) bool
        False where two criteria give the support the same labels and the query different answers: no classifier can
        be right under both.
    """
    solvable = np.ones(len(truths), dtype=bool)
    for first in range(truths.shape[1]):
        for second in range(first):
            same_support = (labels[:, :, first] == labels[:, :, second]).all(axis=1)
            solvable &= ~(same_support & (truths[:, first] != truths[:, second]))
    return solvable


def checked(predictions: ArrayLike, truths: ArrayLike, n_answers: int | None) -> tuple[Codes, Codes, int]:
    """Predictions and truths as int64 arrays of one shape, and the size of the set of answers."""
    p, g = _codes(predictions, "predictions"), _codes(truths, "truths")
    if p.shape != g.shape:
        raise InputError(f"predictions have the shape {p.shape} and truths {g.shape}; expected (n_items, n_criteria)")
    if g.size == 0:
        raise InputError("there are no items to score; give at least one, with a truth under every criterion")
    size = n_answers or int(max(g.max(), p.max())) + 1
    for name, codes, lowest in (("predictions", p, UNPARSED), ("truths", g, 0)):
        outside = (codes < lowest) | (codes >= size)
        if outside.any():
            row, column = np.argwhere(outside)[0]
            raise InputError(
                f"{name}, item {row + 1}, criterion {column + 1}: {codes[row, column]} is not the code of an answer; "
                f"expected {lowest} to {size - 1}"
            )
    return p, g, size


def _codes(values: ArrayLike, name: str) -> Codes:
    array = np.asarray(values)
    if array.ndim != 2:
        raise InputError(f"{name} have {array.ndim} dimensions; expected (n_items, n_criteria)")
    if array.dtype.kind not in "iub" and not (array.dtype.kind == "f" and bool((array == np.round(array)).all())):
        raise InputError(f"{name} must be whole numbers, the codes of answers (no NaN); got {array.dtype}")
    return array.astype(np.int64)
