"""The diffusion transformer of digits, sparse in several ways: what its samples look like.

A case draws its own noise, classes and calibration batches; cases take turns with the trained models.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.seeds import child_seed
from assay.bench import Case, Data
from assay.trials.compress.rt_lynx import digits
from assay.trials.compress.rt_lynx.baselines import input_norms, prune_, slim_

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale

#: Trained models, samples a case, and steps of Euler's method.
SIZES = {"quick": (2, 200, 8), "standard": (4, 1000, 25), "full": (12, 2000, 25)}

#: Batches of 64 images that a case calibrates on: 8,192 tokens.
N_CALIBRATION = 8


class Task(NamedTuple):
    """What an arm sees."""

    model_seed: int
    n_train: int
    seed: int
    n_samples: int
    n_euler: int
    rank: int


def load(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    need("torch", extra="lm", purpose="the trial of rt-lynx")
    n_models, n_samples, n_euler = SIZES[scale]
    n_models, n_samples = int(params["models"]) or n_models, int(params["samples"]) or n_samples
    rank, n_train = int(params["rank"]), int(params["train"])
    if n_samples < 2 * digits.SIDE**2 or rank < 1 or n_train < 10 or n_models < 1:
        raise InputError(
            f"-p models={n_models} -p samples={n_samples} -p rank={rank} -p train={n_train}: expected 1 model, 128 "
            f"samples (64 pixels have a covariance), rank 1 and 10 steps, or more"
        )
    for seed in range(n_models):
        digits.trained(seed, n_train)
    said = "one diffusion transformer" if n_models == 1 else f"{n_models} diffusion transformers"
    task = Task(0, n_train, 0, n_samples, n_euler, rank)
    return Data(f"{said} of scikit-learn's digits", len(digits.images()[0]), (n_models, task))


def cases(data: tuple[int, Task], n: int, seed: int) -> Iterator[Case]:
    n_models, task = data
    for number in range(n):
        own = task._replace(model_seed=number % n_models, seed=child_seed(seed, "digits", number))
        yield Case(f"model {own.model_seed + 1}, noise {number // n_models + 1}", own, own)


def labels(task: Task) -> Any:
    import torch

    return torch.arange(task.n_samples) % digits.N_CLASSES


def layer_names(model: Any) -> list[str]:
    """The layers that every arm makes sparse: queries, keys and values, and the MLP."""
    from assay.compress.rt_lynx import ActivationSparsityConfig
    from assay.compress.rt_lynx.calibrate import target_layers

    return list(target_layers(model, ActivationSparsityConfig()))


def made_sparse(arm: str, task: Task) -> Any:
    """A copy of the trained model with the arm's layers."""
    from assay.compress.rt_lynx import ActivationSparsityConfig, sparsify_
    from assay.compress.rt_lynx.calibrate import Runner

    found = digits.trained(task.model_seed, task.n_train)
    model = copy.deepcopy(found.model)
    names = layer_names(model)
    config = ActivationSparsityConfig(rank=task.rank, norm_comp=arm != "naive")
    if arm in ("naive", "norm"):
        sparsify_(model, config)
    elif arm == "magnitude":
        prune_(model, names)
    elif arm != "dense":
        data = digits.calibration(found, task.seed, N_CALIBRATION)
        if arm == "rt-lynx":
            sparsify_(model, config, data)
        elif arm == "slim":
            slim_(model, names, Runner(model, data).collect, task.rank, config)
        else:
            layers = {name: model.get_submodule(name) for name in names}
            prune_(
                model, names, {name: input_norms(stats) for name, stats in Runner(model, data).collect(layers, config)}
            )
    return model


def draw(arm: str, task: Task, seed: int) -> dict[str, Any]:
    """Samples, and velocities at random times on the way."""
    import torch

    model = made_sparse(arm, task)
    noise = digits.start_noise(child_seed(task.seed, "noise"), task.n_samples)
    with torch.inference_mode():
        velocity = model(*velocity_batch(task))
    return {"samples": digits.sample(model, noise, labels(task), task.n_euler).numpy(), "velocity": velocity.numpy()}


def velocity_batch(task: Task) -> tuple[Any, Any, Any]:
    """Real digits at random times, and their classes."""
    import torch

    pixels, classes = (torch.from_numpy(part[:256]) for part in digits.images())
    noised, t, _ = digits.noised_batch(pixels, torch.Generator().manual_seed(child_seed(task.seed, "velocity")))
    return noised, t, classes


def score(case: Case, output: dict[str, Any]) -> dict[str, float]:
    """Distance of the samples from the data, agreement with the class asked for, and one-step error."""
    import torch

    task: Task = case.truth
    with torch.inference_mode():
        dense = digits.trained(task.model_seed, task.n_train).model(*velocity_batch(task)).numpy()
    samples = output["samples"]
    return {
        "frechet": digits.frechet(samples, digits.images()[0]),
        "class_agreement": float(np.mean(digits.classifier().predict(samples) == labels(task).numpy())),
        "velocity_error": float(((output["velocity"] - dense) ** 2).sum() / (dense**2).sum()),
    }
