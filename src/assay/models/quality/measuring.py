"""Ask a model about windows of text and about questions, and compare its answers with the full model's."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import math
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from assay._core.cache import made_dir
from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.files import replacing
from assay.models.quality.text import N_CHOICES, held_out_text, questions

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    import pandas as pd
    from numpy.typing import NDArray

#: Likeliest tokens of the full model over which the divergence is taken.
TOP = 25

#: Tokens of a continuation that are scored.
CHOICE_TOKENS = 10

#: Part of the name of a cached reference; raised when what is kept or how it is computed changes.
_LAYOUT = 1

#: Windows, and questions, that go through the model at a time.
_WINDOWS, _QUESTIONS = 4, 8


@dataclass(frozen=True)
class Quality:
    """What a model answered, compared with the full model.

    Parameters
    ----------
    nll : (n_windows,) float64
        Mean surprise at the true next token, nats.
    kl : (n_windows,) float64
        Mean divergence from the full model on its 25 likeliest tokens, both renormalised, nats.
    same_token : (n_windows,) float64
        Share of positions with the full model's likeliest token.
    correct : (n_questions,) float64
        1 where the true continuation had the highest mean log-likelihood a token, else 0.
    """

    nll: NDArray[np.float64]
    kl: NDArray[np.float64]
    same_token: NDArray[np.float64]
    correct: NDArray[np.float64]

    @property
    def perplexity(self) -> float:
        """The exponential of the mean surprise."""
        return math.exp(self.nll.mean()) if len(self.nll) else math.nan

    @property
    def kl_mean(self) -> float:
        """Mean divergence over windows, nats a token."""
        return _mean(self.kl)

    @property
    def same_token_mean(self) -> float:
        """Share of all scored positions with the full model's likeliest token."""
        return _mean(self.same_token)

    @property
    def accuracy(self) -> float:
        """Share of questions answered right; chance is 0.25."""
        return _mean(self.correct)

    def interval(self, name: str) -> tuple[float, float]:
        """95 % interval of a mean over windows or questions.

        Parameters
        ----------
        name : {"perplexity", "kl_mean", "same_token_mean", "accuracy"}

        Returns
        -------
        low, high : float
            BCa bootstrap over windows; Wilson's of the share of questions. NaN with fewer than two windows.
        """
        from scipy.stats import binomtest, bootstrap

        if name == "accuracy":
            if not len(self.correct):
                return math.nan, math.nan
            found = binomtest(int(self.correct.sum()), len(self.correct)).proportion_ci(method="wilson")
            return float(found.low), float(found.high)
        values = {"perplexity": self.nll, "kl_mean": self.kl, "same_token_mean": self.same_token}.get(name)
        if values is None:
            raise InputError(f"name={name!r} is not one of perplexity, kl_mean, same_token_mean, accuracy")
        if len(values) < 2:
            return math.nan, math.nan
        if np.ptp(values) == 0:
            low = high = float(values[0])
        else:
            found = bootstrap((values,), np.mean, rng=np.random.default_rng(0), vectorized=True).confidence_interval
            low, high = float(found.low), float(found.high)
        return (math.exp(low), math.exp(high)) if name == "perplexity" else (low, high)

    def to_frame(self) -> pd.DataFrame:
        """One row a number: name, value, low, high."""
        import pandas as pd

        names = ("perplexity", "kl_mean", "same_token_mean", "accuracy")
        return pd.DataFrame(
            [(name, getattr(self, name), *self.interval(name)) for name in names],
            columns=["name", "value", "low", "high"],
        )

    def summary(self) -> str:
        """The four numbers with 95 % intervals."""
        said = {
            "perplexity": "perplexity",
            "kl_mean": "KL from the full model (nats)",
            "same_token_mean": "same likeliest token",
            "accuracy": "multiple choice (chance 0.25)",
        }
        lines = [f"{len(self.nll)} windows, {len(self.correct)} questions"]
        for name, value, low, high in self.to_frame().itertuples(index=False):
            lines.append(f"{said[name]:<31} {value:8.4g}  [{low:.4g}, {high:.4g}]")
        return "\n".join(lines)


