"""Ask language and vision-language models of transformers."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError
from assay._core.extras import need
from assay.evaluate.cc_icl.items import open_image
from assay.evaluate.cc_icl.prompt import prompt_parts, prompt_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from assay.evaluate.cc_icl.episodes import Question


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
    if takes(model, "position_ids"):
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
        logits = model(**inputs, **last_logits(model, 1)).logits[:, -1, first]
    return np.asarray(logits.double().cpu().numpy())


def last_logits(model: Any, n: int) -> dict[str, int]:
    """Logits over the vocabulary at the last `n` tokens only, where the model can leave the others out."""
    return {"logits_to_keep": n} if takes(model, "logits_to_keep") else {}


def unwrapped(model: Any) -> Any:
    """The model of transformers inside a wrapper of PEFT; any other model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def takes(model: Any, argument: str) -> bool:
    """Whether the forward pass has an argument of that name (PEFT's wrappers pass all on, and name few)."""
    return argument in inspect.signature(unwrapped(model).forward).parameters


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
        self.version = 0
        self.__signature__: inspect.Signature | None = None

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
    base = unwrapped(model)
    inner = getattr(base, "model", base)
    if not hasattr(inner, "get_image_features"):
        yield
        return
    version = sum(parameter._version for parameter in inner.parameters())  # grows with every change in place
    if version != keep.version:
        keep.given, keep.version = None, version
    keep.compute = inner.get_image_features
    keep.__signature__ = inspect.signature(keep.compute)  # generate() reads from it which arguments to hand over
    inner.get_image_features = keep
    try:
        yield
    finally:
        del inner.get_image_features  # the method of the class shows again
