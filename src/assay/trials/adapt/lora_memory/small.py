"""The parts of lora-memory's trial on a small model trained here: the truth is known, and a module costs seconds.

A character-level decoder learns to look up 600 public facts such as ``qvxab:42`` and is frozen. New facts of the same
form are drawn in every case; what it says of them without a module is right once in a hundred.
"""

from __future__ import annotations

import string
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.cache import made_dir
from assay._core.seeds import child_seed
from assay.adapt.lora_memory import Fact, LoRAMemory, WriteConfig, recalled
from assay.adapt.lora_memory.store import digest
from assay.bench import Arm, Case, Claim, Data, Metric, Trial
from assay.models import small

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from assay.bench.spec import Parameter, Scale

N_PUBLIC = 600
TEMPLATE = "{question}:{answer}"
ALPHABET = string.ascii_lowercase + string.digits + ":."
BATCH_SIZE = 64
LEARNING_RATE = 1e-2


class Given(NamedTuple):
    """Facts to write, how many a small module gets, its rank, and how often each fact is seen."""

    facts: tuple[Fact, ...]
    per_module: int
    rank: int
    n_passes: int


# --------------------------------------------------------------------------------------------------------- the model


def draw(n: int, rng: np.random.Generator) -> tuple[Fact, ...]:
    """Facts with different keys of five letters and values of two digits."""
    keys: dict[str, None] = {}
    while len(keys) < n:
        keys["".join(rng.choice(list(string.ascii_lowercase), 5))] = None
    return tuple(Fact(key, f"{rng.integers(100):02d}") for key in keys)


def tokenizer() -> Any:
    """One token a character; the full stop ends a sequence."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = Tokenizer(models.WordLevel({c: i for i, c in enumerate(ALPHABET)}, unk_token=":"))  # noqa: S106
    characters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    characters.decoder = decoders.Fuse()
    made: Any = PreTrainedTokenizerFast
    return made(tokenizer_object=characters, unk_token=":", eos_token=".")  # noqa: S106


def encoded(facts: Sequence[Fact]) -> Any:
    """(n_facts, 9) int64: five letters, a colon, two digits, the end."""
    import torch

    lines = [f"{fact.question}:{fact.answer}." for fact in facts]
    return torch.tensor([[ALPHABET.index(c) for c in line] for line in lines])


def lookup_model() -> Any:
    """The frozen model; its training takes a minute once and is kept below the cache folder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(ALPHABET), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, bos_token_id=None, eos_token_id=ALPHABET.index("."),
    )  # fmt: skip
    public = encoded(draw(N_PUBLIC, np.random.default_rng(0)))

    def loss(model: Any, ids: Any) -> Any:
        """Surprise at the values of public facts; the text that the recipe brings is not looked at."""
        import torch
        from torch.nn.functional import cross_entropy

        rows = public[torch.randint(N_PUBLIC, (128,))]
        logits = model(rows).logits[:, 5:-1]
        return cross_entropy(logits.flatten(0, 1), rows[:, 6:].flatten())

    recipe = small.Recipe(n_steps=900, batch_size=1, n_tokens=16, learning_rate=3e-3)
    settings = {"architecture": config.to_dict(), "public": N_PUBLIC, "loss": "values"}
    made = small.train("lookup-of-facts", settings, lambda: LlamaForCausalLM(config), recipe, loss=loss)
    return made.model


@lru_cache(maxsize=1)
def base() -> Any:
    """One model a process: a memory leaves it as it was."""
    return lookup_model()


