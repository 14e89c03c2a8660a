"""Read a run folder: the result, its cases and its parts, checked before anything is drawn."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from assay._core.errors import InputError
from assay._core.tables import read_table
from assay.bench.result import PICTURES_FILE, ArmSummary, MetricUsed, Result

if TYPE_CHECKING:
    import pandas as pd

COSTS = ("wall_s", "cpu_s", "peak_mib")


@dataclass(frozen=True)
class Run:
    """A finished run: its result, the table of its cases, its parts, and pictures as pairs of a title and HTML."""

    result: Result
    cases: pd.DataFrame
    parts: tuple[Run, ...]
    pictures: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        """The slug, and which part."""
        return f"{self.result.slug}, {self.result.part}" if self.result.part else self.result.slug

    @property
    def primary(self) -> MetricUsed:
        """The metric that the claim is about."""
        return next(metric for metric in self.result.metrics if metric.name == self.result.claim.metric)

    @property
    def arms(self) -> list[ArmSummary]:
        """The method, the strongest baseline, the other baselines."""
        return sorted(self.result.arms, key=lambda arm: (arm.baseline, arm.name != self.result.verdict.baseline))

    @property
    def method(self) -> ArmSummary:
        """The arm that is not a baseline."""
        return self.arms[0]

    @property
    def strongest(self) -> ArmSummary:
        """The baseline that the verdict speaks of."""
        return self.arms[1]


def read_run(folder: Path) -> Run:
    """Read the run in `folder`.

    A report is also made of runs that others sent, so nothing in the files is taken on trust.

    Raises
    ------
    InputError
        The folder or a file is missing, not readable, or not what a run of this version writes.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; give the folder that assay try wrote")
    result = Result.load(folder)
    file = folder / "result.json"
    for misfit in _misfits(result, Result, ""):
        raise InputError(f"{file}: {misfit}; run the trial again")
    _check_names(result, file)
    cases = _cases(_inside(folder, result.cases_file, file), [metric.name for metric in result.metrics])
    parts = tuple(read_run(_inside(folder, name, file)) for name in result.also)
    return Run(result, cases, parts, _pictures(folder / PICTURES_FILE))


def _pictures(file: Path) -> tuple[tuple[str, str], ...]:
    if not file.is_file():
        return ()
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        pictures = tuple((one["title"], one["html"]) for one in found)
    except (ValueError, TypeError, KeyError):
        pictures = ((None, None),)
    if not all(isinstance(text, str) for picture in pictures for text in picture):
        raise InputError(f"{file}: expected a list of objects with the texts title and html; run the trial again")
    return pictures


def _check_names(result: Result, file: Path) -> None:
    """The names by which one part of a result speaks of another must exist."""
    metrics = [metric.name for metric in result.metrics]
    baselines = [arm.name for arm in result.arms if arm.baseline]
    if len(result.arms) - len(baselines) != 1:
        raise InputError(f"{file}, arms: expected exactly one arm that is not a baseline; run the trial again")
    if result.verdict.baseline not in baselines:
        raise InputError(
            f"{file}, verdict.baseline: {result.verdict.baseline!r} is not a baseline; run the trial again"
        )
    if result.claim.metric not in metrics:
        raise InputError(f"{file}, claim.metric: {result.claim.metric!r} is not a metric; run the trial again")
    for arm in result.arms:
        absent = [name for name in metrics if name not in arm.metrics]
        if absent:
            raise InputError(f"{file}, arms: {arm.name!r} has no metric {absent[0]!r}; run the trial again")


def _inside(folder: Path, name: str, file: Path) -> Path:
    plain = Path(name).name == name and name not in ("", "..") and "\\" not in name
    if not plain or not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{file}: {name!r} is not a plain name inside the run's folder; run the trial again")
    return folder / name


def _cases(path: Path, metrics: list[str]) -> pd.DataFrame:
    import pandas as pd

    frame = read_table(path, {"case": "text", "arm": "text"})
    numeric = [*dict.fromkeys([*metrics, *COSTS])]
    absent = [name for name in [*numeric, "error"] if name not in frame.columns]
    if absent:
        raise InputError(f"{path}: no column {absent[0]!r}; run the trial again")
    twice = frame.duplicated(["case", "arm"])
    if twice.any():
        row = int(twice.to_numpy().argmax())
        arm, case = frame["arm"].iloc[row], frame["case"].iloc[row]
        raise InputError(f"{path}, row {row + 1}: arm {arm!r} has case {case!r} twice; run the trial again")
    for name in numeric:
        frame[name] = pd.to_numeric(frame[name], errors="coerce").astype("float64")
    return frame


def _misfits(value: Any, hint: Any, where: str) -> Iterator[str]:
    """What in `value` is not as the annotation `hint` says, as sentences."""
    origin, arguments = get_origin(hint), get_args(hint)
    if is_dataclass(hint) and isinstance(hint, type) and isinstance(value, hint):
        hints = get_type_hints(hint, localns=globals())
        for item in fields(hint):
            yield from _misfits(getattr(value, item.name), hints[item.name], f"{where}.{item.name}".lstrip("."))
    elif origin is tuple and isinstance(value, tuple):
        for number, item in enumerate(value, start=1):
            yield from _misfits(item, arguments[0], f"{where} {number}")
    elif origin is Mapping and isinstance(value, dict):
        for key, item in value.items():
            yield from _misfits(item, arguments[1], f"{where}.{key}")
    elif not _fits(value, hint):
        yield f"{where}: expected {_expected(hint)}, found {value!r}"


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin is Literal:
        return value in arguments
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, argument) for argument in arguments)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else origin or hint)


def _expected(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}
    arguments = get_args(hint) if get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    return " or ".join(names.get(argument, "an object") for argument in arguments)
