"""Sentence vectors: the mean over a text's own tokens, of length one. With a tiny random BERT."""

import json

import numpy as np
import pytest

from assay._core.errors import InputError
from assay.models.encoder import Encoder, load_encoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "on", "mat"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Encoder:
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24
    )
    transformers.BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 6}))
    return load_encoder(folder)


def test_a_vector_is_the_mean_over_the_tokens_divided_by_its_length(encoder):
    inputs = encoder.tokenizer("the cat sat", return_tensors="pt")
    mean = encoder.model(**inputs).last_hidden_state[0].mean(dim=0).numpy()
    assert encoder.encode(["the cat sat"])[0] == pytest.approx(mean / np.linalg.norm(mean), abs=1e-6)


def test_vectors_are_float32_of_length_one_in_the_order_of_the_texts(encoder):
    texts = ["the cat sat on", "cat", "", "the mat"]
    vectors = encoder.encode(texts)
    assert (vectors.shape, vectors.dtype) == ((4, 12), np.float32)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(4), abs=1e-6)
    for text, vector in zip(texts, vectors, strict=True):
        assert encoder.encode([text])[0] == pytest.approx(vector, abs=1e-6)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_the_batch_size_and_its_padding_do_not_matter(encoder, batch_size):
    texts = ["the cat sat on", "cat", "the mat", "on", "sat on the mat"]
    assert encoder.encode(texts, batch_size) == pytest.approx(encoder.encode(texts, 5), abs=1e-6)


def test_what_is_longer_than_the_limit_is_left_out(encoder):
    assert encoder.max_length == 6  # [CLS], four words, [SEP]
    vectors = encoder.encode(["the cat sat on", "the cat sat on mat mat mat"])
    assert vectors[0] == pytest.approx(vectors[1], abs=1e-6)


def test_no_texts_give_no_rows(encoder):
    assert encoder.encode([]).shape == (0, 12)


def test_the_encoder_does_not_learn(encoder):
    assert not encoder.model.training
    assert not any(weight.requires_grad for weight in encoder.model.parameters())


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ("the cat", "texts is one string; give a list of strings"),
        (["a", None], "texts[1] is None; expected a string"),
        ([b"a"], "texts[0] is b'a'; expected a string"),
    ],
)
def test_what_is_no_list_of_strings_is_refused(encoder, texts, expected):
    with pytest.raises(InputError) as caught:
        encoder.encode(texts)
    assert str(caught.value) == expected


def test_a_batch_holds_at_least_one_text(encoder):
    with pytest.raises(InputError, match="batch_size is 0; expected 1 or more"):
        encoder.encode(["a"], batch_size=0)
