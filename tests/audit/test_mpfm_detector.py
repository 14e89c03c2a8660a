"""`MPFMDetector`: what a user relies on."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from mpfm_helpers import lines_of, windows_of
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from assay._core.errors import InputError
from assay.audit.mpfm import LogWindows, MPFMDetector

SMALL = {"d": 32, "n_shared": 4, "n_private": 6, "epochs": (5, 7), "learning_rate": 6e-3}
TINY = {"d": 8, "n_shared": 2, "n_private": 2, "epochs": (0, 1)}  # where only the shape of an answer matters


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def logs():
    return windows_of()


@pytest.fixture(scope="module")
def fitted(logs):
    return MPFMDetector(**SMALL).fit(logs[1])


def copy_of(detector, folder):
    detector.save(folder)
    return MPFMDetector.load(folder)


def strange(windower, system="web"):
    lines = lines_of(system, 8, seed=5)
    lines[3] = lines[3][: lines[3].index("]: ") + 3] + "kernel panic, not syncing"
    return windower.transform(lines, system)


# ------------------------------------------------------------------------------------------------------ scikit-learn


@pytest.mark.slow
def test_scikit_learns_checks_pass_on_arrays():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tens of samples: the detector says that they are few
        check_estimator(MPFMDetector(**TINY))


def test_it_works_at_the_end_of_a_pipeline():
    X = np.random.default_rng(0).normal(size=(210, 3)) * [1, 10, 100]
    model = make_pipeline(StandardScaler(), MPFMDetector(**TINY)).fit(X)
    assert model.score_samples(X).shape == (210,)
    assert set(model.predict(X)) <= {0, 1}


def test_a_grid_search_over_arrays_picks_by_auroc():
    rng = np.random.default_rng(0)
    y = (np.arange(300) % 10 == 0).astype(int)
    X = rng.normal(size=(300, 4)) + 6 * y[:, None]
    search = GridSearchCV(MPFMDetector(**SMALL | {"epochs": (1, 2)}), {"w": [0.0, 1.0]}, cv=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.fit(X, y)
    assert search.best_score_ > 0.8  # six deviations apart, three epochs


def test_a_grid_search_takes_windows(logs):
    search = GridSearchCV(MPFMDetector(**TINY), {"sigma0": [0.5, 1.0]}, cv=KFold(2, shuffle=True, random_state=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.fit(logs[1], np.arange(len(logs[1])) % 50 == 0)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


# ------------------------------------------------------------------------------------------------------- what it says


def test_a_message_never_seen_scores_above_99_of_100_normal_windows(logs, fitted):
    windower, windows = logs
    usual = fitted.score_samples(windows[windows.domain == "web"])
    assert fitted.score_samples(strange(windower))[0] > np.quantile(usual, 0.99)


def test_predict_is_one_where_the_decision_is_above_zero(logs, fitted):
    windows = logs[1]
    assert ((fitted.decision_function(windows) > 0) == (fitted.predict(windows) == 1)).all()
    assert np.allclose(
        fitted.decision_function(windows) + [fitted.threshold_[d] for d in windows.domain],
        fitted.score_samples(windows),
    )


def test_the_score_is_the_weighted_sum_of_standardised_evidence(logs, fitted):
    windows = logs[1][logs[1].domain == "db"]
    s_str, s_vel, s_ode = fitted.evidence(windows).T
    one = fitted.calibration_["db"]

    def z(scale, s):
        return (s - scale.center) / scale.spread

    expected = 0.5 * z(one.structural, s_str) + 0.5 * z(one.dynamical, z(one.velocity, s_vel) + z(one.ode, s_ode))
    assert np.allclose(fitted.score_samples(windows), expected)


def test_the_explanation_names_the_offending_line(logs, fitted):
    found = fitted.explain(strange(logs[0]), 0)
    assert found.to_frame()["message"][0] == "kernel panic, not syncing"
    assert found.to_frame()["line"][0] == 4
    assert "nearest shared prototype" in found.summary()
    assert "nearest private prototype" in found.summary()


def test_the_path_of_the_flow_starts_at_the_window(logs, fitted):
    found = fitted.explain(logs[1], 0)
    assert len(found.path) == 11
    assert found.path[-1] == pytest.approx(0.5 * np.sqrt(fitted.evidence(logs[1][[0]])[0, 2]), rel=1e-4)


def test_only_lines_that_raise_the_score_are_blamed_for_it(fitted, logs):
    found = fitted.explain(strange(logs[0]), 0)
    mixed = replace(found, lines=found.lines.assign(change=[2.0, 1.0] + [-1.0] * (len(found.lines) - 2)))
    assert mixed.summary().count("  line ") == 2
    assert "+2.00" in mixed.summary()
    innocent = replace(found, lines=found.lines.assign(change=0.0))
    assert "no line's absence alone lowers the score" in innocent.summary()
    assert "  line " not in innocent.summary()


def test_the_explanation_can_be_drawn(logs, fitted):
    assert "robust standard deviations" in fitted.explain(logs[1], 3).plot().get_xlabel()


# ------------------------------------------------------------------------------------------------ systems are apart


def test_a_systems_private_prototypes_do_not_touch_the_others(logs, fitted, tmp_path):
    web = logs[1][logs[1].domain == "web"]
    before, changed = fitted.score_samples(web), copy_of(fitted, tmp_path)
    changed.network_.private[1] += 1.0
    assert np.array_equal(changed.score_samples(web), before)


def test_shared_prototypes_touch_all(logs, fitted, tmp_path):
    before, changed = fitted.score_samples(logs[1]), copy_of(fitted, tmp_path)
    changed.network_.shared += 1.0
    after = changed.score_samples(logs[1])
    assert all((after != before)[logs[1].domain == name].any() for name in ("web", "db"))


@pytest.mark.parametrize("way", ["trained", "measured", "unknown"])
def test_a_new_system_leaves_the_scores_of_the_old_ones_bit_identical(logs, fitted, tmp_path, way):
    before, grown = fitted.score_samples(logs[1]), copy_of(fitted, tmp_path)
    _, mail = windows_of(["mail"])
    grown.add_domain(None if way == "unknown" else mail, "mail", learn=way == "trained")
    assert np.array_equal(grown.score_samples(logs[1]), before)
    assert np.isfinite(grown.score_samples(mail)).all()


def test_a_new_system_without_training_data_is_scored_and_says_that_its_constants_are_borrowed(fitted, tmp_path):
    grown = copy_of(fitted, tmp_path).add_domain(None, "mail")
    scores = grown.score_samples(windows_of(["mail"])[1])
    assert grown.calibration_["mail"].borrowed
    assert np.isfinite(scores).all()
    assert len(np.unique(scores.round(6))) > 3


def test_a_log_that_is_judged_by_itself_has_few_alarms(logs, fitted, tmp_path):
    grown = copy_of(fitted, tmp_path)
    _, mail = windows_of(["mail"])
    grown.add_domain(mail, "mail", learn=False)
    assert grown.predict(mail).mean() <= 0.02


def test_names_of_systems_change_nothing(logs):
    windows = logs[1]
    renamed = np.where(windows.domain == "web", "z", "a")
    options = TINY
    one = MPFMDetector(**options).fit(windows).score_samples(windows)
    other = MPFMDetector(**options).fit(windows, domain=renamed).score_samples(windows, renamed)
    assert np.array_equal(one, other)


def test_one_system_alone_works():
    _, windows = windows_of(["web"])
    detector = MPFMDetector(**TINY).fit(windows)
    assert detector.domains_ == ["web"]


@pytest.mark.parametrize("options", [{"shared": False}, {"private": False}, {"align": "mmd"}, {"mining": False}])
def test_parts_can_be_switched_off(logs, options):
    detector = MPFMDetector(**TINY, **options).fit(logs[1])
    assert np.isfinite(detector.decision_scores_).all()


# ------------------------------------------------------------------------------------------------------ dependable


def test_a_score_does_not_depend_on_its_companions(logs, fitted):
    windows = logs[1]
    together = fitted.score_samples(windows)
    assert np.array_equal([fitted.score_samples(windows[[i]])[0] for i in (0, 77, 300)], together[[0, 77, 300]])


def test_the_same_seed_gives_the_same_scores(logs):
    one, other = (MPFMDetector(**TINY).fit(logs[1]).decision_scores_ for _ in range(2))
    assert np.array_equal(one, other)


def test_training_leaves_torchs_own_seed_alone(logs):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    MPFMDetector(**TINY).fit(logs[1])
    assert torch.equal(torch.rand(1), expected)


def test_a_saved_model_scores_identically_and_holds_no_pickle(logs, fitted, tmp_path):
    again = copy_of(fitted, tmp_path)
    assert np.array_equal(again.score_samples(logs[1]), fitted.score_samples(logs[1]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", "model.safetensors"]
    json.loads((tmp_path / "model.json").read_text())


def test_a_model_of_arrays_survives_saving(tmp_path):
    X = np.random.default_rng(0).normal(size=(210, 3)) * 50
    detector = MPFMDetector(**TINY).fit(X)
    assert np.array_equal(copy_of(detector, tmp_path).score_samples(X), detector.decision_scores_)


def test_the_embeddings_do_not_collapse_and_the_monitor_says_so(fitted):
    assert fitted.history_[-1]["std"] > 0.3


def test_calibration_shares_no_line_with_training(logs):
    from assay.audit.mpfm.split import split_by_time

    windows = logs[1]
    train, held = split_by_time(np.flatnonzero(windows.domain == "web"), windows)
    assert not np.intersect1d(windows.lines[train], windows.lines[held]).size
    assert windows.lines[held].min() > windows.lines[train].max()


def test_known_anomalies_are_left_out_of_training(logs):
    windows, known = logs[1], np.arange(len(logs[1])) % 40 == 7
    options = TINY
    with_labels = MPFMDetector(**options).fit(windows, known.astype(int)).score_samples(windows)
    assert np.array_equal(with_labels, MPFMDetector(**options).fit(windows[~known]).score_samples(windows))


def test_tuning_finds_weight_and_threshold_that_separate(logs, fitted, tmp_path):
    windower, windows = logs
    tuned = copy_of(fitted, tmp_path)
    few = LogWindows.concat([windows[windows.domain == "web"][:20], strange(windower)])
    y = np.r_[np.zeros(20, int), 1]
    assert np.array_equal(tuned.tune(few, y).predict(few), y)


# ------------------------------------------------------------------------------------------------------- bad input


def test_an_unknown_system_is_refused_with_the_way_in(logs, fitted):
    with pytest.raises(
        InputError,
        match=r"^domain 'mail' was not fitted \(known: web, db\); take it in with add_domain\(windows, 'mail'\) first$",
    ):
        fitted.score_samples(windows_of(["mail"])[1])


def test_a_system_is_added_once(logs, fitted):
    with pytest.raises(InputError, match=r"^domain 'web' is known already; choose another name$"):
        fitted.add_domain(logs[1], "web")


def test_fewer_than_200_windows_are_worth_a_warning():
    _, windows = windows_of(["web"], n=200)
    with pytest.warns(UserWarning, match=r"^domain 'web' has 49 normal windows; from 200 on"):
        MPFMDetector(**TINY).fit(windows)


def test_many_labelled_anomalies_are_worth_a_warning(logs):
    import dataclasses

    windows = dataclasses.replace(logs[1], y=(np.arange(len(logs[1])) % 10 == 0).astype(np.int8))
    with pytest.warns(
        UserWarning, match=r"^10% of the training windows carry the label of an anomaly and were left out"
    ):
        MPFMDetector(**TINY).fit(windows)


def test_a_system_of_anomalies_only_is_refused(logs):
    windows = logs[1]
    with pytest.raises(InputError, match=r"^domain 'db' has no normal window: all \d+ are labelled as anomalies$"):
        MPFMDetector(**SMALL).fit(windows, (windows.domain == "db").astype(int))


def test_windows_that_are_all_the_same_are_scored_with_a_warning():
    X = np.ones((250, 3))
    with pytest.warns(UserWarning, match=r"^domain 'all': the calibration windows all look the same"):
        detector = MPFMDetector(**TINY).fit(X)
    assert np.isfinite(detector.decision_scores_).all()


def test_a_window_without_lines_is_refused(logs, fitted):
    import dataclasses

    ids = logs[1].ids.copy()
    ids[5] = -1
    with pytest.raises(InputError, match=r"^window 5 has no lines; leave empty windows out$"):
        fitted.score_samples(dataclasses.replace(logs[1], ids=ids))


def test_windows_of_another_length_are_refused(fitted):
    with pytest.raises(
        InputError, match=r"^windows of 5 lines with 256 features; the model was fitted on windows of 8 lines"
    ):
        fitted.score_samples(windows_of(["web"], size=5)[1])


def test_labels_of_another_length_are_refused(logs):
    with pytest.raises(InputError, match=r"^y has 3 values for \d+ windows; give one for each$"):
        MPFMDetector(**SMALL).fit(logs[1], [0, 1, 0])


def test_arrays_of_several_systems_need_their_names():
    X, names = np.random.default_rng(0).normal(size=(420, 3)), np.repeat(["a", "b"], 210)
    detector = MPFMDetector(**TINY).fit(X, domain=names)
    with pytest.raises(InputError, match=r"^domain is missing; name the system of every window \(a, b\)$"):
        detector.predict(X)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d": 20}, r"^d=20: expected a multiple of 8$"),
        ({"w": 2}, r"^w=2: expected a number from 0 to 1$"),
        ({"shared": False, "private": False}, r"there would be no prototypes; leave one True$"),
        ({"align": "gan"}, r"^align='gan': expected None or 'mmd'$"),
        ({"sigma0": 0.0}, r"sigma0 is above 0$"),
    ],
)
def test_wrong_parameters_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        MPFMDetector(**options).fit(np.zeros((9, 2)))


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"holds no model: model.safetensors is missing; fit one first$"):
        MPFMDetector.load(tmp_path)


def test_a_window_that_does_not_exist_is_refused(logs, fitted):
    with pytest.raises(InputError, match=r"^window 9999: there are \d+ windows, counted from 0$"):
        fitted.explain(logs[1], 9999)
