"""`assay use tsef MODEL DATA`: how often a series classifier's prediction and its explanation come apart."""

from __future__ import annotations

import importlib
import json
import sys
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from assay._core.errors import InputError
from assay.cli.output import check_folder, save_picture

if TYPE_CHECKING:
    from collections.abc import Callable

app = typer.Typer(add_completion=False)


@app.command()
def tsef(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="TorchScript (.pt), torch.export (.pt2), or MODULE:FUNCTION that returns a classifier.",
        ),
    ],
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Series: .ts, .npz (X, y), .npy, or a table with a row a series.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the report.")] = Path("tsef-report"),
    label: Annotated[str | None, typer.Option("--label", help="A table's column of classes; default: label.")] = None,
    classes: Annotated[
        str | None, typer.Option("--classes", metavar="A,B,…", help="Class names in the order of the model's outputs.")
    ] = None,
    explainer: Annotated[
        str,
        typer.Option(
            "--explainer", help="ig, saliency, gradient-x-input, or MODULE:FUNCTION that makes one from the model."
        ),
    ] = "ig",
    layout: Annotated[
        Literal["BDT", "BTD"], typer.Option("--layout", help="What the model takes: BDT (channels first) or BTD.")
    ] = "BDT",
    explain: Annotated[
        Literal["label", "target"],
        typer.Option("--explain", help="Whose explanation has to stay after the flip: label (own class) or target."),
    ] = "label",
    target: Annotated[
        str | None, typer.Option("--target", metavar="CLASS", help="Class to reach; default: another one at random.")
    ] = None,
    budgets: Annotated[
        str, typer.Option("--budgets", help="Largest changes as shares of each channel's range.")
    ] = "0.02,0.05,0.1,0.2",
    attacks: Annotated[str, typer.Option("--attacks")] = "random,pgd,pgd_first,pgd_joint,tsef",
    weights: Annotated[str, typer.Option("--weights", help="Weights of the class to try.")] = "0.3,0.05,0.01",
    rho: Annotated[float, typer.Option("--rho", help="Share of cells that make up an explanation.")] = 0.1,
    iters: Annotated[int, typer.Option("--iters", help="Rounds of 30 passes; the paper takes 100.", min=1)] = 10,
    limit: Annotated[int, typer.Option("--limit", help="Attack so many series, drawn by seed.", min=1)] = 40,
    watch: Annotated[
        bool, typer.Option("--watch/--no-watch", help="Ask further explainers (captum) whether they notice.")
    ] = True,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
) -> None:
    """Attack a time-series classifier and its explanation, and report how often they come apart at each budget.

    Example: `assay use tsef classifier.pt GunPoint_TEST.ts --classes 1,2 -o report`

    The folder gets report.txt, series.csv, runs.csv, noticed.csv, summary.json, curve.png and frontier.png.
    """
    import numpy as np

    from assay._core.files import write_text
    from assay._core.tables import write_table
    from assay.audit.tsef import captum_watchers, read_series, robustness_report

    check_folder(out)
    series = read_series(data, label=label, classes=None if classes is None else _words(classes))
    model = load_classifier(source)
    goal = None if target is None else _class_number(target, series.classes)
    chosen = np.sort(np.random.default_rng(seed).permutation(len(series.X))[:limit])
    X = series.X[chosen].astype("float32")  # noqa: N806
    X = X.transpose(0, 2, 1).copy() if layout == "BTD" else X  # noqa: N806
    y, n_classes = _predicted(model, X)
    if series.y is not None:
        y = series.y[chosen]
        if n_classes != len(series.classes):  # a file may lack a class: the others would be numbered wrongly
            raise InputError(
                f"{data}: {len(series.classes)} classes ({', '.join(series.classes)}), and the model has {n_classes}; "
                "name all in the order of its outputs: --classes A,B,…"
            )
    if goal is not None:
        X, y, chosen = (part[y != goal] for part in (X, y, chosen))  # noqa: N806
        if len(chosen) == 0:
            raise InputError(f"--target {target}: all series are of that class; choose another one")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        report = robustness_report(
            model,
            _explainer(explainer, model),
            X,
            y,
            attacks=_words(attacks),
            budgets=_numbers("--budgets", budgets),
            lambda_grid=_numbers("--weights", weights),
            watchers=captum_watchers(model, 1 if layout == "BTD" else 2) if watch else None,
            target=goal,
            rho=rho,
            iters=iters,
            layout=layout,
            explain=explain,
            seed=seed,
        )
    for text in dict.fromkeys(str(one.message) for one in said if one.category is UserWarning):
        if text not in report.notes:  # the summary says those
            typer.echo(f"warning: {text}", err=True)
    out.mkdir(parents=True, exist_ok=True)
    text = report.summary()
    write_text(out / "report.txt", text + "\n")
    table = report.series_frame()
    table["series"] = chosen[table["series"]]
    write_table(table, out / "series.csv")
    write_table(report.to_frame(), out / "runs.csv")
    write_table(report.noticed_frame(), out / "noticed.csv")
    summary = {"model": source, "data": str(data), "classes": list(series.classes), "seed": seed, **report.to_dict()}
    write_text(out / "summary.json", json.dumps(summary, ensure_ascii=False, indent=2, allow_nan=False) + "\n")
    save_picture(report.plot(), out / "curve.png")
    save_picture(report.plot_frontier(), out / "frontier.png")
    typer.echo(text)
    typer.echo(f"\nWritten: {out}")


