"""The trial of plurel: what is scored is what a parent's row tells, and every part runs."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from assay import bench
from assay._core.errors import InputError
from assay.bench import Case
from assay.synth.plurel import DatabaseConfig, RelationalConfig
from assay.trials.synth import plurel as trial

SMALL = RelationalConfig(
    DatabaseConfig(n_tables=(3, 3), n_columns=(3, 3), entity_rows=(80, 80), activity_rows=(160, 160))
)


def made_of(copied_share):
    """A child of 600 rows whose column is its parent's on a share of the rows, and chance on the others."""
    rng = np.random.default_rng(0)
    parent = pd.DataFrame({"row_idx": range(100), "x": rng.normal(size=100)})
    key = rng.integers(100, size=600)
    own = np.where(rng.random(600) < copied_share, parent["x"].to_numpy()[key], rng.normal(size=600))
    tables = {"p": parent, "c": pd.DataFrame({"row_idx": range(600), "k": key, "y": own})}
    columns = {"type": "numerical", "is_constant": False}
    metadata = {
        "tables": {
            "p": {"primary_key": "row_idx", "foreign_keys": {}, "columns": {"x": columns}},
            "c": {"primary_key": "row_idx", "foreign_keys": {"k": "p"}, "columns": {"y": columns}},
        }
    }
    return trial.Made(tables, metadata)


def test_a_copied_column_is_explained_and_a_random_one_is_not():
    case = Case("x", given=None)
    assert trial.learnability(case, made_of(1.0))["skill"] > 0.9
    assert trial.learnability(case, made_of(0.0))["skill"] < 0.05


def test_a_constant_column_is_not_scored():
    made = made_of(1.0)
    made.tables["c"]["y"] = 1.0
    found = trial.learnability(Case("x", given=None), made)
    assert found == {"skill": 0.0, "learnable": 0.0, "unscored": 1.0}


def test_shuffled_keys_are_the_same_keys_in_another_order():
    given = trial.Given(0, SMALL)
    plain, shuffled = trial.plurel(given, 0), trial.shuffled_keys(given, 0)
    for name, table in plain.metadata["tables"].items():
        for column, frame in plain.tables[name].items():
            other = shuffled.tables[name][column]
            if column in table["foreign_keys"]:
                assert sorted(frame) == sorted(other)
                assert list(frame) != list(other)
            else:
                pd.testing.assert_series_equal(frame, other)


def test_independent_tables_have_the_schema_of_plurels():
    given = trial.Given(0, SMALL)
    plain, independent = trial.plurel(given, 0), trial.independent_tables(given, 0)
    assert {n: list(f.columns) for n, f in plain.tables.items()} == {
        n: list(f.columns) for n, f in independent.tables.items()
    }


def test_the_first_cases_of_a_longer_run_are_those_of_a_shorter_one():
    short, long = (list(trial.databases(SMALL, n, 3)) for n in (2, 4))
    assert [(case.id, case.given) for case in short] == [(case.id, case.given) for case in long[:2]]


def test_the_main_part_runs(tmp_path):
    result = bench.run(
        replace(trial.TRIAL, also=()),
        cases=1,
        out=tmp_path / "run",
        jobs=1,
        progress=False,
        params={"tables": 3, "entity_rows": 40, "activity_rows": 100},
    )
    assert result.failures == ()
    assert result.arms[0].metrics["skill"].mean >= 0


def test_a_small_model_learns_from_databases():
    """After 20 steps on 4 databases the error on unseen ones is not far above that of the mean (one)."""
    config = RelationalConfig(
        DatabaseConfig(n_tables=(2, 2), n_columns=(3, 4), entity_rows=(60, 60), activity_rows=(80, 80))
    )
    assert 0 < trial.pretrained_loss(4, (0, config, 20), 0) < 2


def test_the_part_beside_sdv_says_what_it_needs(monkeypatch):
    monkeypatch.delenv(trial.SDV_PYTHON, raising=False)
    with pytest.raises(InputError, match=r"this part needs SDV, which does not go with pandas 3: python -m venv sdv"):
        trial.load_sdv(None, "quick", trial.HMA_PART.params)


def test_the_part_beside_sdv_asks_for_no_chain_of_keys():
    data = trial.load(None, "quick", trial.HMA_PART.params)
    cases = list(trial.HMA_PART.cases(data.value, 6, 0))
    assert len(cases) == 6
    for case in cases:
        edges = trial.quiet(case.given.seed, case.given.config).schema_graph.edges()
        assert not {child for child, _ in edges} & {parent for _, parent in edges}
