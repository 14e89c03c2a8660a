"""Fit the network: prototypes first, then the flow, with hard examples once prototypes have settled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from assay.audit.mpfm import prototypes as proto
from assay.audit.mpfm.flow import matching_loss
from assay.audit.mpfm.mining import corrupt, hard_windows, novelty, shuffle_features, strange_templates
from assay.audit.mpfm.network import PrototypeFlow, Size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

#: Weights of the losses, as in the specification; `pull` and `fm` are means over coordinates (see the docs).
WEIGHTS = {"fm": 1.0, "pull": 1.0, "orth": 0.1, "div": 0.1, "bal": 0.05, "var": 1.0, "hard": 0.5, "mmd": 1.0}
FEWEST_BATCHES = 20
N_STRANGERS = 64  # templates that nobody has seen, for windows made wrong
SEPARATION, MARGIN, HARD_SHARE, HARD_BOOST, WARM_UP, AVERAGE = 1.0, 1.0, 0.1, 2.0, 5, 0.99


@dataclass(frozen=True)
class Rows:
    """Training windows: rows of `table` by number (windows of templates), or one row each (plain numbers)."""

    table: NDArray[np.float32]
    ids: NDArray[np.int64]
    domain: NDArray[np.int64]
    is_log: bool
    has_novelty: bool = False

    def tensors(self, device: str) -> tuple[Tensor, Tensor, Tensor]:
        """`table`, `ids` and `domain` on a device."""
        return tuple(torch.from_numpy(part).to(device) for part in (self.table, self.ids, self.domain))  # type: ignore[return-value]  # three parts


@dataclass(frozen=True)
class Recipe:
    """How to train."""

    epochs: tuple[int, int] = (10, 20)
    batch_size: int = 256
    learning_rate: float = 1e-3
    sigma0: float = 0.5
    mining: bool = True
    align: str | None = None
    history: list[dict[str, float]] = field(default_factory=list)


def train(rows: Rows, size: Size, n_domains: int, recipe: Recipe, seed: int, device: str) -> PrototypeFlow:
    """Learn encoder, prototypes and velocity from normal windows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = PrototypeFlow(size, n_domains).to(device)
    rng = np.random.default_rng(seed)
    _initial_prototypes(network, rows, seed, device)
    groups: list[dict[str, Any]] = [
        {"params": list(network.encoder.parameters()), "lr": recipe.learning_rate / 2},
        {"params": [p for name, p in network.named_parameters() if not name.startswith("encoder.")]},
    ]
    _run(network, rows, recipe, groups, rng, device)
    return network.eval().requires_grad_(False)


def train_domain(network: PrototypeFlow, rows: Rows, recipe: Recipe, seed: int, device: str) -> None:
    """Learn the last domain's prototypes, gate and vector; all else is frozen, and so are the other domains."""
    rng = np.random.default_rng(seed)
    network.requires_grad_(False)
    own = [network.private, network.gate, network.domain]
    keep = [parameter.detach().clone() for parameter in own]
    for parameter in own:
        parameter.requires_grad_(True)
    _run(network, rows, recipe, [{"params": own, "weight_decay": 0.0}], rng, device, joint=False)
    with torch.no_grad():
        for parameter, before in zip(own, keep, strict=True):
            parameter[:-1] = before[:-1]
    network.eval().requires_grad_(False)


def initial_private(network: PrototypeFlow, rows: Rows, seed: int, device: str) -> Tensor:
    """(n_private, width) centres of a new domain's windows."""
    z = embed(network, rows, device)[-1]
    return torch.from_numpy(_centers(z, network.size.n_private, seed)).to(device)


