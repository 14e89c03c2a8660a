"""Prompts, prompts with a steering instruction, and answers: as people give them, and as tokens with their spans.

The tokens of the answer are the same behind both prompts, and positions are matched by their place in the answer, since
the prompts differ in length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from assay._core.errors import InputError
from assay._core.progress import progress_bar
from assay._core.seeds import child_seed
from assay.adapt.psr.hooks import frozen

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    #: A text, or chat messages with ``role`` and ``content``.
    Prompt = str | Sequence[dict[str, str]]

    #: From prompt and answer to a number between 0 and 1.
    Judge = Callable[[Any, str], float]

SPANS = ("answer_only", "question_and_answer")

#: What a model's own settings may do to its distribution when it is sampled from, and the values that do nothing.
PLAIN_SAMPLING = {
    "top_p": 1.0, "min_p": 0.0, "top_h": 1.0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0,
    "repetition_penalty": 1.0, "no_repeat_ngram_size": 0,
}  # fmt: skip

#: Answers that a judge gives less than this are dropped.
ENOUGH = 0.5


@dataclass(frozen=True)
class Example:
    """A pair as tokens.

    Parameters
    ----------
    base, steered : tuple of int
        The plain prompt and the steered one.
    response : tuple of int
        The answer, the same behind both.
    question, steered_question : range
        Where the question is in each; empty with span="answer_only".
    alpha : float
        How strongly the answer shows the attribute.
    """

    base: tuple[int, ...]
    steered: tuple[int, ...]
    response: tuple[int, ...]
    question: range = range(0)
    steered_question: range = range(0)
    alpha: float = 1.0

    @property
    def base_span(self) -> list[int]:
        """Positions that are steered: the question, the last token of the prompt, the answer."""
        return _span(self.question, len(self.base), len(self.response))

    @property
    def steered_span(self) -> list[int]:
        """The same positions behind the steered prompt."""
        return _span(self.steered_question, len(self.steered), len(self.response))


def _span(question: range, n_prompt: int, n_response: int) -> list[int]:
    return [*(place for place in question if place < n_prompt - 1), *range(n_prompt - 1, n_prompt + n_response)]


def encode_prompt(prompt: Prompt, tokenizer: Any, question: str | None = None) -> tuple[list[int], range]:
    """Tokens of a prompt, ready to be answered, and where its question is.

    Parameters
    ----------
    prompt : str or list of messages
        Messages go through the tokenizer's chat template; a text is taken as it is.
    tokenizer : transformers.PreTrainedTokenizerBase
    question : str, optional
        Its last occurrence is looked for. None: no span is needed.

    Raises
    ------
    InputError
        There are messages but no chat template, or the question is not in the prompt.
    """
    text, is_chat = prompt_text(prompt, tokenizer), not isinstance(prompt, str)
    begin = getattr(tokenizer, "bos_token", None)
    is_whole = is_chat or bool(begin and text.startswith(begin))  # a template has put the first token there
    wanted = {"add_special_tokens": not is_whole, "return_offsets_mapping": question is not None, "verbose": False}
    said = tokenizer(text, **wanted)
    ids = list(said["input_ids"])
    if not ids:
        raise InputError("a prompt is empty; expected at least one token")
    if question is None:
        return ids, range(0)
    start = text.rfind(question)
    if start < 0 or not question.strip():
        raise InputError(f"the question {question[:60]!r} does not occur in its prompt")
    end = start + len(question)
    inside = [place for place, (low, high) in enumerate(said["offset_mapping"]) if low < end and high > start]
    return ids, range(inside[0], inside[-1] + 1)


def prompt_text(prompt: Prompt, tokenizer: Any) -> str:
    """The text that the model reads: messages in the tokenizer's chat template, or the text itself."""
    if isinstance(prompt, str):
        return prompt
    if not getattr(tokenizer, "chat_template", None):
        raise InputError("the tokenizer has no chat template, so messages cannot be used; give prompts as text")
    text: str = tokenizer.apply_chat_template(list(prompt), tokenize=False, add_generation_prompt=True)
    return text


def encode(
    pairs: Iterable[dict[str, Any]], tokenizer: Any, span: str = "answer_only", longest: int = 0
) -> list[Example]:
    """Pairs as tokens.

    Parameters
    ----------
    pairs : iterable of dict
        ``prompt``, ``steered_prompt`` (texts or messages), ``response``; optionally ``alpha`` (1 if absent) and, for
        span="question_and_answer", ``question`` (the content of the last message if absent).
    tokenizer : transformers.PreTrainedTokenizerBase
    span : "answer_only" or "question_and_answer"
    longest : int
        Tokens that fit into the model; an answer is cut to fit. 0: no limit.

    Raises
    ------
    InputError
        A key is missing, the two prompts are the same, the answer is empty or nothing of it fits, or the question
        differs between the two prompts. The message names the pair, from 1.
    """
    examples = []
    for number, pair in enumerate(pairs, 1):
        try:
            examples.append(_example(pair, tokenizer, span, longest))
        except InputError as error:
            raise InputError(f"pair {number}: {error}") from None
    if not examples:
        raise InputError("there are no pairs; expected at least one")
    return examples


