"""The trial of dataguard: its truth is what it says, its arms are the real thing, and it gives a verdict."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from assay import bench
from assay._core.errors import InputError
from assay.trials.audit import dataguard as trial
from assay.trials.audit.dataguard import arms, language, worlds


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """What is trained here stays here, in this process; a model that trains at once is enough."""
    monkeypatch.setattr(worlds, "made_dir", lambda: tmp_path / "made")
    monkeypatch.setattr(worlds, "Parallel", lambda **_: lambda tasks: (run(*args, **kw) for run, args, kw in tasks))
    monkeypatch.setattr(worlds, "network", quick_network)


def quick_network(X, y, seed):
    from sklearn.neighbors import KNeighborsClassifier

    return KNeighborsClassifier(2, weights="distance").fit(X, y)


def suspect(gap, seed=0, n=200):
    """A suspect whose losses, entropies and so on lie `gap` standard deviations lower on the target."""
    rng = np.random.default_rng(seed)
    target, aux, members, others = rng.normal(size=(4, n, 4))
    references = rng.normal(size=(2, n, 4))
    return arms.Suspect(target - gap, aux, *references, members - gap, others)


ARMS = {arm.name: arm for arm in (*trial.TRIAL.arms, *trial.ABLATIONS)}


@pytest.mark.parametrize("name", ARMS)
def test_every_arm_finds_what_is_plain_and_not_what_is_not_there(name):
    used, unused, turned = ARMS[name].run([suspect(0.8), suspect(0.0), suspect(-0.8)], 0)
    assert used.p_value < 0.01
    assert unused.p_value > 0.01
    if "regression" not in name:  # a learned score looks for any difference, whichever way it points
        assert turned.p_value > 0.9


@pytest.mark.parametrize("name", [name for name in ARMS if "DataGuard" not in name])
def test_every_arm_holds_its_level(name):
    p = [ARMS[name].run([suspect(0.0, seed=i, n=60)], i)[0].p_value for i in range(60)]
    assert np.sum(np.array(p) <= 0.1) <= stats.binom.ppf(0.9995, 60, 0.1)


def test_the_parts_of_a_split_do_not_overlap():
    table = worlds.digits(0.0)
    parts = worlds._split(table, 1)
    assert [len(part) for part in parts] == [300, 300, 400, 600]
    assert len(np.unique(np.concatenate(parts))) == 1600


def test_a_suspect_is_trained_on_its_share_of_the_target_and_an_unrelated_one_on_none(monkeypatch):
    table = worlds.digits(0.0)
    seen = []

    def watched(X, y, seed):
        seen.append({row.tobytes() for row in X})
        return quick_network(X, y, seed)

    monkeypatch.setattr(worlds, "network", watched)
    worlds._make(table, (0.0, 0.25, 1.0), 7)
    target, aux, *_ = worlds._split(table, 7)
    in_target = [sum(table.X[row].tobytes() in rows for row in target) for rows in seen]
    assert in_target == [0, 75, 300, 0, 0, 0]  # three suspects, two references, the shadow
    assert not any(table.X[row].tobytes() in rows for rows in seen for row in aux)


def test_the_same_seed_gives_the_same_worlds_and_a_longer_run_starts_with_them():
    table = worlds.digits(0.1)
    short, long = (list(worlds.made_worlds(table, (0.0,), n, 3)) for n in (1, 2))
    np.testing.assert_array_equal(short[0].target, long[0].target)
    np.testing.assert_array_equal(short[0].inputs_aux, long[0].inputs_aux)


def test_a_score_counts_what_is_found_at_one_percent():
    answers = [arms.Answer(p, f) for p, f in ((0.5, 0.1), (0.009, 0.25), (0.02, 0.5), (0.001, 0.9))]
    found = trial.detections(bench.Case("split", None, trial.FRACTIONS), answers)
    assert (found["found_quarter"], found["found_half"], found["found_whole"]) == (1.0, 0.0, 1.0)
    assert (found["found_in_part"], found["false_positive"]) == (0.5, 0.0)
    assert found["fraction_error"] == pytest.approx(0.05)


def test_blocks_of_passages_are_disjoint_and_hold_the_share_that_they_say():
    size, n_blocks = language.N_MEMBERS["small"], language.N_BLOCKS["small"]
    number = np.arange(3 * size * n_blocks, dtype=float)[:, None].repeat(5, axis=1)
    cases = list(language.blocks(language.Said(number, number, "small"), n_blocks, 0))
    assert len(cases) == n_blocks
    whole = np.concatenate([np.r_[s.target[:, 0], s.aux[:, 0]] for case in cases for s in (case.given[3],)])
    assert len(np.unique(whole)) == len(whole)
    for case in cases:
        shares = [(s.target[:, 0] < size * n_blocks).mean() for s in case.given]
        assert shares == pytest.approx([0.0, 0.25, 0.5, 1.0], abs=0.5 / size)
        assert all((s.aux[:, 0] >= size * n_blocks).all() for s in case.given)


def test_language_models_that_are_not_tuned_yet_are_left_out_of_a_quick_run(tmp_path, monkeypatch):
    monkeypatch.setattr(language, "made_dir", lambda: tmp_path)
    with pytest.raises(InputError, match=r"run assay try dataguard --scale standard once$"):
        language.load_demo(None, "quick", {})


def test_a_users_table_is_cut_into_worlds_and_gets_a_verdict(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=600)
    frame = pd.DataFrame(rng.normal(size=(600, 3)) + y[:, None], columns=["a", "b", "c"])
    frame.assign(kind=np.where(y, "yes", "no")).to_csv(tmp_path / "table.csv", index=False)
    data = trial.load(str(tmp_path / "table.csv"), "quick", {"label_noise": 0.0, "label": "kind"})
    assert (data.n, data.name) == (600, "table.csv, 0% of labels wrong")
    case = next(iter(trial.used_in_part(data.value, 1, 0)))
    answers = trial.METHOD.run(case.given, 0)
    found = trial.detections(case, answers)
    assert found["found_whole"] == 1.0  # neighbours at distance zero are remembered wholly


def test_a_table_that_is_too_short_is_refused(tmp_path):
    pd.DataFrame({"a": range(10), "label": ["x", "y"] * 5}).to_csv(tmp_path / "table.csv", index=False)
    with pytest.raises(InputError, match=r"has 10 rows; the trial cuts it into four parts and needs 600$"):
        trial.load(str(tmp_path / "table.csv"), "quick", trial.PARAMS)


def test_a_whole_audit_of_an_unrelated_model_has_a_verdict(monkeypatch):
    monkeypatch.setattr("assay.audit.dataguard.judging.N_SPLITS", 20)
    case = next(iter(trial.unrelated_models(worlds.digits(0.1), 1, 0)))
    found = trial.alarms(case, trial.whole_audit(case.given, 0))
    assert set(found) == {"false_positive", "p_below_5", "called_used", "called_not_valid"}
    assert found["called_used"] <= found["false_positive"]


@pytest.mark.slow
def test_the_trial_runs_with_real_networks_and_finds_whole_use(tmp_path, monkeypatch):
    monkeypatch.undo()
    from dataclasses import replace

    result = bench.run(replace(trial.TRIAL, also=()), cases=6, out=tmp_path / "run", progress=False)
    assert result.failures == ()
    assert result.arms[0].metrics["found_whole"].mean == 1.0
