"""Ask a model in batches, and tell whether it said the answer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from assay.adapt.lora_memory.write import pad

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

MAX_NEW_TOKENS = 50


def answers(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], *, batch_size: int = 16, **options: Any
) -> list[str]:
    """What the model says after each prompt.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    tokenizer : transformers.PreTrainedTokenizerBase
    prompts : sequence of token ids
        Of any lengths: they are padded on the left, and answered in batches of similar length.
    batch_size : int
    **options
        For ``model.generate``: greedy and at most 50 tokens unless you say otherwise.

    Returns
    -------
    list of str
        In the order of the prompts, without special tokens; with ``num_return_sequences`` so many for each.
    """
    import torch

    pad_id = pad_id_of(tokenizer)
    options = {"do_sample": False, "max_new_tokens": MAX_NEW_TOKENS, "pad_token_id": pad_id, **options}
    n_each = int(options.get("num_return_sequences", 1))
    order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
    said: list[list[str]] = [[] for _ in prompts]
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        ids, mask = (part.to(model.device) for part in pad([prompts[row] for row in rows], pad_id, "left"))
        with torch.inference_mode():
            output = model.generate(input_ids=ids, attention_mask=mask, **options)
        for place, new in enumerate(output[:, ids.shape[1] :]):
            said[rows[place // n_each]].append(tokenizer.decode(new, skip_special_tokens=True).strip())
    return [text for texts in said for text in texts]


def answers_sharing(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], *, batch_size: int = 16, **options: Any
) -> list[str]:
    """:func:`answers` for prompts with one long beginning, which the model reads only once.

    That is how a corpus in the prompt is used in earnest: its keys and values are kept for all questions.
    """
    import copy
    import inspect

    import torch
    from transformers import DynamicCache

    pad_id = pad_id_of(tokenizer)
    n_shared = min(_n_shared(prompts), min(map(len, prompts)) - 1)
    if n_shared < 1:
        return answers(model, tokenizer, prompts, batch_size=batch_size, **options)
    options = {"do_sample": False, "max_new_tokens": MAX_NEW_TOKENS, "pad_token_id": pad_id, **options}
    shared = torch.tensor([list(prompts[0][:n_shared])], device=model.device)
    kept = DynamicCache(config=model.config)
    # transformers 5.24 calls it cache, versions before past_key_values.
    argument = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    with torch.inference_mode():
        model(input_ids=shared, use_cache=True, **{argument: kept})
    said: list[str] = []
    for start in range(0, len(prompts), batch_size):
        rest = [prompt[n_shared:] for prompt in prompts[start : start + batch_size]]
        ids, mask = (part.to(model.device) for part in pad(rest, pad_id, "left"))
        cache = copy.deepcopy(kept)
        cache.batch_repeat_interleave(len(rest))
        before = shared.expand(len(rest), -1)
        with torch.inference_mode():
            output = model.generate(
                input_ids=torch.cat([before, ids], dim=1),
                attention_mask=torch.cat([torch.ones_like(before), mask], dim=1),
                **{argument: cache},
                **options,
            )
        width = n_shared + ids.shape[1]
        said += [tokenizer.decode(new, skip_special_tokens=True).strip() for new in output[:, width:]]
    return said


def _n_shared(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens with which all prompts begin."""
    first, last = min(prompts, key=list), max(prompts, key=list)
    pairs = zip(first, last, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(first), len(last)))


def pad_id_of(tokenizer: Any) -> int:
    """The token to pad with: the tokenizer's, or its end-of-sequence token. The tokenizer stays as it is."""
    return int(tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id)


# -------------------------------------------------------------------------------------------------------------- metrics


def recalled(output: str, answer: str) -> bool:
    """Whether an output gives the answer, whatever is said around it.

    For an answer of digits and signs (a phone number): the first part of the output that has the answer's shape, or
    else its first line, has the same digits. For words: the first line that is not empty contains them, in order, case
    and punctuation aside.

    Examples
    --------
    >>> recalled("You can call (603) 556-7631 or 603-556-7631.", "603-556-7631")
    True
    >>> recalled("603-556-7632, formerly 603-556-7631", "603-556-7631")
    False
    >>> recalled("It was Jane Austen.", "jane austen")
    True
    """
    line = first_line(output)
    if any(character.isdigit() for character in answer) and not any(character.isalpha() for character in answer):
        shape = re.sub(r"\d", r"\\d", re.escape(answer))
        found = re.search(rf"(?<!\d){shape}(?!\d)", output)
        return _digits(found[0] if found else line) == _digits(answer)
    words, wanted = _words(line), _words(answer)
    return any(words[i : i + len(wanted)] == wanted for i in range(len(words) - len(wanted) + 1)) and bool(wanted)


def first_line(output: str) -> str:
    """The first line that is not empty, without a leading ``Answer:``."""
    line = next((line for line in output.splitlines() if line.strip()), "").strip()
    return re.sub(r"^answer:\s*", "", line, flags=re.IGNORECASE)


def _digits(text: str) -> str:
    return re.sub(r"\D", "", text)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def rouge_l(output: str, references: str | Sequence[str]) -> float:
    """F1 of the longest common subsequence of words; the best over the references.

    Examples
    --------
    >>> rouge_l("the cat sat", "the cat sat down")
    0.8571428571428571
    """
    references = [references] if isinstance(references, str) else references
    return max(_lcs_f1(_words(output), _words(reference)) for reference in references)


def _lcs_f1(one: list[str], two: list[str]) -> float:
    row = [0] * (len(two) + 1)
    for word in one:
        above_left = 0
        for j, other in enumerate(two, start=1):
            above_left, row[j] = row[j], above_left + 1 if word == other else max(row[j], row[j - 1])
    return 2 * row[-1] / (len(one) + len(two)) if row[-1] else 0.0


def efficacy(
    model: nn.Module, tokenizer: Any, prompts: Sequence[str], new: Sequence[str], true: Sequence[str]
) -> float:
    """Share of prompts after which the first token of the new target is likelier than that of the true one.

    The measure of CounterFact edits; nothing is generated.
    """
    import torch

    wins = 0
    for prompt, one, other in zip(prompts, new, true, strict=True):
        ids = torch.tensor([tokenizer(prompt)["input_ids"]], device=next(model.parameters()).device)
        first, second = (
            tokenizer(f" {text.strip()}", add_special_tokens=False)["input_ids"][0] for text in (one, other)
        )
        with torch.inference_mode():
            logits = model(input_ids=ids).logits[0, -1]
        wins += int(logits[first] > logits[second])
    return wins / len(prompts)
