"""Read responses from the layouts that people have, and code them for the numeric part.

Known layouts: a long table (a row per model and task; CSV, TSV, JSON Lines, JSON, Parquet), py-irt's JSON Lines
(``{"subject_id": …, "responses": {task: 0 or 1}}``), METR's ``runs.jsonl`` (`task_id`, `model`, `score_binarized`),
and a folder of SWE-bench result files, one JSON a run with the list of resolved ids. Samples of Inspect or lm-eval are
long tables once they hold a column with the model.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.sparse.csgraph import connected_components

from assay._core.errors import InputError
from assay._core.tables import check_columns, read_table
from assay.evaluate.bridge.likelihood import Responses, pack

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

#: Where each part of a response may stand, best first.
CANDIDATES = {
    "model": ("model", "subject", "subject_id", "alias", "agent"),
    "task": ("task", "item", "item_id", "task_id", "instance_id", "sample_id", "doc_id"),
    "correct": ("correct", "score_binarized", "resolved", "response", "y", "score", "acc"),
}

#: Keys of a SWE-bench result file that list issues the run tried.
SWE_BENCH_TRIED = (
    "submitted_ids",
    "unresolved_ids",
    "unresolved",
    "error_ids",
    "empty_patch_ids",
    "no_generation",
    "no_logs",
)

MAX_JSON_BYTES = 2**28


@dataclass(frozen=True)
class CodedResponses:
    """Responses as counts, with the names that the codes stand for.

    Parameters
    ----------
    records : Responses
    models, tasks : Index
        Sorted; positions of a matrix's rows and columns.
    n_merged : int
        Rows beyond the first for the same model and task, merged.
    n_human : int
        Rows of the model "human", left out.
    """

    records: Responses
    models: pd.Index[Any]
    tasks: pd.Index[Any]
    n_merged: int
    n_human: int


def read_responses(
    path: str | os.PathLike[str],
    *,
    model: str = "auto",
    task: str = "auto",
    correct: str = "auto",
    aliases: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Read who solved what.

    Parameters
    ----------
    path : path
        A table with a row per model and task, a py-irt JSON Lines file, METR's ``runs.jsonl``, or a folder of SWE-bench
        result files (``<run>.json``, or ``<run>/results.json``).
    model, task, correct : str
        Names of the columns; "auto" finds them.
    aliases : mapping, optional
        Names of models to be replaced, so that several names of one model become one.

    Returns
    -------
    DataFrame
        `model`, `task` (text), `correct` (float64 as it stood in the file) and `n_trials` where the table has it.

    Raises
    ------
    InputError
        The file cannot be read, or a column is missing or of another type.
    """
    source = Path(path)
    if source.is_dir():
        frame = _read_swe_bench(source)
    else:
        frame = read_table(source)
        if "responses" in frame.columns and len(frame) and isinstance(frame["responses"].iloc[0], dict):
            frame = _unfold_py_irt(frame, str(source))
        frame = _named(frame, {"model": model, "task": task, "correct": correct}, str(source))
    if aliases:
        frame["model"] = frame["model"].map(lambda name: aliases.get(name, name))
    frame.attrs["source"] = str(source)  # what is found wrong later names the file
    return frame


def _named(frame: pd.DataFrame, columns: Mapping[str, str], where: str) -> pd.DataFrame:
    found = {}
    for part, name in columns.items():
        candidates = CANDIDATES[part] if name == "auto" else (name,)
        here = [candidate for candidate in candidates if candidate in frame.columns]
        if not here:
            has = ", ".join(repr(str(column)) for column in frame.columns[:30])
            raise InputError(f"{where}: no column for the {part}; it has {has}; name one with {part}=")
        found[here[0]] = part
    if len(found) < len(columns):
        raise InputError(f"{where}: model, task and correct must be three different columns")
    kept = frame[[*found, *(["n_trials"] if "n_trials" in frame.columns else [])]].rename(columns=found)
    kept["correct"] = _without_words(kept["correct"])
    kinds: dict[str, Any] = {"model": "text", "task": "text", "correct": "number"}
    if "n_trials" in kept:
        kinds["n_trials"] = "integer"
    return check_columns(kept, kinds, where=where)


