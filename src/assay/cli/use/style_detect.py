"""`assay use style-detect score|calibrate|report|evaluate`: scores, thresholds and decisions on files of texts."""

from __future__ import annotations

import hashlib
import json
import warnings
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay._core.errors import InputError
from assay.cli.output import PICTURES, check_file, check_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

app = typer.Typer(add_completion=False, no_args_is_help=True)

SCHEMA = 1


class Name(StrEnum):
    """The detectors."""

    style = "style"
    tfidf = "tfidf"
    fast_detect_gpt = "fast-detect-gpt"
    log_rank = "log-rank"
    lrr = "lrr"
    log_likelihood = "log-likelihood"
    binoculars = "binoculars"


class Kind(StrEnum):
    """What a folder of an encoder holds."""

    mean = "hf-mean"
    luar = "luar"


Texts = Annotated[
    Path, typer.Argument(metavar="TEXTS", help="CSV, TSV, JSON, JSONL or Parquet, a row a text; also .gz.")
]
Detector = Annotated[Name, typer.Option("--detector", help="style needs --support, tfidf also --human.")]
Support = Annotated[Path | None, typer.Option("--support", help="Table of known machine texts, not disguised.")]
Human = Annotated[Path | None, typer.Option("--human", help="Table of human texts: for tfidf, a stylometric encoder.")]
Encoder = Annotated[str, typer.Option("--encoder", help="demo (of meaning), stylometric (of style), or a folder.")]
EncoderKind = Annotated[Kind, typer.Option("--encoder-kind", help="What that folder holds.")]
Model = Annotated[str, typer.Option("--model", help="demo, or the folder of a causal language model.")]
Column = Annotated[str, typer.Option("--text", help="Column with the text.")]
Account = Annotated[str | None, typer.Option("--account", help="Column with the account: decide on accounts.")]
NSupport = Annotated[int, typer.Option("--n-support", help="Known texts of each source in a support; 0: all of them.")]
Seed = Annotated[int, typer.Option("--seed", help="Of everything random.")]


@dataclass(frozen=True)
class Settings:
    """All that makes a detector, as a threshold remembers it."""

    detector: str
    support: str | None
    human: str | None
    encoder: str
    encoder_kind: str
    model: str
    text: str
    n_support: int
    seed: int


@app.callback()
def style_detect() -> None:
    """Tell machine text from human text by its style, and say how often that is wrong.

    Example: `assay use style-detect calibrate human.jsonl --support known_machine.jsonl --target-fpr 0.05`

    Then `assay use style-detect report texts.jsonl` decides. Tables have a column `text`.
    """


@app.command()
def score(
    texts: Texts,
    out: Annotated[Path, typer.Option("--out", "-o", help="Scores: the table with a column more.")] = Path(
        "scores.csv"
    ),
    detector: Detector = Name.style,
    support: Support = None,
    human: Human = None,
    encoder: Encoder = "demo",
    encoder_kind: EncoderKind = Kind.mean,
    model: Model = "demo",
    text: Column = "text",
    account: Account = None,
    n_support: NSupport = 0,
    seed: Seed = 0,
) -> None:
    """Score texts, or accounts: higher is more machine-like. A score alone decides nothing.

    Example: `assay use style-detect score texts.jsonl --support known_machine.jsonl -o scores.csv`

    Needs no known texts: `assay use style-detect score texts.jsonl --detector fast-detect-gpt`
    """
    from assay._core.tables import write_table

    check_table(out)
    settings = Settings(detector, _path(support), _path(human), encoder, encoder_kind, model, text, n_support, seed)
    frame = _table(texts, text, account)
    with _told():
        fitted = _fitted(settings)
        if account is None:
            result = frame.assign(score=fitted.score_samples(frame[text].tolist()))
        else:
            owners = frame[account].astype(str)
            result = _per_account(owners, account)
            result["score"] = fitted.score_samples(frame[text].tolist(), groups=owners.to_numpy())
    _folder_of(out)
    write_table(result, out)
    typer.echo(f"{len(result)} scores from {result['score'].min():.4g} to {result['score'].max():.4g}")
    typer.echo("A score decides nothing: assay use style-detect calibrate finds a threshold with an error rate.")
    typer.echo(f"\nWritten: {out}")


