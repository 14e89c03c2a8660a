"""`assay use model-dowser …`: score a model, train the weights that it can spare, put the result on a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from assay._core.errors import InputError
from assay.cli.output import check_file, check_table

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="""Teach a language model a task, changing only weights whose change costs no old skill.

Example, from a table with columns prompt and answer to a model that knows both the new and the old:

`assay use model-dowser score demo -o mask.safetensors`

`assay use model-dowser train demo lessons.csv --mask mask.safetensors -o lessons.safetensors`

`assay use model-dowser apply demo lessons.safetensors -o taught/`
""",
)

Source = Annotated[
    str, typer.Argument(metavar="MODEL", help="`demo`, a folder, or the id of a model in the local Hugging Face cache.")
]


@app.command("score")
def score(
    source: Source,
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the mask, one bit a weight (.safetensors).")],
    rho: Annotated[
        float, typer.Option("--rho", help="Share of every matrix that may change: more learns and forgets more.")
    ] = 0.1,
    layers: Annotated[
        int | None, typer.Option("--layers", help="Score the last blocks, this many; default: 20, or all.", min=1)
    ] = None,
    modules: Annotated[
        str, typer.Option("--modules", metavar="REGEX", help="Only layers with such a name; default: all linear ones.")
    ] = "linear",
    probes: Annotated[int, typer.Option("--probes", help="Texts that the model writes to be scored on.", min=1)] = 32,
    length: Annotated[int, typer.Option("--length", help="Tokens of each.", min=2)] = 64,
    draws: Annotated[int, typer.Option("--draws", help="Backward passes of random signs for each text.", min=1)] = 8,
    scope: Annotated[
        str, typer.Option("--scope", help="`layer`: the share in every matrix; `global`: over all together.")
    ] = "layer",
    text: Annotated[
        Path | None,
        typer.Option("--text", help="Score on the lines of this file instead (then it is no longer data-free)."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    table: Annotated[
        Path | None, typer.Option("--table", help="Also write the matrices (.csv, .tsv, .json, .parquet).")
    ] = None,
) -> None:
    """Score every weight on text that the model writes itself, and write which may change.

    Example: `assay use model-dowser score demo --rho 0.1 -o mask.safetensors`

    The mask is made once for a model and serves any number of tasks. No data are needed. The demo model takes two or
    three minutes on one core.
    """
    from typing import cast

    from assay._core.tables import write_table
    from assay.adapt.model_dowser import build_mask, importance
    from assay.adapt.model_dowser.masks import check_choice
    from assay.models import named_lm

    check_choice(rho, scope)
    check_file(out)
    check_table(table)
    given = None if text is None else _lines(text)
    model, tokenizer = named_lm(source)
    scores = importance(model, given, tokenizer, probes, draws, modules, layers, seed=seed, length=length, verbose=True)
    mask = build_mask(scores, rho, cast("Any", scope))
    _make_folder(out.parent)
    mask.save(out)
    typer.echo(mask.summary())
    if table is not None:
        _make_folder(table.parent)
        write_table(mask.to_frame(), table)
    written = [path for path in (out, table) if path is not None]
    typer.echo(f"\nWritten: {', '.join(map(str, written))}")


@app.command("train")
def train(
    source: Source,
    lessons: Annotated[Path, typer.Argument(metavar="TABLE", help="Prompts and answers: CSV, TSV, JSONL or Parquet.")],
    mask: Annotated[Path, typer.Option("--mask", help="The mask of this model, as `score` writes it.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File for what training changed (.safetensors).")],
    prompt: Annotated[str, typer.Option("--prompt", help="Column with what is asked.")] = "prompt",
    answer: Annotated[str, typer.Option("--answer", help="Column with what is to be answered.")] = "answer",
    epochs: Annotated[int, typer.Option("--epochs", help="Times through the table.", min=1)] = 1,
    steps: Annotated[int | None, typer.Option("--steps", help="Stop after so many steps.", min=1)] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Examples a step.", min=1)] = 8,
    learning_rate: Annotated[float, typer.Option("--learning-rate", help="Of AdamW, falling to zero.")] = 3e-4,
    longest: Annotated[int, typer.Option("--max-tokens", help="Longer examples lose their beginning.", min=2)] = 512,
    held_out: Annotated[
        float, typer.Option("--held-out", help="Share of the table that only measures.", min=0.0, max=0.9)
    ] = 0.1,
    forgotten: Annotated[
        bool, typer.Option("--forgotten/--no-forgotten", help="Also measure what was forgotten, on prose.")
    ] = True,
    seed: Annotated[int, typer.Option("--seed")] = 0,
) -> None:
    """Train the weights that the mask lets change, on the answers of a table, and write what changed.

    Example: `assay use model-dowser train demo lessons.csv --mask mask.safetensors -o lessons.safetensors`

    The file holds the changed weights alone, about the mask's share of the model. Everything else is bit for bit as it
    was.
    """
    import tempfile

    from transformers import TrainingArguments

    from assay.adapt.model_dowser import DowserTrainer, Mask
    from assay.models import named_lm

    if learning_rate <= 0:
        raise InputError(f"--learning-rate {learning_rate:g}: expected a number above 0")
    check_file(out)
    chosen = Mask.load(mask)
    pairs = _pairs(lessons, prompt, answer)
    model, tokenizer = named_lm(source)
    with chosen.apply(model):  # another model's mask is found out before minutes of measuring
        pass
    examples = [_tokens(tokenizer, *pair, longest) for pair in pairs]
    learned, watched = _split(examples, held_out, seed)
    reference = _reference(model, tokenizer) if forgotten else None
    before = _loss(model, watched, batch_size)
    with tempfile.TemporaryDirectory() as scratch:
        arguments = TrainingArguments(
            scratch, num_train_epochs=epochs, max_steps=steps or -1, per_device_train_batch_size=batch_size,
            learning_rate=learning_rate, seed=seed, save_strategy="no", report_to=[], logging_strategy="no",
            disable_tqdm=None, remove_unused_columns=False, dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = DowserTrainer(model, arguments, chosen, train_dataset=learned, data_collator=_batch)
        _quiet(trainer)
        trainer.train()
    _make_folder(out.parent)
    trainer.delta_.save(out)
    typer.echo(
        f"{trainer.state.global_step} steps on {len(learned)} examples changed {trainer.delta_.n_entries:,} weights"
    )
    if watched:
        after = _loss(model, watched, batch_size)
        typer.echo(f"loss on {len(watched)} held-out examples: {before:.3f} to {after:.3f} nats a token")
    if reference is not None:
        from assay.models import quality

        said = quality.measure(model, tokenizer, reference)
        low, high = said.interval("kl_mean")
        typer.echo(
            f"forgotten: perplexity of prose {reference.full.perplexity:.2f} to {said.perplexity:.2f}, KL from the "
            f"model before {said.kl_mean:.4f} nats [{low:.4f}, {high:.4f}]"
        )
    typer.echo(f"\nWritten: {out} ({out.stat().st_size / 1e6:.1f} MB)")


@app.command("apply")
def apply(
    source: Source,
    delta: Annotated[Path, typer.Argument(metavar="DELTA", help="What training changed, as `train` writes it.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the tuned model: new or empty.")],
) -> None:
    """Put what training changed on the model that it was trained from, and write a Hugging Face folder.

    Example: `assay use model-dowser apply demo lessons.safetensors -o taught/`
    """
    from assay.adapt.model_dowser import SparseDelta
    from assay.models import named_lm
    from assay.models.packages import write_pretrained

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is there already; give the name of a new or empty folder")
    changes = SparseDelta.load(delta)
    model, tokenizer = named_lm(source)
    changes.apply(model)
    _make_folder(out)
    write_pretrained(model, tokenizer, out)
    typer.echo(f"{changes.n_entries:,} weights changed\n\nWritten: {out}")


def _quiet(trainer: Any) -> None:
    """Keep the bar on a terminal; the trainer's own log is a raw dict on stdout, and what matters is said below."""
    from transformers import PrinterCallback, ProgressCallback

    trainer.remove_callback(PrinterCallback)
    bar = trainer.pop_callback(ProgressCallback)
    if bar is not None:
        bar.on_log = lambda *_, **__: None
        trainer.add_callback(bar)


