"""Speed of dataguard's test beside SciPy's, and its false-positive rate on unrelated models.

python benchmarks/dataguard.py [--samples 10000]
python benchmarks/dataguard.py --unrelated 200

The first: 2,000 permutations of Hotelling's T² of four features of `--samples` samples, by sums of fixed columns (ours)
and by scipy.stats.permutation_test with a vectorised statistic (on a twentieth of the permutations, scaled up). They
alternate in one process.

The second: so many networks that never saw the target, each with a split, two references and a shadow of its own (those
of the trial's part `unrelated`, trained once and kept); how many each test calls used, with the exact 95 % interval
of Clopper and Pearson. Since neither half was ever seen, each model's target and auxiliary samples are also thrown
together and split anew eight times: that measures the level more closely, for samples of the same models.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats
from threadpoolctl import threadpool_limits

from assay._core.seeds import child_seed
from assay.audit.dataguard import Rate, exact_rate
from assay.audit.dataguard.control import residuals
from assay.audit.dataguard.hotelling import compare

if TYPE_CHECKING:
    from assay.trials.audit.dataguard.arms import Suspect

N_PERMUTATIONS, REPEATS = 2000, 3
ALPHA = 0.01
N_ANEW = 8


def t2(one: np.ndarray, two: np.ndarray, axis: int) -> np.ndarray:
    """Hotelling's T² over the last axis of (…, features, samples), for SciPy."""
    n, m = one.shape[-1], two.shape[-1]
    d = one.mean(axis=-1) - two.mean(axis=-1)
    centred = [values - values.mean(axis=-1, keepdims=True) for values in (one, two)]
    pooled = sum(values @ np.swapaxes(values, -1, -2) for values in centred) / (n + m - 2)
    return n * m / (n + m) * np.einsum("...i,...i", d, np.linalg.solve(pooled, d[..., None])[..., 0])


def ours(one: np.ndarray, two: np.ndarray) -> float:
    return compare(one, two, n_permutations=N_PERMUTATIONS, rng=np.random.default_rng(0)).t2


def scipys(one: np.ndarray, two: np.ndarray, n_permutations: int = N_PERMUTATIONS // 20) -> float:
    """The same permutations by SciPy: rows are drawn as indices, which is how it takes several features at once."""
    both = np.concatenate([one, two])
    index = np.arange(len(both))

    def statistic(first: np.ndarray, second: np.ndarray, axis: int) -> np.ndarray:
        take = [np.moveaxis(both[part.astype(int)], -1, -2) for part in (first, second)]
        return t2(*take, axis)

    found = stats.permutation_test(
        (index[: len(one)], index[len(one) :]),
        statistic,
        vectorized=True,
        n_resamples=n_permutations,
        batch=50,
        alternative="greater",
        rng=np.random.default_rng(0),
    )
    return float(found.statistic)


def speed(n_samples: int) -> None:
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=(2, n_samples // 2, 4))
    times: dict[str, list[float]] = {"ours": [], "scipy": []}
    results = {}
    with threadpool_limits(1):
        for _ in range(REPEATS):
            for name, run in (("ours", ours), ("scipy", scipys)):
                start = time.process_time()
                results[name] = run(one, two)
                times[name].append((time.process_time() - start) * (20 if name == "scipy" else 1))
    print(f"T² of both agree to {abs(results['ours'] / results['scipy'] - 1):.1e}")
    print(f"{N_PERMUTATIONS} permutations of {n_samples:,} samples, 4 features; medians of {REPEATS}, CPU seconds")
    for name, values in times.items():
        ratio = statistics.median(a / b for a, b in zip(values, times["ours"], strict=True))
        print(f"{name:<6} {statistics.median(values):8.2f}   {ratio:6.1f} × ours")
    floor = N_PERMUTATIONS * n_samples
    print(f"floor: {floor / 1e6:.0f} million random places drawn, and one product of that matrix with 9 columns")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def in_words(rate: Rate) -> str:
    return f"{rate.n_found:>3} of {rate.n}: {rate.share:.3f} [{rate.low:.3f}, {rate.high:.3f}]"


def split_anew(suspect: Suspect, seed: int) -> float:
    """The method's p between two new halves of what the suspect never saw."""
    rng = np.random.default_rng(seed)
    features = np.concatenate([suspect.target, suspect.aux])
    references = np.concatenate([suspect.ref_target, suspect.ref_aux])
    one, two = np.array_split(rng.permutation(len(features)), 2)
    left = residuals(features[one], features[two], references[one], references[two], rng)
    return compare(*left, n_permutations=299, rng=rng).p_value


def unrelated(n: int, n_audits: int, label_noise: float) -> None:
    from assay.trials.audit.dataguard import unrelated_models, whole_audit
    from assay.trials.audit.dataguard.arms import dataguard, dataset_inference, loss_test, membership_attack
    from assay.trials.audit.dataguard.worlds import digits

    tests = {
        "DataGuard": dataguard,
        "t-test of the loss": loss_test,
        "membership threshold": membership_attack,
        "dataset inference (regression)": dataset_inference,
    }
    calls: dict[str, list[float]] = {name: [] for name in tests}
    verdicts: list[str | None] = []
    again: list[float] = []
    for number, case in enumerate(unrelated_models(digits(label_noise), n, 0)):
        seed = child_seed(0, case.id, "DataGuard")
        for name, test in tests.items():
            calls[name].append(test(case.given.suspect, seed).p_value)
        again += [split_anew(case.given.suspect, child_seed(k, case.id, "re")) for k in range(N_ANEW)]
        if number < n_audits:
            verdicts.append(whole_audit(case.given, seed).verdict)
    print(f"{n} unrelated networks, {label_noise:.0%} of labels wrong; share called used with exact 95 % interval")
    for name, p in calls.items():
        for level in (ALPHA, 0.05):
            rate = exact_rate(int((np.array(p) < level).sum()), n)
            print(f"{name:<32} p < {level:<5g} {in_words(rate)}")
        print(f"{'':<32} p uniform: Kolmogorov–Smirnov p {stats.kstest(p, 'uniform').pvalue:.3f}")
    for level in (ALPHA, 0.05):
        rate = exact_rate(int((np.array(again) <= level).sum()), len(again))
        print(f"{'DataGuard, split anew':<32} p ≤ {level:<5g} {in_words(rate)}")
    for verdict in ("used", "inconclusive", "no evidence", "not valid") if verdicts else ():
        rate = exact_rate(verdicts.count(verdict), len(verdicts))
        print(f"verdict {verdict:<14} {in_words(rate)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--unrelated", type=int, default=0, help="measure the false-positive rate over so many models")
    parser.add_argument("--audits", type=int, default=0, help="make whole audits of so many of them, a second each")
    parser.add_argument("--label-noise", type=float, default=0.1)
    arguments = parser.parse_args()
    if arguments.unrelated:
        unrelated(arguments.unrelated, arguments.audits, arguments.label_noise)
    else:
        speed(arguments.samples)


if __name__ == "__main__":
    main()
