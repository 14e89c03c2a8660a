"""`assay use arc-decode calibrate|generate|audit`: fit the tolerance to a model, write with it, check what it did."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay._core.errors import InputError
from assay.cli.output import check_folder, check_table, save_picture

if TYPE_CHECKING:
    from torch import Tensor

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def arc_decode() -> None:
    """Sample from a language model with a draft, accepting more of it where the next step would hardly change.

    Example: `assay use arc-decode calibrate prompts.csv -m demo -o calibration/`

    then `assay use arc-decode generate prompts.csv -m demo -c calibration/ -o texts.jsonl`.

    calibrate fits the tolerance to a model and its sampling settings; generate writes with it (lambda 0 is lossless and
    needs no calibration); audit measures, on other prompts, what the added tokens did to the next step.
    """


Prompts = Annotated[
    Path, typer.Argument(metavar="PROMPTS", help="CSV, TSV, JSONL or Parquet with a column of prompts.")
]
Model = Annotated[str, typer.Option("--model", "-m", help="The target: a folder, a model id, or `demo`.")]
Assistant = Annotated[
    str,
    typer.Option(
        "--assistant", "-a", help="Who drafts: `prompt_lookup`, a model of the same tokenizer, or `demo-draft`."
    ),
]
Column = Annotated[str, typer.Option("--column", help="The column of prompts.")]
Chat = Annotated[bool, typer.Option("--chat/--raw", help="Ask through the chat template, or continue the text.")]
Seed = Annotated[int, typer.Option("--seed", min=0)]
Calibration = Annotated[Path, typer.Option("--calibration", "-c", help="Folder that `calibrate` wrote.")]
PMin = Annotated[float, typer.Option("--p-min", help="The boost leaves tokens of a lower probability alone.")]
NumDraft = Annotated[int, typer.Option("--num-draft", help="Tokens that are drafted in a row.")]


@app.command()
def calibrate(
    prompts: Prompts,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the calibration.")],
    model: Model = "demo",
    column: Column = "prompt",
    chat: Chat = False,
    temperature: Annotated[float, typer.Option("--temperature", help="As the model will be sampled.")] = 1.0,
    top_k: Annotated[int, typer.Option("--top-k", help="0: all tokens.")] = 0,
    top_p: Annotated[float, typer.Option("--top-p")] = 1.0,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Positions a prompt; 200 in all are a start.")] = 32,
    delta: Annotated[float, typer.Option("--delta", help="Share of shifts that an estimate may be below.")] = 0.05,
    seed: Seed = 0,
) -> None:
    """Fit the tolerance: the model continues the prompts, and each next step is read twice.

    Example: `assay use arc-decode calibrate prompts.csv -m demo -o calibration/`
    """
    from assay.decode import arc_decode as method

    check_folder(out)
    lm, tokenizer = _model(model)
    found = method.calibrate(
        lm,
        _ids(prompts, column, tokenizer, chat),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        n_tokens=tokens,
        delta=delta,
        seed=seed,
    )
    found.save(out)
    typer.echo(found.summary())
    typer.echo(f"\nWritten: {out}")


@app.command()
def generate(
    prompts: Prompts,
    out: Annotated[Path, typer.Option("--out", "-o", help="Texts and records, one row a prompt (JSONL, CSV, …).")],
    model: Model = "demo",
    assistant: Assistant = "prompt_lookup",
    calibration: Annotated[
        Path | None, typer.Option("--calibration", "-c", help="Folder that `calibrate` wrote; none: lambda must be 0.")
    ] = None,
    column: Column = "prompt",
    chat: Chat = False,
    lam: Annotated[float, typer.Option("--lam", help="From 0, lossless, to 1.")] = 0.25,
    p_min: PMin = 0.05,
    num_draft: NumDraft = 5,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n")] = 128,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="End a text at this string; may be repeated.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="The calibration's, or 1 without one.")
    ] = None,
    top_k: Annotated[int | None, typer.Option("--top-k")] = None,
    top_p: Annotated[float | None, typer.Option("--top-p")] = None,
    seed: Seed = 0,
) -> None:
    """Write a text for every prompt, and say what each cost.

    Example: `assay use arc-decode generate prompts.csv -m demo -c calibration/ -n 60 -o texts.jsonl`
    """
    import pandas as pd

    from assay._core.progress import progress_bar
    from assay._core.seeds import child_seed
    from assay._core.tables import write_table
    from assay.decode import arc_decode as method

    check_table(out)
    fitted = None if calibration is None else method.ArcCalibration.load(calibration)
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    usual = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    sampling: dict[str, Any] = {
        name: (usual[name] if fitted is None else getattr(fitted, name)) if value is None else value
        for name, value in given.items()
    }
    lm, tokenizer = _model(model)
    draft = _assistant(assistant, lm, tokenizer)
    ids = _ids(prompts, column, tokenizer, chat)
    rows = []
    with progress_bar() as bar, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        task = bar.add_task("writing", total=len(ids))
        for number, prompt in enumerate(ids):
            output = method.arc_generate(
                lm,
                draft,
                prompt[None],
                max_new_tokens=max_new_tokens,
                calibration=fitted,
                lam=lam,
                p_min=p_min,
                num_draft=num_draft,
                stop_strings=stop or None,
                tokenizer=tokenizer,
                seed=child_seed(seed, "prompt", number),
                **sampling,
            )
            record = output.records[0]
            rows.append(
                {
                    "prompt": tokenizer.decode(prompt, skip_special_tokens=True),
                    "text": tokenizer.decode(output.sequences[0, len(prompt) :], skip_special_tokens=True),
                    "n_tokens": record.n_tokens,
                    "n_forwards": record.n_forwards,
                    "n_tried": record.n_tried,
                    "n_accepted": record.n_accepted,
                    "n_added": len(record.added),
                    "n_positions": record.n_positions,
                    "price": record.price,
                    "seconds": record.seconds,
                }
            )
            bar.advance(task)
    for message in dict.fromkeys(str(item.message) for item in caught if issubclass(item.category, UserWarning)):
        typer.echo(f"warning: {message}", err=True)
    frame = pd.DataFrame(rows)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_table(frame, out)
    typer.echo(_told(frame, lam))
    typer.echo(f"Written: {out}")


@app.command()
def audit(
    prompts: Prompts,
    calibration: Calibration,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for audit.csv, added.csv and audit.png.")],
    model: Model = "demo",
    assistant: Assistant = "prompt_lookup",
    column: Column = "prompt",
    chat: Chat = False,
    eps: Annotated[float, typer.Option("--eps", help="Shift of the next step that is too much, nats.")] = 0.1,
    lam: Annotated[float, typer.Option("--lam", help="1 shows the most additions.")] = 1.0,
    p_min: PMin = 0.05,
    num_draft: NumDraft = 5,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n")] = 40,
    seed: Seed = 0,
) -> None:
    """Measure what the added tokens do to the next step, on prompts that calibration has not seen.

    Example: `assay use arc-decode audit others.csv -m demo -c calibration/ -o audit/`
    """
    from assay._core.tables import write_table
    from assay.decode import arc_decode as method

    check_folder(out)
    fitted = method.ArcCalibration.load(calibration)
    lm, tokenizer = _model(model)
    draft = _assistant(assistant, lm, tokenizer)
    found = method.audit(
        lm,
        fitted,
        _ids(prompts, column, tokenizer, chat),
        assistant=draft,
        eps=eps,
        lam=lam,
        p_min=p_min,
        num_draft=num_draft,
        max_new_tokens=max_new_tokens,
        seed=seed,
    )
    added = found.added.copy()
    for name in ("token", "favourite"):
        added[name] = [tokenizer.decode([int(token)]) for token in added[name]]
    out.mkdir(parents=True, exist_ok=True)
    write_table(found.to_frame(), out / "audit.csv")
    write_table(added, out / "added.csv")
    save_picture(found.plot(), out / "audit.png")
    typer.echo(found.summary())
    typer.echo(f"\nWritten: {out / 'audit.csv'}, {out / 'added.csv'}, {out / 'audit.png'}")


def _model(name: str) -> tuple[Any, Any]:
    from assay import models

    return models.demo_lm() if name == "demo" else models.load_lm(name)


def _assistant(name: str, model: Any, tokenizer: Any) -> Any:
    if name == "prompt_lookup":
        return name
    if name == "demo-draft":
        from assay.trials.decode.arc_decode.models import demo_draft

        return demo_draft(model, tokenizer)
    from assay import models

    draft, its = models.load_lm(name)
    if its.get_vocab() != tokenizer.get_vocab():
        raise InputError(
            f"--assistant {name}: its tokenizer has other tokens than the model's; a draft must share them"
        )
    return draft


def _ids(path: Path, column: str, tokenizer: Any, is_chat: bool) -> list[Tensor]:
    import torch

    from assay._core.tables import read_table

    texts = list(read_table(path, {column: "text"})[column])
    if is_chat and not getattr(tokenizer, "chat_template", None):
        raise InputError("--chat: the tokenizer has no chat template; use --raw")
    found = []
    for number, text in enumerate(texts, start=1):
        if is_chat:
            asked = [{"role": "user", "content": text}]
            ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=True)["input_ids"]
        else:
            ids = tokenizer(text)["input_ids"]
        if not ids:
            raise InputError(f"{path}, prompt {number} ({column} {text!r}) has no tokens; expected some text")
        found.append(torch.tensor(ids, dtype=torch.long))
    return found


def _told(frame: Any, lam: float) -> str:
    total = frame[
        ["n_tokens", "n_forwards", "n_tried", "n_accepted", "n_added", "n_positions", "price", "seconds"]
    ].sum()
    n_tried = int(total["n_tried"])
    lines = [
        f"{len(frame)} text{'s' * (len(frame) != 1)}, {int(total['n_tokens'])} tokens, lambda {lam:g}",
        f"{total['n_tokens'] / total['n_forwards']:.2f} tokens a forward pass of the model, "
        f"{total['n_tokens'] / total['seconds']:.1f} tokens a second",
    ]
    if n_tried:
        lines.append(
            f"{total['n_accepted'] / n_tried:.3f} of {n_tried} tried candidates accepted, "
            f"{total['n_added'] / n_tried:.3f} added by the boost; price (mean B a position) "
            f"{total['price'] / total['n_positions']:.4f}"
        )
    return "\n".join(lines)
