"""`assay use tmafc replay|record|answer`: compare ways to vote on recorded samples, record some, answer questions."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay._core.errors import InputError
from assay.cli.output import save_picture

if TYPE_CHECKING:
    from assay.decode.tmafc import Answer, Sampler

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def tmafc() -> None:
    """Sample a language model only as often as its answer needs.

    Example: `assay use tmafc replay samples.jsonl -o out/`

    replay compares self-consistency and its adaptive relatives on samples that you have; record makes such samples;
    answer answers questions and stops sampling as soon as the vote on every component is settled.
    """


Questions = Annotated[
    Path, typer.Argument(metavar="QUESTIONS", help="Rows with `question`, and `schema` or `gold` (JSON objects).")
]
Model = Annotated[
    str, typer.Option("--model", "-m", help="Name at the endpoint; without --url a folder, a model id, or `demo`.")
]
Url = Annotated[str | None, typer.Option("--url", help="OpenAI-compatible endpoint, such as http://localhost:8000/v1.")]
Temperature = Annotated[float, typer.Option("--temperature", help="Of sampling.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=1, help="Of one reply.")]
Components = Annotated[
    str | None, typer.Option("--components", help="Names of an answer's components, separated by commas.")
]
Tau = Annotated[float, typer.Option("--tau", help="Confidence above which a component is settled.")]


@app.command()
def replay(
    samples: Annotated[
        Path, typer.Argument(metavar="SAMPLES", help="Rows with `question`, `samples` (a list of objects) and `gold`.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for methods.csv, questions.csv and methods.png.")],
    components: Components = None,
    question: Annotated[str, typer.Option("--question", help="Column with the question.")] = "question",
    samples_column: Annotated[str, typer.Option("--samples", help="Column with the samples.")] = "samples",
    gold: Annotated[str, typer.Option("--gold", help="Column with the right answer; it may be absent.")] = "gold",
    tau: Tau = 0.95,
    n_max: Annotated[int, typer.Option("--n-max", help="Most samples of a question.")] = 40,
    window: Annotated[int, typer.Option("--window", help="Of early-stopping self-consistency.")] = 5,
    history: Annotated[
        Path | None, typer.Option("--history", help="Votes on earlier questions (JSONL); it grows.")
    ] = None,
) -> None:
    """Compare the methods on recorded samples: no model is asked.

    Example: `assay use tmafc replay samples.jsonl -o out/`
    """
    from assay._core.tables import write_table
    from assay.decode.tmafc import History, read_samples
    from assay.decode.tmafc import replay as replayed

    records = read_samples(samples, components=_names(components), question=question, samples=samples_column, gold=gold)
    with _warnings_as_lines():
        found = replayed(
            records, tau=tau, n_max=n_max, window=window, history=None if history is None else History(history)
        )
    out.mkdir(parents=True, exist_ok=True)
    by_question = found.questions.drop(columns="answer")
    by_question.insert(2, "answer", [_json(answer) for answer in found.questions["answer"]])
    write_table(found.to_frame(), out / "methods.csv")
    write_table(by_question, out / "questions.csv")
    save_picture(found.plot(), out / "methods.png")
    typer.echo(found.summary())
    typer.echo(f"\nWritten: {out / 'methods.csv'}, {out / 'questions.csv'}, {out / 'methods.png'}")


@app.command()
def record(
    questions: Questions,
    out: Annotated[Path, typer.Option("--out", "-o", help="Samples, ready for replay (JSONL or Parquet).")],
    model: Model,
    url: Url = None,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Samples of a question.")] = 40,
    components: Components = None,
    temperature: Temperature = 0.7,
    max_tokens: MaxTokens = 512,
) -> None:
    """Sample every question n times and keep every reply: what was recorded is not asked for again.

    Example: `assay use tmafc record questions.jsonl -m demo -n 10 -o samples.jsonl`

    Replies are kept in `<OUT>.replies.jsonl` as they come; after an interruption the same command goes on. An
    endpoint's key is read from OPENAI_API_KEY.
    """
    from assay._core.progress import progress_bar
    from assay.decode.tmafc import LoggedSampler, read_tasks, record_samples, write_samples

    tasks = read_tasks(questions, _names(components))
    out.parent.mkdir(parents=True, exist_ok=True)
    log = _beside(out, "replies")
    with _warnings_as_lines(), progress_bar() as bar:
        sampler = LoggedSampler(_sampler(model, url, temperature, max_tokens), log)
        watched = bar.add_task("questions", total=len(tasks))
        records = record_samples(sampler, tasks, n, on_task=lambda _: bar.advance(watched))
    write_samples(records, out)
    unparsed = sum(sample is None for item in records for sample in item.samples)
    typer.echo(f"{len(records)} questions, {n} samples each; {unparsed} replies without a JSON object")
    typer.echo(f"Written: {out} (replies: {log})\nCompare the methods: assay use tmafc replay {out} -o out/")


@app.command()
def answer(
    questions: Questions,
    out: Annotated[Path, typer.Option("--out", "-o", help="Answers (JSONL); what it holds is not asked again.")],
    model: Model,
    url: Url = None,
    components: Components = None,
    history: Annotated[
        Path | None, typer.Option("--history", help="Votes on earlier questions (JSONL), to calibrate by; it grows.")
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate/--uniform", help="Fit the prior to the history, or keep the uniform one.")
    ] = True,
    llm_classifier: Annotated[
        bool, typer.Option("--llm-classifier", help="Let the model judge the difficulty: one more call a question.")
    ] = False,
    tau: Tau = 0.95,
    n_max: Annotated[int, typer.Option("--n-max", help="Most samples of a question.")] = 50,
    batch: Annotated[int, typer.Option("--batch", help="Samples drawn at once.")] = 1,
    temperature: Temperature = 0.7,
    max_tokens: MaxTokens = 512,
) -> None:
    """Answer questions with as many samples as each needs.

    Example: `assay use tmafc answer questions.jsonl -m demo -o answers.jsonl`

    After an interruption the same command goes on: answers stay in OUT, replies to the question it was at in
    `<OUT>.replies.jsonl`. An endpoint's key is read from OPENAI_API_KEY.
    """
    from assay._core.progress import progress_bar
    from assay.decode.tmafc import TMAFC, LoggedSampler, read_tasks
    from assay.decode.tmafc.history import JsonLines

    tasks = read_tasks(questions, _names(components))
    if out.suffix.lower() != ".jsonl":
        raise InputError(f"{out}: answers are written line by line; give a name that ends in .jsonl")
    out.parent.mkdir(parents=True, exist_ok=True)
    written = JsonLines(out)
    done = Counter(str(item.get("question")) for _, item in written.read())
    with _warnings_as_lines(), progress_bar() as bar:
        method = TMAFC(
            LoggedSampler(_sampler(model, url, temperature, max_tokens), _beside(out, "replies")),
            tau=tau,
            n_max=n_max,
            history=history,
            calibrate=calibrate,
            classifier="llm" if llm_classifier else "rule",
            batch_rounds=batch,
        )
        watched = bar.add_task("questions", total=len(tasks))
        for task in tasks:
            if done[task.question]:
                done[task.question] -= 1
            else:
                found = method.answer(task.question, schema=task.components)
                with written.locked():
                    written.append([_line(found)])
            bar.advance(watched)
    lines = [item for _, item in written.read()]
    typer.echo(_told(lines))
    typer.echo(f"Written: {out}")


def _line(found: Answer) -> dict[str, Any]:
    votes = {
        vote.id: {"votes": vote.count, "runner_up_votes": vote.runner_up_count, "confidence": round(vote.confidence, 6)}
        for vote in found.components
    }
    return {
        "question": found.question,
        "answer": found.answer,
        "converged": found.converged,
        "n_samples": found.n_samples,
        "n_requests": sum(vote.n_requests for vote in found.components),
        "n_tokens": found.n_tokens,
        "n_prompt_tokens": found.n_prompt_tokens,
        "calls_overhead": found.calls_overhead,
        "category": found.category,
        "prior": list(found.prior),
        "votes": votes,
    }


def _told(lines: list[dict[str, Any]]) -> str:
    from assay.decode.tmafc.compare import mean_interval

    n_samples = [int(item["n_samples"]) for item in lines]
    mean, low, high = mean_interval(n_samples)
    ends = f" [{low:.1f}, {high:.1f}]" if len(lines) > 1 else ""
    open_ones = sum(not item["converged"] for item in lines)
    calls = sum(int(item["calls_overhead"]) for item in lines)
    tokens = [item["n_tokens"] for item in lines]
    counted = "" if None in tokens else f", {sum(tokens)} tokens generated"
    return (
        f"{len(lines)} answers from {sum(n_samples)} samples ({mean:.1f}{ends} a question) and {calls} overhead "
        f"calls{counted}; {open_ones} not settled"
    )


def _sampler(model: str, url: str | None, temperature: float, max_tokens: int) -> Sampler:
    from assay.decode.tmafc import OpenAISampler, TransformersSampler

    if url is not None:
        return OpenAISampler(model, url, temperature=temperature, max_tokens=max_tokens)
    from assay import models

    lm, tokenizer = models.demo_lm() if model == "demo" else models.load_lm(model)
    return TransformersSampler(lm, tokenizer, temperature=temperature, max_new_tokens=max_tokens)


def _names(components: str | None) -> list[str] | None:
    return None if components is None else [name.strip() for name in components.split(",")]


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f"{path.name.partition('.')[0]}.{what}.jsonl")


def _json(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, default=str)


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Say warnings as a person would, once each, on stderr."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for message in dict.fromkeys(str(item.message) for item in caught if issubclass(item.category, UserWarning)):
        typer.echo(f"warning: {message}", err=True)
