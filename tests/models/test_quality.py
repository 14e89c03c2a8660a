"""The family's shared measure of language models: the text, the questions, what is asked, and what is kept."""

import threading

import numpy as np
import pytest
import torch

from assay._core.errors import InputError
from assay.models import quality
from assay.models.quality import asking, kept, measuring
from assay.models.quality.text import split_topics

WORDS = [chr(97 + i // 26) + chr(97 + i % 26) for i in range(97)]
TEXT = " ".join(f"{WORDS[i % 89]} and {WORDS[(i * i) % 97]}" for i in range(1500))


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """A cache folder of its own for each test."""
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"and": 0, "<s>": 1} | {word: i + 2 for i, word in enumerate(WORDS)}
    made = Tokenizer(models.WordLevel(words, unk_token="and"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="and", bos_token="<s>")


def llama(seed=0):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.3,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=99, n_positions=128, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3)
    return GPT2LMHeadModel(config).eval()


class WithoutCache(torch.nn.Module):
    """A causal model of ones own: tokens in, logits out, nothing else understood."""

    def __init__(self):
        super().__init__()
        self.inner = llama()

    def forward(self, input_ids, use_cache=False):
        from transformers.modeling_outputs import CausalLMOutputWithPast

        return CausalLMOutputWithPast(logits=self.inner(input_ids).logits)


def asked(model, tokenizer, **sizes):
    return quality.reference(
        model, tokenizer, text=TEXT, **{"n_windows": 6, "n_tokens": 32, "n_questions": 20, **sizes}
    )


# ------------------------------------------------------------------------------------------------------ the text


def test_calibration_and_held_out_text_share_no_paragraph():
    halves = [
        {" ".join(part.split()) for part in text.split("\n\n")}
        for text in (quality.held_out_text(), quality.calibration_text())
    ]
    assert not halves[0] & halves[1]
    assert min(map(len, halves)) > 300


def test_hardly_a_run_of_twelve_words_of_the_held_out_text_is_in_the_calibration_text():
    def runs(text):
        words = text.split()
        return {tuple(words[i : i + 12]) for i in range(len(words) - 12)}

    held_out = runs(quality.held_out_text())
    assert len(held_out & runs(quality.calibration_text())) < 0.01 * len(held_out)


def test_a_topic_within_another_counts_once_and_where_the_longer_one_is():
    first, second = split_topics({"part": "b b\n\nc", "whole": "a\n\nb  b\n\nc\n\nd", "z": "e"})
    assert sorted([*first.split("\n\n"), *second.split("\n\n")]) == ["a", "b  b", "c", "d", "e"]
    assert "a\n\nb  b\n\nc\n\nd" in (first, second)


def test_the_halves_are_about_equally_long():
    lengths = len(quality.held_out_text()), len(quality.calibration_text())
    assert max(lengths) < 1.3 * min(lengths)


# ------------------------------------------------------------------------------------------------- the questions


def test_the_answer_is_what_follows_the_context_and_no_other_choice_is():
    text = quality.held_out_text()
    for question in quality.questions(40):
        follows = [question.context + choice in text for choice in question.choices]
        assert follows == [place == question.answer for place in range(4)]


def test_questions_are_frozen_and_a_longer_list_starts_with_a_shorter_one():
    assert quality.questions(50)[:10] == quality.questions(10)


def test_no_place_of_the_answer_is_preferred():
    counts = np.bincount([question.answer for question in quality.questions(400)], minlength=4)
    assert (np.abs(counts - 100) < 4 * np.sqrt(400 * 3 / 16)).all()  # four standard deviations of a binomial


def test_a_choice_is_right_as_often_as_one_in_four_to_who_reads_no_context():
    """Every continuation is drawn as a wrong choice about three times as often as it is right."""
    asked_ = quality.questions(300)
    right = {question.choices[question.answer] for question in asked_}
    wrong = [c for q in asked_ for place, c in enumerate(q.choices) if place != q.answer]
    # 300 of the P places are right; a wrong choice is any of the P - 1 others alike.
    from assay.models.quality.text import _places

    expected = 300 / len(_places(quality.held_out_text()))
    share = np.mean([choice in right for choice in wrong])
    assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / len(wrong))


@pytest.mark.parametrize(
    ("n", "text", "message"),
    [
        (0, None, r"^n=0: expected 1 question or more$"),
        (99, TEXT[:8000], r"^the text gives \d+ questions of 31 words, 99 were asked for; bring"),
        (2, "too short", r"^the text holds 2 words; questions need 124 or more, of prose$"),
    ],
)
def test_a_text_that_is_too_short_for_questions_is_refused(n, text, message):
    with pytest.raises(InputError, match=message):
        quality.questions(n, text)


# ------------------------------------------------------------------------------------------------------- asking


