"""Classifiers, language models and vision-language models: what they see, how they are trained, what they answer."""

import copy
import pickle

import numpy as np
import pytest
import torch
from cc_icl_models import CHAT, SPEC, WORDS, make_tokenizer, notes, tiny_lm, tiny_vlm, write_pictures
from scipy.stats import chisquare
from sklearn.datasets import load_digits

from assay._core.errors import InputError
from assay.evaluate.cc_icl import (
    CriterionSpec,
    FixedBoundary,
    HFVLMPredictor,
    InContextClassifier,
    Items,
    LMPredictor,
    MCTCollator,
    MCTConfig,
    NearestSupport,
    build_episodes,
    evaluate,
    image_items,
    mct_,
    mct_dataset,
)
from assay.evaluate.cc_icl.classifier import draw_criteria
from assay.evaluate.cc_icl.language import image_inputs, text_inputs
from assay.evaluate.cc_icl.training import learning_rates

pytestmark = pytest.mark.usefixtures("one_thread")


# -------------------------------------------------------------------------------------------- classifiers of arrays


def digits_as_parts(seed=0):
    """0, 1, 2 normal, 3, 4, 5 anomalous, 6, 7, 8 on the boundary; 120 images a digit to train on, the rest to test."""
    images, labels = load_digits(return_X_y=True)
    answer = {"lenient": "NNNYYYNNN", "strict": "NNNYYYYYY"}
    word = {"N": "No", "Y": "Yes"}
    spec = CriterionSpec(
        "Is it an anomaly?",
        ("No", "Yes"),
        {name: {str(d): word[letter] for d, letter in enumerate(row)} for name, row in answer.items()},
    )
    items = Items("row", tuple(map(str, range(len(labels)))), tuple(map(str, labels)), images)
    # Shuffled first: the file goes writer by writer, and other writers are another question than other criteria.
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(np.flatnonzero(labels == digit)) for digit in range(9)]
    train = items.take(np.concatenate([row[:120] for row in rows]))
    test = items.take(np.concatenate([row[120:] for row in rows]))
    return build_episodes(train, spec, 10_000, seed=seed), build_episodes(test, spec, 1000, seed=seed + 1)


@pytest.fixture(scope="module")
def digits():
    return digits_as_parts()


QUICK = {"n_steps": 300, "batch_size": 64, "learning_rate": 2e-3}


@pytest.fixture(scope="module")
def trained(digits):
    train, test = digits
    models = {name: InContextClassifier(name, **QUICK).fit(train) for name in (None, "strict")}
    return {name: evaluate(model, test) for name, model in models.items()} | {"model": models[None]}


def test_training_under_all_criteria_follows_the_criterion(trained):
    assert trained[None].sensitivity > 0.9


def test_training_under_one_criterion_does_not(trained):
    assert trained["strict"].sensitivity < 0.1
    assert trained["strict"].rigidity > 0.9


def test_following_the_criterion_costs_no_invariance(trained):
    assert trained[None].invariance == pytest.approx(trained["strict"].invariance, abs=0.05)


def test_accuracy_hides_most_of_the_difference(trained):
    gap = {name: np.mean([share.value for share in trained[name].accuracy.values()]) for name in (None, "strict")}
    assert gap["strict"] > 0.65
    assert trained[None].sensitivity - trained["strict"].sensitivity > 2 * (gap[None] - gap["strict"])


def test_the_order_of_the_examples_does_not_change_an_answer(trained, digits):
    _, test = digits
    support, query, labels = test.items.features[test.support], test.items.features[test.query], test.labels[:, :, 0]
    forward = trained["model"].predict_proba(support, labels, query)
    backward = trained["model"].predict_proba(support[:, ::-1], labels[:, ::-1], query)
    np.testing.assert_allclose(forward, backward, atol=1e-5)


def test_a_pickled_classifier_answers_the_same(trained, digits):
    _, test = digits
    given = test.items.features[test.support], test.labels[:, :, 1], test.items.features[test.query]
    again = pickle.loads(pickle.dumps(trained["model"]))
    np.testing.assert_array_equal(again.predict_proba(*given), trained["model"].predict_proba(*given))


