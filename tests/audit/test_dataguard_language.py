"""DataGuard on language models: features by hand, the audit of a model that memorised, and bad texts."""

import zlib

import numpy as np
import pytest

from assay._core.errors import InputError
from assay.audit.dataguard import audit_lm
from assay.audit.dataguard.language import TEXT_FEATURES, language_features
from assay.audit.dataguard.texts import text_vectors

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


def texts(n, seed, length=16):
    rng = np.random.default_rng(seed)
    return [" ".join(f"w{i}" for i in rng.integers(1, 97, size=length)) for _ in range(n)]


@pytest.fixture(scope="module")
def tiny(model_dir):
    from assay.models import load_lm

    return load_lm(model_dir)


@pytest.fixture(scope="module")
def memoriser(model_dir):
    """The tiny model, trained on 50 texts until it knows them."""
    from assay.models import load_lm

    model, tokenizer = load_lm(model_dir)
    ids = torch.tensor([tokenizer(text)["input_ids"] for text in texts(50, 0)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(60):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    return model, tokenizer


def test_features_are_those_of_one_text_at_a_time_by_hand(tiny):
    model, tokenizer = tiny
    several = [texts(1, 0, length)[0] for length in (9, 16, 12)]
    found = language_features(model, tokenizer, several, n_augment=0)
    for text, row in zip(several, found, strict=True):
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.no_grad():
            logs = model(input_ids=ids).logits[0, :-1].log_softmax(-1).double()
        surprise = -logs.gather(1, ids[0, 1:, None])[:, 0].numpy()
        worst = np.sort(surprise)[::-1][: round(0.2 * len(surprise))]
        entropy = -(logs.exp() * logs).sum(-1).mean().item()
        packed = len(zlib.compress(tokenizer.decode(ids[0], skip_special_tokens=True).encode()))
        np.testing.assert_allclose(
            row, [surprise.mean(), surprise.sum() / packed, worst.mean(), entropy], rtol=1e-4, atol=1e-5
        )


def test_dropping_tokens_is_reproducible_and_adds_the_fifth_feature(tiny):
    one, two = (language_features(*tiny, texts(8, 0), n_augment=1) for _ in range(2))
    assert one.shape == (8, len(TEXT_FEATURES))
    np.testing.assert_array_equal(one, two)


def test_texts_that_were_memorised_were_used(memoriser, tiny):
    report = audit_lm(
        *memoriser, texts(50, 0), texts(50, 1), reference=tiny, n_augment=1, aux_is_nontraining=True, random_state=0
    )
    assert report.verdict == "used"
    assert all(effect.delta < 0 for effect in report.effects[:3])


def test_texts_of_another_kind_are_not_valid_evidence(memoriser):
    other = [" ".join(f"w{i}" for i in np.random.default_rng(i).integers(1, 20, size=24)) for i in range(50)]
    report = audit_lm(*memoriser, texts(50, 0), other, n_augment=0, aux_is_nontraining=True)
    assert report.verdict == "not valid"


def test_the_blind_vectors_have_a_row_for_each_text_even_where_no_word_is_shared():
    target, aux = text_vectors(["aa bb", "cc dd"], ["ee ff"])
    assert (len(target), len(aux)) == (2, 1)
    assert np.isfinite(target).all()


def test_a_text_of_few_tokens_is_refused(tiny):
    short = [*texts(49, 0), "w1 w2 w3"]
    with pytest.raises(InputError, match=r"^target, text 49: it has 3 tokens; expected at least 8$"):
        audit_lm(*tiny, short, texts(50, 1), aux_is_nontraining=True)


def test_a_text_in_both_is_refused(tiny):
    with pytest.raises(InputError, match=r"^target row 0 and auxiliary row 0 are the same sample \(50 target rows"):
        audit_lm(*tiny, texts(50, 0), texts(50, 0), aux_is_nontraining=True)
