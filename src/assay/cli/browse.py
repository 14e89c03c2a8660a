"""`assay list` and `assay show`: the catalog for people."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from assay import catalog
from assay._core.errors import InputError
from assay.cli.output import console, print_json, table

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def list_methods(
    family: Annotated[str | None, typer.Option("--family", "-f", help="Only this family.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also the methods that are planned.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List the methods that can be used now.

    Example: `assay list --family evaluate`
    """
    families = dict.fromkeys(method.family for method in catalog.methods().values())
    if family is not None and family not in families:
        raise InputError(f"there is no family {family!r}; there are {', '.join(families)}")
    shown = [
        method
        for method in catalog.methods().values()
        if (everything or method.status == "available") and family in (None, method.family)
    ]
    if as_json:
        print_json([_as_dict(method) for method in shown])
        return
    rows = table("method", "family", "what you get", *(["status"] if everything else []))
    for method in shown:
        rows.add_row(method.slug, method.family, method.summary, *([method.status] if everything else []))
    console().print(rows)
    if not everything:
        planned = sum(method.status == "planned" for method in catalog.methods().values())
        console().print(f"{planned} more are planned: assay list --all. More about one: assay show METHOD")


def show(
    slug: Annotated[str, typer.Argument(metavar="METHOD", help="Slug of the method, as `assay list` shows it.")],
    as_json: JsonFlag = False,
) -> None:
    """Show what a method is for, how to use it, what we measured, and how to cite it.

    Example: `assay show judge-rank`
    """
    method = catalog.get(slug)
    if as_json:
        print_json(_as_dict(method))
        return
    out = console()
    out.print(f"{method.title} ({method.slug})", style="bold")
    out.print(method.summary)
    out.print()
    for label, text in _facts(method).items():
        if text:
            out.print(f"{label:<12}", style="bold", end="")
            out.print(_hanging(text, indent=12, width=out.width))
    typer.echo(f"\n{method.paper.bibtex(method.slug)}")  # to be copied: never wrapped


def _facts(method: catalog.Method) -> dict[str, str]:
    ready = method.status == "available"
    module, _, name = method.interface.partition(":")
    return {
        "family": f"{method.family}: {catalog.FAMILIES.get(method.family, '')}".rstrip(": "),
        "status": "" if ready else "planned: not available yet",
        "use it when": method.use_when,
        "not when": method.not_when,
        "interface": f"from {module} import {name}" if method.interface else "",
        "install": f"pip install 'assay-ml[{method.extra}]'" if method.extra and ready else "",
        "trial": f"assay try {method.slug} --scale quick" if method.trial else "",
        "on files": f"assay use {method.slug} --help" if method.use else "",
        "measured": method.measured,
        "paper": f"{method.paper.title}. {method.paper.authors}".rstrip(". ") + ".",
        "arXiv": f"https://arxiv.org/abs/{method.paper.arxiv}" if method.paper.arxiv else "",
        "code": f"https://github.com/{method.paper.code} (the authors')" if method.paper.code else "",
    }


def _hanging(text: str, *, indent: int, width: int) -> str:
    import textwrap

    lines = textwrap.wrap(text, max(width - indent, 30), break_long_words=False, break_on_hyphens=False)
    return f"\n{' ' * indent}".join(lines)


def _as_dict(method: catalog.Method) -> dict[str, Any]:
    return dataclasses.asdict(method) | {"bibtex": method.paper.bibtex(method.slug)}