def test_the_same_seed_trains_the_same_classifier_and_leaves_torchs_own_state_alone(digits):
    before = torch.get_rng_state()
    small = {"d_model": 8, "n_layers": 1, "n_heads": 2, "n_steps": 3, "batch_size": 8}
    first, again, other = (InContextClassifier(random_state=seed, **small).fit(digits[0]) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.loss_, again.loss_)
    assert (first.loss_ != other.loss_).any()
    assert torch.equal(before, torch.get_rng_state())


def test_nearest_support_copies_the_label_of_the_nearest_example():
    answer = NearestSupport().predict([[[0.0], [2.0], [5.0]]] * 2, [[0, 1, 0], [1, 0, 1]], [[2.2], [0.4]])
    assert answer.tolist() == [1, 1]


def test_a_fixed_boundary_ignores_the_examples_and_has_no_sensitivity(digits):
    train, test = digits
    report = evaluate(FixedBoundary("strict").fit(train), test)
    assert (report.sensitivity, report.rigidity) == (0, 1)


@pytest.mark.parametrize(
    ("support", "labels", "query", "message"),
    [
        (np.zeros((2, 3, 4)), np.zeros((2, 2), int), np.zeros((2, 4)), "expected .n, n_support, n_features."),
        (np.full((1, 1, 1), np.nan), [[0]], [[0.0]], "a feature is not finite"),
        (np.zeros((1, 1, 1)), [[-1]], [[0.0]], "support_y holds -1; expected codes of answers"),
        (np.zeros((1, 1, 1)), [["Yes"]], [[0.0]], "support_y holds Yes; expected codes"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(support, labels, query, message):
    with pytest.raises(InputError, match=message):
        NearestSupport().predict(support, labels, query)


def test_a_classifier_refuses_items_of_another_width(trained):
    with pytest.raises(InputError, match="items have 3 features; the classifier was trained on 64"):
        trained["model"].predict(np.zeros((1, 2, 3)), np.zeros((1, 2), int), np.zeros((1, 3)))


def test_items_without_features_are_refused():
    with pytest.raises(InputError, match="these text items have no features"):
        InContextClassifier().fit(build_episodes(notes(), SPEC, 4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_heads": 3}, "n_heads=3 does not divide"),
        ({"n_steps": 0}, "n_steps is 0"),
        ({"criterion": "C"}, "no criterion 'C'"),
    ],
)
def test_settings_that_cannot_be_are_refused(digits, options, message):
    with pytest.raises(InputError, match=message):
        InContextClassifier(**options).fit(digits[0])


def test_three_criteria_with_two_boundaries_train_a_model_that_follows_two_of_them(digits):
    spec = CriterionSpec(
        "?",
        ("No", "Yes"),
        {
            "A": {"0": "No", "1": "No", "2": "No", "3": "Yes"},
            "B": {"0": "No", "1": "No", "2": "Yes", "3": "Yes"},
            "C": {"0": "No", "1": "Yes", "2": "Yes", "3": "Yes"},
        },
    )
    items = digits[0].items
    items = items.take([i for i, category in enumerate(items.category) if category in "0123"])
    train, test = (build_episodes(items.take(range(part, len(items), 2)), spec, 5000, seed=part) for part in (0, 1))
    model = InContextClassifier(**QUICK).fit(train)
    assert evaluate(model, test.take(range(500)), criteria=["A", "C"]).sensitivity > 0.9


# --------------------------------------------------------------------------------------------------- language models


@pytest.mark.parametrize("chat", [CHAT, None])
def test_a_language_model_answers_with_the_likelier_first_token_whatever_the_padding(chat):
    tokenizer, model, episodes = make_tokenizer(chat), tiny_lm(), build_episodes(notes(), SPEC, 12)
    questions = [episodes.ask(row, 0) for row in range(12)]
    alone = []
    for question in questions:
        ids = text_inputs([question], tokenizer)["input_ids"]
        logits = model(ids).logits[0, -1, [WORDS.index("No"), WORDS.index("Yes")]]
        alone.append(("No", "Yes")[int(logits.argmax())])
    assert LMPredictor(model, tokenizer)(questions) == alone


def test_reasoning_is_read_from_what_the_model_writes():
    tokenizer, model, episodes = make_tokenizer(), tiny_lm(), build_episodes(notes(), SPEC, 4)
    replies = LMPredictor(model, tokenizer, cot=True, max_new_tokens=3)([episodes.ask(row, 0) for row in range(4)])
    assert all(isinstance(reply, str) and len(reply.split()) <= 3 for reply in replies)


def test_answers_that_begin_with_the_same_token_are_refused():
    criteria = {"A": {"good": "No", "ink": "No"}, "B": {"good": "No", "ink": "No ink"}}
    spec = CriterionSpec("Is there an anomaly ?", ("No", "No ink"), criteria)
    items = notes().take([i for i, c in enumerate(notes().category) if c != "cut"])
    episodes = build_episodes(items, spec, 4)
    with pytest.raises(InputError, match="begin with the same token of this model"):
        evaluate(LMPredictor(tiny_lm(), make_tokenizer()), episodes)


def test_the_tokenizer_keeps_its_settings():
    tokenizer = make_tokenizer()
    tokenizer.padding_side, tokenizer.pad_token = "right", None
    text_inputs([build_episodes(notes(), SPEC, 4).ask(0, 0)], tokenizer)
    assert (tokenizer.padding_side, tokenizer.pad_token) == ("right", None)


# ------------------------------------------------------------------------------------------ multi-criterion training


def test_criteria_are_drawn_uniformly():
    counts = np.bincount(draw_criteria(10_000, 3, np.random.default_rng(0)))
    assert chisquare(counts).pvalue > 0.001


def test_criteria_are_drawn_uniformly_for_training_examples_too():
    episodes = build_episodes(notes(), SPEC, 10_000)
    drawn = [example["criterion"] for example in mct_dataset(episodes, per_episode=1)]
    assert chisquare(np.unique(drawn, return_counts=True)[1]).pvalue > 0.001


def test_every_episode_comes_with_contradictory_labels():
    examples = mct_dataset(build_episodes(notes(), SPEC, 20), per_episode=2)
    seen = {}
    for example in examples:
        seen.setdefault(example["question"].id, set()).add(example["criterion"])
    assert list(seen.values()) == [{"A", "B"}] * 20


def test_single_criterion_training_has_as_many_examples_of_one_criterion():
    examples = mct_dataset(build_episodes(notes(), SPEC, 20), criterion="B", per_episode=2)
    assert [example["criterion"] for example in examples] == ["B"] * 40


def test_labels_stay_with_their_examples_when_the_order_is_shuffled():
    for example in mct_dataset(build_episodes(notes(), SPEC, 20)):
        asked = example["question"]
        wanted = tuple(SPEC.criteria[example["criterion"]][text.split()[0]] for text in asked.support)
        assert asked.support_answers == wanted


@pytest.mark.parametrize("chat", [CHAT, None])
def test_only_the_answers_tokens_are_learned(chat):
    tokenizer = make_tokenizer(chat)
    examples = mct_dataset(build_episodes(notes(), SPEC, 6))
    batch = MCTCollator(tokenizer)(examples)
    assert (batch["labels"] != -100).sum(dim=1).tolist() == [1] * 12
    assert [WORDS[i] for i in batch["labels"][:, -1]] == [example["answer"] for example in examples]


def test_training_touches_the_last_layers_alone_and_gives_back_what_it_froze():
    model = tiny_lm()
    before = copy.deepcopy(model.state_dict())
    mct_(model, make_tokenizer(), build_episodes(notes(), SPEC, 4), MCTConfig(n_layers=1, batch_size=4))
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all(name.startswith("model.layers.1.") for name in changed)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not model.training


def test_the_loss_is_the_one_that_transformers_computes_from_the_same_labels():
    model, tokenizer, episodes = tiny_lm(), make_tokenizer(), build_episodes(notes(), SPEC, 3)
    config = MCTConfig(n_layers=1, batch_size=6)
    batch = MCTCollator(tokenizer)(mct_dataset(episodes, per_episode=2, seed=0))
    expected = model(**batch).loss.item()
    assert mct_(model, tokenizer, episodes, config)[0] == pytest.approx(expected, rel=1e-5)


def test_training_lowers_the_loss():
    model, episodes = tiny_lm(hidden_size=32), build_episodes(notes(), SPEC, 60)
    losses = mct_(model, make_tokenizer(), episodes, MCTConfig(learning_rate=1e-2, batch_size=20, n_epochs=2))
    assert losses[-3:].mean() < 0.5 * losses[0]


def test_the_learning_rate_rises_to_one_and_falls_along_a_cosine():
    rates = learning_rates(100, 0.04)
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert rates[52] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MCTConfig(n_layers=3), "n_layers is 3; the model has 2 layers"),
        (MCTConfig(batch_size=0), "batch_size is 0"),
        (MCTConfig(per_episode=0), "per_episode is 0"),
        (MCTConfig(criterion="C"), "there is no criterion 'C'; there are A, B"),
    ],
)
def test_training_settings_that_cannot_be_are_refused(config, message):
    with pytest.raises(InputError, match=message):
        mct_(tiny_lm(), make_tokenizer(), build_episodes(notes(), SPEC, 4), config)


