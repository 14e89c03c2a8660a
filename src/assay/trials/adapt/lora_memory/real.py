"""lora-memory: facts in LoRA modules beside retrieval, in-context learning, one large LoRA and no memory at all.

The main part writes a phone book, or a user's own facts, into SmolLM2-135M-Instruct and asks for every entry twice: as
it was written, and in other words; `routes` asks the same modules when the right one is known, by either router, and
merged with another. The parts on `manuals` ask the same of short texts, and whether questions or the raw
text are the better thing to learn. The parts on a small model trained here (`small`) tell what capacity, many small
modules and merging do when nothing else varies.
"""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from assay import models
from assay._core.cache import made_dir
from assay._core.errors import InputError
from assay._core.seeds import child_seed
from assay.adapt.lora_memory import Fact, LoRAMemory, WriteConfig, read_documents, read_facts, recalled
from assay.adapt.lora_memory.compare import SENTENCE, read_base, read_in_context, read_memory, read_retrieved
from assay.adapt.lora_memory.facts import rephrase
from assay.adapt.lora_memory.formats import Style, questions
from assay.adapt.lora_memory.route import SentenceIndex, WordIndex
from assay.adapt.lora_memory.store import digest
from assay.bench import Arm, Case, Claim, Data, Metric, Trial
from assay.trials.adapt.lora_memory.manuals import MANUALS
from assay.trials.adapt.lora_memory.shared import COSTS, REPHRASED, Answered, load_model, loaded_memory, one_thread
from assay.trials.adapt.lora_memory.small import SMALL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from assay.bench.spec import Parameter, Scale

#: Of the phone book; a user's own facts are all taken, unless -p n_facts says how many.
N_FACTS = {"quick": 24, "standard": 64, "full": 512}

#: Facts of a case: the unit that is compared.
PER_CASE = 3

BATCH_SIZE = 8

#: Nats per token in training: below it a module knows its facts by heart.
LEARNT = 0.1

#: The rate of the large LoRA is divided by this when it did not learn.
LOWER = 2.5


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

    Both are kept below the cache folder under a hash of all that decides them; an interrupted run goes on there. The
    rate that suits the small ones can be too high for the large one, which is written again at lower rates until it
    has learnt the facts or its loss in training falls no more.
    """
    per_module, rank, rate = int(params["facts_per_module"]), int(params["rank"]), float(params["learning_rate"])
    sectors = [list(facts[start : start + per_module]) for start in range(0, len(facts), per_module)]
    where = [str(params["model"]), rank, per_module, int(params["n_passes"]), rate]
    key = made_dir() / "lora-memory" / digest(*where, [[fact.question, fact.answer] for fact in facts])

    def large(rate: float) -> Path:
        return Path(f"{key}-single-{rate:g}")

    _write(Path(f"{key}-modules"), sectors, params, rank, rate)
    losses = {rate: _write(large(rate), [list(facts)], params, rank * len(sectors), rate)}
    while losses[rate] > LEARNT and losses[rate] == min(losses.values()):
        rate /= LOWER
        losses[rate] = _write(large(rate), [list(facts)], params, rank * len(sectors), rate)
    return f"{key}-modules", str(large(min(losses, key=lambda rate: losses[rate])))


def _write(folder: Path, sectors: list[list[Fact]], params: Mapping[str, Parameter], rank: int, rate: float) -> float:
    """Write each list of facts into a module of its own; return the mean of their last losses, nats per token."""
    folder.mkdir(parents=True, exist_ok=True)
    model, tokenizer = load_model(str(params["model"]))
    with one_thread():
        memory = LoRAMemory(model, tokenizer, rank, dropout=0.0, format="plain", folder=folder)
        try:
            for place, sector in enumerate(sectors):
                steps = -(-len(sector) // BATCH_SIZE) * int(params["n_passes"])
                config = WriteConfig(n_steps=steps, batch_size=BATCH_SIZE, learning_rate=rate, mask_question=True)
                memory.write(sector, f"m{place:03d}", config)
            return float(memory.to_frame()["loss"].mean())
        finally:
            memory.detach()


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


def routed(given: Given, seed: int) -> Answered:
    memory = loaded_memory(given.modules, given.model, given.reading)
    return _remembered(memory, given)


def routed_by_meaning(given: Given, seed: int) -> Answered:
    _, top_k, merge = given.reading
    return _remembered(loaded_memory(given.modules, given.model, ("embedding", top_k, merge)), given)


def told(given: Given, seed: int) -> Answered:
    """The module that holds the fact, however it is asked for: what a router without a fault would give."""
    memory = loaded_memory(given.modules, given.model, given.reading)
    return _remembered(memory, given, _holders(memory, given))


def merged(merge: str, given: Given, seed: int) -> Answered:
    """The module that holds the fact and the one behind it, merged."""
    memory = loaded_memory(given.modules, given.model, ("bm25", 1, merge))
    names = list(memory.modules)
    pairs = [[name, names[(names.index(name) + 1) % len(names)]] for (name,) in _holders(memory, given)]
    return _remembered(memory, given, pairs)


def _holders(memory: LoRAMemory, given: Given) -> list[list[str]]:
    held = {question: name for name, module in memory.modules.items() for question in module.questions}
    as_written = given.questions[: len(given.questions) // 2]  # the others are the same in other words
    return [[held[question]] for question in as_written] * 2


def single(given: Given, seed: int) -> Answered:
    return _remembered(loaded_memory(given.single, given.model), given)


def _remembered(memory: LoRAMemory, given: Given, modules: Sequence[Sequence[str]] | None = None) -> Answered:
    reading = read_memory(memory, given.questions, modules=modules, max_new_tokens=given.max_new_tokens)
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


# ---------------------------------------------------------------------------------------------------------- the trial

RECALL = Metric("recall", better="higher", help="share of facts that are said, asked as they were written")

PARAMS: dict[str, Parameter] = {
    "model": "demo",
    "n_facts": 0,
    "facts_per_module": 8,
    "rank": 4,
    "n_passes": 16,
    "learning_rate": 5e-3,
    "router": "bm25",
    "top_k": 1,
    "merge": "linear",
}

ROUTES = Trial(
    slug="lora-memory",
    part="routes",
    claim=Claim(
        "recalls more from the right module than from a routed one or from two that are merged", metric="recall"
    ),
    load=load,
    cases=cases,
    arms=(
        Arm("the right module", told),
        Arm("routed by words (BM25)", routed, baseline=True),
        Arm("routed by meaning (MiniLM)", routed_by_meaning, baseline=True),
        Arm("right and next merged, linear", partial(merged, "linear"), baseline=True),
        Arm("right and next merged, concatenated", partial(merged, "cat"), baseline=True),
    ),
    metrics=(RECALL, REPHRASED, *COSTS),
    score=score,
    n_cases={"quick": 8, "standard": 21, "full": 170},
    params=PARAMS,
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
    params=PARAMS,
    also=(ROUTES, *MANUALS, *SMALL),
)
