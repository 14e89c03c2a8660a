"""Intervals of what bridge shows: the line and its R², foresight of held-out tasks, horizons of the trend."""

import numpy as np
import pytest
from bridge_worlds import small_world
from scipy import stats

from assay._core.errors import InputError
from assay.evaluate.bridge import TimeHorizonIRT, foresee, score_minutes
from assay.evaluate.bridge.calibration import calibrate
from assay.evaluate.bridge.foresight import METRICS, resampled, resampled_scores
from assay.evaluate.bridge.horizons import forecast


def normal_world(rng, n):
    b = rng.normal(size=n)
    return b, np.exp(b + 0.5 * rng.normal(size=n))


def suites_world(rng, n):
    """Three suites of unequal spread, in difficulty and in time: what human times of several benchmarks look like."""
    suite = rng.integers(3, size=n)
    b = np.array([-3.0, 0.0, 2.0])[suite] + rng.normal(size=n) * np.array([0.4, 0.8, 0.4])[suite]
    return b, np.exp(b + rng.normal(size=n) * np.array([0.5, 1.2, 0.6])[suite])


def held_out_world(seed=0, n=120):
    rng = np.random.default_rng(seed)
    actual = np.exp(rng.normal(3.5, 1.5, n))
    return actual * np.exp(rng.normal(0, 0.9, n)), actual


# ----------------------------------------------------------------------------------------------- the line and its R²


def test_intervals_of_the_coefficients_are_those_of_statsmodels():
    sm = pytest.importorskip("statsmodels.api")
    b, minutes = normal_world(np.random.default_rng(0), 30)
    expected = sm.OLS(np.log(minutes), sm.add_constant(b)).fit().conf_int(0.1)
    found = calibrate(b, minutes).coefficients(0.9)
    np.testing.assert_allclose(found[["low", "high"]], expected, rtol=1e-9)


@pytest.mark.parametrize("world", [normal_world, suites_world])
def test_the_interval_of_r_squared_holds_it_about_as_often_as_it_says(world):
    rng = np.random.default_rng(1)
    x, minutes = world(rng, 400_000)
    true = float(np.corrcoef(x, np.log(minutes))[0, 1]) ** 2
    ends = np.array([calibrate(*world(rng, 40)).r_squared_interval() for _ in range(150)])
    # Coverage is 0.93 or more in long runs; 150 tables then fall below 0.87 once in 400 times.
    assert ((ends[:, 0] <= true) & (true <= ends[:, 1])).mean() >= 0.87


def test_on_normal_data_the_interval_of_r_squared_is_fishers():
    b, minutes = normal_world(np.random.default_rng(2), 2000)
    low, high = calibrate(b, minutes).r_squared_interval()
    half = (np.arctanh(np.sqrt(high)) - np.arctanh(np.sqrt(low))) / 2
    # Fisher: 1.96 / sqrt(n - 3). Estimating a spread from 2,000 draws and 2,000 points: 2 to 3 percent each.
    assert half == pytest.approx(1.96 / np.sqrt(1997), rel=0.1)


def test_three_timed_tasks_say_next_to_nothing_about_r_squared():
    low, high = calibrate([0.0, 1.0, 2.0], [1.0, 4.0, 5.0]).r_squared_interval()
    assert (low, high) == (0.0, pytest.approx(1.0, abs=1e-3))


def test_an_exact_line_has_an_r_squared_without_width():
    b = np.linspace(-2, 2, 20)
    line = calibrate(b, np.exp(1 + 0.8 * b))
    assert line.r_squared_interval() == pytest.approx((1.0, 1.0), abs=1e-9)
    assert line.r_squared_loo_interval() == pytest.approx((1.0, 1.0), abs=1e-9)


def test_the_leave_one_out_interval_is_the_bootstrap_of_predictions_from_the_others():
    b, minutes = suites_world(np.random.default_rng(3), 60)
    y = np.log(minutes)
    others = [np.arange(60) != task for task in range(60)]
    fits = [stats.linregress(b[rest], y[rest]) for rest in others]
    gap = y - np.array([fit.intercept + fit.slope * b[task] for task, fit in enumerate(fits)])
    total = y - np.array([y[rest].mean() for rest in others])
    expected = stats.bootstrap(
        (gap, total), lambda g, t, axis: 1 - (g**2).sum(axis) / (t**2).sum(axis), paired=True, vectorized=True,
        n_resamples=9999, method="percentile", rng=np.random.default_rng(4),
    ).confidence_interval  # fmt: skip
    # An end of 2,000 draws has a standard error of about sqrt(0.025 * 0.975 / 2000) / density: a tenth of the width.
    assert calibrate(b, minutes).r_squared_loo_interval() == pytest.approx(
        tuple(expected), abs=0.15 * (expected.high - expected.low)
    )


