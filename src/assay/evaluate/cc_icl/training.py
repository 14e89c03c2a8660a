"""Train language and vision-language models under many criteria, so that they learn to read the examples."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.seeds import generator
from assay.evaluate.cc_icl.language import answer_end, answer_tokens, image_inputs, last_logits, text_inputs, unwrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch
    from numpy.typing import NDArray
    from torch import nn

    from assay.evaluate.cc_icl.episodes import Episodes, Question

#: Label of a token that is not learned, as torch and transformers have it.
IGNORED = -100


class MCTExample(TypedDict):
    """A question under one criterion, its answer, and which criterion it was."""

    question: Question
    answer: str
    criterion: str


def mct_dataset(
    episodes: Episodes, *, criterion: str | None = None, per_episode: int = 2, seed: int = 0
) -> list[MCTExample]:
    """Training examples: each episode under several criteria, its examples in a new order each time.

    The criteria of an episode are drawn uniformly, independent of its items, and without replacement as long as there
    are others: from two on, the same items come with contradictory answers. Without that a model may keep one rigid
    boundary and lose little.

    Parameters
    ----------
    episodes : Episodes
    criterion : str, optional
        Only this one: single-criterion training, the baseline, with as many examples.
    per_episode : int
        Examples made of each episode.
    seed : int

    Returns
    -------
    list of MCTExample
        In random order. For a Trainer of transformers or TRL: ``data_collator=MCTCollator(processor)`` and
        ``remove_unused_columns=False``.
    """
    if per_episode < 1:
        raise InputError(f"per_episode is {per_episode}; expected 1 or more")
    rng = generator(seed)
    chosen = list(range(len(episodes.criteria))) if criterion is None else [episodes.criterion(criterion)]
    examples: list[MCTExample] = []
    for row in range(len(episodes)):
        rounds = [rng.permutation(chosen) for _ in range(-(-per_episode // len(chosen)))]
        for k in np.concatenate(rounds)[:per_episode]:
            asked = episodes.ask(row, int(k))
            examples.append(
                {
                    "question": _shuffled(asked, rng),
                    "answer": episodes.answers[episodes.truth[row, k]],
                    "criterion": episodes.criteria[k],
                }
            )
    return [examples[i] for i in rng.permutation(len(examples))]


def _shuffled(question: Question, rng: np.random.Generator) -> Question:
    order = rng.permutation(len(question.support))
    return replace(
        question,
        support=tuple(question.support[i] for i in order),
        support_answers=tuple(question.support_answers[i] for i in order),
        support_features=None if question.support_features is None else question.support_features[order],
    )


class MCTCollator:
    """Turn training examples into a batch: prompt and answer, with labels on the answer's tokens alone.

    Parameters
    ----------
    processor : tokenizer or processor of transformers
        A tokenizer for texts, a processor for images.
    """

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def __call__(self, examples: Sequence[MCTExample]) -> dict[str, torch.Tensor]:
        """Return input_ids, attention_mask, labels (n, length) int64, padded on the left, and the pixels of images."""
        import torch

        questions = [example["question"] for example in examples]
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        ends = [answer_end(tokenizer, example["answer"]) for example in examples]
        build = image_inputs if questions[0].kind == "image" else text_inputs
        batch = dict(build(questions, self.processor, ends=ends))
        labels = torch.full_like(batch["input_ids"], IGNORED)
        for row, example in enumerate(examples):
            n = len(answer_tokens(tokenizer, example["answer"]))
            labels[row, -n:] = batch["input_ids"][row, -n:]
        return {**batch, "labels": labels}


@dataclass(frozen=True)
class MCTConfig:
    """How to train a language or vision-language model under many criteria.

    Parameters
    ----------
    criterion : str or None
        None: all criteria (MCT). A name: single-criterion training.
    n_layers : int or None
        Train the last n layers of the language model and nothing else. None: what has ``requires_grad``; for LoRA wrap
        the model first (:func:`with_lora`, or PEFT's own ``get_peft_model``).
    n_epochs, per_episode, batch_size : int
    learning_rate : float
        1e-4 suits LoRA and a few layers, 1e-5 a whole model.
    warmup : float
        Share of the steps in which the rate rises; then it falls along a cosine.
    seed : int

    Notes
    -----
    All defaults are reconstructed.
    """

    criterion: str | None = None
    n_layers: int | None = None
    n_epochs: int = 1
    per_episode: int = 2
    batch_size: int = 32
    learning_rate: float = 1e-4
    warmup: float = 0.03
    seed: int = 0


def mct_(model: Any, processor: Any, episodes: Episodes, config: MCTConfig | None = None) -> NDArray[np.float64]:
    """Train `model` in place on episodes under many criteria, and return the loss of every step, in nats.

    Parameters
    ----------
    model : transformers model
        On any device.
    processor : its tokenizer (texts) or processor (images)
    episodes : Episodes
    config : MCTConfig, optional

    Raises
    ------
    InputError
        Nothing in the model can be trained, or a setting is out of range.
    """
    torch = need("torch", extra="lm", purpose="training a language model")
    config = config or MCTConfig()
    for name in ("n_epochs", "batch_size"):
        if getattr(config, name) < 1:
            raise InputError(f"{name} is {getattr(config, name)}; expected 1 or more")
    collate = MCTCollator(processor)
    batches = [
        examples[start : start + config.batch_size]
        for epoch in range(config.n_epochs)
        for examples in [mct_dataset(episodes, criterion=config.criterion, per_episode=config.per_episode,
                                     seed=config.seed + epoch)]
        for start in range(0, len(examples), config.batch_size)
    ]  # fmt: skip
    with _trainable(model, config.n_layers) as parameters:
        optimizer = torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=0.0)
        rate = learning_rates(len(batches), config.warmup)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate[min(step, len(rate) - 1)])
        losses = np.empty(len(batches))
        for step, examples in enumerate(batches):
            batch = {name: value.to(model.device) for name, value in collate(examples).items()}
            loss = _answer_loss(model, batch)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no annotations
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            losses[step] = float(loss.detach())
    return losses


def with_lora(model: Any, rank: int = 16, *, n_layers: int | None = None, seed: int = 0) -> Any:
    """Wrap `model` by PEFT, with adapters of that rank on the linear layers of its language model.

    Only the adapters are trained by :func:`mct_`; ``merge_and_unload()`` of what is returned makes an ordinary model of
    it again, ``save_pretrained`` saves the adapters alone. A vision tower and the head stay as they are.

    Parameters
    ----------
    model : transformers model
        Changed in place.
    rank : int
        The adapters' alpha is twice the rank.
    n_layers : int, optional
        Adapters in the last n layers alone: a step then need not go back through the others.
    seed : int
        Of the adapters' first weights; torch's own state is left alone.
    """
    import torch

    peft = need("peft", extra="peft", purpose="training adapters (LoRA)")
    if rank < 1:
        raise InputError(f"the rank of the adapters is {rank}; expected 1 or more")
    chosen = {id(module) for layer in last_layers(model, n_layers) for module in layer.modules()}
    linear = [
        name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and id(module) in chosen
    ]
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=linear)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return peft.get_peft_model(model, config)


def learning_rates(n_steps: int, warmup: float) -> list[float]:
    """Factor of the learning rate at each step: up over the share `warmup` of them, then down along a cosine."""
    rising = max(math.ceil(warmup * n_steps), 1)
    falling = max(n_steps - rising, 1)
    return [
        (step + 1) / rising if step < rising else 0.5 * (1 + math.cos(math.pi * (step - rising) / falling))
        for step in range(n_steps)
    ]


def _answer_loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Cross-entropy of the answers' tokens; the vocabulary is computed where they stand and nowhere else."""
    import torch

    labels = batch["labels"]
    n = int((labels != IGNORED).sum(dim=1).max()) + 1  # the token before an answer foresees it
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    logits = model(**inputs, **last_logits(model, n), use_cache=False).logits[:, -n:-1]
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels[:, -(n - 1) :].flatten(), ignore_index=IGNORED
    )


