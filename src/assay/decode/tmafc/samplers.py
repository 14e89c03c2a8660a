"""Where samples come from: a transformers model, an OpenAI-compatible endpoint, or any function; and a log of them.

A sampler is anything that can be called as ``sampler(prompt, n)`` and returns `n` texts.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, Protocol, Self

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.seeds import child_seed
from assay.decode.tmafc.history import JsonLines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Sampler(Protocol):
    """Anything that answers a prompt `n` times."""

    def __call__(self, prompt: str, n: int, /) -> Sequence[str]:
        """Return `n` independent replies; a :class:`Reply` also tells its cost."""
        ...


class SamplerError(RuntimeError):
    """The endpoint did not answer, however often it was asked.

    Parameters
    ----------
    message : str
    replies : sequence of str
        What it had answered of the same call before; a log keeps them.
    """

    def __init__(self, message: str, replies: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.replies = list(replies)


class Reply(str):
    """A text that knows what it cost.

    Parameters
    ----------
    text : str
    tokens : int, optional
        Tokens of the reply.
    prompt_tokens : int, optional
        Tokens of the prompt, on the first reply of a request; 0 on the others.

    Examples
    --------
    >>> reply = Reply("four", tokens=1, prompt_tokens=12)
    >>> reply, reply.tokens
    ('four', 1)
    """

    __slots__ = ("prompt_tokens", "tokens")

    tokens: int | None
    prompt_tokens: int | None

    def __new__(cls, text: str, tokens: int | None = None, prompt_tokens: int | None = None) -> Self:
        """A str is made here, not in ``__init__``."""
        self = super().__new__(cls, text)
        self.tokens, self.prompt_tokens = tokens, prompt_tokens
        return self

    def __reduce__(self) -> tuple[type[Reply], tuple[str, int | None, int | None]]:
        return Reply, (str(self), self.tokens, self.prompt_tokens)


def _warn_if_greedy(temperature: float) -> None:
    if temperature < 0:
        raise InputError(f"temperature is {temperature!r}; expected a number above 0, such as 0.7")
    if temperature == 0:
        warnings.warn(
            "temperature 0: all samples of a question will be equal, and a vote among them says nothing; use about 0.7",
            stacklevel=3,
        )


class TransformersSampler:
    """Sample from a transformers model, many replies in one batch.

    Parameters
    ----------
    model, tokenizer : PreTrainedModel, PreTrainedTokenizerBase
        Those of a pipeline too: ``TransformersSampler(pipe.model, pipe.tokenizer)``. A chat template is used where
        the tokenizer has one.
    temperature : float
    max_new_tokens : int
    batch_size : int
        Replies generated at once.
    seed : int
        The same seed gives the same replies to the same sequence of prompts.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        temperature: float = 0.7,
        max_new_tokens: int = 256,
        batch_size: int = 32,
        seed: int = 0,
    ) -> None:
        _warn_if_greedy(temperature)
        self.model, self.tokenizer = model, tokenizer
        self.temperature, self.max_new_tokens, self.batch_size, self.seed = (
            temperature,
            max_new_tokens,
            batch_size,
            seed,
        )
        self._n_asked: dict[str, int] = defaultdict(int)

    @property
    def name(self) -> str:
        """The model and how it is sampled, for a log."""
        return f"{self.model.config.name_or_path or 'model'}, temperature {self.temperature:g}, seed {self.seed}"

    def __call__(self, prompt: str, n: int, /) -> list[Reply]:
        """Return `n` replies to `prompt`, with their tokens."""
        replies: list[Reply] = []
        while len(replies) < n:
            replies += self._batch(prompt, min(self.batch_size, n - len(replies)))
        return replies

    def _batch(self, prompt: str, n: int) -> list[Reply]:
        import torch

        given = self.tokenizer(
            self._text(prompt), return_tensors="pt", add_special_tokens=not self.tokenizer.chat_template
        )
        given = given.to(self.model.device)
        n_prompt = given["input_ids"].shape[1]
        ends = self._end_tokens()
        options = {"do_sample": True, "temperature": self.temperature} if self.temperature else {"do_sample": False}
        is_cuda = self.model.device.type == "cuda"
        # generate() draws from the global state: it is seeded for this call, and put back after it.
        with torch.random.fork_rng(devices=[self.model.device] if is_cuda else []), torch.inference_mode():
            torch.manual_seed(child_seed(self.seed, prompt, self._n_asked[prompt]))
            made = self.model.generate(  # type: ignore[operator]  # transformers types it as Tensor or Module
                input_ids=given["input_ids"].expand(n, -1),
                attention_mask=given["attention_mask"].expand(n, -1),
                max_new_tokens=self.max_new_tokens,
                pad_token_id=ends[0],
                **options,
            )[:, n_prompt:]
        self._n_asked[prompt] += n
        texts = self.tokenizer.batch_decode(made, skip_special_tokens=True)
        is_end = torch.isin(made, torch.tensor(ends, device=made.device))
        # Tokens up to the first end, which is itself generated; a reply that was cut off has none.
        lengths = torch.where(is_end.any(1), is_end.int().argmax(1) + 1, made.shape[1]).tolist()
        return [
            Reply(text, tokens=length, prompt_tokens=0 if index else n_prompt)
            for index, (text, length) in enumerate(zip(texts, lengths, strict=True))
        ]

    def _text(self, prompt: str) -> str:
        if not self.tokenizer.chat_template:
            return prompt
        message = [{"role": "user", "content": prompt}]
        return str(self.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True))

    def _end_tokens(self) -> list[int]:
        found = getattr(self.model.generation_config, "eos_token_id", None)
        found = self.tokenizer.eos_token_id if found is None else found
        ends = found if isinstance(found, list) else [found]
        return [0 if end is None else int(end) for end in ends]