def _run(
    network: PrototypeFlow,
    rows: Rows,
    recipe: Recipe,
    groups: list[dict[str, Any]],
    rng: np.random.Generator,
    device: str,
    *,
    joint: bool = True,
) -> None:
    table, ids, domain = rows.tensors(device)
    optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, weight_decay=1e-4)
    parameters = [parameter for group in groups for parameter in group["params"]]
    averaged = [parameter.detach().clone() for parameter in (network.shared, network.private)]
    weight: NDArray[np.float64] = np.ones(len(rows.ids))
    hard = np.zeros(len(rows.ids), bool)
    drifts: list[NDArray[np.float64]] = []
    before: tuple[NDArray[Any], NDArray[Any]] | None = None
    templates = _TemplatePools(rows) if rows.is_log else None
    known = table
    for epoch in range(sum(recipe.epochs)):
        network.train()
        sums: dict[str, float] = {}
        mines = recipe.mining and joint and epoch >= WARM_UP
        n_batches = 0
        for batch in _batches(rows.domain, recipe.batch_size, weight, rng):
            wrong = _made_wrong(rows, batch, templates, rng) if mines else None
            if mines and rows.is_log:  # new ones for every batch: known strangers would be learned by heart
                strangers = _strangers(rows, rng)
                table = torch.cat([known, torch.from_numpy(strangers).to(device)])
            losses = _losses(
                network, table, ids, domain, batch, wrong, recipe, rng, with_flow=epoch >= recipe.epochs[0] or not joint
            )
            if not joint:
                losses = {name: losses[name] for name in ("fm", "pull", "div") if name in losses}
            total = torch.stack([WEIGHTS[name] * loss for name, loss in losses.items()]).sum()
            optimizer.zero_grad(set_to_none=True)
            total.backward()  # type: ignore[no-untyped-call]  # torch's own stub
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            n_batches += 1
            for name, loss in losses.items():
                sums[name] = sums.get(name, 0.0) + float(loss.detach())
            for average, parameter in zip(averaged, (network.shared, network.private), strict=True):
                average.lerp_(parameter.detach(), 1 - AVERAGE)
        note = {name: value / n_batches for name, value in sums.items()}
        if joint:
            halves = embed(network, rows, device)
            note["std"] = float(np.concatenate(halves, axis=1).std(axis=0).mean())
            if recipe.mining:
                p, nearest = _prototypes_of(network, halves, averaged, rows.domain, device)
                if before is not None:
                    drifts.append(np.linalg.norm(p - before[0], axis=1) + (nearest != before[1]).any(axis=1))
                    drifts = drifts[-3:]
                before = p, nearest
                note["usage"] = len(np.unique(nearest[:, 0])) / network.size.n_shared
                if mines and drifts:
                    hard = hard_windows(drifts, rows.domain, HARD_SHARE)
                    weight = np.where(hard, 1.0 + HARD_BOOST, 1.0)
            note["hard_share"] = float(hard.mean())
        recipe.history.append(note)


def _losses(
    network: PrototypeFlow,
    table: Tensor,
    ids: Tensor,
    domain: Tensor,
    batch: NDArray[np.int64],
    wrong: tuple[NDArray[Any], NDArray[np.bool_]] | None,
    recipe: Recipe,
    rng: np.random.Generator,
    *,
    with_flow: bool,
) -> dict[str, Tensor]:
    """Every loss of a batch, by name."""
    chosen = torch.from_numpy(batch).to(ids.device)
    k = domain[chosen]
    is_log = ids.shape[1] > 1 or len(table) != len(ids)
    projected = network.encoder.project(table if is_log else table[chosen])
    own = ids[chosen] if is_log else torch.arange(len(batch), device=ids.device)[:, None]
    halves, sets = network.halves(projected, own), network.sets(k)
    p, zz = network.composite(halves, sets), torch.cat(halves, dim=-1)
    residual = (zz - p).square()
    losses = {"pull": residual.mean(), "var": proto.spread_floor(zz)}
    losses["div"] = torch.stack(
        [proto.diversity(c, SEPARATION) for c in (network.shared, network.private)]
    ).sum()  # fmt: skip
    if len(halves) == 2:
        losses["orth"] = proto.orthogonality(*halves)
    if network.size.shared:
        q = proto.assign(halves[0], sets[0], network.size.temperature)
        losses["bal"] = proto.balance(q, k, len(network.gate))
    if recipe.align == "mmd":
        losses["mmd"] = proto.mean_discrepancy(zz, k, len(network.gate))
    if with_flow:  # the flow learns from the encoder, never the encoder from the flow
        generator = torch.Generator(device=ids.device).manual_seed(int(rng.integers(2**31)))
        eps = torch.randn(zz.shape, generator=generator, device=zz.device)
        t = torch.rand(len(zz), 1, generator=generator, device=zz.device)
        velocity = network.velocity.given(p.detach(), network.domain[k])
        losses["fm"] = matching_loss(velocity, zz.detach(), p.detach(), eps, t, recipe.sigma0).mean() / zz.shape[1]
    if wrong is not None:
        values, changed = wrong
        made = torch.from_numpy(values).to(ids.device)
        made_halves = network.halves(projected, made) if is_log else network.halves(network.encoder.project(made), own)
        losses["hard"] = _margin_loss(halves, made_halves, sets, p, residual, changed, rng)
    return losses


