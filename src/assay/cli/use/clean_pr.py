"""`assay use clean-pr REPO_DIR -o edits.jsonl`: training edits from pull requests, and the applier for answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from assay._core.errors import InputError


class BuildByDefault(TyperGroup):
    """`clean-pr SOURCE …` is `clean-pr build SOURCE …`: the first word is a source unless it is a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `build` in front of what is no command."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["build", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=BuildByDefault,
    add_completion=False,
    no_args_is_help=True,
    help=(
        "Make search-and-replace training edits from the pull requests of a repository.\n\n"
        "Example: `assay use clean-pr REPO_DIR -o edits.jsonl`, then `assay use clean-pr stats edits.jsonl`\n\n"
        "`build` is the default command. A folder of that name: ./build"
    ),
)


@app.command()
def build(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A Git clone, a JSONL of pull requests, or a folder of .patch files."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Records; rejects and a report are written beside.")] = Path(
        "edits.jsonl"
    ),
    rev_range: Annotated[str, typer.Option("--range", help="A revision, or A..B.")] = "HEAD",
    mode: Annotated[str, typer.Option("--mode", help="merge, commit, or auto: merges where there are any.")] = "auto",
    repo: Annotated[
        str | None, typer.Option("--repo", help="A clone with the files before the patches (JSONL, .patch).")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="owner/name in the records.")] = None,
    license_: Annotated[
        str | None, typer.Option("--license", help="SPDX identifier; by default from the tree.")
    ] = None,
    issues: Annotated[Path | None, typer.Option("--issues", help="JSONL of issues: repo, number, title, body.")] = None,
    exclude: Annotated[
        Path | None,
        typer.Option("--exclude", help="Repositories, owner/name#7 or commits to leave out, one a line."),
    ] = None,
    languages: Annotated[str | None, typer.Option("--languages", help="Such as Python,Go; by default all 12.")] = None,
    max_files: Annotated[int, typer.Option("--max-files", help="Source files that a pull request may change.")] = 5,
    max_per_repo: Annotated[int, typer.Option("--max-per-repo", help="Pull requests of one repository.")] = 2000,
    keep_deletions: Annotated[
        bool, typer.Option("--keep-deletions", help="Keep those that delete source files.")
    ] = False,
    tree: Annotated[bool, typer.Option("--tree", help="Keep the paths of the whole tree (stage localize).")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Of the draw from large repositories.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Processes.")] = 1,
    address: Annotated[str | None, typer.Option("--address", help="Run on this Ray cluster.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Only the first pull requests.")] = None,
) -> None:
    """Clean pull requests into records of verified edits.

    Example: `assay use clean-pr REPO_DIR -o edits.jsonl`

    A run that was killed goes on where it stopped when it is started again.
    """
    from assay.synth.clean_pr import LANGUAGES, PRFilter, open_source
    from assay.synth.clean_pr import build as build_records

    chosen = tuple(LANGUAGES) if languages is None else tuple(part.strip() for part in languages.split(","))
    filter_ = PRFilter(
        languages=chosen,
        max_files=max_files,
        keep_deletions=keep_deletions,
        max_per_repo=max_per_repo,
        exclude=frozenset() if exclude is None else frozenset(_words_of(exclude)),
    )
    opened = open_source(
        source, repo_dir=repo, rev_range=rev_range, mode=mode, name=name, license=license_, with_tree=tree
    )
    known = {} if issues is None else _issues(issues)
    report = build_records(
        opened, out, filter_=filter_, issues=known, seed=seed, jobs=jobs, ray_address=address, limit=limit
    )
    typer.echo(report.summary())
    base = out.with_name(out.name.removesuffix(".jsonl"))
    typer.echo(f"\nWritten: {out}, {base}.rejects.jsonl, {base}.report.json")


