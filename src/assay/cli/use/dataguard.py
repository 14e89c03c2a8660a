"""`assay use dataguard probs | model | texts`: whether data was used to train a model."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from assay._core.errors import InputError
from assay.cli.output import check_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.audit.dataguard import AuditReport

app = typer.Typer(add_completion=False, no_args_is_help=True)

PREFIX = "p_"
REPORTS = (".html", ".json")


class Test(StrEnum):
    """How p is found."""

    permutation = "permutation"
    F = "F"


Vouch = Annotated[
    bool,
    typer.Option("--aux-is-nontraining", help="You are certain that the model never saw the auxiliary data. Required."),
]
Out = Annotated[
    Path, typer.Option("--out", "-o", help="The report: .html, one page; beside it the same name with .json.")
]
Alpha = Annotated[float, typer.Option("--alpha", help="So often an unused data set is called used.")]
TestOption = Annotated[Test, typer.Option("--test", help="F has no floor for p; permutation holds for any data.")]
Permutations = Annotated[int, typer.Option("--permutations", help="Smallest p is 1 in so many.")]
Seed = Annotated[int, typer.Option("--seed", help="Of everything random.")]
Group = Annotated[
    str | None,
    typer.Option("--group", help="Column of groups: samples that resemble each other (one author, one scan)."),
]
MemberLoss = Annotated[
    float | None, typer.Option("--member-loss", help="Expected loss of a trained sample, in nats: for the share used.")
]
Name = Annotated[str, typer.Option("--name", help="Of the model, in the report.")]


@app.callback()
def dataguard() -> None:
    """Find out whether a model was trained on your data, beside data that it certainly never saw.

    Example: `assay use dataguard probs target.csv aux.csv --aux-is-nontraining --inputs x_ -o audit.html`

    The last file is the auxiliary data: of the same source and time as yours, certainly not used. probs takes tables
    of what the model answered; model asks a saved classifier itself, and texts a language model.
    """


@app.command()
def probs(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="TARGET... AUX", help="CSV, Parquet, JSONL or npz; the last one is auxiliary data."),
    ],
    out: Out = Path("audit.html"),
    aux_is_nontraining: Vouch = False,
    exchangeable: Annotated[
        bool, typer.Option("--exchangeable", help="Vouch that the data sets are of one kind, without a blind check.")
    ] = False,
    label: Annotated[str, typer.Option("--label", help="Column with the true class.")] = "label",
    prefix: Annotated[
        str, typer.Option("--prefix", help="Columns with probabilities begin so; the class follows.")
    ] = PREFIX,
    inputs: Annotated[
        str | None, typer.Option("--inputs", help="Columns of inputs (or embeddings) begin so: for the blind check.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option("--reference", help="Columns of a reference's probabilities begin so.")
    ] = None,
    group: Group = None,
    member_loss: MemberLoss = None,
    alpha: Alpha = 0.01,
    test: TestOption = Test.permutation,
    permutations: Permutations = 2000,
    seed: Seed = 0,
    name: Name = "the model",
) -> None:
    """Audit from what a model answered: a row a sample, with its true class and the probabilities of all classes.

    Example: `assay use dataguard probs target.csv aux.csv --aux-is-nontraining --inputs x_ -o audit.html`

    Tables have a column `label` and columns `p_CLASS`. An .npz file has arrays probs (n, classes) and labels (n,), and
    may have augmented (repeats, n, classes), reference (references, n, classes), inputs (n, d) and groups (n,).
    Several targets are corrected for their number; each has a report of its own name.
    """
    from assay.audit.dataguard import audit_probs

    *targets, aux = _several(files, out, aux_is_nontraining)
    columns = Columns(label, prefix, inputs, reference, group)
    other = _answers(aux, columns)

    def audit(path: Path) -> AuditReport:
        own = _answers(path, columns)
        if own["classes"] != other["classes"]:
            raise InputError(f"{path} has the classes {own['classes']} and {aux} {other['classes']}; expected the same")
        return audit_probs(
            own["probs"],
            own["labels"],
            other["probs"],
            other["labels"],
            P_target_aug=own["augmented"],
            P_aux_aug=other["augmented"],
            ref_target=own["reference"],
            ref_aux=other["reference"],
            inputs_target=own["inputs"],
            inputs_aux=other["inputs"],
            groups_target=own["groups"],
            groups_aux=other["groups"],
            member_loss=member_loss,
            aux_is_nontraining=aux_is_nontraining,
            exchangeable=exchangeable,
            alpha=alpha,
            test=test.value,
            n_permutations=permutations,
            random_state=seed,
            name=name,
        )

    _audit_each(targets, audit, out)


@app.command()
def model(
    saved: Annotated[Path, typer.Argument(metavar="MODEL", help=".pt2 (torch.export) or .skops (scikit-learn).")],
    files: Annotated[
        list[Path], typer.Argument(metavar="TARGET... AUX", help="CSV, Parquet, JSONL or npz; the last is auxiliary.")
    ],
    out: Out = Path("audit.html"),
    aux_is_nontraining: Vouch = False,
    label: Annotated[str, typer.Option("--label", help="Column with the true class; all others are inputs.")] = "label",
    group: Group = None,
    references: Annotated[
        list[Path] | None, typer.Option("--reference", help="A model that saw neither data set; may be repeated.")
    ] = None,
    augment: Annotated[int, typer.Option("--augment", help="Augmented queries of each sample.")] = 8,
    member_loss: MemberLoss = None,
    alpha: Alpha = 0.01,
    test: TestOption = Test.permutation,
    permutations: Permutations = 2000,
    seed: Seed = 0,
) -> None:
    """Audit a saved classifier by asking it about both data sets.

    Example: `assay use dataguard model suspect.pt2 target.npz aux.npz --aux-is-nontraining -o audit.html`

    An .npz file has arrays X and y (and may have groups); a table has a column of labels and numbers in all others.
    A .pt2 file is what torch.export.save writes of a model with a dynamic batch; a .skops file is what skops.io.dump
    writes. Pickles are not opened: they can run code.
    """
    from assay.audit.dataguard import DataGuardAuditor
    from assay.audit.dataguard.saved import load_classifier

    *targets, aux = _several(files, out, aux_is_nontraining)
    suspect = load_classifier(saved)
    auditor = DataGuardAuditor(
        alpha=alpha,
        n_augment=augment,
        references=[load_classifier(path) for path in references or []] or None,
        test=test.value,
        n_permutations=permutations,
        random_state=seed,
    )
    X_aux, y_aux, groups_aux = _samples(aux, label, group)  # noqa: N806

    def audit(path: Path) -> AuditReport:
        X, y, groups = _samples(path, label, group)  # noqa: N806
        return auditor.audit(
            suspect,
            X,
            y,
            X_aux,
            y_aux,
            aux_is_nontraining=aux_is_nontraining,
            groups_target=groups,
            groups_aux=groups_aux,
            member_loss=member_loss,
            name=saved.name,
        )

    _audit_each(targets, audit, out)


@app.command()
def texts(
    folder: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a Hugging Face causal language model.")],
    files: Annotated[
        list[Path], typer.Argument(metavar="TARGET... AUX", help="JSONL (or a table) of texts; the last is auxiliary.")
    ],
    out: Out = Path("audit.html"),
    aux_is_nontraining: Vouch = False,
    column: Annotated[str, typer.Option("--text", help="Column with the text.")] = "text",
    group: Group = None,
    references: Annotated[
        list[Path] | None, typer.Option("--reference", help="Folder of a model that saw neither; may be repeated.")
    ] = None,
    augment: Annotated[int, typer.Option("--augment", help="Copies of each text with some tokens dropped.")] = 2,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="So much of each text is read.")] = 512,
    member_loss: MemberLoss = None,
    alpha: Alpha = 0.01,
    test: TestOption = Test.permutation,
    permutations: Permutations = 2000,
    seed: Seed = 0,
) -> None:
    """Audit a causal language model on texts.

    Example: `assay use dataguard texts tuned/ mine.jsonl unseen.jsonl --reference base/ --aux-is-nontraining`

    Each file has one object a line with the key `text`. Auxiliary texts must be of the same source and time: texts
    written later tell themselves apart, and the audit then says that it is not valid.
    """
    from assay._core.tables import read_table
    from assay.audit.dataguard import audit_lm
    from assay.models import load_lm

    *targets, aux = _several(files, out, aux_is_nontraining)
    asked: dict[str, Any] = {column: "text"} | ({group: "text"} if group else {})
    tables = {path: read_table(path, asked) for path in (*targets, aux)}
    suspect, tokenizer = load_lm(folder)
    pairs = [load_lm(path) for path in references or []]

    def audit(path: Path) -> AuditReport:
        return audit_lm(
            suspect,
            tokenizer,
            tables[path][column].tolist(),
            tables[aux][column].tolist(),
            reference=pairs or None,
            aux_is_nontraining=True,
            groups_target=tables[path][group].tolist() if group else None,
            groups_aux=tables[aux][group].tolist() if group else None,
            member_loss=member_loss,
            n_augment=augment,
            max_tokens=max_tokens,
            alpha=alpha,
            test=test.value,
            n_permutations=permutations,
            random_state=seed,
            name=folder.name or str(folder),
        )

    _audit_each(targets, audit, out)


# ------------------------------------------------------------------------------------------------------------ reading


class Columns(NamedTuple):
    """Which columns of a table hold what."""

    label: str
    prefix: str
    inputs: str | None
    reference: str | None
    group: str | None


def _several(files: list[Path], out: Path, aux_is_nontraining: bool) -> list[Path]:
    if not aux_is_nontraining:
        raise InputError(
            "give --aux-is-nontraining if you are certain that the model never saw the auxiliary data (the last file), "
            "in training or in choosing its settings; an audit rests on that"
        )
    check_file(out, REPORTS, "a report")
    if len(files) < 2:
        raise InputError(f"{files[0]} is given alone; give the target data and then the auxiliary data")
    return files


def _arrays(path: Path, needed: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, Any]:
    """Arrays of an .npz file; nothing in it is unpickled."""
    import zipfile

    import numpy as np

    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if not zipfile.is_zipfile(path):  # numpy would take it for a pickle, and say how to load one
        raise InputError(f"{path} is no .npz file, whatever its name says; write one with numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in needed if name not in file.files]
            if missing:
                has = ", ".join(file.files) or "none"
                raise InputError(f"{path} has no array {missing[0]!r}; it has {has}")
            return {name: file[name] if name in file.files else None for name in (*needed, *optional)}
    except (zipfile.BadZipFile, ValueError, OSError, EOFError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is no readable .npz file: {error}") from None


def _answers(path: Path, columns: Columns) -> dict[str, Any]:
    """Probabilities and what goes with them; `classes` names the columns."""
    import numpy as np

    from assay._core.tables import Kind, check_columns, read_table
    from assay.audit.dataguard.door import class_numbers

    if path.suffix.lower() == ".npz":
        found = _arrays(path, ("probs", "labels"), ("augmented", "reference", "inputs", "groups"))
        return found | {"classes": found["probs"].shape[-1]}
    asked: dict[str, Kind] = {name: "text" for name in (columns.label, columns.group) if name}
    frame = read_table(path, asked)

    def block(prefix: str) -> tuple[list[str], Any]:
        names = [name for name in frame.columns if str(name).startswith(prefix)]
        if not names:
            has = ", ".join(repr(str(name)) for name in list(frame.columns)[:10])
            raise InputError(f"{path}: no column begins with {prefix!r}; it has {has}")
        values = check_columns(frame, dict.fromkeys(names, "number"), where=str(path))[names]
        return [str(name)[len(prefix) :] for name in names], values.to_numpy(dtype=np.float64)

    classes, values = block(columns.prefix)
    order = np.argsort(classes)
    classes = [classes[i] for i in order]
    labels = class_numbers(
        frame[columns.label].to_numpy(dtype=object), classes, f"{path}, column {columns.label!r}", len(frame), first=1
    )
    reference = None
    if columns.reference:
        ref_classes, ref_values = block(columns.reference)
        if sorted(ref_classes) != classes:
            raise InputError(f"{path}: the reference's classes {sorted(ref_classes)} are not the model's, {classes}")
        reference = ref_values[:, np.argsort(ref_classes)]
    return {
        "probs": values[:, order],
        "labels": labels,
        "classes": classes,
        "augmented": None,
        "reference": reference,
        "inputs": block(columns.inputs)[1] if columns.inputs else None,
        "groups": frame[columns.group].to_numpy(dtype=str) if columns.group else None,
    }


def _samples(path: Path, label: str, group: str | None) -> tuple[Any, Any, Any]:
    import numpy as np

    from assay._core.tables import Kind, check_columns, read_table

    if path.suffix.lower() == ".npz":
        found = _arrays(path, ("X", "y"), ("groups",))
        return found["X"], found["y"], found["groups"]
    asked: dict[str, Kind] = {name: "text" for name in (label, group) if name}
    frame = read_table(path, asked)
    columns = [column for column in frame.columns if column not in (label, group)]
    values = check_columns(frame, dict.fromkeys(columns, "number"), where=str(path))[columns]
    labels = frame[label].to_numpy(dtype=object)
    try:  # 0, 1, 2 in a text file are numbers to a model
        labels = np.array([int(text) for text in labels])
    except ValueError:
        labels = labels.astype(str)
    groups = frame[group].to_numpy(dtype=str) if group else None
    return values.to_numpy(dtype=np.float64), labels, groups


def _audit_each(targets: list[Path], audit: Callable[[Path], AuditReport], out: Path) -> None:
    """Audit every target, correct for several, print all, write all: beside each page its figures as JSON."""
    from assay.audit.dataguard import correct_for_several

    reports = {str(path): audit(path) for path in targets}
    if len(reports) > 1:
        reports = correct_for_several(reports)
    out.parent.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for number, (path, report) in enumerate(reports.items(), start=1):
        own = out if len(reports) == 1 else out.with_name(f"{out.stem}-{number}-{Path(path).stem}{out.suffix}")
        for place in dict.fromkeys((own, own.with_suffix(".json"))):
            report.save(place)
            written.append(place)
        if len(reports) > 1:
            typer.echo(f"{path}:")
        typer.echo(report.summary() + "\n")
    typer.echo(f"Written: {', '.join(map(str, written))}")
