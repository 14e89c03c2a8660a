"""The models of the trial: one recipe, one loss, and shapes whose parameters are equal in total or when active."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from assay._core.errors import InputError
from assay._core.extras import need

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WIDTH, LAYERS, HEADS, WINDOW, BATCH, VOCABULARY = 192, 4, 4, 128, 8, 4096

#: z-loss, as in the paper: keeps the logits' normaliser near one.
Z_LOSS = 1e-6

#: Total: 12 h^2 in each of 4 layers. Active, embeddings not counted: MemoryLLM 4 h^2 a layer, 589,824 in all, which the
#: two small dense models match with the same width and half the layers (exactly), or narrower (0.1 % above).
KINDS: dict[str, dict[str, Any]] = {
    "base": {"ffn_beta": "base"},
    "memory": {"ffn_beta": 0},
    "flex1": {"ffn_beta": 1},
    "flex2": {"ffn_beta": 2},
    "flex3": {"ffn_beta": 3},
    "shallow": {"ffn_beta": "base", "num_hidden_layers": 2, "intermediate_size": 256},
    "narrow": {"ffn_beta": "base", "hidden_size": 112, "intermediate_size": 290},
}


class Training(NamedTuple):
    """What is trained on, and how long: None is the recipe's own text, a path a user's."""

    text: str | None
    n_steps: int
    n_starts: int = 1


def config_of(kind: str) -> dict[str, Any]:
    """Options of MemoryLlamaConfig."""
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 8 * WIDTH // 3,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "max_position_embeddings": 4 * WINDOW,
        "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    return shape | KINDS[kind]


@lru_cache(maxsize=8)
def trained(kind: str, training: Training, start: int) -> tuple[Any, Any]:
    """A model of this kind and its tokenizer, trained by the shared recipe or found trained."""
    need("transformers", extra="lm", purpose="the trial of memoryllm")
    from assay.models.small import Recipe, train
    from assay.nn.memoryllm import MemoryLlamaConfig, MemoryLlamaForCausalLM

    shape = config_of(kind)
    said: dict[str, Any] = {"z_loss": Z_LOSS, **shape}
    windows = None
    if training.text is not None:
        windows = text_ids(training.text)
        said["text"] = hashlib.sha256(windows.tobytes()).hexdigest()

    def loss(model: Any, ids: Any) -> Any:
        import torch

        if windows is not None:  # the recipe draws from its own text; these are drawn with the seed of the step
            starts = torch.randint(len(windows) - WINDOW + 1, (BATCH, 1))
            ids = torch.from_numpy(windows)[starts + torch.arange(WINDOW)]
        return language_loss(model, ids)

    recipe = Recipe(training.n_steps, BATCH, WINDOW, learning_rate=2e-3, vocab_size=VOCABULARY, seed=start)
    config = MemoryLlamaConfig(**shape)
    small = train(f"memoryllm-{kind}", said, lambda: MemoryLlamaForCausalLM(config), recipe, loss=loss)
    return small.model, small.tokenizer


def language_loss(model: Any, ids: Any) -> Any:
    """Cross-entropy of the next token plus 1e-6 times the squared log-normaliser."""
    from torch.nn.functional import cross_entropy

    logits = model(ids, use_cache=False).logits[:, :-1].float()
    surprise = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    return surprise + Z_LOSS * logits.logsumexp(-1).square().mean()


def read_text(path: str) -> tuple[str, str]:
    """A user's text dealt to training and held-out paragraphs, every tenth held out.

    Raises
    ------
    InputError
        It is no UTF-8 text, or too short.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as UTF-8 text: {error}") from None
    paragraphs = text.split("\n\n")
    if len(paragraphs) < 20 or len(text) < 100_000:
        raise InputError(
            f"{path} has {len(paragraphs)} paragraphs and {len(text)} characters; expected 20 paragraphs, with an "
            f"empty line between them, and 100000 characters to train and test on"
        )
    held_out = paragraphs[9::10]
    kept = [paragraph for number, paragraph in enumerate(paragraphs) if number % 10 != 9]
    return "\n\n".join(kept), "\n\n".join(held_out)


@lru_cache(maxsize=1)
def text_ids(path: str) -> NDArray[np.int64]:
    """The training part of a user's text as tokens."""
    import numpy as np

    from assay.models.small import tokenizer

    read = tokenizer(VOCABULARY)(read_text(path)[0], add_special_tokens=False, verbose=False)["input_ids"]
    return np.asarray(read, dtype=np.int64)
