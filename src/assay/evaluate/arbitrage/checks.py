"""The door of a market: attempts that cannot be used are refused here."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from assay._core.errors import InputError
from assay._core.tables import check_columns

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike, NDArray

    from assay.evaluate.arbitrage.curves import Array, Counts

T = TypeVar("T", bound=np.generic)

#: Points of the budget grid, as the authors use.
N_BUDGETS = 250

#: Median costs of two providers further apart than this are in different units (tokens beside money).
LARGEST_COST_RATIO = 1e5

#: Spellings of the columns that are understood without being told.
ALIASES = {
    "model": ("model", "provider"),
    "task": ("task", "problem"),
    "solved": ("solved", "correct"),
    "cost": ("cost",),
}


def checked(attempts: pd.DataFrame, names: dict[str, str | None], where: str) -> pd.DataFrame:
    """The columns model, task, solved and cost, whatever they were called; every value is usable."""
    if "cascade_stage" in attempts.columns:
        raise InputError(
            f"{where} is the log of a cascade: it stops at the first success, so later providers only met what earlier "
            "ones could not solve; give attempts that did not depend on each other"
        )
    renamed = {
        given or next((name for name in ALIASES[role] if name in attempts.columns), role): role
        for role, given in names.items()
    }
    table = check_columns(
        attempts,
        {name: "text" if role in ("model", "task") else "number" for name, role in renamed.items()},
        where=where,
        allow_missing=[name for name, role in renamed.items() if role == "cost"],
    )[list(renamed)].set_axis(list(renamed.values()), axis=1)
    column = {role: name for name, role in renamed.items()}
    wrong = ~table["solved"].isin([0.0, 1.0])
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise InputError(
            f"{where}, row {row + 1}, column {column['solved']!r}: {table['solved'].iloc[row]:g} is not 0 or 1; "
            "an attempt is verified as solved or it is not"
        )
    wrong = ~(table["cost"] > 0)
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        value = table["cost"].iloc[row]
        shown = "the cell is empty" if np.isnan(value) else f"{value:g} is not above zero"
        raise InputError(
            f"{where}, row {row + 1}, column {column['cost']!r}: {shown}; an attempt has a cost, in one unit for all "
            "providers: fill it in, or leave the row out"
        )
    return table


def check_units(providers: tuple[str, ...], cost: Array, where: str) -> None:
    """Refuse costs that cannot be in one unit."""
    typical = np.median(cost, axis=1)
    low, high = int(typical.argmin()), int(typical.argmax())
    if typical[high] > LARGEST_COST_RATIO * typical[low]:
        raise InputError(
            f"{where}: an attempt costs {typical[high]:.3g} at {providers[high]!r} and {typical[low]:.3g} at "
            f"{providers[low]!r}; that looks like tokens beside money: give all costs in one unit"
        )


def budget_grid(
    n_attempts: Counts, cost: Array, least: float, max_budget: float | None, budgets: ArrayLike | None
) -> Array:
    """The budget grid: given, or log-spaced from half of the cheapest attempt, where no curve has risen yet."""
    if budgets is not None:
        grid = np.asarray(budgets, dtype=float)
        if grid.ndim != 1 or len(grid) < 2 or not (grid[0] > 0 and np.isfinite(grid[-1]) and (np.diff(grid) > 0).all()):
            raise InputError("budgets are at least two increasing finite numbers above zero")
        return grid
    if max_budget is None:
        recorded = np.median(n_attempts * cost, axis=1).max()
        one_each = np.quantile(cost, 0.99, axis=1).sum()
        max_budget = float(max(recorded, one_each))
    if not (np.isfinite(max_budget) and max_budget > least):
        raise InputError(
            f"a budget of {max_budget:g} per task buys no attempt (the cheapest costs {least:g}); raise it"
        )
    return np.geomspace(0.5 * least, max_budget, N_BUDGETS)


def split(cell: NDArray[np.intp], values: NDArray[T]) -> dict[int, NDArray[T]]:
    """Values grouped by their cell."""
    order = np.argsort(cell, kind="stable")
    keys, starts = np.unique(cell[order], return_index=True)
    return dict(zip(keys.tolist(), np.split(values[order], starts[1:]), strict=True))
