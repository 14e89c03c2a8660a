"""What error to expect before anything is quantised: Theorems 1 and 2 for normal data, and where INT overtakes FP."""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.stats import norm

from assay._core.errors import InputError
from assay.compress.mxint.formats import Format, get_format

#: How far a stored scale is above the ideal one on average, as the authors take it for their plots.
TYPICAL_RHO = {"e8m0": 1.5, "e4m3": 1.05, "fp32": 1.0, "bf16": 1.0}


def theory_qsnr(fmt: str | Format, kappa: float, rho: float | None = None) -> float:
    """Signal-to-quantisation-noise ratio that normal data of a given crest factor should have.

    Parameters
    ----------
    fmt : str or Format
    kappa : float
        Crest factor of a block, max |x| / rms(x); at least 1.
    rho : float, optional
        Stored scale over ideal scale; None: 1.5 for powers of two, 1.05 for E4M3, as in the paper's plots.

    Returns
    -------
    float
        In dB (paper, Theorem 1 for integers, Theorem 2 with the energy flushed to zero for floating point).

    Raises
    ------
    InputError
        `kappa` is below 1 or `rho` is not above 0.

    Examples
    --------
    >>> round(theory_qsnr("mxint8", 3.0), 2), round(theory_qsnr("mxfp8", 3.0), 2)
    (39.88, 31.86)
    """
    made = get_format(fmt)
    rho = TYPICAL_RHO[made.scale] if rho is None else rho
    if not kappa >= 1:
        raise InputError(f"kappa={kappa}: a crest factor max|x| / rms(x) is at least 1")
    if not rho > 0:
        raise InputError(f"rho={rho}: expected a number above 0")
    if made.element.is_integer:
        return _integer_qsnr(made, kappa, rho)
    return _floating_qsnr(made, kappa, rho)


def _integer_qsnr(fmt: Format, kappa: float, rho: float) -> float:
    # step = rho kappa sigma / 2^(b-1), error step^2 / 12; rounded constants as printed in the paper (Theorem 1)
    level = 4.78 + 6.02 * fmt.element.bits - 20 * math.log10(rho * kappa)
    if fmt.scale == "e8m0" or fmt.block < 2:
        return level
    # The scale is close enough to ideal that the block's maximum is exact: one value in g has no error.
    return level + 10 * math.log10(fmt.block / (fmt.block - 1))


def _floating_qsnr(fmt: Format, kappa: float, rho: float) -> float:
    element = fmt.element
    reach = rho * kappa / element.maximum
    half_subnormal = reach * 2.0 ** (-element.bias - element.mantissa_bits)  # t0
    normal = reach * 2.0 ** (1 - element.bias)  # t1
    p_subnormal = 2 * (norm.cdf(normal) - norm.cdf(half_subnormal))
    w_normal = 2 * (normal * norm.pdf(normal) + norm.sf(normal))
    w_zero = 2 * norm.cdf(half_subnormal) - 1 - 2 * half_subnormal * norm.pdf(half_subnormal)
    if fmt.scale != "e8m0" and fmt.block:
        w_normal = max(0.0, w_normal - kappa**2 / fmt.block)
    alpha = 1 / (24 * 2.0 ** (2 * element.mantissa_bits))
    beta = 2.0 ** (2 * (1 - element.bias - element.mantissa_bits)) / (12 * element.maximum**2)
    return float(-10 * math.log10(alpha * w_normal + beta * (rho * kappa) ** 2 * p_subnormal + w_zero))


def crossover(fmt_int: str | Format, fmt_fp: str | Format) -> float:
    """Crest factor below which the integer format has the smaller error.

    Raises
    ------
    InputError
        The formats are not an integer and a floating-point one, or their curves do not cross.

    Examples
    --------
    >>> round(crossover("mxint8", "mxfp8"), 2)
    7.55
    """
    integer, floating = get_format(fmt_int), get_format(fmt_fp)
    if not integer.element.is_integer or floating.element.is_integer:
        raise InputError(f"crossover({integer.name!r}, {floating.name!r}): give an integer format, then a floating one")

    def lead(kappa: float) -> float:
        return theory_qsnr(integer, kappa) - theory_qsnr(floating, kappa)

    low, high = 1.0, 64.0
    if lead(low) * lead(high) > 0:
        raise InputError(f"crossover({integer.name!r}, {floating.name!r}): one is better at every crest factor 1 to 64")
    return float(brentq(lead, low, high, xtol=1e-10))
