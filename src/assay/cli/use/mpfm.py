"""`assay use mpfm fit|score LOG…`: one model for the logs of several systems, from files or a stream."""

from __future__ import annotations

import gzip
import itertools
import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay._core.errors import InputError
from assay.cli.output import PICTURES, check_file, check_folder, check_table, save_picture

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.audit.mpfm import LogWindower, LogWindows, MPFMDetector

app = typer.Typer(add_completion=False, no_args_is_help=True)

WINDOWER = "windower.json"
LOGS = "A log, or NAME=PATH to name its system; also .gz. `-` reads stdin."


@app.callback()
def mpfm() -> None:
    """Detect anomalies in the logs of several systems with one model.

    Example: `assay use mpfm fit web=access.log db=postgres.log -o model && assay use mpfm score db=today.log -m model`
    """


@app.command()
def fit(
    logs: Annotated[list[str], typer.Argument(metavar="LOG...", help=LOGS)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the model.")] = Path("model"),
    size: Annotated[int, typer.Option("--size", help="Lines of a window.")] = 20,
    step: Annotated[int | None, typer.Option("--step", help="Lines to the next window; default: a quarter.")] = None,
    layout: Annotated[
        list[str] | None,
        typer.Option("--format", metavar="[NAME=]FORMAT", help="Such as '<Label> <Time> <Content>'; default: found."),
    ] = None,
    session: Annotated[
        str | None, typer.Option("--session", help="Windows are sessions: finds a line's key, such as 'blk_-?\\d+'.")
    ] = None,
    alarms: Annotated[float, typer.Option("--alarms", help="Share of normal windows that may raise an alarm.")] = 0.01,
    width: Annotated[int, typer.Option("--width", help="Width of the network.")] = 128,
    epochs: Annotated[str, typer.Option("--epochs", help="For prototypes, and for everything.")] = "10,20",
    demo_encoder: Annotated[
        bool, typer.Option("--demo-encoder", help="Embed messages by a sentence encoder, not by their trigrams.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed")] = 0,
) -> None:
    """Learn from mostly normal logs, in the order of time; lines that the log itself labels are left out.

    Example: `assay use mpfm fit bgl=BGL.log web=access.log -o model`
    """
    from assay._core.files import write_text
    from assay.audit.mpfm import LogWindower, LogWindows, MPFMDetector

    check_folder(out)
    if width < 8 or width % 8:
        raise InputError(f"--width {width}: expected a multiple of 8")
    if not 0 < alarms <= 0.5:
        raise InputError(f"--alarms {alarms}: expected a share above 0 and at most 0.5, such as 0.01")
    named = [_named(text) for text in logs]
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        raise InputError(f"two logs have the name {max(names, key=names.count)!r}; name them: NAME=PATH")
    windower = LogWindower(
        "session" if session else "sliding",
        size,
        max(1, size // 4) if step is None else step,
        session_regex=session,
        layout=_layouts(layout or [], names),
        encoder=_demo_encoder() if demo_encoder else None,
    )
    with _spoken_warnings():
        parts = [windower.fit_transform(_read(path), name) for name, path in named]
        windows = LogWindows.concat(parts)
        typer.echo(f"learning from {len(windows)} windows of {len(parts)} system{'s' * (len(parts) > 1)} …", err=True)
        detector = MPFMDetector(d=width, contamination=alarms, epochs=_epochs(epochs), random_state=seed).fit(windows)
    detector.save(out)
    write_text(out / WINDOWER, json.dumps(windower.to_dict(), ensure_ascii=False))
    for part, name in zip(parts, names, strict=True):
        labelled = "" if part.y is None else f", {int(part.y.sum())} labelled and left out"
        typer.echo(
            f"{name}: layout {windower.layouts_[name].name}, {len(windower.parsers_[name].templates)} templates, "
            f"{len(part)} windows{labelled}, threshold {detector.threshold_[name]:.2f}"
        )
    typer.echo(f"\nWritten: {out}")


@app.command()
def score(
    logs: Annotated[list[str], typer.Argument(metavar="LOG...", help=LOGS)],
    model: Annotated[Path, typer.Option("--model", "-m", help="Folder that `fit` wrote.")] = Path("model"),
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Scores as a table, one row a window or line.")
    ] = None,
    per: Annotated[str, typer.Option("--per", help="window or line.")] = "window",
    step: Annotated[
        int | None, typer.Option("--step", min=1, help="Lines to the next window; default: the size.")
    ] = None,
    top: Annotated[int, typer.Option("--top", min=0, help="Explain so many of the worst alarms of each log.")] = 3,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object for every window (or line) on stdout, as it is judged.")
    ] = False,
    chunk: Annotated[
        int, typer.Option("--chunk", min=1, help="Lines that are judged at a time; a stream needs few.")
    ] = 20_000,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the lines of the worst alarm.")] = None,
) -> None:
    """Score a log's windows or lines, with the offending lines and why.

    Example: `tail -f app.log | assay use mpfm score app=- -m model --json --chunk 100`

    A system that the model does not know is judged against the first 20,000 lines of its own log: prototypes are those
    of the other systems, and what is usual is the median of these lines.
    """
    import pandas as pd

    from assay._core.tables import write_table
    from assay.audit.mpfm import LogWindower, MPFMDetector

    if per not in ("window", "line"):
        raise InputError(f"--per {per!r}: expected window or line")
    check_table(out)
    check_file(plot, PICTURES, "a picture")
    named = [_named(log) for log in logs]
    for _, path in named:  # before any work, not when it is its turn
        _check_log(path)
    detector = MPFMDetector.load(model)
    if not (model / WINDOWER).is_file():
        raise InputError(f"{model / WINDOWER} is missing; fit the model with `assay use mpfm fit`")
    state = json.loads((model / WINDOWER).read_text(encoding="utf-8"))
    encoder = None if state["encoder"] == "hashed trigrams" else _demo_encoder()
    windower = LogWindower.from_dict(state, encoder)
    tables: list[pd.DataFrame] = []
    written: list[Path] = []
    with _spoken_warnings():
        for name, path in named:
            judged = _Judged(name, top)
            lines = _lines(path)
            if name not in detector.domains_:
                lines = _take_in(detector, windower, lines, name)
            for first_line, part in _chunks(lines, chunk, windower.size):
                windows = windower.transform(part, name, first_line=first_line, step=step or windower.size)
                table = judged.add(detector, windows, per)
                if as_json:
                    for record in table.to_dict("records"):
                        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
                    sys.stdout.flush()
                if out is not None:
                    tables.append(table)
            if judged.n_windows == 0:
                raise InputError(f"{path}: the log has no lines")
            worst = judged.explanations(detector)
            typer.echo(judged.summary(detector), err=as_json)
            for explanation in worst:
                typer.echo("\n" + explanation.summary(), err=as_json)
            if plot is not None and worst:
                save_picture(worst[0].plot(), plot)
                written = [plot]
    if plot is not None and not written:
        typer.echo(f"no alarm was explained: {plot} is not drawn", err=True)
    if out is not None:
        write_table(pd.concat(tables, ignore_index=True), out)
        written = [out, *written]
    if written:
        typer.echo(f"\nWritten: {', '.join(map(str, written))}", err=as_json)


