"""Linear layers: `MXLinear` keeps packed weights and runs, `MXTrainingLinear` trains through quantised products."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from assay._core.errors import InputError
from assay.compress._layers import dense_weight
from assay.compress.mxint.formats import Format, get_format
from assay.compress.mxint.packing import pack, unpack
from assay.compress.mxint.tensors import (
    QTensor,
    Rules,
    decode_rows,
    fake_blocks,
    quantize,
    rotate_blocks,
    to_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from assay.compress.mxint.rounding import Clip, ScaleRule
    from assay.compress.mxint.tensors import Rotation


@dataclass(frozen=True)
class MXConfig:
    """How `quantize_` quantises a model.

    Parameters
    ----------
    weight : str or mapping of layer name to str
        Format of the weights; a mapping quantises only the layers that it names.
    activation : str or None
        Format of the inputs of the layers, quantised as they come; None leaves them as they are.
    rotate : "hadamard" or None
        Rotate weights and inputs block by block before they are quantised; the product stays the same.
    skip : tuple of str
        Layers to leave alone: by their full name or the last part of it.
    scale_rule, clip
        As for :func:`quantize`.
    seed : int
        Of the rotation's signs.
    """

    weight: str | dict[str, str] = "mxint8"
    activation: str | None = None
    rotate: Rotation | None = None
    skip: tuple[str, ...] = ("lm_head",)
    scale_rule: ScaleRule = "ceil"
    clip: Clip = "sym"
    seed: int = 0


class MXLinear(nn.Module):
    """A linear layer whose weight is kept as packed codes and decoded when it is used.

    Made by :meth:`from_linear` or by :func:`~assay.compress.mxint.quantize_`. Its buffers (``codes``, ``scales``, and
    ``tensor_scale`` for NV formats) are what a state dict holds; the options are in :meth:`options`.

    Parameters
    ----------
    in_features, out_features : int
    has_bias : bool
    config : MXConfig
        With one format for the weight.
    dtype : torch.dtype
        Of the bias.
    """

    codes: Tensor
    scales: Tensor
    tensor_scale: Tensor | None
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        has_bias: bool,
        config: MXConfig,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        assert isinstance(config.weight, str)
        self.in_features, self.out_features, self.config = in_features, out_features, config
        self.weight_format = get_format(config.weight)
        self.activation_format = None if config.activation is None else get_format(config.activation)
        self._rules = Rules(config.scale_rule, config.clip)
        if config.rotate and self.activation_format and self._width(self.activation_format) != self.width:
            raise InputError(
                f"rotate='hadamard' turns weights and inputs by the same blocks; {self.weight_format.name} and "
                f"{self.activation_format.name} have blocks of different size"
            )
        n_blocks = -(-in_features // self.width)
        self.n_padded = n_blocks * self.width
        n_codes = out_features * self.n_padded
        plain = self.weight_format.scale in ("fp32", "bf16")
        scale_dtype = torch.float32 if plain else torch.uint8
        self.register_buffer(
            "codes", torch.zeros(-(-n_codes * self.weight_format.element.bits // 8), dtype=torch.uint8)
        )
        self.register_buffer("scales", torch.zeros(out_features, n_blocks, dtype=scale_dtype))
        nv = self.weight_format.scale == "e4m3"
        self.register_buffer("tensor_scale", torch.zeros(()) if nv else None)
        self.bias = nn.Parameter(torch.zeros(out_features, dtype=dtype)) if has_bias else None

    @property
    def width(self) -> int:
        """Values that share a scale."""
        return self._width(self.weight_format)

    def _width(self, fmt: Format) -> int:
        return fmt.block or self.in_features

    @classmethod
    def from_linear(cls, linear: nn.Module, config: MXConfig | None = None) -> Self:
        """Quantise the weight of an ``nn.Linear`` or of GPT-2's ``Conv1D``."""
        config = config or MXConfig()
        weight, bias = dense_weight(linear)
        out_features, in_features = weight.shape
        made = cls(in_features, out_features, bias is not None, config, weight.dtype)
        q = quantize(
            weight,
            made.weight_format,
            scale_rule=config.scale_rule,
            clip=config.clip,
            rotate=config.rotate,
            seed=config.seed,
        )
        made.codes, made.scales = pack(q.codes, q.fmt.element.bits), q.scales
        made.tensor_scale, made.bias = q.tensor_scale, bias
        made.train(linear.training)
        return made

    def options(self) -> dict[str, Any]:
        """What :meth:`from_options` needs to make the empty layer again; plain JSON values."""
        return {
            "in_features": self.in_features,
            "out_features": self.out_features,
            "has_bias": self.bias is not None,
            "config": asdict(self.config),
        }

    @classmethod
    def from_options(cls, options: dict[str, Any], dtype: torch.dtype = torch.float32) -> Self:
        """An empty layer for a state dict to fill."""
        config = MXConfig(**{**options["config"], "skip": tuple(options["config"]["skip"])})
        return cls(options["in_features"], options["out_features"], options["has_bias"], config, dtype)

    @property
    def weight(self) -> Tensor:
        """The weight that the codes stand for, (out_features, in_features) float32, decoded at every call."""
        return self._decoded(self._codes(), self.scales)

    def row_parts(self) -> Iterator[tuple[slice, Tensor]]:
        """Go through the rows of the weight, a megabyte at a time: for who only looks at a large layer."""
        codes, step = self._codes(), max(1, (1 << 18) // max(1, self.in_features))
        for start in range(0, self.out_features, step):
            span = slice(start, start + step)
            yield span, self._decoded(codes[span], self.scales[span])

    def _decoded(self, codes: Tensor, scales: Tensor) -> Tensor:
        q = QTensor(
            codes,
            scales,
            self.tensor_scale,
            self.weight_format,
            (len(codes), self.in_features),
            1,
            torch.float32,
            self.config.seed if self.config.rotate else None,
        )
        decoded: Tensor = q.dequantize()
        return decoded

    def _codes(self) -> Tensor:
        n_codes = self.out_features * self.n_padded
        return unpack(self.codes, self.weight_format.element.bits, n_codes).view(self.out_features, self.n_padded)

    def forward(self, x: Tensor) -> Tensor:
        """Y = Q(X R) Q(W R)ᵀ + b, (..., in_features) to (..., out_features), in the dtype of `x`."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if self.activation_format is None and self.config.rotate is None:
            return nn.functional.linear(x, self.weight.to(x.dtype), bias)
        weight = decode_rows(self._codes(), self.scales, self.tensor_scale, self.weight_format)
        rows = _padded(x, self.width)
        if self.config.rotate is not None:
            rows = rotate_blocks(rows.reshape(-1, self.width), self.config.seed).reshape(rows.shape)
        if self.activation_format is not None:
            # Straight through, for who trains an adapter on top.
            rows = rows + (_fake_rows(rows, self.activation_format, self._rules) - rows).detach()
        product = rows.to(x.dtype) @ weight.to(x.dtype).T
        product = product if bias is None else product + bias
        return product.reshape(*x.shape[:-1], self.out_features)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Move and convert as any module does, but for scales: in fewer bits they would stand for other weights."""
        exact = {name: getattr(self, name) for name in ("scales", "tensor_scale")}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for name, scale in exact.items():
            if scale is not None and scale.is_floating_point():
                setattr(self, name, scale.to(getattr(self, name).device))
        return self

    def extra_repr(self) -> str:
        """Shape and formats."""
        rotated = ", rotated" if self.config.rotate else ""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"weight={self.weight_format.name}, activation={self.config.activation}{rotated}"
        )


