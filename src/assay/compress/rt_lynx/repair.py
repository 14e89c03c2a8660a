"""Fit the low-rank branch that repairs a sparse layer: X Lᵀ beside S(X) Wᵀ, with L of rank R and the dense X.

The layer's loss |X Wᵀ - S(X) Wᵀ - X Lᵀ|² needs of the data only Xᵀ X and Xᵀ E, with E = (X - S(X)) Wᵀ: tokens are
streamed. `closed_form` is its exact minimum (reduced-rank regression, ours); `sgd` takes gradient steps, as the paper.

Names follow PEFT: ``lora_A`` (R, K) is applied first and ``lora_B`` (O, R) second. The paper's L_A is our ``lora_B``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from assay._core.errors import InputError
from assay.compress._memory import trim
from assay.compress.rt_lynx.activations import energy_kept, nm_topk, norm_compensate, sparse_activation

if TYPE_CHECKING:
    from torch import Tensor

#: Added to the diagonal of XᵀX, as a share of its mean.
DAMP = 1e-4

#: Rows that are kept to measure on: of one call, and in all.
_HELD_OUT_CALL, _HELD_OUT = 256, 1024


class Factors(NamedTuple):
    """The branch: x to x lora_Aᵀ lora_Bᵀ."""

    lora_A: Tensor  # noqa: N815  # PEFT's names
    lora_B: Tensor  # noqa: N815


class Errors(NamedTuple):
    """Squared error over squared norm of a layer's outputs, and the energy kept of its inputs."""

    energy: float
    naive: float
    norm: float
    repaired: float


