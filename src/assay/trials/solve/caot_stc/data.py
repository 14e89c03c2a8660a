"""Labelled short texts with their embeddings, and the folds that are cases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from assay import datasets, models
from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.seeds import child_seed
from assay._core.tables import read_table
from assay.bench import Case, Data

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from assay.bench.spec import Parameter, Scale

SETS = {"agnews": "news", "search_snippets": "search snippets", "stackoverflow": "questions"}

#: Texts of a case, texts of a batch and training steps where the parameters say 0.
SIZES = {"quick": (400, 100, 60), "standard": (1000, 200, 250), "full": (4000, 200, 2000)}


class Given(NamedTuple):
    """What an arm sees of a fold; no number of clusters where it is to be found."""

    texts: list[str]
    embeddings: NDArray[np.float32]
    n_clusters: int | None
    batch_size: int
    steps: int
    lam_size: float
    reducer: str


class Pool(NamedTuple):
    """One set of labelled texts with their embeddings."""

    name: str
    texts: list[str]
    topics: NDArray[Any]
    embeddings: NDArray[np.float32]


class World(NamedTuple):
    """What cases are cut from."""

    pools: list[Pool]
    n_texts: int
    settings: tuple[int, int, float, str]


def pool(name: str, table: pd.DataFrame, most: int) -> Pool:
    """A random but fixed part of a set (the same for everyone), embedded."""
    table = table.sample(frac=1.0, random_state=0).head(most)
    texts = table["text"].tolist()
    return Pool(name, texts, table["label"].to_numpy(), models.demo_embeddings(texts))


def shipped(name: str) -> pd.DataFrame:
    return read_table(datasets.path(f"short-text-{name.replace('_', '-')}"), {"label": "text", "text": "text"})


def own(path: str, params: Mapping[str, Parameter]) -> pd.DataFrame:
    text, label = str(params["text"]), str(params["label"])
    table = read_table(path, {text: "text", label: "text"})
    return pd.DataFrame({"text": table[text], "label": table[label]})


def load(sets: tuple[str, ...], path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    need("ot", extra="cluster", purpose="pseudo-labels by POT")
    n_texts, batch_size, steps = SIZES[scale]
    n_texts = int(params["texts"]) or n_texts
    steps = int(params["steps"]) or steps
    if n_texts < 100:
        raise InputError(f"texts is {n_texts}; expected 100 or more texts a case")
    reducer = str(params["reducer"])
    if reducer not in ("auto", "pca", "umap"):
        raise InputError(f"reducer is {reducer!r}; expected auto, pca or umap")
    if reducer == "auto":
        reducer = "pca" if scale == "quick" else "umap"  # UMAP compiles for half a minute
    if reducer == "umap":
        need("umap", extra="cluster", purpose="reducing as BERTopic does (or -p reducer=pca)")
    most = n_texts * (3 if scale == "quick" else 4)  # what the folds of this scale need
    tables = {name: shipped(name) for name in sets} if path is None else {Path(path).stem: own(path, params)}
    pools = [pool(name, table, most) for name, table in tables.items()]
    settings = (batch_size, steps, float(params["lam_size"]), reducer)
    n = sum(len(one.texts) for one in pools)
    shown = ", ".join(SETS.get(one.name, one.name) for one in pools)
    return Data(f"labelled short texts ({shown}); reduced by {reducer.upper()} for the BERTopic pipeline", n,
                World(pools, n_texts, settings), path)  # fmt: skip


def case_of(one: Pool, rows: NDArray[Any], world: World, name: str, *, tell: bool) -> Case:
    """A fold: topics with fewer than five texts are left out, so that every cluster can be seen."""
    topics, counts = np.unique(one.topics[rows], return_counts=True)
    rows = rows[np.isin(one.topics[rows], topics[counts >= 5])]
    truth = np.unique(one.topics[rows], return_inverse=True)[1]
    n_clusters = int(truth.max()) + 1
    if n_clusters < 2:
        raise InputError(f"{one.name}: a case of {len(rows)} texts has fewer than two labels with five texts or more")
    batch_size, steps, lam_size, reducer = world.settings
    given = Given([one.texts[row] for row in rows], one.embeddings[rows], n_clusters if tell else None,
                  batch_size, steps, lam_size, reducer)  # fmt: skip
    return Case(name, given, truth)


def folds(world: World, n: int, seed: int, *, tell: bool = True) -> Iterator[Case]:
    """Disjoint folds, the sets in turn."""
    n_sets = len(world.pools)
    orders = [np.random.default_rng(child_seed(seed, one.name)).permutation(len(one.texts)) for one in world.pools]
    for number in range(n):
        one, order = world.pools[number % n_sets], orders[number % n_sets]
        fold = number // n_sets
        size = min(world.n_texts, len(order) // -(-n // n_sets))
        rows = order[fold * size : (fold + 1) * size]
        yield case_of(one, rows, world, f"{one.name}, fold {fold + 1}", tell=tell)


def uneven_folds(world: World, n: int, seed: int) -> Iterator[Case]:
    """Disjoint folds in which the largest topic has ten times the texts of the smallest, sizes in equal ratios."""
    for number, case in enumerate(folds(world, n, seed)):
        rng = np.random.default_rng(child_seed(seed, "uneven", number))
        counts = np.bincount(case.truth)
        share = 10.0 ** -np.linspace(0, 1, len(counts))[rng.permutation(len(counts))]
        target = np.maximum(5, np.floor((counts / share).min() * share)).astype(int)
        kept = np.sort(np.concatenate([
            rng.permutation(np.flatnonzero(case.truth == topic))[:size] for topic, size in enumerate(target)
        ]))  # fmt: skip
        given = case.given._replace(
            texts=[case.given.texts[row] for row in kept], embeddings=case.given.embeddings[kept]
        )
        yield Case(case.id, given, case.truth[kept])


def load_trained(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    if scale != "full":
        raise InputError("it trains the encoder, minutes a case: run it with --scale full")
    return load(("stackoverflow",), path, scale, dict(params))
