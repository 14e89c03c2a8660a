"""Ways to run a sparse layer on a GPU: torch's semi-structured product, and kernels in Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from assay._core.errors import InputError
from assay._core.extras import need

if TYPE_CHECKING:
    from torch import Tensor

#: Rows of the sparse operand that torch's sparse products want a multiple of.
_ROWS = 64


def semi_structured_linear(s: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """S Wᵀ + b on sparse tensor cores, for S with two of every four entries zero.

    Parameters
    ----------
    s : (..., in_features) float16 or bfloat16 on a GPU
    weight : (out_features, in_features)
    bias : (out_features,) or None

    Raises
    ------
    InputError
        The device or the dtype has no sparse product.
    """
    if s.device.type != "cuda" or torch.cuda.get_device_capability(s.device) < (8, 0):
        raise InputError(
            f"backend='semi-structured' needs a CUDA GPU of compute capability 8.0 or later, not {s.device}; "
            f"use backend='masked'"
        )
    if s.dtype not in (torch.float16, torch.bfloat16):
        raise InputError(
            f"backend='semi-structured' multiplies float16 and bfloat16, not {s.dtype}; convert the model, or use "
            f"backend='masked'"
        )
    rows = s.reshape(-1, s.shape[-1])
    padded = nn.functional.pad(rows, (0, 0, 0, -len(rows) % _ROWS))
    product = torch.mm(torch.sparse.to_sparse_semi_structured(padded), weight.T)[: len(rows)]
    product = product if bias is None else product + bias
    return product.reshape(*s.shape[:-1], weight.shape[0])


def fused_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    lora_a: Tensor | None,
    lora_b: Tensor | None,
    n: int = 2,
    norm_comp: bool = True,
) -> Tensor:
    """The whole layer in one kernel: n:4 selection in registers, product, length of the token, repair and bias.

    Parameters
    ----------
    x : (..., in_features) float
    weight : (out_features, in_features)
    bias : (out_features,) or None
    lora_a, lora_b : (rank, in_features) and (out_features, rank), or None
    n : int
    norm_comp : bool

    Raises
    ------
    InputError
        Triton is not installed, or the tensors are on a CPU and Triton's interpreter is not on.
    """
    need("triton", extra="gpu", purpose="backend='triton'")
    from assay.compress.rt_lynx import kernels

    if x.device.type == "cpu" and not kernels.IS_INTERPRETED:
        raise InputError("backend='triton' needs a GPU (on a CPU only with TRITON_INTERPRET=1); use backend='masked'")
    if kernels.IS_INTERPRETED and x.dtype == torch.bfloat16:  # it would multiply their bits as whole numbers
        raise InputError("Triton's interpreter cannot multiply bfloat16; use float32 or float16, or backend='masked'")
    rows = x.reshape(-1, x.shape[-1])
    branch = None if lora_a is None or lora_b is None else (rows @ lora_a.T, lora_b)
    product = kernels.sparse_linear(rows.contiguous(), weight, bias, branch, n, norm_comp)
    return product.reshape(*x.shape[:-1], weight.shape[0])
