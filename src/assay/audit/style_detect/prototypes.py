"""Likeness to a few known machine texts: prototypes of a support set, in five modes, over many random supports.

A document is a row of *parts*, from which its vector of length one is pooled. For an ordinary encoder the parts are
that vector and :func:`mean_pool` is the pool; an episode encoder (LUAR) brings its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from assay._core.errors import InputError
from assay._core.seeds import generator

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float32]
    Ints = NDArray[np.int64]
    Pool = Callable[[Array], Array]

Mode = Literal["single", "max", "instance", "domain", "domain-single"]
MODES: tuple[Mode, ...] = get_args(Mode)

#: Documents whose similarities are held at a time.
CHUNK = 4096


def normalized(vectors: ArrayLike) -> Array:
    """Rows of length one; a row of zeros stays."""
    values: Array = np.asarray(vectors, dtype=np.float32)
    length = np.linalg.norm(values, axis=-1, keepdims=True)
    found: Array = np.divide(values, length, out=np.zeros_like(values), where=length > 0)
    return found


def mean_pool(parts: Array) -> Array:
    """Normalised mean over documents: (…, n_docs, d) of length one to (…, d)."""
    return normalized(parts.mean(axis=-2))


def strata(mode: Mode, sources: ArrayLike, domains: ArrayLike | None) -> tuple[Ints, list[tuple[str, str]]]:
    """Number the classes of support documents from which equally many are drawn.

    Returns
    -------
    numbers : (n,) int
    names : list of (domain, source)
        In sorted order; the domain is empty where the mode does not look at it.
    """
    of_source = np.asarray(sources, dtype=str)
    of_domain = np.full(len(of_source), "")
    if mode.startswith("domain"):
        if domains is None:
            raise InputError(f"mode={mode!r} needs domains; give them or use 'max'")
        of_domain = np.asarray(domains, dtype=str)
    names = sorted(set(zip(of_domain.tolist(), of_source.tolist(), strict=True)))
    place = {name: number for number, name in enumerate(names)}
    numbers = [place[name] for name in zip(of_domain.tolist(), of_source.tolist(), strict=True)]
    return np.asarray(numbers, dtype=np.int64), names


def draw_supports(
    numbers: Ints, names: list[tuple[str, str]], n_support: int, n_trials: int, rng: np.random.Generator
) -> Ints:
    """Draw `n_support` rows of every stratum without replacement, anew in every trial.

    Returns
    -------
    (n_trials, n_strata, n_support) int

    Raises
    ------
    InputError
        A stratum has fewer rows.
    """
    counts = np.bincount(numbers, minlength=len(names))
    if counts.min() < n_support:
        short = [f"{_named(name)} {count}" for name, count in zip(names, counts, strict=True) if count < n_support]
        raise InputError(
            f"the support has too few texts for n_support={n_support}: {', '.join(short)}; add texts or lower n_support"
        )
    drawn = np.empty((n_trials, len(names), n_support), dtype=np.int64)
    for number in range(len(names)):
        rows = np.flatnonzero(numbers == number)
        drawn[:, number] = rows[rng.random((n_trials, len(rows))).argsort(axis=1)[:, :n_support]]
    return drawn


def _named(name: tuple[str, str]) -> str:
    domain, source = name
    return f"{source!r} in the domain {domain!r}" if domain else (f"{source!r}" if source else "machine texts")


def prototypes(
    parts: Array, drawn: Ints, names: list[tuple[str, str]], mode: Mode, pool: Pool
) -> tuple[Array, list[str]]:
    """Vectors that documents are compared with, and the domain that each belongs to.

    Returns
    -------
    vectors : (n_trials, n_prototypes, d)
    domains : list of n_prototypes str
        Empty where every document may be compared with it.
    """
    n_trials, n_strata, n_support = drawn.shape
    if mode == "instance":
        singles = pool(parts[:, None, :])
        return singles[drawn.reshape(n_trials, -1)], [""] * (n_strata * n_support)
    if mode == "single":
        return pool(parts[drawn.reshape(n_trials, 1, -1)]), [""]
    if mode in ("max", "domain"):
        return pool(parts[drawn]), [domain for domain, _ in names]
    own = sorted({domain for domain, _ in names})
    members = [[number for number, (domain, _) in enumerate(names) if domain == one] for one in own]
    pooled = [pool(parts[drawn[:, rows].reshape(n_trials, -1)]) for rows in members]
    return np.stack(pooled, axis=1), own


def likeness(vectors: Array, targets: Array, target_domains: list[str], domains: ArrayLike | None = None) -> Array:
    """Largest cosine of every document to a prototype that it may be compared with: (n_trials, n) float32.

    Raises
    ------
    InputError
        A document is of a domain that the support does not have.
    """
    n_trials, n_targets, d = targets.shape
    flat = targets.reshape(-1, d).T
    scores = np.empty((n_trials, len(vectors)), dtype=np.float32)
    allowed = _allowed(len(vectors), target_domains, domains)
    for start in range(0, len(vectors), CHUNK):
        rows = slice(start, start + CHUNK)
        cosines = (vectors[rows] @ flat).reshape(-1, n_trials, n_targets)
        if allowed is not None:
            cosines = np.where(allowed[rows, None, :], cosines, -np.inf)
        scores[:, rows] = cosines.max(axis=2).T
    return scores


def _allowed(n: int, target_domains: list[str], domains: ArrayLike | None) -> NDArray[np.bool_] | None:
    if not any(target_domains):
        return None
    if domains is None:
        raise InputError("the detector knows domains; give the domain of every text")
    own = np.asarray(domains, dtype=str)
    if len(own) != n:
        raise InputError(f"domains has {len(own)} entries for {n} texts; expected one for each")
    unknown = sorted(set(own.tolist()) - set(target_domains))
    if unknown:
        raise InputError(
            f"domain {unknown[0]!r} is not among the support's: {', '.join(sorted(set(target_domains)))}; add support "
            "texts of it or use mode='max'"
        )
    found: NDArray[np.bool_] = own[:, None] == np.asarray(target_domains)[None, :]
    return found


def few_shot_trials(
    parts: ArrayLike,
    labels: ArrayLike,
    sources: ArrayLike | None = None,
    domains: ArrayLike | None = None,
    *,
    mode: Mode = "single",
    n_support: int = 100,
    n_trials: int = 100,
    pool: Pool = mean_pool,
    random_state: Any = 0,
) -> Array:
    """Score a labelled table by supports drawn from its own machine texts: the paper's evaluation.

    Parameters
    ----------
    parts : (n, d) float
        Vectors of length one, or the parts that `pool` takes.
    labels : (n,) of 0 and 1
    sources, domains : (n,) optional
        Which model wrote a machine text; the domain of every text.
    mode : {"single", "max", "instance", "domain", "domain-single"}
    n_support : int
        Texts of every source (and domain, in these modes).
    n_trials : int
    pool : callable
    random_state : int, Generator, RandomState or None

    Returns
    -------
    (n_trials, n) float32
        NaN where the document was in that trial's support.

    Examples
    --------
    >>> vectors = np.eye(4, dtype=np.float32)
    >>> matrix = few_shot_trials(vectors, [0, 0, 1, 1], n_support=1, n_trials=3)
    >>> matrix.shape, np.isnan(matrix).sum(axis=1).tolist()
    ((3, 4), [1, 1, 1])
    """
    values = np.asarray(parts, dtype=np.float32)
    machine = np.flatnonzero(np.asarray(labels) == 1)
    of_source = np.full(len(machine), "") if sources is None else np.asarray(sources, dtype=str)[machine]
    of_domain = None if domains is None else np.asarray(domains, dtype=str)[machine]
    numbers, names = strata(mode, of_source, of_domain)
    drawn = machine[draw_supports(numbers, names, n_support, n_trials, generator(random_state))]
    targets, target_domains = prototypes(values, drawn, names, mode, pool)
    matrix = likeness(pool(values[:, None, :]), targets, target_domains, domains)
    np.put_along_axis(matrix, drawn.reshape(n_trials, -1), np.nan, axis=1)
    return matrix


def group_trials(
    parts: ArrayLike,
    labels: ArrayLike,
    sources: ArrayLike | None = None,
    domains: ArrayLike | None = None,
    *,
    n_docs: int,
    mode: Mode = "single",
    n_support: int = 100,
    n_trials: int = 100,
    pool: Pool = mean_pool,
    random_state: Any = 0,
) -> tuple[Ints, Array]:
    """Score groups of `n_docs` documents of one origin by the pooled vector of the group.

    Groups are formed anew in every trial from what is not in its support, within label and source (and domain, in these
    modes). As every support takes equally many from each, column j has the same label in all trials.

    Returns
    -------
    labels : (n_groups,) int
    matrix : (n_trials, n_groups) float32

    Raises
    ------
    InputError
        No origin has `n_docs` documents left.
    """
    values, truth = np.asarray(parts, dtype=np.float32), np.asarray(labels, dtype=np.int64)
    machine = np.flatnonzero(truth == 1)
    of_source = np.full(len(truth), "") if sources is None else np.where(truth == 1, np.asarray(sources, dtype=str), "")
    of_domain = np.full(len(truth), "")
    if domains is not None and mode.startswith("domain"):
        of_domain = np.asarray(domains, dtype=str)
    rng = generator(random_state)
    numbers, names = strata(mode, of_source[machine], None if domains is None else of_domain[machine])
    drawn = machine[draw_supports(numbers, names, n_support, n_trials, rng)]
    targets, target_domains = prototypes(values, drawn, names, mode, pool)
    buckets: dict[tuple[int, str, str], list[int]] = {}
    for row, key in enumerate(zip(truth.tolist(), of_source.tolist(), of_domain.tolist(), strict=True)):
        buckets.setdefault(key, []).append(row)
    scores, heads = [], np.empty(0, dtype=np.int64)
    for trial in range(n_trials):
        taken = set(drawn[trial].ravel().tolist())
        chunks = []
        for key in sorted(buckets):
            rows = rng.permutation([row for row in buckets[key] if row not in taken])
            n_groups = len(rows) // n_docs
            chunks.append(rows[: n_groups * n_docs].reshape(n_groups, n_docs).astype(np.int64))
        members = np.concatenate(chunks)
        if len(members) == 0:
            raise InputError(f"n_docs={n_docs}: no origin has so many texts outside the support")
        heads = members[:, 0]
        own = of_domain[heads] if any(target_domains) else None
        scores.append(likeness(pool(values[members]), targets[trial : trial + 1], target_domains, own)[0])
    return truth[heads], np.stack(scores)
