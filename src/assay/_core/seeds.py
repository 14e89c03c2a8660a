"""Seeds that do not depend on order: every case and every arm gets its own, derived by name."""

from __future__ import annotations

import hashlib

import numpy as np

from assay._core.errors import InputError


def child_seed(seed: int, *names: str | int) -> int:
    """Derive a 32-bit seed from `seed` and a path of names.

    The same names always give the same seed, whatever ran before, on any machine and in any process. A whole number
    and its decimal spelling are the same name.

    Examples
    --------
    >>> child_seed(0, "case", 3) == child_seed(0, "case", 3)
    True
    >>> child_seed(0, "case", 3) == child_seed(0, "case", 4)
    False
    """
    path = ascii([str(seed), *map(str, names)])  # quoted, so that no name can imitate two
    return int.from_bytes(hashlib.sha256(path.encode("ascii")).digest()[:4], "little")


def generator(random_state: int | np.random.Generator | np.random.RandomState | None) -> np.random.Generator:
    """Turn scikit-learn's `random_state` into a numpy generator.

    Parameters
    ----------
    random_state : int from 0, Generator, RandomState or None
        None: fresh entropy. A Generator is returned as it is; a RandomState shares its stream.

    Raises
    ------
    InputError
        Anything else.

    Examples
    --------
    >>> bool(generator(0).random() == generator(0).random())
    True
    """
    if isinstance(random_state, np.random.Generator):
        return random_state
    if isinstance(random_state, np.random.RandomState):
        return np.random.Generator(random_state._bit_generator)
    is_whole = isinstance(random_state, int | np.integer) and not isinstance(random_state, bool)
    if random_state is None or (is_whole and random_state >= 0):
        return np.random.default_rng(random_state)
    raise InputError(f"random_state is {random_state!r}; expected a whole number from 0, a numpy Generator or None")
