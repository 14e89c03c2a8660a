"""Random networks that are never trained: what turns a value into an embedding and an embedding into a value.

A network is a fixed function (paper, section 3; version 1.0.0 of the authors' code draws its activations anew on every
call, the current one does not). Fans are those that torch reads from an (inputs, outputs) matrix, as the authors' code
has them: the second axis counts as the inputs of a Kaiming initialiser.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from assay.synth.plurel.activations import ACTIVATIONS, BOUNDED, sine_series
from assay.synth.plurel.draws import Floats, Rng, pick, real, whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.synth.plurel.config import ScmConfig

#: Hidden layers are clamped to it; products of embeddings too (the authors' code overflows there).
LIMIT = 1e6
#: Terms are clamped to it before they are aggregated.
TERM_LIMIT = 1e4


def matrix(rng: Rng, n_in: int, n_out: int, initialiser: str) -> Floats:
    """(n_in, n_out) A weight matrix by one of torch's initialisers."""
    if initialiser == "sparse":  # half of every column is zero, the rest N(0, 0.01²)
        weight = np.float32(0.01) * rng.standard_normal((n_in, n_out), dtype=np.float32)
        place, n_zero = rng.random((n_out, n_in)), math.ceil(n_in / 2)
        if n_zero == n_in:
            return np.zeros_like(weight)
        weight *= (place >= np.partition(place, n_zero, axis=1)[:, n_zero, None]).T
        return weight
    if initialiser == "truncated_normal":
        flat = rng.standard_normal(n_in * n_out, dtype=np.float32)
        outside = np.flatnonzero(np.abs(flat) > 2)
        while outside.size:
            flat[outside] = rng.standard_normal(outside.size, dtype=np.float32)
            outside = outside[np.abs(flat[outside]) > 2]
        return flat.reshape(n_in, n_out)
    scheme, _, family = initialiser.partition("_")
    sd = math.sqrt(2 / n_out) if scheme == "kaiming" else math.sqrt(2 / (n_in + n_out))
    if family == "normal":
        return np.float32(sd) * rng.standard_normal((n_in, n_out), dtype=np.float32)
    return np.float32(2 * sd * math.sqrt(3)) * (rng.random((n_in, n_out), dtype=np.float32) - np.float32(0.5))


@dataclass(frozen=True)
class Layer:
    """A hidden layer: x -> clamp(gain * activation(x @ weight)); the gain stands in the next matrix."""

    weight: Floats
    activation: Callable[[Floats], Floats]
    gain: float
    is_bounded: bool


@dataclass(frozen=True)
class Network:
    """Layers without biases, the last one linear.

    Attributes
    ----------
    hidden : tuple of Layer
    last : (width, n_out) float32
        With the gain of the last hidden layer inside.
    """

    hidden: tuple[Layer, ...]
    last: Floats

    def __call__(self, x: Floats) -> Floats:
        """(n, n_in) to (n, n_out)."""
        for number, layer in enumerate(self.hidden):
            x = np.outer(x, layer.weight) if number == 0 and x.shape[1] == 1 else x @ layer.weight
            x = layer.activation(x)
            if not layer.is_bounded:
                x.clip(-LIMIT / layer.gain, LIMIT / layer.gain, out=x)
        return x @ self.last

    @cached_property
    def bound(self) -> float:
        """No output is larger than this."""
        layer = self.hidden[-1]
        return float(np.abs(self.last).sum(axis=0).max()) * (1.0 if layer.is_bounded else LIMIT / layer.gain)


def network(rng: Rng, n_in: int, n_out: int, scm: ScmConfig) -> Network:
    """Draw a network of ``scm.depth`` matrices."""
    depth = whole(rng, scm.depth)
    sizes = [n_in, *[scm.width] * (depth - 1), n_out]
    weights, gain, layers = [], 1.0, []
    for a, b in pairwise(sizes):
        weight = matrix(rng, a, b, pick(rng, scm.initialisers))
        density = real(rng, scm.density)
        if density < 1:
            weight *= (rng.random(weight.shape, dtype=np.float32) < density) * np.float32(1 / density)
        weights.append(weight)
    for weight in weights[:-1]:
        name = pick(rng, scm.activations)
        function = ACTIVATIONS[name] or sine_series(rng)
        folded = weight * np.float32(gain)
        gain = math.exp(real(rng, scm.log_gain))
        layers.append(Layer(folded, function, gain, name in BOUNDED))
    return Network(tuple(layers), weights[-1] * np.float32(gain))


