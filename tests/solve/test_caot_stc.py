"""The estimator of caot-stc: its losses, its contract with scikit-learn, texts in, names out, and what it refuses."""

import pickle
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.utils.estimator_checks import parametrize_with_checks

from assay._core.errors import InputError
from assay.solve.caot_stc import (
    ShortTextClusterer,
    clustering_accuracy,
    consistency_aware_ot,
    estimated_clusters,
    top_terms,
)
from assay.solve.caot_stc.texts import class_tfidf, without_some_words

torch = pytest.importorskip("torch")

from assay.solve.caot_stc import network, training  # noqa: E402  (they need torch)

FAST = {"batch_size": 60, "max_iter": 60, "warm_steps": 40, "random_state": 0}


def blobs(sizes=(60, 40, 20), d=12, noise=0.15, seed=0):
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    return np.eye(len(sizes), d)[truth] + noise * rng.standard_normal((len(truth), d)), truth


@pytest.fixture(scope="module")
def fitted():
    return ShortTextClusterer(3, **FAST).fit(blobs()[0])


# --- the losses ----------------------------------------------------------------------------------------------------


def test_the_contrastive_loss_is_the_double_loop_without_the_pair_in_the_denominator():
    first = torch.eye(4)[:2]
    second = torch.tensor([[0.8, 0.0, 0.6, 0.0], [0.0, 0.6, 0.0, 0.8]])
    features = torch.cat([first, second]).numpy()
    total = 0.0
    for i in range(4):
        partner = (i + 2) % 4
        others = sum(np.exp(features[i] @ features[k]) for k in range(4) if k not in (i, partner))
        total -= np.log(np.exp(features[i] @ features[partner]) / others)
    assert network.contrastive_loss(first, second).item() == pytest.approx(total / 4, abs=1e-6)


def test_two_orthonormal_pairs_have_the_closed_form():
    """The pair has product 1, the two others 0: −log(e / 2)."""
    pairs = torch.eye(2)
    assert network.contrastive_loss(pairs, pairs).item() == pytest.approx(np.log(2) - 1, abs=1e-6)


def test_the_attention_loss_is_the_double_loop():
    rng = np.random.default_rng(0)
    h = rng.standard_normal((6, 5))
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    attended, labels = rng.random((3, 3)), np.array([0, 1, 0])
    weight = np.tile(attended, (2, 2))
    np.fill_diagonal(weight, 0.0)
    same, products = np.tile(labels, 2)[:, None] == np.tile(labels, 2), np.exp(h @ h.T)
    total = 0.0
    for i in range(6):
        within = sum(products[i, j] * (weight[i, j] + 1e-5) for j in range(6) if same[i, j])
        total -= np.log(within / sum(products[i, k] for k in range(6) if k % 3 != i % 3))
    tensors = (torch.tensor(x) for x in (h[:3], h[3:], attended, labels))
    assert network.attention_loss(*tensors).item() == pytest.approx(total / 6, abs=1e-9)


def test_the_attention_loss_moves_the_attention_alone_and_the_other_losses_never_do():
    torch.manual_seed(0)
    heads, attention = network.Heads(8, 3, contrast_size=16), network.InstanceAttention(16, 32)
    first, second = torch.randn(5, 8), torch.randn(5, 8)
    labels = torch.tensor([0, 1, 2, 0, 1])
    features = heads.contrast(first), heads.contrast(second)
    (h1, a1), (h2, a2) = attention(features[0]), attention(features[1])
    network.attention_loss(h1, h2, (a1 + a2) / 2, labels).backward(retain_graph=True)
    assert all(parameter.grad is None for parameter in heads.parameters())
    attention.zero_grad(set_to_none=True)
    loss = network.contrastive_loss(*features) + torch.nn.functional.cross_entropy(heads.logits(first), labels)
    loss.backward()
    assert all(parameter.grad is None for parameter in attention.parameters())
    assert all(parameter.grad is not None for parameter in heads.parameters())


