"""Small changes of wording on a fifth of a text's words: contractions, synonyms, punctuation.

They are data to test detectors with, not a way around them: nothing is learned from any detector.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

#: Share of the words that are changed, at most; texts without so many places are changed less.
SHARE = 0.2

CONTRACTIONS = {
    "do not": "don't", "does not": "doesn't", "is not": "isn't", "are not": "aren't", "will not": "won't",
    "cannot": "can't", "can not": "can't", "it is": "it's", "that is": "that's", "should not": "shouldn't",
    "would not": "wouldn't", "have not": "haven't", "has not": "hasn't", "did not": "didn't", "there is": "there's",
}  # fmt: skip

SYNONYMS = {
    "use": "employ", "used": "employed", "using": "with", "uses": "employs", "make": "build", "makes": "builds",
    "made": "built", "create": "build", "creates": "builds", "created": "built", "returns": "gives", "return": "give",
    "returned": "given", "because": "since", "also": "too", "however": "but", "therefore": "so", "thus": "so",
    "large": "big", "small": "little", "different": "other", "number": "count", "value": "entry", "values": "entries",
    "object": "thing", "objects": "things", "function": "routine", "functions": "routines", "method": "way",
    "methods": "ways", "provide": "offer", "provides": "offers", "provided": "offered", "contains": "holds",
    "contain": "hold", "need": "require", "needs": "requires", "required": "needed", "specify": "name",
    "specified": "named", "specifies": "names", "example": "instance", "only": "just", "must": "has to",
    "may": "might", "can": "may", "when": "once", "if": "where", "which": "that", "such": "like", "each": "every",
    "all": "every", "other": "further", "same": "very", "first": "initial", "new": "fresh", "set": "put",
    "allows": "lets", "allow": "let", "based": "built", "given": "stated", "default": "usual", "data": "figures",
    "and": "as well as", "the": "this", "are": "will be", "in": "within", "to": "towards", "of": "from",
}  # fmt: skip

PUNCTUATION = {",": "", ";": ",", ":": " -", ".": "!"}


def perturbed(text: str, rng: np.random.Generator) -> str:
    """Change up to a fifth of the words of a text, at random places among those that can be changed."""
    for long, short in CONTRACTIONS.items():
        text = re.sub(rf"\b{long}\b", short, text)
    words = text.split()
    places = [place for place, word in enumerate(words) if _changed(word) != word]
    budget = min(len(places), round(SHARE * len(words)))
    for place in rng.permutation(places)[:budget] if places else ():
        words[place] = _changed(words[place])
    return " ".join(words)


def _changed(word: str) -> str:
    mark = word[-1:] if word[-1:] in PUNCTUATION else ""
    stem = word.removesuffix(mark) if mark else word
    other = SYNONYMS.get(stem.lower(), stem)
    if stem[:1].isupper():
        other = other[:1].upper() + other[1:]
    return other + PUNCTUATION.get(mark, mark)
