"""DataGuard's audits: what is asked of which model, the verdicts, the reports, and the sentences for bad input."""

import json
import re

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from assay._core.errors import InputError
from assay.audit.dataguard import DataGuardAuditor, Shadow, audit_probs, correct_for_several

SURE = {"aux_is_nontraining": True}


def samples(n, seed, shift=0.0):
    """Two classes that overlap, in five columns."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n)
    return rng.normal(size=(n, 5)) + y[:, None] * 0.8 + shift, y


TARGET, AUX, OTHER = samples(150, 1), samples(150, 2), samples(300, 3)


def remembers(*parts):
    X, y = (np.concatenate(values) for values in zip(*parts, strict=True))
    return KNeighborsClassifier(1).fit(X, y)


def answers(used, n=200, seed=0):
    """Probabilities of a model that is surer of samples it saw, and the labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n)
    logits = rng.normal(size=(n, 3))
    logits[np.arange(n), y] += 3.0 if used else 1.0
    probs = np.exp(logits)
    return probs / probs.sum(axis=1, keepdims=True), y


@pytest.fixture(autouse=True)
def few_splits(request, monkeypatch):
    """The null calibration of 200 splits is most of an audit's time; `used` and `unused` have it whole."""
    request.getfixturevalue("used"), request.getfixturevalue("unused")
    monkeypatch.setattr("assay.audit.dataguard.judging.N_SPLITS", 20)


@pytest.fixture(scope="module")
def used():
    return DataGuardAuditor(random_state=0).audit(remembers(TARGET), *TARGET, *AUX, **SURE)


@pytest.fixture(scope="module")
def unused():
    return DataGuardAuditor(random_state=0).audit(remembers(OTHER), *TARGET, *AUX, **SURE)


# --------------------------------------------------------------------------------------------------------- verdicts


def test_a_data_set_that_is_remembered_was_used(used):
    assert used.verdict == "used"
    assert used.p_value == pytest.approx(1 / 2001)
    assert used.score == pytest.approx(np.log10(2001))


def test_a_data_set_that_the_model_never_saw_was_not(unused):
    assert unused.verdict in ("no evidence", "inconclusive")
    assert unused.p_value > 0.01


def test_a_model_that_saw_the_auxiliary_data_points_the_other_way():
    report = DataGuardAuditor(random_state=0).audit(remembers(AUX), *TARGET, *AUX, **SURE)
    assert report.p_two_sided < 0.01
    assert report.verdict == "no evidence"


def test_half_of_a_data_set_is_found_and_measured():
    half = TARGET[0][:75], TARGET[1][:75]
    shadow = Shadow(remembers(OTHER), *OTHER, *samples(300, 4))
    report = DataGuardAuditor(shadow=shadow, random_state=0).audit(remembers(half, OTHER), *TARGET, *AUX, **SURE)
    assert report.verdict == "used"
    assert report.usage_fraction.low < 0.5 < report.usage_fraction.high
    assert 0 < report.detectable_fraction < 1


def test_a_perfect_memoriser_hits_the_cap_and_has_used_everything():
    n = 200
    y = np.zeros(n, dtype=int)
    sure, unsure = np.tile([1.0, 0.0], (n, 1)), np.full((n, 2), 0.5)
    report = audit_probs(sure, y, unsure, y, member_loss=0.0, exchangeable=True, test="F", **SURE)
    assert report.score == 16.0
    assert report.usage_fraction.estimate == 1.0


def test_a_data_set_of_another_kind_is_not_valid_evidence():
    shifted = samples(150, 5, shift=0.7)
    report = DataGuardAuditor(random_state=0).audit(remembers(OTHER), *shifted, *AUX, **SURE)
    assert report.shift.found
    assert report.verdict == "not valid"
    assert report.reason.startswith("distribution shift")


def test_noisier_inputs_are_seen_by_the_blind_check():
    X, y = samples(300, 6)
    noisy = X + np.random.default_rng(0).normal(0, 1.5, X.shape)
    report = DataGuardAuditor(random_state=0).audit(remembers(OTHER), noisy, y, *samples(300, 7), **SURE)
    assert report.verdict == "not valid"