class _Judged:
    """What was said of a log so far: counts, and the worst windows."""

    def __init__(self, name: str, top: int) -> None:
        self.name, self.top = name, top
        self.n_windows = self.n_alarms = 0
        self._worst: list[tuple[float, LogWindows]] = []

    def add(self, detector: MPFMDetector, windows: LogWindows, per: str) -> Any:
        """Judge windows; a row each, or a row for each of their lines."""
        import numpy as np
        import pandas as pd

        scores = detector.score_samples(windows)
        calibration = detector.calibration_[self.name]
        alarm = scores > calibration.threshold
        self.n_windows += len(windows)
        self.n_alarms += int(alarm.sum())
        for i in np.argsort(-scores)[: self.top]:
            if alarm[i]:
                self._worst.append((float(scores[i]), windows[[i]]))
        self._worst = sorted(self._worst, key=lambda one: -one[0])[: self.top]
        mask = windows.mask
        first, last = windows.lines[:, 0], windows.lines[np.arange(len(windows)), mask.sum(axis=1) - 1]
        if per == "window":
            return pd.DataFrame(
                {
                    "system": self.name,
                    "first_line": windows.numbers[first],
                    "last_line": windows.numbers[last],
                    "time": _times(windows.times[first]),
                    "score": scores.round(4),
                    "p_value": calibration.p_value(scores).round(6),
                    "alarm": alarm.astype(int),
                }
            )
        places = windows.lines[mask]
        best = np.full(places.max() + 1, -np.inf)
        np.maximum.at(best, places, np.repeat(scores, mask.sum(axis=1)))
        kept = np.flatnonzero(np.isfinite(best))
        return pd.DataFrame(
            {
                "system": self.name,
                "line": windows.numbers[kept],
                "time": _times(windows.times[kept]),
                "score": best[kept].round(4),
                "alarm": (best[kept] > calibration.threshold).astype(int),
                "message": [windows.messages[place] for place in kept],
            }
        )

    def explanations(self, detector: MPFMDetector) -> list[Any]:
        return [detector.explain(window, 0) for _, window in self._worst]

    def summary(self, detector: MPFMDetector) -> str:
        borrowed = ", judged against itself" if detector.calibration_[self.name].borrowed else ""
        return f"{self.name}: {self.n_alarms} alarms in {self.n_windows} windows{borrowed}"


