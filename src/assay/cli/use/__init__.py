"""`assay use METHOD …`: methods on files. A method's commands are loaded when they are asked for."""

from __future__ import annotations

import inspect
from typing import Any

import typer
from typer.core import TyperGroup

from assay import catalog


class UseGroup(TyperGroup):
    """The commands of the catalog's methods; typer asks for them by name."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Slugs of the methods that work on files."""
        return [method.slug for method in catalog.available() if method.use]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of one method; an unknown one ends in the catalog's own sentence."""
        method = catalog.get(cmd_name)
        command = typer.main.get_command(method.load_use())
        command.name = method.slug
        for each in (command, *getattr(command, "commands", {}).values()):
            each.help = _paragraphs(each.help or "")
        return command


def _paragraphs(text: str) -> str:
    """A paragraph on one line: a terminal breaks it anew, whatever its width."""
    return "\n\n".join(part.replace("\n", " ") for part in inspect.cleandoc(text).split("\n\n"))


app = typer.Typer(
    cls=UseGroup,
    help="Use a method on files, no Python needed.",
    epilog="Each method has its own arguments: `assay use METHOD --help`.",
    no_args_is_help=True,
)


@app.callback()
def _use() -> None:
    pass  # typer makes a group of an app that has a callback
