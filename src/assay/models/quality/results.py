"""What a model answered, and what the full model said."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from assay._core.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


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


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if len(values) else math.nan
