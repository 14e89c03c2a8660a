"""Which (D, d) for a number of bits or for a size in bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay._core.errors import InputError
from assay.compress._layers import dense_weight, linear_layers
from assay.compress.liftquant.layers import Shape
from assay.compress.liftquant.mapping import shipped_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    Pair = tuple[int, int]

LEAST, MOST = 1.0, 4.0

#: A rate is said with two decimals: 2.14 is 15/7.
ROUNDED = 0.005


def pair_for_bits(bits: float) -> Pair:
    """The shipped (D, d) with the highest rate up to `bits`, and of these the longest vectors.

    Parameters
    ----------
    bits : float
        Bits a weight before scales and transforms, 1 to 4.

    Raises
    ------
    InputError
        `bits` is out of range, or below every shipped pair.

    Examples
    --------
    >>> pair_for_bits(2.0), pair_for_bits(2.14)
    ((16, 8), (15, 7))
    """
    pairs = shipped_pairs()
    lowest, highest = pairs[0], pairs[-1]
    if not LEAST <= bits <= MOST:
        near = lowest if bits < LEAST else highest
        raise InputError(
            f"bits={bits:g}: expected {LEAST:g} to {MOST:g} bits a weight; the nearest is D={near[0]}, d={near[1]} "
            f"({near[0] / near[1]:g} bits)"
        )
    fitting = [pair for pair in pairs if pair[0] / pair[1] <= bits + ROUNDED]
    if not fitting:
        raise InputError(
            f"bits={bits:g}: the lowest shipped rate is D={lowest[0]}, d={lowest[1]} ({lowest[0] / lowest[1]:g} bits); "
            f"train a lower one with fit_mapping"
        )
    return max(fitting, key=lambda pair: (pair[0] / pair[1], pair[1]))


def layer_bytes(shape: Shape, *, whitened: bool, has_channel_scale: bool) -> int:
    """Bytes of a layer as stored, without what layers share (M, and rotations that were not trained).

    Parameters
    ----------
    shape : Shape
    whitened : bool
        Whether the layer has transform factors of its own.
    has_channel_scale : bool
    """
    t1, t2 = shape.factors
    own = 2 * (t1 * t1 + t2 * t2 + t1 * t2 // shape.d) if whitened else 0
    scale = 2 * shape.in_features if has_channel_scale else 0
    return shape.out_features * (shape.row_bytes + 2) + own + scale


def pair_for_budget(
    model: nn.Module,
    budget: int,
    skip: tuple[str, ...] = ("lm_head",),
    *,
    calibrated: bool = False,
    whitened: bool = False,
) -> Pair:
    """The shipped (D, d) with which the whole file of weights has at most `budget` bytes.

    Parameters
    ----------
    model : nn.Module
    budget : int
        Bytes of ``model.safetensors``: what is not quantised counts with the precision that it has.
    skip : tuple of str
    calibrated : bool
        Whether layers will have scales of channels, by calibration data.
    whitened : bool
        Whether they will have transforms of their own, trained on it.

    Raises
    ------
    InputError
        Even the lowest rate does not fit; the message says what does.
    """
    weights = {name: dense_weight(layer)[0] for name, layer in linear_layers(model, skip)}
    if not weights:
        raise InputError(f"the model has no linear layer to quantise apart from those skipped ({', '.join(skip)})")
    rest = sum(p.numel() * p.element_size() for p in model.parameters())
    rest -= sum(weight.numel() * weight.element_size() for weight in weights.values())
    sizes = {pair: rest + _file_overhead(weights) for pair in shipped_pairs()}
    for n_bits, d in sizes:
        for weight in weights.values():
            shape = Shape(weight.shape[1], weight.shape[0], n_bits, d)
            sizes[n_bits, d] += layer_bytes(shape, whitened=whitened, has_channel_scale=calibrated)
    fitting = [pair for pair, size in sizes.items() if size <= budget]
    if not fitting:
        least = min(sizes, key=lambda pair: sizes[pair])
        raise InputError(
            f"budget of {budget / 1e6:.1f} MB: the least is {sizes[least] / 1e6:.1f} MB, at {least[0] / least[1]:g} "
            f"bits, of which {rest / 1e6:.1f} MB are embeddings, norms and skipped layers, which stay as they are"
        )
    return max(fitting, key=lambda pair: (pair[0] / pair[1], pair[1]))


def _file_overhead(weights: Mapping[str, object]) -> int:
    """The header of the file, which names each tensor, and what layers share."""
    return 700 * len(weights) + 100_000
