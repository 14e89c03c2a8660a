"""What determines a run, written before it starts, and the rows that are finished: all that resuming needs."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay._core.files import replacing, write_text
from assay.bench.worker import Row

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from assay.bench.spec import Parameter, Scale, Trial

SCHEMA = 1
PLAN_FILE = "plan.json"
FINISHED_FILE = "finished.jsonl"


@dataclass(frozen=True)
class Plan:
    """Everything that determines the numbers of a run.

    Parameters
    ----------
    slug, part : str
    scale : str
    seed : int
    n_cases : int
        How many cases the trial is asked for.
    cases : int or None
        The number that the user asked for, for every part; None: the trial's own for the scale.
    params : mapping
        Of this part, defaults included.
    given : mapping
        The parameters that the user set, for any part.
    data_path : str or None
        Absolute path of the user's data; None for the embedded example.
    data_sha256 : str or None
        Of the file or folder that the trial read.
    arms, metrics, also : sequence of str
    created : str
        When the run was started (ISO 8601, UTC).
    command : str
        The line that repeats it.
    """

    slug: str
    part: str
    scale: Scale
    seed: int
    n_cases: int
    cases: int | None
    params: Mapping[str, Parameter]
    given: Mapping[str, Parameter]
    data_path: str | None
    data_sha256: str | None
    arms: Sequence[str]
    metrics: Sequence[str]
    also: Sequence[str]
    created: str
    command: str

    def save(self, folder: Path) -> None:
        """Write ``plan.json``."""
        text = json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2, ensure_ascii=False, allow_nan=False)
        write_text(folder / PLAN_FILE, text + "\n")

    @classmethod
    def load(cls, folder: Path) -> Plan:
        """Read ``plan.json``.

        Raises
        ------
        InputError
            There is none, or it is not one that this version wrote.
        """
        file = folder / PLAN_FILE
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            schema = values.pop("schema")
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(f"{folder} holds no {PLAN_FILE}, so there is no run to resume; start a new one") from None
        except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
            raise InputError(f"{file} cannot be read ({error}); start a new run") from None
        if schema != SCHEMA:
            raise InputError(f"{file} has schema {schema!r}, expected {SCHEMA}; start a new run")
        try:
            return cls(**values)
        except TypeError as error:
            raise InputError(f"{file} is not a plan as we write it ({error}); start a new run") from None

    def check(self, trial: Trial, folder: Path) -> None:
        """Refuse to go on with a run of another trial, or of this one before it changed."""
        mine, other = (
            f"{slug!r}" + (f", part {part!r}" if part else "")
            for slug, part in [(self.slug, self.part), (trial.slug, trial.part)]
        )
        if mine != other:
            raise InputError(f"{folder} is a run of {mine}, not of {other}; resume it under that name")
        arms, metrics = [arm.name for arm in trial.arms], [metric.name for metric in trial.metrics]
        if [list(self.arms), list(self.metrics)] != [arms, metrics]:
            raise InputError(f"{folder}: the arms or metrics of {self.slug!r} have changed since; start a new run")


def parameters(given: Mapping[str, Any], trials: Sequence[Trial]) -> dict[str, Parameter]:
    """Check parameters against those that any of `trials` knows, and convert them to the type of the default.

    Raises
    ------
    InputError
        An unknown name, or a value that is not of the type of the default.
    """
    known = {name: default for trial in reversed(trials) for name, default in trial.params.items()}
    converted = {}
    for name, value in given.items():
        if name not in known:
            has = f"it has {', '.join(sorted(known))}" if known else "it has none"
            raise InputError(f"{trials[0].slug} has no parameter {name!r}; {has}")
        converted[name] = _converted(name, value, known[name])
    return converted


def _converted(name: str, value: Any, default: Parameter) -> Parameter:
    if isinstance(default, bool):
        if str(value).lower() not in ("true", "false"):
            raise InputError(f"parameter {name}: {value!r} is neither true nor false")
        return str(value).lower() == "true"
    if isinstance(default, str):
        return str(value)
    kind = type(default)
    try:
        number = kind(str(value))  # through text, so that 2.5 is not silently cut to 2, nor True taken for 1
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        expected = "a whole number" if kind is int else "a number"
        raise InputError(f"parameter {name}: {value!r} is not {expected}; its default is {default!r}")
    return number


def fingerprint(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file, or of a folder: of the names and SHA-256 of all files in it, in order of their names."""
    source = Path(path)
    try:
        if source.is_file():
            with source.open("rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()
        digest = hashlib.sha256()
        for file in sorted(file for file in source.rglob("*") if file.is_file()):
            digest.update(f"{file.relative_to(source).as_posix()}\0{fingerprint(file)}\n".encode())
        return digest.hexdigest()
    except PermissionError as error:
        raise InputError(f"{error.filename} cannot be read: permission denied") from None


def append(stream: IO[str], row: Row) -> None:
    """Add a finished row to ``finished.jsonl`` and hand it to the system at once."""
    # NaN ("does not apply", or no cost because the arm failed) is null: JSON has no NaN.
    values = {name: _null(value) for name, value in asdict(row).items()}
    values["metrics"] = {name: _null(value) for name, value in row.metrics.items()}
    stream.write(json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n")
    stream.flush()


def finished(folder: Path) -> list[Row]:
    """The rows that a run has finished. A last line that was cut off by the end of the process does not count.

    Raises
    ------
    InputError
        Another line is damaged.
    """
    file = folder / FINISHED_FILE
    if not file.exists():
        return []
    *lines, rest = file.read_bytes().split(b"\n")  # what follows the last newline is empty or cut off
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            values = json.loads(line)
            metrics = {name: _number(value) for name, value in values["metrics"].items()}
            costs = {name: _number(values[name]) for name in ("wall_s", "cpu_s", "peak_mib")}
            rows.append(Row(**{**values, **costs, "metrics": metrics}))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(f"{file}, line {number} is damaged; start a new run") from None
    if rest:  # the next row must not be written behind half a line
        with replacing(file) as temporary:
            temporary.write_bytes(b"".join(line + b"\n" for line in lines))
    return rows


def _null(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
