"""The cases: windows of source text, sentences, or a user's own keys and queries."""

from __future__ import annotations

import re
import sysconfig
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay import models
from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.seeds import child_seed
from assay.bench import Case, Data

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from assay.bench.spec import Parameter, Scale

Vectors = NDArray[np.float32]


class Training(NamedTuple):
    """Width of the net and how it is trained; the larger scales have what the paper's settings become on a CPU."""

    width: int
    steps: int
    batch_size: int
    learning_rate: float


class Task(NamedTuple):
    """What an arm sees: keys, a log of queries to learn from, queries to answer, and how to train."""

    keys: Vectors
    log: Vectors
    queries: Vectors
    training: Training


#: Keys of a case, queries drawn for each, and the training.
SIZES: dict[str, tuple[int, int, Training]] = {
    "quick": (1500, 25, Training(128, 500, 256, 4e-3)),
    "standard": (6000, 25, Training(256, 2500, 512, 2e-3)),
    "full": (6000, 50, Training(256, 20_000, 1024, 2e-3)),
}
ASKED = 1000

# ----------------------------------------------------------------------------------- real keys: the library's sources


#: Folders of the library that are not its own, or whose text repeats itself.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}


class Sources(NamedTuple):
    """Windows of source text, their vectors, and how any text becomes one."""

    windows: list[str]
    vectors: Vectors
    embed: Any


