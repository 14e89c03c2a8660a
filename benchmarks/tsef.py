"""What a dual attack costs: integrated gradients beside captum's, and a pass of TSEF beside one of joint PGD.

python benchmarks/tsef.py [--series 32] [--length 150]

The classifier is the trial's (softplus on windows). Ours and captum's integrated gradients give the same numbers at the
same points; ours are also differentiated a second time, which is what an attack needs and captum's do not offer. Runs
alternate in one process on one thread; the ratios are medians over repeats.
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from captum.attr import IntegratedGradients as CaptumIntegratedGradients

from assay.audit.tsef import PGD, TSEF, IntegratedGradients
from assay.trials.audit.tsef import network

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS, REPEATS = 8, 7


def seconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def alternating(runs: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    for run in runs.values():
        run()  # warm: imports, allocator
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(REPEATS):
        for name, run in runs.items():
            times[name].append(seconds(run))
    return times


def report(times: dict[str, list[float]], base: str, passes: dict[str, int]) -> None:
    print(f"{'run':<34} {'CPU ms a pass':>14} {'÷ ' + base:>38}")
    for name, spent in times.items():
        each = statistics.median(spent) / passes.get(name, 1) * 1e3
        ratio = statistics.median(
            a / passes.get(name, 1) / (b / passes.get(base, 1)) for a, b in zip(spent, times[base], strict=True)
        )
        print(f"{name:<34} {each:>14.2f} {ratio:>38.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=32)
    parser.add_argument("--length", type=int, default=150)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = network(1, arguments.length, 3).eval()
    x = torch.randn(arguments.series, 1, arguments.length)
    with torch.no_grad():
        label = model(x).argmax(dim=1)
    ours, theirs = IntegratedGradients(model, steps=STEPS), CaptumIntegratedGradients(model)

    def captum() -> Any:
        return theirs.attribute(x, target=label, n_steps=STEPS, method="riemann_middle")

    def second() -> Any:
        point = x.clone().requires_grad_()
        return torch.autograd.grad(ours(point, label).square().sum(), point)

    gap = float((ours.attribute(x, label) - captum()).detach().abs().max())
    print(
        f"{arguments.series} series of {arguments.length}, {STEPS} steps, {platform.machine()}; differ by {gap:.0e}\n"
    )
    times = alternating(
        {
            "forward": lambda: model(x).detach(),
            "integrated gradients (captum)": captum,
            "integrated gradients (ours)": lambda: ours(x, label),
            "… and their derivative": second,
        }
    )
    report(times, "integrated gradients (captum)", {})

    rounds, k1, k2 = 2, 6, 18
    passes = rounds * (k1 + k2)
    target = ((label + 1) % 3).numpy()
    attacks = {
        "TSEF": TSEF(model, ours, iters=rounds, k1=k1, k2=k2),
        "joint PGD": PGD(model, ours, lambda_exp=1.0, steps=passes),
        "PGD on the label": PGD(model, ours, steps=passes),
    }
    print()
    spent = alternating({name: lambda attack=attack: attack(x, None, target) for name, attack in attacks.items()})
    report(spent, "joint PGD", dict.fromkeys(attacks, passes))
    many = x.repeat(1 + STEPS, 1, 1)
    with torch.no_grad():
        floor = 3e3 * statistics.median(seconds(lambda: model(many)) for _ in range(REPEATS))
    print(
        f"\nfloor of a pass: forward and backward of {1 + STEPS} copies of each series, about three forwards each: "
        f"{floor:.2f} ms; the second derivative comes on top\n"
        f"peak resident memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB; "
        f"the batch of points is {np.prod(x.shape) * STEPS * 4 / 2**20:.2f} MiB"
    )


if __name__ == "__main__":
    main()
