"""Run a cascade on live solvers: it never spends more than its budget, from however many threads, and keeps the books.

An attempt's cost is known only when it is over. So before each attempt the most that it can cost is set aside from the
budget, and afterwards the rest is given back.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from assay._core.errors import InputError
from assay.evaluate.arbitrage.policy import CascadePolicy

if TYPE_CHECKING:
    import os

#: ``solver(problem)`` returns (solution, cost).
Solver = Callable[[Any], tuple[Any, float]]


class Budget:
    """Money that many threads may spend, and never more than there is.

    Parameters
    ----------
    limit : float
        At least zero, finite.

    Examples
    --------
    >>> budget = Budget(1.0)
    >>> budget.reserve(0.8), budget.settle(0.8, spent=0.3), budget.spent
    (True, None, 0.3)
    >>> budget.reserve(0.8)  # 0.7 are left, and nobody will give anything back
    False
    """

    def __init__(self, limit: float) -> None:
        if not (math.isfinite(limit) and limit >= 0):
            raise InputError(f"a budget of {limit!r} is not a finite number of at least 0")
        self.limit = limit
        self._spent = 0.0
        self._reserved: list[float] = []
        self._changed = threading.Condition()

    @property
    def spent(self) -> float:
        """What was spent so far."""
        with self._changed:
            return self._spent

    def reserve(self, amount: float) -> bool:
        """Set `amount` aside; False if it is not there. Waits while what others set aside may come back."""
        with self._changed:
            # fsum: what is set aside and given back must not drift past the limit by rounding.
            while math.fsum([self._spent, *self._reserved, amount]) > self.limit:
                if not self._reserved or self._spent + amount > self.limit:
                    return False
                self._changed.wait()
            self._reserved.append(amount)
            return True

    def settle(self, reserved: float, spent: float) -> None:
        """Turn what was set aside into what was spent."""
        with self._changed:
            self._reserved.remove(reserved)
            self._spent += spent
            self._changed.notify_all()


@dataclass(frozen=True)
class Attempt:
    """One call of a solver: who, at what cost, and whether it was verified."""

    provider: str
    cost: float
    solved: bool


@dataclass(frozen=True)
class Outcome:
    """What a cascade did with one problem.

    Parameters
    ----------
    solution : object
        The verified solution; None if there is none.
    cost : float
        What all attempts cost.
    stage : str or None
        The provider that solved it.
    attempts : tuple of Attempt
    stopped : "solved", "thresholds" or "budget"
        Why it ended: a verified solution, all thresholds used up, or no money for another attempt.
    """

    solution: Any
    cost: float
    stage: str | None
    attempts: tuple[Attempt, ...]
    stopped: Literal["solved", "thresholds", "budget"]

    @property
    def solved(self) -> bool:
        """Whether a solution was verified."""
        return self.stopped == "solved"


class CascadeRunner:
    """Solve problems by a policy, online. Safe to call from many threads.

    Parameters
    ----------
    policy : CascadePolicy or path
        Fitted, or the ``policy.json`` that ``assay use arbitrage`` writes.
    solvers : mapping of provider to callable
        ``solver(problem)`` returns (solution, cost), the cost in the unit of the policy.
    verify : callable
        ``verify(problem, solution)`` says whether a solution is right.
    budget : float, optional
        For everything that this runner does. Needs `max_cost`.
    max_cost : mapping of provider to float, optional
        The most that one attempt can cost (enforce it at the provider: a limit on output tokens, say).
    log : path, optional
        A JSON line for every attempt, appended as it ends: task, model, cascade_stage, attempt, solved, cost.

    Raises
    ------
    InputError
        A provider without a solver, or a budget without the most that an attempt can cost.

    Notes
    -----
    The next attempt of a stage starts while its threshold has room for what an attempt costs there: the mean of this
    problem's attempts at the provider, or, before the first, of the policy's data. As in the model of the paper a
    budget b buys ⌊b / cost⌋ attempts.

    The log stops at the first success, so later providers appear only on what earlier ones could not solve. It keeps
    the books; thresholds must not be fitted on it, and :class:`Market` refuses it.

    Examples
    --------
    >>> policy = CascadePolicy.from_dict({
    ...     "schema": "assay/arbitrage-policy/1", "unit": "USD", "order": ["small", "big"],
    ...     "thresholds": {"small": 0.02, "big": 1.0}, "attempt_costs": {"small": 0.01, "big": 0.3},
    ... })
    >>> solvers = {"small": lambda problem: ("?", 0.01), "big": lambda problem: (problem**2, 0.3)}
    >>> runner = CascadeRunner(policy, solvers, verify=lambda problem, solution: solution == problem**2)
    >>> outcome = runner.solve(7)
    >>> outcome.solution, outcome.stage, round(outcome.cost, 2)
    (49, 'big', 0.32)
    """

    def __init__(
        self,
        policy: CascadePolicy | str | os.PathLike[str],
        solvers: Mapping[str, Solver],
        verify: Callable[[Any, Any], bool],
        *,
        budget: float | None = None,
        max_cost: Mapping[str, float] | None = None,
        log: str | os.PathLike[str] | None = None,
    ) -> None:
        self.policy = policy if isinstance(policy, CascadePolicy) else CascadePolicy.load(policy)
        if not hasattr(self.policy, "thresholds_"):
            raise InputError("the policy is not fitted; call fit(market) or load one")
        self._stages = [
            (name, float(threshold), float(cost))
            for name, threshold, cost in zip(
                self.policy.order_, self.policy.thresholds_, self.policy.attempt_costs_, strict=True
            )
            if threshold > 0
        ]
        self._max_cost = dict(max_cost or {})
        for name, _, _ in self._stages:
            if name not in solvers:
                raise InputError(
                    f"the policy asks {name!r}, but solvers has only {', '.join(map(repr, solvers)) or 'none'}"
                )
            most = self._max_cost.get(name)
            if budget is not None and most is None:
                raise InputError(
                    f"a budget is kept only if the most that an attempt can cost is known: give max_cost for {name!r}"
                )
            if most is not None and not (math.isfinite(most) and most > 0):
                raise InputError(f"max_cost {most!r} of {name!r} is not a finite number above zero")
        self._solvers, self._verify = dict(solvers), verify
        self.budget = None if budget is None else Budget(budget)
        self._log = None if log is None else _Log(Path(log))

    @property
    def spent(self) -> float:
        """What was spent of the budget so far (without a budget: NaN; the outcomes have it)."""
        return math.nan if self.budget is None else self.budget.spent

    def solve(self, problem: Any, *, task: str | None = None, budget: float | None = None) -> Outcome:
        """Ask the providers in turn until a solution is verified, or the thresholds or the money are used up.

        Parameters
        ----------
        problem : object
            Handed to the solvers.
        task : str, optional
            Its name in the log; by default ``str(problem)``.
        budget : float, optional
            The most to spend on this problem, on top of the runner's budget and the thresholds. Needs `max_cost`.

        Returns
        -------
        Outcome

        Raises
        ------
        InputError
            A solver returned no (solution, cost), or a cost above its `max_cost`: then a budget cannot be kept.
        """
        if budget is not None:
            for name, _, _ in self._stages:
                if name not in self._max_cost:
                    raise InputError(
                        f"a budget per problem needs the most that an attempt can cost: max_cost for {name!r}"
                    )
        name_of_task = str(problem) if task is None else task
        attempts: list[Attempt] = []
        total = 0.0
        for stage, (name, threshold, expected) in enumerate(self._stages, start=1):
            here: list[float] = []
            while sum(here) + (sum(here) / len(here) if here else expected) <= threshold * (1 + 1e-9):
                most = self._max_cost.get(name)
                if budget is not None and total + (most or 0.0) > budget:
                    return Outcome(None, total, None, tuple(attempts), "budget")
                done = self._attempt(name, problem, name_of_task, stage, len(here) + 1, most)
                if done is None:
                    return Outcome(None, total, None, tuple(attempts), "budget")
                solution, attempt = done
                attempts.append(attempt)
                here.append(attempt.cost)
                total += attempt.cost
                if attempt.solved:
                    return Outcome(solution, total, name, tuple(attempts), "solved")
        return Outcome(None, total, None, tuple(attempts), "thresholds")

    def _attempt(
        self, name: str, problem: Any, task: str, stage: int, number: int, most: float | None
    ) -> tuple[Any, Attempt] | None:
        """One paid attempt; None if the budget has no room for it."""
        if self.budget is not None and not self.budget.reserve(most or 0.0):
            return None
        cost, solved = None, None
        try:
            try:
                solution, cost = _checked(name, self._solvers[name](problem))
            finally:
                if self.budget is not None:  # a solver that raised may have spent all that an attempt can cost
                    self.budget.settle(most or 0.0, most or 0.0 if cost is None else cost)
            if most is not None and cost > most * (1 + 1e-9):
                raise InputError(
                    f"an attempt of {name!r} cost {cost:g}, above its max_cost of {most:g}: the budget cannot be kept; "
                    "limit what an attempt may spend at the provider"
                )
            solved = bool(self._verify(problem, solution))
        finally:
            if self._log is not None:
                self._log.write(task, name, stage, number, solved, most if cost is None else cost)
        return solution, Attempt(name, cost, solved)


def _checked(name: str, returned: Any) -> tuple[Any, float]:
    try:
        solution, cost = returned
        cost = float(cost)
    except (TypeError, ValueError):
        raise InputError(f"the solver {name!r} returned {returned!r:.80}; expected (solution, cost)") from None
    if not (math.isfinite(cost) and cost > 0):
        raise InputError(f"the solver {name!r} reported a cost of {cost!r}; expected a finite number above zero")
    return solution, cost


class _Log:
    """JSON Lines, one attempt a line, appended under a lock; half a line of an interrupted run is cut off."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        if path.is_file():
            with path.open("rb+") as stream:
                stream.truncate(stream.read().rfind(b"\n") + 1)
        elif not path.parent.is_dir():
            raise InputError(f"cannot write the log {path}: the folder {path.parent} does not exist")

    def write(self, task: str, model: str, stage: int, attempt: int, solved: bool | None, cost: float | None) -> None:
        """`solved` is None where the solver or the verifier raised; the cost is then the most it can have been."""
        verified = None if solved is None else int(solved)
        record = {
            "task": task,
            "model": model,
            "cascade_stage": stage,
            "attempt": attempt,
            "solved": verified,
            "cost": cost,
        }
        with self._lock, self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")
