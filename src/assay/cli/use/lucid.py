"""`assay use lucid inspect|convert|bench MODEL`: would it change a model, a model trained with it, what it costs."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from assay._core.errors import InputError
from assay.cli.output import save_picture

app = typer.Typer(add_completion=False, no_args_is_help=True)

MODEL = "Folder of a Hugging Face model, or `demo` (SmolLM2-135M-Instruct)."
TABLE = "Also write it (.csv, .tsv, .jsonl, .parquet)."
PLOT = "Also draw it (.png, .svg, .pdf)."


@app.callback()
def lucid() -> None:
    """Look at a model's keys, give it LUCID attention by training, or time both attentions at its shape.

    Example: `assay use lucid inspect demo`
    """


@app.command()
def inspect(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)],
    text: Annotated[Path | None, typer.Option("--text", help="UTF-8 text; default: Python's reference.")] = None,
    n_texts: Annotated[int, typer.Option("--windows", help="Windows of the text.")] = 2,
    n_tokens: Annotated[int, typer.Option("--tokens", help="Of a window.")] = 256,
    table: Annotated[Path | None, typer.Option("--table", help=TABLE)] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help=PLOT)] = None,
) -> None:
    """Say, layer by layer, how alike the keys are: where P's condition is near 1, LUCID would change nothing.

    Example: `assay use lucid inspect demo --tokens 256 --plot keys.png`
    """
    import torch

    from assay.nn.lucid.keys import inspect_keys

    _check_picture(plot)
    loaded, tokenizer = _model(model)
    ids = _token_ids(tokenizer, text, held_out=True)
    if n_texts < 1 or n_tokens < 2 or len(ids) < n_texts * n_tokens:
        raise InputError(f"--windows {n_texts} of --tokens {n_tokens}: the text has {len(ids)} tokens")
    report = inspect_keys(loaded, torch.tensor(ids[: n_texts * n_tokens]).view(n_texts, n_tokens))
    _write(report, table, plot)
    typer.echo(report.summary())


@app.command()
def convert(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the model with LUCID attention.")],
    text: Annotated[
        Path | None, typer.Option("--text", help="UTF-8 text to train on; default: docstrings of Python's library.")
    ] = None,
    n_steps: Annotated[int, typer.Option("--steps", help="Steps of training; 0: only switch.")] = 100,
    batch_size: Annotated[int, typer.Option("--batch", help="Windows a step.")] = 4,
    n_tokens: Annotated[int, typer.Option("--tokens", help="Of a window.")] = 256,
    learning_rate: Annotated[float, typer.Option("--learning-rate", help="At its peak.")] = 1e-4,
    seed: Annotated[int, typer.Option("--seed")] = 0,
) -> None:
    """Switch a model to LUCID attention, train it further, and say what that did to its loss on held-out text.

    Example: `assay use lucid convert demo --steps 100 -o smollm2-lucid`

    Training shows its progress and goes on after an interruption when the same command is given again. Load the folder
    with assay.nn.lucid.load.
    """
    from assay.models import quality
    from assay.models.packages import write_pretrained
    from assay.nn.lucid import convert_

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is there already; give the name of a new or empty folder")
    if min(n_steps, batch_size - 1, n_tokens - 8) < 0:
        raise InputError(f"--steps {n_steps} --batch {batch_size} --tokens {n_tokens}: expected 0, 1 and 8 or more")
    if not 0 < learning_rate < float("inf"):
        raise InputError(f"--learning-rate {learning_rate:g}: expected a number above zero, such as 1e-4")
    softmax, tokenizer = _model(model)
    ids = _token_ids(tokenizer, text, held_out=False)
    if len(ids) < n_tokens:
        raise InputError(f"--tokens {n_tokens}: the text has {len(ids)} tokens; bring a longer one or shorter windows")
    reference = quality.reference(softmax, tokenizer, n_windows=8, n_tokens=128, n_questions=0)
    said = [("softmax, as it was", reference.full)]
    convert_(softmax)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*was trained with another attention")  # the line below says so
        said.append(("LUCID, not trained", quality.measure(softmax, tokenizer, reference)))
    made = softmax
    if n_steps:
        made = _trained(softmax, model, ids, (n_steps, batch_size, n_tokens, learning_rate, seed))
        said.append((f"LUCID, {n_steps} steps", quality.measure(made, tokenizer, reference)))
    write_pretrained(made, tokenizer, out)
    for name, found in said:
        low, high = found.interval("perplexity")
        typer.echo(f"{name:<22} perplexity {found.perplexity:8.4g}  [{low:.4g}, {high:.4g}]")
    typer.echo(f"\nWritten: {out} (load it with assay.nn.lucid.load)")


@app.command()
def bench(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Its shape is timed; nothing is loaded.")
    ] = None,
    heads: Annotated[int, typer.Option("--heads", help="Without MODEL: heads of queries.")] = 8,
    kv_heads: Annotated[int, typer.Option("--kv-heads", help="Without MODEL: heads of keys.")] = 8,
    head_dim: Annotated[int, typer.Option("--head-dim", help="Without MODEL: width of a head.")] = 64,
    lengths: Annotated[str, typer.Option("--tokens", help="Lengths, with commas.")] = "512,2048",
    table: Annotated[Path | None, typer.Option("--table", help=TABLE)] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help=PLOT)] = None,
) -> None:
    """Time LUCID beside SDPA on this machine, for a prompt and for a decoded token.

    Example: `assay use lucid bench --heads 8 --kv-heads 2 --head-dim 64 --tokens 512,2048`
    """
    from assay.nn.lucid.timing import compare_speed

    _check_picture(plot)
    try:
        sizes = [int(part) for part in lengths.split(",")]
    except ValueError:
        raise InputError(f"--tokens takes lengths with commas, such as 512,2048, not {lengths!r}") from None
    shape = (heads, kv_heads, head_dim) if model is None else _shape(model)
    timing = compare_speed([shape], sizes)
    _write(timing, table, plot)
    typer.echo(timing.summary())


def _model(source: str) -> tuple[Any, Any]:
    from assay.models import demo_lm, load_lm

    return demo_lm() if source == "demo" else load_lm(Path(source))


def _shape(source: str) -> tuple[int, int, int]:
    """Heads, heads of keys and their width, from config.json."""
    from transformers import AutoConfig

    if source == "demo":
        return 9, 3, 64
    if not (Path(source) / "config.json").is_file():
        raise InputError(f"{source} holds no config.json, so it is not the folder of a Hugging Face model")
    config = AutoConfig.from_pretrained(source, trust_remote_code=False, local_files_only=True).get_text_config()
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return heads, kv_heads, getattr(config, "head_dim", None) or config.hidden_size // heads


def _token_ids(tokenizer: Any, text: Path | None, *, held_out: bool) -> list[int]:
    """The user's text, or one that comes with Python: the half on which models are measured, or the one to train on."""
    if text is None:
        from assay.models.quality import held_out_text
        from assay.models.small import training_text

        said = held_out_text() if held_out else training_text()
    else:
        try:
            said = text.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{text} cannot be read as UTF-8 text: {error}") from None
    ids: list[int] = tokenizer(said, add_special_tokens=False, verbose=False)["input_ids"]
    return ids


