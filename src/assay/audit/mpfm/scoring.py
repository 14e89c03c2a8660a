"""Evidence of windows under a trained network, in chunks of one size: a score does not depend on its companions.

Imported only where torch is in use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from assay.audit.mpfm import flow
from assay.audit.mpfm import prototypes as proto

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from assay.audit.mpfm.network import PrototypeFlow

#: Windows that are scored at a time. The last chunk is filled up: kernels choose their order of sums by the shape.
CHUNK = 128


@torch.inference_mode()
def evidence(
    network: PrototypeFlow,
    draws: tuple[Tensor, Tensor],
    table: NDArray[np.float32],
    ids: NDArray[np.int64],
    domain: NDArray[np.int64],
    *,
    sigma0: float,
    n_steps: int,
    is_log: bool,
    device: str,
) -> NDArray[np.float64]:
    """(n, 3): S_str, S_vel, S_ode.

    Parameters
    ----------
    table : (n_rows, n_features) float32
    ids : (n, length) int
        Rows of `table`; equal windows of a log are scored once.
    domain : (n,) int
    """
    if is_log:
        keys = np.concatenate([ids, domain[:, None]], axis=1)
        packed = np.ascontiguousarray(keys).view([("", keys.dtype)] * keys.shape[1]).ravel()
        _, first, back = np.unique(packed, return_index=True, return_inverse=True)
        ids, domain = ids[first], domain[first]
    rows = torch.from_numpy(table)
    projected = _project(network, rows, device) if is_log else rows
    found = np.empty((len(ids), 3))
    for start in range(0, len(ids), CHUNK):
        stop = min(start + CHUNK, len(ids))
        chosen = np.resize(np.arange(start, stop), CHUNK)
        k = torch.from_numpy(domain[chosen]).to(device)
        own = torch.from_numpy(ids[chosen]).to(device)
        if not is_log:
            part, own = (
                network.encoder.project(rows[own[:, 0].cpu()].to(device)),
                torch.arange(CHUNK, device=device)[:, None],
            )
        else:
            part = projected
        found[start:stop] = _chunk(network, draws, part, own, k, sigma0, n_steps)[: stop - start]
    return found[back] if is_log else found


def _project(network: PrototypeFlow, rows: Tensor, device: str) -> Tensor:
    """Project a table of templates, in chunks of one size for the same reason."""
    filled = torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % CHUNK))
    return torch.cat([network.encoder.project(part.to(device)) for part in torch.split(filled, CHUNK)])


def _chunk(
    network: PrototypeFlow,
    draws: tuple[Tensor, Tensor],
    projected: Tensor,
    ids: Tensor,
    domain: Tensor,
    sigma0: float,
    n_steps: int,
) -> NDArray[np.float32]:
    halves, sets = network.halves(projected, ids), network.sets(domain)
    p, zz = network.composite(halves, sets), torch.cat(halves, dim=-1)
    velocity = network.velocity.given(p, network.domain[domain])
    eps, t = (draw.to(zz) for draw in draws)
    points, _ = flow.backward_path(velocity, zz, n_steps)
    parts = [
        proto.structural(halves, sets),
        flow.velocity_mismatch(velocity, zz, p, eps, t, sigma0),
        flow.instability(points[-1], p, sigma0),
    ]
    return torch.stack(parts, dim=1).cpu().numpy()


@torch.inference_mode()
def look_closer(
    network: PrototypeFlow, table: NDArray[np.float32], ids: NDArray[np.int64], domain: int, n_steps: int, device: str
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64], float]:
    """What an explanation of one window shows.

    Returns
    -------
    distances : (n_halves,) float
        To the nearest prototype of each half, squared.
    nearest : (n_halves,) int
    path : (n_steps + 1,) float
        Distance of the window from its prototype along the flow, from the window (t = 1) back to the source (t = 0).
    roughness : float
    """
    k = torch.tensor([domain], device=device)
    projected = network.encoder.project(torch.from_numpy(table).to(device))
    halves, sets = network.halves(projected, torch.from_numpy(ids[None]).to(device)), network.sets(k)
    squared = [proto.squared_distances(z, c)[0] for z, c in zip(halves, sets, strict=True)]
    p = network.composite(halves, sets)
    points, velocities = flow.backward_path(
        network.velocity.given(p, network.domain[k]), torch.cat(halves, dim=-1), n_steps
    )
    return (
        np.array([float(d.min()) for d in squared]),
        np.array([int(d.argmin()) for d in squared]),
        (points - p).square().sum(-1).sqrt()[:, 0].double().cpu().numpy(),
        float(flow.roughness(velocities)[0]),
    )
