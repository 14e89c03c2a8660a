"""One picture: a map of the texts with numbered clusters, and their sizes with their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

#: Okabe and Ito's colours, told apart with every kind of colour vision; numbers tell clusters of one colour apart.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")

#: Texts on the map: its layout takes time quadratic in them.
MAP_TEXTS = 1_500

#: The largest clusters get a bar.
MOST_BARS = 40


def draw_clusters(
    embeddings: NDArray[np.floating[Any]], labels: NDArray[np.integer[Any]], names: Sequence[str], random_state: int = 0
) -> Axes:
    """Draw the map (t-SNE of at most 1,500 texts) beside the sizes.

    Parameters
    ----------
    embeddings : (n, d)
    labels : (n,) int
        From 0.
    names : sequence of str
        A name for each cluster.
    random_state : int

    Returns
    -------
    Axes
        Of the sizes; its figure holds both.
    """
    from matplotlib import pyplot as plt

    sizes = np.bincount(labels, minlength=len(names))
    shown = np.argsort(-sizes, kind="stable")[:MOST_BARS]
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(13.0, max(5.0, 1.2 + 0.28 * len(shown))), width_ratios=(1.2, 1.0), layout="constrained"
    )
    _draw_map(left, embeddings, labels, random_state)
    place = np.arange(len(shown))[::-1]
    right.barh(place, sizes[shown], color=[COLOURS[number % len(COLOURS)] for number in shown], height=0.7)
    # A dollar sign would start a formula.
    right.set_yticks(place, [f"{number}  {names[number]}".replace("$", r"\$") for number in shown])
    right.set_ylim(-0.7, len(shown) - 0.3)
    more = len(names) - len(shown)
    right.set_xlabel("texts" + (f" (the {len(shown)} largest clusters; {more} more)" if more else ""))
    right.spines[["top", "right"]].set_visible(False)
    figure.align_labels()
    axes: Axes = right
    return axes


def _draw_map(
    ax: Axes, embeddings: NDArray[np.floating[Any]], labels: NDArray[np.integer[Any]], random_state: int
) -> None:
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    n = len(labels)
    rng = np.random.default_rng(random_state)
    rows = np.arange(n) if n <= MAP_TEXTS else np.sort(rng.choice(n, MAP_TEXTS, replace=False))
    points = np.asarray(embeddings[rows], dtype=np.float64)
    points = PCA(min(50, *points.shape), random_state=random_state).fit_transform(points)
    if len(rows) > 10:
        perplexity = min(30.0, (len(rows) - 1) / 3)
        points = TSNE(2, perplexity=perplexity, init="pca", random_state=random_state).fit_transform(points)
    colours = [COLOURS[label % len(COLOURS)] for label in labels[rows]]
    ax.scatter(points[:, 0], points[:, 1], s=6, c=colours, alpha=0.6, linewidths=0)
    for number in np.unique(labels[rows]):
        x, y = np.median(points[labels[rows] == number], axis=0)[:2]
        ax.text(x, y, str(number), ha="center", va="center", fontsize=9, fontweight="bold",
                bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "0.6", "alpha": 0.85})  # fmt: skip
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_xlabel(f"t-SNE of {len(rows):,} texts (no unit); close together: similar")