def _trained(switched: Any, source: str, ids: list[int], how: tuple[int, int, int, float, int]) -> Any:
    """Train through the one recipe; its windows are drawn from these tokens instead of its own text."""
    import hashlib

    import torch

    from assay.models.small import Recipe, next_token_loss, train
    from assay.nn.lucid.hub import MARK

    n_steps, batch_size, n_tokens, learning_rate, seed = how
    tokens = torch.tensor(ids)

    def loss(model: Any, _: Any) -> Any:
        starts = torch.randint(len(tokens) - n_tokens + 1, (batch_size, 1))  # seeded by the recipe, step by step
        return next_token_loss(model, tokens[starts + torch.arange(n_tokens)])

    # The weights that training starts from are told by their sum and first numbers, as the folder's name is not enough.
    said = {
        name: [weight.double().sum().item(), *weight.flatten()[:2].tolist()]
        for name, weight in switched.state_dict().items()
    }
    digest = hashlib.sha256(repr((said, ids)).encode()).hexdigest()
    recipe = Recipe(n_steps, batch_size=1, n_tokens=8, learning_rate=learning_rate, seed=seed)
    config = {"source": digest, "batch_size": batch_size, "n_tokens": n_tokens}
    model = train("lucid-converted", config, lambda: switched, recipe, loss=loss).model
    config_of_text: Any = model.config
    setattr(config_of_text.get_text_config(), MARK, True)  # weights of a run that was finished before are only read
    return model


def _check_picture(plot: Path | None) -> None:
    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError(f"{plot}: a picture is written as one of .png, .svg, .pdf")


def _write(result: Any, table: Path | None, plot: Path | None) -> None:
    from assay._core.tables import write_table

    if table is not None:
        write_table(result.to_frame(), table)
    if plot is not None:
        save_picture(result.plot(), plot)
