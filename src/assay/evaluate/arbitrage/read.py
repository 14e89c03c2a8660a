"""Read recorded attempts: one JSON Lines file per provider, or long tables with costs or tokens and a price list."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay._core.errors import InputError
from assay._core.tables import check_columns, read_table
from assay.evaluate.arbitrage.checks import ALIASES
from assay.evaluate.arbitrage.market import Market

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

PathLike = str | os.PathLike[str]

#: An example of a price list. Prices change monthly: bring your own.
EXAMPLE_PRICES = Path(__file__).with_name("example_prices.csv")

TOKENS = {
    "input_tokens": "input_per_million",
    "output_tokens": "output_per_million",
    "reasoning_tokens": "output_per_million",
}


def read_market(
    paths: Sequence[PathLike] | PathLike,
    *,
    prices: PathLike | None = None,
    providers: Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
    **options: Any,
) -> Market:
    """Read a market from files.

    Parameters
    ----------
    paths : path or list of paths
        JSON Lines with one object per task, ``{"id": …, "mean_cost": …, "attempts": [0, 1, …]}``, one file per
        provider, which is named after the file; or tables with a row per (model, task, attempt), a column `solved`
        and either `cost` or `input_tokens`, `output_tokens` and perhaps `reasoning_tokens`.
    prices : path, optional
        Table with columns model, input_per_million and output_per_million (money per million tokens; reasoning tokens
        are charged as output), for tables that have tokens instead of costs. ``"example"`` is the dated example list
        that comes with the package.
    providers : list of str, optional
        Only these.
    columns : mapping, optional
        Names of the columns model, task, solved and cost where they are others.
    **options
        To :meth:`Market.from_attempts`: unit, max_budget, budgets, attempt_costs, verify_fpr, random_state.

    Returns
    -------
    Market

    Raises
    ------
    InputError
        A file, row or price cannot be used; the sentence names it.
    """
    import pandas as pd

    files = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not files:
        raise InputError("give at least one file with attempts")
    rates = None if prices is None else read_prices(EXAMPLE_PRICES if prices == "example" else prices)
    tables = [_read(Path(path), rates, providers, dict(columns or {})) for path in files]
    _check_distinct(files, tables)
    merged = pd.concat(tables, ignore_index=True)
    if providers is not None:
        absent = [name for name in providers if name not in set(merged["model"])]
        if absent:
            known = ", ".join(dict.fromkeys(merged["model"])) or "none of those asked for"
            raise InputError(f"there is no provider {absent[0]!r} in {', '.join(map(str, files))}; there is {known}")
    where = str(files[0]) if len(files) == 1 else "attempts"
    return Market.from_attempts(merged, where=where, **options)


def read_prices(path: PathLike) -> pd.DataFrame:
    """Read a price list, indexed by model.

    Returns
    -------
    DataFrame
        Columns input_per_million and output_per_million.

    Raises
    ------
    InputError
        A price is negative, a model occurs twice, or the list has several currencies.
    """
    table = read_table(path, {"model": "text", "input_per_million": "number", "output_per_million": "number"})
    if "currency" in table and table["currency"].nunique() > 1:
        found = ", ".join(map(str, table["currency"].unique()))
        raise InputError(f"{path}: prices are in several currencies ({found}); give all in one")
    twice = table["model"].duplicated()
    if twice.any():
        row = int(twice.to_numpy().argmax())
        raise InputError(
            f"{path}, row {row + 1}: {table['model'].iloc[row]!r} has a price already; keep one of the rows"
        )
    for name in ("input_per_million", "output_per_million"):
        wrong = table[name] < 0
        if wrong.any():
            row = int(wrong.to_numpy().argmax())
            raise InputError(f"{path}, row {row + 1}, column {name!r}: the price {table[name].iloc[row]:g} is negative")
    return table.set_index("model")[["input_per_million", "output_per_million"]]


def _read(
    path: Path, rates: pd.DataFrame | None, providers: Sequence[str] | None, columns: dict[str, str]
) -> pd.DataFrame:
    """Any of the formats as a table with columns model, task, solved, cost."""
    table = read_table(path)
    if "attempts" in table.columns:
        return _exploded(path, table)
    found = {
        role: columns.get(role) or next((name for name in ALIASES[role] if name in table.columns), role)
        for role in ALIASES
    }
    if "cascade_stage" in table.columns:
        found["cascade_stage"] = "cascade_stage"  # Market refuses it with a reason
    table = check_columns(
        table, {found["model"]: "text", found["task"]: "text", found["solved"]: "number"}, where=str(path)
    )
    if providers is not None:
        table = table[table[found["model"]].isin(list(providers))]
    if found["cost"] in table.columns:
        # Checked here, where the row still has the number that it has in the file.
        table = _priced(path, table, found)
        return table[list(found.values())].set_axis(list(found), axis=1)
    if not any(name in table.columns for name in TOKENS):
        raise InputError(
            f"{path}: no column {found['cost']!r}, and no input_tokens and output_tokens either; name the cost column, "
            "or give tokens with a price list"
        )
    if rates is None:
        raise InputError(
            f"{path} has tokens but no costs; give a price list (model, input_per_million, output_per_million), or "
            "'example' to try it with the prices of an example list"
        )
    roles = ["model", "task", "solved"]
    return (
        table[[found[role] for role in roles]]
        .set_axis(roles, axis=1)
        .assign(cost=_token_cost(path, table, found, rates))
    )


def _priced(path: Path, table: pd.DataFrame, found: dict[str, str]) -> pd.DataFrame:
    import pandas as pd

    cost = pd.to_numeric(table[found["cost"]], errors="coerce")
    wrong = ~(cost > 0) | np.isinf(cost)
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        value = table[found["cost"]].iloc[row]
        shown = "the cell is empty" if pd.isna(value) else f"{value!r} is not a cost above zero"
        raise InputError(
            f"{path}, row {table.index[row] + 1}, column {found['cost']!r}: {shown}; give every attempt a cost, in one "
            "unit for all providers, or leave the row out"
        )
    return table.assign(**{found["cost"]: cost})


def _token_cost(path: Path, table: pd.DataFrame, found: dict[str, str], rates: pd.DataFrame) -> pd.Series[float]:
    import pandas as pd

    absent = table.loc[~table[found["model"]].isin(rates.index), found["model"]]
    if len(absent):
        raise InputError(
            f"{path}: the price list has no row for the model {absent.iloc[0]!r}; add one, or leave the model out"
        )
    cost = pd.Series(0.0, table.index)
    for tokens, per_million in TOKENS.items():
        if tokens not in table.columns:
            continue
        count = pd.to_numeric(table[tokens], errors="coerce")
        wrong = ~(count >= 0) | np.isinf(count)
        if tokens == "reasoning_tokens":  # not reported by models that do not reason
            wrong &= table[tokens].notna()
            count = count.fillna(0.0)
        if wrong.any():
            row = int(wrong.to_numpy().argmax())
            value = table[tokens].iloc[row]
            shown = "the cell is empty" if pd.isna(value) else f"{value!r} is not a number of tokens"
            raise InputError(
                f"{path}, row {table.index[row] + 1}, column {tokens!r}: {shown}; without it the attempt has no cost: "
                "fill it in, or leave the row out"
            )
        cost += count * table[found["model"]].map(rates[per_million]) / 1e6
    free = ~(cost > 0)
    if free.any():
        row = int(free.to_numpy().argmax())
        raise InputError(
            f"{path}, row {table.index[row] + 1}: the attempt of {table[found['model']].iloc[row]!r} costs nothing (no "
            "tokens, or a price of zero); an attempt has a cost above zero: leave the row out if it never ran"
        )
    return cost


def _exploded(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """A provider's file, one object per task, as a row per attempt at the task's mean cost."""
    import pandas as pd

    table = check_columns(table, {"id": "text", "mean_cost": "number"}, where=str(path))
    outcomes: list[list[int]] = []
    for row, (attempts, cost) in enumerate(zip(table["attempts"], table["mean_cost"], strict=True), start=1):
        if not isinstance(attempts, list) or not attempts or any(value not in (0, 1) for value in attempts):
            raise InputError(
                f"{path}, row {row}: attempts is a list of 0 and 1 with at least one entry, not {attempts!r:.60}"
            )
        if not cost > 0:
            raise InputError(f"{path}, row {row}: mean_cost {cost:g} is not above zero; an attempt has a cost")
        outcomes.append([int(value) for value in attempts])
    twice = table["id"].duplicated()
    if twice.any():
        row = int(twice.to_numpy().argmax())
        raise InputError(
            f"{path}, row {row + 1}: the task {table['id'].iloc[row]!r} occurs twice; put its attempts into one row"
        )
    lengths = [len(attempts) for attempts in outcomes]
    return pd.DataFrame(
        {
            "model": _stem(path),
            "task": np.repeat(table["id"].to_numpy(), lengths),
            "solved": np.concatenate(outcomes).astype(float),
            "cost": np.repeat(table["mean_cost"].to_numpy(), lengths),
        }
    )


def _stem(path: Path) -> str:
    """The provider's name: the file's, without its formats."""
    name = path.name
    for suffix in (".gz", ".jsonl", ".ndjson", ".json", ".parquet"):
        name = name.removesuffix(suffix)
    return name


def _check_distinct(files: Sequence[PathLike], tables: Sequence[pd.DataFrame]) -> None:
    seen: dict[tuple[str, str], PathLike] = {}
    for path, table in zip(files, tables, strict=True):
        pairs = set(zip(table["model"], table["task"], strict=True))
        for model, task in sorted(pairs & seen.keys())[:1]:
            raise InputError(
                f"{path}: attempts of {model!r} on {task!r} are in {seen[model, task]} already; rename one of the two "
                "providers, or put the attempts into one file"
            )
        seen.update(dict.fromkeys(pairs, path))
