"""Logs for the trial: four simulated systems, ten real ones, and faults that are put into windows of either."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from assay import datasets
from assay._core.errors import InputError
from assay.audit.mpfm import LogWindower, LogWindows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SYSTEMS = ("Apache", "BGL", "HDFS", "HPC", "Hadoop", "Linux", "OpenSSH", "Spark", "Thunderbird", "Zookeeper")

#: What goes wrong in a window. None is made as the method makes its own training negatives.
FAULTS = ("failure message", "missing event", "reversed order", "stuck")

#: Messages of failures, in words of our own; no log of the trial has them.
FAILURES = (
    "kernel: Out of memory: killed process 4711 (worker) total-vm:8123456kB",
    "I/O error on device sdb1, logical block 1189732, lost page write",
    "Segmentation fault at address 0x7f3a9c, core dumped",
    "cannot allocate buffer: no space left on device",
    "assertion failed in scheduler.c line 882, aborting",
    "certificate of peer expired, closing channel",
    "deadlock detected between transactions 91123 and 91140, rolling back",
    "watchdog: no heartbeat for 60 seconds, forcing restart",
    "checksum mismatch in segment 118: expected 0x9ac1, found 0x0000",
    "too many open files, refusing new clients",
    "read-only file system, giving up after 5 attempts",
    "temperature above critical limit, throttling all units",
)


class Log(NamedTuple):
    """Raw lines of a system: what came first, to learn from, and what came later."""

    name: str
    train: list[str]
    test: list[str]


class Fleet(NamedTuple):
    """What an arm sees: windows of every system to learn from, and windows to judge, not labelled.

    The training windows carry labels where the log has them; known anomalies are left out of training.
    """

    train: LogWindows
    test: LogWindows
    new_system: str = ""


def simulated_logs(seed: int, n_train: int, n_test: int, n_systems: int = 4) -> list[Log]:
    """Systems as Markov chains over 15 to 25 messages, three tenths of them worded alike in all systems."""
    rng = np.random.default_rng(seed)
    verbs = ["opened", "closed", "accepted", "queued", "flushed", "renewed", "checked", "sent", "received", "stored"]
    nouns = ["session", "block", "request", "lease", "cursor", "page", "token", "socket", "index", "batch"]
    pairs = [f"{verb}_{noun} {{}}" for noun in nouns for verb in verbs]  # one word each: Drain tells them apart
    common = [pairs[i] for i in rng.choice(len(pairs), 6, replace=False)]
    logs = []
    for number in range(n_systems):
        n_messages = int(rng.integers(15, 26))
        n_common = round(0.3 * n_messages)
        own = [pairs[i] for i in rng.choice(len(pairs), n_messages - n_common, replace=False)]
        messages = [common[i % len(common)] for i in range(n_common)] + own
        rng.shuffle(messages)
        successors = np.zeros((n_messages, n_messages))
        for state in range(n_messages):  # mostly the next state, sometimes one of two others
            others = rng.choice(n_messages, 2, replace=False)
            successors[state, (state + 1) % n_messages] += 0.8
            successors[state, others] += 0.1
        state, lines = 0, []
        for second in range(n_train + n_test):
            clock = f"{second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
            body = messages[state].format(int(rng.integers(10_000)))
            lines.append(f"Mar {1 + second // 86400:2d} {clock} host{number} app[{int(rng.integers(999))}]: {body}")
            state = int(rng.choice(n_messages, p=successors[state]))
        logs.append(Log(f"system {number + 1}", lines[:n_train], lines[n_train:]))
    return logs


def real_logs(share: float = 0.6) -> list[Log]:
    """The ten systems, each cut in two by time: the first 60 % to learn from.

    Raises
    ------
    InputError
        A log is not on this machine.
    """
    logs = []
    for name in SYSTEMS:
        path = datasets.path(f"loghub-{name.lower()}")
        lines = gzip.decompress(path.read_bytes()).decode("utf-8", errors="replace").splitlines()
        logs.append(_cut(name, lines, share))
    return logs


def logs_of(folder: str, share: float = 0.6) -> list[Log]:
    """A user's logs: every ``.log``, ``.txt`` or ``.gz`` file of a folder is a system."""
    root = Path(folder)
    paths = sorted(root.iterdir()) if root.is_dir() else [root]
    paths = [path for path in paths if path.suffix in (".log", ".txt", ".gz", ".json", ".jsonl")]
    if not paths:
        raise InputError(f"{folder}: no file there ends in .log, .txt, .json, .jsonl or .gz")
    logs = []
    for path in paths:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = raw.decode("utf-8", errors="replace").splitlines()
        if len(lines) < 500:
            raise InputError(f"{path}: {len(lines)} lines; the trial needs 500 of every system")
        logs.append(_cut(path.name.split(".")[0], lines, share))
    return logs


