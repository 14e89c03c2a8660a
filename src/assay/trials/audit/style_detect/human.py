"""Prose that people wrote: paragraphs of the documentation inside installed packages, each package a source.

A paragraph is cut in two: its first words are what a language model is asked to continue, and the words after them are
the human's own continuation. A pair is thus about one thing, in one package, and of one length: what tells its two
texts apart is neither the topic nor the length.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sysconfig
import warnings
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np

from assay._core.cache import made_dir
from assay._core.errors import InputError
from assay._core.files import write_text
from assay._core.seeds import child_seed

#: Packages whose documentation is read; those that are not installed are left out. Python's own library is background.
SOURCES = (
    "numpy", "scipy", "sklearn", "pandas", "torch", "transformers", "networkx", "sympy", "statsmodels", "matplotlib",
    "huggingface_hub", "ray",
)  # fmt: skip
BACKGROUND = "stdlib"
#: Where a package is installed under another name.
_NAMES = {"sklearn": "scikit-learn"}

#: Words of the prompt and of either continuation.
PROMPT_WORDS, WORDS = 24, 40
#: Paragraphs of a source: one batch of the language model.
N_PARAGRAPHS = 16
#: Share of a paragraph's words that are plain ones.
_PLAIN = 0.82
#: Paragraphs of a package among which its own are drawn: large packages are not read to their end.
_ENOUGH = 60
#: Sources: four to learn from, three to calibrate on, one to be judged.
N_NEEDED = 8
_LAYOUT = 1


class Paragraph(NamedTuple):
    """A paragraph of a package's documentation, cut in two."""

    source: str
    prompt: str
    continuation: str


def folder() -> Path:
    """Where texts, and what was read in them, are kept."""
    made = made_dir() / "trials" / "style-detect"
    made.mkdir(parents=True, exist_ok=True)
    return made


@cache
def paragraphs(n_sources: int, n_each: int = N_PARAGRAPHS) -> tuple[Paragraph, ...]:
    """Paragraphs of the first `n_sources` packages that are installed and have enough, `n_each` from each.

    Raises
    ------
    InputError
        Fewer than eight packages have enough.
    """
    found: list[Paragraph] = []
    used: set[str] = set()
    sources: list[str] = []
    for source in SOURCES:
        if len(sources) == n_sources:
            break
        texts = [text for text in prose(source) if text not in used]
        if len(texts) < n_each:
            continue
        used.update(texts)
        order = np.random.default_rng(child_seed(0, "style-detect", source)).permutation(len(texts))
        found.extend(cut(source, texts[place]) for place in order[:n_each])
        sources.append(source)
    if len(sources) < N_NEEDED:
        raise InputError(
            f"{len(sources)} installed packages have {n_each} paragraphs of documentation ({', '.join(sources)}); the "
            f"trial needs {N_NEEDED}: pip install scikit-learn pandas torch transformers sympy statsmodels matplotlib"
        )
    return tuple(found)


def background(n_words: int = WORDS) -> list[str]:
    """Human text to standardise on: Python's own library, cut as what is judged is cut, and no longer than that.

    It matters: beside whole paragraphs every short text looks like every other.
    """
    words = [text.split()[PROMPT_WORDS:] for text in prose(BACKGROUND)]
    return [" ".join(own[:n_words]) for own in words]


def cut(source: str, text: str) -> Paragraph:
    """The prompt of a paragraph and what follows it."""
    words = text.split()
    return Paragraph(source, " ".join(words[:PROMPT_WORDS]), " ".join(words[PROMPT_WORDS : PROMPT_WORDS + WORDS]))


def folder_of(source: str) -> Path | None:
    """Where a package lies, without importing it."""
    if source == BACKGROUND:
        return Path(sysconfig.get_path("stdlib"))
    spec = importlib.util.find_spec(source)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


@cache
def prose(source: str) -> tuple[str, ...]:
    """Paragraphs of running text in a package's docstrings, each once; its files are read in an order of chance."""
    place = folder_of(source)
    if place is None:
        return ()
    release = sysconfig.get_python_version() if source == BACKGROUND else version(_NAMES.get(source, source))
    kept = folder() / f"human-{source}-{release}-{_LAYOUT}.json"
    if not kept.is_file():
        write_text(kept, json.dumps(_read(place, None if source == BACKGROUND else _ENOUGH)))
    return tuple(json.loads(kept.read_text(encoding="utf-8")))


def _read(place: Path, enough: int | None) -> list[str]:
    found: dict[str, None] = {}
    paths = sorted(place.rglob("*.py"), key=lambda path: child_seed(0, path.relative_to(place).as_posix()))
    for path in paths:
        if enough is not None and len(found) >= enough:
            break
        parts = set(path.relative_to(place).parts)
        if parts & {"site-packages", "dist-packages", "test", "tests", "idlelib", "_vendor", "externals"}:
            continue
        for docstring in docstrings(path):
            for paragraph in re.split(r"\n\s*\n", docstring):
                if is_prose(paragraph):
                    found[plain(paragraph)] = None
    return list(found)


def docstrings(path: Path) -> list[str]:
    """The docstrings of a module and of everything in it; none where it cannot be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in other people's strings
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return []
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]


def plain(text: str) -> str:
    """Without the marks of markup, and with single spaces: a machine's text is treated the same."""
    return " ".join(re.sub(r":\w+:(?=`)|[`*]+", "", text).split())


def is_prose(paragraph: str) -> bool:
    """Whether a paragraph is running text of enough words: no list, no table, no code, no licence."""
    if re.search(r"^\s*(>>>|[-*.+=~]{3,}|\.\.|:|\d+[.)]|[-*•] |Args|Returns|Raises)", paragraph, re.MULTILINE):
        return False
    if re.search(
        r"Args:|Returns:| : |optional|defaults? to|https?:|licen[sc]e|copyright|hereby granted",
        paragraph,
        re.IGNORECASE,
    ):
        return False
    words = plain(paragraph).split()
    if len(words) < PROMPT_WORDS + WORDS:
        return False
    is_plain = [re.fullmatch(r"[\"'(]?[A-Za-z][a-z'’-]*[,.;:!?)\"']*", word) is not None for word in words]
    return sum(is_plain) >= _PLAIN * len(words)
