"""LiftQuant beside round to nearest and GPTQ at equal bytes, and beside other codes on a source whose bound is known.

Two questions. At the same bytes, does a language model whose weights are LiftQuant's stay closer to itself than one
rounded to nearest or by GPTQ? On normal numbers, how much of them does the code keep beside uniform levels, Lloyd and
Max's levels and a codebook of k-means at the same bits?
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.seeds import child_seed
from assay.bench import Arm, Case, Claim, Data, Metric, Trial

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale

# ------------------------------------------------------------------------------------------------ a language model


class Setting(NamedTuple):
    """Which model, at how many bits, with how much calibration text, and with which of LiftQuant's stages."""

    model: str
    bits: float
    n_sequences: int
    trained: bool


class Given(NamedTuple):
    """What an arm sees: how to compress, and what the model is asked."""

    setting: Setting
    part: Any


#: Sequences of 128 tokens that GPTQ and LiftQuant's training look at.
SEQUENCES = {"quick": 8, "standard": 64, "full": 256}
WINDOWS = {"quick": 12, "standard": 40, "full": 120}
LENGTH = 128


def full_model(name: str) -> tuple[Any, Any]:
    from assay.models import named_lm

    return named_lm(name)


def load_model(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    need("numba", extra="lm", purpose="the trial of liftquant")
    need("torch", extra="lm", purpose="the trial of liftquant")
    from assay.compress.liftquant import pair_for_bits
    from assay.models import quality

    name, bits = str(params["model"]), float(params["bits"])
    pair_for_bits(bits)  # an impossible number is said now, not by every arm
    try:
        text = None if path is None else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as UTF-8 text: {error}") from None
    model, tokenizer = full_model(name)
    n_questions = 0 if path is not None else {"quick": 0, "standard": 200, "full": 600}[scale]
    reference = quality.reference(model, tokenizer, n_windows=WINDOWS[scale], n_questions=n_questions, text=text)
    setting = Setting(name, bits, SEQUENCES[scale], bool(params["trained"]))
    said = "SmolLM2-135M-Instruct" if name == "demo" else name
    source = "the Python reference" if path is None else path
    return Data(f"{said} on {source}", reference.windows.size, (setting, reference), path)


def parts(value: tuple[Setting, Any], n: int, seed: int) -> Iterator[Case]:
    """Windows and questions that no two cases share."""
    setting, reference = value
    for number, part in enumerate(reference.split(n)):
        yield Case(f"part {number + 1}", Given(setting, part), None)


def calibration(tokenizer: Any, n_sequences: int) -> Any:
    import torch

    from assay.models import quality

    ids = tokenizer(quality.calibration_text(), add_special_tokens=False, verbose=False)["input_ids"]
    starts = np.random.default_rng(0).permutation(len(ids) // LENGTH)[:n_sequences] * LENGTH
    return torch.tensor([ids[start : start + LENGTH] for start in starts])


def same_bytes(bits: float) -> tuple[int, int | None]:
    """Whole bits and the largest group with which a baseline has at least as many bits a weight.

    A row of SmolLM2 is 576 weights or more: the scale of a whole row costs 0.03 bits, as LiftQuant's scales do.
    """
    whole = max(2, int(bits + 1e-9))
    rest = bits - whole
    if rest < 0.02:
        return whole, None
    return whole, next((group for group in (256, 128, 64, 32, 16) if (17 + whole) / group >= rest), 16)


@lru_cache(maxsize=1)
def lifted(setting: Setting) -> tuple[Any, Any, float]:
    from assay.compress.liftquant import LiftQuantConfig, dense_, quantize_

    model, tokenizer = full_model(setting.model)
    data = calibration(tokenizer, setting.n_sequences) if setting.trained else None
    report = quantize_(model, LiftQuantConfig(bits=setting.bits), data)
    dense_(model)  # the same weights; packed they are decoded at every call
    return model, tokenizer, report.bits_per_weight


@lru_cache(maxsize=4)
def rounded(setting: Setting, how: str, grouped: bool) -> tuple[Any, Any, float]:
    from assay.trials.compress.baselines import gptq_, rtn_

    model, tokenizer = full_model(setting.model)
    bits, group = same_bytes(setting.bits)
    group = 128 if grouped and group is None else group
    if how == "gptq":
        found = gptq_(model, calibration(tokenizer, setting.n_sequences), bits, group)
    else:
        found = rtn_(model, bits, group)
    return model, tokenizer, found.bits_per_weight


def answer(model: Any, tokenizer: Any, bits: float, part: Any) -> dict[str, float]:
    from assay.models import quality

    found = quality.measure(model, tokenizer, part)
    return {
        "kl": found.kl_mean,
        "perplexity": found.perplexity,
        "accuracy": found.accuracy,
        "bits": bits,
    }


def lift(given: Given, seed: int) -> dict[str, float]:
    return answer(*lifted(given.setting), given.part)


def nearest(given: Given, seed: int) -> dict[str, float]:
    return answer(*rounded(given.setting, "rtn", grouped=False), given.part)


def nearest_in_groups(given: Given, seed: int) -> dict[str, float]:
    return answer(*rounded(given.setting, "rtn", grouped=True), given.part)


def gptq(given: Given, seed: int) -> dict[str, float]:
    return answer(*rounded(given.setting, "gptq", grouped=False), given.part)


def as_measured(case: Case, output: dict[str, float]) -> dict[str, float]:
    return output


# ------------------------------------------------------------------------------------------------ a normal source


class Draw(NamedTuple):
    """Normal numbers and the bits that each may cost."""

    values: np.ndarray[Any, Any]
    bits: int


def load_normal(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    need("numba", extra="lm", purpose="the trial of liftquant")
    bits = int(params["bits"])
    if bits not in (2, 3):
        raise InputError(f"-p bits={bits}: expected 2 or 3, for which the other codes are made")
    return Data(f"normal numbers, {bits} bits each", int(params["values"]), (bits, int(params["values"])))


def draws(value: tuple[int, int], n: int, seed: int) -> Iterator[Case]:
    bits, size = value
    for number in range(n):
        x = np.random.default_rng(child_seed(seed, "draw", number)).standard_normal(size, dtype=np.float32)
        yield Case(f"draw {number + 1}", Draw(x, bits), x)


def lift_numbers(given: Draw, seed: int) -> np.ndarray[Any, Any]:
    from assay.compress.liftquant import decode, encode, load_mapping, pair_for_bits

    matrix = load_mapping(*pair_for_bits(given.bits)).matrix
    vectors = given.values[: len(given.values) // len(matrix) * len(matrix)].reshape(-1, len(matrix))
    return decode(encode(vectors, matrix), matrix).flatten()


@lru_cache(maxsize=8)
def levels(bits: int, uniform: bool) -> np.ndarray[Any, Any]:
    """The best levels for a normal source: uniform, or Lloyd and Max's, from 200,000 quantiles."""
    from scipy.optimize import minimize_scalar
    from scipy.stats import norm

    source = norm.ppf((np.arange(200_000) + 0.5) / 200_000)
    grid = np.arange(2**bits) - (2**bits - 1) / 2
    if uniform:
        best = minimize_scalar(
            lambda step: np.mean((source - to_nearest(source, step * grid)) ** 2), bounds=(0.2, 2), method="bounded"
        )
        return np.asarray(best.x * grid)
    found: np.ndarray[Any, Any] = grid / grid.max() * 1.5
    for _ in range(300):
        place = np.searchsorted((found[1:] + found[:-1]) / 2, source)
        found = np.bincount(place, source, len(found)) / np.bincount(place, minlength=len(found))
    return found


def to_nearest(x: np.ndarray[Any, Any], points: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(points[np.searchsorted((points[1:] + points[:-1]) / 2, x)])


def uniform(given: Draw, seed: int) -> np.ndarray[Any, Any]:
    return to_nearest(given.values, levels(given.bits, uniform=True))


def lloyd_max(given: Draw, seed: int) -> np.ndarray[Any, Any]:
    return to_nearest(given.values, levels(given.bits, uniform=False))


@lru_cache(maxsize=2)
def codebook(bits: int) -> Any:
    from sklearn.cluster import MiniBatchKMeans

    n_points, d = (256, 4) if bits == 2 else (512, 3)
    x = np.random.default_rng(1).standard_normal((60_000, d), dtype=np.float32)
    return MiniBatchKMeans(n_points, random_state=0, n_init=1, batch_size=4096, max_iter=60).fit(x)


def k_means(given: Draw, seed: int) -> np.ndarray[Any, Any]:
    book = codebook(given.bits)
    d = book.cluster_centers_.shape[1]
    vectors = given.values[: len(given.values) // d * d].reshape(-1, d)
    return np.asarray(book.cluster_centers_[book.predict(vectors)]).flatten()


def kept(case: Case, rebuilt: np.ndarray[Any, Any]) -> dict[str, float]:
    """Signal over error in dB, of as many numbers as fill whole vectors."""
    x = case.truth[: len(rebuilt)]
    error = float(np.mean((x - rebuilt) ** 2) / np.mean(x**2))
    return {"snr": -10 * float(np.log10(error)), "mse": error}


# --------------------------------------------------------------------------------------------------- the trial

TRIAL = Trial(
    slug="liftquant",
    claim=Claim("stays closer to the full model than rounding to nearest or GPTQ at the same bytes", metric="kl"),
    load=load_model,
    cases=parts,
    arms=(
        Arm("LiftQuant", lift),
        Arm("GPTQ", gptq, baseline=True),
        Arm("round to nearest", nearest, baseline=True),
        Arm("round to nearest, groups of 128 or less", nearest_in_groups, baseline=True),
    ),
    metrics=(
        Metric(
            "kl", better="lower", scale="log", unit="nats", help="divergence from the full model on its 25 top tokens"
        ),
        Metric("perplexity", better="lower", scale="log", help="on held-out text"),
        Metric("accuracy", better="higher", help="multiple choice; none are asked at quick"),
        Metric("bits", better="lower", unit="bits a weight", help="as stored, scales and transforms included"),
    ),
    score=as_measured,
    n_cases={"quick": 6, "standard": 20, "full": 60},
    params={"model": "demo", "bits": 3.0, "trained": False},
    threads=2,  # one worker at a time on two cores: each would compress models of its own
    also=(
        Trial(
            slug="liftquant",
            part="normal",
            claim=Claim("keeps more of normal numbers than other codes of the same bits", metric="snr"),
            load=load_normal,
            cases=draws,
            arms=(
                Arm("LiftQuant", lift_numbers),
                Arm("uniform levels", uniform, baseline=True),
                Arm("Lloyd-Max levels", lloyd_max, baseline=True),
                Arm("codebook of k-means (scikit-learn)", k_means, baseline=True),
            ),
            metrics=(
                Metric("snr", better="higher", unit="dB", help="signal to error; 6.02 dB a bit is the bound"),
                Metric("mse", better="lower", help="mean squared error a unit of variance"),
            ),
            score=kept,
            n_cases={"quick": 12, "standard": 40, "full": 200},
            params={"bits": 2, "values": 48_000},
            takes_data=False,
        ),
    ),
)
