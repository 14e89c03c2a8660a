"""`assay use lora-memory …`: write facts into LoRA modules, read them, and audit what is still known."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay._core.errors import InputError
from assay.cli.output import PICTURES, check_file, check_folder, check_table, save_picture

if TYPE_CHECKING:
    from assay.adapt.lora_memory import LoRAMemory

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="""Keep facts in LoRA modules beside a language model, as files that any PEFT user can load.

Example, from a small phone book to what the demo model knows of it (about two minutes):

`assay use lora-memory example -o book.csv`

`assay use lora-memory write book.csv -o memory`

`assay use lora-memory read memory "What is the phone number of Ada Marlow?"`

`assay use lora-memory audit memory book.csv -o audit.csv --plot audit.png`
""",
)

#: People who do not exist: what the help's example writes.
BOOK = """name,phone number
Ada Marlow,603-5567
Boris Ostrander,214-9901
Clara Quill,787-3340
Dmitri Redfern,455-1208
Elena Sable,918-6473
Felix Tranter,362-7715
Greta Usher,541-0086
Hugo Vance,829-4432
"""


class RouterName(StrEnum):
    """How the module is found."""

    bm25 = "bm25"
    embedding = "embedding"


class Merge(StrEnum):
    """How several modules are read at once."""

    linear = "linear"
    cat = "cat"
    ties = "ties"
    dare_linear = "dare_linear"


class Form(StrEnum):
    """How questions look to the model."""

    auto = "auto"
    plain = "plain"
    chat = "chat"
    user_turn = "user_turn"


Facts = Annotated[
    Path,
    typer.Argument(metavar="FACTS", help="Table with question and answer (or see --key), or a folder of texts."),
]
Memory = Annotated[Path, typer.Argument(metavar="MEMORY", help="A folder that `write` made.")]
ModelName = Annotated[str, typer.Option("--model", "-m", help="`demo`, a folder, or the id of a model that is here.")]
Question = Annotated[str, typer.Option("--question", help="Column with the question.")]
Answer = Annotated[str, typer.Option("--answer", help="Column with the answer.")]
Key = Annotated[
    str | None,
    typer.Option("--key", help="Column with names, in a table of things: every other column becomes a question."),
]
Route = Annotated[RouterName, typer.Option("--router", help="Find modules by words, or by meaning (demo encoder).")]
TopK = Annotated[int, typer.Option("--top-k", help="Modules to read a question with.")]
MergeBy = Annotated[Merge, typer.Option("--merge", help="How several modules are combined.")]
Rate = Annotated[float, typer.Option("--learning-rate", help="Highest learning rate.")]
Passes = Annotated[int, typer.Option("--passes", help="How often every sample is seen.")]


@app.command("example")
def example(out: Annotated[Path, typer.Option("--out", "-o", help="Table to write.")] = Path("book.csv")) -> None:
    """Write a phone book of eight people to start from.

    Example: `assay use lora-memory example -o book.csv`
    """
    from assay._core.files import write_text

    _make_folder(out.parent)
    write_text(out, BOOK)
    typer.echo(f"Written: {out}")


@app.command("write")
def write(
    facts: Facts,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the memory; a started one is gone on with.")],
    model: ModelName = "demo",
    rank: Annotated[int, typer.Option("--rank", help="Of every module.")] = 4,
    per_module: Annotated[int, typer.Option("--facts-per-module", help="Facts (or documents) of a module.")] = 8,
    tokens: Annotated[
        int | None, typer.Option("--tokens-per-module", help="Fill modules by tokens rather than by facts.")
    ] = None,
    passes: Passes = 25,
    learning_rate: Rate = 5e-3,
    recipe: Annotated[
        str, typer.Option("--recipe", help="For texts: raw, qa, summary, joined by +, with counts (raw+qa40).")
    ] = "raw+qa40",
    form: Annotated[Form, typer.Option("--format", help="How a question looks to the model.")] = Form.plain,
    learn_questions: Annotated[
        bool, typer.Option("--learn-questions", help="Learn to say the questions too, as the paper does.")
    ] = False,
    question: Question = "question",
    answer: Answer = "answer",
    key: Key = None,
    seed: Annotated[int, typer.Option("--seed")] = 0,
) -> None:
    """Write facts into modules, one after the other; what is written stays when the run is interrupted.

    Example: `assay use lora-memory write book.csv -o memory --rank 4 --facts-per-module 8`

    In a memory that is there already, modules of the same facts are kept and new ones written; one whose facts have
    changed must be taken away first, with `remove`.

    On one core the demo model takes about a minute for eight short facts.
    """
    from dataclasses import replace

    from assay.adapt.lora_memory import LoRAMemory, WriteConfig, partition, read_documents
    from assay.adapt.lora_memory.formats import document_samples

    if passes < 1 or per_module < 1:
        raise InputError(f"--passes is {passes} and --facts-per-module {per_module}; expected 1 or more of each")
    check_folder(out)
    records: list[Any] = [*read_documents(facts)] if facts.is_dir() else [*_facts(facts, question, answer, key)]
    network, tokenizer = _load(model)
    memory = LoRAMemory(network, tokenizer, rank, dropout=0.0, format=form.value, folder=out)
    if tokens is None:
        sectors = [records[start : start + per_module] for start in range(0, len(records), per_module)]
    else:
        sectors = partition(records, tokens, count=memory.style.n_tokens)
    config = WriteConfig(recipe=recipe, learning_rate=learning_rate, mask_question=not learn_questions, seed=seed)
    changed = []
    for place, sector in enumerate(sectors):
        name = f"m{place:03d}"
        n_samples = len(document_samples(sector, recipe)) if facts.is_dir() else len(sector)
        how = replace(config, n_steps=-(-n_samples // config.batch_size) * passes)
        if name in memory.modules and not memory.is_written(sector, name, how):
            changed.append(name)
        else:
            memory.write(sector, name, how)
    if changed:
        raise InputError(
            f"{facts.name} or the options have changed since {', '.join(changed)} was written (all else is kept); call "
            f"`assay use lora-memory remove {out} {' '.join(changed)}`, then write again"
        )
    frame = memory.to_frame()
    typer.echo(frame.to_string(index=False, float_format=lambda value: f"{value:.3f}"))
    if (frame["loss"] > 0.1).any():
        typer.echo("\nA loss above 0.1 nats: not all is known by heart yet; try more --passes or a higher --rank.")
    others = [name for name in memory.modules if name not in {f"m{place:03d}" for place in range(len(sectors))}]
    if others:
        typer.echo(f"\nIn the memory, but not from {facts.name} as it is now: {', '.join(others)} (see `remove`).")
    typer.echo(f"\nWritten: {out}")


@app.command("remove")
def remove(
    memory: Memory,
    modules: Annotated[list[str], typer.Argument(metavar="MODULE...", help="Names, as `write` tells them.")],
) -> None:
    """Forget modules: their facts are known no more, and their files are deleted.

    Example: `assay use lora-memory remove memory m000`
    """
    from assay.adapt.lora_memory.store import remove_modules

    remove_modules(memory, modules)
    typer.echo(f"Removed from {memory}: {', '.join(modules)}")


@app.command("read")
def read(
    memory: Memory,
    question: Annotated[str | None, typer.Argument(metavar="QUESTION", help="What to ask.")] = None,
    questions: Annotated[
        Path | None, typer.Option("--questions", "-q", help="Ask every row of a table's column `question`.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Table to write: question, answer, module.")] = None,
    context: Annotated[
        Path | None, typer.Option("--context", help="A text for the prompt as well (hybrid reading).")
    ] = None,
    model: ModelName = "demo",
    router: Route = RouterName.bm25,
    top_k: TopK = 1,
    merge: MergeBy = Merge.linear,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", help="Longest answer.")] = 50,
) -> None:
    """Ask the memory.

    Example: `assay use lora-memory read memory "What is the phone number of Ada Marlow?"`
    """
    import pandas as pd

    from assay._core.tables import read_table, write_table

    if (question is None) == (questions is None):
        raise InputError("give one question, or a table of them with --questions")
    check_table(out)
    asked = [question] if question is not None else list(read_table(str(questions), {"question": "text"})["question"])
    text = None if context is None else _text(context)
    held = _open(memory, model, router, top_k, merge)
    traces = held.ask_many(
        [str(q) for q in asked], None if text is None else [text] * len(asked), max_new_tokens=max_new_tokens
    )
    frame = pd.DataFrame(
        {
            "question": asked,
            "answer": [trace.answer for trace in traces],
            "module": [" ".join(name for name, _ in trace.modules) for trace in traces],
            "prompt_tokens": [trace.n_prompt_tokens for trace in traces],
        }
    )
    if question is not None:
        typer.echo(f"{frame['answer'][0]}\n\nmodule {frame['module'][0]}, {frame['prompt_tokens'][0]} prompt tokens")
    if out is not None:
        _make_folder(out.parent)
        write_table(frame, out)
        typer.echo(f"{len(frame)} questions\n\nWritten: {out}")
    elif question is None:
        typer.echo(frame.to_string(index=False))


@app.command("audit")
def audit_memory(
    memory: Memory,
    facts: Facts,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write a row for every fact.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Also draw the rates (.png, .svg, .pdf).")] = None,
    compare_with: Annotated[
        bool, typer.Option("--compare", help="Also ask retrieval (BM25) and the facts in the prompt.")
    ] = False,
    model: ModelName = "demo",
    router: Route = RouterName.bm25,
    top_k: TopK = 1,
    merge: MergeBy = Merge.linear,
    question: Question = "question",
    answer: Answer = "answer",
    key: Key = None,
    confidence: Annotated[float, typer.Option("--confidence", help="Of the intervals.")] = 0.95,
) -> None:
    """Ask for every fact that was written: by heart, routed, in other words, from a wrong module, without the memory.

    Example: `assay use lora-memory audit memory book.csv -o audit.csv --plot audit.png`
    """
    from assay._core.tables import write_table
    from assay.adapt.lora_memory import audit, compare

    check_table(out)
    check_file(plot, PICTURES, "a picture")
    if not 0 < confidence < 1:
        raise InputError(f"--confidence is {confidence}; expected a share between 0 and 1, such as 0.95")
    records = _facts(facts, question, answer, key)
    held = _open(memory, model, router, top_k, merge)
    found = audit(held, records, confidence=confidence)
    typer.echo(found.summary())
    if compare_with:
        frame = compare(held, records, ("base", "bm25", "icl"), confidence=confidence)
        typer.echo(f"\n{frame.to_string(index=False, float_format=lambda value: f'{value:.2f}')}")
    if out is not None:
        _make_folder(out.parent)
        write_table(found.to_frame(), out)
    if plot is not None:
        _make_folder(plot.parent)
        save_picture(found.plot(), plot)
    _say_written(out, plot)


@app.command("capacity")
def capacity(
    facts: Facts,
    out: Annotated[Path, typer.Option("--out", "-o", help="Table to write: a row for every rank and size.")] = Path(
        "capacity.csv"
    ),
    plot: Annotated[Path | None, typer.Option("--plot", help="Also draw recall against size.")] = None,
    ranks: Annotated[str, typer.Option("--ranks", help="Ranks, with commas.")] = "1,4",
    sizes: Annotated[str, typer.Option("--sizes", help="Numbers of facts, with commas.")] = "4,8",
    tau: Annotated[float, typer.Option("--tau", help="Recall that counts as holding.")] = 0.9,
    passes: Passes = 25,
    learning_rate: Rate = 5e-3,
    folder: Annotated[Path | None, typer.Option("--folder", help="Keep the modules here, to go on later.")] = None,
    model: ModelName = "demo",
    question: Question = "question",
    answer: Answer = "answer",
    key: Key = None,
) -> None:
    """Measure how many facts a module of each rank holds, before you size a memory.

    Example: `assay use lora-memory capacity book.csv -o capacity.csv --key name --ranks 1,4 --sizes 4,8`
    """
    from assay._core.tables import write_table
    from assay.adapt.lora_memory import WriteConfig, capacity_sweep

    check_table(out)
    check_file(plot, PICTURES, "a picture")
    records = _facts(facts, question, answer, key)
    network, tokenizer = _load(model)
    config = WriteConfig(learning_rate=learning_rate, mask_question=True)
    found = capacity_sweep(
        network, tokenizer, records, _numbers("--ranks", ranks), _numbers("--sizes", sizes), tau, config,
        n_passes=passes, folder=folder, dropout=0.0, format="plain",
    )  # fmt: skip
    _make_folder(out.parent)
    write_table(found.to_frame(), out)
    if plot is not None:
        _make_folder(plot.parent)
        save_picture(found.plot(), plot)
    typer.echo(found.summary())
    _say_written(out, plot)


def _facts(path: Path, question: str, answer: str, key: str | None) -> list[Any]:
    """Facts of a table; a table without the columns, but with one called name, is read as things and properties."""
    from assay._core.tables import read_table
    from assay.adapt.lora_memory import facts_from_table, read_documents, read_facts
    from assay.adapt.lora_memory.formats import questions

    if path.is_dir():
        return [fact for document in read_documents(path) for fact in questions(document, 40)]
    if key is None:
        columns = read_table(path, {}).columns
        key = "name" if question not in columns and "name" in columns else None
    return facts_from_table(path, key=key) if key else read_facts(path, question=question, answer=answer)


def _open(folder: Path, model: str, router: RouterName, top_k: int, merge: Merge) -> LoRAMemory:
    from assay import models
    from assay.adapt.lora_memory import LoRAMemory
    from assay.adapt.lora_memory.store import read_index

    read_index(folder)  # before a model is loaded for nothing
    encoder = models.demo_encoder() if router is RouterName.embedding else None
    return LoRAMemory.load(folder, *_load(model), router=router.value, encoder=encoder, top_k=top_k, merge=merge.value)


def _load(model: str) -> tuple[Any, Any]:
    from assay import models

    return models.demo_lm() if model == "demo" else models.load_lm(model)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as UTF-8 text: {error}") from None


def _numbers(option: str, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} takes whole numbers with commas, such as 1,2,4, not {text!r}") from None
    if min(numbers) < 1:
        raise InputError(f"{option} has {min(numbers)}; expected 1 or more")
    return numbers


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from None


def _say_written(*paths: Path | None) -> None:
    written = [str(path) for path in paths if path is not None]
    if written:
        typer.echo(f"\nWritten: {', '.join(written)}")