def _without_words(column: pd.Series[Any]) -> pd.Series[Any]:
    """Give ``true`` and ``false``, as words or as booleans, as 1 and 0; leave the rest for the check of the column."""
    if column.dtype == bool:
        return column.astype(float)
    if column.dtype.kind in "iuf":
        return column
    return column.map(lambda value: {"true": 1.0, "false": 0.0}.get(str(value).lower(), value))


def _unfold_py_irt(frame: pd.DataFrame, where: str) -> pd.DataFrame:
    if "subject_id" not in frame.columns:
        raise InputError(f"{where}: a line with 'responses' needs a 'subject_id' beside it")
    rows: list[tuple[Any, str, Any]] = []
    for number, (subject, answers) in enumerate(zip(frame["subject_id"], frame["responses"], strict=True), start=1):
        if not isinstance(answers, dict):
            raise InputError(f"{where}, row {number}: 'responses' is not an object of task and 0 or 1")
        rows += [(subject, item, answer) for item, answer in answers.items()]
    return pd.DataFrame(rows, columns=["model", "task", "correct"])


def _read_swe_bench(folder: Path) -> pd.DataFrame:
    """One run a file. A file that only lists what it resolved is taken to have tried all that any run here tried."""
    files = sorted([*folder.glob("*.json"), *folder.glob("*/results.json")])
    runs: dict[str, tuple[set[str], set[str]]] = {}
    for path in files:
        name = path.parent.name if path.name == "results.json" else path.stem
        document = _json_object(path)
        resolved = document.get("resolved_ids", document.get("resolved"))
        if not isinstance(resolved, list):
            raise InputError(f"{path} is not a SWE-bench result: no list 'resolved' or 'resolved_ids' in it")
        listed = [document.get(key) for key in SWE_BENCH_TRIED]
        tried = {str(issue) for issues in listed if isinstance(issues, list) for issue in issues}
        runs[name] = ({str(issue) for issue in resolved}, tried)
    if not runs:
        raise InputError(f"{folder} holds no SWE-bench results (<run>.json or <run>/results.json)")
    everything = set().union(*(resolved | tried for resolved, tried in runs.values()))
    rows = [
        (name, issue, float(issue in resolved))
        for name, (resolved, tried) in runs.items()
        for issue in sorted(resolved | tried if tried else everything)
    ]
    return pd.DataFrame(rows, columns=["model", "task", "correct"])


def _json_object(path: Path) -> dict[str, Any]:
    if path.stat().st_size > MAX_JSON_BYTES:
        raise InputError(f"{path} is larger than {MAX_JSON_BYTES // 2**20} MiB; it does not look like a result file")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(document).__name__}")
    return document


def code_responses(responses: pd.DataFrame | ArrayLike, threshold: float | None = None) -> CodedResponses:
    """Check responses and count them by model and task.

    Parameters
    ----------
    responses : DataFrame or (n_models, n_tasks) array
        `model`, `task`, `correct` and perhaps `n_trials`; or a matrix of 0 and 1 with NaN where a task was not tried.
        With `n_trials`, `correct` is the share solved of so many trials and each trial counts.
    threshold : float, optional
        Scores of at least this are successes. None: `correct` must be 0 or 1.

    Raises
    ------
    InputError
        Values that are neither 0 nor 1 without `threshold` or `n_trials`, or nothing left to fit.
    """
    where = "responses"
    if isinstance(responses, pd.DataFrame):
        where = str(responses.attrs.get("source", where))
        kinds: dict[str, Any] = {"correct": "number"}
        if "n_trials" in responses.columns:
            kinds["n_trials"] = "integer"
        frame = responses.copy(deep=False)
        if "correct" in frame.columns:
            frame["correct"] = _without_words(frame["correct"])
        frame = check_columns(frame.reset_index(drop=True), kinds, where=where)
        absent = [name for name in ("model", "task") if name not in frame.columns]
        if absent:
            raise InputError(f"{where}: no column {absent[0]!r}; expected model, task and correct")
        names = None
    else:
        frame, names = _from_matrix(responses)
    solved, attempts = _counts(frame, threshold, where)
    human = frame["model"].map(lambda name: isinstance(name, str) and name.lower() == "human").to_numpy(dtype=bool)
    frame, solved, attempts = frame[~human], solved[~human], attempts[~human]
    if not len(frame):
        raise InputError(f"{where}: no rows are left to fit (rows of the model 'human' are not counted)")
    if names is None:
        subject, models = pd.factorize(frame["model"], sort=True)
        item, tasks = pd.factorize(frame["task"], sort=True)
        if (subject < 0).any() or (item < 0).any():
            raise InputError(f"{where}: a cell of 'model' or 'task' is empty; every row needs both names")
    else:
        models, tasks = names
        subject, item = frame["model"].to_numpy(), frame["task"].to_numpy()
    pair = subject.astype(np.int64) * len(tasks) + item
    distinct, position = np.unique(pair, return_inverse=True)
    n_merged = len(pair) - len(distinct)
    if n_merged:
        solved, attempts = (np.bincount(position, counts).astype(np.float64) for counts in (solved, attempts))
        if "n_trials" not in frame:  # several runs become one response, a tie a success, as in the paper's code
            solved, attempts = (solved >= 0.5 * attempts).astype(float), np.ones(len(distinct))
        subject, item = distinct // len(tasks), distinct % len(tasks)
    records = pack(subject, item, solved, attempts, n_subjects=len(models), n_items=len(tasks))
    return CodedResponses(records, pd.Index(models), pd.Index(tasks), n_merged, int(human.sum()))


