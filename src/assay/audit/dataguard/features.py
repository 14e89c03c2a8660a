"""What a model's answer tells of a sample it may have been trained on: a few numbers in nats, lower for members.

Every feature is oriented so that samples of the training set are expected to lie lower. Scales are kept raw: taking
logarithms compresses the few large values that tell most.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

EPS = 1e-12
MAX_LOSS = 6.0
MARGIN_RANGE = (-12.0, 6.0)

CLASS_FEATURES = ("loss", "entropy", "margin", "augmentation gap")
LABEL_FEATURES = ("error", "error under augmentation", "disagreement under augmentation")


def self_information(probs: Array, labels: NDArray[np.int64]) -> Array:
    """Surprise at the true class, I = −log p_y, at most 6 nats.

    Parameters
    ----------
    probs : (n, n_classes) float
    labels : (n,) int

    Examples
    --------
    >>> self_information(np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([0, 1])).round(4).tolist()
    [0.6931, 6.0]
    """
    true = probs[np.arange(len(labels)), labels]
    return np.asarray(np.minimum(-np.log(np.clip(true, EPS, 1.0)), MAX_LOSS))


def entropy(probs: Array) -> Array:
    """Entropy H = −Σ p log p over the last axis, in nats.

    Examples
    --------
    >>> entropy(np.array([0.25, 0.25, 0.25, 0.25])).round(4).item()
    1.3863
    """
    return np.asarray(-(probs * np.log(np.clip(probs, EPS, 1.0))).sum(axis=-1))


def negative_margin(probs: Array, labels: NDArray[np.int64]) -> Array:
    """How much likelier the best other class is, M = max_{c≠y} log p_c − log p_y, kept within [−12, 6] nats."""
    logs = np.log(np.clip(probs, EPS, 1.0))
    rows = np.arange(len(labels))
    others = logs.copy()
    others[rows, labels] = -np.inf
    return np.asarray(np.clip(others.max(axis=1) - logs[rows, labels], *MARGIN_RANGE))


def jensen_gap(augmented: Array) -> Array:
    """Mutual information of augmentation and answer, J = H(mean_k p_k) − mean_k H(p_k), in nats.

    Parameters
    ----------
    augmented : (n_augment, n, n_classes) float
        Probabilities of each sample under each augmentation.

    Returns
    -------
    (n,) float
        At least 0, and 0 where all augmentations have the same answer.
    """
    return np.asarray(np.maximum(entropy(augmented.mean(axis=0)) - entropy(augmented).mean(axis=0), 0.0))


def class_features(probs: Array, labels: NDArray[np.int64], augmented: Array | None = None) -> Array:
    """The features of a classifier's probabilities, in the order of :data:`CLASS_FEATURES`.

    Parameters
    ----------
    probs : (n, n_classes) float
        Rows sum to 1.
    labels : (n,) int
        True classes.
    augmented : (n_augment, n, n_classes) float, optional
        Without it the last feature is left out.

    Returns
    -------
    (n, 4) or (n, 3) float
    """
    columns = [self_information(probs, labels), entropy(probs), negative_margin(probs, labels)]
    if augmented is not None:
        columns.append(jensen_gap(augmented))
    return np.stack(columns, axis=1)


def label_features(
    predicted: NDArray[np.int64], labels: NDArray[np.int64], augmented: NDArray[np.int64] | None = None
) -> Array:
    """The features of a model that says only a class, in the order of :data:`LABEL_FEATURES`.

    Parameters
    ----------
    predicted : (n,) int
    labels : (n,) int
    augmented : (n_augment, n) int, optional
        Predicted classes under augmentation; without them the first feature stands alone.

    Returns
    -------
    (n, 3) or (n, 1) float
    """
    columns = [(predicted != labels).astype(float)]
    if augmented is not None:
        columns += [(augmented != labels).mean(axis=0), (augmented != predicted).mean(axis=0)]
    return np.stack(columns, axis=1)