def _times(times: Any) -> Any:
    import pandas as pd

    stamps = pd.Series(times).dt
    whole, without_year = (stamps.strftime(form).fillna("") for form in ("%Y-%m-%dT%H:%M:%S", "%m-%dT%H:%M:%S"))
    return whole.where(~(stamps.year < 1970), without_year)  # a log that has no years is counted from 1900


def _take_in(detector: MPFMDetector, windower: LogWindower, lines: Iterator[str], name: str) -> Iterator[str]:
    """Make a new system known by the first lines of its own log; give all lines back."""
    first = list(itertools.islice(lines, 20_000))
    if not first:
        raise InputError(f"{name}: the log has no lines")
    windower.fit(first, name)
    detector.add_domain(windower.transform(first, name, step=max(1, windower.size // 4)), name, learn=False)
    return itertools.chain(first, lines)


def _chunks(lines: Iterator[str], chunk: int, size: int) -> Iterator[tuple[int, list[str]]]:
    """Chunks of whole windows, with the number of their first line."""
    n_lines = max(1, chunk // size) * size
    first_line = 1
    while part := list(itertools.islice(lines, n_lines)):
        if any(line.strip() for line in part):
            yield first_line, part
        first_line += len(part)


def _named(text: str) -> tuple[str, str]:
    name, sign, path = text.partition("=")
    if sign and name and path:
        return name, path
    if text == "-":
        raise InputError("stdin has no name; write NAME=- with the name of its system")
    return Path(text).name.split(".")[0], text


def _check_log(path: str) -> None:
    if Path(path).is_dir():
        raise InputError(f"{path} is a folder; give a log, or NAME=PATH, and the folder of a model with -m")
    if path != "-" and not Path(path).is_file():
        raise InputError(f"{path}: no such file; give a log, or NAME=PATH")


def _lines(path: str) -> Iterator[str]:
    """Lines of a file or of stdin, decoded whatever they hold."""
    if path == "-":
        yield from (line.decode("utf-8", errors="replace") for line in sys.stdin.buffer)
        return
    _check_log(path)
    n_replaced = 0
    with gzip.open(path, "rb") if path.endswith(".gz") else Path(path).open("rb") as file:
        try:
            for raw in file:
                line = raw.decode("utf-8", errors="replace")
                n_replaced += "\ufffd" in line
                yield line
        except (gzip.BadGzipFile, EOFError) as error:
            raise InputError(f"{path}: not a whole gzip file ({error})") from None
    if n_replaced:
        warnings.warn(f"{path}: {n_replaced} lines are not UTF-8; what could not be read was replaced", stacklevel=2)


def _read(path: str) -> list[str]:
    """All lines of a log; what is mostly no text is refused, a few broken lines are not."""
    lines = list(_lines(path))
    n_broken = sum("\ufffd" in line or "\0" in line for line in lines)
    if n_broken > len(lines) / 2:
        raise InputError(f"{path}: {n_broken} of {len(lines)} lines are no text; give a log")
    return lines


def _layouts(given: list[str], names: list[str]) -> str | dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, sign, layout = text.partition("=")
        if sign and name in names:
            found[name] = layout
        else:
            found |= {name: text for name in names if name not in found}
    return found or "auto"


def _epochs(text: str) -> tuple[int, int]:
    try:
        first, second = map(int, text.split(","))
    except ValueError:
        raise InputError(f"--epochs takes two whole numbers, such as 10,20, not {text!r}") from None
    if first < 0 or second < 1:
        raise InputError(f"--epochs {text}: expected 0 or more, and 1 or more")
    return first, second


def _demo_encoder() -> Any:
    from assay.models import demo_encoder

    return demo_encoder()


class _spoken_warnings(warnings.catch_warnings):  # noqa: N801, used as a verb
    """Say each warning once, as a line on stderr."""

    def __init__(self) -> None:
        super().__init__(record=False)

    def __enter__(self) -> None:
        super().__enter__()
        said: set[str] = set()

        def show(message: Warning | str, *_: Any, **__: Any) -> None:
            if str(message) not in said:
                said.add(str(message))
                typer.echo(f"warning: {message}", err=True)

        warnings.simplefilter("always")
        warnings.showwarning = show
