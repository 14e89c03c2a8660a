"""The trial of caot-stc: its cases are what they say, no arm sees a topic, and the arms are the real thing."""

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("torch")
pytest.importorskip("ot")

from assay._core.errors import InputError
from assay.trials.solve.caot_stc import TRIAL, arms, data, labels
from assay.trials.solve.caot_stc.data import Given, Pool, World

LABELS, UNEVEN, UNKNOWN, TRAINED = TRIAL.also
TOPICS = ("boats and water", "engines and wheels", "bread and salt", "stars and night")


def made_pool(name, n=600, seed=0):
    rng = np.random.default_rng(seed)
    topics = rng.integers(4, size=n)
    vectors = np.eye(4, 24)[topics] + 0.15 * rng.standard_normal((n, 24))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    texts = [f"{TOPICS[topic]} {number}" for number, topic in enumerate(topics)]
    return Pool(name, texts, topics.astype(str), vectors.astype(np.float32))


@pytest.fixture(scope="module")
def world():
    return World([made_pool("one"), made_pool("two", seed=1)], 150, (60, 30, 100.0, "pca"))


@pytest.fixture(scope="module")
def case(world):
    return next(iter(data.folds(world, 2, 0)))


def test_folds_of_a_set_share_no_text(world):
    found = [case for case in data.folds(world, 6, 0) if case.id.startswith("one")]
    texts = [text for case in found for text in case.given.texts]
    assert (len(found), len(texts), len(set(texts))) == (3, 450, 450)


def test_more_cases_than_texts_allow_are_smaller(world):
    assert [len(case.given.texts) for case in data.folds(world, 20, 0)] == [60] * 20


def test_cases_are_the_same_again(world):
    one, other = (list(data.folds(world, 4, 3)) for _ in range(2))
    assert [case.given.texts for case in one] == [case.given.texts for case in other]


def test_rare_topics_are_left_out():
    pool = made_pool("one")
    pool = pool._replace(topics=np.where(np.arange(600) % 200 == 0, "rare", pool.topics))
    case = next(iter(data.folds(World([pool], 600, (60, 45, 100.0, "pca")), 1, 0)))
    assert (case.given.n_clusters, len(case.truth)) == (4, 597)


def test_uneven_topics_differ_ten_times_in_size(world):
    sizes = np.sort(np.bincount(next(iter(data.uneven_folds(world, 2, 0))).truth))
    assert sizes[0] >= 5
    # Ratios of one decade cut into three; whole numbers, and never below five.
    assert sizes[1:] / sizes[:-1] == pytest.approx(np.full(3, 10 ** (1 / 3)), rel=0.4)


def test_the_number_of_clusters_is_not_told_where_it_is_unknown(world):
    assert all(case.given.n_clusters is None for case in UNKNOWN.cases(world, 4, 0))


@pytest.mark.parametrize("arm", TRIAL.arms, ids=lambda arm: arm.name)
def test_every_arm_gives_every_text_a_cluster_and_finds_those_that_are_plainly_there(case, arm):
    labels = arm.run(case.given, 0)
    assert labels.shape == case.truth.shape
    assert labels.min() >= 0
    scores = TRIAL.score(case, labels)
    assert set(scores) == {metric.name for metric in TRIAL.metrics}
    # BERTopic's merging by c-TF-IDF may join two plain clusters.
    assert scores["accuracy"] > (0.4 if arm.name == "BERTopic's pipeline" else 0.9)


@pytest.mark.parametrize("arm", UNKNOWN.arms, ids=lambda arm: arm.name)
def test_every_arm_finds_a_number_of_clusters_by_itself(case, arm):
    scores = UNKNOWN.score(case, arm.run(case.given._replace(n_clusters=None), 0))
    assert scores["number_ratio"] > 0


def test_the_pot_arm_uses_equal_sizes_and_no_similarity():
    rng = np.random.default_rng(0)
    predictions = rng.dirichlet(np.ones(3), 90)
    clusterer = arms.WithoutAttention(3)
    labels, _ = clusterer._assign(predictions, rng.random((90, 90)), np.array([0.8, 0.1, 0.1]))
    again, _ = clusterer._assign(predictions, np.zeros((90, 90)), np.full(3, 1 / 3))
    assert (labels == again).all()


def test_noise_of_hdbscan_goes_to_the_nearest_cluster():
    points = np.array([[0.0], [0.1], [5.0], [5.1], [0.4], [4.0]])
    assert arms.joined(points, np.array([0, 0, 1, 1, -1, -1])).tolist() == [0, 0, 1, 1, 0, 1]


def test_batches_hold_none_of_the_texts_that_the_classifier_was_taught(world):
    found = list(labels.batches((world, 0.05), 4, 0))
    assert [case.given.predictions.shape for case in found] == [(200, 4)] * 4
    assert all((case.given.similarity.diagonal() == 0).all() for case in found)


def test_every_arm_labels_a_batch(world):
    batch = next(iter(labels.batches((world, 0.3), 2, 0)))
    accuracy = {arm.name: LABELS.score(batch, arm.run(batch.given, 0))["accuracy"] for arm in LABELS.arms}
    assert min(accuracy.values()) > 0.5
    assert accuracy["CAOT, semantic weight 25"] > accuracy["prediction"]


def test_ones_own_table_is_read_by_its_columns(tmp_path, monkeypatch):
    monkeypatch.setattr(data.models, "demo_embeddings", lambda texts: np.zeros((len(texts), 3), np.float32))
    frame = pd.DataFrame({"body": [f"text {number}" for number in range(300)], "kind": ["a", "b", "c"] * 100})
    frame.to_csv(tmp_path / "own.csv", index=False)
    loaded = TRIAL.load(str(tmp_path / "own.csv"), "quick", dict(TRIAL.params) | {"text": "body", "label": "kind"})
    assert [pool.name for pool in loaded.value.pools] == ["own"]
    assert sorted(set(loaded.value.pools[0].topics)) == ["a", "b", "c"]


def test_without_the_texts_the_message_says_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"^short-text-agnews is not here: put the file at .*agnews\.csv\.gz"):
        TRIAL.load(None, "quick", TRIAL.params)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"texts": 50}, r"^texts is 50; expected 100 or more texts a case$"),
        ({"reducer": "tsne"}, r"^reducer is 'tsne'; expected auto, pca or umap$"),
    ],
)
def test_parameters_out_of_range_are_refused(params, message):
    with pytest.raises(InputError, match=message):
        TRIAL.load(None, "quick", dict(TRIAL.params) | params)


def test_the_part_that_trains_the_encoder_is_left_to_full_scale():
    with pytest.raises(InputError, match=r"^it trains the encoder, minutes a case: run it with --scale full$"):
        TRAINED.load(None, "quick", TRAINED.params)


def test_the_shipped_sets_have_their_topics(real_data, monkeypatch):
    assert [data.shipped(name)["label"].nunique() for name in data.SETS] == [3, 3, 20]


def test_a_given_fold_pickles_small(case):
    assert isinstance(case.given, Given)
    assert case.given.embeddings.dtype == np.float32