@dataclass(frozen=True)
class Reference:
    """Windows and questions as tokens, and what the full model said of them.

    Parameters
    ----------
    windows : (n_windows, n_tokens) int64
        The first quarter of each is context, the rest is scored.
    top_ids, top_logits : (n_windows, n_scored, 25) int32 and float32
        The likeliest tokens, likeliest first.
    contexts : (n_questions, n_context) int64
    choices : (n_questions, 4, n_longest) int64
        Filled up with -1.
    answers : (n_questions,) int64
    nll : (n_windows,) float64
        The full model's own surprise, nats.
    correct : (n_questions,) float64
        Whether the full model was right.
    """

    windows: NDArray[np.int64]
    top_ids: NDArray[np.int32]
    top_logits: NDArray[np.float32]
    contexts: NDArray[np.int64]
    choices: NDArray[np.int64]
    answers: NDArray[np.int64]
    nll: NDArray[np.float64]
    correct: NDArray[np.float64]

    @property
    def full(self) -> Quality:
        """The quality of the full model itself: no divergence, all tokens the same."""
        n_windows = len(self.windows)
        return Quality(self.nll, np.zeros(n_windows), np.ones(n_windows), self.correct)

    def split(self, n: int) -> tuple[Reference, ...]:
        """Deal windows and questions to `n` parts that share none: the paired cases of a trial."""
        if not 1 <= n <= max(len(self.windows), len(self.answers)):
            raise InputError(
                f"n={n}: {len(self.windows)} windows and {len(self.answers)} questions cannot be dealt to as many parts"
            )
        parts = {field.name: np.array_split(getattr(self, field.name), n) for field in fields(self)}
        return tuple(Reference(**{name: shares[place] for name, shares in parts.items()}) for place in range(n))


