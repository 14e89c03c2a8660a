"""lora-memory: facts in LoRA modules beside retrieval, in-context learning, one large LoRA and no memory at all.

The main part writes a phone book, or a user's own facts, into SmolLM2-135M-Instruct and asks for every entry twice: as
it was written, and in other words. `documents` asks the same of short manuals, and whether questions or the raw text
are the better thing to learn. The parts on a small model trained here (`small`) tell what capacity, many
small modules and merging do when nothing else varies.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay import models
from assay._core.cache import made_dir
from assay._core.errors import InputError
from assay._core.seeds import child_seed
from assay.adapt.lora_memory import Fact, LoRAMemory, WriteConfig, read_documents, read_facts, recalled
from assay.adapt.lora_memory.compare import (
    SENTENCE,
    Reading,
    read_base,
    read_in_context,
    read_memory,
    read_retrieved,
)
from assay.adapt.lora_memory.facts import rephrase
from assay.adapt.lora_memory.formats import Style, questions
from assay.adapt.lora_memory.route import SentenceIndex, WordIndex
from assay.adapt.lora_memory.store import digest
from assay.bench import Arm, Case, Claim, Data, Metric, Trial
from assay.trials.adapt.lora_memory.documents import DOCUMENTS
from assay.trials.adapt.lora_memory.small import SMALL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from assay.bench.spec import Parameter, Scale

#: Of the phone book; a user's own facts are all taken, unless -p n_facts says how many.
N_FACTS = {"quick": 24, "standard": 64, "full": 512}

#: Facts of a case: the unit that is compared.
PER_CASE = 3

BATCH_SIZE = 8


class Bench(NamedTuple):
    """Facts in the order of the modules, what stands in prompts, where the modules lie, and how they are read."""

    facts: tuple[Fact, ...]
    passages: tuple[str, ...]
    model: str
    modules: str
    single: str
    reading: tuple[str, int, str]


class Given(NamedTuple):
    """What an arm sees: questions, the corpus they are about, and where the modules lie."""

    questions: tuple[str, ...]
    passages: tuple[str, ...]
    model: str
    modules: str
    single: str
    reading: tuple[str, int, str]
    max_new_tokens: int


# ---------------------------------------------------------------------------------------------------- data and cases

FIRST = """
    Ada Boris Clara Dmitri Elena Felix Greta Hugo Iris Jonas Karin Leo Mara Nils Olga Pavel Quentin Rosa Stefan Tilda
    Umberto Vera Walter Xenia Yusuf Zora Anton Bella Cyril Doris Emil Frida
"""
LAST = """
    Marlow Ostrander Quill Redfern Sable Tranter Usher Vance Wexley Yarrow Zeller Abbot Birch Crane Dunmore Eddy
    Falk Garnet Holt Ingram Jessop Kemble Lorne Merrick Nesbit Orchard Pell Rudd Stroud Thorne Upton Vickers
