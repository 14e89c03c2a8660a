"""Read labelled time series from the files that people have: .ts, .npz, .npy and tables with a row a series."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay._core.tables import FORMATS, read_table

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

#: A file of series larger than this is refused before it fills the memory.
MAX_BYTES = 2 * 2**30


class Series(NamedTuple):
    """Series of one length with their classes.

    Parameters
    ----------
    X : (n, channels, length) float
    y : (n,) int, or None
        Index into `classes`.
    classes : tuple of str
        In the order in which the file declares them, else sorted: numbers as numbers.
    """

    X: NDArray[Any]
    y: NDArray[np.int64] | None
    classes: tuple[str, ...]


def read_series(
    path: str | os.PathLike[str], *, label: str | None = None, classes: Sequence[str] | None = None
) -> Series:
    """Read series and their classes.

    Parameters
    ----------
    path : path
        ``.ts`` as of the UEA and UCR archives; ``.npz`` with arrays X (n, channels, length) or (n, length) and, if
        known, y; ``.npy`` with X alone; or a table with a row a series, whose columns but `label` are the time steps.
    label : str, optional
        Column of a table that holds the class; default: ``label`` where there is one.
    classes : sequence of str, optional
        Names of the classes in the order of the model's outputs.

    Raises
    ------
    InputError
        The file is of another format, series differ in length, a value is missing or not a number, or a class is not
        among `classes`.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"{path}: no such file; give a .ts, .npz or .npy file, or a table with a row a series")
    if file.stat().st_size > MAX_BYTES:
        raise InputError(
            f"{path}: {file.stat().st_size / 2**30:.1f} GiB; at most {MAX_BYTES // 2**30} are read, cut it"
        )
    if file.suffix == ".ts":
        X, names, declared = _read_ts(file)  # noqa: N806
    elif file.suffix in (".npz", ".npy"):
        X, names, declared = *_read_numpy(file), None  # noqa: N806
    elif file.name.lower().removesuffix(".gz").endswith(tuple(FORMATS)):
        X, names, declared = *_read_columns(file, label), None  # noqa: N806
    else:
        raise InputError(f"{path}: {file.suffix or 'no suffix'} is not one of .ts, .npz, .npy, {', '.join(FORMATS)}")
    check_finite(X, str(path))
    if names is None:
        return Series(X, None, tuple(classes or ()))
    order = tuple(classes or declared or sorted(set(names), key=_by_number))
    index = {name: number for number, name in enumerate(order)}
    for row, name in enumerate(names):
        if name not in index:
            raise InputError(f"{path}, series {row}: class {name!r} is not one of {', '.join(order)}")
    return Series(X, np.array([index[name] for name in names], dtype=np.int64), order)


def check_finite(X: NDArray[Any], where: str) -> None:  # noqa: N803
    """Refuse series (n, channels, length) with a value that is none, and name the first."""
    bad = np.argwhere(~np.isfinite(X))
    if len(bad):
        row, channel, time = bad[0]
        raise InputError(
            f"{where}, series {row}, channel {channel}, time {time}: the value is {X[row, channel, time]}; fill gaps, "
            "and where series have different lengths pad them to one and let the classifier mask the padding"
        )


def _by_number(name: str) -> tuple[float, str]:
    try:
        return float(name), name
    except ValueError:
        return np.inf, name


def _read_ts(file: Path) -> tuple[NDArray[np.float64], list[str] | None, list[str] | None]:
    """Series, class names, declared classes; the format is that of timeseriesclassification.com."""
    declared: list[str] | None = None
    labelled = False
    rows: list[list[NDArray[np.float64]]] = []
    names: list[str] = []
    for number, line in _lines(file):
        word, *rest = line.split()
        if word.startswith("@"):
            key, value = word.lower(), [part.strip() for part in rest]
            if key == "@timestamps" and value[:1] == ["true"]:
                raise InputError(f"{file}, line {number}: series with timestamps are not read; write values only")
            if key == "@classlabel":
                labelled = value[:1] == ["true"]
                declared = value[1:] or None if labelled else None
            continue
        parts = line.split(":")
        if labelled:
            names.append(parts.pop().strip())
        rows.append([_numbers(file, number, part) for part in parts])
        if len(rows[-1]) != len(rows[0]):
            raise InputError(f"{file}, line {number}: {len(rows[-1])} channels; the first series has {len(rows[0])}")
        for channel in rows[-1]:
            if len(channel) != len(rows[0][0]):
                raise InputError(
                    f"{file}, line {number}: a channel has {len(channel)} values and the first one {len(rows[0][0])}; "
                    "pad the series to one length and let the classifier mask the padding"
                )
    if not rows:
        raise InputError(f"{file}: the file holds no series after @data")
    return np.array(rows), names if labelled else None, declared


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    try:
        with file.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if (text := line.strip()) and not text.startswith("#"):
                    yield number, text
    except UnicodeDecodeError:
        raise InputError(f"{file}: not UTF-8 text; is it a .ts file of series?") from None


def _numbers(file: Path, number: int, text: str) -> NDArray[np.float64]:
    try:
        values = np.array(text.split(","), dtype=np.float64)
    except ValueError:
        bad = next(cell for cell in text.split(",") if not _is_number(cell))
        raise InputError(
            f"{file}, line {number}: {bad.strip()[:40]!r} is not a number; fill missing values, give one number a step"
        ) from None
    if not np.isfinite(values).all():
        raise InputError(f"{file}, line {number}: the series holds {values[~np.isfinite(values)][0]}; fill the gap")
    return values


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_numpy(file: Path) -> tuple[NDArray[Any], list[str] | None]:
    y = None
    try:
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            X = loaded  # noqa: N806
        else:
            if "X" not in loaded:
                raise InputError(f"{file}: it holds {', '.join(loaded) or 'nothing'}; expected arrays X and y")
            X, y = loaded["X"], loaded.get("y")  # noqa: N806
    except (ValueError, EOFError, OSError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file}: not an array of numbers that numpy reads without pickle ({error})") from None
    if X.dtype.kind not in "fiu" or X.ndim not in (2, 3):
        raise InputError(f"{file}: X is {X.dtype} of shape {X.shape}; expected numbers, (series, channels, length)")
    if y is not None and y.shape != (len(X),):
        raise InputError(f"{file}: y has shape {y.shape}; expected ({len(X)},), a class for each series")
    return X[:, None] if X.ndim == 2 else X, None if y is None else [str(name) for name in y.tolist()]


def _read_columns(file: Path, label: str | None) -> tuple[NDArray[np.float64], list[str] | None]:
    frame = read_table(file)
    column = label or ("label" if "label" in frame else None)
    if column is not None and column not in frame:
        raise InputError(f"{file}: no column {column!r}; the table has {', '.join(map(str, frame.columns[:8]))} …")
    steps = [name for name in frame.columns if name != column]
    if not steps or not len(frame):
        raise InputError(f"{file}: the table has no series; expected a row a series and a column a time step")
    values = read_table(file, dict.fromkeys(steps, "number"))
    names = None if column is None else frame[column].astype(str).tolist()
    return values[steps].to_numpy(dtype=np.float64)[:, None], names
