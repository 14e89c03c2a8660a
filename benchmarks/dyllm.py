"""DyLLM beside full recomputation, Fast-dLLM's caches and dLLM-Cache: time and memory, at a width that matters.

python benchmarks/dyllm.py [--width 512] [--blocks 4] [--tokens 512] [--new 64] [--repeats 5]
python benchmarks/dyllm.py --sweep [--steps 800]   # tau, refresh_every on the trial's trained model: quality

Random weights: the text means nothing, the time is that of a trained model of this size. All ways to decode run in one
process on one thread, in turns; ratios are medians over repeats of CPU times. "the model itself" is a loop over the
model's own forward, as its users would write it, with the head over all positions; "full" is ours with the head over
the open positions alone, so the harder one to beat. tau is set by bisection so that the salient share is between 5 and
10 %; above 1 every token is salient, and DyLLM must not be slower than full by more than a tenth.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

MASK = 4095


def model_of(width: int, blocks: int) -> torch.nn.Module:
    from transformers import EuroBertConfig, EuroBertForMaskedLM

    torch.manual_seed(0)
    config = EuroBertConfig(
        vocab_size=4096, mask_token_id=MASK, hidden_size=width, intermediate_size=int(width * 8 / 3) // 32 * 32,
        num_hidden_layers=blocks, num_attention_heads=width // 64, num_key_value_heads=width // 64,
        max_position_embeddings=8192, pad_token_id=0, bos_token_id=0, eos_token_id=None,
    )  # fmt: skip
    return EuroBertForMaskedLM(config).eval()


def by_the_model_itself(model: torch.nn.Module, prompt: torch.Tensor, n_new: int, block: int) -> torch.Tensor:
    """A token a step by the model's own forward over everything."""
    ids = torch.cat((prompt, torch.full((1, n_new), MASK)), dim=1)
    first = prompt.shape[1]
    with torch.inference_mode():
        for step in range(n_new):
            logits = model(input_ids=ids).logits[0]
            logits[:, MASK] = -torch.inf
            end = first + (step // block + 1) * block
            score = torch.softmax(logits, -1).max(-1)
            chance = score.values.masked_fill(ids[0] != MASK, -1.0)
            chance[end:] = -1.0
            at = int(chance.argmax())
            ids[0, at] = score.indices[at]
    return ids


def runs_of(arguments: argparse.Namespace) -> tuple[dict[str, Callable[[], object]], float]:
    from assay.decode.dyllm import DyLLMGenerator

    model = model_of(arguments.width, arguments.blocks)
    prompt = torch.randint(1, 4000, (1, arguments.tokens - arguments.new), generator=torch.Generator().manual_seed(1))
    tau = arguments.tau or tau_of(model, prompt, arguments.new)
    sparse, dense = (DyLLMGenerator(model, tau=value) for value in (tau, 1.5))
    runs: dict[str, Callable[[], object]] = {
        "the model itself": lambda: by_the_model_itself(model, prompt, arguments.new, 32),
        "full": lambda: sparse.generate(prompt, max_new_tokens=arguments.new, mode="full"),
        "prefix cache": lambda: sparse.generate(prompt, max_new_tokens=arguments.new, mode="prefix_cache"),
        "dual cache": lambda: sparse.generate(prompt, max_new_tokens=arguments.new, mode="dual_cache"),
        "dLLM-Cache": lambda: sparse.generate(prompt, max_new_tokens=arguments.new, mode="dllm_cache"),
        "DyLLM": lambda: sparse.generate(prompt, max_new_tokens=arguments.new),
        "DyLLM, all rows": lambda: sparse_everywhere(model, tau, prompt, arguments.new),
        "DyLLM, tau > 1": lambda: dense.generate(prompt, max_new_tokens=arguments.new),
        "tau > 1, all rows": lambda: sparse_everywhere(model, 1.5, prompt, arguments.new),
    }
    return runs, tau


def sparse_everywhere(model: torch.nn.Module, tau: float, prompt: torch.Tensor, n_new: int) -> object:
    """No step leaves the prompt out: what saliency alone saves."""
    from assay.decode.dyllm import DyLLMGenerator

    return DyLLMGenerator(model, tau=tau, response_period=1).generate(prompt, max_new_tokens=n_new)


def tau_of(model: torch.nn.Module, prompt: torch.Tensor, n_new: int) -> float:
    """Bisection on 1 - tau over decades."""
    from assay.decode.dyllm import DyLLMGenerator

    low, high = -6.5, -1.0
    for _ in range(7):
        middle = (low + high) / 2
        record = DyLLMGenerator(model, tau=1 - 10**middle).generate(prompt, max_new_tokens=n_new).record
        low, high = (middle, high) if record.salient_share > 0.075 else (low, middle)
    return 1 - 10 ** ((low + high) / 2)


def peak_mib(name: str, arguments: argparse.Namespace, tau: float) -> float:
    command = [sys.executable, str(Path(__file__).resolve()), "--memory", name, "--tau", str(tau)]
    for option in ("width", "blocks", "tokens", "new"):
        command += [f"--{option}", str(getattr(arguments, option))]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def speed(arguments: argparse.Namespace) -> None:
    runs, tau = runs_of(arguments)
    print(
        f"width {arguments.width}, {arguments.blocks} blocks, {arguments.tokens} tokens of which {arguments.new} are "
        f"filled, one a step; tau {tau:.7g}; medians of {arguments.repeats} in turns, one thread"
    )
    times: dict[str, list[float]] = {name: [] for name in runs}
    records = {}
    for _ in range(arguments.repeats):
        for name, run in runs.items():
            started = time.process_time()
            found = run()
            times[name].append(time.process_time() - started)
            records[name] = getattr(found, "record", None)
    head = f"{'':<18} {'CPU s':>7} {'tokens/s':>9} {'speed-up':>9}   {'range':<14} {'salient':>8} {'operations':>11}"
    print(head if arguments.no_memory else f"{head} {'MiB':>6}")
    for name, own in times.items():
        ratios = [full / mine for full, mine in zip(times["full"], own, strict=True)]
        record = records[name]
        share = "" if record is None or record.salient_share != record.salient_share else f"{record.salient_share:.1%}"
        operations = "" if record is None else f"{record.flops / record.full_flops:.0%}"
        middle = statistics.median(own)
        memory = "" if arguments.no_memory else f"{peak_mib(name, arguments, tau):.0f}"
        print(
            f"{name:<18} {middle:>7.2f} {arguments.new / middle:>9.1f} {statistics.median(ratios):>9.2f}   "
            f"{f'[{min(ratios):.2f}, {max(ratios):.2f}]':<14} {share:>8} {operations:>11} {memory:>6}"
        )
    record = records["DyLLM"]
    print(f"\n{record.summary()}")
    print(
        f"\nfloor: the operations that are left, {record.flops / record.full_flops:.0%} of full recomputation's, would "
        f"allow {record.full_flops / record.flops:.1f} times its speed; caches hold "
        f"{4 * arguments.blocks * arguments.tokens * arguments.width * 4 / 2**20:.0f} MiB"
    )


def sweep(n_steps: int) -> None:
    """Tau, and refresh_every at the default tau, on the trial's trained model: quality and the share computed."""
    import numpy as np

    from assay.decode.dyllm import DyLLMGenerator, pseudo_nll, step_errors
    from assay.trials.decode import dyllm as trial
    from assay.trials.decode.dyllm.model import VOCABULARY, trained

    small = trained(n_steps)
    print(f"{n_steps} steps, loss of the last 100: {small.losses[-100:].mean():.2f} nats a token")
    data = trial.load_prompts(None, "quick", {**trial.TRIAL.params, "steps": n_steps})
    cases = list(trial.one_prompt(data.value, 16, 0))
    print(f"{'tau':>16} {'as full':>8} {'pseudo-NLL':>19} {'logit error':>12} {'salient':>8} {'computed':>9} {'s':>6}")
    settings: list[tuple[str, float, int | None]] = [("full", 1.5, None)]
    settings += [(str(tau), tau, None) for tau in (1.5, 0.9999, 0.999, 0.995, 0.99, 0.97, 0.9, -1.0)]
    settings += [(f"0.99, refresh {every}", 0.99, every) for every in (4, 8, 16)]
    for name, tau, every in settings:
        is_full = name == "full"
        generator = DyLLMGenerator(small.model, tau=tau, refresh_every=every, mask_token_id=VOCABULARY)
        rows, errors = [], []
        for case in cases:
            prompt = torch.tensor([case.given.prompt])
            found = generator.generate(prompt, max_new_tokens=64, mode="full" if is_full else "dyllm")
            ids = found.sequences[0]
            surprise = pseudo_nll(generator.adapter, ids, len(case.given.prompt), VOCABULARY)
            same = np.mean(np.equal(ids.tolist()[-64:], trial.full_decoding(case.given)[-64:]))
            record = found.record
            rows.append((same, surprise, record.salient_share, record.recomputed_share, record.seconds))
            if not is_full and len(errors) < 6:
                errors.append(step_errors(generator, prompt, max_new_tokens=64)[4:].mean())
        same, surprise, salient, computed, seconds = np.mean(rows, axis=0)
        half = 1.96 * np.std([row[1] for row in rows], ddof=1) / len(rows) ** 0.5
        print(
            f"{name:>16} {same:>8.2f} {surprise:>8.3f} ± {half:>8.3f} {np.mean(errors) if errors else 0:>12.4f} "
            f"{salient:>8.1%} {computed:>9.1%} {seconds * len(rows):>6.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("width", 512), ("blocks", 4), ("tokens", 512), ("new", 64), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--tau", type=float, default=None)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.memory:
        runs_of(arguments)[0][arguments.memory]()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    elif arguments.sweep:
        sweep(arguments.steps)
    else:
        speed(arguments)


if __name__ == "__main__":
    main()
