"""Whole models: `sparsify_` in place, resumable, and what became of each layer."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from assay._core.errors import InputError
from assay._core.progress import progress_bar
from assay.compress._layers import dense_weight, replace_layer, some
from assay.compress._memory import trim
from assay.compress.rt_lynx.activations import energy_kept, relative_flops
from assay.compress.rt_lynx.calibrate import Runner, target_layers
from assay.compress.rt_lynx.layers import ActivationSparsityConfig, SparseActLinear, solve
from assay.compress.rt_lynx.resume import Checkpoint

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from torch import nn

    from assay.compress.rt_lynx.calibrate import Calibration
    from assay.compress.rt_lynx.repair import Factors, RepairStats


@dataclass(frozen=True)
class LayerReport:
    """What became of one layer.

    Parameters
    ----------
    layer : str
    out_features, in_features : int
    rank : int
    energy : float
        Share of the squared norm of its inputs that is kept; NaN without calibration data, as are the errors.
    weight_energy : float
        The same of its weight, had that been pruned.
    naive, norm, error : float
        Relative squared error of its outputs on held-out inputs: sparse alone, with the length restored, and as the
        layer is now.
    flops : float
        Multiply-adds over those of the dense layer.
    seconds : float
    note : str
        Why it stayed dense, if it did.
    """

    layer: str
    out_features: int
    in_features: int
    rank: int
    energy: float
    weight_energy: float
    naive: float
    norm: float
    error: float
    flops: float
    seconds: float
    note: str = ""


@dataclass(frozen=True)
class SparsityReport:
    """What :func:`sparsify_` did, layer by layer.

    Parameters
    ----------
    layers : tuple of LayerReport
    n, m : int
    output_error : float
        Relative squared error of the model's output on (up to eight calls of) the calibration data; NaN without.
    """

    layers: tuple[LayerReport, ...]
    n: int
    m: int
    output_error: float

    @property
    def skipped(self) -> tuple[str, ...]:
        """Layers that stayed dense."""
        return tuple(layer.layer for layer in self.layers if layer.note)

    @property
    def flops(self) -> float:
        """Multiply-adds of all these layers over those when dense."""
        sizes = [layer.out_features * layer.in_features for layer in self.layers]
        return sum(size * layer.flops for size, layer in zip(sizes, self.layers, strict=True)) / sum(sizes)

    @property
    def n_added(self) -> int:
        """Parameters of the repairs."""
        return sum(layer.rank * (layer.out_features + layer.in_features) for layer in self.layers)

    def to_frame(self) -> pd.DataFrame:
        """One row a layer: the fields of :class:`LayerReport`."""
        return pd.DataFrame([vars(layer) for layer in self.layers])

    def summary(self) -> str:
        """The layers as a table, and the sums."""
        names = ("energy", "weight_energy", "naive", "norm", "error", "flops")
        frame = self.to_frame()
        if not self.skipped:
            frame = frame.drop(columns="note")
        table = frame.to_string(
            index=False,
            na_rep="-",
            formatters={**dict.fromkeys(names, _three_places), "seconds": "{:.2f}".format},
        )
        error = "" if math.isnan(self.output_error) else f"; relative error of the output {self.output_error:.4f}"
        n_sparse = len(self.layers) - len(self.skipped)
        return (
            f"{table}\n\n{n_sparse} of {len(self.layers)} layers with {self.n}:{self.m} inputs, {self.flops:.3f} of "
            f"their multiply-adds; {self.n_added:,} parameters added{error}"
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """Error of every layer: sparse alone, with the length restored, repaired."""
        from matplotlib import pyplot as plt

        axes = ax or plt.figure(figsize=(6, 4), layout="constrained").add_subplot()
        kept = [layer for layer in self.layers if not layer.note]
        for name, label, color, marker in (
            ("naive", "sparse alone", "#D55E00", "x"),
            ("norm", "length restored", "#E69F00", "+"),
            ("error", "as it is now", "#0072B2", "o"),
        ):
            axes.plot([getattr(layer, name) for layer in kept], marker, ms=4, color=color, label=label)
        axes.set_xlabel("layer, in the order of the model")
        axes.set_ylabel("relative squared error of its output")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
        return axes


def _three_places(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def sparsify_(
    model: nn.Module,
    config: ActivationSparsityConfig | None = None,
    calibration: Calibration | None = None,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
) -> SparsityReport:
    """Make the inputs of a model's linear layers n:m sparse and repair the error, in place.

    The weights stay as they are, and the same parameters. The repair of every layer is fitted to inputs from the dense
    model; the last fifth of the rows of each call is kept out of it and measured on.

    Parameters
    ----------
    model : nn.Module
        With ``nn.Linear`` or GPT-2 ``Conv1D`` layers.
    config : ActivationSparsityConfig, optional
        Default: 2:4, repaired with rank 64, in attention projections and MLPs.
    calibration : int tensor (n_sequences, n_tokens), list of inputs, or callable
        A list holds a batch an item: a tensor, a tuple of arguments or a dictionary of keywords. A callable gets the
        model and runs it, the same at every call (a pipeline with a fixed seed). For a diffusion model it must cover
        all noise levels. None: nothing is fitted; lengths are restored.
    checkpoint : path, optional
        Folder for finished layers: an interrupted run with the same arguments goes on after them. To see that a
        callable gives the same inputs, it is run once more.

    Returns
    -------
    SparsityReport

    Raises
    ------
    InputError
        No layer matches, none has a number of inputs that groups of m divide, the calibration data cannot be used or
        holds NaN, or `max_error` is set without calibration data.

    Warns
    -----
    UserWarning
        Fewer tokens reached a layer than it has inputs.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
    >>> report = sparsify_(model, ActivationSparsityConfig(targets=".*", rank=4), [torch.randn(500, 64)])
    >>> type(model[2]).__name__, model[2].rank, len(report.layers)
    ('SparseActLinear', 4, 2)
    """
    config = config or ActivationSparsityConfig()
    if config.max_error is not None and calibration is None:
        raise InputError(f"max_error={config.max_error:g} is measured on calibration data; give calibration=")
    layers = target_layers(model, config)
    dense = {name: layer for name, layer in layers.items() if dense_weight(layer)[0].shape[1] % config.m}
    sparse = {name: layer for name, layer in layers.items() if name not in dense}
    if not sparse:
        raise InputError(
            f"m={config.m} divides the number of inputs of none of the layers {some(dense)}; choose another m"
        )
    runner = None if calibration is None else Runner(model, calibration, checkpoint)
    done = Checkpoint.open(checkpoint, config, sparse, runner)
    reports = {
        name: _left_dense(name, layer, f"{config.m} does not divide in_features") for name, layer in dense.items()
    }
    factors: dict[str, Factors | None] = dict.fromkeys(sparse)
    if runner is None:
        for name, layer in sparse.items():
            reports[name] = _layer_report(name, layer, config, None, None, 0.0)
    else:
        _fit(runner, sparse, config, done, reports, factors)
    for name, layer in sparse.items():
        replace_layer(model, name, _sparse_layer(name, layer, config, factors[name]))
    error = math.nan
    if runner is not None:
        error = _keep_within(runner, model, sparse, config.max_error, reports)
    return SparsityReport(tuple(reports[name] for name in layers), config.n, config.m, error)


def _fit(
    runner: Runner,
    layers: dict[str, nn.Module],
    config: ActivationSparsityConfig,
    done: Checkpoint,
    reports: dict[str, LayerReport],
    factors: dict[str, Factors | None],
) -> None:
    """Repair each layer that is not on disk yet."""
    for name in layers:
        if done.has(name):
            factors[name], reports[name] = done.read(name)
    left = {name: layer for name, layer in layers.items() if name not in reports}
    few = []
    with progress_bar() as progress:
        task = progress.add_task("repairing layers", total=len(layers), completed=len(layers) - len(left))
        start = time.perf_counter()
        for name, stats in runner.collect(left, config) if left else ():
            if config.rank and stats.n_tokens:
                factors[name] = solve(stats, config)
            if stats.n_tokens < len(stats.gram):
                few.append(name)
            seconds = time.perf_counter() - start
            reports[name] = _layer_report(name, layers[name], config, stats, factors[name], seconds)
            done.write(name, factors[name], reports[name])
            progress.advance(task)
            del stats  # not beside those of the next layers
            trim()
            start = time.perf_counter()
    if few and config.rank:
        warnings.warn(
            f"fewer tokens reached {some(few)} than they have inputs: their repair rests on the damping; bring more "
            f"calibration data",
            stacklevel=3,
        )


def _layer_report(
    name: str,
    layer: nn.Module,
    config: ActivationSparsityConfig,
    stats: RepairStats | None,
    factors: Factors | None,
    seconds: float,
) -> LayerReport:
    weight, _ = dense_weight(layer)
    out_features, in_features = weight.shape
    rank = 0 if factors is None else len(factors.lora_A)
    energy, naive, norm, error = (math.nan,) * 4 if stats is None else stats.errors(factors)
    return LayerReport(
        name,
        out_features,
        in_features,
        rank,
        energy,
        energy_kept(weight, config.n, config.m),
        naive,
        norm,
        error,
        relative_flops(in_features, out_features, rank, config.n, config.m),
        seconds,
    )


def _left_dense(name: str, layer: nn.Module, why: str) -> LayerReport:
    out_features, in_features = dense_weight(layer)[0].shape
    nothing = math.nan
    return LayerReport(
        name, out_features, in_features, 0, nothing, nothing, nothing, nothing, 0.0, 1.0, 0.0, f"dense: {why}"
    )


def _sparse_layer(
    name: str, layer: nn.Module, config: ActivationSparsityConfig, factors: Factors | None
) -> SparseActLinear:
    made = SparseActLinear.from_linear(layer, config)
    made.name = name
    return made if factors is None else made.repair(factors)


@contextlib.contextmanager
def bypassed(model: nn.Module) -> Iterator[None]:
    """Run a sparse model as the dense one that it was."""
    layers = [module for module in model.modules() if isinstance(module, SparseActLinear)]
    before = [layer.bypass for layer in layers]
    for layer in layers:
        layer.bypass = True
    try:
        yield
    finally:
        for layer, was in zip(layers, before, strict=True):
            layer.bypass = was


def _keep_within(
    runner: Runner,
    model: nn.Module,
    dense: dict[str, nn.Module],
    max_error: float | None,
    reports: dict[str, LayerReport],
) -> float:
    """Put back the fewest of the worst repaired layers with which the output's error is small enough."""

    def error_without(n_skipped: int) -> float:
        for place, name in enumerate(worst):
            layer: Any = model.get_submodule(name)
            layer.bypass = place < n_skipped
        return runner.output_error(lambda: bypassed(model))

    worst = sorted(dense, key=lambda name: -_or_infinite(reports[name].error))
    error = error_without(0)
    if max_error is None or error <= max_error:
        return error
    if math.isnan(error):
        for name, original in dense.items():
            replace_layer(model, name, original)
        raise InputError(f"max_error={max_error:g}: the calibration returns no tensor to compare; return the output")
    low, high = 0, len(worst)  # with `low` layers dense the error is too large, with `high` it is not
    kept = 0.0
    while high - low > 1:
        middle = (low + high) // 2
        found = error_without(middle)
        if found <= max_error:
            high, kept = middle, found
        else:
            low = middle
    for name in worst[high:]:
        layer: Any = model.get_submodule(name)
        layer.bypass = False
    for name in worst[:high]:
        replace_layer(model, name, dense[name])
        why = f"dense: error {reports[name].error:.3f}, for the output's"
        reports[name] = replace(reports[name], rank=0, flops=1.0, error=0.0, note=why)
    return kept


def _or_infinite(error: float) -> float:
    return math.inf if math.isnan(error) else error
