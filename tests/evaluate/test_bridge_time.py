"""From the latent scale to human time: calibration, horizons, frontier, forecast, baselines."""

import numpy as np
import pandas as pd
import pytest
from bridge_worlds import packed, simulated, small_world
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit, logit

from assay._core.errors import InputError
from assay.evaluate.bridge import TimeHorizonIRT, score_minutes
from assay.evaluate.bridge.baselines import metr_horizons, success_rate_scale
from assay.evaluate.bridge.calibration import calibrate
from assay.evaluate.bridge.horizons import (
    forecast,
    frontier,
    horizon_difficulty,
    month_number,
    rolling_horizon_difficulty,
)
from assay.evaluate.bridge.likelihood import Parameters


def line_world(seed=0, n=30):
    rng = np.random.default_rng(seed)
    b = rng.normal(size=n)
    return b, np.exp(2.5 + 0.8 * b + rng.normal(0, 0.7, n))


def exponential_world(n=8, g=0.15, beta0=1.0, beta1=0.9):
    """Abilities exactly on a line in months, minutes exactly on a line in difficulty."""
    months = 3 * np.arange(n)
    dates = pd.Timestamp("2022-01-01") + np.array([pd.DateOffset(months=int(m)) for m in months])
    dated = pd.DataFrame({"model": [f"m{j}" for j in range(n)], "release_date": dates, "position": -2 + g * months})
    b = np.linspace(-2, 2, 9)
    return dated, calibrate(b, np.exp(beta0 + beta1 * b))


# ------------------------------------------------------------------------------------------------ calibration


def test_the_line_is_scipys_regression_of_log_minutes_on_difficulty():
    b, minutes = line_world()
    line, known = calibrate(b, minutes), stats.linregress(b, np.log(minutes))
    assert (line.slope, line.intercept, line.r_squared) == pytest.approx(
        (known.slope, known.intercept, known.rvalue**2), rel=1e-12
    )


def test_the_prediction_interval_is_that_of_statsmodels():
    sm = pytest.importorskip("statsmodels.api")
    b, minutes = line_world()
    at = np.array([-2.0, 0.3, 1.7])
    frame = sm.OLS(np.log(minutes), sm.add_constant(b)).fit().get_prediction(sm.add_constant(at)).summary_frame(0.05)
    low, high = calibrate(b, minutes).interval(at)
    assert np.log(low) == pytest.approx(frame["obs_ci_lower"], rel=1e-9)
    assert np.log(high) == pytest.approx(frame["obs_ci_upper"], rel=1e-9)


def test_leave_one_out_r_squared_is_that_of_refitting_without_each_task():
    b, minutes = line_world(n=12)
    y = np.log(minutes)
    keep = ~np.eye(12, dtype=bool)
    residual, total = np.zeros((2, 12))
    for i in range(12):
        residual[i] = y[i] - np.log(calibrate(b[keep[i]], minutes[keep[i]]).predict(b[i]))
        total[i] = y[i] - y[keep[i]].mean()
    expected = 1 - residual @ residual / (total @ total)
    assert calibrate(b, minutes).r_squared_loo == pytest.approx(expected, rel=1e-10)


def test_seconds_in_place_of_minutes_shift_the_intercept_alone():
    b, minutes = line_world()
    one, other = calibrate(b, minutes), calibrate(b, 60 * minutes)
    assert other.intercept - one.intercept == pytest.approx(np.log(60), abs=1e-12)
    assert (other.slope, other.r_squared) == pytest.approx((one.slope, one.r_squared), abs=1e-12)


def test_seconds_in_place_of_minutes_leave_the_doubling_time():
    dated, line = exponential_world()
    in_seconds = calibrate(line.difficulty, 60 * line.minutes)
    assert forecast(dated, in_seconds).doubling_months == pytest.approx(
        forecast(dated, line).doubling_months, rel=1e-12
    )


@pytest.mark.parametrize("n", [0, 2])
def test_fewer_than_three_timed_tasks_cannot_calibrate(n):
    with pytest.raises(InputError, match=f"cannot calibrate on {n} tasks with human times; at least 3"):
        calibrate(np.arange(n, dtype=float), np.ones(n))


def test_timed_tasks_of_one_difficulty_cannot_calibrate():
    with pytest.raises(InputError, match="cannot calibrate: the 4 tasks with human times all have the same difficulty"):
        calibrate(np.ones(4), np.arange(1.0, 5.0))


