"""The picture of the family: its table keeps one row a setting, its methods name their settings, and it draws."""

import importlib.util
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from assay._core.errors import InputError

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "compress_curve.py"


@pytest.fixture
def curve(tmp_path, monkeypatch):
    """The script as a module, with a table of its own."""
    spec = importlib.util.spec_from_file_location("compress_curve", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "compress_curve", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "TABLE", tmp_path / "compress.csv")
    return module


def row(curve, method, setting, n_bytes, kl=0.1):
    numbers = {name: 1.0 for name in curve.COLUMNS if name not in ("method", "setting")}
    return {**numbers, "method": method, "setting": setting, "bytes": n_bytes, "kl": kl, "kl_low": 0.05, "kl_high": 0.2}


def test_a_setting_has_one_row_and_rows_stand_by_method_and_size(curve):
    curve.add(row(curve, "rtn", "4 bits", 50))
    curve.add(row(curve, "mxint", "mxint4", 60))
    curve.add(row(curve, "mxint", "mxint8", 90))
    curve.add(row(curve, "rtn", "4 bits", 51, kl=0.3))
    table = curve.read()
    assert table[["method", "setting", "bytes", "kl"]].to_numpy().tolist() == [
        ["mxint", "mxint8", 90, 0.1],
        ["mxint", "mxint4", 60, 0.1],
        ["rtn", "4 bits", 51, 0.3],
    ]


def test_the_table_in_the_docs_has_every_column_and_intervals_that_hold_their_value(curve):
    path = SCRIPT.parents[1] / "docs" / "methods" / "compress.csv"
    if not path.is_file():
        pytest.skip("the table has not been measured")
    table = pd.read_csv(path)
    assert list(table.columns) == curve.COLUMNS
    assert not table[["method", "setting"]].duplicated().any()
    for name, low, high in (
        ("kl", "kl_low", "kl_high"),
        ("perplexity", "perplexity_low", "perplexity_high"),
        ("choice_accuracy", "choice_low", "choice_high"),
    ):
        assert ((table[low] <= table[name]) & (table[name] <= table[high])).all()


@pytest.mark.parametrize("method", ["full", "mxint", "rtn", "svd", "svd-llm", "2:4"])
def test_settings_have_names_of_their_own(curve, method):
    names = [setting.name for setting in curve.METHODS[method]()]
    assert len(set(names)) == len(names) > 0


@pytest.mark.parametrize(("method", "name", "bits"), [("full", "bfloat16", 16), ("mxint", "nvint4, rotated", 4.5)])
def test_a_setting_changes_the_model_and_says_its_bytes(curve, method, name, bits):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 32))
    x = torch.randn(4, 64)
    before = model(x)
    (setting,) = (setting for setting in curve.METHODS[method]() if setting.name == name)
    with torch.no_grad():
        n_bytes = setting.compress(model, None)
        gap = float((model(x) - before).norm() / before.norm())
    assert n_bytes == pytest.approx((64 * 48 + 48 * 32) * bits / 8, abs=8)  # a scale for each tensor
    assert 0 < gap < 0.2


def test_half_of_the_weights_in_16_bits_and_two_bits_for_each_place(curve):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 48))
    (setting,) = curve.METHODS["2:4"]()
    with torch.no_grad():
        n_bytes = setting.compress(model, None)
    assert n_bytes == 64 * 48 * 9 / 8
    assert (model[0].weight.view(48, 16, 4) != 0).sum(-1).unique().tolist() == [2]


def test_plain_svd_keeps_at_most_the_share_of_the_parameters(curve):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 48))
    before = model[0].weight.detach().clone()
    (setting,) = (setting for setting in curve.METHODS["svd"]() if setting.name.startswith("0.5 "))
    with torch.no_grad():
        n_bytes = setting.compress(model, None)
        singular = torch.linalg.svdvals(before)
    rank = 13  # floor(0.5 · 64 · 48 / (64 + 48))
    assert n_bytes == 2 * rank * (64 + 48)
    left_out = (model[0].weight.detach() - before).norm()
    assert float(left_out) == pytest.approx(float(singular[rank:].norm()), rel=1e-4)  # Eckart and Young


def test_the_picture_has_a_mark_for_every_method_and_units_on_its_axes(curve):
    table = pd.DataFrame([row(curve, "mxint", "a", 9e7), row(curve, "new", "b", 8e7)])
    axes = curve.draw(table, full_perplexity=15.0)
    assert axes.get_legend_handles_labels()[1] == ["mxint", "new"]
    assert "MB" in axes.get_xlabel()
    assert "nats" in axes.get_ylabel()


def test_an_unknown_method_is_refused(curve, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["compress_curve.py", "--methods", "gzip"])
    with pytest.raises(InputError, match=r"^--methods: 'gzip' is not one of full, mxint, "):
        curve.main()