@pytest.mark.parametrize("make", [llama, gpt2], ids=["llama", "gpt2"])
def test_surprise_and_divergence_are_those_of_the_whole_logits(make, tokenizer):
    model, other = make(), make()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.1)
    ref = asked(model, tokenizer)
    found = quality.measure(other, tokenizer, ref)
    for number, window in enumerate(torch.from_numpy(ref.windows)):
        with torch.no_grad():
            p, q = (m(window[None]).logits[0, 7:-1].double() for m in (model, other))
        top = p.argsort(dim=-1, descending=True)[:, :25]
        log_p, log_q = (torch.log_softmax(x.gather(1, top), 1) for x in (p, q))
        assert found.kl[number] == pytest.approx(float((log_p.exp() * (log_p - log_q)).sum(1).mean()), rel=1e-4)
        expected = -torch.log_softmax(q, 1)[torch.arange(24), window[8:]].mean()
        assert found.nll[number] == pytest.approx(float(expected), rel=1e-5)
        assert found.same_token[number] == float((p.argmax(1) == q.argmax(1)).double().mean())


def test_the_full_model_does_not_diverge_from_itself(tokenizer):
    ref = asked(llama(), tokenizer)
    found = quality.measure(llama(), tokenizer, ref)
    assert found.kl.max() < 1e-12
    np.testing.assert_array_equal(found.nll, ref.full.nll)
    np.testing.assert_array_equal(found.correct, ref.full.correct)
    assert found.same_token_mean == 1


@pytest.mark.parametrize("make", [llama, gpt2, WithoutCache], ids=["llama", "gpt2", "without-cache"])
def test_a_choice_scores_the_mean_log_likelihood_of_its_tokens_after_the_context(make):
    model = make().eval()
    rng = np.random.default_rng(0)
    contexts, choices = rng.integers(99, size=(3, 12)), rng.integers(99, size=(3, 4, 5))
    choices[1, 2, 3:] = -1  # a shorter one
    found = asking.choice_scores(model, contexts, choices)
    for row in range(3):
        for place in range(4):
            tokens = [int(t) for t in choices[row, place] if t >= 0]
            whole = torch.tensor([[*contexts[row], *tokens]])
            with torch.no_grad():
                log_p = model(whole).logits[0].double().log_softmax(-1)
            expected = np.mean([float(log_p[11 + i, token]) for i, token in enumerate(tokens)])
            assert found[row, place] == pytest.approx(expected, rel=1e-5)


def test_the_token_that_begins_every_text_of_a_model_begins_windows_and_contexts(tokenizer):
    from tokenizers.processors import TemplateProcessing

    plain = asked(llama(), tokenizer)
    assert not (plain.windows == 1).any()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    try:
        begun = asked(llama(), tokenizer)
    finally:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    assert (begun.windows[:, 0] == 1).all()
    assert (begun.contexts[:, 0] == 1).all()
    assert begun.windows.shape == plain.windows.shape


def test_windows_do_not_overlap_and_more_of_them_start_with_fewer(tokenizer):
    few, many = asked(llama(), tokenizer, n_windows=3), asked(llama(), tokenizer, n_windows=9)
    np.testing.assert_array_equal(many.windows[:3], few.windows)
    assert len({tuple(window) for window in many.windows}) == 9


def test_parts_share_nothing_and_miss_nothing(tokenizer):
    ref = asked(llama(), tokenizer)
    parts = ref.split(4)
    np.testing.assert_array_equal(np.concatenate([part.windows for part in parts]), ref.windows)
    np.testing.assert_array_equal(np.concatenate([part.answers for part in parts]), ref.answers)
    together = [quality.measure(llama(1), tokenizer, part).kl for part in parts]
    np.testing.assert_allclose(np.concatenate(together), quality.measure(llama(1), tokenizer, ref).kl, rtol=1e-5)


def test_a_model_stays_in_the_mode_it_was_in(tokenizer):
    model = llama().train()
    asked(model, tokenizer)
    assert model.training


# --------------------------------------------------------------------------------------------------- the numbers


def test_the_interval_of_the_accuracy_is_wilson_s():
    found = quality.Quality(np.ones(4), np.ones(4), np.ones(4), np.repeat([1.0, 0.0], [8, 2]))
    z, n, p = 1.959963984540054, 10, 0.8
    middle, half = (p + z * z / (2 * n)) / (1 + z * z / n), z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / 400)
    assert found.interval("accuracy") == pytest.approx((middle - half, middle + half))


def test_perplexity_is_the_exponential_of_the_mean_and_its_interval_holds_it():
    nll = np.random.default_rng(0).gamma(9.0, 0.3, size=30)
    found = quality.Quality(nll, nll, nll, np.ones(3))
    low, high = found.interval("perplexity")
    assert found.perplexity == pytest.approx(np.exp(nll.mean()))
    assert low < found.perplexity < high
    assert np.log([low, high]) == pytest.approx(found.interval("kl_mean"))


