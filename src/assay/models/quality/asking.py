"""Ask a model for its logits, its surprise and its choices."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

#: Questions that go through the model at a time.
QUESTIONS = 8


def scored_logits(model: Any, windows: NDArray[np.int64]) -> Any:
    """Logits (n, n_scored, n_vocabulary) float32 on the CPU, at the positions before the scored tokens."""
    import torch

    n_scored = windows.shape[1] - windows.shape[1] // 4
    with _asking(model), torch.inference_mode():
        ids = torch.from_numpy(windows).to(_device(model))
        return model(ids, **_kept(model, n_scored + 1)).logits[:, -n_scored - 1 : -1].float().cpu()


def surprise(logits: Any, windows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean negative log-likelihood of the scored tokens of each window, (n,)."""
    import torch

    targets = torch.from_numpy(windows[:, -logits.shape[1] :])
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    means: NDArray[np.float64] = losses.view(targets.shape).double().mean(-1).numpy()
    return means


def correct(
    model: Any, contexts: NDArray[np.int64], choices: NDArray[np.int64], answers: NDArray[np.int64]
) -> NDArray[np.float64]:
    """1 where the true continuation has the highest mean log-likelihood a token."""
    scores = [
        choice_scores(model, contexts[start : start + QUESTIONS], choices[start : start + QUESTIONS])
        for start in range(0, len(answers), QUESTIONS)
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
