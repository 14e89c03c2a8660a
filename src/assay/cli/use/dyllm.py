"""`assay use dyllm generate|compare`: decode with a masked diffusion model, and see what it saves on your prompts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay._core.errors import InputError
from assay.cli.output import PICTURES, check_file, check_folder, check_table, save_picture

if TYPE_CHECKING:
    from assay.decode.dyllm import DyLLMGenerator

app = typer.Typer(add_completion=False, no_args_is_help=True)


class Remasking(StrEnum):
    """What decides which masks are filled first."""

    auto = "auto"
    confidence = "confidence"
    margin = "margin"
    entropy = "entropy"
    random = "random"


class ModeName(StrEnum):
    """Ways to decode."""

    dyllm = "dyllm"
    full = "full"
    prefix_cache = "prefix_cache"
    dual_cache = "dual_cache"
    dllm_cache = "dllm_cache"


@app.callback()
def dyllm() -> None:
    """Decode with a masked diffusion language model and recompute only the tokens that moved.

    Example: `assay use dyllm generate MODEL_DIR --prompt "The capital of France is" --new-tokens 64`

    MODEL is a folder as save_pretrained writes it: a BERT, RoBERTa, ModernBERT or EuroBERT for masked language
    modelling, a Llama or Qwen whose config.json says "is_causal": false, and with --trust-remote-code LLaDA or Dream.
    generate writes text; compare decodes your prompts with full recomputation, Fast-dLLM's caches and dLLM-Cache as
    well, and says what each costs and how good its text is.
    """


Model = Annotated[str, typer.Argument(metavar="MODEL", help="Folder of a masked diffusion model, or a cached id.")]
Prompts = Annotated[
    Path | None,
    typer.Option("--prompts", help="Table with a column of prompts (CSV, JSONL, Parquet), or .txt with one a line."),
]
Column = Annotated[str, typer.Option("--column", help="The column with the prompt.")]
NewTokens = Annotated[int, typer.Option("--new-tokens", help="Masks behind a prompt that are filled.")]
Steps = Annotated[
    int | None, typer.Option("--steps", help="Steps of a prompt; they divide --new-tokens. Unset: one token a step.")
]
Threshold = Annotated[
    float | None, typer.Option("--threshold", help="Fill all tokens of at least this confidence; --steps is not used.")
]
Tau = Annotated[
    float,
    typer.Option("--tau", help="A token is recomputed when its attention context turns by a cosine under this."),
]
FullSteps = Annotated[int, typer.Option("--full-steps", help="Steps at the start that compute everything.")]
Block = Annotated[int, typer.Option("--block", help="Tokens that are filled before the next ones are begun.")]
Refresh = Annotated[
    int | None, typer.Option("--refresh-every", help="Compute everything in every such step; unset: never.")
]
Order = Annotated[
    Remasking, typer.Option("--remasking", help="Which masks first; auto: entropy for Dream, else confidence.")
]
MaskToken = Annotated[
    int | None, typer.Option("--mask-token", help="Id of the mask, where neither model nor tokenizer names it.")
]
Chat = Annotated[bool, typer.Option("--chat", help="Put every prompt into the model's chat template.")]
Dtype = Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, …")]
Trust = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the model: only from whom you trust.")
]


@app.command()
def generate(
    model: Model,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="One prompt; the text is printed.")] = None,
    prompts: Prompts = None,
    column: Column = "prompt",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write prompt, response and counts.")] = None,
    steps_table: Annotated[
        Path | None, typer.Option("--steps-table", help="Also write what every step and block computed (one prompt).")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Also draw it (.png, .svg, .pdf).")] = None,
    new_tokens: NewTokens = 64,
    steps: Steps = None,
    threshold: Threshold = None,
    tau: Tau = 0.99,
    full_steps: FullSteps = 4,
    block: Block = 32,
    refresh_every: Refresh = None,
    remasking: Order = Remasking.auto,
    temperature: Annotated[float, typer.Option("--temperature", help="Above 0, tokens are drawn.")] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="Of drawn tokens.")] = 0,
    mode: Annotated[ModeName, typer.Option("--mode", help="dyllm, or what it is compared with.")] = ModeName.dyllm,
    mask_token: MaskToken = None,
    chat: Chat = False,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    trust_remote_code: Trust = False,
) -> None:
    """Write the text that fills the masks behind each prompt.

    Example: `assay use dyllm generate MODEL_DIR --prompt "The capital of France is" --new-tokens 64`
    """
    check_table(out, steps_table)
    check_file(plot, PICTURES, "a picture")
    texts = _texts(prompt, prompts, column)
    if len(texts) > 1 and (steps_table is not None or plot is not None):
        raise InputError(f"--steps-table and --plot show one prompt, and there are {len(texts)}; use --prompt")
    generator, tokenizer = _generator(
        model, tau, full_steps, block, refresh_every, mask_token, dtype, device, trust_remote_code
    )
    import torch

    from assay._core.tables import write_table
    from assay.decode.dyllm import prompt_ids

    rows, found = [], None
    with _bar(len(texts) * new_tokens, "tokens") as advance:
        for text in texts:
            ids = torch.tensor([prompt_ids(tokenizer, text, chat=chat)])
            found = generator.generate(
                ids,
                temperature=temperature,
                seed=seed,
                mode=mode.value,
                on_step=advance,
                **_options(new_tokens, steps, threshold, remasking),
            )
            response = tokenizer.decode(found.sequences[0, ids.shape[1] :], skip_special_tokens=True)
            record = found.record
            rows.append(
                {
                    "prompt": text,
                    "response": response,
                    "tokens": record.n_tokens,
                    "steps": len(record.steps),
                    "seconds": record.seconds,
                    "recomputed_share": record.recomputed_share,
                    "operations_share": record.flops / record.full_flops,
                }
            )
    if prompt is not None and found is not None:
        typer.echo(f"{rows[0]['response']}\n\n{found.record.summary()}")
    else:
        seconds = sum(row["seconds"] for row in rows)
        typer.echo(f"{len(rows)} prompts, {sum(row['tokens'] for row in rows)} tokens in {seconds:.1f} s")
    if out is not None:
        import pandas as pd

        out.parent.mkdir(parents=True, exist_ok=True)
        write_table(pd.DataFrame(rows), out)
    if found is not None and steps_table is not None:
        steps_table.parent.mkdir(parents=True, exist_ok=True)
        write_table(found.record.to_frame(), steps_table)
    if found is not None and plot is not None:
        plot.parent.mkdir(parents=True, exist_ok=True)
        save_picture(found.record.plot(), plot)
    written = [str(path) for path in (out, steps_table, plot) if path is not None]
    if written:
        typer.echo(f"Written: {', '.join(written)}")


@app.command()
def compare(
    model: Model,
    prompts: Prompts = None,
    column: Column = "prompt",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for modes.csv, prompts.csv, modes.png.")
    ] = None,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="At most so many prompts.")] = 8,
    new_tokens: NewTokens = 64,
    steps: Steps = None,
    threshold: Threshold = None,
    tau: Tau = 0.99,
    full_steps: FullSteps = 4,
    block: Block = 32,
    refresh_every: Refresh = None,
    remasking: Order = Remasking.auto,
    mask_token: MaskToken = None,
    chat: Chat = False,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    trust_remote_code: Trust = False,
) -> None:
    """Decode prompts with DyLLM, full recomputation, Fast-dLLM's caches and dLLM-Cache, alternating.

    Example: `assay use dyllm compare MODEL_DIR --prompts prompts.jsonl -n 8 -o out/`
    """
    check_folder(out)
    texts = _texts(None, prompts, column)[:n]
    generator, tokenizer = _generator(
        model, tau, full_steps, block, refresh_every, mask_token, dtype, device, trust_remote_code
    )
    import torch

    from assay._core.tables import write_table
    from assay.decode.dyllm import compare as compared
    from assay.decode.dyllm import prompt_ids

    ids = [torch.tensor(prompt_ids(tokenizer, text, chat=chat)) for text in texts]
    with _bar(len(ids) * len(ModeName), "decodings") as advance:
        found = compared(
            generator,
            ids,
            on_decoded=lambda: advance(1),
            **_options(new_tokens, steps, threshold, remasking),
        )
    typer.echo(found.summary())
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_table(found.to_frame(), out / "modes.csv")
        write_table(found.rows, out / "prompts.csv")
        save_picture(found.plot(), out / "modes.png")
        typer.echo(f"\nWritten: {out / 'modes.csv'}, {out / 'prompts.csv'}, {out / 'modes.png'}")


def _options(new_tokens: int, steps: int | None, threshold: float | None, remasking: Remasking) -> dict[str, Any]:
    return {
        "max_new_tokens": new_tokens,
        "steps": steps,
        "confidence_threshold": threshold,
        "remasking": None if remasking is Remasking.auto else remasking.value,
    }


def _generator(
    model: str,
    tau: float,
    full_steps: int,
    block: int,
    refresh_every: int | None,
    mask_token: int | None,
    dtype: str,
    device: str,
    trust_remote_code: bool,
) -> tuple[DyLLMGenerator, Any]:
    from assay.decode.dyllm import DyLLMGenerator, load_masked_lm
    from assay.models.packages import without_progress_bars

    with without_progress_bars():
        loaded, tokenizer = load_masked_lm(model, dtype=dtype, trust_remote_code=trust_remote_code)
    if tokenizer is None:
        raise InputError(f"{model} has no tokenizer; save it into the folder with save_pretrained")
    try:
        loaded.to(device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"--device {device}: {str(error).splitlines()[0]}") from None
    generator = DyLLMGenerator(
        loaded,
        tokenizer,
        tau=tau,
        num_full_steps=full_steps,
        block_size=block,
        refresh_every=refresh_every,
        mask_token_id=mask_token,
    )
    return generator, tokenizer


def _texts(prompt: str | None, prompts: Path | None, column: str) -> list[str]:
    if prompt is not None and prompts is not None:
        raise InputError("--prompt and --prompts exclude each other; give one of them")
    if prompt is None and prompts is None:
        raise InputError("there is no prompt; give a file of them by --prompts FILE")
    if prompts is None:
        return [str(prompt)]
    if prompts.suffix.lower() == ".txt":
        try:
            lines = prompts.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{prompts} cannot be read as UTF-8 text: {error}") from None
        texts = [line.strip() for line in lines if line.strip()]
    else:
        from assay._core.tables import read_table

        texts = [str(text) for text in read_table(prompts, {column: "text"})[column] if str(text).strip()]
    if not texts:
        raise InputError(f"{prompts} holds no prompt; write one a line, or a column of them")
    return texts


@contextmanager
def _bar(total: int, what: str) -> Iterator[Any]:
    """A progress bar; yields what moves it on."""
    from assay._core.progress import progress_bar

    with progress_bar() as bar:
        task = bar.add_task(what, total=total)
        yield lambda n: bar.advance(task, n)
