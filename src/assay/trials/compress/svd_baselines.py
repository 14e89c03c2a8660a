"""What people cut weights to low rank with today: plain SVD, ASVD and SVD-LLM; baselines of dynamic-whitening.

Each gives the factors of all ranks of a weight at once, so that any ratio is a cut. ASVD: Yuan et al., "ASVD:
Activation-aware Singular Value Decomposition", arXiv:2312.05821 (its scaling of channels with alpha = 0.5; its search
for ranks by layer is left out, since all arms have the same ranks). SVD-LLM: Wang et al., "SVD-LLM: Truncation-aware
Singular Value Decomposition", arXiv:2403.07378 (whitening by one pass of the full model; its later update of weights by
closed form and LoRA training is left out). Written here because their code is tied to CUDA and to certain models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from assay._core.decoder import decoder_blocks
from assay.compress._blocks import after, batches_of, block_inputs, run_block, watch_inputs
from assay.compress._layers import dense_weight, linear_layers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor, nn

    from assay.compress._blocks import Calibration

ASVD_ALPHA = 0.5


class Pair(NamedTuple):
    """A weight as A B; its first k columns and rows are the factors of rank k."""

    a: Tensor
    b: Tensor

    def cut(self, rank: int) -> Pair:
        """The factors of that rank."""
        return Pair(self.a[:, :rank], self.b[:rank])


@dataclass
class Seen:
    """Sums over the inputs x of a layer: x xᵀ, and |x|."""

    gram: Tensor
    absolute: Tensor
    n_tokens: int = 0
    last: Tensor | None = None


def _balanced(weight: Tensor, back: Callable[[Tensor], Tensor]) -> Pair:
    """Singular value decomposition of a scaled weight, its root on both sides, scaled back on the right."""
    u, s, vt = torch.linalg.svd(weight, full_matrices=False)
    root = s.sqrt()
    return Pair(u * root, back(root[:, None] * vt))


def svd(weight: Tensor) -> Pair:
    """Nearest in weight space (Eckart and Young)."""
    return _balanced(weight.float(), lambda right: right)


def asvd(weight: Tensor, mean_absolute: Tensor, alpha: float = ASVD_ALPHA) -> Pair:
    """Channels scaled by a power of their mean magnitude before the cut, and back after it."""
    scale = mean_absolute.float().clamp(min=1e-6) ** alpha
    return _balanced(weight.float() * scale, lambda right: right / scale)


def svd_llm(weight: Tensor, gram: Tensor) -> Pair:
    """Inputs whitened by the Cholesky factor of their second moment, as in the authors' code.

    Where the moment is not positive definite, -lambda_min + 1e-6 goes onto its diagonal.
    """
    moment = gram.double()
    root, failed = torch.linalg.cholesky_ex(moment)
    if failed:
        lowest = torch.linalg.eigvalsh(moment)[0]
        root = torch.linalg.cholesky(moment + (1e-6 - lowest) * torch.eye(len(moment), dtype=moment.dtype))
    whitened = (weight.double() @ root).float()

    def back(right: Tensor) -> Tensor:
        solved: Tensor = torch.linalg.solve_triangular(root, right.double(), upper=False, left=False)
        return solved.float()

    return _balanced(whitened, back)


@torch.no_grad()
def seen_by_layers(
    model: nn.Module, calibration: Calibration, skip: Sequence[str] = ("lm_head",)
) -> Iterator[tuple[str, Tensor, Seen]]:
    """Name, weight and sums of every linear layer inside the blocks of the full model, block by block."""
    blocks = decoder_blocks(model)
    calls = block_inputs(model, blocks[0][1], batches_of(calibration))
    layers = dict(linear_layers(model, tuple(skip)))
    for prefix, block in blocks:
        inside = {name: layer for name, layer in layers.items() if name.startswith(f"{prefix}.")}
        found: dict[str, Seen] = {}
        newest: list[Seen] = []

        def see(name: str, rows: Tensor, found: dict[str, Seen] = found, newest: list[Seen] = newest) -> None:
            before = newest[0] if newest else None
            # The tensor is held, so its place in memory is not that of a later one.
            if before is not None and before.last is not None and before.last.data_ptr() == rows.data_ptr():
                found[name] = before  # the same input as the layer before it: counted once
                return
            n = rows.shape[1]
            sums = found.setdefault(name, Seen(torch.zeros(n, n, dtype=torch.float64), torch.zeros(n)))
            sums.gram += (rows.float().T @ rows.float()).double()
            sums.absolute += rows.float().abs().sum(0)
            sums.n_tokens += len(rows)
            sums.last = rows
            if before is not None:
                before.last = None
            newest[:] = [sums]

        watch_inputs(block, inside, calls, see)
        calls = [after(call, run_block(block, call)) for call in calls]
        for name, layer in inside.items():
            yield name, dense_weight(layer)[0], found[name]


def rank_at(shape: Sequence[int], ratio: float) -> int:
    """The largest rank whose factors have at most `ratio` of the parameters of a weight."""
    return max(1, int(ratio * shape[0] * shape[1] / (shape[0] + shape[1]) + 1e-9))
