"""`assay use rt-lynx MODEL_DIR -o OUT_DIR`: let a language model multiply sparse inputs, repair it, and write it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from assay._core.errors import InputError
from assay.cli.output import save_picture

app = typer.Typer(add_completion=False)

_UNITS = {"": 1, "K": 10**3, "KB": 10**3, "M": 10**6, "MB": 10**6, "G": 10**9, "GB": 10**9}


@app.command()
def rt_lynx(
    source: Annotated[str, typer.Argument(metavar="MODEL", help="Folder of a Hugging Face language model, or `demo`.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the sparse model: new or empty.")],
    calibration: Annotated[
        Path | None, typer.Option("--calibration", help="Text to fit the repairs to; default: Python's own reference.")
    ] = None,
    windows: Annotated[int, typer.Option("--windows", help="Windows of 128 tokens of it.", min=1)] = 48,
    pattern: Annotated[str, typer.Option("--pattern", metavar="N:M", help="Keep N of every M inputs.")] = "2:4",
    rank: Annotated[int, typer.Option("--rank", help="Of the repairs; 0: none.", min=0)] = 64,
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="SIZE", help="Bytes of the repairs, such as 20MB, in place of --rank."),
    ] = None,
    targets: Annotated[
        str, typer.Option("--targets", metavar="REGEX", help="Layers; auto: queries, keys, values and the MLP.")
    ] = "auto",
    skip: Annotated[
        list[str] | None, typer.Option("--skip", metavar="LAYER", help="Leave a layer dense; default: lm_head.")
    ] = None,
    max_error: Annotated[
        float | None,
        typer.Option("--max-error", help="Relative squared error of the logits: the worst layers stay dense."),
    ] = None,
    repairs_only: Annotated[
        bool, typer.Option("--repairs-only", help="Write the repairs and the manifest, not the weights.")
    ] = False,
    table: Annotated[
        Path | None, typer.Option("--table", help="Write the layers (.csv, .tsv, .json, .parquet).")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Also draw their errors (.png, .svg, .pdf).")] = None,
) -> None:
    r"""Multiply sparse inputs by dense weights, and repair what is lost with a small branch.

    Example: `assay use rt-lynx demo --targets '\.mlp\.' -o smollm2-sparse`

    An interrupted run that is started again with the same options goes on where it was. The weights stay as they are:
    the folder also loads as the dense model.
    """
    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError(f"{plot}: a picture is written as one of .png, .svg, .pdf")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is there already; give the name of a new or empty folder")
    n, m = _pattern(pattern)
    size = None if budget is None else _size(budget)
    text = None if calibration is None else _text(calibration)
    report = _sparsified(source, out, text, windows, (n, m), rank, size, targets, tuple(skip or ["lm_head"]), max_error,
                         repairs_only)  # fmt: skip
    if table is not None:
        from assay._core.tables import write_table

        write_table(report.to_frame(), table)
    if plot is not None:
        save_picture(report.plot(), plot)
    typer.echo(report.summary())
    typer.echo(f"\nWritten: {out} (load it with assay.compress.rt_lynx.load)")


def _sparsified(
    source: str,
    out: Path,
    text: str | None,
    n_windows: int,
    pattern: tuple[int, int],
    rank: int,
    budget: int | None,
    targets: str,
    skip: tuple[str, ...],
    max_error: float | None,
    repairs_only: bool,
) -> Any:
    import shutil

    from assay.compress.rt_lynx import ActivationSparsityConfig, save, sparsify_

    config = ActivationSparsityConfig(*pattern, rank=rank, targets=targets, skip=skip, max_error=max_error)
    model, tokenizer = _model(source)
    if budget is not None:
        config = ActivationSparsityConfig(
            *pattern, rank=_rank_within(model, config, budget), targets=targets, skip=skip, max_error=max_error
        )
    finished = out.resolve().with_name(f"{out.resolve().name}.layers")
    ids = _windows(tokenizer, text, n_windows)
    report = sparsify_(model, config, list(ids.split(4)), checkpoint=finished)
    save(model, out, weights=not repairs_only)
    if not repairs_only:
        tokenizer.save_pretrained(out)
    shutil.rmtree(finished, ignore_errors=True)
    return report


def _rank_within(model: Any, config: Any, budget: int) -> int:
    """The highest rank with which the repairs have at most `budget` bytes."""
    from assay.compress._layers import dense_weight
    from assay.compress.rt_lynx.calibrate import target_layers

    a_rank = 0
    for layer in target_layers(model, config).values():
        weight = dense_weight(layer)[0]
        if weight.shape[1] % config.m == 0:
            a_rank += sum(weight.shape) * weight.element_size()
    header = 300 * len(list(model.modules()))  # the file names each tensor
    rank = int((budget - header) // a_rank) if a_rank else 0
    if rank < 1:
        raise InputError(
            f"--budget {budget / 1e6:.2f} MB: repairs of rank 1 take {(a_rank + header) / 1e6:.2f} MB; use --rank 0 "
            f"for none"
        )
    return rank


def _windows(tokenizer: Any, text: str | None, n_windows: int, n_tokens: int = 128) -> Any:
    """Windows (n_windows, n_tokens) of the text that do not overlap, in random but fixed order."""
    import torch

    from assay.models.quality import calibration_text

    said = calibration_text() if text is None else text
    ids = tokenizer(said, add_special_tokens=False, verbose=False)["input_ids"]
    n_there = len(ids) // n_tokens
    if n_there < 2:
        raise InputError(f"the calibration text has {len(ids)} tokens; bring at least {2 * n_tokens}")
    order = torch.randperm(n_there, generator=torch.Generator().manual_seed(0))[:n_windows]
    return torch.tensor(ids[: n_there * n_tokens]).view(n_there, n_tokens)[order]


def _model(source: str) -> tuple[Any, Any]:
    from assay.models import named_lm

    if (Path(source) / "model_index.json").is_file() or (
        Path(source) / "diffusion_pytorch_model.safetensors"
    ).is_file():
        raise InputError(
            f"{source} is a diffusers folder, whose calibration needs its pipeline; use sparsify_ from Python as the "
            f"docs of rt-lynx show"
        )
    return named_lm(source, as_stored=True)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as UTF-8 text: {error}") from None


def _pattern(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,3}):(\d{1,3})", text.strip())
    if match is None:
        raise InputError(f"--pattern takes two numbers such as 2:4, not {text!r}")
    return int(match[1]), int(match[2])


def _size(text: str) -> int:
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise InputError(f"--budget takes a size such as 60MB or 1.5GB, not {text!r}")
    return int(float(match[1]) * _UNITS[match[2].upper()])
