"""`assay use caot-stc`: from a file of texts to named clusters, through the door that a user takes."""

import numpy as np
import pandas as pd
import pytest

from assay import catalog
from assay._core.tables import read_table

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    catalog.get("caot-stc").status != "available", reason="caot-stc is not in the catalog yet"
)

TOPICS = {
    "cooking": ["fry the onion", "boil the potato", "bake the onion bread", "bake bread", "fry potato slices"],
    "travel": ["book a flight", "cheap flight to Rome", "hotel in Rome", "book a hotel room", "train to Rome"],
    "=cmd()": ["python list index", "sort a python list", "python dict index", "sort a dict", "list of dict in python"],
}


@pytest.fixture
def files(tmp_path):
    """Forty different texts a topic, and embeddings in which the topics are far apart."""
    rng = np.random.default_rng(0)
    rows = [
        (f"{texts[number % 5]} no {number}", topic, place)
        for place, (topic, texts) in enumerate(TOPICS.items())
        for number in range(40)
    ]
    table = pd.DataFrame(rows, columns=["text", "topic", "place"]).sample(frac=1, random_state=0, ignore_index=True)
    vectors = np.eye(3, 16)[table.pop("place").to_numpy()] + 0.05 * rng.standard_normal((120, 16))
    table.to_csv(tmp_path / "texts.csv", index=False)
    np.save(tmp_path / "vectors.npy", vectors)
    return table


USE = ("use", "caot-stc", "texts.csv", "--clusters", "3", "--embeddings", "vectors.npy", "--steps", "30")


@pytest.fixture
def done(assay, files):
    return assay(*USE, "-o", "clusters.csv", "--names", "names.csv", "--label", "topic")


def test_texts_of_a_topic_come_out_in_a_cluster_and_rows_keep_their_order(done, tmp_path, files):
    assert done.returncode == 0, done.stderr
    found = read_table(tmp_path / "clusters.csv", {"text": "text", "cluster": "integer", "kmeans_cluster": "integer"})
    assert found["text"].tolist() == files["text"].tolist()
    assert found.groupby("topic")["cluster"].nunique().tolist() == [1, 1, 1]


def test_clusters_are_named_by_their_terms_and_counted(done, tmp_path):
    assert done.returncode == 0, done.stderr
    names = read_table(tmp_path / "names.csv", {"name": "text", "n_texts": "integer", "example": "text"})
    assert sorted(names["n_texts"]) == [40, 40, 40]
    assert any("rome" in name for name in names["name"])
    assert any("python" in name for name in names["name"])


def test_the_summary_shows_k_means_beside_it(done):
    assert "accuracy" in done.stdout
    assert "k-means" in done.stdout
    assert "Written: clusters.csv, names.csv" in done.stdout


def test_the_picture_is_a_picture(assay, files, tmp_path):
    done = assay(*USE, "--plot", "clusters.png")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "clusters.png").read_bytes().startswith(b"\x89PNG")


def test_without_topics_the_silhouette_is_shown(assay, files):
    done = assay(*USE)
    assert done.returncode == 0, done.stderr
    assert "silhouette" in done.stdout


def test_the_number_of_clusters_can_be_left_open(assay, files):
    done = assay("use", "caot-stc", "texts.csv", "--embeddings", "vectors.npy", "--steps", "20")
    assert done.returncode == 0, done.stderr
    assert "120 texts in 3 clusters" in done.stdout


def test_plain_text_is_read_a_line_a_text(assay, files, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(files["text"]) + "\n\n", encoding="utf-8")
    options = ("--clusters", "3", "--embeddings", "vectors.npy", "--steps", "20")
    done = assay("use", "caot-stc", "texts.txt", *options)
    assert done.returncode == 0, done.stderr
    assert read_table(tmp_path / "clusters.csv")["text"].tolist() == files["text"].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--clusters", "1"), "--clusters is '1'; expected a whole number from 2, or auto"),
        (("--clusters", "many"), "--clusters is 'many'; expected a whole number from 2, or auto"),
        (("--text", "words"), "words"),
        (("--plot", "clusters.bmp"), "clusters.bmp: a picture is written as one of .png, .svg, .pdf"),
        (("--embeddings", "nothing.npy"), "nothing.npy: no such file"),
        (("--embeddings", "texts.csv"), "texts.csv is not a .npy file of numbers; write it with numpy.save"),
        (("--clusters", "121"), "n_samples=120 is less than n_clusters=121; give more texts, ask for less"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(assay, files, options, message):
    done = assay(*USE, *options)
    assert done.returncode == 2
    assert message in done.stderr


def test_embeddings_of_another_file_are_refused(assay, files, tmp_path):
    np.save(tmp_path / "vectors.npy", np.zeros((7, 3)))
    done = assay(*USE)
    assert done.returncode == 2
    assert "vectors.npy holds an array of shape (7, 3); expected 120 rows, one for each text" in done.stderr


def test_labels_in_place_of_texts_are_refused(assay, files, tmp_path):
    pd.DataFrame({"text": range(120)}).to_csv(tmp_path / "texts.csv", index=False)
    done = assay(*USE)
    assert done.returncode == 2
    assert "are different whole numbers; is this a column of labels or ids?" in done.stderr


def test_a_column_that_the_clusters_would_overwrite_is_refused(assay, files, tmp_path):
    files.assign(cluster=0).to_csv(tmp_path / "texts.csv", index=False)
    done = assay(*USE)
    assert done.returncode == 2
    assert "the table has a column 'cluster' already" in done.stderr


@pytest.mark.slow
def test_the_demo_encoder_reads_the_texts(assay, files, tmp_path):
    done = assay("use", "caot-stc", "texts.csv", "--clusters", "3", "--label", "topic", "--steps", "60")
    assert done.returncode == 0, done.stderr
    found = read_table(tmp_path / "clusters.csv", {"cluster": "integer"})
    assert found.groupby("topic")["cluster"].agg(lambda group: group.value_counts().max()).sum() > 100
