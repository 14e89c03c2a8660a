"""Episodes: a few labelled examples and one question, the same under every criterion but for the labels."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError
from assay._core.seeds import generator
from assay.evaluate.cc_icl.items import Array, Items, rows_by_category
from assay.evaluate.cc_icl.metrics import Codes, is_identifiable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from assay.evaluate.cc_icl.spec import CriterionSpec


@dataclass(frozen=True)
class Question:
    """What a model gets to see of an episode under one criterion, which it is never told.

    Parameters
    ----------
    id : str
    kind : "image", "text" or "row"
    question : str
    answers : tuple of str
    support : tuple of str
        Paths of images, texts, or names of rows.
    support_answers : tuple of str
        What the criterion answers to them.
    query : str
    support_features : (n_support, n_features) float or None
    query_features : (n_features,) float or None
    """

    id: str
    kind: str
    question: str
    answers: tuple[str, ...]
    support: tuple[str, ...]
    support_answers: tuple[str, ...]
    query: str
    support_features: Array | None = None
    query_features: Array | None = None


@dataclass(frozen=True)
class Episodes:
    """A benchmark: n episodes over a pool of items, labelled by every criterion.

    Parameters
    ----------
    question : str
    answers : tuple of str
        Codes in the arrays below are positions in it.
    criteria : tuple of str
    items : Items
        The pool.
    ids : tuple of n str
    support : (n, n_support) int64
        Positions in the pool.
    query : (n,) int64
    labels : (n, n_support, n_criteria) int64
        Answers to the support.
    truth : (n, n_criteria) int64
        Answers to the query.
    """

    question: str
    answers: tuple[str, ...]
    criteria: tuple[str, ...]
    items: Items
    ids: tuple[str, ...]
    support: Codes
    query: Codes
    labels: Codes
    truth: Codes

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_sensitive(self) -> NDArray[np.bool_]:
        """(n,) Whether the truth depends on the criterion."""
        return np.asarray((self.truth != self.truth[:, :1]).any(axis=1))

    @property
    def is_identifiable(self) -> NDArray[np.bool_]:
        """(n,) Whether the support reveals what the query depends on; see :func:`metrics.is_identifiable`."""
        return is_identifiable(self.labels, self.truth)

    def take(self, rows: ArrayLike) -> Episodes:
        """The episodes in `rows`, over the same pool."""
        index = np.asarray(rows, dtype=np.int64)
        return replace(
            self,
            ids=tuple(self.ids[i] for i in index),
            support=self.support[index],
            query=self.query[index],
            labels=self.labels[index],
            truth=self.truth[index],
        )

    def with_criteria(self, names: Sequence[str]) -> Episodes:
        """The same episodes under some of the criteria.

        Raises
        ------
        InputError
            There is no criterion of that name.
        """
        columns = [self.criterion(name) for name in names]
        if not columns:
            raise InputError(f"criteria is empty; name at least one of {', '.join(self.criteria)}")
        return replace(self, criteria=tuple(names), labels=self.labels[:, :, columns], truth=self.truth[:, columns])

    def criterion(self, name: str) -> int:
        """The column of a criterion."""
        if name not in self.criteria:
            raise InputError(f"there is no criterion {name!r}; there are {', '.join(self.criteria)}")
        return self.criteria.index(name)

    def ask(self, row: int, criterion: int) -> Question:
        """What a model sees of episode `row` under the criterion in that column."""
        support, query = self.support[row], int(self.query[row])
        features = self.items.features
        return Question(
            id=self.ids[row],
            kind=self.items.kind,
            question=self.question,
            answers=self.answers,
            support=tuple(self.items.content[i] for i in support),
            support_answers=tuple(self.answers[code] for code in self.labels[row, :, criterion]),
            query=self.items.content[query],
            support_features=None if features is None else features[support],
            query_features=None if features is None else features[query],
        )


def build_episodes(
    items: Items, spec: CriterionSpec, n: int, *, shots: int = 1, seed: int = 0, boundary_share: float = 0.5
) -> Episodes:
    """Build a benchmark from labelled items.

    Categories that get the same answer as each other under every criterion form a group. Each episode draws one
    category from every group and shows `shots` items of it: with criteria that differ on one group, a clear No, a clear
    Yes and one boundary item, as in the paper's published case. So the support always reveals the criterion. The query
    is another item of one of these categories.

    Parameters
    ----------
    items : Items
    spec : CriterionSpec
    n : int
        Number of episodes.
    shots : int
        Examples of each category shown.
    seed : int
        The same seed gives the same episodes.
    boundary_share : float
        Share of the queries whose category the criteria disagree on: n × share of them, rounded.

    Returns
    -------
    Episodes
        Query items of a category are used in turn: none comes a second time before all of the category have come once,
        as far as its category's queries allow.

    Raises
    ------
    InputError
        An item's category is not in the spec, a category has fewer than shots + 1 items, an argument is out of range.

    Warns
    -----
    UserWarning
        The criteria agree on every category that has items: sensitivity cannot be measured.

    Examples
    --------
    >>> from assay.evaluate.cc_icl import CriterionSpec
    >>> spec = CriterionSpec("Is it a defect?", ("No", "Yes"),
    ...                      {"A": {"good": "No", "ink": "No", "cut": "Yes"},
    ...                       "B": {"good": "No", "ink": "Yes", "cut": "Yes"}})
    >>> items = Items("text", ("clean", "smooth", "ink dot", "ink line", "slit", "gash"),
    ...               ("good", "good", "ink", "ink", "cut", "cut"))
    >>> episodes = build_episodes(items, spec, 4)
    >>> episodes.support.shape, int(episodes.is_sensitive.sum())
    ((4, 3), 2)
    """
    if n < 1 or shots < 1:
        raise InputError(f"n is {n} and shots {shots}; both must be 1 or more")
    if not 0 <= boundary_share <= 1:
        raise InputError(f"boundary_share is {boundary_share}; expected a number from 0 to 1")
    pool = _pool(items, spec, shots)
    groups = _groups(spec, pool)
    is_boundary = np.array([len(set(pattern)) > 1 for pattern in groups])
    if not is_boundary.any():
        warnings.warn(
            "the criteria agree on every category that has items: no item is sensitive to the criterion, so criterion "
            "sensitivity cannot be measured",
            stacklevel=2,
        )
    rng = generator(seed)
    members = list(groups.values())
    drawn = np.stack([rng.choice(group, size=n) for group in members], axis=1)  # (n, n_groups) categories
    asked = _asked(is_boundary, n, boundary_share, rng)
    query_category = drawn[np.arange(n), asked]
    query = np.empty(n, dtype=np.int64)
    for category in np.unique(query_category):
        places = np.flatnonzero(query_category == category)
        turns = [rng.permutation(pool[category]) for _ in range(-(-len(places) // len(pool[category])))]
        query[places] = np.concatenate(turns)[: len(places)]
    support = _support(drawn, query, pool, shots, rng)
    codes = np.array([spec.categories.index(category) for category in items.category], dtype=np.int64)
    return Episodes(
        question=spec.question,
        answers=spec.answers,
        criteria=spec.names,
        items=items,
        ids=tuple(f"e{number:0{len(str(n))}d}" for number in range(1, n + 1)),
        support=support,
        query=query,
        labels=np.moveaxis(spec.table[:, codes[support]], 0, -1),
        truth=spec.table[:, codes[query]].T.copy(),
    )


def _pool(items: Items, spec: CriterionSpec, shots: int) -> dict[int, Codes]:
    """Positions of the items of each category that has any."""
    pool = {}
    for category, rows in rows_by_category(items).items():
        if category not in spec.categories:
            raise InputError(
                f"item {items.content[rows[0]]!r} has the category {category!r}, for which the criteria have no "
                f"answer; there are {', '.join(spec.categories)}"
            )
        if len(rows) < shots + 1:
            raise InputError(
                f"category {category!r} has {len(rows)} items; shots={shots} needs at least {shots + 1} "
                f"({shots} to show and one to ask about)"
            )
        pool[spec.categories.index(category)] = rows
    if not pool:
        raise InputError("there are no items; give some of every category")
    return pool


def _groups(spec: CriterionSpec, pool: dict[int, Codes]) -> dict[tuple[int, ...], list[int]]:
    groups: dict[tuple[int, ...], list[int]] = {}
    for category in sorted(pool):
        groups.setdefault(tuple(spec.table[:, category].tolist()), []).append(category)
    return groups


def _asked(is_boundary: NDArray[np.bool_], n: int, share: float, rng: np.random.Generator) -> Codes:
    """The group of each episode's query: boundary groups and clear ones in turn, in random order."""
    boundary, clear = np.flatnonzero(is_boundary), np.flatnonzero(~is_boundary)
    if len(boundary) == 0 or len(clear) == 0:
        share = float(len(boundary) > 0)
    n_boundary = round(share * n)
    sizes = ((boundary, n_boundary), (clear, n - n_boundary))
    parts = [np.resize(rng.permutation(group), size) for group, size in sizes if size]
    return rng.permutation(np.concatenate(parts))


