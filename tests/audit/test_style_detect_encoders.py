"""Encoders of style: what LUAR's pool is, what the stylometric one sees, and what folders they load from."""

import numpy as np
import pytest

from assay._core.errors import InputError
from assay.audit.style_detect import StylometricEncoder, load_style_encoder
from assay.audit.style_detect.encoders import ratios

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A LUAR with a random transformer of one layer, and a tokenizer of few words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaModel

    from assay.audit.style_detect.luar import LUAR, LuarEncoder

    words = {word: number for number, word in enumerate(["<pad>", "<unk>", *(f"w{place}" for place in range(30))])}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>")
    config = RobertaConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=40, type_vocab_size=1, pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LuarEncoder(LUAR(RobertaModel(config, add_pooling_layer=False), 8), tokenizer, max_length=20)


TEXTS = ["w1 w2 w3", "w4 w5 w6 w7 w8 w9", "w3 w1"]


def episode(encoder, rows):
    with torch.no_grad():
        return encoder.model.episode(torch.from_numpy(encoder.parts(TEXTS)[rows]))


def test_an_episode_of_one_document_is_the_linear_layer_of_its_mean(encoder):
    with torch.no_grad():
        alone = encoder.model.linear(torch.from_numpy(encoder.parts(TEXTS)[[1]]))[0]
    torch.testing.assert_close(episode(encoder, [1]), alone, rtol=0, atol=1e-6)


def test_copies_of_a_document_are_that_document(encoder):
    torch.testing.assert_close(episode(encoder, [1, 1, 1]), episode(encoder, [1]), rtol=0, atol=1e-6)


def test_the_order_of_documents_does_not_matter(encoder):
    torch.testing.assert_close(episode(encoder, [0, 1, 2]), episode(encoder, [2, 0, 1]), rtol=0, atol=1e-6)


def test_an_episode_is_not_the_mean_of_single_documents(encoder):
    mean = torch.stack([episode(encoder, [row]) for row in range(3)]).mean(dim=0)
    assert (episode(encoder, [0, 1, 2]) - mean).abs().max() > 1e-3


def test_a_documents_mean_is_over_its_own_tokens(encoder):
    inputs = encoder.tokenizer([TEXTS[1]], return_tensors="pt")
    with torch.no_grad():
        hidden = encoder.model.transformer(**inputs).last_hidden_state[0]
    np.testing.assert_allclose(encoder.parts(TEXTS)[1], hidden.mean(dim=0), atol=1e-5)  # TEXTS pads it, alone it is not


def test_forward_is_means_and_episode(encoder):
    inputs = encoder.tokenizer(TEXTS, return_tensors="pt", padding=True)
    with torch.no_grad():
        found = encoder.model(inputs["input_ids"][None], inputs["attention_mask"][None])
    torch.testing.assert_close(found[0], episode(encoder, [0, 1, 2]), rtol=0, atol=1e-5)


def test_kept_means_give_the_episodes_of_a_fresh_pass(encoder):
    parts = encoder.parts(TEXTS)
    supports = np.stack([parts[[0, 1]], parts[[1, 2]]])
    np.testing.assert_allclose(encoder.pool(supports)[1], encoder.pool(encoder.parts(TEXTS[1:])), atol=1e-5)


def test_vectors_have_length_one(encoder):
    np.testing.assert_allclose(np.linalg.norm(encoder.encode(TEXTS), axis=1), 1, atol=1e-6)


def test_it_comes_back_from_a_folder_with_its_vectors(encoder, tmp_path):
    encoder.save(tmp_path / "luar")
    again = load_style_encoder(tmp_path / "luar", kind="luar")
    np.testing.assert_array_equal(again.encode(TEXTS), encoder.encode(TEXTS))


def test_the_contrast_of_perfect_pairs_is_that_of_chance_less_its_gap():
    from assay.audit.style_detect.luar import author_contrast

    eye = torch.eye(3)
    # Of five others one has cosine 1 and four 0: log(e + 4) − 1 at temperature 1.
    assert float(author_contrast(eye, eye, temperature=1.0)) == pytest.approx(np.log(np.e + 4) - 1, abs=1e-6)