def test_a_frozen_model_is_refused():
    with pytest.raises(InputError, match="nothing in the model can be trained"):
        mct_(tiny_lm().requires_grad_(False), make_tokenizer(), build_episodes(notes(), SPEC, 4))


# -------------------------------------------------------------------------------------------- vision-language models


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    write_pictures(folder)
    return build_episodes(image_items(folder), SPEC, 6)


def test_a_vision_language_model_answers_as_when_asked_one_by_one(pictures):
    model, processor = tiny_vlm()
    alone = []
    for row in range(6):
        inputs = image_inputs([pictures.ask(row, 0)], processor)
        logits = model(**inputs).logits[0, -1, [WORDS.index("No"), WORDS.index("Yes")]]
        alone.append(int(logits.argmax() == 1))
    report = evaluate(HFVLMPredictor(model, processor), pictures, batch_size=4)
    assert report.predictions[:, 0].tolist() == alone


def test_the_images_of_an_episode_are_looked_at_once_not_once_a_criterion(pictures):
    model, processor = tiny_vlm()
    predictor = HFVLMPredictor(model, processor)
    evaluate(predictor, pictures, batch_size=2)
    assert predictor.vision.n_computed == 3  # batches of episodes; there are two criteria
    assert "get_image_features" not in vars(model.model)


