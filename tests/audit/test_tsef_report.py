"""What the report says: shares with their intervals, the curve, who notices; and the files it reads series from."""

import json

import numpy as np
import pytest
import torch
from tsef_helpers import bumps, classifier

from assay._core.errors import InputError
from assay.audit.tsef import IntegratedGradients, captum_watchers, read_series, robustness_report
from assay.audit.tsef.metrics import top_share, wilson
from assay.audit.tsef.noticing import Noticed, _agreements, _noise


@pytest.fixture(scope="module")
def model():
    return classifier()


@pytest.fixture(scope="module")
def report(model):
    X, y = bumps(10)
    watchers = {
        "the series itself": lambda x, target: x.abs(),
        "the prediction": lambda x, target: model(x).argmax(dim=1).eq(target)[:, None, None] * 2 * x - x + 9,
    }  # fmt: skip
    return robustness_report(
        model, IntegratedGradients(model, steps=2), X, y, budgets=(0.3, 0.02), lambda_grid=(0.3, 0.01),
        watchers=watchers, iters=1, k1=2, k2=8,
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------- the report


def test_every_attack_runs_at_every_budget_and_those_with_weights_at_every_weight(report):
    assert len(report.runs) == 3 * 2 + 2 * 2 * 2
    assert len(report.to_frame()) == len(report.runs)
    assert len(report.series_frame()) == 10 * len(report.runs)


def test_a_share_has_its_wilson_interval(report):
    for run, row in zip(report.runs, report.to_frame().to_dict("records"), strict=True):
        count = int(run.result.apart.sum())
        assert row["apart"] == count / row["n"]
        assert (row["apart_low"], row["apart_high"]) == wilson(count, row["n"])


def test_the_curve_takes_the_weight_with_the_most_that_came_apart(report):
    curve, frame = report.curve(), report.to_frame()
    assert len(curve) == 5 * 2
    for row in curve.to_dict("records"):
        same = frame[(frame["attack"] == row["attack"]) & (frame["eps"] == row["eps"])]
        assert row["apart"] == same["apart"].max()


def test_no_run_changed_more_than_its_budget(report):
    assert (report.to_frame()["linf"] <= 1).all()


def test_the_summary_never_shows_agreement_without_flips(report):
    text = report.summary()
    assert text.index("flipped") < text.index("come apart") < text.index("AUPRC")
    assert text.count("random") == 2


def test_an_explainer_that_turns_with_the_prediction_notices_and_the_series_itself_does_not(report):
    found = {(one.watcher, one.attack): one for one in report.noticed if one.eps == 0.3}
    turned, still = found["the prediction", "pgd_first"], found["the series itself", "pgd_first"]
    assert turned.n_flipped >= 5
    assert turned.n_noticed == turned.n_flipped
    assert still.n_noticed < turned.n_noticed


@pytest.mark.parametrize(
    ("n_noticed", "n_flipped", "verdict"),
    [(4, 4, "too few flips"), (20, 20, "notices"), (8, 20, "sometimes"), (1, 20, "in less than half"),
     (0, 16, "seldom or never"), (0, 15, "in less than half"), (0, 6, "in less than half"), (1, 5, "unclear")],
)  # fmt: skip
def test_a_verdict_says_what_its_interval_allows(n_noticed, n_flipped, verdict):
    assert Noticed("w", "tsef", 0.1, n_flipped, n_noticed, 0.5).verdict == verdict


def test_the_alarm_is_raised_on_one_in_twenty_noisy_series(model):
    """The threshold is the 5 % quantile of agreement under noise: of 4 draws of 30 series, 6 lie below it."""
    X, y = bumps(30)
    watchers = {"series": lambda x, target: x.abs()}
    made = robustness_report(
        model, IntegratedGradients(model, steps=2), X, y, attacks=["pgd_first"], budgets=[0.2], watchers=watchers,
        iters=1, k1=1, k2=9,
    )  # fmt: skip
    result = made.runs[0].result
    x = result.x[result.attacked]
    top = top_share(np.abs(x).astype(float), 0.1)
    stable = np.concatenate([_agreements(np.abs(noisy).astype(float), top) for noisy in _noise(x, 0.2, "BDT", 0)])
    assert np.mean(stable < made.noticed[0].threshold) == pytest.approx(0.05, abs=1 / len(stable))


def test_the_report_as_json_has_no_value_that_json_lacks(report):
    document = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert [run["lambda_cls"] for run in document["runs"]][:3] == [None, None, None]


def test_curve_and_frontier_name_their_axes(report):
    from matplotlib import pyplot as plt

    curve, frontier = report.plot(), report.plot_frontier()
    assert curve.get_xlabel() == "budget (share of each channel's range)"
    assert frontier.get_xlabel() == "share predicted as the target, budget 0.3"
    plt.close("all")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attacks": ["adv"]}, r"^attack 'adv' is not one of random, pgd, pgd_first, pgd_joint, tsef$"),
        ({"budgets": []}, r"^attacks, budgets and lambda_grid each need at least one entry$"),
        ({"budgets": [-0.1]}, r"^eps=-0.1: expected a budget above 0"),
    ],
)
def test_a_bad_plan_gets_a_sentence(model, options, message):
    X, y = bumps(4)
    with pytest.raises(InputError, match=message):
        robustness_report(model, IntegratedGradients(model), X, y, **options)


