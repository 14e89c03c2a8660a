"""The trial of dynamic-whitening: equal bytes, honest cases, arms that do what their names say, and a verdict."""

import dataclasses
import pickle

import numpy as np
import pytest
import torch

from assay import bench
from assay._core.errors import InputError
from assay.trials.compress.dynamic_whitening import TRIAL, digits, lora, real

pytestmark = pytest.mark.usefixtures("one_thread")


PARTS = {part.part: part for part in TRIAL.also}
WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "saw",
    "that",
    "all",
    "dogs",
    "bark",
    "at",
    "night",
    "far",
    "away",
]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """A tiny Llama whose tokenizer knows a few words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    known = {word: place for place, word in enumerate(["unknown", *sorted(set(WORDS))])}
    words = Tokenizer(models.WordLevel(known, unk_token="unknown"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="unknown").save_pretrained(folder)
    return folder


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    path = tmp_path / "text.txt"
    path.write_text(" ".join(np.random.default_rng(0).choice(WORDS, 12_000)))
    return path


def loaded(model_dir, text, **params):
    params = {"model": str(model_dir), "ratio": 0.6, "sequences": 16, "windows": 0, **params}
    return TRIAL.load(str(text), "quick", params)


def test_all_arms_have_the_same_bytes(model_dir, text):
    _, folder, _ = loaded(model_dir, text).value
    sizes = {arm: (real.Path(folder) / f"{arm}.safetensors").stat().st_size for arm in (real.DYNAMIC, *real.BASELINES)}
    assert len(set(sizes.values())) == 1


def test_what_was_compressed_once_is_not_compressed_again(model_dir, text, monkeypatch):
    loaded(model_dir, text)
    monkeypatch.setattr(real, "keep", None)
    assert loaded(model_dir, text).n == real.N_WINDOWS["quick"]


def test_cases_share_no_window_and_pickle(model_dir, text):
    data = loaded(model_dir, text)
    parts = [case.given.part for case in TRIAL.cases(data.value, 8, 0)]
    windows = np.concatenate([part.windows for part in parts])
    assert len(parts) == 8
    assert len(np.unique(windows, axis=0)) == len(windows) == real.N_WINDOWS["quick"]
    assert len(pickle.dumps(parts[0])) < 1_000_000


def test_the_static_arm_is_svd_llm_in_half_precision(model_dir, text):
    from assay.models import load_lm
    from assay.trials.compress.svd_baselines import rank_at, seen_by_layers, svd_llm

    name, folder, _ = loaded(model_dir, text).value
    model, tokenizer = load_lm(model_dir)
    half = text.read_text()[: len(text.read_text()) // 2]
    found = real.compressed_model(name, folder, real.STATIC)[0]
    for layer, weight, seen in seen_by_layers(model, real.calibration_ids(tokenizer, half, 16)):
        pair = svd_llm(weight, seen.gram).cut(rank_at(weight.shape, 0.6))
        made = found.get_submodule(layer)
        torch.testing.assert_close(made.a.float() @ made.b.float(), pair.a @ pair.b, atol=1e-3, rtol=1e-2)


@pytest.mark.slow
def test_the_main_part_gives_a_verdict_on_a_user_s_model_and_text(model_dir, text, tmp_path):
    alone = dataclasses.replace(TRIAL, also=())
    params = {"model": str(model_dir), "ratio": 0.6, "sequences": 16}
    result = bench.run(alone, data=text, params=params, jobs=1, out=tmp_path / "run", progress=False)
    assert "dynamic whitening" in result.summary()
    assert "SVD-LLM" in result.summary()


def test_the_digits_part_gives_a_verdict(tmp_path):
    result = bench.run(PARTS["digits"], cases=6, params={"depth": 4}, jobs=1, out=tmp_path / "run", progress=False)
    assert "dynamic whitening" in result.summary()


def test_the_networks_learn_the_digits_and_are_independent_starts():
    data = digits.load(None, "quick", {"digits_ratio": 0.2, "depth": 4}).value
    first, second = digits.networks(data, 2, seed=0)
    assert digits.kept(first, first.truth.weights) == {"output_error": 0.0, "accuracy": pytest.approx(0.97, abs=0.03)}
    assert not np.allclose(first.given.weights["inlet.weight"], second.given.weights["inlet.weight"])


def test_an_arm_on_digits_leaves_inlet_head_and_biases_and_cuts_the_rest():
    data = digits.load(None, "quick", {"digits_ratio": 0.2, "depth": 4}).value
    case = next(iter(digits.networks(data, 1, seed=0)))
    for found in (digits.baseline("svd", case.given, 0), digits.whitened("dynamic", "weight", case.given, 0)):
        assert np.array_equal(found["inlet.weight"], case.given.weights["inlet.weight"])
        assert np.array_equal(found["blocks.0.up.bias"], case.given.weights["blocks.0.up.bias"])
        assert np.linalg.matrix_rank(found["blocks.0.up.weight"], tol=1e-4) == 6  # 0.2 * 64 * 64 / 128


def tiny_lesson(monkeypatch, model_dir):
    from assay.models import load_lm

    monkeypatch.setattr(lora, "fresh_model", lambda name: load_lm(model_dir))
    windows = np.random.default_rng(0).integers(0, 20, (4 * lora.BATCH, lora.CONTEXT))
    return lora.Lesson("tiny", windows, windows[:2], windows[:3], 4, 2, (1e-3, 1e-2))


@pytest.mark.parametrize("start", ["whitened", "default", "pissa"])
def test_every_start_learns_and_the_rate_is_chosen_on_validation_windows(start, monkeypatch, model_dir):
    pytest.importorskip("peft")
    lesson = tiny_lesson(monkeypatch, model_dir)
    tried = [lora.fine_tuned(start, lesson, rate) for rate in lesson.rates]
    assert lora.tuned(start, lesson, 0) == min(tried, key=lambda found: found["validation"])
    assert tried[1]["loss"] < tried[1]["half_way"]


def test_a_share_out_of_range_is_refused(model_dir, text):
    with pytest.raises(InputError, match=r"^-p ratio=1\.0: expected the share of parameters to keep, between 0 and 1$"):
        loaded(model_dir, text, ratio=1.0)


def test_a_text_that_is_too_short_is_refused(model_dir, text):
    with pytest.raises(InputError, match=r"^-p sequences=500: the text has \d+ sequences of 128 tokens$"):
        loaded(model_dir, text, sequences=500)


def test_an_odd_depth_is_refused():
    with pytest.raises(InputError, match=r"^-p digits_ratio=0\.2 -p depth=3: expected a share between 0 and 1, and an"):
        digits.load(None, "quick", {"digits_ratio": 0.2, "depth": 3})


def test_rates_that_are_no_numbers_are_refused():
    pytest.importorskip("peft")
    with pytest.raises(InputError, match=r"^-p rates=fast: expected numbers with commas, such as 1e-3,4e-3$"):
        lora.load(None, "quick", {"lora_model": "small", "steps": 0, "rank": 4, "rates": "fast"})


@pytest.mark.slow
def test_the_main_part_runs_on_the_demo_model(tmp_path):
    alone = dataclasses.replace(TRIAL, also=())
    result = bench.run(alone, jobs=1, out=tmp_path / "run", progress=False)
    assert "dynamic whitening" in result.summary()
