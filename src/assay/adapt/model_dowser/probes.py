"""What a model is run on to be scored: text that it writes itself, images of noise, or what a user brings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from assay._core.errors import InputError

Batch: TypeAlias = Tensor | Mapping[str, Any]
Probes: TypeAlias = Batch | Iterable[str] | Iterable[Batch]


def generate_probes(
    model: Any, tokenizer: Any = None, n_probes: int = 32, length: int = 64, *, temperature: float = 1.0, seed: int = 0
) -> dict[str, Tensor]:
    """Let a language model write its own probes: a token drawn at random, and what the model says after it.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        With ``generate``; of a vision-language model the text side is used.
    tokenizer : transformers.PreTrainedTokenizerBase, optional
        Tells which tokens are special (they are not drawn) and whether texts begin with one. None: the model's
        configuration tells.
    n_probes : int
    length : int
        Tokens of each, the drawn one included. A text that would end goes on.
    temperature : float
        Of the sampling; all tokens may be drawn.
    seed : int
        The state of torch's random numbers is left as it was.

    Returns
    -------
    dict
        ``input_ids`` and ``attention_mask``, (n_probes, length) int64.

    Raises
    ------
    InputError
        The model cannot write, or a number is out of range.
    """
    if n_probes < 1 or length < 2 or temperature <= 0:
        raise InputError(
            f"n_probes={n_probes}, length={length}, temperature={temperature}: expected 1 probe or more of 2 tokens or "
            f"more, and a temperature above 0"
        )
    if not hasattr(model, "generate") or not hasattr(model, "config"):
        raise InputError(f"{type(model).__name__} cannot generate text; give probes=, inputs to run it on")
    ids = torch.tensor(_ordinary(model, tokenizer))
    first = _first_tokens(tokenizer)
    generator = torch.Generator().manual_seed(seed)
    seeds = ids[torch.randint(len(ids), (n_probes, 1), generator=generator)]
    start = torch.cat([torch.tensor(first, dtype=torch.long).expand(n_probes, -1), seeds], 1).to(model.device)
    n_new = max(length - start.shape[1], 1)
    with _sampling(model, seed):
        written = model.generate(
            input_ids=start, attention_mask=torch.ones_like(start), do_sample=True, temperature=temperature, top_p=1.0,
            top_k=0, min_new_tokens=n_new, max_new_tokens=n_new, num_beams=1, repetition_penalty=1.0,
            pad_token_id=int(ids[0]),
        )  # fmt: skip
    return {"input_ids": written, "attention_mask": torch.ones_like(written)}


def noise_image_probes(
    model: Any, processor: Any, n_probes: int = 32, length: int = 64, *, size: int = 64, seed: int = 0
) -> list[dict[str, Any]]:
    """Probes for a vision-language model: an image of noise, and what the model says to it.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    processor : transformers.ProcessorMixin
        With ``image_token``.
    n_probes : int
    length : int
        Tokens that the model writes behind the image.
    size : int
        Width and height of the images in pixels, before the processor.
    seed : int

    Returns
    -------
    list of dict
        Keyword arguments of the model, one batch for each probe.
    """
    import numpy as np
    from PIL import Image

    if not hasattr(processor, "image_token"):
        raise InputError(f"{type(processor).__name__} has no image_token; use probes of text, or make your own")
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n_probes):
        pixels = np.clip(127.5 + 64.0 * rng.standard_normal((size, size, 3)), 0, 255).astype(np.uint8)
        inputs = processor(images=[Image.fromarray(pixels)], text=[processor.image_token], return_tensors="pt")
        inputs = {key: value.to(model.device) for key, value in inputs.items()}
        with _sampling(model, int(rng.integers(2**31))):
            ids = model.generate(
                **inputs, do_sample=True, temperature=1.0, top_p=1.0, top_k=0, min_new_tokens=length,
                max_new_tokens=length, num_beams=1, repetition_penalty=1.0,
            )  # fmt: skip
        longer = {key: _to_length(value, inputs["input_ids"], ids) for key, value in inputs.items()}
        made.append({**longer, "input_ids": ids, "attention_mask": torch.ones_like(ids)})
    return made


def _to_length(value: Tensor, prompt: Tensor, ids: Tensor) -> Tensor:
    """What holds a number a token, such as token_type_ids, with zeros for the text that the model wrote."""
    is_by_token = value.shape == prompt.shape
    return torch.nn.functional.pad(value, (0, ids.shape[1] - prompt.shape[1])) if is_by_token else value


def normal_probes(shape: tuple[int, ...], n_probes: int = 32, *, seed: int = 0) -> Tensor:
    """Standard normal inputs (n_probes, *shape) float32, for networks that do not write text.

    Examples
    --------
    >>> normal_probes((3,), 2).shape
    torch.Size([2, 3])
    """
    return torch.randn((n_probes, *shape), generator=torch.Generator().manual_seed(seed))


def as_batches(probes: Probes, tokenizer: Any, batch_size: int) -> Iterator[Batch]:
    """Cut probes into batches; strings are tokenised and padded on the right."""
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size}: expected 1 or more")
    if isinstance(probes, Tensor | Mapping):
        yield from _cut(_named(probes), batch_size)
        return
    listed: list[Any] = list(probes)
    if not listed:
        raise InputError("probes is empty; give at least one")
    if not all(isinstance(probe, str) for probe in listed):
        for batch in listed:
            if not isinstance(batch, Tensor | Mapping):
                raise InputError(f"probes holds {type(batch).__name__}; expected strings, tensors or mappings of them")
            yield _named(batch)
        return
    if tokenizer is None:
        raise InputError("probes are strings; give the tokenizer that belongs to the model")
    ids = [torch.tensor(row) for row in tokenizer(listed, verbose=False)["input_ids"]]
    if min(map(len, ids)) == 0:
        raise InputError("probes holds an empty string; every probe needs a token")
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
    yield from _cut({"input_ids": padded, "attention_mask": mask}, batch_size)


@contextmanager
def _sampling(model: Any, seed: int) -> Iterator[None]:
    """Evaluation mode and random numbers of one's own, without gradients."""
    modes = [(module, module.training) for module in model.modules()]
    devices = [model.device] if model.device.type == "cuda" else []
    try:
        model.eval()
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            torch.manual_seed(seed)
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def _named(batch: Batch) -> Batch:
    if isinstance(batch, Tensor):
        if batch.dtype.is_floating_point:
            return batch
        batch = {"input_ids": batch}
    if "input_ids" in batch and "attention_mask" not in batch:
        return {**batch, "attention_mask": torch.ones_like(batch["input_ids"])}
    return batch


