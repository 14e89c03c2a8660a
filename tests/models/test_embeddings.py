"""Embeddings are made once, and a damaged or forbidden cache costs time alone."""

import numpy as np
import pytest

from assay import models


@pytest.fixture
def calls(tmp_path, monkeypatch):
    found = []

    class Encoder:
        def encode(self, texts):
            found.append(len(texts))
            return np.arange(3 * len(texts), dtype=np.float32).reshape(-1, 3)

    monkeypatch.setattr("assay.models.embeddings.demo_encoder", Encoder)
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    return found


def test_embeddings_are_made_once(calls):
    first, again = (models.demo_embeddings(["one", "two"]) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    models.demo_embeddings(["one", "three"])
    assert calls == [2, 2]


def test_texts_are_told_apart_at_their_ends(calls):
    models.demo_embeddings(["ab", "c"])
    models.demo_embeddings(["a", "bc"])
    assert calls == [2, 2]


def test_a_damaged_cache_is_made_again(calls, tmp_path):
    models.demo_embeddings(["a", "b"])
    next((tmp_path / "embeddings").iterdir()).write_bytes(b"half a fi")
    assert models.demo_embeddings(["a", "b"]).shape == (2, 3)
    assert calls == [2, 2]


def test_where_nothing_can_be_written_nothing_is_kept(calls, tmp_path):
    (tmp_path / "embeddings").write_text("a file where the folder would be")
    for _ in range(2):
        assert models.demo_embeddings(["a"]).shape == (1, 3)
    assert calls == [1, 1]


def test_many_texts_are_read_in_their_order(calls):
    assert models.demo_embeddings([str(number) for number in range(1100)]).shape == (1100, 3)
    assert calls == [512, 512, 76]
