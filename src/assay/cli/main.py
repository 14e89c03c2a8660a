"""The door: `assay …`. Errors of the user end in one sentence and exit code 2, ours in exit code 1."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated

import typer

from assay import __version__
from assay._core.errors import InputError
from assay._core.logs import hush, speak
from assay.cli import browse, data, doctor, trial, use

app = typer.Typer(
    name="assay",
    help="Try a new method against your own baseline, on your own data. Then use it.",
    epilog="Start with `assay tour`, then `assay list`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"assay {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error (may stand anywhere in the command).")
    ] = False,
) -> None:
    pass  # both options act before this: --version in its callback, --debug in main()


app.command("list")(browse.list_methods)
app.command("show")(browse.show)
app.command("try")(trial.try_method)
app.add_typer(use.app, name="use")
app.command("tour")(trial.tour)
app.command("report")(trial.report)
app.add_typer(data.app, name="data")
app.command("doctor")(doctor.doctor)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; never returns.

    Exit codes: 0 done, whatever the verdict; 1 our fault; 2 bad input; 130 interrupted.
    """
    given = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in given
    if not debug:
        hush()
        speak()
    try:
        app(args=[argument for argument in given if argument != "--debug"], prog_name="assay")
    except InputError as error:
        _report(f"error: {error}", debug)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has left; there is nobody to tell
        sys.exit(1)
    except MemoryError:
        _report("error: out of memory; try fewer --jobs or a smaller --scale", debug)
        sys.exit(1)
    except Exception as error:  # the last door: whatever it is, it is our fault and must be said in a sentence
        _report(f"assay failed: {type(error).__name__}: {error}\nRun it again with --debug to see where.", debug)
        sys.exit(1)


def _report(message: str, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    typer.echo(message, err=True)