def _cut(batch: Batch, size: int) -> Iterator[Batch]:
    if isinstance(batch, Tensor):
        yield from batch.split(size)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return
    n = max(len(value) for value in batch.values() if isinstance(value, Tensor) and value.ndim)
    for start in range(0, n, size):
        yield {
            key: value[start : start + size] if isinstance(value, Tensor) and value.ndim and len(value) == n else value
            for key, value in batch.items()
        }


def _ordinary(model: nn.Module, tokenizer: Any) -> list[int]:
    """Tokens that may begin a probe."""
    config: Any = model.config
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    n = int(config.vocab_size)
    special = {getattr(model.config, key, None) for key in ("image_token_id", "image_token_index")}
    if tokenizer is not None:
        n = min(n, len(tokenizer))
        special |= set(tokenizer.all_special_ids)
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = getattr(config, key, None)
        special |= set(value) if isinstance(value, list | tuple) else {value}
    found = [token for token in range(n) if token not in special]
    if not found:
        raise InputError("the model has no token that is not special to begin a probe with; give probes=")
    return found


def _first_tokens(tokenizer: Any) -> list[int]:
    """The token that begins every text for this model, where its tokenizer adds one: Llama's does, SmolLM2's not."""
    if tokenizer is None or tokenizer.bos_token_id is None:
        return []
    ids = tokenizer("a", verbose=False)["input_ids"]
    return [tokenizer.bos_token_id] if ids and ids[0] == tokenizer.bos_token_id else []
