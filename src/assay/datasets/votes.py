"""Load the votes of judges as data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from assay._core.errors import InputError
from assay._core.tables import read_table
from assay.datasets import registry
from assay.datasets.store import path

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import pandas as pd

    from assay._core.tables import Kind


def load_judge_votes(which: Literal["arena", "ultrafeedback"] = "arena") -> pd.DataFrame:
    """Load pairwise votes of LLM judges on the answers of language models.

    ================  ======  ======  =======  =======  ====  =======
    which             votes   models  prompts  judges   ties  unknown
    ================  ======  ======  =======  =======  ====  =======
    "arena"           10,000  20      8,740    10       1,224 63
    "ultrafeedback"   10,000  17      9,245    20       761   274
    ================  ======  ======  =======  =======  ====  =======

    Parameters
    ----------
    which : "arena" or "ultrafeedback"
        Whose answers were judged: those of Chatbot Arena or those of UltraFeedback.

    Returns
    -------
    pandas.DataFrame
        One vote a row: `question_id`, `model_a`, `model_b`, `judge_model` (text), `judge_preferred_model` (``"a"``,
        ``"b"``, ``"c"`` for a tie, ``"unknown"`` where no verdict could be read) and `judge_confidence` (float64 in
        [0, 1], NaN where the judge stated none). ``frame.attrs`` holds its name, licence and citation.

    Raises
    ------
    InputError
        The data set is not here (``assay data get judge-votes-arena`` brings it) or not the right file.
    """
    names = {"arena": "judge-votes-arena", "ultrafeedback": "judge-votes-ultrafeedback"}
    if which not in names:
        raise InputError(f"which is {which!r}; expected 'arena' or 'ultrafeedback'")
    columns: dict[str, Kind] = {
        "question_id": "text",
        "model_a": "text",
        "model_b": "text",
        "judge_model": "text",
        "judge_preferred_model": "text",
        "judge_confidence": "number",
    }
    return _load(names[which], columns, allow_missing=["judge_confidence"])


def load_alpaca_eval() -> pd.DataFrame:
    """Load the votes of AlpacaEval: 105,381 comparisons of 103 models with a reference model, by 6 automatic judges.

    Its licence, CC BY-NC 4.0, does not allow commercial use.

    Returns
    -------
    pandas.DataFrame
        One vote a row: `prompt` (int64, 0 to 804), `judge`, `model_a` (the reference, one of two), `model_b`, `subset`
        (text), `preference` (float64: 1 if model_a wins, 2 if model_b wins, graded between), `len_a` and `len_b`
        (int64, characters of the answers). ``frame.attrs`` holds its name, licence and citation. In 193 rows
        `preference` is 0: both answers have the same length there, and the vote is to be read as a draw, not as a win.

    Raises
    ------
    InputError
        The data set is not here (the message says which file to put where) or not the right file.
    """
    columns: dict[str, Kind] = {
        "prompt": "integer",
        "judge": "text",
        "model_a": "text",
        "model_b": "text",
        "preference": "number",
        "subset": "text",
        "len_a": "integer",
        "len_b": "integer",
    }
    return _load("alpaca-eval", columns)


def _load(name: str, columns: Mapping[str, Kind], allow_missing: Collection[str] = ()) -> pd.DataFrame:
    frame = read_table(path(name), columns, allow_missing=allow_missing)
    entry = registry.find(name)
    frame.attrs = {"name": entry.name, "licence": entry.licence, "citation": entry.citation}
    return frame