def test_the_summary_says_how_much_was_asked_and_has_the_four_numbers():
    found = quality.Quality(np.array([1.0, 2.0]), np.array([0.1, 0.2]), np.array([1.0, 0.5]), np.array([1.0, 0.0]))
    assert "2 windows, 2 questions" in found.summary()
    assert found.to_frame()["name"].tolist() == ["perplexity", "kl_mean", "same_token_mean", "accuracy"]


# ------------------------------------------------------------------------------------------------------ the cache


def test_the_full_model_is_asked_once(tokenizer, monkeypatch):
    first = asked(llama(), tokenizer)
    monkeypatch.setattr(measuring, "scored_logits", None)
    second = asked(llama(), tokenizer)
    for name in vars(first):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def test_another_weight_another_text_and_another_size_are_kept_apart(tokenizer, own_cache):
    asked(llama(), tokenizer)
    model = llama()
    with torch.no_grad():
        model.lm_head.weight[3, 3] += 1
    asked(model, tokenizer)
    asked(llama(), tokenizer, n_questions=21)
    quality.reference(llama(), tokenizer, n_windows=6, n_tokens=32, n_questions=20, text=TEXT.replace("ab", "ac"))
    assert len(list((own_cache / "quality").glob("*.npz"))) == 4


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"no archive"], ids=["empty", "cut", "other"])
def test_a_broken_file_is_made_again(tokenizer, own_cache, content):
    first = asked(llama(), tokenizer)
    (path,) = (own_cache / "quality").glob("*.npz")
    path.write_bytes(content)
    np.testing.assert_array_equal(asked(llama(), tokenizer).top_logits, first.top_logits)
    assert path.stat().st_size > 1000


def test_writers_at_once_leave_one_whole_file(tokenizer, own_cache):
    made = asked(llama(), tokenizer)
    (path,) = (own_cache / "quality").glob("*.npz")
    seen = []

    def write_and_read():
        for _ in range(10):
            kept.write(path, made)
            seen.append(kept.read(path))

    threads = [threading.Thread(target=write_and_read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 40
    assert all(kept is not None for kept in seen)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_where_nothing_can_be_kept_it_is_computed(tokenizer, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(measuring, "made_dir", lambda: tmp_path / "file")
    assert len(asked(llama(), tokenizer).nll) == 6


# ------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"n_windows": 0}, r"^n_windows=0, n_tokens=32, n_questions=20: expected at least 1 window of 8 tokens"),
        ({"n_tokens": 7}, r"n_tokens=7"),
        (
            {"n_windows": 500},
            r"^the text has 4500 tokens, which is 140 windows of 32; bring a longer text or ask for fewer",
        ),
    ],
)
def test_sizes_out_of_range_are_refused(tokenizer, sizes, message):
    with pytest.raises(InputError, match=message):
        asked(llama(), tokenizer, **sizes)


def test_a_tokenizer_or_a_model_with_fewer_tokens_is_refused(tokenizer):
    ref = asked(llama(), tokenizer)
    with pytest.raises(InputError, match=r"^the tokenizer has 5 tokens and the reference uses token \d+: it was made"):
        quality.measure(llama(), range(5), ref)
    small = llama()
    small.lm_head = torch.nn.Linear(32, 5)
    with pytest.raises(InputError, match=r"^the model has 5 tokens and the reference uses token \d+$"):
        quality.measure(small, tokenizer, ref)


def test_parts_are_at_most_as_many_as_there_is_to_deal(tokenizer):
    with pytest.raises(InputError, match=r"^n=21: 6 windows and 20 questions cannot be dealt to as many parts$"):
        asked(llama(), tokenizer).split(21)


def test_an_interval_of_something_else_is_refused():
    with pytest.raises(InputError, match=r"^name='kl' is not one of perplexity, kl_mean"):
        quality.Quality(*[np.ones(3)] * 4).interval("kl")


def test_weights_are_counted_and_their_absence_is_said(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(bytes(70))
    (tmp_path / "b.safetensors").write_bytes(bytes(30))
    (tmp_path / "config.json").write_bytes(bytes(999))
    assert quality.model_bytes(tmp_path) == 100
    with pytest.raises(InputError, match=r"absent holds no \*\.safetensors, so there are no weights to count$"):
        quality.model_bytes(tmp_path / "absent")


# ------------------------------------------------------------------------------------------------- the demo model


@pytest.mark.slow
def test_the_demo_model_knows_more_than_chance_and_less_than_everything(monkeypatch):
    from assay.models import demo_lm

    monkeypatch.delenv("ASSAY_DATA")
    model, tokenizer = demo_lm()
    low, high = quality.reference(model, tokenizer, n_windows=2).full.interval("accuracy")
    assert 0.5 < low < high < 0.95
