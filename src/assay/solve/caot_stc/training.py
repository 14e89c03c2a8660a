"""The schedule: contrast, k-means labels, then pseudo-labels by transport on every batch.

In a file of its own so that the rest can be imported without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch.nn import functional

from assay.solve.caot_stc.measures import Look
from assay.solve.caot_stc.network import (
    Heads,
    InstanceAttention,
    attention_loss,
    contrastive_loss,
    instance_similarity,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from assay.solve.caot_stc.transport import Array

    Labels = NDArray[np.intp]
    #: (predictions, similarity, sizes so far) to pseudo-labels and new sizes.
    Assign = Callable[[Array, Array, Array], tuple[Labels, Array]]

#: Labels that change less often than this between two looks have settled; more often, and training has diverged.
SETTLED, DIVERGED = 1e-4, 0.8

#: Steps between two looks at all labels.
LOOK_EVERY = 50


class Views(Protocol):
    """Where embeddings come from: stored ones, or an encoder that is trained along."""

    def __len__(self) -> int: ...

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Embeddings (B, n_features) of the two views and of the text as it is."""

    def everything(self) -> torch.Tensor:
        """Embeddings (n, n_features) of all texts as they are, without gradients."""

    def parameters(self) -> list[torch.nn.Parameter]:
        """What is trained of the encoder."""