def test_attention_rows_sum_to_one_without_dropout():
    torch.manual_seed(0)
    attention = network.InstanceAttention(16, 32).eval()
    assert attention(torch.randn(5, 16))[1].sum(dim=1).detach().numpy() == pytest.approx(np.ones(5), abs=1e-6)


def test_the_similarity_of_the_transport_has_a_zero_diagonal_and_need_not_be_symmetric():
    torch.manual_seed(0)
    similarity = network.instance_similarity(torch.rand(4, 3).softmax(dim=1), torch.rand(4, 4))
    assert (similarity.diagonal() == 0).all()
    assert not torch.allclose(similarity, similarity.T)


# --- the schedule --------------------------------------------------------------------------------------------------


def test_k_means_labels_come_first_and_then_every_batch_solves_its_own_transport_from_the_last_sizes():
    calls = []

    def assign(predictions, similarity, sizes):
        calls.append((predictions.shape, similarity.shape, sizes.copy()))
        return predictions.argmax(axis=1), np.array([0.7, 0.3])

    views = training.Stored(torch.randn(50, 4))
    schedule = training.Schedule(n_clusters=2, batch_size=20, max_iter=12, pre_steps=3, warm_steps=5)
    training.train(views, schedule, lambda features: np.arange(len(features)) % 2, assign, seed=0)
    assert [shapes[:2] for shapes in calls] == [((20, 2), (20, 20))] * 4  # 12 − 3 − 5 steps
    assert calls[0][2].tolist() == [0.5, 0.5]
    assert calls[1][2].tolist() == [0.7, 0.3]


def test_training_leaves_torchs_own_random_numbers_alone():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    ShortTextClusterer(2, **FAST | {"max_iter": 5}).fit(blobs((60, 60))[0])
    assert (torch.rand(3) == expected).all()


# --- the estimator -------------------------------------------------------------------------------------------------


@parametrize_with_checks([ShortTextClusterer(max_iter=60, warm_steps=50)])
def test_it_is_an_estimator_as_scikit_learn_knows_them(estimator, check):
    check(estimator)


def test_well_separated_clusters_are_found_although_their_sizes_differ(fitted):
    assert clustering_accuracy(blobs()[1], fitted.labels_) == 1.0


def test_the_labels_are_the_classifiers_and_those_of_k_means_stand_beside(fitted):
    x, _ = blobs()
    assert (fitted.labels_ == fitted.predict_proba(x).argmax(axis=1)).all()
    assert fitted.kmeans_labels_.shape == fitted.labels_.shape
    assert fitted.kmeans_agreement_ == np.mean(fitted.labels_ == fitted.kmeans_labels_)


def test_probabilities_are_those_of_the_torch_classifier():
    torch.manual_seed(0)
    heads = network.Heads(12, 3).eval()
    clusterer = ShortTextClusterer(3)
    clusterer.center_, clusterer.scale_ = np.zeros(12), 1.0
    clusterer._keep(training.Trained(heads, [], np.zeros(1, np.intp), np.ones(3) / 3, "settled"), 12)
    x = blobs()[0]
    with torch.inference_mode():
        expected = heads.logits(torch.tensor(x, dtype=torch.float32)).softmax(dim=1).numpy()
    assert clusterer._probabilities(x) == pytest.approx(expected, abs=1e-6)


def test_the_same_seed_gives_the_same_clusters():
    x, _ = blobs(noise=0.6)
    one, other = (ShortTextClusterer(3, **FAST).fit(x) for _ in range(2))
    assert (one.predict_proba(x) == other.predict_proba(x)).all()


def test_it_pickles(fitted):
    x, _ = blobs(seed=1)
    assert (pickle.loads(pickle.dumps(fitted)).predict_proba(x) == fitted.predict_proba(x)).all()


