"""Few-shot style beside zero-shot scores, TF-IDF and a semantic control, on text unlike the examples.

Main part: what SmolLM2-135M writes when it continues paragraphs of package documentation, beside the paragraphs' own
continuations, or a labelled table of yours. Detectors see plain samples (temperature 0.7) of some packages, are
calibrated on human text of others, and judge a package that they have not seen: samples at temperatures 1.0 and 1.3 and
reworded ones. In `ngram` the machine is a 4-gram model whose probabilities are known. The semantic control does what
the method does with an encoder of meaning: where it does as well, topic may have leaked.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay._core.seeds import child_seed
from assay.bench import Arm, Case, Claim, Data, Metric, Trial
from assay.trials.audit.style_detect import features as reading
from assay.trials.audit.style_detect.arms import (
    N_SUPPORT,
    Given,
    Scored,
    Truth,
    meaning,
    measured,
    picked,
    style,
    tfidf,
    zero_shot,
)
from assay.trials.audit.style_detect.human import BACKGROUND, N_NEEDED, WORDS, background, paragraphs, prose
from assay.trials.audit.style_detect.machine import TEMPERATURES, continuations
from assay.trials.audit.style_detect.ngram import NGram
from assay.trials.audit.style_detect.perturb import perturbed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from assay.bench.spec import Parameter, Scale

    Ints = NDArray[np.int64]

N_SOURCES = {"quick": 8, "standard": 12, "full": 12}
#: Human texts of a draw of the known part, and machine texts of each kind.
N_KNOWN = {"learn": 50, "calibrate": 40, "judge": 40}


class Corpus(NamedTuple):
    """Labelled texts.

    Parameters
    ----------
    texts : list of str
    labels : (n,) of 0 and 1
    sources : (n,) str
        What a text may not be learned from and judged in at once: a package, an author.
    attacks : (n,) str
        ``"none"`` for human and for plain machine text.
    features : Features
    """

    texts: list[str]
    labels: Ints
    sources: NDArray[np.str_]
    attacks: NDArray[np.str_]
    features: reading.Features


# --------------------------------------------------------------------------------------------- SmolLM2, or your table


def load(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    if path is not None:
        return _load_table(path)
    found = paragraphs(N_SOURCES[scale])
    written = continuations(found)
    rows: list[tuple[str, int, str, str]] = []
    for place, paragraph in enumerate(found):
        machine = {f"temperature {one:g}": written[one][place] for one in TEMPERATURES}
        machine["none"] = machine.pop(f"temperature {TEMPERATURES[0]:g}")
        machine["reworded"] = perturbed(machine["none"], np.random.default_rng(child_seed(0, "reword", place)))
        rows.append((paragraph.continuation, 0, paragraph.source, "none"))
        rows.extend((text, 1, paragraph.source, name) for name, text in machine.items())
    name = f"SmolLM2-135M beside {len({paragraph.source for paragraph in found})} packages' documentation"
    return Data(name, len(rows), _corpus(rows))


def _corpus(rows: list[tuple[str, int, str, str]]) -> Corpus:
    texts, labels, sources, attacks = (list(column) for column in zip(*rows, strict=True))
    return Corpus(texts, np.array(labels), np.array(sources), np.array(attacks), reading.read(texts))


def _load_table(path: str) -> Data:
    from assay._core.tables import read_table

    frame = read_table(path, {"text": "text", "label": "integer"})
    for row, value in enumerate(frame["label"].tolist(), 1):
        if value not in (0, 1):
            raise InputError(f"{path}, row {row}: label is {value!r}; expected 0 (human) or 1 (machine)")
    column = next((name for name in ("author", "group") if name in frame.columns), None)
    owners = [f"row {row % 40}" for row in range(len(frame))] if column is None else frame[column].astype(str).tolist()
    labels = frame["label"].astype(int).tolist()
    attacks = ["none"] * len(frame)
    if "attack" in frame.columns:
        given = frame["attack"].fillna("none").astype(str).replace("", "none").tolist()
        attacks = [attack if label else "none" for attack, label in zip(given, labels, strict=True)]
    rows = [row for row in zip(frame["text"].tolist(), labels, owners, attacks, strict=True) if row[0].strip()]
    n_plain = sum(label == 1 and attack == "none" for _, label, _, attack in rows)
    n_human, n_owners = sum(label == 0 for _, label, _, _ in rows), len({owner for _, _, owner, _ in rows})
    if n_plain < 16 or n_human < 80 or n_owners < N_NEEDED:
        raise InputError(
            f"{path}: {n_human} human texts, {n_plain} machine texts without attack and {n_owners} authors; the trial "
            f"learns, calibrates and judges on different authors and needs 80, 16 and {N_NEEDED}"
        )
    return Data(Path(path).name, len(rows), _corpus(rows), path)


def cases(corpus: Corpus, n: int, seed: int) -> Iterator[Case]:
    """A fold of sources is judged; of the others four in seven are learned from, the rest calibrates."""
    names = np.unique(corpus.sources)
    rng = np.random.default_rng(child_seed(seed, "sources"))
    folds = np.array_split(rng.permutation(names), min(n, len(names)))
    for number in range(n):
        fold = folds[number % len(folds)]
        own = np.random.default_rng(child_seed(seed, "case", number))
        others = own.permutation(np.setdiff1d(names, fold))
        n_learn = max(1, round(len(others) * 4 / 7))
        learn, judged = np.isin(corpus.sources, others[:n_learn]), np.isin(corpus.sources, fold)
        calibrate = ~learn & ~judged
        is_human, is_plain = corpus.labels == 0, (corpus.labels == 1) & (corpus.attacks == "none")
        parts = [learn & is_plain, learn & is_human, calibrate & is_human, judged & is_human]
        machine = {
            str(name): np.flatnonzero(judged & (corpus.labels == 1) & (corpus.attacks == name))
            for name in np.unique(corpus.attacks[corpus.labels == 1])
        }
        truth = Truth(np.flatnonzero(parts[3]), {name: rows for name, rows in machine.items() if len(rows)})
        if "none" not in truth.machine or not len(truth.human):
            continue  # an author of one class only
        turn = f", turn {number // len(folds) + 1}" if n > len(folds) else ""
        yield _case(
            f"{', '.join(map(str, fold[:3]))}{turn}", corpus, [np.flatnonzero(part) for part in parts[:3]], truth
        )


def _case(name: str, corpus: Corpus, parts: list[Ints], truth: Truth) -> Case:
    """Keep what a case needs, renumbered; the rows that are judged stand in an order that says nothing."""
    judged = np.concatenate([truth.human, *truth.machine.values()])
    kept = np.concatenate([*parts, np.random.default_rng(child_seed(0, name)).permutation(judged)])
    place = np.full(len(corpus.texts), -1)
    place[kept] = np.arange(len(kept))
    texts = [corpus.texts[row] for row in kept]
    given = Given(texts, picked(corpus.features, kept), *(place[part] for part in parts))
    return Case(name, given, Truth(place[truth.human], {one: place[rows] for one, rows in truth.machine.items()}))


# -------------------------------------------------------------------------------------- a machine whose odds are known


class Known(NamedTuple):
    """Paragraphs, and the encoder of style that was fitted on others."""

    paragraphs: list[str]
    encoder: Any
    other: NGram


def load_known(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    from assay.audit.style_detect import StylometricEncoder
    from assay.trials.audit.style_detect.human import SOURCES

    texts = [text for source in SOURCES for text in prose(source)]
    needed = 2 * sum(N_KNOWN.values())
    if len(texts) < needed:
        raise InputError(f"installed packages have {len(texts)} paragraphs of documentation; the part needs {needed}")
    known = Known(texts, StylometricEncoder().fit(background()), NGram(prose(BACKGROUND)))
    return Data("4-gram models of package documentation", len(texts), known)


def known_cases(known: Known, n: int, seed: int) -> Iterator[Case]:
    """Half of the paragraphs, drawn anew, train the machine; the human texts come from the other half."""
    for number in range(n):
        rng = np.random.default_rng(child_seed(seed, "ngram", number))
        order = rng.permutation(len(known.paragraphs))
        half = len(order) // 2
        machine = NGram([known.paragraphs[place] for place in order[:half]])
        human = [known.paragraphs[place] for place in order[half:]]
        rows: list[str] = []
        parts: dict[str, Ints] = {}

        def add(name: str, texts: list[str]) -> None:
            parts[name] = np.arange(len(rows), len(rows) + len(texts))  # noqa: B023, called in this turn only
            rows.extend(texts)  # noqa: B023

        start = 0
        for stage, count in N_KNOWN.items():
            own = human[start : start + count]
            start += count
            add(f"human {stage}", [" ".join(text.split()[:WORDS]) for text in own])
            if stage == "calibrate":
                continue
            prompts = [" ".join(text.split()[:3]) for text in own]
            add(f"machine {stage}", [machine.sample(prompt, WORDS, 0.9, rng) for prompt in prompts])
            if stage == "judge":
                add("temperature 1.2", [machine.sample(prompt, WORDS, 1.2, rng) for prompt in prompts])
                plain = [rows[row] for row in parts["machine judge"]]
                add("reworded", [perturbed(text, rng) for text in plain])
        scores = np.array([[machine.log_rank(text), known.other.log_rank(text)] for text in rows])
        vectors = known.encoder.encode(rows)
        found = reading.Features(vectors, vectors[:, :0], scores)
        truth = Truth(
            parts["human judge"],
            {"none": parts["machine judge"], **{name: parts[name] for name in ("temperature 1.2", "reworded")}},
        )
        given = Given(rows, found, parts["machine learn"], parts["human learn"], parts["human calibrate"])
        yield Case(f"draw {number + 1}", given, truth)


def known_rank(place: int, given: Given, seed: int) -> Scored:
    from assay.trials.audit.style_detect.arms import _calibrated

    return _calibrated(given.features.zero_shot[:, place], given)


METRICS = (
    Metric("auroc_changed", better="higher", help="mean AUROC on machine text unlike the examples (hotter, reworded)"),
    Metric("auroc_plain", better="higher", help="AUROC on machine text like the examples"),
    Metric("drop", better="lower", help="what is lost between the two"),
    Metric("auroc_worst", better="higher", help="AUROC on the worst of the changes"),
    Metric("auroc_account", better="higher", help="as auroc_changed, for accounts of four texts"),
    Metric("human_flagged", target=0.05, help="human texts above a threshold that was calibrated for 0.05"),
    Metric("changed_flagged", better="higher", help="changed machine texts above that threshold"),
)

CLAIM = Claim("still tells machine text from human text where it is unlike the examples", metric="auroc_changed")

TRIAL = Trial(
    slug="style-detect",
    claim=CLAIM,
    load=load,
    cases=cases,
    arms=(
        Arm("few-shot style (stylometric)", style),
        Arm("few-shot, semantic control (MiniLM)", meaning, baseline=True),
        Arm("TF-IDF + logistic regression", tfidf, baseline=True),
        Arm("Fast-DetectGPT (SmolLM2)", partial(zero_shot, "fast-detect-gpt"), baseline=True),
        Arm("log-rank (SmolLM2)", partial(zero_shot, "log-rank"), baseline=True),
        Arm("LRR (SmolLM2)", partial(zero_shot, "lrr"), baseline=True),
        Arm("Binoculars (SmolLM2 twice)", partial(zero_shot, "binoculars"), baseline=True),
    ),
    metrics=METRICS,
    score=measured,
    n_cases={"quick": 8, "standard": 12, "full": 24},
    also=(
        Trial(
            slug="style-detect",
            part="ngram",
            claim=CLAIM,
            load=load_known,
            cases=known_cases,
            arms=(
                Arm(f"few-shot style (stylometric, K = {N_SUPPORT})", style),
                Arm("TF-IDF + logistic regression", tfidf, baseline=True),
                Arm("log-rank (the generator)", partial(known_rank, 0), baseline=True),
                Arm("log-rank (another 4-gram model)", partial(known_rank, 1), baseline=True),
            ),
            metrics=METRICS,
            score=measured,
            n_cases={"quick": 8, "standard": 16, "full": 40},
            takes_data=False,
        ),
    ),
)