class Stored:
    """Embeddings that stay as they are, with two stored views or with dropout for views.

    Parameters
    ----------
    embeddings : (n, n_features) float32
    views : pair of (n, n_features) float32, optional
        Embeddings of two altered versions of each text.
    dropout : float
        Without `views`: share of an embedding's values that each view sets to zero.
    """

    def __init__(
        self, embeddings: torch.Tensor, views: tuple[torch.Tensor, torch.Tensor] | None = None, dropout: float = 0.1
    ) -> None:
        self.embeddings, self.views, self.dropout = embeddings, views, dropout

    def __len__(self) -> int:
        return len(self.embeddings)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See :class:`Views`."""
        plain = self.embeddings[rows]
        if self.views is not None:
            return self.views[0][rows], self.views[1][rows], plain
        return functional.dropout(plain, self.dropout), functional.dropout(plain, self.dropout), plain

    def everything(self) -> torch.Tensor:
        """See :class:`Views`."""
        return self.embeddings

    def parameters(self) -> list[torch.nn.Parameter]:
        """See :class:`Views`."""
        return []


@dataclass(frozen=True)
class Schedule:
    """How long and how fast; the defaults are the authors'.

    Parameters
    ----------
    n_clusters, batch_size, max_iter : int
    pre_steps : int
        Steps of contrast alone.
    warm_steps : int
        Steps with the labels of k-means.
    learning_rate, encoder_learning_rate : float
        Of the heads, and of the encoder where it is trained.
    contrast_weight : float
        Of the contrastive loss beside the classifier's.
    """

    n_clusters: int
    batch_size: int = 200
    max_iter: int = 2000
    pre_steps: int = 0
    warm_steps: int = 80
    learning_rate: float = 5e-4
    encoder_learning_rate: float = 5e-6
    contrast_weight: float = 5.0


@dataclass(frozen=True)
class Trained:
    """The classifier, what was seen on the way, and why it ended: ``settled``, ``diverged`` or ``max_iter``."""

    heads: Heads
    looks: list[Look]
    kmeans_labels: Labels
    sizes: Array
    ended: str


def train(
    views: Views, schedule: Schedule, cluster: Callable[[Array], Labels], assign: Assign, *, seed: int
) -> Trained:
    """Train heads (and the encoder, where `views` has parameters) on pseudo-labels.

    Parameters
    ----------
    views : Views
    schedule : Schedule
    cluster : callable
        Labels of k-means for embeddings (n, n_features).
    assign : callable
        Pseudo-labels of a batch.
    seed : int
    """
    device = views.everything().device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        n_features = views.everything().shape[1]
        heads = Heads(n_features, schedule.n_clusters).to(device)
        attention = InstanceAttention().to(device)
        groups = [{"params": list(heads.parameters()), "lr": schedule.learning_rate}]
        if views.parameters():
            groups.append({"params": views.parameters(), "lr": schedule.encoder_learning_rate})
        optimiser = torch.optim.Adam(groups)
        attention_optimiser = torch.optim.Adam(attention.parameters(), lr=schedule.learning_rate)

        batches = _batches(len(views), schedule.batch_size)
        sizes = np.full(schedule.n_clusters, 1.0 / schedule.n_clusters)
        kmeans_labels: Labels | None = None
        last: Labels | None = None
        looks: list[Look] = []
        ended = "max_iter"
        for step in range(schedule.max_iter):
            rows = next(batches)
            first, second, plain = views.batch(rows)
            features = heads.contrast(first), heads.contrast(second)
            loss = schedule.contrast_weight * contrastive_loss(*features)
            labels = None
            if step >= schedule.pre_steps:
                if kmeans_labels is None:
                    kmeans_labels = cluster(_numpy(views.everything()))
                if step < schedule.pre_steps + schedule.warm_steps:
                    labels = torch.from_numpy(kmeans_labels[rows.cpu().numpy()]).to(device)
                    (h1, a1), (h2, a2) = attention(features[0]), attention(features[1])
                else:
                    (h1, a1), (h2, a2) = attention(features[0]), attention(features[1])
                    with torch.no_grad():
                        predictions = heads.logits(plain).softmax(dim=1)
                        similarity = instance_similarity(predictions, (a1 + a2) / 2)
                    found, sizes = assign(_numpy(predictions), _numpy(similarity), sizes)
                    labels = torch.from_numpy(found).to(device)
                loss = loss + functional.cross_entropy(heads.logits(first), labels)
                loss = loss + functional.cross_entropy(heads.logits(second), labels)
                of_attention = attention_loss(h1, h2, (a1 + a2) / 2, labels)
                attention_optimiser.zero_grad()
                of_attention.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                attention_optimiser.step()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimiser.step()
            is_look = (step + 1) % LOOK_EVERY == 0 and step >= schedule.pre_steps + schedule.warm_steps
            if is_look and kmeans_labels is not None:
                now = predicted(heads, views.everything())
                looks.append(_look(step + 1, now, last, kmeans_labels, schedule.n_clusters))
                changed = looks[-1].changed
                if last is not None and (changed < SETTLED or changed > DIVERGED):
                    ended = "settled" if changed < SETTLED else "diverged"
                    break
                last = now
    if kmeans_labels is None:
        kmeans_labels = cluster(_numpy(views.everything()))
    return Trained(heads.eval(), looks, kmeans_labels, sizes, ended)


def predicted(heads: Heads, embeddings: torch.Tensor) -> Labels:
    """The classifier's labels, without dropout."""
    was_training = heads.training
    heads.eval()
    with torch.inference_mode():
        labels = heads.logits(embeddings).argmax(dim=1)
    heads.train(was_training)
    return np.asarray(labels.cpu().numpy(), dtype=np.intp)


def _look(step: int, now: Labels, last: Labels | None, kmeans_labels: Labels, n_clusters: int) -> Look:
    counts = np.bincount(now, minlength=n_clusters)
    changed = float("nan") if last is None else float(np.mean(now != last))
    agreement = float(np.mean(now == kmeans_labels))
    return Look(step, changed, agreement, float(counts.max() / len(now)), int((counts > 0).sum()))


def _batches(n: int, size: int) -> Iterator[torch.Tensor]:
    """Rows in random order, time and again; what does not fill a batch waits for the next round."""
    while True:
        order = torch.randperm(n)
        for start in range(0, n - size + 1, size):
            yield order[start : start + size]


def _numpy(values: torch.Tensor) -> Array:
    return np.asarray(values.detach().cpu().numpy(), dtype=np.float64)