def write_config(n_facts: int, n_passes: int) -> WriteConfig:
    steps = -(-n_facts // BATCH_SIZE) * n_passes
    return WriteConfig(
        n_steps=steps,
        batch_size=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
        warmup_ratio=0.0,
        mask_question=True,
    )


def memory(rank: int, folder: Path) -> LoRAMemory:
    return LoRAMemory(
        base(), tokenizer(), rank, dropout=0.0, router="oracle", format="plain", template=TEMPLATE, folder=folder
    )


# -------------------------------------------------------------------------------------------------------------- arms


class Answered(NamedTuple):
    """What was said, by a memory of so many parameters, trained to such a loss."""

    said: tuple[str, ...]
    n_parameters: int
    loss: float


def ask(held: LoRAMemory, facts: Sequence[Fact], modules: Sequence[tuple[str, ...]]) -> Answered:
    traces = held.ask_many([fact.question for fact in facts], modules=modules, max_new_tokens=3, batch_size=256)
    frame = held.to_frame()
    return Answered(tuple(t.answer for t in traces), int(frame["n_parameters"].sum()), float(frame["loss"].mean()))


def sectors(given: Given) -> list[list[Fact]]:
    facts = list(given.facts)
    return [facts[start : start + given.per_module] for start in range(0, len(facts), given.per_module)]


def many_small(given: Given, seed: int) -> Answered:
    return _many(given, seed, given.n_passes)


def many_small_equal_steps(given: Given, seed: int) -> Answered:
    """Each small module gets as many steps as the large one: its facts are seen that much more often."""
    return _many(given, seed, given.n_passes * (len(given.facts) // given.per_module))


def _many(given: Given, seed: int, n_passes: int) -> Answered:
    held = _written(given._replace(n_passes=n_passes))
    try:
        names = list(held.modules)
        return ask(held, given.facts, [(names[row // given.per_module],) for row in range(len(given.facts))])
    finally:
        held.detach()


def _written(given: Given) -> LoRAMemory:
    """The modules of these facts, written once: parts and arms that need the same ones find them on disk."""
    key = digest([[fact.question, fact.answer] for fact in given.facts], *given[1:])
    folder = made_dir() / "lora-memory" / "small" / key
    folder.mkdir(parents=True, exist_ok=True)
    held = memory(given.rank, folder)
    held.write_many(sectors(given), write_config(given.per_module, given.n_passes))
    return held


def one_large(given: Given, seed: int) -> Answered:
    return one_module(given, seed, given.rank * (len(given.facts) // given.per_module))


def one_module(given: Given, seed: int, rank: int) -> Answered:
    return _many(given._replace(per_module=len(given.facts), rank=rank), seed, given.n_passes)


def rank_1(given: Given, seed: int) -> Answered:
    return _as_many_as_its_rank(given, seed, 1)


def rank_2(given: Given, seed: int) -> Answered:
    return _as_many_as_its_rank(given, seed, 2)


def rank_4(given: Given, seed: int) -> Answered:
    return _as_many_as_its_rank(given, seed, 4)


def _as_many_as_its_rank(given: Given, seed: int, rank: int) -> Answered:
    """As many facts for each parameter at every rank: offered fewer, a high one could not show what it holds."""
    return one_module(given._replace(facts=given.facts[: rank * given.per_module]), seed, rank)


def the_right_one(given: Given, seed: int) -> Answered:
    return _merged(given, seed, 1, "linear")


def two_linear(given: Given, seed: int) -> Answered:
    return _merged(given, seed, 2, "linear")


def two_ties(given: Given, seed: int) -> Answered:
    return _merged(given, seed, 2, "ties")


def two_cat(given: Given, seed: int) -> Answered:
    return _merged(given, seed, 2, "cat")


def four_linear(given: Given, seed: int) -> Answered:
    return _merged(given, seed, 4, "linear")


def a_wrong_one(given: Given, seed: int) -> Answered:
    return _merged(given, seed, 1, "linear", first=1)


def _merged(given: Given, seed: int, n_modules: int, method: Any, first: int = 0) -> Answered:
    held = _written(given)
    try:
        held.merge = method
        names = list(held.modules)
        own = [row // given.per_module for row in range(len(given.facts))]
        sets = [tuple(names[(place + first + step) % len(names)] for step in range(n_modules)) for place in own]
        return ask(held, given.facts, sets)
    finally:
        held.detach()


# ------------------------------------------------------------------------------------------------------------- trials


def load(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    lookup_model()
    given = {name: int(params[name]) for name in ("n_facts", "per_module", "rank", "n_passes")}
    return Data(f"{given['n_facts']} new facts a case, on a character-level decoder", given["n_facts"], given)


def cases(given: Mapping[str, int], n: int, seed: int) -> Iterator[Case]:
    for number in range(n):
        facts = draw(given["n_facts"], np.random.default_rng(child_seed(seed, "new facts", number)))
        case = Given(facts, given["per_module"], given["rank"], given["n_passes"])
        yield Case(f"draw {number + 1}", case, tuple(fact.answer for fact in facts))


def score(case: Case, output: Answered) -> dict[str, float]:
    """What was asked is the beginning of the case's facts: all of them but for low ranks in `capacity`."""
    n = len(output.said)
    right = sum(recalled(said, answer) for said, answer in zip(output.said, case.truth, strict=False))
    return {
        "recall": right / n,
        "facts_per_1000_parameters": 1000 * right / output.n_parameters,
        "loss": output.loss,
    }


RECALL = Metric("recall", better="higher", help="share of the written facts that are said")
DENSITY = Metric("facts_per_1000_parameters", better="higher", help="facts that are said, for the size of the modules")
LOSS = Metric("loss", better="lower", unit="nats", help="at the end of training: high where more steps would help")


def _part(part: str, claim: Claim, arms: tuple[Arm, ...], **params: int) -> Trial:
    return Trial(
        slug="lora-memory",
        part=part,
        claim=claim,
        load=load,
        cases=cases,
        arms=arms,
        metrics=(RECALL, DENSITY, LOSS),
        score=score,
        n_cases={"quick": 6, "standard": 12, "full": 30},
        params=params,
        takes_data=False,
    )


SMALL = (
    _part(
        "capacity",
        Claim("holds more facts for its size at a low rank than at a high one", metric="facts_per_1000_parameters"),
        (
            Arm("rank 1", rank_1),
            Arm("rank 2", rank_2, baseline=True),
            Arm("rank 4", rank_4, baseline=True),
        ),
        n_facts=512, per_module=128, rank=1, n_passes=50,
    ),
    _part(
        "modules",
        Claim("recalls more from small modules, each read for its own facts, than from a large one of the same total "
              "size after as many passes", metric="recall", margin=0.02),
        (Arm("two small modules, oracle routing", many_small), Arm("one large module", one_large, baseline=True)),
        n_facts=256, per_module=128, rank=1, n_passes=50,
    ),
    _part(
        "modules-equal-steps",
        Claim("recalls more from small modules, each trained for as many steps as the large one (the paper's budget)",
              metric="recall", margin=0.02),
        (
            Arm("two small modules, oracle routing", many_small_equal_steps),
            Arm("one large module", one_large, baseline=True),
        ),
        n_facts=256, per_module=128, rank=1, n_passes=50,
    ),
    _part(
        "merging",
        Claim("recalls more from the right module than from several merged ones among which it is", metric="recall"),
        (
            Arm("the right module", the_right_one),
            Arm("two merged, linear", two_linear, baseline=True),
            Arm("two merged, TIES", two_ties, baseline=True),
            Arm("two merged, concatenated", two_cat, baseline=True),
            Arm("four merged, linear", four_linear, baseline=True),
            Arm("a wrong module", a_wrong_one, baseline=True),
        ),
        n_facts=128, per_module=32, rank=2, n_passes=40,
    ),
)  # fmt: skip
