"""`assay use cc-icl …`: build a benchmark of shifting criteria, ask a model, score its answers, train it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay._core.errors import InputError
from assay.cli.output import save_picture

if TYPE_CHECKING:
    import pandas as pd

    from assay.evaluate.cc_icl import Episodes

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="""Does a model follow a criterion that only its examples show?

Example, from the notes that come with it to a report on the demo language model:

`assay use cc-icl example -o notes`

`assay use cc-icl build notes/notes.csv notes/criteria.yaml -n 40 -o notes/episodes.jsonl`

`assay use cc-icl ask notes/episodes.jsonl -o notes/answers.csv`

`assay use cc-icl score notes/episodes.jsonl notes/answers.csv -o notes/report.json --plot notes/report.png`
""",
)

PICTURES = (".png", ".svg", ".pdf")

EpisodesFile = Annotated[Path, typer.Argument(metavar="EPISODES", help="A benchmark, as `build` writes it.")]
ModelName = Annotated[str, typer.Option("--model", "-m", help="`demo`, a folder, or the id of a model that is here.")]


@app.command("example")
def write_example(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write notes.csv and criteria.yaml to.")],
) -> None:
    """Write an example to start from: 120 inspection notes in six categories, and three customers' criteria.

    Example: `assay use cc-icl example -o notes`
    """
    from assay._core.files import write_text
    from assay.evaluate.cc_icl.example import FILES, FOLDER

    _make_folder(out)
    for name in FILES:
        write_text(out / name, (FOLDER / name).read_text(encoding="utf-8"))
    typer.echo(f"Written: {', '.join(str(out / name) for name in FILES)}")


@app.command("build")
def build(
    items: Annotated[
        Path, typer.Argument(metavar="ITEMS", help="A folder CATEGORY/image.png, or a table with a category column.")
    ],
    criteria: Annotated[Path, typer.Argument(metavar="CRITERIA", help="question, answers, criteria as YAML or JSON.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Benchmark to write, JSON Lines.")] = Path("episodes.jsonl"),
    n: Annotated[int, typer.Option("--episodes", "-n", help="Number of episodes.")] = 500,
    shots: Annotated[int, typer.Option("--shots", help="Examples of each category shown.")] = 1,
    boundary_share: Annotated[
        float, typer.Option("--boundary-share", help="Share of questions on which the criteria differ.")
    ] = 0.5,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    category: Annotated[str, typer.Option("--category", help="Column with the category.")] = "category",
    text: Annotated[str, typer.Option("--text", help="Column with the text.")] = "text",
    image: Annotated[str, typer.Option("--image", help="Column with the path of an image.")] = "path",
) -> None:
    """Build a benchmark: the same examples and questions, labelled under every criterion.

    Example: `assay use cc-icl build notes/notes.csv notes/criteria.yaml -n 40 -o notes/episodes.jsonl`
    """
    from assay.evaluate.cc_icl import CriterionSpec, build_episodes, read_items, write_episodes
    from assay.evaluate.cc_icl.episodes import describe

    spec = CriterionSpec.from_yaml(criteria)
    columns = {} if items.is_dir() else {"category": category, "text": text, "image": image}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        episodes = build_episodes(
            read_items(items, **columns), spec, n, shots=shots, seed=seed, boundary_share=boundary_share
        )
    _say(caught)
    _make_folder(out.parent)
    write_episodes(episodes, out)
    for name, value in describe(episodes).items():
        typer.echo(f"{name:<18}{value}")
    typer.echo(f"\nWritten: {out}")


@app.command("questions")
def questions(
    episodes: EpisodesFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="Table to write: id, criterion, prompt.")] = Path(
        "questions.csv"
    ),
    cot: Annotated[bool, typer.Option("--cot", help="Ask for reasoning before the answer.")] = False,
) -> None:
    """Write the prompts, to ask a model that is elsewhere; `score` reads its answers (id, criterion, answer).

    Example: `assay use cc-icl questions notes/episodes.jsonl -o notes/questions.csv`
    """
    import pandas as pd

    from assay._core.tables import write_table
    from assay.evaluate.cc_icl import prompt_text, read_episodes

    bench = read_episodes(episodes)
    rows = [
        (bench.ids[row], name, prompt_text(bench.ask(row, k), cot=cot))
        for row in range(len(bench))
        for k, name in enumerate(bench.criteria)
    ]
    _make_folder(out.parent)
    write_table(pd.DataFrame(rows, columns=["id", "criterion", "prompt"]), out)
    typer.echo(f"{len(rows)} questions\n\nWritten: {out}")


@app.command("ask")
def ask(
    episodes: EpisodesFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="Table to write: id, criterion, answer.")] = Path(
        "answers.csv"
    ),
    model: ModelName = "demo",
    cot: Annotated[bool, typer.Option("--cot", help="Let the model reason before it answers.")] = False,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Questions at a time.")] = 8,
) -> None:
    """Ask a language model (texts) or a vision-language model (images) every question under every criterion.

    Example: `assay use cc-icl ask notes/episodes.jsonl -o notes/answers.csv`
    """
    from assay._core.tables import write_table
    from assay.evaluate.cc_icl import HFVLMPredictor, LMPredictor, evaluate, read_episodes

    bench = read_episodes(episodes)
    loaded = _load(model, bench)
    predictor = (HFVLMPredictor if bench.items.kind == "image" else LMPredictor)(*loaded, cot=cot)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = evaluate(predictor, bench, batch_size=batch_size)
    _say(caught)
    _make_folder(out.parent)
    write_table(report.items()[["id", "criterion", "answer"]], out)
    typer.echo(report.summary())
    typer.echo(f"\nWritten: {out}")


@app.command("score")
def score_answers(
    episodes: EpisodesFile,
    answers: Annotated[
        Path, typer.Argument(metavar="ANSWERS", help="Table with id, criterion, answer (or a whole reply).")
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write the metrics as JSON.")] = None,
    items: Annotated[Path | None, typer.Option("--items", help="Also write every answer beside its truth.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Also draw it (.png, .svg, .pdf).")] = None,
    confidence: Annotated[float, typer.Option("--confidence", help="Of the intervals.")] = 0.95,
) -> None:
    """Criterion sensitivity, criterion invariance and what lies behind them, from stored answers.

    Example: `assay use cc-icl score notes/episodes.jsonl notes/answers.csv -o notes/report.json`
    """
    from assay._core.files import write_text
    from assay._core.tables import write_table
    from assay.evaluate.cc_icl import read_episodes, read_predictions
    from assay.evaluate.cc_icl.report import report as make_report
    from assay.evaluate.cc_icl.report import solvable

    if plot is not None and plot.suffix.lower() not in PICTURES:
        raise InputError(f"{plot}: a picture is written as one of {', '.join(PICTURES)}")
    bench = read_episodes(episodes)
    kept, n_skipped = solvable(bench)
    predictions = read_predictions(_answers(answers, set(bench.ids) - set(kept.ids)), kept, where=str(answers))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = make_report(predictions, kept, n_skipped=n_skipped, confidence=confidence)
    _say(caught)
    written = [path for path in (out, items, plot) if path is not None]
    for path in written:
        _make_folder(path.parent)
    if out is not None:
        write_text(out, report.to_json() + "\n")
    if items is not None:
        write_table(report.items(), items)
    if plot is not None:
        save_picture(report.plot(), plot)
    typer.echo(report.summary())
    if written:
        typer.echo(f"\nWritten: {', '.join(map(str, written))}")


@app.command("train")
def train(
    episodes: EpisodesFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to save the trained model to (new or empty).")],
    model: ModelName = "demo",
    criterion: Annotated[
        str | None, typer.Option("--criterion", help="Train under this one alone, to compare with.")
    ] = None,
    layers: Annotated[int, typer.Option("--layers", help="Train the last layers, this many.")] = 8,
    lora: Annotated[
        int, typer.Option("--lora", metavar="RANK", help="Train adapters of this rank in them (PEFT), not themselves.")
    ] = 0,
    per_episode: Annotated[int, typer.Option("--per-episode", help="Examples made of each episode.")] = 2,
    epochs: Annotated[int, typer.Option("--epochs")] = 1,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Examples a step.")] = 8,
    learning_rate: Annotated[float, typer.Option("--learning-rate")] = 1e-4,
    seed: Annotated[int, typer.Option("--seed")] = 0,
) -> None:
    """Multi-criterion training: contradictory labels for the same items, so that the model learns to read examples.

    Build the training episodes from items that no test uses. Minutes to hours on a CPU.

    Example: `assay use cc-icl train notes/episodes.jsonl -o tuned --epochs 3`
    """
    from assay.evaluate.cc_icl import MCTConfig, mct_, read_episodes, with_lora
    from assay.models.packages import write_pretrained

    bench = read_episodes(episodes)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is not an empty folder; name a new one")
    network, processor = _load(model, bench)
    config = MCTConfig(criterion=criterion, n_layers=None if lora else layers, n_epochs=epochs, batch_size=batch_size,
                       per_episode=per_episode, learning_rate=learning_rate, seed=seed)  # fmt: skip
    if lora:
        network = with_lora(network, lora, n_layers=layers, seed=seed)
    losses = mct_(network, processor, bench, config)
    if lora:
        network = network.merge_and_unload()
    _make_folder(out)
    write_pretrained(network, processor, out)
    tenth = max(len(losses) // 10, 1)
    typer.echo(f"{len(losses)} steps, loss {losses[:tenth].mean():.3f} to {losses[-tenth:].mean():.3f} nats")
    typer.echo(f"\nWritten: {out}")


def _answers(path: Path, unsolvable: set[str]) -> pd.DataFrame:
    """Answers to the items that count; to those whose examples reveal nothing there need not be any."""
    from assay._core.tables import read_table

    table = read_table(path, {"id": "text"})
    return table[~table["id"].isin(unsolvable)].reset_index(drop=True)


def _load(name: str, bench: Episodes) -> tuple[Any, Any]:
    """A model and its tokenizer for texts, a model and its processor for images."""
    from assay import models

    if bench.items.kind == "row":
        raise InputError(
            "these items are rows of numbers, which a language model does not read; use InContextClassifier"
        )
    if bench.items.kind == "text":
        return models.demo_lm() if name == "demo" else models.load_lm(name)
    if name == "demo":
        raise InputError("the demo model sees no images; name a vision-language model with --model")
    return _load_vlm(name)


def _load_vlm(name: str) -> tuple[Any, Any]:
    from assay._core.extras import need

    transformers = need("transformers", extra="lm", purpose="a vision-language model")
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        processor = transformers.AutoProcessor.from_pretrained(name, **options)
        model = transformers.AutoModelForImageTextToText.from_pretrained(name, use_safetensors=True, **options)
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{name} cannot be loaded as a vision-language model: {first}") from None
    return model.eval(), processor


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder} ({error.strerror}); choose another") from None


def _say(caught: list[warnings.WarningMessage]) -> None:
    for message in dict.fromkeys(str(warning.message) for warning in caught if warning.category is UserWarning):
        typer.echo(f"warning: {message}", err=True)
