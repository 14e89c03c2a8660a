"""Human minutes of tasks and release dates of models: read from files, and matched with the responses."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from assay._core.errors import InputError
from assay._core.tables import check_columns, read_table
from assay.evaluate.bridge.responses import CANDIDATES

if TYPE_CHECKING:
    import os
    from collections.abc import Hashable

    from numpy.typing import NDArray

MINUTES = ("human_minutes", "minutes")
DATES = ("release_date", "date", "released")


def read_minutes(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read human times: a table with a task and `human_minutes` (METR's ``runs.jsonl`` has both, once a run).

    Returns
    -------
    DataFrame
        task, human_minutes; each task once, tasks without a time left out.
    """
    frame = _two_columns(path, ("task", CANDIDATES["task"]), ("human_minutes", MINUTES))
    frame = check_columns(
        frame, {"task": "text", "human_minutes": "number"}, where=str(path), allow_missing=["human_minutes"]
    )
    return frame.dropna().drop_duplicates(ignore_index=True)


def read_dates(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read release dates: a table with `model` and `release_date` (such as 2025-08-07).

    Returns
    -------
    DataFrame
        model, release_date (text); models without a date left out.
    """
    frame = _two_columns(path, ("model", CANDIDATES["model"]), ("release_date", DATES))
    frame = check_columns(
        frame, {"model": "text", "release_date": "text"}, where=str(path), allow_missing=["release_date"]
    )
    return frame.dropna().drop_duplicates(ignore_index=True)


def _two_columns(path: str | os.PathLike[str], *wanted: tuple[str, tuple[str, ...]]) -> pd.DataFrame:
    frame = read_table(path)
    found = {}
    for name, candidates in wanted:
        here = [candidate for candidate in candidates if candidate in frame.columns]
        if not here:
            has = ", ".join(repr(str(column)) for column in frame.columns[:30])
            raise InputError(f"{path}: no column {name!r} (or {', '.join(candidates[1:])}); it has {has}")
        found[here[0]] = name
    return frame[list(found)].rename(columns=found)


def minutes_by_task(source: Any, tasks: pd.Index[Any]) -> NDArray[np.float64]:
    """Human minutes in the order of `tasks`, NaN where there are none.

    Parameters
    ----------
    source : None, DataFrame, Series, mapping or array
        A frame with `task` and `human_minutes`; a series or mapping by task; an array in the order of the tasks.

    Raises
    ------
    InputError
        A time is not a positive number, a task has two different times, or no task of the responses has one.
    """
    if source is None:
        return np.full(len(tasks), np.nan)
    names, values = _pairs(source, tasks, "task", "human_minutes")
    minutes = pd.to_numeric(pd.Series(values, dtype=object), errors="coerce").to_numpy(dtype=np.float64)
    given = ~pd.isna(pd.Series(values, dtype=object)).to_numpy()
    wrong = given & ~((minutes > 0) & np.isfinite(minutes))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"human_minutes, row {row + 1} (task {names[row]!r}): {values[row]!r} is not a time above zero in minutes"
        )
    found = _one_each(names[given], minutes[given], "human_minutes", "task").reindex(tasks).to_numpy(dtype=np.float64)
    if not np.isfinite(found).any():
        example = repr(names[0]) if len(names) else "nothing"
        raise InputError(f"human_minutes: none of its tasks (such as {example}) is among the tasks of the responses")
    median = float(np.nanmedian(found))
    if median > 1e4 or median < 1e-2:
        warnings.warn(f"the median human time is {median:g} minutes; are these minutes?", stacklevel=3)
    return found


def dates_by_model(source: Any, models: pd.Index[Any]) -> pd.Series[Any]:
    """Release dates in the order of `models` (datetime64, NaT where unknown).

    Raises
    ------
    InputError
        A date cannot be read, or a model has two.
    """
    if source is None:
        return pd.Series(pd.NaT, models, dtype="datetime64[ns]")
    names, values = _pairs(source, models, "model", "release_date")
    series = pd.Series(values, dtype=object)
    dates = pd.to_datetime(series.map(lambda value: str(value) if not pd.isna(value) else None), errors="coerce")
    wrong = (dates.isna() & ~series.isna()).to_numpy()
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"release_dates, row {row + 1} (model {names[row]!r}): {values[row]!r} is not a date such as 2025-08-07"
        )
    known = ~dates.isna().to_numpy()
    found = _one_each(names[known], dates[known].to_numpy(), "release_dates", "model")
    return found.reindex(models).astype("datetime64[ns]")


def _pairs(source: Any, names: pd.Index[Any], key: str, value: str) -> tuple[NDArray[Any], NDArray[Any]]:
    if isinstance(source, pd.DataFrame):
        absent = [column for column in (key, value) if column not in source.columns]
        if absent:
            has = ", ".join(repr(str(column)) for column in source.columns[:30])
            raise InputError(f"{value}: no column {absent[0]!r}; it has {has}")
        return source[key].to_numpy(dtype=object), source[value].to_numpy(dtype=object)
    if hasattr(source, "keys"):  # a mapping or a series
        series = pd.Series(source, dtype=object)
        return series.index.to_numpy(dtype=object), series.to_numpy(dtype=object)
    values = np.asarray(source, dtype=object)
    if values.shape != (len(names),):
        raise InputError(
            f"{value}: an array must have one entry for each of the {len(names)} {key}s, not {values.shape}"
        )
    return names.to_numpy(dtype=object), values


def _one_each(names: NDArray[Any], values: NDArray[Any], table: str, key: str) -> pd.Series[Any]:
    distinct = pd.DataFrame({"name": names, "value": values}).drop_duplicates()
    twice = distinct["name"].duplicated()
    if twice.any():
        name: Hashable = distinct.loc[twice, "name"].iloc[0]
        raise InputError(f"{table}: {key} {name!r} has two different values; keep one")
    return distinct.set_index("name")["value"]
