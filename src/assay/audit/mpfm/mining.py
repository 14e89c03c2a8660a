"""Hard examples: windows whose prototype drifts, and windows made wrong on purpose.

Our reconstruction of the paper's third part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def hard_windows(drifts: list[NDArray[np.float64]], domain: NDArray[np.int64], share: float = 0.1) -> NDArray[np.bool_]:
    """The `share` of every domain's windows with the most drift, averaged over the last three epochs.

    Parameters
    ----------
    drifts : list of (n,) float
        Of every epoch: how far the window's prototype moved, plus one where its nearest prototype changed.
    domain : (n,) int
    share : float
    """
    drift = np.mean(drifts[-3:], axis=0)
    hard = np.zeros(len(domain), bool)
    for k in np.unique(domain):
        rows = np.flatnonzero(domain == k)
        n_hard = int(np.ceil(share * len(rows)))
        hard[rows[np.argsort(-drift[rows], kind="stable")[:n_hard]]] = True
    return hard


def corrupt(
    ids: NDArray[np.int64],
    foreign: NDArray[np.int64],
    rare: NDArray[np.int64],
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Make every window wrong in one of five ways: a line dropped, repeated, two swapped, a foreign one, a rare one.

    Parameters
    ----------
    ids : (n, length) int
        Template of every line, −1 where there is none; lines stand first.
    foreign, rare : (n,) int
        A template of another domain, and a rare one of the window's own.
    rng : Generator

    Returns
    -------
    corrupted : (n, length) int
    changed : (n,) bool
        False where the corruption left the window as it was (two equal lines swapped).
    """
    n, length = ids.shape
    n_lines = (ids >= 0).sum(axis=1)
    rows, place = np.arange(n), (rng.random(n) * n_lines).astype(np.int64)
    other = (rng.random(n) * n_lines).astype(np.int64)
    way = rng.integers(5, size=n)
    out = ids.copy()
    column = np.arange(length)

    # A dropped line pulls the later ones forward; a repeated one fills the places behind it.
    dropped = np.take_along_axis(ids, np.minimum(column + (column >= place[:, None]), length - 1), axis=1)
    dropped[rows, n_lines - 1] = -1
    dropped = np.where(n_lines[:, None] > 1, dropped, ids)  # the only line of a window stays
    burst = (column > place[:, None]) & (column <= place[:, None] + rng.integers(1, 6, size=(n, 1)))
    repeated = np.where(burst & (column < n_lines[:, None]), ids[rows, place][:, None], ids)
    swapped = ids.copy()
    swapped[rows, place], swapped[rows, other] = ids[rows, other], ids[rows, place]
    for number, made in enumerate((dropped, repeated, swapped)):
        out[way == number] = made[way == number]
    # Half of the strange lines come alone, half in a run: alerts repeat themselves.
    run = np.where(rng.random(n) < 0.5, 1, 1 + (rng.random(n) * n_lines).astype(np.int64))
    inside = (column >= place[:, None]) & (column < np.minimum(place + run, n_lines)[:, None])
    for number, template in ((3, foreign), (4, rare)):
        at = way == number
        out[at] = np.where(inside, template[:, None], ids)[at]
    return out, (out != ids).any(axis=1)


def novelty(vectors: NDArray[np.float32], known: NDArray[np.float32]) -> NDArray[np.float32]:
    """(n, n_features + 1): embeddings with one more coordinate, the distance to the nearest known one (zero: known).

    Ours: a message that nobody has seen is the plainest anomaly, and an encoder that has seen some hundred templates
    cannot tell what it has not seen.
    """
    squares = np.square(known).sum(axis=1)
    nearest = np.empty(len(vectors), np.float32)
    for start in range(0, len(vectors), 1024):
        part = vectors[start : start + 1024]
        squared = np.square(part).sum(axis=1)[:, None] - 2 * part @ known.T + squares
        nearest[start : start + 1024] = squared.min(axis=1)
    # Rounding of the difference of squares must not make a known template a little new.
    far = np.where(nearest > 1e-4 * (squares.mean() + 1e-9), np.sqrt(np.maximum(nearest, 0)), 0.0)
    return np.concatenate([vectors, far[:, None].astype(np.float32)], axis=1)


def strange_templates(table: NDArray[np.float32], n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """(n, n_features) embeddings as of templates never seen: means of one to four, with their coordinates in disorder.

    They keep the mean length of the table's rows.
    """
    among = rng.integers(len(table), size=(n, 4))
    weight = (np.arange(4) < rng.integers(1, 5, size=(n, 1))).astype(np.float32)
    mixed = np.einsum("nr,nrf->nf", weight, table[among])
    length = np.linalg.norm(table, axis=1).mean() / (np.linalg.norm(mixed, axis=1, keepdims=True) + 1e-6)
    return rng.permuted((mixed * length).astype(np.float32), axis=1)


def shuffle_features(values: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """The same for rows of plain numbers: three tenths of a row's features (one at least) come from other rows."""
    n, width = values.shape
    taken = rng.random((n, width)) < 0.3
    taken[np.arange(n), rng.integers(width, size=n)] = True
    return np.where(taken, values[rng.integers(n, size=(n, width)), np.arange(width)], values)
