"""What is learned: an encoder of windows, prototypes, and a velocity. Imported only where torch is in use."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from assay.audit.mpfm import prototypes as proto

if TYPE_CHECKING:
    from assay.audit.mpfm.flow import Velocity

N_DOMAIN, N_TIME, N_HIDDEN, N_HEADS = 16, 32, 256, 4


class Size(NamedTuple):
    """All that is needed to build the network again."""

    n_features: int
    length: int
    d: int
    n_shared: int
    n_private: int
    temperature: float = 0.5
    shared: bool = True
    private: bool = True


class Block(nn.Module):
    """Pre-norm self-attention and a feed-forward layer of twice the width."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, h: Tensor, mask: Tensor) -> Tensor:
        """(n, length, d) to the same; `mask` is (n, length), True where there is a line."""
        n, length, d = h.shape
        q, k, v = self.qkv(self.norm1(h)).view(n, length, 3, N_HEADS, d // N_HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
        h = h + self.out(mixed.transpose(1, 2).reshape(n, length, d))
        out: Tensor = h + self.down(functional.gelu(self.up(self.norm2(h))))
        return out


class WindowEncoder(nn.Module):
    """z of a window: pairs of successive lines, two blocks over all, mean and maximum. It is never told the domain.

    The pairs are ours: order is a matter of successors first, and the blocks alone need far longer to find them.

    Lines come as rows of a table of templates, so that a template is projected once however often it occurs.
    """

    def __init__(self, n_features: int, length: int, d: int) -> None:
        super().__init__()
        self.project = nn.Linear(n_features, d)
        self.position = nn.Parameter(0.02 * torch.randn(length, d))
        self.pair, self.start = nn.Linear(2 * d, 2 * d), nn.Parameter(torch.zeros(d))
        self.from_pair = nn.Linear(2 * d, d)
        self.blocks = nn.ModuleList([Block(d), Block(d)])
        self.out, self.norm = nn.Linear(2 * d, d), nn.LayerNorm(d)

    def forward(self, table: Tensor, ids: Tensor) -> Tensor:
        """(n, d) for (n_rows, d) projected rows and (n, length) row numbers, −1 where there is no line."""
        mask = ids >= 0
        lines = table[ids.clamp_min(0)]
        before = torch.cat([self.start.expand(len(ids), 1, -1), lines[:, :-1]], dim=1)
        pairs = self.from_pair(functional.gelu(self.pair(torch.cat([before, lines], dim=-1))))
        h = lines + pairs + self.position[: ids.shape[1]]
        for block in self.blocks:
            h = block(h, mask)
        weight = mask[..., None].to(h.dtype)
        mean = (h * weight).sum(dim=1) / weight.sum(dim=1)
        highest = h.masked_fill(~mask[..., None], -math.inf).amax(dim=1)
        z: Tensor = self.norm(self.out(torch.cat([mean, highest], dim=-1)))
        return z


class VelocityField(nn.Module):
    """v(x, t | prototype, domain): three hidden layers, each scaled and shifted by the domain."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.from_x = nn.Linear(width, N_HIDDEN, bias=False)
        self.from_time = nn.Linear(N_TIME, N_HIDDEN, bias=False)
        self.from_context = nn.Linear(width + N_DOMAIN, N_HIDDEN)
        self.hidden = nn.ModuleList([nn.Linear(N_HIDDEN, N_HIDDEN), nn.Linear(N_HIDDEN, N_HIDDEN)])
        self.film = nn.Linear(N_DOMAIN, 6 * N_HIDDEN)
        self.out = nn.Linear(N_HIDDEN, width)
        nn.init.zeros_(self.film.weight)
        nn.init.zeros_(self.film.bias)

    def given(self, p: Tensor, domain: Tensor) -> Velocity:
        """The velocity at (n, width) prototypes and (n, 16) domain vectors.

        What depends on neither x nor t is computed here, once for the 28 calls that a score takes.
        """
        context = self.from_context(torch.cat([p, domain], dim=-1))
        scale, shift = self.film(domain).view(len(p), 2, 3, N_HIDDEN).permute(1, 2, 0, 3)
        frequency = math.pi * torch.arange(1, N_TIME // 2 + 1, device=p.device, dtype=p.dtype)

        def velocity(x: Tensor, t: Tensor) -> Tensor:
            waves = torch.cat([(t * frequency).sin(), (t * frequency).cos()], dim=-1)
            h = self.from_x(x) + self.from_time(waves) + context
            h = functional.silu(h * (1 + scale[0]) + shift[0])
            for layer, a, b in zip(self.hidden, scale[1:], shift[1:], strict=True):
                h = functional.silu(layer(h) * (1 + a) + b)
            v: Tensor = self.out(h)
            return v

        return velocity


class PrototypeFlow(nn.Module):
    """Encoder, shared and private prototypes, and the velocity.

    Parameters
    ----------
    size : Size
    n_domains : int
    """

    def __init__(self, size: Size, n_domains: int) -> None:
        super().__init__()
        self.size = size
        half = size.d // 2
        self.encoder = WindowEncoder(size.n_features, size.length, size.d)
        self.to_shared, self.to_private = nn.Linear(size.d, half), nn.Linear(size.d, half)
        self.shared = nn.Parameter(torch.randn(size.n_shared, half))
        self.private = nn.Parameter(torch.randn(n_domains, size.n_private, half))
        self.gate = nn.Parameter(torch.full((n_domains,), 2.0))  # a_k: shared prototypes count almost fully at first
        self.domain = nn.Parameter(0.1 * torch.randn(n_domains, N_DOMAIN))
        self.velocity = VelocityField(half * (size.shared + size.private))

    def halves(self, table: Tensor, ids: Tensor) -> list[Tensor]:
        """z^s and z^p (only the one that is in use where the other is switched off)."""
        z = self.encoder(table, ids)
        use = [(self.to_shared, self.size.shared), (self.to_private, self.size.private)]
        return [head(z) for head, is_used in use if is_used]

    def sets(self, domain: Tensor) -> list[Tensor]:
        """The prototypes that windows of (n,) domains may use: shared ones through the domain's gate, and its own."""
        gated = torch.sigmoid(self.gate)[domain][:, None, None] * self.shared
        use = [(gated, self.size.shared), (self.private[domain], self.size.private)]
        return [prototypes for prototypes, is_used in use if is_used]

    def composite(self, halves: list[Tensor], sets: list[Tensor]) -> Tensor:
        """p(z, k) = [p^s; p^p]."""
        pairs = zip(halves, sets, strict=True)
        return torch.cat([proto.composite(z, c, self.size.temperature) for z, c in pairs], dim=-1)

    def grow(self, private: Tensor | None = None) -> None:
        """Add a domain: mean gate and domain vector, given private prototypes or some of every other domain's."""
        if private is None:
            everyone = self.private.detach().flatten(0, 1)
            private = everyone[torch.linspace(0, len(everyone) - 1, self.size.n_private).round().long()]
        for name, row in (
            ("private", private),
            ("gate", self.gate.detach().mean()),
            ("domain", self.domain.detach().mean(dim=0)),
        ):
            old = getattr(self, name).detach()
            setattr(self, name, nn.Parameter(torch.cat([old, row[None].to(old)])))