class OpenAISampler:
    """Sample from any OpenAI-compatible endpoint: OpenAI's, or vLLM, llama.cpp, Ollama and others behind a URL.

    Rate limits, server errors, timeouts and lost connections are tried again, each time after a longer pause (or the
    one that the server asks for). The key is read from the environment variable OPENAI_API_KEY and kept nowhere.

    Parameters
    ----------
    model : str
        As the endpoint names it.
    base_url : str, optional
        Such as ``"http://localhost:8000/v1"``; by default OpenAI's.
    temperature : float
    max_tokens : int
        Of one reply.
    timeout : float
        Seconds to wait for a request.
    max_retries : int
        Further tries of a request.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        temperature: float = 0.7,
        max_tokens: int = 512,
        timeout: float = 120.0,
        max_retries: int = 6,
    ) -> None:
        _warn_if_greedy(temperature)
        self._openai: Any = need("openai", extra="openai", purpose="sampling from an OpenAI-compatible endpoint")
        self.model, self.base_url = model, base_url
        self.temperature, self.max_tokens = temperature, max_tokens
        key = os.environ.get("OPENAI_API_KEY")
        if not key and base_url is None:
            raise InputError(
                "the environment variable OPENAI_API_KEY is not set; set it, or give the URL of a local server"
            )
        self._client = self._openai.OpenAI(
            api_key=key or "not-needed", base_url=base_url, timeout=timeout, max_retries=max_retries
        )
        self._max_tries = max_retries + 1

    @property
    def name(self) -> str:
        """The model and how it is sampled, for a log."""
        return f"{self.model} at {self.base_url or 'OpenAI'}, temperature {self.temperature:g}"

    def __call__(self, prompt: str, n: int, /) -> list[Reply]:
        """Return `n` replies to `prompt`, with their tokens.

        Raises
        ------
        InputError
            The endpoint refuses the key, the model or the request.
        SamplerError
            It did not answer after all retries.
        """
        replies: list[Reply] = []
        while len(replies) < n:
            try:
                replies += self._request(prompt, n - len(replies))  # many servers return one choice whatever n is
            except SamplerError as error:
                raise SamplerError(str(error), replies) from None
        return replies[:n]

    def _request(self, prompt: str, n: int) -> list[Reply]:
        where = f"{self.model} at {self.base_url or 'OpenAI'}"
        openai = self._openai
        try:
            made = self._client.chat.completions.create(
                model=self.model,
                messages=[{"role": "user", "content": prompt}],
                n=n,
                temperature=self.temperature,
                max_tokens=self.max_tokens,
            )
        except (openai.RateLimitError, openai.InternalServerError, openai.APIConnectionError) as error:
            what = {"RateLimitError": "is over its rate limit", "APITimeoutError": "did not answer in time",
                    "APIConnectionError": "cannot be reached"}.get(type(error).__name__, "fails")  # fmt: skip
            raise SamplerError(f"{where} {what} ({self._max_tries} tries): {_short(error)}") from None
        except (openai.AuthenticationError, openai.PermissionDeniedError):
            raise InputError(f"{where} refuses the key; check the environment variable OPENAI_API_KEY") from None
        except openai.APIStatusError as error:
            raise InputError(f"{where} refuses the request ({error.status_code}): {_short(error)}") from None
        choices = made.choices or []
        if not choices:
            raise SamplerError(f"{where} returned no choices")
        return self._replies([choice.message.content or "" for choice in choices], made.usage)

    @staticmethod
    def _replies(texts: list[str], usage: Any) -> list[Reply]:
        """Share out the tokens of a request, which are counted for all its choices together."""
        if usage is None:
            return [Reply(text) for text in texts]
        whole, rest = divmod(usage.completion_tokens, len(texts))
        return [
            Reply(text, tokens=whole + (index < rest), prompt_tokens=0 if index else usage.prompt_tokens)
            for index, text in enumerate(texts)
        ]


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else text[:199] + "…"


class LoggedSampler:
    """Keep every reply in a file as it comes, and take it from there when the same work is done again.

    A run that was stopped is simply started again with the same log: replies that were paid for are not asked for a
    second time, and a repeated prompt still gets a new reply each time.

    Parameters
    ----------
    sampler : Sampler
    path : path
        JSON Lines of ``{"sampler", "prompt", "reply", "tokens", "prompt_tokens"}``. Replies of other samplers in the
        same file are left alone.
    batch_size : int
        Replies asked for at a time; so many are lost at most when the program is stopped.

    Examples
    --------
    >>> import tempfile
    >>> log = tempfile.mkdtemp() + "/replies.jsonl"
    >>> LoggedSampler(lambda prompt, n: ["4"] * n, log)("2 + 2?", 2)
    ['4', '4']
    >>> LoggedSampler(lambda prompt, n: ["5"] * n, log)("2 + 2?", 3)
    ['4', '4', '5']
    """

    def __init__(self, sampler: Sampler, path: str | os.PathLike[str], *, batch_size: int = 64) -> None:
        self.sampler, self.batch_size = sampler, batch_size
        self.name = getattr(sampler, "name", "function")
        self._file = JsonLines(path)
        self._lock = threading.Lock()
        self._kept: dict[str, deque[Reply]] = defaultdict(deque)
        with self._file.locked():
            lines = self._file.read()
        for number, item in lines:
            if not isinstance(item.get("prompt"), str) or not isinstance(item.get("reply"), str):
                raise InputError(
                    f"{path}, line {number}: expected the texts 'prompt' and 'reply'; is this a log of replies?"
                )
            if item.get("sampler") == self.name:
                reply = Reply(item["reply"], item.get("tokens"), item.get("prompt_tokens"))
                self._kept[item["prompt"]].append(reply)

    def __call__(self, prompt: str, n: int, /) -> list[str]:
        """Return `n` replies: first those of the log, then new ones."""
        with self._lock:
            kept = self._kept[prompt]
            replies: list[str] = [kept.popleft() for _ in range(min(n, len(kept)))]
        while len(replies) < n:
            asked = min(self.batch_size, n - len(replies))
            try:
                made = self.sampler(prompt, asked)
            except SamplerError as error:
                self._keep(prompt, error.replies)
                raise
            self._keep(prompt, made)
            if len(made) != asked:
                raise InputError(
                    f"the sampler returned {len(made)} samples where {asked} were asked for; it must return all"
                )
            replies += made
        return replies

    def _keep(self, prompt: str, replies: Sequence[str]) -> None:
        with self._lock, self._file.locked():
            self._file.append(self._line(prompt, reply) for reply in replies)

    def _line(self, prompt: str, reply: str) -> dict[str, Any]:
        cost = {"tokens": getattr(reply, "tokens", None), "prompt_tokens": getattr(reply, "prompt_tokens", None)}
        return {"sampler": self.name, "prompt": prompt, "reply": str(reply), **cost}
