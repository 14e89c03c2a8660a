"""The detectors as scikit-learn knows them: fit, score, calibrate, decide; and what they refuse."""

import copy
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from assay._core.errors import InputError
from assay.audit.style_detect import StyleFewShotDetector, TfidfDetector, ZeroShotDetector
from assay.audit.style_detect.prototypes import normalized

rng = np.random.default_rng(0)
HUMAN = rng.normal([0, 1, 0], 0.5, (120, 3))
MACHINE = rng.normal([1, 0, 0], 0.5, (60, 3))

CHECKS = list(estimator_checks_generator(StyleFewShotDetector(n_support=None)))


@pytest.mark.parametrize(
    ("estimator", "check"), CHECKS, ids=[f"{place}-{check.func.__name__}" for place, (_, check) in enumerate(CHECKS)]
)
def test_scikit_learn_takes_the_few_shot_detector_for_one_of_its_own(estimator, check):
    check(estimator)


def few_shot(**options):
    return StyleFewShotDetector(**{"n_support": 10, "n_trials": 20, **options}).fit(MACHINE[:40])


class Letters:
    """An encoder: shares of the letters of a text, of length one."""

    def encode(self, texts):
        counts = [[text.count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]
        return normalized(counts)


class Episodes:
    """An episode encoder: the parts of a text are its counts, and an episode is pooled by their maximum."""

    def parts(self, texts):
        return np.array([[text.count(letter) for letter in "abcdef"] for text in texts], dtype=np.float32)

    def pool(self, parts):
        return normalized(parts.max(axis=-2))

    def encode(self, texts):
        return self.pool(self.parts(texts)[:, None])


BEES = [f"{'bee ' * 10}{'b' * (place % 5)}{'e' * place}" for place in range(12)]
CATS = [f"{'cat ' * 10}{'c' * (place % 5)}{'a' * place}" for place in range(30)]


def test_a_score_is_the_cosine_to_the_normalised_mean_of_the_support():
    detector = StyleFewShotDetector(n_support=None).fit(MACHINE)
    unit = MACHINE / np.linalg.norm(MACHINE, axis=1, keepdims=True)
    prototype = unit.mean(axis=0) / np.linalg.norm(unit.mean(axis=0))
    expected = HUMAN @ prototype / np.linalg.norm(HUMAN, axis=1)
    np.testing.assert_allclose(detector.score_samples(HUMAN), expected, atol=1e-6)


def test_a_score_is_the_mean_over_supports():
    detector = few_shot()
    assert detector.score_matrix(HUMAN).shape == (20, 120)
    np.testing.assert_allclose(detector.score_samples(HUMAN), detector.score_matrix(HUMAN).mean(axis=0), atol=1e-6)


def test_labels_mark_the_support():
    both, labels = np.concatenate([HUMAN, MACHINE]), np.repeat([0, 1], [120, 60])
    marked = StyleFewShotDetector(n_support=None).fit(both, labels)
    alone = StyleFewShotDetector(n_support=None).fit(MACHINE)
    np.testing.assert_allclose(marked.score_samples(HUMAN), alone.score_samples(HUMAN), atol=1e-6)


def test_with_sources_the_mode_is_max():
    detector = StyleFewShotDetector(n_support=5, n_trials=2).fit(MACHINE, sources=["a", "b"] * 30)
    assert detector.mode_ == "max"
    assert few_shot().mode_ == "single"


def test_the_same_seed_gives_the_same_scores_and_another_does_not():
    one, same, other = (few_shot(random_state=seed).score_samples(HUMAN) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_it_comes_back_from_a_pickle_with_its_scores_and_thresholds():
    detector = few_shot().calibrate(HUMAN, 0.05)
    again = pickle.loads(pickle.dumps(detector))
    np.testing.assert_array_equal(again.score_samples(HUMAN), detector.score_samples(HUMAN))
    np.testing.assert_array_equal(again.predict(MACHINE), detector.predict(MACHINE))


def test_a_clone_shares_its_encoder():
    encoder = Letters()
    assert clone(StyleFewShotDetector(encoder)).encoder is encoder


def test_it_works_at_the_end_of_a_pipeline_and_in_a_grid_search():
    both, labels = np.concatenate([HUMAN, MACHINE]), np.repeat([0, 1], [120, 60])
    pipeline = make_pipeline(StandardScaler(), StyleFewShotDetector(n_trials=5))
    search = GridSearchCV(pipeline, {"stylefewshotdetector__n_support": [2, 20]}, cv=StratifiedKFold(3)).fit(
        both, labels
    )
    assert search.best_score_ > 0.9
    assert search.best_estimator_.score_samples(HUMAN).shape == (120,)


def test_tfidf_works_in_a_grid_search():
    search = GridSearchCV(TfidfDetector(), {"C": [0.1, 10.0]}, cv=StratifiedKFold(2)).fit(
        BEES + CATS, [1] * 12 + [0] * 30
    )
    assert search.best_score_ == 1.0


# ----------------------------------------------------------------------------------------------------- accounts


def test_an_account_has_the_mean_score_of_its_texts_in_order_of_appearance():
    detector = few_shot()
    scores = detector.score_samples(HUMAN[:4])
    found = detector.score_samples(HUMAN[:4], groups=["z", "a", "z", "a"])
    np.testing.assert_allclose(found, [scores[[0, 2]].mean(), scores[[1, 3]].mean()], atol=1e-9)


def test_an_account_by_vectors_has_the_score_of_its_pooled_vector():
    detector = few_shot(group_by="vectors")
    unit = normalized(HUMAN[:3])
    pooled = unit.mean(axis=0) / np.linalg.norm(unit.mean(axis=0))
    found = detector.score_samples(HUMAN[:3], groups=["a"] * 3)
    np.testing.assert_allclose(found, detector.score_samples(pooled[None]), atol=1e-6)


def test_an_episode_encoder_pools_the_support_in_its_own_way():
    detector = StyleFewShotDetector(Episodes(), n_support=None).fit(BEES)
    prototype = normalized(Episodes().parts(BEES).max(axis=0))
    np.testing.assert_allclose(detector.score_samples(CATS), Episodes().encode(CATS) @ prototype, atol=1e-6)


# --------------------------------------------------------------------------------------- thresholds and decisions


def test_there_is_no_decision_before_a_calibration():
    detector = few_shot()
    assert not hasattr(detector, "predict")
    with pytest.raises(AttributeError) as refused:
        detector.predict(MACHINE)
    cause = refused.value.__cause__ or refused.value
    assert "StyleFewShotDetector decides only after calibrate(human_texts, target_fpr)" in str(cause)


def test_fitting_anew_forgets_the_thresholds():
    detector = few_shot().calibrate(HUMAN, 0.05)
    assert not hasattr(detector.fit(MACHINE), "predict")


def test_texts_are_flagged_above_the_conformal_rank_of_human_scores():
    detector = few_shot().calibrate(HUMAN, 0.1)
    # ⌈121 · 0.9⌉ = 109 of 120 human scores are at or below it: 11 of them are above.
    assert detector.predict(HUMAN).sum() == 11


def test_each_group_size_has_a_threshold_of_its_own():
    detector = few_shot().calibrate(HUMAN, 0.1).calibrate(HUMAN, 0.1, group_size=4)
    assert sorted(detector.thresholds_) == [1, 4]
    assert detector.thresholds_[4].is_exact  # 30 disjoint groups are enough for 0.1
    assert detector.thresholds_[4].n_units == 30


def test_too_few_disjoint_groups_are_resampled_and_say_so():
    detector = few_shot().calibrate(HUMAN, 0.02, group_size=10)
    assert not detector.thresholds_[10].is_exact
    report = detector.report(MACHINE, groups=np.arange(60) // 10)
    assert "no guarantee" in report.summary()


def test_a_calibration_by_accounts_counts_accounts():
    detector = few_shot().calibrate(HUMAN, 0.05, group_size=3, groups=np.arange(120) // 4)
    assert (detector.thresholds_[3].n_units, detector.thresholds_[3].is_exact) == (30, True)


def test_an_account_with_too_few_texts_gets_no_decision():
    detector = few_shot().calibrate(HUMAN, 0.1, group_size=4)
    report = detector.report(MACHINE[:6], groups=["a"] * 4 + ["b"] * 2)
    assert report.n_decided == 1
    assert report.to_frame()["decision"].tolist()[1] == "no decision"
    assert "no decision on 1: empty, or fewer than 4 texts" in report.summary()


@pytest.mark.parametrize("rate", [0.05, 0.1])
def test_no_line_says_machine_like_without_the_error_rate(rate):
    report = few_shot().calibrate(HUMAN, rate).report(np.concatenate([MACHINE, HUMAN]))
    lines = report.summary().splitlines()
    assert any("machine-like" in line for line in lines)
    for number, line in enumerate(lines):
        if "machine-like" in line:
            assert f"{rate:g} of human" in line + lines[number + 1]
    frame = report.to_frame()
    assert (frame["human_flag_rate"] == rate).all()
    assert report.plot().get_legend_handles_labels()[1][-1] == f"threshold: exceeded by {rate:g} of human texts"


def test_a_report_says_how_many_flags_are_expected_by_mistake():
    report = few_shot().calibrate(HUMAN, 0.05).report(HUMAN[:40])
    assert "if all 40 were human, 2 would be flagged by mistake on average" in report.summary()


def test_a_report_of_an_uncalibrated_size_is_refused():
    detector = few_shot().calibrate(HUMAN, 0.1)
    with pytest.raises(InputError, match=r"^no threshold is calibrated for group_size=5; there are 1: give group_size"):
        detector.report(MACHINE, groups=["a"] * 60, group_size=5)


def test_a_decision_over_several_texts_needs_groups():
    detector = few_shot().calibrate(HUMAN, 0.1, group_size=4)
    with pytest.raises(InputError, match=r"^group_size=4: a decision over several texts needs groups$"):
        detector.report(MACHINE, group_size=4)


# ----------------------------------------------------------------------------------------------------- bad input


def test_an_empty_text_has_no_score_and_is_named():
    detector = StyleFewShotDetector(Letters(), n_support=None).fit(BEES)
    with pytest.warns(UserWarning, match=r"^texts: 1 text \(row 1\) is empty: no score$"):
        scores = detector.score_samples([CATS[0], " ", CATS[1]])
    assert np.isnan(scores).tolist() == [False, True, False]


def test_a_short_text_is_named():
    detector = StyleFewShotDetector(Letters(), n_support=None).fit(BEES)
    with pytest.warns(
        UserWarning, match=r"^texts: 1 text \(row 0\) is shorter than 10 words: style is unreliable there$"
    ):
        detector.score_samples(["a cat"])


def test_texts_of_the_support_are_named():
    detector = StyleFewShotDetector(Letters(), n_support=None).fit(BEES)
    with pytest.warns(UserWarning, match=r"^1 text \(row 1\) is also in the support: those scores are too good$"):
        detector.score_samples([CATS[0], BEES[3]])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a" * 60, 7], r"^support, row 1: 7 is not a text; expected a string$"),
        ("a text", r"^support is one string; give a list of strings$"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(texts, message):
    with pytest.raises(InputError, match=message):
        StyleFewShotDetector(Letters()).fit(texts)


REFUSED = [
    ({}, {"y": [0] * 60}, r"^the support has no machine text among 60 texts; y=1 marks them$"),
    ({}, {"y": [1] * 5}, r"^y has shape \(5,\) for 60 texts; expected one label for each$"),
    ({}, {"y": [0, 1, 2] * 20}, r"^y has 3 different labels; expected 0 \(human\) and 1 \(machine\)$"),
    ({}, {"sources": ["a"]}, r"^sources has shape \(1,\) for 60 texts; expected one for each$"),
    ({"mode": "best"}, {}, r"^mode='best': expected one of single, max, instance, domain, domain-single$"),
    ({"group_by": "luck"}, {}, r"^group_by='luck': expected 'scores' or 'vectors'$"),
    ({"n_support": 0}, {}, r"^n_support=0, n_trials=100: expected 1 or more$"),
    ({}, {}, r"^the support has too few texts for n_support=100: machine texts 60; add texts or lower n_support$"),
]


@pytest.mark.parametrize(("options", "given", "message"), REFUSED, ids=range(len(REFUSED)))
def test_a_support_that_cannot_be_used_is_refused(options, given, message):
    with pytest.raises(InputError, match=message):
        StyleFewShotDetector(**options).fit(MACHINE, **given)


def test_tfidf_needs_both_classes():
    with pytest.raises(InputError, match=r"^y has one class; TF-IDF with logistic regression learns from human and"):
        TfidfDetector().fit(BEES, [1] * 12)


def test_an_unknown_statistic_is_refused():
    with pytest.raises(InputError, match=r"^statistic='magic': expected one of fast-detect-gpt, log-rank, lrr"):
        ZeroShotDetector(None, None, "magic").fit()


def test_groups_of_none_are_refused():
    with pytest.raises(InputError, match=r"^group_size=0: expected 1 or more$"):
        few_shot().calibrate(HUMAN, group_size=0)


# ------------------------------------------------------------------------------------------------- language models


@pytest.fixture(scope="module")
def tiny(model_dir):
    from assay.models import load_lm

    return load_lm(model_dir)


WORDS = ["w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 w12", "w5 w4 w3 w2 w1 w9 w8 w7 w6 w5 w4 w3 w2 w1", "w7 " * 11]


@pytest.mark.parametrize("statistic", ["fast-detect-gpt", "log-rank", "lrr", "log-likelihood", "binoculars"])
def test_a_batch_has_the_scores_of_single_texts(tiny, statistic):
    detector = ZeroShotDetector(*tiny, statistic).fit()
    together = detector.score_samples(WORDS)
    alone = [detector.score_samples([text])[0] for text in WORDS]
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)


def test_log_likelihood_is_the_models_own_loss(tiny):
    import torch

    model, tokenizer = tiny
    ids = torch.tensor([tokenizer(WORDS[0])["input_ids"]])
    with torch.no_grad():
        loss = float(model(input_ids=ids, labels=ids).loss)
    assert ZeroShotDetector(*tiny, "log-likelihood").fit().score_samples(WORDS[:1])[0] == pytest.approx(-loss, rel=1e-5)


def test_a_model_as_its_own_reference_changes_nothing(tiny):
    alone = ZeroShotDetector(*tiny).fit().score_samples(WORDS)
    twice = ZeroShotDetector(*tiny, reference=tiny[0]).fit().score_samples(WORDS)
    np.testing.assert_allclose(twice, alone, rtol=1e-4)


def test_a_model_is_left_in_the_mode_it_was_in(tiny):
    model = copy.deepcopy(tiny[0]).train()
    ZeroShotDetector(model, tiny[1]).fit().score_samples(WORDS)
    assert model.training


def test_a_reference_of_another_vocabulary_is_refused(tiny):
    other = copy.deepcopy(tiny[0])
    other.config.vocab_size += 1
    with pytest.raises(
        InputError, match=r"^the reference model has \d+ tokens and the scoring model \d+; expected two"
    ):
        ZeroShotDetector(*tiny, reference=other).fit().score_samples(WORDS)


@pytest.mark.filterwarnings("ignore:texts. 1 text")
def test_a_text_of_one_token_has_no_score(tiny):
    assert np.isnan(ZeroShotDetector(*tiny).fit().score_samples(["w1"])).all()
