"""How fast a model decodes from a table on disk, and its dense twin from its weights; weights are random."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.seeds import child_seed
from assay.bench import Case, Data
from assay.trials.nn.memoryllm.models import VOCABULARY
from assay.trials.nn.memoryllm.reading import from_disk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale

#: Tokens of a prompt; repeats of which the fastest counts.
PROMPT, REPEATS = 16, 3


class Shape(NamedTuple):
    """Width and layers of both models, and how many tokens are decoded."""

    width: int
    n_layers: int
    n_tokens: int


class Prompt(NamedTuple):
    """What an arm sees."""

    shape: Shape
    ids: np.ndarray[Any, Any]


class Decoded(NamedTuple):
    """CPU seconds of a token, bytes of weights and kept rows, bytes of the mapped table."""

    cpu_s: float
    memory: int
    mapped: int


def load_speed(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    need("torch", extra="lm", purpose="the trial of memoryllm")
    shape = Shape(int(params["width"]), int(params["layers"]), int(params["tokens"]))
    if shape.width < 64 or shape.width % 64 or shape.n_layers < 1 or shape.n_tokens < 2:
        raise InputError(
            f"width={shape.width}, layers={shape.n_layers}, tokens={shape.n_tokens}: expected a multiple of 64, 1 or "
            f"more and 2 or more"
        )
    twin("table", shape)
    name = f"random models of {shape.n_layers} layers, width {shape.width}, {shape.n_tokens} tokens a prompt"
    return Data(name, shape.n_tokens, shape)


@lru_cache(maxsize=2)
def twin(kind: str, shape: Shape) -> Any:
    """The dense model, or MemoryLLM with its memories in a table; as many parameters in total."""
    import torch

    from assay.nn.memoryllm import MemoryLlamaConfig, MemoryLlamaForCausalLM

    config = MemoryLlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.width,
        intermediate_size=8 * round(shape.width / 3),
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.width // 64,
        eos_token_id=None,
        tie_word_embeddings=True,
        ffn_beta="base" if kind == "base" else 0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = MemoryLlamaForCausalLM(config)
    model.eval()
    return model if kind == "base" else from_disk(model, "float16")


def prompts(shape: Shape, n: int, seed: int) -> Iterator[Case]:
    for number in range(n):
        rng = np.random.default_rng(child_seed(seed, number))
        yield Case(f"prompt {number + 1}", Prompt(shape, rng.integers(VOCABULARY, size=(1, PROMPT))))


def decode(kind: str, prompt: Prompt, seed: int) -> Decoded:
    """The fastest of three: what else runs on the machine only slows."""
    import torch

    model = twin(kind, prompt.shape)
    ids = torch.from_numpy(prompt.ids)
    n_tokens = prompt.shape.n_tokens

    def generate(n_new: int) -> float:
        begun = time.process_time()
        model.generate(ids, max_new_tokens=n_new, min_new_tokens=n_new, do_sample=False, pad_token_id=0)
        return time.process_time() - begun

    generate(1)
    seconds = min(generate(n_tokens) - generate(1) for _ in range(REPEATS)) / (n_tokens - 1)
    memory = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    mapped = 0
    if kind == "table":
        stats = model.cache_stats()
        memory, mapped = memory + stats.resident_bytes, stats.mapped_bytes
    return Decoded(max(seconds, 1e-9), memory, mapped)


def speed(case: Case, found: Decoded) -> dict[str, float]:
    return {
        "cpu_ms": 1000 * found.cpu_s,
        "memory_mib": found.memory / 2**20,
        "mapped_mib": found.mapped / 2**20,
    }
