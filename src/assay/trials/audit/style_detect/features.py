"""What is read in texts once and used by every case: vectors, and a language model's scores. Kept below the cache."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.files import replacing
from assay.trials.audit.style_detect.human import background, folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

#: Zero-shot scores that the trial compares.
ZERO_SHOT = ("fast-detect-gpt", "log-rank", "lrr", "binoculars")
_LAYOUT = 1
#: Texts that are read between two saves.
_CHUNK = 160


class Features(NamedTuple):
    """Rows are texts.

    Parameters
    ----------
    style, meaning : (n, d) float32
        Vectors of the stylometric encoder, and of a sentence encoder.
    zero_shot : (n, 4) float
        Scores in the order of :data:`ZERO_SHOT`.
    """

    style: NDArray[np.float32]
    meaning: NDArray[np.float32]
    zero_shot: Array


def read(texts: Sequence[str]) -> Features:
    """Read texts with SmolLM2, all-MiniLM-L6-v2 and the stylometric encoder; what was read before is not read again."""
    from assay.audit.style_detect import StylometricEncoder

    n_words = int(np.median([len(text.split()) for text in texts]))
    style = StylometricEncoder().fit(background(n_words)).encode(texts)
    return Features(style, _kept("meaning", texts, _meaning), _kept("zero-shot", texts, _zero_shot))


def _kept(kind: str, texts: Sequence[str], make: Callable[[Sequence[str]], NDArray[Any]]) -> NDArray[Any]:
    parts = []
    for start in range(0, len(texts), _CHUNK):
        chunk = texts[start : start + _CHUNK]
        said = json.dumps([_LAYOUT, kind, ZERO_SHOT, list(chunk)])
        path = folder() / f"{kind}-{hashlib.sha256(said.encode()).hexdigest()[:16]}.npy"
        if not path.is_file():
            values = make(chunk)
            with replacing(path) as temporary, temporary.open("wb") as file:
                np.save(file, values, allow_pickle=False)
        parts.append(np.load(path, allow_pickle=False))
    return np.concatenate(parts)


def _meaning(texts: Sequence[str]) -> NDArray[np.float32]:
    from assay.models import demo_encoder

    return demo_encoder().encode(texts)


def _zero_shot(texts: Sequence[str]) -> Array:
    from assay.audit.style_detect.zero_shot import SCORES, text_statistics
    from assay.models import demo_lm

    statistics = text_statistics(*demo_lm(), texts)
    scores = [SCORES[name][0] for name in ZERO_SHOT]
    empty = [float("nan")] * len(scores)
    return np.array([empty if tokens is None else [score(tokens) for score in scores] for tokens in statistics])
