"""Trained models and their tables read held-out text, window by window."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay._core.extras import need
from assay.bench import Case, Data
from assay.trials.nn.memoryllm.models import BATCH, WINDOW, Training, read_text, text_ids, trained

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale

STEPS = {"quick": 300, "standard": 600, "full": 10_000}
STARTS = {"quick": 1, "standard": 1, "full": 3}

#: Two of three weights go: 12 h^2 a layer become the 4 h^2 that MemoryLLM has active.
PRUNED = 2 / 3

#: Windows of the training text that Wanda sees.
CALIBRATION = 32


class Read(NamedTuple):
    """What an arm sees: which training, which start, and windows of text."""

    training: Training
    start: int
    part: Any


def load_trained(kinds: tuple[str, ...], path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    """Train all, or find them trained; once a few minutes each, with progress."""
    need("torch", extra="lm", purpose="the trial of memoryllm")
    n_steps = int(params["steps"]) or STEPS[scale]
    if n_steps < 1:
        raise InputError(f"steps={n_steps}: expected 1 or more, or 0 for as many as the scale has")
    if path is not None:
        read_text(path)  # what is wrong with it is said before anything is trained
    training = Training(path, n_steps, STARTS[scale])
    for start in range(training.n_starts):
        for kind in kinds:
            trained(kind, training, start)
    text = "Python's docstrings" if path is None else path
    name = f"models of 4 layers trained on {text}, {n_steps} steps, {training.n_starts} start(s)"
    return Data(name, n_steps * BATCH, training, path=path)


def windows(training: Training, n: int, seed: int) -> Iterator[Case]:
    """A window of held-out text each, dealt to the starts in turn."""
    from assay.models import quality

    text = None if training.text is None else read_text(training.text)[1]
    for start in range(training.n_starts):
        reference = quality.reference(
            *trained("memory", training, start), n_windows=n, n_tokens=WINDOW, n_questions=0, text=text
        )
        parts = reference.split(n)
        for number in range(start, n, training.n_starts):
            yield Case(f"window {number + 1}, start {start + 1}", Read(training, start, parts[number]))


def read(kind: str, given: Read, seed: int) -> Any:
    from assay.models import quality

    return quality.measure(*trained(kind, given.training, given.start), given.part)


def perplexity(case: Case, found: Any) -> dict[str, float]:
    return {"perplexity": float(found.perplexity)}


# ---------------------------------------------------------------------------------------------------- pruned twins


def read_pruned(how: str, given: Read, seed: int) -> Any:
    from assay.models import quality

    return quality.measure(*pruned(how, given.training, given.start), given.part)


@lru_cache(maxsize=4)
def pruned(how: str, training: Training, start: int) -> tuple[Any, Any]:
    """The dense model with two of three weights of its blocks set to zero."""
    from torch import nn
    from torch.nn.utils import prune as pruning

    prune: Any = pruning  # torch leaves it untyped

    dense, tokenizer = trained("base", training, start)
    model = copy.deepcopy(dense)
    linear = [module for module in model.model.layers.modules() if isinstance(module, nn.Linear)]
    if how == "magnitude":
        targets = [(module, "weight") for module in linear]
        prune.global_unstructured(targets, pruning_method=prune.L1Unstructured, amount=PRUNED)
    else:
        for module, norm in zip(linear, _input_norms(model, linear, training), strict=True):
            prune.custom_from_mask(module, "weight", _wanda_mask(module.weight, norm))
    for module in linear:
        prune.remove(module, "weight")
    return model, tokenizer


def _wanda_mask(weight: Any, norm: Any) -> Any:
    """Keep the third of each row with the largest |weight| times the norm of its input (Sun et al., 2024)."""
    import torch

    scores = weight.detach().abs() * norm
    kept = scores.topk(weight.shape[1] - round(PRUNED * weight.shape[1]), dim=1).indices
    return torch.zeros_like(scores).scatter(1, kept, 1.0)


def _input_norms(model: Any, linear: list[Any], training: Training) -> list[Any]:
    """Length of each input channel of each layer over windows of the training text."""
    import torch

    from assay.models.small import token_ids
    from assay.trials.nn.memoryllm.models import VOCABULARY

    ids = token_ids(VOCABULARY) if training.text is None else text_ids(training.text)
    starts = np.random.default_rng(0).integers(len(ids) - WINDOW, size=CALIBRATION)
    squares: dict[Any, Any] = {}

    def note(module: Any, inputs: Any) -> None:
        squares[module] = squares.get(module, 0.0) + inputs[0].flatten(0, -2).square().sum(0)

    hooks = [module.register_forward_pre_hook(note) for module in linear]
    with torch.inference_mode():
        model(torch.from_numpy(ids[starts[:, None] + np.arange(WINDOW)]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return [squares[module].sqrt() for module in linear]


# --------------------------------------------------------------------------------------------------------- tables


def read_table(dtype: str, given: Read, seed: int) -> Any:
    from assay.models import quality

    return quality.measure(*tabled(dtype, given.training, given.start), given.part)


@lru_cache(maxsize=4)
def tabled(dtype: str, training: Training, start: int) -> tuple[Any, Any]:
    model, tokenizer = trained("memory", training, start)
    return from_disk(model, dtype), tokenizer


def from_disk(model: Any, dtype: str) -> Any:
    """The model with its memories in a table below the cache folder, which is written once."""
    from filelock import FileLock

    from assay._core.cache import made_dir
    from assay.models.packages import without_progress_bars
    from assay.nn.memoryllm import export_tol, load_with_tol
    from assay.nn.memoryllm.export import weights_hash

    # Of all weights: the folder holds the whole model beside its tables.
    folder = made_dir() / "memoryllm" / weights_hash(model.config, model.named_parameters())[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"), without_progress_bars():
        if not (folder / "model" / "config.json").is_file():
            model.save_pretrained(folder / "model")
        if not (folder / dtype).is_dir():
            export_tol(model, folder / dtype, dtype)
        return load_with_tol(folder / "model", folder / dtype)


# ------------------------------------------------------------------------------------- a dense model, only switched


class Page(NamedTuple):
    """Which model reads, and a window with what it says as it is."""

    model: str
    part: Any


def load_switched(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    from assay.models.quality import held_out_text

    name = str(params["model"])
    dense, _ = switched(name, "dense")  # what is missing is said here
    if dense.config.model_type != "llama":
        raise InputError(
            f"model={name}: expected a Llama, whose blocks MemoryLLM's are; it is {dense.config.model_type}"
        )
    said = "SmolLM2-135M-Instruct" if name == "demo" else name
    return Data(f"{said}, switched without training", len(held_out_text()), name)


@lru_cache(maxsize=2)
def switched(name: str, kind: str) -> tuple[Any, Any]:
    """A Llama as it is, or with the weights of its feed-forward layers as memories of the token."""
    from assay.models import demo_lm, load_lm
    from assay.nn.memoryllm import MemoryLlamaConfig, MemoryLlamaForCausalLM

    dense, tokenizer = demo_lm() if name == "demo" else load_lm(name)
    if kind == "dense":
        return dense, tokenizer
    own = {"model_type", "architectures", "transformers_version"}
    said = {key: value for key, value in dense.config.to_dict().items() if key not in own}
    model: Any = MemoryLlamaForCausalLM(MemoryLlamaConfig(**said, ffn_beta=0))
    renamed = {
        key.replace(".mlp.", ".memory.").replace("post_attention_layernorm", "memory_norm"): value
        for key, value in dense.state_dict().items()
    }
    model.load_state_dict(renamed)
    return model.eval(), tokenizer


def pages(name: str, n: int, seed: int) -> Iterator[Case]:
    from assay.models import quality

    reference = quality.reference(*switched(name, "dense"), n_windows=n, n_tokens=64, n_questions=0)
    for number, part in enumerate(reference.split(n)):
        yield Case(f"window {number + 1}", Page(name, part))


def read_switched(kind: str, page: Page, seed: int) -> Any:
    from assay.models import quality

    return quality.measure(*switched(page.model, kind), page.part)
