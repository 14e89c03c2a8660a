"""What every command shares: a console for people, JSON for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

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


def save_picture(axes: Axes, path: Path) -> None:
    """Write the figure of `axes`, whole or not at all; the suffix of `path` says in which format."""
    from matplotlib import pyplot as plt

    from assay._core.files import replacing

    figure = axes.get_figure(root=True)
    assert figure is not None  # axes that were drawn have one
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=200, bbox_inches="tight")
    plt.close(figure)
