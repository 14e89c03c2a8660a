"""The numeric heart: scales of blocks and rounding to a grid, on float32 tensors of shape (n_blocks, block).

Powers of two are made from the bits of float32, never by a logarithm: log2 of an exact power can be off by one unit in
the last place, and the ceiling of that is off by a factor of two.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from assay.compress.mxint.formats import E4M3, Element

if TYPE_CHECKING:
    from torch import Tensor

    from assay.compress.mxint.formats import Format

ScaleRule = Literal["ceil", "floor", "round", "ocp"]
Clip = Literal["sym", "asym"]
SCALE_RULES: tuple[ScaleRule, ...] = ("ceil", "floor", "round", "ocp")
CLIPS: tuple[Clip, ...] = ("sym", "asym")

_EXPONENT = 0x7F800000  # the exponent field of a float32
_MANTISSA = 0x007FFFFF
_SMALLEST_SCALE = 1 << 22  # 2^-127, which is subnormal
_NAN_BYTE = 255  # of an E8M0 scale
_E4M3_NAN = 0x7F


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.int32))


@cache
def _carry(maximum: float, rule: ScaleRule) -> tuple[int, int]:
    """What to add to the bits of absmax so that their exponent is that of the rule, and what to take off it then."""
    if rule == "round":  # to the nearest power on the log scale: the floor for a maximum smaller by sqrt(2)
        threshold = np.float32(maximum / math.sqrt(2))
        if float(threshold) < maximum / math.sqrt(2):
            threshold = np.nextafter(threshold, np.float32(np.inf))
        maximum, rule = float(threshold), "floor"
    mantissa, exponent = _bits(maximum) & _MANTISSA, (_bits(maximum) >> 23) - 127
    # ceil: a mantissa above that of the maximum carries into the exponent. floor: one not below it does, and one more
    # is taken off (a plain borrow would make the bits of a tiny maximum negative).
    return {
        "ceil": (_MANTISSA - mantissa, exponent),
        "floor": (_MANTISSA + 1 - mantissa, exponent + 1),
        "ocp": (0, exponent),
    }[rule]


def power_of_two_scale(absmax: Tensor, maximum: float, rule: ScaleRule = "ceil") -> Tensor:
    """Scales 2^E of blocks with E in -127..127, as float32.

    Parameters
    ----------
    absmax : float32
        Largest magnitude of each block, finite.
    maximum : float
        Qmax of the element.
    rule : {"ceil", "floor", "round", "ocp"}
        Of log2(absmax / Qmax); "ocp": floor(log2 absmax) - floor(log2 Qmax), as in the OCP standard.
    """
    add, exponent = _carry(maximum, rule)
    bits = (absmax.view(torch.int32) + add).bitwise_and_(_EXPONENT).sub_(exponent << 23)
    scale: Tensor = bits.clamp_(min=_SMALLEST_SCALE).view(torch.float32)
    return scale


def byte_of_scale(scale: Tensor) -> Tensor:
    """E8M0 bytes E (uint8) of scales 2^(E - 127); 255 for NaN."""
    return (scale.view(torch.int32) >> 23).to(torch.uint8)


def scale_of_byte(byte: Tensor) -> Tensor:
    """2^(byte - 127) as float32; 255 is NaN."""
    bits = (byte.to(torch.int32) << 23).clamp_(min=_SMALLEST_SCALE)
    return bits.view(torch.float32).masked_fill(byte == _NAN_BYTE, math.nan)


def round_to_grid_(values: Tensor, element: Element, clip: Clip = "sym") -> Tensor:
    """Round float32 values to the nearest of the grid, ties to even, and saturate; in place.

    Parameters
    ----------
    values : float32
    element : Element
    clip : {"sym", "asym"}
        "asym" lets integers reach the extra negative code of two's complement.
    """
    lowest = -element.maximum - (1 if clip == "asym" and element.is_integer else 0)
    if element.is_integer:
        return values.round_().clamp_(lowest, element.maximum)
    # The step of a value is 2^(e - mantissa bits), with e not below the smallest normal exponent.
    step = values.view(torch.int32) & _EXPONENT
    step.clamp_(min=_bits(element.min_normal)).sub_(element.mantissa_bits << 23)
    per_step = ((254 << 23) - step).view(torch.float32)
    return values.mul_(per_step).round_().mul_(step.view(torch.float32)).clamp_(lowest, element.maximum)


def encode(values: Tensor, element: Element) -> Tensor:
    """Codes (uint8) of values that lie on the grid: two's complement, or sign, exponent, mantissa."""
    if element.is_integer:
        code: Tensor = values.to(torch.int8).view(torch.uint8) & (2**element.bits - 1)
        return code
    magnitude = values.abs()
    shift = 23 - element.mantissa_bits
    normal = (magnitude.view(torch.int32) >> shift) - ((127 - element.bias) << element.mantissa_bits)
    subnormal = (magnitude * (1 / element.min_subnormal)).to(torch.int32)
    code = torch.where(magnitude < element.min_normal, subnormal, normal)
    return (code | (torch.signbit(values).to(torch.int32) << (element.bits - 1))).to(torch.uint8)


