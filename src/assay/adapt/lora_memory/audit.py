"""What does the memory still know? Recall of every written fact, what routing loses, and how much a rank can hold."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay._core.errors import InputError
from assay._core.progress import progress_bar
from assay.adapt.lora_memory.facts import as_facts, rephrase
from assay.adapt.lora_memory.memory import LoRAMemory
from assay.adapt.lora_memory.read import recalled
from assay.adapt.lora_memory.write import WriteConfig

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.axes import Axes

    from assay.adapt.lora_memory.facts import Fact

#: Okabe and Ito's colours, told apart by everyone.
_BLUE, _ORANGE, _GREY = "#0072B2", "#E69F00", "#999999"

#: Rows of :meth:`MemoryAudit.rates`: the column of the frame, and how a person would say it.
_RATES = {
    "from_its_module": "recall, read from its own module",
    "is_routed_right": "routing finds its module",
    "recalled": "recall, routed",
    "recalled_rephrased": "recall, routed, other words",
    "from_another": "recall, read from a wrong module",
    "from_base": "recall of the model without memory",
}


@dataclass(frozen=True)
class MemoryAudit:
    """What :func:`audit` found.

    Attributes
    ----------
    facts : DataFrame
        One row a fact: question, answer, the module that holds it, the one it was routed to, what was said, and
        whether that was right.
    confidence : float
        Of the intervals (Wilson's).
    """

    facts: pd.DataFrame
    confidence: float = 0.95

    def rates(self) -> pd.DataFrame:
        """Shares with intervals: what, rate, low, high."""
        import pandas as pd

        rows = []
        for column, text in _RATES.items():
            if column in self.facts:
                rows.append((text, *share(int(self.facts[column].sum()), len(self.facts), self.confidence)))
        return pd.DataFrame(rows, columns=["what", "rate", "low", "high"])

    @property
    def foreseen(self) -> float:
        """Routing accuracy times recall from the right module: what recall is where a wrong module knows nothing."""
        return float(self.facts["is_routed_right"].astype(float).mean() * self.facts["from_its_module"].mean())

    def modules(self) -> pd.DataFrame:
        """One row a module: how many of its facts it holds."""
        grouped = self.facts.groupby("module", sort=False)
        frame = grouped.agg(
            n_facts=("question", "size"), recall=("from_its_module", "mean"), routed_right=("is_routed_right", "mean")
        )
        return frame.reset_index()

    def to_frame(self) -> pd.DataFrame:
        """One row a fact."""
        return self.facts

    def summary(self) -> str:
        """A table for people."""
        lines = [f"{len(self.facts)} facts in {self.facts['module'].nunique()} modules", ""]
        lines += [f"{'':<36}{'rate':>6}  {self.confidence:.0%} interval"]
        for row in self.rates().itertuples():
            lines.append(f"{row.what:<36}{row.rate:>6.2f}  [{row.low:.2f}, {row.high:.2f}]")
        lines += ["", f"routing x recall foresees {self.foreseen:.2f} for the routed recall"]
        lost = self.facts[~self.facts["recalled"].astype(bool)]
        if len(lost):
            lines += ["", "not recalled, for example:"]
            for row in lost.head(5).itertuples():
                lines.append(f"  {row.question} {row.answer}  (said: {str(row.said)[:60]!r})")
        return "\n".join(lines)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the rates with their intervals."""
        import matplotlib.pyplot as plt

        ax = ax or plt.subplots(figsize=(6.4, 2.8), layout="constrained")[1]
        rates = self.rates().iloc[::-1]
        errors = [rates["rate"] - rates["low"], rates["high"] - rates["rate"]]
        ax.barh(rates["what"], 100 * rates["rate"], color=_BLUE, height=0.6)
        ax.errorbar(100 * rates["rate"], rates["what"], xerr=[100 * e for e in errors], fmt="none", ecolor="black")
        ax.set_xlim(0, 100)
        ax.set_xlabel("share of facts (%)")
        return ax


def share(n_right: int, n: int, confidence: float = 0.95) -> tuple[float, float, float]:
    """A share and its Wilson interval."""
    from scipy.stats import binomtest

    interval = binomtest(n_right, n).proportion_ci(confidence, method="wilson")
    return n_right / n, float(interval.low), float(interval.high)


def audit(
    memory: LoRAMemory, facts: Any, *, confidence: float = 0.95, batch_size: int = 16, **options: Any
) -> MemoryAudit:
    """Ask for every fact: as written from its own module, routed, in other words, and without the memory.

    Parameters
    ----------
    memory : LoRAMemory
        With two modules or more each fact is also read from a wrong one, which should know nothing of it.
    facts : as for :meth:`LoRAMemory.write`
        Facts that were written. For documents: questions about them with answers, and then nothing is known about
        which module holds what unless the question was among the written ones.
    confidence : float
    batch_size : int
    **options
        For ``model.generate``; by default as many tokens as the longest answer and eight more.

    Raises
    ------
    InputError
        The memory is empty, or none of the facts was written.
    """
    import pandas as pd

    facts = as_facts(facts)
    holder = holders(memory, facts)
    options = {"max_new_tokens": room(memory, facts), "batch_size": batch_size, **options}
    questions = [fact.question for fact in facts]
    others = [rephrase(fact) for fact in facts]
    ids = list(memory.modules)

    def told(asked: list[str], modules: list[tuple[str, ...]]) -> list[str]:
        return [trace.answer for trace in memory.ask_many(asked, modules=modules, **options)]

    def right(said: list[str]) -> list[bool]:
        return [recalled(text, fact.answer) for text, fact in zip(said, facts, strict=True)]

    routed = [tuple(name for name, _ in chosen) for chosen in memory.route_many(questions)]
    with progress_bar() as progress:
        task = progress.add_task("asking", total=4 + (len(ids) > 1))
        columns: dict[str, list[Any]] = {"question": questions, "answer": [fact.answer for fact in facts]}
        columns |= {"module": holder, "routed_to": [" ".join(chosen) for chosen in routed]}
        columns["is_routed_right"] = [h in chosen for h, chosen in zip(holder, routed, strict=True)]
        own = told(questions, [(h,) for h in holder])
        columns |= {"said_by_its_module": own, "from_its_module": right(own)}
        progress.advance(task)
        elsewhere = [row for row, chosen in enumerate(routed) if chosen != (holder[row],)]
        said = list(own)
        for row, text in zip(elsewhere, told([questions[r] for r in elsewhere], [routed[r] for r in elsewhere]),
                             strict=True):  # fmt: skip
            said[row] = text
        columns |= {"said": said, "recalled": right(said)}
        progress.advance(task)
        columns["rephrased"] = others
        if memory.router == "oracle":  # it knows written questions alone
            columns["said_rephrased"] = told(others, [(h,) for h in holder])
        else:
            columns["said_rephrased"] = [trace.answer for trace in memory.ask_many(others, **options)]
        columns["recalled_rephrased"] = right(columns["said_rephrased"])
        progress.advance(task)
        if len(ids) > 1:
            columns["from_another"] = right(told(questions, [(ids[(ids.index(h) + 1) % len(ids)],) for h in holder]))
            progress.advance(task)
        columns["from_base"] = right(told(questions, [() for _ in facts]))
        progress.advance(task)
    return MemoryAudit(pd.DataFrame(columns), confidence)


def holders(memory: LoRAMemory, facts: Sequence[Fact]) -> list[str]:
    """The module in which each fact was written.

    Raises
    ------
    InputError
        A fact is in none.
    """
    where = {question: module.id for module in memory.modules.values() for question in module.questions}
    if not where:
        raise InputError("the memory has no modules; write or load some first")
    lost = [fact.question for fact in facts if fact.question not in where]
    if lost:
        raise InputError(
            f"{len(lost)} of {len(facts)} facts were not written into this memory, such as {lost[0]!r:.60}; "
            "audit the facts that were"
        )
    return [where[fact.question] for fact in facts]


def room(memory: LoRAMemory, facts: Sequence[Fact]) -> int:
    """Tokens to generate: those of the longest answer, and eight more."""
    ids = [memory.tokenizer(fact.answer, add_special_tokens=False)["input_ids"] for fact in facts]
    return max(map(len, ids)) + 8


def merge_sweep(
    memory: LoRAMemory,
    facts: Any,
    n_modules: Sequence[int] = (1, 2, 3),
    methods: Sequence[str] = ("linear", "ties", "cat"),
    *,
    confidence: float = 0.95,
    **options: Any,
) -> pd.DataFrame:
    """Recall as more modules are merged with the right one: method, n_modules, recall, low, high, n.

    The right module is always among them (paper, Q11); the others are those that follow it in the memory. Each set of
    modules is merged once for all its facts.
    """
    import pandas as pd

    facts = as_facts(facts)
    ids, holder = list(memory.modules), holders(memory, facts)
    if not all(1 <= n <= len(ids) for n in n_modules):
        raise InputError(
            f"n_modules is {tuple(n_modules)}; expected numbers from 1 to {len(ids)}, the number of modules"
        )
    options = {"max_new_tokens": room(memory, facts), **options}
    rows = []
    was = memory.merge
    try:
        for method in methods:
            memory.merge = method  # type: ignore[assignment]  # checked where it is used
            for n in n_modules:
                sets = [tuple(ids[(ids.index(h) + step) % len(ids)] for step in range(n)) for h in holder]
                said = memory.ask_many([fact.question for fact in facts], modules=sets, **options)
                right = sum(recalled(trace.answer, fact.answer) for trace, fact in zip(said, facts, strict=True))
                rows.append((method, n, *share(right, len(facts), confidence), len(facts)))
    finally:
        memory.merge = was
    return pd.DataFrame(rows, columns=["method", "n_modules", "recall", "low", "high", "n"])


# -------------------------------------------------------------------------------------------------------- the datasheet


@dataclass(frozen=True)
class Capacity:
    """How much each rank holds: what :func:`capacity_sweep` measured.

    Attributes
    ----------
    cells : DataFrame
        One row for each rank and number of facts: rank, n_facts, tokens, parameters, recall, low, high, loss.
    tau : float
        The recall that counts as holding.
    """

    cells: pd.DataFrame
    tau: float

    def ranks(self) -> pd.DataFrame:
        """One row a rank: rank, parameters, n_facts_max, tokens_max, tokens_per_parameter.

        ``tokens_max`` is T_max(r), the most tokens with a recall of tau or more; zero where no size reached it. Where
        even the largest size did, the true one may be higher (`is_open`).
        """
        import pandas as pd

        rows = []
        for rank, cells in self.cells.groupby("rank"):
            held = cells[cells["recall"] >= self.tau]
            parameters = int(cells["parameters"].iloc[0])
            tokens = int(held["tokens"].max()) if len(held) else 0
            n_facts = int(held["n_facts"].max()) if len(held) else 0
            is_open = bool(tokens == cells["tokens"].max())
            rows.append((int(str(rank)), parameters, n_facts, tokens, tokens / parameters, is_open))
        columns = ["rank", "parameters", "n_facts_max", "tokens_max", "tokens_per_parameter", "is_open"]
        return pd.DataFrame(rows, columns=columns)

    def to_frame(self) -> pd.DataFrame:
        """The cells."""
        return self.cells

    def summary(self) -> str:
        """Two tables: every cell, and what each rank holds."""
        cells = self.cells.to_string(index=False, float_format=lambda value: f"{value:.3g}")
        ranks = self.ranks().to_string(index=False, float_format=lambda value: f"{value:.2g}")
        return f"{cells}\n\nmost that is held with a recall of {self.tau:g} or more:\n{ranks}"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Recall against the number of facts, a line for each rank."""
        import matplotlib.pyplot as plt

        ax = ax or plt.subplots(figsize=(5.2, 3.4), layout="constrained")[1]
        colours = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000"]
        for place, (rank, cells) in enumerate(self.cells.groupby("rank")):
            errors = [100 * (cells["recall"] - cells["low"]), 100 * (cells["high"] - cells["recall"])]
            ax.errorbar(cells["n_facts"], 100 * cells["recall"], yerr=errors, marker="o", capsize=2,
                        color=colours[place % len(colours)], label=f"rank {rank}")  # fmt: skip
        ax.axhline(100 * self.tau, color=_GREY, linewidth=1, linestyle="--")
        ax.set_xscale("log", base=2)
        sizes = sorted(set(self.cells["n_facts"]))
        ax.set_xticks(sizes, labels=[str(size) for size in sizes])
        ax.set_xlabel("facts in the module")
        ax.set_ylabel("recall (%)")
        ax.legend(frameon=False)
        return ax


def capacity_sweep(
    model: Any,
    tokenizer: Any,
    facts: Any,
    ranks: Sequence[int] = (1, 2, 4, 8),
    sizes: Sequence[int] = (8, 16, 32),
    tau: float = 0.9,
    config: WriteConfig | None = None,
    *,
    n_passes: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    confidence: float = 0.95,
    **options: Any,
) -> Capacity:
    """Write more and more facts into modules of several ranks, and ask for all of them.

    Parameters
    ----------
    model, tokenizer
        As for :class:`LoRAMemory`; the model is left as it was.
    facts : as for :meth:`LoRAMemory.write`
        At least as many as the largest size; a smaller one takes the first of them.
    ranks, sizes : sequence of int
        Ranks (with alpha = r, so that a high rank is not held back by its scaling), and numbers of facts.
    tau : float
        In (0, 1].
    config : WriteConfig, optional
    n_passes : int, optional
        Let the steps grow with the facts, so that each is seen this often; without it every cell gets the same steps,
        as in the paper. The loss in the table tells whether a cell was trained to its end.
    folder : path, optional
        Where written modules are kept, to go on after an interruption.
    confidence : float
    **options
        Of :class:`LoRAMemory`, such as ``template``.
    """
    import pandas as pd

    if not 0 < tau <= 1:
        raise InputError(f"tau is {tau}; expected a recall above 0, at most 1")
    facts, config = as_facts(facts), config or WriteConfig()
    if not sizes or min(sizes) < 1 or max(sizes) > len(facts):
        raise InputError(f"sizes is {tuple(sizes)}; expected numbers from 1 to {len(facts)}, the number of facts")
    rows = []
    for rank in ranks:
        place = None if folder is None else _made(Path(folder) / f"rank-{rank}")
        memory = LoRAMemory(model, tokenizer, rank, router="oracle", folder=place, **options)
        try:
            for size in sizes:
                steps = config.n_steps if n_passes is None else math.ceil(size / config.batch_size) * n_passes
                name = memory.write(facts[:size], f"first-{size}", replace(config, n_steps=steps))
                module = memory.modules[name]
                said = memory.ask_many(
                    [fact.question for fact in facts[:size]], modules=[(name,)] * size,
                    max_new_tokens=room(memory, facts[:size]),
                )  # fmt: skip
                right = sum(recalled(t.answer, fact.answer) for t, fact in zip(said, facts[:size], strict=True))
                rows.append((rank, size, module.n_tokens, module.n_parameters,
                             *share(right, size, confidence), module.loss))  # fmt: skip
        finally:
            memory.detach()
    columns = ["rank", "n_facts", "tokens", "parameters", "recall", "low", "high", "loss"]
    return Capacity(pd.DataFrame(rows, columns=columns), tau)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
