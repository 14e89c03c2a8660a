"""`SparseActLinear`: a linear layer that multiplies sparse inputs and repairs the error with a low-rank branch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import nn

from assay._core.errors import InputError
from assay.compress.rt_lynx.activations import check_pattern, sparse_activation
from assay.compress.rt_lynx.repair import Factors, RepairStats, closed_form, sgd

if TYPE_CHECKING:
    from torch import Tensor

Backend = Literal["masked", "semi-structured", "triton"]
BACKENDS: tuple[Backend, ...] = ("masked", "semi-structured", "triton")

Solver = Literal["closed_form", "sgd"]
SOLVERS: tuple[Solver, ...] = ("closed_form", "sgd")


@dataclass(frozen=True)
class ActivationSparsityConfig:
    """How `sparsify_` makes the inputs of linear layers sparse.

    Parameters
    ----------
    n, m : int
        Of every `m` neighbouring features of a token the `n` largest are kept.
    rank : int
        Of the repair; 0: none. Without calibration data there is none either.
    norm_comp : bool
        Scale each sparse token to the length that it had.
    targets : str
        "auto": projections to queries, keys and values, and the layers of the MLP, in every block; else a regular
        expression that is searched for in the names of the linear layers.
    skip : tuple of str
        Layers to leave dense: by their full name or the last part of it.
    max_error : float, optional
        Relative squared error of the model's output on the calibration data that must not be passed: the layers that
        are repaired worst stay dense until it is kept. None: no layer is left out for its error.
    solver : {"closed_form", "sgd"}
    backend : {"masked", "semi-structured", "triton"}
        "masked" runs anywhere and saves no time. The other two need a GPU.
    seed : int
        Of the start of "sgd".
    """

    n: int = 2
    m: int = 4
    rank: int = 64
    norm_comp: bool = True
    targets: str = "auto"
    skip: tuple[str, ...] = ("lm_head",)
    max_error: float | None = None
    solver: Solver = "closed_form"
    backend: Backend = "masked"
    seed: int = 0

    def __post_init__(self) -> None:
        check_pattern(self.n, self.m)
        if self.rank < 0:
            raise InputError(f"rank={self.rank}: expected 0 (no repair) or more")
        if self.max_error is not None and not self.max_error > 0:
            raise InputError(f"max_error={self.max_error}: expected a positive relative squared error, or None")
        if self.solver not in SOLVERS:
            raise InputError(f"solver={self.solver!r} is not one of {', '.join(SOLVERS)}")
        if self.backend not in BACKENDS:
            raise InputError(f"backend={self.backend!r} is not one of {', '.join(BACKENDS)}")
        if self.backend != "masked" and self.m != 4:
            raise InputError(f"backend={self.backend!r} knows groups of 4, not m={self.m}; use backend='masked'")
        if self.backend == "semi-structured" and self.n != 2:
            raise InputError(f"backend='semi-structured' is 2:4, not {self.n}:4; use backend='masked'")


class SparseActLinear(nn.Module):
    """Y = S(X) Wᵀ + X lora_Aᵀ lora_Bᵀ + b (paper, section 3), in place of an ``nn.Linear`` or GPT-2's ``Conv1D``.

    Weight and bias are the parameters of the layer that it replaces, under the same names and in the same layout.

    Parameters
    ----------
    weight : nn.Parameter
        (out_features, in_features), or transposed.
    bias : nn.Parameter or None
    config : ActivationSparsityConfig
    is_transposed : bool
        Whether `weight` is (in_features, out_features), as in ``Conv1D``.

    Attributes
    ----------
    bypass : bool
        Multiply the dense input by the weight alone: the layer as it was.
    """

    lora_A: nn.Parameter | None  # noqa: N815  # PEFT's names
    lora_B: nn.Parameter | None  # noqa: N815

    def __init__(
        self,
        weight: nn.Parameter,
        bias: nn.Parameter | None,
        config: ActivationSparsityConfig,
        is_transposed: bool = False,
    ) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias
        self.is_transposed, self.config = is_transposed, config
        self.in_features = int(weight.shape[0 if is_transposed else 1])
        self.out_features = int(weight.shape[1 if is_transposed else 0])
        if self.in_features % config.m:
            raise InputError(
                f"in_features={self.in_features} is no multiple of m={config.m}; leave the layer dense (skip=)"
            )
        self.register_parameter("lora_A", None)
        self.register_parameter("lora_B", None)
        self.name, self.bypass, self.n_calls = "", False, 0

    @classmethod
    def from_linear(cls, linear: nn.Module, config: ActivationSparsityConfig | None = None) -> Self:
        """Take over weight and bias; the repair is empty until :meth:`fit`.

        Raises
        ------
        InputError
            The number of input features is no multiple of m.

        Examples
        --------
        >>> layer = SparseActLinear.from_linear(nn.Linear(8, 2, bias=False))
        >>> layer.weight.data.fill_(1.0).shape
        torch.Size([2, 8])
        >>> layer(torch.tensor([[3.0, 4.0, 0, 0, 0, 0, 0, 0]])).tolist()
        [[7.0, 7.0]]
        """
        weight: Any = linear.weight
        bias: Any = linear.bias
        made = cls(weight, bias, config or ActivationSparsityConfig(), not isinstance(linear, nn.Linear))
        made.train(linear.training)
        return made

    def stats(self) -> RepairStats:
        """Empty statistics of this layer, for :meth:`fit`."""
        return RepairStats(dense_weight_of(self), self.config.n, self.config.m, self.config.norm_comp)

    def fit(self, data: Tensor | RepairStats, *, solver: Solver | None = None) -> Self:
        """Fit the repair to inputs (..., in_features) of the layer, or to their statistics.

        Parameters
        ----------
        data : tensor or RepairStats
        solver : {"closed_form", "sgd"}, optional
            In place of the configuration's.
        """
        if self.config.rank == 0:
            return self
        if isinstance(data, torch.Tensor):
            stats = self.stats()
            stats.update(data)
        else:
            stats = data
        return self.repair(solve(stats, self.config, solver))

    def repair(self, factors: Factors) -> Self:
        """Set the branch: lora_A (rank, in_features) and lora_B (out_features, rank)."""
        self.lora_A, self.lora_B = (nn.Parameter(part.to(self.weight.dtype), requires_grad=False) for part in factors)
        return self

    @property
    def rank(self) -> int:
        """Of the repair; 0 where there is none."""
        return 0 if self.lora_A is None else len(self.lora_A)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        weight = self.weight.T if self.is_transposed else self.weight
        if self.bypass:
            return nn.functional.linear(x, weight, self.bias)
        if not torch.compiler.is_compiling():
            self._check(x)
        config = self.config
        if config.backend == "triton" or (config.backend == "semi-structured" and config.n < config.m):
            from assay.compress.rt_lynx.backends import fused_linear, semi_structured_linear

            if config.backend == "triton":
                return fused_linear(x, weight, self.bias, self.lora_A, self.lora_B, config.n, config.norm_comp)
            y = semi_structured_linear(sparse_activation(x, norm_comp=config.norm_comp), weight, self.bias)
        else:
            s = sparse_activation(x, config.n, config.m, norm_comp=config.norm_comp)
            y = nn.functional.linear(s, weight, self.bias)
        if self.lora_A is None or self.lora_B is None:
            return y
        return y + nn.functional.linear(nn.functional.linear(x, self.lora_A), self.lora_B)

    def _check(self, x: Tensor) -> None:
        """Refuse NaN on a CPU; on a GPU that would wait for it, and a token with NaN gives an output of NaN."""
        self.n_calls += 1
        if x.device.type == "cpu" and x.numel() and x.is_floating_point():
            low, high = torch.aminmax(x.detach())
            if not (torch.isfinite(low) and torch.isfinite(high)):
                raise InputError(f"layer {self.name!r}, call {self.n_calls}: the input holds NaN or infinity")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Make room for a repair that the state dict holds and this layer does not have yet."""
        a, b = state_dict.get(f"{prefix}lora_A"), state_dict.get(f"{prefix}lora_B")
        if self.lora_A is None and a is not None and b is not None:
            device = self.weight.device
            self.repair(Factors(torch.empty_like(a, device=device), torch.empty_like(b, device=device)))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        """Shape, pattern and rank."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"{self.config.n}:{self.config.m}, norm_comp={self.config.norm_comp}, rank={self.rank}, "
            f"backend={self.config.backend}"
        )


def dense_weight_of(layer: SparseActLinear) -> Tensor:
    """The weight as (out_features, in_features)."""
    return layer.weight.detach().T if layer.is_transposed else layer.weight.detach()


def solve(stats: RepairStats, config: ActivationSparsityConfig, solver: Solver | None = None) -> Factors:
    """The branch of the configuration's rank, by its solver."""
    chosen = solver or config.solver
    if chosen not in SOLVERS:
        raise InputError(f"solver={chosen!r} is not one of {', '.join(SOLVERS)}")
    if chosen == "sgd":
        return sgd(stats, config.rank, seed=config.seed)
    return closed_form(stats, config.rank)
