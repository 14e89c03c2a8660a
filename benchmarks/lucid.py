"""LUCID attention beside SDPA: time of a prompt and of a decoded token by length and by queries a key, and memory.

python benchmarks/lucid.py [--lengths 512,2048,4096] [--groups 1,4,8] [--memory-tokens 16384]

Both run in one process on one thread, alternating, 7 times each; CPU seconds of the process. The floor that is printed
is the count of multiply-adds of a prompt: n^2 d for each head of queries (causal), and for the preconditioner
n^2 (d + d_v) / 2 for each head of keys.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import torch

from assay.nn.lucid.timing import compare_speed

HEADS, HEAD_DIM = 8, 64

MEASURE = """
import resource, sys, torch
from torch.nn.functional import scaled_dot_product_attention
from assay.nn.lucid.attention import lucid_attention
torch.set_num_threads(1)
q, k, v = torch.randn(3, 1, 1, int(sys.argv[2]), 64).unbind()
with torch.inference_mode():
    if sys.argv[1] == "lucid":
        lucid_attention(q, k, v)
    else:
        scaled_dot_product_attention(q, k, v, is_causal=True)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def floor_ratio(group: int) -> float:
    """Multiply-adds of LUCID over those of softmax attention, a prompt: 1 + 1 / group at d_v = d."""
    return 1 + 1 / group


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def measure_memory(n_tokens: int) -> None:
    print(f"memory of one head of {HEAD_DIM}, {n_tokens} tokens, forward, a process each")
    for name in ("sdpa", "lucid"):
        command = [sys.executable, "-c", MEASURE, name, str(n_tokens)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        print(f"{name:<6} {float(done.stdout):>6.0f} MiB at its peak, torch and all")
    print(f"P as a whole would be {4 * n_tokens**2 / 2**20:.0f} MiB\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=numbers, default=[512, 2048, 4096])
    parser.add_argument("--groups", type=numbers, default=[1, 4, 8])
    parser.add_argument("--memory-tokens", type=int, default=16_384)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shapes = [(HEADS, HEADS // group, HEAD_DIM) for group in arguments.groups]
    measure_memory(arguments.memory_tokens)  # first: a process starts at the peak of the one that starts it
    print(compare_speed(shapes, arguments.lengths).summary())
    floors = ", ".join(f"{floor_ratio(group):.2f} at {group} queries a key" for group in arguments.groups)
    print(f"\nratio of multiply-adds of a prompt: {floors}")


if __name__ == "__main__":
    main()
