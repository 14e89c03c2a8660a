"""Lines per second of mpfm, part by part, beside a next-event model on the same windows.

python benchmarks/mpfm.py [--lines 40000] [--width 128]

Raw syslog lines of a simulated system: header off, templates, windows of 20, score; all on one thread. The peer is the
DeepLog-style LSTM of the trial, which scores the same windows. Both alternate in one process. `distinct` windows are
scored all; `repeating` ones come from a log with little variety, where equal windows are scored once.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
import warnings

import numpy as np

from assay.audit.mpfm import LogWindower, LogWindows, MPFMDetector
from assay.trials.audit.mpfm.worlds import simulated_logs

SIZE, REPEATS = 20, 5


def timed(run, *arguments):
    """CPU seconds of this process, and what came out."""
    start = time.process_time()
    out = run(*arguments)
    return time.process_time() - start, out


def lstm_scorer(windows: LogWindows):
    """The trial's next-event model, with random weights: speed does not depend on them."""
    import torch
    from torch import nn
    from torch.nn import functional

    n_words = len(windows.templates) + 2
    embedding, lstm, head = nn.Embedding(n_words, 32), nn.LSTM(32, 64, batch_first=True), nn.Linear(64, n_words)

    @torch.inference_mode()
    def score(asked: LogWindows):
        words = torch.from_numpy(asked.ids.astype(np.int64))
        found = []
        for part in torch.split(words, 1024):
            history = torch.cat([torch.full((len(part), 1), n_words - 1), part[:, :-1].clamp_min(0)], dim=1)
            logits = head(lstm(embedding(history))[0]).transpose(1, 2)
            found.append(functional.cross_entropy(logits, part, ignore_index=-1, reduction="none").mean(dim=1))
        return torch.cat(found).numpy()

    return score


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=40_000)
    parser.add_argument("--width", type=int, default=128)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    (log,) = simulated_logs(0, 2_000, arguments.lines, 1)
    windower = LogWindower(size=SIZE, step=5)
    detector = MPFMDetector(d=arguments.width, epochs=(1, 1)).fit(windower.fit_transform(log.train, "app"))
    windows = windower.transform(log.test, "app", step=SIZE)
    n_distinct = len(np.unique(windows.ids, axis=0))
    peer = lstm_scorer(windows)
    few = windows[np.arange(len(windows)) % 40]
    times: dict[str, list[float]] = {"windows": [], "score": [], "score, repeating": [], "LSTM": []}
    for _ in range(REPEATS):
        seconds, windows = timed(lambda: windower.transform(log.test, "app", step=SIZE))
        times["windows"].append(seconds)
        times["score"].append(timed(detector.score_samples, windows)[0])
        times["score, repeating"].append(timed(detector.score_samples, few)[0])
        times["LSTM"].append(timed(peer, windows)[0])
    n = len(log.test)
    whole = statistics.median(a + b for a, b in zip(times["windows"], times["score"], strict=True))
    print(
        f"{n:,} lines, {len(windows):,} windows of {SIZE}, {n_distinct:,} distinct, width {arguments.width}, one thread"
    )
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        print(f"{name:<18} {middle:7.3f} CPU s {n / middle:>10,.0f} lines/s {1e6 * middle / n:7.1f} us a line")
    print(f"{'windows + score':<18} {whole:7.3f} CPU s {n / whole:>10,.0f} lines/s {1e6 * whole / n:7.1f} us a line")
    ratio = statistics.median(a / b for a, b in zip(times["score"], times["LSTM"], strict=True))
    print(f"score beside the LSTM's: {ratio:.2f} times its CPU time")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    d = arguments.width
    encoder = SIZE * (4 * d * d + 2 * d * d + 2 * (4 * d * d + 4 * d * d))
    flow = 28 * (2 * d * 256 + 2 * 256 * 256)
    print(f"floor: {2 * (encoder + flow) / 1e6:.1f} million operations a window, {2 * encoder / 1e6:.1f} to encode")


if __name__ == "__main__":
    main()
