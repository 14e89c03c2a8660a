"""Speed of arc-decode beside assisted generation of transformers, which does the same at lambda 0.

Run: python benchmarks/arc_decode.py [--model demo|small] [--prompts 8] [--tokens 40] [--drafted 4]

For each prompt three ways to write the same number of tokens run in turn in one process, with the same draft (distilled
from SmolLM2, or the small trained one) and with prompt lookup: lambda 0, lambda 1, and `model.generate` with as many
drafted tokens and no early stop. Texts are random, so that passes are counted as well: time a pass is what can be
compared closely. The floor of a cycle is what nobody can leave out: the target reads the drafted tokens and one more,
and the draft reads a token as often as it drafts one.
"""

import argparse
import statistics
import time

import torch

from assay._core.seeds import child_seed
from assay.decode.arc_decode import Draws, Sampling, arc_generate
from assay.decode.arc_decode.comparison import assisted
from assay.decode.arc_decode.generation import Boost
from assay.decode.arc_decode.reader import Reader
from assay.decode.arc_decode.trees import chain
from assay.decode.arc_decode.verify import verify_tree
from assay.trials.decode.arc_decode import runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("demo", "small"), default="demo")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--drafted", type=int, default=4)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kinds = ("distilled", "prompt_lookup") if arguments.model == "demo" else ("draft",)
    for kind in kinds:
        compared(arguments.model, kind, arguments.prompts, arguments.tokens, arguments.drafted)
    parts_of_a_cycle(arguments.model, kinds[0], arguments.drafted)


def compared(model: str, kind: str, n_prompts: int, n_tokens: int, n_drafted: int) -> None:
    settings = runs.Settings(model, kind, 1.0, 0.05, n_drafted, n_tokens)
    prompts, calibration = runs.prepared(settings)
    target, draft, _ = runs.models_of(model, kind)
    draft = "prompt_lookup" if kind == "prompt_lookup" else draft
    seconds, passes, tokens = ({name: [] for name in ("lambda 0", "lambda 1", "transformers")} for _ in range(3))
    for number, ids in enumerate([*prompts[:1], *prompts[:n_prompts]]):  # the first warms up
        prompt, seed = torch.tensor(ids), child_seed(0, number)
        for name in seconds:
            started = time.perf_counter()
            if name == "transformers":
                _, record = assisted(target, draft, prompt, Sampling(), n_drafted, n_tokens, seed)
            else:
                record = arc_generate(
                    target, draft, prompt[None], max_new_tokens=n_tokens, calibration=calibration,
                    lam=float(name[-1]), num_draft=n_drafted, seed=seed,
                ).records[0]  # fmt: skip
            elapsed = time.perf_counter() - started
            if number:
                seconds[name].append(elapsed)
                passes[name].append(record.n_forwards)
                tokens[name].append(record.n_tokens)
    print(f"{model}, {kind}: {n_prompts} prompts x {n_tokens} tokens, {n_drafted} drafted a cycle")
    for name in seconds:
        total = sum(tokens[name])
        speed = [n / s for n, s in zip(tokens[name], seconds[name], strict=True)]
        theirs = [n / s for n, s in zip(tokens["transformers"], seconds["transformers"], strict=True)]
        ratio = statistics.median(a / b for a, b in zip(speed, theirs, strict=True))
        spent, n_passes = sum(seconds[name]), sum(passes[name])
        print(
            f"  {name:13} {total / spent:7.1f} tokens/s   {total / n_passes:5.2f} tokens a pass   "
            f"{1e3 * spent / n_passes:7.1f} ms a pass   {ratio:4.2f} times transformers' tokens/s"
        )


def parts_of_a_cycle(model: str, kind: str, n_drafted: int) -> None:
    settings = runs.Settings(model, kind, 1.0, 0.05, n_drafted, 40)
    prompts, calibration = runs.prepared(settings)
    target, draft, _ = runs.models_of(model, kind)
    ids = torch.tensor(prompts[0])
    readers = {name: Reader(lm) for name, lm in (("target", target), ("draft", draft))}
    logits = {name: reader.read_all(ids) for name, reader in readers.items()}
    p, q = logits["target"][-n_drafted - 1 :].softmax(-1), logits["draft"][-n_drafted:].softmax(-1)
    drafted = chain(ids[-n_drafted:].tolist(), q)
    boost = Boost(calibration, None, 1.0, 0.05, False, target.get_input_embeddings().weight.detach())

    def read(name: str, n: int) -> None:
        readers[name].read(ids[:n])
        readers[name].forget(n)

    tried = {
        "floor: target": lambda: read("target", n_drafted + 1),
        "floor: draft": lambda: [read("draft", 1) for _ in range(n_drafted)],
        "scores": lambda: boost.scores(p, drafted),
        "verdict": lambda: verify_tree(p, drafted, boost.scores(p, drafted)[0], 1.0, Draws(0)),
    }
    times: dict[str, list[float]] = {name: [] for name in tried}
    for _ in range(9):
        for name, run in tried.items():
            started = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - started))
    print("parts of a cycle, ms (median of 9; the verdict includes the scores)")
    for name, found in times.items():
        print(f"  {name:14} {statistics.median(found):8.2f}")


if __name__ == "__main__":
    main()
