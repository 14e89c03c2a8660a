"""The loop that fills masks: which positions are open, a step of the chosen kind, what is committed, when to stop."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from assay.decode.dyllm.record import StepRecord
from assay.decode.dyllm.samplers import Remasking, block_ends, chosen, propose
from assay.decode.dyllm.schedule import step_kind
from assay.decode.dyllm.steps import State, Step, full_step, logits_at, sparse_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.decode.dyllm.adapters import ModelAdapter

    #: Computes a step: its kind for the record, and what it gave.
    Plan = Callable[[ModelAdapter, State, "Situation"], tuple[str, Step]]


@dataclass(frozen=True)
class Sampling:
    """How masks are filled; `generate` says what the parts mean."""

    mask_token_id: int
    eos_token_ids: tuple[int, ...]
    n_commit: int
    block_size: int
    remasking: Remasking
    threshold: float | None = None
    temperature: float = 0.0
    generator: torch.Generator | None = None


class Open(NamedTuple):
    """Where a step may fill in a token.

    Parameters
    ----------
    sequence, position : (n,) int64
        Masked positions of the current blocks.
    first, last : int
        The current blocks lie within these positions.
    """

    sequence: Tensor
    position: Tensor
    first: int
    last: int


class Situation(NamedTuple):
    """What decides how a step is computed: its number from 1, what the last one changed, and the open positions."""

    number: int
    changed: Tensor
    open: Open
    is_new_block: bool


def dyllm_plan(tau: float, num_full_steps: int, response_period: int, refresh_every: int | None) -> Plan:
    """Full steps first, sparse steps after."""

    def plan(adapter: ModelAdapter, state: State, now: Situation) -> tuple[str, Step]:
        kind = step_kind(now.number, num_full_steps, response_period, refresh_every)
        if kind == "full" or not state.layers:
            return "full", full_step(adapter, state)
        rows = slice(state.first if kind == "response" else 0, state.length)
        return kind, sparse_step(adapter, state, now.changed, rows, tau)

    return plan


def open_positions(state: State, sampling: Sampling, done: Tensor) -> Open | None:
    """Masked positions up to the end of every sequence's current block; None: nothing is left to fill."""
    masked = (state.ids == sampling.mask_token_id) & ~done[:, None]
    masked[:, : state.first] = False
    if not masked.any():
        return None
    n_filled = state.length - state.first - masked.sum(1)
    ends = block_ends(n_filled, sampling.block_size, state.first, state.length)
    at = torch.arange(state.length, device=masked.device)
    sequence, position = (masked & (at < ends[:, None])).nonzero(as_tuple=True)
    busy = masked.any(1)
    starts = state.first + n_filled // sampling.block_size * sampling.block_size
    return Open(sequence, position, int(starts[busy].min()), int(ends[busy].max()))


def commit(state: State, sampling: Sampling, logits: Tensor, now: Open) -> Tensor:
    """Fill in the tokens that the scores choose; returns which positions changed, (B, T) bool.

    The mask itself is never chosen as a token: it would be filled again for ever.
    """
    logits[:, sampling.mask_token_id] = -torch.inf
    tokens, scores = propose(logits, sampling.remasking, sampling.temperature, sampling.generator)
    changed = torch.zeros_like(state.real)
    for sequence in torch.unique(now.sequence).tolist():
        mine = (now.sequence == sequence).nonzero().squeeze(-1)
        best = mine[chosen(scores[mine], sampling.n_commit, sampling.threshold)]
        state.ids[sequence, now.position[best]] = tokens[best]
        changed[sequence, now.position[best]] = True
    return changed


def finish(state: State, sampling: Sampling, done: Tensor) -> None:
    """Mark sequences whose end token stands behind no mask, and fill what follows it with that token."""
    if not sampling.eos_token_ids:
        return
    response = state.ids[:, state.first :]
    ends = torch.isin(response, response.new_tensor(sampling.eos_token_ids))
    open_before = (response == sampling.mask_token_id).long().cumsum(1) > 0
    closed = ends & ~open_before
    for sequence in (closed.any(1) & ~done).nonzero().squeeze(-1).tolist():
        done[sequence] = True
        at = int(closed[sequence].long().argmax())
        response[sequence, at:] = response[sequence, at].clone()


@torch.inference_mode()
def decode(
    adapter: ModelAdapter,
    state: State,
    sampling: Sampling,
    plan: Plan,
    on_step: Callable[[int], None] | None = None,
) -> tuple[StepRecord, ...]:
    """Fill all masks of ``state.ids``, in place.

    Parameters
    ----------
    adapter, state, sampling
    plan : callable
        Computes a step; :func:`dyllm_plan` or one of ``assay.decode.dyllm.baselines``.
    on_step : callable, optional
        Told how many tokens every step filled.
    """
    done = torch.zeros(len(state.ids), dtype=torch.bool, device=state.ids.device)
    changed = torch.zeros_like(state.real)
    records: list[StepRecord] = []
    block = -1
    while (now := open_positions(state, sampling, done)) is not None:
        started = time.perf_counter()
        situation = Situation(len(records) + 1, changed, now, now.first != block)
        block = now.first
        kind, step = plan(adapter, state, situation)
        logits = logits_at(adapter, state, step, now.sequence, now.position)
        changed = commit(state, sampling, logits, now)
        finish(state, sampling, done)
        n_committed = int(changed.sum())  # waits for the device, so the time below is the step's
        records.append(
            StepRecord(
                kind=kind,
                n_rows=step.q_rows,
                kv_rows=step.kv_rows,
                mlp_rows=step.mlp_rows,
                head_rows=len(now.position),
                n_committed=n_committed,
                seconds=time.perf_counter() - started,
            )
        )
        if on_step is not None:
            on_step(n_committed)
    return tuple(records)