def test_without_a_blind_check_nothing_is_called_used_unless_somebody_vouches():
    given = (*answers(used=True), *answers(used=False, seed=1))
    alone = audit_probs(*given, **SURE)
    assert alone.p_value < 0.01
    assert alone.verdict == "inconclusive"
    assert "blind check" in alone.reason
    assert audit_probs(*given, exchangeable=True, **SURE).verdict == "used"


def test_the_model_as_its_own_reference_leaves_no_power():
    given = (*answers(used=True), *answers(used=False, seed=1))
    report = audit_probs(*given, ref_target=given[0], ref_aux=given[2], exchangeable=True, **SURE)
    assert report.p_two_sided == 1.0
    assert any("nothing is left to test" in note for note in report.notes)


def test_several_targets_are_corrected_for_their_number(used, unused):
    corrected = correct_for_several({"one": used, "two": unused})
    assert corrected["one"].p_value == pytest.approx(2 * used.p_value)
    assert corrected["two"].p_value == pytest.approx(max(unused.p_value, 2 * used.p_value))
    assert corrected["one"].notes[-1].startswith("p corrected for 2 target data sets (Holm)")


def test_correction_changes_a_verdict_that_hangs_on_one_set(used):
    from dataclasses import replace

    close = replace(used, p_value=0.006)
    assert correct_for_several({"a": close, "b": close})["a"].verdict == "inconclusive"


def test_the_same_seed_gives_the_same_report():
    auditor = DataGuardAuditor(random_state=3)
    one, two = (auditor.audit(remembers(TARGET, OTHER), *TARGET, *AUX, **SURE).to_dict() for _ in range(2))
    assert one == two


# ------------------------------------------------------------------------------------------------------ kinds of model


def test_a_function_and_the_classifier_it_asks_have_the_same_report(used):
    model = remembers(TARGET)
    report = DataGuardAuditor(random_state=0).audit(lambda X: model.predict_proba(X), *TARGET, *AUX, **SURE)
    assert report.effects == used.effects
    assert report.p_value == used.p_value


def test_a_model_that_says_classes_only_is_audited_by_its_errors():
    model = remembers(TARGET)
    report = DataGuardAuditor(random_state=0).audit(lambda X: model.predict(X), *TARGET, *AUX, **SURE)
    assert [effect.feature for effect in report.effects] == [
        "error",
        "error under augmentation",
        "disagreement under augmentation",
    ]
    assert report.verdict == "used"
    assert "classes only" in report.notes[0]


def test_a_classifier_without_probabilities_is_audited_by_its_errors():
    report = DataGuardAuditor(random_state=0).audit(LinearSVC().fit(*OTHER), *TARGET, *AUX, **SURE)
    assert len(report.effects) == 3


def test_labels_are_the_classes_of_the_model():
    names = np.array(["cat", "dog"])
    tree = DecisionTreeClassifier(random_state=0).fit(TARGET[0], names[TARGET[1]])
    report = DataGuardAuditor(random_state=0).audit(tree, TARGET[0], names[TARGET[1]], AUX[0], names[AUX[1]], **SURE)
    assert report.verdict == "used"


@pytest.mark.parametrize("with_softmax", [False, True])
def test_a_torch_module_gives_logits_or_probabilities_and_stays_in_training(with_softmax):
    torch = pytest.importorskip("torch")
    linear = torch.nn.Linear(5, 2)
    parts = [linear, torch.nn.Softmax(dim=1)] if with_softmax else [linear]
    module = torch.nn.Sequential(*parts, torch.nn.Dropout(0.0)).train()
    weight, bias = linear.weight.detach().double().numpy(), linear.bias.detach().double().numpy()

    def probabilities(X):
        logits = X @ weight.T + bias
        return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)

    auditor = DataGuardAuditor(random_state=0)
    ours = auditor.audit(module, *TARGET, *AUX, **SURE)
    theirs = auditor.audit(probabilities, *TARGET, *AUX, **SURE)
    assert [e.delta for e in ours.effects] == pytest.approx([e.delta for e in theirs.effects], abs=1e-5)
    assert module.training


