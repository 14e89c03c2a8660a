"""SmolLM2, or a user's model, compressed once by every arm; cases are windows of text and questions."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from assay._core.cache import made_dir
from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.files import replacing
from assay._core.progress import progress_bar
from assay.bench import Case, Data

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale

#: Part of the name of the kept factors; raised when what an arm computes changes.
_LAYOUT = 1
N_TOKENS = 128
N_WINDOWS = {"quick": 8, "standard": 48, "full": 160}
QUESTIONS_A_WINDOW = 2

DYNAMIC, STATIC, ASVD, PLAIN, ANCHORED = "dynamic", "svd-llm", "asvd", "svd", "anchored"
BASELINES = (STATIC, ASVD, PLAIN)


class Setting(NamedTuple):
    """What is compressed, how far, and on which text."""

    model: str
    ratio: float
    sequences: int
    text: str | None


class Compressed(NamedTuple):
    """What an arm sees: which model, where its factors are, and the windows and questions to answer."""

    model: str
    folder: str
    part: Any


def full_model(name: str) -> tuple[Any, Any]:
    from assay.models import named_lm

    return named_lm(name)


def text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as UTF-8 text: {error}") from None


def calibration_ids(tokenizer: Any, text: str | None, sequences: int) -> Any:
    """(sequences, N_TOKENS) token ids, spread evenly over the text."""
    import torch

    from assay.models import quality

    said = quality.calibration_text() if text is None else text
    ids = torch.tensor(tokenizer(said, add_special_tokens=False, verbose=False)["input_ids"])
    n_there = len(ids) // N_TOKENS
    if n_there < sequences:
        raise InputError(f"-p sequences={sequences}: the text has {n_there} sequences of {N_TOKENS} tokens")
    places = torch.linspace(0, n_there - 1, sequences).round().long()
    return ids[: n_there * N_TOKENS].view(n_there, N_TOKENS)[places]


def load_model(methods: tuple[str, ...], path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    """Compress the model by every arm, unless that was done before; ask the full model."""
    need("torch", extra="lm", purpose="the trial of dynamic-whitening")
    from assay.models import quality

    name, ratio, sequences = str(params["model"]), float(params["ratio"]), int(params["sequences"])
    if not 0 < ratio < 1:
        raise InputError(f"-p ratio={ratio}: expected the share of parameters to keep, between 0 and 1")
    n_windows = int(params["windows"]) or N_WINDOWS[scale]
    text = None if path is None else text_of(path)
    # The first half of a user's text calibrates, the second measures.
    half = None if text is None else len(text) // 2
    setting = Setting(name, ratio, sequences, None if text is None else text[:half])
    folder = prepared(setting, (*methods, *BASELINES))
    model, tokenizer = full_model(name)
    reference = quality.reference(
        model,
        tokenizer,
        n_windows=n_windows,
        n_tokens=N_TOKENS,
        n_questions=QUESTIONS_A_WINDOW * n_windows,
        text=None if text is None else text[half:],
    )
    said = "SmolLM2-135M-Instruct" if name == "demo" else name
    return Data(
        f"{said}, {ratio:g} of its linear layers kept, on {'the Python reference' if path is None else path}",
        len(reference.windows),
        (name, str(folder), reference),
        path,
    )


def model_cases(data: tuple[str, str, Any], n: int, seed: int) -> Iterator[Case]:
    """Windows and questions dealt to cases that share none."""
    name, folder, reference = data
    for number, part in enumerate(reference.split(min(n, len(reference.windows)))):
        yield Case(f"windows {number + 1}", Compressed(name, folder, part))


def factors_folder(setting: Setting) -> tuple[Path, Any]:
    """Where factors of this model, ratio and calibration data are kept, and the data."""
    model, tokenizer = full_model(setting.model)
    calibration = calibration_ids(tokenizer, setting.text, setting.sequences)
    digest = hashlib.sha256(f"{_LAYOUT} {setting[:3]} {sorted(model.config.to_dict().items(), key=str)}".encode())
    digest.update(calibration.numpy().tobytes())
    digest.update(next(model.parameters()).detach().float().numpy().tobytes())
    folder = made_dir() / "dynamic-whitening" / digest.hexdigest()[:24]
    folder.mkdir(parents=True, exist_ok=True)
    return folder, calibration


def prepared(setting: Setting, arms: tuple[str, ...]) -> Path:
    """The folder with the factors of every arm, in half precision; what is missing is computed, with progress."""
    from filelock import FileLock

    folder, calibration = factors_folder(setting)
    with FileLock(folder / "lock"), progress_bar() as progress:
        missing = [arm for arm in arms if not (folder / f"{arm}.safetensors").is_file()]
        task = progress.add_task("compressing, once", total=len(missing))
        if set(missing) & set(BASELINES):
            found = baseline_factors(full_model(setting.model)[0], calibration, setting.ratio)
            for arm in BASELINES:
                keep(found[arm], folder / f"{arm}.safetensors")
                progress.advance(task)
            del found
        for arm in [arm for arm in missing if arm not in BASELINES]:
            keep(whitened_factors(setting, arm, calibration), folder / f"{arm}.safetensors")
            progress.advance(task)
    return folder


def baseline_factors(model: Any, calibration: Any, ratio: float) -> dict[str, dict[str, Any]]:
    """Factors (a, b) of every layer by each baseline; the full model is run once for all of them."""
    from assay.trials.compress.svd_baselines import asvd, rank_at, seen_by_layers, svd, svd_llm

    found: dict[str, dict[str, Any]] = {arm: {} for arm in BASELINES}
    for name, weight, seen in seen_by_layers(model, calibration):
        rank = rank_at(weight.shape, ratio)
        pairs = (svd_llm(weight, seen.gram), asvd(weight, seen.absolute / seen.n_tokens), svd(weight))
        for arm, pair in zip(BASELINES, pairs, strict=True):
            cut = pair.cut(rank)
            found[arm] |= {f"{name}.a": cut.a.half(), f"{name}.b": cut.b.half()}
    return found


def whitened_factors(setting: Setting, arm: str, calibration: Any) -> dict[str, Any]:
    from assay.compress.dynamic_whitening import LowRankLinear, WhiteningConfig, factorize_

    model, _ = full_model(setting.model)
    target: Any = "anchored" if arm == ANCHORED else "weight"
    factorize_(model, WhiteningConfig(ratio=setting.ratio, target=target, dtype="float16"), calibration)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, LowRankLinear)}
    return {f"{name}.{part}": getattr(layer, part).detach() for name, layer in layers.items() for part in "ab"}


def keep(factors: dict[str, Any], path: Path) -> None:
    from safetensors.torch import save_file

    with replacing(path) as temporary:
        save_file({name: tensor.contiguous().clone() for name, tensor in factors.items()}, str(temporary))


@lru_cache(maxsize=6)  # factors are mapped from their files: an arm costs hardly any memory
def compressed_model(name: str, folder: str, arm: str) -> tuple[Any, Any]:
    from safetensors.torch import load_file

    from assay.compress.dynamic_whitening import Factors, LowRankLinear

    model, tokenizer = full_model(name)
    state = load_file(str(Path(folder) / f"{arm}.safetensors"))
    for layer in [key.removesuffix(".a") for key in state if key.endswith(".a")]:
        factors = Factors(state[f"{layer}.a"], state[f"{layer}.b"], None)
        model.set_submodule(layer, LowRankLinear.from_factors(model.get_submodule(layer), factors, factors.a.dtype))
    return model, tokenizer


def answer(arm: str, given: Compressed, seed: int) -> Any:
    from assay.models import quality

    model, tokenizer = compressed_model(given.model, given.folder, arm)
    return quality.measure(model, tokenizer, given.part)


def closeness(case: Case, found: Any) -> dict[str, float]:
    return {
        "kl": found.kl_mean,
        "perplexity": found.perplexity,
        "same_token": found.same_token_mean,
        "accuracy": found.accuracy,
    }