def test_prediction_does_not_load_torch(fitted, tmp_path):
    """It is three matrix products, and a server that only predicts need not carry torch."""
    (tmp_path / "fitted.pkl").write_bytes(pickle.dumps(fitted))
    np.save(tmp_path / "x.npy", blobs()[0])
    code = (
        "import pickle, sys, numpy as np; "
        "print(pickle.load(open('fitted.pkl', 'rb')).predict(np.load('x.npy')).sum(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(fitted.labels_.sum()), "False"]


def test_it_works_in_a_pipeline_and_a_grid_search():
    x, truth = blobs()
    pipeline = make_pipeline(Normalizer(), ShortTextClusterer(**FAST))
    search = GridSearchCV(pipeline, {"shorttextclusterer__n_clusters": [2, 3]}, cv=2).fit(x)
    assert search.best_params_ == {"shorttextclusterer__n_clusters": 3}
    assert clustering_accuracy(truth, search.predict(x)) == 1.0


def test_the_summary_says_how_much_is_left_of_k_means(fitted):
    assert "of the texts are where k-means put them" in fitted.summary()


def test_the_number_of_clusters_can_be_found():
    x, _ = blobs((40, 40, 40, 40), noise=0.05)
    assert estimated_clusters(x) == 4
    assert ShortTextClusterer("auto", **FAST | {"max_iter": 5}).fit(x).n_clusters_ == 4


def test_one_cluster_is_trivial():
    clusterer = ShortTextClusterer(1, **FAST).fit(blobs()[0])
    assert (clusterer.labels_ == 0).all()


# --- guards --------------------------------------------------------------------------------------------------------


def collapsed(labels, kmeans_labels, ended="settled"):
    clusterer = ShortTextClusterer(3)
    clusterer.n_clusters_, clusterer.labels_, clusterer.kmeans_labels_ = 3, labels, kmeans_labels
    clusterer.cluster_sizes_, clusterer.ended_ = np.bincount(labels, minlength=3), ended
    clusterer._warn_collapse()


def test_one_cluster_with_all_texts_is_a_warning_with_the_sizes():
    with pytest.warns(UserWarning, match=r"^all texts are in one cluster \(sizes 9, 0, 0\); use kmeans_labels_$"):
        collapsed(np.zeros(9, int), np.repeat([0, 1, 2], 3))


def test_a_cluster_that_swallows_others_is_a_warning_with_the_sizes():
    with pytest.warns(UserWarning, match=r"^one cluster took 83% of the texts, k-means' largest has 33% \(sizes 10"):
        collapsed(np.repeat([0, 1, 2], [10, 1, 1]), np.repeat([0, 1, 2], 4), "max_iter")


def test_diverging_labels_are_a_warning():
    with pytest.warns(UserWarning, match=r"^more than 80 % of the labels changed within 50 steps"):
        collapsed(np.repeat([0, 1, 2], 3), np.repeat([0, 1, 2], 3), "diverged")


def test_fewer_texts_than_a_batch_are_one_batch_and_a_warning():
    with pytest.warns(UserWarning, match=r"^30 texts are fewer than batch_size=200: every batch holds all of them$"):
        ShortTextClusterer(3, max_iter=2, random_state=0).fit(blobs((10, 10, 10))[0])


# --- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_clusters": 0}, r'^n_clusters is 0; expected a whole number above 0, or "auto"$'),
        ({"n_clusters": 2.5}, r"^n_clusters is 2\.5; expected a whole number"),
        ({"n_clusters": 121}, r"^n_samples=120 is less than n_clusters=121; give more texts, ask for less$"),
        ({"augment": "swap"}, r"^augment is 'swap'; expected 'dropout' or 'word-dropout'$"),
        ({"augment": "word-dropout"}, r'^augment="word-dropout" needs texts; with embeddings use "dropout"'),
        ({"freeze_encoder": False}, r"^freeze_encoder=False needs texts and an encoder"),
        ({"lam_size": 0}, r"^lam_size is 0; expected a number above 0$"),
        ({"lam_sem": -1}, r"^lam_sem is -1; expected a number from 0$"),
        ({"batch_size": 1}, r"^batch_size is 1; expected a whole number from 2$"),
    ],
)
def test_parameters_out_of_range_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        ShortTextClusterer(**{"n_clusters": 3} | options).fit(blobs()[0])


def test_embeddings_that_are_not_numbers_are_refused():
    x, _ = blobs()
    x[3, 2] = np.nan
    with pytest.raises(InputError, match=r"NaN"):
        ShortTextClusterer(3).fit(x)


