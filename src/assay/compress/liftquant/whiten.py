"""Training on calibration data: the transform before the signs are chosen (stage 1), signs and scales after (stage 3).

Both minimise the squared error of a block's output against the full model's, layer weights being rebuilt at each step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from assay._core.seeds import child_seed
from assay.compress._blocks import run_block, watch_inputs
from assay.compress._layers import dense_weight
from assay.compress._memory import trim
from assay.compress.liftquant.search import pack_signs
from assay.compress.liftquant.transform import Transform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    from assay.compress._blocks import Call
    from assay.compress.liftquant.layers import LiftQuantLinear
    from assay.compress.liftquant.models import LiftQuantConfig


# ------------------------------------------------------------------------------------------- statistics of channels


def channel_scales(block: nn.Module, layers: Mapping[str, nn.Module], calls: Sequence[Call]) -> dict[str, Tensor]:
    """s1 of each layer: deviation of its input channels over that of all of them, from 1 to 16 (paper, stage 1).

    Layers that see the same inputs (q, k, v; gate and up) get the same tensor.
    """
    total: dict[str, Tensor] = {}
    square: dict[str, Tensor] = {}
    count: dict[str, int] = {}

    def see(name: str, rows: Tensor) -> None:
        rows = rows.double()
        total[name] = total.get(name, torch.zeros(())) + rows.sum(0)
        square[name] = square.get(name, torch.zeros(())) + rows.square().sum(0)
        count[name] = count.get(name, 0) + len(rows)

    watch_inputs(block, layers, calls[:8], see)
    made: dict[str, Tensor] = {}
    for name, n in count.items():
        variance = (square[name] / n - (total[name] / n).square()).clamp_min(0)
        overall = (square[name].mean() / n - (total[name].mean() / n).square()).clamp_min(1e-20)
        scale = (variance / overall).sqrt().clamp(1, 16).half()
        made[name] = next((other for other in made.values() if torch.equal(other, scale)), scale)
    return made


# ---------------------------------------------------------------------------------------------------- the transform


class Factor(nn.Module):
    """P = U diag(sigma) Vᵀ with U and V orthogonal: U and V start at a given rotation and at the identity."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        size = len(start)
        self.register_buffer("start", start)
        self.u, self.v = (nn.Parameter(torch.zeros(size, size, device=start.device)) for _ in range(2))
        self.log_sigma = nn.Parameter(torch.zeros(size, device=start.device))

    def inverse_transpose_and_self(self) -> tuple[Tensor, Tensor]:
        """P⁻ᵀ = U diag(1 / sigma) Vᵀ, and P."""
        assert isinstance(self.start, torch.Tensor)
        u, v = self.start @ cayley(self.u), cayley(self.v)
        sigma = self.log_sigma.exp()
        return (u / sigma) @ v.T, (u * sigma) @ v.T


def cayley(raw: Tensor) -> Tensor:
    """The orthogonal matrix (I + A)⁻¹ (I - A) of the skew-symmetric A = raw - rawᵀ."""
    skew = raw - raw.T
    one = torch.eye(len(raw), dtype=raw.dtype, device=raw.device)
    done: Tensor = torch.linalg.solve(one + skew, one - skew)
    return done