def test_images_are_looked_at_again_when_the_weights_have_changed(pictures):
    model, processor = tiny_vlm()
    predictor = HFVLMPredictor(model, processor)
    predictor([pictures.ask(0, 0)])
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    predictor([pictures.ask(0, 0)])
    assert predictor.vision.n_computed == 2


def test_a_vision_language_model_trains_on_answers_alone_with_its_vision_tower_frozen(pictures):
    model, processor = tiny_vlm()
    before = copy.deepcopy(model.state_dict())
    batch = MCTCollator(processor)(mct_dataset(pictures))
    assert (batch["labels"] != -100).sum(dim=1).tolist() == [1] * 12
    losses = mct_(model, processor, pictures, MCTConfig(n_layers=1, batch_size=6))
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert np.isfinite(losses).all()
    assert changed
    assert not any("vision" in name for name in changed)


def test_texts_are_not_shown_to_a_vision_model_nor_images_to_a_language_model(pictures):
    model, processor = tiny_vlm()
    with pytest.raises(InputError, match="of the kind 'text'; a vision-language model is asked about images"):
        evaluate(HFVLMPredictor(model, processor), build_episodes(notes(), SPEC, 4))
    with pytest.raises(InputError, match="these items are images, which a language model does not see"):
        evaluate(LMPredictor(tiny_lm(), make_tokenizer()), pictures)