def _example(pair: dict[str, Any], tokenizer: Any, span: str, longest: int) -> Example:
    for key in ("prompt", "steered_prompt", "response"):
        if key not in pair:
            raise InputError(f"the key {key!r} is missing; found {', '.join(map(repr, pair))}")
    question = question_of(pair) if span == "question_and_answer" else None
    base, where = encode_prompt(pair["prompt"], tokenizer, question)
    steered, steered_where = encode_prompt(pair["steered_prompt"], tokenizer, question)
    if base == steered:
        raise InputError("the steered prompt is the same as the prompt, so there is nothing to learn from it")
    if [base[i] for i in where] != [steered[i] for i in steered_where]:
        raise InputError("the tokens of the question differ between the two prompts; set it apart by a line break")
    response = tokenizer(pair["response"], add_special_tokens=False, verbose=False)["input_ids"]
    if not response:
        raise InputError("the response is empty")
    if longest:
        room = longest - max(len(base), len(steered))
        if room < 1:
            raise InputError(f"nothing of the response fits: the prompt has {longest - room} tokens of {longest}")
        response = response[:room]
    return Example(tuple(base), tuple(steered), tuple(response), where, steered_where, float(pair.get("alpha", 1.0)))


def question_of(pair: dict[str, Any]) -> str:
    """The question of a pair: its own, or the content of the last message."""
    if "question" in pair:
        return str(pair["question"])
    if isinstance(pair["prompt"], str):
        raise InputError("span='question_and_answer' needs the key 'question' beside a prompt that is a text")
    return str(pair["prompt"][-1]["content"])


def question_mask(prompts: Sequence[Prompt], tokenizer: Any, questions: Sequence[str] | None = None) -> Tensor:
    """Where the question and the last token of each prompt are: (n_prompts, longest) bool, padded on the left."""
    rows = []
    for number, prompt in enumerate(prompts):
        pair = {"prompt": prompt} if questions is None else {"prompt": prompt, "question": questions[number]}
        ids, where = encode_prompt(prompt, tokenizer, question_of(pair))
        rows.append([place in where or place == len(ids) - 1 for place in range(len(ids))])
    longest = max(map(len, rows))
    return torch.tensor([[False] * (longest - len(row)) + row for row in rows])


