"""The trial of cc-icl: honest cases, arms that see no truth, and criteria of a user's own."""

import numpy as np
import pandas as pd
import pytest

from assay._core.errors import InputError
from assay.evaluate.cc_icl import CriterionSpec, score
from assay.evaluate.cc_icl.example import FOLDER, load_example
from assay.trials.evaluate import cc_icl
from assay.trials.evaluate.cc_icl import TRIAL

DEFAULTS = dict(TRIAL.params)


@pytest.fixture(scope="module")
def cases():
    data = TRIAL.load(None, "quick", DEFAULTS)
    return list(TRIAL.cases(data.value, 8, seed=0))


def test_no_digit_is_tested_in_two_cases_nor_seen_in_training(cases):
    tested = [set(case.given.test.items.content) for case in cases]
    assert sum(map(len, tested)) == len(set().union(*tested))
    assert all(not set(case.given.train.items.content) & used for case, used in zip(cases, tested, strict=True))


def test_arms_see_neither_truth_nor_categories_of_what_is_tested(cases):
    for case in cases:
        assert not case.given.test.truth.any()
        assert set(case.given.test.items.category) == {""}


def test_roles_are_drawn_anew_in_every_case(cases):
    roles = set()
    for case in cases:
        train = case.given.train
        of = {train.items.category[q]: tuple(t) for q, t in zip(train.query, train.truth.tolist(), strict=True)}
        assert len(of) == 9
        roles.add(tuple(sorted(of.items())))
    assert len(roles) == len(cases)


def test_the_same_seed_gives_the_same_cases(cases):
    again = list(TRIAL.cases(TRIAL.load(None, "quick", DEFAULTS).value, 8, seed=0))
    for first, second in zip(cases, again, strict=True):
        np.testing.assert_array_equal(first.given.test.support, second.given.test.support)


def test_matching_learned_categories_follows_the_criterion_and_the_nearest_example_less_so(cases):
    case = cases[0]
    matched = TRIAL.score(case, cc_icl.matched_categories(case.given, 0))
    nearest = TRIAL.score(case, cc_icl.nearest_example(case.given, 0))
    assert matched["criterion_sensitivity"] > nearest["criterion_sensitivity"] > 0.5


def test_new_roles_give_every_digit_another_role():
    spec = cc_icl.digit_roles(np.random.default_rng(0))
    turned = cc_icl._swapped(spec)
    before, after = (dict(zip(spec.categories, s.table.T.tolist(), strict=True)) for s in (spec, turned))
    assert all(before[digit] != after[digit] for digit in spec.categories)
    assert sorted(before.values()) == sorted(after.values())


def test_a_users_items_take_the_place_of_the_digits(tmp_path):
    for name in ("notes.csv", "criteria.yaml"):
        (tmp_path / name).write_text((FOLDER / name).read_text())
    data = TRIAL.load(str(tmp_path / "notes.csv"), "quick", DEFAULTS)
    case = next(iter(TRIAL.cases(data.value, 8, seed=0)))
    assert case.given.train.criteria == ("lenient", "surface", "strict")
    assert cc_icl.nearest_example(case.given, 0).shape == case.truth.shape


def test_criteria_are_looked_for_beside_the_items(tmp_path):
    (tmp_path / "notes.csv").write_text((FOLDER / "notes.csv").read_text())
    with pytest.raises(InputError, match=r"criteria.yaml: no such file"):
        TRIAL.load(str(tmp_path / "notes.csv"), "quick", DEFAULTS)


def test_too_few_items_for_two_folds_are_refused(tmp_path):
    items, _ = load_example()
    few = pd.DataFrame({"text": items.content, "category": items.category}).groupby("category").head(3)
    few.to_csv(tmp_path / "few.csv", index=False)
    (tmp_path / "criteria.yaml").write_text((FOLDER / "criteria.yaml").read_text())
    data = TRIAL.load(str(tmp_path / "few.csv"), "quick", DEFAULTS)
    with pytest.raises(InputError, match="the smallest category has 3 items; two folds need at least 4"):
        list(TRIAL.cases(data.value, 8, seed=0))


def test_the_primary_metric_is_joint_not_mean_accuracy(cases):
    case = cases[0]
    always_yes = np.ones_like(case.truth)
    assert TRIAL.score(case, always_yes)["criterion_sensitivity"] == 0
    assert score(always_yes, case.truth).accuracy_sensitive.mean() == 0.5


def test_the_examples_criteria_differ_in_two_steps():
    _, spec = load_example()
    assert isinstance(spec, CriterionSpec)
    assert spec.boundary == ("stain", "scratch")


def test_without_the_demo_model_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("assay.models.language._PACKAGE", "no_such_package")
    cc_icl.language_model.cache_clear()
    part = TRIAL.also[0]
    with pytest.raises(InputError, match="run assay data get demo-lm"):
        part.load(None, "quick", dict(part.params))


def test_a_layer_is_a_share_of_the_layers():
    part = TRIAL.also[0]
    with pytest.raises(InputError, match=r"layer is 10\.0; expected a share of the layers"):
        part.load(None, "quick", {**part.params, "layer": 10.0})


@pytest.mark.slow
def test_the_prompted_demo_model_sticks_to_one_answer():
    part = TRIAL.also[0]
    data = part.load(None, "quick", dict(part.params))
    case = next(iter(part.cases(data.value, 8, seed=0)))
    assert part.score(case, cc_icl.prompted(case.given, 0))["criterion_sensitivity"] == 0
