"""plurel beside independent tables, tables that only share their marginals, and SDV: whether keys carry information.

The main part asks what the paper builds on: can the columns of a child be foretold from the row that its key points to?
A case is one database. An arm returns a database of the same schema; the score joins each child with its parents and
predicts every child column out of fold. What an independent table gives is the zero of that scale; that is by
construction, so the trial also reports how many columns are constant, and on how much of the skill the keys decide.
`scaling` asks whether more databases at the same number of training steps make a small model better on unseen ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import warnings
from functools import lru_cache
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.model_selection import KFold, cross_val_predict

from assay._core.errors import InputError
from assay._core.extras import need
from assay._core.seeds import child_seed
from assay.bench import Arm, Case, Claim, Data, Metric, Trial
from assay.synth.plurel import DatabaseConfig, RelationalConfig, RelationalDatabase, generate_database

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from assay.bench.spec import Parameter, Scale

# -------------------------------------------------------------------------------------------------------- the arms
# Each gets a seed and a config and returns the tables of a database with its metadata.


class Made(NamedTuple):
    """Tables and the metadata of their schema."""

    tables: dict[str, pd.DataFrame]
    metadata: dict[str, Any]


class Given(NamedTuple):
    """What an arm makes a database from."""

    seed: int
    config: RelationalConfig


def quiet(seed: int, config: RelationalConfig) -> RelationalDatabase:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of clusters that have one row: small tables are meant here
        return generate_database(seed, config)


def plurel(given: Given, seed: int) -> Made:
    database = quiet(given.seed, given.config)
    return Made(database.tables, database.metadata)


def independent_tables(given: Given, seed: int) -> Made:
    """The same schema and causal models, keys uniform at random, no column of a parent among the causes."""
    from dataclasses import replace

    config = RelationalConfig(
        replace(given.config.database, levels=(1, 1), clusters=(1, 1)),
        replace(given.config.scm, coupling=0.0),
        given.config.dag,
    )
    database = quiet(given.seed, config)
    return Made(database.tables, database.metadata)


def shuffled_keys(given: Given, seed: int) -> Made:
    """The same cells, but every foreign key is permuted: all that is left is chance."""
    made, rng = plurel(given, seed), np.random.default_rng(seed)
    tables = {name: frame.copy() for name, frame in made.tables.items()}
    for name, table in made.metadata["tables"].items():
        for key in table["foreign_keys"]:
            tables[name][key] = rng.permutation(tables[name][key].to_numpy())
    return Made(tables, made.metadata)


#: Names the interpreter that has SDV, where the trial's own cannot (its pandas is too new for it).
SDV_PYTHON = "ASSAY_SDV_PYTHON"

HMA = """
import json, sys, warnings
warnings.filterwarnings("ignore")
import pandas as pd
from pathlib import Path
from sdv.metadata import Metadata
from sdv.multi_table import HMASynthesizer
folder, seed = Path(sys.argv[1]), int(sys.argv[2])
described = json.loads((folder / "sdv.json").read_text())
tables = {name: pd.read_csv(folder / f"{name}.csv") for name in described["tables"]}
for name, table in described["tables"].items():
    for column, about in table["columns"].items():
        if about["sdtype"] == "datetime":
            tables[name][column] = pd.to_datetime(tables[name][column])
synthesizer = HMASynthesizer(Metadata.load_from_dict(described), verbose=False)
synthesizer.fit(tables)
sample = getattr(synthesizer, "sample_scale", None) or synthesizer.sample  # SDV 2 and 1
for name, frame in sample(scale=1.0).items():
    frame.to_csv(folder / f"{name}.made.csv", index=False)