def _from_matrix(responses: ArrayLike) -> tuple[pd.DataFrame, tuple[pd.Index[Any], pd.Index[Any]]]:
    try:
        matrix = np.asarray(responses, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("responses: expected a data frame or a matrix of 0, 1 and NaN") from None
    if matrix.ndim != 2 or not matrix.size:
        raise InputError(f"responses: expected a matrix (n_models, n_tasks), not an array of shape {matrix.shape}")
    subject, item = np.nonzero(~np.isnan(matrix))
    untried = [
        f"{what} {int(np.argmin(counts))}"
        for what, counts in (
            ("row", np.bincount(subject, minlength=matrix.shape[0])),
            ("column", np.bincount(item, minlength=matrix.shape[1])),
        )
        if not counts.all()
    ]
    if untried:
        raise InputError(f"responses: {untried[0]} of the matrix holds no response at all; leave it out")
    frame = pd.DataFrame({"model": subject, "task": item, "correct": matrix[subject, item]})
    return frame, (pd.RangeIndex(matrix.shape[0]), pd.RangeIndex(matrix.shape[1]))


def _counts(
    frame: pd.DataFrame, threshold: float | None, where: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    correct = frame["correct"].to_numpy(dtype=np.float64)
    if threshold is not None:
        return (correct >= threshold).astype(np.float64), np.ones(len(frame))
    if "n_trials" not in frame:
        _refuse(
            where, (correct != 0) & (correct != 1), correct, "neither 0 nor 1; give threshold= or a column 'n_trials'"
        )
        return correct, np.ones(len(frame))
    trials = frame["n_trials"].to_numpy(dtype=np.float64)
    _refuse(where, trials < 1, trials, "below one trial", column="n_trials")
    _refuse(where, (correct < 0) | (correct > 1), correct, "outside [0, 1], where the share of solved trials lies")
    solved = np.round(correct * trials)
    # A share written with few digits is still recognised: half a unit of the third decimal, times the trials.
    _refuse(where, np.abs(solved - correct * trials) > 5e-4 * trials, correct, "no whole number of its n_trials")
    return solved, trials


def _refuse(
    where: str, wrong: NDArray[np.bool_], values: NDArray[np.float64], why: str, column: str = "correct"
) -> None:
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"{where}, row {row + 1}, column {column!r}: {values[row]:g} is {why}")


def warn_disconnected(coded: CodedResponses) -> None:
    """Warn where models and tasks fall into groups that share no response."""
    records = coded.records
    links = records.matrix(records.attempts)
    n_models = records.n_subjects
    joined = np.concatenate([records.subject, records.item + n_models])
    back = np.concatenate([records.item + n_models, records.subject])
    size = n_models + records.n_items
    graph = type(links)((np.ones(len(joined)), (joined, back)), (size, size))
    n_groups, _ = connected_components(graph, directed=False)
    if n_groups > 1:
        warnings.warn(
            f"models and tasks fall into {n_groups} groups that share no response; only the prior ties their scales",
            stacklevel=3,
        )
