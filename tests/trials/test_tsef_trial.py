"""The trial of tsef: its cases are what they say, its arms try equally hard, and it gives a verdict."""

from functools import partial

import numpy as np
import pytest
import torch

from assay import bench
from assay._core.errors import InputError
from assay.trials.audit import tsef as trial

SERIES = trial.TRIAL.also[0]
FAST = {"iters": 1, "weights": "0.3"}


def written(tmp_path, n, n_classes=2):
    """Series of noise with a level that is their class."""
    y = np.arange(n) % n_classes
    X = np.random.default_rng(0).standard_normal((n, 1, 24)) + y[:, None, None]
    np.savez(tmp_path / "series.npz", X=X, y=y)
    return tmp_path / "series.npz"


@pytest.fixture(scope="module")
def case():
    setting = trial.simulated_setting(None, "quick", {**trial.PARAMS, **FAST}).value
    return next(iter(trial.simulated_cases(setting, 1, seed=0)))


def test_the_spread_of_the_marked_window_is_the_class():
    X, y, inside = trial.spread_series(400, np.random.default_rng(0))
    assert inside.sum(axis=(1, 2)).tolist() == [20] * 400
    for label, spread in ((0, 0.2), (1, 2.0)):
        values = X[y == label][inside[y == label]]
        # the standard error of a standard deviation of 4,000 normal numbers is 1.1 % of it
        assert values.std() == pytest.approx(spread, rel=0.05)
    assert X[~inside].std() == pytest.approx(1.0, rel=0.02)


def test_every_series_of_a_case_is_classified_correctly_and_has_another_target(case):
    given = case.given
    model = trial.network(*given.shape)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in given.state.items()})
    with torch.no_grad():
        assert np.array_equal(model(torch.from_numpy(given.X)).argmax(dim=1).numpy(), given.y)
    assert (given.target != given.y).all()


def test_the_explanation_has_to_stay_on_the_window_that_makes_the_class(case):
    given = case.given
    assert given.reference.sum(axis=(1, 2)).tolist() == [20] * len(given.y)
    inside = np.where(given.reference, given.X, np.nan)
    rough = np.nanstd(inside, axis=(1, 2)) > 1.0
    assert np.array_equal(rough, given.y == 1)


def test_the_same_seed_gives_the_same_cases_and_a_longer_run_starts_with_them():
    setting = trial.simulated_setting(None, "quick", trial.PARAMS).value
    short, long = (list(trial.simulated_cases(setting, n, seed=1)) for n in (1, 2))
    assert np.array_equal(short[0].given.X, long[0].given.X)
    for name, value in short[0].given.state.items():
        assert np.array_equal(value, long[0].given.state[name])


def test_cases_of_one_data_set_share_no_series(tmp_path):
    setting = trial.load_series(str(written(tmp_path, 120)), "quick", trial.PARAMS).value
    given = [case.given for case in trial.series_cases(setting, 3, seed=0)]
    rows = np.concatenate([one.X.reshape(len(one.X), -1) for one in given])
    assert len(np.unique(rows, axis=0)) == len(rows)


@pytest.mark.parametrize("make", [trial.make_tsef, partial(trial.make_pgd, 1.0, "best")], ids=["tsef", "joint"])
def test_the_attacks_have_the_same_number_of_passes(case, make):
    given = case.given
    model = trial.network(*given.shape)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in given.state.items()})
    passes = []
    hook = model.register_forward_hook(lambda *_: passes.append(1))

    def explain(x, target):
        return x.abs()

    attack = make(model, explain, eps=0.1, weight=0.3, rounds=(2, 6, 18), seed=0)
    before = len(passes)
    attack(given.X, given.y, given.target, given.reference, trial.RHO)
    hook.remove()
    # beside the 48 of the search: the clean and the attacked series, and, for steps, the clean start
    assert len(passes) - before in (48 + 2, 48 + 3)


def test_of_several_weights_each_series_keeps_the_best(case):
    given = case.given._replace(setting=((1, 2, 6), 0.3, (1.0, 0.01)))
    one, other = (case.given._replace(setting=((1, 2, 6), 0.3, (weight,))) for weight in (1.0, 0.01))
    both, first, second = (trial.attack_with(trial.make_tsef, True, each, 0) for each in (given, one, other))
    assert np.array_equal(both.apart, np.maximum(first.apart, second.apart))


def test_scores_are_shares_of_the_series(case):
    found = trial.Found(np.array([1.0, 1.0, 0.0, 0.0]), np.array([1.0, 0.0, 0.0, 0.0]), np.array([0.9, 0.5, 1.0, 0.6]))
    assert trial.shares(case, found) == pytest.approx({"apart": 0.25, "success": 0.5, "auprc": 0.75})


def test_series_that_come_in_aeon_are_read_without_importing_it():
    try:
        source = trial.shipped("BasicMotions")
    except InputError as error:
        pytest.skip(str(error))
    assert source.train[0].shape == source.test[0].shape == (40, 6, 100)
    assert sorted(np.bincount(source.test[1]).tolist()) == [10, 10, 10, 10]


def test_without_aeon_the_sentence_says_what_brings_it(monkeypatch):
    monkeypatch.setattr("assay.datasets.entry.importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^time-series is not here: run assay data get time-series$"):
        trial.shipped("GunPoint")


@pytest.mark.parametrize(
    ("n", "n_classes", "message"),
    [
        (30, 2, r"30 series; the trial learns from half of them and needs at least 40$"),
        (50, 1, r"at least two classes"),
    ],
)
def test_too_little_of_the_users_data_is_refused(tmp_path, n, n_classes, message):
    with pytest.raises(InputError, match=message):
        trial.load_series(str(written(tmp_path, n, n_classes)), "quick", trial.PARAMS)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"eps": 0.0}, r"^eps=0.0, iters=8, weights=0.05: expected a budget in \(0, 1\]"),
        ({"weights": "much"}, r"^weights=much: expected numbers with commas between, such as 0.3,0.05$"),
    ],
)
def test_bad_parameters_are_refused(params, message):
    with pytest.raises(InputError, match=message):
        trial.simulated_setting(None, "quick", {**trial.PARAMS, **params})


def test_on_the_users_series_the_trial_comes_to_a_verdict(tmp_path):
    result = bench.run(
        trial.TRIAL, data=written(tmp_path, 160), cases=2, params=FAST, out=tmp_path / "run", progress=False
    )
    assert (result.part, result.failures) == ("series", ())
    assert result.data.n == 160
    assert result.verdict.n_cases == 2