"""


def phone_book(n: int, seed: int = 0) -> tuple[Fact, ...]:
    """People who do not exist, and their numbers."""
    rng = np.random.default_rng(child_seed(seed, "phone book"))
    names = [f"{first} {last}" for first in FIRST.split() for last in LAST.split()]
    chosen = [names[place] for place in rng.permutation(len(names))[:n]]
    return tuple(
        Fact(
            f"What is the phone number of {name}?",
            f"{rng.integers(200, 1000)}-{rng.integers(10_000):04d}",
            f"I need to call {name}. Which number do I dial?",
        )
        for name in chosen
    )


def load(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    n_facts = int(params["n_facts"])
    if path is None:
        facts = phone_book(n_facts or N_FACTS[scale])
        name = f"a phone book of {len(facts)} people"
    else:
        facts = _own(path)
        facts = facts[:n_facts] if n_facts else facts
        name = path
    if len(facts) < 2 * PER_CASE:
        raise InputError(f"{path or 'the phone book'} has {len(facts)} facts; expected at least {2 * PER_CASE}")
    models.demo_encoder()  # an arm needs it: said now, not after the writing
    reading = (str(params["router"]), int(params["top_k"]), str(params["merge"]))
    modules, single = write_memories(facts, params)
    bench = Bench(facts, tuple(fact.text for fact in facts), str(params["model"]), modules, single, reading)
    return Data(name, len(facts), bench, path)


def _own(path: str) -> tuple[Fact, ...]:
    """A table of questions and answers, or a folder of texts, of which questions are made by rule."""
    if Path(path).is_dir():
        return tuple(fact for document in read_documents(path) for fact in questions(document, 40))
    return tuple(read_facts(path))


def write_memories(facts: Sequence[Fact], params: Mapping[str, Parameter]) -> tuple[str, str]:
    """Write the facts twice, into small modules and into one large one: as many parameters, as many passes.

    Both are kept below the cache folder under a hash of all that decides them; an interrupted run goes on there.
    """
    per_module, rank, n_passes = (int(params[name]) for name in ("facts_per_module", "rank", "n_passes"))
    sectors = [list(facts[start : start + per_module]) for start in range(0, len(facts), per_module)]
    where = [str(params["model"]), rank, per_module, n_passes, float(params["learning_rate"])]
    key = digest(*where, [[fact.question, fact.answer] for fact in facts])
    folders = [made_dir() / "lora-memory" / f"{key}-{kind}" for kind in ("modules", "single")]
    for folder, r, parts in zip(folders, (rank, rank * len(sectors)), (sectors, [list(facts)]), strict=True):
        folder.mkdir(parents=True, exist_ok=True)
        model, tokenizer = load_model(str(params["model"]))
        with one_thread():
            memory = LoRAMemory(model, tokenizer, r, dropout=0.0, format="plain", folder=folder)
            try:
                for place, sector in enumerate(parts):
                    steps = -(-len(sector) // BATCH_SIZE) * n_passes
                    config = WriteConfig(
                        n_steps=steps, batch_size=BATCH_SIZE, learning_rate=float(params["learning_rate"]),
                        mask_question=True,
                    )  # fmt: skip
                    memory.write(sector, f"m{place:03d}", config)
            finally:
                memory.detach()
    return str(folders[0]), str(folders[1])


def cases(bench: Bench, n: int, seed: int) -> Iterator[Case]:
    """Disjoint groups of facts; all arms know all of them, and are asked for these."""
    order = np.random.default_rng(child_seed(seed, "order")).permutation(len(bench.facts))
    _, tokenizer = load_model(bench.model)
    for number in range(min(n, len(bench.facts) // PER_CASE)):
        facts = [bench.facts[row] for row in order[number * PER_CASE : (number + 1) * PER_CASE]]
        asked = tuple(fact.question for fact in facts) + tuple(rephrase(fact) for fact in facts)
        room = max(len(tokenizer(fact.answer)["input_ids"]) for fact in facts) + 8
        yield Case(f"facts {number + 1}", Given(asked, *bench[1:], room), tuple(fact.answer for fact in facts))


# -------------------------------------------------------------------------------------------------------------- arms


def load_model(name: str) -> tuple[Any, Any]:
    return _loaded(name, os.getpid())


@lru_cache(maxsize=2)
def _loaded(name: str, process: int) -> tuple[Any, Any]:
    return models.demo_lm() if name == "demo" else models.load_lm(name)


@lru_cache(maxsize=2)
def _memory(folder: str, name: str, how: tuple[str, int, str] = ("bm25", 1, "linear")) -> LoRAMemory:
    """A memory on a model of its own: the demo model's weights are mapped, so a second one costs little."""
    model, tokenizer = models.demo_lm() if name == "demo" else models.load_lm(name)
    router, top_k, merge = how
    encoder = models.demo_encoder() if router == "embedding" else None
    return LoRAMemory.load(folder, model, tokenizer, router=router, encoder=encoder, top_k=top_k, merge=merge)


class Answered(NamedTuple):
    """What was said, and what it cost."""

    reading: Reading
    n_parameters: int = 0


def routed(given: Given, seed: int) -> Answered:
    memory = _memory(given.modules, given.model, given.reading)
    return _remembered(memory, given)


def single(given: Given, seed: int) -> Answered:
    return _remembered(_memory(given.single, given.model), given)


def _remembered(memory: LoRAMemory, given: Given) -> Answered:
    reading = read_memory(memory, given.questions, max_new_tokens=given.max_new_tokens)
    return Answered(reading, int(memory.to_frame()["n_parameters"].sum()))


def by_words(given: Given, seed: int) -> Answered:
    return _retrieved(given, WordIndex(given.passages))


def by_meaning(given: Given, seed: int) -> Answered:
    return _retrieved(given, _sentences(given.passages))


@lru_cache(maxsize=1)
def _sentences(passages: tuple[str, ...]) -> SentenceIndex:
    return SentenceIndex(passages, models.demo_encoder())


def _retrieved(given: Given, index: WordIndex | SentenceIndex) -> Answered:
    model, tokenizer = load_model(given.model)
    return Answered(
        read_retrieved(
            model,
            Style(tokenizer),
            given.questions,
            given.passages,
            index,
            max_new_tokens=given.max_new_tokens + SENTENCE,
        )
    )