def test_the_summary_of_the_line_shows_an_interval_behind_every_number():
    text = calibrate(*normal_world(np.random.default_rng(0), 30)).summary()
    # intercept and slope, R² twice, the factor of a unit
    assert text.count("[") == 5


# ---------------------------------------------------------------------------------------------------- held-out tasks


def test_scores_of_resamples_are_the_scores_of_the_tasks_that_were_drawn():
    predicted, actual = held_out_world()
    counts = np.concatenate(list(resampled(len(actual), 20, seed=0)))
    found = resampled_scores(predicted, actual, counts)
    for draw, row in enumerate(counts):
        chosen = np.repeat(np.arange(len(actual)), row.astype(int))
        expected = score_minutes(predicted[chosen], actual[chosen])
        assert {name: found[name][draw] for name in METRICS} == pytest.approx(expected, rel=1e-9)


def test_every_resample_has_as_many_tasks_and_pieces_do_not_change_how_many_there_are():
    pieces = list(resampled(1_500_000, 3, seed=0))
    assert [len(piece) for piece in pieces] == [1, 1, 1]
    assert all((piece.sum(axis=1) == 1_500_000).all() for piece in pieces)


def test_the_interval_of_a_share_is_the_binomial_one():
    predicted, actual = held_out_world(n=600)
    row = foresee(predicted, actual, 30.0).to_frame().loc["within_2x"]
    half = 1.96 * np.sqrt(row["predicted"] * (1 - row["predicted"]) / 600)
    assert (row["predicted_high"] - row["predicted_low"]) / 2 == pytest.approx(half, rel=0.1)


def test_differences_are_paired_by_task():
    _, actual = held_out_world()
    table = foresee(np.full(len(actual), 30.0), actual, 30.0).to_frame()
    assert (table[["difference", "difference_low", "difference_high"]].fillna(0) == 0).all(axis=None)


def test_a_constant_answer_has_a_kappa_of_zero_whatever_is_drawn():
    predicted, actual = held_out_world()
    row = foresee(predicted, actual, 30.0).to_frame().loc["linear_kappa"]
    assert (row["typical"], row["typical_low"], row["typical_high"]) == (0, 0, 0)


def test_foresight_for_json_has_the_ends_beside_each_number():
    document = foresee(*held_out_world(), 30.0).to_dict()
    for part in (document, document["typical_time"], document["difference"]):
        assert all(part[f"{name}_low"] <= part[name] <= part[f"{name}_high"] for name in METRICS)


def test_the_same_seed_draws_the_same_intervals():
    first, again = (foresee(*held_out_world(), 30.0).to_frame() for _ in range(2))
    assert first.equals(again)


@pytest.mark.parametrize(
    ("predicted", "actual", "message"),
    [
        ([1.0], [1.0, 2.0], "predicted has 1 times and actual 2; expected as many, at least one"),
        ([], [], "predicted has 0 times and actual 0"),
        ([1.0, 2.0], [1.0, 0.0], "actual holds the time 0; expected minutes above zero"),
    ],
)
def test_times_that_cannot_be_compared_are_refused(predicted, actual, message):
    with pytest.raises(InputError, match=message):
        foresee(predicted, actual, 3.0)


# --------------------------------------------------------------------------------------------------------- the trend


@pytest.fixture(scope="module")
def fitted():
    return TimeHorizonIRT().fit(*small_world())


def test_horizons_of_the_trend_have_the_intervals_of_the_models(fitted):
    models = fitted.forecast().to_frame().set_index("model")
    expected = fitted.subjects_.loc[models.index]
    np.testing.assert_allclose(models[["low", "high"]], expected[["ci_low", "ci_high"]], rtol=1e-9)


def test_the_summary_of_the_trend_shows_an_interval_behind_every_horizon(fitted):
    found = fitted.forecast()
    assert found.summary().count("[") == 1 + found.n_frontier


def test_positions_without_a_standard_error_have_no_interval(fitted):
    dated = fitted.forecast().to_frame()[["model", "release_date", "position"]]
    found = forecast(dated, fitted.calibration_)
    assert found.to_frame()[["low", "high"]].isna().all(axis=None)
    assert found.summary().count("[") == 1
    found.plot()


def test_the_picture_of_the_line_names_the_interval_of_r_squared(fitted):
    legend = fitted.calibration_.plot().get_legend()
    low, high = fitted.calibration_.r_squared_interval()
    assert any(f"[{low:.2f}, {high:.2f}]" in text.get_text() for text in legend.get_texts())
