"""The one recipe for small language models: trained once, found again, resumed to the same weights."""

import json
import math
import shutil

import numpy as np
import pytest

from assay._core.errors import InputError
from assay.models import quality, small
from assay.models.small import Recipe, train

torch = pytest.importorskip("torch")

SHORT = Recipe(n_steps=12, batch_size=4, n_tokens=32, vocab_size=512)
CONFIG = {"hidden_size": 32}


class Bigram(torch.nn.Module):
    """The smallest language model: what follows depends on the last token alone."""

    def __init__(self, vocab_size=512, hidden_size=32):
        super().__init__()
        self.embed = torch.nn.Embedding(vocab_size, hidden_size)
        self.head = torch.nn.Linear(hidden_size, vocab_size)

    def forward(self, ids):
        return self.head(torch.nn.functional.dropout(self.embed(ids), 0.1, self.training))


@pytest.fixture(scope="module")
def text_and_tokenizer(tmp_path_factory):
    """The text and the tokenizer made once for this file: they take seconds."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_DATA", str(folder))
        small.training_text.cache_clear()
        small.token_ids.cache_clear()
        small.token_ids(512)
    return folder / "models" / "small"


@pytest.fixture
def cache(text_and_tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    shutil.copytree(text_and_tokenizer, tmp_path / "models" / "small")
    return tmp_path / "models" / "small"


def weights(trained):
    return {name: weight.clone() for name, weight in trained.model.state_dict().items()}


def same(first, second):
    return all(torch.equal(weight, second[name]) for name, weight in first.items())


def test_a_model_learns(cache):
    trained = train(
        "bigram", CONFIG, Bigram, Recipe(n_steps=150, batch_size=8, n_tokens=64, vocab_size=512, learning_rate=1e-2)
    )
    assert trained.losses[:3].mean() == pytest.approx(math.log(512), abs=0.3)  # knows nothing
    share = np.bincount(small.token_ids(512)) / len(small.token_ids(512))
    entropy = -np.sum(share[share > 0] * np.log(share[share > 0]))
    assert trained.losses[-10:].mean() < entropy - 0.2  # knows more than how frequent each token is


def test_what_was_trained_is_found_again(cache):
    first = train("bigram", CONFIG, Bigram, SHORT)

    def refuse(model, ids):
        raise AssertionError("trained again")

    second = train("bigram", CONFIG, Bigram, SHORT, loss=refuse)
    assert same(weights(first), weights(second))
    assert second.losses.tolist() == first.losses.tolist()


@pytest.mark.parametrize("other", [{"config": {"hidden_size": 33}}, {"recipe": Recipe(n_steps=13, vocab_size=512)}])
def test_another_configuration_is_another_model(cache, other):
    given = {"config": CONFIG, "recipe": SHORT, **other}
    assert small._key("bigram", given["config"], given["recipe"]) != small._key("bigram", CONFIG, SHORT)


def test_an_interrupted_training_resumes_to_the_same_weights(cache, monkeypatch):
    whole = weights(train("bigram", CONFIG, Bigram, SHORT))
    for path in cache.glob("bigram-*"):
        path.unlink()
    monkeypatch.setattr(small, "CHECKPOINT_EVERY", 0.0)
    steps = []

    def interrupted(model, ids):
        steps.append(1)
        if len(steps) == 8:
            raise KeyboardInterrupt
        return small.next_token_loss(model, ids)

    with pytest.raises(KeyboardInterrupt):
        train("bigram", CONFIG, Bigram, SHORT, loss=interrupted)
    resumed = []

    def counted(model, ids):
        resumed.append(1)
        return small.next_token_loss(model, ids)

    trained = train("bigram", CONFIG, Bigram, SHORT, loss=counted)
    assert len(resumed) == 5
    assert len(trained.losses) == 12
    assert same(whole, weights(trained))


def test_a_finished_training_leaves_the_weights_and_the_curve_alone(cache):
    train("bigram", CONFIG, Bigram, SHORT)
    assert {path.suffix for path in cache.glob("bigram-*")} - {".lock"} == {".safetensors", ".json"}
    curve = json.loads(next(cache.glob("bigram-*.json")).read_text())
    assert curve["config"] == CONFIG
    assert curve["recipe"]["n_steps"] == 12


def test_training_leaves_the_global_generator_as_it_was(cache):
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    train("bigram", CONFIG, Bigram, SHORT)
    assert torch.equal(torch.rand(3), wanted)


def test_tied_weights_stay_tied(cache):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=512, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        tie_word_embeddings=True,
    )  # fmt: skip
    recipe = Recipe(n_steps=2, batch_size=2, n_tokens=16, vocab_size=512)
    model = train("llama", config.to_dict(), lambda: LlamaForCausalLM(config), recipe).model
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_tokenizer_gives_every_text_back(cache):
    tokenizer = small.tokenizer(512)
    for text in ("def f(x):\n\treturn x", "naïve 汉字 😀", "  two  spaces\r\n", ""):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_text_shares_no_paragraph_with_the_held_out_half(cache):
    held_out = {" ".join(paragraph.split()) for paragraph in quality.held_out_text().split("\n\n")}
    trained = {" ".join(paragraph.split()) for paragraph in small.training_text().split("\n\n")}
    assert {paragraph for paragraph in held_out & trained if len(paragraph) > 40} == set()


def test_the_learning_rate_warms_up_and_falls_to_a_tenth():
    assert small._schedule(0, 100) == pytest.approx(0.2)
    assert small._schedule(4, 100) == small._schedule(5, 100) == pytest.approx(1.0)
    assert small._schedule(100, 100) == pytest.approx(0.1)
    assert np.all(np.diff([small._schedule(step, 100) for step in range(5, 100)]) < 0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_steps": 0}, "n_steps=0: expected 1 or more"),
        ({"batch_size": 0}, "batch_size=0: expected 1 or more"),
        ({"n_tokens": -1}, "n_tokens=-1: expected 1 or more"),
        ({"vocab_size": 100}, "vocab_size=100: expected 260 or more, one for every byte and some to spare"),
        ({"learning_rate": float("nan")}, "learning_rate=nan: expected a positive number"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(wrong, message):
    with pytest.raises(InputError) as caught:
        Recipe(**{"n_steps": 1, **wrong})
    assert str(caught.value) == message


def test_a_loss_that_is_no_number_is_told_so(cache):
    with pytest.raises(InputError, match=r"^the loss of bigram is nan at step 1; try a learning rate below 0.001$"):
        train("bigram", CONFIG, Bigram, SHORT, loss=lambda model, ids: model(ids).sum() * float("nan"))


def test_a_configuration_that_json_cannot_hold_is_refused(cache):
    with pytest.raises(InputError, match=r"^config of bigram: .* is not JSON serializable; give what JSON can hold"):
        train("bigram", {"hidden": {1, 2}}, Bigram, SHORT)


def test_a_window_longer_than_the_text_is_refused(cache):
    with pytest.raises(InputError, match=r"^n_tokens=100000000: the text has \d+ tokens; ask for shorter windows$"):
        train("bigram", CONFIG, Bigram, Recipe(n_steps=1, n_tokens=100_000_000, vocab_size=512))


def test_a_name_that_is_no_file_name_is_refused(cache):
    with pytest.raises(InputError, match=r"^name='../x': expected letters, digits and hyphens$"):
        train("../x", CONFIG, Bigram, SHORT)


def letters_alone():
    """A tokenizer without merges: one token a byte."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=made)


