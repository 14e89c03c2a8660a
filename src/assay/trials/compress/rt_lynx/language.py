"""SmolLM2's MLPs with 2:4 inputs, beside the same MLPs with 2:4 weights.

What is fitted to calibration text (the repairs, the norms that Wanda needs) is kept on disk. A process has one model:
an arm puts its own MLPs into it, most of which share the weights.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from assay._core.cache import made_dir
from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.files import replacing
from assay._core.progress import progress_bar
from assay.bench import Case, Data
from assay.trials.compress.rt_lynx.baselines import input_norms, pruned, pruning_repair

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale

#: Raised when what is fitted changes.
_LAYOUT = 1

N_TOKENS = 128


class Setting(NamedTuple):
    """Which model, the rank of repairs, and how many windows of text they are fitted to."""

    model: str
    rank: int
    n_windows: int


class Part(NamedTuple):
    """What an arm sees: the setting, and windows and questions with what the full model said."""

    setting: Setting
    reference: Any


def load(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    need("torch", extra="lm", purpose="the trial of rt-lynx")
    from assay.models import quality

    setting = Setting(str(params["model"]), int(params["rank"]), int(params["calibration"]))
    if setting.rank < 1 or setting.n_windows < 1:
        raise InputError(
            f"-p rank={setting.rank} -p calibration={setting.n_windows}: expected a rank and windows, 1 or more"
        )
    text = None
    if path is not None:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path} cannot be read as UTF-8 text: {error}") from None
    model, tokenizer = full_model(setting.model)
    fitted(setting)
    n_windows, n_questions = {"quick": (8, 0), "standard": (48, 96), "full": (96, 400)}[scale]
    reference = quality.reference(model, tokenizer, n_windows=n_windows, n_questions=n_questions, text=text)
    said = "SmolLM2-135M-Instruct" if setting.model == "demo" else setting.model
    name = "the Python reference" if path is None else path
    return Data(f"{said} on {name}", n_windows, (setting, reference), path)


def cases(data: tuple[Setting, Any], n: int, seed: int) -> Iterator[Case]:
    """Windows and questions dealt to the cases; none is in two."""
    setting, reference = data
    if n > len(reference.windows):
        raise InputError(
            f"{n} cases were asked for, and there are {len(reference.windows)} windows; use a larger scale"
        )
    for number, part in enumerate(reference.split(n)):
        yield Case(f"part {number + 1}", Part(setting, part))


@lru_cache(maxsize=1)
def full_model(name: str) -> tuple[Any, Any]:
    from assay.models import named_lm

    return named_lm(name)


@lru_cache(maxsize=1)
def dense_layers(name: str) -> dict[str, Any]:
    """The MLPs' linear layers of the full model."""
    from assay.compress._layers import linear_layers

    found = {key: layer for key, layer in linear_layers(full_model(name)[0], ("lm_head",)) if ".mlp." in key}
    if not found:
        raise InputError(f"{name} has no linear layer with '.mlp.' in its name, which this part makes sparse")
    return found


@lru_cache(maxsize=1)
def fitted(setting: Setting) -> dict[str, Any]:
    """Norms of the inputs and repairs of every layer: from disk, or fitted to calibration text (minutes, once)."""
    import torch
    from filelock import FileLock
    from safetensors.torch import load_file, save_file

    from assay.compress._layers import dense_weight
    from assay.compress.rt_lynx import ActivationSparsityConfig, closed_form
    from assay.compress.rt_lynx.calibrate import Runner
    from assay.models.quality import calibration_text

    model, tokenizer = full_model(setting.model)
    layers = dense_layers(setting.model)
    ids = tokenizer(calibration_text(), add_special_tokens=False, verbose=False)["input_ids"]
    windows = torch.tensor(ids[: len(ids) // N_TOKENS * N_TOKENS]).view(-1, N_TOKENS)
    if len(windows) < setting.n_windows:
        raise InputError(f"-p calibration={setting.n_windows}: the calibration text has {len(windows)} windows")
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))
    windows = windows[order[: setting.n_windows]]
    sums = [f"{float(dense_weight(layer)[0].double().sum()):.9e}" for layer in layers.values()]
    said = json.dumps([_LAYOUT, setting, sums, windows.sum(1).tolist()])
    folder = made_dir() / "rt-lynx"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"mlp-{hashlib.sha256(said.encode()).hexdigest()[:16]}.safetensors"
    with FileLock(path.with_suffix(".lock")):  # another process may be fitting the same: it is waited for
        if not path.is_file():
            state: dict[str, Any] = {}
            with progress_bar() as progress:
                task = progress.add_task("repairing the MLPs of the language model", total=len(layers))
                for name, stats in Runner(model, list(torch.split(windows, 4))).collect(
                    layers, ActivationSparsityConfig()
                ):
                    weight = dense_weight(layers[name])[0]
                    state[f"{name}.norms"] = norms = input_norms(stats)
                    activation = closed_form(stats, setting.rank)
                    wanda = pruning_repair(stats, weight, pruned(weight, norms), setting.rank)
                    for kind, factors in (("activation", activation), ("wanda", wanda)):
                        state[f"{name}.{kind}.A"], state[f"{name}.{kind}.B"] = factors
                    progress.advance(task)
            with replacing(path) as temporary:
                save_file(state, str(temporary))
    return load_file(str(path))


@lru_cache(maxsize=8)
def arm_layers(arm: str, setting: Setting) -> dict[str, Any]:
    """The MLPs' layers as an arm has them."""
    from torch import nn

    from assay.compress._layers import dense_weight
    from assay.compress.rt_lynx import ActivationSparsityConfig, Factors, SparseActLinear

    state = fitted(setting)
    made: dict[str, Any] = {}
    for name, dense in dense_layers(setting.model).items():
        wanda = Factors(state[f"{name}.wanda.A"], state[f"{name}.wanda.B"])
        if arm in ("naive", "norm", "rt-lynx"):
            config = ActivationSparsityConfig(rank=setting.rank, norm_comp=arm != "naive")
            made[name] = SparseActLinear.from_linear(dense, config)
            if arm == "rt-lynx":
                made[name].repair(Factors(state[f"{name}.activation.A"], state[f"{name}.activation.B"]))
            continue
        if arm == "slim":  # Wanda's layer, shared, with a branch
            pruned_layer = arm_layers("wanda", setting)[name]
            made[name] = SparseActLinear.from_linear(pruned_layer, ActivationSparsityConfig(n=4, m=4)).repair(wanda)
            continue
        weight, bias = dense_weight(dense)
        made[name] = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
        norms = state[f"{name}.norms"] if arm == "wanda" else None
        made[name].weight = nn.Parameter(pruned(weight, norms), requires_grad=False)
        if bias is not None:
            made[name].bias = bias
    return made


def ask(arm: str, part: Part, seed: int) -> Any:
    """Put the arm's layers into the model, and ask it."""
    from assay.models import quality

    model, tokenizer = full_model(part.setting.model)
    dense = dense_layers(part.setting.model)
    layers = arm_layers(arm, part.setting)
    for name, layer in layers.items():
        model.set_submodule(name, layer)
    try:
        return quality.measure(model, tokenizer, part.reference)
    finally:
        for name, layer in dense.items():
            model.set_submodule(name, layer)


def score(case: Case, found: Any) -> dict[str, float]:
    """Divergence from the full model, agreement with it, perplexity and questions answered right."""
    return {
        "kl": found.kl_mean,
        "same_token": found.same_token_mean,
        "perplexity": found.perplexity,
        "accuracy": found.accuracy,
    }
