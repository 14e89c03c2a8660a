"""Which step computes what."""

from __future__ import annotations

from typing import Literal

Kind = Literal["full", "rows", "response"]


def step_kind(step: int, num_full_steps: int, response_period: int, refresh_every: int | None = None) -> Kind:
    """Kind of the step with this number, from 1.

    ``"full"`` computes everything anew; ``"rows"`` is sparse over all rows; ``"response"`` is sparse over the rows of
    the response, and the prompt's cached keys, values and contexts stay as they are.

    Parameters
    ----------
    step : int
        From 1.
    num_full_steps : int
        The first so many steps are full.
    response_period : int
        Of the sparse steps behind this one, only its multiples go over the prompt's rows too; 1: all do.
    refresh_every : int, optional
        Every multiple of it is a full step; None: none is.

    Examples
    --------
    >>> [step_kind(step, 4, 4) for step in (1, 4, 5, 8, 9)]
    ['full', 'full', 'response', 'rows', 'response']
    """
    if step <= num_full_steps or (refresh_every is not None and step % refresh_every == 0):
        return "full"
    return "response" if step > response_period and step % response_period != 0 else "rows"
