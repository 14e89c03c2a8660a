"""`assay use liftquant MODEL_DIR --bits 2.4 -o OUT_DIR`: quantise a model's weights to any number of bits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay._core.errors import InputError
from assay.cli.output import save_picture

if TYPE_CHECKING:
    from assay.compress.liftquant import LiftQuantReport

app = typer.Typer(add_completion=False)

_UNITS = {"": 1, "K": 10**3, "KB": 10**3, "M": 10**6, "MB": 10**6, "G": 10**9, "GB": 10**9}


@app.command()
def liftquant(
    source: Annotated[str, typer.Argument(metavar="MODEL", help="Folder of a Hugging Face model, or `demo`.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the quantised model.")],
    bits: Annotated[
        float, typer.Option("--bits", help="Bits a weight before scales, 1.6 to 3: the nearest rate up to it.")
    ] = 2.4,
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="SIZE", help="Size of model.safetensors, such as 160MB, in place of --bits."),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option("--calibration", help="UTF-8 text for scaling channels and training the signs.")
    ] = None,
    sequences: Annotated[int, typer.Option("--sequences", help="Of the calibration text, how many.")] = 64,
    tokens: Annotated[int, typer.Option("--tokens", help="Length of a sequence.")] = 256,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", metavar="LAYER", help="Leave a layer alone; default: lm_head.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of rotations and of the order of sequences.")] = 0,
    table: Annotated[
        Path | None, typer.Option("--table", help="Write the layers (.csv, .tsv, .json, .parquet).")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw their errors (.png, .svg, .pdf).")] = None,
) -> None:
    """Quantise a model's weights to any number of bits, fractions included.

    Example: `assay use liftquant demo --bits 2.4 -o smollm2-2.4`

    Without --calibration weights are rotated and encoded, which needs no data. A run that was interrupted goes on
    behind the last finished layer when it is started again with the same options.
    """
    if out.exists() and (not out.is_dir() or any(path.name != _PARTIAL for path in out.iterdir())):
        raise InputError(f"{out} is there already; give the name of a new or empty folder")
    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError(f"{plot}: a picture is written as one of .png, .svg, .pdf")
    size = None if budget is None else _size(budget)
    text = None if calibration is None else _text(calibration)
    report = _quantise(source, out, bits, size, text, (sequences, tokens), tuple(skip or ["lm_head"]), seed)
    _write(report, table, plot)
    typer.echo(report.summary())
    typer.echo(f"\nWritten: {out} (load it with assay.compress.liftquant.load)")


_PARTIAL = ".finished-layers"


def _quantise(
    source: str,
    out: Path,
    bits: float,
    budget: int | None,
    text: str | None,
    shape: tuple[int, int],
    skip: tuple[str, ...],
    seed: int,
) -> LiftQuantReport:
    import shutil

    from assay.compress.liftquant import LiftQuantConfig, pair_for_bits, quantize_, save
    from assay.models import named_lm

    if budget is None:
        pair_for_bits(bits)  # an impossible number is said before a model is loaded
    model, tokenizer = named_lm(source, as_stored=True)
    config = LiftQuantConfig(bits=bits, budget=budget, skip=skip, seed=seed)
    data = None if text is None else _sequences(text, tokenizer, *shape, seed)
    report = quantize_(model, config, data, checkpoint=out / _PARTIAL)
    save(model, out)
    tokenizer.save_pretrained(out)
    shutil.rmtree(out / _PARTIAL)
    return report


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as UTF-8 text: {error}") from None


def _sequences(text: str, tokenizer: Any, n_sequences: int, n_tokens: int, seed: int) -> Any:
    """Token ids (n, n_tokens): sequences that do not overlap, from all over the text."""
    import numpy as np
    import torch

    for name, value in (("--sequences", n_sequences), ("--tokens", n_tokens)):
        if value < 1:
            raise InputError(f"{name} {value}: expected a whole number from 1")
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    n_there = len(ids) // n_tokens
    if n_there == 0:
        raise InputError(
            f"--calibration: {len(ids)} tokens are fewer than the {n_tokens} of a sequence; bring more text"
        )
    chosen = np.random.default_rng(seed).permutation(n_there)[:n_sequences]
    return torch.tensor([ids[place * n_tokens : (place + 1) * n_tokens] for place in chosen])


def _size(text: str) -> int:
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise InputError(f"--budget takes a size such as 60MB or 1.5GB, not {text!r}")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _write(report: LiftQuantReport, table: Path | None, plot: Path | None) -> None:
    from assay._core.tables import write_table

    if table is not None:
        write_table(report.to_frame(), table)
    if plot is not None:
        save_picture(report.plot(), plot)
