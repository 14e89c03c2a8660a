"""A narrow task to learn: the names of Unicode characters, which every Python holds, or a user's own table."""

from __future__ import annotations

import sys
import unicodedata
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.errors import InputError

if TYPE_CHECKING:
    import torch

#: Tokens of an example at most; what is longer loses the beginning of its prompt.
LONGEST = 64

#: Examples on which the loss is watched.
HELD_OUT = 40


class Example(NamedTuple):
    """What is asked and what is to be answered."""

    prompt: str
    answer: str


def unicode_names() -> list[Example]:
    """Letters of all alphabets and their names; scripts with a name for every number are left out."""
    made = []
    for point in range(0x80, min(sys.maxunicode, 0x2FFF)):
        character = chr(point)
        name = unicodedata.name(character, "")
        if name and unicodedata.category(character).startswith("L"):
            made.append(Example(f"Character: {character}\nName:", f" {name}"))
    return made


def examples_at(path: str | None) -> list[Example]:
    """A table with columns prompt and answer, or the names."""
    if path is None:
        return unicode_names()
    from assay._core.tables import read_table

    table = read_table(path, {"prompt": "text", "answer": "text"})
    if len(table) < 2 * HELD_OUT:
        raise InputError(
            f"{path} has {len(table)} rows; {2 * HELD_OUT} or more are needed, {HELD_OUT} to watch the loss"
        )
    return [Example(str(prompt), str(answer)) for prompt, answer in zip(table["prompt"], table["answer"], strict=True)]


def dealt(examples: list[Example], seed: int) -> tuple[list[Example], list[Example]]:
    """Examples to train on, in the order of training, and examples to watch, the same for every seed."""
    order = np.random.default_rng(0).permutation(len(examples))
    rest = np.random.default_rng(seed).permutation(order[HELD_OUT:])
    return [examples[place] for place in rest], [examples[place] for place in order[:HELD_OUT]]


def batch_of(tokenizer: Any, examples: list[Example]) -> dict[str, torch.Tensor]:
    """Padded on the right; only the answers are learned."""
    import torch

    rows, labels = [], []
    for prompt, answer in examples:
        asked = tokenizer(prompt, verbose=False)["input_ids"]
        said = tokenizer(answer, add_special_tokens=False, verbose=False)["input_ids"]
        if tokenizer.eos_token_id is not None:
            said = [*said, tokenizer.eos_token_id]
        ids = (asked + said)[-LONGEST:]
        rows.append(torch.tensor(ids))
        labels.append(torch.tensor(([-100] * len(asked) + said)[-LONGEST:]))
    pad = torch.nn.utils.rnn.pad_sequence
    mask = pad([torch.ones_like(row) for row in rows], batch_first=True)
    return {
        "input_ids": pad(rows, batch_first=True),
        "attention_mask": mask,
        "labels": pad(labels, batch_first=True, padding_value=-100),
    }
