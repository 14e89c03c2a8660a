"""The parts of lora-memory's trial on manuals: what a module learns of a text, and whether to read both together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.cache import made_dir
from assay.adapt.lora_memory import Fact, LoRAMemory, WriteConfig, recalled
from assay.adapt.lora_memory.compare import SENTENCE, Reading, read_base, read_retrieved
from assay.adapt.lora_memory.formats import Style
from assay.adapt.lora_memory.route import WordIndex
from assay.adapt.lora_memory.store import digest
from assay.bench import Arm, Case, Claim, Data, Trial
from assay.trials.adapt.lora_memory.documents import DOCUMENTS
from assay.trials.adapt.lora_memory.shared import COSTS, REPHRASED, Answered, load_model, loaded_memory, one_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale

FORMATS = ("raw", "qa")


class Page(NamedTuple):
    """What an arm of `documents` sees: a manual, questions, where its modules lie, the model."""

    text: str
    questions: tuple[str, ...]
    folder: str
    model: str
    passages: tuple[str, ...]


def load(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    """Write every manual twice, with the same number of training tokens: as its text, and as questions."""
    budget, model = int(params["training_tokens"]), str(params["model"])
    rank, learning_rate = int(params["rank"]), float(params["learning_rate"])
    folder = made_dir() / "lora-memory" / f"{digest(model, rank, budget, learning_rate)}-documents"
    folder.mkdir(parents=True, exist_ok=True)
    with one_thread():
        memory = LoRAMemory(*load_model(model), rank, dropout=0.0, format="plain", folder=folder)
        try:
            for place, manual in enumerate(DOCUMENTS):
                for kind in FORMATS:
                    records = _records(manual, kind)
                    n_tokens = sum(memory.style.n_tokens(record) for record in records)
                    config = WriteConfig(
                        n_steps=max(1, round(budget / n_tokens)), batch_size=len(records), learning_rate=learning_rate
                    )
                    memory.write(_as_written(records), f"{kind}-{place}", config)
        finally:
            memory.detach()
    return Data(
        f"{len(DOCUMENTS)} manuals of things that do not exist", len(DOCUMENTS), (DOCUMENTS, str(folder), model)
    )


def _records(manual: Any, kind: str) -> list[Any]:
    return list(manual.facts) if kind == "qa" else [manual.document]


def _as_written(records: list[Any]) -> list[Any]:
    """A text is the answer to its name."""
    return [
        record if isinstance(record, Fact) else Fact(f"What do you know about {record.name}?", record.text)
        for record in records
    ]


def cases(data: Any, n: int, seed: int) -> Iterator[Case]:
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
    memory = loaded_memory(page.folder, page.model)
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
    return _module_reading(loaded_memory(page.folder, page.model), page, kind, None)


def _module_reading(memory: LoRAMemory, page: Page, kind: str, contexts: list[str] | None) -> Answered:
    name = f"{kind}-{page.text}"
    traces = memory.ask_many(page.questions, contexts, modules=[(name,)] * len(page.questions), max_new_tokens=16)
    seconds = sum(trace.seconds for trace in traces)
    reading = Reading(tuple(t.answer for t in traces), seconds, sum(t.n_prompt_tokens for t in traces))
    return Answered(reading, memory.modules[name].n_parameters)


def score(case: Case, output: Answered) -> dict[str, float]:
    n = len(case.truth)
    right = [recalled(said, answer) for said, answer in zip(output.reading.answers, case.truth, strict=True)]
    return {
        "recall_rephrased": float(np.mean(right)),
        "latency": 1000 * output.reading.seconds / n,
        "prompt_tokens": output.reading.n_prompt_tokens / n,
    }


ASKED: dict[str, Any] = {
    "slug": "lora-memory",
    "load": load,
    "cases": cases,
    "metrics": (REPHRASED, *COSTS),
    "score": score,
    "n_cases": {"quick": 8, "standard": 8, "full": 8},
    "params": {"model": "demo", "rank": 4, "training_tokens": 1500, "learning_rate": 5e-3},
    "takes_data": False,
}

MANUALS = (
    Trial(
        part="documents",
        claim=Claim(
            "learns more of a document from questions and answers than from its text, at equal training tokens",
            metric="recall_rephrased",
        ),
        arms=(
            Arm("module of questions", from_questions),
            Arm("module of the text", from_text, baseline=True),
            Arm("no memory", without, baseline=True),
        ),
        **ASKED,
    ),
    Trial(
        part="hybrid",
        claim=Claim(
            "answers better from a module and the retrieved text together than from either alone",
            metric="recall_rephrased",
        ),
        arms=(
            Arm("module and retrieved text", from_questions_and_page),
            Arm("module alone", from_questions, baseline=True),
            Arm("retrieved text alone (BM25)", from_page, baseline=True),
        ),
        **ASKED,
    ),
)
