"""`assay use dynamic-whitening MODEL_DIR -o OUT_DIR`: write a model with low-rank factors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay._core.errors import InputError
from assay.cli.output import save_picture

if TYPE_CHECKING:
    from assay.compress.dynamic_whitening import WhiteningConfig, WhiteningReport

app = typer.Typer(add_completion=False)

_UNITS = {"": 1, "K": 10**3, "KB": 10**3, "M": 10**6, "MB": 10**6, "G": 10**9, "GB": 10**9}


@app.command()
def dynamic_whitening(
    source: Annotated[str, typer.Argument(metavar="MODEL_DIR", help="Folder of a Hugging Face model, or `demo`.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the smaller model.")],
    calibration: Annotated[
        Path | None,
        typer.Option("--calibration", help="Text like the one that the model will see; default: Python's reference."),
    ] = None,
    ratio: Annotated[float, typer.Option("--ratio", help="Share of each layer's parameters to keep.")] = 0.8,
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="SIZE", help="Size of model.safetensors, such as 300MB, in place of --ratio."),
    ] = None,
    whiten: Annotated[
        str, typer.Option("--whiten", help="Inputs to fit: dynamic, static (SVD-LLM), diag, none (plain SVD).")
    ] = "dynamic",
    target: Annotated[
        str, typer.Option("--target", help="weight (the paper) or anchored: also correct the layers before.")
    ] = "weight",
    allocation: Annotated[
        str, typer.Option("--allocation", help="uniform, or energy: more rank where it saves more.")
    ] = "uniform",
    granularity: Annotated[
        str, typer.Option("--granularity", help="Take inputs anew for each group, or once a block (cheaper).")
    ] = "group",
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="Of the factors: float32, float16, bfloat16; default: as it is.")
    ] = None,
    drift: Annotated[bool, typer.Option("--drift", help="Also report how far each layer's inputs have moved.")] = False,
    sequences: Annotated[int, typer.Option("--sequences", min=1, help="Sequences of calibration text.")] = 64,
    length: Annotated[int, typer.Option("--length", min=2, help="Tokens of a sequence.")] = 256,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", metavar="LAYER", help="Leave a layer alone; default: lm_head.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Measure perplexity and divergence before and after, on held-out text.")
    ] = False,
    table: Annotated[
        Path | None, typer.Option("--table", help="Write the layers (.csv, .tsv, .json, .parquet).")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Also draw them (.png, .svg, .pdf).")] = None,
) -> None:
    """Make a model smaller without training: each linear layer becomes two thin factors.

    Example: `assay use dynamic-whitening demo --ratio 0.8 -o smollm2-small`

    Where a run stops, the same command goes on behind the last finished layer. Load the folder with
    assay.compress.dynamic_whitening.load.
    """
    from assay.compress.dynamic_whitening import WhiteningConfig

    config = WhiteningConfig(
        ratio=ratio,
        budget=None if budget is None else _size(budget),
        allocation=allocation,  # type: ignore[arg-type]  # the config checks what a user typed
        whiten=whiten,  # type: ignore[arg-type]  # likewise
        target=target,  # type: ignore[arg-type]  # likewise
        granularity=granularity,  # type: ignore[arg-type]  # likewise
        dtype=dtype,  # type: ignore[arg-type]  # likewise
        drift=drift,
        skip=tuple(skip or ["lm_head"]),
    )
    config.check()
    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError(f"{plot}: a picture is written as one of .png, .svg, .pdf")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is there already; give the name of a new or empty folder")
    unfinished = out.resolve().with_name(f"{out.resolve().name}.unfinished")
    report, said = _compress(source, out, unfinished, config, _text(calibration), sequences, length, check)
    if table is not None:
        from assay._core.tables import write_table

        write_table(report.to_frame(), table)
    if plot is not None:
        save_picture(report.plot(), plot)
    typer.echo(report.summary())
    if said:
        typer.echo(f"\n{said}")
    typer.echo(f"\nWritten: {out} (load it with assay.compress.dynamic_whitening.load)")


def _compress(
    source: str,
    out: Path,
    unfinished: Path,
    config: WhiteningConfig,
    text: str | None,
    sequences: int,
    length: int,
    check: bool,
) -> tuple[WhiteningReport, str]:
    import shutil

    from assay.compress.dynamic_whitening import factorize_, save
    from assay.models import named_lm, quality

    model, tokenizer = named_lm(source, as_stored=True)
    ids = None if config.whiten == "none" else _sequences(tokenizer, text, sequences, length)
    reference = quality.reference(model, tokenizer) if check else None
    report = factorize_(model, config, ids, checkpoint=unfinished)
    if not any(layer.rank for layer in report.layers):
        shutil.rmtree(unfinished, ignore_errors=True)
        raise InputError(
            f"{source}: the model is within what was asked for already ({report.n_bytes / 1e6:.1f} MB); nothing was "
            f"written"
        )
    save(model, out)
    tokenizer.save_pretrained(out)
    shutil.rmtree(unfinished, ignore_errors=True)
    said = ""
    if reference is not None:
        after = quality.measure(model, tokenizer, reference)
        said = f"Perplexity of the full model: {reference.full.perplexity:.2f}. Now, {after.summary()}"
    return report, said


def _text(calibration: Path | None) -> str | None:
    if calibration is None:
        return None
    try:
        return calibration.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{calibration} cannot be read as UTF-8 text: {error}") from None


def _sequences(tokenizer: Any, text: str | None, sequences: int, length: int) -> Any:
    """Token ids (sequences, length), spread evenly over the text."""
    import torch

    from assay.models import quality

    said = quality.calibration_text() if text is None else text
    ids = torch.tensor(tokenizer(said, add_special_tokens=False, verbose=False)["input_ids"])
    n_there = len(ids) // length
    if n_there == 0:
        raise InputError(
            f"the calibration text has {len(ids)} tokens, less than one sequence of {length}; bring a longer text or "
            f"set --length"
        )
    places = torch.linspace(0, n_there - 1, min(sequences, n_there)).round().long()
    return ids[: n_there * length].view(n_there, length)[places]


def _size(text: str) -> int:
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise InputError(f"--budget takes a size such as 60MB or 1.5GB, not {text!r}")
    return int(float(match[1]) * _UNITS[match[2].upper()])
