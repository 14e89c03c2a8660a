"""What a router may know of a task before anybody attempts it, and three models that learn from that.

Nothing here comes from an attempt on the task itself: token counts of recorded runs are known only when the money is
spent, so they are no features.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from assay._core.errors import InputError
from assay._core.tables import read_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

#: What a name tells: `django__django-11299` is issue 11299 of django__django, and a number to factor has a size.
NUMBERED = re.compile(r"^(.*?)[\W_]*(\d+)$")

#: A prefix that fewer tasks have is one of "the others".
FEWEST_OF_A_PREFIX = 5


def cheap_features(tasks: Sequence[str], table: pd.DataFrame | None = None) -> pd.DataFrame:
    """Features of tasks: name, prefix, number (log10), and the columns of `table` under names of their own.

    Examples
    --------
    >>> cheap_features(["django__django-11299", "uuid"])[["prefix", "number"]].round(2).to_numpy().tolist()
    [['django__django', 4.05], ['uuid', nan]]
    """
    found = [NUMBERED.match(task) for task in tasks]
    frame = pd.DataFrame(
        {
            "name": list(tasks),
            "prefix": [match.group(1) if match else task for match, task in zip(found, tasks, strict=True)],
            "number": [np.log10(1.0 + int(match.group(2))) if match else np.nan for match in found],
        }
    )
    if table is None:
        return frame
    given = table.reindex(list(tasks)).add_prefix("given ").reset_index(drop=True)
    return pd.concat([frame, given], axis=1)


def read_features(path: str, tasks: Sequence[str]) -> pd.DataFrame:
    """Read a table of what is known of each task beforehand: `task`, and columns of numbers or words.

    Returns
    -------
    DataFrame, by task
        Columns of floats, or of text ("" where the cell is empty).

    Raises
    ------
    InputError
        No further column, a task twice, or no task of the attempts.
    """
    table = read_table(path, {"task": "text"})
    if len(table.columns) < 2:
        raise InputError(f"{path}: besides 'task' there is no column; add what is known of a task before it is tried")
    twice = table["task"].duplicated()
    if twice.any():
        raise InputError(f"{path}: the task {table.loc[twice, 'task'].iloc[0]!r} has two rows; keep one")
    table = table.set_index("task")
    if not table.index.isin(list(tasks)).any():
        raise InputError(
            f"{path}: none of its tasks (such as {table.index[0]!r}) is among those attempted (such as {tasks[0]!r})"
        )
    columns = {}
    for name in table.columns:
        number = pd.to_numeric(table[name], errors="coerce")
        is_number = (number.notna() | table[name].isna()).all()
        columns[str(name)] = number.astype(float) if is_number else table[name].fillna("").astype(str)
    return pd.DataFrame(columns)


def models(features: pd.DataFrame, seed: int) -> dict[str, Pipeline]:
    """A ridge regression on everything, a forest, and the mean of the nearest tasks of the same prefix."""
    given = [name for name in features.columns if name.startswith("given ")]
    words = [name for name in given if not pd.api.types.is_numeric_dtype(features[name])]
    columns = ["number", *(name for name in given if name not in words)]
    numbers = [name for name in columns if features[name].notna().any()]

    def parts(*, name: bool, prefix_weight: float = 1.0) -> ColumnTransformer:
        def one_hot() -> OneHotEncoder:
            return OneHotEncoder(min_frequency=FEWEST_OF_A_PREFIX, handle_unknown="infrequent_if_exist")

        steps: list[tuple[str, Any, Any]] = [
            ("prefix", one_hot(), ["prefix"]),
            ("words", one_hot(), words),
            ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        ]
        if name:
            steps.append(("name", TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), max_features=300), "name"))
        return ColumnTransformer(steps, sparse_threshold=0.0, transformer_weights={"prefix": prefix_weight})

    forest = RandomForestRegressor(100, min_samples_leaf=5, max_features=0.5, n_jobs=1, random_state=seed)
    return {
        "ridge": make_pipeline(parts(name=True), RidgeCV(np.logspace(-2, 3, 11))),
        "forest": make_pipeline(parts(name=False), forest),
        "neighbours": make_pipeline(parts(name=False, prefix_weight=10.0), KNeighborsRegressor(20)),
    }


def foreseen(known: pd.DataFrame, targets: Array, to_come: pd.DataFrame, seed: int) -> Iterator[tuple[Array, Array]]:
    """What each model foresees of `targets`: for the known tasks by cross-validation, and for those to come.

    Parameters
    ----------
    known, to_come : DataFrame
        From :func:`cheap_features`.
    targets : (n_known, n_targets) float
    seed : int

    Yields
    ------
    among_known : (n_known, n_targets) float
    of_those_to_come : (n_to_come, n_targets) float
    """
    shuffled = KFold(5, shuffle=True, random_state=seed % 2**32)
    for model in models(known, seed % 2**32).values():
        among_known = cross_val_predict(model, known, targets, cv=shuffled)
        yield among_known, model.fit(known, targets).predict(to_come)
