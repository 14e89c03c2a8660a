"""Figures as people write them: three significant digits, real minus signs, ms and GiB where they belong.

Every function returns text for one value; a value that is not there (None or NaN) is an en dash.
"""

from __future__ import annotations

import math
from typing import TypeGuard

Value = float | None

MISSING = "–"
MINUS = "−"
SPACE = "\N{NO-BREAK SPACE}"

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def decimals_for(value: Value, low: Value = None, high: Value = None) -> int | None:
    """Decimals that give the largest of a value and the ends of its interval three significant digits.

    A narrow interval gets two significant digits for half its width, whatever the size of the value.

    Returns
    -------
    int or None
        None: the values are so small or so large that they read better as powers of ten.

    Examples
    --------
    >>> decimals_for(0.8123, 0.79, 0.83), decimals_for(1234.5), decimals_for(23.41, 23.389, 23.431)
    (3, 0, 3)
    """
    sizes = [abs(number) for number in (value, low, high) if is_known(number) and math.isfinite(number)]
    exponent = _exponent(max(sizes, default=0.0))
    if exponent is None:
        return 2
    if exponent < -4 or exponent >= 7:
        return None
    decimals = max(2 - exponent, 0)
    if is_known(low) and is_known(high):
        width = _exponent((high - low) / 2)
        decimals = decimals if width is None else max(decimals, min(1 - width, 6))
    return decimals


def is_known(value: Value) -> TypeGuard[float]:
    """Whether there is a value at all."""
    return value is not None and not math.isnan(value)


def number(value: Value, decimals: int | None = None, *, sign: bool = False) -> str:
    r"""`value` with `decimals` (default: three significant digits) and thousands separators.

    Examples
    --------
    >>> number(0.81234), number(-1234.5), number(0.0304, 3, sign=True), number(0.0000123)
    ('0.812', '−1,234', '+0.030', '1.23\xa0×\xa010⁻⁵')
    """
    if not is_known(value):
        return MISSING
    if math.isinf(value):
        return MINUS + "∞" if value < 0 else "∞"
    if decimals is None:
        decimals = decimals_for(value)
    if decimals is None:
        digits, _, exponent = f"{value:{'+' if sign else ''}.2e}".partition("e")
        return f"{digits} × 10{str(int(exponent)).translate(_SUPERSCRIPTS)}".replace("-", MINUS).replace(" ", SPACE)
    rounded = round(value, decimals)
    if rounded == 0:
        return f"{0:.{decimals}f}"
    return f"{rounded:{'+' if sign else ''},.{decimals}f}".replace("-", MINUS)


def with_unit(text: str, unit: str) -> str:
    """`text` and its unit, kept on one line."""
    return f"{text}{SPACE}{unit}" if unit and text != MISSING else text


def interval(low: Value, high: Value, decimals: int | None = None, *, sign: bool = False) -> str:
    """Both ends in words, so that no dash can be taken for a minus; empty where there is no interval.

    Examples
    --------
    >>> interval(-0.0123, 0.05, 3), interval(None, None)
    ('−0.012 to 0.050', '')
    """
    if not is_known(low) or not is_known(high):
        return ""
    return f"{number(low, decimals, sign=sign)} to {number(high, decimals, sign=sign)}"


def effect(value: Value, low: Value, high: Value, scale: str, unit: str = "") -> tuple[str, str]:
    r"""An effect and its interval to the same decimals: a signed difference, or a ratio.

    Examples
    --------
    >>> effect(0.0312, 0.0118, 0.0502, "difference", "nats")
    ('+0.0312\xa0nats', '+0.0118 to +0.0502')
    >>> effect(0.92, 0.88, 0.97, "ratio")
    ('0.920×', '0.880× to 0.970×')
    """
    decimals = decimals_for(value, low, high)
    if scale == "difference":
        return with_unit(number(value, decimals, sign=True), unit), interval(low, high, decimals, sign=True)
    if not is_known(value):
        return MISSING, ""
    ends = [f"{number(end, decimals)}×" for end in (low, high) if is_known(end)]
    return f"{number(value, decimals)}×", " to ".join(ends)


def duration(seconds: Value) -> str:
    r"""Seconds as a person says them.

    Examples
    --------
    >>> [duration(s) for s in (0.00002, 0.0123, 0.9999, 41.26, 125, 4320)]
    ['20.0\xa0µs', '12.3\xa0ms', '1.00\xa0s', '41.3\xa0s', '2\xa0min\xa005\xa0s', '1\xa0h\xa012\xa0min']
    """
    if not is_known(seconds) or math.isinf(seconds):
        return MISSING
    if seconds <= 0:
        return f"0{SPACE}s"
    seconds = float(f"{seconds:.2e}") if seconds < 100 else float(round(seconds))
    if seconds < 1e-3:
        return f"{_three(seconds * 1e6)}{SPACE}µs"
    if seconds < 1:
        return f"{_three(seconds * 1e3)}{SPACE}ms"
    if seconds < 100:
        return f"{_three(seconds)}{SPACE}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}{SPACE}min{SPACE}{rest:02d}{SPACE}s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,}{SPACE}h{SPACE}{minutes:02d}{SPACE}min"


def memory(mib: Value) -> str:
    r"""Mebibytes as a person says them.

    Examples
    --------
    >>> memory(0.5), memory(312.4), memory(1500)
    ('512\xa0KiB', '312\xa0MiB', '1.46\xa0GiB')
    """
    if not is_known(mib) or math.isinf(mib):
        return MISSING
    if 0 < mib < 1:
        return f"{_three(mib * 1024)}{SPACE}KiB"
    if mib < 1024:
        return f"{_three(mib)}{SPACE}MiB"
    return f"{_three(mib / 1024)}{SPACE}GiB"


def p_value(p: Value) -> str:
    r"""A p-value with its relation sign.

    Examples
    --------
    >>> p_value(0.00002), p_value(0.0312), p_value(0.4)
    ('p\xa0<\xa00.001', 'p\xa0=\xa00.031', 'p\xa0=\xa00.400')
    """
    if not is_known(p):
        return MISSING
    text = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    return text.replace(" ", SPACE)


def _three(value: float) -> str:
    """Three significant digits for a positive value that is neither tiny nor huge; digits before the point all stay."""
    return number(value, decimals_for(value) or 0)


def _exponent(value: float) -> int | None:
    """The power of ten of `value` as three digits show it (9.996 is 10.0); None for zero."""
    return int(f"{value:.2e}".partition("e")[2]) if value > 0 and math.isfinite(value) else None
