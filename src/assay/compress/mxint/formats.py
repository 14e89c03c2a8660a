"""The number formats: grids of elements, blocks and their scales. Plain numbers; no torch here."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay._core.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

ScaleKind = Literal["e8m0", "e4m3", "fp32", "bf16"]


@dataclass(frozen=True)
class Element:
    """The grid that a scaled value is rounded to.

    Parameters
    ----------
    name : str
    bits : int
        Of one code, sign included.
    exponent_bits, mantissa_bits : int
        Of a floating-point grid; both 0 for integers.
    maximum : float
        Largest value in use; the grid is symmetric.
    """

    name: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    maximum: float

    @property
    def is_integer(self) -> bool:
        """Whether the grid is evenly spaced."""
        return self.exponent_bits == 0

    @property
    def bias(self) -> int:
        """Exponent bias 2^(x-1) - 1 of a floating-point grid."""
        return int(2 ** (self.exponent_bits - 1)) - 1

    @property
    def min_normal(self) -> float:
        """Smallest normal value of a floating-point grid."""
        return 2.0 ** (1 - self.bias)

    @property
    def min_subnormal(self) -> float:
        """Smallest positive value: the step of the subnormals, 1 for integers."""
        return 1.0 if self.is_integer else self.min_normal * 2.0**-self.mantissa_bits

    def values(self) -> NDArray[np.float32]:
        """The value of every code, (2^bits,); codes beyond `maximum` are NaN, as no tensor holds them."""
        codes = np.arange(2**self.bits)
        if self.is_integer:
            signed = np.where(codes >= 2 ** (self.bits - 1), codes - 2**self.bits, codes)
            return signed.astype(np.float32)
        magnitude = codes % 2 ** (self.bits - 1)
        exponent, mantissa = divmod(magnitude, 2**self.mantissa_bits)
        fraction = mantissa / 2**self.mantissa_bits
        normal = 2.0 ** (exponent - self.bias) * (1 + fraction)
        value = np.where(exponent == 0, self.min_normal * fraction, normal)
        value = np.where(value > self.maximum, np.nan, value)
        return np.where(codes >= 2 ** (self.bits - 1), -value, value).astype(np.float32)


INT8 = Element("int8", 8, 0, 0, 127.0)
INT6 = Element("int6", 6, 0, 0, 31.0)
INT4 = Element("int4", 4, 0, 0, 7.0)
E4M3 = Element("e4m3", 8, 4, 3, 448.0)
E5M2 = Element("e5m2", 8, 5, 2, 57344.0)
E2M3 = Element("e2m3", 6, 2, 3, 7.5)
E3M2 = Element("e3m2", 6, 3, 2, 28.0)
E2M1 = Element("e2m1", 4, 2, 1, 6.0)


@dataclass(frozen=True)
class Format:
    """A grid, the number of neighbours that share a scale, and how the scale is kept.

    Parameters
    ----------
    name : str
    element : Element
    block : int
        Values that share a scale, along the reduction dimension; 0: the whole row.
    scale : {"e8m0", "e4m3", "fp32", "bf16"}
        A power of two in a byte (MX); an E4M3 byte under one fp32 number for the tensor (NV); or a plain number.
        With "bf16" the quotient is rounded to bf16 too, as low-precision kernels do.
    """

    name: str
    element: Element
    block: int
    scale: ScaleKind

    @property
    def scale_bits(self) -> int:
        """Bits of one block's scale."""
        return {"e8m0": 8, "e4m3": 8, "fp32": 32, "bf16": 16}[self.scale]

    @property
    def bits_per_element(self) -> float:
        """Bits of a code and its share of the block's scale (a whole row's scale counts as nothing)."""
        return self.element.bits + (self.scale_bits / self.block if self.block else 0.0)


FORMATS: dict[str, Format] = {
    made.name: made
    for made in (
        Format("mxint8", INT8, 32, "e8m0"),
        Format("mxfp8", E4M3, 32, "e8m0"),
        Format("mxfp8-e5m2", E5M2, 32, "e8m0"),
        Format("mxint6", INT6, 32, "e8m0"),
        Format("mxfp6", E2M3, 32, "e8m0"),
        Format("mxfp6-e3m2", E3M2, 32, "e8m0"),
        Format("mxint4", INT4, 32, "e8m0"),
        Format("mxfp4", E2M1, 32, "e8m0"),
        Format("nvint4", INT4, 16, "e4m3"),
        Format("nvfp4", E2M1, 16, "e4m3"),
        # What people use without blocks, and the scale that makes the extra negative code visible.
        Format("int8", INT8, 0, "fp32"),
        Format("fp8", E4M3, 0, "fp32"),
        Format("int4", INT4, 0, "fp32"),
        Format("fp4", E2M1, 0, "fp32"),
        Format("int8-bf16", INT8, 32, "bf16"),
    )
}

#: The eight formats of the paper's comparison, widest first, integer before its floating-point twin.
PAPER_FORMATS = ("mxint8", "mxfp8", "mxint6", "mxfp6", "mxint4", "mxfp4", "nvint4", "nvfp4")


def get_format(fmt: str | Format, *, block: int | None = None) -> Format:
    """Look a format up by name, with another block size where one is given.

    Raises
    ------
    InputError
        There is no format of that name, or the block size is negative.

    Examples
    --------
    >>> get_format("nvint4").bits_per_element
    4.5
    >>> get_format("int8", block=128).bits_per_element
    8.25
    """
    if isinstance(fmt, str):
        if fmt not in FORMATS:
            close = difflib.get_close_matches(fmt, FORMATS, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise InputError(f"format {fmt!r} is not one of {', '.join(FORMATS)}{hint}")
        fmt = FORMATS[fmt]
    if block is None:
        return fmt
    if block < 0:
        raise InputError(f"block={block}: expected a number of values from 1, or 0 for the whole row")
    return replace(fmt, block=block)


def hadamard(size: int, seed: int = 0) -> NDArray[np.float32]:
    """The random rotation R = D H / sqrt(size): D random signs, H Hadamard's matrix; R Rᵀ = I.

    Parameters
    ----------
    size : int
        A power of two.
    seed : int
        Of the signs.

    Raises
    ------
    InputError
        `size` is not a power of two.

    Examples
    --------
    >>> rotation = hadamard(4)
    >>> bool(np.allclose(rotation @ rotation.T, np.eye(4)))
    True
    """
    if size < 1 or size & (size - 1):
        raise InputError(f"rotate='hadamard' needs blocks of a power of two, such as 16 or 32, not {size}")
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size)
    return (signs[:, None] * matrix / math.sqrt(size)).astype(np.float32)