@app.command()
def apply(
    edits: Annotated[Path, typer.Argument(metavar="FILE", help="Search-and-replace blocks, such as a model's answer.")],
    repo: Annotated[Path, typer.Option("--repo", help="The folder to edit.")] = Path(),
    check: Annotated[bool, typer.Option("--check", help="Write nothing; only say whether it would apply.")] = False,
    fuzzy: Annotated[
        bool, typer.Option("--fuzzy", help="Let line ends, spaces at line ends and a common indentation differ.")
    ] = False,
) -> None:
    """Apply search-and-replace blocks to a folder, all or none.

    Example: `assay use clean-pr apply answer.txt --repo . --check`
    """
    from assay.synth.clean_pr import apply_to_folder, parse_blocks

    parsed = parse_blocks(_text_of(edits))
    for repair in parsed.repairs:
        typer.echo(f"repaired: {edits}, {repair}", err=True)
    if parsed.problems:
        raise InputError(f"{edits}, {parsed.problems[0]}")
    result = apply_to_folder(repo, parsed.edits, fuzzy=fuzzy, check=check)
    for note in (*result.repairs, *result.warnings):
        typer.echo(f"note: {note}", err=True)
    for error in result.errors[1:]:
        typer.echo(f"error: {error}", err=True)
    if not result.ok:
        raise InputError(str(result.errors[0]))
    done = "would apply" if check else "applied"
    blocks = sum(len(edit.blocks) for edit in parsed.edits)
    typer.echo(f"{done}: {blocks} block{'s' * (blocks != 1)} in {', '.join(edit.path for edit in parsed.edits)}")


@app.command()
def stats(
    records: Annotated[Path, typer.Argument(metavar="EDITS", help="Records that `build` wrote.")],
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the lengths of search texts (.png, .svg).")] = None,
) -> None:
    """Count the records of a file, and replay every one of them.

    Example: `assay use clean-pr stats edits.jsonl`
    """
    from assay.cli.output import save_picture
    from assay.synth.clean_pr import read_records
    from assay.synth.clean_pr import stats as count

    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError(f"{plot}: a picture is written as one of .png, .svg, .pdf")
    counted = count(read_records(records))
    typer.echo(counted.summary())
    if plot is not None:
        save_picture(counted.plot(), plot)
        typer.echo(f"\nWritten: {plot}")


@app.command()
def samples(
    records: Annotated[Path, typer.Argument(metavar="EDITS", help="Records that `build` wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="JSONL with prompt and completion.")] = Path("samples.jsonl"),
    stage: Annotated[str, typer.Option("--stage", help="midtrain, localize, navigate or edit.")] = "midtrain",
    fmt: Annotated[str, typer.Option("--format", help="Target: sr, diff or whole.")] = "sr",
) -> None:
    """Write prompts and completions to train on.

    Example: `assay use clean-pr samples edits.jsonl --stage edit -o samples.jsonl`
    """
    from assay._core.files import replacing
    from assay.synth.clean_pr import read_records, to_samples

    out.parent.mkdir(parents=True, exist_ok=True)
    n = 0
    with replacing(out) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as lines:
        for sample in to_samples(read_records(records), stage, fmt):  # type: ignore[arg-type]  # checked at the door
            lines.write(json.dumps(sample, ensure_ascii=False) + "\n")
            n += 1
    typer.echo(f"{n:,} samples\n\nWritten: {out}")


def _text_of(path: Path) -> str:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def _words_of(path: Path) -> list[str]:
    return [line.strip() for line in _text_of(path).split("\n") if line.strip() and not line.startswith("# ")]


def _issues(path: Path) -> dict[str, str]:
    found = {}
    for number, line in enumerate(_text_of(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            issue = json.loads(line)
            reference = f"{issue['repo']}#{int(issue['number'])}"
            text = f"{issue.get('title') or ''}\n\n{issue.get('body') or ''}".strip()
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(
                f"{path}, line {number}: expected a JSON object with repo, number, title and body"
            ) from None
        found[reference] = text
    return found
