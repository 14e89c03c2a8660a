"""`assay use mxint MODEL_DIR -o OUT_DIR`: compare number formats on a model's weights, and write it quantised."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay._core.errors import InputError
from assay.cli.output import save_picture

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.compress.mxint import MXReport

app = typer.Typer(add_completion=False)

#: Folder within the one that is written, for layers that are finished; an interrupted run goes on behind them.
UNFINISHED = "unfinished-layers"

_UNITS = {"": 1, "K": 10**3, "KB": 10**3, "M": 10**6, "MB": 10**6, "G": 10**9, "GB": 10**9}


@app.command()
def mxint(
    source: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="Folder of a Hugging Face model, `demo`, or a .safetensors, .npz, .npy."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the quantised model; without it, only compare.")
    ] = None,
    fmt: Annotated[str, typer.Option("--format", "-f", help="Of weights: mxint8, mxint4, nvint4 …")] = "mxint8",
    activation: Annotated[
        str | None, typer.Option("--activation", help="Also quantise the layers' inputs to this format.")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="SIZE", help="Size of model.safetensors, such as 180MB: a format a layer."),
    ] = None,
    rotate: Annotated[bool, typer.Option("--rotate", help="Rotate blocks by a random Hadamard matrix first.")] = False,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", metavar="LAYER", help="Leave a layer alone; default: lm_head.")
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option("--formats", help="To compare or choose from, with commas; default: the paper's eight."),
    ] = None,
    table: Annotated[
        Path | None, typer.Option("--table", help="Write the comparison or the layers (.csv, .tsv, .json, .parquet).")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Also draw it (.png, .svg, .pdf).")] = None,
) -> None:
    """Quantise a model to block-scaled integers or floats, or compare these formats on tensors.

    Example: `assay use mxint demo --format mxint8 -o smollm2-mxint8`

    Without -o nothing is quantised: all formats are compared on the weights. With --budget each layer gets the format
    that keeps the sum of relative errors small within that size. A run that was interrupted goes on, when the same
    command is given again, at the layer where it stopped.
    """
    from assay.compress.mxint import PAPER_FORMATS, get_format

    names = PAPER_FORMATS if formats is None else tuple(name.strip() for name in formats.split(","))
    for name in (*names, fmt, *([activation] if activation else [])):
        get_format(name)
    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError(f"{plot}: a picture is written as one of .png, .svg, .pdf")
    if out is None:
        if budget is not None:
            raise InputError("--budget chooses formats for a model that is written; name its folder with -o")
        found = _compare(_weights(source, tuple(skip or ["lm_head"])), names, rotate)
        _write(found, table, plot)
        typer.echo(found.summary())
        return
    report = _quantise(source, out, fmt, activation, budget, rotate, tuple(skip or ["lm_head"]), names)
    _write(report, table, plot)
    typer.echo(report.summary())
    typer.echo(f"\nWritten: {out} (load it with assay.compress.mxint.load)")


def _compare(tensors: Mapping[str, Any], names: tuple[str, ...], rotate: bool) -> Any:
    from assay.compress.mxint import compare_formats

    return compare_formats(tensors, names, rotate=(None, "hadamard") if rotate else (None,))


def _quantise(
    source: str,
    out: Path,
    fmt: str,
    activation: str | None,
    budget: str | None,
    rotate: bool,
    skip: tuple[str, ...],
    names: tuple[str, ...],
) -> MXReport:
    from assay.compress.mxint import MXConfig, quantize_, save
    from assay.models import named_lm

    is_interrupted = (out / UNFINISHED).is_dir()
    if out.exists() and not is_interrupted and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is there already; give the name of a new or empty folder")
    model, tokenizer = named_lm(source, as_stored=True)
    weight: str | dict[str, str] = fmt if budget is None else _within(model, skip, names, _size(budget), rotate)
    report = quantize_(
        model, MXConfig(weight, activation, "hadamard" if rotate else None, skip), checkpoint=out / UNFINISHED
    )
    tokenizer.save_pretrained(out)
    save(model, out)
    shutil.rmtree(out / UNFINISHED)
    return report


def _within(model: Any, skip: tuple[str, ...], names: tuple[str, ...], budget: int, rotate: bool) -> dict[str, str]:
    """A format a layer, so that the whole file has at most `budget` bytes."""
    from assay.compress._layers import dense_weight, linear_layers
    from assay.compress.mxint import compare_formats, get_format

    weights = {name: dense_weight(layer)[0] for name, layer in linear_layers(model, skip)}
    rest = sum(p.numel() * p.element_size() for p in model.parameters())
    rest -= sum(weight.numel() * weight.element_size() for weight in weights.values())
    overhead = 300 * 3 * len(weights) + 100_000  # the header names each tensor, and padded blocks
    left = budget - rest - overhead
    narrowest = min(get_format(name).bits_per_element for name in names)
    least = narrowest / 8 * sum(weight.numel() for weight in weights.values())
    if least > left:
        raise InputError(
            f"--budget {budget / 1e6:.1f} MB: in the narrowest of these formats the file takes "
            f"{(budget - left + least) / 1e6:.1f} MB, of which {rest / 1e6:.1f} MB are embeddings, norms and skipped "
            f"layers, which are not quantised"
        )
    return dict(compare_formats(weights, names, rotate=("hadamard" if rotate else None,)).recommend(left))


def _weights(source: str, skip: tuple[str, ...]) -> dict[str, Any]:
    """Tensors of a file, or weights of a model's linear layers."""
    path = Path(source)
    suffix = path.suffix.lower()
    if suffix not in (".safetensors", ".npz", ".npy") or path.is_dir():
        from assay.compress._layers import dense_weight, linear_layers
        from assay.models import named_lm

        model, _ = named_lm(source, as_stored=True)
        return {name: dense_weight(layer)[0] for name, layer in linear_layers(model, skip)}
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    found = {name: x for name, x in _tensors(path, suffix).items() if len(x.shape) == 2 and _is_floating(x)}
    if not found:
        raise InputError(f"{path} holds no matrix of floating-point numbers")
    return found


def _tensors(path: Path, suffix: str) -> dict[str, Any]:
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if suffix == ".safetensors":
            return dict(load_file(str(path)))
        loaded = np.load(path, allow_pickle=False)
        return {path.stem: loaded} if suffix == ".npy" else {name: loaded[name] for name in loaded.files}
    except (SafetensorError, ValueError, OSError, EOFError) as error:
        raise InputError(f"{path} cannot be read as {suffix}: {' '.join(str(error).split())[:200]}") from None


def _is_floating(x: Any) -> bool:
    return bool(x.is_floating_point()) if hasattr(x, "is_floating_point") else x.dtype.kind == "f"


def _size(text: str) -> int:
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise InputError(f"--budget takes a size such as 60MB or 1.5GB, not {text!r}")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _write(result: Any, table: Path | None, plot: Path | None) -> None:
    from assay._core.tables import write_table

    if table is not None:
        write_table(result.to_frame(), table)
    if plot is not None:
        save_picture(result.plot(), plot)
