"""Which windows train and which calibrate."""

# ruff: noqa: N803, scikit-learn's name for data is X

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from assay.audit.mpfm.windows import LogWindows

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

CALIBRATION_SHARE, FEW = 0.2, 200


def n_windows(X: LogWindows | ArrayLike) -> int:
    """How many windows there are."""
    return len(X) if isinstance(X, LogWindows) else len(np.asarray(X))


def warn_few(n: int, name: str) -> None:
    """Say so where a system has too few windows to rely on."""
    if n < FEW:
        warnings.warn(f"domain {name!r} has {n} normal windows; from {FEW} on the threshold and the prototypes can be "
                      "relied on (a smaller step makes more windows)", stacklevel=4)  # fmt: skip


def split_by_time(own: NDArray[np.int64], X: LogWindows | ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first four fifths to train, the last to calibrate; windows that share a line with training are in neither."""
    cut = max(1, int(np.ceil(len(own) * (1 - CALIBRATION_SHARE))))
    train, held = own[:cut], own[cut:]
    if isinstance(X, LogWindows) and len(held):
        seen = np.unique(X.lines[train])
        apart = ~(np.isin(X.lines[held], seen[seen >= 0]).any(axis=1))
        held = held[apart] if apart.any() else held
    return train, held if len(held) else train
