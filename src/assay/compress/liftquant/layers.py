"""`LiftQuantLinear`: a linear layer whose weight is kept as sign bits, and runs without ever being whole."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import nn

from assay._core.errors import InputError
from assay.compress._layers import dense_weight
from assay.compress.liftquant.mapping import load_mapping
from assay.compress.liftquant.search import all_signs, encode, pack_signs
from assay.compress.liftquant.transform import Transform, factor_sizes, rotation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from assay.compress.liftquant.mapping import Mapping
    from assay.compress.liftquant.search import Search

#: Up to so many rows of activations it is cheaper to lift them than to decode the weight.
_FEW_ROWS = 8
#: Signs that are unpacked at a time.
_SIGNS = 1 << 20


@dataclass(frozen=True)
class Shape:
    """The sizes of a quantised layer: features, signs and weights of a vector, and the factors of the transform."""

    in_features: int
    out_features: int
    n_bits: int
    d: int

    @property
    def factors(self) -> tuple[int, int]:
        """t1 and t2."""
        return factor_sizes(self.in_features, self.d)

    @property
    def n_vectors(self) -> int:
        """Vectors of d weights in a row, padding included."""
        t1, t2 = self.factors
        return t1 * t2 // self.d

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's signs."""
        return -(-self.n_vectors * self.n_bits // 8)


class LiftQuantLinear(nn.Module):
    """A linear layer with W ≈ diag(r) Y blockdiag(M)ᵀ T⁻¹, of which the signs Y are stored as bits.

    Made by :meth:`from_linear` or by :func:`~assay.compress.liftquant.quantize_`. Its buffers: ``codes``
    (out_features, bytes) uint8, ``row_scale`` r, ``left`` and ``right`` (the Kronecker factors for activations),
    ``channel_scale`` s1 and ``block_scale`` s2 or None, all float16; ``matrix`` M, float32. They keep these dtypes when
    the module is converted; products are float32 inside.

    Parameters
    ----------
    shape : Shape
    has_bias, has_channel_scale, has_block_scale : bool
    dtype : torch.dtype
        Of the bias.
    """

    codes: Tensor
    row_scale: Tensor
    left: Tensor
    right: Tensor
    matrix: Tensor
    channel_scale: Tensor | None
    block_scale: Tensor | None
    bias: nn.Parameter | None

    def __init__(
        self,
        shape: Shape,
        has_bias: bool,
        has_channel_scale: bool = False,
        has_block_scale: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.in_features, self.out_features = shape.in_features, shape.out_features
        t1, t2 = shape.factors
        half = torch.float16
        self.register_buffer("codes", torch.zeros(shape.out_features, shape.row_bytes, dtype=torch.uint8))
        self.register_buffer("row_scale", torch.zeros(shape.out_features, dtype=half))
        self.register_buffer("left", torch.zeros(t1, t1, dtype=half))
        self.register_buffer("right", torch.zeros(t2, t2, dtype=half))
        self.register_buffer("matrix", torch.zeros(shape.d, shape.n_bits))
        s1 = torch.zeros(shape.in_features, dtype=half) if has_channel_scale else None
        s2 = torch.zeros(t1, t2 // shape.d, dtype=half) if has_block_scale else None
        self.register_buffer("channel_scale", s1)
        self.register_buffer("block_scale", s2)
        self.bias = nn.Parameter(torch.zeros(shape.out_features, dtype=dtype)) if has_bias else None

    @classmethod
    def from_linear(
        cls,
        linear: nn.Module,
        mapping: Mapping | tuple[int, int] = (16, 8),
        transform: Transform | None = None,
        *,
        search: Search = "auto",
        refine: bool = False,
        seed: int = 0,
    ) -> Self:
        """Quantise the weight of an ``nn.Linear`` or of GPT-2's ``Conv1D``.

        Parameters
        ----------
        linear : nn.Module
        mapping : Mapping or (D, d)
            A pair takes the shipped matrix.
        transform : Transform, optional
            None: a random rotation.
        search, refine
            As for :func:`~assay.compress.liftquant.encode`.
        seed : int
            Of the rotation.

        Raises
        ------
        InputError
            The weight holds NaN or infinity, or no matrix is shipped for the pair.
        """
        made = load_mapping(*mapping) if isinstance(mapping, tuple) else mapping
        dense, bias = dense_weight(linear)
        if not bool(torch.isfinite(dense).all()):
            raise InputError("its weight holds NaN or infinity; expected finite weights")
        out_features, in_features = dense.shape
        t = transform or plain_transform(in_features, made.d, seed)
        layer = cls(
            Shape(in_features, out_features, made.n_bits, made.d),
            bias is not None,
            t.channel_scale is not None,
            t.block_scale is not None,
        )
        layer.codes = torch.empty(out_features, layer.shape.row_bytes, dtype=torch.uint8, device=dense.device)
        layer.set_transform(t)
        layer.matrix = same_tensor(torch.from_numpy(made.matrix).to(dense.device))
        layer.bias = bias
        layer.row_scale = torch.empty(out_features, dtype=torch.float16, device=dense.device)
        stored = layer.transform()
        step = max(1, _SIGNS // (layer.shape.n_vectors * made.n_bits))
        for start in range(0, out_features, step):
            part = slice(start, start + step)
            turned = stored.weights(dense[part].float())
            scale = row_scales(turned)
            layer.row_scale[part] = scale
            layer.codes[part] = _encode_rows(turned, scale.float(), made, search, refine).to(dense.device)
        layer.train(linear.training)
        return layer

    def transform(self) -> Transform:
        """T as it is stored."""
        return Transform(self.in_features, self.shape.d, self.left, self.right, self.channel_scale, self.block_scale)

    def set_transform(self, t: Transform) -> None:
        """Store a transform in float16; layers with the same factors share them."""
        device = self.codes.device
        self.left, self.right = (same_tensor(part.to(device).half()) for part in (t.left, t.right))
        s1, s2 = t.channel_scale, t.block_scale
        self.channel_scale = None if s1 is None else same_tensor(s1.to(device).half())
        self.block_scale = None if s2 is None else same_tensor(s2.to(device).half())

    def options(self) -> dict[str, Any]:
        """What :meth:`from_options` needs to make the empty layer again; plain JSON values."""
        return {
            **vars(self.shape),
            "has_bias": self.bias is not None,
            "has_channel_scale": self.channel_scale is not None,
            "has_block_scale": self.block_scale is not None,
        }

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> Self:
        """An empty layer for a state dict to fill."""
        sizes = {name: int(options[name]) for name in ("in_features", "out_features", "n_bits", "d")}
        bias, s1, s2 = (bool(options[name]) for name in ("has_bias", "has_channel_scale", "has_block_scale"))
        return cls(Shape(**sizes), bias, s1, s2)

    def signs(self, rows: slice) -> Tensor:
        """Y of some rows, (n, n_vectors D) float32 of ±1."""
        table = _byte_signs(self.codes.device)
        bits = nn.functional.embedding(self.codes[rows].int(), table).flatten(1)
        return bits[:, : self.shape.n_vectors * self.shape.n_bits]

    def turned(self, rows: slice) -> Tensor:
        """Rows of the quantised W T, (n, t1 t2) float32."""
        signs = self.signs(rows).reshape(-1, self.shape.n_bits)
        points = (signs @ self.matrix.T).reshape(-1, self.shape.n_vectors * self.shape.d)
        return points * self.row_scale[rows, None].float()

    def dequantize(self) -> Tensor:
        """The weight that the signs stand for, (out_features, in_features) float32."""
        made = torch.empty(self.out_features, self.in_features, device=self.codes.device)
        for rows, decoded in self.row_parts():
            made[rows] = decoded
        return made

    def row_parts(self) -> Iterator[tuple[slice, Tensor]]:
        """Some rows at a time, and the weight that their signs stand for, (n, in_features) float32."""
        t = self.transform()
        for rows in self._row_chunks():
            yield rows, t.weights_back(self.turned(rows))

    @property
    def weight(self) -> Tensor:
        """:meth:`dequantize`, for code that looks at a layer's weight."""
        return self.dequantize()

    def forward(self, x: Tensor) -> Tensor:
        """Y = diag(r) Y (T* x) + b, (..., in_features) to (..., out_features), in the dtype of `x`."""
        rows = self.transform().activations(x.reshape(-1, self.in_features).float())
        if len(rows) <= _FEW_ROWS:
            # T* = blockdiag(M)ᵀ T⁻¹ lifts the activations; then only signs are multiplied.
            lifted = (rows.reshape(-1, self.shape.d) @ self.matrix).reshape(len(rows), -1)
            parts = [lifted @ self.signs(chunk).T * self.row_scale[chunk].float() for chunk in self._row_chunks()]
        else:
            parts = [rows @ self.turned(chunk).T for chunk in self._row_chunks()]
        product = torch.cat(parts, dim=1)
        product = product if self.bias is None else product + self.bias
        return product.to(x.dtype).reshape(*x.shape[:-1], self.out_features)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Move and convert as any module does, but for buffers' dtypes: in others they stand for another weight."""
        exact = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for name, kept in exact.items():
            moved = self._buffers[name]
            if kept is not None and moved is not None and moved.dtype != kept.dtype:
                self._buffers[name] = kept.to(moved.device)
        return self

    def _row_chunks(self) -> Iterator[slice]:
        step = max(1, _SIGNS // (self.shape.n_vectors * self.shape.n_bits))
        for start in range(0, self.out_features, step):
            yield slice(start, start + step)

    def extra_repr(self) -> str:
        """Sizes and rate."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"code={self.shape.n_bits}/{self.shape.d}"
        )


def plain_transform(in_features: int, d: int, seed: int = 0) -> Transform:
    """Rotations only: what needs no calibration data, shared by all layers of a width."""
    t1, t2 = factor_sizes(in_features, d)
    return Transform(in_features, d, rotation(t1, seed), rotation(t2, seed))


def row_scales(turned: Tensor) -> Tensor:
    """Root mean square of each row as float16 holds it; zero of a row of zeros (so that it decodes to zeros)."""
    rms = turned.square().mean(1).sqrt()
    return torch.where(rms > 0, rms.clamp(1e-4, 1e4), 0.0).half()


def _encode_rows(turned: Tensor, scale: Tensor, mapping: Mapping, search: Search, refine: bool) -> Tensor:
    unit = turned / torch.where(scale > 0, scale, 1.0)[:, None]
    vectors = unit.reshape(-1, mapping.d).cpu().numpy()
    codes = encode(vectors, mapping.matrix, search=search, refine=refine)
    places = codes.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)
    signs = np.unpackbits(places[:, : -(-mapping.n_bits // 8)], axis=1, count=mapping.n_bits, bitorder="little")
    return pack_signs(torch.from_numpy(signs.reshape(len(turned), -1)))


_BYTES: dict[str, Tensor] = {}


def _byte_signs(device: torch.device) -> Tensor:
    """The eight signs of every byte, (256, 8) float32."""
    if str(device) not in _BYTES:
        _BYTES[str(device)] = torch.from_numpy(all_signs(8)).to(device)
    return _BYTES[str(device)]


_SAME: WeakValueDictionary[str, Tensor] = WeakValueDictionary()


def same_tensor(tensor: Tensor) -> Tensor:
    """The tensor, or one with the same values that a layer holds already: so that layers share what they can.

    Matrices, rotations and scales of channels are alike in many layers; large tensors are not looked up.
    """
    if tensor.numel() > 1 << 16:
        return tensor
    values = tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
    key = f"{tensor.dtype} {tuple(tensor.shape)} {tensor.device} {hashlib.sha256(values).hexdigest()}"
    return _SAME.setdefault(key, tensor)