@app.command()
def calibrate(
    human_texts: Annotated[
        Path, typer.Argument(metavar="HUMAN_TEXTS", help="By people, of the kind that is to be judged, not fitted on.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The threshold (JSON).")] = Path("threshold.json"),
    target_fpr: Annotated[float, typer.Option("--target-fpr", help="Share of human texts that may be flagged.")] = 0.01,
    group_size: Annotated[int, typer.Option("--group-size", help="Texts a decision.")] = 1,
    detector: Detector = Name.style,
    support: Support = None,
    human: Human = None,
    encoder: Encoder = "demo",
    encoder_kind: EncoderKind = Kind.mean,
    model: Model = "demo",
    text: Column = "text",
    account: Account = None,
    n_support: NSupport = 0,
    seed: Seed = 0,
) -> None:
    """Put the threshold where few human texts, or accounts, lie above it.

    Example: `assay use style-detect calibrate human.jsonl --support known_machine.jsonl --target-fpr 0.05`

    The rate holds for human texts of the same kind as these. At 0.01 it takes 99 of them.
    """
    from assay._core.files import write_text

    check_file(out)
    settings = Settings(detector, _path(support), _path(human), encoder, encoder_kind, model, text, n_support, seed)
    if human is not None and human.is_file() and human_texts.is_file() and _digest(human) == _digest(human_texts):
        raise InputError(f"{human_texts} is also --human; calibrate on human texts that the detector has not seen")
    frame = _table(human_texts, text, account)
    groups = None if account is None else frame[account].astype(str).to_numpy()
    with _told():
        fitted = _fitted(settings)
        fitted.calibrate(frame[text].tolist(), target_fpr, group_size, groups=groups)
    threshold = fitted.thresholds_[group_size]
    document = {
        "schema": SCHEMA,
        "settings": asdict(settings),
        "sha256": _digests(settings),
        "threshold": {**asdict(threshold), "fpr_bound": threshold.fpr_bound if threshold.is_exact else None},
    }
    _folder_of(out)
    write_text(out, json.dumps(document, indent=2, allow_nan=False) + "\n")
    typer.echo(f"threshold {threshold.value:.6g}: {threshold.in_words()}")
    typer.echo(f"\nWritten: {out}")


@app.command()
def report(
    texts: Texts,
    threshold: Annotated[Path, typer.Option("--threshold", help="What calibrate wrote.")] = Path("threshold.json"),
    out: Annotated[Path, typer.Option("--out", "-o", help="A row a text or account, with the error rate.")] = Path(
        "report.csv"
    ),
    plot: Annotated[Path | None, typer.Option("--plot", help="Also draw the scores (.png, .svg, .pdf).")] = None,
    text: Annotated[
        str | None, typer.Option("--text", help="Column with the text, if another than calibrated.")
    ] = None,
    account: Account = None,
) -> None:
    """Decide on texts, or accounts, and say with which error rate.

    Example: `assay use style-detect report texts.jsonl --threshold threshold.json -o report.csv`
    """
    from assay._core.tables import write_table
    from assay.audit.style_detect import Threshold
    from assay.cli.output import save_picture

    check_table(out)
    check_file(plot, PICTURES, "a picture")
    settings, given, digests = _read_threshold(threshold)
    for name, digest in digests.items():
        path = Path(str(getattr(settings, name)))
        if not path.is_file() or _digest(path) != digest:
            raise InputError(
                f"{threshold} was calibrated with {path}, which is gone or has changed; calibrate again: a threshold "
                "holds for one detector only"
            )
    calibrated = Threshold(**given)
    if (account is None) != (calibrated.group_size == 1):
        raise InputError(
            f"{threshold} decides on {calibrated.group_size} texts at a time; "
            + ("give --account COLUMN" if account is None else "calibrate with --account and --group-size of 2 or more")
        )
    column = text or settings.text
    frame = _table(texts, column, account)
    groups = None if account is None else frame[account].astype(str).to_numpy()
    with _told():
        fitted = _fitted(settings)
        fitted.thresholds_ = {calibrated.group_size: calibrated}
        result = fitted.report(frame[column].tolist(), groups)
    _folder_of(out)
    write_table(result.to_frame(), out)
    if plot is not None:
        _folder_of(plot)
        save_picture(result.plot(), plot)
    typer.echo(result.summary())
    typer.echo(f"\nWritten: {', '.join(map(str, [out, *([] if plot is None else [plot])]))}")