def _padded(x: Tensor, width: int) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return nn.functional.pad(rows, (0, -x.shape[-1] % width))


def _fake_rows(rows: Tensor, fmt: Format, rules: Rules) -> Tensor:
    """Fake-quantise (n, m) along m, which keeps its padding; no gradient."""
    padded, size = to_rows(rows.detach(), 1, fmt)
    return fake_blocks(padded.reshape(-1, size), fmt, rules).reshape(padded.shape)[:, : rows.shape[1]]


# ------------------------------------------------------------------------------------------------------ training


@dataclass(frozen=True)
class MXTrainingConfig:
    """The formats of the six quantisation points of a linear layer that trains; None: not quantised.

    Parameters
    ----------
    x, w : str or None
        Y = Q(X) Q(W)ᵀ, blocks along in_features.
    dy, w_back : str or None
        dX = Q(dY) Q(Wᵀ)ᵀ, blocks along out_features: the weight is quantised again in the other layout.
    dy_back, x_back : str or None
        dW = Q(dYᵀ) Q(Xᵀ)ᵀ, blocks along the tokens.
    clip : {"sym", "asym"}
    skip : tuple of str
        Layers to leave alone.
    """

    x: str | None = "mxint8"
    w: str | None = "mxint8"
    dy: str | None = "mxint8"
    w_back: str | None = "mxint8"
    dy_back: str | None = "mxint8"
    x_back: str | None = "mxint8"
    clip: Clip = "sym"
    skip: tuple[str, ...] = ("lm_head",)

    @classmethod
    def all_points(cls, fmt: str | None, *, clip: Clip = "sym", skip: tuple[str, ...] = ("lm_head",)) -> Self:
        """One format at all six points."""
        return cls(fmt, fmt, fmt, fmt, fmt, fmt, clip, skip)