def in_context(given: Given, seed: int) -> Answered:
    model, tokenizer = load_model(given.model)
    passages = given.passages
    return Answered(
        read_in_context(
            model, Style(tokenizer), given.questions, passages, max_new_tokens=given.max_new_tokens + SENTENCE
        )
    )


def closed_book(given: Given, seed: int) -> Answered:
    model, tokenizer = load_model(given.model)
    return Answered(read_base(model, Style(tokenizer), given.questions, max_new_tokens=given.max_new_tokens + SENTENCE))


def score(case: Case, output: Answered) -> dict[str, float]:
    n = len(case.truth)
    right = [recalled(said, answer) for said, answer in zip(output.reading.answers, case.truth * 2, strict=True)]
    return {
        "recall": float(np.mean(right[:n])),
        "recall_rephrased": float(np.mean(right[n:])),
        "latency": 1000 * output.reading.seconds / (2 * n),
        "prompt_tokens": output.reading.n_prompt_tokens / (2 * n),
        "parameters": output.n_parameters / 1e6,
    }


class one_thread:  # noqa: N801  # reads as a sentence where it is used
    """As the arms have it: where cores are shared, threads that wait for each other cost a multiple."""

    def __enter__(self) -> None:
        import torch

        self.before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        import torch

        torch.set_num_threads(self.before)


# ------------------------------------------------------------------------------------------------- part: the manuals


class Page(NamedTuple):
    """What an arm of `documents` sees: a manual, questions, where its modules lie, the model."""

    text: str
    questions: tuple[str, ...]
    folder: str
    model: str
    passages: tuple[str, ...]


