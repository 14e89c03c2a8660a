"""What the parts of lora-memory's trial on a language model share: the model, a memory read from files, an answer."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from assay import models
from assay.adapt.lora_memory import LoRAMemory
from assay.bench import Metric

if TYPE_CHECKING:
    from assay.adapt.lora_memory.compare import Reading


def load_model(name: str) -> tuple[Any, Any]:
    return _loaded(name, os.getpid())


@lru_cache(maxsize=2)
def _loaded(name: str, process: int) -> tuple[Any, Any]:
    return models.demo_lm() if name == "demo" else models.load_lm(name)


@lru_cache(maxsize=2)
def loaded_memory(folder: str, name: str, how: tuple[str, int, str] = ("bm25", 1, "linear")) -> LoRAMemory:
    """A memory on a model of its own: the demo model's weights are mapped, so a second one costs little."""
    model, tokenizer = models.demo_lm() if name == "demo" else models.load_lm(name)
    router, top_k, merge = how
    encoder = models.demo_encoder() if router == "embedding" else None
    return LoRAMemory.load(folder, model, tokenizer, router=router, encoder=encoder, top_k=top_k, merge=merge)


class Answered(NamedTuple):
    """What was said, and what it cost."""

    reading: Reading
    n_parameters: int = 0


class one_thread:  # noqa: N801  # reads as a sentence where it is used
    """As the arms have it: where cores are shared, threads that wait for each other cost a multiple."""

    def __enter__(self) -> None:
        import torch

        self.before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        import torch

        torch.set_num_threads(self.before)


REPHRASED = Metric("recall_rephrased", better="higher", help="the same, asked in other words")
COSTS = (
    Metric("latency", better="lower", scale="log", unit="ms", help="a question, answered in batches"),
    Metric("prompt_tokens", better="lower", scale="log", help="tokens of the prompt, a question"),
)