def _point(matrix: Tensor, fmt: str | None, clip: Clip) -> Tensor:
    """Q of a matrix along its last axis."""
    return matrix if fmt is None else _fake_rows(matrix, get_format(fmt), Rules(clip=clip, nonfinite="propagate"))


class _QuantisedProducts(torch.autograd.Function):
    """The three products of a linear layer, each on quantised operands."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, config: MXTrainingConfig) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.config = config
        return _point(x, config.x, config.clip) @ _point(weight, config.w, config.clip).T

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (dy,) = gradients
        x, weight = ctx.saved_tensors
        c: MXTrainingConfig = ctx.config
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = _point(dy, c.dy, c.clip) @ _point(weight.T, c.w_back, c.clip).T
        if ctx.needs_input_grad[1]:
            dw = _point(dy.T, c.dy_back, c.clip) @ _point(x.T, c.x_back, c.clip).T
        return dx, dw, None


class MXTrainingLinear(nn.Linear):
    """An ``nn.Linear`` whose forward and backward products run on quantised operands; the weight stays in full."""

    mx: MXTrainingConfig

    @classmethod
    def from_linear(cls, linear: nn.Module, config: MXTrainingConfig | None = None) -> Self:
        """Take over weight and bias of an ``nn.Linear`` (the same parameters, so an optimiser keeps them)."""
        if not isinstance(linear, nn.Linear):
            raise InputError(f"{type(linear).__name__} cannot train in MX formats; expected nn.Linear")
        made = cls(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        made.weight, made.bias = linear.weight, linear.bias
        made.mx = config or MXTrainingConfig()
        made.train(linear.training)
        return made

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        rows, weight = x.reshape(-1, self.in_features), self.weight
        if torch.is_autocast_enabled(x.device.type):  # as nn.Linear does; the products' backward pass sees one dtype
            dtype = torch.get_autocast_dtype(x.device.type)
            rows, weight = rows.to(dtype), weight.to(dtype)
        product: Tensor = _QuantisedProducts.apply(rows, weight, self.mx)  # type: ignore[no-untyped-call]  # torch's own
        product = product.reshape(*x.shape[:-1], self.out_features)
        return product if self.bias is None else product + self.bias.to(product.dtype)
