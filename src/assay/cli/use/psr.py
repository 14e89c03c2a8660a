"""`assay use psr train|apply|show|export`: learn to steer from questions, answer under steering, see where it acts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay._core.errors import InputError
from assay.cli.output import PICTURES, check_file, check_folder, check_table, save_picture

if TYPE_CHECKING:
    import pandas as pd

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="""Steer a language model as a prompt would, without the prompt.

Example, with a table `questions.csv` whose column `question` holds a few dozen everyday questions:

`assay use psr train questions.csv --instruction "You are a pirate." -o pirate`

`assay use psr apply pirate questions.csv --alpha 2 -o answers.csv`

`assay use psr show pirate "How do I make tea?" -o strip.html`
""",
)

ModelName = Annotated[str, typer.Option("--model", "-m", help="`demo`, a folder, or the id of a model that is here.")]
Folder = Annotated[Path, typer.Argument(metavar="STEERING", help="A folder, as `train` writes it.")]
Alpha = Annotated[float, typer.Option("--alpha", help="Strength; 1: as the prompt does, on average.")]
Tokens = Annotated[int, typer.Option("--tokens", help="Tokens of an answer.")]
Seed = Annotated[int, typer.Option("--seed")]
QuestionColumn = Annotated[str, typer.Option("--question", help="Column with the questions.")]

METHODS = ("psr", "constant", "difference-in-means", "projection")


@app.command()
def train(
    table: Annotated[
        Path,
        typer.Argument(
            metavar="TABLE", help="Questions, to be answered under --instruction; or prompt, steered_prompt, response."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write to.")],
    instruction: Annotated[str, typer.Option("--instruction", "-i", help="What the steering prompt asks for.")] = "",
    model: ModelName = "demo",
    method: Annotated[str, typer.Option("--method", help=f"One of {', '.join(METHODS)}.")] = "psr",
    layers: Annotated[str, typer.Option("--layers", help="`middle`, `all`, or numbers with commas.")] = "middle",
    objective: Annotated[
        str,
        typer.Option("--objective", help="`local` (states of the layers: seconds), `mse`, `ll` (through the model)."),
    ] = "local",
    span: Annotated[str, typer.Option("--span", help="`answer_only`, or `question_and_answer`.")] = "answer_only",
    words: Annotated[str, typer.Option("--words", help="Keep answers with at least two of these (with commas).")] = "",
    max_perplexity: Annotated[
        float | None, typer.Option("--max-perplexity", help="Keep answers below twice this, as the model sees them.")
    ] = None,
    tokens: Tokens = 64,
    temperature: Annotated[float, typer.Option("--temperature", help="Of the answers that are sampled.")] = 1.0,
    pairs_out: Annotated[Path | None, typer.Option("--pairs", help="Also write the pairs (.csv, .jsonl, …).")] = None,
    seed: Seed = 123,
    question: QuestionColumn = "question",
) -> None:
    """Learn what a steering prompt does, from answers that the model gives under it.

    Example: `assay use psr train questions.csv --instruction "You are a pirate." -o pirate`

    Most of the time goes to the answers; `mse` and `ll` train through the model and take minutes on a CPU.
    """
    from assay.adapt import psr
    from assay.adapt.psr.judges import perplexity_judge, word_judge

    if method not in METHODS:
        raise InputError(f"--method {method}: expected one of {', '.join(METHODS)}")
    if objective not in ("local", "mse", "ll"):
        raise InputError(f"--objective {objective}: expected local, mse or ll")
    check_folder(out)
    check_table(pairs_out)
    asked = _layers(layers)
    if instruction:
        questions = _questions(table, question)
        loaded, tokenizer = _model(model)
        pairs = psr.make_pairs(loaded, tokenizer, questions, instruction, max_new_tokens=tokens,
                               temperature=temperature, seed=seed)  # fmt: skip
    else:
        pairs = _pairs(table)
        loaded, tokenizer = _model(model)
    n_pairs = len(pairs)
    wanted = [word.strip() for word in words.split(",") if word.strip()]
    attribute = word_judge(wanted, enough=2) if wanted else None
    coherence = None if max_perplexity is None else perplexity_judge(loaded, tokenizer, max_perplexity)
    if attribute is not None or coherence is not None:
        pairs = psr.judged(pairs, attribute, coherence)
    kinds: dict[str, Any] = {"psr": psr.PSR, "constant": psr.ConstantSteering,
                             "difference-in-means": psr.DiffInMeans, "projection": psr.ProjectionSteering}  # fmt: skip
    made = kinds[method](loaded, tokenizer, layers=asked, span=span)
    options: dict[str, Any] = {"seed": seed}
    if method in ("psr", "constant"):
        options.update(objective="mse" if objective == "local" else objective, downstream=objective != "local")
    elif objective != "local":
        raise InputError(f"--objective {objective}: {method} has nothing to train through the model; use local")
    made.fit(pairs, **options)
    psr.save(made, out, note=instruction)
    if pairs_out is not None:
        _write_table(_flat(pairs, tokenizer), pairs_out)
    found = made.relative_rmse(pairs, through=made.layers[-1])
    typer.echo(f"{len(pairs)} of {n_pairs} answers, {method}, layer {', '.join(map(str, made.layers))}")
    for layer in made.layers:
        typer.echo(
            f"layer {layer:>3}: relative RMSE {found[layer]:.3f} on the answers it was trained on (1: no steering)"
        )
    typer.echo(f"\nWritten: {', '.join(str(path) for path in (out, pairs_out) if path is not None)}")


@app.command("apply")
def apply_steering(
    steering: Folder,
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="With a column of questions.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Table to write: question, answer, plain_answer.")] = Path(
        "answers.csv"
    ),
    alpha: Alpha = 1.0,
    model: ModelName = "demo",
    tokens: Tokens = 64,
    temperature: Annotated[float, typer.Option("--temperature", help="0: the likeliest token each time.")] = 0.0,
    seed: Seed = 0,
    question: QuestionColumn = "question",
) -> None:
    """Answer questions under steering, beside the answers without it.

    Example: `assay use psr apply pirate questions.csv --alpha 2 -o answers.csv`
    """
    import numpy as np
    import pandas as pd

    from assay.adapt import psr
    from assay.adapt.psr.judges import surprises

    check_table(out)
    questions = _questions(table, question)
    loaded, tokenizer = _model(model)
    made = psr.load(steering, loaded, tokenizer)
    prompts = [_prompt(text, tokenizer) for text in questions]
    how: dict[str, Any] = {"max_new_tokens": tokens, "temperature": temperature, "seed": seed}
    asked = questions if made.span == "question_and_answer" else None
    answers = made.generate(prompts, alpha, questions=asked, **how)
    plain = made.generate(prompts, 0.0, questions=asked, **how)
    said = [np.exp(surprises(loaded, tokenizer, prompts, told)) for told in (answers, plain)]
    rows = pd.DataFrame({"question": questions, "answer": answers, "perplexity": said[0],
                         "plain_answer": plain, "plain_perplexity": said[1]})  # fmt: skip
    _write_table(rows, out)
    for text, answer in list(zip(questions, answers, strict=True))[:3]:
        typer.echo(f"{text}\n  {' '.join(answer.split())}\n")
    steered, before = (float(np.exp(np.nanmean(np.log(values)))) for values in said)
    changed = sum(one != other for one, other in zip(answers, plain, strict=True))
    typer.echo(f"{changed} of {len(answers)} answers changed; perplexity without steering {steered:.3g} ({before:.3g})")
    typer.echo(f"\nWritten: {out}")


@app.command()
def show(
    steering: Folder,
    prompt: Annotated[str, typer.Argument(metavar="QUESTION", help="To answer under steering.")],
    response: Annotated[str | None, typer.Option("--response", help="Look at this answer; none is generated.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write a strip (.html) or a picture.")] = None,
    table: Annotated[
        Path | None, typer.Option("--table", help="Also write the coefficients (.csv, .jsonl, …).")
    ] = None,
    alpha: Alpha = 1.0,
    model: ModelName = "demo",
    tokens: Tokens = 64,
) -> None:
    """Show at which tokens steering acts, and how strongly.

    Example: `assay use psr show pirate "How do I make tea?" -o strip.html`
    """
    from assay._core.files import write_text
    from assay.adapt import psr
    from assay.adapt.psr.strip import strip_page

    check_file(out, (".html", *PICTURES), "a strip")
    check_table(table)
    loaded, tokenizer = _model(model)
    made = psr.load(steering, loaded, tokenizer)
    asked = _prompt(prompt, tokenizer)
    if response is None:
        (response,) = made.generate([asked], alpha, max_new_tokens=tokens, questions=[prompt])
    found = made.coefficients(asked, response, question=prompt)
    typer.echo(" ".join(response.split()) + "\n")
    typer.echo(found.summary())
    if out is not None:
        _make_folder(out.parent)
        if out.suffix.lower() == ".html":
            strips = [psr.strip_html(found, layer, f"layer {layer}") for layer in made.layers]
            write_text(out, strip_page(strips, prompt))
        else:
            save_picture(found.plot(), out)
    if table is not None:
        _write_table(found.to_frame(), table)
    written = [str(path) for path in (out, table) if path is not None]
    if written:
        typer.echo(f"\nWritten: {', '.join(written)}")


@app.command()
def export(
    steering: Folder,
    out: Annotated[Path, typer.Option("--out", "-o", help="GGUF file to write.")],
    alpha: Alpha = 1.0,
    model: ModelName = "demo",
) -> None:
    """Write constant vectors (--method constant or difference-in-means) as the control vector of repeng and llama.cpp.

    Example: `assay use psr export pirate-constant -o pirate.gguf`
    """
    from assay.adapt import psr

    loaded, tokenizer = _model(model)
    made = psr.load(steering, loaded, tokenizer)
    _make_folder(out.parent)
    psr.to_control_vector(made, out, alpha)
    typer.echo(f"direction of layer {', '.join(map(str, made.layers))}, times {alpha:g}\n\nWritten: {out}")


def _model(name: str) -> tuple[Any, Any]:
    from assay.models import demo_lm, load_lm

    return demo_lm() if name == "demo" else load_lm(name)


def _layers(said: str) -> str | list[int]:
    if said in ("middle", "all"):
        return said
    try:
        return [int(part) for part in said.split(",")]
    except ValueError:
        raise InputError(f"--layers takes middle, all, or numbers with commas such as 10,15, not {said!r}") from None


def _questions(path: Path, column: str) -> list[str]:
    from assay._core.tables import read_table

    questions: list[str] = read_table(path, {column: "text"})[column].tolist()
    for row, text in enumerate(questions, 1):
        if not text.strip():
            raise InputError(f"{path}, row {row}, column {column}: the question is empty")
    return questions


def _pairs(path: Path) -> list[dict[str, Any]]:
    from assay._core.tables import read_table
    from assay.adapt.psr import read_pairs

    found = read_table(path)
    if "prompt" not in found and "steered_prompt" not in found:
        raise InputError(
            f"{path} has no columns prompt, steered_prompt and response; to train on questions give --instruction"
        )
    return read_pairs(path)


def _prompt(question: str, tokenizer: Any) -> Any:
    from assay.adapt.psr.pairs import prompts

    return prompts(question, "", tokenizer)["prompt"]


def _flat(pairs: list[dict[str, Any]], tokenizer: Any) -> pd.DataFrame:
    """Pairs with prompts as the texts that the model reads."""
    import pandas as pd

    from assay.adapt.psr.pairs import prompt_text

    keys = [key for key in ("question", "response", "alpha") if key in pairs[0]]
    return pd.DataFrame(
        [
            {
                "prompt": prompt_text(pair["prompt"], tokenizer),
                "steered_prompt": prompt_text(pair["steered_prompt"], tokenizer),
                **{key: pair[key] for key in keys},
            }
            for pair in pairs
        ]
    )


def _write_table(table: pd.DataFrame, path: Path) -> None:
    from assay._core.tables import write_table

    _make_folder(path.parent)
    write_table(table, path)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder} ({error.strerror}); choose another") from None
