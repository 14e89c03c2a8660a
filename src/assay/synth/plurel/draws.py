"""Random numbers by name: every decision has a stream of its own, so that nothing depends on what was drawn before.

A database is drawn from streams named by (seed, table, part), rows from streams named by the block of rows besides.
Blocks have a fixed size: any chunk of a table can be made on its own, in any process, and is always the same.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")
Rng = np.random.Generator
Floats = NDArray[np.float32]

#: Rows of a block. A power of two that keeps a block of embeddings in the second-level cache.
BLOCK = 1024
#: log2 of the number of quantiles that stand for a Beta distribution.
QUANTILE_BITS = 12


def key(seed: int, *names: str | int) -> int:
    """128 bits from a seed and a path of names."""
    path = ascii([str(seed), *map(str, names)])  # quoted, so that no name can imitate two
    return int.from_bytes(hashlib.sha256(path.encode("ascii")).digest()[:16], "little")


def stream(seed: int, *names: str | int) -> Rng:
    """The generator of the decision `names`.

    >>> float(stream(0, "a").random()) == float(stream(0, "a").random()) != float(stream(0, "b").random())
    True
    """
    return np.random.Generator(np.random.SFC64(key(seed, *names)))


def block_stream(table_key: int, part: int, block: int) -> Rng:
    """The generator of one block of rows of one part (a node, a key) of a table."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(table_key, spawn_key=(part, block))))


def whole(rng: Rng, bounds: tuple[int, int]) -> int:
    """A whole number from a range, both ends included."""
    return bounds[0] + int(rng.random() * (bounds[1] - bounds[0] + 1))


def real(rng: Rng, bounds: tuple[float, float]) -> float:
    """A number from a range."""
    return bounds[0] + rng.random() * (bounds[1] - bounds[0])


def pick(rng: Rng, choices: Sequence[T]) -> T:
    """One of a set."""
    return choices[int(rng.random() * len(choices))]


def power_law(rng: Rng, bounds: tuple[int, int]) -> int:
    """A whole number k from a range with P(k) proportional to 1/k."""
    weight = np.cumsum(1.0 / np.arange(bounds[0], bounds[1] + 1))
    return bounds[0] + int(np.searchsorted(weight, rng.random() * weight[-1], side="right"))


@lru_cache(maxsize=1)
def _beta_grid() -> tuple[NDArray[np.float64], ...]:
    """Log-sine and log-cosine at the middles of cells in t, where x = sin²(πt/2)."""
    angle = np.pi / 2 * (np.arange(1024) + 0.5) / 1024
    edges = np.arange(1025) / 1024
    middles = (np.arange(1 << QUANTILE_BITS) + 0.5) / (1 << QUANTILE_BITS)
    return np.log(np.sin(angle)), np.log(np.cos(angle)), edges, middles


def beta_quantiles(a: float, b: float) -> Floats:
    """(4096,) Middles of equally likely pieces of Beta(a, b), for shapes from 0.5.

    With x = sin²(πt/2) the density of t is proportional to sin^(2a-1) cos^(2b-1), bounded where a, b >= 1/2: the
    midpoint rule gives its distribution, linear interpolation turns it round.
    """
    log_sin, log_cos, edges, middles = _beta_grid()
    log_density = (2 * a - 1) * log_sin + (2 * b - 1) * log_cos
    distribution = np.concatenate([[0.0], np.cumsum(np.exp(log_density - log_density.max()))])
    t = np.interp(middles, distribution / distribution[-1], edges)
    return np.square(np.sin(np.pi / 2 * t)).astype(np.float32)


def quantile_draws(rng: Rng, quantiles: Floats, n_rows: int, width: int) -> Floats:
    """(n_rows, width) Independent draws: 16 random bits each, of which the upper ones pick a quantile."""
    n = n_rows * width
    raw: NDArray[np.uint64] = rng.bit_generator.random_raw(-(-n // 4))
    bits = raw.view(np.uint16)[:n]
    bits >>= 16 - QUANTILE_BITS
    return quantiles.take(bits, mode="clip").reshape(n_rows, width)