def test_views_of_another_length_are_refused():
    x, _ = blobs()
    with pytest.raises(InputError, match=r"^views have \[120, 119\] rows; expected 120, as X$"):
        ShortTextClusterer(3, **FAST).fit(x, views=(x, x[1:]))


@pytest.mark.filterwarnings("ignore:2 texts are fewer")
def test_a_trained_encoder_needs_views_that_are_texts():
    clusterer = ShortTextClusterer(2, encoder=words, freeze_encoder=False)
    with pytest.raises(InputError, match=r"^views: expected texts, since the encoder is trained"):
        clusterer.fit(["cat", "dog"], views=(np.ones((2, 3)), np.ones((2, 3))))


@pytest.mark.filterwarnings("ignore:6 texts are fewer", "ignore:all texts are in one", "ignore:one cluster took")
def test_a_second_fit_uses_the_encoder_it_has_then():
    clusterer = ShortTextClusterer(2, encoder=words, max_iter=2).fit(ANIMALS)
    clusterer.set_params(encoder=lambda texts: words(texts)[:, :4]).fit(ANIMALS)
    assert clusterer.n_features_in_ == 4


def test_texts_need_an_encoder():
    with pytest.raises(InputError, match=r"^texts need an encoder: encoder=assay\.models\.demo_encoder\(\)"):
        ShortTextClusterer(2).fit(["a cat", "a dog"])


def test_an_empty_text_is_refused():
    with pytest.raises(InputError, match=r"^X\[1\] is empty; leave empty texts out$"):
        ShortTextClusterer(2, encoder=words).fit(["a cat", "  "])


def test_ids_in_place_of_texts_are_refused():
    with pytest.raises(InputError, match=r"^X: all 3 are different whole numbers; is this a column of labels"):
        ShortTextClusterer(2, encoder=words).fit(["1", "2", "3"])


@pytest.mark.filterwarnings("ignore:3 texts are fewer", "ignore:all texts are in one")
def test_repeated_texts_are_a_warning():
    with pytest.warns(UserWarning, match=r"^X: 1 of 3 repeat another one; repeated texts agree trivially$"):
        ShortTextClusterer(2, encoder=words, max_iter=2).fit(["a cat", "a cat", "a dog"])


@pytest.mark.filterwarnings("ignore:2 texts are fewer")
def test_only_an_encoder_with_a_model_can_be_trained():
    clusterer = ShortTextClusterer(2, encoder=words, freeze_encoder=False, max_iter=2)
    with pytest.raises(InputError, match=r"^freeze_encoder=False needs an assay\.models\.Encoder, not function"):
        clusterer.fit(["a cat", "a dog"])


# --- texts ---------------------------------------------------------------------------------------------------------

ANIMALS = ["cat dog", "dog horse", "cat horse", "horse dog cat", "cat", "dog"]
COLOURS = ["red blue", "blue green", "red green", "green blue red", "red", "blue"]
VOCABULARY = sorted({word for text in ANIMALS + COLOURS for word in text.split()})


def words(texts):
    """An encoder for tests: which kinds of words a text holds."""
    counts = np.array([[text.split().count(word) for word in VOCABULARY] for text in texts], dtype=float)
    kinds = np.array([[word in " ".join(ANIMALS), word in " ".join(COLOURS)] for word in VOCABULARY], dtype=float)
    return np.hstack([counts, 5 * counts @ kinds])


@pytest.mark.parametrize("augment", ["dropout", "word-dropout"])
@pytest.mark.filterwarnings("ignore:12 texts are fewer")
def test_texts_are_clustered_through_an_encoder(augment):
    clusterer = ShortTextClusterer(2, encoder=words, augment=augment, max_iter=60, random_state=0)
    clusterer.fit(ANIMALS + COLOURS)
    assert clustering_accuracy([0] * 6 + [1] * 6, clusterer.labels_) == 1.0
    assert clusterer.predict(["dog cat cat"])[0] == clusterer.labels_[0]


