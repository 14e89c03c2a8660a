"""What votes must be for a ranking to exist, checked before anything is fitted."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from assay._core.errors import InputError
from assay.evaluate.judge_rank.votes import some_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.evaluate.judge_rank.likelihood import Cells

#: The information is one dense matrix of (models + judges)² numbers, and solving needs a few of them.
MAX_PARAMETERS = 10_000


def check_size(cells: Cells) -> None:
    """There are enough votes for the parameters, and not more parameters than fit into memory.

    Raises
    ------
    InputError
    """
    n_parameters = cells.n_models + cells.n_judges - 2
    pooling = "" if cells.n_judges == 1 else ", or pool the judges: judge=None"
    if n_parameters > MAX_PARAMETERS:
        raise InputError(
            f"votes: {cells.n_models:,} models and {cells.n_judges:,} judges are more than the "
            f"{MAX_PARAMETERS:,} that fit into memory; rank fewer{pooling}"
        )
    n_parameters = max(n_parameters, 1)
    if cells.n_votes < n_parameters:
        raise InputError(
            f"votes: {int(cells.n_votes)} votes cannot determine {n_parameters} parameters ({cells.n_models} models, "
            f"{cells.n_judges} judges); collect more votes{pooling}"
        )


def check_connected(cells: Cells, models: list[str]) -> None:
    """Every model is linked to every other by a chain of comparisons.

    Raises
    ------
    InputError
        Lists the groups.
    """
    n_groups, group = csgraph.connected_components(_graph(cells, np.ones(len(cells.first), bool)), directed=False)
    if n_groups == 1:
        return
    members = [[models[position] for position in np.flatnonzero(group == number)] for number in range(min(n_groups, 5))]
    listed = " | ".join(some_names(names, most=5) for names in members)
    more = f" | and {n_groups - 5} more groups" if n_groups > 5 else ""
    raise InputError(
        f"votes: the models fall into {n_groups} groups that were never compared with each other: {listed}{more}; "
        "add votes between the groups, or rank each group alone"
    )


def warn_unbeaten(cells: Cells, models: list[str]) -> None:
    """Warn where models win, or lose, every vote against the others: their scores have no finite estimate.

    Finite Bradley–Terry estimates exist exactly when the graph "won something against" is strongly connected
    (Ford 1957).
    """
    first_won, second_won = _graph(cells, cells.share > 0), _graph(cells, cells.share < 1).T
    won = (first_won + second_won).tocsr()
    n_groups, group = csgraph.connected_components(won, directed=True, connection="strong")
    if n_groups == 1:
        return
    winner, loser = won.nonzero()
    across = group[winner] != group[loser]
    beaten = np.unique(group[loser[across]])
    beating = np.unique(group[winner[across]])
    unbeaten = [models[i] for i in np.flatnonzero(~np.isin(group, beaten))]
    winless = [models[i] for i in np.flatnonzero(~np.isin(group, beating))]
    warnings.warn(
        f"{some_names(unbeaten)} won, and {some_names(winless)} lost, every vote against the other models: "
        "these scores have no finite estimate; prior_sd_score=2 keeps them finite",
        stacklevel=4,
    )


def _graph(cells: Cells, chosen: NDArray[np.bool_]) -> sparse.coo_array[np.float64, tuple[int, int]]:
    ends = (cells.first, cells.second)
    return sparse.coo_array((chosen.astype(np.float64), ends), shape=(cells.n_models, cells.n_models))