def load_documents(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    """Write every manual twice, with the same number of training tokens: as its text, and as questions."""
    budget, model = int(params["training_tokens"]), str(params["model"])
    manuals = DOCUMENTS
    rank, learning_rate = int(params["rank"]), float(params["learning_rate"])
    folder = made_dir() / "lora-memory" / f"{digest(model, rank, budget, learning_rate)}-documents"
    folder.mkdir(parents=True, exist_ok=True)
    with one_thread():
        memory = LoRAMemory(*load_model(model), rank, dropout=0.0, format="plain", folder=folder)
        try:
            for place, manual in enumerate(manuals):
                for kind in FORMATS:
                    records = _records(manual, kind)
                    n_tokens = sum(memory.style.n_tokens(record) for record in records)
                    config = WriteConfig(
                        n_steps=max(1, round(budget / n_tokens)), batch_size=len(records), learning_rate=learning_rate
                    )
                    memory.write(_as_written(records), f"{kind}-{place}", config)
        finally:
            memory.detach()
    return Data(f"{len(manuals)} manuals of things that do not exist", len(manuals), (manuals, str(folder), model))


FORMATS = ("raw", "qa")


def _records(manual: Any, kind: str) -> list[Any]:
    return list(manual.facts) if kind == "qa" else [manual.document]


def _as_written(records: list[Any]) -> list[Any]:
    """A text is the answer to its name."""
    return [
        record if isinstance(record, Fact) else Fact(f"What do you know about {record.name}?", record.text)
        for record in records
    ]


def manuals(data: Any, n: int, seed: int) -> Iterator[Case]:
    documents, folder, model = data
    passages = tuple(manual.document.text for manual in documents)
    for place, manual in enumerate(documents[:n]):
        asked = tuple(fact.rephrased for fact in manual.facts)
        page = Page(f"{place}", asked, folder, model, passages)
        yield Case(manual.document.name, page, tuple(fact.answer for fact in manual.facts))


def from_questions(page: Page, seed: int) -> Answered:
    return _from_module(page, "qa")


def from_text(page: Page, seed: int) -> Answered:
    return _from_module(page, "raw")


def from_questions_and_page(page: Page, seed: int) -> Answered:
    """Hybrid reading: the module is on while the retrieved manual stands in the prompt."""
    memory = _memory(page.folder, page.model)
    contexts = [_nearest_manual(page, question) for question in page.questions]
    return _module_reading(memory, page, "qa", contexts)


def from_page(page: Page, seed: int) -> Answered:
    model, tokenizer = load_model(page.model)
    index = WordIndex(page.passages)
    return Answered(
        read_retrieved(
            model, Style(tokenizer), page.questions, page.passages, index, top_k=1, max_new_tokens=16 + SENTENCE
        )
    )


def without(page: Page, seed: int) -> Answered:
    model, tokenizer = load_model(page.model)
    return Answered(read_base(model, Style(tokenizer), page.questions, max_new_tokens=16 + SENTENCE))


def _nearest_manual(page: Page, question: str) -> str:
    scores = WordIndex(page.passages).scores([question])[0]
    return page.passages[int(scores.argmax())]


def _from_module(page: Page, kind: str) -> Answered:
    return _module_reading(_memory(page.folder, page.model), page, kind, None)


def _module_reading(memory: LoRAMemory, page: Page, kind: str, contexts: list[str] | None) -> Answered:
    name = f"{kind}-{page.text}"
    traces = memory.ask_many(page.questions, contexts, modules=[(name,)] * len(page.questions), max_new_tokens=16)
    seconds = sum(trace.seconds for trace in traces)
    reading = Reading(tuple(t.answer for t in traces), seconds, sum(t.n_prompt_tokens for t in traces))
    return Answered(reading, memory.modules[name].n_parameters)


def score_documents(case: Case, output: Answered) -> dict[str, float]:
    n = len(case.truth)
    right = [recalled(said, answer) for said, answer in zip(output.reading.answers, case.truth, strict=True)]
    return {
        "recall_rephrased": float(np.mean(right)),
        "latency": 1000 * output.reading.seconds / n,
        "prompt_tokens": output.reading.n_prompt_tokens / n,
    }


# ---------------------------------------------------------------------------------------------------------- the trial

RECALL = Metric("recall", better="higher", help="share of facts that are said, asked as they were written")
REPHRASED = Metric("recall_rephrased", better="higher", help="the same, asked in other words")
COSTS = (
    Metric("latency", better="lower", scale="log", unit="ms", help="a question, answered in batches"),
    Metric("prompt_tokens", better="lower", scale="log", help="tokens of the prompt, a question"),
)

TRIAL = Trial(
    slug="lora-memory",
    claim=Claim(
        "recalls facts from routed LoRA modules at least as well as retrieval, the whole corpus in the prompt and one "
        "large LoRA of as many parameters",
        metric="recall",
        margin=0.05,
        expects="no_worse",
    ),
    load=load,
    cases=cases,
    arms=(
        Arm("LoRA modules, routed", routed),
        Arm("one large LoRA", single, baseline=True),
        Arm("retrieval by words (BM25)", by_words, baseline=True),
        Arm("retrieval by meaning (MiniLM)", by_meaning, baseline=True),
        Arm("the corpus in the prompt", in_context, baseline=True),
        Arm("no memory", closed_book, baseline=True),
    ),
    metrics=(
        RECALL,
        REPHRASED,
        *COSTS,
        Metric("parameters", better="lower", unit="million", help="added to the model"),
    ),
    score=score,
    n_cases={"quick": 8, "standard": 21, "full": 170},
    params={
        "model": "demo",
        "n_facts": 0,
        "facts_per_module": 8,
        "rank": 4,
        "n_passes": 16,
        "learning_rate": 5e-3,
        "router": "bm25",
        "top_k": 1,
        "merge": "linear",
    },
    also=(
        Trial(
            slug="lora-memory",
            part="documents",
            claim=Claim(
                "learns more of a document from questions and answers than from its text, at equal training tokens",
                metric="recall_rephrased",
            ),
            load=load_documents,
            cases=manuals,
            arms=(
                Arm("module of questions", from_questions),
                Arm("module of the text", from_text, baseline=True),
                Arm("no memory", without, baseline=True),
            ),
            metrics=(REPHRASED, *COSTS),
            score=score_documents,
            n_cases={"quick": 8, "standard": 8, "full": 8},
            params={"model": "demo", "rank": 4, "training_tokens": 1500, "learning_rate": 5e-3},
            takes_data=False,
        ),
        Trial(
            slug="lora-memory",
            part="hybrid",
            claim=Claim(
                "answers better from a module and the retrieved text together than from either alone",
                metric="recall_rephrased",
            ),
            load=load_documents,
            cases=manuals,
            arms=(
                Arm("module and retrieved text", from_questions_and_page),
                Arm("module alone", from_questions, baseline=True),
                Arm("retrieved text alone (BM25)", from_page, baseline=True),
            ),
            metrics=(REPHRASED, *COSTS),
            score=score_documents,
            n_cases={"quick": 8, "standard": 8, "full": 8},
            params={"model": "demo", "rank": 4, "training_tokens": 1500, "learning_rate": 5e-3},
            takes_data=False,
        ),
        *SMALL,
    ),
)
