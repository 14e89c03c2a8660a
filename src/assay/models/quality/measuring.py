"""Ask a model about windows of text and about questions, and compare its answers with the full model's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.cache import made_dir
from assay._core.errors import InputError
from assay._core.extras import need
from assay.models.quality import kept
from assay.models.quality.asking import correct, scored_logits, surprise
from assay.models.quality.results import Quality, Reference
from assay.models.quality.text import held_out_text
from assay.models.quality.tokens import question_tokens, windows_of

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

#: Likeliest tokens of the full model over which the divergence is taken.
TOP = 25

#: Windows that go through the model at a time.
WINDOWS = 4


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
    windows = windows_of(tokenizer, text, n_windows, n_tokens)
    contexts, choices, answers = question_tokens(tokenizer, text, n_questions)
    path = made_dir() / "quality" / f"{kept.fingerprint(model, windows, contexts, choices, answers)}.npz"
    known = kept.read(path)
    if known is not None:
        return known
    nll, top_ids, top_logits = [], [], []
    for batch in _batches(windows, WINDOWS):
        logits = scored_logits(model, batch)
        values, ids = logits.topk(min(TOP, logits.shape[-1]), dim=-1)
        nll.append(surprise(logits, batch))
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
        correct(model, contexts, choices, answers),
    )
    kept.write(path, made)
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
    for start in range(0, len(reference.windows), WINDOWS):
        span = slice(start, start + WINDOWS)
        batch = reference.windows[span]
        logits = scored_logits(model, batch)
        ids = torch.from_numpy(reference.top_ids[span].astype(np.int64))
        if logits.shape[-1] <= int(ids.max()):
            raise InputError(f"the model has {logits.shape[-1]} tokens and the reference uses token {int(ids.max())}")
        log_p = torch.from_numpy(reference.top_logits[span]).double().log_softmax(-1)
        log_q = logits.gather(-1, ids).double().log_softmax(-1)
        kl.append((log_p.exp() * (log_p - log_q)).sum(-1).clamp(min=0.0).mean(-1).numpy())
        same.append((logits.argmax(-1) == ids[..., 0]).double().mean(-1).numpy())
        nll.append(surprise(logits, batch))
    return Quality(
        _joined(nll),
        _joined(kl),
        _joined(same),
        correct(model, reference.contexts, reference.choices, reference.answers),
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


def _batches(rows: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _joined(parts: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate(parts) if parts else np.empty(0)
