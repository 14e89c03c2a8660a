"""Sparsify the inputs of a linear layer: of every m neighbouring features of a token, keep the n largest."""

from __future__ import annotations

import torch

from assay._core.errors import InputError

#: Added to the energy that is kept, so that a token of zeros stays zero (paper: 1e-8).
EPS = 1e-8


def check_pattern(n: int, m: int) -> None:
    """Refuse what is no n:m pattern.

    Raises
    ------
    InputError
        `n` is not between 1 and `m`, or `m` is above 16.
    """
    if not 1 <= n <= m or not 1 <= m <= 16:
        raise InputError(f"n={n}, m={m}: expected 1 <= n <= m <= 16, such as n=2, m=4")


def nm_topk(x: torch.Tensor, n: int = 2, m: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Keep the `n` entries of largest magnitude in each group of `m` neighbours along the last axis.

    Of equal magnitudes the one with the lower index is kept.

    Parameters
    ----------
    x : (..., n_features) float
        n_features is a multiple of `m`.
    n, m : int

    Returns
    -------
    x_sparse : (..., n_features), dtype of `x`
    mask : (..., n_features) bool
        What is kept; no gradient passes through the choice.

    Raises
    ------
    InputError
        The pattern or the shape does not fit, or `x` is not floating point.

    Examples
    --------
    >>> nm_topk(torch.tensor([1.0, -3.0, 2.0, 0.5, 0.0, 0.0, 4.0, -4.0]))[0]
    tensor([ 0., -3.,  2.,  0.,  0.,  0.,  4., -4.])
    """
    check_pattern(n, m)
    if not x.is_floating_point():
        raise InputError(f"x is {x.dtype}: activations that are already quantised are not supported; sparsify first")
    if x.shape[-1] % m:
        raise InputError(f"x has {x.shape[-1]} features, which is no multiple of m={m}")
    if n == m:
        return x, torch.ones_like(x, dtype=torch.bool)
    mask = _ranked(x.detach(), n, m)
    return x * mask, mask  # a product, and not a choice: NaN stays NaN


def _ranked(x: torch.Tensor, n: int, m: int) -> torch.Tensor:
    """Compare each pair of a group once: an entry stays if it beats at least m - n others."""
    sizes = x.abs().reshape(-1, m).unbind(1)
    if (n, m) == (2, 4):
        return torch.stack(_two_of_four(*sizes), dim=1).view(x.shape)
    wins = [torch.zeros(len(sizes[0]), dtype=torch.int8, device=x.device) for _ in range(m)]
    for i in range(m):
        for j in range(i + 1, m):
            first = sizes[i] >= sizes[j]
            wins[i] += first
            wins[j] += ~first
    return torch.stack([won >= m - n for won in wins], dim=1).view(x.shape)


def _two_of_four(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same for 2:4, in logic: an entry stays if it wins at least two of its three comparisons."""
    ab, ac, ad, bc, bd, cd = a >= b, a >= c, a >= d, b >= c, b >= d, c >= d
    return (
        (ab & (ac | ad)) | (ac & ad),
        (bc & (bd | ~ab)) | (bd & ~ab),
        ~((ac & (bc | ~cd)) | (bc & ~cd)),
        ~((ad & (bd | cd)) | (bd & cd)),
    )


def norm_compensate(x: torch.Tensor, x_sparse: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    """Scale each token so that it is as long as it was: S(x) = sqrt(|x|² / (|x~|² + eps)) x~.

    Lengths run over all features of a token and are summed in float32 (in float64 for float64).

    Parameters
    ----------
    x, x_sparse : (..., n_features) float
    eps : float

    Returns
    -------
    (..., n_features), dtype of `x`
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    scale = torch.sqrt(_energy(x, wide) / (_energy(x_sparse, wide) + eps))
    return (x_sparse * scale).to(x.dtype)


def _energy(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    length: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=dtype)
    return length.square()


def sparse_activation(x: torch.Tensor, n: int = 2, m: int = 4, *, norm_comp: bool = True) -> torch.Tensor:
    """What a sparse layer multiplies in place of `x`: :func:`nm_topk`, and with `norm_comp` its length restored.

    With n = m it is `x` itself.
    """
    x_sparse, _ = nm_topk(x, n, m)
    return norm_compensate(x, x_sparse) if norm_comp and n < m else x_sparse


def energy_kept(x: torch.Tensor, n: int = 2, m: int = 4) -> float:
    """Share f of the squared norm that n:m selection along the last axis keeps; NaN if there is none.

    Without compensation the relative squared error of the input is 1 - f, with it 2 (1 - sqrt f), which is larger:
    compensation restores lengths, not values.

    Examples
    --------
    >>> round(energy_kept(torch.tensor([[3.0, 0.0, 4.0, 5.0]])), 6)
    0.82
    """
    x_sparse, _ = nm_topk(x, n, m)
    return float(_energy(x_sparse, torch.float64).sum() / _energy(x, torch.float64).sum())


def relative_flops(in_features: int, out_features: int, rank: int, n: int = 2, m: int = 4) -> float:
    """Multiply-adds of a repaired sparse layer over those of the dense one: n/m + rank (K + O) / (K O).

    Examples
    --------
    >>> relative_flops(3072, 12288, 64)
    0.526041666...
    """
    return n / m + rank * (in_features + out_features) / (in_features * out_features)
