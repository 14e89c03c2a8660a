"""Answer with routed modules: questions, or rows of token ids, that need the same modules are read together."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay.adapt.lora_memory.read import answers, pad_id_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from assay.adapt.lora_memory.memory import LoRAMemory


@dataclass(frozen=True)
class Trace:
    """An answer and how it came about.

    Attributes
    ----------
    answer : str
    modules : tuple of (str, float)
        Ids and scores of the modules that were read.
    n_prompt_tokens : int
    seconds : float
        Of the batch in which the question was answered, divided by its questions.
    """

    answer: str
    modules: tuple[tuple[str, float], ...]
    n_prompt_tokens: int
    seconds: float


def ask_routed(
    memory: LoRAMemory,
    prompts: Sequence[Sequence[int]],
    routed: Sequence[Sequence[tuple[str, float]]],
    batch_size: int,
    options: Mapping[str, Any],
) -> list[Trace]:
    """Answer each prompt with the modules (ids and scores) that are named for it; in the order of the prompts."""
    if options.get("num_return_sequences", 1) != 1:
        raise InputError(f"num_return_sequences is {options['num_return_sequences']}, but a question has one answer; "
                         "use LoRAMemory.generate for several")  # fmt: skip
    found: dict[int, Trace] = {}
    for ids, rows in _rows_by_modules(routed).items():
        with memory.using(*ids):
            start = time.perf_counter()
            said = answers(
                memory.model, memory.tokenizer, [prompts[row] for row in rows], batch_size=batch_size, **options
            )
            seconds = (time.perf_counter() - start) / len(rows)
        for row, text in zip(rows, said, strict=True):
            found[row] = Trace(text, tuple(routed[row]), len(prompts[row]), seconds)
    return [found[row] for row in range(len(prompts))]


def generate_routed(
    memory: LoRAMemory, input_ids: Tensor, attention_mask: Tensor | None, options: Mapping[str, Any]
) -> Any:
    """``model.generate`` with the modules to which each row's text is routed; see :meth:`LoRAMemory.generate`."""
    import torch

    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    texts = [
        memory.tokenizer.decode(row[keep.bool()], skip_special_tokens=True)
        for row, keep in zip(input_ids, mask, strict=True)
    ]
    groups = _rows_by_modules(memory.route_many(texts))
    options = {"pad_token_id": pad_id_of(memory.tokenizer), **options}
    if len(groups) > 1 and options.get("return_dict_in_generate"):
        raise InputError("return_dict_in_generate needs rows of one route; generate them one at a time")
    parts: dict[int, Tensor] = {}
    n_each = int(options.get("num_return_sequences", 1))
    for ids, rows in groups.items():
        with memory.using(*ids), torch.inference_mode():
            output = memory.model.generate(input_ids=input_ids[rows], attention_mask=mask[rows], **options)
        if len(groups) == 1:
            return output
        for place, tokens in enumerate(output):
            parts[rows[place // n_each] * n_each + place % n_each] = tokens
    rows_in_order = [parts[row] for row in sorted(parts)]
    return torch.nn.utils.rnn.pad_sequence(rows_in_order, batch_first=True, padding_value=options["pad_token_id"])


def _rows_by_modules(routed: Sequence[Sequence[tuple[str, float]]]) -> dict[tuple[str, ...], list[int]]:
    """Rows by the ids of their modules, in the order in which these first appear."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for row, chosen in enumerate(routed):
        groups.setdefault(tuple(name for name, _ in chosen), []).append(row)
    return groups
