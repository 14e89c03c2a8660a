"""`assay data …`: the data sets and demo models that trials and examples use."""

from __future__ import annotations

from typing import Annotated

import typer

from assay.cli.browse import JsonFlag
from assay.cli.output import console, print_json, table

app = typer.Typer(help="List, fetch and find the data sets and demo models.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name that `assay data list` shows.")]


@app.command("list")
def list_data(as_json: JsonFlag = False) -> None:
    """List the data sets and demo models, and which of them are here.

    Example: `assay data list`
    """
    from assay import datasets

    entries = datasets.list_datasets()
    if as_json:
        print_json(
            [
                {name: getattr(entry, name) for name in ("name", "title", "kind", "licence", "source", "cached")}
                for entry in entries
            ]
        )
        return
    rows = table("name", "what", "licence", "here")
    for entry in entries:
        rows.add_row(entry.name, entry.title, entry.licence, "yes" if entry.cached else "no")
    console().print(rows)
    console().print(f"Cache folder: {datasets.cache_dir()} (set ASSAY_DATA to use another)")


@app.command("get")
def get_data(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Names from `assay data list`.")],
) -> None:
    """Download data sets or install demo models, with a checksum. This command uses the network.

    Example: `assay data get demo-lm`
    """
    from assay import datasets

    for name in names:
        typer.echo(f"{name}: {datasets.get(name)}")


@app.command("path")
def path_of_data(name: Name) -> None:
    """Print where a data set is; an error if it is not here.

    Example: `assay data path judge-votes-arena`
    """
    from assay import datasets

    typer.echo(str(datasets.path(name)))