def make_pairs(
    model: Any,
    tokenizer: Any,
    questions: Sequence[str],
    instruction: str,
    *,
    max_new_tokens: int = 64,
    temperature: float = 1.0,
    batch_size: int = 16,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Let the model answer questions under an instruction: the pairs that PSR learns from.

    Parameters
    ----------
    model, tokenizer
    questions : sequence of str
        Neutral ones, a few dozen to a thousand.
    instruction : str
        What the steering prompt asks for, such as ``"You are a pirate."``
    max_new_tokens : int
        Of an answer.
    temperature : float
        0: greedy.
    batch_size : int
        Answers at a time.
    seed : int

    Returns
    -------
    list of dict
        ``prompt``, ``steered_prompt``, ``question``, ``response``. Empty answers are left out.

    Raises
    ------
    InputError
        There are no questions, or the instruction is empty.
    """
    if not questions:
        raise InputError("questions is empty; expected at least one")
    if not instruction.strip():
        raise InputError("instruction is empty; expected what the steering prompt asks for")
    pairs = [prompts(question, instruction, tokenizer) for question in questions]
    answers = respond(
        model, tokenizer, [pair["steered_prompt"] for pair in pairs], max_new_tokens=max_new_tokens,
        temperature=temperature, batch_size=batch_size, seed=seed,
    )  # fmt: skip
    return [{**pair, "response": answer} for pair, answer in zip(pairs, answers, strict=True) if answer.strip()]


def prompts(question: str, instruction: str, tokenizer: Any) -> dict[str, Any]:
    """The plain and the steered prompt for a question; the instruction is the system message where there can be one."""
    if not getattr(tokenizer, "chat_template", None):
        return {"prompt": f"{question}\n", "steered_prompt": f"{instruction}\n\n{question}\n", "question": question}
    asked = {"role": "user", "content": question}
    steered = [{"role": "system", "content": instruction}, asked]
    try:
        has_system = instruction.strip() in prompt_text(steered, tokenizer)
    except Exception:  # a template refuses by any error that its author chose
        has_system = False
    if not has_system:
        steered = [{"role": "user", "content": f"{instruction}\n\n{question}"}]
    return {"prompt": [asked], "steered_prompt": steered, "question": question}


def read_pairs(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read pairs from a table with the columns prompt, steered_prompt and response, optionally alpha and question.

    Raises
    ------
    InputError
        The file cannot be read, or a column is missing.
    """
    from assay._core.tables import read_table

    table = read_table(path, {"prompt": "text", "steered_prompt": "text", "response": "text"})
    kept = [name for name in ("prompt", "steered_prompt", "response", "question", "alpha") if name in table]
    if "alpha" in kept:
        table = read_table(path, {"alpha": "number", **dict.fromkeys(kept[:3], "text")})
    return [{str(name): value for name, value in row.items()} for row in table[kept].to_dict("records")]


def judged(
    pairs: Iterable[dict[str, Any]], attribute: Judge | None = None, coherence: Judge | None = None
) -> list[dict[str, Any]]:
    """Drop answers that do not show the attribute or are not coherent; the attribute's score becomes alpha.

    Parameters
    ----------
    pairs : iterable of dict
        With ``response``.
    attribute, coherence : callable, optional
        ``judge(prompt, response)`` in [0, 1]; below 0.5 a pair is dropped. See ``assay.adapt.psr.judges``.

    Returns
    -------
    list of dict
        With ``alpha`` where there is a judge of the attribute.

    Raises
    ------
    InputError
        No pair is left: it says how many each judge dropped.
    """
    kept, n_pairs = [], 0
    dropped = {"coherence": 0, "attribute": 0}
    for pair in pairs:
        n_pairs += 1
        if coherence is not None and _score(coherence, pair) < ENOUGH:
            dropped["coherence"] += 1
            continue
        score = 1.0 if attribute is None else _score(attribute, pair)
        if score < ENOUGH:
            dropped["attribute"] += 1
            continue
        kept.append(pair if attribute is None else {**pair, "alpha": score})
    if not kept:
        said = ", ".join(f"the judge of {name} dropped {n}" for name, n in dropped.items() if n)
        raise InputError(f"no pair is left of {n_pairs}: {said or 'there were none'}")
    return kept


def _score(judge: Judge, pair: dict[str, Any]) -> float:
    score = float(judge(pair["prompt"], pair["response"]))
    if not 0 <= score <= 1:
        raise InputError(f"a judge gave {score}; expected a number from 0 to 1")
    return score


def left_padded(rows: Sequence[Sequence[int]], device: Any, fill: int = 0) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, (batch, n_longest); what is padding does not matter, as nothing sees it."""
    longest = max(map(len, rows))
    ids = torch.tensor([[fill] * (longest - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask


@torch.no_grad()
def respond(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    batch_size: int = 16,
    seed: int = 0,
    **options: Any,
) -> list[str]:
    """Answers to prompts, generated in left-padded batches; whatever steers the model at the time acts.

    Parameters
    ----------
    prompts : sequence of str or list of messages
    max_new_tokens : int
    temperature : float
        0: greedy. Above, samples come from the model's whole distribution, whatever its own settings cut away.
    batch_size, seed : int
        The seed is that of each batch.
    **options
        For ``model.generate``.

    Raises
    ------
    InputError
        A prompt is empty, or more than one answer to each is asked for.
    """
    if options.get("num_return_sequences", 1) != 1:
        raise InputError(
            f"num_return_sequences={options['num_return_sequences']}: each prompt gets one answer; repeat the prompts"
        )
    ids = [encode_prompt(prompt, tokenizer)[0] for prompt in prompts]
    end = tokenizer.eos_token_id
    fill = next((i for i in (tokenizer.pad_token_id, end if isinstance(end, int) else None) if i is not None), 0)
    how: dict[str, Any] = {"do_sample": False}
    if temperature != 0:
        is_set = [name for name in PLAIN_SAMPLING if getattr(model.generation_config, name, None) is not None]
        how = {"do_sample": True, "temperature": temperature, "top_k": 0, **{n: PLAIN_SAMPLING[n] for n in is_set}}
    answers: list[str] = []
    with frozen(model), progress_bar() as progress, torch.random.fork_rng():
        task = progress.add_task("answers", total=len(ids))
        for start in range(0, len(ids), batch_size):
            torch.manual_seed(child_seed(seed, start))
            tokens, mask = left_padded(ids[start : start + batch_size], model.device, fill)
            made = model.generate(
                input_ids=tokens, attention_mask=mask, max_new_tokens=max_new_tokens, pad_token_id=fill,
                **{**how, **options},
            )  # fmt: skip
            answers += tokenizer.batch_decode(made[:, tokens.shape[1] :], skip_special_tokens=True)
            progress.update(task, advance=len(tokens))
    return answers