def test_word_dropout_leaves_out_the_share_it_says_and_never_all():
    shorter = without_some_words(["a b c d e f g h i j"] * 400 + ["alone"], np.random.default_rng(0), share=0.1)
    left = np.array([len(text.split()) for text in shorter[:-1]])
    assert shorter[-1] == "alone"
    assert left.mean() == pytest.approx(9.0, abs=4 * np.sqrt(0.9 / 400))


def test_class_tf_idf_is_its_formula():
    weights, terms = class_tfidf(["red apple", "apple", "fast car"], np.array([0, 0, 1]))
    # Five words in two clusters: 2.5 on average; "apple" twice in all, both of the three words of cluster 0.
    assert weights[0, list(terms).index("apple")] == pytest.approx(2 / 3 * np.log1p(2.5 / 2))
    assert weights[1, list(terms).index("car")] == pytest.approx(1 / 2 * np.log1p(2.5 / 1))


def test_a_cluster_without_texts_or_without_words_has_no_terms():
    assert top_terms(["red", "the"], np.array([0, 2]), n_clusters=4) == [["red"], [], [], []]


# --- measures ------------------------------------------------------------------------------------------------------


def test_renamed_labels_are_fully_accurate():
    assert clustering_accuracy([0, 0, 1, 2], ["c", "c", "a", "b"]) == 1.0


def test_clusters_beyond_the_topics_find_no_partner():
    assert clustering_accuracy([0, 0, 0, 1], [0, 1, 2, 3]) == 0.5


# --- better pseudo-labels, the direct claim -----------------------------------------------------------------------


def test_the_semantic_term_helps_where_similarity_knows_what_the_predictions_do_not():
    """Noisy predictions of four clusters, similarity of the clean points: right labels become more frequent."""
    rng = np.random.default_rng(0)
    plain, semantic = [], []
    for _ in range(20):
        truth = rng.integers(4, size=100)
        logits = np.eye(4)[truth] + 1.2 * rng.standard_normal((100, 4))
        predictions = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        similarity = np.where(truth[:, None] == truth, 0.6, 0.2) + 0.1 * rng.random((100, 100))
        for found, weight in ((plain, 0.0), (semantic, 25.0)):
            labels = consistency_aware_ot(predictions, similarity, lam_sem=weight).labels
            found.append(np.mean(labels == truth))
    gain = np.subtract(semantic, plain)
    assert gain.mean() > 3 * gain.std(ddof=1) / np.sqrt(20)


# --- an encoder that learns ----------------------------------------------------------------------------------------


class TinyTokenizer:
    def __call__(self, texts, **options):
        rows = [[1 + VOCABULARY.index(word) for word in text.split()] for text in texts]
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        batch = {"input_ids": ids, "attention_mask": (ids > 0).long()}

        class Batch(dict):
            def to(self, device):
                return self

        return Batch(batch)


class TinyModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(len(VOCABULARY) + 1, 16)

    def forward(self, input_ids, attention_mask):
        return SimpleNamespace(last_hidden_state=self.embedding(input_ids))


class TinyEncoder:
    def __init__(self):
        torch.manual_seed(0)
        self.model, self.tokenizer, self.max_length = TinyModel(), TinyTokenizer(), 32

    def encode(self, texts):
        inputs = self.tokenizer(texts)
        with torch.inference_mode():
            hidden = self.model(**inputs).last_hidden_state
        weight = inputs["attention_mask"][..., None].float()
        return torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=1).numpy()


@pytest.mark.filterwarnings("ignore:12 texts are fewer", "ignore:one cluster took", "ignore:all texts are in one")
def test_training_the_encoder_changes_a_copy_of_it():
    encoder = TinyEncoder()
    before = encoder.model.embedding.weight.detach().clone()
    clusterer = ShortTextClusterer(
        2, encoder=encoder, freeze_encoder=False, max_iter=20, warm_steps=10, encoder_learning_rate=1e-2, random_state=0
    ).fit(ANIMALS + COLOURS)
    assert (encoder.model.embedding.weight == before).all()
    assert not torch.allclose(clusterer.encoder_.model.embedding.weight[1:], before[1:])
    assert (clusterer.predict(ANIMALS + COLOURS) == clusterer.labels_).all()