@contextmanager
def _trainable(model: Any, n_layers: int | None) -> Iterator[list[nn.Parameter]]:
    """Leave only the last layers trainable, in training mode; put both back afterwards."""
    before = {parameter: parameter.requires_grad for parameter in model.parameters()}
    was_training = model.training
    if n_layers is not None:
        if unwrapped(model) is not model:
            raise InputError(
                f"n_layers is {n_layers}, and PEFT has chosen what to train in this model; leave n_layers out"
            )
        chosen = last_layers(model, n_layers)
        model.requires_grad_(False)
        for layer in chosen:
            layer.requires_grad_(True)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise InputError("nothing in the model can be trained; set requires_grad or n_layers")
    model.train()
    try:
        yield parameters
    finally:
        model.train(was_training)
        for parameter, wanted in before.items():
            parameter.requires_grad_(wanted)


def last_layers(model: Any, n_layers: int | None) -> list[nn.Module]:
    """The last layers of the language model; None: all of them."""
    layers = list(decoder_layers(model))
    if n_layers is not None and not 1 <= n_layers <= len(layers):
        raise InputError(f"n_layers is {n_layers}; the model has {len(layers)} layers")
    return layers if n_layers is None else layers[-n_layers:]


def decoder_layers(model: Any) -> Any:
    """The list of layers of the language model: the longest one that is not part of a vision tower."""
    from torch import nn

    lists = [
        module for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and "vision" not in name
    ]
    if not lists:
        raise InputError(f"{type(model).__name__} has no list of layers; leave n_layers out")
    return max(lists, key=len)
