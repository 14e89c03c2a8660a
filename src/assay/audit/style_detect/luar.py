"""LUAR: an author's style from several of his documents at once (Rivera-Soto et al., EMNLP 2021).

Each document is the masked mean of its tokens; one attention without parameters lets the documents of an episode look
at each other; the maximum over them goes through one linear layer. The masked means are kept: an episode of other
documents costs one attention, not another pass of the transformer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from assay._core.errors import InputError
from assay._core.files import replacing, write_text

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: distilRoBERTa, the transformer of the released checkpoints.
DISTILROBERTA = {
    "vocab_size": 50265, "hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12,
    "intermediate_size": 3072, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
SETTINGS = "luar.json"
WEIGHTS = "model.safetensors"


class LUAR(nn.Module):
    """Encode episodes: documents of one author.

    Parameters
    ----------
    transformer : nn.Module
        ``transformer(input_ids=…, attention_mask=…).last_hidden_state``; `hidden_size` in its config.
    embedding_size : int
    """

    def __init__(self, transformer: Any, embedding_size: int = 512) -> None:
        super().__init__()
        self.transformer = transformer
        self.linear = nn.Linear(int(transformer.config.hidden_size), embedding_size)

    def document_means(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Masked mean of the tokens of each document: (…, n_tokens) to (…, hidden_size)."""
        shape = input_ids.shape
        hidden = self.transformer(
            input_ids=input_ids.reshape(-1, shape[-1]), attention_mask=attention_mask.reshape(-1, shape[-1])
        ).last_hidden_state
        mask = attention_mask.reshape(-1, shape[-1], 1).to(hidden.dtype)
        means = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp_min(1e-9)
        return means.reshape(*shape[:-1], -1)  # type: ignore[no-any-return]  # transformers' output is Any

    def episode(self, means: Tensor) -> Tensor:
        """Vector of an episode of documents: (…, n_docs, hidden_size) to (…, embedding_size)."""
        attention = (means @ means.transpose(-1, -2) / means.shape[-1] ** 0.5).softmax(dim=-1)
        return self.linear((attention @ means).amax(dim=-2))  # type: ignore[no-any-return]  # torch says Any

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Vectors of episodes: (batch, n_docs, n_tokens) to (batch, embedding_size)."""
        return self.episode(self.document_means(input_ids, attention_mask))


def author_contrast(one: Tensor, other: Tensor, temperature: float = 0.01) -> Tensor:
    """Loss of LUAR's training: two episodes of each author, each to be found among all by the other.

    Parameters
    ----------
    one, other : (n_authors, embedding_size)
        Row i of both is author i.
    temperature : float
    """
    vectors = normalize(torch.cat([one, other]), dim=1)
    n = len(one)
    logits = vectors @ vectors.T / temperature
    logits = logits.masked_fill(torch.eye(2 * n, dtype=torch.bool, device=logits.device), -torch.inf)
    partner = torch.arange(2 * n, device=logits.device).roll(n)
    return nn.functional.cross_entropy(logits, partner)


class LuarEncoder:
    """LUAR as an encoder of texts, with the pool of its episodes.

    Parameters
    ----------
    model : LUAR
    tokenizer : transformers.PreTrainedTokenizerBase
    max_length : int
        Tokens of a text that are read.
    batch_size : int
    """

    def __init__(self, model: LUAR, tokenizer: Any, max_length: int = 512, batch_size: int = 32) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.batch_size = batch_size

    def parts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Masked means of the tokens: (n, hidden_size)."""
        found = np.empty((len(texts), self.model.linear.in_features), dtype=np.float32)
        device = self.model.linear.weight.device
        order = np.argsort([len(text) for text in texts], kind="stable")
        for start in range(0, len(texts), self.batch_size):
            rows = order[start : start + self.batch_size]
            inputs = self.tokenizer(
                [texts[row] for row in rows],
                padding=True,
                truncation=True,
                max_length=self.max_length,
                return_tensors="pt",
            ).to(device)
            with torch.inference_mode():
                means = self.model.document_means(inputs["input_ids"], inputs["attention_mask"])
            found[rows] = means.float().cpu().numpy()
        return found

    def pool(self, parts: NDArray[np.float32]) -> NDArray[np.float32]:
        """Vectors of length one of episodes: (…, n_docs, hidden_size) to (…, embedding_size)."""
        with torch.inference_mode():
            means = torch.from_numpy(np.ascontiguousarray(parts)).to(self.model.linear.weight)
            vectors: NDArray[np.float32] = normalize(self.model.episode(means), dim=-1).float().cpu().numpy()
        return vectors

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of single documents, of length one: (n, embedding_size)."""
        return self.pool(self.parts(texts)[:, None, :])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write weights (safetensors), settings and tokenizer to a folder that :func:`load_luar` reads."""
        from safetensors.torch import save_file

        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save_pretrained(place)
        with replacing(place / WEIGHTS) as temporary:
            save_file({name: value.contiguous() for name, value in self.model.state_dict().items()}, temporary)
        settings = {
            "embedding_size": self.model.linear.out_features,
            "max_length": self.max_length,
            "transformer": self.model.transformer.config.to_dict(),
        }
        write_text(place / SETTINGS, json.dumps(settings, indent=2))


def load_luar(folder: str | os.PathLike[str]) -> LuarEncoder:
    """Load LUAR from a folder: one that :meth:`LuarEncoder.save` wrote, or a released checkpoint.

    The code that comes with a released checkpoint is not run: its weights are read into our own module, whose
    transformer is distilRoBERTa.

    Raises
    ------
    InputError
        The folder does not hold LUAR's weights.
    """
    from safetensors.torch import load_file
    from transformers import AutoTokenizer, RobertaConfig, RobertaModel

    place = Path(folder)
    if not (place / WEIGHTS).is_file():
        raise InputError(
            f"{folder}: no {WEIGHTS} there; LUAR is loaded from a local folder, as its checkpoints come with code of "
            "their own that is not run: download one with hf download rrivera1849/LUAR-MUD --local-dir FOLDER"
        )
    weights = load_file(place / WEIGHTS)
    if "linear.weight" not in weights:
        raise InputError(f"{place / WEIGHTS} has no linear.weight, so it is not a checkpoint of LUAR")
    settings: dict[str, Any] = {}
    if (place / SETTINGS).is_file():
        settings = json.loads((place / SETTINGS).read_text(encoding="utf-8"))
    transformer = RobertaModel(RobertaConfig(**settings.get("transformer", DISTILROBERTA)), add_pooling_layer=False)
    model = LUAR(transformer, len(weights["linear.weight"]))
    missing, _ = model.load_state_dict(weights, strict=False)
    if missing:
        raise InputError(f"{place / WEIGHTS} lacks weights of LUAR, such as {missing[0]}")
    tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=True)
    return LuarEncoder(model, tokenizer, settings.get("max_length", 512))
