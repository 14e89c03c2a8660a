"""What every command shares: a console for people, JSON for programs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import typer

from assay._core.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from rich.console import Console
    from rich.table import Table


def console() -> Console:
    """Stdout as a rich console; names of users' models are never read as markup."""
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False)


def table(*columns: str, title: str | None = None) -> Table:
    """An open table: a line under the head, no box."""
    from rich import box
    from rich.table import Table

    made = Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in made.columns:
        column.overflow = "fold"
    return made


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False))


#: As which a picture is written.
PICTURES = (".png", ".svg", ".pdf")


def check_table(*paths: Path | None) -> None:
    """Refuse, before there is work to lose, a name that a table could not be written under; None is no table."""
    from assay._core.tables.formats import table_format

    for path in paths:
        if path is not None:
            table_format(path)
            _check_place(path)


def check_file(path: Path | None, suffixes: tuple[str, ...] = (), what: str = "") -> None:
    """The same of another file; where its suffix tells the format, of `what`, such as "a picture"."""
    if path is None:
        return
    if suffixes and path.suffix.lower() not in suffixes:
        expected = "one of " * (len(suffixes) > 1) + ", ".join(suffixes)
        raise InputError(f"{path}: {what} is written as {expected}")
    _check_place(path)


def check_folder(path: Path | None) -> None:
    """The same of a folder, which may be there already."""
    if path is None:
        return
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; give the name of a folder to write to")
    _check_place(path / "file")


def _check_place(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file to write")
    place = next(folder for folder in path.absolute().parents if folder.exists())
    if not place.is_dir():
        raise InputError(f"cannot write {path}: {place} is a file, not a folder")
    if not os.access(place, os.W_OK):
        raise InputError(f"cannot write {path}: no permission to write to the folder {place}")


def save_picture(axes: Axes, path: Path) -> None:
    """Write the figure of `axes`, whole or not at all; the suffix of `path` says in which format."""
    from matplotlib import pyplot as plt

    from assay._core.files import replacing

    figure = axes.get_figure(root=True)
    assert figure is not None  # axes that were drawn have one
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=200, bbox_inches="tight")
    plt.close(figure)