def _margin_loss(
    halves: list[Tensor],
    made_halves: list[Tensor],
    sets: list[Tensor],
    p: Tensor,
    residual: Tensor,
    changed: NDArray[np.bool_],
    rng: np.random.Generator,
) -> Tensor:
    """Boundary points and windows made wrong lie further from prototypes than right ones, by a margin.

    Distances count in units of the batch's mean, so that the margin means the same for every width.
    """
    right = proto.structural(halves, sets)
    unit = right.detach().mean() + 1e-6
    zz = torch.cat(halves, dim=-1)
    distance = residual.sum(dim=1).detach().sqrt()
    direction = (zz - p).detach() / (distance[:, None] + 1e-6)
    reach = torch.quantile(distance, 0.95)
    rho = torch.from_numpy(rng.uniform(1, 2, (len(zz), 1))).to(zz)
    boundary = torch.split(zz + rho * reach * direction, [half.shape[1] for half in halves], dim=1)
    keep = torch.from_numpy(changed).to(zz)
    wrong = proto.structural(made_halves, sets)
    at_boundary = (MARGIN + (right - proto.structural(list(boundary), sets)) / unit).relu().mean()
    at_wrong = ((MARGIN + (right - wrong) / unit).relu() * keep).sum() / keep.sum().clamp_min(1.0)
    return at_boundary + at_wrong


def _strangers(rows: Rows, rng: np.random.Generator) -> NDArray[np.float32]:
    if not rows.has_novelty:
        return strange_templates(rows.table, N_STRANGERS, rng)
    known = rows.table[:, :-1]
    return novelty(strange_templates(known, N_STRANGERS, rng), known)


