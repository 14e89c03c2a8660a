"""What becomes one module: a sector's samples, what it is routed by, and its training beside the other modules."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from assay.adapt.lora_memory.adapters import Adapters, quiet
from assay.adapt.lora_memory.facts import as_facts, is_documents, sentences
from assay.adapt.lora_memory.formats import Encoded, Sample, document_samples, fact_samples
from assay.adapt.lora_memory.read import pad_id_of
from assay.adapt.lora_memory.store import digest
from assay.adapt.lora_memory.write import WriteConfig, train

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Sector(NamedTuple):
    """What becomes a module.

    Samples to write, the questions (or names of documents) that are held, what a router compares with, and hashes of
    the answers to the questions (of documents none).
    """

    samples: list[Sample]
    held: tuple[str, ...]
    routed_by: list[str]
    answers: tuple[str, ...] = ()


def sector_of(records: Any, recipe: str, generator: Callable[[str], str] | None) -> Sector:
    """A sector of facts or documents; of documents, `recipe` and `generator` say what is written."""
    if is_documents(records):
        samples = document_samples(records, recipe, generator)
        held = tuple(dict.fromkeys([*(d.name for d in records), *(s.prompt for s in samples if s.prompt)]))
        routed_by = [f"{d.name} {line}" for d in records for line in (sentences(d.text) or [d.text])]
        return Sector(samples, held, routed_by)
    facts = as_facts(records)
    held = tuple(fact.question for fact in facts)
    return Sector(fact_samples(facts), held, list(held), tuple(digest(fact.answer) for fact in facts))


def train_module(
    adapters: Adapters,
    tokenizer: Any,
    name: str,
    encoded: Sequence[Encoded],
    config: WriteConfig,
    context: str | None,
    **lora: Any,
) -> float:
    """Add the adapter `name` to the model and train it; whatever happens, the model is left as it was.

    Parameters
    ----------
    adapters : Adapters
    tokenizer : transformers.PreTrainedTokenizerBase
    name : str
    encoded : sequence of Encoded
    config : WriteConfig
    context : str, optional
        What the teacher reads before each sample.
    **lora
        For ``peft.LoraConfig``.

    Returns
    -------
    float
        Mean loss over the last tenth of the steps, nats per token.
    """
    import torch

    model = adapters.model
    was_training = model.training
    with quiet():  # what the user has switched on stays as it is
        is_switched = config.gradient_checkpointing and not model.is_gradient_checkpointing
    try:
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            adapters.add(name, **lora)
        if is_switched:
            with quiet():
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        with adapters.on(name):
            model.train()
            weights = adapters.weights(name)
            for weight in weights:
                weight.requires_grad_(True)
            before = tokenizer(context)["input_ids"] if context else ()
            losses = train(
                model, weights, encoded, config, pad_id_of(tokenizer), context=before, teacher=adapters.off, name=name
            )
            last = losses[-max(1, len(losses) // 10) :]
            return math.fsum(last) / len(last)
    except BaseException:
        adapters.delete(name)
        raise
    finally:
        if is_switched:
            with quiet():
                model.gradient_checkpointing_disable()
        model.train(was_training)
        if name in adapters:
            for weight in adapters.weights(name):
                weight.requires_grad_(False)
                weight.grad = None