def test_a_draft_reads_the_text_with_the_tokenizer_of_its_target(cache, monkeypatch):
    text = small.training_text()[:20_000]
    monkeypatch.setattr(small, "training_text", lambda: text)
    other = letters_alone()
    seen = []

    def watched(model, ids):
        seen.append(ids)
        return small.next_token_loss(model, ids)

    trained = train("bigram", CONFIG, Bigram, SHORT, loss=watched, shared_tokenizer=other)
    assert trained.tokenizer is other
    ids = np.asarray(other(text)["input_ids"])
    windows = np.lib.stride_tricks.sliding_window_view(ids, 32)
    assert (windows == seen[0][0].numpy()).all(axis=1).any()


def test_another_tokenizer_is_another_model_however_it_was_used_last(cache):
    first, second = letters_alone(), letters_alone()
    key = small._key("bigram", CONFIG, SHORT, first)
    assert key != small._key("bigram", CONFIG, SHORT)
    first.pad_token = "a"
    first(["a", "bc"], padding=True)  # leaves its mark in a fast tokenizer
    assert small._key("bigram", CONFIG, SHORT, first) == key
    second.add_tokens(["new"])
    assert small._key("bigram", CONFIG, SHORT, second) != key


def test_a_tokenizer_that_has_no_fast_form_is_refused(cache):
    with pytest.raises(InputError, match=r"^shared_tokenizer of bigram is object; give a fast tokenizer$"):
        train("bigram", CONFIG, Bigram, SHORT, shared_tokenizer=object())