"""


def sdv_hma(given: Given, seed: int) -> Made:
    """SDV's multi-table synthesizer, fitted to plurel's database (it cannot begin from nothing) and sampled."""
    made = plurel(given, seed)
    described = quiet(given.seed, given.config).to_sdv_metadata()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sdv.json").write_text(json.dumps(described))
        (folder / "hma.py").write_text(HMA)
        for table, frame in made.tables.items():
            frame.to_csv(folder / f"{table}.csv", index=False)
        done = subprocess.run(
            [os.environ[SDV_PYTHON], str(folder / "hma.py"), str(folder), str(seed)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-500:])
        tables = {table: pd.read_csv(folder / f"{table}.made.csv") for table in made.tables}
    return Made(tables, made.metadata)


# --------------------------------------------------------------------------------------- how much a parent row tells


def joined_parents(made: Made, name: str) -> pd.DataFrame:
    """For each row of a table the columns of all rows that its keys point to, and none of its own."""
    parts = []
    for key, parent in made.metadata["tables"][name]["foreign_keys"].items():
        about = made.metadata["tables"][parent]
        frame = made.tables[parent].set_index(about["primary_key"])[list(about["columns"])]
        parts.append(frame.reindex(made.tables[name][key]).reset_index(drop=True).add_prefix(f"{key}."))
    return pd.concat(parts, axis=1).astype(float)


def skill(features: pd.DataFrame, target: pd.Series[Any], is_categorical: bool, seed: int) -> float:
    """R² of a number or of a class (share of the error of the best constant that is explained), out of fold, from 0."""
    known = target.notna().to_numpy()
    x, y = features[known], target[known].to_numpy()
    folds = KFold(3, shuffle=True, random_state=seed)
    settings: dict[str, Any] = {"max_iter": 25, "max_leaf_nodes": 15, "random_state": seed}
    if is_categorical:
        classes, codes = np.unique(y, return_inverse=True)
        # The share of the most frequent class is what one knows without the parent.
        base = np.bincount(codes).max() / len(codes)
        if len(classes) < 2 or np.sort(np.bincount(codes))[-2] < 10:
            return float("nan")
        guessed = cross_val_predict(HistGradientBoostingClassifier(**settings), x, codes, cv=folds)
        return float(max(0.0, (np.mean(guessed == codes) - base) / (1 - base)))
    y = pd.Series(y).rank().to_numpy() / len(y)  # by ranks: one wild value must not decide
    if np.var(y) == 0:
        return float("nan")
    guessed = cross_val_predict(HistGradientBoostingRegressor(**settings), x, y, cv=folds)
    return float(max(0.0, 1 - np.mean((y - guessed) ** 2) / np.var(y)))


#: Columns of a table that are scored, so that a wide table costs no more than a narrow one.
SCORED = 4


def learnability(case: Case, made: Made) -> dict[str, float]:
    skills = []
    for name, table in made.metadata["tables"].items():
        if not table["foreign_keys"]:
            continue
        parents = joined_parents(made, name)
        if parents.shape[1] == 0:
            continue
        for column, about in list(table["columns"].items())[:SCORED]:
            seed = child_seed(0, case.id, name, column) % 2**31
            skills.append(skill(parents, made.tables[name][column], about["type"] == "categorical", seed))
    scored = np.array([s for s in skills if not np.isnan(s)])
    return {
        "skill": float(scored.mean()) if scored.size else 0.0,
        "learnable": float(np.mean(scored > 0.05)) if scored.size else 0.0,
        "unscored": float(np.mean(np.isnan(skills))) if skills else float("nan"),
    }


def load(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    config = RelationalConfig(
        DatabaseConfig(
            n_tables=(3, int(params["tables"])),
            n_columns=(3, 8),
            entity_rows=(int(params["entity_rows"]),) * 2,
            activity_rows=(int(params["activity_rows"]),) * 2,
        )
    )
    name = f"databases of 3 to {params['tables']} tables (invented)"
    return Data(name, int(params["activity_rows"]), config)


def databases(config: RelationalConfig, n: int, seed: int) -> Iterator[Case]:
    for number in range(n):
        yield Case(f"database {number + 1}", Given(child_seed(seed, "database", number), config))


def flat_databases(config: RelationalConfig, n: int, seed: int) -> Iterator[Case]:
    """Databases without a chain of two keys, the only ones that SDV's HMA takes."""
    from networkx import dag_longest_path_length

    drawn = (Given(child_seed(seed, "database", number), config) for number in count())
    flat = (given for given in drawn if dag_longest_path_length(quiet(given.seed, config).schema_graph) < 2)
    for number, given in enumerate(islice(flat, n)):
        yield Case(f"flat database {number + 1}", given)


