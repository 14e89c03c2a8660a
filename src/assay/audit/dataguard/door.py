"""What an auditor gives, checked once: probabilities, labels, sizes, overlap, groups."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

MIN_SAMPLES = 50
#: Rows of probabilities may miss 1 by this much: logs are rounded.
SUM_TOLERANCE = 1e-3


def probability_array(values: Any, name: str, n: int | None = None, n_classes: int | None = None) -> Array:
    """Rows of probabilities that sum to 1.

    Raises
    ------
    InputError
        Another shape, a value outside [0, 1], or a row that does not sum to 1.
    """
    array = np.asarray(values)
    if array.ndim != 2 or array.shape[1] < 2 or array.dtype.kind not in "fiu":
        raise InputError(f"{name} has shape {array.shape}; expected numbers of shape (samples, classes), at least 2")
    if n is not None and len(array) != n:
        raise InputError(f"{name} has {len(array)} rows; expected {n}, one for each sample")
    if n_classes is not None and array.shape[1] != n_classes:
        raise InputError(f"{name} has {array.shape[1]} classes; expected {n_classes}, as in the target's probabilities")
    array = array.astype(np.float64)
    sums = array.sum(axis=1)
    wrong = ~np.isfinite(sums) | (np.abs(sums - 1) > SUM_TOLERANCE) | (array.min(axis=1) < -SUM_TOLERANCE)
    if wrong.any():
        row = int(wrong.argmax())
        value = sums[row] if np.isfinite(sums[row]) and array[row].min() >= 0 else array[row].min()
        what = "sums to" if np.isfinite(sums[row]) and array[row].min() >= 0 else "holds"
        raise InputError(
            f"{name}, row {row}: it {what} {value:.4g}, so it is no row of probabilities; apply softmax to logits first"
        )
    array = np.clip(array, 0.0, None)
    return np.asarray(array / array.sum(axis=1, keepdims=True))


def class_numbers(labels: Any, classes: Sequence[Any], name: str, n: int, first: int = 0) -> NDArray[np.int64]:
    """Labels as places in `classes`; messages count rows from `first`: arrays from 0, tables from 1.

    Raises
    ------
    InputError
        There are not n of them, or one is no class of the model.
    """
    array = np.asarray(labels)
    if array.shape != (n,):
        raise InputError(f"{name} has shape {array.shape}; expected ({n},), a label for each sample")
    place = {_plain(label): i for i, label in enumerate(classes)}
    found = np.array([place.get(_plain(label), -1) for label in array], dtype=np.int64)
    if (found < 0).any():
        row = int((found < 0).argmax())
        known = ", ".join(str(label) for label in list(place)[:10]) + (", …" if len(place) > 10 else "")
        raise InputError(f"{name}, row {row + first}: {_plain(array[row])!r} is no class of the model; it has {known}")
    return found


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label


def check_sizes(n: int, m: int) -> None:
    """Refuse data sets with fewer than 50 samples."""
    for name, size in (("target", n), ("auxiliary", m)):
        if size < MIN_SAMPLES:
            raise InputError(
                f"the {name} data has {size} samples; expected at least {MIN_SAMPLES}, fewer settle nothing"
            )


def check_overlap(target: Iterable[Any], aux: Iterable[Any]) -> None:
    """Refuse a sample that is in both data sets, exactly.

    Parameters
    ----------
    target, aux : iterables of arrays or texts
    """
    seen: dict[bytes, int] = {}
    for row, sample in enumerate(aux):
        seen.setdefault(_digest(sample), row)
    shared = [(row, seen[digest]) for row, digest in enumerate(map(_digest, target)) if digest in seen]
    if shared:
        row, other = shared[0]
        raise InputError(
            f"target row {row} and auxiliary row {other} are the same sample ({len(shared)} target rows are in both); "
            "take them out of one of the two, since overlap hides the difference"
        )


def check_same_answers(target: Array, aux: Array) -> None:
    """Refuse answers of which most are those of the other data set to the last bit, where no inputs tell samples apart.

    Answers of certainty are alike for many samples and do not count, nor does one that comes again and again.

    Parameters
    ----------
    target, aux : (n, n_classes) and (m, n_classes) float
    """
    told = np.unique(target[target.max(axis=1) < 1 - SUM_TOLERANCE], axis=0)
    known = {_digest(row) for row in aux}
    n_same = sum(_digest(row) in known for row in told)
    if n_same >= MIN_SAMPLES // 2 and n_same > len(told) / 2:
        raise InputError(
            f"{n_same} of {len(told)} different answers on the target are answers on an auxiliary sample to the last "
            "bit, so the data sets overlap; take shared samples out of one of them, since overlap hides the difference"
        )


def _digest(sample: Any) -> bytes:
    data = (
        sample.encode("utf-8", "surrogatepass") if isinstance(sample, str) else np.ascontiguousarray(sample).tobytes()
    )
    return hashlib.blake2b(data, digest_size=16).digest()


def group_numbers(target: Any, aux: Any, n: int, m: int) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Group ids as numbers; both data sets have them or none has."""
    if target is None and aux is None:
        return None
    if target is None or aux is None:
        raise InputError("groups are given for one of the two data sets; give them for both or for none")
    arrays = [np.asarray(values).astype(str) for values in (target, aux)]
    for name, array, size in zip(("groups_target", "groups_aux"), arrays, (n, m), strict=True):
        if array.shape != (size,):
            raise InputError(f"{name} has shape {array.shape}; expected ({size},), a group for each sample")
    names, code = np.unique(np.concatenate(arrays), return_inverse=True)
    shared = np.intersect1d(code[:n], code[n:])
    if len(shared):
        raise InputError(
            f"group {str(names[shared[0]])!r} has samples in both data sets; a group is in the target or in the "
            "auxiliary data, since its samples resemble each other"
        )
    for name, codes in (("target", code[:n]), ("auxiliary", code[n:])):
        if len(np.unique(codes)) < 10:
            raise InputError(f"the {name} data has {len(np.unique(codes))} groups; expected at least 10 to permute")
    return code[:n].astype(np.int64), code[n:].astype(np.int64)


def check_nontraining(said: bool) -> None:
    """Refuse to audit until the user vouches for the auxiliary data."""
    if said is not True:
        raise InputError(
            "say aux_is_nontraining=True if you are certain that the model never saw the auxiliary data, in training "
            "or in choosing its settings; an audit rests on that"
        )
