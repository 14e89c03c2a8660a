"""The network around the transport: heads on an embedding, attention between texts, and their losses.

In a file of its own so that the rest can be imported without torch.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

#: Keeps the logarithm of the attention loss finite for a text that attends to none of its cluster.
FLOOR = 1e-5


class Heads(nn.Module):
    """The contrast head and the classifier.

    Parameters
    ----------
    n_features : int
        Length of an embedding.
    n_clusters : int
    contrast_size : int
        Length of a contrast feature.
    dropout : float
        In the adaptation layers of the classifier.
    """

    def __init__(self, n_features: int, n_clusters: int, contrast_size: int = 128, dropout: float = 0.5) -> None:
        super().__init__()
        width = max(n_features, contrast_size)  # the paper's n_features, which is 768 there; a table may have 2
        self.contrast = nn.Sequential(nn.Linear(n_features, width), nn.ReLU(), nn.Linear(width, contrast_size))
        self.adapt = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(n_features, width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        self.prob = nn.Linear(width, n_clusters)

    def logits(self, embedding: torch.Tensor) -> torch.Tensor:
        """Logits (n, n_clusters) of embeddings (n, n_features)."""
        out: torch.Tensor = self.prob(self.adapt(embedding))
        return out


class InstanceAttention(nn.Module):
    """One post-norm transformer layer in which the texts of a batch are the tokens of a sequence.

    Parameters
    ----------
    d_model, d_feed_forward : int
    dropout : float
        Stays on: the layer is only used while training, as in the authors' code.
    """

    def __init__(self, d_model: int = 128, d_feed_forward: int = 256, dropout: float = 0.1) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(d_model, num_heads=1, dropout=dropout, batch_first=True)
        self.feed_forward = nn.Sequential(
            nn.Linear(d_model, d_feed_forward), nn.ReLU(), nn.Dropout(dropout), nn.Linear(d_feed_forward, d_model)
        )
        self.dropout = nn.Dropout(dropout)
        self.first_norm, self.second_norm = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Features of length one (B, d_model), and who attends to whom (B, B), whose rows sum to one without dropout.

        Parameters
        ----------
        features : (B, d_model)
            Contrast features. Their gradient is cut: this layer learns by itself.
        """
        tokens = features.detach()[None]
        mixed, weights = self.attention(tokens, tokens, tokens, need_weights=True)
        tokens = self.first_norm(tokens + self.dropout(mixed))
        tokens = self.second_norm(tokens + self.dropout(self.feed_forward(tokens)))
        return functional.normalize(tokens[0], dim=1), weights[0]


def contrastive_loss(first: torch.Tensor, second: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """How badly two views of a text find each other among the others; the pair is not in the denominator.

    Parameters
    ----------
    first, second : (B, d)
        Contrast features of the two views. They are brought to length one here. B is at least 2.
    temperature : float
    """
    similarity = _products(first, second) / temperature
    n_texts = len(first)
    positive = similarity.diagonal(n_texts)
    others = similarity.masked_fill(_own(n_texts, similarity.device), -torch.inf).logsumexp(dim=1)
    return others.mean() - positive.mean()


def attention_loss(
    first: torch.Tensor, second: torch.Tensor, attended: torch.Tensor, labels: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """How little the texts of a pseudo-label attend to each other.

    Parameters
    ----------
    first, second : (B, d)
        Attention features of the two views, of length one.
    attended : (B, B)
        The mean of the two views' attention.
    labels : (B,) int64
        Pseudo-labels.
    temperature : float
    """
    similarity = _products(first, second) / temperature
    n_texts = len(first)
    weight = attended.tile(2, 2)
    weight = weight.masked_fill(torch.eye(2 * n_texts, dtype=torch.bool, device=weight.device), 0.0) + FLOOR
    same = labels.tile(2)[:, None] == labels.tile(2)[None]
    within = (similarity + weight.log()).masked_fill(~same, -torch.inf).logsumexp(dim=1)
    others = similarity.masked_fill(_own(n_texts, similarity.device), -torch.inf).logsumexp(dim=1)
    return (others - within).mean()


def _products(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    features = functional.normalize(torch.cat([first, second]), dim=1)
    return features @ features.T


def _own(n_texts: int, device: torch.device) -> torch.Tensor:
    """Where (2B, 2B) compares a text with itself, in either view."""
    return torch.eye(n_texts, dtype=torch.bool, device=device).tile(2, 2)


def instance_similarity(predictions: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
    """The similarity of the transport: cosine of the predictions plus attention, zero on the diagonal.

    Parameters
    ----------
    predictions : (B, C)
        Softmax outputs.
    attended : (B, B)
        The mean of the two views' attention; not symmetric.
    """
    units = functional.normalize(predictions, dim=1)
    return (units @ units.T + attended).fill_diagonal_(0.0)