ARMS = (
    Arm("plurel", plurel),
    Arm("independent tables", independent_tables, baseline=True),
    Arm("plurel, keys shuffled", shuffled_keys, baseline=True),
)

# ------------------------------------------------------------------------------------------ scaling: more databases


class Task(NamedTuple):
    """Masked cells: for each row its own and its parent's cells, one of its own to be foretold."""

    tokens: np.ndarray[Any, Any]
    target: np.ndarray[Any, Any]


#: Own and parent cells of a row that a model sees.
CELLS = 6


@lru_cache(maxsize=256)  # the databases of few are among those of many
def tasks_of(seed: int, config: RelationalConfig, rows: int) -> Task:
    """Ranked cells of the first child table: its own, then those of its parents; the target is another own cell."""
    database = quiet(seed, config)
    name, table = next((n, t) for n, t in database.metadata["tables"].items() if t["foreign_keys"])
    made = Made(database.tables, database.metadata)
    own = database.tables[name][list(table["columns"])].astype(float)
    parents = joined_parents(made, name)
    rng = np.random.default_rng(child_seed(seed, "cells"))
    chosen = rng.choice(len(own), min(rows, len(own)), replace=False)

    def standardised(frame: pd.DataFrame, n: int) -> np.ndarray[Any, Any]:
        ranked = (frame.rank(pct=True) - 0.5) * np.sqrt(12)
        values = ranked.fillna(0.0).to_numpy()[chosen]
        order = rng.permutation(values.shape[1])[:n]
        return np.pad(values[:, order], ((0, 0), (0, n - len(order))))

    own_cells, parent_cells = standardised(own, CELLS + 1), standardised(parents, CELLS)
    return Task(np.hstack([own_cells[:, 1:], parent_cells]).astype(np.float32), own_cells[:, 0].astype(np.float32))