@dataclass
class RepairStats:
    """What is kept of the tokens that go into a layer: K x K and K x O numbers, and a few rows to measure on.

    Parameters
    ----------
    weight : (out_features, in_features) float
    n, m : int
    norm_comp : bool
        As the layer will use them.
    hold_out : bool
        Keep the last fifth of the rows of each update out of the fit; some of them are what :meth:`errors` uses.
    """

    weight: Tensor
    n: int = 2
    m: int = 4
    norm_comp: bool = True
    hold_out: bool = False
    gram: Tensor = field(init=False)
    cross: Tensor = field(init=False)
    error_energy: float = field(init=False, default=0.0)
    n_tokens: int = field(init=False, default=0)
    n_updates: int = field(init=False, default=0)
    held: list[Tensor] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.weight = self.weight.detach()
        out_features, in_features = self.weight.shape
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        self.gram = torch.zeros(in_features, in_features, dtype=wide, device=self.weight.device)
        self.cross = torch.zeros(in_features, out_features, dtype=wide, device=self.weight.device)

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Add tokens (..., in_features).

        Raises
        ------
        InputError
            They hold NaN or infinity.
        """
        self.n_updates += 1
        rows = x.detach().reshape(-1, x.shape[-1])
        if not torch.isfinite(rows).all():
            raise InputError(f"call {self.n_updates}: the input holds NaN or infinity")
        if self.hold_out:
            n_out = len(rows) // 5
            self._hold(rows[len(rows) - n_out :])
            rows = rows[: len(rows) - n_out]
        wide = self.gram.dtype
        dense, sparse = rows.to(wide), sparse_activation(rows, self.n, self.m, norm_comp=self.norm_comp).to(wide)
        error = (dense - sparse) @ self.weight.to(wide).T
        self.gram.addmm_(dense.T, dense)
        self.cross.addmm_(dense.T, error)
        self.error_energy += float(error.square().sum())
        self.n_tokens += len(rows)

    def _hold(self, rows: Tensor) -> None:
        room = min(_HELD_OUT_CALL, _HELD_OUT - sum(map(len, self.held)))
        if room > 0 and len(rows):
            self.held.append(rows[:: max(1, math.ceil(len(rows) / room))].clone())

    def loss(self, factors: Factors) -> float:
        """Squared error of the repaired outputs on all tokens that were added, over the error without repair."""
        a, b = (part.to(torch.float64) for part in factors)
        gram, cross = self.gram.double(), self.cross.double()
        explained = 2 * torch.sum((a @ cross) * b.T) - torch.sum((a @ gram @ a.T) * (b.T @ b))
        return 1 - float(explained) / self.error_energy if self.error_energy else 0.0

    @torch.no_grad()
    def errors(self, factors: Factors | None) -> Errors:
        """Relative squared errors of the outputs on the rows that were held out; NaN if there are none."""
        if not self.held:
            return Errors(math.nan, math.nan, math.nan, math.nan)
        wide = self.gram.dtype
        rows = torch.cat(self.held)
        x, weight = rows.to(wide), self.weight.to(wide)
        total = (x @ weight.T).square().sum()
        x_sparse, _ = nm_topk(x, self.n, self.m)
        scaled = norm_compensate(x, x_sparse) if self.n < self.m else x_sparse
        used = scaled if self.norm_comp else x_sparse
        left = (x - used) @ weight.T
        if factors is not None:
            left = left - (x @ factors.lora_A.to(wide).T) @ factors.lora_B.to(wide).T
        naive, norm, repaired = (
            float(part.square().sum() / total) if total > 0 else 0.0
            for part in ((x - x_sparse) @ weight.T, (x - scaled) @ weight.T, left)
        )
        return Errors(energy_kept(x, self.n, self.m), naive, norm, repaired)


def closed_form(stats: RepairStats, rank: int, damp: float = DAMP) -> Factors:
    """The branch of rank `rank` with the least loss on the tokens of `stats`.

    With G = XᵀX + λI = L Lᵀ and Z = L⁻¹ XᵀE, the least-squares branch is B = G⁻¹ XᵀE; its best approximation of rank R
    in the norm of the outputs is B V Vᵀ, with V the first R right singular vectors of Z.

    Parameters
    ----------
    stats : RepairStats
    rank : int
        From 1; more than min(K, O) is the same as that.
    damp : float
        λ over the mean of the diagonal of XᵀX.

    Returns
    -------
    Factors
        float32, or float64 for float64 statistics.

    Raises
    ------
    InputError
        `rank` is below 1, or no token was added.
    """
    _check(stats, rank)
    gram = stats.gram.double()
    rank = min(rank, *stats.cross.shape)
    mean = float(gram.diagonal().mean())
    gram.diagonal().add_(damp * mean if mean > 0 else 1.0)
    root = torch.linalg.cholesky(gram)
    del gram  # with thousands of inputs, each of these is large
    z = torch.linalg.solve_triangular(root, stats.cross.double(), upper=False)
    trim()
    if z.shape[1] <= z.shape[0]:
        v = torch.linalg.eigh(z.T @ z).eigenvectors.flip(1)[:, :rank]
    else:  # the same vectors from the smaller product
        u = torch.linalg.eigh(z @ z.T).eigenvectors.flip(1)[:, :rank]
        v = torch.linalg.qr(z.T @ u).Q
    lora_a = torch.linalg.solve_triangular(root.T, z @ v, upper=True).T
    dtype = stats.gram.dtype
    return Factors(lora_a.to(dtype).contiguous(), v.to(dtype).contiguous())


def sgd(stats: RepairStats, rank: int, n_steps: int = 2000, lr: float = 1e-3, seed: int = 0) -> Factors:
    """Train the branch with AdamW on the loss over all tokens of `stats`, from L_A = 0 and a Kaiming normal L_B.

    Parameters
    ----------
    stats : RepairStats
    rank : int
    n_steps : int
        The paper: about 2000.
    lr : float
        At the start; it falls to zero along a cosine. The paper does not report it.
    seed : int

    Raises
    ------
    InputError
        As for :func:`closed_form`.
    """
    _check(stats, rank)
    in_features, out_features = stats.cross.shape
    rank = min(rank, in_features, out_features)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(rank, in_features, generator=generator) * math.sqrt(2 / in_features)
    a = nn.Parameter(start.to(stats.gram))
    b = nn.Parameter(torch.zeros(out_features, rank).to(stats.gram))
    scale = max(stats.error_energy, 1e-30)
    gram, cross = stats.gram / scale, stats.cross / scale
    optimizer = torch.optim.AdamW([a, b], lr=lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    with torch.enable_grad():
        for _ in range(n_steps):
            loss = torch.sum((a @ gram @ a.T) * (b.T @ b)) - 2 * torch.sum((a @ cross) * b.T)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimizer.step()
            schedule.step()
    return Factors(a.detach(), b.detach())


def _check(stats: RepairStats, rank: int) -> None:
    if rank < 1:
        raise InputError(f"rank={rank}: expected 1 or more")
    if not stats.n_tokens:
        raise InputError("no token reached the layer, so there is nothing to fit its repair to")