def test_scores_of_minutes_are_those_worked_out_by_hand():
    # Classes: predicted 0, 1, 3; actual 0, 2, 3.
    scores = score_minutes(np.array([10.0, 50.0, 300.0]), np.array([15.0, 100.0, 700.0]))
    assert scores["bucket_accuracy"] == pytest.approx(2 / 3)
    assert scores["within_2x"] == pytest.approx(2 / 3)
    assert scores["log_error"] == pytest.approx(np.log([1.5, 2.0, 7 / 3]).mean())
    gaps = np.abs(np.subtract.outer([0, 1, 3], [0, 2, 3]))
    assert scores["linear_kappa"] == pytest.approx(1 - np.trace(gaps) / 3 / gaps.mean())


# --------------------------------------------------------------------------------------------------- horizons


def test_at_the_horizon_of_one_half_every_model_solves_half():
    frame, minutes, _ = small_world()
    irt = TimeHorizonIRT().fit(frame, minutes)
    theta = irt.parameters_.ability[3]
    for a in (0.2, 1.0, 5.0):
        at = Parameters(np.array([theta]), np.array([theta]), np.array([np.log(a)]))
        assert expit(at.logits(np.array([0]), np.array([0])))[0] == 0.5


def test_the_horizon_of_one_half_is_the_predicted_time_at_b_equal_theta():
    frame, minutes, _ = small_world()
    irt = TimeHorizonIRT().fit(frame, minutes)
    expected = irt.calibration_.predict(irt.parameters_.ability)
    assert irt.horizon(0.5)["horizon_minutes"].to_numpy() == pytest.approx(expected, rel=1e-14)


def test_the_closed_form_horizon_has_the_asked_success_rate_at_the_median_discrimination():
    point = Parameters(np.array([-1.0, 2.0]), np.linspace(-3, 3, 5), np.log([0.5, 2.0, 1.5, 0.7, 3.0]))
    b = horizon_difficulty(point, 0.8)
    assert expit(1.5 * (point.ability - b)) == pytest.approx([0.8, 0.8], abs=1e-12)


def test_with_one_discrimination_the_rolling_horizon_is_the_closed_form():
    # Items evenly spaced: the mean of b in a window is its middle, so the smoothed curve is sigmoid(a (theta − b)).
    b = np.linspace(-6, 6, 2401)
    point = Parameters(np.array([-0.5, 0.0, 1.2]), b, np.full(2401, np.log(1.3)))
    # Linear interpolation between items 0.005 apart: an error below (a h)²/8 · max|p''|/p' < 1e-5.
    assert rolling_horizon_difficulty(point, 0.8) == pytest.approx(horizon_difficulty(point, 0.8), abs=1e-5)


def test_a_model_that_never_reaches_the_level_has_no_rolling_horizon():
    point = Parameters(np.array([-9.0, 0.0]), np.linspace(-2, 2, 40), np.zeros(40))
    assert np.isnan(rolling_horizon_difficulty(point, 0.8)).tolist() == [True, False]


def test_a_model_above_every_item_gets_the_difficulty_with_the_nearest_success_rate():
    point = Parameters(np.array([9.0]), np.linspace(-2, 2, 40), np.zeros(40))
    # min_items 5 of a window of 15: the last item has 8 neighbours in its window, so it counts.
    assert rolling_horizon_difficulty(point, 0.8)[0] == 2.0


def test_a_stricter_level_has_a_shorter_horizon():
    frame, minutes, _ = small_world()
    irt = TimeHorizonIRT().fit(frame, minutes)
    half, most = (irt.horizon(q, how="closed_form")["horizon_minutes"] for q in (0.5, 0.8))
    assert (most < half).all()


def test_the_calibrations_error_widens_the_interval_of_a_horizon():
    frame, minutes, _ = small_world()
    minutes["human_minutes"] *= np.exp(np.random.default_rng(0).normal(0, 1, len(minutes)))
    irt = TimeHorizonIRT().fit(frame, minutes)
    wide, narrow = irt.horizon(), irt.horizon(calibration_error=False)
    assert (np.log(wide["high"] / wide["low"]) > np.log(narrow["high"] / narrow["low"])).all()


# ------------------------------------------------------------------------------------- frontier and forecast


