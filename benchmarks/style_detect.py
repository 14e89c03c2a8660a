"""What scoring costs once texts are vectors, and what a rank costs: ours beside scikit-learn's and torch's.

python benchmarks/style_detect.py [--texts 50000] [--features 384]
python benchmarks/style_detect.py --changes

Supports: 100 prototypes of 100 known texts and the cosine of every text to each, by one gather and one product (ours)
and by scikit-learn's cosine_similarity, a support at a time. Ranks: the log-rank of 128 tokens among 49,152, by
counting what is likelier (ours, all statistics of a token together; and the count alone) and by torch.argsort. Runs
alternate in one process on one thread; ratios are medians over repeats.

--changes: AUROC of the trial's detectors (quick, seed 0) on every change by itself, and of few-shot style with encoders
that were standardised on other human text. It needs the texts that the trial has written.
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
from sklearn.metrics.pairwise import cosine_similarity
from threadpoolctl import threadpool_limits

from assay.audit.style_detect import StyleFewShotDetector
from assay.audit.style_detect.prototypes import normalized
from assay.audit.style_detect.zero_shot import token_statistics

if TYPE_CHECKING:
    from collections.abc import Callable

REPEATS, N_SUPPORT, N_TRIALS = 5, 100, 100
N_TOKENS, N_VOCABULARY = 128, 49_152


def alternating(runs: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()  # warm: imports, allocator
    for _ in range(REPEATS):
        for name, run in runs.items():
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    return times


def printed(times: dict[str, list[float]]) -> None:
    base = next(iter(times))
    for name, spent in times.items():
        ratio = statistics.median(a / b for a, b in zip(spent, times[base], strict=True))
        print(f"{name:<44} {statistics.median(spent):8.3f} CPU s   {ratio:6.2f} × ours")


def supports(n_texts: int, n_features: int) -> None:
    rng = np.random.default_rng(0)
    texts = normalized(rng.normal(size=(n_texts, n_features)))
    known = normalized(rng.normal(size=(1000, n_features)))
    detector = StyleFewShotDetector(n_support=N_SUPPORT, n_trials=N_TRIALS).fit(known)
    drawn = np.stack([rng.permutation(len(known))[:N_SUPPORT] for _ in range(N_TRIALS)])

    def by_scikit_learn() -> np.ndarray:
        means = [known[rows].mean(axis=0, keepdims=True) for rows in drawn]
        return np.stack([cosine_similarity(mean, texts)[0] for mean in means])

    print(f"{N_TRIALS} supports of {N_SUPPORT}, {n_texts:,} texts of {n_features} features")
    printed(
        alternating({"ours (checks included)": lambda: detector.score_matrix(texts), "scikit-learn": by_scikit_learn})
    )
    product = statistics.median(alternating({"product": lambda: texts @ texts[:N_TRIALS].T})["product"])
    print(f"floor: one product of {n_texts:,} × {n_features} with {N_TRIALS} prototypes, {product:.3f} CPU s")


def ranks() -> None:
    torch.manual_seed(0)
    logits = torch.randn(N_TOKENS, N_VOCABULARY)
    ids = torch.randint(N_VOCABULARY, (N_TOKENS,))

    def counted() -> Any:
        return ((logits > logits.gather(1, ids[:, None])).sum(dim=-1) + 1).double().log()

    def sorted_() -> Any:
        order = logits.argsort(dim=-1, descending=True)
        return ((order == ids[:, None]).nonzero()[:, 1] + 1).double().log()

    assert torch.equal(counted(), sorted_())
    print(f"\nlog-rank of {N_TOKENS} tokens among {N_VOCABULARY:,}")
    runs = {
        "ours: count": counted,
        "torch.argsort": sorted_,
        "ours: all statistics (log-softmax, moments)": lambda: token_statistics(logits, ids),
        "torch.log_softmax alone": lambda: logits.log_softmax(dim=-1),
    }
    printed(alternating(runs))
    print(f"floor of a count: {logits.numel() * 4 / 1e6:.0f} MB read once")


def changes() -> None:
    from assay.audit.style_detect import StylometricEncoder
    from assay.trials.audit.style_detect import TRIAL, cases, load
    from assay.trials.audit.style_detect.arms import area
    from assay.trials.audit.style_detect.human import BACKGROUND, SOURCES, background, cut, paragraphs, prose

    corpus = load(None, "quick", {}).value
    found = list(cases(corpus, TRIAL.n_cases["quick"], 0))
    judged = {paragraph.continuation for paragraph in paragraphs(len(SOURCES))}
    others = [cut(source, text) for source in SOURCES for text in prose(source)]
    others = [paragraph for paragraph in others if paragraph.continuation not in judged]
    texts, authors = [paragraph.continuation for paragraph in others], [paragraph.source for paragraph in others]
    encoders = {
        "whole paragraphs": StylometricEncoder().fit(prose(BACKGROUND)),
        "as the trial": StylometricEncoder().fit(background()),
        f"{len(texts)} others of the same packages": StylometricEncoder().fit(texts),
        "these, packages as authors": StylometricEncoder().fit(texts, authors),
    }
    names = list(found[0].truth.machine)
    print(f"AUROC, means of {len(found)} cases\n{'':<46}" + "".join(f"{name:>18}" for name in names))
    for arm in TRIAL.arms:
        scores = [arm.run(case.given, 0).scores for case in found]
        lines = [
            [area(own, case.truth.human, case.truth.machine[name]) for name in names]
            for own, case in zip(scores, found, strict=True)
        ]
        print(f"{arm.name:<46}" + "".join(f"{value:>18.3f}" for value in np.mean(lines, axis=0)))
    for name, encoder in encoders.items():
        lines = []
        for case in found:
            vectors = encoder.encode(case.given.texts)
            detector = StyleFewShotDetector(n_support=50).fit(vectors[case.given.machine])
            own = detector.score_samples(vectors)
            lines.append([area(own, case.truth.human, case.truth.machine[change]) for change in names])
        print(f"{'style on ' + name:<46}" + "".join(f"{value:>18.3f}" for value in np.mean(lines, axis=0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=50_000)
    parser.add_argument("--features", type=int, default=384)
    parser.add_argument("--changes", action="store_true", help="the trial's detectors on every change by itself")
    arguments = parser.parse_args()
    if arguments.changes:
        changes()
        return
    torch.set_num_threads(1)
    with threadpool_limits(1):
        supports(arguments.texts, arguments.features)
        ranks()
    print(f"\npeak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB; {platform.processor()}")


if __name__ == "__main__":
    main()
