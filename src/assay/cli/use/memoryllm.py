"""`assay use memoryllm train|export|generate|inspect|probe`: a small model, its table on disk, and what it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from assay._core.errors import InputError
from assay.cli.output import PICTURES, check_file, check_table, save_picture

app = typer.Typer(add_completion=False, no_args_is_help=True)

MODEL = "Folder of a MemoryLLM, as train or save_pretrained writes it."
LAYER = "Which layer, from 0."
TABLE = "Also write it (.csv, .tsv, .jsonl, .parquet)."
PLOT = "Also draw it (.png, .svg, .pdf)."


@app.callback()
def memoryllm() -> None:
    """Train a small language model with a memory for each token, put the memories on disk, and look into them.

    Example: `assay use memoryllm train --steps 100 -o small`
    """


@app.command()
def train(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the model and its tokenizer.")],
    text: Annotated[
        Path | None, typer.Option("--text", help="UTF-8 text to train on; default: docstrings of Python's library.")
    ] = None,
    beta: Annotated[str, typer.Option("--beta", help="0: MemoryLLM; up to below 8: Flex; base: the dense twin.")] = "0",
    width: Annotated[int, typer.Option("--width", help="Hidden size, a multiple of 48.")] = 192,
    n_layers: Annotated[int, typer.Option("--layers")] = 4,
    n_steps: Annotated[int, typer.Option("--steps", help="Steps of training.")] = 300,
    batch_size: Annotated[int, typer.Option("--batch", help="Windows a step.")] = 8,
    n_tokens: Annotated[int, typer.Option("--tokens", help="Of a window.")] = 128,
    learning_rate: Annotated[float, typer.Option("--learning-rate", help="At its peak.")] = 2e-3,
    seed: Annotated[int, typer.Option("--seed")] = 0,
) -> None:
    """Train a small model on this machine, and say how it reads held-out text.

    Example: `assay use memoryllm train --beta 0 --steps 300 -o small`

    It takes minutes, shows its progress, and goes on after an interruption when the same command is given again. Models
    of one width and all betas have as many parameters in total.
    """
    from assay.models import quality
    from assay.models.packages import write_pretrained
    from assay.nn.memoryllm import MemoryLlamaConfig

    _check_new(out)
    if width < 48 or width % 48 or n_layers < 1 or n_tokens < 8 or batch_size < 1:
        raise InputError(
            f"--width {width} --layers {n_layers} --tokens {n_tokens} --batch {batch_size}: expected a multiple of 48, "
            f"1, 8 and 1 or more"
        )
    config = MemoryLlamaConfig(
        vocab_size=4096, hidden_size=width, intermediate_size=8 * width // 3, num_hidden_layers=n_layers,
        num_attention_heads=width // 48, max_position_embeddings=4 * n_tokens, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0, ffn_beta=_beta(beta),
    )  # fmt: skip
    small = _trained(config, text, (n_steps, batch_size, n_tokens, learning_rate, seed))
    write_pretrained(small.model, small.tokenizer, out)
    found = quality.reference(small.model, small.tokenizer, n_windows=20, n_questions=0).full
    low, high = found.interval("perplexity")
    total = sum(weight.numel() for weight in small.model.parameters())
    typer.echo(f"perplexity of held-out text  {found.perplexity:.4g}  [{low:.4g}, {high:.4g}]  (Python's reference)")
    typer.echo(f"parameters  {total:,}, active outside the embedding {small.model.active_parameters():,}")
    typer.echo(f"\nWritten: {out}")


@app.command()
def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help=MODEL)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the table.")],
    dtype: Annotated[str, typer.Option("--dtype", help="float16, float32, int8 or int4.")] = "float16",
    rank: Annotated[int | None, typer.Option("--rank", help="Keep so many coordinates of a row.")] = None,
    layers: Annotated[str | None, typer.Option("--layers", help="Only these, with commas; others add nothing.")] = None,
) -> None:
    """Write what every layer's memory adds for every token as a table on disk.

    Example: `assay use memoryllm export small --dtype int8 -o small-table`
    """
    from assay.nn.memoryllm import export_tol

    loaded, tokenizer = _model(model)
    chosen = None if layers is None else _numbers("--layers", layers)
    manifest = export_tol(loaded, out, dtype, rank, chosen, tokenizer=tokenizer)
    tabled = sum(
        weight.numel()
        for number in manifest.layers
        for name, weight in loaded.model.layers[number].named_parameters()
        if name.startswith("memory")
    )
    typer.echo(f"{manifest.n_tokens} tokens, {len(manifest.layers)} layers, width {manifest.hidden_size}, {dtype}")
    typer.echo(f"{manifest.n_bytes:,} bytes on disk stand for {tabled:,} parameters, {2 * tabled:,} bytes in float16")
    typer.echo(f"\nWritten: {out}")


@app.command()
def generate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help=MODEL)],
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="Text to go on with.")],
    table: Annotated[
        Path | None, typer.Option("--table", help="Folder that export wrote; default: the model's own memories.")
    ] = None,
    n_new: Annotated[int, typer.Option("--tokens", help="To decode, at most.")] = 40,
    resident: Annotated[int, typer.Option("--resident", help="Rows of the table to keep in memory.")] = 0,
) -> None:
    """Decode from a table on disk, and say how fast and where the bytes are.

    Example: `assay use memoryllm generate small --table small-table -p "Return the number of"`
    """
    import time

    if n_new < 1:
        raise InputError(f"--tokens {n_new}: expected 1 or more")
    loaded, tokenizer = _model(model) if table is None else _mapped(model, table, resident)
    inputs = tokenizer(prompt, return_tensors="pt")
    n_read = inputs["input_ids"].shape[1]
    if not n_read:
        raise InputError("--prompt is empty; give a text to go on with")
    begun = time.perf_counter()
    found = loaded.generate(**inputs, max_new_tokens=n_new, do_sample=False)
    seconds = time.perf_counter() - begun
    n_found = found.shape[1] - n_read
    typer.echo(tokenizer.decode(found[0], skip_special_tokens=True))
    weights = sum(weight.nbytes for weight in loaded.parameters())
    typer.echo(f"\n{n_found} tokens, {n_found / seconds:.1f} a second; weights in memory {weights / 2**20:.2f} MiB")
    if table is not None:
        typer.echo(loaded.cache_stats().summary())


@app.command()
def inspect(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help=MODEL)],
    token: Annotated[str | None, typer.Option("--token", help="The cells of this token: a text, or id:NUMBER.")] = None,
    cell: Annotated[
        int | None, typer.Option("--cell", help="The tokens of this cell, and what its value says.")
    ] = None,
    clusters: Annotated[int | None, typer.Option("--clusters", help="Group the vocabulary so.")] = None,
    layer: Annotated[int, typer.Option("--layer", help=LAYER)] = 0,
    top: Annotated[int, typer.Option("--top", help="Rows to print, of each cluster too.")] = 10,
    table: Annotated[Path | None, typer.Option("--table", help=TABLE)] = None,
) -> None:
    """Say which cells a token uses, which tokens a cell serves, which tokens go together, and what stands out.

    Example: `assay use memoryllm inspect small --token " not" --layer 1`

    Without --token, --cell or --clusters: the tokens for which most cells stand out.
    """
    from assay._core.tables import write_table
    from assay.nn.memoryllm import TokenMemory

    if sum(asked is not None for asked in (token, cell, clusters)) > 1:
        raise InputError("--token, --cell and --clusters are three questions; ask one at a time")
    if top < 1:
        raise InputError(f"--top {top}: expected 1 or more")
    check_table(table)
    memory = TokenMemory(*_model(model))
    if token is not None:
        number = memory.token_id(_token(token))
        found = shown = memory.cells(number, layer, top)
        title = f"cells of token {number}, layer {layer}"
    elif cell is not None:
        found = memory.tokens(cell, layer, top)
        raised = memory.directions(cell, layer, top)
        shown = found.assign(raises=raised["text"], logit=raised["logit"])
        title = f"tokens that use cell {cell} of layer {layer}, and tokens whose logits its value raises"
    elif clusters is not None:
        found = memory.cluster(layer, clusters)
        shown = found.groupby("cluster")["text"].agg(
            size="size", nearest=lambda texts: " ".join(map(repr, texts.head(top)))
        ).reset_index()  # fmt: skip
        title = f"{clusters} clusters of the vocabulary by their cells in layer {layer}"
    else:
        found = memory.outliers(layer)
        shown = found.head(top)
        title = f"tokens with most cells beyond 3 standard deviations, layer {layer}"
    if table is not None:
        write_table(found, table)
    typer.echo(title)
    _echo(shown)


@app.command()
def probe(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help=MODEL)],
    what: Annotated[str, typer.Option("--what", help="layers: drop one at a time; alpha: scale all.")] = "layers",
    text: Annotated[Path | None, typer.Option("--text", help="UTF-8 text; default: Python's reference.")] = None,
    n_windows: Annotated[int, typer.Option("--windows", help="Of the text.")] = 20,
    n_tokens: Annotated[int, typer.Option("--tokens", help="Of a window.")] = 128,
    table: Annotated[Path | None, typer.Option("--table", help=TABLE)] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help=PLOT)] = None,
) -> None:
    """Say what the model loses without each layer's memory, or with all memories scaled down.

    Example: `assay use memoryllm probe small --what layers --plot layers.png`
    """
    from assay._core.tables import write_table
    from assay.nn.memoryllm import probe_alpha, probe_layers

    check_table(table)
    check_file(plot, PICTURES, "a picture")
    if what not in ("layers", "alpha"):
        raise InputError(f"--what {what}: expected layers or alpha")
    loaded, tokenizer = _model(model)
    windows = _windows(tokenizer, text, n_windows, n_tokens)
    curve = probe_layers(loaded, windows) if what == "layers" else probe_alpha(loaded, windows)
    if table is not None:
        write_table(curve.to_frame(), table)
    if plot is not None:
        save_picture(curve.plot(), plot)
    typer.echo(curve.summary())


def _beta(said: str) -> float | str:
    if said == "base":
        return said
    try:
        return float(said)
    except ValueError:
        raise InputError(f"--beta {said}: expected a number from 0 to below 8, or base") from None


def _numbers(option: str, said: str) -> list[int]:
    try:
        return [int(part) for part in said.split(",")]
    except ValueError:
        raise InputError(f"{option} takes whole numbers with commas, such as 0,1,3, not {said!r}") from None


def _token(said: str) -> int | str:
    number = said.removeprefix("id:")
    return int(number) if number != said and number.isdecimal() else said


def _check_new(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is there already; give the name of a new or empty folder")


def _model(folder: Path) -> tuple[Any, Any]:
    import assay.nn.memoryllm.model  # noqa: F401  # makes its architecture known to transformers
    from assay.models import load_lm

    return load_lm(folder)


def _mapped(folder: Path, table: Path, resident: int) -> tuple[Any, Any]:
    from transformers import AutoTokenizer

    from assay.models.packages import without_progress_bars
    from assay.nn.memoryllm import load_with_tol

    with without_progress_bars():
        loaded = load_with_tol(folder, table, resident)
    return loaded, AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _windows(tokenizer: Any, text: Path | None, n_windows: int, n_tokens: int) -> Any:
    import numpy as np

    from assay.models.quality import held_out_text

    said = held_out_text() if text is None else _read(text)
    ids = tokenizer(said, add_special_tokens=False, verbose=False)["input_ids"]
    if n_windows < 2 or n_tokens < 2 or len(ids) < n_windows * n_tokens:
        raise InputError(
            f"--windows {n_windows} of --tokens {n_tokens}: expected 2 or more of each, and the text has {len(ids)} "
            f"tokens"
        )
    whole = np.asarray(ids[: len(ids) // n_tokens * n_tokens], dtype=np.int64).reshape(-1, n_tokens)
    return whole[np.linspace(0, len(whole) - 1, n_windows).astype(int)]  # from all over the text


def _read(text: Path) -> str:
    try:
        return text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{text} cannot be read as UTF-8 text: {error}") from None


def _trained(config: Any, text: Path | None, how: tuple[int, int, int, float, int]) -> Any:
    """Train through the one recipe; with a text of the user's, windows are drawn from that."""
    import hashlib

    import numpy as np
    import torch

    from assay.models.small import Recipe, next_token_loss, tokenizer, train
    from assay.nn.memoryllm import MemoryLlamaForCausalLM

    n_steps, batch_size, n_tokens, learning_rate, seed = how
    recipe = Recipe(n_steps, batch_size, n_tokens, learning_rate, vocab_size=config.vocab_size, seed=seed)
    said = config.to_dict()
    loss: Any = next_token_loss
    if text is not None:
        read = tokenizer(config.vocab_size)(_read(text), add_special_tokens=False, verbose=False)["input_ids"]
        if len(read) < n_tokens:
            raise InputError(f"--tokens {n_tokens}: the text has {len(read)} tokens; bring a longer one")
        ids = torch.tensor(read)
        said["text"] = hashlib.sha256(np.asarray(read, dtype=np.int64).tobytes()).hexdigest()

        def on_text(model: Any, _: Any) -> Any:
            starts = torch.randint(len(ids) - n_tokens + 1, (batch_size, 1))  # seeded by the recipe, step by step
            return next_token_loss(model, ids[starts + torch.arange(n_tokens)])

        loss = on_text
    return train("memoryllm", said, lambda: MemoryLlamaForCausalLM(config), recipe, loss=loss)


def _echo(frame: Any) -> None:
    """A table whose texts show their spaces."""
    shown = frame.copy()
    for name in ("text", "raises"):
        if name in shown:
            shown[name] = shown[name].map(repr)
    typer.echo(shown.to_string(index=False, float_format=lambda value: f"{value:.4g}"))
