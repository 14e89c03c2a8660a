"""A language model whose every probability is known: interpolated counts of one to four words."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

#: Weights of a uniform word, and of contexts of no, one, two and three words. An unseen context gives its own to the
#: shorter one.
WEIGHTS = (0.02, 0.08, 0.2, 0.3, 0.4)
UNKNOWN = "<unknown>"
#: Words seen less often are unknown, and never written.
MIN_COUNT = 2


class NGram:
    """Interpolated 4-gram model of words.

    Parameters
    ----------
    texts : sequence of str
    """

    def __init__(self, texts: Sequence[str]) -> None:
        seen = Counter(word for text in texts for word in text.split())
        self.words = [UNKNOWN, *sorted(word for word, count in seen.items() if count >= MIN_COUNT)]
        self._id = {word: number for number, word in enumerate(self.words)}
        counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for text in texts:
            ids = self.ids(text)
            for place, word in enumerate(ids):
                for length in range(min(4, place + 1)):
                    counts[tuple(ids[place - length : place])][word] += 1
        self._next = {
            context: (np.array(list(found)), np.array(list(found.values())) / sum(found.values()))
            for context, found in counts.items()
        }
        self._unigram = np.zeros(len(self.words))
        words, share = self._next[()]
        self._unigram[words] = share

    def ids(self, text: str) -> list[int]:
        """Numbers of the words of a text; 0 for a word that is not known."""
        return [self._id.get(word, 0) for word in text.split()]

    def probabilities(self, context: Sequence[int]) -> Array:
        """Probability of every next word after the last three words of `context`."""
        found = np.full(len(self.words), WEIGHTS[0] / len(self.words))
        saved = 0.0
        for length in (3, 2, 1):
            known = self._next.get(tuple(context[len(context) - length :])) if len(context) >= length else None
            if known is None:
                saved += WEIGHTS[length + 1]
                continue
            words, share = known
            found[words] += (WEIGHTS[length + 1] + saved) * share
            saved = 0.0
        found += (WEIGHTS[1] + saved) * self._unigram
        return found

    def sample(self, prompt: str, n_words: int, temperature: float, rng: np.random.Generator) -> str:
        """Continue a prompt by `n_words` known words."""
        ids = self.ids(prompt)
        for _ in range(n_words):
            weights = self.probabilities(ids) ** (1 / temperature)
            weights[0] = 0
            total = weights.cumsum()
            ids.append(int(total.searchsorted(rng.random() * total[-1], side="right")))
        return " ".join(self.words[word] for word in ids[-n_words:])

    def log_rank(self, text: str) -> float:
        """Mean log-rank of the words after the first, negated: higher is more machine-like."""
        from assay.audit.style_detect.zero_shot import log_rank

        return log_rank(self.statistics(text))

    def statistics(self, text: str) -> Any:
        """The same statistics that a neural model gives."""
        from assay.audit.style_detect.zero_shot import token_statistics

        ids = self.ids(text)
        logits = np.log(np.stack([self.probabilities(ids[:place]) for place in range(1, len(ids))]))
        return token_statistics(logits, ids[1:])
