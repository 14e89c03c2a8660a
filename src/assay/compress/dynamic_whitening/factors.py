"""Whitened truncation of one weight: the two factors, the best rank-k map for given inputs, and how far inputs moved.

With the second moment G = sum of x xᵀ over the inputs of a layer y = W x and any S with S Sᵀ = G, truncating the
singular value decomposition of W S and multiplying by S⁻¹ gives the W' of rank k with the least ‖(W - W') X‖.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from assay._core.errors import InputError
from assay.compress._memory import trim

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

#: Rows of a weight that are worked on at a time: float64 copies of a whole weight would be the peak of memory.
_ROWS = 128
#: Singular values are spread over both factors down to this share of the largest: below, S⁻¹ would be divided by noise.
_FLOOR = 1e-6


class Factors(NamedTuple):
    """W' = A B, and the spectrum that it was cut from.

    Parameters
    ----------
    a : (out_features, rank)
    b : (rank, in_features)
    singular_values : (min(out_features, in_features),)
        Of W S, the largest first; those behind `rank` are what is lost.
    """

    a: Any
    b: Any
    singular_values: Any


def rank_for_ratio(out_features: int, in_features: int, ratio: float) -> int:
    """The largest rank whose factors have at most `ratio` of the weight's parameters.

    Examples
    --------
    >>> rank_for_ratio(576, 576, 0.8)
    230
    """
    dense = out_features * in_features
    return int(ratio * dense / (out_features + in_features) + 1e-9)  # 0.1 * 30 is not quite 3


def whitener(gram: Tensor, eps: float = 0.0) -> Tensor:
    """Lower-triangular S with S Sᵀ = G + eps mean(diag G) I.

    Where that is not positive definite, the least that makes it so is added: -lambda_min + 1e-6 of the mean diagonal.

    Parameters
    ----------
    gram : (n, n) float64
    eps : float
        Relative to the mean of the diagonal.
    """
    mean = gram.diagonal().mean()
    if not mean > 0:  # no input was ever different from zero
        return torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    lifted = gram.clone()
    lifted.diagonal().add_(eps * mean)
    root: Tensor
    root, failed = torch.linalg.cholesky_ex(lifted)
    if not failed:
        return root
    lowest = torch.linalg.eigvalsh(lifted)[0].clamp(max=0.0)
    lifted.diagonal().add_(1e-6 * mean - lowest)
    made: Tensor = torch.linalg.cholesky(lifted)
    return made


def whitened_svd(weight: Any, gram: Any, rank: int, *, eps: float = 0.0) -> Factors:
    """Factors of the rank-k weight whose outputs are nearest to those of `weight` on inputs with second moment `gram`.

    Computed in float64 from the smaller of two symmetric eigenproblems. With U the eigenvectors of W G Wᵀ the result
    is U_k U_kᵀ W, which needs no S at all; where the weight has more rows than columns, V of Sᵀ Wᵀ W S and a
    triangular solve give the same. Both are projections: the error is that of the subspace, of second order.

    Parameters
    ----------
    weight : (out_features, in_features) array or tensor
    gram : (in_features, in_features) array or tensor
        Sum of x xᵀ. No mean is subtracted; its scale does not matter.
    rank : int
        1 to min(out_features, in_features).
    eps : float
        Added to the diagonal, relative to its mean: decides where the inputs leave directions open.

    Returns
    -------
    Factors
        A = U_k √s_k and B = √s_k V_kᵀ S⁻¹, arrays if `weight` is one. In float64.

    Raises
    ------
    InputError
        `rank` is out of range, shapes do not fit, or there is NaN or infinity.

    Examples
    --------
    >>> weight = np.diag([3.0, 2.0, 1.0])
    >>> a, b, s = whitened_svd(weight, np.diag([1.0, 1.0, 100.0]), rank=1)
    >>> s.tolist(), (a @ b).round(12).tolist()
    ([10.0, 3.0, 2.0], [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    """
    w = torch.as_tensor(weight).detach()
    g = _checked_gram(w, gram)
    if not 1 <= rank <= min(w.shape):
        raise InputError(f"rank={rank}: a weight of {w.shape[0]} x {w.shape[1]} has ranks 1 to {min(w.shape)}")
    found = _truncated(w, g, rank, eps)
    if isinstance(weight, np.ndarray):
        return Factors(*(part.numpy() for part in found))
    return found


def _truncated(w: Tensor, g: Tensor, rank: int, eps: float) -> Factors:
    # Nothing in float64 that can be had again is held while the eigenproblem is solved: that is the peak of memory.
    if w.shape[0] <= w.shape[1]:
        mean = float(g.diagonal().mean())
        squares, u = _eigenvectors(_outputs(w, g, eps * mean if mean > 0 else 1.0), rank)
        a, b = u, _product(w.T, u).T
    else:
        s = whitener(g, eps)
        squares, v = _eigenvectors(_square(w, s), rank)
        a = _product(w, s @ v)
        b = torch.linalg.solve_triangular(s.T, v, upper=True).T
    values = squares.flip(0).clamp(min=0.0).sqrt()
    # U_k has columns of length one, (W S) V_k of length s: balanced, both factors hold the root of s.
    share = values[:rank].clamp(min=_FLOOR * float(values[0]) or 1.0).sqrt()
    if w.shape[0] <= w.shape[1]:
        return Factors(a * share, b / share[:, None], values)
    return Factors(a / share, b * share[:, None], values)


def _outputs(w: Tensor, g: Tensor, ridge: float) -> Tensor:
    """W (G + ridge I) Wᵀ in float64."""
    made = torch.empty(len(w), len(w), dtype=torch.float64, device=w.device)
    for rows in _row_parts(len(w)):
        part = w[rows].double()
        part = torch.addmm(part, part, g, beta=ridge)
        for columns in _row_parts(len(w)):
            made[rows, columns] = part @ w[columns].double().T
    return made


def _square(w: Tensor, s: Tensor) -> Tensor:
    """(W S)ᵀ W S in float64."""
    made = torch.zeros_like(s)
    for rows in _row_parts(len(w)):
        part = w[rows].double() @ s
        made.addmm_(part.T, part)
    return made


def _product(w: Tensor, right: Tensor) -> Tensor:
    """W R in float64."""
    made = torch.empty(len(w), right.shape[1], dtype=torch.float64, device=w.device)
    for rows in _row_parts(len(w)):
        made[rows] = w[rows].double() @ right
    return made


def _row_parts(n_rows: int) -> list[slice]:
    return [slice(start, start + _ROWS) for start in range(0, n_rows, _ROWS)]


def _eigenvectors(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """All eigenvalues, the smallest first, and the eigenvectors of the `rank` largest, the largest first."""
    trim()
    squares, basis = torch.linalg.eigh(matrix)
    return squares, basis[:, len(basis) - rank :].flip(1)


def anchored_weight(weight: Tensor, cross: Tensor, gram: Tensor, *, eps: float = 0.0) -> Tensor:
    """The weight that gives the original outputs on shifted inputs as nearly as any: W (X X̂ᵀ) (X̂ X̂ᵀ)⁻¹.

    Truncating it with :func:`whitened_svd` and the Gram of X̂ solves min ‖W X - W' X̂‖ over rank k, since what is
    left of the error is orthogonal to X̂. The ridge pulls towards W itself, so directions without data keep it.

    Parameters
    ----------
    weight : (out_features, in_features)
    cross : (in_features, in_features)
        X X̂ᵀ, original inputs first.
    gram : (in_features, in_features)
        X̂ X̂ᵀ.
    eps : float
        Relative to the mean of the Gram's diagonal.
    """
    g = _checked_gram(weight, gram)
    lifted = eps * float(g.diagonal().mean())
    root = whitener(g, eps)
    made = torch.empty(weight.shape, dtype=torch.float64, device=g.device)
    for rows in _row_parts(len(weight)):
        w = weight[rows].detach().double()
        made[rows] = torch.cholesky_solve((w @ cross.double() + lifted * w).T, root).T
    return made


def output_error(weight: Tensor, factors: tuple[Tensor, Tensor], gram: Tensor) -> float:
    """‖(W - A B) X‖ / ‖W X‖ on inputs with second moment `gram`; 0 where there is no output."""
    g = _checked_gram(weight, gram)
    b = factors[1].double()
    lost = whole = 0.0
    for rows in _row_parts(len(weight)):
        w = weight[rows].detach().double()
        left = w - factors[0][rows].double() @ b
        whole += float(((w @ g) * w).sum())
        lost += float(((left @ g) * left).sum())
    return (max(0.0, lost) / whole) ** 0.5 if whole > 0 else 0.0


def anchored_error(
    weight: Tensor, factors: tuple[Tensor, Tensor], moments: tuple[Tensor, Tensor], energy: float
) -> float:
    """‖W X - A B X̂‖ / ‖W X‖ by X X̂ᵀ and X̂ X̂ᵀ, where `energy` is ‖W X‖²; 0 where there is no output."""
    cross, gram = moments
    b = factors[1].double()
    square = energy
    for rows in _row_parts(len(weight)):
        w, made = weight[rows].detach().double(), factors[0][rows].double() @ b
        square += float(((made @ gram - 2 * (w @ cross)) * made).sum())
    return (max(0.0, square) / energy) ** 0.5 if energy > 0 else 0.0


def drift(gram: Any, shifted: Any, *, eps: float = 0.0) -> float:
    """Spectral norm of S⁻¹ Ĝ S⁻ᵀ - I: how far inputs have moved from those that S was made for.

    0: not at all. A truncation that S promises an error e for has at most (1 + drift) e² on the moved inputs.

    Examples
    --------
    >>> drift(np.eye(2), np.diag([1.5, 1.0]))
    0.5
    """
    g, moved = _doubles(gram, shifted)
    s = whitener(g, eps)
    white = torch.linalg.solve_triangular(s, moved, upper=False)
    white = torch.linalg.solve_triangular(s, white.T, upper=False)
    del s  # large, and not needed for the eigenvalues; these read the lower half alone
    return float((torch.linalg.eigvalsh(white) - 1).abs().max())


def allocate_ranks(
    spectra: Mapping[str, Any], shapes: Mapping[str, tuple[int, int]], n_parameters: float
) -> dict[str, int]:
    """Ranks that lose the least relative output energy, summed over layers, within a number of parameters.

    Every layer starts at rank 1; then the largest gain a parameter is taken next, as long as it fits. Energies fall
    along a spectrum, so that this greedy order is the best but for the last step.

    Parameters
    ----------
    spectra : mapping of layer to (min(out_features, in_features),)
        Singular values of W S, the largest first.
    shapes : mapping of layer to (out_features, in_features)
    n_parameters : float
        Of all factors together.

    Raises
    ------
    InputError
        Even rank 1 everywhere does not fit.

    Examples
    --------
    >>> allocate_ranks({"a": [3.0, 2.0, 0, 0, 0, 0], "b": [9.0, 0, 0, 0, 0, 0]}, {"a": (6, 6), "b": (6, 6)}, 36)
    {'a': 2, 'b': 1}
    """
    left = n_parameters - sum(map(sum, shapes.values()))
    if left < 0:
        raise InputError(
            f"{n_parameters:.0f} parameters: rank 1 in each of the {len(shapes)} layers takes "
            f"{n_parameters - left:.0f}; raise the ratio or the budget"
        )
    ranks = dict.fromkeys(shapes, 1)
    names, gains, costs = [], [], []
    for name, (rows, columns) in shapes.items():
        energy = np.asarray(spectra[name], dtype=np.float64) ** 2
        most = rank_for_ratio(rows, columns, 1.0)  # with more, the dense weight is smaller
        share = energy[1:most] / max(float(energy.sum()), 1e-300)
        names += [name] * len(share)
        gains.append(share / (rows + columns))
        costs += [rows + columns] * len(share)
    for place in np.argsort(-np.concatenate(gains), kind="stable") if gains else []:
        if costs[place] <= left:
            left -= costs[place]
            ranks[names[place]] += 1
    return ranks


def _doubles(weight: Any, gram: Any) -> tuple[Tensor, Tensor]:
    return torch.as_tensor(weight).detach().double(), _checked_gram(weight, gram)


def _checked_gram(weight: Any, gram: Any) -> Tensor:
    """The Gram matrix in float64, where it and the weight are what they should be."""
    w, g = torch.as_tensor(weight).detach(), torch.as_tensor(gram).detach().double()
    if w.ndim != 2 or g.shape != (w.shape[1], w.shape[1]):
        raise InputError(
            f"the weight has shape {tuple(w.shape)} and the Gram matrix {tuple(g.shape)}; expected "
            f"(out_features, in_features) and (in_features, in_features)"
        )
    for name, part in (("weight", w), ("Gram matrix", g)):
        if not all(bool(torch.isfinite(part[rows]).all()) for rows in _row_parts(len(part))):
            raise InputError(f"the {name} holds NaN or infinity")
    return g