def _cut(name: str, lines: list[str], share: float) -> Log:
    at = int(share * len(lines))
    return Log(name, lines[:at], lines[at:])


def windows_of(
    logs: Sequence[Log], size: int, seed: int, *, left_out: str = "", with_faults: bool = True, step: int = 0
) -> tuple[Fleet, NDArray[np.int8], NDArray[np.str_]]:
    """Windows to learn from and to judge, with the truth of the latter: label and kind of fault.

    Every second window to judge has a fault. Templates are learned from the training lines alone. Where `left_out`
    names a system, nothing of it is learned and only its windows are judged. Without faults, the logs' labels count.
    """
    windower = LogWindower(size=size, step=step or max(1, size // 3))
    train, test, labels, kinds = [], [], [], []
    for log in logs:
        rng = np.random.default_rng([seed, zlib.crc32(log.name.encode())])  # of the name: systems come and go
        if log.name != left_out:
            train.append(windower.fit_transform(log.train, log.name))
        if left_out not in ("", log.name):
            continue
        if not with_faults:
            windows = windower.transform(log.test, log.name, step=size)
            test.append(windows)
            labels.append(np.zeros(len(windows), np.int8) if windows.y is None else windows.y)
            kinds.append(np.where(labels[-1] == 1, "labelled", ""))
            continue
        lines, label, kind = plant(log.test, size, rng)
        test.append(windower.transform(lines, log.name, step=size))
        labels.append(label)
        kinds.append(kind)
    judged = LogWindows.concat(test)
    return Fleet(LogWindows.concat(train), _unlabelled(judged), left_out), np.concatenate(labels), np.concatenate(kinds)


def plant(
    lines: list[str], size: int, rng: np.random.Generator
) -> tuple[list[str], NDArray[np.int8], NDArray[np.str_]]:
    """Cut lines into windows and put a fault into every second one, at random; windows keep their size."""
    n_windows = len(lines) // size
    label = rng.permutation(np.arange(n_windows) % 2).astype(np.int8)
    kind = np.where(label == 1, rng.choice(FAULTS, n_windows), "")
    made: list[str] = []
    for number in range(n_windows):
        window = lines[number * size : (number + 1) * size]
        spare = lines[(number + 1) * size : (number + 2) * size] or window
        made += _faulty(window, spare, str(kind[number]), rng)
    return made, label, kind


def _faulty(window: list[str], spare: list[str], kind: str, rng: np.random.Generator) -> list[str]:
    size = len(window)
    if kind == "failure message":
        at = int(rng.integers(size))
        header = window[at][: max(0, len(window[at]) - len(_message(window[at])))]
        return [*window[:at], header + str(rng.choice(FAILURES)), *window[at + 1 :]]
    if kind == "missing event":  # a message of this kind, and the like of it, do not come; what follows moves up
        gone = _message(window[int(rng.integers(size))])[:12]
        kept = [line for line in window if _message(line)[:12] != gone]
        return (kept + spare * size)[:size] if kept else spare[:size]
    if kind == "reversed order":
        length = max(3, size // 2)
        at = int(rng.integers(size - length + 1))
        return [*window[:at], *window[at : at + length][::-1], *window[at + length :]]
    if kind == "stuck":  # the same two lines again and again for the rest of the window
        at = int(rng.integers(size // 2))
        return [*window[:at], *(window[at : at + 2] * size)][:size]
    return window


def _message(line: str) -> str:
    """What stands behind the last of the header's separators."""
    for mark in ("]: ", "] - ", ": ", "] "):
        if mark in line:
            return line.split(mark, 1)[1]
    return line.split(" ", 6)[-1]


def _unlabelled(windows: LogWindows) -> LogWindows:
    from dataclasses import replace

    return replace(windows, y=None)
