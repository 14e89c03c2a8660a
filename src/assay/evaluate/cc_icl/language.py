"""Ask language and vision-language models of transformers, and train them under many criteria."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.seeds import generator
from assay.evaluate.cc_icl.episodes import Episodes, Question
from assay.evaluate.cc_icl.items import open_image
from assay.evaluate.cc_icl.prompt import prompt_parts, prompt_text

if TYPE_CHECKING:
    import torch
    from torch import nn

#: Label of a token that is not learned, as torch and transformers have it.
IGNORED = -100


class LMPredictor:
    """A causal language model that is asked about texts.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    tokenizer : transformers.PreTrainedTokenizerBase
        Its chat template is used where it has one.
    cot : bool, default False
        False: the answer whose first token is the likeliest next token; one forward pass a question. True: the model
        reasons first (greedy), and the answer is read from what it writes.
    max_new_tokens : int, default 256
        Of the reasoning.

    Examples
    --------
    >>> from assay import models
    >>> from assay.evaluate.cc_icl import LMPredictor, evaluate
    >>> report = evaluate(LMPredictor(*models.demo_lm()), episodes, batch_size=8)  # doctest: +SKIP
    """

    def __init__(self, model: Any, tokenizer: Any, *, cot: bool = False, max_new_tokens: int = 256) -> None:
        need("torch", extra="lm", purpose="asking a language model")
        self.model = model
        self.tokenizer = tokenizer
        self.cot = cot
        self.max_new_tokens = max_new_tokens

    def __call__(self, questions: Sequence[Question]) -> list[str | None]:
        """Return the answer to each question.

        Raises
        ------
        InputError
            The items are images, or two answers begin with the same token.
        """
        if self.cot:
            inputs = text_inputs(questions, self.tokenizer, cot=True).to(self.model.device)
            return _written(self.model, self.tokenizer, inputs, self.max_new_tokens)
        answers = questions[0].answers
        return [answers[code] for code in first_token_logits(self.model, self.tokenizer, questions).argmax(axis=1)]


def first_token_logits(model: Any, tokenizer: Any, questions: Sequence[Question]) -> NDArray[np.float64]:
    """Logits of the first token of each answer, where the reply to each question would begin: (n, n_answers).

    Raises
    ------
    InputError
        The items are images, or two answers begin with the same token.
    """
    inputs = text_inputs(questions, tokenizer).to(model.device)
    if "position_ids" in inspect.signature(model.forward).parameters:
        inputs["position_ids"] = (inputs["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
    return _answer_logits(model, tokenizer, inputs, questions[0].answers)


class HFVLMPredictor:
    """A vision-language model (transformers' image-text-to-text) that is asked about images.

    The features of the images are computed once an episode, not once a criterion: :func:`evaluate` asks about the same
    episodes under each criterion in turn, and the vision tower's last result is kept.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    processor : transformers.ProcessorMixin
        With a chat template.
    cot : bool, default False
    max_new_tokens : int, default 256
        As for :class:`LMPredictor`.
    """

    def __init__(self, model: Any, processor: Any, *, cot: bool = False, max_new_tokens: int = 256) -> None:
        need("torch", extra="lm", purpose="asking a vision-language model")
        self.model = model
        self.processor = processor
        self.cot = cot
        self.max_new_tokens = max_new_tokens
        self.vision = _KeepLast(None)

    def __call__(self, questions: Sequence[Question]) -> list[str | None]:
        """Return the answer to each question.

        Raises
        ------
        InputError
            The items are not images, one cannot be read, or two answers begin with the same token.
        """
        inputs = image_inputs(questions, self.processor, cot=self.cot).to(self.model.device)
        with _keeping_images(self.model, self.vision):
            if self.cot:
                return _written(self.model, self.processor.tokenizer, inputs, self.max_new_tokens)
            answers = questions[0].answers
            logits = _answer_logits(self.model, self.processor.tokenizer, inputs, answers)
        return [answers[code] for code in logits.argmax(axis=1)]


# ------------------------------------------------------------------------------------------------ prompts to tokens


def text_inputs(questions: Sequence[Question], tokenizer: Any, *, cot: bool = False, ends: Sequence[str] = ()) -> Any:
    """Tokens of the prompts, padded on the left; `ends` are put behind them."""
    texts = [chat_text(question, tokenizer, cot=cot) for question in questions]
    return _tokens(tokenizer, [text + end for text, end in zip(texts, ends or [""] * len(texts), strict=True)])


def image_inputs(questions: Sequence[Question], processor: Any, *, cot: bool = False, ends: Sequence[str] = ()) -> Any:
    """Tokens and pixels of the prompts, padded on the left; `ends` are put behind them."""
    if any(question.kind != "image" for question in questions):
        raise InputError(
            f"these items are of the kind {questions[0].kind!r}; a vision-language model is asked about images"
        )
    images, texts = [], []
    for question in questions:
        images.append([open_image(path) for path in (*question.support, question.query)])
        parts = [{"type": "image"} if part["type"] == "image" else part for part in prompt_parts(question, cot=cot)]
        texts.append(
            processor.apply_chat_template(
                [{"role": "user", "content": parts}], tokenize=False, add_generation_prompt=True
            )
        )
    with _left(processor.tokenizer):
        return processor(
            text=[text + end for text, end in zip(texts, ends or [""] * len(texts), strict=True)],
            images=images,
            padding=True,
            return_tensors="pt",
        )


def chat_text(question: Question, tokenizer: Any, *, cot: bool = False) -> str:
    """The prompt as the model's chat template has it; without one, a text that ends where the answer belongs."""
    if question.kind == "image":
        raise InputError("these items are images, which a language model does not see; use a vision-language model")
    text = prompt_text(question, cot=cot)
    if getattr(tokenizer, "chat_template", None) is None:
        return f"{text}\nAnswer:"
    turn = [{"role": "user", "content": text}]
    return str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))


