"""Progress on stderr for people who watch, silence for files and pipes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress


@contextmanager
def progress_bar(*, in_bytes: bool = False) -> Iterator[Progress]:
    """A rich progress display on stderr: a description, a bar, the count and the time left.

    Where stderr is not a terminal nothing is drawn. `in_bytes` shows the count as MB.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn() if in_bytes else MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        yield progress