def test_captums_explainers_give_a_size_for_every_cell_and_the_same_twice(model):
    pytest.importorskip("captum", reason="captum is not installed")
    X, y = bumps(3)
    for name, watch in captum_watchers(model).items():
        first, second = watch(X, y), watch(X, y)
        assert first.shape == X.shape, name
        assert bool((first >= 0).all()), name
        assert torch.equal(first, second), name


def test_captums_occlusion_is_what_setting_a_window_to_zero_costs(model):
    pytest.importorskip("captum", reason="captum is not installed")
    X, y = bumps(2)
    found = captum_watchers(model)["occlusion"](X, y)
    without = X.clone()
    without[:, 0, :2] = 0
    with torch.no_grad():
        cost = (model(X) - model(without)).gather(1, y[:, None])[:, 0].abs()
    torch.testing.assert_close(found[:, 0, 0], cost, atol=1e-5, rtol=1e-4)


# ----------------------------------------------------------------------------------------------------- files of series

TS = """# a comment
@problemName Toy
@timeStamps false
@univariate false
@classLabel true up down
@data
1,2,3:4,5,6:up
7,8,9:0,0,1.5:down
"""


def written(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path / name


def test_a_ts_file_has_channels_and_declared_classes(tmp_path):
    series = read_series(written(tmp_path, "toy.ts", TS))
    assert series.X.tolist() == [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [0, 0, 1.5]]]
    assert (series.classes, series.y.tolist()) == (("up", "down"), [0, 1])


def test_a_ts_file_without_classes_has_none(tmp_path):
    series = read_series(written(tmp_path, "toy.ts", "@classLabel false\n@data\n1,2,3\n4,5,6\n"))
    assert series.y is None
    assert series.X.shape == (2, 1, 3)


def test_classes_given_are_in_the_models_order(tmp_path):
    series = read_series(written(tmp_path, "toy.ts", TS), classes=["down", "up"])
    assert series.y.tolist() == [1, 0]


def test_arrays_of_numpy_are_series(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.ones((3, 2, 5)), y=np.array([10, 2, 2]))
    np.save(tmp_path / "b.npy", np.ones((3, 5)))
    series = read_series(tmp_path / "a.npz")
    assert (series.classes, series.y.tolist()) == (("2", "10"), [1, 0, 0])
    assert read_series(tmp_path / "b.npy").X.shape == (3, 1, 5)


def test_a_row_of_a_table_is_a_series(tmp_path):
    series = read_series(written(tmp_path, "a.csv", "t0,t1,label\n1,2,b\n3,4,a\n"))
    assert series.X.tolist() == [[[1, 2]], [[3, 4]]]
    assert (series.classes, series.y.tolist()) == (("a", "b"), [1, 0])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.ts", "@data\n1,2,3\n1,2\n", r"line 3: a channel has 2 values and the first one 3; pad the series"),
        ("a.ts", "@data\n1,2:1,2\n1,2\n", r"line 3: 1 channels; the first series has 2$"),
        ("a.ts", "@data\n1,?,3\n", r"line 2: '\?' is not a number; fill missing values"),
        ("a.ts", "@data\n1,nan,3\n", r"line 2: the series holds nan; fill the gap$"),
        ("a.ts", "@timeStamps true\n@data\n", r"line 1: series with timestamps are not read"),
        ("a.ts", "@data\n", r"the file holds no series after @data$"),
        ("a.ts", "@classLabel true x y\n@data\n1,2:z\n", r"series 0: class 'z' is not one of x, y$"),
        ("a.csv", "t0,t1,label\n1,2,a\n3,x,b\n", r"row 2.*t1"),
        ("a.npy", "no array", r"not an array of numbers that numpy reads without pickle"),
        ("a.wav", "", r"\.wav is not one of \.ts, \.npz, \.npy"),
    ],
)
def test_a_broken_file_gets_a_sentence(tmp_path, name, text, message):
    with pytest.raises(InputError, match=message):
        read_series(written(tmp_path, name, text))


def test_pickled_objects_are_not_read(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="reads without pickle"):
        read_series(tmp_path / "a.npy")