def _reference(model: Any, tokenizer: Any) -> Any:
    from assay.models import quality

    return quality.reference(model, tokenizer, n_windows=8, n_questions=0)


def _lines(path: Path) -> list[str]:
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as UTF-8 text: {error}") from None
    if not lines:
        raise InputError(f"{path} holds no line with text; write one probe a line")
    return lines


def _pairs(path: Path, prompt: str, answer: str) -> list[tuple[str, str]]:
    from assay._core.tables import read_table

    if prompt == answer:
        raise InputError(f"--prompt and --answer both name the column {prompt!r}; they are two columns")
    table = read_table(path, {prompt: "text", answer: "text"})
    if table.empty:
        raise InputError(f"{path} has no rows; there is nothing to learn")
    return [(str(asked), str(said)) for asked, said in zip(table[prompt], table[answer], strict=True)]


def _tokens(tokenizer: Any, prompt: str, answer: str, longest: int) -> dict[str, list[int]]:
    asked = tokenizer(prompt, verbose=False)["input_ids"]
    said = tokenizer(answer, add_special_tokens=False, verbose=False)["input_ids"]
    if tokenizer.eos_token_id is not None:
        said = [*said, tokenizer.eos_token_id]
    return {"input_ids": (asked + said)[-longest:], "labels": ([-100] * len(asked) + said)[-longest:]}


def _split(examples: list[Any], share: float, seed: int) -> tuple[list[Any], list[Any]]:
    import numpy as np

    order = np.random.default_rng(seed).permutation(len(examples))
    n = min(round(share * len(examples)), len(examples) - 1)
    return [examples[place] for place in order[n:]], [examples[place] for place in order[:n]]


def _batch(rows: list[dict[str, list[int]]]) -> dict[str, Any]:
    """Padded on the right; padding and prompts are not learned."""
    import torch

    pad = torch.nn.utils.rnn.pad_sequence
    ids = [torch.tensor(row["input_ids"]) for row in rows]
    return {
        "input_ids": pad(ids, batch_first=True),
        "attention_mask": pad([torch.ones_like(row) for row in ids], batch_first=True),
        "labels": pad([torch.tensor(row["labels"]) for row in rows], batch_first=True, padding_value=-100),
    }


def _loss(model: Any, examples: list[Any], batch_size: int) -> float:
    """Mean surprise at a token of the answers, nats; NaN without examples."""
    import torch

    total, n = 0.0, 0
    model.eval()
    with torch.inference_mode():
        for start in range(0, len(examples), batch_size):
            batch = {key: value.to(model.device) for key, value in _batch(examples[start : start + batch_size]).items()}
            count = int((batch["labels"][:, 1:] != -100).sum())
            total += float(model(**batch).loss) * count
            n += count
    return total / n if n else float("nan")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder} ({error.strerror}); choose another") from None