@app.command()
def evaluate(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Texts with a label: 0 human, 1 machine.")],
    detectors: Annotated[
        str, typer.Option("--detectors", help="Names with commas between; tfidf needs --human.")
    ] = "style,fast-detect-gpt,log-rank",
    out: Annotated[Path, typer.Option("--out", "-o", help="A row a detector, attack and number of texts.")] = Path(
        "evaluation.csv"
    ),
    plot: Annotated[Path | None, typer.Option("--plot", help="Also draw pAUROC (.png, .svg, .pdf).")] = None,
    matrix: Annotated[Path | None, typer.Option("--matrix", help="Also write scores of every support (.npz).")] = None,
    support: Support = None,
    human: Human = None,
    encoder: Encoder = "demo",
    encoder_kind: EncoderKind = Kind.mean,
    model: Model = "demo",
    text: Column = "text",
    label: Annotated[str, typer.Option("--label", help="Column with the label.")] = "label",
    attack: Annotated[
        str, typer.Option("--attack", help="Column that says what was done to a machine text.")
    ] = "attack",
    account: Account = None,
    n_docs: Annotated[str, typer.Option("--n-docs", help="Texts a decision.")] = "1,5,10,25,50",
    max_fpr: Annotated[float, typer.Option("--max-fpr", help="pAUROC reaches up to this rate.")] = 0.01,
    n_support: NSupport = 0,
    seed: Seed = 0,
) -> None:
    """Compare detectors on labelled texts, attack by attack, for one text and for several.

    Example: `assay use style-detect evaluate data.jsonl --support known_machine.jsonl --plot out.png`
    """
    from assay._core.tables import write_table
    from assay.audit.style_detect import evaluate_detectors

    check_table(out)
    check_file(plot, PICTURES, "a picture")
    check_file(matrix, (".npz",), "a table of scores under every support")
    names = [name.strip() for name in detectors.split(",")]
    unknown = [name for name in names if name not in set(Name)]
    if unknown:
        raise InputError(f"--detectors: {unknown[0]!r} is not one of {', '.join(Name)}")
    if not all(part.strip().isdigit() and int(part) > 0 for part in n_docs.split(",")):
        raise InputError(f"--n-docs takes whole numbers from 1 with commas between, not {n_docs!r}")
    frame = _table(data, text, account)
    if label not in frame.columns:  # before a model is loaded for nothing
        raise InputError(f"{data} has no column {label!r} of labels (0 human, 1 machine); name it with --label")
    with _told():
        fitted = {
            name: _fitted(
                Settings(name, _path(support), _path(human), encoder, encoder_kind, model, text, n_support, seed)
            )
            for name in names
        }
        result = evaluate_detectors(
            frame,
            fitted,
            text=text,
            label=label,
            attack=attack,
            group=account,
            n_docs=[int(part) for part in n_docs.split(",")],
            max_fpr=max_fpr,
            random_state=seed,
        )
    for path in (out, plot, matrix):
        if path is not None:
            _folder_of(path)
    write_table(result.to_frame(), out)
    if plot is not None:
        from assay.cli.output import save_picture

        save_picture(result.plot().axes[0], plot)
    if matrix is not None:
        result.save_scores(matrix)
    typer.echo(result.summary())
    typer.echo(f"\nWritten: {', '.join(str(path) for path in (out, plot, matrix) if path is not None)}")


