"""The memory beside what people would use otherwise: retrieval, the corpus in the prompt, one large LoRA, nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay.adapt.lora_memory.audit import room, share
from assay.adapt.lora_memory.facts import as_facts
from assay.adapt.lora_memory.read import answers, answers_sharing, recalled
from assay.adapt.lora_memory.route import Encoder, SentenceIndex, WordIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from assay.adapt.lora_memory.formats import Style
    from assay.adapt.lora_memory.memory import LoRAMemory

#: Tokens for the sentence in which a chat model wraps an answer that it reads; modules answer with the answer alone.
SENTENCE = 24

BASELINES = ("base", "bm25", "embedding", "icl")


@dataclass(frozen=True)
class Reading:
    """Answers of one way to read, with what they cost.

    Attributes
    ----------
    answers : tuple of str
    seconds : float
        Of all of them, the retrieval included.
    n_prompt_tokens : int
        Of all of them. A corpus that is read once for all questions counts for each: a server pays for it in memory.
    """

    answers: tuple[str, ...]
    seconds: float
    n_prompt_tokens: int


def read_base(model: Any, style: Style, questions: Sequence[str], **options: Any) -> Reading:
    """Closed book: the model alone."""
    return _read(model, style, [style.prompt(question) for question in questions], answers, options)


def read_retrieved(
    model: Any, style: Style, questions: Sequence[str], passages: Sequence[str], index: WordIndex | SentenceIndex,
    top_k: int = 3, **options: Any,
) -> Reading:  # fmt: skip
    """Retrieval: the nearest passages stand in the prompt, the nearest last, beside the question."""
    start = time.perf_counter()
    contexts = retrieve(questions, passages, index, top_k)
    looked_up = time.perf_counter() - start
    prompts = [style.prompt(question, context) for question, context in zip(questions, contexts, strict=True)]
    found = _read(model, style, prompts, answers, options)
    return Reading(found.answers, found.seconds + looked_up, found.n_prompt_tokens)


def retrieve(
    questions: Sequence[str], passages: Sequence[str], index: WordIndex | SentenceIndex, top_k: int = 3
) -> list[str]:
    """The `top_k` nearest passages of each question as one text, the nearest last."""
    found = []
    for row in index.scores(questions):
        best = sorted(range(len(passages)), key=lambda place: -row[place])[:top_k]
        found.append("\n".join(passages[place] for place in reversed(best)))
    return found


def read_in_context(
    model: Any, style: Style, questions: Sequence[str], passages: Sequence[str], **options: Any
) -> Reading:
    """In-context learning: all passages stand in the prompt; the model reads them once for all questions."""
    corpus = "\n".join(passages)
    prompts = [style.prompt(question, corpus) for question in questions]
    longest = max(map(len, prompts))
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is not None and longest > limit:
        raise InputError(
            f"the corpus makes a prompt of {longest} tokens; the model reads {limit}: use retrieval for one so large"
        )
    return _read(model, style, prompts, answers_sharing, options)


def read_memory(memory: LoRAMemory, questions: Sequence[str], **options: Any) -> Reading:
    """The memory, routed."""
    start = time.perf_counter()
    traces = memory.ask_many(questions, **options)
    seconds = time.perf_counter() - start
    return Reading(tuple(trace.answer for trace in traces), seconds, sum(trace.n_prompt_tokens for trace in traces))


def _read(model: Any, style: Style, prompts: list[list[int]], how: Any, options: dict[str, Any]) -> Reading:
    start = time.perf_counter()
    said = how(model, style.tokenizer, prompts, **options)
    return Reading(tuple(said), time.perf_counter() - start, sum(map(len, prompts)))


def compare(
    memory: LoRAMemory,
    facts: Any,
    baselines: Sequence[str] = ("base", "bm25", "icl"),
    *,
    passages: Sequence[str] | None = None,
    encoder: Encoder | None = None,
    single: LoRAMemory | None = None,
    top_k: int = 3,
    confidence: float = 0.95,
    **options: Any,
) -> pd.DataFrame:
    """Ask the memory and its alternatives the same questions.

    Parameters
    ----------
    memory : LoRAMemory
    facts : as for :meth:`LoRAMemory.write`
        Questions with answers: the written ones, or others about the same things.
    baselines : sequence of "base", "bm25", "embedding" and "icl"
    passages : sequence of str, optional
        What is retrieved or put into the prompt; by default each fact as a line.
    encoder : Encoder, optional
        For "embedding".
    single : LoRAMemory, optional
        One large module, on a model of its own.
    top_k : int
        Passages in the prompt.
    confidence : float
    **options
        For ``model.generate``.

    Returns
    -------
    DataFrame
        method, recall, low, high, latency_ms (a question, in batches), prompt_tokens (a question), parameters (added).
    """
    import pandas as pd

    facts = as_facts(facts)
    unknown = [name for name in baselines if name not in BASELINES]
    if unknown:
        raise InputError(f"baseline {unknown[0]!r}: expected some of {', '.join(BASELINES)}")
    if "embedding" in baselines and encoder is None:
        raise InputError("the baseline 'embedding' needs an encoder; give encoder=… with a method encode(texts)")
    # What was not written as short answers wraps them into a sentence, which must not be cut off before the answer.
    spoken = {"max_new_tokens": room(memory, facts) + SENTENCE, **options}
    options = {"max_new_tokens": room(memory, facts), **options}
    questions = [fact.question for fact in facts]
    passages = [fact.text for fact in facts] if passages is None else list(passages)
    model, style = memory.model, memory.style
    readings = {"lora memory": (read_memory(memory, questions, **options), _added(memory))}
    if single is not None:
        readings["one large lora"] = (read_memory(single, questions, **options), _added(single))
    for name in baselines:
        if name == "base":
            found = read_base(model, style, questions, **spoken)
        elif name == "icl":
            found = read_in_context(model, style, questions, passages, **spoken)
        else:
            index = WordIndex(passages) if name == "bm25" else SentenceIndex(passages, encoder)  # type: ignore[arg-type]  # checked above
            found = read_retrieved(model, style, questions, passages, index, top_k, **spoken)
        readings[name] = (found, 0)
    rows = []
    for name, (reading, parameters) in readings.items():
        right = sum(recalled(said, fact.answer) for said, fact in zip(reading.answers, facts, strict=True))
        rows.append((name, *share(right, len(facts), confidence), 1000 * reading.seconds / len(facts),
                     reading.n_prompt_tokens / len(facts), parameters))  # fmt: skip
    columns = ["method", "recall", "low", "high", "latency_ms", "prompt_tokens", "parameters"]
    return pd.DataFrame(rows, columns=columns)


def _added(memory: LoRAMemory) -> int:
    return sum(module.n_parameters for module in memory.modules.values())
