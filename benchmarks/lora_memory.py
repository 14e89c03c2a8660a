"""Speed of lora-memory: writing beside the Trainer of transformers, reading beside retrieval and the model alone.

python benchmarks/lora_memory.py [--model demo] [--repeats 3] [--steps 4]

Writing: the same adapter on the same eight phone numbers for the same steps, by `LoRAMemory.write` and by
`transformers.Trainer` with PEFT, alternating. Reading: sixteen questions to a memory of four modules (the questions of
a module in one batch), to the model with three retrieved records in the prompt, to the model alone in the same batches
as the memory, and in one batch of sixteen. The floor of writing is a forward and a backward pass of the base model.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import tempfile
import time
import warnings
from typing import TYPE_CHECKING, Any

import torch

from assay import models
from assay.adapt.lora_memory import Fact, LoRAMemory, WriteConfig
from assay.adapt.lora_memory.compare import read_base, read_retrieved
from assay.adapt.lora_memory.formats import Sample, Style
from assay.adapt.lora_memory.route import Router, WordIndex
from assay.adapt.lora_memory.write import next_token_loss, pad

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = "Ada Boris Clara Dmitri Elena Felix Greta Hugo Iris Jonas Karin Leo Mara Nils Olga Pavel"
BOOK = [Fact(f"What is the phone number of {n} Marlow?", f"{700 + i}-{4321 + 7 * i}") for i, n in
        enumerate(NAMES.split())]  # fmt: skip
RANK, N_TOKENS = 4, 9


def load(name: str) -> tuple[Any, Any]:
    return models.demo_lm() if name == "demo" else models.load_lm(name)


def write_ours(name: str, steps: int) -> Callable[[], None]:
    model, tokenizer = load(name)
    config = WriteConfig(n_steps=steps, learning_rate=1e-3)

    def run() -> None:
        memory = LoRAMemory(model, tokenizer, RANK, dropout=0.0, format="plain")
        memory.write(BOOK[:8], "m", config)
        memory.detach()

    return run


def write_trainer(name: str, steps: int) -> Callable[[], None]:
    import peft
    import transformers

    model, tokenizer = load(name)
    style = Style(tokenizer, "plain")
    rows = [list(style.encode(Sample(f.question, f.answer))[0].ids) for f in BOOK[:8]]
    ids, mask = pad(rows, tokenizer.eos_token_id, "right")
    labels = ids.masked_fill(mask == 0, -100)
    data = [{"input_ids": i, "attention_mask": m, "labels": y} for i, m, y in zip(ids, mask, labels, strict=True)]
    lora = peft.LoraConfig(r=RANK, lora_alpha=RANK, target_modules="all-linear", task_type="CAUSAL_LM")

    def run() -> None:
        adapted = peft.get_peft_model(model, lora)
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                output_dir=folder, max_steps=steps, per_device_train_batch_size=8, learning_rate=1e-3, report_to=[],
                lr_scheduler_type="cosine", save_strategy="no", disable_tqdm=True, use_cpu=True, logging_strategy="no",
            )  # fmt: skip
            transformers.Trainer(adapted, arguments, train_dataset=data).train()
        adapted.unload()

    return run


def write_floor(name: str, steps: int) -> Callable[[], None]:
    """The passes alone: forward, and backward down to the embeddings' output."""
    model, tokenizer = load(name)
    model.requires_grad_(False)
    style = Style(tokenizer, "plain")
    ids, mask = pad([list(style.encode(Sample(f.question, f.answer))[0].ids) for f in BOOK[:8]], 0, "right")

    def run() -> None:
        for _ in range(steps):
            embedded = model.get_input_embeddings()(ids).requires_grad_(True)
            next_token_loss(model(inputs_embeds=embedded, attention_mask=mask).logits, ids).backward()

    return run


def readers(name: str) -> dict[str, Callable[[], None]]:
    model, tokenizer = load(name)
    memory = LoRAMemory(model, tokenizer, RANK, dropout=0.0, format="plain")
    memory.write_many([BOOK[i : i + 4] for i in range(0, 16, 4)], WriteConfig(n_steps=1))
    plain, _ = load(name)
    style = Style(tokenizer, "plain")
    questions, passages = [fact.question for fact in BOOK], [fact.text for fact in BOOK]
    index = WordIndex(passages)
    # The same number of tokens for all: one that ends early would save time by chance.
    options = {"max_new_tokens": N_TOKENS, "min_new_tokens": N_TOKENS}
    return {
        "memory, routed": lambda: memory.ask_many(questions, **options) and None,
        "retrieval (BM25), 3 records": lambda: (
            read_retrieved(plain, style, questions, passages, index, 3, **options) and None
        ),
        "model alone, four batches": lambda: read_base(plain, style, questions, batch_size=4, **options) and None,
        "model alone, one batch": lambda: read_base(plain, style, questions, **options) and None,
    }


def alternate(runs: dict[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            start = time.process_time()
            with contextlib.redirect_stdout(io.StringIO()):  # the Trainer prints its statistics
                run()
            if repeat:  # the first warms up
                times[name].append(time.process_time() - start)
    return times


def show(title: str, times: dict[str, list[float]], unit: float) -> None:
    first = next(iter(times))
    print(f"\n{title}")
    for name, seconds in times.items():
        ratio = statistics.median(s / own for s, own in zip(seconds, times[first], strict=True))
        print(f"{name:<32} {1000 * statistics.median(seconds) / unit:>9.1f} ms CPU   {ratio:>6.2f} x {first}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    name, steps = arguments.model, arguments.steps
    runs = {"LoRAMemory.write": write_ours(name, steps), "transformers.Trainer with PEFT": write_trainer(name, steps)}
    runs["floor: forward and backward"] = write_floor(name, steps)
    show("writing, a step of eight facts", alternate(runs, arguments.repeats), steps)
    show("reading, a question", alternate(readers(name), arguments.repeats), len(BOOK))
    route = Router(_many_modules(), "bm25")
    start = time.process_time()
    for _ in range(20):
        route.scores([BOOK[3].question])
    print(
        f"\nrouting by words among 10,000 keys of 1,000 modules: {1000 * (time.process_time() - start) / 20:.1f} ms CPU"
    )


def _many_modules() -> list[Any]:
    from assay.adapt.lora_memory.store import Module

    keys = [[f"What is the phone number of person {10 * k + j}?" for j in range(10)] for k in range(1000)]
    return [Module(f"m{k}", tuple(own), tuple(own), 1, 1, 1, 0.0, "", {}) for k, own in enumerate(keys)]


if __name__ == "__main__":
    main()