def test_a_model_joins_the_frontier_when_it_is_better_by_more_than_the_gap():
    assert frontier(np.arange(4.0), np.array([0.0, 0.1, 0.25, 0.5]), 0.2).tolist() == [0, 2, 3]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.floats(-3, 3)), min_size=1, max_size=12), st.randoms())
def test_the_frontier_does_not_depend_on_the_order_of_rows(models, random):
    def points(rows):
        time, position = np.array(rows, float).T
        chosen = frontier(time, position)
        return list(zip(time[chosen], position[chosen], strict=True))

    shuffled = models.copy()
    random.shuffle(shuffled)
    assert points(models) == points(shuffled)


def test_months_count_from_january_of_year_zero():
    assert month_number(pd.Series(pd.to_datetime(["2024-01-31", "2025-12-01"]))).tolist() == [24288, 24311]


def test_an_exactly_exponential_world_has_its_doubling_time():
    dated, line = exponential_world(g=0.15, beta1=0.9)
    assert forecast(dated, line).doubling_months == pytest.approx(np.log(2) / (0.9 * 0.15), abs=1e-9)


def test_an_exactly_exponential_world_has_an_interval_without_width():
    dated, line = exponential_world()
    found = forecast(dated, line)
    assert found.ci_high - found.ci_low < 1e-9


def test_the_fitted_slope_turns_months_into_doublings_and_not_the_papers_constant():
    dated, line = exponential_world(beta1=0.4)  # exp(0.4) = 1.49, far from 2.26
    assert forecast(dated, line).doubling_months == pytest.approx(np.log(2) / (0.4 * 0.15), abs=1e-9)


def test_the_ends_of_the_interval_swap_with_the_slope():
    dated, line = exponential_world()
    dated["position"] += np.random.default_rng(0).normal(0, 0.1, len(dated))
    found = forecast(dated, line)
    assert found.ci_low == pytest.approx(np.log(2) / (0.9 * found.slope_high), rel=1e-12)
    assert found.ci_low <= found.doubling_months <= found.ci_high


def test_resampling_models_chooses_the_frontier_anew():
    dated, line = exponential_world(n=12)
    dated["position"] += np.random.default_rng(0).normal(0, 0.4, len(dated))
    one, other = (forecast(dated, line, bootstrap=kind) for kind in ("frontier", "models"))
    assert one.doubling_months == other.doubling_months
    assert (one.ci_low, one.ci_high) != (other.ci_low, other.ci_high)
    assert (one.bootstrap, other.bootstrap) == ("frontier", "models")


def test_the_forecast_at_a_later_date_is_so_many_doublings_further():
    dated, line = exponential_world()
    found = forecast(dated, line)
    now, later = found.predict(["2024-01-01", "2026-01-01"])["horizon_minutes"]
    assert later / now == pytest.approx(2 ** (24 / found.doubling_months), rel=1e-9)


def test_two_models_on_the_frontier_are_too_few():
    dated, line = exponential_world(n=2)
    with pytest.raises(InputError, match="at least 3 models on the frontier, and 2 dated models give 2"):
        forecast(dated, line)


def test_a_line_that_falls_has_no_forecast():
    dated, line = exponential_world(beta1=-0.5)
    with pytest.raises(InputError, match="harder tasks to take people longer"):
        forecast(dated, line)


# -------------------------------------------------------------------------------------------------- baselines