def test_an_author_contrast_trains_the_pool(encoder):
    from assay.audit.style_detect.luar import author_contrast

    loss = author_contrast(
        torch.stack([episode_with_grad(encoder, [0, 1])]), torch.stack([episode_with_grad(encoder, [2])])
    )
    loss.backward()
    assert encoder.model.linear.weight.grad is not None


def episode_with_grad(encoder, rows):
    return encoder.model.episode(torch.from_numpy(encoder.parts(TEXTS)[rows]))


def test_luar_comes_from_a_local_folder_only(tmp_path):
    with pytest.raises(
        InputError, match=r"no model.safetensors there; LUAR is loaded from a local folder, as its check"
    ):
        load_style_encoder(tmp_path, kind="luar")


def test_weights_of_another_model_are_not_luar(tmp_path):
    from safetensors.torch import save_file

    save_file({"other": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"has no linear.weight, so it is not a checkpoint of LUAR$"):
        load_style_encoder(tmp_path, kind="luar")


def test_weights_that_are_missing_are_named(encoder, tmp_path):
    from safetensors.torch import load_file, save_file

    encoder.save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["transformer.embeddings.word_embeddings.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(
        InputError, match=r"lacks weights of LUAR, such as transformer.embeddings.word_embeddings.weight"
    ):
        load_style_encoder(tmp_path, kind="luar")


def test_an_unknown_kind_of_encoder_is_refused():
    with pytest.raises(InputError, match=r"^kind='tfidf': expected 'luar' or 'hf-mean'$"):
        load_style_encoder("x", kind="tfidf")


def test_a_folder_that_is_not_there_is_refused():
    with pytest.raises(InputError, match=r"^absent is neither a folder nor a model in the local Hugging Face cache$"):
        load_style_encoder("absent")


def test_a_folder_that_is_no_model_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"cannot be loaded as an encoder: "):
        load_style_encoder(tmp_path)


def test_any_transformer_of_a_folder_is_averaged(encoder, tmp_path):
    encoder.model.transformer.save_pretrained(tmp_path)
    encoder.tokenizer.save_pretrained(tmp_path)
    means = encoder.parts(TEXTS)
    expected = means / np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(load_style_encoder(tmp_path).encode(TEXTS), expected, atol=1e-5)


# -------------------------------------------------------------------------------------------------------- stylometric

FIRST = [
    f"we do not know, but it is so; they said {word} and that was it: no more of the {word}." for word in "abcdefgh"
]
SECOND = [f"In This Method The {word.upper()} Returns A Value! The Value Is {word.upper()}!" for word in "abcdefgh"]


def test_style_that_differs_lies_apart_and_style_that_agrees_together():
    vectors = StylometricEncoder(n_components=6).fit(FIRST[:4] + SECOND[:4]).encode(FIRST[4:] + SECOND[4:])
    products = vectors @ vectors.T
    assert products[:4, :4].min() > products[:4, 4:].max()


def test_the_vocabulary_is_of_the_background_alone():
    encoder = StylometricEncoder(n_components=3).fit(FIRST)
    before = encoder.encode(FIRST[:1])
    encoder.encode(SECOND)
    np.testing.assert_array_equal(encoder.encode(FIRST[:1]), before)
    assert "A V" not in encoder._trigrams.vocabulary_


def test_with_authors_vectors_turn_to_what_tells_them_apart():
    authors = np.repeat(["one", "other"], 8)
    encoder = StylometricEncoder(n_components=4).fit(FIRST + SECOND, authors)
    assert encoder.n_features == 1
    assert (encoder.encode(FIRST)[:, 0] * encoder.encode(SECOND)[:, 0] < 0).all()


def test_ratios_count_marks_capitals_and_words():
    found = ratios("Ab, ab. CD 12")
    assert found[:2] == [1 / 13, 1 / 13]  # a full stop and a comma in 13 characters
    assert found[-6:-4] == [3 / 13, 2 / 13]  # A, C, D; 1, 2
    assert found[-4] == 2.0  # four words of two letters
    assert found[-2] == 3 / 4  # ab, cd, 12 of four


def test_a_background_of_two_texts_is_refused():
    with pytest.raises(InputError, match=r"^background has 2 texts; expected at least 3, better hundreds$"):
        StylometricEncoder().fit(FIRST[:2])
