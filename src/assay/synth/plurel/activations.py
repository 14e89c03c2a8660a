"""The functions between the layers of the random networks: those of torch by their names, and a few of the paper's.

Each takes a float32 array, may overwrite it, and returns the result. The slope of ``rrelu`` is the one it has outside
training, the mean of 1/8 and 1/3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

Floats = NDArray[np.float32]

_SELU_ALPHA, _SELU_SCALE = np.float32(1.6732632423543772), np.float32(1.0507009873554805)


def _relu(x: Floats) -> Floats:
    np.maximum(x, np.float32(0), out=x)
    return x


def _leaky(slope: float) -> Callable[[Floats], Floats]:
    def apply(x: Floats) -> Floats:
        np.maximum(x, x * np.float32(slope), out=x)
        return x

    return apply


def _elu(x: Floats) -> Floats:
    return np.maximum(x, np.expm1(np.minimum(x, np.float32(0))), out=x)  # expm1(x) >= x: the larger is the right one


def _selu(x: Floats) -> Floats:
    negative = _SELU_ALPHA * np.expm1(np.minimum(x, np.float32(0)))
    return np.multiply(np.where(x > 0, x, negative), _SELU_SCALE, out=x)


def _sigmoid(x: Floats) -> Floats:
    np.multiply(x, np.float32(0.5), out=x)
    np.tanh(x, out=x)
    x += np.float32(1)
    x *= np.float32(0.5)
    return x


def _silu(x: Floats) -> Floats:
    return np.multiply(x, _sigmoid(x.copy()), out=x)


def _softplus(x: Floats) -> Floats:
    tail = np.exp(-np.abs(x))
    return np.add(np.maximum(x, np.float32(0)), np.log1p(tail, out=tail), out=x)


def _log_sigmoid(x: Floats) -> Floats:
    return np.negative(_softplus(np.negative(x, out=x)), out=x)


def _mish(x: Floats) -> Floats:
    return np.multiply(x, np.tanh(_softplus(x.copy())), out=x)


def _gelu(x: Floats) -> Floats:
    """Give x Phi(x); the error function to 1.5e-7 by Abramowitz and Stegun, 7.1.26, faster than scipy's."""
    size = np.abs(x)
    t = np.float32(1) / (np.float32(1) + np.float32(0.3275911 / np.sqrt(2)) * size)
    poly = t * np.float32(1.061405429)
    for c in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        poly += np.float32(c)
        poly *= t
    np.square(size, out=size)
    size *= np.float32(-0.5)
    poly *= np.exp(size, out=size)  # erfc(|x| / sqrt 2)
    np.copysign(np.subtract(np.float32(1), poly, out=poly), x, out=poly)
    poly += np.float32(1)
    poly *= np.float32(0.5)
    x *= poly
    return x


def _softsign(x: Floats) -> Floats:
    return np.divide(x, np.float32(1) + np.abs(x), out=x)


def _tanh(x: Floats) -> Floats:
    return np.tanh(x, out=x)


def _hard_sigmoid(x: Floats) -> Floats:
    x /= np.float32(6)
    x += np.float32(0.5)
    return np.clip(x, np.float32(0), np.float32(1), out=x)


def _hard_swish(x: Floats) -> Floats:
    return np.multiply(x, _hard_sigmoid(x.copy()), out=x)


def _clamp(x: Floats) -> Floats:
    return np.clip(x, np.float32(-1), np.float32(1), out=x)


def _tanh_shrink(x: Floats) -> Floats:
    return np.subtract(x, np.tanh(x), out=x)


def _soft_shrink(x: Floats) -> Floats:
    return np.subtract(x, np.clip(x, np.float32(-0.5), np.float32(0.5)), out=x)


def _hard_shrink(x: Floats) -> Floats:
    return np.multiply(x, np.abs(x) > np.float32(0.5), out=x)


def _identity(x: Floats) -> Floats:
    return x


def _abs(x: Floats) -> Floats:
    return np.abs(x, out=x)


def _sin(x: Floats) -> Floats:
    return np.sin(x, out=x)


def _cos(x: Floats) -> Floats:
    return np.cos(x, out=x)


def _sign(x: Floats) -> Floats:
    return np.sign(x, out=x)


def _signed_log1p(x: Floats) -> Floats:
    size = np.abs(x)
    return np.copysign(np.log1p(size, out=size), x, out=x)


def _bent(x: Floats) -> Floats:
    root = np.square(x)
    root += np.float32(1)
    np.sqrt(root, out=root)
    root -= np.float32(1)
    root *= np.float32(0.5)
    return np.add(x, root, out=x)


def sine_series(rng: np.random.Generator) -> Callable[[Floats], Floats]:
    """A random function that stays what it is: sum of A_k sin(f_k x + phi_k), 3 to 7 terms."""
    n_terms = int(rng.integers(3, 8))
    amplitude = rng.standard_normal(n_terms).astype(np.float32)
    frequency = np.exp(rng.uniform(np.log(0.1), np.log(10), n_terms)).astype(np.float32)
    phase = rng.uniform(0, 2 * np.pi, n_terms).astype(np.float32)

    def apply(x: Floats) -> Floats:
        total = np.zeros_like(x)
        term = np.empty_like(x)
        for a, f, p in zip(amplitude, frequency, phase, strict=True):
            np.multiply(x, f, out=term)
            term += p
            np.sin(term, out=term)
            term *= a
            total += term
        return total

    return apply


#: By name; None: made anew for every layer by :func:`sine_series`.
ACTIVATIONS: dict[str, Callable[[Floats], Floats] | None] = {
    "relu": _relu,
    "elu": _elu,
    "selu": _selu,
    "silu": _silu,
    "softsign": _softsign,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "hardswish": _hard_swish,
    "mish": _mish,
    "leaky_relu": _leaky(0.01),
    "gelu": _gelu,
    "softplus": _softplus,
    "hardsigmoid": _hard_sigmoid,
    "hardtanh": _clamp,
    "celu": _elu,
    "tanhshrink": _tanh_shrink,
    "rrelu": _leaky((1 / 8 + 1 / 3) / 2),
    "logsigmoid": _log_sigmoid,
    "softshrink": _soft_shrink,
    "hardshrink": _hard_shrink,
    "identity": _identity,
    "abs": _abs,
    "sin": _sin,
    "cos": _cos,
    "sign": _sign,
    "clamp": _clamp,
    "signed_log1p": _signed_log1p,
    "bent_identity": _bent,
    "sine_series": None,
}
#: Those whose values lie in [-1, 1]: no clamp is needed after them.
BOUNDED = frozenset({"softsign", "tanh", "sigmoid", "hardsigmoid", "hardtanh", "sin", "cos", "sign", "clamp"})