def _tokens(tokenizer: Any, texts: list[str]) -> Any:
    has_template = getattr(tokenizer, "chat_template", None) is not None
    with _left(tokenizer):
        return tokenizer(texts, padding=True, add_special_tokens=not has_template, return_tensors="pt")


@contextmanager
def _left(tokenizer: Any) -> Iterator[None]:
    """Pad on the left, so that every answer stands at the end of its row."""
    side, pad = tokenizer.padding_side, tokenizer.pad_token
    tokenizer.padding_side = "left"
    if pad is None:
        tokenizer.pad_token = tokenizer.eos_token
    try:
        yield
    finally:
        tokenizer.padding_side, tokenizer.pad_token = side, pad


def answer_tokens(tokenizer: Any, answer: str) -> list[int]:
    """Tokens of an answer where the prompt leaves off."""
    return list(tokenizer(answer_end(tokenizer, answer), add_special_tokens=False)["input_ids"])


def answer_end(tokenizer: Any, answer: str) -> str:
    """The answer as it is put behind a prompt: after "Answer:" comes a space, after a chat template nothing."""
    return answer if getattr(tokenizer, "chat_template", None) is not None else f" {answer}"


def _first_tokens(tokenizer: Any, answers: Sequence[str]) -> list[int]:
    first = [answer_tokens(tokenizer, answer)[0] for answer in answers]
    if len(set(first)) < len(first):
        raise InputError(
            f"two of the answers {', '.join(answers)} begin with the same token of this model, so their first tokens "
            "cannot tell them apart; use cot=True or other words"
        )
    return first


def _answer_logits(model: Any, tokenizer: Any, inputs: Any, answers: Sequence[str]) -> NDArray[np.float64]:
    import torch

    first = _first_tokens(tokenizer, answers)
    with torch.inference_mode():
        logits = model(**inputs, **_last_logits(model, 1)).logits[:, -1, first]
    return np.asarray(logits.double().cpu().numpy())


def _last_logits(model: Any, n: int) -> dict[str, int]:
    """Logits over the vocabulary at the last `n` tokens only, where the model can leave the others out."""
    return {"logits_to_keep": n} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}


def _written(model: Any, tokenizer: Any, inputs: Any, max_new_tokens: int) -> list[str | None]:
    import torch

    with torch.inference_mode(), _left(tokenizer):
        output = model.generate(
            **inputs, max_new_tokens=max_new_tokens, do_sample=False, pad_token_id=tokenizer.pad_token_id
        )
    return list(tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


class _KeepLast:
    """A function that remembers its last call."""

    def __init__(self, compute: Any) -> None:
        self.compute = compute
        self.given: tuple[Any, ...] | None = None
        self.result: Any = None
        self.n_computed = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = (args, sorted(kwargs.items()))
        if self.given is None or not _same(given, self.given):
            self.result, self.given = self.compute(*args, **kwargs), given
            self.n_computed += 1
        return self.result


def _same(left: Any, right: Any) -> bool:
    import torch

    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return left.shape == right.shape and torch.equal(left, right)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(_same(a, b) for a, b in zip(left, right, strict=True))
    return type(left) is type(right) and bool(left == right)


@contextmanager
def _keeping_images(model: Any, keep: _KeepLast) -> Iterator[None]:
    """While it lasts, `model` asks `keep` for the features of images."""
    inner = getattr(model, "model", model)
    if not hasattr(inner, "get_image_features"):
        yield
        return
    keep.compute = inner.get_image_features
    inner.get_image_features = keep
    try:
        yield
    finally:
        del inner.get_image_features  # the method of the class shows again


# --------------------------------------------------------------------------------------- multi-criterion training


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
    from dataclasses import replace

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
        the model with PEFT first (r=16, alpha=32), and leave the vision tower frozen.
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
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            losses[step] = float(loss.detach())
    return losses


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
    logits = model(**inputs, **_last_logits(model, n)).logits[:, -n:-1]
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels[:, -(n - 1) :].flatten(), ignore_index=IGNORED
    )


@contextmanager
def _trainable(model: Any, n_layers: int | None) -> Iterator[list[nn.Parameter]]:
    """Leave only the last layers trainable, in training mode; put both back afterwards."""
    before = {parameter: parameter.requires_grad for parameter in model.parameters()}
    was_training = model.training
    if n_layers is not None:
        layers = decoder_layers(model)
        if not 1 <= n_layers <= len(layers):
            raise InputError(f"n_layers is {n_layers}; the model has {len(layers)} layers")
        model.requires_grad_(False)
        for layer in list(layers)[-n_layers:]:
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


def decoder_layers(model: Any) -> Any:
    """The list of layers of the language model: the longest one that is not part of a vision tower."""
    from torch import nn

    lists = [
        module for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and "vision" not in name
    ]
    if not lists:
        raise InputError(f"{type(model).__name__} has no list of layers; leave n_layers out")
    return max(lists, key=len)
