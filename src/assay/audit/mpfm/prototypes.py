"""Shared and private prototypes: soft assignment, structural evidence, and what keeps them apart and alive.

Our reconstruction of the paper's first part. Functions on torch tensors; imported only where torch is in use.
"""

from __future__ import annotations

import torch
from torch import Tensor


def squared_distances(z: Tensor, prototypes: Tensor) -> Tensor:
    """(n, n_prototypes) squared Euclidean distances of (n, width) points to prototypes.

    `prototypes` is (n_prototypes, width), or (n, n_prototypes, width) where every point has a set of its own.
    """
    own = prototypes if prototypes.ndim == 3 else prototypes[None]
    return (z[:, None] - own).square().sum(-1)


def assign(z: Tensor, prototypes: Tensor, temperature: float) -> Tensor:
    """Soft assignment q = softmax(−‖z − C‖² / temperature); rows sum to one.

    Examples
    --------
    >>> assign(torch.zeros(1, 2), torch.tensor([[0.0, 0.0], [3.0, 0.0]]), 0.1).round().tolist()
    [[1.0, 0.0]]
    """
    return torch.softmax(-squared_distances(z, prototypes) / temperature, dim=-1)


def composite(z: Tensor, prototypes: Tensor, temperature: float) -> Tensor:
    """(n, width) prototype of every point: the average of prototypes, weighted by the soft assignment."""
    q = assign(z, prototypes, temperature)
    return torch.einsum("nm,nmw->nw", q, prototypes if prototypes.ndim == 3 else prototypes.expand(len(z), -1, -1))


def structural(halves: list[Tensor], sets: list[Tensor]) -> Tensor:
    """S_str (n,): squared distance to the nearest composite prototype; the halves are minimised one by one and added.

    The pairs of a shared and a private prototype form a grid, so that the nearest pair is the pair of the nearest.
    """
    distances = [
        squared_distances(z, prototypes).min(dim=-1).values for z, prototypes in zip(halves, sets, strict=True)
    ]
    return torch.stack(distances).sum(dim=0)


def orthogonality(shared: Tensor, private: Tensor) -> Tensor:
    """L_orth = ‖corr(Z^s, Z^p)‖²_F / d, d the width of both halves together.

    Zero for unrelated halves, one half where both are the same whitened coordinates.
    """
    a, b = ((z - z.mean(dim=0)) / (z.std(dim=0, correction=0) + 1e-6) for z in (shared, private))
    correlation = a.T @ b / len(a)
    return correlation.square().sum() / (shared.shape[1] + private.shape[1])


def diversity(prototypes: Tensor, separation: float) -> Tensor:
    """L_div: mean over pairs of max(0, separation − distance)², inside each set of (…, n_prototypes, width)."""
    n = prototypes.shape[-2]
    if n < 2:
        return prototypes.new_zeros(())
    first, second = torch.triu_indices(n, n, offset=1)
    distance = (prototypes[..., first, :] - prototypes[..., second, :]).square().sum(-1).clamp_min(1e-12).sqrt()
    return (separation - distance).relu().square().mean()


def balance(q: Tensor, domain: Tensor, n_domains: int) -> Tensor:
    """L_bal: KL of the batch's mean assignment to the shared prototypes from uniform, averaged over domains."""
    n_prototypes = q.shape[1]
    sums = q.new_zeros(n_domains, n_prototypes).index_add(0, domain, q)
    present = torch.bincount(domain, minlength=n_domains) > 0
    usage = sums[present] / sums[present].sum(dim=1, keepdim=True)
    return (usage * (usage * n_prototypes).clamp_min(1e-12).log()).sum(dim=1).mean()


def spread_floor(z: Tensor) -> Tensor:
    """L_var: mean over coordinates of max(0, 1 − standard deviation): an encoder that maps all to one point pays 1."""
    return (1.0 - (z.var(dim=0, correction=0) + 1e-8).sqrt()).relu().mean()


def mean_discrepancy(z: Tensor, domain: Tensor, n_domains: int) -> Tensor:
    """Squared maximum mean discrepancy between every domain and the whole batch, Gaussian kernels of three widths.

    The forced alignment that the method does without; here as the control that shows what it costs.
    """
    squared = torch.cdist(z, z).square()
    scale = squared.detach().mean() + 1e-8
    kernel = torch.stack([torch.exp(-squared / (scale * width)) for width in (0.25, 1.0, 4.0)]).mean(dim=0)
    member = torch.nn.functional.one_hot(domain, n_domains).to(z.dtype)
    weight = member / member.sum(dim=0).clamp_min(1.0) - 1.0 / len(z)
    return torch.einsum("nk,nm,mk->k", weight, kernel, weight).mean()
