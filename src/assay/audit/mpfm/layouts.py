"""Tell a line's header (time, label, process) from its message."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from assay._core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: Characters of a line that are read; one line of a broken log can be a gigabyte.
LONGEST_LINE = 4096

_MONTH, _CLOCK = r"[A-Z][a-z]{2} +\d{1,2}", r"\d\d:\d\d:\d\d"
_PROCESS = r"(?:[^\s:\[]+(?:\[\d+\])?: )?"


class Parsed(NamedTuple):
    """Lines without their headers.

    `labels` is None where the layout has none; `times` holds NaT where a line has none.
    """

    content: list[str]
    times: NDArray[np.datetime64]
    labels: NDArray[np.int8] | None
    n_unparsed: int
    n_truncated: int


@dataclass(frozen=True)
class Layout:
    """How the lines of a log are laid out.

    Parameters
    ----------
    name : str
    pattern : str
        Regular expression with the group ``content`` and, where there are any, ``time`` and ``label`` ("-": normal).
        The words ``JSON`` and ``plain`` stand for one JSON object a line and for no header.
    time_format : str
        For `pandas.to_datetime`; ``"epoch"``: seconds; empty: no time.
    """

    name: str
    pattern: str
    time_format: str = ""


LAYOUTS: tuple[Layout, ...] = (
    Layout("json", "JSON"),
    Layout(
        "bgl", r"(?P<label>\S+) (?P<time>\d{9,10}) \S+ \S+ \d{4}-\d\d-\d\d-\S+ \S+ \S+ \S+ \S+ (?P<content>.*)", "epoch"
    ),
    Layout(
        "thunderbird",
        rf"(?P<label>\S+) (?P<time>\d{{9,10}}) \S+ \S+ {_MONTH} {_CLOCK} \S+ {_PROCESS}(?P<content>.*)",
        "epoch",
    ),
    Layout("hdfs", r"(?P<time>\d{6} \d{6}) \d+ [A-Z]+ \S+: (?P<content>.*)", "%y%m%d %H%M%S"),
    Layout("spark", rf"(?P<time>\d\d/\d\d/\d\d {_CLOCK}) [A-Z]+ \S+: (?P<content>.*)", "%y/%m/%d %H:%M:%S"),
    Layout(
        "log4j",
        rf"(?P<time>\d{{4}}-\d\d-\d\d {_CLOCK},\d{{3}}) (?:- )?[A-Z]+ +\[.*?\] +"
        r"(?:- |[\w.$]+: )(?P<content>.*)",
        "%Y-%m-%d %H:%M:%S,%f",
    ),
    Layout(
        "zookeeper",
        rf"(?P<time>\d{{4}}-\d\d-\d\d {_CLOCK},\d{{3}}) (?:- )?[A-Z]+ +\[.*\] - (?P<content>.*)",
        "%Y-%m-%d %H:%M:%S,%f",
    ),
    Layout(
        "apache",
        rf"\[(?P<time>[A-Z][a-z]{{2}} {_MONTH} {_CLOCK} \d{{4}})\] \[\w+\] (?P<content>.*)",
        "%a %b %d %H:%M:%S %Y",
    ),
    Layout("access", r"\S+ \S+ \S+ \[(?P<time>[^\]]+)\] (?P<content>\".*)", "%d/%b/%Y:%H:%M:%S %z"),
    Layout("hpc", r"\d+ \S+ \S+ \S+ (?P<time>\d{9,10}) \d+ (?P<content>.*)", "epoch"),
    Layout("syslog", rf"(?P<time>{_MONTH} {_CLOCK}) \S+ {_PROCESS}(?P<content>.*)", "%b %d %H:%M:%S"),
    Layout("iso", rf"(?P<time>\d{{4}}-\d\d-\d\d[T ]{_CLOCK})(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)? (?P<content>.*)", "iso"),
    Layout("plain", "plain"),
)
_BY_NAME = {layout.name: layout for layout in LAYOUTS}
_MESSAGE_KEYS = ("MESSAGE", "message", "msg", "log", "Content", "EventTemplate")
_TIME_KEYS = ("__REALTIME_TIMESTAMP", "timestamp", "time", "ts", "@timestamp")


def detect_layout(lines: Sequence[str]) -> Layout:
    """Choose the layout that fits most of the first thousand lines; the earlier in the list where two fit alike.

    Examples
    --------
    >>> detect_layout(["Jun 14 15:16:01 combo sshd[19939]: check pass; user unknown"]).name
    'syslog'
    """
    sample = [line for line in lines[:1000] if line.strip()]
    shares = [sum(_match(layout, line) is not None for line in sample) for layout in LAYOUTS[:-1]]
    best = int(np.argmax(shares))
    return LAYOUTS[best] if sample and shares[best] > 0.9 * len(sample) else LAYOUTS[-1]


def layout_of(text: str, lines: Sequence[str] = ()) -> Layout:
    r"""Turn what a user gives into a layout: ``auto``, the name of a known one, or ``"<Time> <Level> <Content>"``.

    In a format string a field is a run of characters up to what follows it; ``<Time>``, ``<Label>`` and ``<Content>``
    are used, other fields are left out.

    Raises
    ------
    InputError
        Neither a known name nor a format string with ``<Content>``.

    Examples
    --------
    >>> layout_of("<Time>|<Level>|<Content>").pattern
    '(?P<time>.*?)\\|.*?\\|(?P<content>.*)'
    """
    if text == "auto":
        return detect_layout(lines)
    if text in _BY_NAME:
        return _BY_NAME[text]
    if "<Content>" not in text:
        raise InputError(f"log format {text!r}: expected auto, one of {', '.join(_BY_NAME)}, or a format string with "
                         "<Content>, such as '<Time> <Level> <Content>'")  # fmt: skip
    pieces = []
    for piece in re.split(r"(<\w+>)", text):
        if piece in ("<Time>", "<Timestamp>"):
            pieces.append("(?P<time>.*?)")
        elif piece == "<Label>":
            pieces.append(r"(?P<label>\S+?)")
        elif piece == "<Content>":
            pieces.append("(?P<content>.*)")
        elif re.fullmatch(r"<\w+>", piece):
            pieces.append(".*?")
        else:
            pieces.append(re.sub(r"(?:\\ )+", r"\\s+", re.escape(piece)))
    return Layout(text, "".join(pieces), "any")


def parse_lines(lines: Sequence[str], layout: Layout, where: str = "log") -> Parsed:
    """Strip headers.

    Parameters
    ----------
    lines : sequence of n str
    layout : Layout
    where : str
        Name of the file, for messages.

    Returns
    -------
    Parsed
        A line that does not fit is kept whole as a message (stack traces, continued lines).

    Raises
    ------
    InputError
        No line fits, or fewer than half of those that a format string was given for.
    """
    content: list[str] = []
    times: list[Any] = []
    labels: list[str] = []
    unparsed: list[str] = []
    n_truncated = 0
    match = _matcher(layout)
    for line in lines:
        text = line.rstrip("\r\n")
        if len(text) > LONGEST_LINE:
            text, n_truncated = text[:LONGEST_LINE], n_truncated + 1
        found = match(text)
        if found is None:
            if text.strip():
                unparsed.append(text)
            content.append(text)
            times.append(None)
            labels.append("-")
            continue
        content.append(found[0])
        times.append(found[1])
        labels.append(found[2] or "-")
    if len(unparsed) > len(lines) / 2:
        shown = "; ".join(repr(text[:80]) for text in unparsed[:3])
        raise InputError(f"{where}: {len(unparsed)} of {len(lines)} lines do not fit the format {layout.name!r} "
                         f"({shown}); give a format string such as '<Time> <Level> <Content>'")  # fmt: skip
    has_labels = "(?P<label>" in layout.pattern
    return Parsed(
        content,
        _as_times(times, layout.time_format),
        np.array([label != "-" for label in labels], np.int8) if has_labels else None,
        len(unparsed),
        n_truncated,
    )


def _matcher(layout: Layout) -> Any:
    if layout.pattern == "plain":
        return lambda text: (text, None, None)
    if layout.pattern == "JSON":
        return _from_json
    match = re.compile(layout.pattern).fullmatch
    has_time, has_label = "(?P<time>" in layout.pattern, "(?P<label>" in layout.pattern

    def fields(text: str) -> tuple[str, str | None, str | None] | None:
        found = match(text)
        if found is None:
            return None
        return found["content"], found["time"] if has_time else None, found["label"] if has_label else None

    return fields


def _match(layout: Layout, line: str) -> Any:
    return _matcher(layout)(line.rstrip("\r\n")[:LONGEST_LINE])


def _from_json(text: str) -> tuple[str, Any, None] | None:
    if not text.startswith("{"):
        return None
    try:
        record = json.loads(text)
    except ValueError:
        return None
    message = next((record[key] for key in _MESSAGE_KEYS if key in record), None)
    if message is None:
        return None
    return str(message), next((record[key] for key in _TIME_KEYS if key in record), None), None


def _as_times(times: list[Any], time_format: str) -> NDArray[np.datetime64]:
    """Times as UTC without a zone; where a log has no year, the first is 1900 and December is followed by a new one."""
    if not any(time is not None for time in times):
        return np.full(len(times), "NaT", "datetime64[ns]")
    if time_format == "epoch":
        seconds = pd.to_numeric(pd.Series(times), errors="coerce")
        return np.asarray(pd.to_datetime(seconds, unit="s", errors="coerce"), "datetime64[ns]")
    if time_format in ("any", ""):
        numbers = pd.to_numeric(pd.Series(times, dtype=object), errors="coerce")
        if numbers.notna().mean() > 0.5:  # epoch in seconds, milliseconds or (journald) microseconds
            exponent = max(0, int(np.log10(numbers.median())) - 9) // 3
            stamps = pd.to_datetime(numbers / 1000**exponent, unit="s", errors="coerce")
            return np.asarray(stamps, "datetime64[ns]")
    as_pandas = {"any": "mixed", "": "mixed", "iso": "ISO8601"}.get(time_format, time_format)
    found = pd.to_datetime(pd.Series(times, dtype=object), format=as_pandas, errors="coerce", utc=True)
    stamps = np.array(found.dt.tz_localize(None), "datetime64[ns]")
    if "%y" in time_format.lower() or as_pandas in ("mixed", "ISO8601"):
        return stamps
    known = np.flatnonzero(~np.isnat(stamps))
    new_years = np.cumsum(np.diff(stamps[known], prepend=stamps[known[:1]]) < np.timedelta64(-300, "D"))
    stamps[known] += new_years * np.timedelta64(365, "D")
    return stamps
