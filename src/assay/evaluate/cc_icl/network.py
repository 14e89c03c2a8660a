"""The network of the in-context classifier. It is in a file of its own so that the rest can be used without torch."""

from __future__ import annotations

import torch
from torch import nn


class InContextNetwork(nn.Module):
    """Tokens of labelled examples and of the query, a pre-norm transformer, logits read from the query's token.

    Parameters
    ----------
    n_features, n_answers, d_model, n_layers, n_heads : int
    """

    def __init__(self, n_features: int, n_answers: int, d_model: int, n_layers: int, n_heads: int) -> None:
        super().__init__()
        self.item = nn.Sequential(nn.Linear(n_features, d_model), nn.ReLU(), nn.Linear(d_model, d_model))
        self.answer = nn.Embedding(n_answers + 1, d_model)  # the last one says: this is asked
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                d_model, n_heads, dim_feedforward=4 * d_model, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(n_layers)
        )
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, n_answers)

    def forward(self, support: torch.Tensor, labels: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        """Logits (n, n_answers).

        Parameters
        ----------
        support : (n, n_support, n_features) float
        labels : (n, n_support) int64
        query : (n, n_features) float
        """
        asked = torch.full_like(labels[:, :1], self.answer.num_embeddings - 1)
        items = torch.cat([support, query[:, None]], dim=1)
        tokens = self.item(items) + self.answer(torch.cat([labels, asked], dim=1))
        for layer in self.layers:
            tokens = layer(tokens)
        logits: torch.Tensor = self.head(self.norm(tokens[:, -1]))
        return logits