class ProxyLinear(nn.Module):
    """A layer under a trainable transform and a uniform quantiser with straight-through rounding.

    The proxy is uniform on purpose (paper, stage 1): training through the lifted code itself is slow and unstable.
    """

    def __init__(self, linear: nn.Module, transform: Transform, bits: int) -> None:
        super().__init__()
        weight, bias = dense_weight(linear)
        device = weight.device
        self.bias = None if bias is None else bias.detach()
        self.in_features, self.d, self.bits = weight.shape[1], transform.d, bits
        left, right = (part.to(device).float() for part in (transform.left, transform.right))
        self.left, self.right = Factor(left), Factor(right)
        scale = transform.channel_scale
        ones = torch.ones(weight.shape[1], device=device)
        self.log_s1 = nn.Parameter((ones if scale is None else scale.to(device).float()).log())
        self.log_s2 = nn.Parameter(torch.zeros(len(left), len(right) // transform.d, device=device))
        self.alpha = nn.Parameter(torch.zeros(len(weight), 1, device=device))
        self._weight = [weight.float()]  # in a list, so that it is no parameter and no buffer
        with torch.no_grad():
            self.register_buffer("step", best_step(self._turned()[0], bits))

    def _turned(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        weight = self._weight[0]
        s1 = clamp_through(self.log_s1.exp(), 0.02, 50)
        (left_back, left), (right_back, right) = (part.inverse_transpose_and_self() for part in (self.left, self.right))
        rows = nn.functional.pad(weight * s1, (0, len(left) * len(right) - self.in_features))
        s2 = self.log_s2.exp().repeat_interleave(self.d, 1)
        turned = left.T @ rows.reshape(len(rows), len(left), len(right)) @ right * s2
        return turned, (s1, s2, left_back, right_back)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features) through the quantised weight."""
        return _computed_again(self._product, x)

    def _product(self, x: Tensor) -> Tensor:
        turned, (s1, s2, left_back, right_back) = self._turned()
        assert isinstance(self.step, torch.Tensor)
        step = self.step * 2 * torch.sigmoid(self.alpha)[:, :, None]
        done = (round_mid(turned / step, self.bits) * step) / s2
        back = (left_back @ done @ right_back.T).flatten(1)[:, : self.in_features] / s1
        return nn.functional.linear(x, back.to(x.dtype), self.bias)

    def transform(self) -> Transform:
        """T as it was trained, in float16."""
        with torch.no_grad():
            left, right = (part.inverse_transpose_and_self()[0].half() for part in (self.left, self.right))
            s1 = self.log_s1.exp().clamp(0.02, 50).half()
            return Transform(self.in_features, self.d, left, right, s1, self.log_s2.exp().half())


def round_mid(x: Tensor, bits: int) -> Tensor:
    """The nearest of the levels k + 1/2 between ±(2^bits - 1) / 2; the gradient passes straight through."""
    top = (2**bits - 1) / 2
    done = ((x - 0.5).round() + 0.5).clamp(-top, top)
    return x + (done - x).detach()


def best_step(turned: Tensor, bits: int) -> Tensor:
    """Step of each row's quantiser with the least squared error, of 100 from the largest weight's to a fifth of it."""
    rows = turned.flatten(1)
    most = rows.abs().amax(1, keepdim=True).clamp_min(1e-12) / ((2**bits - 1) / 2)
    best: Tensor = most
    least = torch.full_like(most, torch.inf)
    for share in np.linspace(1.0, 0.2, 100):
        step = most * float(share)
        error = (round_mid(rows / step, bits) * step - rows).square().sum(1, keepdim=True)
        best, least = torch.where(error < least, step, best), torch.minimum(error, least)
    return best[:, :, None]


def clamp_through(x: Tensor, low: float, high: float) -> Tensor:
    """Clamp whose gradient passes straight through."""
    return x + (x.clamp(low, high) - x).detach()


def whiten(
    block: nn.Module,
    layers: Mapping[str, nn.Module],
    calls: Sequence[Call],
    outputs: Sequence[Tensor],
    transforms: Mapping[str, Transform],
    config: LiftQuantConfig,
    bits: int,
) -> dict[str, Transform]:
    """Train the transforms of a block's layers for `config.whiten_steps` steps; return those to use."""
    places = _places(block, layers)
    proxies = {name: ProxyLinear(layer, transforms[name], bits) for name, layer in layers.items()}
    rates = {"alpha": 1e-2, "log_s1": 1e-2, "log_s2": 5e-3}
    groups = [
        {"params": [p], "lr": next((lr for key, lr in rates.items() if name.endswith(key)), 5e-3)}
        for proxy in proxies.values()
        for name, p in proxy.named_parameters()
    ]
    for name, place in places.items():
        block.set_submodule(place, proxies[name])
    try:
        _train(block, groups, calls, outputs, config.whiten_steps, config.seed)
    finally:
        for name, place in places.items():
            block.set_submodule(place, layers[name])
    return {name: proxy.transform() for name, proxy in proxies.items()}


# ------------------------------------------------------------------------------------------------- after the signs


#: Latents in one tensor: a gradient and what a step of the optimiser needs are as large as the tensor.
_LATENTS = 1 << 18


class _Sign(torch.autograd.Function):
    """+1 where x >= 0, else -1; the gradient passes straight through, and nothing is kept for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.where(x >= 0, 1.0, -1.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Correcting(nn.Module):
    """A quantised layer whose signs have latents, and whose scales and transform train (paper, stage 3)."""

    def __init__(self, layer: LiftQuantLinear) -> None:
        super().__init__()
        self.layer = [layer]  # in a list, so that its buffers are not trained with ours
        scale = layer.row_scale.float()[:, None]
        step = max(1, _LATENTS // (layer.shape.n_vectors * layer.shape.n_bits))
        parts = [slice(start, start + step) for start in range(0, layer.out_features, step)]
        self.latents = nn.ParameterList(nn.Parameter(layer.signs(rows) * scale[rows]) for rows in parts)
        self.row_scale = nn.Parameter(scale.clone())
        self.left, self.right = nn.Parameter(layer.left.float()), nn.Parameter(layer.right.float())
        s1, s2 = layer.channel_scale, layer.block_scale
        self.channel_scale = None if s1 is None else nn.Parameter(s1.float())
        self.block_scale = None if s2 is None else nn.Parameter(s2.float())

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        return _computed_again(self._product, x)

    def _product(self, x: Tensor) -> Tensor:
        layer = self.layer[0]
        t = Transform(layer.in_features, layer.shape.d, self.left, self.right, self.channel_scale, self.block_scale)
        rows = t.activations(x.reshape(-1, layer.in_features).float())
        product = torch.cat([rows @ self._points(latent).T for latent in self.latents], 1) * self.row_scale[:, 0]
        product = product if layer.bias is None else product + layer.bias.detach()
        return product.to(x.dtype).reshape(*x.shape[:-1], layer.out_features)

    def _points(self, latent: Tensor) -> Tensor:
        shape, matrix = self.layer[0].shape, self.layer[0].matrix
        signs: Tensor = _Sign.apply(latent)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return (signs.reshape(-1, shape.n_bits) @ matrix.T).reshape(len(latent), -1)

    @torch.no_grad()
    def keep(self, *, own_transform: bool) -> None:
        """Write what was trained back into the layer, packed."""
        layer = self.layer[0]
        layer.codes = torch.cat([pack_signs(latent >= 0) for latent in self.latents]).to(layer.codes.device)
        zero = layer.row_scale == 0
        layer.row_scale = torch.where(zero, 0.0, self.row_scale[:, 0].abs().clamp(1e-4, 1e4)).half()
        if own_transform:
            s1, s2 = (None if part is None else part.detach() for part in (self.channel_scale, self.block_scale))
            left, right = self.left.detach(), self.right.detach()
            layer.set_transform(Transform(layer.in_features, layer.shape.d, left, right, s1, s2))


def correct(
    block: nn.Module,
    layers: Mapping[str, LiftQuantLinear],
    calls: Sequence[Call],
    outputs: Sequence[Tensor],
    config: LiftQuantConfig,
) -> None:
    """Train signs, scales and transforms of a block's quantised layers for `config.correct_steps` steps, in place.

    A transform that layers share (nothing was whitened) stays, so that they go on sharing it.
    """
    if not config.correct_steps:
        return
    places = _places(block, layers)
    trained = {name: Correcting(layer) for name, layer in layers.items()}
    groups: list[dict[str, Any]] = []
    for name, part in trained.items():
        own = layers[name].block_scale is not None
        rate = min(1e-2, float(part.row_scale.detach().mean()) * config.latent_rate)
        groups += [{"params": list(part.latents), "lr": rate}, {"params": [part.row_scale], "lr": rate / 5}]
        transform = [p for p in (part.left, part.right) if own]
        scales = [p for p in (part.channel_scale, part.block_scale) if own and p is not None]
        groups += [{"params": transform, "lr": 1e-3}] * bool(transform) + [{"params": scales, "lr": 1e-3}] * bool(
            scales
        )
    for name, place in places.items():
        block.set_submodule(place, trained[name])
    try:
        _train(block, groups, calls, outputs, config.correct_steps, config.seed)
    finally:
        for name, place in places.items():
            block.set_submodule(place, layers[name])
    for name, part in trained.items():
        part.keep(own_transform=layers[name].block_scale is not None)


def _places(block: nn.Module, layers: Mapping[str, nn.Module]) -> dict[str, str]:
    """Where in the block each layer is."""
    inside = {id(module): name for name, module in block.named_modules()}
    return {name: inside[id(layer)] for name, layer in layers.items()}


def _train(
    block: nn.Module,
    groups: list[dict[str, Any]],
    calls: Sequence[Call],
    outputs: Sequence[Tensor],
    steps: int,
    seed: int,
) -> None:
    """AdamW with a cosine to a twentieth on the squared error of the block's output, a batch a step."""
    # One optimiser a tensor, which steps as soon as the tensor's gradient is there: all gradients are never held.
    optimizers = {
        p: torch.optim.AdamW([p], lr=group["lr"], weight_decay=0.0) for group in groups for p in group["params"]
    }
    rates = {p: optimizer.param_groups[0]["lr"] for p, optimizer in optimizers.items()}

    def step(p: Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    handles = [p.register_post_accumulate_grad_hook(step) for p in optimizers]
    frozen = [p for p in block.parameters() if p.requires_grad and p not in optimizers]
    for p in frozen:
        p.requires_grad_(False)
    try:
        with torch.enable_grad():
            for number, place in enumerate(_order(len(calls), steps, seed)):
                share = 0.05 + 0.475 * (1 + float(np.cos(np.pi * number / steps)))
                for p, optimizer in optimizers.items():
                    optimizer.param_groups[0]["lr"] = rates[p] * share
                target = outputs[place]
                trim()
                loss = (run_block(block, calls[place]) - target).square().mean() / target.square().mean()
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    finally:
        for handle in handles:
            handle.remove()
        for optimizer in optimizers.values():
            optimizer.state.clear()  # an optimiser is part of a cycle: it would hold its moments for a while
        for p in frozen:
            p.requires_grad_(True)


def _computed_again(product: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The product, computed a second time in the backward pass: the rebuilt weights of a block are never all held."""
    made: Tensor = checkpoint(product, x, use_reentrant=False, preserve_rng_state=False)
    return made


def _order(n: int, steps: int, seed: int) -> Iterator[int]:
    """Batches in random order, all of them before one comes again."""
    rng = np.random.default_rng(child_seed(seed, "order"))
    for start in range(0, steps, n):
        yield from rng.permutation(n)[: steps - start]