def _joined(parts: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate(parts) if parts else np.empty(0)


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if len(values) else math.nan


# ------------------------------------------------------------------------------------------------ the two verbs


def reference(
    model: Any,
    tokenizer: Any,
    *,
    n_windows: int = 40,
    n_tokens: int = 128,
    n_questions: int = 200,
    text: str | None = None,
) -> Reference:
    """Ask the full model, or read what it said before.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A causal language model. It is asked in evaluation mode.
    tokenizer : transformers.PreTrainedTokenizerBase
    n_windows : int
        Windows of text, chosen at random but always the same; the first of many are those of few.
    n_tokens : int
        Of a window. The first quarter is context only.
    n_questions : int
        0: none.
    text : str, optional
        None: :func:`held_out_text`.

    Returns
    -------
    Reference

    Raises
    ------
    InputError
        The text is too short, or a number is out of range.
    """
    need("torch", extra="lm", purpose="measuring a language model")
    if n_windows < 1 or n_tokens < 8 or n_questions < 0:
        raise InputError(
            f"n_windows={n_windows}, n_tokens={n_tokens}, n_questions={n_questions}: expected at least 1 window of 8 "
            f"tokens and no negative number of questions"
        )
    text = held_out_text() if text is None else text
    windows = _windows(tokenizer, text, n_windows, n_tokens)
    contexts, choices, answers = _question_tokens(tokenizer, text, n_questions)
    path = made_dir() / "quality" / f"{_fingerprint(model, windows, contexts, choices, answers)}.npz"
    known = _read(path)
    if known is not None:
        return known
    nll, top_ids, top_logits = [], [], []
    for batch in _batches(windows, _WINDOWS):
        logits = _scored_logits(model, batch)
        values, ids = logits.topk(min(TOP, logits.shape[-1]), dim=-1)
        nll.append(_surprise(logits, batch))
        top_ids.append(ids.numpy().astype(np.int32))
        top_logits.append(values.numpy())
    made = Reference(
        windows,
        np.concatenate(top_ids),
        np.concatenate(top_logits),
        contexts,
        choices,
        answers,
        np.concatenate(nll),
        _correct(model, contexts, choices, answers),
    )
    _write(path, made)
    return made


def measure(model: Any, tokenizer: Any, reference: Reference) -> Quality:
    """Ask a model what the full model was asked, and compare.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Compressed; of the same vocabulary as the full model.
    tokenizer : transformers.PreTrainedTokenizerBase
        Must have as many tokens as the reference used.
    reference : Reference

    Returns
    -------
    Quality

    Raises
    ------
    InputError
        The vocabularies differ.
    """
    import torch

    if len(tokenizer) <= int(reference.windows.max(initial=0)):
        raise InputError(
            f"the tokenizer has {len(tokenizer)} tokens and the reference uses token {int(reference.windows.max())}: "
            f"it was made with another tokenizer"
        )
    nll, kl, same = [], [], []
    for start in range(0, len(reference.windows), _WINDOWS):
        span = slice(start, start + _WINDOWS)
        batch = reference.windows[span]
        logits = _scored_logits(model, batch)
        ids = torch.from_numpy(reference.top_ids[span].astype(np.int64))
        if logits.shape[-1] <= int(ids.max()):
            raise InputError(f"the model has {logits.shape[-1]} tokens and the reference uses token {int(ids.max())}")
        log_p = torch.from_numpy(reference.top_logits[span]).double().log_softmax(-1)
        log_q = logits.gather(-1, ids).double().log_softmax(-1)
        kl.append((log_p.exp() * (log_p - log_q)).sum(-1).clamp(min=0.0).mean(-1).numpy())
        same.append((logits.argmax(-1) == ids[..., 0]).double().mean(-1).numpy())
        nll.append(_surprise(logits, batch))
    return Quality(
        _joined(nll),
        _joined(kl),
        _joined(same),
        _correct(model, reference.contexts, reference.choices, reference.answers),
    )


def model_bytes(folder: str | os.PathLike[str]) -> int:
    """Bytes of the weights in a folder: all its ``*.safetensors``.

    Raises
    ------
    InputError
        There are none.
    """
    files = list(Path(folder).glob("*.safetensors"))
    if not files:
        raise InputError(f"{folder} holds no *.safetensors, so there are no weights to count")
    return sum(file.stat().st_size for file in files)


# --------------------------------------------------------------------------------------------- text to tokens


def _windows(tokenizer: Any, text: str, n_windows: int, n_tokens: int) -> NDArray[np.int64]:
    ids = np.asarray(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int64)
    first = np.array(_first_token(tokenizer), dtype=np.int64)
    size = n_tokens - len(first)
    n_there = len(ids) // size
    if n_windows > n_there:
        raise InputError(
            f"the text has {len(ids)} tokens, which is {n_there} windows of {n_tokens}; bring a longer text or ask for "
            f"fewer than {n_windows}"
        )
    chosen = np.random.default_rng(0).permutation(n_there)[:n_windows]
    return np.stack([np.concatenate([first, ids[place * size : (place + 1) * size]]) for place in chosen])


def _question_tokens(
    tokenizer: Any, text: str, n_questions: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    if not n_questions:
        return np.empty((0, 1), np.int64), np.empty((0, N_CHOICES, 1), np.int64), np.empty(0, np.int64)
    asked = questions(n_questions, text)

    def tokens(texts: list[str]) -> list[list[int]]:
        found: list[list[int]] = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return found

    contexts = tokens([question.context for question in asked])
    choices = tokens([choice for question in asked for choice in question.choices])
    # Contexts of one length need no padding, which not every model takes in the same way.
    length = min(map(len, contexts))
    padded = np.full((len(choices), CHOICE_TOKENS), -1, dtype=np.int64)
    for row, ids in zip(padded, choices, strict=True):
        row[: len(ids)] = ids[:CHOICE_TOKENS]
    first = _first_token(tokenizer)
    return (
        np.array([[*first, *ids[-length:]] for ids in contexts], dtype=np.int64),
        padded.reshape(n_questions, N_CHOICES, -1),
        np.array([question.answer for question in asked], dtype=np.int64),
    )


def _first_token(tokenizer: Any) -> list[int]:
    """The token that begins every text for this model, where there is one: Llama's is needed, GPT-2 has none."""
    ids = tokenizer("a", verbose=False)["input_ids"]
    return [ids[0]] if tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id else []


def _batches(rows: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


# -------------------------------------------------------------------------------------------- asking the model


def _scored_logits(model: Any, windows: NDArray[np.int64]) -> Any:
    """Logits (n, n_scored, n_vocabulary) float32 on the CPU, at the positions before the scored tokens."""
    import torch

    n_scored = windows.shape[1] - windows.shape[1] // 4
    with _asking(model), torch.inference_mode():
        ids = torch.from_numpy(windows).to(_device(model))
        return model(ids, **_kept(model, n_scored + 1)).logits[:, -n_scored - 1 : -1].float().cpu()


def _surprise(logits: Any, windows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean negative log-likelihood of the scored tokens of each window, (n,)."""
    import torch

    targets = torch.from_numpy(windows[:, -logits.shape[1] :])
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    means: NDArray[np.float64] = losses.view(targets.shape).double().mean(-1).numpy()
    return means


def _correct(
    model: Any, contexts: NDArray[np.int64], choices: NDArray[np.int64], answers: NDArray[np.int64]
) -> NDArray[np.float64]:
    """1 where the true continuation has the highest mean log-likelihood a token."""
    scores = [
        choice_scores(model, contexts[start : start + _QUESTIONS], choices[start : start + _QUESTIONS])
        for start in range(0, len(answers), _QUESTIONS)
    ]
    if not scores:
        return np.empty(0)
    right: NDArray[np.float64] = (np.concatenate(scores).argmax(-1) == answers).astype(np.float64)
    return right


def choice_scores(model: Any, contexts: NDArray[np.int64], choices: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean log-likelihood a token of continuations, whose contexts are read once for all of them.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    contexts : (n, n_context) int64
    choices : (n, n_choices, n_longest) int64
        Filled up with -1.

    Returns
    -------
    (n, n_choices) float64
    """
    import torch

    n_choices = choices.shape[1]
    device = _device(model)
    flat = torch.from_numpy(choices).flatten(0, 1).to(device)
    # Padding comes last, where no scored token of a causal model sees it.
    inputs = flat.clamp(min=0)[:, :-1]
    with _asking(model), torch.inference_mode():
        ids = torch.from_numpy(contexts).to(device)
        read = model(ids, use_cache=True, **_kept(model, 1))
        logits = read.logits[:, -1:].repeat_interleave(n_choices, 0)
        if inputs.shape[1]:
            # transformers 5.24 calls it cache, versions before past_key_values.
            name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
            past: Any = getattr(read, name, None)
            if hasattr(past, "batch_repeat_interleave"):
                past.batch_repeat_interleave(n_choices)
                rest = model(inputs, use_cache=True, **{name: past}).logits
            else:  # a model without such a cache reads the context with each choice
                whole = torch.cat([ids.repeat_interleave(n_choices, 0), inputs], dim=1)
                rest = model(whole, **_kept(model, inputs.shape[1])).logits[:, -inputs.shape[1] :]
            logits = torch.cat([logits, rest], dim=1)
        losses = torch.nn.functional.cross_entropy(
            logits.float().transpose(1, 2), flat, ignore_index=-1, reduction="none"
        ).double()
    scores = -losses.sum(-1) / (flat >= 0).sum(-1)
    means: NDArray[np.float64] = scores.view(-1, n_choices).cpu().numpy()
    return means


@contextmanager
def _asking(model: Any) -> Iterator[None]:
    """Evaluation mode for a while."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _kept(model: Any, n: int) -> dict[str, int]:
    """Spare the model the logits of positions that are not read, where it can be told."""
    return {"logits_to_keep": n} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}


def _device(model: Any) -> Any:
    return next(tensor.device for tensor in (*model.parameters(), *model.buffers()))


# --------------------------------------------------------------------------------------------------- the cache


def _fingerprint(model: Any, *asked: NDArray[np.int64]) -> str:
    """A hash of the model (weights, structure, settings), of what it is asked, and of the versions that compute."""
    import torch

    digest = hashlib.sha256()
    versions = [importlib.metadata.version(name) for name in ("torch", "transformers")]
    config = model.config.to_json_string() if hasattr(model, "config") else ""
    digest.update(f"{_LAYOUT} {versions} {model!r} {config}".encode())
    for name, tensor in model.state_dict().items():
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}".encode())
        digest.update(plain.flatten().view(torch.uint8).numpy())
    for part in asked:
        digest.update(f"{part.shape}".encode())
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()[:32]


def _read(path: Path) -> Reference | None:
    try:
        with np.load(path, allow_pickle=False) as kept:
            return Reference(**{field.name: kept[field.name] for field in fields(Reference)})
    except (OSError, EOFError, KeyError, ValueError, BadZipFile):  # not there, or broken: it is made again
        return None


def _write(path: Path, made: Reference) -> None:
    """Keep a reference; several processes may do so at once, and the last one's stays. No room: not kept."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            np.savez(temporary, **{field.name: getattr(made, field.name) for field in fields(made)})
    except (OSError, InputError):
        return
