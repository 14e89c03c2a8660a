"""Seeds that do not depend on order: every case and every arm gets its own, derived by name."""

from __future__ import annotations

import hashlib

import numpy as np


def child_seed(seed: int, *names: str | int) -> int:
    """Derive a 32-bit seed from `seed` and a path of names.

    The same names always give the same seed, whatever ran before, on any machine and in any process.

    Examples
    --------
    >>> child_seed(0, "case", 3) == child_seed(0, "case", 3)
    True
    >>> child_seed(0, "case", 3) == child_seed(0, "case", 4)
    False
    """
    path = "\x1f".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:4], "little")


def generator(random_state: int | np.random.Generator | None) -> np.random.Generator:
    """Turn scikit-learn's `random_state` into a numpy generator (None: fresh entropy)."""
    if isinstance(random_state, np.random.Generator):
        return random_state
    return np.random.default_rng(random_state)
