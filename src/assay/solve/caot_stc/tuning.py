"""Train the encoder along: altered texts go through it at every step.

In a file of its own so that the rest can be imported without torch.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.solve.caot_stc.transport import Array


class Tuned:
    """Embeddings by an encoder that learns.

    Parameters
    ----------
    encoder : object
        With ``model``, ``tokenizer``, ``max_length`` and ``encode``, as :class:`assay.models.Encoder` has. Copied.
    texts : sequence of n str
    views : pair of sequences of n str
        Two altered versions of each text. Where they are the texts, the views differ by the encoder's own dropout.
    center : (n_features,) float
    scale : float
        Embeddings are centred and divided as at the start, so that the heads see values of their size.
    device : str
    """

    def __init__(
        self,
        encoder: Any,
        texts: Sequence[str],
        views: tuple[Sequence[str], Sequence[str]],
        center: Array,
        scale: float,
        device: str,
    ) -> None:
        if not all(hasattr(encoder, name) for name in ("model", "tokenizer", "max_length", "encode")):
            raise InputError(
                f"freeze_encoder=False needs an assay.models.Encoder, not {type(encoder).__name__}: "
                "its model and tokenizer are trained"
            )
        self.encoder = copy.copy(encoder)
        self.encoder.model = copy.deepcopy(encoder.model).to(device).requires_grad_(True)
        self.texts, self.views = texts, views
        self.center = torch.tensor(center, dtype=torch.float32, device=device)
        self.scale = scale
        self._stored: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Embeddings of the two views with gradients, and of the texts without."""
        self._stored = None  # a step follows, and the encoder is another one
        self.encoder.model.train()
        first, second = (self._embedded([view[row] for row in rows.tolist()]) for view in self.views)
        with torch.no_grad():
            plain = self._embedded([self.texts[row] for row in rows.tolist()])
        self.encoder.model.eval()
        return first, second, plain

    def everything(self) -> torch.Tensor:
        """Embeddings of all texts by the encoder as it is now."""
        if self._stored is None:
            vectors = torch.from_numpy(self.encoder.encode(list(self.texts))).to(self.center.device)
            self._stored = (vectors - self.center) / self.scale
        return self._stored

    def parameters(self) -> list[torch.nn.Parameter]:
        """All of the encoder."""
        return list(self.encoder.model.parameters())

    def _embedded(self, texts: list[str]) -> torch.Tensor:
        """Mean over the tokens, length one, as ``Encoder.encode`` does, but with gradients."""
        inputs = self.encoder.tokenizer(
            texts, padding=True, truncation=True, max_length=self.encoder.max_length, return_tensors="pt"
        ).to(self.center.device)
        hidden = self.encoder.model(**inputs).last_hidden_state
        weight = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(dim=1) / weight.sum(dim=1)
        return (functional.normalize(mean, dim=1) - self.center) / self.scale
