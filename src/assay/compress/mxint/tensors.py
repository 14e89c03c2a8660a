"""Quantise tensors: `quantize` to codes and scales, `fake_quant` straight back to the values they stand for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch

from assay._core.errors import InputError
from assay.compress.mxint.formats import Format, get_format, hadamard
from assay.compress.mxint.rounding import (
    CLIPS,
    SCALE_RULES,
    Clip,
    ScaleRule,
    block_scales,
    decode,
    divide,
    encode,
    round_to_grid_,
    scales_of_stored,
    stored_scales,
    tensor_scale,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

Rotation = Literal["hadamard"]
NonFinite = Literal["raise", "propagate"]
ArrayOrTensor = TypeVar("ArrayOrTensor", np.ndarray, torch.Tensor)

#: Elements that are worked on at a time on a CPU: their copies stay in the second-level cache.
_CHUNK = 1 << 17


class Rules(NamedTuple):
    """How to quantise, apart from the format; checked once by :func:`checked_rules`."""

    scale_rule: ScaleRule = "ceil"
    clip: Clip = "sym"
    nonfinite: NonFinite = "raise"


@dataclass(frozen=True, eq=False)
class QTensor:
    """A tensor in a block-scaled format.

    Parameters
    ----------
    codes : (n_rows, n_padded) uint8
        One code a value, the quantised axis last and padded with zeros to whole blocks.
    scales : (n_rows, n_blocks) uint8, or float32 for plain scales
    tensor_scale : float32 scalar or None
        The second scale of NV formats.
    fmt : Format
    shape : tuple of int
        Of the tensor, and `axis` the one along which blocks run.
    axis : int
    dtype : torch.dtype
        What `dequantize` returns.
    rotation_seed : int or None
        Where the tensor was rotated before, the seed of the signs.
    is_numpy : bool
        Whether it came from numpy, and goes back there.
    """

    codes: Tensor
    scales: Tensor
    tensor_scale: Tensor | None
    fmt: Format
    shape: tuple[int, ...]
    axis: int
    dtype: torch.dtype
    rotation_seed: int | None = None
    is_numpy: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes when packed: codes, scales and the tensor's scale."""
        codes = -(-self.codes.numel() * self.fmt.element.bits // 8)
        return codes + self.scales.numel() * self.fmt.scale_bits // 8 + (4 if self.tensor_scale is not None else 0)

    def dequantize(self) -> Any:
        """The values that the codes stand for, in the shape, dtype and kind (numpy or torch) of the original."""
        values = decode_rows(self.codes, self.scales, self.tensor_scale, self.fmt)
        if self.rotation_seed is not None:
            size = values.shape[-1] // max(1, self.scales.shape[-1])
            values = rotate_blocks(values.reshape(-1, size), self.rotation_seed, back=True).reshape(values.shape)
        restored = _cast(_from_rows(values, self.shape, self.axis), self.dtype)
        return restored.numpy() if self.is_numpy else restored


def dequantize(q: QTensor) -> Any:
    """The values that the codes of `q` stand for, as :meth:`QTensor.dequantize`."""
    return q.dequantize()


def decode_rows(codes: Tensor, scales: Tensor, t: Tensor | None, fmt: Format) -> Tensor:
    """Values (n_rows, n_padded) float32 of codes and scales, the rotation not undone."""
    scale = scales_of_stored(scales, fmt, t)
    if codes.numel() == 0:
        return codes.float()
    values = decode(codes, fmt.element)
    values.view(*scale.shape, -1).mul_(scale.unsqueeze(-1))
    return values


def quantize(
    x: Any,
    fmt: str | Format = "mxint8",
    axis: int = -1,
    *,
    scale_rule: ScaleRule = "ceil",
    clip: Clip = "sym",
    rotate: Rotation | None = None,
    seed: int = 0,
    strict: bool = False,
    nonfinite: NonFinite = "raise",
) -> QTensor:
    """Quantise a tensor to codes and scales.

    Parameters
    ----------
    x : float array or tensor, of any shape with at least one axis
        Computed in float32 whatever its dtype.
    fmt : str or Format
        A name of `FORMATS`.
    axis : int
        Along which blocks run: the one that the matrix product sums over.
    scale_rule : {"ceil", "floor", "round", "ocp"}
        Of power-of-two scales. "ceil" (the paper) never clips; "ocp" is the OCP standard and may.
    clip : {"sym", "asym"}
        "asym" lets integers use -2^(b-1) as well, which biases them (the paper's baseline).
    rotate : "hadamard", optional
        Multiply every block by a random rotation first; `dequantize` turns it back.
    seed : int
        Of the rotation's signs.
    strict : bool
        Refuse an axis that is not a multiple of the block, in place of padding it with zeros.
    nonfinite : {"raise", "propagate"}
        "propagate": a block that holds NaN or infinity decodes to NaN.

    Returns
    -------
    QTensor

    Raises
    ------
    InputError
        Unknown format or option, axis out of range, NaN or infinity, blocks that cannot be rotated, or `strict`.
    TypeError
        `x` is not of a floating dtype.

    Examples
    --------
    >>> q = quantize(np.arange(1, 33) / 8, "mxint8")
    >>> 2.0 ** (int(q.scales) - 127), bool((q.dequantize() == np.arange(1, 33) / 8).all())
    (0.0625, True)
    """
    made, rules = get_format(fmt), checked_rules(scale_rule, clip, nonfinite)
    tensor = checked_tensor(x, axis)
    axis = axis % tensor.ndim
    rows, size = to_rows(tensor.detach(), axis, made, strict=strict)
    blocks = rows.reshape(-1, size)
    if rotate is not None:
        blocks = rotate_blocks(_checked_rotation(blocks, rotate), seed)
    codes = torch.empty(blocks.shape, dtype=torch.uint8, device=blocks.device)
    stored = []
    t = _tensor_scale(blocks, made)
    for span, scaled, kept, _ in _scaled(blocks, made, rules, t, None):
        codes[span] = encode(scaled, made.element)
        stored.append(kept)
    scales = stored_scales(torch.cat(stored) if stored else torch.empty(0, 1), made)
    n_rows = rows.shape[0]
    return QTensor(
        codes.reshape(rows.shape),
        scales.reshape(n_rows, rows.shape[1] // size if size else 0),
        t,
        made,
        tuple(tensor.shape),
        axis,
        tensor.dtype,
        seed if rotate is not None else None,
        isinstance(x, np.ndarray),
    )


def fake_quant(
    x: ArrayOrTensor,
    fmt: str | Format = "mxint8",
    axis: int = -1,
    *,
    scale_rule: ScaleRule = "ceil",
    clip: Clip = "sym",
    rotate: Rotation | None = None,
    seed: int = 0,
    strict: bool = False,
    nonfinite: NonFinite = "raise",
) -> ArrayOrTensor:
    """Quantise and dequantise in one pass, equal to ``quantize(...).dequantize()`` without keeping codes.

    The parameters are those of :func:`quantize`. On tensors it is differentiable: the gradient passes straight through.

    Examples
    --------
    >>> fake_quant(np.array([0.1, 0.26, -3.0, 6.0]), "mxfp4")
    array([ 0. ,  0.5, -3. ,  6. ])
    """
    made, rules = get_format(fmt), checked_rules(scale_rule, clip, nonfinite)
    tensor = checked_tensor(x, axis)
    done: Any = _StraightThrough.apply(  # type: ignore[no-untyped-call]  # torch leaves apply untyped
        tensor, made, axis % tensor.ndim, rules, rotate, seed, strict
    )
    result: ArrayOrTensor = done.numpy() if isinstance(x, np.ndarray) else done
    return result


class _StraightThrough(torch.autograd.Function):
    """Quantised forward, identity backward."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        fmt: Format,
        axis: int,
        rules: Rules,
        rotate: Rotation | None,
        seed: int,
        strict: bool,
    ) -> Tensor:
        rows, size = to_rows(x, axis, fmt, strict=strict)
        blocks = rows.reshape(-1, size)
        if rotate is not None:
            blocks = rotate_blocks(_checked_rotation(blocks, rotate), seed)
        done = fake_blocks(blocks, fmt, rules)
        if rotate is not None:
            done = rotate_blocks(done, seed, back=True)
        return _cast(_from_rows(done.reshape(rows.shape), tuple(x.shape), axis), x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None, None, None, None, None, None


def fake_blocks(blocks: Tensor, fmt: Format, rules: Rules) -> Tensor:
    """Quantise and dequantise blocks (n_blocks, block); the result has the dtype of `blocks`."""
    out = torch.empty_like(blocks)
    for span, scaled, _, scale in _scaled(blocks, fmt, rules, _tensor_scale(blocks, fmt), out):
        if scaled.dtype == out.dtype:
            scaled.mul_(scale)  # already in place
            continue
        out[span] = _cast(scaled.mul_(scale), out.dtype)
    return out


def _scaled(
    blocks: Tensor, fmt: Format, rules: Rules, t: Tensor | None, out: Tensor | None
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """Go through the blocks: where, values on the grid (in `out` where that is float32), kept scales, scales."""
    n_blocks, size = blocks.shape
    step = max(1, _CHUNK // max(1, size)) if blocks.device.type == "cpu" else max(1, n_blocks)
    keeps = out is not None and out.dtype == torch.float32
    scratch = None if keeps else torch.empty((min(step, n_blocks), size), device=blocks.device)
    for start in range(0, n_blocks, step):
        span = slice(start, start + step)
        part = blocks[span].float()
        room = out[span] if keeps and out is not None else scratch[: len(part)]  # type: ignore[index]  # None iff keeps
        absmax = torch.abs(part, out=room).amax(-1, keepdim=True)
        bad = None
        if part.numel() and not math.isfinite(absmax.amax()):
            if rules.nonfinite == "raise":
                refuse_nonfinite(blocks)
            bad = ~torch.isfinite(absmax)
            part, absmax = part.masked_fill(bad, 0.0), absmax.masked_fill(bad, 0.0)
        kept, scale = block_scales(absmax, fmt, rules.scale_rule, t)
        values = round_to_grid_(divide(part, scale, fmt, room), fmt.element, rules.clip)
        if bad is not None:
            kept, scale = kept.masked_fill(bad, math.nan), scale.masked_fill(bad, math.nan)
        yield span, values, kept, scale


def _tensor_scale(blocks: Tensor, fmt: Format) -> Tensor | None:
    if fmt.scale != "e4m3":
        return None
    if blocks.device.type != "cpu":
        return tensor_scale(blocks.float().abs().amax(-1), fmt)
    step = max(1, _CHUNK // blocks.shape[-1])
    peaks = [part.float().abs().amax(-1) for part in torch.split(blocks, step)]
    return tensor_scale(torch.cat(peaks) if peaks else blocks.new_empty(0), fmt)


# ------------------------------------------------------------------------------------------------ rows and blocks


def to_rows(x: Tensor, axis: int, fmt: Format, *, strict: bool = False) -> tuple[Tensor, int]:
    """(n_rows, n_padded) with `axis` last and padded with zeros to whole blocks, and the block size."""
    length = x.shape[axis]
    size = fmt.block or max(1, length)
    missing = -length % size
    if missing and strict:
        raise InputError(
            f"axis {axis} has {length} values, which is not a multiple of the {size} of a block of {fmt.name}; "
            f"leave strict=False to pad it with zeros"
        )
    rows = x.movedim(axis, -1).reshape(-1, length)
    return (torch.nn.functional.pad(rows, (0, missing)) if missing else rows.contiguous()), size


def _from_rows(rows: Tensor, shape: tuple[int, ...], axis: int) -> Tensor:
    length = shape[axis]
    moved = [*shape[:axis], *shape[axis + 1 :], length]
    return rows[:, :length].reshape(moved).movedim(-1, axis).contiguous()


def _cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    # Rounding up may leave the range of float16, whose largest number is then the nearest.
    return values.clamp(-65504, 65504).half() if dtype == torch.float16 else values.to(dtype)


def rotate_blocks(blocks: Tensor, seed: int, *, back: bool = False) -> Tensor:
    """Multiply blocks by the random rotation of their size, or by its transpose to turn them `back`."""
    matrix = torch.from_numpy(hadamard(blocks.shape[-1], seed)).to(blocks.device)
    return blocks.float() @ (matrix.T if back else matrix)


# -------------------------------------------------------------------------------------------------------- checks


def checked_rules(scale_rule: str, clip: str, nonfinite: str) -> Rules:
    """The options, or an error that lists what there is."""
    for name, given, known in (
        ("scale_rule", scale_rule, SCALE_RULES),
        ("clip", clip, CLIPS),
        ("nonfinite", nonfinite, ("raise", "propagate")),
    ):
        if given not in known:
            raise InputError(f"{name}={given!r} is not one of {', '.join(known)}")
    return Rules(scale_rule, clip, nonfinite)  # type: ignore[arg-type]  # checked to be of those just now


def checked_tensor(x: Any, axis: int) -> Tensor:
    """`x` as a tensor of a floating dtype that has `axis`."""
    if isinstance(x, torch.Tensor):
        tensor, is_floating = x, x.is_floating_point()
    else:
        array = np.asarray(x)
        is_floating = array.dtype.kind == "f" and array.dtype.itemsize <= 8
        if is_floating:  # torch reads no array in the other byte order
            tensor = torch.from_numpy(np.ascontiguousarray(array, array.dtype.newbyteorder("=")))
    if not is_floating:
        dtype = x.dtype if hasattr(x, "dtype") else type(x).__name__
        raise TypeError(f"x has dtype {dtype}; expected floating-point values: convert them first")
    if not -tensor.ndim <= axis < tensor.ndim:
        raise InputError(f"axis={axis} is out of range for a tensor of shape {tuple(tensor.shape)}")
    if not tensor.shape[axis]:
        raise InputError(f"axis={axis} of a tensor of shape {tuple(tensor.shape)} has no values")
    return tensor


def _checked_rotation(blocks: Tensor, rotate: str) -> Tensor:
    if rotate != "hadamard":
        raise InputError(f"rotate={rotate!r} is not 'hadamard' or None")
    if not bool(torch.isfinite(blocks.sum(dtype=torch.float64))):  # a rotation would spread it over the block
        refuse_nonfinite(blocks)
    return blocks


def refuse_nonfinite(values: Tensor) -> None:
    """Raise if there is NaN or infinity, in float32: how many, and where the first is."""
    bad, what = (~torch.isfinite(values)).flatten().nonzero(), "NaN or infinite"
    if not len(bad):
        bad, what = (~torch.isfinite(values.float())).flatten().nonzero(), "beyond the range of float32"
    if len(bad):
        raise InputError(
            f"x holds {len(bad)} values that are {what}, the first at flat index {int(bad[0])} "
            f"(the quantised axis last); use nonfinite='propagate' to let their blocks become NaN"
        )
