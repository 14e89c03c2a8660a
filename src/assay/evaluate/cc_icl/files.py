"""Benchmarks and predictions on disk: our JSON Lines, the layout of CC-Bench, tables of answers."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from assay._core.errors import InputError
from assay._core.files import replacing
from assay._core.tables import check_columns, read_table
from assay.evaluate.cc_icl.episodes import Episodes
from assay.evaluate.cc_icl.items import Items, Kind
from assay.evaluate.cc_icl.metrics import UNPARSED, Codes
from assay.evaluate.cc_icl.prompt import parse_answer
from assay.evaluate.cc_icl.spec import CriterionSpec, check_answers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pandas as pd

KINDS: tuple[Kind, ...] = ("image", "text", "row")


def write_episodes(episodes: Episodes, path: str | os.PathLike[str]) -> None:
    """Write one JSON object a line: id, support, query, question, answers, labels and truth by criterion.

    An item is ``{"image": path, "category": …}``, ``{"text": …, "category": …}`` or
    ``{"row": name, "features": […], "category": …}``. Paths of images are written relative to the file.
    """
    if episodes.items.kind == "image":
        folder = Path(path).absolute().parent
        content = tuple(os.path.relpath(Path(image).absolute(), folder) for image in episodes.items.content)
        episodes = replace(episodes, items=replace(episodes.items, content=content))
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        for row in range(len(episodes)):
            stream.write(json.dumps(_record(episodes, row), ensure_ascii=False) + "\n")


def _record(episodes: Episodes, row: int) -> dict[str, Any]:
    answers = episodes.answers
    return {
        "id": episodes.ids[row],
        "support": [_item(episodes.items, i) for i in episodes.support[row]],
        "query": _item(episodes.items, int(episodes.query[row])),
        "question": episodes.question,
        "answers": list(answers),
        "labels": {
            name: [answers[code] for code in episodes.labels[row, :, k]] for k, name in enumerate(episodes.criteria)
        },
        "truth": {name: answers[episodes.truth[row, k]] for k, name in enumerate(episodes.criteria)},
    }


def _item(items: Items, position: int) -> dict[str, Any]:
    written: dict[str, Any] = {items.kind: items.content[position]}
    if items.features is not None and items.kind == "row":
        written["features"] = items.features[position].tolist()
    return {**written, "category": items.category[position]}


class _Line(NamedTuple):
    """One episode as it stands in a file, before its items are gathered into a pool."""

    where: str
    id: str
    support: Sequence[Mapping[str, Any]]
    query: Mapping[str, Any]
    labels: Mapping[str, Sequence[str]]
    truth: Mapping[str, str]


def read_episodes(path: str | os.PathLike[str], spec: CriterionSpec | None = None) -> Episodes:
    """Read a benchmark that :func:`write_episodes`, or somebody else, has written.

    Parameters
    ----------
    path : path
        JSON Lines, also gzipped. Where `answers` is left out, it is the set of answers that occur, in alphabetical
        order. Relative image paths are relative to the file.
    spec : CriterionSpec, optional
        If given, the stored labels must be those of the criteria.

    Raises
    ------
    InputError
        A field is missing or of another type, an answer is outside the set, two episodes have the same id, the criteria
        or the number of examples differ from line to line, or the labels are not those of `spec`.
    """
    table = read_table(path)
    lines = [
        _parsed(record, f"{path}, line {number}") for number, record in enumerate(table.to_dict("records"), start=1)
    ]
    first = table.iloc[0]
    answers = first.get("answers")
    known = sorted({answer for line in lines for answer in (*line.truth.values(), *_flat(line.labels.values()))})
    answers = check_answers(answers if isinstance(answers, list) else known, str(path))
    question = first.get("question")
    if not isinstance(question, str) or not question.strip():
        raise InputError(f"{path}, line 1: there is no question; write what is asked of every item")
    for number, other in enumerate(table["question"], start=1):
        if other != question:
            raise InputError(f"{path}, line {number}: the question is {other!r}, and {question!r} in line 1; keep one")
    episodes = _gathered(lines, question, answers, Path(path).parent)
    if spec is not None:
        _check_against(episodes, spec, str(path))
    return episodes


def _parsed(record: Mapping[Any, Any], where: str) -> _Line:
    for name, kind in {"id": str, "support": list, "query": dict, "labels": dict, "truth": dict}.items():
        value = record.get(name)
        if name == "id" and isinstance(value, int):
            value = str(value)
        if not isinstance(value, kind):
            expected = {"str": "a text", "list": "a list", "dict": "a mapping"}[kind.__name__]
            raise InputError(f"{where}: {name} is {value!r}; expected {expected}")
    labels, truth = record["labels"], record["truth"]
    for name in {**labels, **truth}:
        if name not in labels or name not in truth:
            missing = "labels" if name not in labels else "truth"
            raise InputError(f"{where}: criterion {name!r} is missing in {missing}; every criterion needs both")
        if not isinstance(labels[name], list) or len(labels[name]) != len(record["support"]):
            raise InputError(f"{where}: labels of {name!r} must be a list of {len(record['support'])}, one an example")
    for item in (*record["support"], record["query"]):
        if not isinstance(item, dict) or sum(kind in item for kind in KINDS) != 1:
            raise InputError(f"{where}: an item is {item!r}; expected a mapping with one of {', '.join(KINDS)}")
    return _Line(where, str(record["id"]), record["support"], record["query"], labels, truth)


def _gathered(lines: Sequence[_Line], question: str, answers: tuple[str, ...], root: Path) -> Episodes:
    """One pool of items, and arrays of positions in it."""
    first = lines[0]
    kind = next(kind for kind in KINDS if kind in first.query)
    criteria, n_support = tuple(first.truth), len(first.support)
    code = {answer: number for number, answer in enumerate(answers)}
    pool: dict[str, tuple[int, Mapping[str, Any]]] = {}
    support, query, labels, truth = [], [], [], []
    seen: dict[str, str] = {}
    for line in lines:
        before = seen.setdefault(line.id, line.where)
        if before != line.where:
            raise InputError(f"{line.where}: the id {line.id!r} was there before, in {before}; ids must differ")
        if set(line.truth) != set(criteria):
            raise InputError(f"{line.where}: the criteria are {', '.join(line.truth)}; expected {', '.join(criteria)}")
        if len(line.support) != n_support:
            raise InputError(f"{line.where}: {len(line.support)} examples; expected {n_support}, as in the first line")
        places = [_place(item, kind, pool, line.where) for item in (*line.support, line.query)]
        if places[-1] in places[:-1]:
            raise InputError(f"{line.where}: the query {line.query[kind]!r} is among its own examples; take another")
        support.append(places[:-1])
        query.append(places[-1])
        labels.append([[_code(line.labels[k][i], code, line.where) for k in criteria] for i in range(n_support)])
        truth.append([_code(line.truth[k], code, line.where) for k in criteria])
    records = [record for _, record in pool.values()]
    content = tuple(
        str(root / record[kind]) if kind == "image" and not Path(record[kind]).is_absolute() else str(record[kind])
        for record in records
    )
    items = Items(kind, content, tuple(str(record.get("category", "")) for record in records))
    if any("features" in record for record in records):
        items = items.with_features(_matrix([record.get("features") for record in records], first.where))
    return Episodes(
        question, answers, criteria, items, tuple(line.id for line in lines), _array(support, (-1, n_support)),
        _array(query, (-1,)), _array(labels, (-1, n_support, len(criteria))), _array(truth, (-1, len(criteria))),
    )  # fmt: skip


def _place(item: Mapping[str, Any], kind: Kind, pool: dict[str, tuple[int, Mapping[str, Any]]], where: str) -> int:
    name = item.get(kind)
    if not isinstance(name, str):
        raise InputError(f"{where}: an item has no {kind} that is a text, as the first line has; keep to one kind")
    position, before = pool.setdefault(name, (len(pool), item))
    if before.get("category") != item.get("category"):
        raise InputError(
            f"{where}: {name!r} has the category {item.get('category')!r} here and {before.get('category')!r} before; "
            "keep one"
        )
    return position


def _code(answer: Any, code: Mapping[str, int], where: str) -> int:
    if answer not in code:
        raise InputError(f"{where}: the answer {answer!r} is not in the set; expected one of {', '.join(code)}")
    return code[answer]


def _matrix(rows: Sequence[Any], where: str) -> Any:
    try:
        return np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{where}: features must be lists of numbers, equally long for every item") from None


def _array(values: Sequence[Any], shape: tuple[int, ...]) -> Codes:
    return np.asarray(values, dtype=np.int64).reshape(shape)


def _flat(lists: Iterable[Sequence[Any]]) -> list[Any]:
    return [value for values in lists for value in values if isinstance(value, str)]


def _check_against(episodes: Episodes, spec: CriterionSpec, where: str) -> None:
    for row in range(len(episodes)):
        positions = [*episodes.support[row], episodes.query[row]]
        for k, name in enumerate(episodes.criteria):
            if name not in spec.criteria:
                raise InputError(f"{where}: the criterion {name!r} is not in the spec; it has {', '.join(spec.names)}")
            stored = [*episodes.labels[row, :, k], episodes.truth[row, k]]
            for position, code in zip(positions, stored, strict=True):
                category = episodes.items.category[position]
                wanted = spec.criteria[name].get(category)
                if episodes.answers[code] != wanted:
                    raise InputError(
                        f"{where}, episode {episodes.ids[row]!r}: {episodes.items.content[position]!r} ({category}) is "
                        f"labelled {episodes.answers[code]!r} under {name!r}, and the spec says {wanted!r}"
                    )


# ------------------------------------------------------------------------------------------------------ CC-Bench

#: Where CC-Bench's JSON has what an episode needs. The public material does not name the fields: pass your own.
CC_BENCH_FIELDS = {"id": "id", "support": "support", "labels": "labels", "query": "query", "truth": "answer"}


def read_cc_bench(
    folder: str | os.PathLike[str], *, question: str, fields: Mapping[str, str] | None = None
) -> Episodes:
    """Read one domain of a data set in the layout of CC-Bench.

    The folder holds ``imgs/``, and for each criterion K the lists ``test_K.json`` (episodes without the answer) and
    ``gt_K.json`` (the answers). Item i is the same episode in every list.

    Parameters
    ----------
    folder : path
    question : str
    fields : mapping, optional
        Names in the files of ``id``, ``support`` (list of image names), ``labels`` (list of answers), ``query`` (an
        image name) and ``truth``; the defaults are `CC_BENCH_FIELDS`, a guess.

    Raises
    ------
    InputError
        A file or field is missing, the lists differ in length, or the images differ between criteria.
    """
    root = Path(folder)
    names = {**CC_BENCH_FIELDS, **(fields or {})}
    tests = {path.stem.removeprefix("test_"): path for path in sorted(root.glob("test_*.json"))}
    if not tests:
        raise InputError(f"{root} holds no test_*.json; expected test_A.json, gt_A.json, test_B.json, …")
    asked = {k: read_table(path).to_dict("records") for k, path in tests.items()}
    given = {k: read_table(root / f"gt_{k}.json").to_dict("records") for k in tests}
    n = len(next(iter(asked.values())))
    for k in tests:
        if len(asked[k]) != n or len(given[k]) != n:
            raise InputError(
                f"{root}: test_{k}.json has {len(asked[k])} items and gt_{k}.json {len(given[k])}; expected {n}"
            )
    lines = [_cc_bench_line({k: (asked[k][row], given[k][row]) for k in tests}, names, row, root) for row in range(n)]
    known = sorted({answer for line in lines for answer in (*line.truth.values(), *_flat(line.labels.values()))})
    return _gathered(lines, question, check_answers(known, str(root)), root / "imgs")


def _cc_bench_line(
    records: Mapping[str, tuple[Mapping[Any, Any], Mapping[Any, Any]]], names: Mapping[str, str], row: int, root: Path
) -> _Line:
    def field(k: str, name: str) -> Any:
        record = records[k][1] if name == "truth" else records[k][0]
        if names[name] not in record:
            has = ", ".join(map(str, record))
            file = f"gt_{k}.json" if name == "truth" else f"test_{k}.json"
            raise InputError(
                f"{root / file}, item {row + 1}: no field {names[name]!r}; it has {has}; name it in fields"
            )
        return record[names[name]]

    first = next(iter(records))
    where = f"{root}, item {row + 1}"
    support, query = list(field(first, "support")), field(first, "query")
    for k in records:
        if list(field(k, "support")) != support or field(k, "query") != query:
            raise InputError(f"{where}: the images under {k!r} are not those under {first!r}; only labels may differ")
        if len(field(k, "labels")) != len(support):
            raise InputError(f"{where}: {len(support)} images and {len(field(k, 'labels'))} labels under {k!r}")
    identity = records[first][0].get(names["id"], row + 1)
    return _Line(
        where,
        str(identity),
        [{"image": name} for name in support],
        {"image": query},
        {k: list(field(k, "labels")) for k in records},
        {k: field(k, "truth") for k in records},
    )


# --------------------------------------------------------------------------------------------------- predictions


def read_predictions(
    source: str | os.PathLike[str] | pd.DataFrame, episodes: Episodes, *, where: str = "predictions"
) -> Codes:
    """Read answers to every episode under every criterion.

    Parameters
    ----------
    source : path or DataFrame
        A row for each answer: ``id``, ``criterion``, ``answer``. The answer may be a sentence; see
        :func:`parse_answer`. An empty cell is an answer that cannot be read.
    episodes : Episodes
    where : str
        Names a DataFrame in messages.

    Returns
    -------
    (n, n_criteria) int64
        Codes of answers; `UNPARSED` where there is none to be read.

    Raises
    ------
    InputError
        An answer is missing, is there twice, or belongs to no episode or criterion.
    """
    if isinstance(source, (str, os.PathLike)):
        source, where = read_table(source), str(source)
    table = check_columns(
        source, {"id": "text", "criterion": "text", "answer": "text"}, where=where, allow_missing=["answer"]
    )
    row_of = {name: row for row, name in enumerate(episodes.ids)}
    predictions = np.full(episodes.truth.shape, UNPARSED, dtype=np.int64)
    is_given = np.zeros(episodes.truth.shape, dtype=bool)
    columns = (table["id"], table["criterion"], table["answer"])
    for number, (identity, criterion, answer) in enumerate(zip(*columns, strict=True), start=1):
        if identity not in row_of:
            raise InputError(
                f"{where}, row {number}: there is no episode {identity!r}; ids run from {episodes.ids[0]!r}"
            )
        if criterion not in episodes.criteria:
            raise InputError(
                f"{where}, row {number}: criterion {criterion!r} is not in the benchmark; it has "
                f"{', '.join(episodes.criteria)}"
            )
        place = row_of[identity], episodes.criteria.index(criterion)
        if is_given[place]:
            raise InputError(f"{where}, row {number}: {identity!r} was answered under {criterion!r} before; keep one")
        is_given[place] = True
        predictions[place] = parse_answer(cast("str | None", answer), episodes.answers)
    _check_complete(is_given, episodes, where)
    return predictions


def _check_complete(is_given: Any, episodes: Episodes, where: str) -> None:
    if is_given.all():
        return
    column = int(np.argwhere(~is_given)[0, 1])
    criterion = episodes.criteria[column]
    missing = [episodes.ids[i] for i in np.flatnonzero(~is_given[:, column])]
    shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
    raise InputError(f"{where}: no answer under criterion {criterion!r} to {shown}; every item needs one per criterion")
