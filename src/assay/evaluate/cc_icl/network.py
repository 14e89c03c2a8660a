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
        self.layers = nn.ModuleList(Layer(d_model, n_heads) for _ in range(n_layers))
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
        items = torch.cat([query[:, None], support], dim=1)
        tokens = self.item(items) + self.answer(torch.cat([asked, labels], dim=1))
        for layer in self.layers[:-1]:
            tokens = layer(tokens, tokens)
        tokens = self.layers[-1](tokens[:, :1], tokens)  # nobody reads what the last layer makes of the examples
        logits: torch.Tensor = self.head(self.norm(tokens[:, 0]))
        return logits


class Layer(nn.Module):
    """A pre-norm transformer layer: `asking` tokens attend to `tokens`, of which they are the first.

    Attention over a handful of tokens is a few thousand multiplications an episode: on a CPU products and sums are
    quicker than batched matrix products.
    """

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norm = nn.LayerNorm(d_model)
        self.query = nn.Linear(d_model, d_model)
        self.key_value = nn.Linear(d_model, 2 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(d_model), nn.Linear(d_model, 4 * d_model), nn.ReLU(), nn.Linear(4 * d_model, d_model)
        )

    def forward(self, asking: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """(n, n_asking, d_model) and (n, n_tokens, d_model) to (n, n_asking, d_model)."""
        normed = self.norm(tokens)
        head_shape = (self.n_heads, asking.shape[-1] // self.n_heads)
        q = self.query(normed[:, : asking.shape[1]]).unflatten(-1, head_shape)
        k, v = (part.unflatten(-1, head_shape) for part in self.key_value(normed).chunk(2, dim=-1))
        # (n, n_asking, n_tokens, n_heads)
        logits = (q[:, :, None] * k[:, None]).sum(dim=-1) * head_shape[1] ** -0.5
        mixed = (logits.softmax(dim=2)[..., None] * v[:, None]).sum(dim=2)
        asking = asking + self.out(mixed.flatten(-2))
        out: torch.Tensor = asking + self.feed_forward(asking)
        return out
