"""`assay use lucid`: look at keys, convert by training, and time, through the door that a user takes."""

import re

import pytest
import torch

from assay._core.errors import InputError
from assay._core.tables import read_table

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """A tiny Llama with a tokenizer of 97 words, as save_pretrained writes them."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=160, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(97)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)
    return folder


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(" ".join(f"w{(i * i) % 97}" for i in range(700)), encoding="utf-8")
    return path


def test_keys_are_looked_at_layer_by_layer(run, model_dir, text, tmp_path):
    printed = run(
        "inspect", model_dir, "--text", text, "--tokens", "32", "--table", "keys.csv", "--plot", "keys.svg"
    ).stdout
    assert printed.startswith("2 layers, 4 heads of keys over all texts, 32 tokens each\n")
    table = read_table(tmp_path / "keys.csv", {"layer": "integer", "cosine": "number", "condition": "number"})
    assert len(table) == 2
    assert (table["condition"] >= 1).all()
    assert (tmp_path / "keys.svg").stat().st_size > 1000


def test_the_numbers_of_the_table_are_those_of_the_first_layer_s_keys(model_dir):
    from assay.models import load_lm
    from assay.nn.lucid import condition_number
    from assay.nn.lucid.keys import inspect_keys

    model, _ = load_lm(model_dir)
    ids = torch.arange(20)[None]
    before = model(ids).logits
    report = inspect_keys(model, ids)
    assert torch.equal(model(ids).logits, before)  # the model is as it was
    layer = model.model.layers[0]
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    with torch.no_grad():
        x = layer.input_layernorm(model.model.embed_tokens(ids))
        key = layer.self_attn.k_proj(x).view(1, 20, 2, 8).transpose(1, 2)
        key, _ = apply_rotary_pos_emb(key, key, *model.model.rotary_emb(x, torch.arange(20)[None]))
    assert report.condition[0] == pytest.approx(condition_number(key).flatten().numpy(), rel=1e-4)


def test_preconditioners_are_held_one_head_at_a_time(model_dir, monkeypatch):
    from assay.models import load_lm
    from assay.nn.lucid import keys

    held, whole = [], keys.condition_number
    monkeypatch.setattr(keys, "condition_number", lambda k, **options: held.append(k.shape) or whole(k, **options))
    report = keys.inspect_keys(load_lm(model_dir)[0], torch.arange(40).view(2, 20))
    assert held == [(20, 8)] * 8  # 2 layers, 2 texts, 2 heads of keys
    assert report.condition.shape == (2, 4)


def test_the_mean_cosine_is_that_of_all_pairs():
    from assay.nn.lucid.keys import mean_cosine

    k = torch.randn(3, 50, 8, generator=torch.Generator().manual_seed(0)) + 0.5
    pairs = torch.nn.functional.cosine_similarity(k[:, :, None], k[:, None], dim=-1)
    expected = pairs[:, torch.ones(50, 50).tril(-1).bool()].mean(-1)
    torch.testing.assert_close(mean_cosine(k), expected, rtol=0, atol=1e-6)


def test_the_keys_of_long_texts_are_not_held(model_dir):
    from assay.models import load_lm
    from assay.nn.lucid.keys import inspect_keys

    with pytest.raises(InputError, match=r"^ids \(1, 8193\): expected texts of 8,192 tokens at most; cut them$"):
        inspect_keys(load_lm(model_dir)[0], torch.zeros(1, 8193, dtype=torch.long))


def test_the_clock_on_the_cpu_is_the_processs_whatever_else_the_machine_has(monkeypatch):
    from assay.nn.lucid.timing import compare_speed

    def asked(*_):
        raise AssertionError("the accelerator has no part in this")

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "synchronize", asked)
    assert compare_speed([(2, 1, 8)], [16], repeats=1).speeds[0].sdpa_s > 0


@pytest.fixture
def little_text(monkeypatch):
    """The recipe makes a tokenizer of its own text first; a little text will do here."""
    from assay.models import small

    monkeypatch.setattr(small, "training_text", lambda: "A few words that tell one thing from another. " * 40)
    small.token_ids.cache_clear()
    yield
    small.token_ids.cache_clear()


@pytest.mark.usefixtures("little_text")
def test_a_model_is_converted_trained_and_loads(run, model_dir, text, tmp_path):
    options = ("--text", text, "--steps", "3", "--batch", "2", "--tokens", "16", "--learning-rate", "1e-2")
    printed = run("convert", model_dir, *options, "-o", "out").stdout
    names = re.findall(r"^(.+?) +perplexity +[\d.e+]+ +\[", printed, re.MULTILINE)
    assert names == ["softmax, as it was", "LUCID, not trained", "LUCID, 3 steps"]
    from assay.models import load_lm
    from assay.nn.lucid import load

    model, tokenizer = load(tmp_path / "out")
    assert model.config._attn_implementation == "lucid"
    assert len(tokenizer) == 97
    before, _ = load_lm(model_dir)
    assert not torch.equal(model.model.embed_tokens.weight, before.model.embed_tokens.weight)
    assert model.config.lucid_attention is True


@pytest.mark.usefixtures("little_text")
def test_a_training_that_was_finished_before_counts_as_training(run, model_dir, text, tmp_path):
    options = ("--text", text, "--steps", "2", "--batch", "1", "--tokens", "16")
    for out in ("one", "other"):  # the second reads the weights of the first
        printed = run("convert", model_dir, *options, "-o", out)
        assert "trained with another attention" not in printed.stderr
    from assay.nn.lucid import load

    assert load(tmp_path / "other")[0].config.lucid_attention is True


def test_without_steps_only_the_attention_is_switched(run, model_dir, tmp_path):
    printed = run("convert", model_dir, "--steps", "0", "-o", "out").stdout
    assert "steps" not in printed
    from assay.models import load_lm
    from assay.nn.lucid import load

    model, _ = load(tmp_path / "out")
    assert model.config.lucid_attention == "untrained"
    before, _ = load_lm(model_dir)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True))


def test_both_attentions_are_timed_at_the_shape_of_the_model(run, model_dir, tmp_path):
    printed = run("bench", model_dir, "--tokens", "16,32", "--table", "speed.csv", "--plot", "speed.png").stdout
    assert "4/2x8" in printed
    table = read_table(tmp_path / "speed.csv", {"n_tokens": "integer", "ratio": "number", "low": "number"})
    assert table["n_tokens"].tolist() == [16, 16, 32, 32]
    assert (table["low"] <= table["ratio"]).all()
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_the_help_opens_with_an_example(run):
    assert "Example: `assay use lucid inspect demo`" in " ".join(run("--help").stdout.split())


BAD = {
    "no folder": (("inspect", "./none"), "none: no such folder"),
    "no text": (("inspect", "MODEL", "--text", "none.txt"), "none.txt cannot be read as UTF-8 text: "),
    "short text": (
        ("inspect", "MODEL", "--text", "TEXT", "--tokens", "400"),
        "--windows 2 of --tokens 400: the text has 700 tokens",
    ),
    "a picture of no kind": (
        ("inspect", "MODEL", "--plot", "keys.doc"),
        "keys.doc: a picture is written as one of .png, .svg, .pdf",
    ),
    "a folder in use": (
        ("convert", "MODEL", "-o", "."),
        ". is there already; give the name of a new or empty folder",
    ),
    "no windows": (
        ("convert", "MODEL", "-o", "out", "--batch", "0"),
        "--steps 100 --batch 0 --tokens 256: expected 0, 1 and 8 or more",
    ),
    "learning rate": (
        ("convert", "MODEL", "-o", "out", "--learning-rate", "-1"),
        "--learning-rate -1: expected a number above zero, such as 1e-4",
    ),
    "no learning rate": (
        ("convert", "MODEL", "-o", "out", "--learning-rate", "nan"),
        "--learning-rate nan: expected a number above zero, such as 1e-4",
    ),
    "too short to train on": (
        ("convert", "MODEL", "-o", "out", "--text", "TEXT", "--tokens", "900"),
        "--tokens 900: the text has 700 tokens; bring a longer one or shorter windows",
    ),
    "lengths": (("bench", "--tokens", "many"), "--tokens takes lengths with commas, such as 512,2048, not 'many'"),
    "heads": (("bench", "--heads", "8", "--kv-heads", "3"), "heads=8, kv_heads=3, head_dim=64: kv_heads must divide"),
    "no model to time": (
        ("bench", "none"),
        "none holds no config.json, so it is not the folder of a Hugging Face model",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence(run, model_dir, text, arguments, message):
    named = {"MODEL": model_dir, "TEXT": text}
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        run(*(named.get(argument, argument) for argument in arguments))