class _TemplatePools:
    """Templates to put into windows: other domains' ones, ones never seen (behind the table), and rare ones."""

    def __init__(self, rows: Rows) -> None:
        n_domains = int(rows.domain.max()) + 1
        self._counts = np.zeros((n_domains, len(rows.table)))
        for k in range(n_domains):
            seen = rows.ids[rows.domain == k]
            self._counts[k] = np.bincount(seen[seen >= 0], minlength=len(rows.table))

    def draw(self, domain: NDArray[np.int64], rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
        """(foreign, rare) template for every window; half of the foreign ones, with one domain all, are never seen."""
        foreign, rare = np.empty_like(domain), np.empty_like(domain)
        for k in np.unique(domain):
            rows = np.flatnonzero(domain == k)
            own = np.flatnonzero(self._counts[k])
            elsewhere = np.flatnonzero((self._counts[k] == 0) & (self._counts.sum(axis=0) > 0))
            chance = 1 / self._counts[k][own]
            rare[rows] = rng.choice(own, len(rows), p=chance / chance.sum())
            unseen = self._counts.shape[1] + rng.integers(N_STRANGERS, size=len(rows))
            known = rng.choice(elsewhere, len(rows)) if len(elsewhere) else unseen
            foreign[rows] = np.where(rng.random(len(rows)) < 0.5, known, unseen)
        return foreign, rare


def _made_wrong(
    rows: Rows, batch: NDArray[np.int64], templates: _TemplatePools | None, rng: np.random.Generator
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    if templates is None:
        return shuffle_features(rows.table[batch], rng), np.ones(len(batch), bool)
    return corrupt(rows.ids[batch], *templates.draw(rows.domain[batch], rng), rng)


def _batches(
    domain: NDArray[np.int64], batch_size: int, weight: NDArray[np.float64], rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Batches with the same number of windows of every domain; the largest domain is seen once, small ones repeat.

    Short logs are seen several times: an epoch has some batches at least, or training would end before it began.
    """
    members = [np.flatnonzero(domain == k) for k in np.unique(domain)]
    per_domain = max(1, batch_size // len(members))
    largest = max(map(len, members))
    n_batches = max(FEWEST_BATCHES, -(-largest // per_domain))
    n_drawn = n_batches * per_domain
    chosen = []
    for rows in members:
        if (weight[rows] > 1).any():
            drawn = rng.choice(rows, n_drawn, p=weight[rows] / weight[rows].sum())
        else:
            drawn = np.concatenate([rng.permutation(rows) for _ in range(-(-n_drawn // len(rows)))])[:n_drawn]
        chosen.append(drawn.reshape(n_batches, per_domain))
    yield from np.concatenate(chosen, axis=1)


@torch.no_grad()
def embed(network: PrototypeFlow, rows: Rows, device: str) -> list[NDArray[np.float32]]:
    """The halves of every window's embedding, each (n, d/2)."""
    table, ids, _ = rows.tensors(device)
    was_training = network.training
    network.eval()
    projected = network.encoder.project(table)
    parts = [network.halves(projected, chunk) for chunk in torch.split(ids, 512)]
    network.train(was_training)
    return [torch.cat(half).cpu().numpy() for half in zip(*parts, strict=True)]


@torch.no_grad()
def _prototypes_of(
    network: PrototypeFlow,
    halves: list[NDArray[np.float32]],
    averaged: list[Tensor],
    domain: NDArray[np.int64],
    device: str,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Composite prototype of every window under the averaged prototypes, and the nearest one in each half."""
    k = torch.from_numpy(domain).to(device)
    gated = torch.sigmoid(network.gate)[k][:, None, None] * averaged[0]
    use = [(gated, network.size.shared), (averaged[1][k], network.size.private)]
    sets = [prototypes for prototypes, is_used in use if is_used]
    z = [torch.from_numpy(half).to(device) for half in halves]
    nearest = [proto.squared_distances(a, c).argmin(dim=-1) for a, c in zip(z, sets, strict=True)]
    return network.composite(z, sets).cpu().numpy(), torch.stack(nearest, dim=1).cpu().numpy()


def _initial_prototypes(network: PrototypeFlow, rows: Rows, seed: int, device: str) -> None:
    halves = embed(network, rows, device)
    with torch.no_grad():
        if network.size.shared:
            network.shared.copy_(torch.from_numpy(_centers(halves[0], network.size.n_shared, seed)))
        if network.size.private:
            for k in range(len(network.gate)):
                own = halves[-1][rows.domain == k]
                network.private[k] = torch.from_numpy(_centers(own, network.size.n_private, seed))


def _centers(z: NDArray[np.float32], n: int, seed: int) -> NDArray[np.float32]:
    """Centres of k-means; where there are fewer distinct points than centres, points are repeated."""
    distinct = np.unique(z, axis=0)
    if len(distinct) <= n:
        return np.resize(distinct, (n, z.shape[1]))
    return np.asarray(KMeans(n, n_init=3, random_state=seed).fit(z).cluster_centers_, np.float32)