def load_classifier(source: str) -> Callable[[Any], Any]:
    """Load a classifier that takes series and returns logits.

    Raises
    ------
    InputError
        There is no such file or function, or the file is neither TorchScript nor a program of torch.export.
    """
    from assay._core.extras import need

    torch = need("torch", extra="series", purpose="a classifier")
    path = Path(source)
    if not path.is_file():
        if ":" in source:
            made: Callable[[Any], Any] = _called(source, "MODEL")
            return made
        raise InputError(f"{source}: no such file; give a .pt, a .pt2 or MODULE:FUNCTION")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit is, and people's files are still of it
        try:
            if path.suffix == ".pt2" and zipfile.is_zipfile(path):  # else torch prints a traceback before it raises
                loaded: Callable[[Any], Any] = torch.export.load(str(path)).module()
                return loaded
            scripted: Callable[[Any], Any] = torch.jit.load(str(path), map_location="cpu")
            return scripted
        except Exception as error:  # torch raises many kinds for files that are none of its own
            raise InputError(
                f"{source}: neither TorchScript nor a program of torch.export; write the model with "
                "torch.export.save(torch.export.export(model, …), 'model.pt2'), or give MODULE:FUNCTION"
            ) from error


def _called(source: str, place: str, *arguments: Any) -> Any:
    """What MODULE:FUNCTION returns; the current folder is searched first, as `python -m` does."""
    name, _, function = source.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != name.partition(".")[0]:
            raise
        raise InputError(f"{place} {source}: no module {name!r} in this folder or among the packages") from None
    finally:
        sys.path.remove(str(Path.cwd()))
    made = getattr(module, function, None)
    if not callable(made):
        raise InputError(f"{place} {source}: the module {name} has no function {function!r}")
    result = made(*arguments)
    if not callable(result):
        raise InputError(f"{place} {source}: it returned {type(result).__name__}; expected something to call")
    return result


def _explainer(name: str, model: Any) -> Any:
    from assay.audit.tsef import GradientxInput, IntegratedGradients, Saliency

    known = {"ig": IntegratedGradients, "saliency": Saliency, "gradient-x-input": GradientxInput}
    if name in known:
        return known[name](model)
    if ":" in name:
        return _called(name, "--explainer", model)
    raise InputError(f"--explainer {name!r} is not one of {', '.join(known)}, or MODULE:FUNCTION")


def _predicted(model: Any, x: Any) -> tuple[Any, int]:
    """Classes that the model predicts, and how many it knows."""
    import torch

    from assay.audit.tsef.door import class_logits
    from assay.audit.tsef.objective import at_rest

    like = next(iter(getattr(model, "parameters", list)()), torch.empty(0))
    with torch.no_grad(), at_rest(model):
        logits = class_logits(model, torch.from_numpy(x).to(like))
    return logits.argmax(dim=1).cpu().numpy(), logits.shape[1]


def _class_number(target: str, classes: tuple[str, ...]) -> int:
    if target in classes:
        return classes.index(target)
    if not classes and target.isdecimal():
        return int(target)
    raise InputError(f"--target {target!r} is not one of {', '.join(classes) or 'the class numbers'}")


def _words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in _words(text)]
    except ValueError:
        raise InputError(f"{option} {text!r}: expected numbers with commas between, such as 0.05,0.1") from None
