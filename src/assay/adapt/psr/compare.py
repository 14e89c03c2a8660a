"""Put ways of steering side by side, at strengths that make them comparable.

At one alpha a comparison says nothing: find for each the strength at which a number that matters (the attribute's
score, the fluency) has one value, by `calibrate`, then compare the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError
from assay.adapt.psr.judges import surprises
from assay.adapt.psr.pairs import respond

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pandas as pd

    from assay.adapt.psr.pairs import Judge
    from assay.adapt.psr.steering import Steering


@dataclass(frozen=True)
class Calibration:
    """A strength that was found, and what was measured on the way.

    Parameters
    ----------
    alpha, value : float
        The strength whose measured number is nearest to the target.
    tried : tuple of (alpha, value)
        In the order in which they were measured.
    """

    alpha: float
    value: float
    tried: tuple[tuple[float, float], ...]


def calibrate(
    metric: Callable[[float], float],
    target: float,
    low: float,
    high: float,
    *,
    n_steps: int = 6,
    tolerance: float = 0.0,
) -> Calibration:
    """Find the strength at which a number has its target, by bisection.

    Parameters
    ----------
    metric : callable
        From alpha to a number that rises with it, or falls; noise is allowed.
    target : float
    low, high : float
        Strengths whose numbers lie on either side of the target.
    n_steps : int
        Measurements between them, at most.
    tolerance : float
        Stop as soon as the number is so near.

    Raises
    ------
    InputError
        The target does not lie between the numbers at `low` and `high`; it says both.

    Examples
    --------
    >>> calibrate(lambda alpha: alpha**2, target=2.0, low=0, high=4, n_steps=12).alpha
    1.4140625
    """
    tried = [(low, float(metric(low))), (high, float(metric(high)))]
    (_, at_low), (_, at_high) = tried
    if not min(at_low, at_high) <= target <= max(at_low, at_high):
        raise InputError(
            f"the target {target:g} does not lie between the values at alpha={low:g} ({at_low:g}) and {high:g} "
            f"({at_high:g}); widen the range or choose another target"
        )
    for _ in range(n_steps):
        if min(abs(value - target) for _, value in tried) <= tolerance:
            break
        middle = (low + high) / 2
        value = float(metric(middle))
        tried.append((middle, value))
        if (value < target) == (at_low < at_high):
            low = middle
        else:
            high = middle
    alpha, value = min(tried, key=lambda pair: abs(pair[1] - target))
    return Calibration(alpha, value, tuple(tried))


def compare(
    steerings: Mapping[str, Steering],
    pairs: Sequence[dict[str, Any]],
    attribute: Judge,
    *,
    alpha: float | Mapping[str, float] = 1.0,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    seed: int = 0,
) -> pd.DataFrame:
    """Measure every way of steering on held-out pairs, beside no steering and the steering prompt itself.

    Parameters
    ----------
    steerings : mapping of name to Steering
        Of one model.
    pairs : sequence of dict
        ``prompt``, ``steered_prompt``, ``response``: none that they were trained on.
    attribute : callable
        ``judge(prompt, response)`` in [0, 1].
    alpha : float or mapping of name to float
    max_new_tokens, temperature, seed
        Of the answers that are judged.

    Returns
    -------
    pandas.DataFrame
        One row a method: method, alpha, rmse (relative, at the last layer), ll (log-likelihood of the pairs' answers
        behind the plain prompt, nats a token), attribute_score and perplexity (of its own answers behind the plain
        prompt, by the model without steering; geometric mean), with 95 % intervals of the last two over the pairs.
    """
    import pandas as pd

    if not steerings or not pairs:
        raise InputError(f"{len(steerings)} ways of steering and {len(pairs)} pairs: expected at least one of each")
    first = next(iter(steerings.values()))
    how: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    model, tokenizer = first.model, first.tokenizer
    plain, asked = [pair["prompt"] for pair in pairs], [pair["steered_prompt"] for pair in pairs]
    rows = []

    def add(name: str, strength: float, rmse: float, likelihood: float, answers: list[str]) -> None:
        scores = np.array([attribute(prompt, answer) for prompt, answer in zip(plain, answers, strict=True)])
        said = surprises(model, tokenizer, plain, answers)
        said = said[np.isfinite(said)]
        score, fluency = _interval(scores), _interval(said)
        rows.append(
            {
                "method": name, "alpha": strength, "rmse": rmse, "ll": likelihood,
                "attribute_score": float(scores.mean()), "attribute_low": score[0], "attribute_high": score[1],
                "perplexity": math.exp(said.mean()) if len(said) else math.nan,
                "perplexity_low": math.exp(fluency[0]), "perplexity_high": math.exp(fluency[1]),
            }
        )  # fmt: skip

    add("no steering", 0.0, 1.0, -first.surprise(pairs, 0.0), respond(model, tokenizer, plain, **how))
    add("prompt", math.nan, 0.0, math.nan, respond(model, tokenizer, asked, **how))
    for name, steering in steerings.items():
        if steering.model is not model:
            raise InputError(f"{name} steers another model than {next(iter(steerings))}; compare on one")
        strength = alpha if isinstance(alpha, int | float) else alpha[name]
        rmse = list(steering.relative_rmse(pairs, strength).values())[-1]
        questions = [pair["question"] for pair in pairs] if "question" in pairs[0] else None
        answers = steering.generate(plain, strength, questions=questions, **how)
        add(name, float(strength), rmse, -steering.surprise(pairs, strength), answers)
    return pd.DataFrame(rows)


def _interval(values: np.ndarray[Any, Any]) -> tuple[float, float]:
    """95 % BCa bootstrap interval of the mean; NaN with fewer than two values."""
    from scipy.stats import bootstrap

    if len(values) < 2:
        return math.nan, math.nan
    if np.ptp(values) == 0:
        return float(values[0]), float(values[0])
    found = bootstrap((values,), np.mean, rng=np.random.default_rng(0)).confidence_interval
    return float(found.low), float(found.high)