# ------------------------------------------------------------------------------------------------ what they share


def _fitted(settings: Settings) -> Any:
    from assay.audit.style_detect import StyleFewShotDetector, TfidfDetector, ZeroShotDetector

    if settings.detector == Name.style:
        known = _known(settings.support, "--support", settings)
        return StyleFewShotDetector(
            _encoder(settings), n_support=settings.n_support or None, random_state=settings.seed
        ).fit(known["text"], sources=known["source"])
    if settings.detector == Name.tfidf:
        machine = _known(settings.support, "--support", settings)["text"]
        human = _known(settings.human, "--human", settings)["text"]
        return TfidfDetector(random_state=settings.seed).fit([*human, *machine], [0] * len(human) + [1] * len(machine))
    from assay.models import demo_lm, load_lm

    model, tokenizer = demo_lm() if settings.model == "demo" else load_lm(settings.model)
    return ZeroShotDetector(model, tokenizer, str(settings.detector), random_state=settings.seed).fit()


def _known(path: str | None, option: str, settings: Settings) -> dict[str, Any]:
    if path is None:
        raise InputError(f"--detector {settings.detector} needs {option} TABLE with known texts")
    frame = _table(Path(path), settings.text, None)
    sources = frame["source"].astype(str).tolist() if "source" in frame.columns else None
    return {"text": frame[settings.text].tolist(), "source": sources}


def _encoder(settings: Settings) -> Any:
    from assay.audit.style_detect import StylometricEncoder, load_style_encoder

    if settings.encoder == "demo":
        from assay.models import demo_encoder

        warnings.warn(
            "the demo encoder reads meaning more than style and told nothing about texts of one topic; prefer "
            "--encoder stylometric with --human, or the folder of an encoder of style",
            UserWarning,
            stacklevel=2,
        )
        return demo_encoder()
    if settings.encoder == "stylometric":
        if settings.human is None:
            raise InputError("--encoder stylometric learns from human texts that are not judged: give --human TABLE")
        return StylometricEncoder().fit(_known(settings.human, "--human", settings)["text"])
    return load_style_encoder(settings.encoder, Kind(settings.encoder_kind).value)


def _table(path: Path, text: str, account: str | None) -> pd.DataFrame:
    from assay._core.tables import read_table

    columns: dict[str, Any] = {text: "text"} if account is None else {text: "text", account: "text"}
    frame = read_table(path, columns, allow_missing=[text])
    return frame.assign(**{text: frame[text].fillna("")})


def _per_account(owners: pd.Series[str], account: str) -> pd.DataFrame:
    """Accounts in the order in which they appear, with the number of their texts."""
    counts = owners.value_counts(sort=False).reindex(owners.unique())
    return counts.rename_axis(account).rename("n_texts").reset_index()


def _read_threshold(path: Path) -> tuple[Settings, dict[str, Any], dict[str, str]]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        given = {**document["threshold"]}
        given["fpr_bound"] = float("nan") if given["fpr_bound"] is None else float(given["fpr_bound"])
        known = document["schema"] == SCHEMA
        settings, digests = Settings(**document["settings"]), dict(document["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"{path} is no threshold as assay use style-detect calibrate writes it; run that first"
        ) from None
    if not known:
        raise InputError(f"{path} was written by another version of Assay; calibrate again")
    return settings, given, digests


def _digests(settings: Settings) -> dict[str, str]:
    paths = {"support": settings.support, "human": settings.human}
    return {name: _digest(Path(path)) for name, path in paths.items() if path is not None}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _folder_of(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)


@contextmanager
def _told() -> Iterator[None]:
    """Warnings as lines on stderr, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for message in dict.fromkeys(str(warning.message) for warning in caught if warning.category is UserWarning):
        typer.echo(f"warning: {message}", err=True)
