"""Fit a network to best keys and their scores. Imports torch."""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from assay._core.progress import progress_bar
from assay.nn.amips.networks import KeyMap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.nn.amips.labels import Ids
    from assay.nn.amips.networks import Learned
    from assay.nn.amips.vectors import Vectors

#: Weights of the two terms of the loss, and the decay of the mean of the weights: the paper's.
SCORE_WEIGHT, KEY_WEIGHT, EMA_DECAY = 0.01, 1.0, 0.96849

#: Gradients longer than this are cut.
LONGEST_GRADIENT = 1.0

#: Batches are filled up to a multiple of this many rows.
ROWS = 64

#: Losses are kept as means over this many steps.
LOOK = 50


class Schedule(NamedTuple):
    """How long and how fast.

    Parameters
    ----------
    steps, batch_size : int
    learning_rate : float
        At its peak, after a hundredth of the steps; from there it follows a cosine to zero.
    """

    steps: int
    batch_size: int
    learning_rate: float

    def rate(self, step: int) -> float:
        """Learning rate at a step, as a share of the peak."""
        warm_up = max(1, self.steps // 100)
        if step < warm_up:
            return (step + 1) / warm_up
        return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, self.steps - warm_up)))


def loss(values: torch.Tensor, keys: torch.Tensor, true_values: torch.Tensor, true_keys: torch.Tensor) -> torch.Tensor:
    """w_s mean (f − sigma)² + w_g mean (key − best key)²; the second mean is over coordinates too, as in the paper.

    Parameters
    ----------
    values, true_values : (batch, n_clusters) Tensor
    keys, true_keys : (batch, n_clusters, n_features) Tensor
    """
    of_scores = (values - true_values).square().mean()
    of_keys = (keys - true_keys).square().mean()
    return SCORE_WEIGHT * of_scores + KEY_WEIGHT * of_keys


def train(
    network: Learned,
    queries: Vectors,
    ids: Ids,
    keys: Vectors,
    schedule: Schedule,
    *,
    seed: int,
    verbose: bool = False,
) -> tuple[Learned, list[float]]:
    """Train by Adam; return the network with the running mean of its weights, and the losses.

    Parameters
    ----------
    network : SupportFunctions or KeyMap
        Is changed.
    queries : (n, n_features) float32
    ids : (n, n_clusters) int64
        Best key of each query in each cluster.
    keys : (n_keys, n_features) float32
        Only the rows of a batch are read at a time.
    schedule : Schedule
    seed : int
        Of the order of the queries.
    verbose : bool
        Draw a bar on stderr.

    Returns
    -------
    network : SupportFunctions or KeyMap
    losses : list of float
        Means over 50 steps each.
    """
    rng = np.random.default_rng(seed)
    device = next(network.parameters()).device
    optimizer = torch.optim.Adam(network.parameters(), lr=schedule.learning_rate)
    mean = copy.deepcopy(network).requires_grad_(False)
    pairs = list(zip(mean.parameters(), network.parameters(), strict=True))
    losses: list[float] = []
    recent = torch.zeros((), device=device)
    order, place = rng.permutation(len(queries)), 0
    with progress_bar() if verbose else nullcontext() as bar:
        task = bar.add_task("training", total=schedule.steps) if bar else None
        for step in range(schedule.steps):
            if place >= len(order):
                order, place = rng.permutation(len(queries)), 0
            rows = order[place : place + schedule.batch_size]
            place += len(rows)
            x = torch.from_numpy(queries[rows]).to(device)
            true_keys = torch.from_numpy(keys[ids[rows]]).to(device)
            values, found = network.value_and_key(x, create_graph=True)
            value = loss(values, found, (true_keys * x[:, None]).sum(dim=2), true_keys)
            for group in optimizer.param_groups:
                group["lr"] = schedule.learning_rate * schedule.rate(step)
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            torch.nn.utils.clip_grad_norm_(network.parameters(), LONGEST_GRADIENT)
            optimizer.step()
            # The mean without its start: weight 1 for the first weights, then exponential forgetting.
            share = (1 - EMA_DECAY) / (1 - EMA_DECAY ** (step + 1))
            with torch.no_grad():
                torch._foreach_lerp_([to for to, _ in pairs], [new for _, new in pairs], share)
            recent += value.detach()
            if (step + 1) % LOOK == 0 or step + 1 == schedule.steps:
                losses.append(float(recent) / (step % LOOK + 1))
                recent.zero_()
            if bar and task is not None:
                bar.advance(task)
    return mean, losses


@torch.no_grad()
def apply(network: Learned, queries: Vectors, *, batch_size: int = 4096) -> tuple[Vectors, Vectors]:
    """Values (n, n_clusters) and predicted keys (n, n_clusters, n_features) of a trained network."""
    found = [
        tuple(tensor[:n].cpu().numpy() for tensor in network.value_and_key(x))
        for x, n in _batches(network, queries, batch_size)
    ]
    return np.concatenate([value for value, _ in found]), np.concatenate([key for _, key in found])


@torch.no_grad()
def values(network: Learned, queries: Vectors, *, batch_size: int = 4096) -> Vectors:
    """Values (n, n_clusters) alone: a SupportNet needs no pass backward for them."""
    if isinstance(network, KeyMap):
        return apply(network, queries, batch_size=batch_size)[0]
    return np.concatenate([network(x)[:n].cpu().numpy() for x, n in _batches(network, queries, batch_size)])


def _batches(network: Learned, queries: Vectors, batch_size: int) -> Iterator[tuple[torch.Tensor, int]]:
    """Queries as tensors, the last filled up with its first row: a product then rounds each row in the same way."""
    device = next(network.parameters()).device
    for start in range(0, len(queries), batch_size):
        some = queries[start : start + batch_size]
        filled = np.empty((-(-len(some) // ROWS) * ROWS, queries.shape[1]), np.float32)
        filled[: len(some)] = some
        filled[len(some) :] = some[0]
        yield torch.from_numpy(filled).to(device), len(some)