@lru_cache(maxsize=1)
def sources() -> Sources:
    """Windows of eight lines, each starting four lines after the last; TF-IDF of identifiers, reduced to 64 numbers."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    root = Path(sysconfig.get_paths()["stdlib"])
    windows = []
    for file in sorted(root.rglob("*.py")):
        if LEFT_OUT.isdisjoint(file.relative_to(root).parts):
            lines = [line for line in file.read_text("utf-8", "ignore").splitlines() if line.strip()]
            windows += ["\n".join(lines[start : start + 8]) for start in range(0, len(lines) - 8, 4)]
    windows = [window for window in dict.fromkeys(windows) if len(words(window)) >= 9]
    if len(windows) < 10_000:
        raise InputError(
            f"{root}: {len(windows):,} windows of source text; the trial needs a Python library with sources"
        )
    order = np.random.default_rng(0).permutation(len(windows))
    weigh = TfidfVectorizer(max_features=20_000, token_pattern=WORD)
    reduce = TruncatedSVD(64, n_iter=4, random_state=0)
    reduce.fit(weigh.fit_transform([windows[place] for place in order[:12_000]]))

    def embed(texts: Sequence[str]) -> Vectors:
        found: Vectors = reduce.transform(weigh.transform(texts)).astype(np.float32)
        return found

    shuffled = [windows[place] for place in order]
    return Sources(shuffled, embed(shuffled), embed)


WORD = r"[A-Za-z_]\w+"


def words(text: str) -> list[str]:
    return re.findall(WORD, text)


def load_sources(kind: str, path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    _need()
    n_keys, n_queries, _ = SIZES[scale]
    n_keys, training = int(params["keys"]) or n_keys, training_of(scale, params)
    if n_keys < 200 or training.steps < 1:
        raise InputError(f"keys={n_keys}, steps={training.steps}: expected 200 or more keys and 1 or more steps")
    if kind == "near":
        n_queries = 2
    asked = "a third of a window each, two a key" if kind == "near" else f"2–4 words each, {n_queries} a key"
    name = f"windows of the Python library's sources, {n_keys:,} a case; queries: {asked}"
    return Data(name, len(sources().windows), (kind, n_keys, n_queries, training))


def training_of(scale: Scale, params: Mapping[str, Parameter]) -> Training:
    training = SIZES[scale][2]
    return training._replace(steps=int(params["steps"]) or training.steps)


def source_cases(world: tuple[str, int, int, Training], n: int, seed: int) -> Iterator[Case]:
    """Own keys, queries and net each; no window is a key of two cases while there are enough windows."""
    kind, n_keys, n_queries, training = world
    texts = sources()
    order = np.random.default_rng(child_seed(seed, kind)).permutation(len(texts.windows))
    per_round = max(1, len(order) // n_keys)
    for number in range(n):
        rng = np.random.default_rng(child_seed(seed, kind, number))
        place = number % per_round
        mine = order[place * n_keys : (place + 1) * n_keys]
        usable = np.linalg.norm(texts.vectors[mine], axis=1) > 1e-3
        mine = mine[usable]
        asked = []
        for row in np.repeat(mine, n_queries):
            found = words(texts.windows[row])
            length = max(3, len(found) // 3) if kind == "near" else int(rng.integers(2, 5))
            start = int(rng.integers(len(found) - length + 1))
            asked.append(" ".join(found[start : start + length]))
        vectors = texts.embed(asked)
        vectors = vectors[np.linalg.norm(vectors, axis=1) > 1e-3]
        queries = unit(vectors[rng.permutation(len(vectors))])
        # Distinct queries: a run of words that was drawn twice must not be both learned from and asked.
        _, first = np.unique(queries, axis=0, return_index=True)
        queries = queries[np.sort(first)]
        n_asked = min(ASKED, len(queries) // 4)
        keys = unit(texts.vectors[mine])
        task = Task(keys, queries[n_asked:], queries[:n_asked], training)
        yield Case(f"set of keys {number + 1}", task, best_scores(task))


def unit(vectors: Vectors) -> Vectors:
    found: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return found


def best_scores(task: Task) -> Vectors:
    """Scores (n, 10) of the ten best keys of every query, best first, by exact search."""
    scores = task.queries @ task.keys.T
    best: Vectors = -np.sort(np.partition(-scores, 9, axis=1)[:, :10], axis=1)
    return best


# ------------------------------------------------------------------------------ sentences, or a user's keys and queries

#: Sentences that are embedded for each scale; a third of the words make the queries.
SENTENCES: dict[str, tuple[int, int]] = {"quick": (600, 5), "standard": (2000, 12), "full": (20_000, 25)}


def load_vectors(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    _need()
    training = training_of(scale, params)
    if path is not None:
        keys, queries = own(Path(path))
        return Data(f"{len(keys):,} keys and {len(queries):,} queries of {path}", len(queries),
                    (keys, queries, training), path)  # fmt: skip
    n_sentences, n_queries = SENTENCES[scale]
    keys, queries = sentences(n_sentences, n_queries)
    asked = f"queries: 3–5 of their words, {n_queries} a key"
    name = f"{len(keys):,} first sentences of Python's docstrings by MiniLM; {asked}"
    return Data(name, len(queries), (keys, queries, training))


def own(folder: Path) -> tuple[Vectors, Vectors]:
    from assay.nn.amips import read_vectors
    from assay.nn.amips.vectors import unit_rows

    found: list[Vectors] = []
    for name in ("keys", "queries"):
        files = sorted(folder.glob(f"{name}.*")) if folder.is_dir() else []
        if len(files) != 1:
            raise InputError(
                f"{folder}: {len(files)} files named {name}.*; expected a folder with keys.npy and queries.npy (or "
                ".csv, .parquet), one row a vector"
            )
        found.append(unit_rows(read_vectors(files[0]), name, n_features=found[0].shape[1] if found else None))
    if (n_different := len(np.unique(found[1], axis=0))) < 60:
        raise InputError(f"{folder}: {n_different} different queries; expected 60 or more, to learn from and to ask")
    return found[0], found[1]


def sentences(n_sentences: int, n_queries: int) -> tuple[Vectors, Vectors]:
    """Embeddings of sentences and of runs of their words, made once and kept."""
    rng = np.random.default_rng(0)
    texts = docstrings()
    texts = [texts[place] for place in rng.permutation(len(texts))[:n_sentences]]
    asked = []
    for text in texts:
        found = text.split()
        for _ in range(n_queries):
            length = int(rng.integers(3, 6))
            start = int(rng.integers(len(found) - length + 1))
            asked.append(" ".join(found[start : start + length]))
    asked = list(dict.fromkeys(asked))
    vectors = models.demo_embeddings(texts + asked)
    queries = vectors[len(texts) :]
    return vectors[: len(texts)], queries[rng.permutation(len(queries))]


def docstrings() -> list[str]:
    """First sentences of eight words or more of the docstrings in the Python library, in the order of its files."""
    import ast

    root = Path(sysconfig.get_paths()["stdlib"])
    found: dict[str, None] = {}
    # A sorted glob of one level: packages deeper down are vendored or tests.
    for file in [*sorted(root.glob("*.py")), *sorted(root.glob("[a-z]*/*.py"))]:
        if file.parent.name in LEFT_OUT:
            continue
        try:
            tree = ast.parse(file.read_text("utf-8", "ignore"))
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
                if 8 <= len(text.split()) <= 40:
                    found[text] = None
    return list(found)


def folds(data: tuple[Vectors, Vectors, Training], n: int, seed: int) -> Iterator[Case]:
    """Disjoint folds of the different queries; a fold is asked, with its repeats, the rest is the log of its case."""
    from assay.nn.amips.labels import repeats

    keys, queries, training = data
    group = repeats(queries)
    order = np.random.default_rng(seed).permutation(int(group.max()) + 1)
    rows = np.argsort(np.argsort(order)[group], kind="stable")  # as `order` has them, repeats beside each other
    for number, groups in enumerate(np.array_split(order, n)):
        fold = rows[np.isin(group[rows], groups)]
        rest = np.setdiff1d(rows, fold)
        task = Task(keys, np.asarray(queries[rest]), np.asarray(queries[fold[:ASKED]]), training)
        yield Case(f"fold {number + 1} of {n}", task, best_scores(task))


def _need() -> None:
    need("torch", extra="search", purpose="the trial of amips")
    need("faiss", extra="search", purpose="the trial of amips")