def test_a_pipeline_that_classifies_texts_is_asked_with_words_dropped():
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.pipeline import make_pipeline

    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{i}" for i in rng.integers(500, size=12)) for _ in range(160)]
    y = rng.integers(2, size=160)
    model = make_pipeline(CountVectorizer(), LogisticRegression(C=100.0)).fit(texts[:80], y[:80])
    auditor = DataGuardAuditor(n_augment=2, random_state=0)
    report = auditor.audit(model, texts[:80], y[:80], texts[80:], y[80:], **SURE)
    assert report.verdict == "used"
    assert len(report.effects) == 4


def test_images_are_moved_and_mirrored_as_images():
    images = np.random.default_rng(0).random((120, 3, 8, 8))
    y = np.zeros(60, dtype=int)
    shapes = set()

    def model(X):
        shapes.add(X.shape)
        mean = X.mean(axis=(1, 2, 3))
        return np.stack([mean, 1 - mean], axis=1)

    report = DataGuardAuditor(n_augment=2, random_state=0).audit(model, images[:60], y, images[60:], y, **SURE)
    assert shapes == {(60, 3, 8, 8)}
    assert [e.feature for e in report.effects] == ["loss", "entropy", "margin", "augmentation gap"]


def test_a_frame_stays_a_frame_and_its_words_stay():
    pd = pytest.importorskip("pandas")
    frames = [pd.DataFrame({"x": X[:, 0], "word": np.where(y, "a", "b")}) for X, y in (TARGET, AUX)]
    seen = []

    def model(X):
        seen.append(set(X["word"]))
        p = 1 / (1 + np.exp(-X["x"].to_numpy()))
        return np.stack([1 - p, p], axis=1)

    DataGuardAuditor(n_augment=1, random_state=0).audit(model, frames[0], TARGET[1], frames[1], AUX[1], **SURE)
    assert all(words == {"a", "b"} for words in seen)


# ------------------------------------------------------------------------------------------------------------ reports


def test_the_summary_says_level_verdict_interval_and_power(used):
    text = used.summary()
    for part in ("the model: USED", "level 0.01", "null calibration", "blind check", "found 4 times of 5", "[-"):
        assert part in text


def test_the_json_has_every_figure_and_the_assumptions(used, tmp_path):
    used.save(tmp_path / "audit.json")
    document = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    assert document["verdict"] == "used"
    assert document["diagnostics"]["null_splits"] == 200
    assert len(document["assumptions"]) == 5
    assert len(document["effects"]) == len(used.to_frame()) == 4


