"""A linear layer of two thin factors, and how a model is factorised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import nn

from assay._core.errors import InputError
from assay.compress._layers import dense_weight, replace_layer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from assay.compress.dynamic_whitening.factors import Factors

WHITENINGS = ("dynamic", "static", "diag", "none")
TARGETS = ("weight", "anchored")
GRANULARITIES = ("group", "block")
ALLOCATIONS = ("uniform", "energy")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class WhiteningConfig:
    """How :func:`factorize_` compresses a model.

    Parameters
    ----------
    ratio : float
        Share of the parameters of each factorised layer that is kept, above 0 to 1. "20 % compression" is 0.8.
    budget : int, optional
        Bytes of the saved weights, in place of `ratio`.
    ranks : mapping of layer to int, optional
        In place of `ratio`; layers that it does not name are left alone.
    allocation : {"uniform", "energy"}
        "energy": one pass of the full model decides which layers get more of the parameters (ours).
    whiten : {"dynamic", "static", "diag", "none"}
        Inputs that a layer is fitted to. "dynamic" (the paper): those of the model whose earlier layers are already
        compressed. "static" (SVD-LLM): those of the full model; "diag": only their variances; "none": plain truncation.
    target : {"weight", "anchored"}
        "weight" (the paper): the layer's own map of these inputs. "anchored" (after AA-SVD): the outputs of the full
        model, so that a layer also corrects the ones before it. Only with dynamic whitening.
    granularity : {"group", "block"}
        How often inputs are taken anew: for each group of layers with the same input, or once a block (cheaper).
    eps : float
        Added to the second moment's diagonal, relative to its mean.
    drift : bool
        Also run the full model, to report how far each layer's inputs have moved.
    dtype : {"float32", "float16", "bfloat16"}, optional
        Of the factors; None: that of the weight.
    skip : tuple of str
        Layers to leave alone: by their full name or the last part of it.
    """

    ratio: float = 0.8
    budget: int | None = None
    ranks: Mapping[str, int] | None = None
    allocation: Literal["uniform", "energy"] = "uniform"
    whiten: Literal["dynamic", "static", "diag", "none"] = "dynamic"
    target: Literal["weight", "anchored"] = "weight"
    granularity: Literal["group", "block"] = "group"
    eps: float = 1e-6
    drift: bool = False
    dtype: Literal["float32", "float16", "bfloat16"] | None = None
    skip: tuple[str, ...] = ("lm_head",)

    def check(self) -> None:
        """Raise InputError for an option that is out of range."""
        for name, known in (
            ("whiten", WHITENINGS),
            ("target", TARGETS),
            ("granularity", GRANULARITIES),
            ("allocation", ALLOCATIONS),
            ("dtype", (None, *DTYPES)),
        ):
            if getattr(self, name) not in known:
                listed = ", ".join(str(value) for value in known)
                raise InputError(f"{name}={getattr(self, name)!r} is not one of {listed}")
        if not 0 < self.ratio <= 1:
            raise InputError(
                f"ratio={self.ratio}: expected the share of parameters to keep, above 0 and at most 1 (0.8 keeps 80 %)"
            )
        if not 0 <= self.eps < 1:
            raise InputError(f"eps={self.eps}: expected a number from 0 to below 1")
        if self.target == "anchored" and self.whiten != "dynamic":
            raise InputError(f"target='anchored' needs whiten='dynamic', not {self.whiten!r}")
        if self.allocation == "energy" and (self.ranks is not None or self.whiten == "none"):
            raise InputError(
                "allocation='energy' chooses ranks by data: leave ranks= out, and whiten other than 'none'"
            )


class LowRankLinear(nn.Module):
    """y = A (B x) + bias: an ``nn.Linear`` whose weight A B has rank k.

    Parameters
    ----------
    in_features, out_features, rank : int
    has_bias : bool
    dtype, bias_dtype : torch.dtype
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        rank: int,
        has_bias: bool,
        dtype: torch.dtype = torch.float32,
        *,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.rank = in_features, out_features, rank
        self.a = nn.Parameter(torch.empty(out_features, rank, dtype=dtype, device=device))
        self.b = nn.Parameter(torch.empty(rank, in_features, dtype=dtype, device=device))
        self.bias: nn.Parameter | None = None
        if has_bias:
            self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype, device=device))

    @classmethod
    def from_factors(cls, linear: nn.Module, factors: Factors, dtype: torch.dtype | None = None) -> Self:
        """Take the place of a dense layer, with its bias and its device."""
        weight, bias = dense_weight(linear)
        kind = dtype or weight.dtype
        rank = factors.b.shape[0]
        made = cls(weight.shape[1], weight.shape[0], rank, False, kind, device="meta")
        learns = bool(getattr(linear.weight, "requires_grad", False))
        made.a = nn.Parameter(factors.a.to(weight.device, kind).contiguous(), requires_grad=learns)
        made.b = nn.Parameter(factors.b.to(weight.device, kind).contiguous(), requires_grad=learns)
        made.bias = bias
        made.train(linear.training)
        return made

    @property
    def weight(self) -> Tensor:
        """A B, (out_features, in_features)."""
        return self.a @ self.b

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features), in the dtype of `x`."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return nn.functional.linear(nn.functional.linear(x, self.b.to(x.dtype)), self.a.to(x.dtype), bias)

    def merge(self) -> nn.Linear:
        """A dense layer with the same outputs."""
        made = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        made.weight = nn.Parameter(self.weight.detach(), requires_grad=self.a.requires_grad)
        if self.bias is not None:
            made.bias = self.bias
        return made.train(self.training)

    def options(self) -> dict[str, Any]:
        """What :meth:`from_options` needs to make the empty layer again; plain JSON values."""
        return {
            "in_features": self.in_features,
            "out_features": self.out_features,
            "rank": self.rank,
            "has_bias": self.bias is not None,
        }

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> Self:
        """An empty layer for a state dict to fill."""
        return cls(options["in_features"], options["out_features"], options["rank"], options["has_bias"], device="meta")

    def extra_repr(self) -> str:
        """Shape and rank."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, rank={self.rank}, "
            f"bias={self.bias is not None}"
        )


def merge_(model: nn.Module) -> None:
    """Replace factorised layers by dense ones with the same outputs, in place: for checking, or for other tools.

    Examples
    --------
    >>> from assay.compress.dynamic_whitening import WhiteningConfig, factorize_
    >>> model = nn.Sequential(nn.Linear(64, 32))
    >>> _ = factorize_(model, WhiteningConfig(ratio=0.5, whiten="none"))
    >>> merge_(model)
    >>> type(model[0]).__name__
    'Linear'
    """
    for name, layer in [(n, m) for n, m in model.named_modules() if isinstance(m, LowRankLinear)]:
        replace_layer(model, name, layer.merge())