def _support(drawn: Codes, query: Codes, pool: dict[int, Codes], shots: int, rng: np.random.Generator) -> Codes:
    """`shots` items of every drawn category, all different and none of them the query, in random order."""
    support = np.empty((len(drawn), drawn.shape[1] * shots), dtype=np.int64)
    for group in range(drawn.shape[1]):
        for category in np.unique(drawn[:, group]):
            places = np.flatnonzero(drawn[:, group] == category)
            columns = np.arange(group * shots, (group + 1) * shots)
            support[places[:, None], columns] = _draw_others(pool[category], query[places], shots, rng)
    return np.asarray(rng.permuted(support, axis=1))


def _draw_others(rows: Codes, query: Codes, shots: int, rng: np.random.Generator) -> Codes:
    """For each query draw `shots` different rows, none of them the query: (n, shots)."""
    place = np.searchsorted(rows, query)
    is_here = rows[np.minimum(place, len(rows) - 1)] == query
    # Positions that are taken, in order; one past the end where the query is of another category.
    taken = np.where(is_here, place, len(rows))[:, None]
    drawn = np.empty((len(query), shots), dtype=np.int64)
    for shot in range(shots):
        position = rng.integers(len(rows) - shot - is_here)
        for other in np.sort(taken, axis=1).T:
            position += position >= other
        drawn[:, shot] = rows[position]
        taken = np.concatenate([taken, position[:, None]], axis=1)
    return drawn


def needed_features(episodes: Episodes) -> Array:
    """Features of the pool (n_items, n_features), for those that cannot do without."""
    if episodes.items.features is None:
        raise InputError(
            f"these {episodes.items.kind} items have no features, which a classifier of arrays needs; give them "
            "with items.with_features(…)"
        )
    return episodes.items.features


def describe(episodes: Episodes) -> dict[str, Any]:
    """Counts that a person wants to see before running anything."""
    sensitive = int(episodes.is_sensitive.sum())
    return {
        "episodes": len(episodes),
        "sensitive": sensitive,
        "invariant": len(episodes) - sensitive,
        "not identifiable": int((~episodes.is_identifiable).sum()),
        "support": episodes.support.shape[1],
        "criteria": ", ".join(episodes.criteria),
        "items": len(set(episodes.query.tolist()) | set(episodes.support.ravel().tolist())),
    }