def pretrained_loss(n_databases: int, given: tuple[int, RelationalConfig, int], seed: int) -> float:
    """Held-out mean squared error of a small in-context model after a fixed number of steps on `n_databases`.

    The model reads 32 labelled rows and 16 without labels of one database at a time: columns carry no names, what they
    mean has to be read from the rows.
    """
    import torch
    from torch import nn

    case_seed, config, steps = given
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    train = [tasks_of(child_seed(case_seed, "train", k), config, 400) for k in range(n_databases)]
    test = [tasks_of(child_seed(case_seed, "test", k), config, 400) for k in range(16)]
    width = 48
    layer = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.ModuleDict(
        {
            "read": nn.Linear(2 * CELLS + 2, width),
            "think": nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            "say": nn.Linear(width, 1),
        }
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    rng = np.random.default_rng(seed)

    def loss_of(tasks: list[Task], picks: np.ndarray[Any, Any], draw: np.random.Generator) -> Any:
        rows = [draw.choice(len(tasks[k].target), 48, replace=False) for k in picks]
        x = np.stack([tasks[k].tokens[r] for k, r in zip(picks, rows, strict=True)])
        y = np.stack([tasks[k].target[r] for k, r in zip(picks, rows, strict=True)])
        shown = np.zeros_like(y)
        shown[:, :32] = 1.0
        tokens = np.concatenate([x, (y * shown)[..., None], shown[..., None]], axis=2).astype(np.float32)
        out = model["say"](model["think"](model["read"](torch.from_numpy(tokens))))[:, 32:, 0]
        return nn.functional.mse_loss(out, torch.from_numpy(y[:, 32:]))

    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(train, rng.integers(len(train), size=16), rng)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    with torch.no_grad():
        draw = np.random.default_rng(0)
        return float(np.mean([float(loss_of(test, np.arange(16), draw)) for _ in range(8)]))


def on_64(given: tuple[int, RelationalConfig, int], seed: int) -> float:
    return pretrained_loss(64, given, seed)


def on_8(given: tuple[int, RelationalConfig, int], seed: int) -> float:
    return pretrained_loss(8, given, seed)


def on_1(given: tuple[int, RelationalConfig, int], seed: int) -> float:
    return pretrained_loss(1, given, seed)


def load_scaling(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    config = RelationalConfig(
        DatabaseConfig(n_tables=(2, 2), n_columns=(3, 8), entity_rows=(200, 200), activity_rows=(400, 400))
    )
    need("torch", extra="lm", purpose="training on synthetic databases")
    steps = int(params["steps"])
    if steps < 1:
        raise InputError(f"steps is {steps}; expected a whole number from 1")
    return Data("16 unseen databases (invented)", 16, (config, steps))


def unseen(data: tuple[RelationalConfig, int], n: int, seed: int) -> Iterator[Case]:
    config, steps = data
    for number in range(n):
        yield Case(f"draw {number + 1}", (child_seed(seed, "scaling", number), config, steps))


def loss_score(case: Case, loss: float) -> dict[str, float]:
    return {"loss": loss}


SCALING = Trial(
    slug="plurel",
    part="scaling",
    claim=Claim("with more databases at the same number of steps foretells unseen ones better", metric="loss"),
    load=load_scaling,
    cases=unseen,
    arms=(
        Arm("64 databases", on_64),
        Arm("8 databases", on_8, baseline=True),
        Arm("1 database", on_1, baseline=True),
    ),
    metrics=(Metric("loss", better="lower", help="mean squared error of unseen cells, in units of their variance"),),
    score=loss_score,
    n_cases={"quick": 6, "standard": 12, "full": 40},
    params={"steps": 100},
    takes_data=False,
)

# --------------------------------------------------------------------------------------------- sdv: beside HMA

HMA_PART = Trial(
    slug="plurel",
    part="sdv",
    claim=Claim("keeps more of what keys tell than SDV's HMA fitted to the same database", metric="skill"),
    load=lambda path, scale, params: load_sdv(path, scale, params),
    cases=flat_databases,
    arms=(ARMS[0], Arm("SDV HMA, fitted to plurel's database", sdv_hma, baseline=True)),
    metrics=(
        Metric("skill", better="higher", help="mean share of a child column that its parents' rows explain"),
        Metric("wall_s", better="lower", scale="log", unit="s"),
    ),
    score=learnability,
    n_cases={"quick": 6, "standard": 12, "full": 40},
    params={"tables": 3, "entity_rows": 100, "activity_rows": 300},
    takes_data=False,
)


def load_sdv(path: str | None, scale: Scale, params: Mapping[str, Parameter]) -> Data:
    if not os.environ.get(SDV_PYTHON):
        raise InputError(
            "this part needs SDV, which does not go with pandas 3: python -m venv sdv && sdv/bin/pip install sdv, "
            f"then set {SDV_PYTHON}=sdv/bin/python"
        )
    return load(path, scale, params)


TRIAL = Trial(
    slug="plurel",
    claim=Claim("makes columns that the rows their keys point to foretell", metric="skill"),
    load=load,
    cases=databases,
    arms=ARMS,
    metrics=(
        Metric("skill", better="higher", help="mean share of a child column that its parents' rows explain"),
        Metric("learnable", better="higher", help="share of child columns of which more than 5 % is explained"),
        Metric("unscored", better="lower", help="share of child columns that are (nearly) constant"),
    ),
    score=learnability,
    n_cases={"quick": 8, "standard": 20, "full": 100},
    params={"tables": 5, "entity_rows": 200, "activity_rows": 800},
    takes_data=False,
    also=(SCALING, HMA_PART),
)