def test_the_success_rate_scale_is_the_hand_computed_one():
    matrix = np.array([[1.0, 0.0, np.nan], [1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    ability, difficulty = success_rate_scale(packed(matrix))
    assert ability == pytest.approx([0.0, np.log(2), -np.log(2)], abs=1e-12)
    # Task 0: 2 of 3, task 1: 2 of 3, task 2: 0 of the 2 that tried it, clipped at 1e-6.
    assert difficulty == pytest.approx([-np.log(2), -np.log(2), -logit(1e-6)], abs=1e-9)


def test_metrs_horizon_is_where_the_logistic_curve_crosses_one_half():
    rng = np.random.default_rng(0)
    log_minutes = rng.uniform(0, 8, 4000)
    solved = (rng.random(4000) < expit(-1.2 * (log_minutes - 3.0))).astype(float)[None, :]
    # The estimate's own standard error is sqrt(1 / (n mean p(1−p))) / 1.2 < 0.045 here; four of them.
    assert metr_horizons(packed(solved), log_minutes)[0] == pytest.approx(3.0, abs=0.18)


def test_a_model_that_solves_nothing_has_no_metr_horizon():
    assert np.isnan(metr_horizons(packed(np.zeros((1, 5))), np.arange(5.0))[0])


# ------------------------------------------------------------------------------------ the whole is invariant


@pytest.mark.parametrize(("scale", "shift"), [(2.5, -3.0), (0.1, 40.0)])
def test_another_scale_of_the_latent_line_changes_nothing_that_is_reported(scale, shift):
    frame, minutes, dates = small_world()
    irt = TimeHorizonIRT().fit(frame, minutes, dates)
    moved = irt.parameters_.rescaled(scale, shift)
    timed = irt.items_["calibration"].to_numpy()
    line = calibrate(moved.difficulty[timed], irt.items_.loc[timed, "human_minutes"].to_numpy())
    model, task = np.arange(20).repeat(60), np.tile(np.arange(60), 20)
    assert expit(moved.logits(model, task)) == pytest.approx(expit(irt.parameters_.logits(model, task)), abs=1e-10)
    assert line.predict(moved.difficulty) == pytest.approx(irt.items_["predicted_minutes"], rel=1e-10)
    assert line.predict(moved.ability) == pytest.approx(irt.subjects_["horizon_50_minutes"], rel=1e-10)
    own = irt.forecast(n_boot=10)
    dated = own.models[["model", "release_date"]].assign(position=own.models["position"] * scale + shift)
    there = forecast(dated, line, gap=0.2 * scale, n_boot=10)
    assert there.doubling_months == pytest.approx(own.doubling_months, rel=1e-10)


def test_standardizing_gives_abilities_of_mean_zero_and_spread_one_and_the_same_minutes():
    frame, minutes, _ = small_world()
    plain, standard = TimeHorizonIRT().fit(frame, minutes), TimeHorizonIRT(standardize=True).fit(frame, minutes)
    ability = standard.subjects_["ability"]
    assert (ability.mean(), ability.std(ddof=0)) == pytest.approx((0.0, 1.0), abs=1e-12)
    columns = ["predicted_minutes", "pi_low", "pi_high"]
    assert standard.items_[columns].to_numpy() == pytest.approx(plain.items_[columns].to_numpy(), rel=1e-9)
    columns = ["horizon_50_minutes", "ci_low", "ci_high"]
    assert standard.subjects_[columns].to_numpy() == pytest.approx(plain.subjects_[columns].to_numpy(), rel=1e-9)


def test_the_papers_calibration_is_found_on_the_papers_data(real_data):
    from assay.evaluate.bridge import read_minutes, read_responses

    folder = real_data / "bridge"
    minutes = read_minutes(folder / "human_minutes.csv")
    metr = minutes[~minutes["task"].str.contains("__")]
    irt = TimeHorizonIRT().fit(read_responses(folder / "responses.csv.gz"), metr)
    # The paper: 0.805 to 0.81 by variational inference, 0.631 by success rates.
    assert len(metr) == 170
    assert irt.calibration_.r_squared > 0.805


@pytest.fixture(scope="module")
def coverage():
    """Share of horizon and prediction intervals that hold the truth, over 20 worlds with noisy human times."""
    shares = []
    for seed in range(20):
        matrix, ability, difficulty, _ = simulated(60, 90, seed=seed, share=0.6)
        minutes = np.exp(2 + 0.9 * difficulty + np.random.default_rng(seed).normal(0, 0.7, 90))
        known = np.where(np.arange(90) < 45, minutes, np.nan)
        irt = TimeHorizonIRT().fit(matrix, known)
        subjects, items, truth = irt.subjects_, irt.items_.iloc[45:], np.exp(2 + 0.9 * ability)
        shares.append(
            (
                ((subjects["ci_low"] < truth) & (truth < subjects["ci_high"])).mean(),
                ((items["pi_low"] < minutes[45:]) & (minutes[45:] < items["pi_high"])).mean(),
            )
        )
    return np.mean(shares, axis=0)


def test_intervals_of_horizons_hold_the_true_horizon(coverage):
    # Intervals of one world share its line: the mean of 20 worlds has a standard error of about 0.01; three of them.
    assert coverage[0] == pytest.approx(0.95, abs=0.03)


def test_prediction_intervals_hold_the_human_times_of_tasks_nobody_timed(coverage):
    assert coverage[1] == pytest.approx(0.95, abs=0.03)