def test_the_page_opens_offline_and_keeps_a_hostile_name_a_name(tmp_path):
    name = "<script>alert(1)</script>"
    report = audit_probs(*answers(used=True), *answers(used=False, seed=1), exchangeable=True, name=name, **SURE)
    report.save(tmp_path / "audit.html")
    page = (tmp_path / "audit.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "<svg" in page
    assert not re.search(r'(src|href)="https?:', page)


def test_the_same_audit_gives_the_same_page(used):
    assert used.to_html() == used.to_html()


def test_a_feature_that_does_not_vary_is_drawn_as_nothing():
    n = 60
    probs, y = np.tile([0.5, 0.5], (n, 1)), np.zeros(n, dtype=int)
    report = audit_probs(probs, y, probs.copy(), y, **SURE)
    assert report.verdict == "no evidence"
    assert report.plot().get_lines()


# ---------------------------------------------------------------------------------------------------------- bad input


def probs_with(**changed):
    """Arguments of a good audit of 60 + 60 answers, some of them changed."""
    probs, y = answers(used=False, n=120)
    good = {"P_target": probs[:60], "y_target": y[:60], "P_aux": probs[60:], "y_aux": y[60:], **SURE}
    return good | changed


BAD = {
    "logits": (
        {"P_target": np.full((60, 3), 2.0)},
        "P_target, row 0: it sums to 6, so it is no row of probabilities; apply softmax to logits first",
    ),
    "negative": (
        {"P_aux": np.tile([1.5, -0.5, 0.0], (60, 1))},
        "P_aux, row 0: it holds -0.5, so it is no row of probabilities; apply softmax to logits first",
    ),
    "a label outside": ({"y_aux": np.full(60, 3)}, "y_aux, row 0: 3 is no class of the model; it has 0, 1, 2"),
    "too few": (
        {"P_target": answers(used=False, n=49)[0], "y_target": answers(used=False, n=49)[1]},
        "the target data has 49 samples; expected at least 50, fewer settle nothing",
    ),
    "labels of another length": (
        {"y_target": np.zeros(3, dtype=int)},
        "y_target has shape (3,); expected (60,), a label for each sample",
    ),
    "nobody is certain": (
        {"aux_is_nontraining": False},
        "say aux_is_nontraining=True if you are certain that the model never saw the auxiliary data, in training or "
        "in choosing its settings; an audit rests on that",
    ),
    "one sample in both": (
        {"inputs_target": np.arange(60.0)[:, None], "inputs_aux": np.arange(59.0, 119.0)[:, None]},
        "target row 59 and auxiliary row 0 are the same sample (1 target rows are in both); take them out of one of "
        "the two, since overlap hides the difference",
    ),
    "the same answers": (
        {"P_aux": answers(used=False, n=120)[0][:60], "y_aux": answers(used=False, n=120)[1][:60]},
        "60 of 60 different answers on the target are answers on an auxiliary sample to the last bit, so the data sets "
        "overlap; take shared samples out of one of them, since overlap hides the difference",
    ),
    "references for one": (
        {"ref_target": answers(used=False, n=60)[0]},
        "ref_target and ref_aux go together; one of them is missing",
    ),
    "other classes": (
        {"P_aux": np.full((60, 2), 0.5)},
        "P_aux has 2 classes; expected 3, as in the target's probabilities",
    ),
    "a group on both sides": (
        {"groups_target": np.arange(60), "groups_aux": np.arange(59, 119)},
        "group '59' has samples in both data sets; a group is in the target or in the auxiliary data, since its "
        "samples resemble each other",
    ),
    "groups for one": (
        {"groups_target": np.arange(60)},
        "groups are given for one of the two data sets; give them for both or for none",
    ),
    "few groups": (
        {"groups_target": np.arange(60) % 3, "groups_aux": 10 + np.arange(60) % 20},
        "the target data has 3 groups; expected at least 10 to permute",
    ),
    "groups by F": (
        {"groups_target": np.arange(60), "groups_aux": np.arange(60, 120), "test": "F"},
        "test='F' takes samples as independent; with groups use test='permutation'",
    ),
    "no level": ({"alpha": 0.5}, "alpha=0.5: expected a level above 0 and below 0.2, such as 0.01"),
    "few permutations": (
        {"n_permutations": 50},
        "n_permutations=50: the smallest p is 1/51, which is not below alpha=0.01; ask for more",
    ),
    "an unknown test": ({"test": "t"}, "test='t': expected 'permutation' or 'F'"),
}


@pytest.mark.parametrize(("changed", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence(changed, message):
    with pytest.raises(InputError) as caught:
        audit_probs(**probs_with(**changed))
    assert str(caught.value) == message


def test_a_sample_in_both_data_sets_is_refused_when_the_model_is_asked():
    X = AUX[0].copy()
    X[7] = TARGET[0][3]
    with pytest.raises(InputError, match=r"^target row 3 and auxiliary row 7 are the same sample"):
        DataGuardAuditor().audit(remembers(OTHER), *TARGET, X, AUX[1], **SURE)


def test_a_function_that_returns_logits_is_refused():
    with pytest.raises(InputError, match=r"^what the model returns, row 0: .* apply softmax to logits first$"):
        DataGuardAuditor().audit(lambda X: X[:, :2] * 5, *TARGET, *AUX, **SURE)


def test_something_that_is_no_model_is_refused():
    with pytest.raises(InputError, match=r"^the model is a int; expected a scikit-learn classifier, a torch module"):
        DataGuardAuditor().audit(3, *TARGET, *AUX, **SURE)


def test_samples_of_different_shapes_are_refused():
    with pytest.raises(InputError, match=r"^target samples have shape \(5,\) and auxiliary ones \(4,\)"):
        DataGuardAuditor().audit(LogisticRegression(), *TARGET, AUX[0][:, :4], AUX[1], **SURE)


def test_a_report_of_another_kind_is_refused(used):
    with pytest.raises(InputError, match=r"^audit\.doc: a report is written as one of \.html, \.json$"):
        used.save("audit.doc")