class Encoder:
    """A value to its embedding, times a weight, clamped to ±`TERM_LIMIT`.

    The embeddings of classes are a table of as many rows; a network whose first matrix is zero (the sparse initialiser
    of a single input gives that) has one embedding for all values.

    Parameters
    ----------
    net : Network
    classes : (n_classes, width) float32, optional
        Frozen embeddings; None: the value is a number.
    """

    def __init__(self, net: Network, classes: Floats | None = None, weight: float = 1.0) -> None:
        wild = 1e24  # a Cauchy weight may be anything; so bounded, no product of it overflows float32
        last = net.last * np.float32(min(max(weight, -wild), wild))
        self.net = Network(net.hidden, last)
        self.table: Floats | None = None
        if classes is not None:
            self.table = self._clamped(self.net(classes.copy()))
        elif not net.hidden[0].weight.any():
            self.table = self._clamped(self.net(np.zeros((1, 1), dtype=np.float32)))
        self.is_constant = classes is None and self.table is not None

    def __call__(self, values: Floats) -> Floats:
        """(n,) numbers or classes to (n, width), or to (1, width) where all have the same."""
        if self.is_constant:
            assert self.table is not None
            return self.table
        if self.table is not None:
            return self.table.take(values.astype(np.intp), axis=0, mode="clip")
        return self._clamped(self.net(values[:, None]))

    def _clamped(self, x: Floats) -> Floats:
        if self.net.bound <= TERM_LIMIT:
            return x
        return x.clip(-TERM_LIMIT, TERM_LIMIT, out=x)


class Decoder:
    """An embedding to a number, or to the class whose frozen embedding has the largest dot product with it."""

    def __init__(self, net: Network, classes: Floats | None = None) -> None:
        self.is_categorical = classes is not None
        self.net = net if classes is None else Network(net.hidden, net.last @ classes.T)

    def __call__(self, x: Floats) -> Floats:
        """(n, width) to (n,)."""
        out = self.net(x)
        if self.is_categorical:
            out = out.argmax(axis=1).astype(np.float32)[:, None]
        return out[:, 0]


def encoder(rng: Rng, n_classes: int, scm: ScmConfig, weight: float = 1.0) -> Encoder:
    """Draw an encoder; `n_classes` 0: of numbers."""
    if n_classes == 0:
        return Encoder(network(rng, 1, scm.width, scm), None, weight)
    classes = matrix(rng, n_classes, scm.width, pick(rng, scm.initialisers))
    return Encoder(network(rng, scm.width, scm.width, scm), classes, weight)


def decoder(rng: Rng, n_classes: int, scm: ScmConfig) -> Decoder:
    """Draw a decoder; `n_classes` 0: of numbers."""
    if n_classes == 0:
        return Decoder(network(rng, scm.width, 1, scm))
    classes = matrix(rng, n_classes, scm.width, pick(rng, scm.initialisers))
    return Decoder(network(rng, scm.width, scm.width, scm), classes)


# ------------------------------------------------------------------------------------------------- aggregating terms


class Aggregate:
    """Terms put together one by one, so that none is kept: sum, max, product or log-sum-exp.

    >>> total = Aggregate("logsumexp")
    >>> for term in ([[0.0]], [[0.0]]):
    ...     total.add(np.array(term, dtype=np.float32))
    >>> float(total.value()[0, 0]) == float(np.float32(np.log(2)))
    True
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._value: Floats | None = None
        self._scaled: Floats | None = None  # of log-sum-exp: the sum of exp(term - maximum)

    def add(self, term: Floats) -> None:
        """One term, (n, width) or (1, width)."""
        if self._value is None:
            self._value, self._scaled = term.copy(), np.ones_like(term) if self.kind == "logsumexp" else None
            return
        if term.shape[0] > self._value.shape[0]:  # constants came first
            self._value = np.repeat(self._value, term.shape[0], axis=0)
            self._scaled = None if self._scaled is None else np.repeat(self._scaled, term.shape[0], axis=0)
        if self.kind == "sum":
            self._value += term
        elif self.kind == "max":
            np.maximum(self._value, term, out=self._value)
        elif self.kind == "product":
            self._value *= term
            self._value.clip(-LIMIT, LIMIT, out=self._value)
        else:
            self._log_add(term, np.float32(1))

    def _log_add(self, maximum: Floats, scaled: Floats | np.float32) -> None:
        assert self._value is not None
        assert self._scaled is not None
        larger = np.maximum(self._value, maximum)
        for_own, for_new = self._value - larger, maximum - larger
        self._scaled *= np.exp(for_own, out=for_own)
        np.exp(for_new, out=for_new)
        for_new *= scaled
        self._scaled += for_new
        self._value = larger

    def merge(self, other: Aggregate) -> None:
        """Add all terms of another aggregate of the same kind."""
        if other._value is None:
            return
        if self._value is None or self.kind != "logsumexp":
            self.add(other._value)
            if self.kind == "logsumexp":
                assert other._scaled is not None
                self._scaled = other._scaled.copy()
            return
        assert other._scaled is not None
        if other._value.shape[0] > self._value.shape[0]:
            assert self._scaled is not None
            self._value = np.repeat(self._value, other._value.shape[0], axis=0)
            self._scaled = np.repeat(self._scaled, other._value.shape[0], axis=0)
        self._log_add(other._value, other._scaled)

    def value(self) -> Floats | None:
        """(n, width) or (1, width); None where there was no term."""
        if self._value is None or self._scaled is None:
            return self._value
        result: Floats = self._value + np.log(self._scaled)
        return result
