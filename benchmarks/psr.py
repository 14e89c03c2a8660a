"""What steering costs when a model answers: psr, a constant vector, the steering prompt, and nothing, alternating.

python benchmarks/psr.py [--model demo] [--layers middle] [--tokens 24] [--rows 4] [--repeats 7]

One process, one thread, CPU seconds of the process for greedy answers of a fixed length; the median ratio to the model
without steering, with the range of the repeats. The floor that is printed is the count of multiply-adds: 2 d a token
and layer for psr (a dot product and a scaled addition), against one for every weight of the model. The prompt costs its
own tokens: they are read once, and their keys and values stay in the cache.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from assay.adapt.psr import PSR, ConstantSteering
from assay.adapt.psr.pairs import prompts, respond
from assay.models import demo_lm, load_lm

INSTRUCTION = "You are a pirate. Answer as a pirate would, with arr, matey, aye and ye."
QUESTION = "How do I make a good cup of tea?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--layers", default="middle", help="middle or all")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = demo_lm() if arguments.model == "demo" else load_lm(arguments.model)
    pair = prompts(QUESTION, INSTRUCTION, tokenizer)
    psr = PSR(model, tokenizer, layers=arguments.layers)
    constant = ConstantSteering(model, tokenizer, layers=arguments.layers)
    with torch.no_grad():  # the cost does not depend on the values; these leave the answers as they are
        psr.biases.fill_(1.0)

    def answers(prompt: object, alpha: float, steering: PSR | ConstantSteering) -> float:
        start = time.process_time()
        with steering.steer(alpha):
            respond(
                model, tokenizer, [prompt] * arguments.rows, max_new_tokens=arguments.tokens,
                min_new_tokens=arguments.tokens, batch_size=arguments.rows,
            )  # fmt: skip
        return time.process_time() - start

    runs = {
        "no steering": lambda: answers(pair["prompt"], 0.0, psr),
        "psr": lambda: answers(pair["prompt"], 1.0, psr),
        "constant vector": lambda: answers(pair["prompt"], 1.0, constant),
        "steering prompt": lambda: answers(pair["steered_prompt"], 0.0, psr),
    }
    runs["no steering"]()  # warm: allocator
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(arguments.repeats):
        for name, run in runs.items():
            times[name].append(run())
    n_layers, width = psr.directions.shape
    n_weights = sum(parameter.numel() for parameter in model.parameters())
    print(f"{n_layers} layer(s), {arguments.rows} answers of {arguments.tokens} tokens, {arguments.repeats} repeats")
    for name, mine in times.items():
        ratios = sorted(one / plain for one, plain in zip(mine, times["no steering"], strict=True))
        print(
            f"{name:<16} {statistics.median(mine):7.2f} s CPU   ratio {statistics.median(ratios):.3f}  "
            f"[{ratios[0]:.3f}, {ratios[-1]:.3f}]"
        )
    print(f"floor: {2 * width * n_layers / n_weights:.1e} of the multiply-adds of the model")
    print(f"memory: {4 * n_layers * (2 * width + 1) / 2**10:.1f} KiB for w, b and z")


if __name__ == "__main__":
    main()
