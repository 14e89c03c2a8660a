"""MemoryLLM beside its dense twin of the same total size: CPU time of a decoded token, memory of a process, export.

python benchmarks/memoryllm.py [--width 512] [--layers 8] [--vocabulary 8192] [--repeats 7]

Random weights in float32, one thread. All decode in one process, alternating; a token's CPU time is that of 24 tokens
less that of 1. Memory is of a process each that loads and decodes 24 tokens: what is its own, and what is mapped from
files and could be given back. The floor is the multiply-adds of a token, and the bytes that the table adds to them.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from assay.nn.memoryllm import MemoryLlamaConfig, MemoryLlamaForCausalLM, export_tol, load_with_tol

N_NEW = 24
DTYPES = ("float16", "int8", "int4")

MEASURE = """
import sys, torch
torch.set_num_threads(1)
from assay.nn.memoryllm import MemoryLlamaForCausalLM, load_with_tol
def status():
    lines = open("/proc/self/status").read().splitlines()
    return {line.split()[0]: int(line.split()[1]) / 1024 for line in lines if line.startswith("Rss")}
before = status()
folder, table = sys.argv[1:]
model = load_with_tol(folder, table) if table else MemoryLlamaForCausalLM.from_pretrained(folder)
ids = torch.arange(16)[None]
model.generate(ids, max_new_tokens=24, min_new_tokens=24, do_sample=False, pad_token_id=0)
after = status()
touched = model.cache_stats().mapped_in_memory_bytes / 2**20 if table else 0.0
print(after["RssAnon:"] - before["RssAnon:"], after["RssFile:"] - before["RssFile:"], touched)
"""


def built(arguments: argparse.Namespace, beta: float | str) -> Any:
    config = MemoryLlamaConfig(
        vocab_size=arguments.vocabulary, hidden_size=arguments.width, intermediate_size=8 * round(arguments.width / 3),
        num_hidden_layers=arguments.layers, num_attention_heads=arguments.width // 64, eos_token_id=None,
        tie_word_embeddings=True, ffn_beta=beta,
    )  # fmt: skip
    torch.manual_seed(0)
    return MemoryLlamaForCausalLM(config).eval()


def cpu_ms(model: Any, ids: torch.Tensor) -> float:
    def seconds(n_new: int) -> float:
        begun = time.process_time()
        model.generate(ids, max_new_tokens=n_new, min_new_tokens=n_new, do_sample=False, pad_token_id=0)
        return time.process_time() - begun

    return 1000 * (seconds(N_NEW) - seconds(1)) / (N_NEW - 1)


def floor(model: Any) -> float:
    """Multiply-adds of a token, millions: every matrix once, and the head."""
    head = model.lm_head.weight.numel()
    return (sum(w.numel() for w in model.model.layers.parameters() if w.ndim == 2) + head) / 1e6


def decode(models: dict[str, Any], repeats: int, vocabulary: int) -> None:
    times: dict[str, list[float]] = {name: [] for name in models}
    for number in range(repeats + 1):
        ids = torch.randint(vocabulary, (1, 16), generator=torch.Generator().manual_seed(number))
        for name, model in models.items():
            times[name].append(cpu_ms(model, ids))
    print(f"{'':<28}{'ms a token':>11}{'dense / it, median [min, max]':>34}{'M multiply-adds':>17}")
    for name, model in models.items():
        found = times[name][1:]  # the first warms up
        ratios = sorted(dense / own for dense, own in zip(times["dense"][1:], found, strict=True))
        said = f"{statistics.median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]"
        print(f"{name:<28}{statistics.median(found):>11.2f}{said:>34}{floor(model):>17.1f}")


def memory(places: dict[str, tuple[Path, str]]) -> None:
    print(f"\n{'MiB above the imports':<28}{'its own':>11}{'from files':>12}{'of the table':>14}")
    for name, (folder, table) in places.items():
        command = [sys.executable, "-c", MEASURE, str(folder), table]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        own, files, touched = map(float, done.stdout.split())
        print(f"{name:<28}{own:>11.1f}{files:>12.1f}{touched:>14.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        models: dict[str, Any] = {}
        places: dict[str, tuple[Path, str]] = {}
        for title, beta in {"dense": "base", "MemoryLLM": 0, "Flex, 3 h^2": 3}.items():
            models[title] = built(arguments, beta)
            folder = root / title.split()[0].strip(",")
            models[title].save_pretrained(folder)
            places[title] = (folder, "")
            for dtype in DTYPES if beta == 0 else ("float16",) if beta == 3 else ():
                table = Path(f"{folder}-{dtype}")
                begun = time.process_time()
                manifest = export_tol(models[title], table, dtype)
                seconds = time.process_time() - begun
                print(f"{title}, {dtype} table: {manifest.n_bytes / 2**20:.1f} MiB, exported in {seconds:.1f} s of CPU")
                models[f"{title}, {dtype} table"] = load_with_tol(folder, table)
                places[f"{title}, {dtype} table"] = (folder, str(table))
        row = 2 * arguments.layers * arguments.width
        print(f"a token reads {row / 1024:.0f} KiB of a float16 table, in one piece\n")
        decode(models, arguments.repeats, arguments.vocabulary)
        memory(places)


if __name__ == "__main__":
    main()