@cache
def _table(element: Element) -> Tensor:
    return torch.from_numpy(element.values())


def decode(codes: Tensor, element: Element) -> Tensor:
    """Values (float32) of codes (uint8)."""
    if element.is_integer and element.bits == 8:
        return codes.view(torch.int8).float()
    return torch.index_select(_table(element).to(codes.device), 0, codes.flatten().int()).view(codes.shape)


def tensor_scale(absmax: Tensor, fmt: Format) -> Tensor:
    """The second scale of NV formats: t = max over blocks of (absmax / Qmax), over 448; a float32 scalar."""
    ideal = absmax / fmt.element.maximum
    finite = ideal.masked_fill(~torch.isfinite(ideal), 0.0)
    return (finite.amax() if finite.numel() else finite.new_zeros(())) / E4M3.maximum


def block_scales(absmax: Tensor, fmt: Format, rule: ScaleRule, t: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scales of blocks: as numbers of the kind that is stored, and the values to divide by.

    Parameters
    ----------
    absmax : (n_blocks, 1) float32, finite
    fmt : Format
    rule : ScaleRule
        Of powers of two.
    t : float32 scalar or None
        :func:`tensor_scale`, of NV formats.

    Returns
    -------
    kept, scale : (n_blocks, 1) float32
        They differ for NV formats only, where scale = t * kept.
    """
    if fmt.scale == "e8m0":
        scale = power_of_two_scale(absmax, fmt.element.maximum, rule)
        return scale, scale
    ideal = absmax / fmt.element.maximum
    if fmt.scale == "e4m3":
        assert t is not None
        kept = round_to_grid_(ideal / t.where(t > 0, torch.inf), E4M3)
        return kept, kept * t
    scale = ideal.bfloat16().float() if fmt.scale == "bf16" else ideal
    return scale, scale


def stored_scales(kept: Tensor, fmt: Format) -> Tensor:
    """What is stored of the first result of :func:`block_scales`: a byte, or the number itself; NaN stays NaN."""
    if fmt.scale == "e8m0":
        return byte_of_scale(kept)
    if fmt.scale == "e4m3":
        return encode(kept.nan_to_num(nan=0.0), E4M3).masked_fill_(kept.isnan(), _E4M3_NAN)
    return kept


def scales_of_stored(stored: Tensor, fmt: Format, t: Tensor | None) -> Tensor:
    """Values (float32) of stored scales: the inverse of :func:`stored_scales`."""
    if fmt.scale == "e8m0":
        return scale_of_byte(stored)
    if fmt.scale == "e4m3":
        assert t is not None
        return decode(stored, E4M3) * t
    return stored


def divide(blocks: Tensor, scale: Tensor, fmt: Format, out: Tensor) -> Tensor:
    """Divide into `out`; 0 where the scale is 0."""
    if fmt.scale == "e8m0":
        # The inverse of a power of two is exact, and so is the product.
        inverse = (254 << 23) - (scale.view(torch.int32) & _EXPONENT)
        return torch.mul(blocks, inverse.view(torch.float32), out=out)
    torch.div(blocks, scale.where(scale > 0, torch.inf), out=out)
    return out.copy_(out.bfloat16()) if fmt.scale == "bf16" else out
