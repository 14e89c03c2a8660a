"""What people quantise weights with today: round to nearest, and GPTQ; baselines of every method of this family.

Both work in place and leave a dense model whose weights lie on a uniform grid of 2^bits levels with an offset, the
range of a row (or of a group of its columns) shrunk to the least squared error. GPTQ: Frantar et al., "GPTQ: Accurate
Post-Training Quantization for Generative Pre-trained Transformers", arXiv:2210.17323. It is written here because
the libraries that have it bring CUDA packages or replace torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from assay._core.decoder import decoder_blocks
from assay._core.errors import InputError
from assay.compress._blocks import after, batches_of, block_inputs, run_block, watch_inputs
from assay.compress._layers import dense_weight, linear_layers, set_dense_weight

if TYPE_CHECKING:
    from torch import Tensor, nn

    from assay.compress._blocks import Calibration

#: Ranges that are tried, as shares of the full one.
_SHRINKS = tuple(1 - 0.04 * step for step in range(21))


@dataclass(frozen=True)
class Quantised:
    """What a baseline did.

    Parameters
    ----------
    error : dict of layer to float
        Squared error of the weight over its squared norm.
    n_bytes : int
        Bytes of the quantised layers if they were packed: codes, and for each row or group a 16-bit scale and an
        offset of one bit more than a code.
    n_other : int
        Bytes of what was left alone, as it is.
    n_weights : int
        In the quantised layers.
    """

    error: dict[str, float]
    n_bytes: int
    n_other: int
    n_weights: int

    @property
    def bits_per_weight(self) -> float:
        """Packed bits over number of weights."""
        return 8 * self.n_bytes / self.n_weights


class Grid(NamedTuple):
    """A uniform grid a row: the levels are ``scale * (k - zero)`` for k = 0 … n_levels - 1."""

    scale: Tensor
    zero: Tensor
    n_levels: int

    def nearest(self, weight: Tensor) -> Tensor:
        """The level nearest to each weight (n_rows, any)."""
        code = (weight / self.scale).add_(self.zero).round_().clamp_(0, self.n_levels - 1)
        return code.sub_(self.zero).mul_(self.scale)


def fit_grid(weight: Tensor, bits: int) -> Grid:
    """The grid of each row: minimum to maximum (zero included), shrunk to the least squared error.

    The offset is a multiple of one half, so that two bits can have the levels ±1/2 and ±3/2: with whole offsets, as
    they are common, one of four levels would be zero, which is far worse.

    Parameters
    ----------
    weight : (n_rows, n) float
    bits : int

    Returns
    -------
    Grid
        With scale (as float16 can hold it) and zero (n_rows, 1).
    """
    n_levels = 2**bits
    low = weight.amin(1, keepdim=True).clamp_(max=0)
    high = weight.amax(1, keepdim=True).clamp_(min=0)
    best: Grid | None = None
    least = torch.empty(0)
    for share in _SHRINKS:
        scale = (share * (high - low) / (n_levels - 1)).clamp_(2.0**-24, 65504).half().float()
        grid = Grid(scale, torch.round(-2 * share * low / scale).div_(2).clamp_(0, n_levels - 1), n_levels)
        error = (grid.nearest(weight) - weight).square_().sum(1, keepdim=True)
        if best is None:
            best, least = grid, error
            continue
        better = error < least
        best = Grid(torch.where(better, scale, best.scale), torch.where(better, grid.zero, best.zero), n_levels)
        least = torch.where(better, error, least)
    assert best is not None
    return best


def rtn_(
    model: nn.Module, bits: int, group_size: int | None = None, *, skip: tuple[str, ...] = ("lm_head",)
) -> Quantised:
    """Round the weights of all linear layers to nearest, in place.

    Parameters
    ----------
    model : nn.Module
    bits : int
        2 to 8.
    group_size : int, optional
        Columns that share a scale; None: a whole row.
    skip : tuple of str

    Raises
    ------
    InputError
        `bits` or `group_size` is out of range, or there is no layer to quantise.
    """
    layers = _checked(model, bits, group_size, skip)
    error = {}
    for name, layer in layers.items():
        weight = dense_weight(layer)[0].float()
        error[name] = _replace(layer, weight, _round(weight, bits, group_size))
    return _result(model, layers, error, bits, group_size)


def _round(weight: Tensor, bits: int, group_size: int | None) -> Tensor:
    parts = torch.split(weight, group_size or weight.shape[1], dim=1)
    return torch.cat([fit_grid(part, bits).nearest(part) for part in parts], dim=1)


@torch.no_grad()
def gptq_(
    model: nn.Module,
    calibration_ids: Calibration,
    bits: int,
    group_size: int | None = None,
    *,
    damp: float = 0.01,
    skip: tuple[str, ...] = ("lm_head",),
) -> Quantised:
    """Quantise block by block with GPTQ, in place: the error of a column is made good by those not yet rounded.

    Columns go in the order of falling curvature (the authors' ``act_order``, with fixed groups); a block sees the
    outputs of the blocks before it as they are after quantisation.

    Parameters
    ----------
    model : nn.Module
        A stack of blocks, as every transformer is.
    calibration_ids : int tensor (n_sequences, n_tokens), or a list of inputs of the model
    bits : int
        2 to 8.
    group_size : int, optional
        Columns that share a scale; None: a whole row.
    damp : float
        Share of the mean of the curvature's diagonal that is added to it.
    skip : tuple of str

    Raises
    ------
    InputError
        As for :func:`rtn_`, or there is no calibration data.
    """
    layers = _checked(model, bits, group_size, skip)
    blocks = decoder_blocks(model)
    calls = block_inputs(model, blocks[0][1], batches_of(calibration_ids))
    error = {}
    for prefix, block in blocks:
        inside = {n: layer for n, layer in layers.items() if not prefix or n.startswith(f"{prefix}.")}
        curvature: dict[str, Tensor] = {}
        counts: dict[str, int] = {}

        def see(
            name: str, rows: Tensor, curvature: dict[str, Tensor] = curvature, counts: dict[str, int] = counts
        ) -> None:
            square = rows.float().T @ rows.float()
            curvature[name] = curvature[name].add_(square) if name in curvature else square
            counts[name] = counts.get(name, 0) + len(rows)

        watch_inputs(block, inside, calls, see)
        for name, layer in inside.items():
            weight = dense_weight(layer)[0].float()
            if name not in curvature:  # an expert that no token went to
                error[name] = _replace(layer, weight, _round(weight, bits, group_size))
                continue
            done = gptq_weight(weight, curvature.pop(name) / counts[name], bits, group_size, damp)
            error[name] = _replace(layer, weight, done)
        calls = [after(call, run_block(block, call)) for call in calls]
    for name, layer in layers.items():
        if name not in error:  # outside the blocks: no curvature was seen
            weight = dense_weight(layer)[0].float()
            error[name] = _replace(layer, weight, _round(weight, bits, group_size))
    return _result(model, layers, error, bits, group_size)


def gptq_weight(
    weight: Tensor, curvature: Tensor, bits: int, group_size: int | None = None, damp: float = 0.01
) -> Tensor:
    """Round a weight so that its outputs on the calibration inputs change little (GPTQ, Algorithm 1).

    Parameters
    ----------
    weight : (out_features, in_features) float32
    curvature : (in_features, in_features) float32
        Mean of x xᵀ over calibration inputs x.
    bits, group_size, damp
        As for :func:`gptq_`.

    Returns
    -------
    (out_features, in_features) float32
        On the grid.
    """
    width = weight.shape[1]
    size = group_size or width
    grids = [fit_grid(part, bits) for part in torch.split(weight, size, dim=1)]
    diagonal = curvature.diagonal()
    dead = diagonal == 0
    order = torch.argsort(diagonal, descending=True, stable=True)
    damped = curvature + torch.diag(damp * diagonal.mean().clamp_min(1e-12) + dead.float())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped[order][:, order].double()))
    factor = torch.linalg.cholesky(inverse, upper=True).float()  # row i: what is left of the inverse after columns < i
    left = weight[:, order].clone()
    done = torch.empty_like(left)
    columns = order.tolist()
    for start in range(0, width, 128):
        stop = min(start + 128, width)
        errors = torch.empty(len(left), stop - start, device=left.device)
        for i in range(start, stop):
            column = left[:, i : i + 1]
            done[:, i : i + 1] = grids[columns[i] // size].nearest(column)
            gap = (column - done[:, i : i + 1]) / factor[i, i]
            left[:, i + 1 : stop] -= gap * factor[i, i + 1 : stop]
            errors[:, i - start : i - start + 1] = gap
        left[:, stop:] -= errors @ factor[start:stop, stop:]
    return done[:, torch.argsort(order)]


def _checked(model: nn.Module, bits: int, group_size: int | None, skip: tuple[str, ...]) -> dict[str, nn.Module]:
    if not 2 <= bits <= 8:
        raise InputError(f"bits={bits}: expected a whole number from 2 to 8")
    if group_size is not None and group_size < 1:
        raise InputError(f"group_size={group_size}: expected a number of columns, or None for whole rows")
    layers = dict(linear_layers(model, skip))
    if not layers:
        raise InputError(f"the model has no linear layer to quantise apart from those skipped ({', '.join(skip)})")
    return layers


def _replace(layer: nn.Module, weight: Tensor, done: Tensor) -> float:
    set_dense_weight(layer, done)
    return float((done - weight).square().sum() / weight.square().sum().clamp_min(1e-30))


def _result(
    model: nn.Module, layers: dict[str, nn.Module], error: dict[str, float], bits: int, group_size: int | None
) -> Quantised:
    n_bits = n_weights = n_dense = 0
    for layer in layers.values():
        weight = dense_weight(layer)[0]
        rows, width = weight.shape
        n_bits += rows * (width * bits + -(-width // (group_size or width)) * (17 + bits))
        n_weights += weight.numel()
        n_dense += weight.numel() * weight.element_size()
    n_all = sum(p.numel() * p.element_size() for p in model.parameters())
    return Quantised(error, n_bits // 8, n_all - n_dense, n_weights)
