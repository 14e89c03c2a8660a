"""How a causal language model finds a text: log-rank, likelihood over rank, Fast-DetectGPT, Binoculars.

The functions take what :func:`token_statistics` says of every token. All scores are oriented: higher is more
machine-like.

Papers: Gehrmann et al. 2019 (rank), Su et al. 2023 (LRR), Bao et al. 2024 (Fast-DetectGPT, analytic), Hans et al. 2024
(Binoculars).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay._core.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

#: Logits that are held at a time: batches are cut so that texts × tokens × vocabulary stay below this.
MAX_LOGITS = 25_000_000
#: A text of fewer tokens after the first has no score.
MIN_TOKENS = 2


class TokenStatistics(NamedTuple):
    """What a language model says of the tokens of a text, nats.

    Parameters
    ----------
    log_likelihood : (n_tokens,) float
        Of the token, under the scoring model.
    log_rank : (n_tokens,) float
        log(1 + number of tokens the scoring model finds likelier).
    mean, variance : (n_tokens,) float
        Of the scoring model's log-likelihood when the token is drawn from the reference model.
    """

    log_likelihood: Array
    log_rank: Array
    mean: Array
    variance: Array


def token_statistics(logits: Any, ids: Any, reference: Any = None) -> TokenStatistics:
    """Statistics of tokens under logits that predict them.

    Parameters
    ----------
    logits : (n_tokens, n_vocabulary) torch tensor or array
        Row t predicts ``ids[t]``: the shift by one is done.
    ids : (n_tokens,) torch tensor or array of int
    reference : (n_tokens, n_vocabulary) torch tensor or array, optional
        None: the scoring model is its own reference.

    Examples
    --------
    >>> logits = np.log([[0.75, 0.25]] * 4)
    >>> statistics = token_statistics(logits, [0, 0, 1, 0])
    >>> statistics.log_rank.tolist() == [0.0, 0.0, float(np.log(2)), 0.0]
    True
    """
    import torch

    scoring = torch.as_tensor(logits)
    tokens = torch.as_tensor(ids, device=scoring.device)[:, None]
    logs = scoring.log_softmax(dim=-1)
    q = logs.exp() if reference is None else torch.as_tensor(reference, device=scoring.device).softmax(dim=-1)
    true = scoring.gather(1, tokens)
    # A probability of zero has no share in the sums, though its log is −∞.
    safe = torch.where(q > 0, logs, torch.zeros_like(logs))
    mean = (q * safe).sum(dim=-1)
    # Around the mean: the difference of E l² and μ² loses all its digits where the model is nearly uniform.
    variance = (q * (safe - mean[:, None]).square()).sum(dim=-1)
    # Counting what is likelier is linear in the vocabulary; sorting it is not.
    rank = (scoring > true).sum(dim=-1) + 1
    parts = (logs.gather(1, tokens)[:, 0], rank.double().log(), mean, variance)
    return TokenStatistics(*(part.double().cpu().numpy() for part in parts))


def log_likelihood(tokens: TokenStatistics) -> float:
    """Mean log-likelihood of the tokens."""
    return float(tokens.log_likelihood.mean())


def log_rank(tokens: TokenStatistics) -> float:
    """Mean log-rank of the tokens, negated."""
    return -float(tokens.log_rank.mean())


def lrr(tokens: TokenStatistics) -> float:
    """Log-likelihood over log-rank, negated so that higher is machine-like: −(mean log-likelihood) / (mean log-rank).

    Both grow small in machine text, the rank faster. The authors' toolbox keeps the sign of the log-likelihood; ours is
    that of Su et al. NaN where every token is the likeliest.
    """
    rank = float(tokens.log_rank.mean())
    return float("nan") if rank == 0 else -float(tokens.log_likelihood.mean()) / rank


def fast_detect_gpt(tokens: TokenStatistics) -> float:
    """(Σ log p(x_t) − Σ μ_t) / √Σ σ²_t: how far the text is likelier than one drawn from the reference model."""
    spread = float(np.sqrt(tokens.variance.sum()))
    gap = float(tokens.log_likelihood.sum() - tokens.mean.sum())
    return float("nan") if spread == 0 else gap / spread


def binoculars(tokens: TokenStatistics) -> float:
    """Surprise of the performer over the surprise it has at what the observer would say, negated.

    The scoring model is the performer, the reference the observer. 0 over 0 (a performer that is certain) is NaN.
    """
    cross = -float(tokens.mean.mean())
    return float("nan") if cross == 0 else float(tokens.log_likelihood.mean()) / cross


#: Scores by name, and how many tokens of a text they read.
SCORES: dict[str, tuple[Callable[[TokenStatistics], float], int]] = {
    "fast-detect-gpt": (fast_detect_gpt, 1024),
    "log-rank": (log_rank, 1024),
    "lrr": (lrr, 1024),
    "log-likelihood": (log_likelihood, 1024),
    "binoculars": (binoculars, 512),
}


def text_statistics(
    model: Any, tokenizer: Any, texts: Sequence[str], *, reference: Any = None, max_length: int = 1024
) -> list[TokenStatistics | None]:
    """What a causal language model says of texts, each after its first token; None for fewer than three tokens.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Causal, the scoring model; on any device.
    tokenizer : transformers.PreTrainedTokenizerBase
    texts : sequence of str
    reference : transformers.PreTrainedModel, optional
        Of the same vocabulary.
    max_length : int
        Tokens of a text that are read.

    Raises
    ------
    InputError
        The reference has another vocabulary.
    """
    import torch

    n_vocabulary = int(model.config.vocab_size)
    if reference is not None and int(reference.config.vocab_size) != n_vocabulary:
        raise InputError(
            f"the reference model has {reference.config.vocab_size} tokens and the scoring model {n_vocabulary}; "
            "expected two models of one tokenizer"
        )
    ids = [tokenizer(text, truncation=True, max_length=max_length)["input_ids"] for text in texts]
    order = sorted((row for row in range(len(ids)) if len(ids[row]) > MIN_TOKENS), key=lambda row: -len(ids[row]))
    found: list[TokenStatistics | None] = [None] * len(ids)
    models = [model] if reference is None else [model, reference]
    was_training = [each.training for each in models]
    for each in models:
        each.eval()
    try:
        with torch.inference_mode(), progress_bar() as bar:
            task = bar.add_task("reading texts", total=len(order))
            start = 0
            while start < len(order):
                longest = len(ids[order[start]])
                size = int(np.clip(MAX_LOGITS // (longest * n_vocabulary), 1, 32))
                rows = order[start : start + size]
                logits = [_logits(each, [ids[row] for row in rows]) for each in models]
                for place, row in enumerate(rows):
                    length = len(ids[row])
                    parts = [values[place, : length - 1].float() for values in logits]
                    found[row] = token_statistics(parts[0], ids[row][1:], parts[1] if len(parts) > 1 else None)
                start += len(rows)
                bar.advance(task, len(rows))
    finally:
        for each, training in zip(models, was_training, strict=True):
            each.train(training)
    return found


def _logits(model: Any, ids: list[list[int]]) -> Any:
    """Logits of texts padded on the right to the longest, which a causal model does not see."""
    import torch

    device = next(model.parameters()).device
    batch = torch.zeros((len(ids), max(map(len, ids))), dtype=torch.long)
    mask = torch.zeros_like(batch)
    for row, tokens in enumerate(ids):
        batch[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = 1
    return model(input_ids=batch.to(device), attention_mask=mask.to(device)).logits
