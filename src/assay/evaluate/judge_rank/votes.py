"""Read votes from the layouts that people have, and code them for the numeric part.

Known layouts, told apart by their columns: the authors' (`judge_model`, `judge_preferred_model`), AlpacaEval's
(`preference`, with `model_a`/`model_b` or `generator_1`/`generator_2`), Chatbot Arena's and MT-Bench's (`winner`),
and the tidy one that :func:`read_votes` returns (`share`).
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from assay._core.errors import InputError
from assay._core.tables import check_columns, read_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from assay.evaluate.judge_rank.likelihood import Array, Indices

#: What a verdict is worth to the first model. NaN: no verdict; the vote is left out.
SHARES = {"model_a": 1.0, "model_b": 0.0, "tie": 0.5, "unknown": np.nan}

#: Labels understood without a winner map.
LABELS = {
    **dict.fromkeys(("model_a", "a"), "model_a"),
    **dict.fromkeys(("model_b", "b"), "model_b"),
    **dict.fromkeys(("tie", "tie (bothbad)", "both_bad", "c"), "tie"),
    "unknown": "unknown",
}

#: Where each part of a vote may stand, best first. AlpacaEval names the reference's output 1: it is model a.
CANDIDATES = {
    "model_a": ("model_a", "generator_1"),
    "model_b": ("model_b", "generator_2"),
    "judge": ("judge", "judge_model", "annotator"),
    "winner": ("judge_preferred_model", "winner", "preference", "share"),
    "cluster": ("cluster", "question_id", "prompt", "instruction"),
}


@dataclass(frozen=True)
class CodedVotes:
    """Usable votes as integer codes, with the names that the codes stand for.

    Parameters
    ----------
    model_a, model_b, judge : (n_votes,) int
    share : (n_votes,) float
        1: a wins, 0: b wins.
    cluster : (n_votes,) int or None
    models, judges : list of str
        Sorted.
    n_dropped : int
        Votes without a verdict, left out.
    """

    model_a: Indices
    model_b: Indices
    judge: Indices
    share: Array
    cluster: Indices | None
    models: list[str]
    judges: list[str]
    n_dropped: int


def read_votes(
    source: str | os.PathLike[str] | pd.DataFrame,
    *,
    model_a: str = "auto",
    model_b: str = "auto",
    judge: str | None = "auto",
    winner: str = "auto",
    cluster: str | None = "auto",
    winner_map: Mapping[Any, str] | None = None,
) -> pd.DataFrame:
    """Read pairwise votes into one tidy frame.

    Parameters
    ----------
    source : path or DataFrame
        A CSV, TSV, JSON, JSON Lines or Parquet file, or a frame.
    model_a, model_b, judge, winner, cluster : str
        Names of columns; "auto" finds them. None leaves `judge` (to pool all votes) or `cluster` out. The column
        `preference` holds AlpacaEval's numbers (1: a wins, 2: b wins, between: graded, 0: a draw), the column `share`
        numbers from 0 to 1; any other holds labels.
    winner_map : mapping of label to "model_a", "model_b", "tie" or "unknown", optional
        Translates labels that are not understood, or differently.

    Returns
    -------
    DataFrame
        model_a, model_b, judge (unless None), share (1: a wins, 0: b wins, 0.5: tie), cluster (where there is one).
        Votes without a verdict are left out and counted in ``attrs["n_unknown"]``. AlpacaEval's files compare the
        reference with itself; these rows are left out and counted in ``attrs["n_self"]``.

    Raises
    ------
    InputError
        A column is missing, a cell is empty, a label is not understood, or a model is compared with itself.

    Examples
    --------
    >>> frame = pd.DataFrame({"model_a": ["x"], "model_b": ["y"], "judge": ["me"], "winner": ["tie (bothbad)"]})
    >>> read_votes(frame)
      model_a model_b judge  share
    0       x       y    me    0.5
    """
    table = source if isinstance(source, pd.DataFrame) else read_table(source)
    where = "votes" if isinstance(source, pd.DataFrame) else os.fspath(source)
    wanted = {"model_a": model_a, "model_b": model_b, "judge": judge, "winner": winner, "cluster": cluster}
    found = {part: _found(part, name, table, where) for part, name in wanted.items() if name is not None}
    names = {part: name for part, name in found.items() if name is not None}
    check_columns(table, {}, where=where)
    if len(table) == 0:
        raise InputError(f"{where} has a header but no rows")

    share = _shares(table[names["winner"]], where, winner_map)
    usable = ~np.isnan(share)
    tidy = pd.DataFrame(
        {part: _text(table[name]) for part, name in names.items() if part in ("model_a", "model_b", "judge")}
    )
    for part in tidy.columns:
        _check_filled(tidy[part], usable, where, names[part])
    tidy["share"] = share
    if "cluster" in names:
        tidy["cluster"] = table[names["cluster"]].to_numpy()
    itself = (tidy["model_a"] == tidy["model_b"]).to_numpy() & usable
    n_self = int(itself.sum())
    if n_self and names["winner"] != "preference":
        raise InputError(_itself(where, itself, str(tidy["model_a"].iloc[int(itself.argmax())])))
    kept = tidy[usable & ~itself].reset_index(drop=True)
    if len(kept) == 0:
        raise InputError(f"{where}: none of its {len(tidy)} rows has a verdict between two models")
    if "judge" in kept.columns:
        _warn_lost(set(tidy["judge"].dropna()) - set(kept["judge"]), "judge")
    kept.attrs = {"n_unknown": int((~usable).sum()), "n_self": n_self}
    return kept


def code_votes(
    votes: pd.DataFrame, *, model_a: str, model_b: str, judge: str | None, winner: str, cluster: str | None
) -> CodedVotes:
    """Check a frame of votes and turn names into codes.

    Parameters
    ----------
    votes : DataFrame
    model_a, model_b, winner : str
        Names of columns. A numeric `winner` is the share of a, from 0 to 1; otherwise it holds labels.
    judge : str or None
        None: all votes are one judge's, named ``"all votes"``.
    cluster : str or None

    Returns
    -------
    CodedVotes

    Raises
    ------
    InputError
    """
    if not isinstance(votes, pd.DataFrame):
        raise InputError(f"votes: expected a pandas DataFrame, got {type(votes).__name__}; read_votes reads a file")
    if winner == "winner" and winner not in votes.columns and "share" in votes.columns:
        winner = "share"  # what read_votes returns
    if judge is not None and judge not in votes.columns:
        raise InputError(
            f"votes: no column {judge!r} with the judge; name it with judge=, or pool all votes: judge=None"
        )
    check_columns(votes, {}, where="votes")
    for name in (model_a, model_b, winner, cluster):
        if name is not None and name not in votes.columns:
            raise InputError(f"votes: no column {name!r}; it has {some_names(list(votes.columns))}")
    if len(votes) == 0:
        raise InputError("votes has a header but no rows")

    share = _shares(votes[winner], "votes", None)
    usable = ~np.isnan(share)
    n_dropped = int((~usable).sum())
    if n_dropped == len(votes):
        raise InputError(f"votes, column {winner!r}: none of the {n_dropped} rows has a verdict")
    (first, second), models = _coded(votes[model_a], votes[model_b])
    _check_codes(first, usable, model_a, is_judge=False)
    _check_codes(second, usable, model_b, is_judge=False)
    if judge is None:
        judge_codes, judges = np.zeros(len(votes), np.intp), ["all votes"]
    else:
        (judge_codes,), judges = _coded(votes[judge])
        _check_codes(judge_codes, usable, judge, is_judge=True)
    groups = None if cluster is None else _clusters(votes[cluster], cluster)
    if n_dropped:
        first, second, judge_codes, share = first[usable], second[usable], judge_codes[usable], share[usable]
        groups = None if groups is None else groups[usable]
        judge_codes, judges = _without_unused(judge_codes, judges, "judge")
        both, models = _without_unused(np.concatenate([first, second]), models, "model")
        first, second = both[: len(first)], both[len(first) :]
    if len(models) < 2:
        raise InputError(f"votes name one model, {models[0]!r}; a ranking needs at least two")
    itself = first == second
    if itself.any():
        row = np.flatnonzero(usable)[int(itself.argmax())]
        raise InputError(_itself("votes", itself, models[first[int(itself.argmax())]], row))
    return CodedVotes(first, second, judge_codes, share, groups, models, judges, n_dropped)


def _found(part: str, name: str, table: pd.DataFrame, where: str) -> str | None:
    """The column of a part of the vote: the one named, or the first known one."""
    if name != "auto":
        if name not in table.columns:
            raise InputError(f"{where}: no column {name!r}; it has {some_names(list(table.columns))}")
        return name
    known = [candidate for candidate in CANDIDATES[part] if candidate in table.columns]
    if known:
        return known[0]
    if part == "cluster":
        return None
    hint = ", or pool all votes: judge=None" if part == "judge" else ""
    raise InputError(
        f"{where}: no column for {part} (looked for {', '.join(CANDIDATES[part])}) among "
        f"{some_names(list(table.columns))}; name it with {part}={hint}"
    )


def _shares(column: pd.Series[Any], where: str, winner_map: Mapping[Any, str] | None) -> Array:
    """Share of the first model for every row, NaN where there is no verdict."""
    if winner_map is None and column.name in ("preference", "share"):
        return _numbers(column, where)
    if winner_map is None and pd.api.types.is_numeric_dtype(column):
        return _numbers(column, where)
    labels = dict(LABELS)
    for label, meaning in (winner_map or {}).items():
        if meaning not in SHARES:
            raise InputError(f"winner_map: {label!r} means {meaning!r}; expected one of {', '.join(SHARES)}")
        labels[_label(label)] = meaning
    codes, uniques = _factorized(column)
    worth = np.full(len(uniques) + 1, np.nan)  # the last one is for missing cells: code −1
    for position, value in enumerate(uniques):
        if _label(value) not in labels:
            row = int((codes == position).argmax()) + 1
            raise InputError(
                f"{where}, row {row}, column {column.name!r}: {_label(value)[:60]!r} is not one of "
                f"{', '.join(labels)}; translate it with winner_map"
            )
        worth[position] = SHARES[labels[_label(value)]]
    return worth[codes]


def _numbers(column: pd.Series[Any], where: str) -> Array:
    is_preference = column.name == "preference"
    numbers = np.array(pd.to_numeric(column, errors="coerce"), dtype=np.float64)
    fine = (numbers >= 1) & (numbers <= 2) | (numbers == 0) if is_preference else (numbers >= 0) & (numbers <= 1)
    wrong = ~fine & column.notna().to_numpy()
    if wrong.any():
        row = int(wrong.argmax())
        value = column.iloc[row]
        value = value.item() if isinstance(value, np.generic) else value
        expected = (
            "a number from 1 (a wins) to 2 (b wins)" if is_preference else "a share from 0 (b wins) to 1 (a wins)"
        )
        raise InputError(
            f"{where}, row {row + 1}, column {column.name!r}: {value!r} is not {expected}; for labels give a winner_map"
        )
    if is_preference:
        return np.where(numbers == 0, 0.5, 2.0 - numbers)  # AlpacaEval writes a draw as 1.5, in old files as 0
    return numbers


def _label(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _name(value: Any) -> Any:
    """A name as text; MT-Bench gives a judge as a list of model and prompt."""
    if isinstance(value, (list, tuple, np.ndarray)):
        return ", ".join(map(str, value))
    return value if value is None or value is pd.NA or value != value else str(value)


def _text(column: pd.Series[Any]) -> pd.Series[Any]:
    (codes,), names = _coded(column)
    values = np.array([*names, None], dtype=object)
    return pd.Series(values[codes], dtype="str")


def _factorized(column: pd.Series[Any]) -> tuple[Indices, Sequence[Any]]:
    try:
        codes, uniques = pd.factorize(column)
    except TypeError:  # lists are not hashable
        codes, uniques = pd.factorize(column.map(_name))
    return codes.astype(np.intp, copy=False), list(uniques)


def _coded(*columns: pd.Series[Any]) -> tuple[list[Indices], list[str]]:
    """Codes (−1: missing) of every column into one sorted list of names."""
    factorized = [_factorized(column) for column in columns]
    texts = [[str(_name(value)) for value in uniques] for _, uniques in factorized]
    names = sorted(set().union(*texts))
    place = {name: position for position, name in enumerate(names)}
    tables = [np.array([*(place[text] for text in own), -1], dtype=np.intp) for own in texts]
    return [table[codes] for table, (codes, _) in zip(tables, factorized, strict=True)], names


def _without_unused(codes: Indices, names: list[str], what: str) -> tuple[Indices, list[str]]:
    used = np.bincount(codes, minlength=len(names)) > 0
    if used.all():
        return codes, names
    _warn_lost({name for name, is_used in zip(names, used, strict=True) if not is_used}, what)
    return (np.cumsum(used) - 1)[codes], [name for name, is_used in zip(names, used, strict=True) if is_used]


def _warn_lost(names: set[Any], what: str) -> None:
    if names:
        verb = "is" if len(names) == 1 else "are"
        warnings.warn(
            f"{what} {some_names(sorted(names))} has no vote with a verdict and {verb} left out", stacklevel=4
        )


def _clusters(column: pd.Series[Any], name: str) -> Indices:
    codes, _ = _factorized(column)
    if (codes < 0).any():
        row = int((codes < 0).argmax()) + 1
        raise InputError(f"votes, row {row}, column {name!r}: the cell is empty; give every vote a cluster")
    return codes


def _check_codes(codes: Indices, usable: NDArray[np.bool_], name: str, *, is_judge: bool) -> None:
    missing = (codes < 0) & usable
    if missing.any():
        raise InputError(_empty("votes", int(missing.argmax()), name, is_judge=is_judge))


def _check_filled(column: pd.Series[Any], usable: NDArray[np.bool_], where: str, name: str) -> None:
    missing = column.isna().to_numpy() & usable
    if missing.any():
        raise InputError(_empty(where, int(missing.argmax()), name, is_judge=column.name == "judge"))


def _empty(where: str, row: int, name: str, *, is_judge: bool) -> str:
    what = "name the judge, or pool all votes: judge=None" if is_judge else "name the model"
    return f"{where}, row {row + 1}, column {name!r}: the cell is empty; {what}"


def _itself(where: str, itself: NDArray[np.bool_], model: str, row: int | None = None) -> str:
    position = int(itself.argmax()) if row is None else int(row)
    count = int(itself.sum())
    others = "" if count == 1 else f" (and {count - 1} more such rows)"
    return f"{where}, row {position + 1}: {model!r} is compared with itself{others}; remove these rows"


def some_names(names: Sequence[Any], most: int = 8) -> str:
    """The first names, quoted, and how many more there are."""
    shown = ", ".join(repr(str(name)) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "") or "no columns"
